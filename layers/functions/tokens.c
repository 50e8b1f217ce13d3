/* Images as rows of tokens and back. Channels-last memory of [N,C,...] is that of [N,T,C] row by row, so neither way
 * copies. A cut of the first spatial dimension is a cut of the tokens; a cut of another one is none. */
#include "comm/mesh_author.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

/* Ranks of an axis that fit into the array on the stack. */
enum { MOST_BOUNDS = 4096 };

/* State of both nodes: the input's shape and how it lay. */
typedef struct tokens_state {
    wf_shape shape;
    wf_order seen, order; /* as the value was taken; the input's own */
} tokens_state;

/* The way back is a view as well: memory in the order in which the value was taken, under the input's shape. */
static wf_status return_view(wf_node *node)
{
    const tokens_state *state = node->state;
    wf_tensor *seen = wf_tensor_recast(wf_node_dy(node), state->shape, state->seen);
    wf_tensor *dx = seen ? wf_tensor_dense(seen, seen->dtype, state->order) : NULL;
    wf_tensor_free(seen);
    return wf_function_give(node, 0, dx);
}

static const wf_op tokens_op = {.name = "tokens", .backward = return_view};
static const wf_op image_op = {.name = "image", .backward = return_view};

/* Dimension 1 or 2 of a layout goes from rows to tokens, of which each row has `width`, or back (`divide`). False: a
 * part ends within a row. */
static bool scale_rows(const wf_mesh *mesh, wf_layout *layout, int dim, int64_t width, bool divide)
{
    int64_t bounds[MOST_BOUNDS + 1], *const lo = &layout->box.lo[dim], *const hi = &layout->box.hi[dim],
                                            *const whole = &layout->global.dim[dim];
    if (divide && (width < 1 || *lo % width != 0 || *hi % width != 0 || *whole % width != 0))
        return false;
    *lo = divide ? *lo / width : *lo * width;
    *hi = divide ? *hi / width : *hi * width;
    *whole = divide ? *whole / width : *whole * width;
    for (int a = 0; a < WF_AXES; a++) {
        if (layout->placement[a] != WF_SHARDED || layout->dim[a] != dim || !layout->bounds[a])
            continue;
        const int size = wf_mesh_size(mesh, (wf_axis)a);
        if (size > MOST_BOUNDS)
            return false;
        for (int r = 0; r <= size; r++) {
            /* Bounds of other ranks are judged as well, so all ranks refuse together. */
            const int64_t bound = layout->bounds[a][r];
            if (divide && bound % width != 0)
                return false;
            bounds[r] = divide ? bound / width : bound * width;
        }
        /* The mesh owns the bounds and gives one pointer for equal ones. */
        layout->bounds[a] = wf_mesh_bounds_recent(mesh, (wf_axis)a, bounds);
        if (!layout->bounds[a])
            return false;
    }
    return true;
}

static wf_status check_layout(const char *what, const wf_var *x, bool good)
{
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(good, WF_ERR_SHAPE,
             "%s of a variable of layout %s: parts must be whole rows of the first spatial dimension; wf_redistribute "
             "it first",
             what, wf_layout_text(&x->value->layout, text));
    return WF_OK;
}

static wf_var *record_view(const wf_op *op, wf_var *x, wf_order seen, wf_shape shape, wf_order order, wf_layout layout)
{
    const tokens_state state = {.shape = x->value->shape, .seen = seen, .order = x->value->order};
    /* Copies only if the value does not lie in this order already. */
    wf_tensor *v = wf_tensor_dense(x->value, x->value->dtype, seen);
    wf_tensor *y = v ? wf_tensor_recast(v, shape, order) : NULL;
    wf_tensor_free(v);
    return wf_function_finish(
        y ? wf_tensor_set_layout(y, layout) : wf_error_code(), x->tape,
        &(wf_node_spec){.op = op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state}, y);
}

wf_var *wf_tokens(wf_var *x)
{
    char text[WF_SHAPE_TEXT];
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("tokens", x));
    const wf_shape in = x->value->shape;
    WF_CHECK_NULL(in.rank >= 3 && in.rank <= 5, WF_ERR_SHAPE, "tokens takes an image [N,C,...] of rank 3 to 5, not %s",
                  wf_shape_text(in, text));
    int64_t width = 1, from = in.dim[2];
    for (int d = 3; d < in.rank; d++)
        width *= in.dim[d];
    wf_layout layout;
    const wf_shape shape = WF_SHAPE(in.dim[0], from * width, in.dim[1]);
    /* Token dimension from the first spatial one, features from the channels. The others must be whole, which follow
     * checks. */
    bool good = wf_layout_follow(&x->value->layout, shape, (const int[]){0, 2, 1}, &layout);
    if (good && layout.known && wf_layout_is_sharded(&layout, 1))
        good = scale_rows(layout.mesh, &layout, 1, width, false);
    WF_TRY_NULL(check_layout("tokens", x, good));
    return record_view(&tokens_op, x, WF_CHANNELS_LAST, shape, WF_ROW_MAJOR, layout);
}

wf_var *wf_image(wf_var *x, wf_shape pixels)
{
    char text[WF_SHAPE_TEXT], given[WF_SHAPE_TEXT];
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("image", x));
    const wf_shape in = x->value->shape;
    WF_CHECK_NULL(in.rank == 3 && pixels.rank >= 1 && pixels.rank <= 3 && wf_shape_count(pixels) == in.dim[1],
                  WF_ERR_SHAPE, "image takes tokens [N,T,E] and 1 to 3 lengths whose product is T, not %s and %s",
                  wf_shape_text(in, text), wf_shape_text(pixels, given));
    wf_shape shape = {.rank = 2 + pixels.rank, .dim = {in.dim[0], in.dim[2]}};
    int from[WF_MAX_RANK] = {0, 2, 1, -1, -1, -1};
    int64_t width = 1;
    for (int d = 0; d < pixels.rank; d++) {
        shape.dim[2 + d] = pixels.dim[d];
        width *= d > 0 ? pixels.dim[d] : 1;
    }
    wf_layout layout;
    bool good = wf_layout_follow(&x->value->layout, shape, from, &layout);
    if (good && layout.known && wf_layout_is_sharded(&layout, 2))
        good = scale_rows(layout.mesh, &layout, 2, width, true);
    WF_TRY_NULL(check_layout("image", x, good));
    return record_view(&image_op, x, WF_ROW_MAJOR, shape, WF_CHANNELS_LAST, layout);
}

/* Blocks of pixels as channels. y is a channels-last image whose channel (j block + i) C + c is channel c of pixel (i,
 * j) of its block. */

typedef struct merge_state {
    int64_t block;
    wf_order order; /* of x */
} merge_state;

/* The elements of a channels-last image, or of the merged one, in one sequence: samples, rows of blocks, blocks of a
 * row, columns and rows of a block, channels. */
static wf_strided blocks_of(const wf_tensor *image, int64_t block, bool merged)
{
    const wf_shape s = image->shape;
    const int64_t b = block, rows = merged ? s.dim[2] : s.dim[2] / b, columns = merged ? s.dim[3] : s.dim[3] / b;
    const int64_t c = merged ? s.dim[1] / (b * b) : s.dim[1], line = columns * b * c; /* of one row of pixels */
    wf_strided v = {.data = image->data,
                    .dtype = image->dtype,
                    .rank = 6,
                    .dim = {s.dim[0], rows, columns, b, b, c},
                    .stride = {rows * b * line, b * line, b * c, c, line, 1}};
    /* The merged image is dense in this sequence, so each stride is the product of what lies inside. */
    if (merged)
        for (int d = 4; d >= 0; d--)
            v.stride[d] = v.stride[d + 1] * v.dim[d + 1];
    return v;
}

static wf_status copy_blocks(const wf_tensor *image, const wf_tensor *merged, int64_t block, bool back)
{
    const wf_strided a = blocks_of(image, block, false), b = blocks_of(merged, block, true);
    return image->ctx->k->copy(image->ctx, back ? &b : &a, back ? &a : &b, false);
}

static wf_status merge_backward(wf_node *node)
{
    const merge_state *state = node->state;
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *image = wf_tensor_new_step(dy->ctx, dy->dtype, node->in[0]->value->shape, WF_CHANNELS_LAST);
    wf_status status = image ? copy_blocks(image, dy, state->block, true) : wf_error_code();
    wf_tensor *dx = status == WF_OK ? wf_tensor_dense(image, image->dtype, state->order) : NULL;
    wf_tensor_free(image);
    return dx ? wf_function_give(node, 0, dx) : wf_error_code();
}

static const wf_op merge_op = {.name = "merge_patches", .backward = merge_backward};

/* Judges the whole image where a layout tells it, so that every rank has the same verdict. */
static wf_status check_blocks(const wf_tensor *x, int64_t block)
{
    char text[WF_SHAPE_TEXT];
    const wf_shape whole = x->layout.known ? x->layout.global : x->shape;
    WF_CHECK(whole.rank == 4 && whole.dim[2] % block == 0 && whole.dim[3] % block == 0, WF_ERR_SHAPE,
             "merge_patches takes an image [N,C,H,W] of whole blocks of %lld, not %s", (long long)block,
             wf_shape_text(whole, text));
    return WF_OK;
}

static wf_status merge_layout(const wf_layout *in, wf_shape shape, int64_t block, wf_layout *out)
{
    char text[WF_LAYOUT_TEXT];
    /* A cut of the input's channels cannot follow: each part would have channels from all over the merged ones. */
    bool good = !wf_layout_is_sharded(in, 1) && wf_layout_follow(in, shape, (const int[]){0, -1, 2, 3}, out);
    for (int d = 2; d < 4 && good; d++)
        if (out->known && wf_layout_is_sharded(out, d))
            good = scale_rows(out->mesh, out, d, block, true);
    WF_CHECK(good, WF_ERR_SHAPE,
             "merge_patches of layout %s: parts must be whole blocks of %lld, with all channels; wf_redistribute it "
             "first",
             wf_layout_text(in, text), (long long)block);
    return WF_OK;
}

wf_var *wf_merge_patches(wf_var *x, int64_t block)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(wf_function_check_value("merge_patches", x));
    const wf_shape in = x->value->shape;
    WF_CHECK_NULL(block >= 1, WF_ERR_ARGUMENT, "merge_patches: block is %lld, should be at least 1", (long long)block);
    WF_TRY_NULL(check_blocks(x->value, block));
    const wf_shape shape = WF_SHAPE(in.dim[0], in.dim[1] * block * block, in.dim[2] / block, in.dim[3] / block);
    wf_layout layout;
    WF_TRY_NULL(merge_layout(&x->value->layout, shape, block, &layout));
    const merge_state state = {.block = block, .order = x->value->order};
    wf_tensor *v = wf_tensor_dense(x->value, x->value->dtype, WF_CHANNELS_LAST);
    wf_tensor *y = v ? wf_tensor_new_step(v->ctx, v->dtype, shape, WF_CHANNELS_LAST) : NULL;
    wf_status status = y ? copy_blocks(v, y, block, false) : wf_error_code();
    if (status == WF_OK)
        status = wf_tensor_set_layout(y, layout);
    wf_tensor_free(v);
    return wf_function_finish(
        status, x->tape,
        &(wf_node_spec){.op = &merge_op, .n_in = 1, .in = &x, .state = &state, .state_bytes = sizeof state}, y);
}
