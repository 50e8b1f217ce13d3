#include "core/cpu/wide_impl.h"

#define MOST 9 /* arrays of a slot */

typedef struct wide {
    wf_ctx *ctx;
    wf_status status;
    bool any;
    int n;
    struct copy {
        wf_array array;         /* in f32 */
        const wf_array *narrow; /* that it is a copy of */
        size_t bytes;
        bool out;
    } copy[MOST];
} wide;

static wide begin(wf_ctx *ctx)
{
    return (wide){.ctx = ctx, .status = WF_OK};
}

/* As one dimension. */
static wf_strided flat(const wf_array *a)
{
    return (wf_strided){.data = a->data, .dtype = a->dtype, .rank = 1, .dim = {wf_array_count(a)}, .stride = {1}};
}

static wf_status move(wf_ctx *ctx, const wf_array *from, const wf_array *to)
{
    const wf_strided src = flat(from), dst = flat(to);
    return wf_cpu_copy(ctx, &src, &dst, false);
}

static const wf_array *widened(wide *w, const wf_array *a, bool filled, bool out)
{
    if (!a || (a->dtype != WF_BF16 && a->dtype != WF_F16))
        return a;
    w->any = true;
    if (w->status != WF_OK)
        return a;
    struct copy *copy = &w->copy[w->n++];
    *copy = (struct copy){.array = *a, .narrow = a, .out = out};
    copy->array.dtype = WF_F32;
    copy->array.forms = NULL;
    copy->array.data = NULL;
    copy->bytes = a->data ? (size_t)wf_array_count(a) * sizeof(float) : 0;
    w->status = wf_pool_take(w->ctx, copy->bytes, &copy->array.data);
    if (w->status == WF_OK && filled && copy->bytes > 0)
        w->status = move(w->ctx, a, &copy->array);
    return &copy->array;
}

static const wf_array *input(wide *w, const wf_array *a)
{
    return widened(w, a, true, false);
}

static const wf_array *result(wide *w, const wf_array *a, bool filled)
{
    return widened(w, a, filled, true);
}

/* `status` is the slot's. */
static wf_status end(wide *w, wf_status status)
{
    for (int i = 0; i < w->n; i++) {
        const struct copy *copy = &w->copy[i];
        if (status == WF_OK && copy->out && copy->bytes > 0)
            status = move(w->ctx, &copy->array, copy->narrow);
        wf_pool_give(w->ctx, copy->array.data, copy->bytes);
    }
    return status;
}

/* The slot on what is held, where anything was widened and all of it could be. */
#define RUN(slot, ...)                                                                                                 \
    (held.status != WF_OK ? held.status : held.any ? wf_cpu_##slot(ctx, __VA_ARGS__) : REF->slot(ctx, __VA_ARGS__))

wf_status wf_wide_conv_forward(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const w_wide = input(&held, w);
    const wf_array *const bias_wide = input(&held, bias);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(conv_forward, geom, x_wide, w_wide, bias_wide, epilogue, y_wide));
}

wf_status wf_wide_conv_backward_data(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *bias, const wf_epilogue *epilogue, const wf_array *dx)
{
    wide held = begin(ctx);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const w_wide = input(&held, w);
    const wf_array *const bias_wide = input(&held, bias);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end(&held, RUN(conv_backward_data, geom, dy_wide, w_wide, bias_wide, epilogue, dx_wide));
}

wf_status wf_wide_conv_backward_filter(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, const wf_array *dbias, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dw_wide = result(&held, dw, accumulate);
    const wf_array *const dbias_wide = result(&held, dbias, accumulate);
    return end(&held, RUN(conv_backward_filter, geom, x_wide, dy_wide, dw_wide, dbias_wide, accumulate));
}

wf_status wf_wide_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const db_wide = result(&held, db, accumulate);
    return end(&held, RUN(bias_backward, dy_wide, db_wide, accumulate));
}

wf_status wf_wide_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                    const wf_array *dv)
{
    wide held = begin(ctx);
    const wf_array *const y_wide = input(&held, y);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dv_wide = result(&held, dv, false);
    return end(&held, RUN(epilogue_backward, epilogue, y_wide, dy_wide, dv_wide));
}

wf_status wf_wide_matmul(wf_ctx *ctx, const wf_array *a, bool a_transposed, const wf_array *b, bool b_transposed,
                         const wf_array *bias, const wf_array *c, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const a_wide = input(&held, a);
    const wf_array *const b_wide = input(&held, b);
    const wf_array *const bias_wide = input(&held, bias);
    const wf_array *const c_wide = result(&held, c, accumulate);
    return end(&held, RUN(matmul, a_wide, a_transposed, b_wide, b_transposed, bias_wide, c_wide, accumulate));
}

wf_status wf_wide_pool_forward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *x, const wf_array *y,
                               const wf_array *index)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(pool_forward, geom, x_wide, y_wide, index));
}

wf_status wf_wide_pool_backward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *dy, const wf_array *index,
                                const wf_array *dx, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dx_wide = result(&held, dx, accumulate);
    return end(&held, RUN(pool_backward, geom, dy_wide, index, dx_wide, accumulate));
}

wf_status wf_wide_resample_forward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *x, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(resample_forward, geom, x_wide, y_wide));
}

wf_status wf_wide_resample_backward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *dy, const wf_array *dx,
                                    bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dx_wide = result(&held, dx, accumulate);
    return end(&held, RUN(resample_backward, geom, dy_wide, dx_wide, accumulate));
}

wf_status wf_wide_norm_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *m2)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const mean_wide = result(&held, mean, false);
    const wf_array *const m2_wide = result(&held, m2, false);
    return end(&held, RUN(norm_stats, x_wide, mean_wide, m2_wide));
}

wf_status wf_wide_norm_forward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                               const wf_array *gamma, const wf_array *beta, const wf_epilogue *epilogue,
                               const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const mean_wide = input(&held, mean);
    const wf_array *const invstd_wide = input(&held, invstd);
    const wf_array *const gamma_wide = input(&held, gamma);
    const wf_array *const beta_wide = input(&held, beta);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(norm_forward, x_wide, mean_wide, invstd_wide, gamma_wide, beta_wide, epilogue, y_wide));
}

wf_status wf_wide_norm_backward_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                      const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                      const wf_array *sum_g, const wf_array *sum_gx)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const mean_wide = input(&held, mean);
    const wf_array *const invstd_wide = input(&held, invstd);
    const wf_array *const y_wide = input(&held, y);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const sum_g_wide = result(&held, sum_g, false);
    const wf_array *const sum_gx_wide = result(&held, sum_gx, false);
    return end(&held, RUN(norm_backward_stats, x_wide, mean_wide, invstd_wide, epilogue, y_wide, dy_wide, sum_g_wide,
                          sum_gx_wide));
}

wf_status wf_wide_norm_backward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                const wf_array *gamma, const wf_epilogue *epilogue, const wf_array *y,
                                const wf_array *dy, const wf_array *sum_g, const wf_array *sum_gx, wf_count count,
                                const wf_array *dx)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const mean_wide = input(&held, mean);
    const wf_array *const invstd_wide = input(&held, invstd);
    const wf_array *const gamma_wide = input(&held, gamma);
    const wf_array *const y_wide = input(&held, y);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const sum_g_wide = input(&held, sum_g);
    const wf_array *const sum_gx_wide = input(&held, sum_gx);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end(&held, RUN(norm_backward, x_wide, mean_wide, invstd_wide, gamma_wide, epilogue, y_wide, dy_wide,
                          sum_g_wide, sum_gx_wide, count, dx_wide));
}

wf_status wf_wide_act_forward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(act_forward, act, slope, x_wide, y_wide));
}

wf_status wf_wide_act_backward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y,
                               const wf_array *dy, const wf_array *dx, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = input(&held, y);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dx_wide = result(&held, dx, accumulate);
    return end(&held, RUN(act_backward, act, slope, x_wide, y_wide, dy_wide, dx_wide, accumulate));
}

wf_status wf_wide_binary(wf_ctx *ctx, wf_binary op, double alpha, const wf_array *a, double beta, const wf_array *b,
                         const wf_array *y, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const a_wide = input(&held, a);
    const wf_array *const b_wide = input(&held, b);
    const wf_array *const y_wide = result(&held, y, accumulate);
    return end(&held, RUN(binary, op, alpha, a_wide, beta, b_wide, y_wide, accumulate));
}

wf_status wf_wide_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(dropout, rate, random, x_wide, y_wide));
}

wf_status wf_wide_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(epilogue_forward, epilogue, x_wide, y_wide));
}

wf_status wf_wide_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(sum, x_wide, scale, y_wide));
}

wf_status wf_wide_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const out_wide = result(&held, out, accumulate);
    return end(&held, RUN(sum_squares, x_wide, out_wide, accumulate));
}

wf_status wf_wide_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end(&held, RUN(softmax_forward, logarithm, x_wide, y_wide));
}

wf_status wf_wide_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                   const wf_array *dx)
{
    wide held = begin(ctx);
    const wf_array *const y_wide = input(&held, y);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end(&held, RUN(softmax_backward, logarithm, y_wide, dy_wide, dx_wide));
}

wf_status wf_wide_loss_forward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                               double scale, const wf_array *loss)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const target_wide = input(&held, target);
    const wf_array *const loss_wide = result(&held, loss, false);
    return end(&held, RUN(loss_forward, kind, x_wide, target_wide, value, scale, loss_wide));
}

wf_status wf_wide_loss_backward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                                const wf_array *dloss, double scale, const wf_array *dx)
{
    wide held = begin(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const target_wide = input(&held, target);
    const wf_array *const dloss_wide = input(&held, dloss);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end(&held, RUN(loss_backward, kind, x_wide, target_wide, value, dloss_wide, scale, dx_wide));
}

wf_status wf_wide_nll_backward(wf_ctx *ctx, const wf_array *labels, const wf_array *dloss, double scale,
                               const wf_array *dx)
{
    wide held = begin(ctx);
    const wf_array *const dloss_wide = input(&held, dloss);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end(&held, RUN(nll_backward, labels, dloss_wide, scale, dx_wide));
}
