/* Shared batches: sent by one rank, or read by each in one order. Streamed ones: the memory of a program that computes,
 * cut at bounds of its own. */
#include "comm/comm.h"
#include "core/archive.h"
#include "core/core.h"
#include "core/tensor_author.h"
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
            wf_iter *iter =
                rank == root ? wf_prefetch(wf_batches(numbered(SAMPLES), opts), (wf_prefetch_opts){.depth = 2}) : NULL;
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

static void expect_different(int64_t samples, wf_batch_opts opts, const char *text)
{
    wf_comm *child = wf_comm_split(comm, 0, 0);
    wf_iter *iter = wf_synchronized_batches(child, numbered(samples), opts);
    WF_EXPECT(!iter && wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), text), "%s",
              wf_error_message());
    wf_error_clear();
    wf_iter_free(iter);
    if (child && wf_comm_close(child) != WF_OK)
        wf_error_clear();
}

static wf_status no_rows(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    return WF_OK;
}

static void different(void)
{
    if (size == 1)
        return;
    const wf_batch_field padded[] = {{.name = "x", .dtype = WF_F32, .pad = rank == 1 ? 0.5 : 0}, {0}};
    expect_different(rank == 1 ? 7 : SAMPLES, (wf_batch_opts){.size = BATCH}, "7 on rank 1");
    expect_different(SAMPLES, (wf_batch_opts){.size = BATCH, .raw = rank == 1}, "other options on rank 1");
    expect_different(SAMPLES, (wf_batch_opts){.size = BATCH, .collate = {.function = no_rows, .fields = padded}},
                     "other options on rank 1");
}

/* --- Streamed batches: fields [1,2,ROWS,3] of which the first rank has one row and the last of three or more none ---
 */

enum { ROWS = 9, ROW = 6, LONGEST = 3 };

typedef struct solver {
    const wf_mesh *mesh;
    int64_t bounds[8], rows; /* of all ranks, and of this one */
    wf_tensor *memory[2];    /* of the device: for x, and what is lacking */
    void *x, *lacking;       /* where that is */
    int64_t asked;           /* the last index */
    bool fails, short_of_target, wrong_shape;
} solver;

static void solver_open(solver *s, const wf_mesh *mesh)
{
    *s = (solver){.mesh = mesh, .asked = -1};
    for (int r = 1; r <= size; r++)
        s->bounds[r] = r >= size - (size > 2) ? ROWS : 1 + 2 * (r - 1);
    s->rows = s->bounds[rank + 1] - s->bounds[rank];
    for (int k = 0; k < 2; k++)
        s->memory[k] = wf_tensor_new(ctx, WF_F32, WF_SHAPE((ROWS + 1) * ROW));
    s->x = wf_tensor_data(s->memory[0]);
    s->lacking = wf_tensor_data(s->memory[1]);
}

static void solver_close(solver *s)
{
    wf_tensor_free(s->memory[0]);
    wf_tensor_free(s->memory[1]);
}

static float field(int64_t index, int64_t row, int64_t i)
{
    return (float)(1000 * index + ROW * row + i);
}

static wf_tensor *wrap(const solver *s, void *memory)
{
    return wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(1, 2, s->rows + s->wrong_shape, 3), memory,
                          (wf_wrap_opts){.order = WF_CHANNELS_LAST});
}

static wf_status advance(void *user, int64_t index, wf_tensor **x, wf_tensor **target)
{
    solver *s = user;
    WF_EXPECT(!*x && !*target, "tensors are there already");
    s->asked = index;
    if (s->fails)
        return WF_RAISE(WF_ERR_NUMERIC, "the solver blew up in step %lld", (long long)index);
    float fields[2][(ROWS + 1) * ROW] = {{0}};
    for (int64_t i = 0; i < s->rows * ROW; i++) {
        fields[0][i] = field(index, s->bounds[rank], i);
        fields[1][i] = -fields[0][i];
    }
    for (int k = 0; k < 2; k++)
        WF_EXPECT_OK(wf_tensor_import(s->memory[k], fields[k], sizeof fields[k]));
    *x = wrap(s, s->x);
    *target = s->short_of_target ? NULL : wrap(s, s->lacking);
    return wf_check(*x);
}

static wf_streamed_opts stream_of(solver *s)
{
    wf_streamed_opts o = {.next = advance, .user = s, .epoch_length = LONGEST};
    const wf_layout_opts cut = {.dim = {[WF_AXIS_HEIGHT] = WF_DIM(2)}, .bounds = {[WF_AXIS_HEIGHT] = s->bounds}};
    WF_EXPECT_OK(wf_mesh_layout(s->mesh, WF_SHAPE(1, 2, ROWS, 3), cut, &o.x));
    o.target = o.x;
    return o;
}

/* The batch is the program's memory, with its elements and its bounds. */
static void expect_streamed(const solver *s, const wf_batch *b, int64_t index)
{
    const wf_layout is = wf_tensor_layout(b->x);
    int64_t wrong = 0, rows = s->rows;
    WF_EXPECT(s->rows == 0 || (wf_tensor_data(b->x) == s->x && wf_tensor_data(b->target) == s->lacking),
              "the batch is at %p and %p, the program's memory at %p and %p", wf_tensor_data(b->x),
              wf_tensor_data(b->target), s->x, s->lacking);
    WF_EXPECT(is.known && is.box.lo[2] == s->bounds[rank] && is.box.hi[2] == s->bounds[rank + 1] &&
                  wf_tensor_layout(b->target).box.lo[2] == is.box.lo[2],
              "rows [%lld,%lld): should be [%lld,%lld)", (long long)is.box.lo[2], (long long)is.box.hi[2],
              (long long)s->bounds[rank], (long long)s->bounds[rank + 1]);
    WF_EXPECT(b->names == 2 && wf_batch_get(b, "x") == b->x && wf_batch_get(b, "target") == b->target &&
                  !b->named[0].target && b->named[1].target,
              "%d names: %s", b->names, wf_error_message());
    wf_error_clear();
    float x[ROWS * ROW], target[ROWS * ROW]; /* by channels, as exports are */
    WF_EXPECT_OK(wf_tensor_export(b->x, x, wf_tensor_bytes(b->x)));
    WF_EXPECT_OK(wf_tensor_export(b->target, target, wf_tensor_bytes(b->target)));
    for (int64_t i = 0; i < s->rows * ROW; i++) {
        const float there = field(index, s->bounds[rank], i), is_x = x[i % 2 * s->rows * 3 + i / 2];
        wrong += is_x != there || target[i % 2 * s->rows * 3 + i / 2] != -there;
    }
    WF_EXPECT_OK(wf_allreduce_i64(comm, &rows, 1, WF_SUM));
    WF_EXPECT(wrong == 0 && rows == ROWS, "%lld elements of %lld rows are wrong", (long long)wrong, (long long)rows);
    WF_EXPECT(!b->labels && b->size == 1 && b->global == 1 && b->epoch == index / LONGEST &&
                  b->index == index % LONGEST && b->last == (index % LONGEST == 2),
              "batch %lld: size %lld of %lld, epoch %lld, index %lld", (long long)index, (long long)b->size,
              (long long)b->global, (long long)b->epoch, (long long)b->index);
}

static void streamed(void)
{
    solver s;
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    solver_open(&s, mesh);
    wf_archive *archive = wf_archive_memory(ctx);
    wf_iter *iter = wf_streamed_batches(mesh, stream_of(&s));
    WF_EXPECT(iter && wf_iter_epoch_length(iter) == LONGEST, "%s", wf_error_message());
    for (int64_t i = 0; i < 5; i++) {
        wf_batch b = {0};
        WF_EXPECT(wf_iter_epoch(iter) == i / LONGEST, "epoch %lld before batch %lld", (long long)wf_iter_epoch(iter),
                  (long long)i);
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        expect_streamed(&s, &b, i);
        wf_tensor *kept = wf_tensor_alias(b.x);
        const uint64_t version = wf_tensor_version(kept);
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(wf_tensor_version(kept) != version, "the batch before is unchanged, to those who look");
        wf_tensor_free(kept);
        expect_streamed(&s, &b, ++i);
        if (i == 3)
            WF_EXPECT_OK(wf_iter_visit(iter, archive));
    }
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_iter_visit(iter, archive));
    wf_batch b = {0};
    WF_EXPECT(wf_iter_epoch(iter) == 1, "epoch %lld in the archive", (long long)wf_iter_epoch(iter));
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    WF_EXPECT(s.asked == 4 && b.epoch == 1 && b.index == 1, "batch %lld after that of the archive", (long long)s.asked);
    wf_archive_free(archive);
    wf_iter_free(iter);
    solver_close(&s);
    wf_mesh_close(mesh);
}

/* A stream lies on all ranks already, and a place beyond the last batch that can be counted is refused. */
static void streams_refuse(void)
{
    solver s;
    wf_batch b = {0};
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    solver_open(&s, mesh);
    int64_t epoch = INT64_MAX / 2, index = 1, length = LONGEST, seed = 0;
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(wf_archive_i64(archive, "epoch", &epoch));
    WF_EXPECT_OK(wf_archive_i64(archive, "index", &index));
    WF_EXPECT_OK(wf_archive_i64(archive, "length", &length));
    WF_EXPECT_OK(wf_archive_i64(archive, "seed", &seed));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    wf_iter *iter = wf_streamed_batches(mesh, stream_of(&s));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_iter_visit(iter, archive));
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    expect_streamed(&s, &b, 0);
    wf_shared_iter *shared = wf_shared_batches(comm, iter, 0);
    WF_EXPECT_ERROR(WF_ERR_UNSUPPORTED, wf_shared_next(shared, &b));
    wf_shared_free(shared);
    wf_archive_free(archive);
    solver_close(&s);
    wf_mesh_close(mesh);
}

static const wf_kernels *real;
static const solver *watched;
static int64_t asked_when_done;

static wf_status note_done(wf_ctx *of, wf_event *event, bool *done)
{
    asked_when_done = asked_when_done < 0 ? watched->asked : asked_when_done;
    return real->event_done(of, event, done);
}

/* The program writes into the memory of a batch again when the device has read it. */
static void stream_waits(void)
{
    solver s;
    wf_batch b;
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    solver_open(&s, mesh);
    wf_iter *iter = wf_streamed_batches(mesh, stream_of(&s));
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    real = ctx->k;
    watched = &s;
    asked_when_done = -1;
    wf_kernels noted = *real;
    noted.event_done = note_done;
    ctx->k = &noted;
    WF_EXPECT_OK(wf_iter_next(iter, &b));
    ctx->k = real;
    WF_EXPECT(real->host || asked_when_done == 0, "batch %lld was asked for before the device was done with batch 0",
              (long long)asked_when_done);
    wf_iter_free(iter);
    solver_close(&s);
    wf_mesh_close(mesh);
}

/* The second call of a rank that went wrong in the first: all ranks have its error. */
static void stream_fails(void)
{
    static const struct {
        bool fails, short_of_target, wrong_shape;
        wf_status code;
        const char *text;
    } wrong[] = {{.fails = true, .code = WF_ERR_NUMERIC, .text = "the solver blew up in step 1"},
                 {.short_of_target = true, .code = WF_ERR_ARGUMENT, .text = "batch 1 of a stream lacks a target"},
                 {.wrong_shape = true, .code = WF_ERR_SHAPE, .text = "this rank's part"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        solver s;
        wf_batch b = {0};
        wf_comm *child = wf_comm_split(comm, 0, 0);
        wf_mesh *mesh = wf_mesh_open(child, (wf_mesh_opts){.height = size});
        solver_open(&s, mesh);
        wf_iter *iter = wf_streamed_batches(mesh, stream_of(&s));
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        if (rank == 0) {
            s.fails = wrong[i].fails;
            s.short_of_target = wrong[i].short_of_target;
            s.wrong_shape = wrong[i].wrong_shape;
        }
        wf_status status = wf_iter_next(iter, &b);
        if (rank > 0 && status == WF_OK)
            status = wf_barrier(child);
        WF_EXPECT(status == wrong[i].code && strstr(wf_error_message(), wrong[i].text), "%s: \"%s\" should say \"%s\"",
                  wf_status_name(status), wf_error_message(), wrong[i].text);
        wf_error_clear();
        wf_iter_free(iter);
        solver_close(&s);
        wf_mesh_close(mesh);
        if (wf_comm_close(child) != WF_OK)
            wf_error_clear();
    }
}

static void expect_no_stream(const wf_mesh *mesh, wf_streamed_opts o, const char *text)
{
    wf_iter *iter = wf_streamed_batches(mesh, o);
    WF_EXPECT(!iter && wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), text),
              "\"%s\" should say \"%s\"", wf_error_message(), text);
    wf_error_clear();
    wf_iter_free(iter);
}

/* Options of one rank, the last, are wrong; all say so, and the communicator lives. */
static void streams_differ(void)
{
    solver s;
    const bool culprit = rank == size - 1;
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size}), *other = wf_mesh_open(comm, (wf_mesh_opts){0});
    solver_open(&s, mesh);
    wf_streamed_opts o = stream_of(&s);
    o.next = culprit ? NULL : advance;
    expect_no_stream(mesh, o, "without a function");
    o = stream_of(&s);
    o.x.known = !culprit;
    expect_no_stream(mesh, o, "without a layout of x");
    o = stream_of(&s);
    o.epoch_length = culprit ? -2 : LONGEST;
    expect_no_stream(mesh, o, "-2 an epoch");
    o = stream_of(&s);
    if (culprit)
        o.target = wf_mesh_layout_same(other, WF_SHAPE(1, 2, ROWS, 3));
    expect_no_stream(mesh, o, "over this mesh");
    if (size > 1) {
        o = stream_of(&s);
        o.epoch_length += culprit;
        expect_no_stream(mesh, o, "streamed batches of 3 an epoch on rank 0 and 4 on rank");
        o = stream_of(&s);
        o.target.known = !culprit;
        expect_no_stream(mesh, o, "target is [1,2,9,3] on rank 0 and left out on rank");
        s.bounds[1] += culprit;
        o = stream_of(&s);
        expect_no_stream(mesh, o, "x is cut over height at other bounds on rank");
        s.bounds[1] -= culprit;
    }
    wf_iter *ahead = wf_prefetch(wf_streamed_batches(mesh, stream_of(&s)), (wf_prefetch_opts){.depth = 2});
    WF_EXPECT(!ahead && strstr(wf_error_message(), "prefetch of streamed batches"), "%s", wf_error_message());
    wf_error_clear();
    solver_close(&s);
    wf_mesh_close(other);
    wf_mesh_close(mesh);
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
                                               {"streamed", streamed},
                                               {"streams_refuse", streams_refuse},
                                               {"stream_waits", stream_waits},
                                               {"stream_fails", stream_fails},
                                               {"streams_differ", streams_differ},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
