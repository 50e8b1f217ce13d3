#include "examples/halo_measure.h"

#include <weft/comm/mesh_author.h>

#include <stdlib.h>

#define MOST_REPEATS 101

/* A layer with what goes in and, for backward, a gradient to start from; or an exchange. */
typedef struct subject {
    wf_tape *tape;
    wf_layer *layer;
    wf_tensor *x, *y;
    wf_exchange *exchange;
    bool backward;
} subject;

static void run(const subject *s)
{
    if (s->exchange) {
        WF_MUST(wf_exchange_begin_halo(s->exchange, s->x, s->y));
        WF_MUST(wf_exchange_end(s->exchange));
        return;
    }
    wf_var *y = wf_apply(s->layer, wf_leaf(s->tape, s->x));
    WF_MUST(wf_check(y));
    if (s->backward)
        WF_MUST(wf_backward_from(y, s->y));
    WF_MUST(wf_tape_reset(s->tape));
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first run, in which memory and plans are made, does not count. */
static double seconds_of(wf_comm *comm, const subject *s, int64_t repeats)
{
    double took[MOST_REPEATS];
    repeats = repeats < MOST_REPEATS ? repeats : MOST_REPEATS;
    run(s);
    for (int64_t i = 0; i < repeats; i++) {
        WF_MUST(wf_barrier(comm));
        const double start = example_seconds();
        run(s);
        took[i] = example_seconds() - start;
    }
    WF_MUST(wf_allreduce_f64(comm, took, repeats, WF_MAX));
    qsort(took, (size_t)repeats, sizeof *took, ascending);
    return (took[(repeats - 1) / 2] + took[repeats / 2]) / 2;
}

static wf_tensor *filled(wf_ctx *ctx, wf_shape shape, wf_layout layout)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, shape);
    WF_MUST(wf_check(x));
    WF_MUST(wf_tensor_fill(x, 0.5));
    if (layout.known)
        WF_MUST(wf_tensor_set_layout(x, layout));
    return x;
}

/* A layer, which is taken, forward and with backward; and the bytes that the mesh's ranks send in either. */
static void measure_layer(wf_comm *comm, wf_layer *layer, wf_shape shape, wf_layout layout, int64_t repeats,
                          double seconds[DIRECTIONS], int64_t sent[DIRECTIONS])
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    subject s = {.tape = wf_tape_new(ctx), .layer = layer, .x = filled(ctx, shape, layout)};
    wf_var *y = wf_apply(layer, wf_leaf(s.tape, s.x));
    WF_MUST(wf_check(y));
    s.y = filled(ctx, wf_var_shape(y), wf_tensor_layout(wf_value(y)));
    WF_MUST(wf_tape_reset(s.tape));
    for (int i = FORWARD; i < DIRECTIONS; i++) {
        s.backward = i == BOTH;
        const uint64_t before = wf_comm_traffic(comm).bytes_sent;
        run(&s);
        if (sent)
            sent[i] = (int64_t)(wf_comm_traffic(comm).bytes_sent - before);
        seconds[i] = seconds_of(comm, &s, repeats);
    }
    wf_tensor_free(s.y);
    wf_tensor_free(s.x);
    wf_layer_free(layer);
    wf_tape_free(s.tape);
}

/* Who has and who needs which rows and columns of the image, into `range`: 4 for each of the mesh's ranks. */
static void regions_of(const halo_case *c, wf_range *range, wf_regions *have, wf_regions *need)
{
    const wf_shape image = WF_SHAPE(1, c->channels, c->length[0], c->length[1]);
    *have = *need = (wf_regions){.global = image, .dim = {-1, -1, -1, -1, -1, -1}};
    for (int d = 0; d < 2; d++) {
        const wf_axis axis = d == 0 ? WF_AXIS_HEIGHT : WF_AXIS_WIDTH;
        const int n = c->ranks[d];
        for (int r = 0; r < n; r++) {
            const halo_span own = halo_own(c, d, r), reads = halo_reads(c, d, r);
            range[r] = (wf_range){own.lo, own.hi};
            range[n + r] = (wf_range){reads.lo, reads.hi};
        }
        have->dim[axis] = need->dim[axis] = n > 1 ? 2 + d : -1;
        have->range[axis] = range;
        need->range[axis] = range + n;
        range += 2 * n;
    }
}

/* Of this rank. */
static wf_tensor *part_new(const wf_mesh *mesh, const wf_regions *regions)
{
    wf_shape shape = regions->global;
    for (int a = WF_AXIS_HEIGHT; a <= WF_AXIS_WIDTH; a++) {
        const wf_range r = regions->range[a][wf_mesh_rank(mesh, (wf_axis)a)];
        shape.dim[2 + a - WF_AXIS_HEIGHT] = r.hi - r.lo;
    }
    return filled(wf_comm_ctx(wf_mesh_world(mesh)), shape, wf_layout_none());
}

static double measure_exchange(const wf_mesh *mesh, const halo_case *c, int64_t repeats)
{
    wf_comm *comm = wf_mesh_world(mesh);
    wf_range *range = calloc(4 * (size_t)wf_comm_size(comm) + 4, sizeof *range);
    wf_regions have, need;
    if (!range)
        example_abort("out of memory for %d ranks", wf_comm_size(comm));
    regions_of(c, range, &have, &need);
    const subject s = {.exchange = wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_CHANNELS_LAST),
                       .x = part_new(mesh, &have),
                       .y = part_new(mesh, &need)};
    WF_MUST(wf_check(s.exchange));
    const double seconds = seconds_of(comm, &s, repeats);
    wf_tensor_free(s.y);
    wf_tensor_free(s.x);
    free(range);
    return seconds;
}

static void compare_bytes(wf_comm *comm, halo_row *row, const int64_t sent[DIRECTIONS])
{
    const int rank = wf_comm_rank(comm);
    const int64_t forward = halo_forward(&row->what, rank).bytes;
    const int64_t both = forward + halo_backward(&row->what, rank).bytes;
    int64_t sums[] = {sent[FORWARD], sent[BOTH], forward, both, sent[FORWARD] != forward || sent[BOTH] != both};
    WF_MUST(wf_allreduce_i64(comm, sums, 5, WF_SUM));
    for (int i = FORWARD; i < DIRECTIONS; i++) {
        row->bytes[i] = sums[i];
        row->formula[i] = sums[DIRECTIONS + i];
    }
    row->off = sums[2 * DIRECTIONS];
    row->busiest = halo_busiest(&row->what);
}

halo_row halo_measure(wf_comm *comm, const halo_case *what, int64_t repeats)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = what->ranks[0], .width = what->ranks[1]});
    const wf_conv_opts o = {
        .in = what->channels, .out = what->channels, .kernel = what->kernel, .pad = what->kernel / 2, .no_bias = true};
    const wf_shape whole = WF_SHAPE(1, what->channels, what->length[0], what->length[1]);
    wf_layout layout;
    WF_MUST(wf_mesh_layout_activation(mesh, whole, &layout));
    const wf_shape part = wf_box_shape(layout.box);
    halo_row row = {.what = *what};
    int64_t sent[DIRECTIONS];
    measure_layer(comm, wf_conv2d(ctx, o), part, wf_layout_none(), repeats, row.compute, NULL);
    measure_layer(comm, wf_spatial_conv2d(mesh, o), part, layout, repeats, row.spatial, sent);
    if (wf_comm_size(comm) > 1)
        row.exchange = measure_exchange(mesh, what, MOST_REPEATS);
    if (!what->weak)
        measure_layer(comm, wf_conv2d(ctx, o), whole, wf_layout_none(), repeats, row.share, NULL);
    for (int i = FORWARD; i < DIRECTIONS; i++)
        row.share[i] = what->weak ? row.compute[i] : row.share[i] / wf_comm_size(comm);
    compare_bytes(comm, &row, sent);
    wf_mesh_close(mesh);
    return row;
}
