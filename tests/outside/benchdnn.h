/* The table of shapes that oneDNN tests itself with (benchdnn_shapes.txt), read and made small enough. */
#ifndef WF_TESTS_OUTSIDE_BENCHDNN_H
#define WF_TESTS_OUTSIDE_BENCHDNN_H

#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum driver {
    OF_CONV,
    OF_DECONV,
    OF_POOL,
    OF_BNORM,
    OF_GNORM,
    OF_LNORM,
    OF_SOFTMAX,
    OF_MATMUL,
    OF_RESAMPLING,
    DRIVERS
} driver;

static const char *const driver_name[] = {"conv",  "deconv",  "pool",   "bnorm",     "gnorm",
                                          "lnorm", "softmax", "matmul", "resampling"};

typedef struct benchdnn_shape {
    driver driver;
    int nd; /* of spatial dimensions; softmax: of all */
    int64_t groups, n, c, f;
    int64_t in[5], kernel[3], stride[3], lo[3], hi[3], dilation[3], out[3];
    int64_t m, k, cols; /* matmul; lnorm: m rows of k */
    bool scaled;        /* made smaller than in the table */
} benchdnn_shape;

/* Reads "56x56" into `number`; returns how many there are. */
static inline int read_lengths(const char *text, int64_t *number, int most)
{
    int n = 0;
    for (const char *at = text; n < most; at++) {
        char *end;
        number[n++] = strtoll(at, &end, 10);
        at = end;
        if (*at != 'x')
            break;
    }
    return n;
}

static inline bool parse_windowed(benchdnn_shape *s, char *const *word, int words)
{
    int64_t *const list[] = {s->in, s->kernel, s->stride, s->lo, s->hi, s->dilation};
    const int first = s->driver == OF_POOL ? 2 : 4;
    if (words != first + 6)
        return false;
    s->groups = s->driver == OF_POOL ? 1 : atoll(word[0]);
    s->n = atoll(word[s->driver == OF_POOL ? 0 : 1]);
    s->c = atoll(word[s->driver == OF_POOL ? 1 : 2]);
    s->f = s->driver == OF_POOL ? s->c : atoll(word[3]);
    for (int i = 0; i < 6; i++)
        s->nd = read_lengths(word[first + i], list[i], 3);
    return true;
}

static inline bool parse_plain(benchdnn_shape *s, char *const *word, int words)
{
    if (s->driver == OF_SOFTMAX) {
        s->nd = read_lengths(word[0], s->in, 5);
        return words == 1;
    }
    if (s->driver == OF_LNORM || s->driver == OF_MATMUL) {
        s->m = atoll(word[0]);
        s->k = atoll(word[1]);
        s->cols = words > 2 ? atoll(word[2]) : 0;
        return words == (s->driver == OF_LNORM ? 2 : 3);
    }
    const int first = s->driver == OF_GNORM;
    s->groups = first ? atoll(word[0]) : 1;
    s->n = atoll(word[first]);
    s->c = atoll(word[first + 1]);
    s->nd = words > first + 2 ? read_lengths(word[first + 2], s->in, 3) : 0;
    if (s->driver == OF_RESAMPLING)
        return words == 4 && read_lengths(word[3], s->out, 3) == s->nd;
    return words <= first + 3;
}

/* One line of the table; false for a comment, and a failed check for what is neither. */
static inline bool parse_shape(char *line, benchdnn_shape *s)
{
    char *word[16], *rest = NULL;
    int words = 0;
    *s = (benchdnn_shape){.driver = DRIVERS};
    if (line[0] == '#')
        return false;
    for (char *w = strtok_r(line, " \n", &rest); w && words < 16; w = strtok_r(NULL, " \n", &rest))
        word[words++] = w;
    if (words == 0)
        return false;
    for (int d = 0; d < DRIVERS; d++)
        if (strcmp(word[0], driver_name[d]) == 0)
            s->driver = (driver)d;
    const bool good = s->driver == DRIVERS   ? false
                      : s->driver <= OF_POOL ? parse_windowed(s, word + 1, words - 1)
                                             : words > 1 && parse_plain(s, word + 1, words - 1);
    WF_EXPECT(good, "a line of the table that begins with \"%s\" and has %d words", word[0], words);
    return good;
}

/* --- less work
 * ---------------------------------------------------------------------------------------------------------
 */

static inline int64_t window_length(const benchdnn_shape *s, int d)
{
    const int64_t extent = s->dilation[d] * (s->kernel[d] - 1) + 1, pads = s->lo[d] + s->hi[d];
    if (s->driver == OF_DECONV)
        return (s->in[d] - 1) * s->stride[d] + extent - pads;
    const int64_t room = s->in[d] + pads - extent;
    return room < 0 ? 0 : room / s->stride[d] + 1;
}

/* Multiplications, or elements, of one pass in the direction that has most. */
static inline double work_of(const benchdnn_shape *s)
{
    double work = (double)s->n * (double)s->c;
    switch (s->driver) {
    case OF_MATMUL:
        return (double)s->m * (double)s->k * (double)s->cols;
    case OF_LNORM:
        return 8.0 * (double)s->m * (double)s->k;
    case OF_SOFTMAX:
        work = 8;
        for (int d = 0; d < s->nd; d++)
            work *= (double)s->in[d];
        return work;
    case OF_CONV:
    case OF_DECONV:
        work *= (double)s->f / (double)s->groups;
        break;
    default:
        work *= 8;
    }
    for (int d = 0; d < s->nd; d++) {
        const int64_t out = s->driver == OF_RESAMPLING ? s->out[d] : s->driver <= OF_POOL ? window_length(s, d) : 0;
        work *= (double)(out > s->in[d] ? out : s->in[d]) * (double)(s->driver <= OF_POOL ? s->kernel[d] : 1);
    }
    return work;
}

/* Half of a length, with the same rest by 16, so that vectors end as they did. */
static inline int64_t half_of(int64_t length)
{
    const int64_t half = length / 2, kept = half - half % 16 + length % 16;
    return kept < length && kept > 0 ? kept : half > 0 ? half : 1;
}

/* Halves a spatial length unless the window would no longer fit. */
static inline bool halve_spatial(benchdnn_shape *s, int d)
{
    const int64_t before = s->in[d];
    if (before < 4)
        return false;
    s->in[d] = (before + 1) / 2;
    if (s->driver == OF_RESAMPLING) {
        s->out[d] = s->out[d] / before * s->in[d];
        return true;
    }
    if (s->driver <= OF_POOL && window_length(s, d) < 2) {
        s->in[d] = before;
        return false;
    }
    return true;
}

/* Halves a long kernel and its pads. */
static inline bool halve_kernel(benchdnn_shape *s)
{
    int longest = 0;
    for (int d = 1; d < s->nd; d++)
        longest = s->kernel[d] > s->kernel[longest] ? d : longest;
    if (s->driver > OF_POOL || s->kernel[longest] < 8)
        return false;
    s->kernel[longest] = (s->kernel[longest] + 1) / 2;
    s->lo[longest] /= 2;
    s->hi[longest] /= 2;
    return true;
}

static inline bool halve_channels(benchdnn_shape *s)
{
    int64_t per_c = s->c / s->groups, per_f = s->f / s->groups;
    const bool depthwise = per_c == 1;
    if (depthwise && s->groups > 1) {
        s->groups = half_of(s->groups);
    } else if (per_c >= per_f && per_c > 1) {
        per_c = half_of(per_c);
    } else if (per_f > 1) {
        per_f = half_of(per_f);
    } else if (s->groups > 1) {
        s->groups = half_of(s->groups);
    } else {
        return false;
    }
    s->c = s->groups * per_c;
    s->f = s->driver <= OF_DECONV ? s->groups * per_f : s->c;
    return true;
}

static inline bool halve_longest(benchdnn_shape *s)
{
    int64_t *longest = s->driver == OF_SOFTMAX ? &s->in[0] : &s->m;
    if (s->driver == OF_SOFTMAX)
        for (int d = 1; d < s->nd; d++)
            longest = s->in[d] > *longest ? &s->in[d] : longest;
    else {
        longest = s->k > *longest ? &s->k : longest;
        longest = s->cols > *longest ? &s->cols : longest;
    }
    const int64_t before = *longest;
    *longest = half_of(before);
    return *longest < before;
}

static inline bool halve_shape(benchdnn_shape *s)
{
    if (s->driver == OF_SOFTMAX || s->driver == OF_MATMUL || s->driver == OF_LNORM)
        return halve_longest(s);
    if (s->n > 1) {
        s->n = 1;
        return true;
    }
    int longest = -1;
    for (int d = 0; d < s->nd; d++)
        if (s->in[d] >= 16 && (longest < 0 || s->in[d] > s->in[longest]))
            longest = d;
    if (longest >= 0 && halve_spatial(s, longest))
        return true;
    if (halve_channels(s))
        return true;
    for (int d = 0; d < s->nd; d++)
        if (halve_spatial(s, d))
            return true;
    return halve_kernel(s);
}

/* Makes the shape smaller until one pass has at most this much work: samples first, then long images, then channels. */
static inline void scale_down(benchdnn_shape *s, double most)
{
    s->f = s->f ? s->f : s->c;
    while (work_of(s) > most && halve_shape(s))
        s->scaled = true;
}

/* Runs `check` on every TEST_SAMPLES-th shape of the table (test_samples), and prints the counts. */
static inline void each_shape(const char *path, double most, bool (*check)(const benchdnn_shape *s))
{
    enum { LINE = 256 };
    int64_t seen = 0, ran[DRIVERS] = {0}, whole[DRIVERS] = {0}, cannot[DRIVERS] = {0};
    const int part = (1000000 + test_samples(1000000) - 1) / test_samples(1000000);
    char line[LINE];
    FILE *file = fopen(path, "r");
    WF_EXPECT(file, "no table %s", path);
    while (file && fgets(line, LINE, file)) {
        benchdnn_shape s;
        if (!parse_shape(line, &s) || seen++ % part != 0)
            continue;
        scale_down(&s, most);
        if (!check(&s)) {
            cannot[s.driver]++;
            continue;
        }
        ran[s.driver]++;
        whole[s.driver] += !s.scaled;
    }
    if (file)
        fclose(file);
    for (int d = 0; d < DRIVERS; d++)
        printf("  %-10s %5lld ran, %5lld of them as they are, %4lld cannot be said\n", driver_name[d],
               (long long)ran[d], (long long)whole[d], (long long)cannot[d]);
    WF_EXPECT(seen > 4000 && ran[OF_CONV] > 0, "%lld shapes in the table", (long long)seen);
}

#endif
