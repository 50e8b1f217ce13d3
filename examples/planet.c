/* Globes: boundary, areas, seams, pictures. */
#include "examples/planet.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST_SIDE = 288 }; /* pixels of a picture's longer side, at least */

wf_boundary planet_globe(bool on_poles, int n_negated, const int64_t *negated)
{
    return (wf_boundary){.lo = {[2] = WF_EDGE_POLE, [3] = WF_EDGE_CIRCULAR},
                         .hi = {[2] = WF_EDGE_POLE, [3] = WF_EDGE_CIRCULAR},
                         .row_on_pole = on_poles,
                         .n_negated = n_negated,
                         .negated = negated};
}

static double height_of(double latitude)
{
    const double limit = latitude > 90 ? 90 : latitude < -90 ? -90 : latitude;
    return sin(limit * acos(-1.0) / 180);
}

void planet_area(int64_t rows, const double *latitude, double *area)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double here = latitude[r], step = rows > 1 ? fabs(latitude[1] - latitude[0]) : 180;
        const double before = r > 0 ? fabs(here - latitude[r - 1]) : step;
        const double after = r + 1 < rows ? fabs(latitude[r + 1] - here) : step;
        const double up = rows > 1 && latitude[1] < latitude[0] ? before : after, down = before + after - up;
        area[r] = height_of(here + up / 2) - height_of(here - down / 2);
        sum += area[r];
    }
    for (int64_t r = 0; r < rows; r++)
        area[r] *= (double)rows / sum;
}

void planet_add_jumps(planet_jumps *j, const float *field, int64_t rows, int64_t columns, const double *area)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const double jump = fabs((double)field[r * columns + (c + 1) % columns] - (double)field[r * columns + c]);
            if (!isfinite(jump))
                continue;
            *(c + 1 == columns ? &j->seam : &j->elsewhere) += area[r] * jump;
            *(c + 1 == columns ? &j->seam_weight : &j->elsewhere_weight) += area[r];
        }
}

double planet_seam(const planet_jumps *j)
{
    return j->seam / j->seam_weight / (j->elsewhere / j->elsewhere_weight);
}

static void colour_of(double value, double limit, float rgb[3])
{
    const double x = value / limit > 1 ? 1 : value / limit < -1 ? -1 : value / limit;
    rgb[0] = (float)(x > 0 ? 1 - 0.2 * x : 1 + 0.9 * x);
    rgb[1] = (float)(1 - 0.85 * fabs(x));
    rgb[2] = (float)(x > 0 ? 1 - 0.9 * x : 1 + 0.2 * x);
    if (!isfinite(value))
        rgb[0] = rgb[1] = rgb[2] = 0.6f;
}

static void draw_panel(const planet_panel *p, int64_t rows, int64_t columns, int64_t scale, bool south_first, float *to)
{
    const int64_t plane = rows * columns * scale * scale;
    for (int64_t r = 0; r < rows * scale; r++)
        for (int64_t c = 0; c < columns * scale; c++) {
            const int64_t row = south_first ? rows - 1 - r / scale : r / scale;
            const int64_t column = (c / scale + columns / 2) % columns, at = r * columns * scale + c;
            float rgb[3];
            colour_of((double)p->field[row * columns + column], p->limit, rgb);
            for (int64_t k = 0; k < 3; k++)
                to[k * plane + at] = rgb[k];
        }
}

void planet_picture(wf_ctx *ctx, const char *path, int down, int across, const planet_panel *panels, int64_t rows,
                    int64_t columns, bool south_first)
{
    const int64_t longer = rows > columns ? rows : columns, n = (int64_t)down * across;
    const int64_t scale = (LEAST_SIDE + longer - 1) / longer, plane = rows * columns * scale * scale;
    float *x = calloc((size_t)(n * 3 * plane), sizeof *x);
    if (!x)
        example_abort("no memory for a picture of %lld panels", (long long)n);
    for (int64_t i = 0; i < n; i++)
        draw_panel(&panels[i], rows, columns, scale, south_first, x + i * 3 * plane);
    wf_tensor *images = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(n, 3, rows * scale, columns * scale), x);
    WF_MUST(wf_check(images));
    WF_MUST(wf_write_png_grid(path, images, down, across, 0, 1));
    wf_tensor_free(images);
    free(x);
}
