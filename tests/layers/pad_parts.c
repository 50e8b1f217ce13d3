/* Padding and rolls of parts on random meshes, uneven and empty ones: the serial result bit for bit, its gradient, and
 * the bytes that the formula counts; nothing is sent along dimensions that are not cut. What is refused. */
#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/tape_author.h"
#include "layers/conv.h"
#include "layers/functions.h"
#include "layers/redistribute.h"
#include "layers/spatial.h"
#include "tests/layers/pad_question.h"
#include "tests/random_mesh.h"
#include "tests/ranks.h"

enum { MOST = 8 };

static wf_tape *tape;

/* Random bounds, equal at times: empty parts. Those of the batch each rank may know for itself only. */
static wf_layout random_layout(test_rng *rng, const wf_mesh *mesh, wf_shape whole)
{
    static const wf_axis axes[] = {WF_AXIS_HEIGHT, WF_AXIS_WIDTH, WF_AXIS_CHANNEL, WF_AXIS_DATA};
    wf_layout layout = {.known = true, .mesh = mesh, .global = whole, .box = wf_box_of_shape(whole)};
    int64_t bounds[MOST + 1] = {0};
    for (int i = 0; i < 4; i++) {
        const int n = wf_mesh_size(mesh, axes[i]), d = whole.rank - 1 - i;
        if (d < 0 || test_int(rng, 0, 4) == 0)
            continue;
        for (int k = 1; k <= n; k++)
            bounds[k] = k == n ? whole.dim[d] : test_int(rng, bounds[k - 1], whole.dim[d]);
        wf_layout_shard(mesh, &layout, axes[i], d, bounds);
    }
    if (layout.placement[WF_AXIS_DATA] == WF_SHARDED && test_int(rng, 0, 1))
        layout.bounds[WF_AXIS_DATA] = NULL;
    return layout;
}

/* This rank's part of a whole. */
static void part_of(wf_shape whole, wf_box box, const double *all, double *part)
{
    int64_t at[WF_MAX_RANK], n = 0;
    memcpy(at, box.lo, sizeof at);
    if (!wf_box_empty(box))
        do
            part[n++] = all[box_index(wf_box_of_shape(whole), at)];
        while (box_next(box, at));
}

/* Elements of the part of the result that this rank lacks, each once. */
static int64_t formula_received(const question *q, wf_box have, wf_box part)
{
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], n = 0;
    memcpy(at, part.lo, sizeof at);
    if (wf_box_empty(part))
        return 0;
    bool *seen = formula_none_seen(q->whole);
    do
        n += source_of(q, at, source) != 0 && !box_has(have, source) && formula_notes(q->whole, source, seen);
    while (box_next(part, at));
    free(seen);
    return n;
}

static double summed(double v)
{
    WF_EXPECT_OK(wf_allreduce_f64(comm, &v, 1, WF_SUM));
    return v;
}

static bool changes(const question *q, int d)
{
    bool rolled = false;
    for (int i = 0; i < q->shifts; i++)
        rolled = rolled || q->dims[i] == d;
    return rolled || q->lo[d] != 0 || q->hi[d] != 0;
}

/* A roll leaves parts where they are; a pad goes to the first and the last one. */
static wf_box expected_box(const question *q, const wf_layout *x)
{
    wf_box box = x->box;
    for (int d = 0; d < box.rank; d++) {
        const int64_t length = q->out.dim[d];
        box.hi[d] = wf_layout_is_sharded(x, d) ? box.hi[d] : length;
    }
    for (int a = 0; a < WF_AXES; a++) {
        const int d = x->dim[a], place = wf_mesh_rank(x->mesh, (wf_axis)a);
        if (x->placement[a] != WF_SHARDED || q->shifts > 0 || !changes(q, d))
            continue;
        const int64_t lo = box.lo[d] + q->lo[d], hi = box.hi[d] + q->lo[d], length = q->out.dim[d];
        box.lo[d] = place == 0 ? 0 : lo < 0 ? 0 : lo > length ? length : lo;
        box.hi[d] = place == wf_mesh_size(x->mesh, (wf_axis)a) - 1 ? length : hi < 0 ? 0 : hi > length ? length : hi;
    }
    return box;
}

/* Sums the traffic over all sets of axes of the mesh. */
static wf_traffic traffic_of(const wf_mesh *mesh)
{
    wf_traffic all = {0};
    for (unsigned axes = 1; axes < 1u << WF_AXES; axes++) {
        bool split = true;
        for (int a = 0; a < WF_AXES; a++)
            split = split && (!(axes >> a & 1u) || wf_mesh_size(mesh, (wf_axis)a) > 1);
        const wf_traffic t = split ? wf_comm_traffic(wf_mesh_comm(mesh, axes)) : (wf_traffic){0};
        all.bytes_sent += t.bytes_sent;
        all.collectives += t.collectives;
    }
    return all;
}

/* Between the two, by all ranks. */
static double sent_between(wf_traffic before, wf_traffic after)
{
    return summed((double)(after.bytes_sent - before.bytes_sent));
}

static bool is_turned(const question *q, int d)
{
    const int turned = q->b.turned ? q->b.turned - 1 : q->whole.rank - 1;
    bool pole = false;
    for (int k = 0; k < q->whole.rank; k++)
        pole = pole || q->b.lo[k] == WF_EDGE_POLE || q->b.hi[k] == WF_EDGE_POLE;
    return pole && d == turned;
}

static void check_parts(const question *q, wf_layout layout, wf_order order)
{
    static double all_y[MOST_ELEMENTS], all_dx[MOST_ELEMENTS], want[MOST_ELEMENTS], got[MOST_ELEMENTS],
        values[MOST_ELEMENTS];
    const wf_mesh *mesh = layout.mesh;
    const wf_box box = expected_box(q, &layout);
    const int samples = layout.dim[WF_AXIS_DATA];
    const bool unknown = layout.placement[WF_AXIS_DATA] == WF_SHARDED && !layout.bounds[WF_AXIS_DATA] &&
                         (changes(q, samples) || is_turned(q, samples));
    WF_EXPECT_OK(wf_tape_reset(tape));
    serial(q, all_y, all_dx);
    const int64_t n = fill(layout.box, 1, values);
    wf_tensor *x = tensor_of(ctx, wf_box_shape(layout.box), values, order);
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    wf_var *leaf = wf_leaf(tape, x);
    const wf_traffic before = traffic_of(mesh);
    wf_var *y = ask(q, leaf);
    const wf_traffic after = traffic_of(mesh);
    const double wanted = 8 * summed((double)formula_received(q, layout.box, box)), sent = sent_between(before, after);
    WF_EXPECT(y, "%s: %s", wf_mesh_text(mesh), wf_error_message());
    if (!y) {
        wf_tensor_free(x);
        return;
    }
    const wf_layout seen = wf_tensor_layout(wf_value(y));
    WF_EXPECT(seen.known && wf_box_equal(seen.box, box) && wf_shape_equal(seen.global, q->out), "another layout");
    part_of(q->out, box, all_y, want);
    const int64_t m = read_all(wf_value(y), got);
    WF_EXPECT(m == wf_shape_count(wf_box_shape(box)) && memcmp(want, got, sizeof *got * (size_t)m) == 0,
              "%s: %d elements, off by %g", wf_mesh_text(mesh), (int)m, test_distance(m, got, want));
    /* Shard bounds that only the ranks know are gathered first. */
    WF_EXPECT(unknown || sent == wanted, "%s: %g bytes were sent, the formula says %g", wf_mesh_text(mesh), sent,
              wanted);
    WF_EXPECT(unknown || after.collectives - before.collectives <= (sent > 0), "%d collectives for %g bytes",
              (int)(after.collectives - before.collectives), sent);
    if (y != leaf) {
        fill(box, 2, values);
        wf_tensor *dy = tensor_of(ctx, wf_box_shape(box), values, order);
        WF_EXPECT_OK(wf_tensor_set_layout(dy, seen));
        const wf_traffic forward = traffic_of(mesh);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        const double back = sent_between(forward, traffic_of(mesh));
        WF_EXPECT(back == wanted, "%g bytes were sent back, the formula says %g", back, wanted);
        part_of(q->whole, layout.box, all_dx, want);
        read_all(wf_grad(leaf), got);
        WF_EXPECT(test_distance(n, got, want) < 1e-12, "%s: dx is off by %g", wf_mesh_text(mesh),
                  test_distance(n, got, want));
        wf_tensor_free(dy);
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
}

static void parts(void)
{
    test_rng rng = {.state = 6100 + (uint64_t)size};
    for (int m = 0; m < 4; m++) {
        wf_mesh *mesh = random_mesh(comm, &rng, 3);
        for (int i = 0; i < test_samples(400); i++) {
            const question q = i % 4 ? random_pad(&rng, 4) : random_roll(&rng, 4);
            const wf_layout layout = random_layout(&rng, mesh, q.whole);
            check_parts(&q, layout, test_int(&rng, 0, 1) ? WF_ROW_MAJOR : wf_order_default(q.whole.rank));
        }
        wf_mesh_close(mesh);
    }
}

/* Numbers of channels are those of the whole where each rank has some of them, also if nothing is sent. */
static void signs_of_cut_channels(void)
{
    const int64_t negated[] = {1, 2, 2 * size - 1};
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size});
    question q = {.whole = WF_SHAPE(1, 2 * size, 2, 4), .out = WF_SHAPE(1, 2 * size, 4, 4)};
    wf_layout layout;
    q.b = (wf_boundary){.edge = WF_EDGE_CIRCULAR, .n_negated = size > 1 ? 3 : 1, .negated = negated};
    q.lo[2] = q.hi[2] = 1;
    q.b.lo[2] = q.b.hi[2] = WF_EDGE_POLE;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, q.whole, &layout));
    check_parts(&q, layout, WF_CHANNELS_LAST);
    wf_mesh_close(mesh);
}

/* Columns go round an image whose rows are cut: no message, no collective. */
static void uncut_sends_nothing(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(1, 2, 2 * size, 4), &layout));
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, wf_box_shape(layout.box));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    const wf_traffic before = traffic_of(mesh);
    const int64_t wide[4] = {0, 0, 0, 2};
    wf_var *leaf = wf_leaf(tape, x), *y = wf_pad(leaf, wide, wide, (wf_boundary){.edge = WF_EDGE_CIRCULAR});
    y = wf_roll(y, 2, (int64_t[]){3, 1}, (int[]){3, 1});
    WF_EXPECT(y, "%s", wf_error_message());
    WF_EXPECT_OK(wf_backward_from(y, wf_value(y)));
    const wf_traffic after = traffic_of(mesh);
    WF_EXPECT(after.bytes_sent == before.bytes_sent && after.collectives == before.collectives,
              "%d bytes, %d collectives", (int)(after.bytes_sent - before.bytes_sent),
              (int)(after.collectives - before.collectives));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

/* Runs conv(pad(x)) and its backward from ones; returns a copy of the result, which goes with that. */
static wf_tensor *convolve(wf_layer *conv, wf_var *leaf, wf_boundary b)
{
    const int64_t one[4] = {0, 0, 1, 1};
    wf_var *wide = wf_pad(leaf, one, one, b);
    wf_var *y = wf_apply(conv, wide);
    WF_EXPECT(y, "%s", wf_error_message());
    wf_tensor *dy = wf_tensor_new_like(wf_value(y));
    WF_EXPECT_OK(wf_tensor_fill(dy, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(dy, wf_tensor_layout(wf_value(y))));
    wf_tensor *copy = wf_tensor_copy(wf_value(y), WF_F32, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(copy, wf_tensor_layout(wf_value(y))));
    WF_EXPECT_OK(wf_backward_from(y, dy));
    wf_tensor_free(dy);
    return copy;
}

/* A spatial convolution of a padded variable is the serial one, as are the gradients of x. */
static void before_a_convolution(void)
{
    static double whole[MOST_ELEMENTS], part[MOST_ELEMENTS], want[MOST_ELEMENTS], got[MOST_ELEMENTS];
    const wf_conv_opts opts = {.in = 2, .out = 3, .kernel = 3};
    const wf_shape shape = WF_SHAPE(1, 2, 3 * size, 6);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layer *serial = wf_layer_named(wf_conv2d(ctx, opts), "conv");
    wf_layer *spatial = wf_layer_named(wf_spatial_conv2d(mesh, opts), "conv");
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    fill(wf_box_of_shape(shape), 1, whole);
    fill(layout.box, 1, part);
    wf_tensor *x64 = tensor_of(ctx, shape, whole, WF_CHANNELS_LAST), *x = wf_tensor_copy(x64, WF_F32, WF_CHANNELS_LAST);
    wf_tensor *p64 = tensor_of(ctx, wf_box_shape(layout.box), part, WF_CHANNELS_LAST);
    wf_tensor *own = wf_tensor_copy(p64, WF_F32, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(own, layout));
    for (wf_edge edge = WF_EDGE_DEFAULT; edge <= WF_EDGE_REPLICATE; edge++) {
        wf_var *all = wf_leaf(tape, x), *mine = wf_leaf(tape, own);
        wf_tensor *y = convolve(serial, all, (wf_boundary){.edge = edge});
        const int64_t n = read_all(y, want);
        wf_tensor *parts_of_y = convolve(spatial, mine, (wf_boundary){.edge = edge});
        wf_tensor *joined =
            wf_tensor_redistribute(parts_of_y, wf_mesh_layout_same(mesh, wf_tensor_layout(parts_of_y).global));
        WF_EXPECT(read_all(joined, got) == n && test_distance(n, got, want) < 1e-5, "%s: y is off by %g",
                  wf_edge_name(edge), test_distance(n, got, want));
        read_all(wf_grad(all), whole);
        part_of(shape, layout.box, whole, want);
        const int64_t m = read_all(wf_grad(mine), got);
        WF_EXPECT(test_distance(m, got, want) < 1e-5, "%s: dx is off by %g", wf_edge_name(edge),
                  test_distance(m, got, want));
        wf_tensor_free(joined);
        wf_tensor_free(parts_of_y);
        wf_tensor_free(y);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor_free(x64);
    wf_tensor_free(x);
    wf_tensor_free(p64);
    wf_tensor_free(own);
    wf_layer_free(serial);
    wf_layer_free(spatial);
    wf_mesh_close(mesh);
}

/* After the second step of a fixed shape the library asks the system for no memory, on one rank and on parts. */
static void steady(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    const int64_t two[4] = {0, 0, 2, 2}, channel = 1;
    const wf_boundary all[2] = {{.edge = WF_EDGE_REPLICATE},
                                {.edge = WF_EDGE_CIRCULAR,
                                 .lo = {0, 0, WF_EDGE_POLE},
                                 .hi = {0, 0, WF_EDGE_CONSTANT},
                                 .n_negated = 1,
                                 .negated = &channel}};
    wf_layout layout;
    int64_t after[8];
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(1, 2, 2 * size, 4), &layout));
    wf_tensor *part = wf_tensor_new(ctx, WF_F32, wf_box_shape(layout.box));
    wf_tensor *whole = wf_tensor_new(ctx, WF_F32, layout.global);
    WF_EXPECT_OK(wf_tensor_fill(part, 1));
    WF_EXPECT_OK(wf_tensor_fill(whole, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    for (int step = 0; step < 8; step++) {
        for (int i = 0; i < 4; i++) {
            wf_var *y = wf_pad(wf_leaf(tape, i & 1 ? whole : part), two, two, all[i / 2]);
            y = wf_roll(y, 1, (int64_t[]){3}, (int[]){2});
            WF_EXPECT_OK(wf_backward_from(y, wf_value(y)));
        }
        WF_EXPECT_OK(wf_tape_reset(tape));
        after[step] = wf_ctx_memory(ctx).system_allocations;
    }
    WF_EXPECT(after[7] == after[1], "%d allocations after the second step", (int)(after[7] - after[1]));
    wf_tensor_free(part);
    wf_tensor_free(whole);
    wf_mesh_close(mesh);
}

/* --- errors ---------------------------------------------------------------------------------------------------------
 */

static void expect_refused(wf_status code, const char *text, const wf_var *y)
{
    WF_EXPECT(!y && wf_error_code() == code && strstr(wf_error_message(), text), "%s: %s",
              wf_status_name(wf_error_code()), wf_error_message());
    wf_error_clear();
}

static void refused(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(1, 1, size, 4), &layout));
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, wf_box_shape(layout.box));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    wf_var *leaf = wf_leaf(tape, x);
    const int64_t zero[4] = {0}, far[4] = {0, 0, size, 0}, less[4] = {0, 0, 0, -3};
    WF_EXPECT(!wf_pad(NULL, zero, zero, (wf_boundary){0}) && !wf_roll(NULL, 0, NULL, NULL), "NULL passes");
    WF_EXPECT(wf_pad(leaf, zero, zero, (wf_boundary){.edge = WF_EDGE_REFLECT}) == leaf &&
                  wf_roll(leaf, 0, NULL, NULL) == leaf,
              "what changes nothing is x");
    /* One error on all ranks, and nothing was sent. */
    expect_refused(WF_ERR_SHAPE, "beyond the lower edge of dimension 2, which is reflect",
                   wf_pad(leaf, far, zero, (wf_boundary){.edge = WF_EDGE_REFLECT}));
    expect_refused(WF_ERR_SHAPE, "pad of dimension 3, of length 4, by -3 and -3",
                   wf_pad(leaf, less, less, (wf_boundary){0}));
    expect_refused(WF_ERR_ARGUMENT, "pad without numbers", wf_pad(leaf, NULL, zero, (wf_boundary){0}));
    expect_refused(WF_ERR_ARGUMENT, "the edges of dimension 0 are 9",
                   wf_pad(leaf, far, zero, (wf_boundary){.edge = 9}));
    expect_refused(WF_ERR_ARGUMENT, "roll along dimension 4", wf_roll(leaf, 1, far, (int[]){4}));
    expect_refused(WF_ERR_ARGUMENT, "roll by 1 shifts, listed nowhere", wf_roll(leaf, 1, NULL, NULL));
    if (size > 1)
        expect_refused(WF_ERR_SHAPE, "one rank's part of a sum", wf_pad(wf_sum(leaf), zero, zero, (wf_boundary){0}));
    WF_EXPECT(summed(1) == size, "a sum after the errors");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

/* Rank 0 has the only sample; the others refuse what it refuses. */
static void refused_without_samples(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size});
    const int64_t samples = rank == 0, far[4] = {0, 0, 4, 0}, zero[4] = {0};
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(samples, 1, 4, 4));
    WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(mesh, WF_SHAPE(1, 1, 4, 4), rank > 0, 1)));
    expect_refused(WF_ERR_SHAPE, "beyond the lower edge of dimension 2, which is reflect",
                   wf_pad(wf_leaf(tape, x), far, zero, (wf_boundary){.edge = WF_EDGE_REFLECT}));
    WF_EXPECT(summed(1) == size, "a sum after the error");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

static int run(int argc, char **argv)
{
    if (!ranks_open(test_communicator("naive")))
        return 1;
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"parts", parts},
                                               {"signs_of_cut_channels", signs_of_cut_channels},
                                               {"uncut_sends_nothing", uncut_sends_nothing},
                                               {"before_a_convolution", before_a_convolution},
                                               {"steady", steady},
                                               {"refused", refused},
                                               {"refused_without_samples", refused_without_samples},
                                               {0}});
    wf_tape_free(tape);
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
