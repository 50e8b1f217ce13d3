/* The context: device, type, seed, threads, memory pool and counters of one process. Everything that the library makes
 * belongs to one, and works with objects of the same one only. One thread of a process uses all its contexts. Local. */
#ifndef WF_CORE_CONTEXT_H
#define WF_CORE_CONTEXT_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_ctx wf_ctx;

typedef struct wf_ctx_opts {
    const char *device; /* "cpu", "ref", "cuda" or "auto"; NULL: WEFT_DEVICE, else "auto": cuda where there is a GPU */
    wf_dtype dtype;     /* of parameters: WF_F32 (default) or WF_F64 */
    wf_dtype compute;   /* WF_BF16 or WF_F16: mixed precision, see wf_ctx_set_compute; default: as dtype */
    uint64_t seed;      /* of all random numbers; 0 is a seed like any other */
    int threads;        /* 0: OMP_NUM_THREADS, else the processors this process may use */
} wf_ctx_opts;

/* A context of its own, for programs without a communicator; wf_comm_ctx gives one that belongs to a communicator. The
 * caller frees it. */
wf_ctx *wf_ctx_new(wf_ctx_opts opts);
/* WF_ERR_STATE if objects of this context are still alive; the message names their types and counts, and the context
 * stays. */
wf_status wf_ctx_free(wf_ctx *ctx);

const char *wf_ctx_device(const wf_ctx *ctx);
wf_dtype wf_ctx_dtype(const wf_ctx *ctx);
wf_dtype wf_ctx_compute(const wf_ctx *ctx); /* the context's type where none was set */
uint64_t wf_ctx_seed(const wf_ctx *ctx);
int wf_ctx_threads(const wf_ctx *ctx);

/* Before the first layer is made. */
wf_status wf_ctx_set_dtype(wf_ctx *ctx, wf_dtype dtype);
wf_status wf_ctx_set_seed(wf_ctx *ctx, uint64_t seed);
wf_status wf_ctx_set_threads(wf_ctx *ctx, int threads);

/* Mixed precision: WF_BF16 or WF_F16; WF_F32 switches it off. For contexts of f32, else WF_ERR_DTYPE. Takes effect with
 * the next operation; all ranks must set the same type.
 *
 * - Convolution, transposed convolution and linear, parallel ones too, take inputs of f32 and 16 bits, round them to
 *   this type, and give outputs of it. Sums inside are made in f32. The parameter is the master: its rounded copy is
 *   made once for every value that it has.
 * - Normalisation takes inputs of any of these types and gives outputs of the same type; its statistics, parameters and
 *   running values are f32. Pooling, upsampling, activations, dropout, noise, changes of shape, communication and
 *   redistribution keep the type of their input, so halos and gathered channels are sent as 16 bits.
 * - Arithmetic and concatenation of different types, softmax, sum, mean and all losses take f32, to which 16 bits are
 *   widened, and give f32.
 * - The gradient of a parameter is f32 and is summed in f32; that of an activation has the activation's type. Where
 *   f16 rounds gradients to zero, scale the loss: wf_optim_scale_loss. */
wf_status wf_ctx_set_compute(wf_ctx *ctx, wf_dtype compute);

typedef struct wf_memory_counters {
    int64_t system_allocations; /* calls of malloc (or cudaMalloc) made by the library since the context was made */
    int64_t pool_takes;         /* blocks handed out by the pool */
    size_t bytes_in_use;        /* of the blocks that are handed out now, each as large as its size class */
    size_t bytes_peak;          /* the most that this was */
    size_t bytes_reserved;      /* of all blocks that the pool has from the system, free ones too */
    int64_t plans; /* what oneDNN, cuDNN and cuBLASLt made for the shapes of convolutions and products and what is kept
                      for the next call: of each library's kinds the 1024 that were used last */
} wf_memory_counters;
wf_memory_counters wf_ctx_memory(const wf_ctx *ctx);

/* Seconds since the context was made that went into preparing steps: what a compiler would take elsewhere. Local. */
typedef struct wf_setup_seconds {
    double planning;  /* making plans for shapes (wf_memory_counters.plans), without measuring */
    double tuning;    /* making them by measurement (WEFT_AUTOTUNE) */
    double capturing; /* capturing steps (core/captured.h), without their first launch and plans made meanwhile */
} wf_setup_seconds;
wf_setup_seconds wf_ctx_setup_seconds(const wf_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
