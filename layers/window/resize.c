/* Finds the inputs of which an output of any length is made, and their weights. Pure arithmetic, the same on every
 * rank. */
#include "layers/window/window_impl.h"

#include <math.h>

/* A place among inputs: at + part, 0 <= part < 1. */
typedef struct input_place {
    int64_t at;
    double part;
} input_place;

/* Whole division towards minus infinity, and what is left, exactly. */
static input_place divide_place(int64_t over, int64_t under)
{
    const int64_t at = over / under - (over % under < 0);
    return (input_place){at, (double)(over - at * under) / (double)under};
}

static input_place find_place(const wf_resize_geom *g, int d, int64_t o)
{
    const int64_t in = g->in[d], out = g->out[d];
    const bool centres = g->places == WF_PLACES_CENTRES;
    if (g->places == WF_PLACES_ALIGNED)
        return out > 1 ? divide_place(o * (in - 1), out - 1) : (input_place){0, 0};
    /* Fractions of integers, where they can be: no rounding puts the place on the other side of an input. */
    if (g->scale[d] == 0)
        return centres ? divide_place((2 * o + 1) * in - out, 2 * out) : divide_place(o * in, out);
    const double place = centres ? ((double)o + 0.5) / g->scale[d] - 0.5 : (double)o / g->scale[d], at = floor(place);
    return (input_place){(int64_t)at, place - at};
}

/* Places beyond the edges are the last input there. */
static int64_t clamp_input(int64_t at, int64_t length)
{
    return at < 0 ? 0 : at >= length ? length - 1 : at;
}

/* Only nearest resampling rounds. */
static int64_t round_place(wf_resize_rounding rounding, input_place p)
{
    if (rounding == WF_ROUND_UP)
        return p.at + (p.part > 0);
    if (rounding == WF_ROUND_HALF_DOWN)
        return p.at + (p.part > 0.5);
    return p.at + (rounding == WF_ROUND_HALF_UP && p.part >= 0.5);
}

/* Inputs for each output, where that widens the kernel. */
static double kernel_width(const wf_resize_geom *g, int d)
{
    const double step = g->scale[d] != 0 ? 1 / g->scale[d] : (double)g->in[d] / (double)g->out[d];
    return g->antialias && step > 1 ? step : 1;
}

/* The centre of output o, counted from the left edge of the first input. */
static double find_centre(const wf_resize_geom *g, int d, int64_t o)
{
    const double step = g->scale[d] != 0 ? 1 / g->scale[d] : (double)g->in[d] / (double)g->out[d];
    return step * ((double)o + 0.5);
}

/* All inputs within the support of the widened kernel, at least one. */
static wf_range read_wide(const wf_resize_geom *g, int d, int64_t o)
{
    const double centre = find_centre(g, d, o), support = (g->mode == WF_RESIZE_CUBIC ? 2 : 1) * kernel_width(g, d);
    const int64_t lo = clamp_input((int64_t)floor(centre - support + 0.5), g->in[d]),
                  hi = clamp_input((int64_t)floor(centre + support + 0.5) - 1, g->in[d]) + 1;
    return (wf_range){lo, hi > lo ? hi : lo + 1};
}

wf_range wf_resize_reads(const wf_resize_geom *g, int d, int64_t o)
{
    const int64_t in = g->in[d], out = g->out[d];
    /* Windows of adaptive pooling: floor and ceiling of the output's ends. */
    if (g->mode == WF_RESIZE_AREA)
        return (wf_range){o * in / out, ((o + 1) * in + out - 1) / out};
    if (g->antialias)
        return read_wide(g, d, o);
    const input_place p = find_place(g, d, o);
    int64_t lo = p.at, hi = p.at + (p.part > 0);
    if (g->mode == WF_RESIZE_NEAREST)
        lo = hi = round_place(g->rounding, p);
    else if (g->mode == WF_RESIZE_CUBIC) {
        lo = p.at - 1;
        hi = p.at + 2;
    }
    return (wf_range){clamp_input(lo, in), clamp_input(hi, in) + 1};
}

/* The cubic kernel of Keys (1981) at this distance, for inputs one apart. */
static double cubic_at(double a, double x)
{
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static double kernel_at(const wf_resize_geom *g, double x)
{
    return g->mode == WF_RESIZE_CUBIC ? cubic_at(g->cubic, x) : fabs(x) < 1 ? 1 - fabs(x) : 0;
}

/* Weights are divided by their sum: at edges and between inputs it is not exactly 1. */
static void weigh_wide(const wf_resize_geom *g, int d, int64_t o, wf_range reads, double *weight)
{
    const double centre = find_centre(g, d, o), width = kernel_width(g, d);
    double sum = 0;
    for (int64_t i = reads.lo; i < reads.hi; i++) {
        weight[i - reads.lo] = kernel_at(g, ((double)i + 0.5 - centre) / width);
        sum += weight[i - reads.lo];
    }
    for (int64_t i = reads.lo; i < reads.hi && sum != 0; i++)
        weight[i - reads.lo] /= sum;
}

void wf_resize_weights(const wf_resize_geom *g, int d, int64_t o, double *weight)
{
    const wf_range reads = wf_resize_reads(g, d, o);
    const int64_t count = reads.hi - reads.lo;
    for (int64_t i = 0; i < count; i++)
        weight[i] = g->mode == WF_RESIZE_AREA ? 1 / (double)count : 0;
    if (g->mode == WF_RESIZE_AREA)
        return;
    if (g->antialias) {
        weigh_wide(g, d, o, reads, weight);
        return;
    }
    if (g->mode == WF_RESIZE_NEAREST) {
        weight[0] = 1;
        return;
    }
    const input_place p = find_place(g, d, o);
    const bool cubic = g->mode == WF_RESIZE_CUBIC;
    /* An input beyond an edge is the last one there, which collects the weights. */
    for (int64_t t = cubic ? -1 : 0; t <= (cubic ? 2 : p.part > 0); t++)
        weight[clamp_input(p.at + t, g->in[d]) - reads.lo] += kernel_at(g, (double)t - p.part);
}

/* The output that belongs to input a: the first whose place is not before it. Cuts of inputs become cuts of outputs by
 * it. */
int64_t wf_resize_place(const wf_resize_geom *g, int d, int64_t a)
{
    const int64_t place = (a * g->out[d] + g->in[d] - 1) / g->in[d];
    return place < g->out[d] ? place : g->out[d];
}
