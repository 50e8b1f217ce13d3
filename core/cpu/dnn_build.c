/* Makes oneDNN primitives from keys. */
#include "core/cpu/dnn_build_impl.h"

#include <string.h>

static dnnl_data_type_t type_of(int32_t dtype)
{
    return dtype == WF_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* Of what the operation gives, where `gives`. */
static dnnl_data_type_t type_in(const wf_dnn_key *key, bool gives)
{
    return gives && (key->flags & WF_DNN_WIDE) ? dnnl_f32 : type_of(key->dtype);
}

static bool activation_desc(const wf_dnn_key *key, dnnl_data_type_t type, int64_t channels, const int64_t *spatial,
                            dnnl_memory_desc_t *desc)
{
    static const dnnl_format_tag_t tag[WF_MAX_SPATIAL] = {dnnl_nwc, dnnl_nhwc, dnnl_ndhwc};
    dnnl_dims_t dims = {key->n, channels};
    memcpy(dims + 2, spatial, (size_t)key->nd * sizeof(int64_t));
    return dnnl_memory_desc_init_by_tag(desc, key->nd + 2, dims, type, tag[key->nd - 1]) == dnnl_success;
}

/* The filter [F,k...,C/g] as stored, in oneDNN's logical order [g,]F/g,C/g,k... */
static bool filter_desc(const wf_dnn_key *key, dnnl_data_type_t type, bool any, dnnl_memory_desc_t *desc)
{
    const int g = key->groups > 1, nd = key->nd;
    const int64_t c = key->c / key->groups, f = key->f / key->groups;
    dnnl_dims_t dims = {0}, strides = {0};
    int64_t stride = c;
    for (int d = nd - 1; d >= 0; d--) {
        dims[g + 2 + d] = key->kernel[d];
        strides[g + 2 + d] = stride;
        stride *= key->kernel[d];
    }
    dims[g] = f;
    strides[g] = stride;
    dims[g + 1] = c;
    strides[g + 1] = 1;
    if (g) {
        dims[0] = key->groups;
        strides[0] = stride * f;
    }
    return (any ? dnnl_memory_desc_init_by_tag(desc, nd + 2 + g, dims, type, dnnl_format_tag_any)
                : dnnl_memory_desc_init_by_strides(desc, nd + 2 + g, dims, type, strides)) == dnnl_success;
}

typedef struct conv_descs {
    dnnl_memory_desc_t x, w, b, y;
    dnnl_dims_t stride, dilates, lo, hi;
} conv_descs;

/* `kind`: the direction that it is for; a forward one helps to make the others. */
static bool conv_describe(const wf_dnn_key *key, int32_t kind, conv_descs *descs)
{
    const dnnl_data_type_t type = type_of(key->dtype), made = type_in(key, kind == key->kind);
    const dnnl_data_type_t of_filter = kind == WF_DNN_BACKWARD_FILTER ? made : type;
    memset(descs, 0, sizeof *descs);
    for (int d = 0; d < key->nd; d++) {
        descs->stride[d] = key->stride[d];
        descs->dilates[d] = key->dilation[d] - 1;
        descs->lo[d] = key->lo[d];
        descs->hi[d] = key->hi[d];
    }
    const dnnl_dims_t channels = {key->f};
    return activation_desc(key, kind == WF_DNN_BACKWARD_DATA ? made : type, key->c, key->in, &descs->x) &&
           activation_desc(key, kind == WF_DNN_FORWARD ? made : type, key->f, key->out, &descs->y) &&
           filter_desc(key, of_filter, true, &descs->w) &&
           (!(key->flags & WF_DNN_BIAS) ||
            dnnl_memory_desc_init_by_tag(&descs->b, 1, channels, of_filter, dnnl_x) == dnnl_success);
}

static bool attributes(const wf_dnn_key *key, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    if (dnnl_primitive_attr_create(attr) != dnnl_success)
        return false;
    bool good = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) == dnnl_success &&
                dnnl_post_ops_create(&ops) == dnnl_success;
    if (good && (key->flags & WF_DNN_ACT))
        good = dnnl_post_ops_append_eltwise(ops, 1.0F, dnnl_eltwise_relu, key->slope, 0.0F) == dnnl_success;
    if (good && key->kind == WF_DNN_MATMUL && (key->flags & WF_DNN_ACCUMULATE))
        good = dnnl_post_ops_append_sum(ops, 1.0F) == dnnl_success;
    good = good && dnnl_primitive_attr_set_post_ops(*attr, ops) == dnnl_success;
    if (ops)
        dnnl_post_ops_destroy(ops);
    return good;
}

/* oneDNN's first choice forwards, brgconv, falls behind its second, jit, where channels do not fill a vector and where
 * the filter is too large for the cache. */
static bool wants_second(const wf_dnn_key *key, dnnl_primitive_desc_t first)
{
    const char *name = "";
    int64_t bytes = key->f * (key->c / key->groups) * 4;
    for (int d = 0; d < key->nd; d++)
        bytes *= key->kernel[d];
    dnnl_primitive_desc_query(first, dnnl_query_impl_info_str, 0, &name);
    return key->dtype == WF_F32 && strncmp(name, "brgconv", 7) == 0 && (key->c / key->groups < 16 || bytes > 4 << 20);
}

static dnnl_primitive_desc_t forward_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                    const dnnl_convolution_desc_t *desc, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_iterator_t each = NULL;
    if (dnnl_primitive_desc_iterator_create(&each, desc, attr, engine, NULL) != dnnl_success)
        return NULL;
    dnnl_primitive_desc_t found = dnnl_primitive_desc_iterator_fetch(each);
    if (found && wants_second(key, found) && dnnl_primitive_desc_iterator_next(each) == dnnl_success) {
        dnnl_primitive_desc_t second = dnnl_primitive_desc_iterator_fetch(each);
        const char *name = "";
        dnnl_primitive_desc_query(second, dnnl_query_impl_info_str, 0, &name);
        const bool better = strcmp(name, "jit:avx512_core") == 0;
        dnnl_primitive_desc_destroy(better ? found : second);
        found = better ? second : found;
    }
    dnnl_primitive_desc_iterator_destroy(each);
    return found;
}

static dnnl_primitive_desc_t conv_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                 dnnl_primitive_attr_t attr)
{
    conv_descs d;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    if (!conv_describe(key, WF_DNN_FORWARD, &d))
        return NULL;
    const dnnl_memory_desc_t *bias = (key->flags & WF_DNN_BIAS) ? &d.b : NULL;
    if (dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, dnnl_convolution_direct, &d.x, &d.w,
                                                   bias, &d.y, d.stride, d.dilates, d.lo, d.hi) != dnnl_success)
        return NULL;
    if (key->kind == WF_DNN_FORWARD)
        return forward_primitive_desc(engine, key, &desc, attr);
    if (!conv_describe(key, key->kind, &d) ||
        dnnl_primitive_desc_create(&forward, &desc, NULL, engine, NULL) != dnnl_success)
        return NULL;
    const dnnl_status_t made =
        key->kind == WF_DNN_BACKWARD_DATA
            ? dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &d.x, &d.w, &d.y,
                                                               d.stride, d.dilates, d.lo, d.hi)
            : dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &d.x, &d.w, bias,
                                                                  &d.y, d.stride, d.dilates, d.lo, d.hi);
    if (made != dnnl_success || dnnl_primitive_desc_create(&backward, &desc, attr, engine, forward) != dnnl_success)
        backward = NULL;
    dnnl_primitive_desc_destroy(forward);
    return backward;
}

static dnnl_primitive_desc_t matmul_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                   dnnl_primitive_attr_t attr)
{
    const bool at = key->flags & WF_DNN_A_TRANSPOSED, bt = key->flags & WF_DNN_B_TRANSPOSED;
    const dnnl_data_type_t type = type_of(key->dtype);
    const dnnl_dims_t a = {key->n, key->c}, b = {key->c, key->f}, c = {key->n, key->f}, row = {1, key->f};
    dnnl_memory_desc_t da, db, dc, drow;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made = NULL;
    if (dnnl_memory_desc_init_by_tag(&da, 2, a, type, at ? dnnl_ba : dnnl_ab) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&db, 2, b, type, bt ? dnnl_ba : dnnl_ab) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&dc, 2, c, type_in(key, true), dnnl_ab) != dnnl_success ||
        dnnl_memory_desc_init_by_tag(&drow, 2, row, type, dnnl_ab) != dnnl_success ||
        dnnl_matmul_desc_init(&desc, &da, &db, (key->flags & WF_DNN_BIAS) ? &drow : NULL, &dc) != dnnl_success ||
        dnnl_primitive_desc_create(&made, &desc, attr, engine, NULL) != dnnl_success)
        return NULL;
    return made;
}

typedef struct role_query {
    dnnl_query_t query;
    int index, argument;
} role_query;

static const role_query *roles_of(int32_t kind)
{
    static const role_query forward[WF_DNN_ROLES] = {
        [WF_DNN_X] = {dnnl_query_src_md, 0, DNNL_ARG_SRC},
        [WF_DNN_W] = {dnnl_query_weights_md, 0, DNNL_ARG_WEIGHTS},
        [WF_DNN_B] = {dnnl_query_weights_md, 1, DNNL_ARG_BIAS},
        [WF_DNN_Y] = {dnnl_query_dst_md, 0, DNNL_ARG_DST},
        [WF_DNN_SCRATCH] = {dnnl_query_scratchpad_md, 0, DNNL_ARG_SCRATCHPAD},
    };
    static const role_query data[WF_DNN_ROLES] = {
        [WF_DNN_X] = {dnnl_query_diff_src_md, 0, DNNL_ARG_DIFF_SRC},
        [WF_DNN_W] = {dnnl_query_weights_md, 0, DNNL_ARG_WEIGHTS},
        [WF_DNN_Y] = {dnnl_query_diff_dst_md, 0, DNNL_ARG_DIFF_DST},
        [WF_DNN_SCRATCH] = {dnnl_query_scratchpad_md, 0, DNNL_ARG_SCRATCHPAD},
    };
    static const role_query filter[WF_DNN_ROLES] = {
        [WF_DNN_X] = {dnnl_query_src_md, 0, DNNL_ARG_SRC},
        [WF_DNN_W] = {dnnl_query_diff_weights_md, 0, DNNL_ARG_DIFF_WEIGHTS},
        [WF_DNN_B] = {dnnl_query_diff_weights_md, 1, DNNL_ARG_DIFF_BIAS},
        [WF_DNN_Y] = {dnnl_query_diff_dst_md, 0, DNNL_ARG_DIFF_DST},
        [WF_DNN_SCRATCH] = {dnnl_query_scratchpad_md, 0, DNNL_ARG_SCRATCHPAD},
    };
    return kind == WF_DNN_BACKWARD_DATA ? data : kind == WF_DNN_BACKWARD_FILTER ? filter : forward;
}

static bool make_memories(dnnl_engine_t engine, dnnl_primitive_desc_t pd, wf_dnn_op *op)
{
    const role_query *role = roles_of(op->key.kind);
    for (int r = 0; r < WF_DNN_ROLES; r++) {
        if (!role[r].argument || (r == WF_DNN_B && !(op->key.flags & WF_DNN_BIAS)))
            continue;
        const dnnl_memory_desc_t *desc = dnnl_primitive_desc_query_md(pd, role[r].query, role[r].index);
        const size_t bytes = desc ? dnnl_memory_desc_get_size(desc) : 0;
        if (bytes == 0)
            continue;
        if (dnnl_memory_create(&op->memory[r], desc, engine, DNNL_MEMORY_NONE) != dnnl_success)
            return false;
        op->argument[r] = role[r].argument;
        if (r == WF_DNN_SCRATCH)
            op->scratch_bytes = bytes;
    }
    return true;
}

static uint64_t desc_hash(const dnnl_memory_desc_t *desc)
{
    const dnnl_blocking_desc_t *blocking = &desc->format_desc.blocking;
    uint64_t hash = wf_hash_u64(77, (uint64_t)desc->data_type);
    for (int d = 0; d < desc->ndims; d++) {
        hash = wf_hash_u64(hash, (uint64_t)desc->padded_dims[d]);
        hash = wf_hash_u64(hash, (uint64_t)blocking->strides[d]);
    }
    for (int b = 0; b < blocking->inner_nblks; b++) {
        hash = wf_hash_u64(hash, (uint64_t)blocking->inner_blks[b]);
        hash = wf_hash_u64(hash, (uint64_t)blocking->inner_idxs[b]);
    }
    return hash;
}

static bool make_reorder(dnnl_engine_t engine, const dnnl_memory_desc_t *form, wf_dnn_op *op)
{
    dnnl_memory_desc_t stored;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const bool gradient = op->key.kind == WF_DNN_BACKWARD_FILTER;
    const bool add = gradient && (op->key.flags & WF_DNN_ACCUMULATE);
    bool good = filter_desc(&op->key, type_in(&op->key, gradient), false, &stored);
    op->form_bytes = dnnl_memory_desc_get_size(form);
    op->form_key = desc_hash(form);
    if (good && !add && dnnl_memory_desc_equal(&stored, form))
        return true;
    good = good && dnnl_primitive_attr_create(&attr) == dnnl_success &&
           dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (good && add)
        good = dnnl_post_ops_create(&ops) == dnnl_success && dnnl_post_ops_append_sum(ops, 1.0F) == dnnl_success &&
               dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
    good = good && dnnl_reorder_primitive_desc_create(&pd, gradient ? form : &stored, engine, gradient ? &stored : form,
                                                      engine, attr) == dnnl_success;
    good = good && dnnl_primitive_create(&op->reorder, pd) == dnnl_success &&
           dnnl_memory_create(&op->stored, &stored, engine, DNNL_MEMORY_NONE) == dnnl_success;
    if (good) {
        const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        op->reorder_scratch_bytes = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
        if (op->reorder_scratch_bytes)
            good = dnnl_memory_create(&op->reorder_scratch, scratch, engine, DNNL_MEMORY_NONE) == dnnl_success;
    }
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return good;
}

bool wf_dnn_build(dnnl_engine_t engine, wf_dnn_op *op)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const bool product = op->key.kind == WF_DNN_MATMUL;
    if (attributes(&op->key, &attr))
        pd = product ? matmul_primitive_desc(engine, &op->key, attr) : conv_primitive_desc(engine, &op->key, attr);
    bool good = pd && make_memories(engine, pd, op);
    if (good && !product) {
        const role_query *w = &roles_of(op->key.kind)[WF_DNN_W];
        good = make_reorder(engine, dnnl_primitive_desc_query_md(pd, w->query, w->index), op);
    }
    good = good && dnnl_primitive_create(&op->primitive, pd) == dnnl_success;
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return good;
}

void wf_dnn_unbuild(wf_dnn_op *op)
{
    for (int r = 0; r < WF_DNN_ROLES; r++)
        if (op->memory[r])
            dnnl_memory_destroy(op->memory[r]);
    if (op->stored)
        dnnl_memory_destroy(op->stored);
    if (op->reorder_scratch)
        dnnl_memory_destroy(op->reorder_scratch);
    if (op->reorder)
        dnnl_primitive_destroy(op->reorder);
    if (op->primitive)
        dnnl_primitive_destroy(op->primitive);
    memset(op->memory, 0, sizeof op->memory);
    op->stored = op->reorder_scratch = NULL;
    op->reorder = op->primitive = NULL;
}
