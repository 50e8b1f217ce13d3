/* Batches of several tensors that a function of the program makes: names, padding, lengths that ranks agree on. */
#include "comm/comm.h"
#include "comm/mesh.h"
#include "core/core.h"
#include "core/status_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdatomic.h>
#include <string.h>

enum { SAMPLES = 23, MOST = 12, BATCH = 5 };

/* Sample i is a text of `length_of(i)` bytes, i + 1 each, label i. */
static int64_t length_of(int64_t i)
{
    return i * 7 % MOST;
}

static wf_dataset *texts(int64_t n)
{
    uint8_t x[SAMPLES][MOST] = {{0}};
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        memset(x[i], i + 1, (size_t)length_of(i));
        labels[i] = i;
    }
    return wf_memory_dataset(ctx, WF_U8, WF_SHAPE(n, MOST), x, labels);
}

static const wf_batch_field fields[] = {
    {.name = "tokens", .dtype = WF_I32, .shape = {.rank = 1, .dim = {MOST}}, .varies = true, .pad = -1},
    {.name = "lengths", .dtype = WF_I64},
    {.name = "picture", .dtype = WF_F32, .shape = {.rank = 3, .dim = {2, 1, 3}}},
    {.name = "next",
     .dtype = WF_U8,
     .shape = {.rank = 1, .dim = {MOST + 1}},
     .varies = true,
     .target = true,
     .pad = 255},
    {0}};

static atomic_int wrong;

/* Pads texts; `user`: a number of a sample that makes it fail, or NULL. */
static wf_status pad_texts(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    int32_t *tokens = rows[0].data;
    uint8_t *next = rows[3].data;
    for (int64_t i = 0; i < in->count; i++) {
        const uint8_t *text = (const uint8_t *)in->x + (size_t)i * in->bytes;
        const int64_t length = (int64_t)strnlen((const char *)text, MOST);
        WF_CHECK(!user || in->labels[i] != *(const int64_t *)user, WF_ERR_FORMAT, "sample %lld is no text",
                 (long long)in->labels[i]);
        atomic_fetch_add(&wrong, in->bytes != MOST || length != length_of(in->labels[i]));
        for (int64_t t = 0; t < length; t++)
            tokens[i * MOST + t] = next[i * (MOST + 1) + t] = text[t];
        next[i * (MOST + 1) + length] = 0;
        ((int64_t *)rows[1].data)[i] = length;
        for (int e = 0; e < 6; e++)
            ((float *)rows[2].data)[6 * i + e] = (float)(in->number[i] + in->epoch * 100 + 1000 * e);
        rows[0].longest = length > rows[0].longest ? length : rows[0].longest;
        rows[3].longest = length + 1 > rows[3].longest ? length + 1 : rows[3].longest;
    }
    return WF_OK;
}

static wf_batch_opts padded(bool shuffle)
{
    return (wf_batch_opts){
        .size = BATCH, .shuffle = shuffle, .seed = 3, .collate = {.function = pad_texts, .fields = fields}};
}

/* Checks every element of a batch, and counts its samples in `seen`. */
static void check_batch(const wf_batch *b, int64_t *seen)
{
    int32_t tokens[BATCH * MOST];
    uint8_t next[BATCH * (MOST + 1)];
    int64_t lengths[BATCH] = {0}, longest = 0;
    float picture[BATCH * 6];
    WF_EXPECT(b->names == 4 && b->x == wf_batch_get(b, "tokens") && b->labels == wf_batch_get(b, "next"), "names");
    WF_EXPECT_OK(wf_tensor_export(wf_batch_get(b, "lengths"), lengths, (size_t)b->size * sizeof *lengths));
    for (int64_t i = 0; i < b->size; i++)
        longest = lengths[i] > longest ? lengths[i] : longest;
    WF_EXPECT_OK(wf_allreduce_i64(comm, &longest, 1, WF_MAX));
    const int64_t t = longest > 1 ? longest : 1, s = longest + 1;
    WF_EXPECT(wf_shape_equal(wf_tensor_shape(b->x), WF_SHAPE(b->size, t)), "tokens are as long as the longest");
    WF_EXPECT(wf_shape_equal(wf_tensor_shape(b->labels), WF_SHAPE(b->size, b->global > 0 ? s : 1)), "targets");
    WF_EXPECT(wf_tensor_order(wf_batch_get(b, "picture")) == WF_CHANNELS_LAST, "pictures are channels-last");
    WF_EXPECT_OK(wf_tensor_export(b->x, tokens, wf_tensor_bytes(b->x)));
    WF_EXPECT_OK(wf_tensor_export(b->labels, next, wf_tensor_bytes(b->labels)));
    WF_EXPECT_OK(wf_tensor_export(wf_batch_get(b, "picture"), picture, (size_t)b->size * 6 * sizeof *picture));
    for (int64_t i = 0; i < b->size; i++) {
        const int64_t n = lengths[i], number = (int64_t)picture[6 * i] - b->epoch * 100;
        seen[number < 0 || number >= SAMPLES ? 0 : number]++;
        for (int e = 1; e < 6; e++)
            WF_EXPECT(picture[6 * i + e] == picture[6 * i] + (float)(1000 * e), "element %d of a picture", e);
        for (int64_t k = 0; k < t; k++)
            WF_EXPECT(tokens[i * t + k] == (k < n ? tokens[i * t] : -1), "token %lld of %lld", (long long)k,
                      (long long)n);
        for (int64_t k = 0; k < s; k++)
            WF_EXPECT(next[i * s + k] == (k < n    ? tokens[i * t]
                                          : k == n ? 0
                                                   : 255),
                      "target %lld of %lld", (long long)k, (long long)n);
    }
}

static void check_seen(int64_t *seen, int64_t n)
{
    WF_EXPECT_OK(wf_allreduce_i64(comm, seen, SAMPLES, WF_SUM));
    for (int i = 0; i < n; i++)
        WF_EXPECT(seen[i] == 2, "sample %d came %lld times", i, (long long)seen[i]);
    WF_EXPECT(atomic_load(&wrong) == 0, "the function read other samples");
}

/* Scattered: every sample once an epoch, parts uneven, with any number of threads. */
static void scattered(void)
{
    for (int workers = 0; workers < 3; workers++) {
        int64_t seen[SAMPLES] = {0};
        wf_dataset *part = wf_scatter_dataset(comm, rank == 0 ? texts(SAMPLES) : NULL, (wf_scatter_opts){0});
        wf_iter *iter = wf_batches(part, padded(workers > 0));
        iter = workers ? wf_prefetch(iter, (wf_prefetch_opts){.workers = workers}) : iter;
        for (wf_batch b = {0}; wf_iter_epoch(iter) < 2;) {
            WF_EXPECT_OK(wf_iter_next(iter, &b));
            WF_EXPECT(wf_tensor_layout(b.labels).known && wf_tensor_layout(b.x).global.dim[0] == b.global,
                      "fields are parts of a global batch");
            check_batch(&b, seen);
        }
        wf_iter_free(iter);
        check_seen(seen, SAMPLES);
    }
}

/* Some ranks without a sample: their batches are empty, and as long as those of the others. */
static void empty_parts(void)
{
    int64_t seen[SAMPLES] = {0};
    wf_dataset *part = wf_scatter_dataset(comm, rank == 0 ? texts(size - 1) : NULL, (wf_scatter_opts){0});
    wf_batch_opts opts = padded(false);
    opts.once = true;
    wf_iter *iter = wf_batches(part, opts);
    for (int k = 0; k < 4; k++) { /* a batch and the mark, twice */
        wf_batch b = {0};
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        check_batch(&b, seen);
    }
    wf_iter_free(iter);
    if (size > 1)
        check_seen(seen, size - 1);
}

/* Sent by one rank: the same names and tensors on all. */
static void sent(void)
{
    int64_t seen[SAMPLES] = {0};
    wf_iter *iter =
        rank == size - 1 ? wf_prefetch(wf_batches(texts(SAMPLES), padded(true)), (wf_prefetch_opts){.depth = 2}) : NULL;
    wf_shared_iter *shared = wf_shared_batches(comm, iter, size - 1);
    for (wf_batch b = {0}; b.epoch < 1 || !b.last;) {
        WF_EXPECT_OK(wf_shared_next(shared, &b));
        check_batch(&b, seen);
    }
    wf_shared_free(shared);
    for (int i = 0; i < SAMPLES; i++)
        WF_EXPECT(seen[i] == 2, "sample %d came %lld times", i, (long long)seen[i]);
}

/* Over a mesh without a data axis all ranks have the same samples, and the same tensors. */
static void over_a_mesh(void)
{
    int64_t seen[SAMPLES] = {0};
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_dataset *all = wf_mesh_scatter_dataset(mesh, rank == 0 ? texts(SAMPLES) : NULL, (wf_scatter_opts){0});
    wf_iter *iter = wf_batches(all, padded(true));
    for (wf_batch b = {0}; wf_iter_epoch(iter) < 2;) {
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        check_batch(&b, seen);
    }
    wf_iter_free(iter);
    wf_mesh_close(mesh);
    for (int i = 0; i < SAMPLES; i++)
        WF_EXPECT(seen[i] == 2, "sample %d came %lld times", i, (long long)seen[i]);
}

static wf_iter *with_fields(const wf_batch_field *f)
{
    return wf_batches(texts(SAMPLES), (wf_batch_opts){.size = 2, .collate = {.function = pad_texts, .fields = f}});
}

static wf_status too_long(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    rows[0].longest = MOST + 1;
    return WF_OK;
}

static void errors(void)
{
    static int64_t bad = 7;
    wf_batch b = {0};
    for (int workers = 0; workers < 3; workers++) {
        wf_batch_opts opts = padded(false);
        opts.collate.user = &bad;
        wf_iter *iter = wf_batches(texts(SAMPLES), opts);
        iter = workers ? wf_prefetch(iter, (wf_prefetch_opts){.workers = workers}) : iter;
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        TEST_FAILS(WF_ERR_ARGUMENT, wf_check(wf_batch_get(&b, "masks")), "no tensor masks", "tokens, lengths");
        for (int again = 0; again < 2; again++)
            WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_iter_next(iter, &b));
        wf_iter_free(iter);
        opts.collate.function = too_long;
        iter = wf_batches(texts(SAMPLES), opts);
        TEST_FAILS(WF_ERR_ARGUMENT, wf_iter_next(iter, &b), "tokens has 13 elements", "0 to 12");
        wf_iter_free(iter);
    }
    const wf_batch_field twice[] = {{.name = "a"}, {.name = "a"}, {0}};
    const wf_batch_field image[] = {
        {.name = "a", .dtype = WF_F32, .shape = {.rank = 3, .dim = {4, 2, 2}}, .varies = true}, {0}};
    TEST_FAILS(WF_ERR_ARGUMENT, wf_check(with_fields(twice)), "two fields are named a", "collate");
    TEST_FAILS(WF_ERR_UNSUPPORTED, wf_check(with_fields(image)), "field a varies", "one or two dimensions");
    TEST_FAILS(WF_ERR_ARGUMENT, wf_check(with_fields(NULL)), "without fields", "collate");
    wf_batch_opts sharded = padded(false);
    sharded.sharded = true;
    TEST_FAILS(WF_ERR_ARGUMENT, wf_check(wf_batches(texts(SAMPLES), sharded)), "sharded should not be set", "collate");
}

/* Batches without a function have names as well. */
static void plain_names(void)
{
    wf_batch b = {0};
    wf_iter *iter = wf_batches(texts(SAMPLES), (wf_batch_opts){.size = 2});
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT(b.names == 2 && b.x && wf_batch_get(&b, "x") == b.x && wf_batch_get(&b, "labels") == b.labels &&
                  b.labels && b.named[1].target,
              "x and labels by name");
    wf_iter_free(iter);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    atomic_store(&wrong, 0);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"scattered", scattered},
                                               {"empty_parts", empty_parts},
                                               {"sent", sent},
                                               {"over_a_mesh", over_a_mesh},
                                               {"errors", errors},
                                               {"plain_names", plain_names},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
