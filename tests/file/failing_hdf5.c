/* The functions of HDF5 that Weft calls: each counts the call, and fails it without doing it or hands it on to the
 * library. Linked into a program, they take the place of the library's, whose own calls inside it stay as they are. */
#include "tests/file/failing_hdf5.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define H5_USE_110_API
#include <hdf5.h>

static int calls, fails_at;
static bool fails_on;

void failing_hdf5_set(int n, bool on)
{
    calls = 0;
    fails_at = n;
    fails_on = on;
}

int failing_hdf5_calls(void)
{
    return calls;
}

static bool fails(void)
{
    calls++;
    return fails_at > 0 && (calls == fails_at || (fails_on && calls > fails_at));
}

static void *real(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (function)
        return function;
    fprintf(stderr, "HDF5 has no %s\n", name);
    abort();
}

#define NAME_TEXT(name) #name /* of the function that stands for it: versions of HDF5 number some of them by macros */
#define SHIM(type, failure, name, parameters, arguments)                                                               \
    type name parameters                                                                                               \
    {                                                                                                                  \
        static type(*function) parameters;                                                                             \
        if (!function)                                                                                                 \
            *(void **)&function = real(NAME_TEXT(name));                                                               \
        return fails() ? (failure) : function arguments;                                                               \
    }

SHIM(herr_t, -1, H5open, (void), ())
SHIM(herr_t, -1, H5Aclose, (hid_t a), (a))
SHIM(hid_t, -1, H5Acreate2, (hid_t a, const char *b, hid_t c, hid_t d, hid_t e, hid_t f), (a, b, c, d, e, f))
SHIM(htri_t, -1, H5Aexists, (hid_t a, const char *b), (a, b))
SHIM(hid_t, -1, H5Aget_space, (hid_t a), (a))
SHIM(hid_t, -1, H5Aget_type, (hid_t a), (a))
SHIM(hid_t, -1, H5Aopen, (hid_t a, const char *b, hid_t c), (a, b, c))
SHIM(herr_t, -1, H5Aread, (hid_t a, hid_t b, void *c), (a, b, c))
SHIM(herr_t, -1, H5Awrite, (hid_t a, hid_t b, const void *c), (a, b, c))
SHIM(herr_t, -1, H5Dclose, (hid_t a), (a))
SHIM(hid_t, -1, H5Dcreate2, (hid_t a, const char *b, hid_t c, hid_t d, hid_t e, hid_t f, hid_t g),
     (a, b, c, d, e, f, g))
SHIM(hid_t, -1, H5Dget_create_plist, (hid_t a), (a))
SHIM(haddr_t, HADDR_UNDEF, H5Dget_offset, (hid_t a), (a))
SHIM(hid_t, -1, H5Dget_space, (hid_t a), (a))
SHIM(hsize_t, 0, H5Dget_storage_size, (hid_t a), (a))
SHIM(hid_t, -1, H5Dget_type, (hid_t a), (a))
SHIM(hid_t, -1, H5Dopen2, (hid_t a, const char *b, hid_t c), (a, b, c))
SHIM(herr_t, -1, H5Dread, (hid_t a, hid_t b, hid_t c, hid_t d, hid_t e, void *f), (a, b, c, d, e, f))
SHIM(herr_t, -1, H5Dwrite, (hid_t a, hid_t b, hid_t c, hid_t d, hid_t e, const void *f), (a, b, c, d, e, f))
SHIM(herr_t, -1, H5Eclear2, (hid_t a), (a))
SHIM(herr_t, -1, H5Eget_auto2, (hid_t a, H5E_auto2_t *b, void **c), (a, b, c))
SHIM(herr_t, -1, H5Eset_auto2, (hid_t a, H5E_auto2_t b, void *c), (a, b, c))
SHIM(herr_t, -1, H5Ewalk2, (hid_t a, H5E_direction_t b, H5E_walk2_t c, void *d), (a, b, c, d))
SHIM(hid_t, -1, H5FDregister, (const H5FD_class_t *a), (a))
SHIM(herr_t, -1, H5Fclose, (hid_t a), (a))
SHIM(hid_t, -1, H5Fcreate, (const char *a, unsigned b, hid_t c, hid_t d), (a, b, c, d))
SHIM(hid_t, -1, H5Fopen, (const char *a, unsigned b, hid_t c), (a, b, c))
SHIM(herr_t, -1, H5free_memory, (void *a), (a))
SHIM(htri_t, -1, H5Iis_valid, (hid_t a), (a))
SHIM(htri_t, -1, H5Lexists, (hid_t a, const char *b, hid_t c), (a, b, c))
SHIM(herr_t, -1, H5Lget_info, (hid_t a, const char *b, H5L_info_t *c, hid_t d), (a, b, c, d))
SHIM(herr_t, -1, H5Lget_val, (hid_t a, const char *b, void *c, size_t d, hid_t e), (a, b, c, d, e))
SHIM(herr_t, -1, H5Oget_info_by_name2, (hid_t a, const char *b, H5O_info_t *c, unsigned d, hid_t e), (a, b, c, d, e))
SHIM(herr_t, -1, H5Ovisit2, (hid_t a, H5_index_t b, H5_iter_order_t c, H5O_iterate_t d, void *e, unsigned f),
     (a, b, c, d, e, f))
SHIM(herr_t, -1, H5Pclose, (hid_t a), (a))
SHIM(hid_t, -1, H5Pcreate, (hid_t a), (a))
SHIM(int, -1, H5Pget_chunk, (hid_t a, int b, hsize_t *c), (a, b, c))
SHIM(const void *, NULL, H5Pget_driver_info, (hid_t a), (a))
SHIM(int, -1, H5Pget_external_count, (hid_t a), (a))
SHIM(H5D_layout_t, H5D_LAYOUT_ERROR, H5Pget_layout, (hid_t a), (a))
SHIM(herr_t, -1, H5Pset_alignment, (hid_t a, hsize_t b, hsize_t c), (a, b, c))
SHIM(herr_t, -1, H5Pset_alloc_time, (hid_t a, H5D_alloc_time_t b), (a, b))
SHIM(herr_t, -1, H5Pset_chunk, (hid_t a, int b, const hsize_t *c), (a, b, c))
SHIM(herr_t, -1, H5Pset_create_intermediate_group, (hid_t a, unsigned b), (a, b))
SHIM(herr_t, -1, H5Pset_deflate, (hid_t a, unsigned b), (a, b))
SHIM(herr_t, -1, H5Pset_driver, (hid_t a, hid_t b, const void *c), (a, b, c))
SHIM(herr_t, -1, H5Pset_fclose_degree, (hid_t a, H5F_close_degree_t b), (a, b))
SHIM(herr_t, -1, H5Pset_fill_time, (hid_t a, H5D_fill_time_t b), (a, b))
SHIM(herr_t, -1, H5Pset_layout, (hid_t a, H5D_layout_t b), (a, b))
SHIM(herr_t, -1, H5Pset_libver_bounds, (hid_t a, H5F_libver_t b, H5F_libver_t c), (a, b, c))
SHIM(herr_t, -1, H5Pset_obj_track_times, (hid_t a, hbool_t b), (a, b))
SHIM(herr_t, -1, H5Sclose, (hid_t a), (a))
SHIM(hid_t, -1, H5Screate, (H5S_class_t a), (a))
SHIM(hid_t, -1, H5Screate_simple, (int a, const hsize_t *b, const hsize_t *c), (a, b, c))
SHIM(int, -1, H5Sget_simple_extent_dims, (hid_t a, hsize_t *b, hsize_t *c), (a, b, c))
SHIM(hssize_t, -1, H5Sget_simple_extent_npoints, (hid_t a), (a))
SHIM(H5S_class_t, H5S_NO_CLASS, H5Sget_simple_extent_type, (hid_t a), (a))
SHIM(herr_t, -1, H5Sselect_hyperslab,
     (hid_t a, H5S_seloper_t b, const hsize_t *c, const hsize_t *d, const hsize_t *e, const hsize_t *f),
     (a, b, c, d, e, f))
SHIM(herr_t, -1, H5Tclose, (hid_t a), (a))
SHIM(hid_t, -1, H5Tcopy, (hid_t a), (a))
SHIM(htri_t, -1, H5Tequal, (hid_t a, hid_t b), (a, b))
SHIM(H5T_class_t, H5T_NO_CLASS, H5Tget_class, (hid_t a), (a))
SHIM(herr_t, -1, H5Tget_fields, (hid_t a, size_t *b, size_t *c, size_t *d, size_t *e, size_t *f), (a, b, c, d, e, f))
SHIM(int, -1, H5Tget_nmembers, (hid_t a), (a))
SHIM(H5T_sign_t, H5T_SGN_ERROR, H5Tget_sign, (hid_t a), (a))
SHIM(size_t, 0, H5Tget_size, (hid_t a), (a))
SHIM(htri_t, -1, H5Tis_variable_str, (hid_t a), (a))
SHIM(herr_t, -1, H5Tset_ebias, (hid_t a, size_t b), (a, b))
SHIM(herr_t, -1, H5Tset_fields, (hid_t a, size_t b, size_t c, size_t d, size_t e, size_t f), (a, b, c, d, e, f))
SHIM(herr_t, -1, H5Tset_size, (hid_t a, size_t b), (a, b))
