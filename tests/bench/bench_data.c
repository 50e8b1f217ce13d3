/* How fast samples come: bench_data FOLDER [threads], on one rank. With `threads`: how many pictures of a folder one,
 * two and more threads decode and augment in a second, and the processor time of each of them, which on a busy machine
 * says how evenly they share the work. Without: reading parts of contiguous HDF5 files by wf_hdf5_dataset against plain
 * reads of the same bytes, and how long a training step waits for its batch, of images as large as CIFAR's with flip
 * and crop, from such a file, compressed or not. */
#include "comm/file_author.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "examples/models/resnet.h"
#include "layers/layers.h"
#include "optim/optim.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5 };

static void make_file(const char *path, wf_shape shape, wf_shape chunk, int level)
{
    const size_t bytes = (size_t)wf_shape_count(shape);
    unsigned char *x = malloc(bytes);
    int64_t *labels = calloc((size_t)shape.dim[0], sizeof *labels);
    for (size_t i = 0; i < bytes; i++)
        x[i] = (unsigned char)((i * 2654435761u >> 13) & 63);
    for (int64_t i = 0; i < shape.dim[0]; i++)
        labels[i] = i % 10;
    wf_h5 *file = wf_h5_create(path);
    WF_MUST(level ? wf_h5_add_chunked(file, "x", WF_U8, shape, chunk, level) : wf_h5_add(file, "x", WF_U8, shape));
    WF_MUST(wf_h5_add(file, "labels", WF_I64, WF_SHAPE(shape.dim[0])));
    WF_MUST(wf_h5_write(file, "x", wf_box_of_shape(shape), x));
    WF_MUST(wf_h5_write(file, "labels", wf_box_of_shape(WF_SHAPE(shape.dim[0])), labels));
    WF_MUST(wf_h5_close(file));
    free(x);
    free(labels);
}

/* --- Reading ------------------------------------------------------------------------------------------------------ */

/* Rows [lo, hi) of every channel of every sample, one plain read for each; whole samples in one. */
static double read_plain(const char *path, wf_shape shape, int64_t lo, int64_t hi, unsigned char *x)
{
    wf_h5_info info;
    wf_h5 *h5 = wf_h5_open(path);
    WF_MUST(wf_h5_stat(h5, "x", &info));
    WF_MUST(wf_h5_close(h5));
    const int file = open(path, O_RDONLY);
    const double start = bench_seconds();
    const bool whole = hi - lo == shape.dim[2];
    const int64_t row = shape.dim[3], joined = whole ? shape.dim[1] : 1, plane = joined * shape.dim[2] * row;
    const int64_t planes = shape.dim[0] * shape.dim[1] / joined, each = shape.dim[1] / joined;
    const size_t bytes = (size_t)(joined * (hi - lo) * row);
    for (int64_t p = 0; p < planes; p++)
        if (pread(file, x + (size_t)(p % each) * bytes, bytes, info.offset + p * plane + lo * row) != (ssize_t)bytes)
            fprintf(stderr, "a short read\n");
    const double seconds = bench_seconds() - start;
    close(file);
    return seconds;
}

static double read_boxes(wf_ctx *ctx, const char *path, wf_shape shape, int64_t lo, int64_t hi, unsigned char *x)
{
    wf_dataset *d = wf_hdf5_dataset(ctx, path, (wf_hdf5_opts){0});
    const wf_box box = {.rank = 3, .lo = {0, lo, 0}, .hi = {shape.dim[1], hi, shape.dim[3]}};
    WF_MUST(wf_dataset_open(d));
    const double start = bench_seconds();
    for (int64_t i = 0; i < shape.dim[0]; i++)
        WF_MUST(wf_dataset_read_box(d, i, &(wf_sample_key){0}, &box, x, NULL));
    const double seconds = bench_seconds() - start;
    wf_dataset_free(d);
    return seconds;
}

/* The best of some rounds that alternate. */
static void compare_reads(wf_ctx *ctx, const char *path, wf_shape shape, int64_t lo, int64_t hi, const char *what)
{
    const double bytes = (double)(shape.dim[0] * shape.dim[1] * (hi - lo) * shape.dim[3]);
    unsigned char *x = malloc((size_t)(shape.dim[1] * shape.dim[2] * shape.dim[3]));
    double plain = 1e9, boxes = 1e9;
    make_file(path, shape, wf_shape_scalar(), 0);
    for (int i = 0; i < ROUNDS; i++) {
        const double p = read_plain(path, shape, lo, hi, x), b = read_boxes(ctx, path, shape, lo, hi, x);
        plain = p < plain ? p : plain;
        boxes = b < boxes ? b : boxes;
    }
    free(x);
    printf("%-34s plain %7.0f MB/s  wf_hdf5_dataset %7.0f MB/s  ratio %.2f\n", what, bytes / plain / 1e6,
           bytes / boxes / 1e6, plain / boxes);
}

/* --- Waiting ------------------------------------------------------------------------------------------------------ */

typedef struct trainer {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
} trainer;

static void step(const trainer *t, const wf_batch *b)
{
    wf_var *scores = wf_apply(t->model, wf_input(t->tape, b->x));
    WF_MUST(wf_optim_step(t->optim, wf_softmax_cross_entropy(scores, b->labels, (wf_label_opts){0})));
    WF_MUST(wf_tape_reset(t->tape));
}

static void wait_for_batches(wf_ctx *ctx, const trainer *t, const char *path, const char *what)
{
    wf_dataset *d = wf_hdf5_dataset(ctx, path, (wf_hdf5_opts){.cache_bytes = (size_t)8 << 20});
    d = wf_transform_random_flip(wf_transform_random_crop(d, 4, 32, 32));
    wf_iter *iter =
        wf_prefetch(wf_batches(d, (wf_batch_opts){.size = 64, .shuffle = true}), (wf_prefetch_opts){.depth = 2});
    double waited = 0, start = 0;
    for (int i = 0; i < 40; i++) {
        wf_batch b;
        if (i == 5) {
            start = bench_seconds();
            waited = 0;
        }
        const double before = bench_seconds();
        WF_MUST(wf_iter_next(iter, &b));
        waited += bench_seconds() - before;
        step(t, &b);
    }
    const double all = bench_seconds() - start;
    printf("%-34s step %6.1f ms  waits for its batch %.3f ms, %.2f %%\n", what, all / 35 * 1e3, waited / 35 * 1e3,
           100 * waited / all);
    wf_iter_free(iter);
}

/* --- Threads ------------------------------------------------------------------------------------------------------ */

enum { PICTURES = 64, PIXELS = 256, BATCHES = 24, MOST_THREADS = 64 };

/* Waves with noise, as hard to decode as a photograph. */
static void make_pictures(wf_ctx *ctx, const char *folder)
{
    float *pixel = malloc((size_t)3 * PIXELS * PIXELS * sizeof *pixel);
    for (int n = 0; n < PICTURES; n++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/bench_data_%03d.png", folder, n);
        for (int i = 0; i < 3 * PIXELS * PIXELS; i++)
            pixel[i] = (float)(((uint32_t)(i + n) * 2654435761u >> 24 & 31) + (uint32_t)(i / PIXELS + n) % 200) / 255;
        wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(1, 3, PIXELS, PIXELS), pixel);
        WF_MUST(wf_write_png_grid(path, x, 1, 1, 0, 1));
        wf_tensor_free(x);
    }
    free(pixel);
}

/* Seconds of processor time of every thread but the first, the largest in *most. */
static double threads_seconds(double *most)
{
    double sum = 0;
    DIR *tasks = opendir("/proc/self/task");
    *most = 0;
    for (struct dirent *e = tasks ? readdir(tasks) : NULL; e; e = readdir(tasks)) {
        char path[300];
        long long ns = 0;
        if (atoi(e->d_name) <= 0 || atoi(e->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", e->d_name);
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%lld", &ns) != 1)
            ns = 0;
        if (file)
            fclose(file);
        sum += (double)ns * 1e-9;
        *most = (double)ns * 1e-9 > *most ? (double)ns * 1e-9 : *most;
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

static double load_pictures(wf_ctx *ctx, const char *folder, int workers, double first)
{
    wf_dataset *d = wf_image_folder(ctx, folder, (wf_image_folder_opts){0});
    d = wf_transform_random_flip(wf_transform_random_crop(d, 0, 224, 224));
    wf_iter *iter = wf_prefetch(wf_batches(d, (wf_batch_opts){.size = 32, .shuffle = true}),
                                (wf_prefetch_opts){.workers = workers});
    wf_batch b;
    double most;
    WF_MUST(wf_iter_next(iter, &b));
    const double start = bench_seconds();
    for (int i = 0; i < BATCHES; i++)
        WF_MUST(wf_iter_next(iter, &b));
    const double rate = 32 * BATCHES / (bench_seconds() - start), sum = threads_seconds(&most);
    printf("%2d threads  %7.0f pictures/s, %.2f of one's  processor time %.2f s, of the busiest %.2f s: at most %.2f\n",
           workers, rate, first > 0 ? rate / first : 1, sum, most, sum / most);
    wf_iter_free(iter);
    return rate;
}

static void compare_threads(wf_ctx *ctx, const char *folder)
{
    make_pictures(ctx, folder);
    const double first = load_pictures(ctx, folder, 1, 0);
    for (long n = 2; n <= sysconf(_SC_NPROCESSORS_ONLN) && n <= MOST_THREADS; n *= 2)
        load_pictures(ctx, folder, (int)n, first);
    for (int n = 0; n < PICTURES; n++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/bench_data_%03d.png", folder, n);
        unlink(path);
    }
}

int main(int argc, char **argv)
{
    char path[4096];
    bench_usage(argc, argv, 2, NULL, "bench_data FOLDER [threads]");
    const bool threads = argc == 3 && strcmp(argv[2], "threads") == 0;
    if (argc != 2 && !threads) {
        fprintf(stderr, "usage: bench_data FOLDER [threads]\n");
        return 2;
    }
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    if (threads) {
        compare_threads(ctx, argv[1]);
        WF_MUST(wf_ctx_free(ctx));
        return 0;
    }
    snprintf(path, sizeof path, "%s/bench_data.h5", argv[1]);
    compare_reads(ctx, path, WF_SHAPE(20000, 3, 32, 32), 0, 32, "3x32x32, whole samples");
    compare_reads(ctx, path, WF_SHAPE(400, 3, 256, 256), 60, 130, "3x256x256, rows 60 to 130");
    compare_reads(ctx, path, WF_SHAPE(24, 1, 2048, 2048), 1000, 2048, "1x2048x2048, rows 1000 to 2048");
    const trainer t = {.model = resnet(ctx, (resnet_opts){.width = 16}), .tape = wf_tape_new(ctx)};
    const trainer with = {t.model, wf_sgd(t.model, (wf_sgd_opts){.lr = 1e-3}), t.tape};
    make_file(path, WF_SHAPE(20000, 3, 32, 32), wf_shape_scalar(), 0);
    wait_for_batches(ctx, &with, path, "contiguous");
    make_file(path, WF_SHAPE(20000, 3, 32, 32), WF_SHAPE(8, 3, 32, 32), 1);
    wait_for_batches(ctx, &with, path, "gzip, 8 samples in a chunk");
    unlink(path);
    wf_optim_free(with.optim);
    wf_tape_free(t.tape);
    wf_layer_free(t.model);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
