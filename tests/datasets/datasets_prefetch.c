/* Batches that threads make ahead: they are those of the iterator alone, for any number of threads. */
#include "core/archive.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"
#include "tests/datasets/datasets_iter.h"
#include "tests/datasets/failing_threads.h"
#include "tests/datasets/watched_threads.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static wf_ctx *ctx;

static wf_dataset *augmented(int64_t count)
{
    const wf_synthetic_opts opts = {.count = count, .shape = WF_SHAPE(3, 8, 8), .seed = 2};
    wf_dataset *d = wf_transform_random_flip(wf_transform_random_crop(wf_synthetic(ctx, opts), 2, 0, 0));
    return wf_transform_normalise(d, 1, (double[]){0.5}, (double[]){0.5});
}

/* A data set whose samples from `bad` on cannot be read. */
typedef struct flawed {
    int64_t bad;
} flawed;

static wf_status flawed_open(wf_dataset *dataset)
{
    dataset->info = (wf_dataset_info){.count = 20, .dtype = WF_F32, .shape = wf_shape_scalar()};
    return WF_OK;
}

static wf_status flawed_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    /* Later samples are damaged as well, and fail sooner: the first one is told all the same. */
    const int64_t bad = ((flawed *)dataset->state)->bad;
    if (index == bad)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    WF_CHECK(index < bad, WF_ERR_FORMAT, "flawed.bin: sample %lld is damaged", (long long)index);
    *(float *)x = (float)index;
    *label = 0;
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return WF_OK;
}

static const wf_dataset_kind flawed_kind = {
    .name = "flawed", .open = flawed_open, .read = flawed_read, .concurrent = true};

static wf_dataset *flawed_new(int64_t bad)
{
    wf_dataset *dataset = wf_dataset_new(ctx, &flawed_kind, NULL, sizeof(flawed));
    ((flawed *)dataset->state)->bad = bad;
    return dataset;
}

/* Memory of a batch that is written again is told to whoever saved the batch, of whatever size it was. */
static void overwritten(void)
{
    for (int depth = 0; depth <= 3; depth += 3) {
        wf_batch b[2];
        wf_iter *iter = wf_batches(augmented(5), (wf_batch_opts){.size = 4});
        iter = depth ? wf_prefetch(iter, (wf_prefetch_opts){.depth = depth}) : iter;
        WF_EXPECT_OK(wf_iter_next(iter, &b[0]));
        const uint64_t x = wf_tensor_version(b[0].x), labels = wf_tensor_version(b[0].labels);
        WF_EXPECT_OK(wf_iter_next(iter, &b[1]));
        WF_EXPECT(b[0].size == 4 && b[1].size == 1, "batches of 4 and 1");
        WF_EXPECT(wf_tensor_version(b[0].x) != x && wf_tensor_version(b[0].labels) != labels,
                  "depth %d: the batch before is unchanged, to those who look", depth);
        wf_iter_free(iter);
    }
}

static void prefetch_equals_plain(void)
{
    const wf_batch_opts opts = {.size = 5, .shuffle = true};
    const wf_prefetch_opts ways[] = {
        {.depth = 1}, {.depth = 7}, {.depth = 1, .workers = 2}, {.depth = 7, .workers = 3}};
    for (int t = 0; t < 4; t++) {
        wf_iter *plain = wf_batches(augmented(37), opts),
                *ahead = wf_prefetch(wf_batches(augmented(37), opts), ways[t]);
        float first[37 * 192];
        int changed = 0;
        for (int k = 0; k < 24; k++) {
            wf_batch a = {0}, b = {0};
            float x[5 * 192], y[5 * 192];
            int64_t labels[2][5] = {{0}};
            WF_EXPECT_OK(wf_iter_next(plain, &a));
            WF_EXPECT_OK(wf_iter_next(ahead, &b));
            WF_EXPECT(a.size == b.size && a.epoch == b.epoch && a.index == b.index && a.last == b.last, "batch %d", k);
            WF_EXPECT(wf_iter_epoch(plain) == wf_iter_epoch(ahead), "epoch after batch %d", k);
            const size_t bytes = (size_t)a.size * 192 * sizeof *x;
            WF_EXPECT_OK(wf_tensor_export(a.x, x, bytes));
            WF_EXPECT_OK(wf_tensor_export(b.x, y, bytes));
            WF_EXPECT_OK(wf_tensor_export(a.labels, labels[0], (size_t)a.size * sizeof(int64_t)));
            WF_EXPECT_OK(wf_tensor_export(b.labels, labels[1], (size_t)a.size * sizeof(int64_t)));
            WF_EXPECT(memcmp(x, y, bytes) == 0, "%d threads: batch %d differs", ways[t].workers, k);
            WF_EXPECT(memcmp(labels[0], labels[1], sizeof labels[0]) == 0, "%d threads: labels of %d", ways[t].workers,
                      k);
            if (k < 8)
                memcpy(first + k * 5 * 192, x, bytes);
            else
                changed += memcmp(first + k % 8 * 5 * 192, x, bytes) != 0;
        }
        WF_EXPECT(changed == 16, "%d of 16 batches changed with the epoch", changed);
        wf_iter_free(plain);
        wf_iter_free(ahead);
    }
}

/* The sum of each sample, and all sums of the batch so far. */
static wf_status add_up(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    int64_t *sum = rows[0].data, before = 0;
    for (int64_t i = 0; i < in->count; i++) {
        const float *x = (const float *)in->x + i * (int64_t)(in->bytes / sizeof *x);
        for (size_t e = 0; e < in->bytes / sizeof *x; e++)
            sum[2 * i] += (int64_t)(1000 * x[e]) + in->number[i];
        before += sum[2 * i];
        sum[2 * i + 1] = before;
    }
    return WF_OK;
}

/* A collate function of the program gets the same samples from any number of threads. */
static void collated(void)
{
    static const wf_batch_field fields[] = {
        {.name = "sums", .dtype = WF_I64, .shape = {.rank = 1, .dim = {2}}, .pad = 5}, {0}};
    const wf_batch_opts opts = {.size = 5, .shuffle = true, .collate = {.function = add_up, .fields = fields}};
    for (int workers = 1; workers < 4; workers++) {
        wf_iter *plain = wf_batches(augmented(37), opts);
        wf_iter *ahead = wf_prefetch(wf_batches(augmented(37), opts), (wf_prefetch_opts){.workers = workers});
        for (int k = 0; k < 20; k++) {
            wf_batch a = {0}, b = {0};
            int64_t x[10] = {0}, y[10] = {0};
            WF_EXPECT_OK(wf_iter_next(plain, &a));
            WF_EXPECT_OK(wf_iter_next(ahead, &b));
            WF_EXPECT_OK(wf_tensor_export(a.x, x, wf_tensor_bytes(a.x)));
            WF_EXPECT_OK(wf_tensor_export(b.x, y, wf_tensor_bytes(b.x)));
            WF_EXPECT(a.size == b.size && memcmp(x, y, sizeof x) == 0 && x[1] == x[0] && x[3] == x[1] + x[2],
                      "%d threads: batch %d differs", workers, k);
        }
        wf_iter_free(plain);
        wf_iter_free(ahead);
    }
}

static void prefetch_ends(void)
{
    for (int taken = 0; taken < 12; taken++) {
        wf_iter *iter = wf_prefetch(wf_batches(augmented(37), (wf_batch_opts){.size = 4}),
                                    (wf_prefetch_opts){.depth = 3, .workers = 1 + taken % 3});
        wf_batch b;
        for (int k = 0; k < taken; k++)
            WF_EXPECT_OK(wf_iter_next(iter, &b));
        wf_iter_free(iter);
    }
}

/* Samples that two threads read at a time: with its sample written, each waits until the other one is in the reader
 * too. */
static atomic_int inside, most_inside;

static wf_status meeting_open(wf_dataset *dataset)
{
    dataset->info = (wf_dataset_info){.count = 20, .dtype = WF_U8, .shape = wf_shape_scalar()};
    return WF_OK;
}

static wf_status meeting_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    *(uint8_t *)x = (uint8_t)index;
    const int here = atomic_fetch_add(&inside, 1) + 1;
    if (here > atomic_load(&most_inside))
        atomic_store(&most_inside, here);
    /* Seconds where a second thread should come, on a busy machine, and a moment where none should. */
    for (int i = dataset->kind->concurrent ? 0 : 99990; i < 100000 && atomic_load(&most_inside) < 2; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    atomic_fetch_sub(&inside, 1);
    *label = 0;
    return WF_OK;
}

/* Threads read at a time from a data set that says that they may, and one after the other from others. */
static void readers_meet(void)
{
    static const wf_dataset_kind kinds[] = {
        {.name = "one", .open = meeting_open, .read = meeting_read},
        {.name = "many", .open = meeting_open, .read = meeting_read, .concurrent = true}};
    for (int k = 0; k < 2; k++) {
        wf_batch b;
        wf_iter *iter = wf_prefetch(wf_batches(wf_dataset_new(ctx, &kinds[k], NULL, 0), (wf_batch_opts){.size = 20}),
                                    (wf_prefetch_opts){.depth = 1, .workers = 2});
        atomic_store(&most_inside, 0);
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        for (int i = 0; i < 20; i++)
            WF_EXPECT(memory_f32(b.x, i) == (float)i / 255.0f, "%s: sample %d is %g", kinds[k].name, i,
                      (double)memory_f32(b.x, i));
        wf_iter_free(iter);
        WF_EXPECT(atomic_load(&most_inside) == k + 1, "%s: %d threads in the reader", kinds[k].name,
                  atomic_load(&most_inside));
    }
}

static void expect_next(wf_iter *plain, wf_iter *ahead, int batches, const char *when)
{
    for (int k = 0; k < batches; k++) {
        wf_batch a = {0}, b = {0};
        float x[5 * 192] = {0}, y[5 * 192] = {0};
        WF_EXPECT_OK(wf_iter_next(plain, &a));
        WF_EXPECT_OK(wf_iter_next(ahead, &b));
        WF_EXPECT(a.size == b.size && a.epoch == b.epoch && a.index == b.index, "%s: batch %d is %lld of epoch %lld",
                  when, k, (long long)b.index, (long long)b.epoch);
        WF_EXPECT_OK(wf_tensor_export(a.x, x, wf_tensor_bytes(a.x)));
        WF_EXPECT(b.x && a.size == b.size && wf_tensor_export(b.x, y, wf_tensor_bytes(b.x)) == WF_OK &&
                      memcmp(x, y, sizeof x) == 0,
                  "%s: batch %d differs", when, k);
    }
}

/* Threads that the system does not start, at the first batch and after an archive: the error says so, and the batches
 * of a later call are those of the iterator alone, though threads that did start have begun some. */
static void threads_refused(void)
{
    const wf_batch_opts opts = {.size = 5, .shuffle = true};
    for (int started = 0; started < 3; started++) {
        wf_batch b;
        wf_iter *plain = wf_batches(augmented(37), opts);
        wf_iter *ahead = wf_prefetch(wf_batches(augmented(37), opts), (wf_prefetch_opts){.workers = 3});
        wf_archive *archive = wf_archive_memory(ctx);
        for (int again = 0; again < 2; again++) {
            allow_threads(started);
            TEST_FAILS(WF_ERR_MEMORY, wf_iter_next(ahead, &b), "cannot start thread", "of 3");
        }
        allow_threads(-1);
        expect_next(plain, ahead, 11, "after a start that failed");
        WF_EXPECT_OK(wf_iter_visit(plain, archive));
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        expect_next(plain, ahead, 3, "before the archive");
        allow_threads(started);
        TEST_FAILS(WF_ERR_MEMORY, wf_iter_visit(ahead, archive), "cannot start thread", "of 3");
        allow_threads(-1);
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        WF_EXPECT_OK(wf_iter_visit(plain, archive));
        expect_next(plain, ahead, 9, "after an archive");
        wf_archive_free(archive);
        wf_iter_free(plain);
        wf_iter_free(ahead);
    }
}

/* A place that is refused moves nothing: no batch is left out, and the order stays that of the iterator's seed. */
static void place_refused(void)
{
    const wf_batch_opts opts = {.size = 5, .shuffle = true};
    for (int depth = 0; depth < 2; depth++) {
        int64_t epoch = -1, index = 0, length = 8, seed = 12345;
        wf_iter *plain = wf_batches(augmented(37), opts), *iter = wf_batches(augmented(37), opts);
        iter = depth ? wf_prefetch(iter, (wf_prefetch_opts){.depth = depth}) : iter;
        wf_archive *archive = wf_archive_memory(ctx);
        WF_EXPECT_OK(wf_archive_i64(archive, "epoch", &epoch));
        WF_EXPECT_OK(wf_archive_i64(archive, "index", &index));
        WF_EXPECT_OK(wf_archive_i64(archive, "length", &length));
        WF_EXPECT_OK(wf_archive_i64(archive, "seed", &seed));
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        expect_next(plain, iter, 3, "before the archive");
        TEST_FAILS(WF_ERR_FORMAT, wf_iter_visit(iter, archive), "the archive holds batch 0 of 8", "in epoch -1");
        expect_next(plain, iter, 9, "after an archive that is refused");
        wf_archive_free(archive);
        wf_iter_free(plain);
        wf_iter_free(iter);
    }
}

static atomic_int unread;

/* Sample i of the batches is sample i of the data set, and x is its number. */
static wf_status count_unread(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    for (int64_t i = 0; i < in->count; i++)
        atomic_fetch_add(&unread,
                         in->number[i] != in->index * 10 + i || ((const float *)in->x)[i] != (float)in->number[i]);
    *(float *)rows[0].data = 0;
    return WF_OK;
}

/* The function of the program sees no batch whose rows were skipped because the iterator was freed. */
static void freed_in_a_batch(void)
{
    static const wf_batch_field fields[] = {{.name = "x", .dtype = WF_F32}, {0}};
    const wf_batch_opts opts = {.size = 10, .collate = {.function = count_unread, .fields = fields}};
    for (int k = 0; k < 12; k++) {
        wf_batch b;
        wf_iter *iter =
            wf_prefetch(wf_batches(flawed_new(20), opts), (wf_prefetch_opts){.depth = 3, .workers = 1 + k % 3});
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        nanosleep(&(struct timespec){.tv_nsec = 100000 * k}, NULL);
        wf_iter_free(iter);
        WF_EXPECT(atomic_load(&unread) == 0, "%d samples that were never read were collated", atomic_load(&unread));
    }
}

/* --- Races, each step of which waits for the one before ----------------------------------------------------------- */

enum { RACERS = 3, SECONDS = 60 };

/* A data set in which samples from `held` on wait, each for a post of `gate`, and sample `bad` fails after that. */
static struct race {
    int64_t held, bad;
    sem_t inside, gate, ended; /* posted by a sample that waits, by the test, and by a thread that ends */
    atomic_int reads, collated;
    pthread_key_t key; /* its destructor runs when a thread ends */
    pthread_t test;
} race;

/* False after a minute, in which a thread that does not come would let the test hang. */
static bool await(sem_t *event)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += SECONDS;
    while (sem_timedwait(event, &until) != 0)
        if (errno != EINTR)
            return false;
    return true;
}

static wf_status race_open(wf_dataset *dataset)
{
    dataset->info = (wf_dataset_info){.count = 20, .dtype = WF_F32, .shape = wf_shape_scalar()};
    return WF_OK;
}

static wf_status race_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    pthread_setspecific(race.key, &race);
    atomic_fetch_add(&race.reads, 1);
    if (index >= race.held) {
        sem_post(&race.inside);
        WF_CHECK(await(&race.gate), WF_ERR_STATE, "nothing lets sample %lld go", (long long)index);
    }
    WF_CHECK(index != race.bad, WF_ERR_FORMAT, "race.bin: sample %lld is damaged", (long long)index);
    *(float *)x = (float)index;
    *label = 0;
    return WF_OK;
}

static wf_status count_batches(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    atomic_fetch_add(&race.collated, 1);
    *(float *)rows[0].data = 0;
    return WF_OK;
}

static void post_end(void *unused)
{
    sem_post(&race.ended);
}

static wf_iter *race_begin(int64_t held, int64_t bad, wf_batch_opts opts, wf_prefetch_opts ahead)
{
    static const wf_dataset_kind kind = {.name = "race", .open = race_open, .read = race_read, .concurrent = true};
    race = (struct race){.held = held, .bad = bad, .test = pthread_self()};
    sem_init(&race.inside, 0, 0);
    sem_init(&race.gate, 0, 0);
    sem_init(&race.ended, 0, 0);
    WF_EXPECT(pthread_key_create(&race.key, post_end) == 0, "no key");
    return wf_prefetch(wf_batches(wf_dataset_new(ctx, &kind, NULL, 0), opts), ahead);
}

static void race_end(void)
{
    atomic_store(&before_wait, NULL);
    atomic_store(&before_join, NULL);
    pthread_key_delete(race.key);
    sem_destroy(&race.inside);
    sem_destroy(&race.gate);
    sem_destroy(&race.ended);
}

static void open_gate(void)
{
    for (int i = 0; i < 20; i++)
        sem_post(&race.gate);
}

/* The iterator is freed while every thread is in the middle of a sample, the last one of a batch among them: no thread
 * begins another sample, and the batch is not collated. */
static void freed_while_reading(void)
{
    static const wf_batch_field fields[] = {{.name = "x", .dtype = WF_F32}, {0}};
    const wf_batch_opts opts = {.size = RACERS, .collate = {.function = count_batches, .fields = fields}};
    wf_iter *iter = race_begin(RACERS, -1, opts, (wf_prefetch_opts){.depth = 4, .workers = RACERS});
    wf_batch b;
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    for (int i = 0; i < RACERS; i++)
        WF_EXPECT(await(&race.inside), "thread %d of %d reads nothing", i, RACERS);
    atomic_store(&before_join, open_gate);
    wf_iter_free(iter);
    WF_EXPECT(atomic_load(&race.reads) == 2 * RACERS && atomic_load(&race.collated) == 1,
              "%d samples were read and %d batches collated, should be %d and 1", atomic_load(&race.reads),
              atomic_load(&race.collated), 2 * RACERS);
    race_end();
}

/* A thread other than the test's own waits for a free slot: the sample that was held may fail now. */
static void note_wait(void)
{
    if (pthread_equal(pthread_self(), race.test))
        return;
    pthread_setspecific(race.key, &race);
    sem_post(&race.gate);
}

/* One thread fails in the last free slot while the other waits for a slot: both end, the batch before is given, then
 * the error, again and again, and no sample behind the damaged one is read although slots become free. */
static void fails_while_waiting(void)
{
    enum { DEPTH = 2 };
    wf_iter *iter =
        race_begin(DEPTH, DEPTH, (wf_batch_opts){.size = 1}, (wf_prefetch_opts){.depth = DEPTH, .workers = 2});
    wf_batch b;
    atomic_store(&before_wait, note_wait);
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    for (int i = 0; i < 2; i++)
        WF_EXPECT(await(&race.ended), "a thread goes on after an error");
    for (int k = 1; k < DEPTH; k++)
        WF_EXPECT_OK(wf_iter_next(iter, &b));
    for (int again = 0; again < 2; again++)
        TEST_FAILS(WF_ERR_FORMAT, wf_iter_next(iter, &b), "race.bin", "sample 2 is damaged");
    WF_EXPECT(atomic_load(&race.reads) == DEPTH + 1, "%d samples were read, should be %d", atomic_load(&race.reads),
              DEPTH + 1);
    wf_iter_free(iter);
    race_end();
}

static void errors(void)
{
    for (int workers = 0; workers < 4; workers++) {
        wf_iter *iter = wf_batches(flawed_new(9), (wf_batch_opts){.size = 4});
        if (workers > 0)
            iter = wf_prefetch(iter, (wf_prefetch_opts){.workers = workers});
        wf_batch b;
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(memory_f32(b.x, 3) == 3, "first batch");
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(memory_f32(b.x, 3) == 7, "second batch");
        for (int again = 0; again < 2; again++)
            TEST_FAILS(WF_ERR_FORMAT, wf_iter_next(iter, &b), "flawed.bin", "sample 9 is damaged");
        wf_iter_free(iter);
    }
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, next_and_free(wf_batches(augmented(3), (wf_batch_opts){0})));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, next_and_free(wf_prefetch(wf_batches(augmented(3), (wf_batch_opts){.size = 1}),
                                                               (wf_prefetch_opts){.depth = -1})));
    TEST_FAILS(WF_ERR_ARGUMENT,
               next_and_free(wf_prefetch(wf_batches(augmented(3), (wf_batch_opts){.size = 1}),
                                         (wf_prefetch_opts){.workers = 257})),
               "257 threads", "1 to 256");
    wf_iter *iter = wf_batches(augmented(3), (wf_batch_opts){.size = 1});
    wf_batch b;
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT_ERROR(WF_ERR_STATE, next_and_free(wf_prefetch(iter, (wf_prefetch_opts){.depth = 1})));
    for (int depth = 0; depth < 2; depth++) {
        iter = wf_batches(wf_idx(ctx, "/nowhere/a", NULL), (wf_batch_opts){.size = 1});
        if (depth)
            iter = wf_prefetch(iter, (wf_prefetch_opts){.depth = depth});
        TEST_FAILS(WF_ERR_IO, next_and_free(iter), "/nowhere/a", "No such file");
    }
    iter = wf_prefetch(wf_batches(wf_transform_random_flip(wf_idx(ctx, NULL, NULL)), (wf_batch_opts){.size = 1}),
                       (wf_prefetch_opts){.depth = 1});
    WF_EXPECT(!iter, "NULL is passed on");
    TEST_FAILS(WF_ERR_ARGUMENT, wf_iter_next(iter, &b), "idx", "no path");
}

static void no_allocation(void)
{
    for (int workers = 0; workers < 3; workers++) {
        wf_iter *iter = wf_batches(augmented(37), (wf_batch_opts){.size = 8, .shuffle = true});
        if (workers > 0)
            iter = wf_prefetch(iter, (wf_prefetch_opts){.workers = workers});
        wf_batch b;
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        const wf_memory_counters before = wf_ctx_memory(ctx);
        for (int k = 0; k < 30; k++)
            WF_EXPECT_OK(wf_iter_next(iter, &b));
        const wf_memory_counters after = wf_ctx_memory(ctx);
        WF_EXPECT(after.system_allocations == before.system_allocations && after.pool_takes == before.pool_takes,
                  "%lld allocations, %lld takes", (long long)(after.system_allocations - before.system_allocations),
                  (long long)(after.pool_takes - before.pool_takes));
        wf_iter_free(iter);
    }
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.seed = 17});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"overwritten", overwritten},
                                               {"prefetch_equals_plain", prefetch_equals_plain},
                                               {"collated", collated},
                                               {"prefetch_ends", prefetch_ends},
                                               {"readers_meet", readers_meet},
                                               {"threads_refused", threads_refused},
                                               {"place_refused", place_refused},
                                               {"freed_in_a_batch", freed_in_a_batch},
                                               {"freed_while_reading", freed_while_reading},
                                               {"fails_while_waiting", fails_while_waiting},
                                               {"errors", errors},
                                               {"no_allocation", no_allocation},
                                               {0}});
    WF_MUST(wf_ctx_free(ctx));
    return failed;
}
