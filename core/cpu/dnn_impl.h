/* oneDNN as the cpu filling uses it: a cache of primitives per context, keyed by everything that shapes them. */
#ifndef WF_CORE_CPU_DNN_IMPL_H
#define WF_CORE_CPU_DNN_IMPL_H

#include "core/cpu/cpu_impl.h"

#include <oneapi/dnnl/dnnl.h>

#define TRY_DNN(call)                                                                                                  \
    do {                                                                                                               \
        const dnnl_status_t try_dnn_status_ = (call);                                                                  \
        if (try_dnn_status_ != dnnl_success)                                                                           \
            return WF_RAISE(try_dnn_status_ == dnnl_out_of_memory ? WF_ERR_MEMORY : WF_ERR_UNSUPPORTED,                \
                            "oneDNN: %s gave status %d", #call, (int)try_dnn_status_);                                 \
    } while (0)

typedef enum wf_dnn_kind {
    WF_DNN_FORWARD = 1,
    WF_DNN_BACKWARD_DATA,
    WF_DNN_BACKWARD_FILTER,
    WF_DNN_MATMUL, /* [n,c] times [c,f] */
} wf_dnn_kind;

enum {
    WF_DNN_BIAS = 1,
    WF_DNN_ACT = 2,        /* leaky ReLU of `slope` after the bias */
    WF_DNN_ACCUMULATE = 4, /* the filter's gradient, or the product, is added to what is there */
    WF_DNN_A_TRANSPOSED = 8,
    WF_DNN_B_TRANSPOSED = 16,
    WF_DNN_WIDE = 32,   /* what comes out is f32, whatever the key's type */
    WF_DNN_PACKED = 64, /* of a product: its second operand is in oneDNN's own form */
};

/* Zero it as a whole before filling it: it is compared as bytes. */
typedef struct wf_dnn_key {
    int32_t kind, dtype, nd, flags, threads;
    float slope;
    int64_t n, c, f, groups;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL], kernel[WF_MAX_SPATIAL], stride[WF_MAX_SPATIAL];
    int64_t dilation[WF_MAX_SPATIAL], lo[WF_MAX_SPATIAL], hi[WF_MAX_SPATIAL];
} wf_dnn_key;

typedef enum wf_dnn_role {
    WF_DNN_X = 0,
    WF_DNN_W, /* the filter, or its gradient, in oneDNN's form */
    WF_DNN_B,
    WF_DNN_Y,
    WF_DNN_SCRATCH,
    WF_DNN_ROLES
} wf_dnn_role;

typedef struct wf_dnn_op {
    struct wf_dnn_op *next;
    uint64_t used; /* when it was last found */
    wf_dnn_key key;
    dnnl_primitive_t primitive; /* NULL: oneDNN does not take it */
    dnnl_memory_t memory[WF_DNN_ROLES];
    int argument[WF_DNN_ROLES]; /* 0: the role is unused */
    size_t scratch_bytes;

    /* From the filter, or a product's second operand, as stored to oneDNN's form, or back for gradients; NULL where
     * they are the same. */
    dnnl_primitive_t reorder;
    dnnl_memory_t stored, reorder_scratch;
    size_t form_bytes, reorder_scratch_bytes;
    uint64_t form_key;
} wf_dnn_op;

/* oneDNN multiplies bf16 by instructions of this processor. */
bool wf_dnn_takes_bf16(void);
/* It has AMX, by which oneDNN multiplies them several times as fast. */
bool wf_dnn_has_amx(void);

/* The operation of a key, made at its first use; NULL in *op where oneDNN does not take it. Of many keys the
 * WF_PLANS_MOST that were used last are kept; *op stands until the next call. */
wf_status wf_dnn_find(wf_ctx *ctx, const wf_dnn_key *key, const wf_dnn_op **op);

/* Runs an operation on data by role (the scratchpad is taken here). */
wf_status wf_dnn_run(wf_ctx *ctx, const wf_dnn_op *op, void *const data[WF_DNN_ROLES]);
/* Runs its reorder: from `stored` to `form`, or for gradients from `form` to `stored`. */
wf_status wf_dnn_reorder(wf_ctx *ctx, const wf_dnn_op *op, void *stored, void *form);
/* The filter, or a product's second operand, in the form that the operation reads. Give it back with
 * wf_filter_form_give. */
wf_status wf_dnn_form_take(wf_ctx *ctx, const wf_dnn_op *op, const wf_array *w, wf_filter_form *form);

/* Fills an operation whose key is set and whose rest is zero. False where oneDNN does not take it; then wf_dnn_unbuild.
 */
bool wf_dnn_build(dnnl_engine_t engine, wf_dnn_op *op);
/* Frees the oneDNN objects; the operation itself is the caller's. */
void wf_dnn_unbuild(wf_dnn_op *op);

/* What goes wrong where this implementation of oneDNN computes this key; NULL: nothing that is known. */
const char *wf_dnn_fault(const wf_dnn_key *key, const char *implementation);

/* From here on the calls of oneDNN's C API whose form differs between versions 2 and 3; dnn_version.c has both. */

/* A memory descriptor: a struct in version 2, a handle in version 3. Zero it before use; wf_dnn_desc_free takes a
 * zeroed one too. */
typedef struct wf_dnn_desc {
    dnnl_memory_desc_t desc;
} wf_dnn_desc;

bool wf_dnn_desc_tag(wf_dnn_desc *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag);
bool wf_dnn_desc_strides(wf_dnn_desc *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                         const dnnl_dims_t strides);
/* A copy of what the primitive descriptor answers; false where it has none. */
bool wf_dnn_desc_query(wf_dnn_desc *made, dnnl_primitive_desc_t pd, dnnl_query_t query, int index);
void wf_dnn_desc_free(wf_dnn_desc *desc);
size_t wf_dnn_desc_bytes(const wf_dnn_desc *desc);
bool wf_dnn_desc_equal(const wf_dnn_desc *a, const wf_dnn_desc *b);
/* Hashes the type and the layout in memory. */
uint64_t wf_dnn_desc_hash(const wf_dnn_desc *desc);
/* Without data. */
bool wf_dnn_memory_new(dnnl_engine_t engine, const wf_dnn_desc *desc, dnnl_memory_t *memory);

bool wf_dnn_append_act(dnnl_post_ops_t ops, float slope);
bool wf_dnn_append_sum(dnnl_post_ops_t ops);

typedef struct wf_dnn_conv_descs {
    wf_dnn_desc x, w, b, y;
    bool bias;
    dnnl_dims_t stride, dilates, lo, hi;
} wf_dnn_conv_descs;

/* Primitive descriptors: NULL where oneDNN has none. `choice`: which of the implementations that oneDNN offers, 0 the
 * first. `forward`: for the backward kinds, that of the same geometry. */
dnnl_primitive_desc_t wf_dnn_conv_pd(dnnl_engine_t engine, int32_t kind, const wf_dnn_conv_descs *d,
                                     dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attr, int choice);
typedef struct wf_dnn_matmul_descs {
    wf_dnn_desc a, b, row, c; /* row: the bias */
    bool bias;
} wf_dnn_matmul_descs;
dnnl_primitive_desc_t wf_dnn_matmul_pd(dnnl_engine_t engine, const wf_dnn_matmul_descs *d, dnnl_primitive_attr_t attr,
                                       int choice);
dnnl_primitive_desc_t wf_dnn_reorder_pd(dnnl_engine_t engine, const wf_dnn_desc *from, const wf_dnn_desc *to,
                                        dnnl_primitive_attr_t attr);

#endif
