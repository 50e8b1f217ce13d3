/* Confusion matrices. A rank counts its rows on the host, from predictions that the device made; whole numbers are
 * summed over the ranks once, so no order of sums shows. */
#include "optim/confusion.h"

#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "core/context_author.h"
#include "core/status_author.h"
#include "layers/functions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* `local` counts since the last finish on this rank, `result` is what finish summed over the ranks. */
struct wf_confusion {
    wf_comm *comm;
    int64_t classes;
    int64_t *local, *result; /* [label][predicted] */
};

wf_confusion *wf_confusion_new(wf_comm *comm, int64_t classes)
{
    WF_NEED_NULL(comm);
    WF_CHECK_NULL(classes >= 1 && classes <= INT32_MAX, WF_ERR_ARGUMENT,
                  "a confusion matrix of %lld classes: should be 1 or more", (long long)classes);
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_confusion *confusion = wf_calloc(ctx, 1, sizeof *confusion);
    if (!confusion)
        return wf_error_null();
    confusion->comm = comm;
    confusion->classes = classes;
    const size_t cells = (size_t)(classes * classes);
    confusion->local = wf_calloc(ctx, cells, sizeof *confusion->local);
    confusion->result = wf_calloc(ctx, cells, sizeof *confusion->result);
    if (confusion->local && confusion->result)
        return confusion;
    wf_confusion_free(confusion);
    return wf_error_null();
}

void wf_confusion_free(wf_confusion *confusion)
{
    if (!confusion)
        return;
    free(confusion->local);
    free(confusion->result);
    free(confusion);
}

/* Local: a wrong shape is told before the device is asked for anything. */
static wf_status check_rows(const wf_confusion *confusion, const wf_var *scores, const wf_tensor *labels,
                            const wf_label_opts *opts, const wf_layout *layout)
{
    char left[WF_SHAPE_TEXT], right[WF_SHAPE_TEXT];
    WF_NEED(labels);
    const wf_shape s = wf_var_shape(scores), l = wf_tensor_shape(labels);
    bool same = s.rank >= 2 && l.rank == s.rank - 1 && l.dim[0] == s.dim[0];
    for (int d = 2; same && d < s.rank; d++)
        same = l.dim[d - 1] == s.dim[d];
    WF_CHECK(same, WF_ERR_SHAPE, "a confusion matrix takes scores [N,C,...] and labels [N,...], not %s and %s",
             wf_shape_text(s, left), wf_shape_text(l, right));
    const wf_shape whole = layout->known ? layout->global : s;
    WF_CHECK(whole.dim[1] == confusion->classes, WF_ERR_SHAPE, "a confusion matrix of %lld classes takes no scores %s",
             (long long)confusion->classes, wf_shape_text(whole, left));
    const wf_dtype type = wf_tensor_dtype(labels);
    WF_CHECK(type == WF_U8 || type == WF_I32 || type == WF_I64, WF_ERR_DTYPE,
             "a confusion matrix takes labels of type u8, i32 or i64, not %s", wf_dtype_name(type));
    WF_CHECK(!opts->ignores || opts->ignored != INT64_MIN, WF_ERR_ARGUMENT,
             "a confusion matrix: ignored is %lld, should be %lld or more", (long long)INT64_MIN,
             (long long)(INT64_MIN + 1));
    return WF_OK;
}

/* Adds all rows or none: a caller that goes on after an error has counts of whole batches. */
static wf_status count_all(wf_confusion *confusion, int64_t rows, const int64_t *label, const int64_t *predicted,
                           const wf_label_opts *opts)
{
    const int64_t classes = confusion->classes;
    for (int64_t r = 0; r < rows; r++)
        WF_CHECK((label[r] >= 0 && label[r] < classes) || (opts->ignores && label[r] == opts->ignored), WF_ERR_ARGUMENT,
                 "label %lld in row %lld is outside [0, %lld)", (long long)label[r], (long long)r, (long long)classes);
    for (int64_t r = 0; r < rows; r++)
        if (!opts->ignores || label[r] != opts->ignored)
            confusion->local[label[r] * classes + predicted[r]]++;
    return WF_OK;
}

/* Any integer type, made 64-bit on the device. */
static wf_status read_rows(const wf_tensor *from, int64_t *to)
{
    wf_tensor *wide = wf_tensor_copy(from, WF_I64, WF_ROW_MAJOR);
    WF_NEED(wide);
    const wf_status status = wf_tensor_export(wide, to, (size_t)wf_tensor_count(from) * sizeof *to);
    wf_tensor_free(wide);
    return status;
}

/* --- predictions ---------------------------------------------------------------------------------------------------
 */

static wf_status predict_whole(wf_var *scores, int64_t *predicted)
{
    /* A rank without samples still takes part in finish. */
    const wf_var *best = wf_argmax_over(scores, WF_DIMS(1), false);
    WF_NEED(best);
    return read_rows(wf_value(best), predicted);
}

/* A whole number for each double, in the order of wf_argmax_over: NaN is above all, both zeros are equal. */
static int64_t order_key(double v)
{
    int64_t bits;
    const double value = v == 0 ? 0 : v;
    if (isnan(v))
        return INT64_MAX;
    memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? bits ^ INT64_MAX : bits;
}

/* The largest scores of this rank's classes, and which they are among these. */
static wf_status read_largest(wf_var *scores, int64_t rows, int64_t *key, int64_t *place)
{
    const wf_var *most = wf_max_over(scores, WF_DIMS(1), false);
    WF_NEED(most);
    WF_TRY(predict_whole(scores, place));
    wf_tensor *wide = wf_tensor_copy(wf_value(most), WF_F64, WF_ROW_MAJOR);
    WF_NEED(wide);
    /* Numbers of 8 bytes, which become their keys where they are. */
    const wf_status status = wf_tensor_export(wide, key, (size_t)rows * sizeof *key);
    wf_tensor_free(wide);
    for (int64_t r = 0; r < rows && status == WF_OK; r++) {
        double v;
        memcpy(&v, &key[r], sizeof v);
        key[r] = order_key(v);
    }
    return status;
}

/* Each rank has a part of the classes: the largest score of all, and then the first class that has it. */
static wf_status predict_shared(wf_var *scores, const wf_layout *layout, unsigned axes, int64_t rows,
                                int64_t *predicted, int64_t *key, int64_t *most)
{
    wf_comm *comm = wf_mesh_comm(layout->mesh, (wf_axis_set)axes);
    wf_tensor *part = wf_tensor_alias(wf_value(scores));
    wf_status status = comm && part ? wf_tensor_set_layout(part, wf_layout_none()) : wf_error_code();
    wf_var *own = status == WF_OK ? wf_input(wf_var_tape(scores), part) : NULL;
    wf_tensor_free(part);
    WF_NEED(own);
    for (int64_t r = 0; r < rows; r++)
        key[r] = INT64_MIN; /* of a part without classes */
    if (layout->box.hi[1] > layout->box.lo[1])
        WF_TRY(read_largest(own, rows, key, predicted));
    memcpy(most, key, (size_t)rows * sizeof *most);
    WF_TRY(wf_allreduce_i64(comm, most, rows, WF_MAX));
    for (int64_t r = 0; r < rows; r++)
        predicted[r] = key[r] == most[r] && key[r] != INT64_MIN ? layout->box.lo[1] + predicted[r] : INT64_MAX;
    return wf_allreduce_i64(comm, predicted, rows, WF_MIN);
}

static wf_status add_predictions(wf_confusion *confusion, wf_var *scores, const wf_tensor *labels,
                                 const wf_label_opts *opts, unsigned axes)
{
    const wf_layout layout = wf_tensor_layout(wf_value(scores));
    WF_TRY(check_rows(confusion, scores, labels, opts, &layout));
    const int64_t rows = wf_tensor_count(labels);
    const size_t bytes = (axes != 0 ? 4 : 2) * (size_t)rows * sizeof(int64_t);
    void *host = NULL;
    if (rows == 0)
        return WF_OK;
    WF_TRY(wf_host_take(confusion->comm, bytes, &host));
    int64_t *const label = host, *const predicted = label + rows, *const key = predicted + rows;
    wf_status status = read_rows(labels, label);
    if (status == WF_OK && axes == 0)
        status = predict_whole(scores, predicted);
    else if (status == WF_OK)
        status = predict_shared(scores, &layout, axes, rows, predicted, key, key + rows);
    if (status == WF_OK)
        status = count_all(confusion, rows, label, predicted, opts);
    wf_host_give(confusion->comm, host, bytes);
    return status;
}

wf_status wf_confusion_add(wf_confusion *confusion, wf_var *scores, const wf_tensor *labels, wf_label_opts opts)
{
    WF_NEED(confusion);
    WF_NEED(scores);
    WF_NEED(wf_value(scores));
    const wf_layout layout = wf_tensor_layout(wf_value(scores));
    const unsigned axes = wf_layout_axes(&layout, 1u << 1);
    const wf_status status = add_predictions(confusion, scores, labels, &opts, axes);
    /* The others that share the classes may wait for this rank's. */
    return axes != 0 ? wf_comm_post_failure(wf_mesh_world(layout.mesh), status) : status;
}

/* Collective. The counts begin anew, for the next evaluation. */
wf_status wf_confusion_finish(wf_confusion *confusion)
{
    WF_NEED(confusion);
    const int64_t cells = confusion->classes * confusion->classes;
    memcpy(confusion->result, confusion->local, (size_t)cells * sizeof *confusion->local);
    memset(confusion->local, 0, (size_t)cells * sizeof *confusion->local);
    return wf_allreduce_i64(confusion->comm, confusion->result, cells, WF_SUM);
}

/* Numbers outside of the matrix count 0. */
int64_t wf_confusion_count(const wf_confusion *confusion, int64_t label, int64_t predicted)
{
    const int64_t classes = confusion ? confusion->classes : 0;
    const bool within = label >= 0 && label < classes && predicted >= 0 && predicted < classes;
    return within ? confusion->result[label * classes + predicted] : 0;
}

/* right: predicted as their own class; wrong: of another class and predicted as this one; missed: of this class and
 * predicted as another. */
typedef struct outcomes {
    int64_t right, wrong, missed;
} outcomes;

static outcomes outcomes_of(const wf_confusion *confusion, int64_t class_number)
{
    outcomes o = {.right = wf_confusion_count(confusion, class_number, class_number)};
    for (int64_t k = 0; confusion && k < confusion->classes; k++)
        if (k != class_number) {
            o.wrong += wf_confusion_count(confusion, k, class_number);
            o.missed += wf_confusion_count(confusion, class_number, k);
        }
    return o;
}

/* precision = right / (right + wrong), recall = right / (right + missed), F1 = 2 right / (2 right + wrong + missed);
 * NaN for a class that does not occur, which a macro average leaves out. */
static double metric_of(outcomes o, wf_class_metric metric)
{
    const int64_t wrong = metric == WF_RECALL ? 0 : o.wrong, missed = metric == WF_PRECISION ? 0 : o.missed;
    const int64_t right = metric == WF_F1 ? 2 * o.right : o.right, all = right + wrong + missed;
    if (o.right + o.wrong + o.missed == 0)
        return NAN;
    return all > 0 ? (double)right / (double)all : 0;
}

double wf_confusion_of_class(const wf_confusion *confusion, wf_class_metric metric, int64_t class_number)
{
    return metric_of(outcomes_of(confusion, class_number), metric);
}

/* Each class counts the same; a micro average counts each row the same. */
double wf_confusion_macro(const wf_confusion *confusion, wf_class_metric metric)
{
    double sum = 0, present = 0;
    for (int64_t k = 0; confusion && k < confusion->classes; k++) {
        const double value = wf_confusion_of_class(confusion, metric, k);
        sum += isnan(value) ? 0 : value;
        present += isnan(value) ? 0 : 1;
    }
    return present > 0 ? sum / present : NAN;
}

double wf_confusion_micro(const wf_confusion *confusion, wf_class_metric metric)
{
    outcomes all = {0};
    for (int64_t k = 0; confusion && k < confusion->classes; k++) {
        const outcomes o = outcomes_of(confusion, k);
        all.right += o.right;
        all.wrong += o.wrong;
        all.missed += o.missed;
    }
    return metric_of(all, metric);
}

/* Each row that is not right is missed by its label. */
double wf_confusion_accuracy(const wf_confusion *confusion)
{
    return wf_confusion_micro(confusion, WF_RECALL);
}
