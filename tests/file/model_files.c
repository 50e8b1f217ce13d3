/* Model files: what was saved is loaded bit for bit, by any number of ranks and in any form; Chainer's layout; errors.
 */
#include "comm/file_author.h"
#include "core/param_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/file/folder.h"
#include "tests/world.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static wf_mesh *mesh;

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

/* A model in serial form, or sharded by channels over all ranks. */
static wf_layer *model_new(bool sharded, int64_t classes)
{
    const wf_conv_opts first = {.in = 3, .out = 9, .kernel = 3}, second = {.in = 9, .out = 6, .kernel = 2};
    const wf_linear_opts last = {.in = 6, .out = classes};
    wf_layer *model = wf_module(ctx, no_forward, NULL), *stem = wf_module(ctx, no_forward, NULL);
    stem = wf_module_add(model, "stem", stem);
    wf_module_add(stem, "conv1", sharded ? wf_channel_conv2d(mesh, first) : wf_conv2d(ctx, first));
    wf_module_add(stem, "bn", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 9}));
    wf_module_add(model, "up", sharded ? wf_channel_conv_transpose2d(mesh, second) : wf_conv_transpose2d(ctx, second));
    wf_module_add(model, "fc", sharded ? wf_channel_linear(mesh, last) : wf_linear(ctx, last));
    return model;
}

static double value_at(int64_t parameter, int64_t i)
{
    return sin((double)(i + 1) * 0.37 + (double)parameter) * (i % 7 == 3 ? -0.0 : 1.0);
}

/* Every parameter becomes its part of a whole that a formula gives. */
static void fill(wf_layer *model)
{
    wf_param *const *params;
    int64_t n;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t p = 0; p < n; p++) {
        const int64_t count = wf_shape_count(params[p]->global);
        float *host = malloc((size_t)count * sizeof *host);
        for (int64_t i = 0; i < count; i++)
            host[i] = (float)value_at(p, i);
        wf_tensor *whole = wf_tensor_from_host(ctx, WF_F32, params[p]->global, host);
        WF_EXPECT_OK(wf_param_import(params[p], whole));
        wf_tensor_free(whole);
        free(host);
    }
}

static void check_param(wf_param *param, int64_t p)
{
    wf_tensor *whole = wf_param_gather(comm, param);
    const int64_t count = wf_tensor_count(whole);
    float *host = malloc((size_t)count * sizeof *host);
    int64_t wrong = 0;
    WF_EXPECT(wf_shape_equal(wf_tensor_shape(whole), param->global), "%s is not whole", wf_param_path(param));
    WF_EXPECT_OK(wf_tensor_export(whole, host, (size_t)count * sizeof *host));
    for (int64_t i = 0; i < count; i++) {
        const float expected = (float)value_at(p, i);
        wrong += memcmp(&host[i], &expected, sizeof expected) != 0;
    }
    WF_EXPECT(wrong == 0, "%lld elements of %s are not what was saved", (long long)wrong, wf_param_path(param));
    wf_tensor_free(whole);
    free(host);
}

static void check(wf_layer *model, const char *without)
{
    wf_param *const *params;
    int64_t n;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t p = 0; p < n; p++)
        if (!without || !strstr(wf_param_path(params[p]), without))
            check_param(params[p], p);
}

static void any_form_loads_any_form(void)
{
    for (int from = 0; from < 2; from++) {
        wf_layer *model = model_new(from, 10);
        fill(model);
        WF_EXPECT_OK(wf_save(model, in_folder("net.h5")));
        wf_layer_free(model);
        for (int to = 0; to < 2; to++) {
            wf_layer *loaded = model_new(to, 10);
            WF_EXPECT_OK(wf_load(loaded, in_folder("net.h5")));
            check(loaded, NULL);
            wf_layer_free(loaded);
        }
    }
}

static void a_file_has_chainers_layout(void)
{
    static const struct {
        const char *name;
        wf_dtype dtype;
        wf_shape shape;
    } expected[] = {
        {"fc/W", WF_F32, {2, {10, 6}}},
        {"fc/b", WF_F32, {1, {10}}},
        {"stem/bn/N", WF_I64, {0, {0}}},
        {"stem/bn/avg_mean", WF_F32, {1, {9}}},
        {"stem/bn/avg_var", WF_F32, {1, {9}}},
        {"stem/bn/beta", WF_F32, {1, {9}}},
        {"stem/bn/gamma", WF_F32, {1, {9}}},
        {"stem/conv1/W", WF_F32, {4, {9, 3, 3, 3}}},
        {"stem/conv1/b", WF_F32, {1, {9}}},
        {"up/W", WF_F32, {4, {9, 6, 2, 2}}},
        {"up/b", WF_F32, {1, {6}}},
    };
    wf_layer *model = model_new(false, 10);
    fill(model);
    WF_EXPECT_OK(wf_save(model, in_folder("layout.h5")));
    wf_h5 *file = wf_h5_open(in_folder("layout.h5"));
    WF_EXPECT(file, "cannot open it: %s", wf_error_message());
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        wf_h5_info info = {0};
        WF_EXPECT_OK(wf_h5_stat(file, expected[i].name, &info));
        WF_EXPECT(info.dtype == expected[i].dtype && wf_shape_equal(info.shape, expected[i].shape),
                  "%s has another type or shape", expected[i].name);
    }
    WF_EXPECT_OK(wf_h5_close(file));
    wf_layer_free(model);
}

static void what_is_in_common_is_loaded(void)
{
    char *left_out = NULL;
    wf_layer *model = model_new(true, 10), *other = model_new(true, 12);
    fill(model);
    wf_param *own = wf_layer_param(other, "fc/W");
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(own), 4));
    wf_module_add(other, "more", wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 2}));
    WF_EXPECT_OK(wf_save(model, in_folder("part.h5")));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_load(other, in_folder("part.h5")));
    WF_EXPECT_OK(wf_load_partial(other, in_folder("part.h5"), &left_out));
    const char *expected = "fc/W: f32 [12,6] here, f32 [10,6] in the file\nfc/b: f32 [12] here, f32 [10] in the file\n"
                           "more/W: not in the file\nmore/b: not in the file\n";
    WF_EXPECT(left_out && strcmp(left_out, expected) == 0, "left out is\n%s", left_out ? left_out : "NULL");
    free(left_out);
    check_param(wf_layer_param(other, "stem/conv1/W"), 0);
    wf_tensor *whole = wf_param_gather(comm, own);
    wf_tensor *first = wf_tensor_view(whole, (wf_box){2, {0, 0}, {1, 1}});
    WF_EXPECT(wf_tensor_item(first) == 4, "what was left out became %g", wf_tensor_item(first));
    wf_tensor_free(first);
    wf_tensor_free(whole);
    wf_layer_free(other);
    wf_layer_free(model);
}

/* Every failure is one error on all ranks, and the communicator lives on. */
static void errors_are_those_of_all_ranks(void)
{
    wf_layer *model = model_new(true, 10);
    fill(model);
    WF_EXPECT_ERROR(WF_ERR_IO, wf_load(model, in_folder("nothing.h5")));
    WF_EXPECT_ERROR(WF_ERR_IO, wf_save(model, "/nowhere/at/all/net.h5"));
    if (rank == 0) {
        FILE *text = fopen(in_folder("text.h5"), "w");
        fputs("no HDF5", text);
        fclose(text);
    }
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_load(model, in_folder("text.h5")));
    check(model, NULL);
    WF_EXPECT_OK(wf_barrier(comm));
    wf_layer_free(model);
}

static wf_layer *edges_new(wf_boundary b, int64_t pad)
{
    wf_layer *model = wf_module(ctx, no_forward, NULL);
    wf_module_add(model, "conv",
                  wf_conv2d(ctx, (wf_conv_opts){.in = 2, .out = 3, .kernel = 3, .pad = pad, .boundary = b}));
    return model;
}

/* The file of one boundary is loaded by another one, or refused by what this says. */
static void expect_edges(wf_boundary from, wf_boundary to, int64_t pad, const char *refused)
{
    wf_layer *saved = edges_new(from, 1), *model = edges_new(to, pad);
    char *left_out = NULL, line[300];
    fill(saved);
    WF_EXPECT_OK(wf_save(saved, in_folder("edges.h5")));
    const wf_status status = wf_load(model, in_folder("edges.h5"));
    WF_EXPECT(status == (refused ? WF_ERR_FORMAT : WF_OK), "status %d for %s", (int)status, refused ? refused : "none");
    snprintf(line, sizeof line, "conv/W: padding_mode is %s; the layer's boundary should have the file's edge",
             refused ? refused : "");
    WF_EXPECT(!refused || strstr(wf_error_message(), line), "it says: %s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_load_partial(model, in_folder("edges.h5"), &left_out));
    WF_EXPECT(left_out && strncmp(left_out, line, refused ? strlen(line) : 0) == 0 && (refused || !left_out[0]),
              "left out: %s", left_out ? left_out : "NULL");
    check(model, refused ? "conv/W" : NULL);
    free(left_out);
    wf_layer_free(saved);
    wf_layer_free(model);
}

/* Filters keep what lies beyond the image that they were trained on. */
static void padding_modes_are_checked(void)
{
    const wf_boundary none = {.edge = WF_EDGE_DEFAULT}, ring = {.edge = WF_EDGE_CIRCULAR};
    const wf_boundary mirror = {.edge = WF_EDGE_REFLECT}, tube = {.lo[2] = WF_EDGE_CIRCULAR, .hi[2] = WF_EDGE_CIRCULAR};
    expect_edges(ring, ring, 1, NULL);
    expect_edges(ring, none, 1, "zeros here, circular in the file");
    expect_edges(mirror, ring, 1, "circular here, reflect in the file");
    const wf_boundary turned = {.lo[3] = WF_EDGE_CIRCULAR, .hi[3] = WF_EDGE_CIRCULAR};
    expect_edges(tube, ring, 1, "circular here, circular,circular,zeros,zeros in the file");
    expect_edges(tube, turned, 1, "zeros,zeros,circular,circular here, circular,circular,zeros,zeros in the file");
    expect_edges(tube, tube, 1, NULL);
    expect_edges(ring, mirror, 0, NULL); /* no window reaches beyond */
    expect_edges(none, mirror, 1, NULL); /* a file that says nothing, as one of an earlier version */
    expect_edges((wf_boundary){.edge = WF_EDGE_CONSTANT}, none, 1, NULL);
}

/* Rank 0, which reads and writes the file, learns of layers that other ranks have. */
static void padding_modes_of_other_ranks(void)
{
    const wf_boundary ring = {.edge = WF_EDGE_CIRCULAR}, none = {.edge = WF_EDGE_DEFAULT};
    wf_layer *model[2];
    for (int k = 0; k < 2; k++) {
        const wf_boundary b = rank == size - 1 && k == 0 ? ring : none;
        char name[16];
        snprintf(name, sizeof name, "stage%d", rank);
        model[k] = wf_module(ctx, no_forward, NULL);
        wf_module_add(model[k], name, edges_new(b, 1));
        model[k]->part = rank;
        model[k]->parts = size;
    }
    WF_EXPECT_OK(wf_save(model[0], in_folder("stages.h5")));
    WF_EXPECT_OK(wf_load(model[0], in_folder("stages.h5")));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_load(model[1], in_folder("stages.h5")));
    wf_layer_free(model[0]);
    wf_layer_free(model[1]);
}

/* A full disk leaves the file that was there. */
static void a_failed_save_leaves_the_file(void)
{
    struct stat before, after;
    wf_layer *model = model_new(false, 10);
    fill(model);
    WF_EXPECT_OK(wf_save(model, in_folder("kept.h5")));
    stat(in_folder("kept.h5"), &before);
    if (rank == 0)
        mkdir(in_folder("kept.h5.tmp"), 0777);
    WF_EXPECT_ERROR(WF_ERR_IO, wf_save(model, in_folder("kept.h5")));
    stat(in_folder("kept.h5"), &after);
    WF_EXPECT(before.st_ino == after.st_ino && before.st_size == after.st_size, "the file is another");
    wf_layer_free(model);
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* On rank 0: links to a file that is not there yet, one of them relative, and links in a circle. */
static void make_links(void)
{
    WF_EXPECT(mkdir(in_folder("real"), 0777) == 0 && symlink("real/net.h5", in_folder("near.h5")) == 0 &&
                  symlink(in_folder("near.h5"), in_folder("far.h5")) == 0 &&
                  symlink("round.h5", in_folder("circle.h5")) == 0 && symlink("circle.h5", in_folder("round.h5")) == 0,
              "no links");
}

/* The file that a link leads to is made, and replaced; links stay. */
static void a_link_stays(void)
{
    struct stat before = {0}, after = {0};
    wf_layer *model = model_new(false, 10), *other = model_new(false, 10);
    fill(model);
    if (rank == 0)
        make_links();
    for (int i = 0; i < 2; i++) {
        WF_EXPECT_OK(wf_save(i == 0 ? other : model, in_folder("far.h5")));
        WF_EXPECT(is_link(in_folder("far.h5")) && is_link(in_folder("near.h5")), "a link has become a file");
        stat(in_folder("real/net.h5"), i == 0 ? &before : &after);
    }
    WF_EXPECT(before.st_ino != after.st_ino && after.st_size > 0, "the file was written in place");
    WF_EXPECT(access(in_folder("real/net.h5.tmp"), F_OK) != 0, "a temporary file is left");
    WF_EXPECT_OK(wf_load(other, in_folder("real/net.h5")));
    check(other, NULL);
    const wf_status status = wf_save(model, in_folder("circle.h5"));
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), strerror(ELOOP)), "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(comm));
    wf_layer_free(other);
    wf_layer_free(model);
}

/* A model saved as /dev/null would take its place; nothing is written. */
static void only_files_are_replaced(void)
{
    struct stat info = {0};
    const char *says[] = {"it is a folder", "it is not a regular file"}, *names[] = {"a-folder", "a-pipe"};
    wf_layer *model = model_new(false, 10);
    if (rank == 0)
        WF_EXPECT(mkdir(in_folder(names[0]), 0777) == 0 && mkfifo(in_folder(names[1]), 0666) == 0, "cannot make them");
    for (int i = 0; i < 2; i++) {
        const wf_status status = wf_save(model, in_folder(names[i]));
        WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), says[i]), "%s: %s", names[i], wf_error_message());
        wf_error_clear();
    }
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(stat(in_folder(names[1]), &info) == 0 && S_ISFIFO(info.st_mode), "the pipe is gone");
    WF_EXPECT(access(in_folder("a-pipe.tmp"), F_OK) != 0, "a temporary file is left");
    wf_layer_free(model);
}

/* For tests/file/h5py.sh: the file that h5py reads, and the one that it wrote. */
static void for_h5py(const char *what, const char *path)
{
    wf_layer *model = model_new(true, 10);
    if (strcmp(what, "--save") == 0) {
        fill(model);
        WF_EXPECT_OK(wf_save(model, path));
    } else {
        WF_EXPECT_OK(wf_load(model, path));
        check(model, NULL);
    }
    wf_layer_free(model);
}

static int on_ranks(int argc, char **argv)
{
    int failed = 0;
    if (!ranks_open(test_communicator("auto")))
        return 1;
    mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size});
    folder_make();
    if (argc > 2)
        for_h5py(argv[1], argv[2]);
    else
        failed = test_main(argc, argv,
                           (test_case[]){{"any_form_loads_any_form", any_form_loads_any_form},
                                         {"a_file_has_chainers_layout", a_file_has_chainers_layout},
                                         {"what_is_in_common_is_loaded", what_is_in_common_is_loaded},
                                         {"errors_are_those_of_all_ranks", errors_are_those_of_all_ranks},
                                         {"padding_modes_are_checked", padding_modes_are_checked},
                                         {"padding_modes_of_other_ranks", padding_modes_of_other_ranks},
                                         {"a_failed_save_leaves_the_file", a_failed_save_leaves_the_file},
                                         {"a_link_stays", a_link_stays},
                                         {"only_files_are_replaced", only_files_are_replaced},
                                         {0}});
    folder_remove();
    wf_mesh_close(mesh);
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
