/* Draws the programs of random_pipelines.c. Everything follows from the number of a program, the count of ranks, the
 * features that it should have, and the attempt. */
#ifndef WF_TESTS_RANDOM_PIPELINES_DRAW_H
#define WF_TESTS_RANDOM_PIPELINES_DRAW_H

#include "tests/layers/random_pipelines_chain.h"

/* --- the mesh, and where the chain is cut ---------------------------------------------------------------------------
 */

/* Ranks that share samples: along channels, along one or two axes of the images, or both. */
static inline void draw_axes(plan *p, test_rng *rng, int ranks)
{
    int *const images[] = {&p->mesh.height, &p->mesh.width, &p->mesh.depth};
    const int first = wishes(p, HAS_IMAGES) ? 0 : (int)test_int(rng, 0, 2);
    p->how = 0;
    if (ranks % 2 == 0 && (ranks == 8 || draw(p, rng, HAS_CHANNELS, 2))) {
        p->mesh.channel = 2;
        p->how = WF_PARALLEL_CHANNEL;
        ranks /= 2;
    }
    if (ranks > 1)
        p->how |= WF_PARALLEL_SPATIAL;
    *images[first] = ranks == 4 ? 2 : ranks;
    *images[(first + 1) % 3] = ranks == 4 ? 2 : 1;
}

static inline bool fits_wishes(const plan *p)
{
    const wf_mesh_opts *m = &p->mesh;
    const int axes = (m->depth > 1) + (m->height > 1) + (m->width > 1);
    const pairs_set has = bit_if(m->stage > 1, HAS_STAGES) | bit_if(m->data > 1, HAS_PLACES) |
                          bit_if(m->channel > 1, HAS_CHANNELS) | bit_if(axes > 0, HAS_PIXELS) |
                          bit_if(axes > 1, HAS_TWO_AXES);
    pairs_set want = 0;
    for (feature f = HAS_STAGES; f <= HAS_TWO_AXES; f++)
        want |= p->wish & pairs_bit(f);
    want |= bit_if(wishes(p, HAS_EMPTY_PLACE), HAS_PLACES) | bit_if(wishes(p, HAS_CUT_HEADS), HAS_CHANNELS) |
            bit_if(wishes(p, HAS_RING) || wishes(p, HAS_BY_HEADS), HAS_PIXELS);
    want |= bit_if(wishes(p, HAS_LINKED) || wishes(p, HAS_MEASURED), HAS_PIXELS);
    const bool rows = m->depth < 2 && m->width < 2;
    return (rows || !wishes(p, HAS_TEXTS)) && (has & p->barred) == 0 && (want & ~has) == 0;
}

/* Again until it has the axes that the program should have, if so many ranks can. */
static inline void draw_mesh(plan *p, test_rng *rng)
{
    enum { TRIES = 200 };
    int data, rest;
    for (int tries = 0; tries < TRIES; tries++) {
        do {
            p->mesh = (wf_mesh_opts){.stage = (int)test_int(rng, 1, 4)};
            data = (int)test_int(rng, 1, PLACES);
            rest = p->ranks / p->mesh.stage / data;
        } while (p->mesh.stage * data * rest != p->ranks || (rest > 4 && rest != 8) || (data > 2 && !one_in(rng, 4)));
        p->mesh.data = data;
        draw_axes(p, rng, rest);
        if (fits_wishes(p))
            return;
    }
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
    if (wishes(p, HAS_EMPTY_PLACE) && p->mesh.data > 1)
        p->samples[0][0][test_int(rng, 1, p->mesh.data - 1)] = 0;
    if (wishes(p, HAS_EMPTY_CHUNK) && p->pipeline.chunks > 1 && !p->exact)
        p->samples[0][0][0] = (int)test_int(rng, 1, p->pipeline.chunks - 1);
}

static inline void draw_schedule(plan *p, test_rng *rng)
{
    p->schedule = (wf_schedule_opts){.kind = (wf_schedule_kind)test_int(rng, 1, 4),
                                     .warmup = test_int(rng, 0, 2),
                                     .gamma = 0.5,
                                     .every = test_int(rng, 1, 2),
                                     .total = test_int(rng, 2, 4),
                                     .end = 0.25,
                                     .scale = one_in(rng, 3) ? 2 : 0};
    if (!draw(p, rng, HAS_SCHEDULE, 3))
        p->schedule = (wf_schedule_opts){0};
}

static inline void draw_training(plan *p, test_rng *rng)
{
    p->steps = (int)test_int(rng, 2, RUNS);
    p->accumulates = !p->exact && draw(p, rng, HAS_ACCUMULATES, 4);
    p->optimizer = pairs_option(p->barred, rng, HAS_SGD, HAS_LAMB);
    p->lr = p->optimizer == 0 ? 0.05 : p->optimizer == 1 ? 0.01 : 0.02;
    p->clip_norm = !p->exact && draw(p, rng, HAS_CLIP_NORM, 3) ? 0.2 : 0;
    p->clip_value = draw(p, rng, HAS_CLIP_VALUE, 3) ? 0.02 : 0;
    draw_schedule(p, rng);
    p->scales = p->dtype == WF_F32 && draw(p, rng, HAS_SCALE, 3);
    p->multi = (wf_multi_node_opts){.bucket_bytes = draw(p, rng, HAS_BUCKETS, 2) ? 64 : 0,
                                    .no_overlap = draw(p, rng, HAS_NO_OVERLAP, 4),
                                    .shard_optimizer = !p->exact && draw(p, rng, HAS_SHARDED, 4),
                                    .compare_every = 1};
    p->multi.double_buffering = !p->multi.shard_optimizer && !p->scales && draw(p, rng, HAS_DELAYED, 6);
    p->own_sum = !p->multi.shard_optimizer && draw(p, rng, HAS_HOOK, 4);
    p->trainer = draw(p, rng, HAS_TRAINER, 3);
    p->saved = draw(p, rng, HAS_SAVED, 4);
    draw_samples(p, rng);
}

static inline void draw_pipeline(plan *p, test_rng *rng)
{
    p->pipeline = (wf_pipeline_opts){
        .chunks = (int)test_int(rng, wishes(p, HAS_EMPTY_CHUNK) ? 2 : 1, MOST),
        .schedule = (wf_pipeline_kind)pairs_option(p->barred, rng, HAS_1F1B, HAS_INTERLEAVED),
        .recompute = (wf_pipeline_recompute)pairs_option(p->barred, rng, HAS_NEVER, HAS_ALWAYS),
        .deferred_batchnorm = p->norms && draw(p, rng, HAS_DEFERRED, 2),
        .compare_every = 1,
    };
    p->pipeline.parts = p->pipeline.schedule == WF_PIPELINE_INTERLEAVED ? (int)test_int(rng, 1, 3) : 1;
}

static inline bool wants_norms(const plan *p)
{
    return wishes(p, HAS_NORM) || wishes(p, HAS_SYNC) || wishes(p, HAS_DEFERRED);
}

/* What of the serial program a sample is compared with: normalisation sees chunks, draws without a layout belong to
 * chunks, and those with one to places in the batch. */
static inline void draw_forms(plan *p, test_rng *rng)
{
    const bool shared = draw(p, rng, HAS_SYNC, 2);
    p->exact = p->mesh.data == 1 && !p->how && one_in(rng, 3) && !wishes(p, HAS_LAYOUT) && !wishes(p, HAS_MOVE) &&
               !wishes(p, HAS_BOUNDS) && !wishes(p, HAS_IGNORED);
    p->layout = p->how || (!p->exact && !wishes(p, HAS_NO_LAYOUT) &&
                           (one_in(rng, 2) || pairs_has(p->barred, HAS_NO_LAYOUT) || wishes(p, HAS_LAYOUT)));
    p->norms = one_in(rng, 2) || wants_norms(p);
    p->draws = draw(p, rng, HAS_DRAWS, 2) && !(p->norms && (p->layout || (shared && p->mesh.data > 1)));
    if (p->norms && shared) {
        p->how |= WF_PARALLEL_SYNC_BN;
        p->layout = p->layout || (!wishes(p, HAS_NO_LAYOUT) && one_in(rng, 2));
        p->draws = p->draws && !p->layout;
    }
    const bool across = (p->how & WF_PARALLEL_SYNC_BN) && p->mesh.data > 1;
    const bool whole = !p->norms && (p->layout || !p->draws) && !p->exact;
    p->exact = p->exact && !p->how;
    p->reference = across ? ACROSS : whole ? WHOLE : BY_PLACE;
    p->ignores = !p->exact && draw(p, rng, HAS_IGNORED, 4);
    p->bounds = p->layout && draw(p, rng, HAS_BOUNDS, 3);
    /* Running statistics that differ between places give outputs that differ from the serial program's. */
    p->evaluator = draw(p, rng, HAS_EVALUATOR, 2) && !(p->norms && p->mesh.data > 1 && !across);
}

/* Ascending cut points of the pixels; parts may be empty. */
static inline void draw_bounds(plan *p, test_rng *rng)
{
    const int sizes[] = {p->mesh.depth, p->mesh.height, p->mesh.width};
    for (int k = 0; k < 3; k++) {
        const int d = p->x.rank - 3 + k;
        const int64_t length = p->words && k == 1 ? TOKENS : d < 2 ? 0 : p->x.dim[d];
        p->cut_points[k][0] = 0;
        for (int r = 1; r < sizes[k]; r++)
            p->cut_points[k][r] = test_int(rng, p->cut_points[k][r - 1], length);
        p->cut_points[k][sizes[k] > 1 ? sizes[k] : 1] = length;
    }
}

static inline void describe(plan *p, const pairs *table)
{
    static const char *const kinds[] = {"dense",     "conv",    "norm",    "grouped",    "function", "pool",
                                        "upsample",  "flatten", "branch",  "linked",     "move",     "embed",
                                        "multihead", "block",   "windows", "neighbours", "stash",    "pop"};
    snprintf(p->text, TEXT,
             "program %llu on %d ranks (stage %d, data %d, channel %d, depth %d, height %d, width %d, how %u):",
             (unsigned long long)p->number, p->ranks, p->mesh.stage, p->mesh.data, p->mesh.channel, p->mesh.depth,
             p->mesh.height, p->mesh.width, p->how);
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
    note(p, "; %d chunks, %d parts; ", p->pipeline.chunks, p->pipeline.parts);
    pairs_text(table, p->features, p->text + strlen(p->text), TEXT - strlen(p->text));
    note(p, p->exact ? "; same bits" : "", 0, 0);
    for (int i = 0; i < p->ties; i++)
        note(p, ", %d tied to %d", p->tie[i][0], p->tie[i][1]);
    for (int step = 0; step < p->steps; step++)
        for (int r = 0; r < p->mesh.data; r++)
            note(p, step + r ? " %d" : ", samples %d", p->samples[step][0][r], 0);
}

/* Returns true if the gradient of a kept value is a sum of rounded numbers, where the serial program adds to one of
 * them and rounds once: a part ends after it, what follows is recomputed, or two skips keep it. */
static inline bool rounds_kept(const plan *p)
{
    bool rounds = false;
    for (int at = 0, end = p->cuts[0]; end < p->n; end += p->cuts[++at])
        rounds = rounds || p->part[end - 1].kind == STASH;
    for (int i = 0; i < p->n; i++)
        rounds = rounds || (p->part[i].kind == STASH &&
                            (p->pipeline.recompute != WF_RECOMPUTE_NEVER || p->part[i + 1].kind == STASH));
    return rounds;
}

/* An embedding has no other parameter, so something else of its stage must be trained. */
static inline bool may_freeze(const plan *p)
{
    const kind first = p->part[0].kind;
    return first == DENSE || first == CONV || (first == EMBED && (p->mesh.stage == 1 || p->cuts[0] > 1));
}

static inline void draw_shared_layers(plan *p, test_rng *rng)
{
    draw_ties(p, rng);
    p->inner[0] = p->inner[1] = 0;
    if (draw(p, rng, HAS_INNER, 2)) {
        p->inner[0] = (int)test_int(rng, 0, p->n - 1);
        p->inner[1] = (int)test_int(rng, p->inner[0], p->n);
    }
    p->frozen = draw(p, rng, HAS_FROZEN, 4) && may_freeze(p) ? 0 : -1;
}

static inline void draw_world(plan *p, test_rng *rng)
{
    static const char *const communicators[] = {"flat", "naive", "hierarchical"};
    p->dtype = pairs_option(p->barred, rng, HAS_F64, HAS_F32) ? WF_F32 : WF_F64;
    p->device = draw(p, rng, HAS_CPU, 3) && !wishes(p, HAS_REF) ? "cpu" : "ref";
    p->communicator = communicators[pairs_option(p->barred, rng, HAS_FLAT, HAS_HIERARCHICAL)];
    p->tolerance = p->dtype == WF_F64 ? 1e-12 : 1e-5;
}

/* One attempt; false if the chain cannot be cut into so many parts. */
static inline bool draw_attempt(plan *p, test_rng *rng)
{
    draw_world(p, rng);
    draw_mesh(p, rng);
    draw_forms(p, rng);
    draw_pipeline(p, rng);
    draw_chain(p, rng);
    if (!draw_cuts(p, rng))
        return false;
    draw_shared_layers(p, rng);
    draw_bounds(p, rng);
    p->exact = p->exact && !rounds_kept(p) && strcmp(p->device, "ref") == 0;
    draw_training(p, rng);
    p->features = features_of(p);
    return true;
}

/* The program of this number on so many ranks: with two features that have not met yet, as far as such a one is found
 * in a few wishes of some attempts each. */
static inline void draw_plan(pairs *table, uint64_t number, int ranks, plan *p)
{
    enum { ATTEMPTS = 60, WISHES = 12 };
    test_rng rng = {number * 64 + (uint64_t)ranks};
    for (int w = 0; w <= WISHES; w++) {
        const pairs_set wish = w < WISHES ? pairs_wish(table, ranks) : 0, barred = pairs_barred(table, wish);
        for (int attempt = 0; attempt < ATTEMPTS || wish == 0; attempt++) {
            *p = (plan){.number = number, .ranks = ranks, .wish = wish, .barred = barred};
            if (!draw_attempt(p, &rng) || (wish & ~p->features) != 0)
                continue;
            describe(p, table);
            pairs_count(table, p->features, p->text);
            return;
        }
        pairs_give_up(table, ranks, wish);
    }
}

#endif
