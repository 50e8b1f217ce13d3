/* The cache of oneDNN operations of a context. Primitives are made at the first use of a shape and kept, since making
 * one costs as much as many runs. All memory that they use is the pool's. */
#include "core/cpu/dnn_impl.h"

#include "core/profile_author.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256

/* What a context of the CPU owns, in ctx->device_own. One thread at a time works with a context, so there is no
 * lock. */
typedef struct dnn_own {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    wf_dnn_op *bucket[BUCKETS];
    uint64_t uses; /* so far */
} dnn_own;

static wf_status own_open(wf_ctx *ctx, dnn_own **own)
{
    *own = ctx->device_own;
    if (*own)
        return WF_OK;
    *own = wf_calloc(ctx, 1, sizeof **own);
    if (!*own)
        return wf_error_take("cache of primitives", __FILE__, __LINE__);
    /* Kept before it is complete, so that the context's shutdown frees what was made if the rest fails. */
    ctx->device_own = *own;
    TRY_DNN(dnnl_engine_create(&(*own)->engine, dnnl_cpu, 0));
    TRY_DNN(dnnl_stream_create(&(*own)->stream, (*own)->engine, dnnl_stream_default_flags));
    return WF_OK;
}

/* Multiplies by the golden ratio's 64-bit fraction and folds the high bits down. A key is compared by bytes, so the
 * hash may read it as words. */
static uint64_t key_hash(const wf_dnn_key *key)
{
    uint64_t word[sizeof *key / sizeof(uint64_t)], hash = 1;
    _Static_assert(sizeof *key % sizeof(uint64_t) == 0, "a key is a whole number of words");
    memcpy(word, key, sizeof word);
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        hash = (hash ^ word[i]) * 0x9E3779B97F4A7C15U, hash ^= hash >> 29;
    return hash;
}

static void op_free(wf_ctx *ctx, wf_dnn_op *op)
{
    wf_dnn_unbuild(op);
    free(op);
    ctx->plans--;
}

/* Frees the operation that was not used for the longest time. */
static void drop_oldest_primitive(wf_ctx *ctx, dnn_own *own)
{
    wf_dnn_op **oldest = NULL;
    for (int b = 0; b < BUCKETS; b++)
        for (wf_dnn_op **at = &own->bucket[b]; *at; at = &(*at)->next)
            if (!oldest || (*at)->used < (*oldest)->used)
                oldest = at;
    if (!oldest)
        return;
    wf_dnn_op *op = *oldest;
    *oldest = op->next;
    op_free(ctx, op);
}

wf_status wf_dnn_find(wf_ctx *ctx, const wf_dnn_key *key, const wf_dnn_op **op)
{
    dnn_own *own = NULL;
    WF_TRY(own_open(ctx, &own));
    wf_dnn_op **head = &own->bucket[key_hash(key) % BUCKETS];
    wf_dnn_op *found = *head;
    while (found && memcmp(&found->key, key, sizeof *key) != 0)
        found = found->next;
    if (!found) {
        found = wf_calloc(ctx, 1, sizeof *found);
        if (!found)
            return wf_error_take("primitive", __FILE__, __LINE__);
        found->key = *key;
        const int before = omp_get_max_threads(); /* the program's own, which stays */
        const int64_t start = wf_profile_clock();
        omp_set_num_threads(key->threads);
        /* A key that oneDNN does not take is kept too, without a primitive, so that the next call learns it from the
         * cache. */
        if (!wf_dnn_build(own->engine, found))
            wf_dnn_unbuild(found);
        ctx->planning_ns += wf_profile_clock() - start;
        omp_set_num_threads(before);
        /* A loop of fixed shape stays far below the limit; a loop of ever new shapes must not grow without end. */
        if (ctx->plans >= WF_PLANS_MOST)
            drop_oldest_primitive(ctx, own);
        ctx->plans++;
        found->next = *head;
        *head = found;
    }
    /* Order of use, not time: an eviction then does not depend on the clock. */
    found->used = ++own->uses;
    *op = found->primitive ? found : NULL;
    return WF_OK;
}

/* oneDNN cuts the work for the number of threads it sees when a primitive is made; it must see the same when it runs.
 */
static wf_status execute(wf_ctx *ctx, const wf_dnn_op *op, dnnl_primitive_t primitive, int count,
                         const dnnl_exec_arg_t *arguments)
{
    const dnn_own *own = ctx->device_own;
    const int before = omp_get_max_threads();
    omp_set_num_threads(op->key.threads);
    const dnnl_status_t status = dnnl_primitive_execute(primitive, own->stream, count, arguments);
    omp_set_num_threads(before);
    TRY_DNN(status);
    return WF_OK;
}

wf_status wf_dnn_run(wf_ctx *ctx, const wf_dnn_op *op, void *const data[WF_DNN_ROLES])
{
    dnnl_exec_arg_t arguments[WF_DNN_ROLES];
    int count = 0;
    void *scratch = NULL;
    WF_TRY(wf_pool_take(ctx, op->scratch_bytes, &scratch));
    wf_status status = WF_OK;
    for (int r = 0; r < WF_DNN_ROLES && status == WF_OK; r++) {
        if (!op->argument[r])
            continue;
        if (dnnl_memory_set_data_handle(op->memory[r], r == WF_DNN_SCRATCH ? scratch : data[r]) != dnnl_success)
            status = WF_RAISE(WF_ERR_STATE, "oneDNN: memory of role %d cannot be set", r);
        arguments[count++] = (dnnl_exec_arg_t){op->argument[r], op->memory[r]};
    }
    if (status == WF_OK)
        status = execute(ctx, op, op->primitive, count, arguments);
    wf_pool_give(ctx, scratch, op->scratch_bytes);
    return status;
}

wf_status wf_dnn_reorder(wf_ctx *ctx, const wf_dnn_op *op, void *stored, void *form)
{
    const bool gradient = op->key.kind == WF_DNN_BACKWARD_FILTER;
    /* The filter's memory in oneDNN's form is that of the primitive's role W. */
    dnnl_memory_t packed = op->memory[WF_DNN_W];
    void *scratch = NULL;
    /* Memory objects are made once and pointed at the arrays of each call: creating them would allocate. */
    TRY_DNN(dnnl_memory_set_data_handle(op->stored, stored));
    TRY_DNN(dnnl_memory_set_data_handle(packed, form));
    WF_TRY(wf_pool_take(ctx, op->reorder_scratch_bytes, &scratch));
    const dnnl_exec_arg_t arguments[3] = {{DNNL_ARG_FROM, gradient ? packed : op->stored},
                                          {DNNL_ARG_TO, gradient ? op->stored : packed},
                                          {DNNL_ARG_SCRATCHPAD, op->reorder_scratch}};
    if (scratch)
        dnnl_memory_set_data_handle(op->reorder_scratch, scratch);
    const wf_status status = execute(ctx, op, op->reorder, scratch ? 3 : 2, arguments);
    wf_pool_give(ctx, scratch, op->reorder_scratch_bytes);
    return status;
}

static wf_status reorder_filter(wf_ctx *ctx, const void *how, const wf_array *w, void *form)
{
    return wf_dnn_reorder(ctx, how, w->data, form);
}

wf_status wf_dnn_form_take(wf_ctx *ctx, const wf_dnn_op *op, const wf_array *w, wf_filter_form *form)
{
    *form = (wf_filter_form){.data = w->data};
    /* Without a reorder the primitive reads the filter as it is stored, and nothing is kept. */
    return op->reorder ? wf_filter_form_take(ctx, w, op->form_key, op->form_bytes, reorder_filter, op, form) : WF_OK;
}

void wf_cpu_shutdown(wf_ctx *ctx)
{
    dnn_own *own = ctx->device_own;
    if (!own)
        return;
    for (int b = 0; b < BUCKETS; b++)
        for (wf_dnn_op *op = own->bucket[b], *next; op; op = next) {
            next = op->next;
            op_free(ctx, op);
        }
    if (own->stream)
        dnnl_stream_destroy(own->stream);
    if (own->engine)
        dnnl_engine_destroy(own->engine);
    free(own);
    ctx->device_own = NULL;
}
