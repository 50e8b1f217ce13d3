/* Images made of waves and noise, for tests and measurements without files. A sample is a function of seed and
 * number alone. */
#include "datasets/dataset_author.h"
#include "datasets/readers.h"

#include <math.h>
#include <stdlib.h>

enum { WAVES = 3 };

typedef struct synthetic {
    wf_synthetic_opts opts;
    uint64_t noise_stream;
    float *pattern; /* [classes, sample] */
} synthetic;

/* 24 bits: what a float can hold, and the same number on every machine. */
static double unit(uint32_t word)
{
    return (double)(word >> 8) * 0x1p-24;
}

/* A few waves across each channel plane of the class; a sample of rank 1 is one line. */
static void draw_pattern(const synthetic *s, int64_t label, float *pattern)
{
    const wf_shape shape = s->opts.shape;
    const int64_t count = wf_shape_count(shape), width = shape.rank > 0 ? shape.dim[shape.rank - 1] : 1;
    const int64_t height = shape.rank > 1 ? shape.dim[shape.rank - 2] : 1;
    const uint64_t stream = wf_hash_text(0, "synthetic.pattern");
    for (int64_t i = 0; i < count; i++) {
        const int64_t column = i % width, row = i / width % height, plane = i / (width * height);
        double sum = 0;
        for (int wave = 0; wave < WAVES; wave++) {
            uint32_t word[4];
            /* Two waves of a class differ by their counters, two classes by theirs: no state is kept. */
            wf_philox(s->opts.seed, stream, (uint64_t)label, (uint64_t)(plane * WAVES + wave), word);
            const double u = 4 * unit(word[0]) - 2, v = 4 * unit(word[1]) - 2;
            sum += sin(6.283185307179586 *
                       (u * (double)column / (double)width + v * (double)row / (double)height + unit(word[2])));
        }
        pattern[i] = (float)(sum / WAVES);
    }
}

static wf_status synthetic_open(wf_dataset *dataset)
{
    synthetic *s = dataset->state;
    const int64_t count = wf_shape_count(s->opts.shape), classes = s->opts.classes;
    s->pattern = wf_malloc(dataset->ctx, (size_t)(count * classes + 1) * sizeof *s->pattern);
    if (!s->pattern)
        return WF_ERR_MEMORY;
    for (int64_t k = 0; k < classes; k++)
        draw_pattern(s, k, s->pattern + k * count);
    dataset->info = (wf_dataset_info){
        .count = s->opts.count, .dtype = WF_U8, .shape = s->opts.shape, .labels = true, .classes = classes};
    return WF_OK;
}

static wf_status synthetic_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const synthetic *s = dataset->state;
    const int64_t count = wf_shape_count(s->opts.shape);
    uint8_t *pixel = x;
    /* All classes come equally often, in every part of the data set. */
    *label = index % s->opts.classes;
    const float *pattern = s->pattern + *label * count;
    uint32_t word[4];
    for (int64_t i = 0; i < count; i++) {
        /* Philox gives four words at a time. */
        if (i % 4 == 0)
            wf_philox(s->opts.seed, s->noise_stream, (uint64_t)index, (uint64_t)(i / 4), word);
        const double noise = 2 * unit(word[i % 4]) - 1;
        /* 90 and 37 sum to less than 127.5, so no value is cut off at 0 or 255. */
        const double value = 127.5 + 90 * (double)pattern[i] + 37 * noise;
        pixel[i] = (uint8_t)lrint(value);
    }
    return WF_OK;
}

static void synthetic_free(wf_dataset *dataset)
{
    free(((synthetic *)dataset->state)->pattern);
}

static const wf_dataset_kind synthetic_kind = {
    .name = "synthetic",
    .open = synthetic_open,
    .read = synthetic_read,
    .free = synthetic_free,
    .concurrent = true,
};

wf_dataset *wf_synthetic(wf_ctx *ctx, wf_synthetic_opts opts)
{
    WF_NEED_NULL(ctx);
    static const wf_shape unset;
    opts.count = opts.count ? opts.count : 1000;
    opts.shape = wf_shape_equal(opts.shape, unset) ? WF_SHAPE(3, 32, 32) : opts.shape;
    opts.classes = opts.classes ? opts.classes : 10;
    /* 0 is unset, so a seed of the context makes runs alike. */
    opts.seed = opts.seed ? opts.seed : wf_ctx_seed(ctx);
    char text[WF_SHAPE_TEXT];
    WF_CHECK_NULL(opts.count > 0 && opts.classes > 0, WF_ERR_ARGUMENT,
                  "synthetic: %lld samples of %lld classes: both should be 1 or more", (long long)opts.count,
                  (long long)opts.classes);
    WF_CHECK_NULL(wf_shape_count(opts.shape) > 0 && opts.shape.rank < WF_MAX_RANK, WF_ERR_SHAPE,
                  "synthetic: samples of shape %s", wf_shape_text(opts.shape, text));
    wf_dataset *dataset = wf_dataset_new(ctx, &synthetic_kind, NULL, sizeof(synthetic));
    if (!dataset)
        return NULL;
    *(synthetic *)dataset->state = (synthetic){.opts = opts, .noise_stream = wf_hash_text(0, "synthetic.noise")};
    return dataset;
}
