/* Iterators: sizes, order, conversion, prefetch, and what they leave behind. */
#include "core/archive.h"
#include "core/config_author.h"
#include "core/tensor_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"
#include "tests/datasets/datasets_iter.h"

#include <math.h>
#include <string.h>

static wf_ctx *ctx;

/* u8 [count,3,2,2] whose element e of sample i is 12 i + e, label i. */
static wf_dataset *numbered(int64_t count)
{
    unsigned char x[12 * 64];
    int64_t labels[64];
    for (int i = 0; i < 12 * 64; i++)
        x[i] = (unsigned char)i;
    for (int i = 0; i < 64; i++)
        labels[i] = i;
    return wf_memory_dataset(ctx, WF_U8, WF_SHAPE(count, 3, 2, 2), x, labels);
}

static void sizes(void)
{
    wf_iter *iter = wf_batches(numbered(10), (wf_batch_opts){.size = 4});
    WF_EXPECT(wf_iter_epoch_length(iter) == 3, "%lld", (long long)wf_iter_epoch_length(iter));
    for (int k = 0; k < 9; k++) {
        wf_batch b = {0};
        WF_EXPECT(wf_iter_epoch(iter) == k / 3, "epoch %lld before batch %d", (long long)wf_iter_epoch(iter), k);
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        const int64_t size = k % 3 < 2 ? 4 : 2;
        WF_EXPECT(b.size == size && b.global == size && b.epoch == k / 3 && b.index == k % 3 && b.last == (k % 3 == 2),
                  "batch %d: %lld of %lld, epoch %lld, index %lld, last %d", k, (long long)b.size, (long long)b.global,
                  (long long)b.epoch, (long long)b.index, b.last);
        float x[48];
        WF_EXPECT(wf_shape_equal(wf_tensor_shape(b.x), WF_SHAPE(size, 3, 2, 2)), "shape");
        WF_EXPECT(wf_tensor_dtype(b.x) == WF_F32 && wf_tensor_order(b.x) == WF_CHANNELS_LAST, "f32 channels-last");
        WF_EXPECT(!wf_tensor_layout(b.x).known, "a layout without a communicator");
        WF_EXPECT_OK(wf_tensor_export(b.x, x, (size_t)size * 12 * sizeof *x));
        for (int e = 0; e < 12 * size; e++)
            WF_EXPECT(x[e] == (float)(48 * (k % 3) + e) / 255.0f, "batch %d element %d: %g", k, e, (double)x[e]);
        /* In memory [N,H,W,C]: element (0, c=1, h=0, w=0) lies second. */
        WF_EXPECT(memory_f32(b.x, 1) == x[4], "memory order");
        int64_t labels[4];
        WF_EXPECT_OK(wf_tensor_export(b.labels, labels, (size_t)size * sizeof *labels));
        for (int e = 0; e < size; e++)
            WF_EXPECT(labels[e] == 4 * (k % 3) + e, "label %lld", (long long)labels[e]);
    }
    WF_EXPECT(wf_iter_epoch(iter) == 3, "%lld", (long long)wf_iter_epoch(iter));
    wf_iter_free(iter);
}

static void drop_last(void)
{
    wf_iter *iter = wf_batches(numbered(10), (wf_batch_opts){.size = 4, .drop_last = true});
    WF_EXPECT(wf_iter_epoch_length(iter) == 2, "%lld", (long long)wf_iter_epoch_length(iter));
    for (int k = 0; k < 4; k++) {
        wf_batch b = {0};
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(b.size == 4 && b.last == (k % 2 == 1) && b.epoch == k / 2, "batch %d", k);
    }
    wf_iter_free(iter);
    iter = wf_batches(numbered(3), (wf_batch_opts){.size = 4, .drop_last = true});
    TEST_FAILS(WF_ERR_ARGUMENT, next_and_free(iter), "drop_last", "3 samples");
}

static void once(void)
{
    for (int depth = 0; depth < 3; depth++) {
        wf_iter *iter = wf_batches(numbered(5), (wf_batch_opts){.size = 2, .once = true});
        if (depth > 0)
            iter = wf_prefetch(iter, (wf_prefetch_opts){.depth = depth});
        for (int epoch = 0; epoch < 2; epoch++) {
            int64_t seen = 0, batches = 0;
            wf_batch b = {0};
            for (;;) {
                WF_EXPECT_OK(wf_iter_next(iter, &b));
                if (b.global == 0 || batches > 5)
                    break;
                seen += b.size;
                batches++;
            }
            WF_EXPECT(seen == 5 && batches == 3 && b.size == 0 && !b.last, "%lld in %lld", (long long)seen,
                      (long long)batches);
            WF_EXPECT(wf_shape_equal(wf_tensor_shape(b.x), WF_SHAPE(0, 3, 2, 2)), "the mark has an empty x");
            WF_EXPECT(wf_iter_epoch(iter) == epoch + 1, "epoch %lld", (long long)wf_iter_epoch(iter));
        }
        wf_iter_free(iter);
    }
}

static void empty(void)
{
    wf_iter *iter = wf_batches(wf_empty_dataset(ctx, NULL), (wf_batch_opts){.size = 2});
    wf_batch b = {0};
    WF_EXPECT(wf_iter_epoch_length(iter) == 1, "%lld", (long long)wf_iter_epoch_length(iter));
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT(b.size == 0 && b.global == 0 && b.last && !b.labels && wf_tensor_count(b.x) == 0, "an empty batch");
    WF_EXPECT(wf_iter_epoch(iter) == 1, "%lld", (long long)wf_iter_epoch(iter));
    wf_iter_free(iter);
    const wf_dataset_info like = {.dtype = WF_U8, .shape = WF_SHAPE(3, 4, 4), .labels = true, .classes = 7};
    iter = wf_batches(wf_empty_dataset(ctx, &like), (wf_batch_opts){.size = 2, .once = true});
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT(wf_shape_equal(wf_tensor_shape(b.x), WF_SHAPE(0, 3, 4, 4)) && b.labels, "shape of what it is like");
    wf_iter_free(iter);
}

static void collect_labels(wf_iter *iter, int64_t *labels)
{
    for (wf_batch b = {0}; !b.last; labels += b.size) {
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT_OK(wf_tensor_export(b.labels, labels, (size_t)b.size * sizeof *labels));
    }
}

static void shuffled(void)
{
    int64_t a[2][50], b[2][50], c[50];
    const wf_batch_opts opts = {.size = 8, .shuffle = true, .seed = 4};
    wf_iter *first = wf_batches(numbered(50), opts),
            *again = wf_prefetch(wf_batches(numbered(50), opts), (wf_prefetch_opts){.depth = 3});
    wf_iter *other = wf_batches(numbered(50), (wf_batch_opts){.size = 8, .shuffle = true, .seed = 5});
    collect_labels(other, c);
    for (int epoch = 0; epoch < 2; epoch++) {
        collect_labels(first, a[epoch]);
        collect_labels(again, b[epoch]);
        int count[50] = {0}, in_place = 0;
        for (int i = 0; i < 50; i++) {
            count[a[epoch][i]]++;
            in_place += a[epoch][i] == i;
        }
        for (int i = 0; i < 50; i++)
            WF_EXPECT(count[i] == 1, "sample %d %d times", i, count[i]);
        WF_EXPECT(in_place < 12, "%d of 50 in their place", in_place);
    }
    WF_EXPECT(memcmp(a, b, sizeof a) == 0, "another order for the same seed");
    WF_EXPECT(memcmp(a[0], a[1], sizeof a[0]) != 0, "the same order in both epochs");
    WF_EXPECT(memcmp(a[0], c, sizeof c) != 0, "the same order for another seed");
    wf_iter_free(first);
    wf_iter_free(again);
    wf_iter_free(other);
}

static void types(void)
{
    wf_batch b = {0};
    wf_iter *iter = wf_batches(numbered(3), (wf_batch_opts){.size = 2, .raw = true});
    unsigned char raw[24] = {0};
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT(wf_tensor_dtype(b.x) == WF_U8 && wf_tensor_order(b.x) == WF_ROW_MAJOR, "raw u8");
    WF_EXPECT_OK(wf_tensor_export(b.x, raw, sizeof raw));
    for (int i = 0; i < 24; i++)
        WF_EXPECT(raw[i] == i, "%d", i);
    wf_iter_free(iter);

    const int64_t tokens[] = {5, 6, 7, 8};
    iter = wf_batches(wf_memory_dataset(ctx, WF_I64, WF_SHAPE(2, 2), tokens, NULL), (wf_batch_opts){.size = 2});
    int64_t stays[4] = {0};
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT_OK(wf_tensor_export(b.x, stays, sizeof stays));
    WF_EXPECT(wf_tensor_dtype(b.x) == WF_I64 && stays[3] == 8 && !b.labels, "i64 stays");
    wf_iter_free(iter);

    wf_ctx *wide = wf_ctx_new((wf_ctx_opts){.dtype = WF_F64});
    double x[2 * 4 * 3], y[24];
    for (int i = 0; i < 24; i++)
        x[i] = i / 7.0;
    iter = wf_batches(wf_memory_dataset(wide, WF_F64, WF_SHAPE(2, 4, 3, 1), x, NULL), (wf_batch_opts){.size = 2});
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT_OK(wf_tensor_export(b.x, y, sizeof y));
    WF_EXPECT(memcmp(x, y, sizeof x) == 0 && wf_tensor_order(b.x) == WF_CHANNELS_LAST, "f64 through f64");
    wf_iter_free(iter);
    const uint8_t u[] = {0, 1, 128, 255};
    iter = wf_batches(wf_memory_dataset(wide, WF_U8, WF_SHAPE(1, 4), u, NULL), (wf_batch_opts){.size = 2});
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT_OK(wf_tensor_export(b.x, y, 4 * sizeof *y));
    for (int i = 0; i < 4; i++)
        WF_EXPECT(y[i] == u[i] / 255.0, "u8 as f64");
    wf_iter_free(iter);
    WF_EXPECT_OK(wf_ctx_free(wide));
}

/* Every pair of types and number of channels gives the logical elements of the data set. */
static void conversions(void)
{
    for (int64_t channels = 1; channels <= 5; channels++) {
        const wf_shape shape = WF_SHAPE(3, channels, 2, 3);
        const int64_t n = wf_shape_count(shape);
        float x[90], y[90];
        for (int i = 0; i < n; i++)
            x[i] = (float)i / 3;
        wf_batch b = {0};
        wf_iter *iter = wf_batches(wf_memory_dataset(ctx, WF_F32, shape, x, NULL), (wf_batch_opts){.size = 3});
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT_OK(wf_tensor_export(b.x, y, (size_t)n * sizeof *y));
        WF_EXPECT(memcmp(x, y, (size_t)n * sizeof *x) == 0, "f32 with %lld channels", (long long)channels);
        wf_iter_free(iter);
        uint8_t u[90];
        for (int i = 0; i < n; i++)
            u[i] = (uint8_t)(2 * i);
        iter = wf_batches(wf_memory_dataset(ctx, WF_U8, shape, u, NULL), (wf_batch_opts){.size = 3});
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT_OK(wf_tensor_export(b.x, y, (size_t)n * sizeof *y));
        for (int i = 0; i < n; i++)
            WF_EXPECT(y[i] == (float)u[i] / 255.0f, "u8 with %lld channels, element %d", (long long)channels, i);
        wf_iter_free(iter);
    }
}

/* Stops after `batches` batches of `size`, continues with batches of `other`: the first sample that is seen again. */
static int64_t continued_at(int64_t samples, int64_t size, int64_t batches, int64_t other)
{
    wf_batch b;
    int64_t labels[64] = {-1};
    wf_archive *archive = wf_archive_memory(ctx);
    wf_iter *first = wf_batches(numbered(samples), (wf_batch_opts){.size = size});
    wf_iter *then = wf_batches(numbered(samples), (wf_batch_opts){.size = other});
    for (int64_t i = 0; i < batches; i++)
        WF_EXPECT_OK(wf_iter_next(first, &b));
    WF_EXPECT_OK(wf_iter_archive(first, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_iter_archive(then, archive));
    WF_EXPECT_OK(wf_iter_next(then, &b));
    WF_EXPECT_OK(wf_tensor_export(b.labels, labels, (size_t)b.size * sizeof *labels));
    const int64_t at = labels[0] + b.epoch * samples;
    wf_iter_free(first);
    wf_iter_free(then);
    wf_archive_free(archive);
    return at;
}

/* A run that goes on with another batch size leaves no sample out, and repeats none where the new batches begin where
 * the old ones ended. */
static void another_batch_size(void)
{
    int cases = 0;
    for (int64_t samples = 1; samples <= 60; samples += 3)
        for (int64_t size = 1; size <= 12; size++)
            for (int64_t other = 1; other <= 12; other++)
                for (int64_t i = 1; i * size < samples; i += 1 + (size + other) % 3) {
                    const int64_t done = i * size, at = continued_at(samples, size, i, other);
                    const int64_t expected = done / other * other;
                    cases += done % other == 0;
                    WF_EXPECT(at == expected, "%lld samples, after %lld batches of %lld: batches of %lld begin at %lld",
                              (long long)samples, (long long)i, (long long)size, (long long)other, (long long)at);
                }
    WF_EXPECT(cases > 500, "only %d cases are exactly divisible", cases);
}

/* What the iterator puts on the device, a letter a call: r and w record and wait on the context's stream, R and W on
 * another, c and C copy there. */
static char calls[256];
static wf_event *last_waited;
static const wf_kernels *real;

static void note(char on_own, const wf_stream *stream)
{
    const size_t length = strlen(calls);
    WF_EXPECT(length + 1 < sizeof calls, "too many calls");
    calls[length] = stream ? (char)(on_own - 'a' + 'A') : on_own;
}

static wf_status noted_record(wf_ctx *of, wf_event *event, wf_stream *stream)
{
    note('r', stream);
    return real->event_record(of, event, stream);
}

static wf_status noted_wait(wf_ctx *of, wf_event *event, wf_stream *stream)
{
    note('w', stream);
    last_waited = stream ? event : last_waited;
    return real->event_wait(of, event, stream);
}

static wf_status noted_copy(wf_ctx *of, void *device, const void *host, size_t bytes, wf_stream *stream)
{
    note('c', stream);
    return real->to_device_begin(of, device, host, bytes, stream);
}

/* Batches are copied beside computation. The copy of a batch into one slot waits for the last reader of that slot; that
 * of the slot given out last, which the step that runs now reads, it does not wait for. */
static void copied_beside(void)
{
    real = ctx->k;
    wf_kernels noted = *real;
    wf_batch b;
    wf_event *first_wait = NULL;
    noted.event_record = noted_record;
    noted.event_wait = noted_wait;
    noted.to_device_begin = noted_copy;
    wf_iter *iter = wf_prefetch(wf_batches(numbered(8), (wf_batch_opts){.size = 2}), (wf_prefetch_opts){.depth = 1});
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    ctx->k = &noted;
    for (int k = 0; k < 2; k++) {
        first_wait = last_waited;
        memset(calls, 0, sizeof calls);
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(strcmp(calls, real->host ? "" : "rWCCRw") == 0, "a batch is fetched by %s", calls);
    }
    WF_EXPECT(real->host || (first_wait && last_waited != first_wait), "two slots wait for one reader");
    ctx->k = real;
    wf_iter_free(iter);
}

/* A batch is what the data set holds, however late the device copies it: copies of all batches are read at the end. */
static void computed_late(void)
{
    wf_iter *iter = wf_prefetch(wf_batches(numbered(12), (wf_batch_opts){.size = 2}), (wf_prefetch_opts){.depth = 2});
    wf_tensor *kept[6];
    for (int k = 0; k < 6; k++) {
        wf_batch b;
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        kept[k] = wf_tensor_new(ctx, WF_F32, wf_tensor_shape(b.x));
        WF_EXPECT_OK(wf_check(kept[k]));
        const wf_strided from = wf_tensor_strided(b.x), to = wf_tensor_strided(kept[k]);
        WF_EXPECT_OK(ctx->k->copy(ctx, &from, &to, false));
    }
    for (int k = 0; k < 6; k++) {
        float x[24];
        WF_EXPECT_OK(wf_tensor_export(kept[k], x, sizeof x));
        for (int e = 0; e < 24; e++)
            WF_EXPECT(x[e] == (float)(24 * k + e) / 255.0f, "batch %d element %d: %g", k, e, (double)x[e]);
        wf_tensor_free(kept[k]);
    }
    wf_iter_free(iter);
}

static int64_t looks;

static wf_status never_done(wf_ctx *of, wf_event *event, bool *done)
{
    looks++;
    *done = false;
    return WF_OK;
}

/* A device that never ends a copy is an error in time, and the core is not kept busy meanwhile. */
static void stopped_device(void)
{
    const wf_kernels *const before = ctx->k;
    wf_config *const config = (wf_config *)wf_config_get();
    const long timeout = config->timeout_ms;
    wf_iter *iter = wf_batches(numbered(8), (wf_batch_opts){.size = 2});
    wf_batch b;
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    wf_kernels stopped = *before;
    stopped.event_done = never_done;
    if (!before->host) {
        ctx->k = &stopped;
        config->timeout_ms = 300;
        WF_EXPECT_ERROR(WF_ERR_TIMEOUT, wf_iter_next(iter, &b));
        WF_EXPECT(looks < 100000, "%lld looks at the device in 300 ms", (long long)looks);
        ctx->k = before;
        config->timeout_ms = timeout;
    }
    wf_iter_free(iter);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.seed = 17});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"sizes", sizes},
                                               {"drop_last", drop_last},
                                               {"once", once},
                                               {"empty", empty},
                                               {"shuffled", shuffled},
                                               {"types", types},
                                               {"conversions", conversions},
                                               {"another_batch_size", another_batch_size},
                                               {"copied_beside", copied_beside},
                                               {"computed_late", computed_late},
                                               {"stopped_device", stopped_device},
                                               {0}});
    WF_MUST(wf_ctx_free(ctx));
    return failed;
}
