/* The wrapper of HDF5, for this folder. */
#ifndef WF_COMM_FILE_FILE_IMPL_H
#define WF_COMM_FILE_FILE_IMPL_H

#include "comm/file_author.h"

#define H5_USE_110_API /* of later versions too */
#include <hdf5.h>

struct wf_h5 {
    hid_t id;
    char *path;
    bool writes;
};

/* Every public function holds the lock from the first call of HDF5 to the last. HDF5's own messages go into ours. */
void wf_h5_lock(void);
void wf_h5_unlock(void);

/* Raises an error that says what failed, with HDF5's innermost reason. */
wf_status wf_h5_failed(wf_status code, const wf_h5 *file, const char *what, const char *name);

/* Types in the file and in memory; to be closed. Negative on failure. */
hid_t wf_h5_type(wf_dtype dtype);
/* The type that this is; WF_DTYPES for none. */
wf_dtype wf_h5_dtype(hid_t type);

#endif
