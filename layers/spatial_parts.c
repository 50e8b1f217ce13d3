/* Which part of an output needs no halo, and how parts run on dense arrays. */
#include "layers/block_impl.h"
#include "layers/spatial_impl.h"

/* A block between two polls has at least so many rows and elements: kernels work on tiles of rows, and a slow network
 * that needs a poll to go on takes as long for a message as a few blocks. A sample smaller than this is not worth a
 * call of its own. */
enum { LEAST_RIM = 4, BLOCKS = 8, LEAST_ROWS = 4, LEAST_BLOCK = 32768, LEAST_SAMPLE = 16384, FEW_SAMPLES = 4 };

static wf_range along(wf_box box, int d)
{
    return (wf_range){box.lo[2 + d], box.hi[2 + d]};
}

static bool inside(wf_range r, wf_range own)
{
    return r.lo >= r.hi || (r.lo >= own.lo && r.hi <= own.hi);
}

/* The outputs that read own inputs alone; their ends are near those of all outputs. */
static wf_range interior(const wf_map *map, int d, wf_range out, wf_range own)
{
    wf_range r = out;
    while (r.lo < r.hi && !inside(wf_map_reads(map, d, (wf_range){r.lo, r.lo + 1}), own))
        r.lo++;
    while (r.lo < r.hi && !inside(wf_map_reads(map, d, (wf_range){r.hi - 1, r.hi}), own))
        r.hi--;
    return r.lo < r.hi && inside(wf_map_reads(map, d, r), own) ? r : (wf_range){out.lo, out.lo};
}

/* Kernels take as long for one column as for a few, which would cost the inside more. */
static wf_range with_wider_rims(wf_range inside, wf_range out)
{
    if (inside.lo > out.lo && inside.lo < out.lo + LEAST_RIM)
        inside.lo = out.lo + LEAST_RIM;
    if (inside.hi < out.hi && inside.hi > out.hi - LEAST_RIM)
        inside.hi = out.hi - LEAST_RIM;
    return inside.lo < inside.hi ? inside : (wf_range){out.lo, out.lo};
}

static void add_part(wf_parts *parts, wf_box out, wf_box in, bool own)
{
    wf_part *p = &parts->part[parts->n++];
    *p = (wf_part){.out = out, .in = in, .at = own ? -1 : parts->elements};
    if (!own)
        parts->elements += (wf_shape_count(wf_box_shape(in)) + 15) / 16 * 16;
}

/* Own inputs that nobody here reads stay at the end where that spares a copy and the windows are the same. */
static wf_box widened(const wf_map *map, wf_box in, wf_box own)
{
    for (int d = 0; d < map->nd && map->kind != WF_MAP_RESAMPLE; d++)
        if (map->kind == WF_MAP_WINDOW && in.lo[2 + d] < in.hi[2 + d] &&
            own.hi[2 + d] - in.hi[2 + d] < map->window[d].stride)
            in.hi[2 + d] = own.hi[2 + d];
    return in;
}

wf_parts wf_parts_make(const wf_map *map, wf_box out, wf_box own, wf_box need)
{
    wf_parts parts = {0};
    wf_box middle = out, rest[2 * WF_MAX_RANK];
    /* Channels of others come with the halo: there is no inside. */
    const bool gathers = own.lo[1] != need.lo[1] || own.hi[1] != need.hi[1];
    bool all_inside = !gathers;
    for (int d = 0; d < map->nd; d++) {
        wf_range r = interior(map, d, along(out, d), along(own, d));
        if (d > 0)
            r = with_wider_rims(r, along(out, d));
        middle.lo[2 + d] = r.lo;
        middle.hi[2 + d] = r.hi;
        all_inside = all_inside && inside(along(need, d), along(own, d));
    }
    const int64_t all = wf_shape_count(wf_box_shape(out)), mid = wf_shape_count(wf_box_shape(middle));
    if (all == 0)
        return parts;
    if (all_inside || (wf_box_empty(need) && !gathers)) {
        add_part(&parts, out, wf_box_empty(need) ? wf_map_nothing(own) : widened(map, need, own), true);
        return parts;
    }
    if (gathers || 2 * mid < all) {
        add_part(&parts, out, wf_box_empty(need) ? wf_map_nothing(need) : need, false);
        return parts;
    }
    add_part(&parts, middle, wf_map_box(map, middle, own), true);
    const int n = wf_box_subtract(out, middle, rest);
    for (int i = 0; i < n; i++)
        add_part(&parts, rest[i], wf_map_box(map, rest[i], own), false);
    return parts;
}

/* Running. */

static wf_status run_block(const wf_part_run *run, const wf_field *in, wf_box in_box, wf_box out_box)
{
    wf_ctx *ctx = run->out->ctx;
    const wf_field out = {run->out->data, run->out->dtype, run->out_box};
    wf_block_of from, to = {.bytes = 0};
    wf_status status;
    WF_TRY_OUT(wf_block_take(ctx, in, in_box, true, &from));
    WF_TRY_OUT(wf_block_take(ctx, &out, out_box, run->reads_out, &to));
    WF_TRY_OUT(run->kernel(run->user, &from.array, in_box, &to.array, out_box));
    if (!run->reads_out)
        WF_TRY_OUT(wf_block_put(ctx, &out, out_box, &to));
    if (run->poll)
        WF_TRY_OUT(wf_exchange_poll(run->poll));
out:
    wf_block_give(ctx, &to);
    wf_block_give(ctx, &from);
    return status;
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Into how many blocks of samples, and each of those into how many of rows. */
static void cut_blocks(const wf_part_run *run, const wf_field *in, const wf_part *part, int64_t *groups, int64_t *rows)
{
    const wf_field out = {run->out->data, run->out->dtype, run->out_box};
    const int64_t n = part->out.hi[0], height = part->out.hi[2] - part->out.lo[2];
    wf_box one_in = part->in, one_out = part->out;
    one_in.hi[0] = one_out.hi[0] = n > 0;
    const bool dense = wf_field_dense(in, part->in) && wf_field_dense(&out, part->out);
    const bool each = wf_field_dense(in, one_in) && wf_field_dense(&out, one_out);
    const int64_t elements = wf_shape_count(wf_box_shape(part->out)), most = at_most(BLOCKS, elements / LEAST_BLOCK);
    *groups = run->poll && n > 1 ? at_most(n, most) : 1;
    if (!dense && each && n > 0 && (n <= FEW_SAMPLES || wf_shape_count(wf_box_shape(one_out)) >= LEAST_SAMPLE))
        *groups = n;
    *rows = run->poll && n == 1 ? at_most(height / LEAST_ROWS, most) : 1;
    *groups = *groups < 1 ? 1 : *groups;
    *rows = *rows < 1 ? 1 : *rows;
}

static wf_status run_part(const wf_part_run *run, const wf_field *in, const wf_part *part)
{
    int64_t groups, rows;
    cut_blocks(run, in, part, &groups, &rows);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < rows; r++) {
            wf_box out = part->out, from = part->in;
            wf_block(part->out.hi[0], groups, g, &out.lo[0], &out.hi[0]);
            from.lo[0] = out.lo[0];
            from.hi[0] = out.hi[0];
            if (rows > 1) {
                wf_block(part->out.hi[2] - part->out.lo[2], rows, r, &out.lo[2], &out.hi[2]);
                out.lo[2] += part->out.lo[2];
                out.hi[2] += part->out.lo[2];
                const wf_range reads = wf_map_reads(run->map, 0, along(out, 0));
                from.lo[2] = reads.lo;
                from.hi[2] = reads.hi;
            }
            WF_TRY(run_block(run, in, from, out));
        }
    return WF_OK;
}

wf_status wf_parts_run(const wf_part_run *run, const wf_tensor *own, wf_box own_box, const wf_parts *parts,
                       const wf_tensor *assembled, bool inside_parts)
{
    for (int i = 0; i < parts->n; i++) {
        const wf_part *part = &parts->part[i];
        if ((part->at < 0) != inside_parts)
            continue;
        wf_field in = {own->data, own->dtype, own_box};
        if (part->at >= 0) {
            in.data = assembled ? (char *)assembled->data + (size_t)part->at * wf_dtype_size(own->dtype) : NULL;
            in.box = part->in;
        }
        WF_TRY(run_part(run, &in, part));
    }
    return WF_OK;
}
