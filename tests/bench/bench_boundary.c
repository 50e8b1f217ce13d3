/* What a boundary costs a 3x3 convolution, against zeros.
 *
 *     bench_boundary [channels [side [batch [repeats]]]]
 *     mpirun -np 2 bench_boundary
 *
 * The image is cut along its height over the ranks; on one rank the layer is the serial one. Kinds of edges take turns.
 * The medians of ratios to the zeros of the same turn count, forward and backward, of processor time, which others on
 * the machine disturb less than that of a clock; and of exposed time, which a rank spends inside exchanges.
 */
#include "comm/mesh_author.h"
#include "layers/layers.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 101, KINDS = 3, WAYS = 2 };

static const wf_edge edges[KINDS] = {WF_EDGE_DEFAULT, WF_EDGE_CIRCULAR, WF_EDGE_REFLECT};

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bench {
    wf_comm *comm;
    wf_tape *tape;
    wf_tensor *x, *dy;
    wf_layer *layer[KINDS];
    double took[KINDS][WAYS][MOST], exposed[KINDS][MOST];
} bench;

static void step(bench *b, int kind, int i)
{
    WF_MUST(wf_barrier(b->comm));
    const double waited = 1e-9 * (double)wf_comm_traffic(b->comm).exchange_ns, start = processor_seconds();
    wf_var *y = wf_apply(b->layer[kind], wf_leaf(b->tape, b->x));
    WF_MUST(wf_check(y));
    const double between = processor_seconds();
    if (!b->dy) {
        b->dy = wf_keep(wf_randn(b->tape, wf_var_shape(y), NULL));
        WF_MUST(wf_tensor_set_layout(b->dy, wf_tensor_layout(wf_value(y))));
    }
    const double again = processor_seconds();
    WF_MUST(wf_backward_from(y, b->dy));
    b->took[kind][0][i] = between - start;
    b->took[kind][1][i] = processor_seconds() - again;
    b->exposed[kind][i] = 1e-9 * (double)wf_comm_traffic(b->comm).exchange_ns - waited;
    WF_MUST(wf_tape_reset(b->tape));
}

static double ratio(const double *of, const double *to, int n)
{
    double r[MOST];
    for (int i = 0; i < n; i++)
        r[i] = of[i] / to[i];
    return bench_median(r, n);
}

static void print(bench *b, int n)
{
    printf("%-10s %10s %10s %10s %10s %12s\n", "edge", "forward", "ratio", "backward", "ratio", "exposed ms");
    for (int k = KINDS - 1; k >= 0; k--) {
        const double f = ratio(b->took[k][0], b->took[0][0], n), g = ratio(b->took[k][1], b->took[0][1], n);
        double copy[MOST];
        memcpy(copy, b->took[k][0], sizeof copy);
        const double forward = 1e3 * bench_median(copy, n);
        memcpy(copy, b->took[k][1], sizeof copy);
        printf("%-10s %7.2f ms %10.3f %7.2f ms %10.3f %12.3f\n", wf_edge_name(edges[k]), forward, f,
               1e3 * bench_median(copy, n), g, 1e3 * bench_median(b->exposed[k], n));
    }
}

int main(int argc, char **argv)
{
    static bench b;
    bench_usage(argc, argv, 4, NULL, "[mpirun -np N] bench_boundary [channels [side [batch [repeats]]]]");
    const int64_t channels = bench_number(argc, argv, 1, "channels", 1, 65536, 64),
                  side = bench_number(argc, argv, 2, "side", 2, 65536, 256),
                  batch = bench_number(argc, argv, 3, "batch", 1, 65536, 4);
    const int n = (int)bench_number(argc, argv, 4, "repeats", 1, MOST, 21);
    wf_comm *comm = b.comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){.threads = 1});
    WF_MUST(wf_check(comm));
    const int size = wf_comm_size(comm);
    const wf_shape whole = WF_SHAPE(batch, channels, side, side);
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    b.tape = wf_tape_new(ctx);
    WF_MUST(wf_mesh_layout_activation(mesh, whole, &layout));
    b.x = wf_keep(wf_randn(b.tape, wf_box_shape(layout.box), NULL));
    WF_MUST(wf_tensor_set_layout(b.x, layout));
    for (int k = 0; k < KINDS; k++) {
        const wf_conv_opts o = {.in = channels, .out = channels, .kernel = 3, .pad = 1, .boundary = {.edge = edges[k]}};
        b.layer[k] = wf_layer_named(size > 1 ? wf_spatial_conv2d(mesh, o) : wf_conv2d(ctx, o), "conv");
    }
    for (int i = -2; i < n; i++)
        for (int k = 0; k < KINDS; k++)
            step(&b, k, i < 0 ? 0 : i);
    if (wf_comm_rank(comm) == 0)
        print(&b, n);
    for (int k = 0; k < KINDS; k++)
        wf_layer_free(b.layer[k]);
    wf_tensor_free(b.x);
    wf_tensor_free(b.dy);
    wf_tape_free(b.tape);
    wf_mesh_close(mesh);
    return wf_comm_close(comm) != WF_OK;
}
