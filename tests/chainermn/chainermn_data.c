/* ChainerMN's datasets_tests and iterators_tests, by meaning; its training on MNIST is in chainermn_extensions.c. */
#include "datasets/datasets.h"
#include "tests/chainermn/chainermn.h"

enum { MOST_SAMPLES = 100 };

/* f32 scalars 0, 1, ..., n - 1; with labels, their pairs. */
static wf_dataset *counted(int64_t n, bool paired)
{
    float x[MOST_SAMPLES + 1] = {0};
    int64_t labels[MOST_SAMPLES + 1] = {0};
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)i;
        labels[i] = i;
    }
    return wf_memory_dataset(ctx, WF_F32, WF_SHAPE(n), x, paired ? labels : NULL);
}

static const bool paired_or_not[] = {false, true};

/* --- test_empty_dataset
 * -----------------------------------------------------------------------------------------------
 */

/* Theirs has as many samples, of no value; Weft's has none, of the same shape, and gives empty batches. */
static void test_empty_dataset(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    static const int64_t length[] = {0, 1, 10, 49};
    for (int i = 0; i < 8; i++) {
        wf_dataset *original = counted(length[i / 2], paired_or_not[i % 2]);
        wf_dataset_info info, seen;
        wf_batch batch = {0};
        WF_EXPECT_OK(wf_dataset_info_get(original, &info));
        wf_dataset *empty = wf_empty_dataset(ctx, &info);
        WF_EXPECT_OK(wf_dataset_info_get(empty, &seen));
        WF_EXPECT(seen.count == 0 && seen.dtype == info.dtype && wf_shape_equal(seen.shape, info.shape) &&
                      seen.labels == info.labels && seen.classes == info.classes,
                  "%lld samples of another kind", (long long)seen.count);
        wf_iter *iter = wf_batches(empty, (wf_batch_opts){.size = 4});
        for (int epoch = 0; epoch < 2; epoch++) {
            WF_EXPECT_OK(wf_iter_next(iter, &batch));
            WF_EXPECT(batch.size == 0 && batch.epoch == epoch && batch.last, "a batch of %lld in epoch %lld",
                      (long long)batch.size, (long long)batch.epoch);
        }
        wf_iter_free(iter);
        wf_dataset_free(original);
    }
    communicator_close();
}

/* --- test_scatter
 * -----------------------------------------------------------------------------------------------------
 */

/* Takes this rank's samples out of one epoch, and counts them. */
static int64_t count_samples(wf_dataset *part, int64_t *times)
{
    int64_t count = 0;
    wf_iter *iter = wf_batches(part, (wf_batch_opts){.size = 7, .once = true});
    for (;;) {
        wf_batch batch = {0};
        WF_EXPECT_OK(wf_iter_next(iter, &batch));
        if (batch.global == 0)
            break;
        double *x = doubles_of(batch.x);
        for (int64_t i = 0; i < batch.size; i++)
            times[(int64_t)x[i]]++;
        count += batch.size;
        free(x);
    }
    wf_iter_free(iter);
    return count;
}

static void check_scatter_dataset(int64_t n, bool paired, bool shuffle, int root)
{
    int64_t times[MOST_SAMPLES] = {0}, count[2];
    wf_dataset *data = rank == root ? counted(n, paired) : NULL;
    wf_dataset *part =
        wf_scatter_dataset(comm, data, (wf_scatter_opts){.shuffle = shuffle, .root = root, .force_equal_length = true});
    WF_EXPECT(part, "%lld samples from %d: %s", (long long)n, root, wf_error_message());
    const int64_t held = wf_dataset_count(part);
    WF_EXPECT(n <= held * size && (held == 0 || n > (held - 1) * size), "a part of %lld from %lld", (long long)held,
              (long long)n);
    count[0] = held;
    count[1] = -held;
    WF_EXPECT_OK(wf_allreduce_i64(comm, count, 2, WF_MAX));
    WF_EXPECT(count[0] == -count[1], "parts of %lld to %lld samples", (long long)-count[1], (long long)count[0]);
    const int64_t taken = count_samples(part, times);
    WF_EXPECT(taken == held, "%lld samples of %lld", (long long)taken, (long long)held);
    WF_EXPECT_OK(wf_allreduce_i64(comm, times, MOST_SAMPLES, WF_SUM));
    for (int64_t i = 0; i < MOST_SAMPLES; i++)
        WF_EXPECT((times[i] > 0) == (i < n), "sample %lld of %lld came %lld times", (long long)i, (long long)n,
                  (long long)times[i]);
}

static void test_scatter_dataset(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    const int64_t length[] = {0, 1, size, 5 * size - 1};
    for (int shuffle = 0; shuffle < 2; shuffle++)
        for (int root = 0; root < size; root++)
            for (int i = 0; i < 8; i++)
                check_scatter_dataset(length[i / 2], paired_or_not[i % 2], shuffle, root);
    communicator_close();
}

/* 2,000,000,000 samples, which each rank makes when it needs them. */
static void test_scatter_large_dataset(void)
{
    static const char *const names[] = {"naive", "flat"};
    for (int i = 0; i < 2; i++) {
        communicator_open(names[i], (wf_ctx_opts){0});
        wf_dataset *data =
            wf_synthetic(ctx, (wf_synthetic_opts){.count = 2000000000, .shape = WF_SHAPE(1, 2, 2), .seed = 1});
        wf_dataset *part = wf_scatter_dataset(comm, data, (wf_scatter_opts){.each_reads = true});
        int64_t held = wf_dataset_count(part);
        WF_EXPECT(held > 0, "no samples: %s", wf_error_message());
        WF_EXPECT_OK(wf_allreduce_i64(comm, &held, 1, WF_SUM));
        WF_EXPECT(held == 2000000000, "%lld samples", (long long)held);
        wf_dataset_free(part);
        communicator_close();
    }
}

/* This rank's indices of n, which are one range. */
static void expect_range(int64_t n, int64_t lo, int64_t hi)
{
    int64_t count = 0, *index = NULL;
    WF_EXPECT_OK(wf_scatter_index(comm, n, (wf_scatter_opts){0}, &count, &index));
    WF_EXPECT(count == hi - lo, "%lld of %lld, should be %lld", (long long)count, (long long)n, (long long)(hi - lo));
    int64_t i = 0;
    while (i < count && index[i] == lo + i)
        i++;
    WF_EXPECT(i == count, "index %lld of %lld is wrong", (long long)i, (long long)n);
    free(index);
}

static void test_scatter_index_one(void)
{
    static const int64_t should[3][2] = {{0, 4}, {4, 7}, {7, 10}};
    communicator_open("naive", (wf_ctx_opts){0});
    for (int r = 0; r < 3; r++) {
        int64_t lo, hi;
        wf_block(10, 3, r, &lo, &hi);
        WF_EXPECT(lo == should[r][0] && hi == should[r][1], "part %d is [%lld,%lld)", r, (long long)lo, (long long)hi);
    }
    if (size == 3)
        expect_range(10, should[rank][0], should[rank][1]);
    communicator_close();
}

/* Parts follow each other and differ by one at most; for as many ranks as theirs by arithmetic, here by the call. */
static void test_scatter_index(void)
{
    static const int64_t pair[][2] = {{10, 3}, {1244, 23}, {2, 1}, {230945, 237}};
    communicator_open("naive", (wf_ctx_opts){0});
    for (int c = 0; c < 4; c++) {
        const int64_t n = pair[c][0], parts = pair[c][1];
        int64_t end = 0, lo, hi;
        for (int64_t r = 0; r < parts; r++) {
            wf_block(n, parts, r, &lo, &hi);
            WF_EXPECT(lo == end && hi - lo >= n / parts && hi - lo <= (n + parts - 1) / parts, "part %lld of %lld",
                      (long long)r, (long long)n);
            end = hi;
        }
        WF_EXPECT(end == n, "the parts end at %lld, should be %lld", (long long)end, (long long)n);
        wf_block(n, size, rank, &lo, &hi);
        expect_range(n, lo, hi);
    }
    communicator_close();
}

/* --- test_iterator_compatibility
 * --------------------------------------------------------------------------------------
 */

enum { FEW = 6, PAIR = 2 };

static void mark_batch(const wf_batch *batch, int *times, int number)
{
    WF_EXPECT(batch->size == PAIR && batch->index == number && batch->last == (number == 2), "batch %d has %lld",
              number, (long long)batch->size);
    double *x = doubles_of(batch->x);
    for (int i = 0; i < batch->size; i++)
        times[(int)x[i]]++;
    free(x);
}

/* Two batches of one iterator, and the third of a plain one that its archive was loaded into. */
static void check_compatible(bool shared, bool ahead)
{
    const wf_batch_opts opts = {.size = PAIR, .shuffle = true};
    int times[FEW] = {0};
    wf_batch batch = {0};
    wf_archive *archive = wf_archive_memory(ctx);
    wf_iter *iter = NULL, *plain = wf_batches(counted(FEW, false), opts);
    wf_shared_iter *all = NULL;
    if (shared) {
        wf_iter *roots = rank ? NULL : wf_batches(counted(FEW, false), opts);
        all = wf_shared_batches(comm, roots && ahead ? wf_prefetch(roots, (wf_prefetch_opts){.depth = 2}) : roots, 0);
    } else {
        iter = wf_synchronized_batches(comm, counted(FEW, false), opts);
        iter = ahead ? wf_prefetch(iter, (wf_prefetch_opts){.depth = 2}) : iter;
    }
    for (int i = 0; i < 2; i++) {
        WF_EXPECT_OK(shared ? wf_shared_next(all, &batch) : wf_iter_next(iter, &batch));
        mark_batch(&batch, times, i);
    }
    WF_EXPECT_OK(shared ? wf_shared_archive(all, archive) : wf_iter_archive(iter, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_iter_archive(plain, archive));
    WF_EXPECT(wf_iter_epoch(plain) == 0, "epoch %lld", (long long)wf_iter_epoch(plain));
    WF_EXPECT_OK(wf_iter_next(plain, &batch));
    mark_batch(&batch, times, 2);
    for (int i = 0; i < FEW; i++)
        WF_EXPECT(times[i] == 1, "sample %d came %d times", i, times[i]);
    wf_archive_free(archive);
    wf_shared_free(all);
    wf_iter_free(iter);
    wf_iter_free(plain);
}

static void each_reader(bool shared)
{
    communicator_open("naive", (wf_ctx_opts){0});
    check_compatible(shared, false);
    check_compatible(shared, true);
    communicator_close();
}

static void test_multi_node_iterator_compatibility(void)
{
    each_reader(true);
}

static void test_synchronized_iterator_compatibility(void)
{
    each_reader(false);
}

/* --- test_multi_node_iterator, test_synchronized_iterator
 * -------------------------------------------------------------
 */

/* All ranks hold the same samples in the same order; labels are the samples. */
static void expect_same_batch(const wf_batch *batch, bool paired)
{
    double lo[2 * MOST_SAMPLES] = {0}, hi[2 * MOST_SAMPLES] = {0};
    double *x = doubles_of(batch->x), *labels = paired ? doubles_of(batch->labels) : NULL;
    int n = 0;
    for (int64_t i = 0; i < batch->size; i++) {
        lo[n++] = x[i];
        WF_EXPECT(!paired || labels[i] == x[i], "label %g of sample %g", labels[i], x[i]);
    }
    lo[n++] = (double)batch->size;
    memcpy(hi, lo, sizeof hi);
    WF_EXPECT_OK(wf_allreduce_f64(comm, lo, 2 * MOST_SAMPLES, WF_MIN));
    WF_EXPECT_OK(wf_allreduce_f64(comm, hi, 2 * MOST_SAMPLES, WF_MAX));
    WF_EXPECT(memcmp(lo, hi, sizeof hi) == 0, "ranks have different batches of %lld", (long long)batch->size);
    free(x);
    free(labels);
}

typedef struct reading {
    int64_t batch;
    int root;
    bool once, paired, ahead;
} reading;

static void read_shared(reading how)
{
    const wf_batch_opts opts = {.size = how.batch, .shuffle = true, .once = how.once};
    wf_iter *iter = rank == how.root ? wf_batches(counted(MOST_SAMPLES, how.paired), opts) : NULL;
    wf_shared_iter *shared =
        wf_shared_batches(comm, iter && how.ahead ? wf_prefetch(iter, (wf_prefetch_opts){.depth = 3}) : iter, how.root);
    int64_t seen = 0, epochs = 0;
    for (int i = 0; epochs < 3; i++) {
        wf_batch batch = {0};
        WF_EXPECT_OK(wf_shared_next(shared, &batch));
        expect_same_batch(&batch, how.paired && batch.size);
        WF_EXPECT(batch.size == how.batch || batch.last || (how.once && batch.size == 0), "a batch of %lld",
                  (long long)batch.size);
        seen += batch.size;
        epochs += how.once ? batch.size == 0 : batch.last;
        if (i > 300) {
            WF_EXPECT(false, "no end of an epoch");
            break;
        }
    }
    WF_EXPECT(seen == 3 * MOST_SAMPLES, "%lld samples in three epochs", (long long)seen);
    wf_shared_free(shared);
}

/* With pairs and without, read at once and ahead (their MultiprocessIterator). */
static void each_reading(reading how)
{
    communicator_open("naive", (wf_ctx_opts){0});
    how.root = how.root < size ? how.root : 0;
    for (int i = 0; i < 4; i++) {
        how.paired = i % 2;
        how.ahead = i / 2;
        read_shared(how);
    }
    communicator_close();
}

static void test_mn_iterator(void)
{
    each_reading((reading){.batch = 4});
}

static void test_mn_iterator_frag(void)
{
    each_reading((reading){.batch = 7});
}

static void test_mn_iterator_change_master(void)
{
    each_reading((reading){.batch = 4, .root = 1});
}

static void test_mn_iterator_no_repeat(void)
{
    each_reading((reading){.batch = 4, .once = true});
}

/* They roll the order that the root's archive holds; here the archive is of another order. All ranks follow. */
static void test_overwrite_order(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    double first[3][4];
    wf_archive *archive = wf_archive_memory(ctx);
    for (int run = 0; run < 3; run++) {
        const wf_batch_opts opts = {.size = 4, .shuffle = true, .seed = run == 1 ? 8 : 7};
        wf_batch batch = {0};
        wf_shared_iter *shared =
            wf_shared_batches(comm, rank ? NULL : wf_batches(counted(MOST_SAMPLES, false), opts), 0);
        if (run == 1)
            WF_EXPECT_OK(wf_shared_archive(shared, archive));
        if (run == 2) {
            WF_EXPECT_OK(wf_archive_memory_rewind(archive));
            WF_EXPECT_OK(wf_shared_archive(shared, archive));
        }
        WF_EXPECT_OK(wf_shared_next(shared, &batch));
        expect_same_batch(&batch, false);
        double *x = doubles_of(batch.x);
        memcpy(first[run], x, sizeof first[run]);
        free(x);
        wf_shared_free(shared);
    }
    WF_EXPECT(memcmp(first[0], first[1], sizeof first[0]) != 0, "two seeds have one order");
    WF_EXPECT(memcmp(first[1], first[2], sizeof first[1]) == 0, "the order that was loaded is not taken");
    wf_archive_free(archive);
    communicator_close();
}

/* A type that they do not send is an error of the root alone there; here every rank gets it. */
static void test_invalid_type(void)
{
    communicator_open("naive", (wf_ctx_opts){0});
    wf_iter *iter =
        rank ? NULL : wf_batches(wf_mnist(ctx, "/no/such/folder", WF_TRAIN_SET), (wf_batch_opts){.size = 1});
    wf_shared_iter *shared = wf_shared_batches(comm, iter, 0);
    wf_batch batch;
    WF_EXPECT_ERROR(WF_ERR_IO, wf_shared_next(shared, &batch));
    WF_EXPECT_OK(wf_barrier(comm));
    wf_shared_free(shared);
    communicator_close();
}

static void check_synchronized(int64_t size_of_batch, bool once)
{
    communicator_open("naive", (wf_ctx_opts){.seed = 3});
    const wf_batch_opts opts = {.size = size_of_batch, .shuffle = true, .once = once};
    wf_iter *iter = wf_synchronized_batches(comm, counted(MOST_SAMPLES, false), opts);
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t seen = 0;
        WF_EXPECT(wf_iter_epoch(iter) == epoch, "epoch %lld, should be %d", (long long)wf_iter_epoch(iter), epoch);
        for (bool last = false; !last;) {
            wf_batch batch = {0};
            const wf_status status = wf_iter_next(iter, &batch);
            WF_EXPECT(status == WF_OK, "%s", wf_error_message());
            expect_same_batch(&batch, false);
            seen += batch.size;
            last = status != WF_OK || (once ? batch.size == 0 : batch.last);
        }
        WF_EXPECT(seen == MOST_SAMPLES, "%lld samples in epoch %d", (long long)seen, epoch);
    }
    wf_iter_free(iter);
    communicator_close();
}

static void test_sync(void)
{
    check_synchronized(4, false);
}

static void test_sync_frag(void)
{
    check_synchronized(7, false);
}

static void test_sync_no_repeat(void)
{
    check_synchronized(4, true);
}

static void test_sync_no_repeat_frag(void)
{
    check_synchronized(7, true);
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"empty_dataset", test_empty_dataset},
                                   {"scatter_dataset", test_scatter_dataset},
                                   {"scatter_large_dataset", test_scatter_large_dataset},
                                   {"scatter_index_one", test_scatter_index_one},
                                   {"scatter_index", test_scatter_index},
                                   {"multi_node_iterator_compatibility", test_multi_node_iterator_compatibility},
                                   {"synchronized_iterator_compatibility", test_synchronized_iterator_compatibility},
                                   {"mn_iterator", test_mn_iterator},
                                   {"mn_iterator_frag", test_mn_iterator_frag},
                                   {"mn_iterator_change_master", test_mn_iterator_change_master},
                                   {"mn_iterator_no_repeat", test_mn_iterator_no_repeat},
                                   {"overwrite_order", test_overwrite_order},
                                   {"invalid_type", test_invalid_type},
                                   {"sync", test_sync},
                                   {"sync_frag", test_sync_frag},
                                   {"sync_no_repeat", test_sync_no_repeat},
                                   {"sync_no_repeat_frag", test_sync_no_repeat_frag},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
