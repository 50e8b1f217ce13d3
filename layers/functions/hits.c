/* Hits: rows whose label is among the k largest scores. Where ranks share the classes, scores are not gathered: the
 * rank of a label's class tells the others its score, each counts those of its own classes that come before it, and the
 * counts are summed: two all-reduces of a number a row. */
#include "comm/mesh.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"
#include "layers/loss.h"

/* Rows of one rank. at, before: of shared classes. */
typedef struct hit_rows {
    wf_tensor *scores, *labels, *at, *before;
    int64_t ignored, k;
} hit_rows;

static wf_status count_whole(const hit_rows *rows, int64_t *count)
{
    wf_ctx *ctx = rows->scores->ctx;
    wf_tensor *correct = wf_tensor_new_step(ctx, WF_I64, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(correct);
    const wf_array from = wf_tensor_array(rows->scores), at = wf_tensor_array(rows->labels);
    const wf_array to = wf_tensor_array(correct);
    wf_status status = ctx->k->count_correct(ctx, &from, &at, rows->ignored, rows->k, &to);
    if (status == WF_OK)
        status = wf_ctx_read(ctx, count, correct->data, sizeof *count);
    wf_tensor_free(correct);
    return status;
}

static wf_status place_labels(const hit_rows *rows, const wf_layout *layout, bool counts)
{
    const wf_array x = wf_tensor_array(rows->scores), labels = wf_tensor_array(rows->labels);
    const wf_array at = wf_tensor_array(rows->at), before = wf_tensor_array(rows->before);
    return rows->scores->ctx->k->label_place(rows->scores->ctx,
                                             &(wf_label_place_args){.x = &x,
                                                                    .labels = &labels,
                                                                    .ignored = rows->ignored,
                                                                    .first = layout->box.lo[1],
                                                                    .whole = layout->global.dim[1],
                                                                    .at = &at,
                                                                    .before = counts ? &before : NULL});
}

/* Every rank has -1 in a row that does not count, so the sum is below 0 there. */
static wf_status count_before_k(const hit_rows *rows, int64_t *count)
{
    wf_ctx *ctx = rows->scores->ctx;
    const int64_t n = wf_tensor_count(rows->before);
    const size_t bytes = (size_t)n * sizeof(int64_t);
    void *host;
    *count = 0;
    if (n == 0)
        return WF_OK;
    WF_TRY(wf_pool_take_host(ctx, bytes, &host));
    const wf_status status = wf_ctx_read(ctx, host, rows->before->data, bytes);
    const int64_t *const before = host;
    for (int64_t r = 0; r < n && status == WF_OK; r++)
        *count += before[r] >= 0 && before[r] < rows->k;
    wf_pool_give_host(ctx, host, bytes);
    return status;
}

static wf_status count_shared(hit_rows *rows, const wf_layout *layout, unsigned axes, int64_t *count)
{
    wf_ctx *ctx = rows->scores->ctx;
    const wf_dtype wide = rows->scores->dtype == WF_F64 ? WF_F64 : WF_F32;
    rows->at = wf_tensor_new_step(ctx, wide, rows->labels->shape, WF_ROW_MAJOR);
    rows->before = wf_tensor_new_step(ctx, WF_I64, rows->labels->shape, WF_ROW_MAJOR);
    wf_comm *comm = wf_mesh_comm(layout->mesh, (wf_axis_set)axes);
    WF_NEED(rows->at);
    WF_NEED(rows->before);
    WF_NEED(comm);
    WF_TRY(place_labels(rows, layout, false));
    WF_TRY(wf_allreduce(comm, rows->at, rows->at, WF_MAX));
    WF_TRY(place_labels(rows, layout, true));
    WF_TRY(wf_allreduce(comm, rows->before, rows->before, WF_SUM));
    return count_before_k(rows, count);
}

static wf_status count_hits(const wf_var *scores, const wf_tensor *labels, hit_rows *rows, unsigned axes,
                            int64_t *count)
{
    rows->scores = wf_dense_value(scores);
    rows->labels = wf_tensor_dense(labels, labels->dtype, WF_ROW_MAJOR);
    WF_NEED(rows->scores);
    WF_NEED(rows->labels);
    return axes == 0 ? count_whole(rows, count) : count_shared(rows, &scores->value->layout, axes, count);
}

static wf_status check_hits(const wf_var *scores, const wf_tensor *labels, int64_t k, const wf_label_opts *opts)
{
    WF_CHECK(k >= 1, WF_ERR_ARGUMENT, "count_top_k: k is %lld, should be 1 or more", (long long)k);
    if (!labels)
        return wf_error_take("count_correct: the tensor of labels", __FILE__, __LINE__);
    WF_TRY(wf_ignored_check("count_correct", opts->ignores, opts->ignored));
    return wf_labels_check_rows("count_correct", scores, labels);
}

/* Reads numbers from the device, which waits for it: for measuring, not for each step. */
int64_t wf_count_correct(const wf_var *scores, const wf_tensor *labels, wf_label_opts opts)
{
    return wf_count_top_k(scores, labels, 1, opts);
}

int64_t wf_count_top_k(const wf_var *scores, const wf_tensor *labels, int64_t k, wf_label_opts opts)
{
    hit_rows rows = {.ignored = wf_labels_ignored(&opts), .k = k};
    int64_t count = -1;
    if (!scores || wf_function_check("count_correct", scores, WF_ANY_FUNCTION) != WF_OK)
        return -1;
    const wf_layout *const layout = &scores->value->layout;
    const unsigned axes = wf_labels_class_axes(layout);
    wf_status status = check_hits(scores, labels, k, &opts);
    if (status == WF_OK)
        status = count_hits(scores, labels, &rows, axes, &count);
    status = wf_labels_post(layout, axes, status); /* the others may wait in one of the two sums */
    wf_tensor_free(rows.scores);
    wf_tensor_free(rows.labels);
    wf_tensor_free(rows.at);
    wf_tensor_free(rows.before);
    return status == WF_OK ? count : -1;
}
