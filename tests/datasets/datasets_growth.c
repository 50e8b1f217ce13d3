/* Batches that grow from epoch to epoch: sizes and ends on all ranks, and going on in the middle of such an epoch. */
#include "comm/comm.h"
#include "core/core.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <string.h>

enum { SAMPLES = 29, EPOCHS = 4, MOST = 64 };

static wf_dataset *numbered(void)
{
    float x[SAMPLES] = {0};
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i;
    return wf_memory_dataset(ctx, WF_F32, WF_SHAPE(SAMPLES, 1), x, labels);
}

/* Two, from epoch 1 on three, from epoch 3 on more than there are. */
static wf_iter *growing(bool drop_last, int workers)
{
    wf_dataset *part = wf_scatter_dataset(comm, rank == 0 ? numbered() : NULL, (wf_scatter_opts){.shuffle = true});
    wf_iter *iter = wf_batches(
        part,
        (wf_batch_opts){.size = 2, .grows = {{1, 3}, {3, drop_last ? 5 : 40}}, .drop_last = drop_last, .seed = 4});
    return workers ? wf_prefetch(iter, (wf_prefetch_opts){.workers = workers}) : iter;
}

static int64_t size_at(int64_t epoch, bool drop_last)
{
    return epoch < 1 ? 2 : epoch < 3 ? 3 : drop_last ? 5 : 40;
}

/* Every sample once an epoch, in batches of the epoch's size, of equal number on all ranks. */
static void sizes(void)
{
    for (int variant = 0; variant < 6; variant++) {
        const bool drop_last = variant % 2;
        wf_iter *iter = growing(drop_last, variant / 2);
        for (int64_t e = 0; e < EPOCHS; e++) {
            int64_t seen[SAMPLES] = {0}, n = 0;
            const int64_t length = wf_iter_epoch_length(iter), full = size_at(e, drop_last);
            WF_EXPECT(length == wf_iter_length_at(iter, e), "the length of epoch %lld", (long long)e);
            for (wf_batch b = {0}; !b.last && n < MOST; n++) {
                int64_t labels[MOST];
                WF_EXPECT_OK(wf_iter_next(iter, &b));
                WF_EXPECT(b.epoch == e && b.index == n && b.size <= full && (!drop_last || b.size == full),
                          "batch %lld of epoch %lld: %lld samples", (long long)n, (long long)e, (long long)b.size);
                WF_EXPECT(wf_tensor_layout(b.x).global.dim[0] == b.global, "the layout of batch %lld", (long long)n);
                WF_EXPECT_OK(wf_tensor_export(b.labels, labels, wf_tensor_bytes(b.labels)));
                for (int64_t i = 0; i < b.size; i++)
                    seen[labels[i]]++;
            }
            WF_EXPECT(n == length, "%lld batches in epoch %lld, %lld told", (long long)n, (long long)e,
                      (long long)length);
            WF_EXPECT_OK(wf_allreduce_i64(comm, seen, SAMPLES, WF_SUM));
            for (int i = 0; i < SAMPLES; i++)
                WF_EXPECT(seen[i] == 1 || (drop_last && seen[i] == 0), "sample %d %lld times", i, (long long)seen[i]);
        }
        wf_iter_free(iter);
    }
}

/* The labels of the batches that follow, and where each ends. */
static int64_t rest_of(wf_iter *iter, int64_t (*labels)[MOST])
{
    int64_t n = 0;
    for (wf_batch b = {0}; wf_iter_epoch(iter) < EPOCHS && n < MOST; n++) {
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        memset(labels[n], -1, sizeof labels[n]);
        WF_EXPECT_OK(wf_tensor_export(b.labels, labels[n], wf_tensor_bytes(b.labels)));
    }
    return n;
}

/* An iterator that goes on from any place gives the batches that the first one would have given. */
static void goes_on(void)
{
    static int64_t as_before[MOST][MOST], as_then[MOST][MOST];
    for (int64_t done = 0; done < 100; done += 3) {
        wf_iter *first = growing(false, 0), *then = growing(false, 1 + done % 2);
        wf_archive *archive = wf_archive_memory(ctx);
        wf_batch b = {0};
        for (int64_t i = 0; i < done && wf_iter_epoch(first) < EPOCHS; i++)
            WF_EXPECT_OK(wf_iter_next(first, &b));
        const bool over = wf_iter_epoch(first) == EPOCHS;
        WF_EXPECT_OK(wf_iter_archive(first, archive));
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        WF_EXPECT_OK(wf_iter_archive(then, archive));
        const int64_t n = rest_of(first, as_before), m = rest_of(then, as_then);
        WF_EXPECT(n == m && memcmp(as_before, as_then, (size_t)n * sizeof *as_then) == 0,
                  "after %lld batches: %lld follow, should be the same %lld", (long long)done, (long long)m,
                  (long long)n);
        wf_archive_free(archive);
        wf_iter_free(first);
        wf_iter_free(then);
        if (over)
            break;
    }
}

/* Four, from epoch 1 on five, from epoch 2 on two. */
static wf_iter *otherwise(void)
{
    wf_dataset *part = wf_scatter_dataset(comm, rank == 0 ? numbered() : NULL, (wf_scatter_opts){.shuffle = true});
    return wf_batches(part, (wf_batch_opts){.size = 4, .grows = {{1, 5}, {2, 2}}, .seed = 4});
}

static wf_batch advance(wf_iter *iter, int64_t epoch, int64_t batches)
{
    wf_batch b = {0};
    while (wf_iter_epoch(iter) < epoch)
        WF_EXPECT_OK(wf_iter_next(iter, &b));
    for (int64_t i = 0; i < batches; i++)
        WF_EXPECT_OK(wf_iter_next(iter, &b));
    return b;
}

/* Samples that all ranks have had after so many batches of an epoch. */
static int64_t given_after(int64_t batches, int64_t each)
{
    int64_t all = 0;
    for (int r = 0; r < size; r++) {
        int64_t lo, hi;
        wf_block(SAMPLES, size, r, &lo, &hi);
        all += batches * each < hi - lo ? batches * each : hi - lo;
    }
    return all;
}

/* In the middle of an epoch that grew, another growth goes on with the batch that has the first sample not given yet.
 */
static void goes_on_otherwise(void)
{
    static const int64_t sizes[EPOCHS] = {4, 5, 2, 2};
    for (int64_t epoch = 0; epoch < 3; epoch++)
        for (int64_t done = 1; given_after(done, size_at(epoch, false)) < SAMPLES; done++) {
            wf_iter *first = growing(false, 0), *then = otherwise(), *whole = otherwise();
            wf_archive *archive = wf_archive_memory(ctx);
            int64_t index = 0, labels[2][MOST] = {{0}};
            advance(first, epoch, done);
            WF_EXPECT_OK(wf_iter_archive(first, archive));
            WF_EXPECT_OK(wf_archive_memory_rewind(archive));
            WF_EXPECT_OK(wf_iter_archive(then, archive));
            while (given_after(index + 1, sizes[epoch]) <= given_after(done, size_at(epoch, false)))
                index++;
            const wf_batch a = advance(whole, epoch, index + 1), b = advance(then, 0, 1);
            WF_EXPECT(b.epoch == epoch && b.index == index, "after %lld batches of epoch %lld: batch %lld of %lld",
                      (long long)done, (long long)epoch, (long long)b.index, (long long)b.epoch);
            WF_EXPECT_OK(wf_tensor_export(a.labels, labels[0], wf_tensor_bytes(a.labels)));
            WF_EXPECT_OK(wf_tensor_export(b.labels, labels[1], wf_tensor_bytes(b.labels)));
            WF_EXPECT(a.size == b.size && memcmp(labels[0], labels[1], sizeof *labels) == 0,
                      "after %lld batches of epoch %lld: other samples", (long long)done, (long long)epoch);
            wf_archive_free(archive);
            wf_iter_free(first);
            wf_iter_free(then);
            wf_iter_free(whole);
        }
}

static void errors(void)
{
    const wf_batch_opts wrong[] = {{.size = 2, .grows = {{0, 3}}},
                                   {.size = 2, .grows = {{2, 3}, {2, 4}}},
                                   {.size = 2, .grows = {{1, -3}}},
                                   {.size = 2, .grows = {{1, 0}, {2, 4}}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        TEST_FAILS(WF_ERR_ARGUMENT, wf_check(wf_batches(numbered(), wrong[i])), "from epoch", "rising");
    wf_batch b;
    wf_iter *iter = wf_batches(numbered(), (wf_batch_opts){.size = 2, .grows = {{1, 40}}, .drop_last = true});
    TEST_FAILS(WF_ERR_ARGUMENT, wf_iter_next(iter, &b), "batches of 40 with drop_last", "29 samples");
    wf_iter_free(iter);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    const int failed = test_main(
        argc, argv,
        (test_case[]){
            {"sizes", sizes}, {"goes_on", goes_on}, {"goes_on_otherwise", goes_on_otherwise}, {"errors", errors}, {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
