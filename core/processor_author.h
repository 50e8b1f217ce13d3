/* The processor at hand. The library runs on any processor of its architecture: what is hot is in it several times, for
 * several levels of x86-64, and the newest level that the processor can run is taken. Either whole files are compiled
 * for every level (core/cpu, cmake/WeftCpu.cmake), or single functions are (WF_LEVELS). */
#ifndef WF_CORE_PROCESSOR_AUTHOR_H
#define WF_CORE_PROCESSOR_AUTHOR_H

/* In front of a function of loops that the compiler vectorises: the loader picks its form. It must give the same bits
 * in each, so no products that are added (a compiler may fuse them at one level alone). Sanitizers run too late for
 * that. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__OPTIMIZE__) && !defined(__AVX2__) &&                        \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define WF_LEVELS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WF_LEVELS
#endif

/* What the device `cpu` runs: "x86-64", "x86-64-v3", "x86-64-v4", or "native" in a library that was built for one
 * processor. WEFT_LEVEL asks for an older one. */
const char *wf_processor_level(void);

#endif
