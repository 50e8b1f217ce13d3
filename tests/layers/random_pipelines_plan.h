/* A program of random_pipelines.c: a chain of layers, a mesh, where the chain is cut, how the pipeline and its
 * optimizer work, and the samples of each step. Its features are those whose pairs are counted (tests/pairs.h). */
#ifndef WF_TESTS_RANDOM_PIPELINES_PLAN_H
#define WF_TESTS_RANDOM_PIPELINES_PLAN_H

#include "optim/schedule.h"
#include "tests/layers/pipeline_fixture.h"
#include "tests/pairs.h"

enum {
    LAYERS = 32,
    PARTS = 12,
    PLACES = 4,
    RUNS = 5,
    TIES = 3,
    TEXT = 2400,
    SIDE = 6,
    DEEP_SIDE = 4,
    LINKS = 3,
    WORDS = 7,
    TOKENS = 6
};

/* The kinds of layers of the chain. A BRANCH is a module of two layers, whose outputs it joins; a LINKED is
 * wf_spatial_chain; a MOVE is a module that takes its input to another layout and back;
 * MULTIHEAD and BLOCK attend to the tokens of a text, or to the pixels of an image row by row. */
typedef enum kind {
    DENSE,
    CONV,
    NORM,
    GROUPED,
    FUNCTION,
    POOL,
    UPSAMPLE,
    FLATTEN,
    BRANCH,
    LINKED,
    MOVE,
    EMBED,
    MULTIHEAD,
    BLOCK,
    WINDOWS,
    NEIGHBOURS,
    STASH,
    POP
} kind;

typedef enum join { JOIN_ADD, JOIN_MUL, JOIN_CONCAT, JOINS } join;

typedef enum costs { COSTS_DEPTH, COSTS_GIVEN, COSTS_MEASURED, COSTS } costs;

typedef enum move { MOVE_GATHER, MOVE_TURN, MOVE_SHARD, MOVES } move;

typedef struct part {
    kind kind;
    wf_shape in;   /* of a batch of 1; of tokens: [1,features,tokens] */
    int64_t out;   /* features or channels; of the others: those of the input */
    int64_t conv;  /* CONV: kernel */
    wf_edge edge;  /* CONV, BRANCH, LINKED: what is beyond the image */
    bool stride;   /* CONV: 2, else 1 */
    int function;  /* FUNCTION; NORM: behind it, in the same pass; GROUPED: over all channels, a pair, or one */
    int skip;      /* STASH, POP: number of the skip */
    join join;     /* BRANCH, POP */
    bool segment;  /* BRANCH, LINKED: recomputed by itself */
    bool max_pool; /* POOL; else means */
    int links;     /* LINKED: its convolutions */
    costs costs;   /* LINKED: how it finds its depth */
    move move;     /* MOVE */
    int64_t heads; /* MULTIHEAD, BLOCK, WINDOWS, NEIGHBOURS */
    bool cut_heads, causal, paired, drops;
    wf_attention_cut cut;
    int64_t side, shift; /* of windows or neighbourhoods; relative positions of the others */
} part;

/* What the serial program applies its model to, one after the other. */
typedef enum reference {
    WHOLE,    /* the whole batch */
    BY_PLACE, /* chunks of the first place along data, then those of the next one */
    ACROSS    /* chunk c of all places together */
} reference;

/* --- features -------------------------------------------------------------------------------------------------------
 */

/* Values of one option stand together, in the option's order. */
typedef enum feature {
    HAS_F64,
    HAS_F32,
    HAS_REF,
    HAS_CPU,
    HAS_FLAT,
    HAS_NAIVE,
    HAS_HIERARCHICAL,
    HAS_STAGES,
    HAS_PLACES,
    HAS_CHANNELS,
    HAS_PIXELS,
    HAS_TWO_AXES,
    HAS_VECTORS,
    HAS_IMAGES,
    HAS_VOLUMES,
    HAS_TEXTS,
    HAS_NO_LAYOUT,
    HAS_LAYOUT,
    HAS_BOUNDS,
    HAS_EMPTY_PLACE,
    HAS_EMPTY_CHUNK,
    HAS_IGNORED,
    HAS_1F1B,
    HAS_GPIPE,
    HAS_INTERLEAVED,
    HAS_NEVER,
    HAS_EXCEPT_LAST,
    HAS_ALWAYS,
    HAS_SEGMENT,
    HAS_NORM,
    HAS_GROUP_NORM,
    HAS_SYNC,
    HAS_DEFERRED,
    HAS_DRAWS,
    HAS_POOL,
    HAS_UPSAMPLE,
    HAS_STRIDE,
    HAS_BRANCH,
    HAS_SKIP,
    HAS_CONCAT,
    HAS_MULTIHEAD,
    HAS_BLOCK,
    HAS_WINDOWS,
    HAS_NEIGHBOURS,
    HAS_CAUSAL,
    HAS_CUT_HEADS,
    HAS_RING,
    HAS_BY_HEADS,
    HAS_TIES,
    HAS_FROZEN,
    HAS_INNER,
    HAS_LINKED,
    HAS_MEASURED,
    HAS_MOVE,
    HAS_SGD,
    HAS_MOMENTUM,
    HAS_ADAM,
    HAS_ADAMW,
    HAS_RMSPROP,
    HAS_LAMB,
    HAS_CLIP_NORM,
    HAS_CLIP_VALUE,
    HAS_SCHEDULE,
    HAS_SCALE,
    HAS_ACCUMULATES,
    HAS_BUCKETS,
    HAS_NO_OVERLAP,
    HAS_SHARDED,
    HAS_DELAYED,
    HAS_HOOK,
    HAS_TRAINER,
    HAS_EVALUATOR,
    HAS_SAVED,
    FEATURES
} feature;

static const char *const feature_names[FEATURES] = {
    "f64",
    "f32",
    "ref",
    "cpu",
    "flat",
    "naive",
    "hierarchical",
    "several stages",
    "several places along data",
    "shards of channels",
    "shards of pixels",
    "pixels along two axes",
    "vectors",
    "images",
    "volumes",
    "texts",
    "no layout",
    "layout",
    "own bounds",
    "a place without samples",
    "a chunk without samples",
    "ignored labels",
    "1F1B",
    "GPipe",
    "interleaved",
    "no recomputation",
    "recomputation except last",
    "recomputation always",
    "wf_recompute",
    "normalisation",
    "normalisation of groups",
    "shared statistics",
    "deferred statistics",
    "random numbers",
    "pooling",
    "upsampling",
    "strides",
    "branches",
    "skips",
    "skips that concatenate",
    "multi-head attention",
    "a transformer block",
    "attention in windows",
    "attention in neighbourhoods",
    "a causal mask",
    "heads cut over channels",
    "shared tokens as a ring",
    "shared tokens by heads",
    "ties",
    "a frozen parameter",
    "a chain in the chain",
    "a spatial chain",
    "a spatial chain of measured costs",
    "redistribution",
    "SGD",
    "momentum",
    "Adam",
    "AdamW",
    "RMSprop",
    "LAMB",
    "clipping by norm",
    "clipping by value",
    "a schedule",
    "a scaled loss",
    "accumulation",
    "small buckets",
    "no overlap",
    "a sharded optimizer",
    "double buffering",
    "a sum of the program's own",
    "the trainer",
    "the evaluator",
    "saved and loaded",
};

/* What cannot be, and what the library refuses, by which error. Refusals of options are asserted by random_pipelines.c
 * (refuse_options). */
static const pairs_rule rules[] = {
    {HAS_CHANNELS, HAS_NO_LAYOUT, "WF_ERR_STATE: the loss has a layout, and its batch has none"},
    {HAS_PIXELS, HAS_NO_LAYOUT, "WF_ERR_STATE: the loss has a layout, and its batch has none"},
    {HAS_PIXELS, HAS_VECTORS, "vectors have no pixels"},
    {HAS_POOL, HAS_VECTORS, "vectors have no pixels"},
    {HAS_UPSAMPLE, HAS_VECTORS, "vectors have no pixels"},
    {HAS_STRIDE, HAS_VECTORS, "vectors have no pixels"},
    {HAS_MULTIHEAD, HAS_VECTORS, "vectors have no tokens"},
    {HAS_BLOCK, HAS_VECTORS, "vectors have no tokens"},
    {HAS_WINDOWS, HAS_VECTORS, "vectors have no tokens"},
    {HAS_NEIGHBOURS, HAS_VECTORS, "vectors have no tokens"},
    {HAS_CAUSAL, HAS_VECTORS, "vectors have no tokens"},
    {HAS_CUT_HEADS, HAS_VECTORS, "vectors have no tokens"},
    {HAS_WINDOWS, HAS_VOLUMES, "windows are those of images"},
    {HAS_POOL, HAS_TEXTS, "texts have no pixels"},
    {HAS_UPSAMPLE, HAS_TEXTS, "texts have no pixels"},
    {HAS_STRIDE, HAS_TEXTS, "texts have no pixels"},
    {HAS_LINKED, HAS_TEXTS, "texts have no pixels"},
    {HAS_WINDOWS, HAS_TEXTS, "texts have no pixels"},
    {HAS_NEIGHBOURS, HAS_TEXTS, "texts have no pixels"},
    {HAS_NORM, HAS_TEXTS, "texts have no pixels"},
    {HAS_TWO_AXES, HAS_TEXTS, "texts have no pixels"},
    {HAS_CONCAT, HAS_TEXTS, "dimension 1 of texts is not their features"},
    {HAS_CONCAT, HAS_CHANNELS, "WF_ERR_SHAPE: wf_concat along a sharded dimension"},
    {HAS_TIES, HAS_CHANNELS, "WF_ERR_ARGUMENT: ranks share the channels of two layers in two ways"},
    {HAS_LINKED, HAS_CHANNELS, "WF_ERR_SHAPE: a spatial chain of shards of channels"},
    {HAS_BOUNDS, HAS_NO_LAYOUT, "bounds are those of a layout"},
    {HAS_MOVE, HAS_NO_LAYOUT, "without a layout nothing is redistributed"},
    {HAS_SCALE, HAS_F64, "WF_ERR_DTYPE: gradients of f64 need no scaled loss"},
    {HAS_SCALE, HAS_DELAYED, "WF_ERR_ARGUMENT: a scaled loss with double buffering"},
    {HAS_SHARDED, HAS_DELAYED, "WF_ERR_ARGUMENT: double buffering with a sharded optimizer"},
    {HAS_SHARDED, HAS_HOOK, "WF_ERR_ARGUMENT: reduce with a sharded optimizer"},
};

/* Needs of a needed feature come first. */
static const pairs_need needs[] = {
    {HAS_PIXELS, HAS_LAYOUT},   {HAS_CHANNELS, HAS_LAYOUT},    {HAS_BOUNDS, HAS_LAYOUT},
    {HAS_MOVE, HAS_LAYOUT},     {HAS_TWO_AXES, HAS_PIXELS},    {HAS_LINKED, HAS_PIXELS},
    {HAS_MEASURED, HAS_LINKED}, {HAS_SYNC, HAS_NORM},          {HAS_DEFERRED, HAS_NORM},
    {HAS_CONCAT, HAS_SKIP},     {HAS_EMPTY_PLACE, HAS_PLACES}, {HAS_CUT_HEADS, HAS_CHANNELS},
    {HAS_RING, HAS_PIXELS},     {HAS_BY_HEADS, HAS_PIXELS},
};

static inline void open_pairs(pairs *table)
{
    static const int options[][2] = {{HAS_F64, HAS_F32},           {HAS_REF, HAS_CPU},
                                     {HAS_FLAT, HAS_HIERARCHICAL}, {HAS_VECTORS, HAS_TEXTS},
                                     {HAS_NO_LAYOUT, HAS_LAYOUT},  {HAS_1F1B, HAS_INTERLEAVED},
                                     {HAS_NEVER, HAS_ALWAYS},      {HAS_SGD, HAS_LAMB}};
    *table = (pairs){.n = FEATURES, .name = feature_names};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        pairs_one_of(table, options[i][0], options[i][1]);
    pairs_forbid_all(table, rules, (int)(sizeof rules / sizeof *rules));
    pairs_inherit(table, needs, (int)(sizeof needs / sizeof *needs));
}

/* --- the plan -------------------------------------------------------------------------------------------------------
 */

typedef struct plan {
    uint64_t number;
    pairs_set wish, barred, features; /* wish: features that it should have; barred: that exclude these */
    int ranks;
    wf_dtype dtype;
    const char *device, *communicator;
    wf_mesh_opts mesh;
    unsigned how; /* wf_parallelize; 0: the layers stay serial */
    wf_shape x;   /* of a batch of 1 */
    bool words;   /* x are those of texts */
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
    int64_t cut_points[3][9]; /* of the pixels of a batch with own bounds, along depth, height and width */
    bool draws, norms, layout, exact, bounds, ignores, scales, own_sum, trainer, evaluator, saved;
    reference reference;
    int optimizer; /* 0: SGD, in the order of the features */
    double lr, clip_norm, clip_value, tolerance;
    wf_schedule_opts schedule;
    wf_multi_node_opts multi;
    char text[TEXT];
} plan;

static inline bool is_parallel(const plan *p)
{
    return p->how & (WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL);
}

static inline bool is_spatial(const plan *p)
{
    return p->how & WF_PARALLEL_SPATIAL;
}

/* Returns true if the shape has pixels or voxels. */
static inline bool is_image(wf_shape shape)
{
    return shape.rank >= 4;
}

static inline bool is_tokens(wf_shape shape)
{
    return shape.rank == 3;
}

static inline bool attends_tokens(const part *l)
{
    return l->kind == MULTIHEAD || l->kind == BLOCK;
}

static inline bool attends(const part *l)
{
    return attends_tokens(l) || l->kind == WINDOWS || l->kind == NEIGHBOURS;
}

static inline bool has_params(const part *l)
{
    return l->kind == DENSE || l->kind == CONV || l->kind == NORM || l->kind == GROUPED || l->kind == BRANCH ||
           l->kind == LINKED || l->kind == EMBED || attends(l);
}

/* --- the features of a plan -----------------------------------------------------------------------------------------
 */

static inline pairs_set features_of_attention(const plan *p, const part *l)
{
    const bool cut = is_spatial(p) && (l->in.rank == 5 ? p->mesh.depth : p->mesh.height) > 1;
    const bool shared = cut && attends_tokens(l);
    return bit_if(l->kind == MULTIHEAD, HAS_MULTIHEAD) | bit_if(l->kind == BLOCK, HAS_BLOCK) |
           bit_if(l->kind == WINDOWS, HAS_WINDOWS) | bit_if(l->kind == NEIGHBOURS, HAS_NEIGHBOURS) |
           bit_if(l->causal, HAS_CAUSAL) | bit_if(l->cut_heads, HAS_CUT_HEADS) | bit_if(l->drops, HAS_DRAWS) |
           bit_if(shared && l->cut == WF_ATTENTION_RING, HAS_RING) |
           bit_if(shared && l->cut == WF_ATTENTION_BY_HEADS, HAS_BY_HEADS);
}

static inline pairs_set features_of_layers(const plan *p)
{
    pairs_set set = 0;
    for (int i = 0; i < p->n; i++) {
        const part *l = &p->part[i];
        set |= features_of_attention(p, l) | bit_if(l->kind == NORM, HAS_NORM) |
               bit_if(l->kind == GROUPED, HAS_GROUP_NORM) | bit_if(l->kind == POOL, HAS_POOL) |
               bit_if(l->kind == UPSAMPLE, HAS_UPSAMPLE) | bit_if(l->kind == BRANCH, HAS_BRANCH) |
               bit_if(l->kind == STASH, HAS_SKIP) | bit_if(l->kind == LINKED, HAS_LINKED) |
               bit_if(l->kind == MOVE && p->layout, HAS_MOVE) | bit_if(l->stride, HAS_STRIDE) |
               bit_if(l->kind == FUNCTION && l->function < 2, HAS_DRAWS) | bit_if(l->segment, HAS_SEGMENT) |
               bit_if(l->kind == POP && l->join == JOIN_CONCAT, HAS_CONCAT) |
               bit_if(l->kind == LINKED && l->costs == COSTS_MEASURED, HAS_MEASURED);
    }
    if (set & pairs_bit(HAS_NORM))
        set |= bit_if(p->how & WF_PARALLEL_SYNC_BN, HAS_SYNC) | bit_if(p->pipeline.deferred_batchnorm, HAS_DEFERRED);
    return set | bit_if(p->ties > 0, HAS_TIES) | bit_if(p->frozen >= 0, HAS_FROZEN) |
           bit_if(p->inner[0] < p->inner[1], HAS_INNER);
}

static inline pairs_set features_of_batches(const plan *p)
{
    bool place = false, chunk = false;
    for (int step = 0; step < p->steps; step++)
        for (int r = 0; r < p->mesh.data; r++) {
            place = place || p->samples[step][0][r] == 0;
            chunk = chunk || p->samples[step][0][r] < p->pipeline.chunks;
        }
    return bit_if(place, HAS_EMPTY_PLACE) | bit_if(chunk, HAS_EMPTY_CHUNK) |
           pairs_bit(p->words         ? HAS_TEXTS
                     : p->x.rank == 2 ? HAS_VECTORS
                     : p->x.rank == 4 ? HAS_IMAGES
                                      : HAS_VOLUMES) |
           pairs_bit(p->layout ? HAS_LAYOUT : HAS_NO_LAYOUT) | bit_if(p->bounds, HAS_BOUNDS) |
           bit_if(p->ignores, HAS_IGNORED);
}

static inline pairs_set features_of_training(const plan *p)
{
    const wf_multi_node_opts *m = &p->multi;
    return pairs_bit(HAS_SGD + p->optimizer) | bit_if(p->clip_norm > 0, HAS_CLIP_NORM) |
           bit_if(p->clip_value > 0, HAS_CLIP_VALUE) | bit_if(p->schedule.kind != WF_SCHEDULE_CONSTANT, HAS_SCHEDULE) |
           bit_if(p->scales, HAS_SCALE) | bit_if(p->accumulates > 0, HAS_ACCUMULATES) |
           bit_if(m->bucket_bytes > 0, HAS_BUCKETS) | bit_if(m->no_overlap, HAS_NO_OVERLAP) |
           bit_if(m->shard_optimizer, HAS_SHARDED) | bit_if(m->double_buffering, HAS_DELAYED) |
           bit_if(p->own_sum && (p->mesh.data > 1 || is_spatial(p)), HAS_HOOK) | bit_if(p->trainer, HAS_TRAINER) |
           bit_if(p->evaluator, HAS_EVALUATOR) | bit_if(p->saved, HAS_SAVED);
}

static inline pairs_set features_of(const plan *p)
{
    const wf_mesh_opts *m = &p->mesh;
    const int axes = (m->depth > 1) + (m->height > 1) + (m->width > 1);
    return pairs_bit(p->dtype == WF_F64 ? HAS_F64 : HAS_F32) |
           pairs_bit(strcmp(p->device, "cpu") == 0 ? HAS_CPU : HAS_REF) |
           pairs_bit(strcmp(p->communicator, "flat") == 0    ? HAS_FLAT
                     : strcmp(p->communicator, "naive") == 0 ? HAS_NAIVE
                                                             : HAS_HIERARCHICAL) |
           bit_if(m->stage > 1, HAS_STAGES) | bit_if(m->data > 1, HAS_PLACES) | bit_if(m->channel > 1, HAS_CHANNELS) |
           bit_if(axes > 0, HAS_PIXELS) | bit_if(axes > 1, HAS_TWO_AXES) |
           pairs_bit(HAS_1F1B + (int)p->pipeline.schedule) | pairs_bit(HAS_NEVER + (int)p->pipeline.recompute) |
           features_of_layers(p) | features_of_batches(p) | features_of_training(p);
}

#endif
