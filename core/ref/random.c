/* Random fills from Philox, element by element of the global index: the oracle of every filling's streams. */
#include "core/random_rows_author.h"
#include "core/ref/ref_impl.h"

#include <math.h>

static void block_of_normals(const uint32_t word[4], double out[4])
{
    for (int h = 0; h < 4; h += 2) {
        /* Box and Muller 1958, of 24 random bits each. u1 is in (0, 1], so its logarithm is finite. */
        const double u1 = ((double)(word[h] >> 8) + 1) * 0x1p-24, u2 = wf_random_unit(word[h + 1]);
        const double r = sqrt(-2 * log(u1)), angle = 2 * 3.14159265358979323846 * u2;
        out[h] = r * cos(angle);
        out[h + 1] = r * sin(angle);
    }
}

static void block_values(const wf_random *random, wf_distribution dist, uint64_t counter, double out[4])
{
    uint32_t word[4];
    /* Four numbers come from one counter (Salmon et al. 2011), so block number at / 4 gives the numbers at .. at + 3.
     */
    wf_philox(random->seed, random->stream, random->iteration ? *random->iteration : 0, counter, word);
    if (dist == WF_NORMAL) {
        block_of_normals(word, out);
        return;
    }
    for (int k = 0; k < 4; k++) {
        const double u = wf_random_unit(word[k]);
        out[k] = dist == WF_TRUNCATED ? wf_random_truncated(u) : u;
    }
}

void wf_ref_draw(const wf_random *random, wf_order order, wf_distribution dist, double *out)
{
    const wf_random_rows rows = wf_random_rows_make(random, order);
    for (int64_t row = 0; row < rows.count; row++) {
        const int64_t start = wf_random_row_start(&rows, row);
        double value[4];
        for (int64_t i = 0; i < rows.length; i++) {
            const int64_t at = start + i;
            if (i == 0 || at % 4 == 0)
                block_values(random, dist, (uint64_t)at / 4, value);
            out[row * rows.length + i] = value[at % 4];
        }
    }
}

wf_status wf_ref_random(wf_ctx *ctx, wf_distribution dist, const wf_random *random, double a, double b,
                        const wf_array *y)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(y);
    double *const v = wf_ref_out(&frame, y, false);
    if (frame.status == WF_OK) {
        wf_ref_draw(random, y->order, dist, v);
        const double scale = dist == WF_UNIFORM ? b - a : b;
        const double top = dist == WF_UNIFORM ? wf_random_top(a, b, y->dtype) : INFINITY;
        for (int64_t i = 0; i < n; i++)
            v[i] = fmin(a + scale * v[i], top);
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const int64_t n = wf_array_count(y);
    const double *const xv = wf_ref_in(&frame, x);
    double *const yv = wf_ref_out(&frame, y, false);
    double *const u = wf_ref_work(&frame, n);
    if (frame.status == WF_OK) {
        wf_ref_draw(random, y->order, WF_UNIFORM, u);
        for (int64_t i = 0; i < n; i++)
            /* Scaled here, so that evaluation needs no factor. */
            yv[i] = u[i] < rate ? 0 : xv[i] * (1 / (1 - rate));
    }
    return wf_ref_end(&frame);
}
