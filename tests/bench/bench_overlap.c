/* How much of an exchange a convolution shows that has enough else to do meanwhile.
 *
 *     mpirun -np 2 bench_overlap [channels [kernel [face [least [repeats]]]]]
 *     tests/comm/cluster.sh -r 1gbit -n 1 mpirun bench_overlap 32 3 512
 *
 * An image is sharded along its height, then along its width; each rank's part is made just large enough for its
 * convolution to take twice the time of the exchange alone (`times` 2), and four times. Exposed is what the parallel
 * layer spends inside exchanges (packing, moving on, waiting), in percent of what the serial layer takes on the same
 * part (of at least `least` rows or columns); longer is what the parallel one takes longer in all, with what rims cost
 * as calls of their own. All ranks compute at once; kinds of runs take turns, and lower quartiles of the slowest rank's
 * times count.
 */
#include "comm/mesh_author.h"
#include "layers/layers.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <stdio.h>

enum { MOST = 101, PROBE = 64 };

typedef struct bench {
    wf_comm *comm, *cut; /* all ranks; those along the cut */
    wf_tape *tape;
    int64_t channels, kernel, face, least;
    int repeats;
} bench;

/* One layer on this rank's part. */
typedef struct side {
    wf_layer *layer;
    wf_tensor *x, *dy;
    double took[2][MOST], exposed[2][MOST]; /* forward, backward */
} side;

static wf_tensor *noise(wf_tape *tape, wf_shape shape, wf_layout layout)
{
    wf_tensor *t = wf_keep(wf_randn(tape, shape, NULL));
    if (layout.known)
        WF_MUST(wf_tensor_set_layout(t, layout));
    return t;
}

static double exchanging(const bench *b)
{
    return 1e-9 * (double)wf_comm_traffic(b->cut).exchange_ns;
}

static void step(const bench *b, side *s, int i)
{
    double start, before, took[4];
    WF_MUST(wf_barrier(b->comm));
    before = exchanging(b);
    start = bench_seconds();
    wf_var *y = wf_apply(s->layer, wf_leaf(b->tape, s->x));
    took[0] = bench_seconds() - start;
    took[2] = exchanging(b) - before;
    WF_MUST(wf_check(y));
    if (!s->dy)
        s->dy = noise(b->tape, wf_var_shape(y), wf_tensor_layout(wf_value(y)));
    WF_MUST(wf_barrier(b->comm));
    before = exchanging(b);
    start = bench_seconds();
    WF_MUST(wf_backward_from(y, s->dy));
    took[1] = bench_seconds() - start;
    took[3] = exchanging(b) - before;
    WF_MUST(wf_tape_reset(b->tape));
    WF_MUST(wf_allreduce_f64(b->comm, took, 4, WF_MAX));
    for (int k = 0; k < 2; k++) {
        s->took[k][i] = took[k];
        s->exposed[k][i] = took[2 + k];
    }
}

static wf_layout layout_of(const bench *b, const wf_mesh *mesh, int along, int64_t length)
{
    wf_shape whole = WF_SHAPE(1, b->channels, b->face, b->face);
    wf_layout layout;
    whole.dim[2 + along] = length * wf_comm_size(b->comm);
    WF_MUST(wf_mesh_layout_activation(mesh, whole, &layout));
    return layout;
}

static side side_new(const bench *b, wf_layer *layer, wf_layout layout, bool known)
{
    return (side){.layer = layer, .x = noise(b->tape, wf_box_shape(layout.box), known ? layout : wf_layout_none())};
}

static void side_free(side *s)
{
    wf_layer_free(s->layer);
    wf_tensor_free(s->x);
    wf_tensor_free(s->dy);
}

/* Measures an exchange of kernel/2 rows or columns of each neighbour. */
static double exchange_seconds(const bench *b, const wf_mesh *mesh, int along)
{
    const wf_axis axis = along == 0 ? WF_AXIS_HEIGHT : WF_AXIS_WIDTH;
    const int size = wf_comm_size(b->comm);
    const wf_layout layout = layout_of(b, mesh, along, PROBE);
    wf_range *range = calloc(2 * (size_t)size, sizeof *range);
    wf_regions have = {.global = layout.global, .dim = {-1, -1, -1, -1, -1, -1}}, need;
    for (int r = 0; r < size; r++) {
        range[r] = (wf_range){r * PROBE, (r + 1) * PROBE};
        range[size + r] = (wf_range){r > 0 ? range[r].lo - b->kernel / 2 : 0,
                                     r + 1 < size ? range[r].hi + b->kernel / 2 : range[r].hi};
    }
    have.dim[axis] = 2 + along;
    need = have;
    have.range[axis] = range;
    need.range[axis] = range + size;
    wf_exchange *exchange = wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_CHANNELS_LAST);
    WF_MUST(wf_check(exchange));
    const wf_range mine = range[size + wf_comm_rank(b->comm)];
    wf_shape shape = layout.global;
    shape.dim[2 + along] = mine.hi - mine.lo;
    wf_tensor *y = noise(b->tape, shape, wf_layout_none()),
              *x = noise(b->tape, wf_box_shape(layout.box), wf_layout_none());
    double took[MOST];
    for (int i = 0; i < MOST; i++) {
        WF_MUST(wf_barrier(b->comm));
        const double start = bench_seconds();
        WF_MUST(wf_exchange_begin_halo(exchange, x, y));
        WF_MUST(wf_exchange_end(exchange));
        took[i] = bench_seconds() - start;
    }
    WF_MUST(wf_allreduce_f64(b->comm, took, MOST, WF_MAX));
    wf_tensor_free(y);
    wf_tensor_free(x);
    free(range);
    return bench_quartile(took, MOST);
}

typedef struct result {
    double serial[2], spatial[2], exposed[2]; /* forward, backward */
} result;

static result measure(const bench *b, const wf_mesh *mesh, int along, int64_t length, int repeats)
{
    const wf_conv_opts o = {
        .in = b->channels, .out = b->channels, .kernel = b->kernel, .pad = b->kernel / 2, .no_bias = true};
    const wf_layout layout = layout_of(b, mesh, along, length);
    side serial = side_new(b, wf_conv2d(wf_comm_ctx(b->comm), o), layout, false),
         spatial = side_new(b, wf_spatial_conv2d(mesh, o), layout, true);
    WF_MUST(wf_tape_reset(b->tape));
    for (int i = -3; i < repeats; i++) {
        step(b, &serial, i < 0 ? 0 : i);
        step(b, &spatial, i < 0 ? 0 : i);
    }
    result r;
    for (int k = 0; k < 2; k++) {
        r.serial[k] = bench_quartile(serial.took[k], repeats);
        r.spatial[k] = bench_quartile(spatial.took[k], repeats);
        r.exposed[k] = bench_quartile(spatial.exposed[k], repeats);
    }
    side_free(&serial);
    side_free(&spatial);
    return r;
}

static void print(const bench *b, const char *cut, int times, const int64_t part[2], double exchange, const result *r)
{
    if (wf_comm_rank(b->comm) != 0)
        return;
    printf("%-6s %5d  %5lld x %-5lld %8.1f", cut, times, (long long)part[0], (long long)part[1], 1e6 * exchange);
    for (int k = 0; k < 2; k++)
        printf("  %8.3f %8.3f  %5.1f %% %5.1f %%", 1e3 * r->serial[k], 1e3 * r->spatial[k],
               100 * r->exposed[k] / r->serial[k], 100 * (r->spatial[k] / r->serial[k] - 1));
    printf("\n");
}

static void compare(bench *b, int along)
{
    static const char *const names[] = {"height", "width"};
    const int size = wf_comm_size(b->comm);
    wf_mesh *mesh = wf_mesh_open(b->comm, along == 0 ? (wf_mesh_opts){.height = size} : (wf_mesh_opts){.width = size});
    WF_MUST(wf_check(mesh));
    b->cut = wf_mesh_comm(mesh, WF_AXIS_BIT(along == 0 ? WF_AXIS_HEIGHT : WF_AXIS_WIDTH));
    const double exchange = exchange_seconds(b, mesh, along),
                 each = measure(b, mesh, along, PROBE, b->repeats).serial[0] / PROBE;
    for (int times = 2; times <= 4; times += 2) {
        double wanted = times * exchange / each + (double)b->kernel;
        WF_MUST(wf_allreduce_f64(b->comm, &wanted, 1, WF_MAX));
        int64_t part[2] = {b->face, b->face};
        part[along] = (int64_t)wanted > b->least ? (int64_t)wanted : b->least;
        const result r = measure(b, mesh, along, part[along], b->repeats);
        print(b, names[along], times, part, exchange, &r);
    }
    wf_mesh_close(mesh);
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 5, NULL, "mpirun -np N bench_overlap [channels [kernel [face [least [repeats]]]]]");
    bench b = {.channels = bench_number(argc, argv, 1, "channels", 1, 65536, 32),
               .kernel = bench_number(argc, argv, 2, "kernel", 1, 2 * PROBE, 3),
               .face = bench_number(argc, argv, 3, "face", 1, 65536, 1024),
               .least = bench_number(argc, argv, 4, "least", 0, 65536, 16),
               .repeats = (int)bench_number(argc, argv, 5, "repeats", 1, MOST, 31)};
    wf_comm *comm = b.comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){.threads = 1});
    WF_MUST(wf_check(comm));
    b.tape = wf_tape_new(wf_comm_ctx(comm));
    if (wf_comm_rank(comm) == 0) {
        printf("conv %d->%d, kernel %d, on %d ranks of one thread\n", (int)b.channels, (int)b.channels, (int)b.kernel,
               wf_comm_size(comm));
        printf("cut    times     own part    exchange  forward: serial, parallel, exposed, longer  backward: the same\n"
               "                                   us                 ms        ms\n");
    }
    compare(&b, 0);
    compare(&b, 1);
    wf_tape_free(b.tape);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
