/* Running statistics of a mini-batch that comes in chunks: the chunks' statistics are noted, and merged in the end, so
 * that running values follow those of the whole mini-batch once, with its unbiased variance. Pipelines and accumulation
 * of gradients use it (wf_norm_defer). What a chunk is normalised by is its own statistics. */
#include "layers/serial/serial_impl.h"

#include <stdlib.h>

/* One part a chunk: the count, means and m2, as norm_merge takes them. */
struct wf_norm_chunks {
    wf_tensor *parts; /* f64 [room, 1 + 2 C] */
    int64_t n, room;
};

wf_norm_chunks *wf_norm_chunks_new(wf_ctx *ctx)
{
    wf_norm_chunks *chunks = wf_calloc(ctx, 1, sizeof *chunks);
    return chunks ? chunks : wf_error_null();
}

void wf_norm_chunks_free(wf_norm_chunks *chunks)
{
    if (chunks)
        wf_tensor_free(chunks->parts);
    free(chunks);
}

void wf_norm_chunks_clear(wf_norm_chunks *chunks)
{
    chunks->n = 0;
}

/* Twice the room each time, so that all copies together cost no more than the last. */
static wf_status grow_chunks(wf_norm_chunks *chunks, wf_ctx *ctx, int64_t columns)
{
    const int64_t room = chunks->room ? 2 * chunks->room : 8;
    wf_tensor *more = wf_tensor_new(ctx, WF_F64, WF_SHAPE(room, columns));
    WF_NEED(more);
    if (chunks->n > 0) {
        wf_tensor *front = wf_tensor_view(more, wf_box_of_shape(WF_SHAPE(chunks->n, columns)));
        const wf_status status = front ? wf_tensor_assign(front, chunks->parts) : wf_error_code();
        wf_tensor_free(front);
        if (status != WF_OK) {
            wf_tensor_free(more);
            return status;
        }
    }
    wf_tensor_free(chunks->parts);
    chunks->parts = more;
    chunks->room = room;
    return WF_OK;
}

/* Nothing is read back to the host: a chunk's statistics may still be on their way on the device. */
wf_status wf_norm_chunks_add(wf_norm_chunks *chunks, wf_ctx *ctx, const wf_array *mean, const wf_array *m2,
                             wf_count count)
{
    const int64_t columns = 1 + 2 * wf_array_count(mean);
    if (chunks->n == chunks->room)
        WF_TRY(grow_chunks(chunks, ctx, columns));
    const wf_array part = {
        .data = (double *)chunks->parts->data + chunks->n * columns, .dtype = WF_F64, .shape = WF_SHAPE(columns)};
    chunks->n++;
    WF_TRY(ctx->k->norm_part(ctx, &(wf_norm_head){.n = 1, .value = {count.value}}, mean, m2, &part));
    if (!count.device)
        return WF_OK;
    /* Counts of merged statistics are known to the device alone. */
    const wf_strided from = {.data = (void *)count.device, .dtype = WF_F64}, to = {.data = part.data, .dtype = WF_F64};
    return ctx->k->copy(ctx, &from, &to, false);
}

/* stats: mean, m2 and invstd. */
static wf_status merge_chunks(wf_norm_chunks *chunks, wf_ctx *ctx, double decay, const wf_norm_running *running,
                              const wf_tensor *stats, const wf_tensor *count)
{
    /* Only the rows that are filled are merged; their order is that of chunks, so results repeat. */
    const wf_array rows = wf_tensor_array(stats), total = wf_tensor_array(count);
    const wf_array mean = wf_norm_row(&rows, 0), m2 = wf_norm_row(&rows, 1), invstd = wf_norm_row(&rows, 2);
    wf_array parts = wf_tensor_array(chunks->parts);
    parts.shape.dim[0] = chunks->n;
    WF_TRY(ctx->k->norm_merge(ctx, &parts, &mean, &m2, &total));
    /* The kernel writes running values behind the tape's back: whatever saved them must notice. */
    const wf_array to_mean = wf_tensor_array(running->mean), to_var = wf_tensor_array(running->var);
    wf_tensor_touch(running->mean);
    wf_tensor_touch(running->var);
    return ctx->k->norm_finish(ctx, &(wf_norm_args){.mean = &mean,
                                                    .m2 = &m2,
                                                    .count = {.device = total.data},
                                                    /* invstd is asked for by the slot and thrown away; any eps will
                                                     * do. */
                                                    .eps = 1,
                                                    .decay = decay,
                                                    .invstd = &invstd,
                                                    .running_mean = &to_mean,
                                                    .running_var = &to_var});
}

/* Called once a mini-batch, on every rank at the same place; chunks are forgotten whether it fails or not. */
wf_status wf_norm_chunks_commit(wf_norm_chunks *chunks, wf_ctx *ctx, double decay, const wf_norm_running *running)
{
    if (chunks->n == 0)
        return WF_OK;
    const wf_dtype dtype = running->mean->dtype == WF_F64 ? WF_F64 : WF_F32;
    const int64_t channels = (chunks->parts->shape.dim[1] - 1) / 2;
    wf_tensor *stats = wf_tensor_new(ctx, dtype, WF_SHAPE(3, channels));
    wf_tensor *count = wf_tensor_new(ctx, WF_F64, wf_shape_scalar());
    const wf_status status = stats && count ? merge_chunks(chunks, ctx, decay, running, stats, count)
                                            : wf_error_take("memory", __FILE__, __LINE__);
    wf_tensor_free(stats);
    wf_tensor_free(count);
    chunks->n = 0;
    return status;
}
