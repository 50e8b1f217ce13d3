/* Divides an output into the interior, which needs no halo, and boundary parts, and runs a kernel on each. The
 * result is that of one call on the whole. */
#include "layers/window/window_impl.h"

/* The least number of rows and elements of a block between two polls: kernels work on tiles of rows, and a slow
 * network needs about a few blocks' time for a message, so more polls would not help. Blocks that must be copied are
 * small enough for the cache. A sample smaller than this is not worth a call of its own. */
enum {
    LEAST_BOUNDARY = 4,
    BLOCKS = 8,
    LEAST_ROWS = 4,
    LEAST_BLOCK = 1 << 15,
    MOST_COPIED = 1 << 17,
    LEAST_SAMPLE = 1 << 14,
    FEW_SAMPLES = 4
};

static wf_range along(wf_box box, int d)
{
    return (wf_range){box.lo[2 + d], box.hi[2 + d]};
}

static bool reads_own(wf_range r, wf_range own)
{
    return r.lo >= r.hi || (r.lo >= own.lo && r.hi <= own.hi);
}

/* The outputs that read own inputs alone; their ends are near those of all outputs. */
static wf_range interior(const wf_index_map *index_map, int d, wf_range out, wf_range own)
{
    wf_range r = out;
    while (r.lo < r.hi && !reads_own(wf_index_map_reads(index_map, d, (wf_range){r.lo, r.lo + 1}), own))
        r.lo++;
    while (r.lo < r.hi && !reads_own(wf_index_map_reads(index_map, d, (wf_range){r.hi - 1, r.hi}), own))
        r.hi--;
    return r.lo < r.hi && reads_own(wf_index_map_reads(index_map, d, r), own) ? r : (wf_range){out.lo, out.lo};
}

/* A kernel takes as long for one column as for a few columns, so a narrow boundary costs more than it saves in the
 * interior. */
static wf_range with_wider_boundaries(wf_range interior, wf_range out)
{
    if (interior.lo > out.lo && interior.lo < out.lo + LEAST_BOUNDARY)
        interior.lo = out.lo + LEAST_BOUNDARY;
    if (interior.hi < out.hi && interior.hi > out.hi - LEAST_BOUNDARY)
        interior.hi = out.hi - LEAST_BOUNDARY;
    return interior.lo < interior.hi ? interior : (wf_range){out.lo, out.lo};
}

static wf_spatial_part *add_part(wf_output_regions *parts, wf_box out, wf_box in, bool own)
{
    wf_spatial_part *p = &parts->part[parts->n++];
    *p = (wf_spatial_part){.out = out, .in = in, .wide_out = out, .wide_in = in, .at = own ? -1 : parts->elements};
    if (!own)
        /* Parts begin at cache lines, if elements have 4 bytes. */
        parts->elements += (wf_shape_count(wf_box_shape(in)) + 15) / 16 * 16;
    return p;
}

static wf_box first_sample(wf_box box)
{
    box.hi[0] = box.hi[0] > 0;
    return box;
}

/* A frame of inputs beyond the edges, in which each sample is large enough for calls of its own: kernels work on tiles,
 * so rows of the frame are computed with it alone, as many as a tile has. */
static bool has_tall_frame(const wf_index_map *index_map, wf_box out)
{
    return index_map->boundary && wf_shape_count(wf_box_shape(first_sample(out))) >= LEAST_SAMPLE;
}

/* Rows of one sample are dense; a part that is cut along other dimensions is dense only if it is the whole. Windows
 * may reach beyond the array and read zeros there. */
static void widen(const wf_index_map *index_map, wf_spatial_part *p, wf_box out, wf_box own)
{
    for (int d = out.hi[0] > 1 && !has_tall_frame(index_map, out) ? 0 : 1; d < index_map->nd; d++) {
        p->wide_in.lo[2 + d] = own.lo[2 + d];
        p->wide_in.hi[2 + d] = own.hi[2 + d];
        if (index_map->kind == WF_INDEX_MAP_RESAMPLE || index_map->kind == WF_INDEX_MAP_RESIZE)
            continue;
        p->wide_out.lo[2 + d] = out.lo[2 + d];
        p->wide_out.hi[2 + d] = out.hi[2 + d];
    }
}

/* Inputs of this rank that its outputs do not read stay at the end of the array, where that saves a copy and leaves
 * the windows unchanged. */
static wf_box widen_box(const wf_index_map *index_map, wf_box in, wf_box own)
{
    for (int d = 0; d < index_map->nd; d++)
        if (index_map->kind == WF_INDEX_MAP_WINDOW && in.lo[2 + d] < in.hi[2 + d] &&
            own.hi[2 + d] - in.hi[2 + d] < index_map->window[d].stride)
            in.hi[2 + d] = own.hi[2 + d];
    return in;
}

wf_output_regions wf_output_regions_make(const wf_index_map *index_map, wf_box out, wf_box own, wf_box need)
{
    wf_output_regions parts = {0};
    wf_box middle = out, rest[2 * WF_MAX_RANK];
    /* Channels of other ranks arrive with the halo, so there is no interior. */
    const bool gathers = own.lo[1] != need.lo[1] || own.hi[1] != need.hi[1];
    bool all_interior = !gathers;
    for (int d = 0; d < index_map->nd; d++) {
        wf_range r = interior(index_map, d, along(out, d), along(own, d));
        /* Rows (the first spatial dimension) are dense at any height, so a narrow boundary costs nothing there. */
        if (d > 0 || has_tall_frame(index_map, out))
            r = with_wider_boundaries(r, along(out, d));
        middle.lo[2 + d] = r.lo;
        middle.hi[2 + d] = r.hi;
        all_interior = all_interior && reads_own(along(need, d), along(own, d));
    }
    const int64_t all = wf_shape_count(wf_box_shape(out)), mid = wf_shape_count(wf_box_shape(middle));
    if (all == 0)
        return parts;
    if (all_interior || (wf_box_empty(need) && !gathers)) {
        add_part(&parts, out, wf_box_empty(need) ? wf_index_map_nothing(own) : widen_box(index_map, need, own), true);
        return parts;
    }
    /* An interior of less than half hides too little to be worth more calls. */
    if (gathers || 2 * mid < all) {
        add_part(&parts, out, wf_box_empty(need) ? wf_index_map_nothing(need) : need, false);
        return parts;
    }
    widen(index_map, add_part(&parts, middle, wf_index_map_box(index_map, middle, own), true), out, own);
    const int n = wf_box_subtract(out, middle, rest);
    for (int i = 0; i < n; i++)
        add_part(&parts, rest[i], wf_index_map_box(index_map, rest[i], own), false);
    return parts;
}

/* Running. */

static wf_status take_blocks(const wf_spatial_part_run *run, const wf_field field[3], wf_spatial_part_arrays *a,
                             wf_block_of block[3])
{
    wf_ctx *ctx = run->out->ctx;
    const bool made = run->way == WF_PART_OUTPUT;
    WF_TRY(wf_block_gather(ctx, &field[0], a->in_box, true, &block[0]));
    WF_TRY(wf_block_gather(ctx, &field[1], a->out_box, !made, &block[1]));
    if (run->beside)
        WF_TRY(wf_block_gather(ctx, &field[2], a->out_box, !made, &block[2]));
    a->in = block[0].array;
    a->out = block[1].array;
    a->beside = block[2].array;
    return WF_OK;
}

static wf_status put_blocks(const wf_spatial_part_run *run, const wf_field field[3], const wf_spatial_part_arrays *a,
                            const wf_block_of block[3])
{
    wf_ctx *ctx = run->out->ctx;
    if (run->way == WF_PART_INPUT)
        return wf_block_scatter(ctx, &field[0], a->in_box, &block[0]);
    if (run->way == WF_PART_SUM)
        return WF_OK;
    WF_TRY(wf_block_scatter(ctx, &field[1], a->out_box, &block[1]));
    return run->beside ? wf_block_scatter(ctx, &field[2], a->out_box, &block[2]) : WF_OK;
}

static wf_field box_field(const wf_tensor *tensor, wf_box box)
{
    return tensor ? (wf_field){tensor->data, tensor->dtype, box} : (wf_field){.box = box};
}

/* Arrays come without data. */
static wf_status run_block(const wf_spatial_part_run *run, const wf_field *in, wf_spatial_part_arrays arrays)
{
    const wf_field field[3] = {*in, box_field(run->out, run->out_box), box_field(run->beside, run->out_box)};
    wf_block_of block[3] = {{.bytes = 0}};
    wf_status status;
    WF_TRY_OUT(take_blocks(run, field, &arrays, block));
    WF_TRY_OUT(run->kernel(run->user, &arrays));
    WF_TRY_OUT(put_blocks(run, field, &arrays, block));
    if (run->poll)
        WF_TRY_OUT(wf_exchange_poll(run->poll));
out:
    /* In reverse: the pool hands out the block that came back last, and the next block is of the same sizes. */
    for (int i = 2; i >= 0; i--)
        wf_block_give(run->out->ctx, &block[i]);
    return status;
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The number of blocks of samples, and of rows in each. If a second array is computed along with the output, the
 * numbers depend on the inputs alone. */
static void cut_blocks(const wf_spatial_part_run *run, const wf_field *in, wf_box from, wf_box to, int64_t *groups,
                       int64_t *rows)
{
    const wf_field out = box_field(run->out, run->out_box);
    const int64_t n = to.hi[0], height = to.hi[2] - to.lo[2];
    const wf_box one_in = first_sample(from), one_out = first_sample(to);
    const bool dense = wf_field_dense(in, from) && wf_field_dense(&out, to);
    const bool each = wf_field_dense(in, one_in) && wf_field_dense(&out, one_out);
    const int64_t elements = wf_shape_count(wf_box_shape(from)), most = at_most(BLOCKS, elements / LEAST_BLOCK);
    *groups = run->poll && n > 1 ? at_most(n, most) : 1;
    if (!dense && n > 0 && ((each && n <= FEW_SAMPLES) || wf_shape_count(wf_box_shape(one_out)) >= LEAST_SAMPLE))
        *groups = n;
    *rows = run->poll && n == 1 ? most : 1;
    if (n == 1 && (run->beside || !dense) && *rows < elements / MOST_COPIED)
        *rows = elements / MOST_COPIED;
    *rows = at_most(*rows, height / LEAST_ROWS);
    *groups = *groups < 1 ? 1 : *groups;
    *rows = *rows < 1 ? 1 : *rows;
}

static wf_status run_blocks(const wf_spatial_part_run *run, const wf_field *in, wf_box all, wf_box reads, bool again)
{
    int64_t groups, rows;
    cut_blocks(run, in, reads, all, &groups, &rows);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < rows; r++) {
            wf_box out = all, from = reads;
            wf_block(all.hi[0], groups, g, &out.lo[0], &out.hi[0]);
            from.lo[0] = out.lo[0];
            from.hi[0] = out.hi[0];
            if (rows > 1) {
                wf_block(all.hi[2] - all.lo[2], rows, r, &out.lo[2], &out.hi[2]);
                out.lo[2] += all.lo[2];
                out.hi[2] += all.lo[2];
                const wf_range along_rows = wf_index_map_reads(run->index_map, 0, along(out, 0));
                from.lo[2] = along_rows.lo;
                from.hi[2] = along_rows.hi;
            }
            WF_TRY(run_block(run, in, (wf_spatial_part_arrays){.in_box = from, .out_box = out, .again = again}));
        }
    return WF_OK;
}

static bool is_wide(const wf_spatial_part *interior)
{
    for (int d = 2; d < interior->out.rank; d++)
        if (interior->out.lo[d] != interior->wide_out.lo[d] || interior->out.hi[d] != interior->wide_out.hi[d])
            return true;
    return false;
}

/* The inputs of this boundary part that were not summed already by an interior pass that extended beyond its
 * outputs. */
static wf_status sum_rest(const wf_spatial_part_run *run, const wf_field *in, const wf_spatial_part *part,
                          const wf_spatial_part *interior)
{
    wf_box rest[2 * WF_MAX_RANK];
    if (wf_box_empty(wf_box_intersect(part->out, interior->wide_out)))
        return run_blocks(run, in, part->out, part->in, false);
    const int n = wf_box_subtract(part->in, interior->wide_in, rest);
    for (int i = 0; i < n; i++)
        WF_TRY(run_blocks(run, in, part->out, rest[i], true));
    return WF_OK;
}

static wf_status run_part(const wf_spatial_part_run *run, const wf_field *in, const wf_spatial_part *part,
                          const wf_spatial_part *interior)
{
    /* Kernels on volumes are slow where taps of the filter read only padding, as they do on the halo alone. */
    const bool wide = run->way == WF_PART_SUM && run->index_map->nd < 3 && interior->at < 0 && is_wide(interior);
    if (wide && part != interior)
        return sum_rest(run, in, part, interior);
    return run_blocks(run, in, wide || run->way == WF_PART_OUTPUT ? part->wide_out : part->out,
                      run->way == WF_PART_SUM && !wide ? part->in : part->wide_in, false);
}

wf_status wf_output_regions_run(const wf_spatial_part_run *run, const wf_tensor *own, wf_box own_box,
                                const wf_output_regions *parts, const wf_tensor *assembled, bool interior_parts)
{
    for (int i = 0; i < parts->n; i++) {
        const wf_spatial_part *part = &parts->part[i];
        if ((part->at < 0) != interior_parts)
            continue;
        wf_field in = box_field(own, own_box);
        if (part->at >= 0) {
            in.data = assembled ? (char *)assembled->data + (size_t)part->at * wf_dtype_size(own->dtype) : NULL;
            in.box = part->in;
        }
        WF_TRY(run_part(run, &in, part, &parts->part[0]));
    }
    return WF_OK;
}
