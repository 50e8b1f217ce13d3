/* The serial program of random_pipelines.c: batches, and what the model computes of them on one rank. */
#ifndef WF_TESTS_RANDOM_PIPELINES_SERIAL_H
#define WF_TESTS_RANDOM_PIPELINES_SERIAL_H

#include "tests/layers/random_pipelines_model.h"

/* --- batches --------------------------------------------------------------------------------------------------------
 */

enum { PIXELS = 3 * DEEP_SIDE * DEEP_SIDE * DEEP_SIDE, IGNORED = -1 };

typedef struct rows {
    int n, first[PLACES + 1]; /* of each place along data */
    double x[PLACES * MOST * PIXELS];
    int64_t label[PLACES * MOST];
} rows;

/* How many of rows [lo, hi) count. */
static inline int64_t counted(const rows *b, int64_t lo, int64_t hi)
{
    int64_t n = 0;
    for (int64_t i = lo; i < hi; i++)
        n += b->label[i] != IGNORED;
    return n;
}

static inline double class_weight(int64_t c)
{
    return 0.5 + (double)c;
}

/* Every other sample that ignores labels weighs and smooths them too, without a draw of its own. */
static inline bool weighs(const plan *p)
{
    return p->ignores && p->number % 2;
}

/* What a mean over rows [lo, hi) divides by. */
static inline double weight_of_rows(const plan *p, const rows *b, int64_t lo, int64_t hi)
{
    double sum = 0;
    for (int64_t i = lo; i < hi; i++)
        if (b->label[i] != IGNORED)
            sum += weighs(p) ? class_weight(b->label[i]) : 1;
    return sum;
}

static inline void draw_rows(const plan *p, const int *samples, test_rng *rng, rows *b)
{
    const int64_t width = wf_shape_count(p->x);
    b->n = 0;
    for (int r = 0; r < p->mesh.data; r++) {
        b->first[r] = b->n;
        b->n += samples[r];
    }
    b->first[p->mesh.data] = b->n;
    for (int64_t i = 0; i < b->n * width; i++)
        b->x[i] = p->words ? (double)test_int(rng, 0, WORDS - 1) : test_uniform(rng, -1, 1);
    for (int i = 0; i < b->n; i++)
        b->label[i] = p->ignores && test_int(rng, 0, 2) == 0 ? IGNORED : test_int(rng, 0, CLASSES - 1);
    /* In two of three batches no label of the last place counts. */
    if (p->ignores && test_int(rng, 0, 2) > 0)
        for (int i = b->first[p->mesh.data - 1]; i < b->n; i++)
            b->label[i] = IGNORED;
    /* One of all counts. */
    if (counted(b, 0, b->n) == 0)
        b->label[0] = 0;
}

static inline wf_tensor *inputs(const plan *p, const rows *b, int64_t lo, int64_t hi)
{
    wf_shape shape = p->x;
    const int64_t width = wf_shape_count(shape);
    shape.dim[0] = hi - lo;
    wf_tensor *wide = wf_tensor_from_host(on.ctx, WF_F64, shape, b->x + lo * width);
    wf_tensor *x =
        wf_tensor_copy(wide, p->words ? WF_I64 : p->dtype, is_image(shape) ? WF_CHANNELS_LAST : WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return x;
}

static inline wf_tensor *targets(const rows *b, int64_t lo, int64_t hi)
{
    return wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(hi - lo), b->label + lo);
}

/* The rows of chunk c of all places. */
static inline void gather_chunk(const plan *p, const rows *b, int c, rows *chunk)
{
    const int64_t width = wf_shape_count(p->x);
    chunk->n = 0;
    for (int r = 0; r < p->mesh.data; r++) {
        int64_t lo, hi;
        wf_block(b->first[r + 1] - b->first[r], p->pipeline.chunks, c, &lo, &hi);
        memcpy(chunk->x + chunk->n * width, b->x + (b->first[r] + lo) * width,
               (size_t)((hi - lo) * width) * sizeof *b->x);
        memcpy(chunk->label + chunk->n, b->label + b->first[r] + lo, (size_t)(hi - lo) * sizeof *b->label);
        chunk->n += (int)(hi - lo);
    }
}

/* --- deferred running statistics ------------------------------------------------------------------------------------
 */

/* The statistics of one normalisation: those of each chunk are computed from what the chunk adds to the running values,
 * and merged here by the formula for two samples. */
typedef struct merged {
    double count, mean[16], m2[16], was[2][16]; /* was: mean and variance before the step */
} merged;

enum { DECAY_TENTHS = 7 };

static inline wf_param *running(const plan *p, wf_layer *model, int layer, bool variance)
{
    char path[64];
    return wf_layer_param(model, path_of(p, layer, variance ? "avg_var" : "avg_mean", path));
}

static inline void begin_merge(const plan *p, wf_layer *serial, merged *all)
{
    for (int i = 0; i < p->n; i++) {
        if (p->part[i].kind != NORM)
            continue;
        all[i].count = 0;
        for (int v = 0; v < 2; v++)
            values_get(wf_param_value(running(p, serial, i, v)), all[i].was[v]);
    }
}

static inline void merge_chunk(merged *m, int64_t channels, double count, const double *mean, const double *variance)
{
    const double all = m->count + count;
    for (int64_t c = 0; c < channels && count > 0; c++) {
        const double before = m->count > 0 ? m->mean[c] : 0, m2 = m->count > 0 ? m->m2[c] : 0;
        const double step = mean[c] - before;
        m->mean[c] = before + step * count / all;
        m->m2[c] = m2 + variance[c] * (count > 1 ? count - 1 : 1) + step * step * m->count * count / all;
    }
    m->count = all;
}

/* After a chunk of so many samples: its statistics, and the running values as they were. */
static inline void take_chunk(const plan *p, wf_layer *serial, int64_t samples, merged *all)
{
    const double decay = DECAY_TENTHS / 10.0;
    for (int i = 0; i < p->n && samples > 0; i++) {
        const part *l = &p->part[i];
        double now[2][16];
        if (l->kind != NORM)
            continue;
        for (int v = 0; v < 2; v++) {
            wf_tensor *value = wf_param_value(running(p, serial, i, v));
            values_get(value, now[v]);
            for (int64_t c = 0; c < l->out; c++)
                now[v][c] = (now[v][c] - decay * all[i].was[v][c]) / (1 - decay);
            values_set(value, all[i].was[v]);
        }
        const double count = (double)samples * (double)(wf_shape_count(l->in) / l->in.dim[1]);
        merge_chunk(&all[i], l->out, count, now[0], now[1]);
    }
}

static inline void end_merge(const plan *p, wf_layer *serial, const merged *all)
{
    const double decay = DECAY_TENTHS / 10.0;
    for (int i = 0; i < p->n; i++) {
        const merged *m = &all[i];
        double next[2][16];
        if (p->part[i].kind != NORM || m->count == 0)
            continue;
        for (int64_t c = 0; c < p->part[i].out; c++) {
            next[0][c] = decay * m->was[0][c] + (1 - decay) * m->mean[c];
            next[1][c] = decay * m->was[1][c] + (1 - decay) * m->m2[c] / (m->count > 1 ? m->count - 1 : 1);
        }
        for (int v = 0; v < 2; v++)
            values_set(wf_param_value(running(p, serial, i, v)), next[v]);
    }
}

/* --- two programs ---------------------------------------------------------------------------------------------------
 */

/* The serial one, and this rank's part of the other. */
typedef struct programs {
    const plan *p;
    wf_layer *serial;
    wf_pipeline *pipe;
    wf_optim *local, *optim;
    wf_tape *own[PLACES], *tape;
    merged norms[LAYERS];
    test_rng rng;
    rows b;           /* the batch */
    double loss;      /* of this step, or with double buffering of the one before */
    bool first;       /* no step since the optimizer was made */
    double late_loss; /* of the step whose update waits */
    int64_t sums;     /* of the program's own */
} programs;

static late_update late; /* double buffering, in the serial program */

/* How a backward ends. */
typedef enum ending { ACCUMULATE, STEP, GRADIENTS } ending;

static inline wf_var *ignoring(wf_var *y, const wf_tensor *labels)
{
    return wf_softmax_cross_entropy(y, labels, (wf_label_opts){.ignores = true, .ignored = IGNORED});
}

/* A chunk counts by the weights of its labels. */
static inline wf_var *weighing(wf_var *y, const wf_tensor *labels)
{
    double each[CLASSES];
    for (int c = 0; c < CLASSES; c++)
        each[c] = class_weight(c);
    wf_tensor *weight = wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(CLASSES), each);
    const wf_label_opts opts = {.ignores = true, .ignored = IGNORED, .weight = weight, .smoothing = 0.125};
    wf_var *loss = wf_softmax_cross_entropy(y, labels, opts);
    wf_tensor_free(weight);
    return loss;
}

static inline wf_pipeline_loss loss_of(const plan *p)
{
    if (weighs(p))
        return weighing;
    return p->ignores ? ignoring : wf_mean_cross_entropy;
}

static inline wf_status finish(wf_optim *optim, wf_var *loss, ending end)
{
    return end == ACCUMULATE ? wf_optim_accumulate(optim, loss)
           : end == STEP     ? wf_optim_step(optim, loss)
                             : wf_optim_gradients(optim, loss);
}

/* Rows [lo, hi); returns the sum of their losses. */
static inline double apply_rows(programs *r, wf_tape *tape, const rows *b, int64_t lo, int64_t hi, ending end)
{
    wf_tensor *x = inputs(r->p, b, lo, hi), *labels = targets(b, lo, hi);
    wf_var *loss = loss_of(r->p)(wf_apply(r->serial, wf_input(tape, x)), labels);
    WF_EXPECT(loss, "%s: serial: %s", r->p->text, wf_error_message());
    const double count = weight_of_rows(r->p, b, lo, hi), sum = count > 0 ? count * wf_item(loss) : 0;
    const bool delays = end == STEP && r->p->multi.double_buffering;
    const wf_status status = finish(r->local, loss, delays ? GRADIENTS : end);
    WF_EXPECT(status == WF_OK, "%s: serial: %s", r->p->text, wf_error_message());
    if (delays)
        late_step(&late, r->serial, r->local);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    if (r->p->pipeline.deferred_batchnorm)
        take_chunk(r->p, r->serial, hi - lo, r->norms);
    return sum;
}

/* One batch by the serial program; returns the sum of its losses. */
static inline double serial_batch(programs *r, const rows *b, ending end)
{
    const plan *p = r->p;
    static rows chunk;
    double sum = 0;
    const int chunks = p->reference == WHOLE ? 1 : p->pipeline.chunks,
              places = p->reference == BY_PLACE ? p->mesh.data : 1;
    if (p->pipeline.deferred_batchnorm)
        begin_merge(p, r->serial, r->norms);
    for (int place = 0; place < places; place++)
        for (int c = 0; c < chunks; c++) {
            const ending now = place == places - 1 && c == chunks - 1 ? end : ACCUMULATE;
            int64_t lo = 0, hi = b->n, first = b->first[place];
            if (p->reference == ACROSS) {
                gather_chunk(p, b, c, &chunk);
                sum += apply_rows(r, r->own[0], &chunk, 0, chunk.n, now);
                continue;
            }
            if (p->reference == BY_PLACE)
                wf_block(b->first[place + 1] - first, chunks, c, &lo, &hi);
            sum += apply_rows(r, r->own[place], b, first + lo, first + hi, now);
        }
    if (p->pipeline.deferred_batchnorm)
        end_merge(p, r->serial, r->norms);
    return sum;
}

#endif
