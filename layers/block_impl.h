/* Dense arrays of parts of activations, for kernels that take nothing else. */
#ifndef WF_LAYERS_BLOCK_IMPL_H
#define WF_LAYERS_BLOCK_IMPL_H

#include "core/tensor_author.h"

/* Memory that holds a box of an activation, channels-last. */
typedef struct wf_field {
    char *data;
    wf_dtype dtype;
    wf_box box;
} wf_field;

/* A dense array of a part: where it lies, or in memory of the pool. */
typedef struct wf_block_of {
    wf_array array;
    size_t bytes; /* taken from the pool; 0: none */
} wf_block_of;

/* The part lies dense in memory. */
bool wf_field_dense(const wf_field *field, wf_box part);
/* `load`: with what is there. After a failure too, the block is to be given back. */
wf_status wf_block_take(wf_ctx *ctx, const wf_field *field, wf_box part, bool load, wf_block_of *block) WF_NODISCARD;
/* What was written to the block goes where the part is. */
wf_status wf_block_put(wf_ctx *ctx, const wf_field *field, wf_box part, const wf_block_of *block) WF_NODISCARD;
void wf_block_give(wf_ctx *ctx, const wf_block_of *block);
/* The first of several sums: what `from` holds of `to`, and 0 elsewhere. */
wf_status wf_field_start(wf_ctx *ctx, const wf_field *from, const wf_field *to) WF_NODISCARD;
/* The elements of `part` from one field to another, or added to what is there. */
wf_status wf_field_copy(wf_ctx *ctx, const wf_field *from, const wf_field *to, wf_box part, bool add) WF_NODISCARD;

#endif
