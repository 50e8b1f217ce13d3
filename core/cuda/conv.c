/* Convolution in three directions. cuDNN is asked first for the convolution as it stands, then with the padding made by
 * hand around a copy of x; what it does not take at all is computed by its definition. Called through the table; which
 * engine computes a form is chosen in dnn_graph.c and dnn_tune.c. */
#include "core/cuda/dnn_impl.h"

#include "core/log.h"

#include <string.h>

static bool empty(const wf_array *a)
{
    return wf_array_count(a) == 0;
}

/* Pads at the end that give the same output, since the last stride may leave some of the input over: equal to those at
 * the start where that is possible (few engines take others), and without cropping. All pads of [least, most] give
 * outputs of this length. */
static wf_conv_geom settled(const wf_conv_geom *geom, const wf_array *x, const wf_array *y)
{
    wf_conv_geom g = *geom;
    for (int d = 0; d < g.nd; d++) {
        const int64_t length = x->shape.dim[2 + d] + g.pad_lo[d], reach = g.dilation[d] * (g.kernel[d] - 1) + 1;
        const int64_t least = (y->shape.dim[2 + d] - 1) * g.stride[d] + reach - length, most = least + g.stride[d] - 1;
        if (g.pad_lo[d] >= least && g.pad_lo[d] <= most)
            g.pad_hi[d] = g.pad_lo[d];
        else if (least <= 0 && most >= 0)
            g.pad_hi[d] = 0;
        else if (g.pad_hi[d] < least || g.pad_hi[d] > most)
            g.pad_hi[d] = least; /* the padding of a transposed convolution's output, which nothing reaches */
    }
    return g;
}

/* Neither a crop nor a window wholly in the padding, where engines differ in what they take. */
static bool plain(const wf_conv_geom *g)
{
    for (int d = 0; d < g->nd; d++) {
        const int64_t most = g->dilation[d] * (g->kernel[d] - 1);
        if (g->pad_lo[d] < 0 || g->pad_hi[d] < 0 || g->pad_lo[d] > most || g->pad_hi[d] > most)
            return false;
    }
    return true;
}

/* One dimension is put before cuDNN as two, of which the first has length 1: engines take images of two or three. The
 * key is compared as bytes, so it is zeroed as a whole first. */
static cuda_conv_key conv_key(wf_cuda_direction direction, const wf_conv_geom *g,
                              const wf_array *const array[CUDA_ROLES])
{
    const wf_array *const x = array[CUDA_X], *const y = array[CUDA_Y];
    const int shift = g->nd == 1;
    cuda_conv_key key;
    memset(&key, 0, sizeof key);
    key.direction = (int32_t)direction;
    key.dtype = (int32_t)x->dtype;
    key.nd = g->nd + shift;
    key.n = x->shape.dim[0];
    key.c = x->shape.dim[1];
    key.f = y->shape.dim[1];
    key.groups = g->groups;
    for (int i = 0; i < key.nd; i++) {
        const int d = i - shift;
        key.in[i] = d < 0 ? 1 : x->shape.dim[2 + d];
        key.out[i] = d < 0 ? 1 : y->shape.dim[2 + d];
        key.kernel[i] = d < 0 ? 1 : g->kernel[d];
        key.stride[i] = d < 0 ? 1 : g->stride[d];
        key.dilation[i] = d < 0 ? 1 : g->dilation[d];
        key.lo[i] = d < 0 ? 0 : g->pad_lo[d];
        key.hi[i] = d < 0 ? 0 : g->pad_hi[d];
    }
    for (int r = 0; r < CUDA_ROLES; r++)
        key.align[r] = array[r] ? wf_cuda_alignment(array[r]->data) : 0;
    return key;
}

/* A convolution of the table on its way to cuDNN. */
typedef struct call {
    wf_cuda *own;
    wf_cuda_direction direction;
    wf_conv_geom geom;
    const wf_array *array[CUDA_ROLES];
    const wf_epilogue *fused; /* NULL: none */
    bool added;               /* the result is added to what is there */
} call;

/* A copy of x with its padding, or without what is cropped, and the part that both have. cuDNN then sees a convolution
 * without pads, which more engines take. */
typedef struct frame {
    wf_array padded;
    wf_strided outer, inner; /* the part, in the copy (its data is set when there is a copy) and in x */
    int64_t offset;          /* of the part in the copy, in bytes */
    bool covers, fills;      /* the part is all of x; all of the copy */
    size_t bytes;
} frame;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static size_t bytes_of(const wf_array *a)
{
    return (size_t)wf_array_count(a) * wf_dtype_size(a->dtype);
}

/* Pieces of the workspace begin where an allocation of CUDA would. */
static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* A negative pad crops x: the part begins inside it. A positive one begins inside the copy. */
static frame frame_of(const wf_conv_geom *g, const wf_array *x)
{
    frame f = {.padded = *x, .inner = wf_array_strided(x), .covers = true, .fills = true};
    const int64_t size = (int64_t)wf_dtype_size(x->dtype);
    int64_t skip = 0;
    f.padded.data = NULL;
    f.padded.forms = NULL;
    for (int d = 0; d < g->nd; d++)
        f.padded.shape.dim[2 + d] = larger(0, x->shape.dim[2 + d] + g->pad_lo[d] + g->pad_hi[d]);
    f.outer = wf_array_strided(&f.padded);
    f.bytes = bytes_of(&f.padded);
    for (int d = 0; d < g->nd; d++) {
        const int64_t length = x->shape.dim[2 + d], lo = larger(0, -g->pad_lo[d]);
        const int64_t shared = larger(0, length - lo - larger(0, -g->pad_hi[d]));
        f.inner.dim[2 + d] = f.outer.dim[2 + d] = shared;
        skip += lo * f.inner.stride[2 + d];
        f.offset += (lo + g->pad_lo[d]) * f.outer.stride[2 + d] * size;
        f.covers = f.covers && shared == length;
        f.fills = f.fills && shared == f.padded.shape.dim[2 + d];
    }
    if (f.inner.data)
        f.inner.data = (char *)f.inner.data + skip * size;
    return f;
}

static wf_status into_frame(wf_ctx *ctx, const frame *f)
{
    /* Only the border of the copy needs zeros; it is filled as a whole, once a call. */
    if (!f->fills)
        WF_TRY(wf_cuda_fill(ctx, &f->padded, 0));
    return wf_cuda_copy(ctx, &f->inner, &f->outer, false);
}

/* dx outside the part was cropped from the convolution and has no gradient. */
static wf_status out_of_frame(wf_ctx *ctx, const frame *f, const wf_array *x)
{
    if (!f->covers)
        WF_TRY(wf_cuda_fill(ctx, x, 0));
    return wf_cuda_copy(ctx, &f->outer, &f->inner, false);
}

static cuda_conv_key call_key(const call *c, const wf_conv_geom *geom, const wf_array *x)
{
    const wf_array *const array[CUDA_ROLES] = {x, c->array[CUDA_W], c->array[CUDA_Y], c->array[CUDA_B]};
    cuda_conv_key key = conv_key(c->direction, geom, array);
    if (c->fused) {
        key.act = (int32_t)c->fused->act;
        key.slope = c->fused->act == WF_ACT_LEAKY_RELU ? (float)c->fused->slope : 0.0F;
    }
    /* The result comes into the workspace first, and is added by a pass of its own: it is aligned as that is. */
    if (c->added)
        key.align[CUDA_W] = 16;
    key.wide = c->array[CUDA_W]->dtype != x->dtype;
    return key;
}

/* The plan on the arrays of the call. The workspace holds the frame, the result that is to be added, and what the
 * engine wants. */
static wf_status run_plan(const call *c, cuda_conv_plan *plan, frame *f, bool *done)
{
    wf_ctx *const ctx = c->own->ctx;
    const wf_array *const w = c->array[CUDA_W];
    wf_array fresh = *w;
    void *data[CUDA_ROLES], *space = NULL;
    const size_t framed = f ? rounded(f->bytes) : 0, added = c->added ? rounded(bytes_of(w)) : 0;
    WF_TRY(wf_cuda_workspace(c->own, framed + added + plan->workspace, &space));
    char *const at = space;
    for (int r = 0; r < CUDA_ROLES; r++)
        data[r] = c->array[r] ? c->array[r]->data : NULL;
    if (c->added)
        fresh.data = data[CUDA_W] = at + framed;
    if (f) {
        f->padded.data = data[CUDA_X] = space;
        f->outer.data = at + f->offset;
        if (c->direction != WF_CUDA_BACKWARD_DATA)
            WF_TRY(into_frame(ctx, f));
    }
    WF_TRY(wf_cuda_plan_run(c->own, plan, data, plan->workspace > 0 ? at + framed + added : NULL, done));
    if (*done && f && c->direction == WF_CUDA_BACKWARD_DATA)
        return out_of_frame(ctx, f, c->array[CUDA_X]);
    if (!*done || !c->added)
        return WF_OK;
    const wf_binary_args sum = {.op = WF_BINARY_LINEAR, .alpha = 1, .a = &fresh, .y = w, .accumulate = true};
    return wf_cuda_binary(ctx, &sum);
}

/* *done is false where no engine takes it. A plan whose first run fails is replaced by the next candidate, or by none;
 * so the loop ends with the candidates. */
static wf_status run_key(const call *c, const cuda_conv_key *key, frame *f, bool *done)
{
    *done = false;
    while (!*done) {
        cuda_conv_plan *plan = NULL;
        WF_TRY(wf_cuda_plan_find(c->own, key, &plan));
        if (!plan)
            return WF_OK;
        WF_TRY(run_plan(c, plan, f, done));
    }
    return WF_OK;
}

static wf_status as_it_stands(const call *c, bool *done)
{
    *done = false;
    if (!plain(&c->geom))
        return WF_OK;
    const cuda_conv_key key = call_key(c, &c->geom, c->array[CUDA_X]);
    return run_key(c, &key, NULL, done);
}

/* Only after `as_it_stands` has failed: the copy costs a pass over x. */
static wf_status in_a_frame(const call *c, bool *done)
{
    frame f = frame_of(&c->geom, c->array[CUDA_X]);
    wf_conv_geom bare = c->geom;
    *done = false;
    if (f.bytes == 0)
        return WF_OK;
    for (int d = 0; d < bare.nd; d++)
        bare.pad_lo[d] = bare.pad_hi[d] = 0;
    const cuda_conv_key key = call_key(c, &bare, &f.padded);
    return run_key(c, &key, &f, done);
}

/* A user whose model is slow can learn why. */
static void tell_slow(const call *c)
{
    char x[WF_SHAPE_TEXT], w[WF_SHAPE_TEXT];
    /* Once in a program: the same form comes back in every step. */
    if (c->own->dnn->told)
        return;
    c->own->dnn->told = true;
    wf_log_write(WF_LOG_WARN, "cuDNN has no engine for %s of %s with filter %s: such convolutions are computed slowly",
                 wf_dtype_name(c->array[CUDA_X]->dtype), wf_shape_text(c->array[CUDA_X]->shape, x),
                 wf_shape_text(c->array[CUDA_W]->shape, w));
}

static wf_status by_definition(const call *c)
{
    const wf_array *const x = c->array[CUDA_X], *const w = c->array[CUDA_W], *const y = c->array[CUDA_Y];
    if (c->direction == WF_CUDA_FORWARD)
        return wf_cuda_direct_forward(c->own, &c->geom, x, w, y);
    if (c->direction == WF_CUDA_BACKWARD_DATA)
        return wf_cuda_direct_data(c->own, &c->geom, y, w, x);
    return wf_cuda_direct_filter(c->own, &c->geom, x, y, w, c->added);
}

static wf_status run_conv(const call *c)
{
    bool done = false;
    WF_TRY(as_it_stands(c, &done));
    if (!done)
        WF_TRY(in_a_frame(c, &done));
    if (done)
        return WF_OK;
    tell_slow(c);
    return by_definition(c);
}

/* A filter's gradient of f32 from 16-bit arrays. cuDNN gives that by engines that are compiled for each shape, so it is
 * taken where it was measured to be faster; else the gradient is rounded to 16 bits once, on the way. */
static wf_status run_wide(const call *c)
{
    /* The measured choice knows the f32 result; without measurement no plan is found for it. */
    wf_ctx *const ctx = c->own->ctx;
    const wf_array *const w = c->array[CUDA_W];
    call narrow = *c;
    wf_array rounded = *w;
    bool done = false;
    WF_TRY(as_it_stands(c, &done));
    if (done)
        return WF_OK;
    rounded.dtype = c->array[CUDA_X]->dtype;
    const size_t bytes = bytes_of(&rounded);
    /* From the pool, not the workspace: run_conv uses that itself. */
    WF_TRY(wf_pool_take(ctx, bytes, &rounded.data));
    narrow.array[CUDA_W] = &rounded;
    narrow.added = false;
    const wf_strided from = wf_array_strided(&rounded), to = wf_array_strided(w);
    wf_status status = run_conv(&narrow);
    if (status == WF_OK)
        status = wf_cuda_copy(ctx, &from, &to, c->added);
    wf_pool_give(ctx, rounded.data, bytes);
    return status;
}

/* Epilogues are fused only as it stands: in a frame the gradient of x would be padded. */
static wf_status run_fused(const call *plain_call, const wf_array *bias, const wf_epilogue *epilogue, bool *done)
{
    call c = *plain_call;
    c.array[CUDA_B] = bias;
    c.fused = epilogue;
    return as_it_stands(&c, done);
}

/* The two directions that give activations, of which `to` is what is computed. */
static wf_status activations(call *c, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *to)
{
    wf_ctx *const ctx = c->own->ctx;
    const bool noisy = epilogue && epilogue->noise != 0, active = epilogue && epilogue->act != WF_ACT_NONE;
    /* An empty bias belongs to no filter. */
    const wf_array *const added = bias && !empty(bias) ? bias : NULL;
    const bool follows = added || active || noisy,
               any = !empty(c->array[CUDA_W]) && !empty(c->array[CUDA_X]) && !empty(c->array[CUDA_Y]);
    bool done = false;
    /* No filter or no pixel: a sum of nothing, but bias and activation still follow. */
    if (!any)
        WF_TRY(wf_cuda_fill(ctx, to, 0));
    /* Fused first, as one graph; if no engine has it, the convolution and then bias and activation in one pass. */
    if (any && follows && !noisy)
        WF_TRY(run_fused(c, added, active ? epilogue : NULL, &done));
    if (any && !done)
        WF_TRY(run_conv(c));
    return done || !follows ? WF_OK : wf_cuda_bias_epilogue(ctx, added, epilogue, to);
}

static wf_status call_of(wf_ctx *ctx, wf_cuda_direction direction, const wf_conv_args *args, call *c)
{
    const wf_array *const x = args->x, *const w = args->w, *const y = args->y;
    *c = (call){.direction = direction, .geom = settled(args->geom, x, y), .array = {x, w, y, NULL}};
    WF_CHECK(wf_dtype_is_float(x->dtype), WF_ERR_UNSUPPORTED, "device \"cuda\" convolves float types, not %s",
             wf_dtype_name(x->dtype));
    return wf_cuda_here(ctx, &c->own);
}

wf_status wf_cuda_conv_forward(wf_ctx *ctx, const wf_conv_args *args)
{
    call c;
    WF_TRY(call_of(ctx, WF_CUDA_FORWARD, args, &c));
    return empty(args->y) ? WF_OK : activations(&c, args->bias, args->epilogue, args->y);
}

wf_status wf_cuda_conv_backward_data(wf_ctx *ctx, const wf_conv_args *args)
{
    call c;
    WF_TRY(call_of(ctx, WF_CUDA_BACKWARD_DATA, args, &c));
    return empty(args->x) ? WF_OK : activations(&c, args->bias, args->epilogue, args->x);
}

wf_status wf_cuda_conv_backward_filter(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const x = args->x, *const dy = args->y, *const dw = args->w, *const dbias = args->bias;
    call c;
    WF_TRY(call_of(ctx, WF_CUDA_BACKWARD_FILTER, args, &c));
    c.added = args->accumulate;
    if (!empty(dw) && !empty(x) && !empty(dy))
        WF_TRY(dw->dtype == x->dtype ? run_conv(&c) : run_wide(&c));
    /* No sample: the gradient is 0, and adding it changes nothing. */
    else if (!empty(dw) && !args->accumulate)
        WF_TRY(wf_cuda_fill(ctx, dw, 0));
    return dbias && !empty(dbias) ? wf_cuda_bias_backward(ctx, dy, dbias, args->accumulate) : WF_OK;
}

/* Measurements for tools alone, outside of the cache of plans. */
wf_status wf_cuda_conv_best(wf_ctx *ctx, wf_cuda_direction direction, const wf_conv_args *args, double *ms)
{
    call c;
    WF_TRY(call_of(ctx, direction, args, &c));
    const cuda_conv_key key = call_key(&c, &c.geom, args->x);
    return wf_cuda_plan_best(c.own, &key, ms);
}
