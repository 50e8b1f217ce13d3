/* Embedding: rows of a table of parameters by their numbers. Local. */
#ifndef WF_LAYERS_EMBEDDING_H
#define WF_LAYERS_EMBEDDING_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_embedding_opts {
    int64_t count, features; /* required; rows of the table, and their length */
    bool ignores;            /* an index `ignored`, which may be outside [0, count), gives zeros and no gradient */
    int64_t ignored;         /* not INT64_MIN */
    wf_init w_init;          /* default: normal, mean 0 and standard deviation 1 */
} wf_embedding_opts;

/* y[...,:] = W[x[...],:] for indices x of u8, i32 or i64 in [0, count): [N] or [N,...] -> [N,...,features] of the
 * context's type, row-major, with x's layout. Parameter W [count,features]; the gradient of a row is summed in the
 * order of the places that take it. An index out of range is WF_ERR_ARGUMENT: of wf_apply, or on a device that computes
 * later of the next call that reads a number. x may be sharded along every dimension: all ranks have W whole, and
 * wf_mesh_multi_node sums gradients over the axes along which x is sharded. wf_channel_embedding (layers/channel.h)
 * cuts the table. */
wf_layer *wf_embedding(wf_ctx *ctx, wf_embedding_opts opts);

#ifdef __cplusplus
}
#endif
#endif
