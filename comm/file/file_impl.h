/* The wrapper of HDF5, for this folder. */
#ifndef WF_COMM_FILE_FILE_IMPL_H
#define WF_COMM_FILE_FILE_IMPL_H

#include "comm/file_author.h"

#define H5_USE_110_API /* of later versions too */
#include <hdf5.h>

typedef struct wf_h5_driver wf_h5_driver;

struct wf_h5 {
    hid_t id;
    char *path;
    bool writes;
    wf_h5_driver *driver; /* while HDF5 has a file open that we write; it may outlive this struct */
    int error;            /* errno of the first access to such a file that failed; 0: none */
};

/* --- driver.c --- */
/* HDF5 shall write the file that is made with this property list, which belongs to `owner`, by our driver. */
bool wf_h5_driver_set(hid_t list, wf_h5 *owner);
/* The wf_h5 goes; HDF5 did not let go of the file. */
void wf_h5_driver_leave(wf_h5_driver *driver);

/* Every public function holds the lock from the first call of HDF5 to the last. Meanwhile the reason of the first call
 * that fails is noted when it fails, since the next call would clear HDF5's stack of errors. wf_h5_forget: the
 * calls that failed so far were questions, not errors. */
void wf_h5_forget(void);

/* Raises an error that says what failed, with the reason: the system's where the file could not be written, else
 * HDF5's. */
wf_status wf_h5_failed(wf_status code, wf_h5 *file, const char *what, const char *name);

/* Types in the file and in memory; to be closed. Negative on failure. */
hid_t wf_h5_type(wf_dtype dtype);
/* The type that this is; WF_DTYPES for none. */
wf_dtype wf_h5_dtype(hid_t type);

#endif
