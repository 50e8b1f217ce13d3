/* What random_pipelines.c draws: a chain of layers, a mesh, where the chain is cut, how the pipeline and its optimizer
 * work, and the samples of each step. Everything follows from the number of a program and the count of ranks. */
#ifndef WF_TESTS_RANDOM_PIPELINES_PLAN_H
#define WF_TESTS_RANDOM_PIPELINES_PLAN_H

#include "tests/layers/pipeline_fixture.h"

enum { LAYERS = 32, PARTS = 12, PLACES = 4, RUNS = 5, TIES = 3, TEXT = 1200, SIDE = 6, DEEP_SIDE = 4 };

/* Of a layer of the chain. A BRANCH is a module of two layers, whose outputs it joins. */
typedef enum kind { DENSE, CONV, NORM, FUNCTION, POOL, UPSAMPLE, FLATTEN, BRANCH, STASH, POP } kind;

typedef enum join { JOIN_ADD, JOIN_MUL, JOIN_CONCAT, JOINS } join;

typedef struct part {
    kind kind;
    wf_shape in;   /* of a batch of 1 */
    int64_t out;   /* features or channels; of the others: those of the input */
    int64_t conv;  /* CONV: kernel */
    bool stride;   /* CONV: 2, else 1 */
    int function;  /* FUNCTION; NORM: behind it, in the same pass */
    int skip;      /* STASH, POP: number of the skip */
    join join;     /* BRANCH, POP */
    bool segment;  /* BRANCH: recomputed by itself */
    bool max_pool; /* POOL; else means */
} part;

/* What the serial program applies its model to, one after the other. */
typedef enum reference {
    WHOLE,    /* the whole batch */
    BY_PLACE, /* chunks of the first place along data, then those of the next one */
    ACROSS    /* chunk c of all places together */
} reference;

typedef enum optimizer { SGD, MOMENTUM, ADAM, ADAMW, RMSPROP, LAMB, OPTIMIZERS } optimizer;

typedef struct plan {
    uint64_t number;
    int ranks;
    wf_dtype dtype;
    const char *device;
    wf_mesh_opts mesh;
    unsigned how; /* wf_parallelize; 0: the layers stay serial */
    bool deep;    /* images have a depth, too */
    int n;
    part part[LAYERS];
    int inner[2]; /* layers [inner[0], inner[1]) are a chain inside of the chain; equal: none are */
    bool ties_biases;
    int ties, tie[TIES][2]; /* the weights of layer tie[i][0] are those of tie[i][1], which comes first */
    int frozen;             /* the layer whose W is not trained; -1: none */
    wf_pipeline_opts pipeline;
    int cuts[PARTS];
    int steps, accumulates; /* backwards of a step before its last one */
    int samples[RUNS][2][PLACES];
    bool draws, norms, layout, exact;
    reference reference;
    optimizer optimizer;
    double lr, clip, tolerance;
    wf_multi_node_opts multi;
    char text[TEXT];
} plan;

static inline bool one_in(test_rng *rng, int n)
{
    return test_int(rng, 1, n) == 1;
}

static inline bool is_parallel(const plan *p)
{
    return p->how & (WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL);
}

static inline void note(plan *p, const char *format, int a, int b)
{
    const size_t used = strlen(p->text);
    snprintf(p->text + used, TEXT - used, format, a, b);
}

static inline bool has_params(const part *l)
{
    return l->kind == DENSE || l->kind == CONV || l->kind == NORM || l->kind == BRANCH;
}

/* --- the chain ------------------------------------------------------------------------------------------------------
 */

/* While it is drawn. */
typedef struct drawing {
    plan *p;
    test_rng *rng;
    wf_shape shape;
    int skips, open[LAYERS]; /* skips that are not taken yet */
    wf_shape kept[LAYERS];   /* what each of these keeps */
    int opens;
} drawing;

/* Of pixels, or of voxels. */
static inline bool is_image(wf_shape shape)
{
    return shape.rank >= 4;
}

static inline void set_sides(wf_shape *shape, int64_t side)
{
    for (int i = 2; i < shape->rank; i++)
        shape->dim[i] = side;
}

/* Features, or channels: at least one for each rank along `channel`. */
static inline int64_t draw_width(const drawing *d)
{
    return test_int(d->rng, 2, is_image(d->shape) ? 5 : 8);
}

static inline void add_part(drawing *d, part l)
{
    l.in = d->shape;
    if (l.out == 0)
        l.out = d->shape.dim[1];
    d->p->part[d->p->n++] = l;
    d->shape.dim[1] = l.out;
}

static inline void draw_weights(drawing *d)
{
    /* What is kept must fit what it is joined with. */
    const bool same = d->opens > 0;
    const int64_t side = d->shape.dim[2];
    part l = {.kind = is_image(d->shape) ? CONV : DENSE, .out = same || one_in(d->rng, 3) ? 0 : draw_width(d)};
    if (l.kind == CONV) {
        l.conv = one_in(d->rng, 3) ? 1 : 3;
        l.stride = !same && side >= 4 && one_in(d->rng, 4);
    }
    if (one_in(d->rng, 4)) {
        l.kind = BRANCH;
        l.conv = 3;
        l.stride = false;
        l.join = one_in(d->rng, 3) ? JOIN_MUL : JOIN_ADD;
        l.segment = one_in(d->rng, 3);
    }
    add_part(d, l);
    if (l.stride)
        set_sides(&d->shape, (side + 1) / 2);
}

static inline void draw_function(drawing *d)
{
    /* dropout, noise, tanh, sigmoid, and what has a corner: f32 could come to lie on the other side of it. */
    const int least = d->p->draws ? 0 : 2, most = d->p->dtype == WF_F64 ? 4 : 3;
    add_part(d, (part){.kind = FUNCTION, .function = (int)test_int(d->rng, least, most)});
}

static inline void draw_window(drawing *d)
{
    const bool fits = is_image(d->shape) && d->opens == 0;
    if (fits && d->shape.dim[2] >= 4 && one_in(d->rng, 2)) {
        add_part(d, (part){.kind = POOL, .max_pool = d->p->dtype == WF_F64 && one_in(d->rng, 2)});
        set_sides(&d->shape, d->shape.dim[2] / 2);
    } else if (fits && d->shape.dim[2] <= 3) {
        add_part(d, (part){.kind = UPSAMPLE});
        set_sides(&d->shape, d->shape.dim[2] * 2);
    }
}

static inline void draw_stash(drawing *d)
{
    if (d->skips == 5)
        return;
    d->open[d->opens++] = d->skips;
    d->kept[d->skips] = d->shape;
    add_part(d, (part){.kind = STASH, .skip = d->skips++});
}

/* Any of those that are open: skips lie inside each other, cross, and begin at one value. */
static inline void draw_pop(drawing *d)
{
    const int which = (int)test_int(d->rng, 0, d->opens - 1), skip = d->open[which];
    d->open[which] = d->open[--d->opens];
    /* More channels fit no other skip, and no shards of channels. */
    const bool joins = d->opens == 0 && d->p->mesh.channel < 2 && d->kept[skip].dim[1] + d->shape.dim[1] <= 10;
    part l = {.kind = POP, .skip = skip, .join = (join)test_int(d->rng, 0, joins ? JOIN_CONCAT : JOIN_MUL)};
    l.out = l.join == JOIN_CONCAT ? d->kept[skip].dim[1] + d->shape.dim[1] : 0;
    add_part(d, l);
}

static inline void draw_layer(drawing *d)
{
    const int64_t what = test_int(d->rng, 0, 9);
    if (what < 4)
        draw_weights(d);
    else if (what < 6)
        draw_function(d);
    else if (what == 6 && d->p->norms)
        add_part(d, (part){.kind = NORM, .function = d->p->dtype == WF_F64 && one_in(d->rng, 2)});
    else if (what == 7)
        draw_window(d);
    else if (what == 8)
        draw_stash(d);
    else if (what == 9 && d->opens > 0)
        draw_pop(d);
}

static inline void draw_chain(plan *p, test_rng *rng)
{
    const bool image = is_parallel(p) || one_in(rng, 2);
    drawing d = {.p = p, .rng = rng, .shape = image ? WF_SHAPE(1, 3, SIDE, SIDE) : WF_SHAPE(1, IN)};
    p->deep = image && (p->mesh.depth > 1 || one_in(rng, 6));
    if (p->deep)
        d.shape = WF_SHAPE(1, 3, DEEP_SIDE, DEEP_SIDE, DEEP_SIDE);
    const int64_t wanted = test_int(rng, p->mesh.stage, 14);
    p->n = 0;
    draw_weights(&d);
    while (p->n < wanted)
        draw_layer(&d);
    while (d.opens > 0)
        draw_pop(&d);
    if (image) {
        add_part(&d, (part){.kind = FLATTEN});
        d.shape = WF_SHAPE(1, wf_shape_count(d.shape));
    }
    add_part(&d, (part){.kind = DENSE, .out = CLASSES});
}

/* Two layers of equal shapes share their weights, wherever they are. */
static inline void draw_ties(plan *p, test_rng *rng)
{
    p->ties = 0;
    p->ties_biases = one_in(rng, 2);
    /* Ranks may share the channels of equal layers in different ways. */
    if (!one_in(rng, 2) || p->exact || p->mesh.channel > 1)
        return;
    for (int i = 0; i < p->n && p->ties < TIES; i++)
        for (int j = 0; j < i && p->ties < TIES; j++) {
            const part *a = &p->part[i], *b = &p->part[j];
            bool tied = a->kind != b->kind || (a->kind != DENSE && a->kind != CONV) || a->out != b->out ||
                        a->in.dim[1] != b->in.dim[1] || a->conv != b->conv;
            for (int k = 0; k < p->ties; k++)
                tied = tied || p->tie[k][0] == i || p->tie[k][0] == j;
            if (tied)
                continue;
            p->tie[p->ties][0] = i;
            p->tie[p->ties++][1] = j;
        }
}

/* --- the mesh, and where the chain is cut ---------------------------------------------------------------------------
 */

/* Ranks that share samples: along channels, along one or two axes of the images, or both. */
static inline void draw_axes(plan *p, test_rng *rng, int ranks)
{
    int *const images[] = {&p->mesh.height, &p->mesh.width, &p->mesh.depth};
    const int first = (int)test_int(rng, 0, 2);
    p->how = 0;
    if (ranks % 2 == 0 && one_in(rng, 2)) {
        p->mesh.channel = 2;
        p->how = WF_PARALLEL_CHANNEL;
        ranks /= 2;
    }
    if (ranks > 1)
        p->how |= WF_PARALLEL_SPATIAL;
    *images[first] = ranks == 4 ? 2 : ranks;
    *images[(first + 1) % 3] = ranks == 4 ? 2 : 1;
}

static inline void draw_mesh(plan *p, test_rng *rng)
{
    int data, rest;
    do {
        p->mesh = (wf_mesh_opts){.stage = (int)test_int(rng, 1, 4)};
        data = (int)test_int(rng, 1, PLACES);
        rest = p->ranks / p->mesh.stage / data;
    } while (p->mesh.stage * data * rest != p->ranks || rest > 4 || (data > 2 && !one_in(rng, 4)));
    p->mesh.data = data;
    draw_axes(p, rng, rest);
}

/* Every stage has a layer with parameters, as its optimizer wants. */
static inline bool all_train(const plan *p)
{
    bool any[4] = {false};
    for (int i = 0, at = 0, end = p->cuts[0]; i < p->n; i++) {
        while (i >= end)
            end += p->cuts[++at];
        any[at % p->mesh.stage] = any[at % p->mesh.stage] || has_params(&p->part[i]);
    }
    for (int s = 0; s < p->mesh.stage; s++)
        if (!any[s])
            return false;
    return true;
}

static inline bool draw_cuts(plan *p, test_rng *rng)
{
    const int parts = p->mesh.stage * (p->pipeline.parts ? p->pipeline.parts : 1);
    for (int tries = 0; tries < 30 && parts <= p->n && parts <= PARTS; tries++) {
        for (int i = 0; i < parts; i++)
            p->cuts[i] = 1;
        for (int left = p->n - parts; left > 0; left--)
            p->cuts[test_int(rng, 0, parts - 1)]++;
        if (all_train(p))
            return true;
    }
    return false;
}

/* --- how it is trained ----------------------------------------------------------------------------------------------
 */

/* Samples whose chunks have none or a power of two, and so has the whole: their weights round nothing. */
static inline int draw_exact(const plan *p, test_rng *rng)
{
    int all;
    do
        all = 1 << test_int(rng, 0, 4);
    while (all > p->pipeline.chunks && all % p->pipeline.chunks != 0 && all > 2 * p->pipeline.chunks);
    return all;
}

static inline void draw_samples(plan *p, test_rng *rng)
{
    for (int step = 0; step < p->steps; step++)
        for (int i = 0; i <= p->accumulates; i++)
            for (int r = 0; r < p->mesh.data; r++)
                p->samples[step][i][r] = p->exact ? draw_exact(p, rng) : (int)test_int(rng, r > 0 ? 0 : 1, MOST);
}

static inline void draw_training(plan *p, test_rng *rng)
{
    p->steps = (int)test_int(rng, 2, RUNS);
    p->accumulates = !p->exact && one_in(rng, 4);
    p->optimizer = (optimizer)test_int(rng, 0, OPTIMIZERS - 1);
    p->lr = p->optimizer == SGD ? 0.05 : p->optimizer == MOMENTUM ? 0.01 : 0.02;
    p->clip = !p->exact && one_in(rng, 3) ? 0.2 : 0;
    p->multi = (wf_multi_node_opts){
        .bucket_bytes = one_in(rng, 2) ? 64 : 0, .shard_optimizer = !p->exact && one_in(rng, 4), .compare_every = 1};
    p->frozen = -1;
    draw_samples(p, rng);
}

static inline void draw_pipeline(plan *p, test_rng *rng)
{
    p->pipeline = (wf_pipeline_opts){.chunks = (int)test_int(rng, 1, MOST),
                                     .schedule = (wf_pipeline_kind)test_int(rng, 0, 2),
                                     .recompute = (wf_pipeline_recompute)test_int(rng, 0, 2),
                                     .deferred_batchnorm = p->norms && one_in(rng, 2),
                                     .compare_every = 1};
    p->pipeline.parts = p->pipeline.schedule == WF_PIPELINE_INTERLEAVED ? (int)test_int(rng, 1, 3) : 1;
}

/* What of the serial program a sample is compared with: normalisation sees chunks, draws without a layout belong to
 * chunks, and those with one to places in the batch. */
static inline void draw_forms(plan *p, test_rng *rng)
{
    const bool shared = one_in(rng, 2);
    p->exact = p->mesh.data == 1 && !p->how && one_in(rng, 3);
    p->layout = p->how || (!p->exact && one_in(rng, 2));
    p->norms = one_in(rng, 2);
    p->draws = one_in(rng, 2) && !(p->norms && (p->layout || (shared && p->mesh.data > 1)));
    if (p->norms && shared) {
        p->how |= WF_PARALLEL_SYNC_BN;
        p->layout = p->layout || one_in(rng, 2);
        p->draws = p->draws && !p->layout;
    }
    const bool across = (p->how & WF_PARALLEL_SYNC_BN) && p->mesh.data > 1;
    const bool whole = !p->norms && (p->layout || !p->draws) && !p->exact;
    p->exact = p->exact && !p->how;
    p->reference = across ? ACROSS : whole ? WHOLE : BY_PLACE;
}

static inline void describe(plan *p)
{
    static const char *const kinds[] = {"dense",    "conv",    "norm",   "function", "pool",
                                        "upsample", "flatten", "branch", "stash",    "pop"};
    snprintf(p->text, TEXT,
             "program %llu on %d ranks (%s %s, stage %d, data %d, channel %d, depth %d, height %d, width %d, how %u):",
             (unsigned long long)p->number, p->ranks, p->device, wf_dtype_name(p->dtype), p->mesh.stage, p->mesh.data,
             p->mesh.channel, p->mesh.depth, p->mesh.height, p->mesh.width, p->how);
    for (int i = 0, end = p->cuts[0], at = 0; i < p->n; i++) {
        while (i >= end) {
            note(p, " |", 0, 0);
            end += p->cuts[++at];
        }
        note(p, i == p->inner[0] && p->inner[0] < p->inner[1] ? " (" : " ", 0, 0);
        note(p, kinds[p->part[i].kind], 0, 0);
        note(p, "%d", p->part[i].kind >= STASH ? p->part[i].skip : (int)p->part[i].out, 0);
        note(p, i == p->inner[1] - 1 && p->inner[0] < p->inner[1] ? ")" : "", 0, 0);
    }
    note(p, "; schedule %d, recompute %d", (int)p->pipeline.schedule, (int)p->pipeline.recompute);
    note(p, ", %d chunks, optimizer %d", p->pipeline.chunks, (int)p->optimizer);
    note(p, p->layout ? ", layout" : "", 0, 0);
    note(p, p->pipeline.deferred_batchnorm ? ", deferred" : "", 0, 0);
    note(p, p->multi.shard_optimizer ? ", sharded" : "", 0, 0);
    note(p, p->clip > 0 ? ", clipped" : "", 0, 0);
    note(p, p->accumulates ? ", accumulates" : "", 0, 0);
    note(p, p->exact ? ", exact" : "", 0, 0);
    for (int i = 0; i < p->ties; i++)
        note(p, ", %d tied to %d", p->tie[i][0], p->tie[i][1]);
    for (int step = 0; step < p->steps; step++)
        for (int r = 0; r < p->mesh.data; r++)
            note(p, step + r ? " %d" : ", samples %d", p->samples[step][0][r], 0);
}

/* Whether the gradient of a value that is kept is a sum of numbers that were rounded, where the serial program adds to
 * one of them and rounds once: behind it a part ends, or what follows is recomputed. */
static inline bool rounds_kept(const plan *p)
{
    bool rounds = false;
    for (int at = 0, end = p->cuts[0]; end < p->n; end += p->cuts[++at])
        rounds = rounds || p->part[end - 1].kind == STASH;
    for (int i = 0; i < p->n; i++)
        rounds = rounds || (p->part[i].kind == STASH && p->pipeline.recompute != WF_RECOMPUTE_NEVER);
    return rounds;
}

static inline plan draw_plan(uint64_t number, int ranks)
{
    test_rng rng = {number * 64 + (uint64_t)ranks};
    plan p = {.number = number, .ranks = ranks};
    p.dtype = one_in(&rng, 2) ? WF_F64 : WF_F32;
    p.device = one_in(&rng, 3) ? "cpu" : "ref";
    p.tolerance = p.dtype == WF_F64 ? 1e-12 : 1e-5;
    do {
        draw_mesh(&p, &rng);
        draw_forms(&p, &rng);
        draw_pipeline(&p, &rng);
        draw_chain(&p, &rng);
    } while (!draw_cuts(&p, &rng));
    draw_ties(&p, &rng);
    p.exact = p.exact && !rounds_kept(&p) && strcmp(p.device, "ref") == 0;
    draw_training(&p, &rng);
    if (one_in(&rng, 2)) {
        p.inner[0] = (int)test_int(&rng, 0, p.n - 1);
        p.inner[1] = (int)test_int(&rng, p.inner[0], p.n);
    }
    if (one_in(&rng, 4) && (p.part[0].kind == DENSE || p.part[0].kind == CONV))
        p.frozen = 0;
    p.pipeline.loss = wf_softmax_cross_entropy;
    describe(&p);
    return p;
}

#endif
