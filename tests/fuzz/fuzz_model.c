/* Model files from elsewhere, as wf_load and wf_load_partial meet them: the file of a small model in which the input
 * removes, replaces and links objects. HDF5 itself writes them, so that the file is sound. A model that refuses a file
 * stays as it was. */
#include "core/random_author.h"
#include "layers/layers.h"
#include "tests/fuzz/fuzz_h5.h"
#include "tests/fuzz/fuzz_samples.h"

enum { PATHS = 32, MOST = 1 << 20 };

static wf_layer *model;
static wf_param *const *params;
static int64_t n;
static unsigned char whole[MOST];
static ssize_t whole_bytes;

/* The file that wf_save writes is the one to spoil. */
static void make_model(void)
{
    wf_ctx *ctx = fuzz_ctx();
    model = wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 4}),
                                         wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 4}),
                                         wf_linear(ctx, (wf_linear_opts){.in = 4, .out = 2})));
    fuzz_need(model != NULL, "no model");
    fuzz_need(wf_layer_params(model, &n, &params) == WF_OK && n > 0 && n < PATHS, "no parameters");
    fuzz_need(wf_save(model, fuzz_named.path) == WF_OK, "the model is not saved");
    const int saved = open(fuzz_named.path, O_RDONLY);
    whole_bytes = read(saved, whole, sizeof whole);
    fuzz_need(whole_bytes > 0 && whole_bytes < MOST, "the file of the model is not read");
    close(saved);
    /* wf_save renames, so that the name is that of another file now. */
    close(fuzz_named.fd);
    fuzz_named.fd = open(fuzz_named.path, O_RDWR);
    fuzz_need(fuzz_named.fd >= 0, "no file");
}

static uint64_t values(void)
{
    double x[64];
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i++) {
        const wf_tensor *value = wf_param_value(params[i]);
        const size_t bytes = wf_tensor_bytes(value);
        fuzz_need(bytes <= sizeof x && wf_tensor_export(value, x, bytes) == WF_OK, "a value is not read");
        for (size_t b = 0; b < bytes; b++)
            hash = wf_hash_u64(hash, ((const unsigned char *)x)[b]);
    }
    return hash;
}

/* A data set of the right shape with numbers of any type. */
static void replace_values(input *in, hid_t h5, wf_param *param, const char *path)
{
    const wf_shape shape = wf_tensor_shape(wf_param_value(param));
    hsize_t dim[H5S_MAX_RANK];
    for (int d = 0; d < shape.rank; d++)
        dim[d] = (hsize_t)shape.dim[d];
    const hid_t type = number_type(in), space = H5Screate_simple(shape.rank, dim, NULL);
    const hid_t set = H5Dcreate2(h5, path, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (set >= 0) {
        write_values(in, set, space);
        H5Dclose(set);
    }
    H5Sclose(space);
    H5Tclose(type);
}

static void spoil(input *in, hid_t h5)
{
    wf_param *param = params[take(in) % n], *other = params[take(in) % n];
    const char *path = wf_param_path(param);
    const unsigned what = take(in) % 10;
    if (what < 8)
        H5Ldelete(h5, path, H5P_DEFAULT);
    switch (what) {
    case 1:
    case 2:
        add_dataset(in, h5, path);
        break;
    case 3:
        replace_values(in, h5, param, path);
        break;
    case 4:
        H5Lcreate_soft(wf_param_path(other), h5, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 5:
        H5Lcreate_hard(h5, "/", h5, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 6:
        H5Lcreate_external("/etc/hostname", "x", h5, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 7:
        H5Gclose(H5Gcreate2(h5, path, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        break;
    case 8:
        add_dataset(in, h5, "more");
        break;
    default:
        break; /* with what < 8: removed alone */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *left_out = NULL;
    if (!fuzz_named.fd) {
        begin_h5();
        make_model();
    }
    if (size > 1 << 12)
        return 0;
    fuzz_file_write(&fuzz_named, whole, (size_t)whole_bytes);
    const hid_t h5 = H5Fopen(fuzz_named.path, H5F_ACC_RDWR, H5P_DEFAULT);
    fuzz_need(h5 >= 0, "HDF5 cannot open the model's file");
    for (input in = {data, size}; in.bytes > 0;)
        spoil(&in, h5);
    H5Fclose(h5);

    const uint64_t before = values();
    const wf_status status = wf_load(model, fuzz_named.path);
    fuzz_need(status == WF_OK || values() == before, "a model was changed by a file that it refused");
    fuzz_end(status);
    fuzz_end(wf_load_partial(model, fuzz_named.path, &left_out));
    free(left_out);
    return 0;
}
