/* Attention over tokens that ranks share, forward and backward: start it on one rank of two threads and on two ranks of
 * one thread, in turns.
 *
 *     OMP_NUM_THREADS=2 bench_ring
 *     OMP_NUM_THREADS=1 mpirun -np 2 --bind-to none bench_ring [TOKENS [HEADS [FEATURES [REPEATS]]]]
 *
 * Without a causal mask, and with one, where ranks hold paired blocks. Medians of the slowest rank's times.
 */
#include "comm/mesh.h"
#include "layers/attention.h"
#include "layers/layers.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <stdio.h>

enum { MOST = 101 };

typedef struct ring_bench {
    wf_comm *comm;
    wf_tape *tape;
    wf_layout layout;
    wf_tensor *of[4]; /* q, k, v, dy */
    int64_t heads;
    int repeats;
} ring_bench;

static void make_tensors(ring_bench *b, const wf_mesh *mesh, int64_t tokens, int64_t features)
{
    const wf_layout_opts cut = {.dim = {[WF_AXIS_HEIGHT] = WF_DIM(1)}};
    WF_MUST(wf_mesh_layout(mesh, WF_SHAPE(1, tokens, b->heads * features), cut, &b->layout));
    for (int i = 0; i < 4; i++) {
        b->of[i] = wf_keep(wf_randn(b->tape, wf_box_shape(b->layout.box), NULL));
        WF_MUST(wf_check(b->of[i]));
        WF_MUST(wf_tensor_set_layout(b->of[i], b->layout));
    }
    WF_MUST(wf_tape_reset(b->tape));
}

static double seconds_of(const ring_bench *b, bool causal)
{
    const wf_attention_opts o = {.heads = b->heads, .causal = causal, .paired = causal};
    WF_MUST(wf_barrier(b->comm));
    const double start = bench_seconds();
    wf_var *q = wf_leaf(b->tape, b->of[0]), *k = wf_leaf(b->tape, b->of[1]), *v = wf_leaf(b->tape, b->of[2]);
    wf_var *y = wf_attention_ring(q, k, v, o);
    WF_MUST(wf_check(y));
    WF_MUST(wf_backward_from(y, b->of[3]));
    WF_MUST(wf_tape_reset(b->tape));
    double took = bench_seconds() - start;
    WF_MUST(wf_allreduce_f64(b->comm, &took, 1, WF_MAX));
    return took;
}

static void print_row(const ring_bench *b, bool causal)
{
    double took[MOST];
    for (int i = -1; i < b->repeats; i++)
        took[i < 0 ? 0 : i] = seconds_of(b, causal);
    if (wf_comm_rank(b->comm) == 0)
        printf("%-12s %d ranks of %d threads %9.1f ms\n", causal ? "causal" : "no mask", wf_comm_size(b->comm),
               wf_ctx_threads(wf_comm_ctx(b->comm)), 1e3 * bench_median(took, b->repeats));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 4, NULL, "[mpirun -np N] bench_ring [TOKENS [HEADS [FEATURES [REPEATS]]]]");
    const int64_t tokens = bench_number(argc, argv, 1, "TOKENS", 1, INT32_MAX, 8192),
                  features = bench_number(argc, argv, 3, "FEATURES", 1, 65536, 64);
    ring_bench b = {.heads = bench_number(argc, argv, 2, "HEADS", 1, 65536, 8),
                    .repeats = (int)bench_number(argc, argv, 4, "REPEATS", 1, MOST, 5)};
    wf_comm *comm = b.comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    b.tape = wf_tape_new(wf_comm_ctx(comm));
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = wf_comm_size(comm)});
    WF_MUST(wf_check(mesh));
    make_tensors(&b, mesh, tokens, features);
    print_row(&b, false);
    print_row(&b, true);
    for (int i = 0; i < 4; i++)
        wf_tensor_free(b.of[i]);
    wf_tape_free(b.tape);
    wf_mesh_close(mesh);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
