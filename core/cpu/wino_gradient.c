/* Filter gradients by minimal filtering: dw = G' [(A dy A') times (B' x B)] G, the products summed over tiles.
 *
 * The gradients of all tiles are transformed first; then each thread takes units of input channels, transforms their
 * tiles block by block and sums products in its cache. No sum is split between threads, but for volumes of few
 * channels, whose tiles are cut into chains: as many as the shape says, added in their order. Where the transformed
 * gradients would be large, the tiles are taken in several rounds, which add to dw. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

#include <omp.h>
#include <string.h>

/* Bytes of transformed gradients in a round; of a unit's sums; tiles that are multiplied at a time; and as many chains
 * of all units as a volume has at least. */
enum { ROUND_BYTES = 24 << 20, SUM_BYTES = 7 << 16, BLOCK_TILES = 64, CHAINS = 16 };

/* What the threads of a call share. `values` is written before the units begin and only read after that. */
typedef struct grad {
    const wf_wino *p;
    const float *x, *dy, *zeros;
    float *dw, *values; /* transformed gradients, [block][point][panel][tile][WINO_PANEL] */
    bool accumulate;
    int64_t unit, units;                         /* input channels of a unit; units of all parts */
    int64_t chains;                              /* of a unit */
    float *sums;                                 /* of all chains, if a unit has several */
    int64_t first, tiles;                        /* of this round */
    int64_t panel_step, point_step, values_step; /* of values: to the next panel, point, block */
    int64_t block_step;                          /* of a block of input values: point to point; [point][tile][unit] */
    int64_t sum_step, sums_step;                 /* of sums: channel to channel, point to point */
    int64_t work;                                /* floats of a thread */
} grad;

static grad grad_of(const wf_wino *p, const float *x, const float *dy, bool accumulate, float *dw)
{
    grad g = {.p = p, .x = x, .dy = dy, .dw = dw, .accumulate = accumulate};
    const int64_t channel = p->points * p->out_c * (int64_t)sizeof(float);
    /* The sums of a unit, over all points and outputs, stay in the second-level cache (448 KiB) while tiles pass. */
    g.unit = p->in_c % 32 == 0 && 32 * channel <= SUM_BYTES ? 32 : 16;
    g.units = p->k / g.unit;
    g.chains = p->planes > 1 ? wf_wino_ceiling(CHAINS, g.units) : 1;
    /* At least one block, however many channels there are. */
    g.tiles = wf_cpu_min(p->tiles, ROUND_BYTES / channel / BLOCK_TILES * BLOCK_TILES + BLOCK_TILES);
    g.panel_step = wf_wino_step(BLOCK_TILES * WINO_PANEL);
    g.point_step = wf_wino_ceiling(p->out_c, WINO_PANEL) * g.panel_step;
    g.values_step = p->points * g.point_step;
    g.block_step = wf_wino_step(BLOCK_TILES * g.unit);
    g.sum_step = wf_wino_step(p->out_c);
    g.sums_step = wf_wino_step(g.unit * g.sum_step);
    g.work = p->points * (g.block_step + g.sums_step);
    return g;
}

/* Products of a block of tiles, added to sums. */
static void multiply_block(const grad *g, int64_t at, int64_t count, const float *block, bool add, float *sums)
{
    const wf_wino *const p = g->p;
    for (int64_t point = 0; point < p->points; point++)
        for (int64_t o = 0; o < p->out_c; o += WINO_PANEL) {
            const float *const values =
                g->values + at / BLOCK_TILES * g->values_step + point * g->point_step + o / WINO_PANEL * g->panel_step;
            const wf_wino_size size = {g->unit, wf_cpu_min(WINO_PANEL, p->out_c - o), count};
            /* Tiles are the inner dimension of this product: both sides are read transposed, a tile's channels
             * together. The next panel follows; behind the last one of all is the threads' room. */
            wf_wino_multiply_transposed(size, (wf_wino_rows){block + point * g->block_step, g->unit}, values,
                                        values + g->panel_step, add, sums + point * g->sums_step + o, g->sum_step);
        }
}

/* Transposed line_6 and line_5: from the domain back to taps. */
static inline void taps_6(const pack *u, int64_t s, pack *o, int64_t t)
{
    const pack u0 = u[0], u3 = u[3 * s], u4 = u[4 * s], third = pack_of(1.0F / 3.0F);
    const pack sum = (u[s] + u[2 * s]) * third, difference = (u[s] - u[2 * s]) * third;
    o[0] = pack_scaled(-16.0F / 15.0F, u3, pack_scaled(1.0F / 15.0F, u4, u0 + difference));
    o[t] = pack_scaled(-8.0F / 15.0F, u3, pack_scaled(-2.0F / 15.0F, u4, sum));
    o[2 * t] = pack_scaled(-4.0F / 15.0F, u3, pack_scaled(4.0F / 15.0F, u4, u[5 * s] + difference));
}

static inline void taps_5(const pack *u, int64_t s, pack *o, int64_t t)
{
    const pack u0 = u[0], u1 = u[s], u2 = u[2 * s], u3 = u[3 * s], u4 = u[4 * s];
    o[0] = pack_scaled(-2.0F, u0, pack_scaled(1.0F / 3.0F, u1, pack_scaled(8.0F / 3.0F, u3, pack_of(0.0F) - u2)));
    o[t] = pack_scaled(1.0F / 3.0F, u1, pack_scaled(-4.0F / 3.0F, u3, u2 + u4));
}

/* The taps of one input channel and PACK outputs. */
static void taps_of(const grad *g, const float *sums, pack tap[9])
{
    const int a = g->p->a, taps = g->p->taps;
    pack row[6], half[18];
    for (int i = 0; i < a; i++) {
        for (int j = 0; j < a; j++)
            row[j] = pack_load(sums + (i * a + j) * g->sums_step);
        a == 6 ? taps_6(row, 1, half + i * taps, 1) : taps_5(row, 1, half + i * taps, 1);
    }
    for (int j = 0; j < taps; j++)
        a == 6 ? taps_6(half + j, taps, tap + j, taps) : taps_5(half + j, taps, tap + j, taps);
}

/* PACK outputs by 16 channels into dw[out][tap][channel]. */
static void store_square(const grad *g, const float *sums, int64_t o, int64_t channel, wf_wino_phase phase, bool add)
{
    const wf_wino *const p = g->p;
    const int64_t all = wf_wino_taps(p), count = p->taps * p->taps;
    pack tap[16][9];
    for (int64_t c = 0; c < 16; c++)
        taps_of(g, sums + c * g->sum_step + o, tap[c]);
    for (int64_t t = 0; t < count; t++) {
        const int64_t at = wf_wino_tap(p, phase, (int)t / p->taps, (int)t % p->taps);
        for (int64_t l = 0; l < PACK; l++) {
            float *const to = g->dw + ((o + l) * all + at) * p->in_c + channel;
            for (int64_t c = 0; c < 16; c++)
                to[c] = add ? to[c] + tap[c][t][l] : tap[c][t][l];
        }
    }
}

/* The sums of a unit over the tiles of a chain. */
static void sum_chain(const grad *g, int64_t unit, int64_t chain, float *block, float *sums)
{
    const wf_wino *const p = g->p;
    const wf_wino_phase part = wf_wino_part(p, unit * g->unit / p->in_c);
    const int64_t channel = unit * g->unit % p->in_c;
    int64_t lo, hi;
    wf_block(wf_wino_ceiling(g->tiles, BLOCK_TILES), g->chains, chain, &lo, &hi);
    /* A short round may have fewer blocks than chains. */
    if (lo == hi)
        memset(sums, 0, (size_t)(p->points * g->sums_step) * sizeof *sums);
    for (int64_t b = lo; b < hi; b++) {
        const int64_t at = b * BLOCK_TILES, count = wf_cpu_min(BLOCK_TILES, g->tiles - at);
        for (int64_t t = 0; t < count; t++)
            wf_wino_input_tile(p, (wf_wino_source){g->x, g->zeros}, g->first + at + t, part, channel, g->unit,
                               block + t * g->unit, g->block_step);
        /* The first block overwrites, so sums need no clearing. */
        multiply_block(g, at, count, block, b > lo, sums);
    }
}

/* A unit's sums are turned into taps. */
static void store_unit(const grad *g, int64_t unit, const float *sums)
{
    const wf_wino *const p = g->p;
    const wf_wino_phase part = wf_wino_part(p, unit * g->unit / p->in_c);
    const int64_t channel = unit * g->unit % p->in_c;
    /* Rounds after the first add to dw, always in the same order. */
    const bool add = g->accumulate || g->first > 0;
    for (int64_t c = 0; c < g->unit; c += 16)
        for (int64_t o = 0; o < p->out_c; o += PACK)
            store_square(g, sums + c * g->sum_step, o, channel + c, part, add);
}

/* The only chain of a unit keeps its sums in the thread's room, where they live for all tiles of the round. */
static void run_unit_chain(const grad *g, int64_t at, float *work)
{
    const wf_wino *const p = g->p;
    const int64_t unit = at / g->chains, chain = at % g->chains;
    float *const own = work + p->points * g->block_step;
    sum_chain(g, unit, chain, work, g->sums ? g->sums + at * p->points * g->sums_step : own);
    if (!g->sums)
        store_unit(g, unit, own);
}

static void join_chains(const grad *g, int64_t unit)
{
    const int64_t count = g->p->points * g->sums_step;
    float *const sums = g->sums + unit * g->chains * count;
    for (int64_t chain = 1; chain < g->chains; chain++)
        for (int64_t i = 0; i < count; i++)
            sums[i] += sums[chain * count + i];
    store_unit(g, unit, sums);
}

static void run_round(const wf_ctx *ctx, const grad *g, int team, float *work)
{
    const int64_t chains = g->units * g->chains, turn = wf_cpu_turn(ctx, chains);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < g->tiles; t++)
        wf_wino_gradient_tile(g->p, (wf_wino_source){g->dy, g->zeros}, g->first + t,
                              g->values + t / BLOCK_TILES * g->values_step + t % BLOCK_TILES * WINO_PANEL,
                              g->point_step, g->panel_step);
    /* All gradients of the round are in the domain: the loop above ends with a barrier. */
    for (int64_t first = 0; first < chains; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, chains);
#pragma omp parallel for num_threads(team) schedule(dynamic)
        for (int64_t at = first; at < last; at++)
            run_unit_chain(g, at, work + omp_get_thread_num() * g->work);
        wf_ctx_progress(ctx);
    }
    if (!g->sums)
        return;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t unit = 0; unit < g->units; unit++)
        join_chains(g, unit);
}

wf_status wf_wino_gradient(wf_ctx *ctx, const wf_wino *p, const float *x, const float *dy, bool accumulate, float *dw)
{
    const int team = ctx->threads < 1 ? 1 : ctx->threads;
    grad g = grad_of(p, x, dy, accumulate, dw);
    /* One allocation: the gradients of a round, a room for each thread, the zeros that stand for pixels outside, and
     * the sums of chains. */
    const int64_t zeros = wf_wino_step(p->in_c > p->out_c ? p->in_c : p->out_c),
                  values = wf_wino_ceiling(g.tiles, BLOCK_TILES) * g.values_step,
                  sums = g.chains > 1 ? g.units * g.chains * p->points * g.sums_step : 0;
    const size_t bytes = (size_t)(values + team * g.work + zeros + sums) * sizeof(float);
    void *work = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &work));
    g.values = work;
    float *const blank = g.values + values + team * g.work;
    memset(blank, 0, (size_t)zeros * sizeof *blank);
    g.zeros = blank;
    g.sums = g.chains > 1 ? blank + zeros : NULL;
    const int64_t round = g.tiles;
    for (; g.first < p->tiles; g.first += round) {
        /* The last round may be shorter; steps stay those of a full one. */
        g.tiles = wf_cpu_min(round, p->tiles - g.first);
        run_round(ctx, &g, team, g.values + values);
    }
    wf_pool_give(ctx, work, bytes);
    return WF_OK;
}
