/* Objects of HDF5 files that the input of a fuzz target describes: types, shapes, layouts and values of any kind. */
#ifndef WF_TESTS_FUZZ_H5_H
#define WF_TESTS_FUZZ_H5_H

#include "tests/fuzz/fuzz.h"

#define H5_USE_110_API
#include <hdf5.h>

static inline hid_t number_type(input *in)
{
    const hid_t integers[] = {H5T_STD_I8LE,  H5T_STD_U8LE,  H5T_STD_I16BE, H5T_STD_U16LE, H5T_STD_I32LE,
                              H5T_STD_I32BE, H5T_STD_U32LE, H5T_STD_I64LE, H5T_STD_U64BE};
    const hid_t floats[] = {H5T_IEEE_F32LE, H5T_IEEE_F32BE, H5T_IEEE_F64LE, H5T_IEEE_F64BE, H5T_NATIVE_LDOUBLE};
    const unsigned which = take(in);
    if (which % 2)
        return H5Tcopy(integers[which / 2 % 9]);
    if (which % 3)
        return H5Tcopy(floats[which / 6 % 5]);
    const hid_t odd = H5Tcopy(H5T_IEEE_F32LE);
    const size_t exponent = 1 + take(in) % 14, mantissa = 1 + take(in) % 14;
    H5Tset_fields(odd, exponent + mantissa, mantissa, exponent, 0, mantissa);
    H5Tset_size(odd, 2 + take(in) % 3);
    H5Tset_precision(odd, exponent + mantissa + 1);
    return odd;
}

/* Without a name, or as h5py has booleans; with another value or another name than these. */
static inline hid_t any_enum(input *in)
{
    const unsigned how = take(in);
    const int8_t value[] = {0, how & 1 ? (int8_t)take(in) : 1};
    const hid_t type = H5Tenum_create(how & 2 ? H5T_STD_I16LE : H5T_STD_I8LE);
    for (int i = 0; i < 2 && !(how & 4); i++) {
        const int16_t wide = value[i];
        const char *const names[] = {"FALSE", how & 8 ? "MAYBE" : "TRUE"};
        H5Tenum_insert(type, names[i], how & 2 ? (const void *)&wide : &value[i]);
    }
    return type;
}

static inline hid_t any_type(input *in)
{
    const hsize_t two[] = {2};
    hid_t type, inner;
    switch (take(in) % 12) {
    case 0:
        type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, take(in) % 4 ? 1 + take(in) : H5T_VARIABLE);
        return type;
    case 1:
        type = H5Tcreate(H5T_COMPOUND, 8);
        H5Tinsert(type, "a", 0, H5T_STD_I32LE);
        return type;
    case 2:
        inner = number_type(in);
        type = H5Tarray_create2(inner, 1, two);
        H5Tclose(inner);
        return type;
    case 3:
        return H5Tvlen_create(H5T_STD_I32LE);
    case 4:
        return H5Tcreate(H5T_OPAQUE, 1 + take(in));
    case 5:
        return any_enum(in);
    default:
        return number_type(in);
    }
}

/* A dimension, seldom a huge one. */
static inline hsize_t any_dim(input *in)
{
    const unsigned n = take(in);
    return n < 240 ? n % 7 : (hsize_t)1 << (n % 64);
}

static inline hid_t any_space(input *in, hsize_t dim[H5S_MAX_RANK], int *rank)
{
    const unsigned how = take(in);
    *rank = how % 32 == 0 ? 0 : (int)(how % 9);
    for (int d = 0; d < *rank; d++)
        dim[d] = any_dim(in);
    if (*rank == 0)
        return H5Screate(how & 64 ? H5S_NULL : H5S_SCALAR);
    hsize_t most[H5S_MAX_RANK];
    for (int d = 0; d < *rank; d++)
        most[d] = how & 128 ? H5S_UNLIMITED : dim[d];
    return H5Screate_simple(*rank, dim, most);
}

static inline hid_t any_layout(input *in, int rank, const hsize_t *dim)
{
    const unsigned how = take(in);
    hsize_t chunk[H5S_MAX_RANK];
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    for (int d = 0; d < rank; d++)
        chunk[d] = 1 + take(in) % (dim[d] > 0 && dim[d] < 200 ? dim[d] : 8);
    if (how % 4 == 1)
        H5Pset_layout(list, H5D_COMPACT);
    if (how % 4 >= 2 && rank > 0)
        H5Pset_chunk(list, rank, chunk);
    if (how % 4 == 3 && rank > 0)
        H5Pset_deflate(list, how / 4 % 10);
    if (how % 16 == 15 && rank > 0)
        H5Pset_shuffle(list);
    if (how == 0)
        H5Pset_external(list, "/dev/zero", 0, H5F_UNLIMITED);
    return list;
}

/* Elements of a data set that is small, out of the input. */
static inline void write_values(input *in, hid_t set, hid_t space)
{
    unsigned char bytes[4096];
    const hid_t type = H5Dget_type(set);
    const hssize_t n = H5Sget_simple_extent_npoints(space);
    const size_t size = H5Tget_size(type);
    const H5T_class_t kind = H5Tget_class(type);
    if (n > 0 && (kind == H5T_INTEGER || kind == H5T_FLOAT || kind == H5T_ENUM) && (size_t)n <= sizeof bytes / size) {
        const unsigned step = take(in);
        for (size_t i = 0; i < (size_t)n * size; i++)
            bytes[i] = (unsigned char)(step < 128 ? i % size == 0 ? i / size * step : 0 : take(in));
        H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes);
    }
    H5Tclose(type);
}

static inline void add_dataset(input *in, hid_t file, const char *name)
{
    hsize_t dim[H5S_MAX_RANK];
    int rank;
    const hid_t type = any_type(in), space = any_space(in, dim, &rank), how = any_layout(in, rank, dim);
    const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    if (set >= 0) {
        write_values(in, set, space);
        H5Dclose(set);
    }
    H5Pclose(how);
    H5Sclose(space);
    H5Tclose(type);
}

/* Makes the file that all inputs use. */
static inline void begin_h5(void)
{
    make_name();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

#endif
