/* Each kind of fractal is the attractor of a few affine maps (an iterated function system; Barnsley 1988), whose points
 * come by applying maps drawn at random, again and again. An instance differs from its kind by small changes of the
 * maps, its place and its size. */
#include "examples/fractals.h"

#include <math.h>
#include <string.h>

enum { KINDS = FRACTAL_CLASSES - 1, INSTANCES = 145, IN_A_VOLUME = 3, MAPS = 5, SKIPPED = 20 };

/* A key and one of these give the numbers of one purpose. */
enum { OF_COLOUR = 10, OF_NOISE = 1 << 20 };

typedef struct affine {
    double turn[3][3], shift[3];
} affine;

/* A number that looks random but depends on both arguments alone. */
static uint64_t mix_keys(uint64_t a, uint64_t b)
{
    a = (a ^ b * 0x9e3779b97f4a7c15u) + 0x632be59bd9b4e019u;
    a = (a ^ a >> 32) * 0xd6e8feb86659fd93u;
    a = (a ^ a >> 32) * 0xd6e8feb86659fd93u;
    return a ^ a >> 32;
}

static double draw_between(uint64_t key, uint64_t number, double lo, double hi)
{
    return lo + (hi - lo) * 0x1p-53 * (double)(mix_keys(key, number) >> 11);
}

/* Turns by Euler angles, times a scale below 1, so that the maps contract. */
static affine draw_map(uint64_t kind, uint64_t instance, int map)
{
    affine a;
    double angle[3], scale;
    const uint64_t own = mix_keys(kind, 100 + (uint64_t)map), changed = mix_keys(own, 1000 + instance);
    for (uint64_t d = 0; d < 3; d++) {
        angle[d] = draw_between(own, d, -M_PI, M_PI) + draw_between(changed, d, -0.1, 0.1);
        a.shift[d] = draw_between(own, 3 + d, -0.6, 0.6) + draw_between(changed, 3 + d, -0.03, 0.03);
    }
    scale = draw_between(own, 6, 0.35, 0.6);
    const double s[3] = {sin(angle[0]), sin(angle[1]), sin(angle[2])},
                 c[3] = {cos(angle[0]), cos(angle[1]), cos(angle[2])};
    const double turn[3][3] = {{c[1] * c[2], -c[1] * s[2], s[1]},
                               {c[0] * s[2] + s[0] * s[1] * c[2], c[0] * c[2] - s[0] * s[1] * s[2], -s[0] * c[1]},
                               {s[0] * s[2] - c[0] * s[1] * c[2], s[0] * c[2] + c[0] * s[1] * s[2], c[0] * c[1]}};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            a.turn[i][j] = scale * turn[i][j];
    return a;
}

static void apply_map(const affine *a, double at[3])
{
    double moved[3];
    for (int i = 0; i < 3; i++)
        moved[i] = a->turn[i][0] * at[0] + a->turn[i][1] * at[1] + a->turn[i][2] * at[2] + a->shift[i];
    memcpy(at, moved, sizeof moved);
}

/* In three channels a kind has a colour, in one all are alike. */
static float paint_of(uint64_t kind, int64_t channel, int64_t channels)
{
    return channels == 1 ? 1 : (float)draw_between(mix_keys(kind, OF_COLOUR), (uint64_t)channel, 0, 1);
}

/* One channel of the part has so many. */
static int64_t voxels_of(const wf_box *box)
{
    const wf_shape part = wf_box_shape(*box);
    return part.dim[2] * part.dim[3] * part.dim[4];
}

/* The place of a voxel in one channel of the part, or -1. */
static int64_t place_in_part(const wf_box *box, const int64_t voxel[3])
{
    int64_t place = 0;
    for (int d = 0; d < 3; d++) {
        if (voxel[d] < box->lo[2 + d] || voxel[d] >= box->hi[2 + d])
            return -1;
        place = place * (box->hi[2 + d] - box->lo[2 + d]) + voxel[d] - box->lo[2 + d];
    }
    return place;
}

static void draw_fractal(uint64_t key, int64_t side, const wf_box *box, float *x, int64_t *label)
{
    const uint64_t kind = mix_keys(key, 0) % KINDS, instance = mix_keys(key, 1) % INSTANCES;
    affine map[MAPS];
    double centre[3], at[3] = {0, 0, 0};
    for (int m = 0; m < MAPS; m++)
        map[m] = draw_map(kind, instance, m);
    for (uint64_t d = 0; d < 3; d++)
        centre[d] = draw_between(key, 2 + d, 0.3, 0.7) * (double)side;
    const double size = draw_between(key, 5, 0.16, 0.22) * (double)side; /* of one unit of the maps' space */
    const int64_t points = 4 * side * side, channels = wf_box_shape(*box).dim[1], voxels = voxels_of(box);
    float paint[FRACTAL_COLOURS];
    for (int64_t c = 0; c < channels; c++)
        paint[c] = paint_of(kind, c, channels);
    for (int64_t p = -SKIPPED; p < points; p++) {
        apply_map(&map[mix_keys(key, 1000 + (uint64_t)(p + SKIPPED)) % MAPS], at);
        int64_t voxel[3];
        for (int d = 0; d < 3; d++)
            voxel[d] = (int64_t)floor(centre[d] + size * at[d]);
        const int64_t place = p >= 0 ? place_in_part(box, voxel) : -1;
        if (place < 0)
            continue;
        for (int64_t c = 0; c < channels; c++)
            x[c * voxels + place] = paint[c];
        label[place] = 1 + (int64_t)kind;
    }
}

/* By the voxel's place in the whole. */
static void add_noise(uint64_t key, int64_t side, const wf_box *box, float *x)
{
    for (int64_t c = box->lo[1]; c < box->hi[1]; c++)
        for (int64_t d = box->lo[2]; d < box->hi[2]; d++)
            for (int64_t h = box->lo[3]; h < box->hi[3]; h++)
                for (int64_t w = box->lo[4]; w < box->hi[4]; w++) {
                    const int64_t place = ((c * side + d) * side + h) * side + w;
                    *x++ += (float)draw_between(key, OF_NOISE + (uint64_t)place, -0.25, 0.25);
                }
}

void fractals_draw(uint64_t seed, int64_t first, int64_t side, wf_box box, float *x, int64_t *label)
{
    const int64_t voxels = voxels_of(&box), numbers = voxels * wf_box_shape(box).dim[1];
    for (int64_t n = box.lo[0]; n < box.hi[0]; n++) {
        const uint64_t key = mix_keys(seed + 1, (uint64_t)(first + n));
        memset(x, 0, (size_t)numbers * sizeof *x);
        memset(label, 0, (size_t)voxels * sizeof *label);
        for (uint64_t f = 0; f < IN_A_VOLUME; f++)
            draw_fractal(mix_keys(key, f), side, &box, x, label);
        add_noise(key, side, &box, x);
        x += numbers;
        label += voxels;
    }
}
