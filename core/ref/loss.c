/* Losses, sums, softmax and counts of correct answers in plain loops, with sums in double in a fixed order: the
 * oracle. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* The largest is subtracted so that exp never overflows; a NaN becomes the largest and with that every output. */
static double most_of(int64_t c, const double *x)
{
    double most = -INFINITY;
    for (int64_t j = 0; j < c; j++)
        most = x[j] > most || isnan(x[j]) ? x[j] : most;
    return most;
}

static double sum_of(int64_t c, const double *x, double most)
{
    double sum = 0;
    for (int64_t j = 0; j < c; j++)
        sum += exp(x[j] - most);
    return sum;
}

/* The softmax of x and its logarithm share the largest element and the sum. */
static void softmax_row(bool logarithm, int64_t c, const double *x, double *y)
{
    const double most = most_of(c, x), sum = sum_of(c, x, most), log_sum = log(sum);
    for (int64_t j = 0; j < c; j++)
        y[j] = logarithm ? x[j] - most - log_sum : exp(x[j] - most) / sum;
}

wf_status wf_ref_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y)
{
    int64_t rows, c;
    wf_ref_rows(x, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, x);
    double *const yv = wf_ref_out(&frame, y, false);
    for (int64_t r = 0; r < rows && frame.status == WF_OK && c > 0; r++)
        softmax_row(logarithm, c, xv + r * c, yv + r * c);
    return wf_ref_end(&frame);
}

/* For the softmax dx = y (dy - sum dy y), for its logarithm dx = dy - exp(y) sum dy. */
static void softmax_back_row(bool logarithm, int64_t c, const double *y, const double *dy, double *dx)
{
    double sum = 0;
    for (int64_t j = 0; j < c; j++)
        sum += logarithm ? dy[j] : dy[j] * y[j];
    for (int64_t j = 0; j < c; j++)
        /* Needs only y: the softmax is y or its exponential. */
        dx[j] = logarithm ? dy[j] - exp(y[j]) * sum : y[j] * (dy[j] - sum);
}

wf_status wf_ref_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                  const wf_array *dx)
{
    int64_t rows, c;
    wf_ref_rows(y, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const yv = wf_ref_in(&frame, y), *const dyv = wf_ref_in(&frame, dy);
    double *const dxv = wf_ref_out(&frame, dx, false);
    for (int64_t r = 0; r < rows && frame.status == WF_OK && c > 0; r++)
        softmax_back_row(logarithm, c, yv + r * c, dyv + r * c, dxv + r * c);
    return wf_ref_end(&frame);
}

/* -t log s(x) - (1 - t) log(1 - s(x)) in a form that neither overflows nor loses digits for large |x|. */
static double bce_value(double x, double t)
{
    return (x < 0 ? 0 : x) - x * t + log1p(exp(-fabs(x)));
}

/* Lin et al. 2017 for targets between 0 and 1 too: the weight of a target, and how far the probability is off. */
static double focal_weight(const wf_loss_args *a, double t)
{
    return a->alpha < 0 ? 1 : a->alpha * t + (1 - a->alpha) * (1 - t);
}

static double focal_miss(double x, double t)
{
    return (1 - t) / (1 + exp(-x)) + t / (1 + exp(x));
}

/* (bce m^gamma)' = (p - t) m^gamma + bce gamma m^(gamma - 1) m', with m' = (1 - 2 t) p (1 - p). */
static double focal_derivative(const wf_loss_args *a, double x, double t)
{
    const double p = 1 / (1 + exp(-x)), q = 1 / (1 + exp(x)), m = focal_miss(x, t);
    const double power = pow(m, a->gamma), rise = m > 0 ? a->gamma * power / m * (1 - 2 * t) * p * q : 0;
    return focal_weight(a, t) * ((t < 0.5 ? p - t : 1 - t - q) * power + bce_value(x, t) * rise);
}

static double loss_value(const wf_loss_args *a, double x, double t)
{
    const double d = fabs(x - t);
    switch (a->kind) {
    case WF_LOSS_BCE_LOGITS:
        return bce_value(x, t);
    case WF_LOSS_HUBER:
        return d <= a->delta ? d * d / 2 : a->delta * (d - a->delta / 2);
    case WF_LOSS_KL:
        return t == 0 ? 0 : t * (log(t) - x);
    case WF_LOSS_FOCAL:
        return focal_weight(a, t) * pow(focal_miss(x, t), a->gamma) * bce_value(x, t);
    case WF_LOSS_MSE:
        return (x - t) * (x - t);
    case WF_LOSS_L1:
        return fabs(x - t);
    }
    return NAN;
}

static double loss_derivative(const wf_loss_args *a, double x, double t)
{
    const double d = x - t;
    switch (a->kind) {
    case WF_LOSS_HUBER:
        return d > a->delta ? a->delta : d < -a->delta ? -a->delta : d;
    case WF_LOSS_KL:
        return -t;
    case WF_LOSS_FOCAL:
        return focal_derivative(a, x, t);
    case WF_LOSS_BCE_LOGITS:
        return 1 / (1 + exp(-x)) - t;
    case WF_LOSS_MSE:
        return 2 * (x - t);
    case WF_LOSS_L1:
        /* The last branch is 0 where they are equal and NaN where one is. */
        return x > t ? 1 : x < t ? -1 : x - t;
    }
    return NAN;
}

wf_status wf_ref_loss_forward(wf_ctx *ctx, const wf_loss_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(args->x);
    const double *const xv = wf_ref_in(&frame, args->x), *const tv = wf_ref_in(&frame, args->target);
    double *const out = wf_ref_out(&frame, args->loss, false);
    if (frame.status == WF_OK) {
        /* A loss of rank 0 is the sum; any other shape has one value for each element. */
        const bool each = args->loss->shape.rank > 0;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            const double value = loss_value(args, xv[i], tv ? tv[i] : args->value);
            sum += value;
            if (each)
                out[i] = args->scale * value;
        }
        if (!each)
            *out = args->scale * sum;
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_loss_backward(wf_ctx *ctx, const wf_loss_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(args->x);
    const double value = args->value, scale = args->scale;
    const bool each = args->dloss->shape.rank > 0;
    const double *const xv = wf_ref_in(&frame, args->x), *const tv = wf_ref_in(&frame, args->target),
                        *const up = wf_ref_in(&frame, args->dloss);
    double *const dxv = wf_ref_out(&frame, args->dx, false);
    if (frame.status == WF_OK)
        for (int64_t i = 0; i < n; i++)
            dxv[i] = up[each ? i : 0] * scale * loss_derivative(args, xv[i], tv ? tv[i] : value);
    return wf_ref_end(&frame);
}

/* Labels and indices may have any integer type; others are a mistake of the program. */
wf_status wf_ref_integer(const char *what, const wf_array *a, int64_t i, int64_t *value)
{
    if (a->dtype == WF_U8)
        *value = ((const uint8_t *)a->data)[i];
    else if (a->dtype == WF_I32)
        *value = ((const int32_t *)a->data)[i];
    else if (a->dtype == WF_I64)
        *value = ((const int64_t *)a->data)[i];
    else
        WF_FAIL(WF_ERR_DTYPE, "%s are %s; they must be u8, i32 or i64", what, wf_dtype_name(a->dtype));
    return WF_OK;
}

/* Labels come from files, so each is checked before it becomes an index. -1 where it is ignored. */
static wf_status label_at(const wf_array *labels, int64_t row, int64_t c, int64_t ignored, int64_t *label)
{
    WF_TRY(wf_ref_integer("labels", labels, row, label));
    if (wf_is_ignored(*label, ignored)) {
        *label = -1;
        return WF_OK;
    }
    WF_CHECK(*label >= 0 && *label < c, WF_ERR_ARGUMENT, "label %lld in row %lld is outside [0, %lld)",
             (long long)*label, (long long)row, (long long)c);
    return WF_OK;
}

wf_status wf_ref_nll_forward(wf_ctx *ctx, const wf_array *logp, const wf_array *labels, int64_t ignored, double scale,
                             const wf_array *loss)
{
    int64_t rows, c;
    wf_ref_rows(logp, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, logp);
    double *const out = wf_ref_out(&frame, loss, false);
    double sum = 0;
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        int64_t label = 0;
        frame.status = label_at(labels, r, c, ignored, &label);
        if (frame.status == WF_OK && label >= 0)
            sum -= xv[r * c + label];
    }
    if (frame.status == WF_OK)
        *out = scale * sum;
    return wf_ref_end(&frame);
}

wf_status wf_ref_nll_backward(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *dloss, double scale,
                              const wf_array *dx)
{
    int64_t rows, c;
    wf_ref_rows(dx, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const up = wf_ref_in(&frame, dloss);
    double *const dxv = wf_ref_out(&frame, dx, false);
    for (int64_t i = 0; i < rows * c && frame.status == WF_OK; i++)
        dxv[i] = 0;
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        int64_t label = 0;
        frame.status = label_at(labels, r, c, ignored, &label);
        if (frame.status == WF_OK && label >= 0)
            dxv[r * c + label] = -*up * scale;
    }
    return wf_ref_end(&frame);
}

/* A row of scores whose softmax is exp(x - most - log_sum): the classes [first, first + c) of `whole`. w: the weights
 * of all classes, or NULL. */
typedef struct entropy_row {
    const double *x, *w;
    int64_t c, first, whole, label;
    double most, log_sum, smoothing;
} entropy_row;

static entropy_row entropy_row_of(const wf_entropy_args *args, int64_t c, const double *x, const double *w)
{
    return (entropy_row){.x = x,
                         .w = w,
                         .c = c,
                         .first = args->most ? args->first : 0,
                         .whole = wf_entropy_classes(args, c),
                         .smoothing = args->smoothing};
}

static double weight_at(const entropy_row *row, int64_t j)
{
    return row->w ? row->w[j] : 1;
}

static double log_softmax_at(const entropy_row *row, int64_t j)
{
    return row->x[j] - row->most - row->log_sum;
}

/* With smoothing each class has the target smoothing / classes, and the label the rest besides. A rank that has only
 * some classes gives their part: the ranks' values are summed. */
static double entropy_value(const entropy_row *row)
{
    const int64_t own = row->label - row->first;
    double all = 0, hit = 0;
    for (int64_t j = 0; j < row->c && row->smoothing > 0; j++)
        all += weight_at(row, row->first + j) * -log_softmax_at(row, j);
    /* The label's class may lie on another rank. */
    if (own >= 0 && own < row->c)
        hit = (1 - row->smoothing) * weight_at(row, row->label) * -log_softmax_at(row, own);
    return hit + row->smoothing / (double)row->whole * all;
}

/* softmax times the sum of target weights, minus the target weight of each class. The sum goes over all classes, also
 * over those of other ranks. */
static void entropy_slopes(const entropy_row *row, double up, double *dx)
{
    const double hit = (1 - row->smoothing) * weight_at(row, row->label), rest = row->smoothing / (double)row->whole;
    double total = 0;
    for (int64_t j = 0; j < row->whole && row->smoothing > 0; j++)
        total += weight_at(row, j);
    for (int64_t j = 0; j < row->c; j++) {
        const double slope = exp(log_softmax_at(row, j)) * up * (hit + rest * total);
        const double smooth = row->smoothing > 0 ? slope - up * rest * weight_at(row, row->first + j) : slope;
        dx[j] = j == row->label - row->first ? smooth - up * hit : smooth;
    }
}

/* The first call of a forward by parts: the caller joins most and log_sum over the ranks, then calls again with a
 * loss. */
static wf_status entropy_sums(wf_ctx *ctx, const wf_entropy_args *args)
{
    int64_t rows, c;
    wf_ref_rows(args->x, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x);
    double *const most = wf_ref_out(&frame, args->most, false), *const log_sum =
                                                                    wf_ref_out(&frame, args->log_sum, false);
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        most[r] = most_of(c, xv + r * c);
        /* -infinity minus itself would be NaN; a row without any score has no sum. */
        log_sum[r] = most[r] == -INFINITY ? -INFINITY : log(sum_of(c, xv + r * c, most[r]));
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_entropy_forward(wf_ctx *ctx, const wf_entropy_args *args)
{
    int64_t rows, c;
    if (!args->loss)
        return entropy_sums(ctx, args);
    wf_ref_rows(args->x, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const w = wf_ref_in(&frame, args->weight);
    const double *const most = wf_ref_in(&frame, args->most), *const all =
                                                                  most ? wf_ref_in(&frame, args->log_sum) : NULL;
    double *const log_sum = most ? NULL : wf_ref_out(&frame, args->log_sum, false);
    double *const out = wf_ref_out(&frame, args->loss, false);
    const bool each = args->loss->shape.rank > 0;
    double sum = 0;
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        entropy_row row = entropy_row_of(args, c, xv + r * c, w);
        frame.status = label_at(args->labels, r, row.whole, args->ignored, &row.label);
        if (frame.status != WF_OK)
            break;
        row.most = most ? most[r] : most_of(c, row.x);
        row.log_sum = most ? all[r] : log(sum_of(c, row.x, row.most));
        if (!most)
            log_sum[r] = row.log_sum;
        /* An ignored row adds 0; its log_sum is stored all the same, so none is left undefined. */
        const double value = row.label >= 0 ? entropy_value(&row) : 0;
        sum += value;
        if (each)
            out[r] = args->scale * value;
    }
    if (frame.status == WF_OK && !each)
        *out = args->scale * sum;
    return wf_ref_end(&frame);
}

wf_status wf_ref_entropy_backward(wf_ctx *ctx, const wf_entropy_args *args)
{
    int64_t rows, c;
    wf_ref_rows(args->x, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const log_sum = wf_ref_in(&frame, args->log_sum),
                        *const dloss = wf_ref_in(&frame, args->dloss), *const w = wf_ref_in(&frame, args->weight),
                        *const most = wf_ref_in(&frame, args->most);
    double *const dxv = wf_ref_out(&frame, args->dx, false);
    const bool each = args->dloss->shape.rank > 0;
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        entropy_row row = entropy_row_of(args, c, xv + r * c, w);
        frame.status = label_at(args->labels, r, row.whole, args->ignored, &row.label);
        if (frame.status != WF_OK)
            break;
        /* Found again rather than stored: one pass over a row that is read anyway. */
        row.most = most ? most[r] : most_of(c, row.x);
        row.log_sum = log_sum[r];
        for (int64_t j = 0; j < c && row.label < 0; j++)
            dxv[r * c + j] = 0;
        if (row.label >= 0)
            entropy_slopes(&row, dloss[each ? r : 0] * args->scale, dxv + r * c);
    }
    return wf_ref_end(&frame);
}

/* Element j of a part of a row that begins at `first`, by size: a NaN is largest at the head of the row. */
static double size_of(const double *x, int64_t first, int64_t j)
{
    if (!isnan(x[j]))
        return x[j];
    return first + j == 0 ? INFINITY : -INFINITY;
}

/* How many elements of a part come before that of size `own` at `place` of the row, by size and then by place. */
static int64_t count_before(const double *x, int64_t c, int64_t first, int64_t place, double own)
{
    int64_t before = 0;
    for (int64_t j = 0; j < c; j++) {
        const double v = size_of(x, first, j);
        before += v > own || (v == own && first + j < place);
    }
    return before;
}

wf_status wf_ref_count_correct(wf_ctx *ctx, const wf_array *scores, const wf_array *labels, int64_t ignored, int64_t k,
                               const wf_array *correct)
{
    int64_t rows, c, count = 0;
    wf_ref_rows(scores, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, scores);
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        int64_t label = 0;
        frame.status = label_at(labels, r, c, ignored, &label);
        count += frame.status == WF_OK && label >= 0 &&
                 count_before(xv + r * c, c, 0, label, size_of(xv + r * c, 0, label)) < k;
    }
    if (frame.status == WF_OK)
        memcpy(correct->data, &count, sizeof count);
    return wf_ref_end(&frame);
}

wf_status wf_ref_label_place(wf_ctx *ctx, const wf_label_place_args *a)
{
    int64_t rows, c;
    wf_ref_rows(a->x, &rows, &c);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, a->x), *const given = a->before ? wf_ref_in(&frame, a->at) : NULL;
    double *const at = a->before ? NULL : wf_ref_out(&frame, a->at, false);
    int64_t *const before = a->before ? a->before->data : NULL;
    for (int64_t r = 0; r < rows && frame.status == WF_OK; r++) {
        const double *const x = xv + r * c;
        int64_t label = 0;
        frame.status = label_at(a->labels, r, a->whole, a->ignored, &label);
        if (frame.status != WF_OK)
            break;
        const int64_t here = label - a->first;
        if (!before)
            at[r] = label >= 0 && here >= 0 && here < c ? size_of(x, a->first, here) : -INFINITY;
        else
            before[r] = label < 0 ? -1 : count_before(x, c, a->first, label, given[r]);
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_count_labels(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *count)
{
    const int64_t rows = wf_array_count(labels);
    int64_t counted = 0, label = 0;
    for (int64_t r = 0; r < rows; r++) {
        WF_TRY(wf_ref_integer("labels", labels, r, &label));
        counted += !wf_is_ignored(label, ignored);
    }
    memcpy(count->data, &counted, sizeof counted);
    return WF_OK;
}
