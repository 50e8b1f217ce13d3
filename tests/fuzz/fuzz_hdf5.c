/* HDF5 files from elsewhere, as wf_hdf5_dataset and the readers of models meet them: data sets of any type, shape,
 * layout and link, with any values, and any attribute "classes". The input says what is in the file, which HDF5 itself
 * writes, so that the file is sound: damaged ones are HDF5's own matter. If the first byte has bit 7, the input is the
 * file. */
#include "comm/file_author.h"
#include "datasets/hdf5.h"
#include "tests/fuzz/fuzz_samples.h"

#define H5_USE_110_API
#include <hdf5.h>

/* What is left of the input. */
typedef struct input {
    const uint8_t *at;
    size_t bytes;
} input;

static unsigned take(input *in)
{
    if (in->bytes == 0)
        return 0;
    in->bytes--;
    return *in->at++;
}

static hid_t number_type(input *in)
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

static hid_t any_type(input *in)
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
        return H5Tenum_create(H5T_STD_I8LE);
    default:
        return number_type(in);
    }
}

/* A dimension, seldom a huge one. */
static hsize_t any_dim(input *in)
{
    const unsigned n = take(in);
    return n < 240 ? n % 7 : (hsize_t)1 << (n % 64);
}

static hid_t any_space(input *in, hsize_t dim[H5S_MAX_RANK], int *rank)
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

static hid_t any_layout(input *in, int rank, const hsize_t *dim)
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
static void write_values(input *in, hid_t set, hid_t space)
{
    unsigned char bytes[4096];
    const hid_t type = H5Dget_type(set);
    const hssize_t n = H5Sget_simple_extent_npoints(space);
    const size_t size = H5Tget_size(type);
    const H5T_class_t kind = H5Tget_class(type);
    if (n > 0 && (kind == H5T_INTEGER || kind == H5T_FLOAT) && (size_t)n <= sizeof bytes / size) {
        const unsigned step = take(in);
        for (size_t i = 0; i < (size_t)n * size; i++)
            bytes[i] = (unsigned char)(step < 128 ? i % size == 0 ? i / size * step : 0 : take(in));
        H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes);
    }
    H5Tclose(type);
}

static void add_dataset(input *in, hid_t file, const char *name)
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

static void add_attribute(input *in, hid_t file)
{
    char text[32] = "10";
    hsize_t dim[H5S_MAX_RANK];
    int rank = 0;
    const unsigned how = take(in);
    const hid_t type = how % 3 ? H5Tcopy(H5T_C_S1) : any_type(in);
    if (how % 3)
        H5Tset_size(type, 1 + take(in) % 30);
    const hid_t space = how % 5 ? H5Screate(H5S_SCALAR) : any_space(in, dim, &rank);
    const hid_t attribute = H5Acreate2(file, "classes", type, space, H5P_DEFAULT, H5P_DEFAULT);
    for (size_t i = 0; how % 7 && i < sizeof text; i++)
        text[i] = (char)take(in);
    if (attribute >= 0) {
        if (how % 3 && how % 5)
            H5Awrite(attribute, type, text);
        H5Aclose(attribute);
    }
    H5Sclose(space);
    H5Tclose(type);
}

static void make_file(input *in, const char *path)
{
    const unsigned what = take(in);
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);

    fuzz_need(file >= 0, "HDF5 cannot create a file in memory");
    add_dataset(in, file, what & 1 ? "data" : "x");
    if (what & 1)
        H5Lcreate_soft("data", file, "x", H5P_DEFAULT, H5P_DEFAULT);
    if (what & 2)
        add_dataset(in, file, "labels");
    if (what & 4)
        add_attribute(in, file);
    if (what & 8)
        H5Lcreate_external("/etc/hostname", "x", file, "far", H5P_DEFAULT, H5P_DEFAULT);
    if (what & 16)
        H5Lcreate_hard(file, "/", file, "round", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
}

/* Describes and reads every data set that is small. */
static wf_status visit(void *user, wf_h5 *file, const char *name)
{
    wf_h5_info info;
    wf_status status = wf_h5_stat(file, name, &info);
    const int64_t count = status == WF_OK ? wf_shape_count(info.shape) : 0;
    if (status == WF_OK && !info.empty && count <= 1 << 16) {
        const wf_dtype dtype = wf_dtype_is_float(info.dtype) ? WF_F64 : WF_I64;
        void *x = malloc((size_t)count * 8);
        status = wf_h5_read(file, name, wf_box_of_shape(info.shape), dtype, x);
        free(x);
    }
    fuzz_end(status);
    return WF_OK;
}

/* HDF5 asks for the real name of a file, which a file in memory lacks. */
static fuzz_file file;

static void remove_name(void)
{
    unlink(file.path);
}

static void make_name(void)
{
    strcpy(file.path, "/dev/shm/weft-fuzz-XXXXXX");
    file.fd = mkstemp(file.path);
    fuzz_need(file.fd >= 0, "no file");
    atexit(remove_name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[8];
    if (!file.fd) {
        make_name();
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    }
    if (size < 1 || size > 1 << 16)
        return 0;
    if (*data & 128)
        fuzz_file_write(&file, data + 1, size - 1);
    else
        make_file(&(input){data, size}, file.path);
    wf_h5 *h5 = wf_h5_open(file.path);
    if (h5) {
        fuzz_end(wf_h5_each(h5, visit, NULL));
        fuzz_end(wf_h5_get_text(h5, "classes", text, sizeof text));
        fuzz_end(wf_h5_close(h5));
    } else {
        fuzz_end(wf_error_code());
    }
    fuzz_dataset(wf_hdf5_dataset(fuzz_ctx(), file.path, (wf_hdf5_opts){.cache_bytes = 1 << 12}), 64);
    return 0;
}
