/* Slots in 16-bit types that no fast kernel takes: inputs are widened to f32, the f32 slot runs, results are rounded
 * once. Where nothing was narrow the slot goes to `ref`, so this is also the way out for every other type. */
#include "core/cpu/cpu_impl.h"

#define MOST 8 /* arrays of a slot */

/* The widened arrays of one call. Each slot below fills one, runs, and gives all memory back in end_wide, on failure
 * too. */
typedef struct wide {
    wf_ctx *ctx;
    wf_status status;
    bool any;
    int n;
    /* One array in both forms. */
    struct copy {
        wf_array array;         /* in f32 */
        const wf_array *narrow; /* that it is a copy of */
        size_t bytes;
        bool out;
    } copy[MOST];
} wide;

/* The first failure is kept in `status`, and later arrays are not widened: callers check once, in RUN. */
static wide begin_wide(wf_ctx *ctx)
{
    return (wide){.ctx = ctx, .status = WF_OK};
}

/* As one dimension. */
static wf_strided as_one_row(const wf_array *a)
{
    return (wf_strided){.data = a->data, .dtype = a->dtype, .rank = 1, .dim = {wf_array_count(a)}, .stride = {1}};
}

static wf_status convert_array(wf_ctx *ctx, const wf_array *from, const wf_array *to)
{
    const wf_strided src = as_one_row(from), dst = as_one_row(to);
    return wf_cpu_copy(ctx, &src, &dst, false);
}

/* `filled` copies the elements in, for inputs and for results that are added to; `out` copies them back at the end. */
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
    /* Packed forms of a filter belong to the narrow array. */
    copy->array.forms = NULL;
    /* Absent arrays stay absent: NULL is part of what a slot is told. */
    copy->array.data = NULL;
    copy->bytes = a->data ? (size_t)wf_array_count(a) * sizeof(float) : 0;
    w->status = wf_pool_take(w->ctx, copy->bytes, &copy->array.data);
    if (w->status == WF_OK && filled && copy->bytes > 0)
        w->status = convert_array(w->ctx, a, &copy->array);
    return &copy->array;
}

static const wf_array *input(wide *w, const wf_array *a)
{
    return widened(w, a, true, false);
}

/* Filled if the slot adds to what is there. */
static const wf_array *result(wide *w, const wf_array *a, bool filled)
{
    return widened(w, a, filled, true);
}

/* `status` is the slot's. */
static wf_status end_wide(wide *w, wf_status status)
{
    /* Memory goes back whether the slot failed or not; results are rounded only if all of them are good. */
    for (int i = 0; i < w->n; i++) {
        const struct copy *copy = &w->copy[i];
        if (status == WF_OK && copy->out && copy->bytes > 0)
            status = convert_array(w->ctx, &copy->array, copy->narrow);
        wf_pool_give(w->ctx, copy->array.data, copy->bytes);
    }
    return status;
}

/* The slot on the widened arrays, if anything was widened and all of it could be. Without narrow arrays the type is one
 * that the cpu slot has refused, so calling it again would come back here forever: `ref` runs. */
#define RUN(slot, ...) (held.status != WF_OK ? held.status : (held.any ? wf_cpu_##slot : REF->slot)(ctx, __VA_ARGS__))

wf_status wf_wide_conv_forward(wf_ctx *ctx, const wf_conv_args *args)
{
    wide held = begin_wide(ctx);
    wf_conv_args wider = *args;
    wider.x = input(&held, args->x);
    wider.w = input(&held, args->w);
    wider.bias = input(&held, args->bias);
    wider.y = result(&held, args->y, false);
    return end_wide(&held, RUN(conv_forward, &wider));
}

wf_status wf_wide_conv_backward_data(wf_ctx *ctx, const wf_conv_args *args)
{
    wide held = begin_wide(ctx);
    wf_conv_args wider = *args;
    wider.y = input(&held, args->y);
    wider.w = input(&held, args->w);
    wider.bias = input(&held, args->bias);
    wider.x = result(&held, args->x, false);
    return end_wide(&held, RUN(conv_backward_data, &wider));
}

wf_status wf_wide_conv_backward_filter(wf_ctx *ctx, const wf_conv_args *args)
{
    wide held = begin_wide(ctx);
    wf_conv_args wider = *args;
    wider.x = input(&held, args->x);
    wider.y = input(&held, args->y);
    wider.w = result(&held, args->w, args->accumulate);
    wider.bias = result(&held, args->bias, args->accumulate);
    return end_wide(&held, RUN(conv_backward_filter, &wider));
}

wf_status wf_wide_matmul(wf_ctx *ctx, const wf_matmul_args *args)
{
    wide held = begin_wide(ctx);
    wf_matmul_args wider = *args;
    wider.a = input(&held, args->a);
    wider.b = input(&held, args->b);
    wider.bias = input(&held, args->bias);
    wider.c = result(&held, args->c, args->accumulate);
    return end_wide(&held, RUN(matmul, &wider));
}

wf_status wf_wide_matmul_stack(wf_ctx *ctx, const wf_matmul_stack_args *args)
{
    wide held = begin_wide(ctx);
    wf_matmul_stack_args wider = *args;
    wider.a = input(&held, args->a);
    wider.b = input(&held, args->b);
    wider.c = result(&held, args->c, args->accumulate);
    return end_wide(&held, RUN(matmul_stack, &wider));
}

/* The slots of all types: the kernels of f32 do not call back, which would close a circle of files. */
wf_status wf_wide_neighbourhood_forward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    wide held = begin_wide(ctx);
    wf_neighbourhood_args wider = *args;
    wider.q = input(&held, args->q);
    wider.k = input(&held, args->k);
    wider.v = input(&held, args->v);
    wider.y = result(&held, args->y, false);
    return end_wide(&held, held.status != WF_OK
                               ? held.status
                               : (args->q->dtype == WF_F64 ? REF->neighbourhood_forward
                                                           : wf_cpu_neighbourhood_forward)(ctx, &wider));
}

wf_status wf_wide_neighbourhood_backward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    wide held = begin_wide(ctx);
    wf_neighbourhood_args wider = *args;
    wider.q = input(&held, args->q);
    wider.k = input(&held, args->k);
    wider.v = input(&held, args->v);
    wider.y = input(&held, args->y);
    wider.dy = input(&held, args->dy);
    wider.dq = result(&held, args->dq, false);
    wider.dk = result(&held, args->dk, false);
    wider.dv = result(&held, args->dv, false);
    return end_wide(&held, held.status != WF_OK
                               ? held.status
                               : (args->q->dtype == WF_F64 ? REF->neighbourhood_backward
                                                           : wf_cpu_neighbourhood_backward)(ctx, &wider));
}

wf_status wf_wide_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y)
{
    wide held = begin_wide(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end_wide(&held, RUN(sum, x_wide, scale, y_wide));
}

wf_status wf_wide_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate)
{
    wide held = begin_wide(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const out_wide = result(&held, out, accumulate);
    return end_wide(&held, RUN(sum_squares, x_wide, out_wide, accumulate));
}

wf_status wf_wide_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y)
{
    wide held = begin_wide(ctx);
    const wf_array *const x_wide = input(&held, x);
    const wf_array *const y_wide = result(&held, y, false);
    return end_wide(&held, RUN(softmax_forward, logarithm, x_wide, y_wide));
}

wf_status wf_wide_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                   const wf_array *dx)
{
    wide held = begin_wide(ctx);
    const wf_array *const y_wide = input(&held, y);
    const wf_array *const dy_wide = input(&held, dy);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end_wide(&held, RUN(softmax_backward, logarithm, y_wide, dy_wide, dx_wide));
}

wf_status wf_wide_loss_forward(wf_ctx *ctx, const wf_loss_args *args)
{
    wide held = begin_wide(ctx);
    wf_loss_args wider = *args;
    wider.x = input(&held, args->x);
    wider.target = input(&held, args->target);
    wider.loss = result(&held, args->loss, false);
    return end_wide(&held, RUN(loss_forward, &wider));
}

wf_status wf_wide_loss_backward(wf_ctx *ctx, const wf_loss_args *args)
{
    wide held = begin_wide(ctx);
    wf_loss_args wider = *args;
    wider.x = input(&held, args->x);
    wider.target = input(&held, args->target);
    wider.dloss = input(&held, args->dloss);
    wider.dx = result(&held, args->dx, false);
    return end_wide(&held, RUN(loss_backward, &wider));
}

wf_status wf_wide_nll_backward(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *dloss,
                               double scale, const wf_array *dx)
{
    wide held = begin_wide(ctx);
    const wf_array *const dloss_wide = input(&held, dloss);
    const wf_array *const dx_wide = result(&held, dx, false);
    return end_wide(&held, RUN(nll_backward, labels, ignored, dloss_wide, scale, dx_wide));
}

wf_status wf_wide_entropy_forward(wf_ctx *ctx, const wf_entropy_args *args)
{
    wide held = begin_wide(ctx);
    wf_entropy_args wider = *args;
    wider.x = input(&held, args->x);
    /* The slot compares the type of dx with that of x, which is another now; forward does not write it. */
    wider.dx = NULL;
    return end_wide(&held, RUN(entropy_forward, &wider));
}

wf_status wf_wide_entropy_backward(wf_ctx *ctx, const wf_entropy_args *args)
{
    wide held = begin_wide(ctx);
    wf_entropy_args wider = *args;
    wider.x = input(&held, args->x);
    wider.dx = result(&held, args->dx, false);
    return end_wide(&held, RUN(entropy_backward, &wider));
}
