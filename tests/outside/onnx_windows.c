/* Convolution, pooling and upsampling, also cut over a mesh. */
#include "tests/outside/onnx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a window is, from the attributes. */
typedef struct windows {
    int nd;
    int64_t kernel[3], stride[3], dilation[3], lo[3], hi[3], more[3];
} windows;

static void read_each(const onnx_call *call, const char *name, int nd, int64_t otherwise, int64_t to[3])
{
    for (int d = 0; d < 3; d++)
        to[d] = otherwise;
    onnx_ints(call, name, nd, to);
}

/* Half of the padding on each side; what is odd goes to the upper side, or to the lower for SAME_LOWER. */
static void share_padding(const onnx_call *call, windows *w, int d, int64_t total)
{
    total = total > 0 ? total : 0;
    w->lo[d] = onnx_word_is(call, "auto_pad", "SAME_LOWER") ? total - total / 2 : total / 2;
    w->hi[d] = total - w->lo[d];
}

static bool is_same(const onnx_call *call)
{
    return onnx_word_is(call, "auto_pad", "SAME_UPPER") || onnx_word_is(call, "auto_pad", "SAME_LOWER");
}

/* Windows over x, of this kernel where the attributes have none. */
static windows read_windows(const onnx_call *call, wf_shape x, const int64_t *kernel)
{
    windows w = {.nd = x.rank - 2};
    int64_t pads[6] = {0};
    read_each(call, "kernel_shape", w.nd, 1, w.kernel);
    read_each(call, "strides", w.nd, 1, w.stride);
    read_each(call, "dilations", w.nd, 1, w.dilation);
    read_each(call, "output_padding", w.nd, 0, w.more);
    onnx_ints(call, "pads", 2 * w.nd, pads);
    for (int d = 0; d < w.nd; d++) {
        if (kernel && !onnx_find(call, "kernel_shape"))
            w.kernel[d] = kernel[d];
        w.lo[d] = pads[d];
        w.hi[d] = pads[w.nd + d];
        const int64_t length = x.dim[2 + d], extent = w.dilation[d] * (w.kernel[d] - 1) + 1;
        const int64_t outputs = (length + w.stride[d] - 1) / w.stride[d];
        if (is_same(call))
            share_padding(call, &w, d, (outputs - 1) * w.stride[d] + extent - length);
    }
    return w;
}

static wf_conv_opts conv_opts(const onnx_call *call, const windows *w, int64_t in, int64_t out, bool bias)
{
    wf_conv_opts o = {.nd = w->nd, .in = in, .out = out, .groups = onnx_int(call, "group", 1), .no_bias = !bias};
    memcpy(o.kernel_nd, w->kernel, sizeof o.kernel_nd);
    memcpy(o.stride_nd, w->stride, sizeof o.stride_nd);
    memcpy(o.dilation_nd, w->dilation, sizeof o.dilation_nd);
    memcpy(o.output_pad_nd, w->more, sizeof o.output_pad_nd);
    memcpy(o.pad_lo_nd, w->lo, sizeof o.pad_lo_nd);
    memcpy(o.pad_hi_nd, w->hi, sizeof o.pad_hi_nd);
    return o;
}

static wf_layer *conv_layer(onnx_call *call, bool transposed, wf_conv_opts opts)
{
    static wf_layer *(*const serial[2])(wf_ctx *, wf_conv_opts) = {wf_conv, wf_conv_transpose};
    static wf_layer *(*const spatial[2])(const wf_mesh *, wf_conv_opts) = {wf_spatial_conv, wf_spatial_conv_transpose};
    static wf_layer *(*const channels[2])(const wf_mesh *, wf_conv_opts) = {wf_mesh_conv, wf_mesh_conv_transpose};
    const onnx_run *run = call->run;
    if (run->mesh && wf_mesh_size(run->mesh, WF_AXIS_CHANNEL) > 1)
        return onnx_layer(call, channels[transposed](run->mesh, opts));
    return onnx_layer(call, run->mesh ? spatial[transposed](run->mesh, opts) : serial[transposed](run->ctx, opts));
}

static wf_var *convolve(onnx_call *call, wf_var *x, wf_var *kernel, wf_var *bias)
{
    const wf_shape k = wf_var_shape(kernel);
    const windows w = read_windows(call, onnx_whole_shape(x), &k.dim[2]);
    const int64_t in = k.dim[1] * onnx_int(call, "group", 1);
    wf_layer *layer = conv_layer(call, false, conv_opts(call, &w, in, k.dim[0], bias));
    onnx_set_param(layer, "W", kernel);
    if (bias)
        onnx_set_param(layer, "b", bias);
    return wf_apply(layer, x);
}

static wf_var *say_conv(onnx_call *call)
{
    return convolve(call, call->in[0], call->in[1], call->in[2]);
}

/* Zero points are subtracted first. */
static wf_var *say_conv_integer(onnx_call *call)
{
    wf_var *x = onnx_float(call->in[0]), *kernel = onnx_float(call->in[1]);
    x = wf_sub(x, onnx_scalar(call, x, onnx_number(call, 2, 0)));
    kernel = wf_sub(kernel, onnx_scalar(call, kernel, onnx_number(call, 3, 0)));
    return wf_cast(onnx_round(call, convolve(call, x, kernel, NULL)), WF_I32);
}

/* Pads follow from the shape of the output, where that is given; where the output is longer, outputs are added. */
static void pad_for_output(const onnx_call *call, windows *w, wf_shape x)
{
    int64_t wanted[3] = {0};
    const bool given = onnx_ints(call, "output_shape", w->nd, wanted) > 0;
    for (int d = 0; d < w->nd && (given || is_same(call)); d++) {
        const int64_t length = given ? wanted[d] : x.dim[2 + d] * w->stride[d],
                      extent = w->dilation[d] * (w->kernel[d] - 1) + 1;
        const int64_t total = w->stride[d] * (x.dim[2 + d] - 1) + w->more[d] + extent - length;
        w->lo[d] = w->hi[d] = 0;
        if (total < 0)
            w->more[d] -= total;
        else {
            w->lo[d] = onnx_word_is(call, "auto_pad", "SAME_UPPER") ? total / 2 : total - total / 2;
            w->hi[d] = total - w->lo[d];
        }
    }
}

static wf_var *say_conv_transpose(onnx_call *call)
{
    const wf_shape k = wf_var_shape(call->in[1]), x = onnx_whole_shape(call->in[0]);
    windows w = read_windows(call, x, &k.dim[2]);
    pad_for_output(call, &w, x);
    const int64_t out = k.dim[1] * onnx_int(call, "group", 1);
    wf_conv_opts opts = conv_opts(call, &w, k.dim[0], out, call->in[2]);
    opts.form = WF_FORM_FILTER; /* a rank has some of the outputs, since the cases have one input */
    wf_layer *layer = conv_layer(call, true, opts);
    onnx_set_param(layer, "W", call->in[1]);
    if (call->in[2])
        onnx_set_param(layer, "b", call->in[2]);
    return wf_apply(layer, call->in[0]);
}

/* --- pooling
 * -----------------------------------------------------------------------------------------------------------
 */

static wf_pool_opts pool_opts(const onnx_call *call, const windows *w)
{
    wf_pool_opts o = {.nd = w->nd,
                      .ceil_mode = onnx_int(call, "ceil_mode", 0) != 0,
                      .count_include_pad = onnx_int(call, "count_include_pad", 0) != 0};
    memcpy(o.kernel_nd, w->kernel, sizeof o.kernel_nd);
    memcpy(o.stride_nd, w->stride, sizeof o.stride_nd);
    memcpy(o.dilation_nd, w->dilation, sizeof o.dilation_nd);
    memcpy(o.pad_lo_nd, w->lo, sizeof o.pad_lo_nd);
    memcpy(o.pad_hi_nd, w->hi, sizeof o.pad_hi_nd);
    return o;
}

static wf_layer *pool_layer(onnx_call *call, bool average, wf_pool_opts opts)
{
    static wf_layer *(*const serial[2])(wf_ctx *, wf_pool_opts) = {wf_max_pool, wf_avg_pool};
    static wf_layer *(*const spatial[2])(const wf_mesh *, wf_pool_opts) = {wf_spatial_max_pool, wf_spatial_avg_pool};
    const onnx_run *run = call->run;
    return onnx_layer(call, run->mesh ? spatial[average](run->mesh, opts) : serial[average](run->ctx, opts));
}

/* Pads of more than half a window, which no layer takes, are put around x first: of minus infinity, or zeros that an
 * average counts; where it should not count them, it is divided by the share of the elements that are there. */
static wf_var *pool_padded(onnx_call *call, wf_var *x, bool average, const windows *w)
{
    const bool counts = onnx_int(call, "count_include_pad", 0) != 0;
    windows bare = *w;
    int64_t lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    for (int d = 0; d < w->nd; d++) {
        lo[2 + d] = w->lo[d];
        hi[2 + d] = w->hi[d];
        bare.lo[d] = bare.hi[d] = 0;
    }
    wf_layer *layer = pool_layer(call, average, pool_opts(call, &bare));
    wf_var *y = wf_apply(layer, wf_pad(x, lo, hi, (wf_boundary){.value = average ? 0 : -INFINITY}));
    if (!average || counts)
        return y;
    wf_var *none = wf_scale(x, 0), *ones = wf_add(none, onnx_scalar(call, none, 1));
    return wf_div(y, wf_apply(layer, wf_pad(ones, lo, hi, (wf_boundary){0})));
}

/* Places row by row, or column by column. ONNX counts over all samples and channels, of which its cases have one. */
static wf_var *count_places(onnx_call *call, wf_var *places)
{
    const wf_shape x = onnx_whole_shape(call->in[0]);
    if (onnx_int(call, "storage_order", 0) == 0)
        return places;
    wf_var *at = wf_cast(places, WF_F64), *width = onnx_scalar(call, at, (double)x.dim[3]);
    wf_var *row = wf_cast(wf_cast(wf_div(at, width), WF_I64), WF_F64), *column = wf_sub(at, wf_mul(row, width));
    return wf_cast(wf_add(wf_scale(column, (double)x.dim[2]), row), WF_I64);
}

static wf_var *pool_with_places(onnx_call *call, wf_layer *layer, wf_var *x)
{
    const wf_shape shape = onnx_whole_shape(x);
    wf_var *places, *y = wf_max_pool_with_places(layer, x, &places);
    if (shape.dim[0] * shape.dim[1] != 1 || (onnx_int(call, "storage_order", 0) != 0 && shape.rank != 4))
        return NULL;
    call->out[1] = count_places(call, places);
    return y;
}

static wf_var *pool_by(onnx_call *call, bool average)
{
    const windows w = read_windows(call, onnx_whole_shape(call->in[0]), NULL);
    wf_var *x = onnx_float(call->in[0]);
    const bool places = call->node->n_out > 1;
    for (int d = 0; d < w.nd; d++)
        if (2 * (w.lo[d] > w.hi[d] ? w.lo[d] : w.hi[d]) > w.dilation[d] * (w.kernel[d] - 1) + 1)
            return places ? NULL : pool_padded(call, x, average, &w);
    wf_layer *layer = pool_layer(call, average, pool_opts(call, &w));
    if (places)
        return pool_with_places(call, layer, x);
    return onnx_like(call, wf_apply(layer, x), call->in[0]);
}

static wf_var *say_max_pool(onnx_call *call)
{
    return pool_by(call, false);
}

/* Places are those in the image that the windows give; a larger one has it in its corner. */
static wf_var *say_max_unpool(onnx_call *call)
{
    const wf_shape x = onnx_whole_shape(call->in[0]);
    const windows w = read_windows(call, x, NULL);
    int64_t size[WF_MAX_RANK] = {0}, lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    if (x.dim[0] * x.dim[1] != 1)
        return NULL;
    wf_var *y = wf_max_unpool(call->in[0], call->in[1], pool_opts(call, &w), (wf_shape){0});
    if (!y || onnx_read(call, 2, WF_MAX_RANK, size) == 0)
        return y;
    for (int d = 2; d < x.rank; d++)
        hi[d] = size[d] - wf_var_shape(y).dim[d];
    return wf_pad(y, lo, hi, (wf_boundary){0});
}

static wf_var *say_average_pool(onnx_call *call)
{
    return pool_by(call, true);
}

static wf_var *say_global_max_pool(onnx_call *call)
{
    const onnx_run *run = call->run;
    wf_layer *layer = run->mesh ? wf_spatial_global_max_pool(run->mesh) : wf_global_max_pool(run->ctx);
    return wf_apply(onnx_layer(call, layer), call->in[0]);
}

static wf_var *say_global_average_pool(onnx_call *call)
{
    const onnx_run *run = call->run;
    wf_layer *layer = run->mesh ? wf_spatial_global_avg_pool(run->mesh) : wf_global_avg_pool(run->ctx);
    return wf_apply(onnx_layer(call, layer), call->in[0]);
}

/* --- upsampling
 * ----------------------------------------------------------------------------------------------------------
 */

/* By whole factors; the nearest element at the floor of the quotient, or, the same for whole factors, of centres. */
static wf_var *upsample(onnx_call *call, const double *scale, wf_upsample_opts opts)
{
    const int nd = onnx_rank(call->in[0]) - 2;
    if (nd < 1 || nd > 3 || scale[0] != 1 || scale[1] != 1)
        return NULL;
    opts.nd = nd;
    for (int d = 0; d < nd; d++) {
        if (scale[2 + d] < 1 || scale[2 + d] != floor(scale[2 + d]))
            return NULL;
        opts.scale_nd[d] = (int64_t)scale[2 + d];
    }
    const onnx_run *run = call->run;
    wf_layer *layer = run->mesh ? wf_spatial_upsample(run->mesh, opts) : wf_upsample(run->ctx, opts);
    return wf_apply(onnx_layer(call, layer), call->in[0]);
}

/* Reads the factors of an input; false where there are none. */
static bool read_scales(const onnx_call *call, int port, double scale[WF_MAX_RANK])
{
    if (port >= call->node->n_in || !call->in[port] ||
        wf_tensor_count(wf_value(call->in[port])) != onnx_rank(call->in[0]))
        return false;
    double *number = onnx_numbers(call->in[port]);
    memcpy(scale, number, (size_t)onnx_rank(call->in[0]) * sizeof *scale);
    free(number);
    return true;
}

static wf_var *say_upsample(onnx_call *call)
{
    double scale[WF_MAX_RANK];
    if (!read_scales(call, 1, scale))
        return NULL;
    return upsample(call, scale, (wf_upsample_opts){.mode = WF_UPSAMPLE_NEAREST});
}

/* What an input says of the image's dimensions, of all or of `axes`, and `otherwise` of the others; false where it says
 * nothing, or something of samples or channels that is not `other`. */
static bool read_axes(const onnx_call *call, int port, const double other[2], double otherwise, double to[3])
{
    const wf_shape x = onnx_whole_shape(call->in[0]);
    int64_t axes[WF_MAX_RANK] = {0, 1, 2, 3, 4, 5};
    const bool some = onnx_ints(call, "axes", x.rank, axes) > 0;
    if (port >= call->node->n_in || !call->in[port] || x.rank < 3 || x.rank > 5)
        return false;
    const int64_t count = wf_tensor_count(wf_value(call->in[port]));
    double *number = onnx_numbers(call->in[port]);
    bool image = count > 0 && (some || count == x.rank);
    for (int d = 0; d < 3; d++)
        to[d] = otherwise;
    for (int64_t i = 0; i < count && image; i++) {
        const int64_t d = axes[i] < 0 ? axes[i] + x.rank : axes[i];
        if (d >= 2)
            to[d - 2] = number[i];
        else
            image = number[i] == other[d];
    }
    free(number);
    return image;
}

static bool read_sizes(const onnx_call *call, wf_resize_opts *opts)
{
    const wf_shape x = onnx_whole_shape(call->in[0]);
    double size[3];
    if (!read_axes(call, 3, (const double[]){(double)x.dim[0], (double)x.dim[1]}, 0, size))
        return false;
    for (int d = 0; d < x.rank - 2; d++)
        opts->size[d] = (int64_t)size[d];
    return true;
}

static bool read_resize_scales(const onnx_call *call, wf_resize_opts *opts)
{
    const wf_shape x = onnx_whole_shape(call->in[0]);
    double scale[3];
    if (!read_axes(call, 2, (const double[]){1, 1}, 1, scale))
        return false;
    for (int d = 0; d < x.rank - 2; d++) {
        const double length = floor(scale[d] * (double)x.dim[2 + d]);
        /* Places by sizes are exact, where both are the same. */
        if (opts->places == WF_PLACES_ALIGNED || length == scale[d] * (double)x.dim[2 + d])
            opts->size[d] = (int64_t)length;
        else
            opts->scale[d] = scale[d];
    }
    return true;
}

/* The mode, the places and the rounding, as far as the layer has them. */
static bool read_resize_modes(const onnx_call *call, wf_resize_opts *o)
{
    const char *coordinates = "coordinate_transformation_mode";
    const bool nearest = !onnx_find(call, "mode") || onnx_word_is(call, "mode", "nearest");
    o->mode = nearest ? WF_RESIZE_NEAREST : onnx_word_is(call, "mode", "linear") ? WF_RESIZE_LINEAR : WF_RESIZE_CUBIC;
    if (!onnx_find(call, coordinates) || onnx_word_is(call, coordinates, "half_pixel"))
        o->places = WF_PLACES_CENTRES;
    else if (onnx_word_is(call, coordinates, "align_corners"))
        o->places = WF_PLACES_ALIGNED;
    else if (onnx_word_is(call, coordinates, "asymmetric"))
        o->places = WF_PLACES_LEFT;
    else if (nearest && onnx_word_is(call, coordinates, "tf_half_pixel_for_nn") && !onnx_find(call, "nearest_mode")) {
        /* The nearest of places that are half an element farther. */
        o->places = WF_PLACES_CENTRES;
        o->rounding = WF_ROUND_UP;
        return true;
    } else
        return false;
    if (nearest)
        o->rounding = onnx_word_is(call, "nearest_mode", "floor")               ? WF_ROUND_DOWN
                      : onnx_word_is(call, "nearest_mode", "ceil")              ? WF_ROUND_UP
                      : onnx_word_is(call, "nearest_mode", "round_prefer_ceil") ? WF_ROUND_HALF_UP
                                                                                : WF_ROUND_HALF_DOWN;
    if (o->mode == WF_RESIZE_CUBIC)
        o->cubic = onnx_real(call, "cubic_coeff_a", -0.75);
    return onnx_int(call, "exclude_outside", 0) == 0 && onnx_int(call, "antialias", 0) == 0 &&
           !onnx_find(call, "keep_aspect_ratio_policy");
}

static wf_var *say_resize(onnx_call *call)
{
    wf_resize_opts opts = {0};
    if (!read_resize_modes(call, &opts) || (!read_sizes(call, &opts) && !read_resize_scales(call, &opts)))
        return NULL;
    const onnx_run *run = call->run;
    wf_layer *layer = run->mesh ? wf_spatial_resize(run->mesh, opts) : wf_resize(run->ctx, opts);
    return wf_apply(onnx_layer(call, layer), call->in[0]);
}

/* Pads of more than half a window, which no layer takes, are put around x. */
static wf_var *put_zeros(wf_var *x, windows *w)
{
    int64_t lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    for (int d = 0; d < w->nd; d++) {
        if (2 * (w->lo[d] > w->hi[d] ? w->lo[d] : w->hi[d]) <= w->dilation[d] * (w->kernel[d] - 1) + 1)
            continue;
        lo[2 + d] = w->lo[d];
        hi[2 + d] = w->hi[d];
        w->lo[d] = w->hi[d] = 0;
    }
    return wf_pad(x, lo, hi, (wf_boundary){0});
}

/* The absolute values count, as in the layer. */
static wf_var *say_lp_pool(onnx_call *call)
{
    windows w = read_windows(call, onnx_whole_shape(call->in[0]), NULL);
    wf_var *x = put_zeros(call->in[0], &w);
    wf_layer *layer = wf_lp_pool(call->run->ctx, (double)onnx_int(call, "p", 2), pool_opts(call, &w));
    if (layer && call->run->mesh && wf_parallelize(layer, call->run->mesh, WF_PARALLEL_SPATIAL) != WF_OK)
        return NULL;
    return wf_apply(onnx_layer(call, layer), x);
}

const onnx_operator onnx_windows[] = {{"Conv", say_conv, ONNX_IMAGES},
                                      {"ConvInteger", say_conv_integer, ONNX_WHOLE},
                                      {"ConvTranspose", say_conv_transpose, ONNX_CHANNELS},
                                      {"MaxPool", say_max_pool, ONNX_CHANNELS},
                                      {"MaxUnpool", say_max_unpool, ONNX_WHOLE},
                                      {"AveragePool", say_average_pool, ONNX_CHANNELS},
                                      {"GlobalMaxPool", say_global_max_pool, ONNX_CHANNELS},
                                      {"GlobalAveragePool", say_global_average_pool, ONNX_CHANNELS},
                                      {"Upsample", say_upsample, ONNX_CHANNELS},
                                      {"Resize", say_resize, ONNX_CHANNELS},
                                      {"LpPool", say_lp_pool, ONNX_CHANNELS},
                                      {0}};
