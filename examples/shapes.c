/* Data for segmentation without files. Each pixel is computed for itself, so a rank draws its part of a picture and the
 * parts fit together. */
#include "examples/shapes.h"

#include <math.h>
#include <stdlib.h>

enum { THINGS = 16 };

/* All lengths are parts of the side. */
typedef struct thing {
    double centre[3], radius[3], brightness;
    bool round;
} thing;

/* A number that looks random but depends on both arguments alone. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b * 0x9e3779b97f4a7c15u) + 0x632be59bd9b4e019u;
    a = (a ^ a >> 32) * 0xd6e8feb86659fd93u;
    a = (a ^ a >> 32) * 0xd6e8feb86659fd93u;
    return a ^ a >> 32;
}

static double between(uint64_t key, uint64_t number, double lo, double hi)
{
    return lo + (hi - lo) * 0x1p-53 * (double)(mix(key, number) >> 11);
}

/* Arranges the shapes of an image; a later one covers an earlier one. In volumes they are larger, to fill as large a
 * part. */
static void arrange(uint64_t key, int dims, thing things[THINGS])
{
    const double larger = dims == 3 ? 1.6 : 1;
    for (int i = 0; i < THINGS; i++) {
        const uint64_t own = mix(key, (uint64_t)i);
        thing *t = &things[i];
        t->round = i % 2 == 0;
        t->brightness = between(own, 0, 0.45, 0.9);
        for (uint64_t d = 0; d < 3; d++) {
            t->centre[d] = between(own, 1 + d, 0, 1);
            t->radius[d] = larger * between(own, 4 + d, 0.04, 0.18);
        }
    }
}

static bool covers(const thing *t, const double at[3], int dims)
{
    double sum = 0, most = 0;
    for (int d = 0; d < dims; d++) {
        const double off = fabs(at[d] - t->centre[d]) / t->radius[d];
        sum += off * off;
        most = fmax(most, off);
    }
    return t->round ? sum < 1 : most < 0.886; /* half of the root of pi: in a plane, as large as a round one */
}

static void draw_pixel(const thing things[THINGS], const double at[3], int dims, double noise, float *x, float *mask)
{
    const thing *top = NULL;
    for (int i = THINGS - 1; i >= 0 && !top; i--)
        if (covers(&things[i], at, dims))
            top = &things[i];
    *x = (float)((top ? top->brightness : 0.2 + 0.2 * at[dims - 1]) + noise);
    *mask = top && top->round;
}

void shapes_draw(uint64_t seed, int64_t first, int64_t side, wf_box box, float *x, float *mask)
{
    const int dims = box.rank - 2;
    for (int64_t n = box.lo[0]; n < box.hi[0]; n++) {
        thing things[THINGS];
        const uint64_t key = mix(mix(seed, (uint64_t)(first + n)), 1);
        arrange(key, dims, things);
        const wf_shape shape = wf_box_shape(box);
        const int64_t pixels = wf_shape_count(shape) / shape.dim[0];
        for (int64_t i = 0; i < pixels; i++) {
            double at[3] = {0};
            uint64_t place = 0, scale = 1;
            int64_t rest = i;
            for (int d = dims - 1; d >= 0; d--) {
                const int64_t whole = box.lo[2 + d] + rest % shape.dim[2 + d];
                rest /= shape.dim[2 + d];
                at[d] = ((double)whole + 0.5) / (double)side;
                place += scale * (uint64_t)whole;
                scale *= (uint64_t)side;
            }
            draw_pixel(things, at, dims, between(~key, place, -0.2, 0.2), x++, mask++);
        }
    }
}
