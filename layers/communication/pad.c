/* Padding and rolls: both look at a variable through a window, a box of the variable as its boundary continues it.
 * Forward brings the pieces of each rank's part of the window, backward adds their gradients to their sources. A
 * variable without a layout does so with copies alone, one with a layout by the mesh's exchange, which sends where
 * dimensions are cut. */
#include "layers/pad.h"

#include "comm/mesh_author.h"
#include "layers/communication/communication_impl.h"

#include <string.h>

typedef struct window {
    wf_layout from, to;          /* of the variable, and of what is seen; unknown: this rank's own, of these shapes */
    wf_shape in, out;            /* of the whole */
    int64_t origin[WF_MAX_RANK]; /* the first element that is seen */
    wf_boundary boundary;
    int64_t negated[]; /* the boundary's own list may be gone in backward */
} window;

/* The list of negated channels lies behind the struct, so that the node's state is one piece. */
static size_t pad_bytes(const wf_boundary *boundary)
{
    const size_t negated = boundary->n_negated > 0 ? (size_t)boundary->n_negated : 0;
    return sizeof(window) + negated * sizeof(int64_t);
}

/* Its list is behind w, wherever w was copied to. */
static wf_boundary boundary_of(const window *w)
{
    wf_boundary b = w->boundary;
    b.negated = b.n_negated > 0 ? w->negated : NULL;
    return b;
}

/* All that is seen, in the coordinates of the variable. */
static wf_box seen_of(const window *w)
{
    wf_box box = wf_box_of_shape(w->out);
    for (int d = 0; d < box.rank; d++) {
        box.lo[d] += w->origin[d];
        box.hi[d] += w->origin[d];
    }
    return box;
}

/* --- of parts -------------------------------------------------------------------------------------------------------
 */

static bool is_cut(const wf_layout *layout, int axis)
{
    return layout->placement[axis] == WF_SHARDED;
}

/* The axes over which a dimension is cut that the window moves. */
static unsigned axes_moved(const window *w)
{
    const wf_boundary boundary = boundary_of(w);
    unsigned axes = 0;
    /* Dimensions that the window leaves alone need no message. */
    for (int a = 0; a < WF_AXES; a++)
        if (is_cut(&w->from, a) && wf_boundary_moves(w->in, &boundary, seen_of(w), w->from.dim[a]))
            axes |= 1u << a;
    return axes;
}

/* Lists the parts of the variable that each rank has and sees; dimensions that stay are in local coordinates. Bounds of
 * the moved ones are those of all ranks. */
static void padded_regions(const window *w, unsigned axes, wf_regions *have, wf_regions *need, wf_range *rest,
                           wf_range *range)
{
    const wf_box seen = seen_of(w);
    have->global = need->global = w->in;
    for (int d = 0; d < w->in.rank; d++)
        rest[d] = (wf_range){seen.lo[d], seen.hi[d]};
    for (int a = 0; a < WF_AXES; a++) {
        const int d = w->from.dim[a];
        have->dim[a] = need->dim[a] = -1;
        if (!is_cut(&w->from, a))
            continue;
        if (!(axes >> a & 1u)) {
            have->global.dim[d] = need->global.dim[d] = w->from.box.hi[d] - w->from.box.lo[d];
            rest[d] = (wf_range){0, have->global.dim[d]};
            continue;
        }
        have->dim[a] = need->dim[a] = d;
        have->range[a] = range;
        for (int p = 0; p < wf_mesh_size(w->from.mesh, (wf_axis)a); p++)
            *range++ = (wf_range){w->from.bounds[a][p], w->from.bounds[a][p + 1]};
        need->range[a] = range;
        for (int p = 0; p < wf_mesh_size(w->from.mesh, (wf_axis)a); p++)
            *range++ = (wf_range){w->to.bounds[a][p] + w->origin[d], w->to.bounds[a][p + 1] + w->origin[d]};
    }
}

/* Found again by the mesh: equal windows share an exchange. */
static wf_exchange *find_exchange(const window *w, wf_dtype dtype, wf_order order)
{
    const wf_mesh *mesh = w->from.mesh;
    const wf_boundary boundary = boundary_of(w);
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    wf_regions have = {0}, need = {0};
    wf_range rest[WF_MAX_RANK];
    size_t bytes = 0;
    void *range;
    for (int a = 0; a < WF_AXES; a++)
        bytes += 2 * (size_t)wf_mesh_size(mesh, (wf_axis)a) * sizeof(wf_range);
    WF_TRY_NULL(wf_pool_take_host(ctx, bytes, &range));
    padded_regions(w, axes_moved(w), &have, &need, rest, range);
    wf_exchange *exchange = wf_mesh_exchange_beyond(mesh, &have, &need, rest, &boundary, dtype, order);
    wf_pool_give_host(ctx, range, bytes);
    return exchange;
}

/* Sends x's pieces to what is seen of them, y; reversed, adds those of y to x. Local without a layout; else collective
 * over the axes that are moved. */
static wf_status move_padding(const window *w, const wf_tensor *x, const wf_tensor *y, bool reversed)
{
    const wf_boundary boundary = boundary_of(w);
    if (!w->from.known) {
        const wf_boxed own = {wf_box_of_shape(w->in), wf_tensor_strided(x)}, seen = {seen_of(w), wf_tensor_strided(y)};
        return reversed ? wf_boundary_add(x->ctx, w->in, &boundary, &seen, &own)
                        : wf_boundary_read(x->ctx, w->in, &boundary, &own, &seen);
    }
    wf_exchange *exchange = find_exchange(w, x->dtype, x->order);
    WF_NEED(exchange);
    WF_TRY(reversed ? wf_exchange_reverse_begin(exchange, y, (wf_tensor *)x)
                    : wf_exchange_begin(exchange, x, (wf_tensor *)y));
    return wf_exchange_end(exchange);
}

static wf_status backward(wf_node *node)
{
    const window *w = node->state;
    bool add = false;
    if (!wf_node_wants(node, 0))
        return WF_OK;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    /* The reverse adds, so the gradient must have a beginning. */
    if (!add)
        WF_TRY(wf_tensor_fill(dx, 0));
    WF_TRY(move_padding(w, dx, wf_node_dy(node), true));
    /* It was written behind the tape's back. */
    wf_tensor_touch(dx);
    return WF_OK;
}

static const wf_op window_op = {.name = "pad", .backward = backward};

/* --- what is seen ---------------------------------------------------------------------------------------------------
 */

static int64_t clamp_range(int64_t v, int64_t most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

/* Each rank keeps its part of a cut dimension; what comes in front goes to the first one, and behind to the last. So
 * only pads and reflections travel. */
static wf_status cut_along(window *w, wf_axis axis)
{
    const int d = w->from.dim[axis], size = wf_mesh_size(w->from.mesh, axis);
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(w->from.mesh));
    const size_t bytes = ((size_t)size + 1) * sizeof(int64_t);
    void *memory;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    int64_t *bounds = memory;
    for (int p = 0; p <= size; p++)
        bounds[p] = p == 0      ? 0
                    : p == size ? w->out.dim[d]
                                : clamp_range(w->from.bounds[axis][p] - w->origin[d], w->out.dim[d]);
    wf_layout_shard(w->from.mesh, &w->to, axis, d, bounds);
    wf_pool_give_host(ctx, memory, bytes);
    return w->to.bounds[axis] ? WF_OK : wf_error_code();
}

/* The layouts of both. Without `cuts` parts stay as long as they are. */
static wf_status pad_layout(window *w, const char *what, unsigned axes, bool cuts)
{
    char text[WF_LAYOUT_TEXT];
    if (!w->from.known)
        return WF_OK;
    WF_CHECK(!w->from.chunk || !(axes >> WF_AXIS_DATA & 1u), WF_ERR_UNSUPPORTED,
             "%s along the samples of a pipeline's chunk: %s", what, wf_layout_text(&w->from, text));
    /* The bounds of all ranks, by a message where only the own ones are known. */
    WF_TRY(wf_layout_complete(&w->from, axes));
    w->to = w->from;
    w->to.global = w->out;
    for (int d = 0; d < w->out.rank; d++)
        if (!wf_layout_is_sharded(&w->from, d)) {
            w->to.box.lo[d] = 0;
            w->to.box.hi[d] = w->out.dim[d];
        }
    for (int a = 0; a < WF_AXES; a++)
        if (cuts && axes >> a & 1u)
            WF_TRY(cut_along(w, (wf_axis)a));
    return WF_OK;
}

static wf_var *read_padded(wf_var *x, window *w, const char *what, bool cuts)
{
    const unsigned axes = w->from.known ? axes_moved(w) : 0;
    wf_comm *comm = axes ? wf_mesh_world(w->from.mesh) : NULL;
    WF_TRY_NULL(pad_layout(w, what, axes, cuts));
    const wf_shape shape = w->from.known ? wf_box_shape(w->to.box) : w->out;
    wf_tensor *y = wf_tensor_new_step(x->value->ctx, x->value->dtype, shape, x->value->order);
    wf_status status = y ? wf_tensor_set_layout(y, w->to) : wf_error_code();
    /* Up to here an error is one of all ranks; for memory that this one lacks the others would wait. */
    if (status == WF_OK)
        status = move_padding(w, x->value, y, false);
    else if (comm)
        status = wf_comm_post_failure(comm, status);
    return wf_function_finish(
        status, x->tape,
        &(wf_node_spec){
            .op = &window_op, .n_in = 1, .in = &x, .state = w, .state_bytes = pad_bytes(&w->boundary), .comm = comm},
        y);
}

static wf_status check_pad(const char *what, const wf_var *x)
{
    char text[WF_LAYOUT_TEXT];
    WF_TRY(wf_function_check_value(what, x));
    WF_CHECK(!wf_layout_is_partial(&x->value->layout), WF_ERR_SHAPE, "%s of one rank's part of a sum: %s", what,
             wf_layout_text(&x->value->layout, text));
    return WF_OK;
}

static wf_shape whole_box(const wf_var *x)
{
    return x->value->layout.known ? x->value->layout.global : x->value->shape;
}

/* Moves `out` and the origin by the pads; false: there are none. */
static wf_status take_pads(window *w, const int64_t *lo, const int64_t *hi, bool *any)
{
    for (int d = 0; d < w->in.rank; d++) {
        w->origin[d] = -lo[d];
        w->out.dim[d] += lo[d] + hi[d];
        *any = *any || lo[d] != 0 || hi[d] != 0;
        WF_CHECK(w->out.dim[d] >= 0, WF_ERR_SHAPE,
                 "pad of dimension %d, of length %lld, by %lld and %lld; should leave 0 "
                 "elements or more",
                 d, (long long)w->in.dim[d], (long long)lo[d], (long long)hi[d]);
    }
    return WF_OK;
}

static wf_var *pad(wf_var *x, const int64_t *lo, const int64_t *hi, const wf_boundary *boundary, window *w)
{
    bool any = false;
    *w = (window){.from = x->value->layout, .in = whole_box(x), .out = whole_box(x), .boundary = *boundary};
    if (boundary->n_negated > 0)
        memcpy(w->negated, boundary->negated, (size_t)boundary->n_negated * sizeof *w->negated);
    WF_TRY_NULL(take_pads(w, lo, hi, &any));
    /* Without pads x itself is the result. */
    return any ? read_padded(x, w, "pad", true) : x;
}

wf_var *wf_pad(wf_var *x, const int64_t *lo, const int64_t *hi, wf_boundary boundary)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(check_pad("pad", x));
    WF_CHECK_NULL(lo && hi, WF_ERR_ARGUMENT, "pad without numbers of elements");
    WF_TRY_NULL(wf_boundary_check(&boundary, x->value->shape.rank));
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(x->value->ctx, pad_bytes(&boundary), &memory));
    wf_ctx *ctx = x->value->ctx;
    wf_var *y = pad(x, lo, hi, &boundary, memory);
    wf_pool_give_host(ctx, memory, pad_bytes(&boundary));
    return y;
}

wf_var *wf_roll(wf_var *x, int count, const int64_t *shifts, const int *dims)
{
    char text[WF_SHAPE_TEXT];
    bool any = false;
    if (!x)
        return NULL;
    WF_TRY_NULL(check_pad("roll", x));
    WF_CHECK_NULL(count >= 0 && (count == 0 || (shifts && dims)), WF_ERR_ARGUMENT, "roll by %d shifts, listed %s",
                  count, shifts && dims ? "somewhere" : "nowhere");
    window w = {
        .from = x->value->layout, .in = whole_box(x), .out = whole_box(x), .boundary = {.edge = WF_EDGE_CIRCULAR}};
    for (int i = 0; i < count; i++) {
        const int d = dims[i];
        WF_CHECK_NULL(d >= 0 && d < w.in.rank, WF_ERR_ARGUMENT, "roll along dimension %d of %s", d,
                      wf_shape_text(w.in, text));
        if (w.in.dim[d] > 0) /* what is seen begins that many elements before the first one */
            /* Shifts of more than the length go round. */
            w.origin[d] = (w.origin[d] - shifts[i] % w.in.dim[d]) % w.in.dim[d];
    }
    for (int d = 0; d < w.in.rank; d++) {
        /* The origin lies before the first element, as pads do. */
        w.origin[d] -= w.origin[d] > 0 ? w.in.dim[d] : 0;
        any = any || w.origin[d] != 0;
    }
    return any ? read_padded(x, &w, "roll", false) : x;
}
