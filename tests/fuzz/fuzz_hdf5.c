/* HDF5 files from elsewhere, as wf_hdf5_dataset and the reader below model files (wf_h5_*) meet them: data sets of any
 * type, shape, layout and link, with any values, and any attribute "classes". The input says what is in the file, which
 * HDF5 itself writes, so that the file is sound: damaged ones are HDF5's own matter. If the first byte has bit 7, the
 * input is the file. */
#include "comm/file_author.h"
#include "datasets/hdf5.h"
#include "tests/fuzz/fuzz_h5.h"
#include "tests/fuzz/fuzz_samples.h"

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
        const int64_t number = (int8_t)text[0];
        if (how % 3 && how % 5)
            H5Awrite(attribute, type, text);
        else if (how % 5 && H5Tget_class(type) == H5T_INTEGER)
            H5Awrite(attribute, H5T_NATIVE_INT64, &number);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[8];
    if (!fuzz_named.fd)
        begin_h5();
    if (size < 1 || size > 1 << 16)
        return 0;
    if (*data & 128)
        fuzz_file_write(&fuzz_named, data + 1, size - 1);
    else
        make_file(&(input){data, size}, fuzz_named.path);
    wf_h5 *h5 = wf_h5_open(fuzz_named.path);
    if (h5) {
        fuzz_end(wf_h5_each(h5, visit, NULL));
        fuzz_end(wf_h5_get_text(h5, NULL, "classes", text, sizeof text));
        fuzz_end(wf_h5_close(h5));
    } else {
        fuzz_end(wf_error_code());
    }
    fuzz_dataset(wf_hdf5_dataset(fuzz_ctx(), fuzz_named.path, (wf_hdf5_opts){.cache_bytes = 1 << 12}), 64);
    return 0;
}
