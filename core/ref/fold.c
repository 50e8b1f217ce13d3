/* Folds in plain loops: arithmetic of strided arrays, with sums over any dimensions. The oracle. Sums run in the order
 * of the dimensions, the last one fastest. */
#include "core/ref/ref_impl.h"

/* One term of a fold. In the gradients a is dy and b is x: CLIP_X passes dy inside the bounds, PRELU_X scales it by
 * slope c where x is not above 0, and PRELU_SLOPE is the slope's own term. */
static double fold_value(const wf_fold_args *f, double a, double b, double c)
{
    switch (f->op) {
    case WF_FOLD_LINEAR:
        return f->alpha * a + (f->b ? f->beta * b : 0);
    case WF_FOLD_MUL:
        return f->alpha * a * b;
    case WF_FOLD_DIV:
        return f->alpha * a / b;
    case WF_FOLD_MULDIV:
        return f->alpha * a * b / c;
    case WF_FOLD_WHERE:
        return c != 0 ? a : b;
    case WF_FOLD_CLIP:
        return a < f->alpha ? f->alpha : a > f->beta ? f->beta : a;
    case WF_FOLD_CLIP_X:
        return b < f->alpha || b > f->beta ? 0 : a;
    case WF_FOLD_PRELU:
        return a < 0 ? a * b : a;
    case WF_FOLD_PRELU_X:
        return b <= 0 ? a * c : a;
    case WF_FOLD_PRELU_SLOPE:
        return b < 0 ? a * b : 0;
    case WF_FOLD_OPS:
        break;
    }
    return 0;
}

/* A stride of 0 reads one element again and again: that is how arrays are broadcast. */
static double element(const wf_strided *a, const int64_t *at)
{
    int64_t place = 0;
    double v = 0;
    if (!a)
        return 0;
    for (int d = 0; d < a->rank; d++)
        place += at[d] * a->stride[d];
    wf_ref_load(a->dtype, (const char *)a->data + place * (int64_t)wf_dtype_size(a->dtype), 1, 1, &v);
    return v;
}

/* Steps to the next element along the dimensions whose stride in y is 0 (or is not, `folded` false). False: it was the
 * last one, and `at` is back at the first. */
static bool next(const wf_strided *y, bool folded, int64_t *at)
{
    for (int d = y->rank - 1; d >= 0; d--) {
        if ((y->stride[d] == 0) != folded)
            continue;
        if (++at[d] < y->dim[d])
            return true;
        at[d] = 0;
    }
    return false;
}

/* True: the dimensions of that kind have no elements at all. */
static bool none(const wf_strided *y, bool folded)
{
    for (int d = 0; d < y->rank; d++)
        if ((y->stride[d] == 0) == folded && y->dim[d] == 0)
            return true;
    return false;
}

wf_status wf_ref_fold(wf_ctx *ctx, const wf_fold_args *args)
{
    const wf_strided *const y = args->y;
    int64_t at[WF_MAX_RANK] = {0};
    (void)ctx;
    if (none(y, false))
        return WF_OK;
    /* A sum over nothing is 0, and is still written. */
    const bool empty = none(y, true);
    do {
        double sum = 0;
        int64_t place = 0;
        for (int d = 0; d < y->rank; d++)
            place += at[d] * y->stride[d];
        if (!empty)
            do
                sum += fold_value(args, element(args->a, at), element(args->b, at), element(args->c, at));
            while (next(y, true, at));
        void *const to = (char *)y->data + place * (int64_t)wf_dtype_size(y->dtype);
        double held = 0;
        if (args->accumulate)
            wf_ref_load(y->dtype, to, 1, 1, &held);
        sum += held;
        wf_ref_store(y->dtype, to, 1, 1, &sum);
    } while (next(y, false, at));
    return WF_OK;
}
