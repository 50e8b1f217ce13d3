/* Data sets over 1 to 4 ranks: who holds what, the same errors everywhere, the same number of iterations. */
#include "comm/comm.h"
#include "comm/mesh.h"
#include "core/archive_author.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"
#include "tests/ranks.h"
#include "tests/world.h"

/* u8 [n,2,2,2] whose element e of sample i is i + e, label i. */
static wf_dataset *numbered(int64_t n)
{
    unsigned char x[8 * 128];
    int64_t labels[128];
    for (int i = 0; i < 8 * 128; i++)
        x[i] = (unsigned char)(i / 8 + i % 8);
    for (int i = 0; i < 128; i++)
        labels[i] = i;
    return wf_memory_dataset(ctx, WF_U8, WF_SHAPE(n, 2, 2, 2), x, labels);
}

/* How often each of n samples is held, over all ranks; checks x against the label. */
static void count_samples(wf_dataset *d, int64_t n, int64_t *held)
{
    memset(held, 0, 128 * sizeof *held);
    for (int64_t i = 0; i < wf_dataset_count(d); i++) {
        unsigned char x[8];
        int64_t label = -1;
        WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, &label));
        WF_EXPECT(label >= 0 && label < n, "label %lld", (long long)label);
        for (int e = 0; e < 8; e++)
            WF_EXPECT(x[e] == label + e, "sample %lld element %d is %d", (long long)label, e, x[e]);
        if (label >= 0 && label < n)
            held[label]++;
    }
    WF_EXPECT_OK(wf_allreduce_i64(comm, held, n, WF_SUM));
}

static void parts(void)
{
    static const int64_t strict[5][5] = {{0}, {0, 10}, {0, 5, 10}, {0, 4, 7, 10}, {0, 3, 6, 8, 10}};
    static const int64_t equal[5][4] = {{0}, {0}, {0, 5}, {0, 3, 6}, {0, 2, 5, 7}};
    static const int64_t length[5] = {0, 10, 5, 4, 3};
    if (size > 4)
        return;
    int64_t count, *index = NULL;
    WF_EXPECT_OK(wf_scatter_index(comm, 10, (wf_scatter_opts){0}, &count, &index));
    const int64_t lo = strict[size][rank], hi = strict[size][rank + 1];
    WF_EXPECT(count == hi - lo, "strict: %lld of 10", (long long)count);
    for (int64_t i = 0; i < count; i++)
        WF_EXPECT(index[i] == lo + i, "strict: index %lld is %lld", (long long)i, (long long)index[i]);
    free(index);
    WF_EXPECT_OK(wf_scatter_index(comm, 10, (wf_scatter_opts){.force_equal_length = true}, &count, &index));
    WF_EXPECT(count == length[size], "equal: %lld of 10", (long long)count);
    for (int64_t i = 0; i < count; i++)
        WF_EXPECT(index[i] == equal[size][rank] + i, "equal: index %lld is %lld", (long long)i, (long long)index[i]);
    free(index);
    wf_dataset *d = wf_scatter_dataset(comm, rank == 0 ? numbered(10) : NULL, (wf_scatter_opts){0});
    WF_EXPECT(wf_dataset_count(d) == hi - lo, "data set: %lld", (long long)wf_dataset_count(d));
    unsigned char x[8];
    int64_t label = -1;
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, x, &label));
    WF_EXPECT(label == lo, "data set: first is %lld", (long long)label);
    wf_dataset_free(d);
}

/* Every sample once, for sizes that divide and do not, small rounds, and any root. */
static void every_sample_once(void)
{
    const int64_t counts[] = {0, 1, 2, 3, 10, 64, 101};
    for (int t = 0; t < 7; t++)
        for (int variant = 0; variant < 4; variant++) {
            const int64_t n = counts[t];
            const wf_scatter_opts opts = {
                .shuffle = variant % 2, .seed = 5, .root = variant / 2 * (size - 1), .round_bytes = variant ? 100 : 0};
            int64_t held[128], count, *index = NULL;
            wf_dataset *mine = rank == opts.root ? numbered(n) : variant == 3 ? wf_idx(ctx, "/nowhere", NULL) : NULL;
            wf_dataset *d = wf_scatter_dataset(comm, mine, opts);
            WF_EXPECT_OK(wf_check(d));
            count_samples(d, n, held);
            for (int64_t i = 0; i < n; i++)
                WF_EXPECT(held[i] == 1, "n %lld, variant %d: sample %lld is held %lld times", (long long)n, variant,
                          (long long)i, (long long)held[i]);
            WF_EXPECT_OK(wf_scatter_index(comm, n, opts, &count, &index));
            WF_EXPECT(count == wf_dataset_count(d), "scatter_index: %lld", (long long)count);
            for (int64_t i = 0; i < count; i++) {
                unsigned char x[8];
                int64_t label = -1;
                WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, &label));
                WF_EXPECT(index[i] == label, "scatter_index: %lld is %lld", (long long)label, (long long)index[i]);
            }
            free(index);
            wf_dataset_free(d);
        }
}

static void equal_length(void)
{
    int64_t held[128];
    wf_dataset *d =
        wf_scatter_dataset(comm, rank == 0 ? numbered(10) : NULL,
                           (wf_scatter_opts){.force_equal_length = true, .shuffle = true, .round_bytes = 50});
    WF_EXPECT(wf_dataset_count(d) == (10 + size - 1) / size, "%lld", (long long)wf_dataset_count(d));
    count_samples(d, 10, held);
    int64_t sum = 0;
    for (int i = 0; i < 10; i++) {
        sum += held[i];
        WF_EXPECT(held[i] >= 1 && held[i] <= 2, "sample %d is held %lld times", i, (long long)held[i]);
    }
    WF_EXPECT(sum == (10 + size - 1) / size * size, "%lld", (long long)sum);
    wf_dataset_free(d);
}

static wf_status scatter_status(wf_dataset *d, wf_scatter_opts opts)
{
    wf_dataset *mine = wf_scatter_dataset(comm, d, opts);
    const wf_status status = wf_check(mine);
    wf_dataset_free(mine);
    return status;
}

/* A data set that fails at one sample, after some rounds. */
static wf_status late_open(wf_dataset *dataset)
{
    dataset->info = (wf_dataset_info){.count = 50, .dtype = WF_U8, .shape = WF_SHAPE(4)};
    return WF_OK;
}

static wf_status late_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    WF_CHECK(index != 33, WF_ERR_FORMAT, "late.bin: sample %lld is damaged", (long long)index);
    memset(x, 0, 4);
    *label = 0;
    return WF_OK;
}

static const wf_dataset_kind late_kind = {.name = "late", .open = late_open, .read = late_read};

static void failures(void)
{
    const int last = size - 1;
    for (int turn = 0; turn < 2; turn++)
        TEST_FAILS(WF_ERR_IO, scatter_status(wf_mnist(ctx, "/nowhere", WF_TRAIN_SET), (wf_scatter_opts){.root = last}),
                   "/nowhere", "no such folder");
    wf_dataset *null = rank == 0 ? wf_synthetic(ctx, (wf_synthetic_opts){.count = -3}) : NULL;
    TEST_FAILS(WF_ERR_ARGUMENT, scatter_status(null, (wf_scatter_opts){0}), "synthetic: -3", "1 or more");
    TEST_FAILS(WF_ERR_ARGUMENT, scatter_status(numbered(3), (wf_scatter_opts){.root = size}), "root", "not in");
    const wf_scatter_opts lost = {.root = rank == last ? 99 : 0};
    TEST_FAILS(WF_ERR_ARGUMENT, scatter_status(numbered(3), lost), "root 99", "not in");
    int64_t count, *index = NULL;
    TEST_FAILS(WF_ERR_ARGUMENT, wf_scatter_index(comm, 3, lost, &count, &index), "root 99", "not in");
    TEST_FAILS(WF_ERR_ARGUMENT, wf_scatter_index(comm, 3, (wf_scatter_opts){0}, &count, rank == last ? NULL : &index),
               "index is NULL", "");
    wf_dataset *late = rank == last ? wf_dataset_new(ctx, &late_kind, NULL, 0) : NULL;
    TEST_FAILS(WF_ERR_FORMAT, scatter_status(late, (wf_scatter_opts){.root = last, .round_bytes = 60}), "late.bin",
               "sample 33");
    wf_dataset *d = wf_scatter_dataset(comm, numbered(10), (wf_scatter_opts){0});
    TEST_FAILS(WF_ERR_ARGUMENT, scatter_status(d, (wf_scatter_opts){0}), "scattered", "already");
    d = wf_subset(wf_scatter_dataset(comm, numbered(10), (wf_scatter_opts){0}), 1, (int64_t[]){0});
    TEST_FAILS(WF_ERR_UNSUPPORTED, wf_dataset_open(d), "subset", "before scattering");
    wf_dataset_free(d);
    WF_EXPECT(!wf_scatter_dataset(NULL, numbered(2), (wf_scatter_opts){0}), "NULL is passed on");
    int64_t one = 1;
    WF_EXPECT_OK(wf_allreduce_i64(comm, &one, 1, WF_SUM));
    WF_EXPECT(one == size, "the communicator is alive: %lld", (long long)one);
}

/* One epoch: every rank makes the same number of batches, whose layouts tile the global batch. */
static void epoch(wf_iter *iter, int64_t n, int64_t batch, int64_t *seen)
{
    int64_t steps = 0, extremes[2];
    for (wf_batch b = {0}; !b.last; steps++) {
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        const wf_layout layout = wf_tensor_layout(b.x), of_labels = wf_tensor_layout(b.labels);
        int64_t sizes[8] = {0}, all, lo = 0;
        WF_EXPECT_OK(wf_allgather_bytes(comm, &b.size, sizeof b.size, sizes));
        all = 0;
        for (int r = 0; r < size; r++) {
            lo += r < rank ? sizes[r] : 0;
            all += sizes[r];
        }
        WF_EXPECT(b.size <= batch && b.global == all, "batch %lld of %lld, %lld", (long long)b.size,
                  (long long)b.global, (long long)all);
        WF_EXPECT(layout.known && layout.mesh == wf_comm_mesh(comm), "layout");
        const int64_t *cut = layout.bounds[WF_AXIS_DATA];
        WF_EXPECT(cut && cut[0] == 0 && cut[wf_comm_rank(comm)] == lo && cut[wf_comm_rank(comm) + 1] == lo + b.size &&
                      cut[size] == all && cut == of_labels.bounds[WF_AXIS_DATA],
                  "the shard bounds are those of all ranks' parts");
        WF_EXPECT(wf_shape_equal(layout.global, WF_SHAPE(all, 2, 2, 2)) && layout.box.lo[0] == lo &&
                      layout.box.hi[0] == lo + b.size && layout.box.hi[1] == 2,
                  "layout of x: [%lld, %lld)", (long long)layout.box.lo[0], (long long)layout.box.hi[0]);
        WF_EXPECT(wf_shape_equal(of_labels.global, WF_SHAPE(all)) && of_labels.box.lo[0] == lo, "layout of labels");
        WF_EXPECT(wf_shape_equal(wf_tensor_shape(b.x), WF_SHAPE(b.size, 2, 2, 2)), "shape of x");
        WF_EXPECT(wf_layout_is_sharded(&layout, 0) || size == 1, "sharded over data");
        int64_t labels[128];
        WF_EXPECT_OK(wf_tensor_export(b.labels, labels, (size_t)b.size * sizeof *labels));
        for (int64_t i = 0; i < b.size; i++)
            seen[labels[i]]++;
    }
    extremes[0] = steps;
    extremes[1] = -steps;
    WF_EXPECT_OK(wf_allreduce_i64(comm, extremes, 2, WF_MAX));
    const int64_t longest = (n + size - 1) / size, want = n ? (longest + batch - 1) / batch : 1;
    WF_EXPECT(extremes[0] == -extremes[1] && steps == want, "n %lld: %lld iterations, should be %lld", (long long)n,
              (long long)steps, (long long)want);
}

static void iterations(void)
{
    const int64_t counts[] = {0, 1, 2, 9, 10, 33};
    for (int t = 0; t < 6; t++)
        for (int variant = 0; variant < 4; variant++) {
            const int64_t n = counts[t], batch = variant < 2 ? 4 : 1;
            wf_dataset *d =
                wf_scatter_dataset(comm, rank == 0 ? numbered(n) : NULL, (wf_scatter_opts){.shuffle = variant % 2});
            wf_iter *iter = wf_batches(wf_transform_random_flip(d), (wf_batch_opts){.size = batch});
            if (variant % 2)
                iter = wf_prefetch(iter, (wf_prefetch_opts){.depth = 2});
            for (int e = 0; e < 2; e++) {
                int64_t seen[128] = {0};
                epoch(iter, n, batch, seen);
                WF_EXPECT_OK(wf_allreduce_i64(comm, seen, 128, WF_SUM));
                for (int64_t i = 0; i < 128; i++)
                    WF_EXPECT(seen[i] == (i < n), "n %lld: sample %lld came %lld times", (long long)n, (long long)i,
                              (long long)seen[i]);
            }
            wf_iter_free(iter);
        }
}

static void drop_last(void)
{
    wf_dataset *d = wf_scatter_dataset(comm, rank == 0 ? numbered(9 * size - 1) : NULL, (wf_scatter_opts){0});
    wf_iter *iter = wf_batches(d, (wf_batch_opts){.size = 3, .drop_last = true});
    const int want = (9 * size - 1) / size / 3;
    WF_EXPECT(wf_iter_epoch_length(iter) == want, "%lld, should be %d", (long long)wf_iter_epoch_length(iter), want);
    for (int k = 0; k < want; k++) {
        wf_batch b = {0};
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(b.size == 3 && b.global == 3 * size && b.last == (k == want - 1), "batch %d", k);
    }
    wf_iter_free(iter);
    d = wf_scatter_dataset(comm, rank == 0 ? numbered(size) : NULL, (wf_scatter_opts){0});
    iter = wf_batches(d, (wf_batch_opts){.size = 2, .drop_last = true});
    wf_batch b;
    TEST_FAILS(WF_ERR_ARGUMENT, wf_iter_next(iter, &b), "drop_last", "1 samples");
    wf_iter_free(iter);
}

/* The shuffle implies another order each epoch, and random transforms see the same number of a sample on any rank. */
static void reshuffle(void)
{
    wf_dataset *d = wf_scatter_dataset(comm, rank == 0 ? numbered(100) : NULL, (wf_scatter_opts){.shuffle = true});
    wf_iter *iter = wf_batches(d, (wf_batch_opts){.size = 128});
    int64_t labels[2][128];
    wf_batch b;
    for (int e = 0; e < 2; e++) {
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT_OK(wf_tensor_export(b.labels, labels[e], (size_t)b.size * sizeof(int64_t)));
    }
    WF_EXPECT(memcmp(labels[0], labels[1], (size_t)b.size * sizeof(int64_t)) != 0, "the same order in both epochs");
    wf_iter_free(iter);
}

static void flips_follow_the_sample(void)
{
    wf_dataset *d = wf_scatter_dataset(comm, rank == 0 ? numbered(60) : NULL, (wf_scatter_opts){0});
    wf_iter *iter = wf_batches(wf_transform_random_flip(d), (wf_batch_opts){.size = 64, .raw = true, .seed = 9});
    wf_iter *serial =
        wf_batches(wf_transform_random_flip(numbered(60)), (wf_batch_opts){.size = 64, .raw = true, .seed = 9});
    wf_batch a, b;
    unsigned char x[64 * 8], y[64 * 8];
    WF_EXPECT_OK(wf_iter_next(iter, &a));
    WF_EXPECT_OK(wf_iter_next(serial, &b));
    WF_EXPECT_OK(wf_tensor_export(a.x, x, (size_t)a.size * 8));
    WF_EXPECT_OK(wf_tensor_export(b.x, y, (size_t)b.size * 8));
    WF_EXPECT(memcmp(x, y + wf_tensor_layout(a.x).box.lo[0] * 8, (size_t)a.size * 8) == 0,
              "the flips differ from those of one rank");
    wf_iter_free(iter);
    wf_iter_free(serial);
}

/* The batch at which `to` begins after it has loaded where `from` is after so many batches. */
static wf_batch continued(wf_iter *from, int64_t batches, wf_iter *to)
{
    wf_batch b = {0};
    wf_archive *archive = wf_archive_memory(ctx);
    for (int64_t i = 0; i < batches; i++)
        WF_EXPECT_OK(wf_iter_next(from, &b));
    WF_EXPECT_OK(wf_iter_archive(from, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_iter_archive(to, archive));
    WF_EXPECT_OK(wf_iter_next(to, &b));
    wf_archive_free(archive);
    return b;
}

static wf_iter *batches_of(wf_comm *over, int64_t n, int64_t each)
{
    wf_dataset *d = wf_scatter_dataset(over, wf_comm_rank(over) == 0 ? numbered(n) : NULL, (wf_scatter_opts){0});
    return wf_batches(d, (wf_batch_opts){.size = each});
}

/* From all ranks to one, and back: a run goes on after as many samples, in whole batches of the new ones. */
static void another_number_of_ranks(void)
{
    wf_comm *alone = wf_comm_split(comm, rank, 0);
    for (int64_t each = 1; each < 4; each++)
        for (int64_t done = 1; done < 9; done++) {
            const int64_t n = 96;
            wf_iter *all = batches_of(comm, n, 2), *one = batches_of(alone, n, each);
            wf_batch b = continued(all, done, one);
            int64_t label[4] = {-1};
            WF_EXPECT_OK(wf_tensor_export(b.labels, label, (size_t)b.size * sizeof *label));
            WF_EXPECT(b.epoch == 0 && label[0] == done * 2 * size / each * each,
                      "one rank begins at sample %lld of epoch %lld after %lld batches of %d", (long long)label[0],
                      (long long)b.epoch, (long long)done, 2 * size);
            wf_iter_free(all);
            wf_iter_free(one);
            all = batches_of(comm, n, 2);
            one = batches_of(alone, n, each);
            b = continued(one, done, all);
            WF_EXPECT(b.epoch == 0 && b.index == done * each / (2 * size),
                      "all ranks begin at batch %lld after %lld samples", (long long)b.index, (long long)(done * each));
            wf_iter_free(all);
            wf_iter_free(one);
        }
    WF_EXPECT_OK(wf_comm_close(alone));
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("naive"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"parts", parts},
                                               {"every_sample_once", every_sample_once},
                                               {"equal_length", equal_length},
                                               {"failures", failures},
                                               {"iterations", iterations},
                                               {"drop_last", drop_last},
                                               {"another_number_of_ranks", another_number_of_ranks},
                                               {"reshuffle", reshuffle},
                                               {"flips_follow_the_sample", flips_follow_the_sample},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
