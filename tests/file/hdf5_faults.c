/* Saves that fail inside HDF5: call n of the library fails, or a write at byte n of the file. Each is one error, the
 * file that was there before stays, and the process ends well: HDF5 writes what it still has open while it exits, so
 * every save is in a process of its own. With a folder on a small file system as argument, that gets full, too. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/file/disk.h"
#include "tests/file/failing_hdf5.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <hdf5.h>

enum { LAYERS = 24, OLD = 1, NEW = 2 };

/* One save: what goes wrong in it. */
typedef struct fault {
    int call;         /* of HDF5; 0: none */
    bool on;          /* every later one fails, too */
    int64_t byte;     /* the file may not become longer; -1: any length */
    const char *says; /* in the message */
} fault;

static char folder[] = "/tmp/weft-test-XXXXXX", path[256];
static wf_ctx *ctx;

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

/* Many small layers, so that HDF5's own structures are most of the file. */
static wf_layer *model_new(double value)
{
    wf_param *const *params;
    int64_t n;
    wf_layer *model = wf_module(ctx, no_forward, NULL);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", i);
        wf_module_add(model, name, wf_linear(ctx, (wf_linear_opts){.in = 5, .out = 3 + 40 * (i % 4)}));
    }
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT_OK(wf_tensor_fill(wf_param_value(params[i]), value));
    return model;
}

static void expect_file(const char *when, double value)
{
    char temporary[300];
    wf_layer *model = model_new(0);
    const wf_status status = wf_load(model, path);
    WF_EXPECT(status == WF_OK, "%s: the file cannot be read: %s", when, wf_error_message());
    wf_tensor *first = wf_tensor_view(wf_param_value(wf_layer_param(model, "layer3/b")), (wf_box){1, {0}, {1}});
    WF_EXPECT(wf_tensor_item(first) == value, "%s: the file has %g, should have %g", when, wf_tensor_item(first),
              value);
    wf_tensor_free(first);
    wf_layer_free(model);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    WF_EXPECT(access(temporary, F_OK) != 0, "%s: %s is left", when, temporary);
}

static void expect_one_line(const char *when, const char *says)
{
    const char *message = wf_error_message();
    WF_EXPECT(strncmp(message, path, strlen(path)) == 0 && !strchr(message, '\n'), "%s: says \"%s\"", when, message);
    WF_EXPECT(!says || strstr(message, says), "%s: says \"%s\", should say \"%s\"", when, message, says);
}

/* In a process of its own: calls of the save, -1 where something was wrong. */
static int save_with(const fault *f)
{
    char when[64];
    struct rlimit limit = {(rlim_t)f->byte, RLIM_INFINITY};
    snprintf(when, sizeof when, "call %d%s, byte %lld", f->call, f->on ? " and later" : "", (long long)f->byte);
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    wf_layer *model = model_new(NEW);
    signal(SIGXFSZ, SIG_IGN);
    if (f->byte >= 0)
        WF_EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0, "cannot limit the length of files");
    failing_hdf5_set(f->call, f->on);
    const wf_status status = wf_save(model, path);
    const int calls = failing_hdf5_calls();
    failing_hdf5_set(0, false);
    if (status != WF_OK)
        expect_one_line(when, f->says);
    wf_error_clear();
    /* A handle that cannot be closed is no reason to refuse a file that is whole. */
    expect_file(when, status == WF_OK ? NEW : OLD);
    wf_layer_free(model);
    wf_ctx_free(ctx);
    return test_failures() > 0 ? -1 : calls;
}

/* The save in a child, whose exit counts. Calls that it made; -1: something was wrong. */
static int save_in_child(const fault *f)
{
    int ends[2], status = 0, calls = -1;
    WF_EXPECT(pipe(ends) == 0, "no pipe");
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        calls = save_with(f);
        exit(write(ends[1], &calls, sizeof calls) == sizeof calls ? 0 : 1);
    }
    close(ends[1]);
    WF_EXPECT(read(ends[0], &calls, sizeof calls) == sizeof calls, "call %d, byte %lld: the process has no result",
              f->call, (long long)f->byte);
    close(ends[0]);
    waitpid(child, &status, 0);
    WF_EXPECT(status == 0, "call %d%s, byte %lld: the process ends with %s %d", f->call, f->on ? " and later" : "",
              (long long)f->byte, WIFSIGNALED(status) ? "signal" : "code",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    WF_EXPECT(calls >= 0, "call %d, byte %lld: something was wrong in the process", f->call, (long long)f->byte);
    return calls;
}

static void save_old(void)
{
    fflush(NULL);
    const pid_t child = fork();
    int status = 0;
    if (child == 0) {
        ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
        wf_layer *model = model_new(OLD);
        WF_EXPECT_OK(wf_save(model, path));
        wf_layer_free(model);
        wf_ctx_free(ctx);
        exit(test_failures() > 0);
    }
    waitpid(child, &status, 0);
    WF_EXPECT(status == 0, "cannot save before");
}

static void copy_file(const char *from, const char *to)
{
    char command[600];
    snprintf(command, sizeof command, "cp %s %s", from, to);
    WF_EXPECT(system(command) == 0, "%s", command);
}

/* The layers are alike, so the calls of the first ones and of the end stand for all. */
static void every_call_fails(bool on)
{
    enum { FIRST = 200, LAST = 100 };
    char old[300];
    save_old();
    snprintf(old, sizeof old, "%s.old", path);
    copy_file(path, old);
    const int calls = save_in_child(&(fault){.byte = -1}), step = FIRST / test_samples(FIRST);
    WF_EXPECT(calls > FIRST + LAST, "%d calls of HDF5 were counted in a save", calls);
    for (int n = 1; n <= FIRST + LAST; n += step) {
        copy_file(old, path);
        save_in_child(&(fault){.call = n <= FIRST ? n : calls - FIRST - LAST + n, .on = on, .byte = -1});
    }
}

static void every_call_of_a_save(void)
{
    every_call_fails(false);
}

static void every_call_from_one_on(void)
{
    every_call_fails(true);
}

static void a_write_at_every_length(void)
{
    save_old();
    const int64_t bytes = size_of(path), step = bytes / test_samples(80);
    for (int64_t at = 0; at < bytes; at += step)
        save_in_child(&(fault){.byte = at, .says = strerror(EFBIG)});
}

/* --- What a message says ------------------------------------------------------------------------------------------ */

static void expect_reason(wf_status status, const char *says)
{
    WF_EXPECT(status != WF_OK && strstr(wf_error_message(), says) && !strchr(wf_error_message(), '\n'),
              "says \"%s\", should say \"%s\"", status == WF_OK ? "nothing" : wf_error_message(), says);
    wf_error_clear();
}

static size_t pass_on(unsigned flags, size_t n, const unsigned values[], size_t bytes, size_t *room, void **buffer)
{
    return bytes;
}

/* A file with the model's first parameter, by a filter that readers do not have. */
static void write_filtered(void)
{
    enum { FILTER = 300 };
    const H5Z_class2_t filter = {H5Z_CLASS_T_VERS, FILTER, 1, 1, "weft's own", NULL, NULL, pass_on};
    const float value = 1;
    const hsize_t one = 1;
    WF_EXPECT(H5Zregister(&filter) >= 0, "no filter");
    const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, 1, &one);
    H5Pset_filter(how, FILTER, 0, 0, NULL);
    const hid_t space = H5Screate_simple(1, &one, NULL);
    const hid_t set = H5Dcreate2(file, "b", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, how, H5P_DEFAULT);
    WF_EXPECT(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, &value) >= 0, "cannot write");
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(how);
    H5Fclose(file);
    H5Zunregister(FILTER);
}

/* HDF5 and the system say why; the message keeps it. */
static void reasons(void)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    wf_layer *model = wf_linear(ctx, (wf_linear_opts){.in = 1, .out = 1, .no_bias = true});
    wf_layer *other = wf_module(ctx, no_forward, NULL);
    wf_layer_add_param(other, "b", (wf_param_opts){.shape = WF_SHAPE(1)});
    expect_reason(wf_save(model, "/nowhere/at/all/net.h5"), strerror(ENOENT));
    expect_reason(wf_save(model, "/proc/net.h5"), "/proc/net.h5.tmp: cannot create this file: ");
    WF_EXPECT_OK(wf_save(model, path));
    WF_EXPECT(truncate(path, size_of(path) - 100) == 0, "cannot truncate");
    expect_reason(wf_load(model, path), "truncated file");
    WF_EXPECT(truncate(path, 0) == 0, "cannot truncate");
    expect_reason(wf_load(model, path), "file signature not found");
    write_filtered();
    expect_reason(wf_load(other, path), "filter 'weft's own' is not registered");
    expect_reason(wf_load(model, folder), "it is a folder");
    wf_layer_free(other);
    wf_layer_free(model);
    wf_ctx_free(ctx);
}

/* --- A small file system ------------------------------------------------------------------------------------------ */

static void a_full_file_system(void)
{
    char junk[300];
    snprintf(junk, sizeof junk, "%s.junk", path);
    save_old();
    const int pages = (int)(size_of(path) / DISK_PAGE);
    WF_EXPECT(pages > 8, "the file has only %d pages", pages);
    for (int k = 0; k < pages; k++) {
        fill_disk(junk, k);
        save_in_child(&(fault){.byte = -1, .says = strerror(ENOSPC)});
        unlink(junk);
    }
}

int main(int argc, char **argv)
{
    char command[300];
    if (argc > 1 && *argv[1] == '/') {
        snprintf(path, sizeof path, "%s/net.h5", argv[1]);
        return test_main(1, argv, (test_case[]){{"a_full_file_system", a_full_file_system}, {0}});
    }
    WF_EXPECT(mkdtemp(folder), "cannot make %s", folder);
    snprintf(path, sizeof path, "%s/net.h5", folder);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"every_call_of_a_save", every_call_of_a_save},
                                               {"every_call_from_one_on", every_call_from_one_on},
                                               {"a_write_at_every_length", a_write_at_every_length},
                                               {"reasons", reasons},
                                               {0}});
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return failed || system(command) != 0;
}
