/* Gives the loops of `ref` their arrays as double: copies of inputs and outputs of other types, taken from the pool
 * for the time of a slot and stored back at its end. Every slot of `ref` begins and ends here, so none of them frees
 * memory itself. */
#include "core/ref/ref_impl.h"

/* What empty arrays point to, so that "empty" is not taken for "absent". Never read or written. */
static double nothing[1];

wf_ref_frame wf_ref_begin(wf_ctx *ctx)
{
    return (wf_ref_frame){.ctx = ctx, .status = WF_OK};
}

bool wf_ref_present(const wf_array *a)
{
    return a && (a->data || wf_array_count(a) == 0);
}

static double *take_work(wf_ref_frame *frame, int64_t count, const wf_array *out)
{
    if (frame->status != WF_OK)
        return NULL;
    if (count == 0)
        return nothing;
    wf_ref_block *const block = &frame->block[frame->count];
    void *data = NULL;
    *block = (wf_ref_block){.bytes = (size_t)count * sizeof(double), .out = out};
    frame->status = wf_pool_take(frame->ctx, block->bytes, &data);
    if (frame->status != WF_OK)
        return NULL;
    block->data = data;
    frame->count++;
    return data;
}

double *wf_ref_work(wf_ref_frame *frame, int64_t count)
{
    return take_work(frame, count, NULL);
}

const double *wf_ref_in(wf_ref_frame *frame, const wf_array *a)
{
    if (!wf_ref_present(a))
        return NULL;
    if (a->dtype == WF_F64 && a->data)
        return a->data;
    double *const data = take_work(frame, wf_array_count(a), NULL);
    if (data)
        wf_ref_load(a->dtype, a->data, 1, wf_array_count(a), data);
    return data;
}

double *wf_ref_out(wf_ref_frame *frame, const wf_array *a, bool keep)
{
    if (!wf_ref_present(a))
        return NULL;
    if (a->dtype == WF_F64 && a->data)
        return a->data;
    double *const data = take_work(frame, wf_array_count(a), a);
    if (data && keep)
        wf_ref_load(a->dtype, a->data, 1, wf_array_count(a), data);
    return data;
}

wf_status wf_ref_end(wf_ref_frame *frame)
{
    /* Outputs are stored only if every take worked; until then the caller's arrays are untouched. */
    while (frame->count > 0) {
        wf_ref_block *const block = &frame->block[--frame->count];
        if (block->out && frame->status == WF_OK)
            wf_ref_store(block->out->dtype, block->out->data, 1, wf_array_count(block->out), block->data);
        wf_pool_give(frame->ctx, block->data, block->bytes);
    }
    return frame->status;
}

void wf_ref_rows(const wf_array *a, int64_t *rows, int64_t *c)
{
    int64_t n, pixels;
    wf_array_ncp(a, &n, c, &pixels);
    *rows = n * pixels;
}
