/* Measures latency and bandwidth between pairs of ranks, one pair at a time while the others wait, so that no pair
 * shares its link with another. */
#include "tools/doctor/links.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LARGE       ((int64_t)1 << 20) /* elements of f32 */
#define LARGE_TIMES 5
#define SMALL_TIMES 50
#define MOST_NODES  8

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* There and back; the least time of one way. */
static double one_way(wf_comm *comm, wf_tensor *x, int a, int b, int times)
{
    double best = 1e9;
    for (int i = 0; i < times; i++) {
        const double start = seconds();
        if (wf_comm_rank(comm) == a) {
            WF_MUST(wf_send(comm, x, b, 0));
            WF_MUST(wf_recv(comm, x, b, 0));
        } else {
            WF_MUST(wf_recv(comm, x, a, 0));
            WF_MUST(wf_send(comm, x, a, 0));
        }
        const double took = (seconds() - start) / 2;
        best = took < best ? took : best;
    }
    return best;
}

static void measure(wf_comm *comm, const char *where, int a, int b)
{
    const int rank = wf_comm_rank(comm);
    double took[2] = {0};
    if (rank == a || rank == b) {
        wf_tensor *small = wf_tensor_new(wf_comm_ctx(comm), WF_F32, WF_SHAPE(1));
        wf_tensor *large = wf_tensor_new(wf_comm_ctx(comm), WF_F32, WF_SHAPE(LARGE));
        WF_MUST(wf_tensor_fill(small, 0));
        WF_MUST(wf_tensor_fill(large, 0));
        took[0] = one_way(comm, small, a, b, SMALL_TIMES);
        took[1] = one_way(comm, large, a, b, LARGE_TIMES);
        wf_tensor_free(small);
        wf_tensor_free(large);
    }
    WF_MUST(wf_allreduce_f64(comm, took, 2, WF_MAX));
    if (rank == 0)
        printf("links          %s (ranks %d and %d): %.2f GB/s, %.1f us\n", where, a, b,
               (double)LARGE * sizeof(float) * 1e-9 / took[1], took[0] * 1e6);
}

void links_report(wf_comm *comm)
{
    const int size = wf_comm_size(comm), nodes = wf_comm_inter_size(comm);
    const int64_t mine = wf_comm_inter_rank(comm);
    int64_t *node = calloc((size_t)size, sizeof *node);
    char where[64];
    WF_MUST(wf_allgather_bytes(comm, &mine, sizeof mine, node));
    for (int to = 0; to < nodes && to < MOST_NODES; to++)
        for (int r = 1; r < size; r++)
            if (node[r] == to) {
                snprintf(where, sizeof where, to == node[0] ? "inside node %d" : "to node %d", to);
                measure(comm, where, 0, r);
                break;
            }
    if (size == 1)
        printf("links          none: one rank\n");
    free(node);
}
