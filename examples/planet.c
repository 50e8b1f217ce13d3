/* Globes: boundary, areas, seams, pictures. */
#include "examples/planet.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST_SIDE = 288, MOST_SIDE = 1080 }; /* pixels of a panel's longer side */

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
    if (!j->sum) {
        j->columns = columns;
        j->sum = calloc((size_t)columns, sizeof *j->sum);
        j->weight = calloc((size_t)columns, sizeof *j->weight);
    }
    if (!j->sum || !j->weight)
        example_abort("no memory for %lld columns", (long long)columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            const double jump = fabs((double)field[r * columns + (c + 1) % columns] - (double)field[r * columns + c]);
            if (!isfinite(jump))
                continue;
            j->sum[c] += area[r] * jump;
            j->weight[c] += area[r];
        }
}

void planet_jumps_free(planet_jumps *j)
{
    free(j->sum);
    free(j->weight);
    *j = (planet_jumps){0};
}

double planet_jump(const planet_jumps *j, int64_t column)
{
    double sum = 0, weight = 0;
    for (int64_t c = 0; c < j->columns; c++) {
        sum += c == column ? 0 : j->sum[c];
        weight += c == column ? 0 : j->weight[c];
    }
    return j->sum[column] / j->weight[column] / (sum / weight);
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

/* A panel of rows by columns pixels. A small field has `scale` pixels a point, of a large one every `step`-th is shown.
 */
typedef struct sizes {
    int64_t rows, columns, scale, step;
} sizes;

static sizes sizes_of(int64_t rows, int64_t columns)
{
    const int64_t longer = rows > columns ? rows : columns;
    sizes z = {.scale = (LEAST_SIDE + longer - 1) / longer, .step = (longer + MOST_SIDE - 1) / MOST_SIDE};
    z.rows = (rows + z.step - 1) / z.step * z.scale;
    z.columns = (columns + z.step - 1) / z.step * z.scale;
    return z;
}

static void draw_panel(const planet_panel *p, int64_t rows, int64_t columns, bool south_first, float *to)
{
    const sizes z = sizes_of(rows, columns);
    for (int64_t r = 0; r < z.rows; r++)
        for (int64_t c = 0; c < z.columns; c++) {
            const int64_t row = r / z.scale * z.step;
            const int64_t column = (c / z.scale * z.step + columns / 2) % columns;
            float rgb[3];
            colour_of((double)p->field[(south_first ? rows - 1 - row : row) * columns + column], p->limit, rgb);
            for (int64_t k = 0; k < 3; k++)
                to[(k * z.rows + r) * z.columns + c] = rgb[k];
        }
}

void planet_picture(wf_ctx *ctx, const char *path, int down, int across, const planet_panel *panels, int64_t rows,
                    int64_t columns, bool south_first)
{
    const sizes z = sizes_of(rows, columns);
    const int64_t n = (int64_t)down * across, pixels = 3 * z.rows * z.columns;
    float *x = calloc((size_t)(n * pixels), sizeof *x);
    if (!x)
        example_abort("no memory for a picture of %lld panels", (long long)n);
    for (int64_t i = 0; i < n; i++)
        draw_panel(&panels[i], rows, columns, south_first, x + i * pixels);
    wf_tensor *images = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(n, 3, z.rows, z.columns), x);
    WF_MUST(wf_check(images));
    WF_MUST(wf_write_png_grid(path, images, down, across, 0, 1));
    wf_tensor_free(images);
    free(x);
}
