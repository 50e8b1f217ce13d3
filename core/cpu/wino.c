/* Plans and runs convolutions by minimal filtering: blocks of tiles are transformed, multiplied point by point and
 * transformed back by one thread while they are in its cache. The algorithm is Winograd's (1980), for networks by Lavin
 * and Gray (2016). */
#include "core/config_author.h"
#include "core/cpu/wino_impl.h"

#include <omp.h>
#include <string.h>

#if defined(__AVX2__)
static const bool worth = true;
#else
static const bool worth = false; /* with registers of four floats it takes three times as long as oneDNN */
#endif

/* The two shapes whose tiles are tabled: 3 x 3 at stride 1, and 4 x 4 at stride 2, which DCGAN has. Negative pads would
 * move tile 0 into the image's middle. */
static bool geometry_fits(const wf_conv_geom *geom)
{
    const int flat = geom->nd - 2; /* the first of the two dimensions */
    if (flat < 0 || geom->groups != 1)
        return false;
    for (int d = 0; d < geom->nd; d++) {
        const bool three = geom->kernel[d] == 3 && geom->stride[d] == 1,
                   four = geom->kernel[d] == 4 && geom->stride[d] == 2 && flat == 0;
        if (!(three || four) || geom->dilation[d] != 1 || geom->pad_lo[d] < 0 || geom->pad_hi[d] < 0 ||
            geom->kernel[d] != geom->kernel[0])
            return false;
    }
    return true;
}

static void plan_offsets(wf_wino *p)
{
    for (int d = 0; d < 2; d++)
        for (int64_t phase = 0; phase < 2; phase++) {
            /* The place of tile 0 in the input. With stride 2 the input's even and odd rows are two phases, each under
             * a filter of every second tap; backwards the outputs have phases instead. */
            if (!p->backward)
                p->off[d][phase] = (p->stride == 2 ? phase : 0) - p->pad[d];
            else if (p->stride == 1)
                p->off[d][phase] = p->pad[d] - 2;
            else
                p->off[d][phase] = (phase + p->pad[d]) / 2 - 1;
        }
}

/* Up to this many output channels the direct form leaves most of a vector idle as well. */
enum { FEW = 8 };

/* Enough arithmetic for the transformations to vanish in it, and tiles that are mostly full. Measured by layer and by
 * whole steps, with and without it (docs/performance.md): what it takes gains, all but 32 to 16 channels with stride 2.
 */
static bool pays(const wf_wino *p)
{
    const int64_t outputs = p->n * p->out_d * p->out_h * p->out_w;
    const int64_t covered = p->tiles * WINO_TILE * WINO_TILE * p->out_phases * p->out_phases;
    /* A quarter of the work may be on tiles that hang over the end. */
    return p->tiles >= 32 && p->in_c >= 16 && 4 * outputs >= 3 * covered;
}

bool wf_wino_plan(const wf_ctx *ctx, bool backward, const wf_conv_geom *geom, const wf_array *in, const wf_array *w,
                  const wf_array *out, wf_wino *p)
{
    if (!worth || !wf_config_get()->minimal || in->dtype != WF_F32 || w->dtype != WF_F32 || !geometry_fits(geom) ||
        in->shape.dim[1] % 16 != 0 || (out->shape.dim[1] % 16 != 0 && out->shape.dim[1] > FEW))
        return false;
    const bool two = geom->stride[0] == 2, volume = geom->nd == 3;
    const int flat = geom->nd - 2;
    *p = (wf_wino){.backward = backward,
                   .a = two ? 5 : 6,
                   .taps = two ? 2 : 3,
                   .stride = geom->stride[0],
                   .pad = {geom->pad_lo[flat], geom->pad_lo[flat + 1]},
                   .n = in->shape.dim[0],
                   .in_d = volume ? in->shape.dim[2] : 1,
                   .in_h = in->shape.dim[2 + flat],
                   .in_w = in->shape.dim[3 + flat],
                   .in_c = in->shape.dim[1],
                   .out_d = volume ? out->shape.dim[2] : 1,
                   .out_h = out->shape.dim[2 + flat],
                   .out_w = out->shape.dim[3 + flat],
                   .planes = volume ? geom->kernel[0] : 1,
                   .out_c = out->shape.dim[1],
                   .in_phases = two && !backward ? 2 : 1,
                   .out_phases = two && backward ? 2 : 1};
    p->points = p->a * p->a;
    p->width = wf_wino_ceiling(p->out_c, 16) * 16;
    p->k = wf_wino_parts(p) * p->in_c;
    if (volume)
        p->off_d = backward ? geom->pad_lo[0] - (p->planes - 1) : -geom->pad_lo[0];
    p->tiles_h = wf_wino_ceiling(p->out_h, WINO_TILE * p->out_phases);
    p->tiles_w = wf_wino_ceiling(p->out_w, WINO_TILE * p->out_phases);
    p->tiles = p->n * p->out_d * p->tiles_h * p->tiles_w;
    plan_offsets(p);
    return pays(p);
}

/* How the tiles are cut into blocks, and where the values of a block lie. */
typedef struct block {
    int64_t tiles, blocks;                                        /* of each, at most; how many */
    int64_t value_step, values_step, product_step, products_step; /* of a row, of a point */
    int64_t floats;                                               /* of one thread */
} block;

/* 1.5 MiB: of a second-level cache of 2 MiB, with room for the filter's panels. It does not follow the processor's:
 * with 512 KiB (Zen 3) blocks of 384 KiB were 0.94 to 1.07 times as fast by layer, 1.01 in the mean of 14, since values
 * and products stream through the cache, while the filter is read from the third one for every block. */
enum { BLOCK_BYTES = 3 << 19 };

static block block_of(const wf_wino *p, int team)
{
    block b;
    const int64_t tile_bytes = p->points * (p->k + p->width) * (int64_t)sizeof(float);
    int64_t most = BLOCK_BYTES / tile_bytes / WINO_ROWS * WINO_ROWS;
    most = most < 32 ? 32 : most;
    /* A multiple of the team, and then evenly filled: no thread waits for one block more of another. */
    b.blocks = wf_wino_ceiling(wf_wino_ceiling(p->tiles, most), team) * team;
    b.tiles = wf_wino_ceiling(wf_wino_ceiling(p->tiles, b.blocks), WINO_ROWS) * WINO_ROWS;
    /* Filling up to whole rows may have left fewer blocks. */
    b.blocks = wf_wino_ceiling(p->tiles, b.tiles);
    /* Steps avoid powers of two (wf_wino_step), which would map the points of a tile to the same lines of the cache. */
    b.value_step = wf_wino_step(p->k);
    b.product_step = wf_wino_step(p->width);
    b.values_step = wf_wino_step(b.tiles * b.value_step);
    b.products_step = wf_wino_step(b.tiles * b.product_step);
    b.floats = p->points * (b.values_step + b.products_step);
    return b;
}

/* Point by point: one matrix of the filter (k by width) serves all rows of the block before the next is read. Rows
 * beyond the last tile hold old values, whose products no output tile reads. */
static void multiply_points(const wf_wino *p, const block *b, int64_t rows, const float *values, const float *filter,
                            float *products)
{
    const int64_t filled = wf_wino_ceiling(rows, WINO_ROWS) * WINO_ROWS;
    for (int64_t point = 0; point < p->points; point++)
        for (int64_t panel = 0; panel < p->width; panel += WINO_PANEL) {
            const wf_wino_size size = {filled, wf_cpu_min(WINO_PANEL, p->width - panel), p->k};
            const bool last = point + 1 == p->points && panel + size.n == p->width;
            const float *const matrix = filter + point * p->k * p->width + panel * p->k;
            wf_wino_multiply(size, (wf_wino_rows){values + point * b->values_step, b->value_step}, matrix,
                             last ? filter : matrix + size.n * p->k, products + point * b->products_step + panel,
                             b->product_step);
        }
}

/* What all blocks share. The filter is in the transformed domain. */
typedef struct job {
    wf_wino_source in;
    const float *filter, *bias;
    float slope, *out;
} job;

static void run_block(const wf_wino *p, const block *b, const job *j, int64_t at, float *work)
{
    const int64_t first = at * b->tiles, rows = wf_cpu_min(b->tiles, p->tiles - first);
    float *const values = work, *const products = work + p->points * b->values_step;
    /* Backwards at stride 2 each phase of the output has a filter and a product of its own; forwards the input's phases
     * lie one after the other along k and are summed by the product. */
    for (int64_t o = 0; o < p->out_phases * p->out_phases; o++) {
        const wf_wino_phase out = {(int32_t)(o / p->out_phases), (int32_t)(o % p->out_phases), 0};
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < wf_wino_parts(p); i++) {
                const wf_wino_phase part = wf_wino_part(p, i);
                const wf_wino_phase phase = {p->backward ? out.h : part.h, p->backward ? out.w : part.w, part.plane};
                wf_wino_input_tile(p, j->in, first + row, phase, 0, p->in_c, values + row * b->value_step + i * p->in_c,
                                   b->values_step);
            }
        multiply_points(p, b, rows, values, j->filter + o * p->points * p->k * p->width, products);
        for (int64_t row = 0; row < rows; row++)
            wf_wino_output_tile(p, products + row * b->product_step, b->products_step, first + row, out, j->bias,
                                j->slope, j->out);
    }
}

wf_status wf_wino_run(wf_ctx *ctx, const wf_wino *p, const float *in, const float *filter, const float *bias,
                      float slope, float *out)
{
    const int team = ctx->threads < 1 ? 1 : ctx->threads;
    const block b = block_of(p, team);
    const size_t bytes = (size_t)(team * b.floats + p->in_c) * sizeof(float);
    void *work = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &work));
    float *const zeros = (float *)work + team * b.floats;
    /* Padding is read from here, so that tiles at the edge take the same path. */
    memset(zeros, 0, (size_t)p->in_c * sizeof *zeros);
    const job j = {.in = {in, zeros}, .filter = filter, .bias = bias, .slope = slope, .out = out};
    /* The next free thread takes the next blocks: a core may be busy with something else, and results do not depend on
     * which thread computes. */
    const int64_t turn = wf_cpu_turn(ctx, b.blocks);
    for (int64_t first = 0; first < b.blocks; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, b.blocks);
/* One room for each thread of the team, found by the thread's number: no two blocks of a thread overlap in time. */
#pragma omp parallel for num_threads(team) schedule(dynamic)
        for (int64_t at = first; at < last; at++)
            run_block(p, &b, &j, at, (float *)work + omp_get_thread_num() * b.floats);
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, work, bytes);
    return WF_OK;
}
