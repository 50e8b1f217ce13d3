/* Version 2 (Debian 12 has 2.6) makes a primitive from an operation descriptor, version 3 (Debian 13, Ubuntu 24.04)
 * from its memory descriptors, which it keeps behind handles. */
#include "core/cpu/dnn_impl.h"

#if DNNL_VERSION_MAJOR < 3

bool wf_dnn_desc_tag(wf_dnn_desc *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(&made->desc, rank, dims, type, tag) == dnnl_success;
}

bool wf_dnn_desc_strides(wf_dnn_desc *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                         const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(&made->desc, rank, dims, type, strides) == dnnl_success;
}

bool wf_dnn_desc_query(wf_dnn_desc *made, dnnl_primitive_desc_t pd, dnnl_query_t query, int index)
{
    const dnnl_memory_desc_t *desc = dnnl_primitive_desc_query_md(pd, query, index);
    if (desc)
        made->desc = *desc;
    return desc != NULL;
}

void wf_dnn_desc_free(wf_dnn_desc *desc)
{
    *desc = (wf_dnn_desc){0};
}

size_t wf_dnn_desc_bytes(const wf_dnn_desc *desc)
{
    return dnnl_memory_desc_get_size(&desc->desc);
}

bool wf_dnn_desc_equal(const wf_dnn_desc *a, const wf_dnn_desc *b)
{
    return dnnl_memory_desc_equal(&a->desc, &b->desc);
}

uint64_t wf_dnn_desc_hash(const wf_dnn_desc *desc)
{
    const dnnl_blocking_desc_t *blocking = &desc->desc.format_desc.blocking;
    uint64_t hash = wf_hash_u64(77, (uint64_t)desc->desc.data_type);
    for (int d = 0; d < desc->desc.ndims; d++) {
        hash = wf_hash_u64(hash, (uint64_t)desc->desc.padded_dims[d]);
        hash = wf_hash_u64(hash, (uint64_t)blocking->strides[d]);
    }
    for (int b = 0; b < blocking->inner_nblks; b++) {
        hash = wf_hash_u64(hash, (uint64_t)blocking->inner_blks[b]);
        hash = wf_hash_u64(hash, (uint64_t)blocking->inner_idxs[b]);
    }
    return hash;
}

bool wf_dnn_memory_new(dnnl_engine_t engine, const wf_dnn_desc *desc, dnnl_memory_t *memory)
{
    return dnnl_memory_create(memory, &desc->desc, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

bool wf_dnn_append_act(dnnl_post_ops_t ops, float slope)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0F, dnnl_eltwise_relu, slope, 0.0F) == dnnl_success;
}

bool wf_dnn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F) == dnnl_success;
}

static dnnl_primitive_desc_t pd_of(dnnl_engine_t engine, const void *desc, dnnl_primitive_attr_t attr,
                                   dnnl_primitive_desc_t forward, int choice)
{
    dnnl_primitive_desc_iterator_t each = NULL;
    if (dnnl_primitive_desc_iterator_create(&each, desc, attr, engine, forward) != dnnl_success)
        return NULL;
    bool there = true;
    for (int i = 0; i < choice && there; i++)
        there = dnnl_primitive_desc_iterator_next(each) == dnnl_success;
    dnnl_primitive_desc_t found = there ? dnnl_primitive_desc_iterator_fetch(each) : NULL;
    dnnl_primitive_desc_iterator_destroy(each);
    return found;
}

static dnnl_status_t conv_desc_init(int32_t kind, const wf_dnn_conv_descs *d, dnnl_convolution_desc_t *desc)
{
    const dnnl_memory_desc_t *const bias = d->bias ? &d->b.desc : NULL;
    if (kind == WF_DNN_FORWARD)
        return dnnl_dilated_convolution_forward_desc_init(desc, dnnl_forward_training, dnnl_convolution_direct,
                                                          &d->x.desc, &d->w.desc, bias, &d->y.desc, d->stride,
                                                          d->dilates, d->lo, d->hi);
    if (kind == WF_DNN_BACKWARD_DATA)
        return dnnl_dilated_convolution_backward_data_desc_init(desc, dnnl_convolution_direct, &d->x.desc, &d->w.desc,
                                                                &d->y.desc, d->stride, d->dilates, d->lo, d->hi);
    return dnnl_dilated_convolution_backward_weights_desc_init(desc, dnnl_convolution_direct, &d->x.desc, &d->w.desc,
                                                               bias, &d->y.desc, d->stride, d->dilates, d->lo, d->hi);
}

dnnl_primitive_desc_t wf_dnn_conv_pd(dnnl_engine_t engine, int32_t kind, const wf_dnn_conv_descs *d,
                                     dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attr, int choice)
{
    dnnl_convolution_desc_t desc;
    return conv_desc_init(kind, d, &desc) == dnnl_success ? pd_of(engine, &desc, attr, forward, choice) : NULL;
}

dnnl_primitive_desc_t wf_dnn_matmul_pd(dnnl_engine_t engine, const wf_dnn_matmul_descs *d, dnnl_primitive_attr_t attr,
                                       int choice)
{
    dnnl_matmul_desc_t desc;
    if (dnnl_matmul_desc_init(&desc, &d->a.desc, &d->b.desc, d->bias ? &d->row.desc : NULL, &d->c.desc) != dnnl_success)
        return NULL;
    return pd_of(engine, &desc, attr, NULL, choice);
}

dnnl_primitive_desc_t wf_dnn_reorder_pd(dnnl_engine_t engine, const wf_dnn_desc *from, const wf_dnn_desc *to,
                                        dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t made = NULL;
    return dnnl_reorder_primitive_desc_create(&made, &from->desc, engine, &to->desc, engine, attr) == dnnl_success
               ? made
               : NULL;
}

#else

bool wf_dnn_desc_tag(wf_dnn_desc *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(&made->desc, rank, dims, type, tag) == dnnl_success;
}

bool wf_dnn_desc_strides(wf_dnn_desc *made, int rank, const dnnl_dims_t dims, dnnl_data_type_t type,
                         const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(&made->desc, rank, dims, type, strides) == dnnl_success;
}

bool wf_dnn_desc_query(wf_dnn_desc *made, dnnl_primitive_desc_t pd, dnnl_query_t query, int index)
{
    const_dnnl_memory_desc_t desc = dnnl_primitive_desc_query_md(pd, query, index);
    return desc && dnnl_memory_desc_clone(&made->desc, desc) == dnnl_success;
}

void wf_dnn_desc_free(wf_dnn_desc *desc)
{
    if (desc->desc)
        dnnl_memory_desc_destroy(desc->desc);
    *desc = (wf_dnn_desc){0};
}

size_t wf_dnn_desc_bytes(const wf_dnn_desc *desc)
{
    return dnnl_memory_desc_get_size(desc->desc);
}

bool wf_dnn_desc_equal(const wf_dnn_desc *a, const wf_dnn_desc *b)
{
    return dnnl_memory_desc_equal(a->desc, b->desc);
}

/* Adds n numbers that the descriptor has under this name to the hash. */
static uint64_t hash_dims(const wf_dnn_desc *desc, dnnl_query_t name, int n, uint64_t hash)
{
    const dnnl_dims_t *dims = NULL;
    dnnl_memory_desc_query(desc->desc, name, (void *)&dims);
    for (int d = 0; dims && d < n; d++)
        hash = wf_hash_u64(hash, (uint64_t)(*dims)[d]);
    return hash;
}

uint64_t wf_dnn_desc_hash(const wf_dnn_desc *desc)
{
    dnnl_data_type_t type = dnnl_data_type_undef;
    int32_t rank = 0, blocks = 0;
    dnnl_memory_desc_query(desc->desc, dnnl_query_data_type, &type);
    dnnl_memory_desc_query(desc->desc, dnnl_query_ndims_s32, &rank);
    dnnl_memory_desc_query(desc->desc, dnnl_query_inner_nblks_s32, &blocks);
    uint64_t hash = wf_hash_u64(77, (uint64_t)type);
    hash = hash_dims(desc, dnnl_query_padded_dims, rank, hash);
    hash = hash_dims(desc, dnnl_query_strides, rank, hash);
    hash = hash_dims(desc, dnnl_query_inner_blks, blocks, hash);
    return hash_dims(desc, dnnl_query_inner_idxs, blocks, hash);
}

bool wf_dnn_memory_new(dnnl_engine_t engine, const wf_dnn_desc *desc, dnnl_memory_t *memory)
{
    return dnnl_memory_create(memory, desc->desc, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

bool wf_dnn_append_act(dnnl_post_ops_t ops, float slope)
{
    return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, slope, 0.0F) == dnnl_success;
}

bool wf_dnn_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0F, 0, dnnl_data_type_undef) == dnnl_success;
}

/* The implementation that comes `choice` after the one that was made first. */
static dnnl_primitive_desc_t choose_primitive(dnnl_status_t status, dnnl_primitive_desc_t made, int choice)
{
    if (status != dnnl_success)
        return NULL;
    for (int i = 0; i < choice; i++)
        if (dnnl_primitive_desc_next_impl(made) != dnnl_success) {
            dnnl_primitive_desc_destroy(made);
            return NULL;
        }
    return made;
}

static dnnl_status_t conv_pd_create(dnnl_engine_t engine, int32_t kind, const wf_dnn_conv_descs *d,
                                    dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attr,
                                    dnnl_primitive_desc_t *made)
{
    const_dnnl_memory_desc_t bias = d->bias ? d->b.desc : NULL;
    if (kind == WF_DNN_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(made, engine, dnnl_forward_training,
                                                              dnnl_convolution_direct, d->x.desc, d->w.desc, bias,
                                                              d->y.desc, d->stride, d->dilates, d->lo, d->hi, attr);
    if (kind == WF_DNN_BACKWARD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(made, engine, dnnl_convolution_direct, d->x.desc,
                                                                    d->w.desc, d->y.desc, d->stride, d->dilates, d->lo,
                                                                    d->hi, forward, attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(made, engine, dnnl_convolution_direct, d->x.desc,
                                                                   d->w.desc, bias, d->y.desc, d->stride, d->dilates,
                                                                   d->lo, d->hi, forward, attr);
}

dnnl_primitive_desc_t wf_dnn_conv_pd(dnnl_engine_t engine, int32_t kind, const wf_dnn_conv_descs *d,
                                     dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attr, int choice)
{
    dnnl_primitive_desc_t made = NULL;
    const dnnl_status_t status = conv_pd_create(engine, kind, d, forward, attr, &made);
    return choose_primitive(status, made, choice);
}

dnnl_primitive_desc_t wf_dnn_matmul_pd(dnnl_engine_t engine, const wf_dnn_matmul_descs *d, dnnl_primitive_attr_t attr,
                                       int choice)
{
    dnnl_primitive_desc_t made = NULL;
    const dnnl_status_t status = dnnl_matmul_primitive_desc_create(&made, engine, d->a.desc, d->b.desc,
                                                                   d->bias ? d->row.desc : NULL, d->c.desc, attr);
    return choose_primitive(status, made, choice);
}

dnnl_primitive_desc_t wf_dnn_reorder_pd(dnnl_engine_t engine, const wf_dnn_desc *from, const wf_dnn_desc *to,
                                        dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t made = NULL;
    return dnnl_reorder_primitive_desc_create(&made, from->desc, engine, to->desc, engine, attr) == dnnl_success ? made
                                                                                                                 : NULL;
}

#endif
