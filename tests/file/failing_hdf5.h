/* HDF5 whose calls can fail: the functions of failing_hdf5.c stand before the library's. */
#ifndef WF_TESTS_FILE_FAILING_HDF5_H
#define WF_TESTS_FILE_FAILING_HDF5_H

#include <stdbool.h>

/* Call n from now, counted from 1, fails, and with `on` every later one. 0: none. */
void failing_hdf5_set(int n, bool on);
/* Calls since failing_hdf5_set. */
int failing_hdf5_calls(void);

#endif
