/* Makes oneDNN primitives from keys. Called by the cache where it has none; it never runs them. A form that oneDNN does
 * not take gives false, no error: the caller has another way. */
#include "core/cpu/dnn_impl.h"

#include <string.h>

static dnnl_data_type_t type_of(int32_t dtype)
{
    return dtype == WF_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* The type of an array; results (`gives`) are f32 if the key asks for wide ones. */
static dnnl_data_type_t type_in(const wf_dnn_key *key, bool gives)
{
    return gives && (key->flags & WF_DNN_WIDE) ? dnnl_f32 : type_of(key->dtype);
}

/* Channels last, at every rank: the one order in which activations are stored. */
static bool activation_desc(const wf_dnn_key *key, dnnl_data_type_t type, int64_t channels, const int64_t *spatial,
                            wf_dnn_desc *desc)
{
    static const dnnl_format_tag_t tag[WF_MAX_SPATIAL] = {dnnl_nwc, dnnl_nhwc, dnnl_ndhwc};
    dnnl_dims_t dims = {key->n, channels};
    memcpy(dims + 2, spatial, (size_t)key->nd * sizeof(int64_t));
    return wf_dnn_desc_tag(desc, key->nd + 2, dims, type, tag[key->nd - 1]);
}

/* The filter [F,k...,C/g] as stored, in oneDNN's logical order [g,]F/g,C/g,k... */
static bool filter_desc(const wf_dnn_key *key, dnnl_data_type_t type, bool any, wf_dnn_desc *desc)
{
    const int g = key->groups > 1, nd = key->nd;
    const int64_t c = key->c / key->groups, f = key->f / key->groups;
    dnnl_dims_t dims = {0}, strides = {0};
    int64_t stride = c;
    for (int d = nd - 1; d >= 0; d--) {
        dims[g + 2 + d] = key->kernel[d];
        /* Dimension 2 + d is spatial; the innermost spatial dimension steps over the channels of one pixel. */
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
    /* "any" lets oneDNN choose the form that its kernel likes best; the filter is reordered to it once per change. */
    return any ? wf_dnn_desc_tag(desc, nd + 2 + g, dims, type, dnnl_format_tag_any)
               : wf_dnn_desc_strides(desc, nd + 2 + g, dims, type, strides);
}

/* `kind`: the direction that it is for; a forward one helps to make the others. Free them, also where it fails. */
static bool conv_describe(const wf_dnn_key *key, int32_t kind, wf_dnn_conv_descs *descs)
{
    const dnnl_data_type_t type = type_of(key->dtype), made = type_in(key, kind == key->kind);
    const dnnl_data_type_t of_filter = kind == WF_DNN_BACKWARD_FILTER ? made : type;
    memset(descs, 0, sizeof *descs);
    descs->bias = key->flags & WF_DNN_BIAS;
    for (int d = 0; d < key->nd; d++) {
        descs->stride[d] = key->stride[d];
        /* oneDNN counts dilation from 0. */
        descs->dilates[d] = key->dilation[d] - 1;
        descs->lo[d] = key->lo[d];
        descs->hi[d] = key->hi[d];
    }
    /* Backward primitives are described in the forward one's names, which is why x and y keep theirs in all
     * directions. */
    const dnnl_dims_t channels = {key->f};
    return activation_desc(key, kind == WF_DNN_BACKWARD_DATA ? made : type, key->c, key->in, &descs->x) &&
           activation_desc(key, kind == WF_DNN_FORWARD ? made : type, key->f, key->out, &descs->y) &&
           filter_desc(key, of_filter, true, &descs->w) &&
           (!descs->bias || wf_dnn_desc_tag(&descs->b, 1, channels, of_filter, dnnl_x));
}

static void descs_free(wf_dnn_conv_descs *descs)
{
    wf_dnn_desc_free(&descs->x);
    wf_dnn_desc_free(&descs->w);
    wf_dnn_desc_free(&descs->b);
    wf_dnn_desc_free(&descs->y);
}

static bool attributes(const wf_dnn_key *key, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    if (dnnl_primitive_attr_create(attr) != dnnl_success)
        return false;
    /* The scratchpad comes from the pool: oneDNN's own would be allocated behind the counters. */
    bool good = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) == dnnl_success &&
                dnnl_post_ops_create(&ops) == dnnl_success;
    if (good && (key->flags & WF_DNN_ACT))
        good = wf_dnn_append_act(ops, key->slope);
    if (good && key->kind == WF_DNN_MATMUL && (key->flags & WF_DNN_ACCUMULATE))
        good = wf_dnn_append_sum(ops);
    good = good && dnnl_primitive_attr_set_post_ops(*attr, ops) == dnnl_success;
    if (ops)
        dnnl_post_ops_destroy(ops);
    return good;
}

/* oneDNN's first choice forwards, brgconv, is slower than its second, jit, if channels do not fill a vector or the
 * filter is too large for the cache (4 MiB). */
static bool slower_than_jit(const wf_dnn_key *key, const char *implementation)
{
    int64_t bytes = key->f * (key->c / key->groups) * 4;
    for (int d = 0; d < key->nd; d++)
        bytes *= key->kernel[d];
    return key->kind == WF_DNN_FORWARD && key->dtype == WF_F32 && strncmp(implementation, "brgconv", 7) == 0 &&
           (key->c / key->groups < 16 || bytes > 4 << 20);
}

static const char *implementation_of(dnnl_primitive_desc_t pd)
{
    const char *name = "";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return name;
}

static dnnl_primitive_desc_t faultless_conv_pd(dnnl_engine_t engine, const wf_dnn_key *key, int32_t kind,
                                               const wf_dnn_conv_descs *descs, dnnl_primitive_desc_t forward,
                                               dnnl_primitive_attr_t attr)
{
    /* oneDNN lists its implementations from the best to the plainest; those that compute this form wrong are passed
     * over. */
    for (int choice = 0;; choice++) {
        dnnl_primitive_desc_t made = wf_dnn_conv_pd(engine, kind, descs, forward, attr, choice);
        if (!made || !wf_dnn_fault(key, implementation_of(made)))
            return made;
        dnnl_primitive_desc_destroy(made);
    }
}

static dnnl_primitive_desc_t forward_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                    const wf_dnn_conv_descs *descs, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t first = faultless_conv_pd(engine, key, key->kind, descs, NULL, attr);
    if (!first || !slower_than_jit(key, implementation_of(first)))
        return first;
    dnnl_primitive_desc_t second = wf_dnn_conv_pd(engine, key->kind, descs, NULL, attr, 1);
    if (!second)
        return first;
    /* By name, since the order of implementations differs between versions: only the one that was measured is
     * preferred. */
    const bool better = strcmp(implementation_of(second), "jit:avx512_core") == 0;
    dnnl_primitive_desc_destroy(better ? first : second);
    return better ? second : first;
}

static dnnl_primitive_desc_t backward_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                     const wf_dnn_conv_descs *of_forward, dnnl_primitive_attr_t attr)
{
    wf_dnn_conv_descs descs;
    /* oneDNN makes backward primitives from the description of the forward one, as a hint. */
    dnnl_primitive_desc_t made = NULL, forward = wf_dnn_conv_pd(engine, WF_DNN_FORWARD, of_forward, NULL, NULL, 0);
    if (!forward)
        return NULL;
    if (conv_describe(key, key->kind, &descs))
        made = faultless_conv_pd(engine, key, key->kind, &descs, forward, attr);
    descs_free(&descs);
    dnnl_primitive_desc_destroy(forward);
    return made;
}

static dnnl_primitive_desc_t conv_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                 dnnl_primitive_attr_t attr)
{
    wf_dnn_conv_descs descs;
    dnnl_primitive_desc_t made = NULL;
    if (conv_describe(key, WF_DNN_FORWARD, &descs))
        made = key->kind == WF_DNN_FORWARD ? forward_primitive_desc(engine, key, &descs, attr)
                                           : backward_primitive_desc(engine, key, &descs, attr);
    descs_free(&descs);
    return made;
}

/* The second operand [c,f] of a product; as stored, or in whatever form oneDNN likes. Forms pay for matrices that are
 * used again, such as weights. */
static bool operand_desc(const wf_dnn_key *key, bool any, wf_dnn_desc *desc)
{
    const dnnl_dims_t dims = {key->c, key->f};
    const dnnl_format_tag_t stored = key->flags & WF_DNN_B_TRANSPOSED ? dnnl_ba : dnnl_ab;
    return wf_dnn_desc_tag(desc, 2, dims, type_of(key->dtype), any ? dnnl_format_tag_any : stored);
}

static bool matmul_describe(const wf_dnn_key *key, wf_dnn_matmul_descs *d)
{
    const bool at = key->flags & WF_DNN_A_TRANSPOSED;
    const dnnl_data_type_t type = type_of(key->dtype);
    const dnnl_dims_t a = {key->n, key->c}, c = {key->n, key->f}, row = {1, key->f};
    *d = (wf_dnn_matmul_descs){.bias = key->flags & WF_DNN_BIAS};
    return wf_dnn_desc_tag(&d->a, 2, a, type, at ? dnnl_ba : dnnl_ab) &&
           operand_desc(key, key->flags & WF_DNN_PACKED, &d->b) &&
           wf_dnn_desc_tag(&d->c, 2, c, type_in(key, true), dnnl_ab) && wf_dnn_desc_tag(&d->row, 2, row, type, dnnl_ab);
}

/* In f32 only these were measured against sgemm (core/cpu/matmul.c). */
static bool is_preferred(const wf_dnn_key *key, const char *implementation)
{
    return key->dtype != WF_F32 || strncmp(implementation, "brg", 3) == 0;
}

static dnnl_primitive_desc_t matmul_primitive_desc(dnnl_engine_t engine, const wf_dnn_key *key,
                                                   dnnl_primitive_attr_t attr)
{
    wf_dnn_matmul_descs d;
    dnnl_primitive_desc_t made = NULL;
    const bool good = matmul_describe(key, &d);
    /* Ends at the latest when oneDNN has no further implementation, and returns none then: the caller multiplies by
     * sgemm. */
    for (int choice = 0; good; choice++) {
        made = wf_dnn_matmul_pd(engine, &d, attr, choice);
        const char *name = made ? implementation_of(made) : NULL;
        if (!made || (is_preferred(key, name) && !wf_dnn_fault(key, name)))
            break;
        dnnl_primitive_desc_destroy(made);
    }
    wf_dnn_desc_free(&d.a);
    wf_dnn_desc_free(&d.b);
    wf_dnn_desc_free(&d.row);
    wf_dnn_desc_free(&d.c);
    return made;
}

typedef struct role_query {
    dnnl_query_t query;
    int index, argument;
} role_query;

static const role_query *roles_of(int32_t kind)
{
    /* Roles as the three directions call them: the same array is a source in one and a result in another. */
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
    if (kind == WF_DNN_BACKWARD_DATA)
        return data;
    return kind == WF_DNN_BACKWARD_FILTER ? filter : forward;
}

static bool make_memory(dnnl_engine_t engine, dnnl_primitive_desc_t pd, const role_query *role, dnnl_memory_t *memory,
                        size_t *bytes)
{
    /* An argument that the primitive does not have has a descriptor of no bytes. */
    wf_dnn_desc desc = {0};
    *bytes = wf_dnn_desc_query(&desc, pd, role->query, role->index) ? wf_dnn_desc_bytes(&desc) : 0;
    const bool good = *bytes == 0 || wf_dnn_memory_new(engine, &desc, memory);
    wf_dnn_desc_free(&desc);
    return good;
}

static bool make_memories(dnnl_engine_t engine, dnnl_primitive_desc_t pd, wf_dnn_op *op)
{
    const role_query *role = roles_of(op->key.kind);
    for (int r = 0; r < WF_DNN_ROLES; r++) {
        size_t bytes;
        /* A bias is in the table of roles, but only in some primitives. */
        if (!role[r].argument || (r == WF_DNN_B && !(op->key.flags & WF_DNN_BIAS)))
            continue;
        if (!make_memory(engine, pd, &role[r], &op->memory[r], &bytes))
            return false;
        if (bytes == 0)
            continue;
        op->argument[r] = role[r].argument;
        if (r == WF_DNN_SCRATCH)
            op->scratch_bytes = bytes;
    }
    return true;
}

static bool reorder_attributes(bool add, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    bool good = dnnl_primitive_attr_create(attr) == dnnl_success &&
                dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (good && add)
        good = dnnl_post_ops_create(&ops) == dnnl_success && wf_dnn_append_sum(ops) &&
               dnnl_primitive_attr_set_post_ops(*attr, ops) == dnnl_success;
    if (ops)
        dnnl_post_ops_destroy(ops);
    return good;
}

/* Between the filter as stored and `form`, the way that the operation needs. */
static bool make_reorder(dnnl_engine_t engine, const wf_dnn_desc *stored, const wf_dnn_desc *form, wf_dnn_op *op)
{
    static const role_query scratch = {dnnl_query_scratchpad_md, 0, DNNL_ARG_SCRATCHPAD};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    const bool gradient = op->key.kind == WF_DNN_BACKWARD_FILTER;
    const bool add = gradient && (op->key.flags & WF_DNN_ACCUMULATE);
    op->form_bytes = wf_dnn_desc_bytes(form);
    /* A product's form is that of the matrix or of its transpose, whose shapes may be equal. */
    op->form_key = wf_hash_u64(wf_dnn_desc_hash(form), (uint64_t)(op->key.flags & WF_DNN_B_TRANSPOSED));
    /* The kernel reads the filter as it is stored: no reorder and no second copy. A sum into dw still needs one, since
     * the kernel overwrites. */
    if (!add && wf_dnn_desc_equal(stored, form))
        return true;
    if (reorder_attributes(add, &attr))
        pd = wf_dnn_reorder_pd(engine, gradient ? form : stored, gradient ? stored : form, attr);
    const bool good = pd && dnnl_primitive_create(&op->reorder, pd) == dnnl_success &&
                      wf_dnn_memory_new(engine, stored, &op->stored) &&
                      make_memory(engine, pd, &scratch, &op->reorder_scratch, &op->reorder_scratch_bytes);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return good;
}

static bool make_filter(dnnl_engine_t engine, dnnl_primitive_desc_t pd, wf_dnn_op *op)
{
    const role_query *w = &roles_of(op->key.kind)[WF_DNN_W];
    const bool gradient = op->key.kind == WF_DNN_BACKWARD_FILTER;
    wf_dnn_desc stored = {0}, form = {0};
    const bool described = op->key.kind == WF_DNN_MATMUL
                               ? operand_desc(&op->key, false, &stored)
                               : filter_desc(&op->key, type_in(&op->key, gradient), false, &stored);
    const bool good =
        described && wf_dnn_desc_query(&form, pd, w->query, w->index) && make_reorder(engine, &stored, &form, op);
    wf_dnn_desc_free(&stored);
    wf_dnn_desc_free(&form);
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
    /* A product whose second operand is used as stored has no form. */
    if (good && (!product || (op->key.flags & WF_DNN_PACKED)))
        good = make_filter(engine, pd, op);
    good = good && dnnl_primitive_create(&op->primitive, pd) == dnnl_success;
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    /* What was made before a failure is freed by the caller, through wf_dnn_unbuild. */
    return good;
}

/* Also takes an operation that was built in part. */
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
