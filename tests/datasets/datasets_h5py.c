/* HDF5 files as h5py and other programs write them: attributes that are integers or strings of variable length,
 * booleans, labels in a column, soft links, and integers that 63 bits do not hold. */
#include "comm/file_author.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/test.h"

#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 4 };

static wf_ctx *ctx;
static char path[] = "/tmp/weft-test-XXXXXX";
static const int64_t usual[N] = {0, 2, 1, 2};

static void write_set(hid_t file, const char *name, hid_t in_file, hid_t in_memory, int rank, const hsize_t *dim,
                      const void *data)
{
    const hid_t space = H5Screate_simple(rank, dim, NULL);
    const hid_t set = H5Dcreate2(file, name, in_file, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    WF_EXPECT(H5Dwrite(set, in_memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "cannot write %s", name);
    H5Dclose(set);
    H5Sclose(space);
}

/* A new file with samples "x" [N,2] of 0, 1, 2, ... */
static hid_t file_new(void)
{
    float x[2 * N];
    for (int i = 0; i < 2 * N; i++)
        x[i] = (float)i;
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    write_set(file, "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, (hsize_t[]){N, 2}, x);
    return file;
}

static void write_labels(hid_t file, const int64_t *labels)
{
    write_set(file, "labels", H5T_STD_I64LE, H5T_NATIVE_INT64, 1, (hsize_t[]){N}, labels);
}

static void write_attribute(hid_t file, hid_t type, const void *value)
{
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, "classes", type, space, H5P_DEFAULT, H5P_DEFAULT);
    WF_EXPECT(H5Awrite(attribute, type, value) >= 0, "cannot write classes");
    H5Aclose(attribute);
    H5Sclose(space);
}

/* What is read is `labels` of `classes`, and the samples of file_new. */
static void expect_labels(const char *what, const char *name, const int64_t *labels, int64_t classes)
{
    wf_dataset_info info = {0};
    wf_dataset *d = wf_hdf5_dataset(ctx, path, (wf_hdf5_opts){.labels = name});
    const wf_status status = wf_dataset_info_get(d, &info);
    WF_EXPECT(status == WF_OK, "%s: %s", what, wf_error_message());
    wf_error_clear();
    WF_EXPECT(info.classes == classes && info.count == N, "%s: %lld classes, %lld samples", what,
              (long long)info.classes, (long long)info.count);
    for (int64_t i = 0; status == WF_OK && i < N; i++) {
        float x[2] = {0};
        int64_t label = -1;
        WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, &label));
        WF_EXPECT(label == labels[i] && x[0] == (float)(2 * i), "%s: sample %lld is %g, %lld", what, (long long)i,
                  (double)x[0], (long long)label);
    }
    wf_dataset_free(d);
}

static void expect_refused(const char *what, wf_hdf5_opts opts, const char *says)
{
    wf_dataset_info info;
    wf_dataset *d = wf_hdf5_dataset(ctx, path, opts);
    wf_status status = wf_dataset_info_get(d, &info);
    if (status == WF_OK) {
        int64_t x[2 * N], label;
        status = wf_dataset_read(d, 0, &(wf_sample_key){0}, x, &label);
    }
    WF_EXPECT(status != WF_OK && strstr(wf_error_message(), says), "%s: says \"%s\", should say \"%s\"", what,
              status == WF_OK ? "nothing" : wf_error_message(), says);
    wf_error_clear();
    wf_dataset_free(d);
}

/* attrs["classes"] = 7, and = "7". */
static void classes(void)
{
    const char *text = "7";
    const int32_t seven = 7, none = -7;
    hid_t file = file_new(), type = H5Tcopy(H5T_C_S1);
    write_labels(file, usual);
    write_attribute(file, H5T_NATIVE_INT32, &seven);
    H5Fclose(file);
    expect_labels("an integer", NULL, usual, 7);
    file = file_new();
    write_labels(file, usual);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    write_attribute(file, type, &text);
    H5Fclose(file);
    expect_labels("a string of variable length", NULL, usual, 7);
    file = file_new();
    write_labels(file, usual);
    write_attribute(file, H5T_NATIVE_INT32, &none);
    H5Fclose(file);
    expect_refused("-7 classes", (wf_hdf5_opts){0}, "classes");
    H5Tclose(type);
}

static void large_labels(void)
{
    const int64_t most[N] = {0, INT64_MAX, 1, 2};
    const uint64_t above[N] = {0, (uint64_t)INT64_MAX + 1, 1, 2};
    hid_t file = file_new();
    write_labels(file, most);
    H5Fclose(file);
    expect_refused("2^63 - 1", (wf_hdf5_opts){0}, "label 9223372036854775807 of sample 1");
    file = file_new();
    write_set(file, "labels", H5T_STD_U64LE, H5T_NATIVE_UINT64, 1, (hsize_t[]){N}, above);
    write_set(file, "numbers", H5T_STD_U64LE, H5T_NATIVE_UINT64, 2, (hsize_t[]){2, 2}, above);
    write_set(file, "small", H5T_STD_U64BE, H5T_NATIVE_INT64, 1, (hsize_t[]){N}, usual);
    H5Fclose(file);
    expect_refused("labels of u64", (wf_hdf5_opts){0}, "labels has 9223372036854775808");
    expect_refused("samples of u64", (wf_hdf5_opts){.x = "numbers", .labels = ""}, "numbers has 9223372036854775808");
    expect_labels("small ones of u64", "small", usual, 3);
}

/* numpy.bool_ is an enumeration of FALSE and TRUE in h5py. */
static void booleans(void)
{
    const int8_t mask[N] = {0, 1, 1, 0};
    const int64_t labels[N] = {0, 1, 1, 0};
    int8_t value = 0;
    const hid_t type = H5Tenum_create(H5T_NATIVE_INT8), file = file_new();
    H5Tenum_insert(type, "FALSE", &value);
    value = 1;
    H5Tenum_insert(type, "TRUE", &value);
    write_set(file, "mask", type, type, 2, (hsize_t[]){2, 2}, mask);
    write_set(file, "labels", type, type, 1, (hsize_t[]){N}, mask);
    H5Fclose(file);
    H5Tclose(type);
    expect_labels("booleans", NULL, labels, 2);
    wf_dataset *d = wf_hdf5_dataset(ctx, path, (wf_hdf5_opts){.x = "mask", .labels = ""});
    wf_dataset_info info = {0};
    uint8_t x[2] = {9, 9};
    WF_EXPECT_OK(wf_dataset_info_get(d, &info));
    WF_EXPECT(info.dtype == WF_U8, "a mask is %s", wf_dtype_name(info.dtype));
    WF_EXPECT_OK(wf_dataset_read(d, 1, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT(x[0] == 1 && x[1] == 0, "the mask is %d %d", x[0], x[1]);
    wf_dataset_free(d);
}

static void a_column(void)
{
    const hid_t file = file_new();
    write_set(file, "labels", H5T_STD_I32LE, H5T_NATIVE_INT64, 2, (hsize_t[]){N, 1}, usual);
    write_set(file, "pairs", H5T_STD_I32LE, H5T_NATIVE_INT64, 2, (hsize_t[]){2, 2}, usual);
    H5Fclose(file);
    expect_labels("labels [4,1]", NULL, usual, 3);
    expect_refused("labels [2,2]", (wf_hdf5_opts){.labels = "pairs"}, "should be [4]");
}

static void links(void)
{
    const hid_t file = file_new();
    write_labels(file, usual);
    H5Gclose(H5Gcreate2(file, "train", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Lcreate_soft("/labels", file, "train/y", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("train", file, "now", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("y", file, "now/z", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("round", file, "round", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/nothing", file, "dangling", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external("/etc/hostname", "x", file, "far", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("far", file, "farther", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    expect_labels("a soft link", "train/y", usual, 3);
    expect_labels("soft links on the way", "now/z", usual, 3);
    const char *none[] = {"round", "dangling", "far", "farther", "now/nothing"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        expect_refused(none[i], (wf_hdf5_opts){.labels = none[i]}, none[i]);
}

int main(int argc, char **argv)
{
    const int made = mkstemp(path);
    WF_EXPECT(made >= 0, "cannot make %s", path);
    close(made);
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"classes", classes},
                                               {"large_labels", large_labels},
                                               {"booleans", booleans},
                                               {"a_column", a_column},
                                               {"links", links},
                                               {0}});
    wf_ctx_free(ctx);
    unlink(path);
    return failed;
}
