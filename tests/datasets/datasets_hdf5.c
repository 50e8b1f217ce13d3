/* wf_hdf5_dataset against the same samples in memory, bit for bit: files that are contiguous, in chunks, compressed, of
 * other types; one or many; on any mesh, with halos; within small budgets; and files that are not as they should be.
 * Bytes that are read are counted by the system. */
#include "comm/file_author.h"
#include "comm/mesh_author.h"
#include "core/kernels_author.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/file/folder.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { C = 2, H = 7, W = 5, PIXELS = C * H * W, MOST = 40, CLASSES = 6 };

/* How the elements lie in a file. */
typedef struct form {
    wf_dtype dtype;
    wf_shape chunk; /* rank 0: contiguous */
    int level;
} form;

static int64_t value(int64_t sample, int64_t i)
{
    return (sample * 31 + i * 7 + sample * i % 5) % 251;
}

static void fill(wf_dtype dtype, int64_t first, int64_t n, int64_t pixels, void *x, int64_t *labels)
{
    for (int64_t s = 0; s < n; s++) {
        labels[s] = (first + s) % CLASSES;
        for (int64_t i = 0; i < pixels; i++) {
            const int64_t v = value(first + s, i), at = s * pixels + i;
            if (dtype == WF_U8)
                ((uint8_t *)x)[at] = (uint8_t)v;
            else if (dtype == WF_I32)
                ((int32_t *)x)[at] = (int32_t)v - 100;
            else
                ((float *)x)[at] = (float)v / 16;
        }
    }
}

/* Samples [first, first + n) of `whole` in a new file. */
static void make_file(const char *path, const form *f, wf_shape sample, int64_t first, int64_t n)
{
    const int64_t pixels = wf_shape_count(sample);
    void *x = calloc((size_t)(n * pixels + 1), sizeof(float));
    int64_t *labels = calloc((size_t)n + 1, sizeof *labels);
    const wf_shape shape = WF_SHAPE(n, sample.dim[0], sample.dim[1], sample.dim[2]);
    wf_shape chunk = f->chunk;
    for (int d = 0; d < chunk.rank; d++)
        chunk.dim[d] = chunk.dim[d] < shape.dim[d] ? chunk.dim[d] : shape.dim[d];
    fill(f->dtype, first, n, pixels, x, labels);
    wf_h5 *file = wf_h5_create(path);
    WF_EXPECT(file, "%s", wf_error_message());
    WF_EXPECT_OK(chunk.rank && n > 0 ? wf_h5_add_chunked(file, "x", f->dtype, shape, chunk, f->level)
                                     : wf_h5_add(file, "x", f->dtype, shape));
    WF_EXPECT_OK(wf_h5_add(file, "labels", WF_I64, WF_SHAPE(n)));
    WF_EXPECT_OK(wf_h5_write(file, "x", wf_box_of_shape(shape), x));
    WF_EXPECT_OK(wf_h5_write(file, "labels", wf_box_of_shape(WF_SHAPE(n)), labels));
    WF_EXPECT_OK(wf_h5_close(file));
    free(x);
    free(labels);
}

static wf_dataset *in_memory(const form *f, wf_shape sample, int64_t n)
{
    void *x = calloc((size_t)(n * wf_shape_count(sample) + 1), sizeof(float));
    int64_t *labels = calloc((size_t)n + 1, sizeof *labels);
    fill(f->dtype, 0, n, wf_shape_count(sample), x, labels);
    wf_dataset *d =
        wf_memory_dataset(ctx, f->dtype, WF_SHAPE(n, sample.dim[0], sample.dim[1], sample.dim[2]), x, labels);
    free(x);
    free(labels);
    return d;
}

/* --- Equal batches ------------------------------------------------------------------------------------------------ */

typedef struct variant {
    form form;
    wf_mesh_opts grid;
    int64_t n, batch;
    size_t cache;
    int parts; /* files */
    bool sharded, flip, raw, prefetch;
    int64_t halo[3];
} variant;

static void make_files(const variant *v)
{
    WF_EXPECT_OK(wf_barrier(comm));
    for (int p = 0; rank == 0 && p < v->parts; p++) {
        char name[32];
        int64_t lo, hi;
        wf_block(v->n, v->parts, p, &lo, &hi);
        snprintf(name, sizeof name, "part-%02d.h5", p);
        make_file(in_folder(name), &v->form, WF_SHAPE(C, H, W), lo, hi - lo);
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static void remove_files(void)
{
    char command[128];
    WF_EXPECT_OK(wf_barrier(comm));
    snprintf(command, sizeof command, "rm -f %s/*.h5", folder);
    WF_EXPECT(rank != 0 || system(command) == 0, "%s", command);
}

static wf_iter *batches_of(const wf_mesh *mesh, wf_dataset *d, const variant *v, bool prefetch)
{
    d = wf_mesh_scatter_dataset(mesh, d, (wf_scatter_opts){.shuffle = true, .seed = 5, .each_reads = true});
    if (v->flip)
        d = wf_transform_random_flip(d);
    wf_batch_opts opts = {.size = v->batch, .sharded = v->sharded, .raw = v->raw, .seed = 9};
    memcpy(opts.halo, v->halo, sizeof opts.halo);
    wf_iter *iter = wf_batches(d, opts);
    return prefetch ? wf_prefetch(iter, (wf_prefetch_opts){.depth = 2}) : iter;
}

static void expect_same(const char *what, const wf_tensor *a, const wf_tensor *b)
{
    static unsigned char x[2][MOST * PIXELS * sizeof(double)];
    if (!a && !b)
        return;
    WF_EXPECT(a && b && wf_shape_equal(wf_tensor_shape(a), wf_tensor_shape(b)) &&
                  wf_tensor_dtype(a) == wf_tensor_dtype(b),
              "%s: another shape or type", what);
    if (!a || !b)
        return;
    WF_EXPECT_OK(wf_tensor_export(a, x[0], wf_tensor_bytes(a)));
    WF_EXPECT_OK(wf_tensor_export(b, x[1], wf_tensor_bytes(b)));
    WF_EXPECT(memcmp(x[0], x[1], wf_tensor_bytes(a)) == 0, "%s: other elements", what);
}

/* Every pixel of the wide part is that of the whole sample, which the label and the order of an unsharded run give. */
static void expect_wide(const variant *v, const wf_batch *b, const wf_batch *serial, int64_t at)
{
    const wf_box *wide = &b->wide_box;
    static double x[MOST * PIXELS], y[MOST * PIXELS];
    if (!b->wide || b->size == 0 || wf_box_empty(*wide))
        return;
    const wf_shape part = wf_box_shape(*wide);
    WF_EXPECT_OK(wf_tensor_export(b->wide, x, wf_tensor_bytes(b->wide)));
    WF_EXPECT_OK(wf_tensor_export(serial->x, y, wf_tensor_bytes(serial->x)));
    WF_EXPECT(wf_tensor_shape(b->wide).dim[2] == part.dim[1], "the wide part's shape");
    for (int64_t i = 0, k = 0, wrong = 0; i < b->size; i++, at++)
        for (int64_t c = 0; c < C; c++)
            for (int64_t h = wide->lo[1]; h < wide->hi[1]; h++)
                for (int64_t w = wide->lo[2]; w < wide->hi[2]; w++, k++)
                    if (((float *)x)[k] != ((float *)y)[((at * C + c) * H + h) * W + w] && !wrong++)
                        test_failed(__FILE__, __LINE__, "wide: sample %lld, pixel %lld, %lld", (long long)i,
                                    (long long)h, (long long)w);
}

/* Two epochs of this rank's batches, from files and from memory. */
static void check(const variant *v)
{
    make_files(v);
    wf_mesh *mesh = wf_mesh_open(comm, v->grid);
    wf_dataset *files = wf_hdf5_dataset(ctx, in_folder("part-*.h5"), (wf_hdf5_opts){.cache_bytes = v->cache});
    wf_iter *a = batches_of(mesh, files, v, v->prefetch);
    wf_iter *b = batches_of(mesh, in_memory(&v->form, WF_SHAPE(C, H, W), v->n), v, false);
    for (wf_batch x = {0}, y = {0}; y.epoch < 1 || !y.last;) {
        const wf_status status = wf_iter_next(a, &x);
        WF_EXPECT_OK(status);
        WF_EXPECT_OK(wf_iter_next(b, &y));
        if (status != WF_OK)
            break;
        expect_same("x", x.x, y.x);
        expect_same("wide", x.wide, y.wide);
        expect_same("labels", x.labels, y.labels);
        WF_EXPECT(wf_box_equal(wf_tensor_layout(x.x).box, wf_tensor_layout(y.x).box), "another box");
    }
    wf_iter_free(a);
    wf_iter_free(b);
    wf_mesh_close(mesh);
    remove_files();
}

static const form forms[] = {
    {WF_U8, {0}, 0},
    {WF_F32, {0}, 0},
    {WF_U8, {4, {3, 1, 4, 5}}, 6},
    {WF_F32, {4, {4, 2, 7, 5}}, 0},
    {WF_I32, {4, {1, 2, 3, 2}}, 1},
};

static void every_form(void)
{
    int turn = 0;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int height = 1; height <= size; height++) {
            if (size % height)
                continue;
            for (int i = 0; i < 6; i++, turn++) {
                const bool wide = height < size;
                check(&(variant){.form = forms[f],
                                 .grid = {.height = height, .width = wide && i < 3 ? size / height : 1},
                                 .n = 1 + turn * 11 % 29,
                                 .batch = 1 + turn % 4,
                                 .parts = 1 + turn % 3,
                                 .cache = turn % 2 ? 300 : 0,
                                 .sharded = i % 3 > 0,
                                 .halo = {0, i % 3 == 2 ? 1 + turn % 9 : 0, i % 3 == 2 ? turn % 3 : 0},
                                 .flip = turn % 5 == 0,
                                 .raw = turn % 7 == 0,
                                 .prefetch = turn % 2 == 0});
            }
        }
}

/* The wide part is cut out of the samples that the serial program sees. */
static void wide_parts(void)
{
    const variant v = {
        .form = forms[3], .grid = {.height = size}, .n = 9, .batch = 3, .parts = 2, .sharded = true, .halo = {0, 2, 1}};
    variant whole = v;
    whole.sharded = false;
    memset(whole.halo, 0, sizeof whole.halo);
    make_files(&v);
    wf_mesh *mesh = wf_mesh_open(comm, v.grid);
    const char *names = in_folder("part-*.h5");
    wf_iter *a = batches_of(mesh, wf_hdf5_dataset(ctx, names, (wf_hdf5_opts){0}), &v, false);
    wf_iter *b = batches_of(mesh, wf_hdf5_dataset(ctx, names, (wf_hdf5_opts){0}), &whole, false);
    for (wf_batch x = {0}, y = {0}; !y.last;) {
        WF_EXPECT_OK(wf_iter_next(a, &x));
        WF_EXPECT_OK(wf_iter_next(b, &y));
        if (!x.x || !y.x)
            break;
        const wf_box own = wf_tensor_layout(x.x).box, *wide = &x.wide_box;
        WF_EXPECT(wide->lo[1] == (own.lo[2] > 2 ? own.lo[2] - 2 : 0) &&
                      wide->hi[1] == (own.hi[2] < H - 2 ? own.hi[2] + 2 : H),
                  "rows %lld to %lld around %lld to %lld", (long long)wide->lo[1], (long long)wide->hi[1],
                  (long long)own.lo[2], (long long)own.hi[2]);
        expect_wide(&v, &x, &y, 0);
    }
    wf_iter_free(a);
    wf_iter_free(b);
    wf_mesh_close(mesh);
    remove_files();
}

/* More files than are kept open. */
static void many_files(void)
{
    check(&(variant){.form = forms[0], .n = 40, .batch = 3, .parts = 36});
    const variant chunked = {.form = forms[2], .n = 40, .batch = 3, .parts = 36, .cache = 100};
    check(&chunked);
    make_files(&chunked);
    wf_dataset *d = wf_hdf5_dataset(ctx, in_folder("part-*.h5"), (wf_hdf5_opts){.cache_bytes = 1});
    unsigned char x[PIXELS];
    WF_EXPECT_OK(wf_dataset_open(d));
    for (int64_t i = 0; i < 40; i++)
        WF_EXPECT_OK(wf_dataset_read(d, i, NULL, x, NULL));
    wf_hdf5_counters now = {0};
    WF_EXPECT_OK(wf_hdf5_count(d, &now));
    WF_EXPECT(now.open_files == 32, "%lld files are open", (long long)now.open_files);
    wf_dataset_free(d);
    remove_files();
}

/* Samples are right in any order, and no more is held than the budget, or one sample. */
static void budgets(void)
{
    static const size_t budget[] = {1, 100, 1000, 5000, 20000};
    const form f = {WF_U8, {4, {3, 1, 4, 5}}, 6};
    const variant v = {.form = f, .n = MOST, .parts = 3};
    unsigned char x[PIXELS], y[PIXELS];
    int64_t label, order[MOST];
    make_files(&v);
    for (size_t i = 0; i < sizeof budget / sizeof *budget; i++) {
        wf_dataset *d = wf_hdf5_dataset(ctx, in_folder("part-*.h5"), (wf_hdf5_opts){.cache_bytes = budget[i]});
        WF_EXPECT_OK(wf_dataset_open(d));
        for (int64_t k = 0; k < 4 * MOST; k++) {
            if (k % MOST == 0)
                wf_random_permutation(3, (uint64_t)k, MOST, order);
            const int64_t s = order[k % MOST];
            WF_EXPECT_OK(wf_dataset_read(d, s, NULL, x, &label));
            fill(WF_U8, s, 1, PIXELS, y, &(int64_t){0});
            WF_EXPECT(memcmp(x, y, PIXELS) == 0 && label == s % CLASSES, "sample %lld is wrong", (long long)s);
        }
        wf_hdf5_counters now = {0};
        WF_EXPECT_OK(wf_hdf5_count(d, &now));
        const int64_t held = (int64_t)now.cache_bytes;
        const int64_t most = budget[i] > PIXELS ? (int64_t)budget[i] : PIXELS;
        WF_EXPECT(held <= most && held >= (most < MOST * PIXELS ? most / 4 : MOST * PIXELS / 2),
                  "%lld bytes are held, within %zu", (long long)held, budget[i]);
        wf_dataset_free(d);
    }
    remove_files();
}

/* --- Bytes -------------------------------------------------------------------------------------------------------- */

/* Bytes that this process has read by system calls. */
static int64_t bytes_read(void)
{
    long long bytes = -1;
    FILE *io = fopen("/proc/self/io", "r");
    if (!io || fscanf(io, "rchar: %lld", &bytes) != 1)
        bytes = -1;
    if (io)
        fclose(io);
    return bytes;
}

static int64_t read_epoch(wf_dataset *d, const wf_mesh *mesh, const variant *v, double *pixels)
{
    wf_iter *iter = batches_of(mesh, d, v, false);
    WF_EXPECT(wf_iter_epoch_length(iter) > 0, "%s", wf_error_message());
    const int64_t before = bytes_read();
    *pixels = 0;
    for (wf_batch b = {0}; !b.last;) {
        const wf_status status = wf_iter_next(iter, &b);
        WF_EXPECT_OK(status);
        if (status != WF_OK)
            break;
        *pixels += (double)wf_tensor_count(b.wide ? b.wide : b.x);
    }
    const int64_t bytes = bytes_read() - before;
    wf_iter_free(iter);
    return bytes;
}

/* Checks the bytes that a rank reads. Of contiguous samples: its own pixels and their halo. Of chunked samples: its
 * chunks, each once if they fit into the budget, and more often if not. */
static void counted_bytes(void)
{
    enum { SIDE = 96, WIDE = 4096, N = 8 };
    const wf_shape sample = WF_SHAPE(1, SIDE, WIDE);
    const form plain = {WF_F32, {0}, 0}, chunked = {WF_F32, {4, {4, 1, SIDE / 8, WIDE}}, 0};
    const variant v = {.grid = {.height = size > 1 ? 2 : 1, .width = size > 2 ? 2 : 1},
                       .batch = 2,
                       .sharded = true,
                       .raw = true,
                       .halo = {0, 3, 1}};
    const double slack = 8192; /* /proc itself, and messages */
    double pixels;
    if (bytes_read() < 0) {
        printf("# no /proc/self/io here: bytes are not counted\n");
        return;
    }
    if (rank == 0) {
        make_file(in_folder("plain.h5"), &plain, sample, 0, N);
        make_file(in_folder("chunks.h5"), &chunked, sample, 0, N);
    }
    WF_EXPECT_OK(wf_barrier(comm));
    wf_mesh *mesh = wf_mesh_open(comm, v.grid);
    int64_t bytes = read_epoch(wf_hdf5_dataset(ctx, in_folder("plain.h5"), (wf_hdf5_opts){0}), mesh, &v, &pixels);
    WF_EXPECT((double)bytes >= 4 * pixels && (double)bytes < 4 * pixels + slack, "read %lld bytes for %.0f of pixels",
              (long long)bytes, 4 * pixels);
    bytes = read_epoch(wf_hdf5_dataset(ctx, in_folder("chunks.h5"), (wf_hdf5_opts){0}), mesh, &v, &pixels);
    const int64_t all = 4 * N * SIDE * WIDE, rows = size > 1 ? SIDE / 2 + SIDE / 8 : SIDE;
    WF_EXPECT(bytes <= all / SIDE * rows + (1 << 16), "read %lld bytes of %lld, in chunks of %d rows", (long long)bytes,
              (long long)all, SIDE / 8);
    const int64_t again = read_epoch(
        wf_hdf5_dataset(ctx, in_folder("chunks.h5"), (wf_hdf5_opts){.cache_bytes = 1 << 20}), mesh, &v, &pixels);
    WF_EXPECT(again > 2 * bytes, "a small budget reads %lld bytes, a large one %lld", (long long)again,
              (long long)bytes);
    wf_mesh_close(mesh);
    remove_files();
}

/* --- Files that are not as they should be ------------------------------------------------------------------------- */

/* Every rank has this error, on one line. */
static void expect_failure(const char *name, wf_hdf5_opts opts, wf_status code, const char *text)
{
    const wf_scatter_opts each = {.each_reads = true};
    for (int way = 0; way < 2; way++) {
        wf_dataset *all = wf_hdf5_dataset(ctx, in_folder(name), opts);
        wf_dataset *d = wf_scatter_dataset(comm, way || rank == 0 ? all : NULL, way ? each : (wf_scatter_opts){0});
        if (!way && rank != 0)
            wf_dataset_free(all);
        WF_EXPECT(
            !d && wf_error_code() == code && strstr(wf_error_message(), text) && !strchr(wf_error_message(), '\n'),
            "%s: %s, \"%s\" does not say \"%s\"", name, wf_status_name(wf_error_code()), wf_error_message(), text);
        wf_error_clear();
        wf_dataset_free(d);
    }
}

static void add_numbers(wf_h5 *file, const char *name, wf_dtype dtype, wf_shape shape, int64_t first)
{
    int64_t numbers[64];
    for (int64_t i = 0; i < 64; i++)
        numbers[i] = first + i;
    WF_EXPECT_OK(wf_h5_add(file, name, dtype, shape));
    WF_EXPECT_OK(wf_h5_write(file, name, wf_box_of_shape(shape), numbers));
}

static void make_bad_files(void)
{
    wf_h5 *file = wf_h5_create(in_folder("other.h5"));
    add_numbers(file, "x", WF_U8, WF_SHAPE(4, 2, 3), 0);
    add_numbers(file, "scalar", WF_U8, wf_shape_scalar(), 0);
    add_numbers(file, "hollow", WF_U8, WF_SHAPE(4, 0, 3), 0);
    add_numbers(file, "labels", WF_I64, WF_SHAPE(5), 0);
    add_numbers(file, "negative", WF_I64, WF_SHAPE(4), -2);
    add_numbers(file, "real", WF_F32, WF_SHAPE(4), 0);
    add_numbers(file, "good", WF_I64, WF_SHAPE(4), 0);
    WF_EXPECT_OK(wf_h5_add_chunked(file, "sparse", WF_U8, WF_SHAPE(1 << 20, 16, 16), WF_SHAPE(1, 16, 16), 1));
    WF_EXPECT_OK(wf_h5_set_text(file, NULL, "classes", "many"));
    WF_EXPECT_OK(wf_h5_close(file));
    file = wf_h5_create(in_folder("other2.h5"));
    add_numbers(file, "x", WF_U8, WF_SHAPE(4, 3, 2), 0);
    add_numbers(file, "good", WF_I32, WF_SHAPE(4, 1), 0);
    WF_EXPECT_OK(wf_h5_close(file));
    make_file(in_folder("cut.h5"), &forms[1], WF_SHAPE(C, H, W), 0, 20);
    WF_EXPECT(truncate(in_folder("cut.h5"), 3000) == 0, "cannot cut a file");
    FILE *text = fopen(in_folder("text.h5"), "w");
    fprintf(text, "nothing of that kind\n");
    fclose(text);
}

static void bad_files(void)
{
    if (rank == 0)
        make_bad_files();
    WF_EXPECT_OK(wf_barrier(comm));
    const wf_hdf5_opts none = {.labels = ""}, usual = {0};
    expect_failure("nowhere.h5", usual, WF_ERR_IO, "nowhere.h5");
    expect_failure("nowhere-*.h5", usual, WF_ERR_IO, "nowhere-*.h5: no file");
    expect_failure("", usual, WF_ERR_IO, "is not a file");
    expect_failure("text.h5", usual, WF_ERR_FORMAT, "text.h5: cannot open it as an HDF5 file");
    expect_failure("cut.h5", usual, WF_ERR_FORMAT, "cut.h5: cannot open it as an HDF5 file");
    expect_failure("other.h5", (wf_hdf5_opts){.x = "images"}, WF_ERR_FORMAT, "cannot find the data set images");
    expect_failure("other.h5", (wf_hdf5_opts){.x = "scalar"}, WF_ERR_SHAPE, "should be [count, sample...]");
    expect_failure("other.h5", (wf_hdf5_opts){.x = "hollow"}, WF_ERR_SHAPE, "samples without elements");
    expect_failure("other.h5", (wf_hdf5_opts){.x = "sparse"}, WF_ERR_FORMAT, "should have 268435456 bytes");
    expect_failure("other.h5", usual, WF_ERR_FORMAT, "the attribute classes is no number");
    expect_failure("other.h5", (wf_hdf5_opts){.classes = 9}, WF_ERR_SHAPE, "labels has shape [5] for 4 samples");
    expect_failure("other.h5", (wf_hdf5_opts){.classes = 9, .labels = "negative"}, WF_ERR_FORMAT,
                   "label -2 of sample 0");
    expect_failure("other.h5", (wf_hdf5_opts){.classes = 3, .labels = "good"}, WF_ERR_FORMAT,
                   "label 3 of sample 3 is not in [0, 3)");
    expect_failure("other.h5", (wf_hdf5_opts){.classes = 9, .labels = "real"}, WF_ERR_DTYPE,
                   "labels should be integers");
    expect_failure("other.h5", (wf_hdf5_opts){.classes = 9, .labels = "target"}, WF_ERR_FORMAT,
                   "cannot find the data set target");
    expect_failure("other*.h5", none, WF_ERR_SHAPE, "samples should have one shape");
    WF_EXPECT_OK(wf_barrier(comm));
    remove_files();
}

/* A file that becomes shorter under the data set is an error of the batch, in the thread too. */
static void shrinking_file(void)
{
    const variant v = {.form = forms[1], .n = 20, .batch = 2, .parts = 1};
    make_files(&v);
    wf_dataset *d = wf_hdf5_dataset(ctx, in_folder("part-00.h5"), (wf_hdf5_opts){0});
    WF_EXPECT(wf_dataset_count(d) == 20, "%s", wf_error_message());
    wf_iter *iter = wf_prefetch(wf_batches(d, (wf_batch_opts){.size = 5}), (wf_prefetch_opts){.depth = 1});
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(rank != 0 || truncate(in_folder("part-00.h5"), 3000) == 0, "cannot cut the file");
    WF_EXPECT_OK(wf_barrier(comm));
    wf_status status = WF_OK;
    for (wf_batch b = {0}; status == WF_OK && b.epoch == 0;)
        status = wf_iter_next(iter, &b);
    WF_EXPECT(status == WF_ERR_FORMAT && strstr(wf_error_message(), "ends before byte"), "%s", wf_error_message());
    wf_error_clear();
    wf_iter_free(iter);
    remove_files();
}

static void options(void)
{
    wf_batch b;
    WF_EXPECT(!wf_hdf5_dataset(ctx, "", (wf_hdf5_opts){0}) && !wf_hdf5_dataset(ctx, "a", (wf_hdf5_opts){.classes = -1}),
              "bad arguments");
    wf_error_clear();
    wf_iter *iter =
        wf_batches(in_memory(&forms[0], WF_SHAPE(C, H, W), 3), (wf_batch_opts){.size = 1, .halo = {0, 1, 0}});
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_iter_next(iter, &b));
    wf_iter_free(iter);
    /* Classes: what the file says, although no label is the last one. */
    if (rank == 0) {
        wf_h5 *file = wf_h5_create(in_folder("classes.h5"));
        add_numbers(file, "x", WF_U8, WF_SHAPE(4, 1, 2, 2), 0);
        add_numbers(file, "labels", WF_I32, WF_SHAPE(4), 0);
        WF_EXPECT_OK(wf_h5_set_text(file, NULL, "classes", "7"));
        WF_EXPECT_OK(wf_h5_close(file));
    }
    WF_EXPECT_OK(wf_barrier(comm));
    wf_dataset *d = wf_hdf5_dataset(ctx, in_folder("classes.h5"), (wf_hdf5_opts){0});
    wf_dataset_info info = {0};
    WF_EXPECT_OK(wf_dataset_info_get(d, &info));
    WF_EXPECT(info.classes == 7 && info.labels && info.count == 4, "%lld classes", (long long)info.classes);
    wf_dataset_free(d);
    remove_files();
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"every_form", every_form},
                                               {"wide_parts", wide_parts},
                                               {"many_files", many_files},
                                               {"budgets", budgets},
                                               {"counted_bytes", counted_bytes},
                                               {"bad_files", bad_files},
                                               {"shrinking_file", shrinking_file},
                                               {"options", options},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
