/* One convolution layer on a large image: spatially parallel against serial.
 *
 *     mpirun -np 2 bench_spatial [side [channels [kernel [repeats]]]]
 *
 * All ranks run the whole layer at the same time, unconnected, since cores share memory and clocks; then each its part.
 * Both take turns, and medians count. Efficiency is the serial time over ranks times the parallel time. */
#include "comm/mesh_author.h"
#include "layers/layers.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <stdio.h>

enum { MOST = 101 };

typedef struct bench {
    wf_comm *comm;
    wf_tape *tape;
    wf_layer *layer;
    wf_tensor *x, *dy;
    double forward[MOST], backward[MOST];
} bench;

static wf_tensor *noise(wf_tape *tape, wf_shape shape, wf_layout layout)
{
    wf_tensor *t = wf_keep(wf_randn(tape, shape, NULL));
    if (layout.known)
        WF_MUST(wf_tensor_set_layout(t, layout));
    return t;
}

/* One step; every rank starts at the same time, and the slowest counts. */
static void step(bench *b, int i)
{
    WF_MUST(wf_barrier(b->comm));
    double at[3] = {bench_seconds()};
    wf_var *y = wf_apply(b->layer, wf_leaf(b->tape, b->x));
    at[1] = bench_seconds();
    if (!b->dy && y)
        b->dy = noise(b->tape, wf_var_shape(y), wf_tensor_layout(wf_value(y)));
    const double from = bench_seconds();
    WF_MUST(wf_backward_from(y, b->dy));
    at[2] = bench_seconds();
    double took[2] = {at[1] - at[0], at[2] - from};
    WF_MUST(wf_tape_reset(b->tape));
    WF_MUST(wf_allreduce_f64(b->comm, took, 2, WF_MAX));
    b->forward[i] = took[0];
    b->backward[i] = took[1];
}

static void bench_free(bench *b)
{
    wf_layer_free(b->layer);
    wf_tensor_free(b->x);
    wf_tensor_free(b->dy);
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 4, NULL, "mpirun -np N bench_spatial [side [channels [kernel [repeats]]]]");
    const int64_t side = bench_number(argc, argv, 1, "side", 1, 65536, 1024),
                  channels = bench_number(argc, argv, 2, "channels", 1, 65536, 32),
                  kernel = bench_number(argc, argv, 3, "kernel", 1, 65536, 3);
    const int repeats = (int)bench_number(argc, argv, 4, "repeats", 1, MOST, 7);
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){.threads = 1});
    WF_MUST(wf_check(comm));
    const int size = wf_comm_size(comm);
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_tape *tape = wf_tape_new(ctx);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    const wf_conv_opts o = {.in = channels, .out = channels, .kernel = kernel, .pad = kernel / 2};
    wf_layout layout;
    WF_MUST(wf_mesh_layout_activation(mesh, WF_SHAPE(1, channels, side, side), &layout));
    bench whole = {.comm = comm, .tape = tape, .layer = wf_conv2d(ctx, o)}, part = whole;
    part.layer = wf_spatial_conv2d(mesh, o);
    whole.x = noise(tape, layout.global, wf_layout_none());
    part.x = noise(tape, wf_box_shape(layout.box), layout);
    WF_MUST(wf_tape_reset(tape));
    step(&whole, 0);
    step(&part, 0);
    step(&part, 0);
    for (int i = 0; i < repeats; i++) {
        step(&whole, i);
        step(&part, i);
    }
    const double serial[2] = {bench_median(whole.forward, repeats), bench_median(whole.backward, repeats)};
    const double spatial[2] = {bench_median(part.forward, repeats), bench_median(part.backward, repeats)};
    const double all = serial[0] + serial[1], ours = spatial[0] + spatial[1];
    if (wf_comm_rank(comm) == 0) {
        printf("conv %d->%d, kernel %d, image %dx%d, %d ranks of one thread\n", (int)channels, (int)channels,
               (int)kernel, (int)side, (int)side, size);
        printf("            serial ms  spatial ms  efficiency\n");
        printf("forward  %12.2f %11.2f %10.0f %%\n", 1e3 * serial[0], 1e3 * spatial[0],
               100 * serial[0] / spatial[0] / size);
        printf("backward %12.2f %11.2f %10.0f %%\n", 1e3 * serial[1], 1e3 * spatial[1],
               100 * serial[1] / spatial[1] / size);
        printf("step     %12.2f %11.2f %10.0f %%\n", 1e3 * all, 1e3 * ours, 100 * all / ours / size);
    }
    bench_free(&whole);
    bench_free(&part);
    wf_tape_free(tape);
    wf_mesh_close(mesh);
    return wf_comm_close(comm) == WF_OK ? 0 : 1;
}
