/* Neighbourhood attention of a small image by plain loops over pixels, for tests/layers/attention.c. */
#ifndef WF_TESTS_NEAR_PLAIN_H
#define WF_TESTS_NEAR_PLAIN_H

#include "layers/transformer.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NEAR_HEADS = 2, NEAR_EACH = 2, NEAR_WIDTH = NEAR_HEADS * NEAR_EACH, NEAR_MOST = 3, NEAR_PIXELS = 64 };

/* Parameters in the order of query, key, value and out. A table of one row for a kernel of 1 by 1. */
typedef struct near_host {
    double w[4][NEAR_WIDTH][NEAR_WIDTH], b[4][NEAR_WIDTH];
    double table[NEAR_HEADS][(2 * NEAR_MOST - 1) * (2 * NEAR_MOST - 1)];
} near_host;

typedef struct near_plain {
    int64_t length[2], kernel[2], dilation[2];
    double scale; /* 0: 1 / sqrt(NEAR_EACH) */
    bool bare;    /* no table, no bias of queries, keys and values */
} near_plain;

static inline void put_param(wf_layer *layer, const char *path, const double *host)
{
    wf_param *p = wf_layer_param(layer, path);
    WF_EXPECT(p, "no parameter %s", path);
    if (p)
        WF_EXPECT_OK(wf_tensor_import(wf_param_value(p), host, wf_tensor_bytes(wf_param_value(p))));
}

/* The table of the layer is as long as its kernel, that of `p` begins with it for each head. */
static inline void set_near(wf_layer *layer, const near_plain *t, near_host *p)
{
    static const char *const name[4] = {"query", "key", "value", "out"};
    const int64_t rows = (2 * t->kernel[0] - 1) * (2 * t->kernel[1] - 1);
    double table[NEAR_HEADS * (2 * NEAR_MOST - 1) * (2 * NEAR_MOST - 1)];
    char path[16];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/W", name[i]);
        put_param(layer, path, &p->w[i][0][0]);
        snprintf(path, sizeof path, "%s/b", name[i]);
        if (t->bare && i < 3)
            memset(p->b[i], 0, sizeof p->b[i]);
        else
            put_param(layer, path, p->b[i]);
    }
    for (int64_t i = 0; i < NEAR_HEADS * rows; i++)
        table[i] = p->table[i / rows][i % rows];
    if (t->bare)
        memset(p->table, 0, sizeof p->table);
    else
        put_param(layer, "relative", table);
}

/* `x` is an image [NEAR_WIDTH,H,W]. */
static inline double project_near(const near_host *p, const near_plain *t, const double *x, int which, int64_t pixel,
                                  int f)
{
    double sum = p->b[which][f];
    for (int c = 0; c < NEAR_WIDTH; c++)
        sum += p->w[which][f][c] * x[c * t->length[0] * t->length[1] + pixel];
    return sum;
}

/* The place among the pixels that are `i` modulo the dilation of the first one that pixel i sees. */
static inline int64_t first_near(const near_plain *t, int d, int64_t i)
{
    int64_t first = i / t->dilation[d] - t->kernel[d] / 2;
    while (first < 0)
        first++;
    while ((first + t->kernel[d] - 1) * t->dilation[d] + i % t->dilation[d] >= t->length[d])
        first--;
    return first;
}

/* The output of a head of a pixel before the last projection. */
static inline void attend_near(const near_host *p, const near_plain *t, const double *x, int64_t pixel, int head,
                               double y[NEAR_EACH])
{
    const int64_t at[2] = {pixel / t->length[1], pixel % t->length[1]};
    double sum = 0;
    memset(y, 0, NEAR_EACH * sizeof *y);
    for (int64_t i = 0; i < t->kernel[0] * t->kernel[1]; i++) {
        const int64_t of[2] = {i / t->kernel[1], i % t->kernel[1]};
        int64_t place[2], row[2];
        for (int d = 0; d < 2; d++) {
            const int64_t seen = first_near(t, d, at[d]) + of[d];
            place[d] = seen * t->dilation[d] + at[d] % t->dilation[d];
            row[d] = seen - at[d] / t->dilation[d] + t->kernel[d] - 1;
        }
        const int64_t key = place[0] * t->length[1] + place[1];
        double product = 0;
        for (int f = head * NEAR_EACH; f < (head + 1) * NEAR_EACH; f++)
            product += project_near(p, t, x, 0, pixel, f) * project_near(p, t, x, 1, key, f);
        const double scale = t->scale != 0 ? t->scale : 1 / sqrt(NEAR_EACH);
        const double weight = exp(scale * product + p->table[head][row[0] * (2 * t->kernel[1] - 1) + row[1]]);
        sum += weight;
        for (int f = 0; f < NEAR_EACH; f++)
            y[f] += weight * project_near(p, t, x, 2, key, head * NEAR_EACH + f);
    }
    for (int f = 0; f < NEAR_EACH; f++)
        y[f] /= sum;
}

static inline void attend_near_plainly(const near_host *p, const near_plain *t, const double *x, double *y)
{
    const int64_t pixels = t->length[0] * t->length[1];
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
        double all[NEAR_WIDTH];
        for (int head = 0; head < NEAR_HEADS; head++)
            attend_near(p, t, x, pixel, head, all + head * NEAR_EACH);
        for (int f = 0; f < NEAR_WIDTH; f++) {
            double *const to = y + f * pixels + pixel;
            *to = p->b[3][f];
            for (int c = 0; c < NEAR_WIDTH; c++)
                *to += p->w[3][f][c] * all[c];
        }
    }
}

#endif
