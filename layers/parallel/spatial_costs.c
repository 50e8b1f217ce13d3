/* The costs by which a chain chooses its depth: given by the options, measured at the first input, or fixed where
 * runs must be deterministic. The ranks of a stage agree on them. */
#include "core/config_author.h"
#include "layers/parallel/parallel_impl.h"

#include <time.h>

/* 10 us, 3.3 GB/s and 67 G multiplications a second: a node with shared memory and one AVX-512 core. */
#define MESSAGE_SECONDS 1e-5
#define BYTE_SECONDS    3e-10
#define WORK_SECONDS    1.5e-11

/* Rounds that count and rounds before them, which make memory and connections; elements of the short and the long
 * message; the convolution that is timed. */
enum { ROUNDS = 9, WARM = 3, SHORT = 16, LONG = 65536, CHANNELS = 16, SIDE = 32, KERNEL = 3 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The median is not moved by a few rounds in which the system was busy elsewhere. Insertion sort of nine numbers. */
static double median(double took[ROUNDS])
{
    for (int i = 1; i < ROUNDS; i++)
        for (int j = i; j > 0 && took[j - 1] > took[j]; j--) {
            const double later = took[j - 1];
            took[j - 1] = took[j];
            took[j] = later;
        }
    return took[ROUNDS / 2];
}

static wf_status time_exchange(wf_exchange *exchange, const wf_tensor *x, wf_tensor *y, double *seconds)
{
    double took[ROUNDS];
    WF_NEED(x);
    WF_NEED(y);
    /* The barrier lets all ranks start together; a neighbour that is late would be measured as a slow message. */
    for (int i = -WARM; i < ROUNDS; i++) {
        WF_TRY(wf_barrier(wf_exchange_comm(exchange)));
        const double start = now();
        WF_TRY(wf_exchange_begin_halo(exchange, x, y));
        WF_TRY(wf_exchange_end(exchange));
        took[i < 0 ? 0 : i] = now() - start;
    }
    *seconds = median(took);
    return WF_OK;
}

/* Ranks in a row, of which each needs `elements` of its neighbours. */
static wf_status line_of(wf_comm *comm, int64_t elements, wf_box *have, wf_box *need, double *seconds)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const int64_t size = wf_comm_size(comm), rank = wf_comm_rank(comm);
    for (int64_t r = 0; r < size; r++) {
        /* Every rank has two neighbours except at the ends, as in a picture cut into strips. */
        have[r] = (wf_box){.rank = 1, .lo = {r * elements}, .hi = {(r + 1) * elements}};
        need[r] = (wf_box){
            .rank = 1, .lo = {(r > 0 ? r - 1 : 0) * elements}, .hi = {(r + 2 < size ? r + 2 : size) * elements}};
    }
    wf_exchange *exchange = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
    WF_NEED(exchange);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, wf_box_shape(have[rank])),
              *y = wf_tensor_new(ctx, WF_F32, wf_box_shape(need[rank]));
    const wf_status status = time_exchange(exchange, x, y, seconds);
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
    return status;
}

static wf_status time_messages(wf_comm *comm, double *message, double *byte)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const size_t size = (size_t)wf_comm_size(comm), bytes = 2 * size * sizeof(wf_box);
    /* Bytes that an average rank gets in the long exchange beyond those of the short one. */
    const double each = 2.0 * (double)(size - 1) / (double)size * (LONG - SHORT) * (double)sizeof(float);
    double shortest = 0, longest = 0;
    void *memory;
    /* Without a neighbour the given costs stay. */
    if (size == 1)
        return WF_OK;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    wf_status status = line_of(comm, SHORT, memory, (wf_box *)memory + size, &shortest);
    if (status == WF_OK)
        status = line_of(comm, LONG, memory, (wf_box *)memory + size, &longest);
    wf_pool_give_host(ctx, memory, bytes);
    if (status != WF_OK)
        return status;
    *message = shortest;
    /* Two lengths separate the cost of a message from that of its bytes; noise may turn them around. */
    *byte = longest > shortest ? (longest - shortest) / each : BYTE_SECONDS;
    return WF_OK;
}

static wf_status run_rounds(wf_ctx *ctx, const wf_tensor *x, const wf_tensor *w, const wf_tensor *y, double *seconds)
{
    const wf_conv_geom geom = {.nd = 2,
                               .groups = 1,
                               .kernel = {KERNEL, KERNEL},
                               .stride = {1, 1},
                               .dilation = {1, 1},
                               .pad_lo = {KERNEL / 2, KERNEL / 2},
                               .pad_hi = {KERNEL / 2, KERNEL / 2}};
    double took[ROUNDS];
    WF_NEED(x);
    WF_NEED(w);
    WF_NEED(y);
    const wf_array in = wf_tensor_array(x), filter = wf_tensor_array(w), out = wf_tensor_array(y);
    WF_TRY(ctx->k->fill(ctx, &in, 1));
    WF_TRY(ctx->k->fill(ctx, &filter, 1));
    /* The first round makes the primitive. */
    for (int i = -1; i < ROUNDS; i++) {
        const double start = now();
        WF_TRY(ctx->k->conv_forward(ctx, &(wf_conv_args){.geom = &geom, .x = &in, .w = &filter, .y = &out}));
        took[i < 0 ? 0 : i] = now() - start;
    }
    *seconds = median(took);
    return WF_OK;
}

static wf_status time_work(wf_ctx *ctx, double *seconds)
{
    const wf_dtype dtype = wf_ctx_compute(ctx);
    const wf_shape image = WF_SHAPE(1, CHANNELS, SIDE, SIDE), filter = WF_SHAPE(CHANNELS, CHANNELS, KERNEL, KERNEL);
    wf_tensor *x = wf_tensor_new(ctx, dtype, image), *w = wf_tensor_new(ctx, dtype, filter),
              *y = wf_tensor_new(ctx, dtype, image);
    const wf_status status = run_rounds(ctx, x, w, y, seconds);
    /* Multiplications of the convolution without its borders: good enough to compare depths by. */
    *seconds /= (double)(CHANNELS * CHANNELS * KERNEL * KERNEL) * SIDE * SIDE;
    wf_tensor_free(x);
    wf_tensor_free(w);
    wf_tensor_free(y);
    return status;
}

wf_status wf_chain_costs_complete(const wf_mesh *mesh, wf_chain_costs *costs)
{
    /* Other stages of a pipeline compute other layers at this time. */
    wf_comm *comm = wf_mesh_comm(mesh, WF_ALL_AXES & ~WF_AXIS_BIT(WF_AXIS_STAGE));
    double measured[3] = {MESSAGE_SECONDS, BYTE_SECONDS, WORK_SECONDS};
    if (costs->message > 0 && costs->byte > 0 && costs->work > 0)
        return WF_OK;
    WF_NEED(comm);
    /* A measurement may differ from run to run, and the depth with it, and then the order of sums. */
    if (!wf_config_get()->deterministic) {
        WF_TRY(time_messages(comm, &measured[0], &measured[1]));
        WF_TRY(time_work(wf_comm_ctx(comm), &measured[2]));
        /* The slowest rank counts, and all ranks come to the same groups. */
        WF_TRY(wf_allreduce_f64(comm, measured, 3, WF_MAX));
    }
    costs->message = costs->message > 0 ? costs->message : measured[0];
    costs->byte = costs->byte > 0 ? costs->byte : measured[1];
    costs->work = costs->work > 0 ? costs->work : measured[2];
    return WF_OK;
}
