/* The calls of oneDNN's C API whose form differs between versions 2 and 3; dnn_version.c has both. */
#ifndef WF_CORE_CPU_DNN_VERSION_IMPL_H
#define WF_CORE_CPU_DNN_VERSION_IMPL_H

#include "core/cpu/dnn_impl.h"

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
/* Of the type and the layout in memory. */
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
