/* Types and steps of ring attention, for its files (attention_ring.c has the algorithm). For layers/parallel alone. */
#ifndef WF_LAYERS_RING_IMPL_H
#define WF_LAYERS_RING_IMPL_H

#include "layers/attention.h"
#include "layers/functions/functions_impl.h"
#include "layers/parallel/parallel_impl.h"

enum { WF_RING_RUNS = 2, WF_RING_IN_Q = 0, WF_RING_IN_K, WF_RING_IN_V, WF_RING_IN_BIAS, WF_RING_INPUTS };
/* Queries, keys, values, y and lse of each run; then what all share. */
enum {
    WF_RING_Q = 0,
    WF_RING_K = WF_RING_Q + WF_RING_RUNS,
    WF_RING_V = WF_RING_K + WF_RING_RUNS,
    WF_RING_Y = WF_RING_V + WF_RING_RUNS,
    WF_RING_LSE = WF_RING_Y + WF_RING_RUNS,
    WF_RING_BIAS = WF_RING_LSE + WF_RING_RUNS,
    WF_RING_MASK,
    WF_RING_INDEX,
    WF_RING_LENGTHS,
    WF_RING_QUERIES,
    WF_RING_KEYS,
    WF_RING_SAVED
};

/* State of the node. */
typedef struct wf_ring_call {
    const wf_mesh *mesh;
    wf_axis axis;
    int size, rank, runs;
    int64_t n, features, heads, t, s; /* samples, features and heads of this rank; tokens of all */
    int64_t first_head;               /* of this rank, among those of all */
    const int64_t *queries, *keys;    /* bounds */
    wf_dtype dtype, wide;
    int64_t first_sample;
    double scale, dropout;
    bool causal;
    wf_random random;
    unsigned axes; /* over which backward sums the gradient of the bias */
} wf_ring_call;

/* Run x of the tokens that a rank computes with. */
wf_range wf_ring_run(const wf_ring_call *c, bool keys, int rank, int x);
/* The rank whose keys this one has at a step. */
int wf_ring_owner(const wf_ring_call *c, int rank, int step);
/* Keys of a rank, and bytes of its block of keys and values, or of their gradients. */
int64_t wf_ring_keys(const wf_ring_call *c, int rank);
int64_t wf_ring_bytes(const wf_ring_call *c, int rank, wf_dtype dtype);

/* Run x of what this rank computes with, dense, from the tokens that it has. Collective if paired. */
wf_status wf_ring_take(const wf_ring_call *c, const wf_tensor *x, bool keys, int run, wf_tensor **to) WF_NODISCARD;
/* The reverse, for all runs: of the call's type from tensors of it, or wide ones. A handle to be freed. */
wf_tensor *wf_ring_put(const wf_ring_call *c, wf_tensor *const *from, bool keys, wf_ctx *ctx);

/* Keys, or values, of run x in the block of a rank, or their gradients: all keys come first. */
wf_array wf_ring_array(const wf_ring_call *c, void *data, wf_dtype dtype, int rank, bool values, int x);
wf_tensor *wf_ring_new_bytes(wf_ctx *ctx, int64_t bytes);
wf_status wf_ring_copy(wf_ctx *ctx, const wf_array *from, const wf_array *to, bool add) WF_NODISCARD;
/* This rank's own block, of runs that wf_ring_take made. */
wf_tensor *wf_ring_pack(const wf_ring_call *c, const wf_tensor *const *k, const wf_tensor *const *v, wf_ctx *ctx);

/* What a rank sends at a step: `keys` and `grads` say which of the two travel. */
typedef struct wf_ring_message {
    int step;
    bool keys, grads;
} wf_ring_message;

/* Begins the exchange of a message; *exchange is NULL after an error. */
wf_status wf_ring_send(const wf_ring_call *c, const wf_ring_message *m, const wf_tensor *from, wf_tensor *to,
                       wf_exchange **exchange) WF_NODISCARD;
/* Ends what has begun, also after another error, which it returns. */
wf_status wf_ring_end(wf_exchange *exchange, wf_status status) WF_NODISCARD;

/* Arrays of a pass over the blocks; those of backward are NULL in forward. */
typedef struct wf_ring_pass {
    const wf_ring_call *call;
    wf_ctx *ctx;
    const wf_tensor *const *saved;
    wf_tensor *y[WF_RING_RUNS], *lse[WF_RING_RUNS]; /* of forward: wide, where parts are joined */
    const wf_tensor *dy[WF_RING_RUNS];
    wf_tensor *dq[WF_RING_RUNS], *dbias; /* wide; NULL: not wanted */
    bool keys, values;                   /* which gradients are wanted */
} wf_ring_pass;

/* Computes with the block of a step while the exchange, if there is one, is in flight. grads: of the block, added to;
 * NULL in forward. */
wf_status wf_ring_compute(const wf_ring_pass *p, int step, const void *block, void *grads,
                          wf_exchange *exchange) WF_NODISCARD;
/* Wide zeros. */
wf_tensor *wf_ring_zeros(const wf_ring_pass *p, wf_shape shape);

wf_status wf_ring_backward(wf_node *node) WF_NODISCARD;

#endif
