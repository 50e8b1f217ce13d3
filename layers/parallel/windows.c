/* Windows of an image as samples of tokens, and back. Both ways are the same map, read in one direction or the other:
 * windows begin `shift` pixels late, and the image goes on beyond its last window with its first pixels.
 *
 * A dimension that is whole is cut by copies alone, with zeros where windows reach beyond the image. One that ranks
 * share is padded first, which sends nothing; then each rank gets the pixels of the windows whose first pixel it has,
 * the first pixels of the image included, in one exchange. Their outputs go back in the same exchange, reversed. */
#include "layers/functions/functions_impl.h"
#include "layers/pad.h"
#include "layers/parallel/parallel_impl.h"

/* One run of whole windows, and pieces of the two windows at most that meet the end of the image or of the padding. */
enum { MOST_RUNS = 8 };

/* Windows from `window` on whose pixels from `pixel` on are those of the image from `source` on; -1: zeros. */
typedef struct window_run {
    int64_t window, windows, pixel, pixels, source;
} window_run;

/* --- geometry ----------------------------------------------------------------------------------------------------- */

/* The runs of a dimension. At most the last two windows are no part of the first run. Whole windows that lie side by
 * side in the image are one run, so that a copy moves many windows at once. */
static int list_runs(const wf_windows *m, int d, window_run run[MOST_RUNS])
{
    const int64_t length = m->length[d], n = m->count[d];
    int runs = 0;
    if (m->axes[d] || n == 0) {
        run[0] = (window_run){.windows = n, .pixels = length};
        return n > 0;
    }
    for (int64_t g = 0; g < n; g++)
        for (int64_t p = 0, size = 0; p < length; p += size) {
            /* Place in the image of pixel p of window g, rolled back by the shift; beyond its end lie zeros up to whole
             * windows. */
            const int64_t here = m->own.dim[2 + d], whole = n * length, at = (g * length + p + m->shift[d]) % whole;
            const int64_t end = at < here ? here : whole;
            size = end - at < length - p ? end - at : length - p;
            window_run *last = runs > 0 ? &run[runs - 1] : NULL;
            if (size == length && at < here && last && last->pixels == length && last->source >= 0) {
                last->windows++;
                continue;
            }
            run[runs++] = (window_run){g, 1, p, size, at < here ? at : -1};
        }
    return runs;
}

/* The pixels of two runs as [N,windows,pixels,windows,pixels,C], in the windows or in the image. Six dimensions: a copy
 * of both images of a run, whatever its windows, in one call. */
static wf_strided view_windows(const wf_windows *m, const wf_tensor *t, const window_run *a, const window_run *b)
{
    const int64_t c = m->own.dim[1], line = m->length[1] * c, each = m->length[0] * line;
    const int64_t step[6] = {m->count[0] * m->count[1] * each, m->count[1] * each, line, each, c, 1};
    wf_strided v = {.data = t->data,
                    .dtype = t->dtype,
                    .rank = 6,
                    .dim = {m->own.dim[0], a->windows, a->pixels, b->windows, b->pixels, c}};
    for (int d = 0; d < 6; d++)
        v.stride[d] = step[d];
    const int64_t first = a->window * step[1] + a->pixel * step[2] + b->window * step[3] + b->pixel * step[4];
    if (v.data)
        v.data = (char *)v.data + first * (int64_t)wf_dtype_size(v.dtype);
    return v;
}

static wf_strided view_pixels(const wf_windows *m, const wf_tensor *t, const window_run *a, const window_run *b)
{
    const wf_strided image = wf_tensor_strided(t);
    const int64_t *const s = image.stride;
    wf_strided v = {.data = image.data,
                    .dtype = image.dtype,
                    .rank = 6,
                    .dim = {m->own.dim[0], a->windows, a->pixels, b->windows, b->pixels, m->own.dim[1]},
                    .stride = {s[0], m->length[0] * s[2], s[2], m->length[1] * s[3], s[3], s[1]}};
    if (v.data)
        v.data = (char *)v.data + (a->source * s[2] + b->source * s[3]) * (int64_t)wf_dtype_size(v.dtype);
    return v;
}

/* Copies between windows and the image that holds their pixels. Back: every pixel is of one window, and pixels of
 * padding are dropped. */
static wf_status copy_windows(const wf_windows *m, const wf_tensor *image, const wf_tensor *windows, bool back,
                              bool add)
{
    window_run rows[MOST_RUNS], columns[MOST_RUNS];
    const int n_rows = list_runs(m, 0, rows), n_columns = list_runs(m, 1, columns);
    wf_ctx *ctx = windows->ctx;
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n_columns; j++) {
            const wf_strided to = view_windows(m, windows, &rows[i], &columns[j]);
            if (rows[i].source < 0 || columns[j].source < 0) {
                if (!back)
                    WF_TRY(wf_strided_fill(ctx, &to, 0));
                continue;
            }
            const wf_strided from = view_pixels(m, image, &rows[i], &columns[j]);
            WF_TRY(ctx->k->copy(ctx, back ? &to : &from, back ? &from : &to, add));
        }
    return WF_OK;
}

/* --- exchange ----------------------------------------------------------------------------------------------------- */

/* Goes beyond the image's end by the shift, where the first pixels come again. */
static wf_range need_of(const wf_windows *m, int d, const int64_t *bounds, int place)
{
    const int64_t length = m->length[d], shift = m->shift[d];
    return (wf_range){bounds[place] * length + shift, bounds[place + 1] * length + shift};
}

static void list_regions(const wf_windows *m, wf_regions *have, wf_regions *need, wf_range rest[WF_MAX_RANK],
                         wf_range *range)
{
    have->global = m->own;
    /* Dimensions that the mesh does not cut are whole on every rank, which `rest` says. */
    for (int d = 0; d < 4; d++)
        rest[d] = (wf_range){0, m->own.dim[d]};
    for (int a = 0; a < WF_AXES; a++) {
        const int d = m->axes[0] >> a & 1u ? 0 : m->axes[1] >> a & 1u ? 1 : -1;
        have->dim[a] = need->dim[a] = d < 0 ? -1 : 2 + d;
        if (d < 0)
            continue;
        const int size = wf_mesh_size(m->layout.mesh, (wf_axis)a);
        have->global.dim[2 + d] = m->layout.global.dim[2 + d];
        have->range[a] = range;
        need->range[a] = range + size;
        for (int p = 0; p < size; p++) {
            range[p] = (wf_range){m->layout.bounds[a][p], m->layout.bounds[a][p + 1]};
            range[size + p] = need_of(m, d, m->parts.bounds[a], p);
        }
        range += 2 * size;
    }
    need->global = have->global;
}

static wf_exchange *find_windows(const wf_windows *m, wf_dtype dtype)
{
    /* The image goes on with its first pixels, whole on any rank that needs them. */
    static const wf_boundary circular = {.edge = WF_EDGE_CIRCULAR};
    const wf_mesh *mesh = m->layout.mesh;
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    wf_regions have = {0}, need = {0};
    wf_range rest[WF_MAX_RANK];
    size_t bytes = 0;
    void *range;
    for (int a = 0; a < WF_AXES; a++)
        bytes += 2 * (size_t)wf_mesh_size(mesh, (wf_axis)a) * sizeof(wf_range);
    WF_TRY_NULL(wf_pool_take_host(ctx, bytes, &range));
    list_regions(m, &have, &need, rest, range);
    wf_exchange *exchange = wf_mesh_exchange_beyond(mesh, &have, &need, rest, &circular, dtype, WF_CHANNELS_LAST);
    wf_pool_give_host(ctx, range, bytes);
    return exchange;
}

/* This rank's part of the image with the pixels of its windows in place of its own: the two differ at both ends. */
static wf_tensor *new_needed(const wf_windows *m, const wf_tensor *like)
{
    wf_shape shape = m->own;
    for (int d = 0; d < 2; d++)
        if (m->axes[d])
            shape.dim[2 + d] = m->need[d].hi - m->need[d].lo;
    return wf_tensor_new_step(like->ctx, like->dtype, shape, WF_CHANNELS_LAST);
}

static bool is_shared(const wf_windows *m)
{
    return m->axes[0] | m->axes[1];
}

/* The windows of an image. */
static wf_status read_windows(const wf_windows *m, const wf_tensor *image, const wf_tensor *windows)
{
    if (!is_shared(m))
        return copy_windows(m, image, windows, false, false);
    wf_exchange *exchange = find_windows(m, image->dtype);
    WF_NEED(exchange);
    wf_tensor *needed = new_needed(m, image);
    wf_status status = needed ? wf_exchange_begin(exchange, image, needed) : wf_error_code();
    if (status == WF_OK)
        status = wf_exchange_end(exchange);
    if (status == WF_OK)
        status = copy_windows(m, needed, windows, false, false);
    wf_tensor_free(needed);
    return status;
}

/* The image of windows, or its sum with what is there. */
static wf_status write_windows(const wf_windows *m, const wf_tensor *windows, wf_tensor *image, bool add)
{
    if (!is_shared(m))
        return copy_windows(m, image, windows, true, add);
    wf_exchange *exchange = find_windows(m, image->dtype);
    WF_NEED(exchange);
    wf_tensor *needed = new_needed(m, image);
    wf_status status = needed ? copy_windows(m, needed, windows, true, false) : wf_error_code();
    /* The reversed exchange adds; each pixel is of one window, so to zeros it is a copy. */
    if (status == WF_OK && !add)
        status = wf_tensor_fill(image, 0);
    if (status == WF_OK)
        status = wf_exchange_reverse_begin(exchange, needed, image);
    if (status == WF_OK)
        status = wf_exchange_end(exchange);
    wf_tensor_free(needed);
    return status;
}

/* --- nodes -------------------------------------------------------------------------------------------------------- */

static wf_status backward_cut(wf_node *node)
{
    bool add = false;
    if (!wf_node_wants(node, 0))
        return WF_OK;
    wf_tensor *dx = wf_node_grad(node, 0, &add);
    WF_NEED(dx);
    WF_TRY(write_windows(node->state, wf_node_dy(node), dx, add));
    wf_tensor_touch(dx);
    return WF_OK;
}

/* Joining is cutting read backwards, so its gradient is a cut of dy. */
static wf_status backward_join(wf_node *node)
{
    const wf_windows *m = node->state;
    const wf_tensor *const dy = wf_node_dy(node);
    if (!wf_node_wants(node, 0))
        return WF_OK;
    wf_tensor *dx = wf_tensor_new_step(dy->ctx, dy->dtype, node->in[0]->value->shape, WF_ROW_MAJOR);
    WF_NEED(dx);
    const wf_status status = read_windows(m, dy, dx);
    if (status == WF_OK)
        return wf_function_give(node, 0, dx);
    wf_tensor_free(dx);
    return status;
}

static const wf_op cut_op = {.name = "windows", .backward = backward_cut};
static const wf_op join_op = {.name = "windows_joined", .backward = backward_join};

static wf_var *record_windows(wf_status status, const wf_op *op, const wf_windows *m, wf_var *x, wf_tensor *y)
{
    wf_comm *comm = is_shared(m) ? wf_mesh_world(m->layout.mesh) : NULL;
    /* The other ranks of the exchange would wait for this one. */
    if (status != WF_OK && comm)
        status = wf_comm_post_failure(comm, status);
    return wf_function_finish(
        status, x->tape,
        &(wf_node_spec){.op = op, .n_in = 1, .in = &x, .state = m, .state_bytes = sizeof *m, .comm = comm}, y);
}

/* --- windows of an image ------------------------------------------------------------------------------------------ */

static int64_t round_up_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Windows belong to the rank of their first pixel: bounds follow from those of the pixels, without a message. */
static wf_status cut_windows(wf_windows *m, int d, wf_axis axis)
{
    const wf_mesh *mesh = m->layout.mesh;
    const int size = wf_mesh_size(mesh, axis);
    const size_t bytes = ((size_t)size + 1) * sizeof(int64_t);
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    void *memory;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    int64_t *bounds = memory;
    for (int p = 0; p <= size; p++) {
        const int64_t before = m->layout.bounds[axis][p] - m->shift[d];
        bounds[p] = before <= 0 ? 0 : round_up_to(before, m->length[d]) / m->length[d];
    }
    bounds[size] = m->all[d];
    wf_layout_shard(mesh, &m->parts, axis, 1 + d, bounds);
    wf_pool_give_host(ctx, memory, bytes);
    WF_NEED(m->parts.bounds[axis]);
    m->need[d] = need_of(m, d, m->parts.bounds[axis], wf_mesh_rank(mesh, axis));
    m->count[d] = m->parts.box.hi[1 + d] - m->parts.box.lo[1 + d];
    return WF_OK;
}

/* The layout of the windows, and how each dimension that ranks share is cut. */
static wf_status lay_windows(wf_windows *m)
{
    /* The dimension of [N,rows,columns,T,C] that each of [N,C,H,W] becomes. */
    static const uint8_t to[] = {0, 4, 1, 2};
    wf_layout *const y = &m->parts;
    const wf_layout *const x = &m->layout;
    if (!x->known)
        return WF_OK;
    for (int d = 0; d < 2; d++)
        m->axes[d] = wf_layout_axes(x, 1u << (2 + d));
    WF_TRY(wf_layout_complete(&m->layout, m->axes[0] | m->axes[1]));
    *y = *x;
    for (int a = 0; a < WF_AXES; a++)
        if (y->placement[a] == WF_SHARDED)
            y->dim[a] = to[x->dim[a]];
    y->global = WF_SHAPE(x->global.dim[0], m->all[0], m->all[1], m->length[0] * m->length[1], x->global.dim[1]);
    y->box = wf_box_of_shape(y->global);
    y->box.lo[0] = x->box.lo[0];
    y->box.hi[0] = x->box.hi[0];
    y->box.lo[4] = x->box.lo[1];
    y->box.hi[4] = x->box.hi[1];
    for (int d = 0; d < 2; d++)
        for (int a = 0; a < WF_AXES; a++)
            if (m->axes[d] >> a & 1u)
                WF_TRY(cut_windows(m, d, (wf_axis)a));
    return WF_OK;
}

static wf_status describe_windows(const wf_var *x, const int64_t length[2], const int64_t shift[2], wf_windows *m)
{
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_function_check("windows", x, WF_ANY_FUNCTION));
    const wf_shape image = x->value->layout.known ? x->value->layout.global : x->value->shape;
    WF_CHECK(image.rank == 4, WF_ERR_SHAPE, "windows of %s, should be an image [N,C,H,W]", wf_shape_text(image, text));
    *m = (wf_windows){0};
    for (int d = 0; d < 2; d++) {
        const int64_t padded = round_up_to(image.dim[2 + d], length[d]);
        m->length[d] = length[d];
        m->all[d] = m->count[d] = padded / length[d];
        /* A single window is not shifted: it would only be rolled onto itself. */
        m->shift[d] = m->all[d] > 1 ? shift[d] : 0;
        /* Copies put zeros where a whole dimension ends; ranks that share one must agree on its length first. */
        m->padding[d] = wf_layout_is_sharded(&x->value->layout, 2 + d) ? padded - image.dim[2 + d] : 0;
    }
    return WF_OK;
}

wf_var *wf_windows_cut(wf_var *x, const int64_t length[2], const int64_t shift[2], wf_windows *m)
{
    if (!x)
        return NULL;
    WF_TRY_NULL(describe_windows(x, length, shift, m));
    x = wf_pad(x, (int64_t[4]){0}, (int64_t[4]){[2] = m->padding[0], [3] = m->padding[1]}, (wf_boundary){0});
    if (!x)
        return NULL;
    m->layout = x->value->layout;
    m->own = x->value->shape;
    m->order = x->value->order;
    WF_TRY_NULL(lay_windows(m));
    const wf_shape shape = WF_SHAPE(m->own.dim[0], m->count[0], m->count[1], length[0] * length[1], m->own.dim[1]);
    wf_tensor *y = wf_tensor_new_step(x->value->ctx, x->value->dtype, shape, WF_ROW_MAJOR);
    wf_status status = y ? wf_tensor_set_layout(y, m->parts) : wf_error_code();
    if (status == WF_OK)
        status = read_windows(m, x->value, y);
    return record_windows(status, &cut_op, m, x, y);
}

wf_var *wf_windows_join(wf_var *y, const wf_windows *m)
{
    char text[WF_SHAPE_TEXT];
    if (!y)
        return NULL;
    /* The shape of this rank's windows; another would be the windows of another image. */
    const wf_shape shape =
        WF_SHAPE(m->own.dim[0], m->count[0], m->count[1], m->length[0] * m->length[1], m->own.dim[1]);
    WF_CHECK_NULL(wf_shape_equal(y->value->shape, shape), WF_ERR_SHAPE, "windows of %s do not make the image again",
                  wf_shape_text(y->value->shape, text));
    wf_tensor *dense = wf_tensor_dense(y->value, y->value->dtype, WF_ROW_MAJOR);
    wf_tensor *x = wf_tensor_new_step(y->value->ctx, y->value->dtype, m->own, m->order);
    wf_status status = dense && x ? wf_tensor_set_layout(x, m->layout) : wf_error_code();
    if (status == WF_OK)
        status = write_windows(m, dense, x, false);
    wf_tensor_free(dense);
    wf_var *image = record_windows(status, &join_op, m, y, x);
    return wf_pad(image, (int64_t[4]){0}, (int64_t[4]){[2] = -m->padding[0], [3] = -m->padding[1]}, (wf_boundary){0});
}
