/* The version of Weft, and what it was built with. Programs read them, and CMakeLists.txt takes the version from here.
 */
#ifndef WF_CORE_VERSION_H
#define WF_CORE_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers, with which a program is compiled. The library that it runs with says its own
 * (wf_version). CONTRIBUTING.md says which of them fit together. */
#define WF_VERSION_MAJOR 0
#define WF_VERSION_MINOR 1
#define WF_VERSION_PATCH 0

/* Returns the version of the library: "0.1.0". Static text. Local; callable before wf_comm_open. */
const char *wf_version(void);

/* Returns what the library was built with, in one line: compiler and kind of build, levels of the processor, and the
 * versions of MPI, oneDNN, HDF5, CUDA, cuDNN and NCCL ("no CUDA" where that is so). wf-doctor says which of them a
 * machine has. Static text. Local; callable before wf_comm_open. */
const char *wf_configuration(void);

#ifdef __cplusplus
}
#endif

#endif
