/* A sample of random_models.c: layers, a mesh, how the model is parallel, how samples lie on the ranks, and how it is
 * trained. Its features are those whose pairs are counted (tests/pairs.h). */
#ifndef WF_TESTS_RANDOM_MODELS_PLAN_H
#define WF_TESTS_RANDOM_MODELS_PLAN_H

#include "layers/layers.h"
#include "optim/multi_node.h"
#include "optim/schedule.h"
#include "tests/pairs.h"

#include <stdlib.h>

enum { STEPS = 3, MOST_LAYERS = 6, TEXT = 2400, LINKS = 2, RANKS = 8 };

typedef enum part_kind {
    CONV,
    TRANSPOSED,
    NORM,
    GROUPED,
    MAX_POOL,
    AVG_POOL,
    UPSAMPLE,
    FUNCTION,
    TWICE,
    RANDOM,
    LINKED,
    MOVE,
    MULTIHEAD,
    BLOCK,
    WINDOWS,
    NEIGHBOURS,
    KINDS
} part_kind;

typedef enum costs { COSTS_DEPTH, COSTS_GIVEN, COSTS_MEASURED, COSTS } costs;

typedef enum move { MOVE_GATHER, MOVE_CHANNELS, MOVE_SHARD, MOVES } move;

typedef enum grouped { BY_PIXEL, BY_PIXEL_RMS, BY_GROUP, BY_INSTANCE, BY_PLANE, BY_FACTOR, GROUPEDS } grouped;

typedef struct part {
    part_kind kind;
    wf_conv_opts conv; /* LINKED: of each of its layers */
    wf_pool_opts pool;
    wf_upsample_opts upsample;
    wf_resize_opts resize; /* in place of upsampling or a maximum, if an output has a size */
    wf_batchnorm_opts norm;
    grouped grouped;
    wf_groupnorm_opts groups; /* of every form of GROUPED, as far as it has them */
    wf_shape plane;           /* of BY_PLANE */
    int function;
    costs costs;
    move move;
    wf_transformer_block_opts attention; /* MULTIHEAD, BLOCK: as far as it has these options */
    bool other;                          /* MULTIHEAD: of two inputs */
    wf_window_attention_opts windows;
    wf_neighbourhood_attention_opts neighbours;
    bool cut_heads; /* of these four: over the channel axis */
    bool text;      /* its input are tokens */
    bool segment;   /* recomputed */
} part;

/* Kinds stand in their order, and so do values of one option. */
typedef enum feature {
    HAS_CONV,
    HAS_TRANSPOSED,
    HAS_NORM,
    HAS_GROUP_NORM,
    HAS_MAX_POOL,
    HAS_AVG_POOL,
    HAS_UPSAMPLE,
    HAS_FUNCTION,
    HAS_TWICE,
    HAS_RANDOM,
    HAS_LINKED,
    HAS_MOVE,
    HAS_MULTIHEAD,
    HAS_BLOCK,
    HAS_WINDOWS,
    HAS_NEIGHBOURS,
    HAS_CAUSAL,
    HAS_CUT_HEADS,
    HAS_RING,
    HAS_BY_HEADS,
    HAS_MEASURED,
    HAS_GROUPS,
    HAS_STRIDE,
    HAS_DILATION,
    HAS_BOUNDARY,
    HAS_SEGMENT,
    HAS_HEAD,
    HAS_LATE,
    HAS_NAMED,
    HAS_FROZEN,
    HAS_PLACES,
    HAS_CHANNELS,
    HAS_PIXELS,
    HAS_TWO_AXES,
    HAS_REPLICAS,
    HAS_EMPTY_PLACE,
    HAS_BOUNDS,
    HAS_TEXT,
    HAS_CLASSES,
    HAS_TIED,
    HAS_LABELS,
    HAS_IGNORED,
    HAS_FLAT,
    HAS_NAIVE,
    HAS_HIERARCHICAL,
    HAS_MOMENTUM,
    HAS_ADAMW,
    HAS_LAMB,
    HAS_SCHEDULE,
    HAS_CLIP_NORM,
    HAS_CLIP_VALUE,
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
    "convolution",
    "transposed convolution",
    "normalisation",
    "normalisation of groups",
    "maximum pooling",
    "average pooling",
    "upsampling",
    "function",
    "a layer applied twice",
    "random numbers",
    "a spatial chain",
    "redistribution",
    "multi-head attention",
    "a transformer block",
    "attention in windows",
    "attention in neighbourhoods",
    "a causal mask",
    "heads cut over channels",
    "shared tokens as a ring",
    "shared tokens by heads",
    "a spatial chain of measured costs",
    "groups",
    "strides",
    "dilation",
    "a boundary",
    "wf_recompute",
    "a global pool",
    "a layer that joins late",
    "a name",
    "a frozen parameter",
    "several places along data",
    "shards of channels",
    "shards of pixels",
    "pixels along two axes",
    "ranks that compute the same",
    "a place without samples",
    "own bounds",
    "texts",
    "scores cut by vocabulary",
    "a head tied to the embedding",
    "labels",
    "ignored labels",
    "flat",
    "naive",
    "hierarchical",
    "momentum",
    "AdamW",
    "LAMB",
    "a schedule",
    "clipping by norm",
    "clipping by value",
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

/* What cannot be, and what the library refuses, by which error. Refusals of options are asserted by
 * tests/layers/random_pipelines.c. */
static const pairs_rule rules[] = {
    {HAS_GROUPS, HAS_CHANNELS, "WF_ERR_ARGUMENT: groups of fewer channels than ranks"},
    {HAS_LINKED, HAS_CHANNELS, "WF_ERR_SHAPE: a spatial chain of shards of channels"},
    {HAS_LINKED, HAS_REPLICAS, "WF_ERR_SHAPE: a spatial chain of what is replicated over an axis of several ranks"},
    {HAS_LINKED, HAS_CUT_HEADS, "WF_ERR_SHAPE: a spatial chain of what is replicated over an axis of several ranks"},
    {HAS_TEXT, HAS_CONV, "texts have no pixels"},
    {HAS_TEXT, HAS_TRANSPOSED, "texts have no pixels"},
    {HAS_TEXT, HAS_NORM, "texts have no pixels"},
    {HAS_TEXT, HAS_MAX_POOL, "texts have no pixels"},
    {HAS_TEXT, HAS_AVG_POOL, "texts have no pixels"},
    {HAS_TEXT, HAS_UPSAMPLE, "texts have no pixels"},
    {HAS_TEXT, HAS_LINKED, "texts have no pixels"},
    {HAS_TEXT, HAS_WINDOWS, "texts have no pixels"},
    {HAS_TEXT, HAS_NEIGHBOURS, "texts have no pixels"},
    {HAS_TEXT, HAS_STRIDE, "texts have no pixels"},
    {HAS_TEXT, HAS_DILATION, "texts have no pixels"},
    {HAS_TEXT, HAS_BOUNDARY, "texts have no pixels"},
    {HAS_TEXT, HAS_HEAD, "texts have no pixels"},
    {HAS_TEXT, HAS_TWO_AXES, "tokens are cut along one axis"},
    {HAS_CLASSES, HAS_LATE, "the sample's own: scores come last"},
    {HAS_TIED, HAS_LATE, "the sample's own: scores come last"},
    {HAS_HEAD, HAS_LATE, "the sample's own: a layer that joins comes last"},
    {HAS_SHARDED, HAS_DELAYED, "WF_ERR_ARGUMENT: double buffering with a sharded optimizer"},
    {HAS_SHARDED, HAS_HOOK, "WF_ERR_ARGUMENT: reduce with a sharded optimizer"},
};

/* Needs of a needed feature come first. */
static const pairs_need needs[] = {
    {HAS_TWO_AXES, HAS_PIXELS}, {HAS_LINKED, HAS_PIXELS},      {HAS_MEASURED, HAS_LINKED}, {HAS_RING, HAS_PIXELS},
    {HAS_BY_HEADS, HAS_PIXELS}, {HAS_GROUPS, HAS_CONV},        {HAS_CLASSES, HAS_TEXT},    {HAS_TIED, HAS_TEXT},
    {HAS_CLASSES, HAS_LABELS},  {HAS_EMPTY_PLACE, HAS_PLACES}, {HAS_IGNORED, HAS_LABELS},  {HAS_TIED, HAS_LABELS},
};

static inline void open_pairs(pairs *table)
{
    *table = (pairs){.n = FEATURES, .name = feature_names};
    pairs_one_of(table, HAS_FLAT, HAS_HIERARCHICAL);
    pairs_one_of(table, HAS_MOMENTUM, HAS_LAMB);
    pairs_forbid_all(table, rules, (int)(sizeof rules / sizeof *rules));
    pairs_inherit(table, needs, (int)(sizeof needs / sizeof *needs));
}

typedef struct plan {
    uint64_t number;
    pairs_set wish, barred, features;
    wf_shape image;                    /* of the global batch; of texts: samples, features, tokens, 1 */
    int64_t words;                     /* the vocabulary of texts; 0: images */
    bool positions, cut_classes, tied; /* texts: learned positions; the head */
    int n, joins;                      /* joins: the layer that comes after the first step; none: n */
    part part[MOST_LAYERS];
    bool named, accumulates, head, frozen, bounds, labels, ignores, own_sum, trainer, evaluator, saved;
    int64_t cut[RANKS + 1];           /* samples of the places along data */
    int64_t cut_points[2][RANKS + 1]; /* own bounds of pixels, along height and width */
    int optimizer;                    /* 0: momentum, in the order of the features */
    double clip_norm, clip_value;
    wf_schedule_opts schedule;
    const char *communicator;
    wf_mesh_opts mesh;
    unsigned how;
    wf_multi_node_opts opts;
    char text[TEXT];
} plan;

static inline bool is_spatial(const plan *p)
{
    return (p->how & WF_PARALLEL_SPATIAL) && (p->mesh.height > 1 || p->mesh.width > 1);
}

/* True if several ranks have parts of a gradient. */
static inline bool sums_gradients(const plan *p)
{
    return p->mesh.data > 1 || is_spatial(p);
}

static inline bool attends_tokens(const part *l)
{
    return l->kind == MULTIHEAD || l->kind == BLOCK;
}

/* How ranks along height share the tokens of an attention. */
static inline pairs_set features_of_tokens(const plan *p, const part *l)
{
    const bool shared = attends_tokens(l) && (p->how & WF_PARALLEL_SPATIAL) && p->mesh.height > 1;
    return bit_if(shared && l->attention.cut == WF_ATTENTION_RING, HAS_RING) |
           bit_if(shared && l->attention.cut == WF_ATTENTION_BY_HEADS, HAS_BY_HEADS);
}

static inline pairs_set features_of_layers(const plan *p)
{
    pairs_set set = 0;
    for (int i = 0; i < p->n; i++) {
        const part *l = &p->part[i];
        const bool conv = l->kind == CONV || l->kind == TRANSPOSED;
        set |= pairs_bit(HAS_CONV + (int)l->kind) |
               bit_if(l->kind == LINKED && l->costs == COSTS_MEASURED, HAS_MEASURED) |
               bit_if(conv && l->conv.groups > 1, HAS_GROUPS) | bit_if(conv && l->conv.stride > 1, HAS_STRIDE) |
               bit_if(conv && l->conv.dilation > 1, HAS_DILATION) |
               bit_if(l->conv.boundary.edge || l->pool.boundary.edge || l->upsample.boundary.edge, HAS_BOUNDARY) |
               bit_if(l->segment, HAS_SEGMENT) | bit_if(attends_tokens(l) && l->attention.causal, HAS_CAUSAL) |
               bit_if(l->cut_heads && p->mesh.channel > 1, HAS_CUT_HEADS) | features_of_tokens(p, l);
    }
    return set;
}

static inline pairs_set features_of_mesh(const plan *p)
{
    const wf_mesh_opts *m = &p->mesh;
    const bool pixels = m->height > 1 || m->width > 1, channels = p->how & WF_PARALLEL_CHANNEL,
               spatial = p->how & WF_PARALLEL_SPATIAL;
    return bit_if(m->data > 1, HAS_PLACES) | bit_if(m->channel > 1 && channels, HAS_CHANNELS) |
           bit_if(pixels && spatial, HAS_PIXELS) | bit_if(m->height > 1 && m->width > 1 && spatial, HAS_TWO_AXES) |
           bit_if((m->channel > 1 && !channels) || (pixels && !spatial), HAS_REPLICAS);
}

static inline pairs_set features_of(const plan *p)
{
    bool empty = false;
    for (int r = 0; r < p->mesh.data; r++)
        empty = empty || (p->cut[r] == p->cut[r + 1] && p->mesh.data > 1);
    return features_of_layers(p) | features_of_mesh(p) | bit_if(p->head, HAS_HEAD) | bit_if(p->joins < p->n, HAS_LATE) |
           bit_if(p->named, HAS_NAMED) | bit_if(p->frozen, HAS_FROZEN) | bit_if(empty, HAS_EMPTY_PLACE) |
           bit_if(p->bounds, HAS_BOUNDS) | bit_if(p->words > 0, HAS_TEXT) |
           bit_if(p->labels && p->cut_classes && p->mesh.channel > 1, HAS_CLASSES) |
           bit_if(p->labels && p->tied, HAS_TIED) | bit_if(p->labels, HAS_LABELS) | bit_if(p->ignores, HAS_IGNORED) |
           pairs_bit(strcmp(p->communicator, "flat") == 0    ? HAS_FLAT
                     : strcmp(p->communicator, "naive") == 0 ? HAS_NAIVE
                                                             : HAS_HIERARCHICAL) |
           pairs_bit(HAS_MOMENTUM + p->optimizer) | bit_if(p->schedule.kind != WF_SCHEDULE_CONSTANT, HAS_SCHEDULE) |
           bit_if(p->clip_norm > 0, HAS_CLIP_NORM) | bit_if(p->clip_value > 0, HAS_CLIP_VALUE) |
           bit_if(p->accumulates, HAS_ACCUMULATES) | bit_if(p->opts.bucket_bytes > 0, HAS_BUCKETS) |
           bit_if(p->opts.no_overlap, HAS_NO_OVERLAP) | bit_if(p->opts.shard_optimizer, HAS_SHARDED) |
           bit_if(p->opts.double_buffering, HAS_DELAYED) | bit_if(p->own_sum && sums_gradients(p), HAS_HOOK) |
           bit_if(p->trainer, HAS_TRAINER) | bit_if(p->evaluator, HAS_EVALUATOR) | bit_if(p->saved, HAS_SAVED);
}

#endif
