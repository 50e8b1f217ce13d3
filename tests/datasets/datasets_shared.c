/* Shared batches: sent by one rank, or read by each in one order. */
#include "comm/comm.h"
#include "core/core.h"
#include "datasets/datasets.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <string.h>

enum { SAMPLES = 11, BATCH = 4 };

/* f32 [n,2] whose element e of sample i is 10 i + e, label i. */
static wf_dataset *numbered(int64_t n)
{
    float x[2 * SAMPLES];
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        x[2 * i] = (float)(10 * i);
        x[2 * i + 1] = (float)(10 * i + 1);
        labels[i] = i;
    }
    return wf_memory_dataset(ctx, WF_F32, WF_SHAPE(n, 2), x, labels);
}

/* Marks the samples of a batch; all ranks have the same ones in the same order. */
static void check_batch(const wf_batch *batch, int64_t *seen)
{
    float x[2 * BATCH];
    int64_t labels[BATCH], lo[BATCH] = {0}, hi[BATCH] = {0};
    WF_EXPECT_OK(wf_tensor_export(batch->x, x, wf_tensor_bytes(batch->x)));
    WF_EXPECT_OK(wf_tensor_export(batch->labels, labels, wf_tensor_bytes(batch->labels)));
    for (int64_t i = 0; i < batch->size; i++) {
        WF_EXPECT(x[2 * i] == (float)(10 * labels[i]) && x[2 * i + 1] == (float)(10 * labels[i] + 1),
                  "sample %lld has %g", (long long)labels[i], x[2 * i]);
        seen[labels[i]]++;
        lo[i] = hi[i] = labels[i];
    }
    WF_EXPECT_OK(wf_allreduce_i64(comm, lo, BATCH, WF_MIN));
    WF_EXPECT_OK(wf_allreduce_i64(comm, hi, BATCH, WF_MAX));
    WF_EXPECT(!memcmp(lo, hi, sizeof lo), "the ranks have different samples");
}

static void check_seen(const int64_t *seen, int64_t times)
{
    for (int i = 0; i < SAMPLES; i++)
        WF_EXPECT(seen[i] == times, "sample %d came %lld times", i, (long long)seen[i]);
}

static void sent(void)
{
    const wf_batch_opts opts = {.size = BATCH, .shuffle = true};
    for (int root = 0; root < size; root++) {
        int64_t seen[SAMPLES] = {0};
        wf_iter *iter = rank == root ? wf_batches(numbered(SAMPLES), opts) : NULL;
        wf_shared_iter *shared = wf_shared_batches(comm, iter, root);
        for (int i = 0; i < 6; i++) {
            wf_batch batch = {0};
            WF_EXPECT_OK(wf_shared_next(shared, &batch));
            WF_EXPECT(batch.size == (i % 3 == 2 ? 3 : 4) && batch.epoch == i / 3 && batch.last == (i % 3 == 2),
                      "batch %d has %lld samples", i, (long long)batch.size);
            check_batch(&batch, seen);
        }
        check_seen(seen, 2);
        wf_shared_free(shared);
    }
}

/* From an archive the batches go on where they were, whoever reads. */
static void goes_on(void)
{
    const wf_batch_opts opts = {.size = BATCH, .shuffle = true};
    for (int root = 0; root < size; root++) {
        wf_archive *archive = wf_archive_memory(ctx);
        int64_t first[8][BATCH] = {{0}}, again[8][BATCH] = {{0}};
        for (int run = 0; run < 2; run++) {
            wf_iter *iter = rank == root ? wf_prefetch(wf_batches(numbered(SAMPLES), opts), 2) : NULL;
            wf_shared_iter *shared = wf_shared_batches(comm, iter, root);
            if (run == 1) {
                WF_EXPECT_OK(wf_archive_memory_rewind(archive));
                WF_EXPECT_OK(wf_shared_visit(shared, archive));
            }
            for (int i = 0; i < 8; i++) {
                wf_batch batch = {0};
                if (i == 4 && run == 0)
                    WF_EXPECT_OK(wf_shared_visit(shared, archive));
                if (i < 4 && run == 1)
                    continue;
                WF_EXPECT_OK(wf_shared_next(shared, &batch));
                WF_EXPECT_OK(wf_tensor_export(batch.labels, (run ? again : first)[i], wf_tensor_bytes(batch.labels)));
            }
            wf_shared_free(shared);
        }
        WF_EXPECT(memcmp(first[4], again[4], 4 * sizeof *first) == 0, "root %d: other batches than without a stop",
                  root);
        wf_archive_free(archive);
    }
}

static void root_fails(void)
{
    wf_iter *iter =
        rank == 0 ? wf_batches(wf_mnist(ctx, "/nowhere/at/all", WF_TRAIN_SET), (wf_batch_opts){.size = 2}) : NULL;
    wf_shared_iter *shared = wf_shared_batches(comm, iter, 0);
    for (int i = 0; i < 2; i++) {
        wf_batch batch;
        const wf_status status = wf_shared_next(shared, &batch);
        WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "nowhere"), "%s: %s", wf_status_name(status),
                  wf_error_message());
        wf_error_clear();
    }
    WF_EXPECT_OK(wf_barrier(comm));
    wf_shared_free(shared);
}

/* A root that has nothing to read from, or another idea of who the root is. */
static void root_without_batches(void)
{
    for (int what = 0; what < 2; what++) {
        wf_comm *child = wf_comm_split(comm, 0, 0);
        const char *says = what ? "root 77: should be 0" : "iter is NULL";
        wf_shared_iter *shared = wf_shared_batches(child, NULL, what && rank == 0 ? 77 : 0);
        wf_batch batch;
        WF_EXPECT((shared == NULL) == (rank == 0), "rank %d: %s", rank, wf_error_message());
        const wf_status status = shared ? wf_shared_next(shared, &batch) : wf_error_code();
        WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), says), "rank %d: %s", rank,
                  wf_error_message());
        wf_error_clear();
        wf_shared_free(shared);
        if (child && wf_comm_close(child) != WF_OK)
            wf_error_clear();
    }
}

static void same_order(void)
{
    int64_t seen[SAMPLES] = {0};
    wf_iter *iter = wf_synchronized_batches(
        comm, numbered(SAMPLES), (wf_batch_opts){.size = BATCH, .shuffle = true, .seed = 5 + (uint64_t)rank});
    for (int i = 0; i < 6; i++) {
        wf_batch batch = {0};
        WF_EXPECT_OK(wf_iter_next(iter, &batch));
        check_batch(&batch, seen);
    }
    check_seen(seen, 2);
    wf_iter_free(iter);
}

static void different(void)
{
    if (size == 1)
        return;
    wf_comm *child = wf_comm_split(comm, 0, 0);
    wf_iter *iter = wf_synchronized_batches(child, numbered(rank == 1 ? 7 : SAMPLES), (wf_batch_opts){.size = BATCH});
    WF_EXPECT(!iter && wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), "7 on rank 1"), "%s",
              wf_error_message());
    wf_error_clear();
    if (child && wf_comm_close(child) != WF_OK)
        wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"sent", sent},
                                               {"goes_on", goes_on},
                                               {"root_fails", root_fails},
                                               {"root_without_batches", root_without_batches},
                                               {"same_order", same_order},
                                               {"different", different},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
