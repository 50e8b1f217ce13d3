/* Batches over a mesh: what the serial program's samples are, sharded over data, alike along channel, and whole or cut
 * along height and width; with uneven parts, in any order, transformed or not, sent from a root or read by each rank.
 */
#include "comm/mesh_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/failing_threads.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdlib.h>
#include <string.h>

enum { C = 2, H = 5, W = 3, PIXELS = C * H * W, MOST = 32 };

typedef struct variant {
    wf_mesh_opts grid;
    int64_t n, batch;
    bool sharded, flip, shuffle, each_reads, prefetch;
} variant;

static double element(int64_t label, int64_t i)
{
    return (double)(label * PIXELS + i) / 64;
}

static wf_dataset *numbered(int64_t n)
{
    float x[MOST * PIXELS];
    int64_t labels[MOST];
    for (int64_t i = 0; i < n; i++) {
        labels[i] = i;
        for (int64_t k = 0; k < PIXELS; k++)
            x[i * PIXELS + k] = (float)element(i, k);
    }
    return wf_memory_dataset(ctx, WF_F32, WF_SHAPE(n, C, H, W), x, labels);
}

static wf_iter *batches_of(wf_dataset *d, const variant *v, bool sharded)
{
    if (v->flip)
        d = wf_transform_random_flip(d);
    wf_iter *iter = wf_batches(d, (wf_batch_opts){.size = v->batch, .sharded = sharded, .seed = 7});
    return v->prefetch ? wf_prefetch(iter, (wf_prefetch_opts){.depth = 2}) : iter;
}

/* Returns true if this is element (c, h, w) of sample `label`, possibly flipped. *flipped says which (-1: cannot
 * tell). */
static bool is_element(double seen, int64_t label, int64_t c, int64_t h, int64_t w, int *flipped)
{
    const int64_t row = (c * H + h) * W;
    const bool plain = seen == element(label, row + w), mirrored = seen == element(label, row + W - 1 - w);
    if (plain == mirrored)
        return plain;
    const bool fits = *flipped < 0 || *flipped == mirrored;
    *flipped = mirrored;
    return fits;
}

static void expect_part(const variant *v, const wf_batch *b, const int64_t *labels)
{
    const wf_box box = wf_tensor_layout(b->x).box;
    const wf_shape local = wf_box_shape(box);
    float x[MOST * PIXELS];
    int64_t at = 0, wrong = 0;
    WF_EXPECT(wf_shape_equal(local, wf_tensor_shape(b->x)), "x has another shape than its layout says");
    WF_EXPECT_OK(wf_tensor_export(b->x, x, wf_tensor_bytes(b->x)));
    for (int64_t i = 0; i < b->size; i++) {
        int flipped = -1;
        for (int64_t c = box.lo[1]; c < box.hi[1]; c++)
            for (int64_t h = box.lo[2]; h < box.hi[2]; h++)
                for (int64_t w = box.lo[3]; w < box.hi[3]; w++)
                    wrong += !is_element((double)x[at++], labels[i], c, h, w, &flipped) || (flipped == 1 && !v->flip);
    }
    WF_EXPECT(wrong == 0, "%lld of %lld elements are wrong", (long long)wrong, (long long)at);
}

/* The batch's layout: samples in order over data, all channels, pixels as wf_shard cuts them or whole. */
static void expect_layout(const variant *v, const wf_mesh *mesh, const wf_batch *b)
{
    wf_layout is = wf_tensor_layout(b->x), of_labels = wf_tensor_layout(b->labels), usual;
    int64_t lo = 0, hi = 0;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(b->global, C, H, W), &usual));
    for (int d = 2; d < 4; d++) {
        lo = v->sharded ? usual.box.lo[d] : 0;
        hi = v->sharded ? usual.box.hi[d] : d == 2 ? H : W;
        WF_EXPECT(is.box.lo[d] == lo && is.box.hi[d] == hi, "%s: dimension %d is [%lld,%lld)", wf_mesh_text(mesh), d,
                  (long long)is.box.lo[d], (long long)is.box.hi[d]);
    }
    WF_EXPECT(is.mesh == mesh && wf_shape_equal(is.global, usual.global) && is.box.hi[1] - is.box.lo[1] == C,
              "the layout of x");
    WF_EXPECT(is.placement[WF_AXIS_DATA] == WF_SHARDED && is.bounds[WF_AXIS_DATA] &&
                  is.bounds[WF_AXIS_DATA] == of_labels.bounds[WF_AXIS_DATA] && is.box.hi[0] - is.box.lo[0] == b->size &&
                  of_labels.mesh == mesh,
              "the sharded over data");
}

/* An epoch: each label once over data, the same ones along the other axes, global counts that add up. */
static void epoch(const variant *v, const wf_mesh *mesh, wf_iter *iter, int64_t order[MOST])
{
    wf_comm *data = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA));
    wf_comm *others =
        wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL) | WF_AXIS_BIT(WF_AXIS_HEIGHT) | WF_AXIS_BIT(WF_AXIS_WIDTH));
    int64_t seen[MOST] = {0}, at = 0;
    for (wf_batch b = {0}; !b.last;) {
        int64_t labels[MOST] = {0}, first[MOST], all;
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        if (!b.x)
            return;
        WF_EXPECT_OK(wf_tensor_export(b.labels, labels, (size_t)b.size * sizeof *labels));
        expect_layout(v, mesh, &b);
        expect_part(v, &b, labels);
        for (int64_t i = 0; i < b.size; i++, at++) {
            seen[labels[i]]++;
            order[at] = labels[i];
        }
        all = b.size;
        WF_EXPECT_OK(wf_allreduce_i64(data, &all, 1, WF_SUM));
        WF_EXPECT(all == b.global, "%lld samples, of which the batch says %lld", (long long)all, (long long)b.global);
        memcpy(first, labels, sizeof first);
        WF_EXPECT_OK(wf_bcast_bytes(others, first, sizeof first, 0));
        WF_EXPECT(memcmp(first, labels, sizeof first) == 0, "%s: other samples along the other axes",
                  wf_mesh_text(mesh));
    }
    WF_EXPECT_OK(wf_allreduce_i64(data, seen, MOST, WF_SUM));
    for (int64_t i = 0; i < MOST; i++)
        WF_EXPECT(seen[i] == (i < v->n), "%s: of %lld, sample %lld came %lld times", wf_mesh_text(mesh),
                  (long long)v->n, (long long)i, (long long)seen[i]);
}

static void check(const variant *v)
{
    wf_mesh *mesh = wf_mesh_open(comm, v->grid);
    const bool gives = v->each_reads || rank == size - 1;
    wf_dataset *d = wf_mesh_scatter_dataset(
        mesh, gives ? numbered(v->n) : NULL,
        (wf_scatter_opts){
            .shuffle = v->shuffle, .seed = 3, .root = size - 1, .round_bytes = 500, .each_reads = v->each_reads});
    WF_EXPECT(d, "%s", wf_error_message());
    wf_iter *iter = batches_of(d, v, v->sharded);
    int64_t order[2][MOST] = {{0}};
    epoch(v, mesh, iter, order[0]);
    epoch(v, mesh, iter, order[1]);
    WF_EXPECT(v->shuffle || memcmp(order[0], order[1], sizeof *order) == 0, "another order without shuffling");
    wf_iter_free(iter);
    wf_mesh_close(mesh);
}

static void every_mesh(void)
{
    static const int64_t counts[] = {0, 1, 5, 13};
    int turn = 0;
    for (int data = 1; data <= size; data++)
        for (int channel = 1; channel <= size; channel++)
            for (int height = 1; height <= size; height++) {
                const int product = data * channel * height;
                if (product > size || size % product != 0)
                    continue;
                const wf_mesh_opts grid = {.data = data, .channel = channel, .height = height, .width = size / product};
                for (int i = 0; i < 8; i++, turn++)
                    check(&(variant){.grid = grid,
                                     .n = counts[(turn + turn / 4) % 4],
                                     .batch = 1 + turn % 3,
                                     .sharded = i & 1,
                                     .flip = i & 2,
                                     .each_reads = i & 4,
                                     .shuffle = turn % 5 < 2,
                                     .prefetch = turn % 7 < 2});
            }
}

/* Flips depend on the sample, not on the mesh: the batches of a mesh are those of one rank. */
static void serial_batches(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    const variant v = {.n = 13, .batch = 4, .flip = true};
    wf_iter *iter =
        batches_of(wf_mesh_scatter_dataset(mesh, rank == 0 ? numbered(v.n) : NULL, (wf_scatter_opts){0}), &v, true);
    wf_iter *serial = batches_of(numbered(v.n), &v, false);
    for (wf_batch a = {0}, b = {0}; !b.last;) {
        WF_EXPECT_OK(wf_iter_next(iter, &a));
        WF_EXPECT_OK(wf_iter_next(serial, &b));
        wf_tensor *whole = wf_tensor_redistribute(a.x, (wf_layout){.known = true,
                                                                   .mesh = mesh,
                                                                   .global = wf_tensor_shape(b.x),
                                                                   .box = wf_box_of_shape(wf_tensor_shape(b.x))});
        float x[MOST * PIXELS], y[MOST * PIXELS];
        WF_EXPECT(whole, "%s", wf_error_message());
        WF_EXPECT_OK(wf_tensor_export(whole, x, wf_tensor_bytes(whole)));
        WF_EXPECT_OK(wf_tensor_export(b.x, y, wf_tensor_bytes(b.x)));
        WF_EXPECT(memcmp(x, y, wf_tensor_bytes(b.x)) == 0, "a batch is another than the serial one");
        wf_tensor_free(whole);
    }
    wf_iter_free(iter);
    wf_iter_free(serial);
    wf_mesh_close(mesh);
}

/* The first pixel of each of this rank's samples in an epoch; returns how many there are. */
static int64_t first_pixels(bool each_reads, bool before, int64_t epoch, float *pixel)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size});
    wf_dataset *d = numbered(MOST);
    wf_batch b;
    if (before)
        d = wf_transform_random_flip(d);
    d = wf_mesh_scatter_dataset(mesh, d, (wf_scatter_opts){.shuffle = true, .seed = 5, .each_reads = each_reads});
    wf_iter *iter = wf_batches(wf_transform_random_flip(d), (wf_batch_opts){.size = MOST});
    for (int64_t e = 0; e <= epoch; e++)
        WF_EXPECT_OK(wf_iter_next(iter, &b));
    float *x = malloc(wf_tensor_bytes(b.x));
    WF_EXPECT_OK(wf_tensor_export(b.x, x, wf_tensor_bytes(b.x)));
    for (int64_t i = 0; i < b.size; i++)
        pixel[i] = x[i * wf_tensor_count(b.x) / b.size];
    const int64_t samples = b.size;
    free(x);
    wf_iter_free(iter);
    wf_mesh_close(mesh);
    return samples;
}

/* Samples that are sent and samples that each rank reads are flipped alike: by transforms after the scatter always, by
 * those before it, which are applied once where samples are sent, in the first epoch. Two flips of one chain differ. */
static void sent_and_read_alike(void)
{
    float sent[MOST], read[MOST], none[MOST];
    for (int k = 0; k < 3; k++) {
        const bool before = k == 2;
        const int64_t epoch = k % 2, own = first_pixels(false, before, epoch, sent);
        int differ = 0, flipped = 0;
        WF_EXPECT(first_pixels(true, before, epoch, read) == own && first_pixels(true, false, epoch, none) == own,
                  "another number of samples where each rank reads");
        for (int64_t i = 0; i < own; i++) {
            differ += sent[i] != read[i];
            flipped += before && read[i] != none[i];
        }
        WF_EXPECT(differ == 0, "%d of %lld samples are flipped otherwise where each rank reads, in epoch %lld", differ,
                  (long long)own, (long long)epoch);
        WF_EXPECT(!before || own < 16 || (flipped > 0 && flipped < own), "the second flip changes %d of %lld samples",
                  flipped, (long long)own);
    }
}

static void expect_failure(const void *made, wf_status code, const char *text)
{
    WF_EXPECT(!made && wf_error_code() == code && strstr(wf_error_message(), text), "%s, \"%s\" does not say \"%s\"",
              wf_status_name(wf_error_code()), wf_error_message(), text);
    wf_error_clear();
}

static void failures(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    const wf_scatter_opts each = {.each_reads = true};
    if (size > 1) {
        expect_failure(wf_mesh_scatter_dataset(mesh, numbered(rank == 1 ? 4 : 5), each), WF_ERR_ARGUMENT,
                       "rank 1 has 4 samples [2,5,3], the root 5");
        wf_dataset *mine = rank == 1 ? wf_idx(ctx, "/nowhere", NULL) : numbered(5);
        expect_failure(wf_mesh_scatter_dataset(mesh, mine, each), WF_ERR_IO, "/nowhere");
    }
    wf_iter *iter = wf_batches(numbered(3), (wf_batch_opts){.size = 1, .sharded = true});
    wf_batch b;
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_iter_next(iter, &b));
    wf_iter_free(iter);
    wf_mesh_close(mesh);
}

/* The last rank cannot start its thread: the others are told of it in their next collective. */
static void one_rank_cannot_open(void)
{
    wf_comm *child = wf_comm_split(comm, 0, 0);
    wf_mesh *mesh = wf_mesh_open(child, (wf_mesh_opts){.data = size});
    wf_dataset *d = wf_mesh_scatter_dataset(mesh, numbered(9), (wf_scatter_opts){.each_reads = true});
    wf_iter *iter = wf_prefetch(wf_batches(d, (wf_batch_opts){.size = 2}), (wf_prefetch_opts){.depth = 2});
    wf_batch b;
    allow_threads(rank == size - 1 ? 0 : -1);
    wf_status status = wf_iter_next(iter, &b);
    allow_threads(-1);
    if (rank < size - 1 && status == WF_OK)
        status = wf_barrier(child);
    WF_EXPECT(status == WF_ERR_MEMORY && strstr(wf_error_message(), "cannot start thread 1 of 1"), "%s, \"%s\"",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    wf_iter_free(iter);
    wf_mesh_close(mesh);
    if (wf_comm_close(child) != WF_OK)
        wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"every_mesh", every_mesh},
                                               {"serial_batches", serial_batches},
                                               {"sent_and_read_alike", sent_and_read_alike},
                                               {"failures", failures},
                                               {"one_rank_cannot_open", one_rank_cannot_open},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
