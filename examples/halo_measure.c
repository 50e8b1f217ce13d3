/* Measures layers for the study of halos. What is compared takes turns, so that slow moments of the machine fall on all
 * of it. */
#include "examples/halo_measure.h"

#include <weft/comm/mesh_author.h>

#include <stdlib.h>

#define MOST_REPEATS 101
#define EXCHANGES    31 /* alone, after each run of a layer */

/* A layer with what goes in and, for backward, a gradient to start from; or an exchange. With what each run took, and
 * what of that inside exchanges. */
typedef struct subject {
    wf_tape *tape;
    wf_layer *layer;
    wf_tensor *x, *y;
    wf_exchange *exchange;
    bool backward;
    double took[MOST_REPEATS], exposed[MOST_REPEATS];
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

static void time_one(wf_comm *comm, subject *s, int64_t i)
{
    WF_MUST(wf_barrier(comm));
    const uint64_t before = wf_comm_traffic(comm).exchange_ns;
    const double start = example_seconds();
    run(s);
    s->took[i] = example_seconds() - start;
    s->exposed[i] = 1e-9 * (double)(wf_comm_traffic(comm).exchange_ns - before);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Takes the time of the slowest rank in each repeat, and sorts. */
static void sort(wf_comm *comm, double *took, int64_t repeats)
{
    WF_MUST(wf_allreduce_f64(comm, took, repeats, WF_MAX));
    qsort(took, (size_t)repeats, sizeof *took, ascending);
}

static double median(wf_comm *comm, double *took, int64_t repeats)
{
    sort(comm, took, repeats);
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

/* A layer, which is taken: forward, and with backward. */
static void layer_subjects(wf_ctx *ctx, wf_tape *tape, wf_layer *layer, wf_shape shape, wf_layout layout,
                           subject s[DIRECTIONS])
{
    s[FORWARD] = (subject){.tape = tape, .layer = layer, .x = filled(ctx, shape, layout)};
    wf_var *y = wf_apply(layer, wf_leaf(tape, s[FORWARD].x));
    WF_MUST(wf_check(y));
    s[FORWARD].y = filled(ctx, wf_var_shape(y), wf_tensor_layout(wf_value(y)));
    WF_MUST(wf_tape_reset(tape));
    s[BOTH] = s[FORWARD];
    s[BOTH].backward = true;
}

/* What the mesh's ranks send forward, and forward and backward. */
static void count_bytes(wf_comm *comm, const subject s[DIRECTIONS], int64_t sent[DIRECTIONS])
{
    for (int i = FORWARD; i < DIRECTIONS; i++) {
        const uint64_t before = wf_comm_traffic(comm).bytes_sent;
        run(&s[i]);
        sent[i] = (int64_t)(wf_comm_traffic(comm).bytes_sent - before);
    }
}

/* Writes which rank has and which rank needs which rows and columns of the image into `range`: 4 for each rank of the
 * mesh. */
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

/* Creates a tensor for this rank's part. */
static wf_tensor *part_new(const wf_mesh *mesh, const wf_regions *regions)
{
    wf_shape shape = regions->global;
    for (int a = WF_AXIS_HEIGHT; a <= WF_AXIS_WIDTH; a++) {
        const wf_range r = regions->range[a][wf_mesh_rank(mesh, (wf_axis)a)];
        shape.dim[2 + a - WF_AXIS_HEIGHT] = r.hi - r.lo;
    }
    return filled(wf_comm_ctx(wf_mesh_world(mesh)), shape, wf_layout_none());
}

static subject exchange_subject(const wf_mesh *mesh, const halo_case *c)
{
    wf_range *range = calloc(4 * (size_t)wf_comm_size(wf_mesh_world(mesh)) + 4, sizeof *range);
    wf_regions have, need;
    if (!range)
        example_abort("out of memory for %d ranks", wf_comm_size(wf_mesh_world(mesh)));
    regions_of(c, range, &have, &need);
    const subject s = {.exchange = wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_CHANNELS_LAST),
                       .x = part_new(mesh, &have),
                       .y = part_new(mesh, &need)};
    WF_MUST(wf_check(s.exchange));
    free(range);
    return s;
}

/* One channel of the smallest image that these ranks can share. */
static halo_case shortest_of(const halo_case *c)
{
    halo_case least = {.channels = 1, .kernel = 3, .ranks = {c->ranks[0], c->ranks[1]}};
    for (int d = 0; d < 2; d++)
        least.length[d] = 2 * c->ranks[d];
    return least;
}

static double least_of(wf_comm *comm, subject *s)
{
    for (int64_t i = 0; i < EXCHANGES; i++)
        time_one(comm, s, i);
    sort(comm, s->took, EXCHANGES);
    return s->took[0];
}

/* Spread over the whole measurement, since what disturbs comes and goes. */
static void time_exchanges(wf_comm *comm, subject alone[2], halo_row *row)
{
    const double took = least_of(comm, &alone[0]), shortest = least_of(comm, &alone[1]);
    row->exchange = row->exchange > 0 && row->exchange < took ? row->exchange : took;
    row->shortest = row->shortest > 0 && row->shortest < shortest ? row->shortest : shortest;
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
    const halo_case least = shortest_of(&row->what);
    row->busiest = halo_busiest(&row->what);
    row->busiest_shortest = halo_busiest(&least);
}

static void measure(wf_comm *comm, const wf_mesh *mesh, subject *s, int64_t repeats, halo_row *row)
{
    const bool whole = !row->what.weak, shared = wf_comm_size(comm) > 1;
    const halo_case least = shortest_of(&row->what);
    subject alone[2] = {{0}};
    if (shared) {
        alone[0] = exchange_subject(mesh, &row->what);
        alone[1] = exchange_subject(mesh, &least);
    }
    /* The first runs, in which memory and plans are made, do not count. */
    for (int64_t i = -1; i < repeats; i++)
        for (int k = 0; k < (whole ? 3 : 2) * DIRECTIONS; k++) {
            time_one(comm, &s[k], i < 0 ? 0 : i);
            if (shared)
                time_exchanges(comm, alone, row);
        }
    for (int i = FORWARD; i < DIRECTIONS; i++) {
        row->compute[i] = median(comm, s[i].took, repeats);
        row->spatial[i] = median(comm, s[DIRECTIONS + i].took, repeats);
        row->exposed[i] = median(comm, s[DIRECTIONS + i].exposed, repeats);
        row->share[i] =
            whole ? median(comm, s[2 * DIRECTIONS + i].took, repeats) / wf_comm_size(comm) : row->compute[i];
    }
    for (int k = 0; k < 2; k++) {
        wf_tensor_free(alone[k].y);
        wf_tensor_free(alone[k].x);
    }
}

halo_row halo_measure(wf_comm *comm, const halo_case *what, int64_t repeats)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = what->ranks[0], .width = what->ranks[1]});
    wf_tape *tape = wf_tape_new(ctx);
    const wf_conv_opts o = {
        .in = what->channels, .out = what->channels, .kernel = what->kernel, .pad = what->kernel / 2, .no_bias = true};
    const wf_shape whole = WF_SHAPE(1, what->channels, what->length[0], what->length[1]);
    wf_layout layout;
    WF_MUST(wf_mesh_layout_activation(mesh, whole, &layout));
    const wf_shape part = wf_box_shape(layout.box);
    subject *s = calloc(3 * DIRECTIONS, sizeof *s); /* the own part, the parallel layer, the whole */
    halo_row row = {.what = *what};
    int64_t sent[DIRECTIONS];
    if (!s)
        example_abort("out of memory for the times");
    layer_subjects(ctx, tape, wf_conv2d(ctx, o), part, wf_layout_none(), s);
    layer_subjects(ctx, tape, wf_spatial_conv2d(mesh, o), part, layout, s + DIRECTIONS);
    if (!what->weak)
        layer_subjects(ctx, tape, wf_conv2d(ctx, o), whole, wf_layout_none(), s + 2 * DIRECTIONS);
    count_bytes(comm, s + DIRECTIONS, sent);
    measure(comm, mesh, s, repeats < MOST_REPEATS ? repeats : MOST_REPEATS, &row);
    compare_bytes(comm, &row, sent);
    for (int k = 0; k < 3; k++) {
        const subject *forward = s + k * DIRECTIONS + FORWARD;
        wf_tensor_free(forward->y);
        wf_tensor_free(forward->x);
        wf_layer_free(forward->layer);
    }
    free(s);
    wf_tape_free(tape);
    wf_mesh_close(mesh);
    return row;
}
