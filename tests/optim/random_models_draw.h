/* Draws the samples of random_models.c. Everything follows from the number of a sample, the count of ranks, the
 * features that it should have, and the attempt. */
#ifndef WF_TESTS_RANDOM_MODELS_DRAW_H
#define WF_TESTS_RANDOM_MODELS_DRAW_H

#include "tests/optim/random_models_plan.h"

static inline void note(plan *p, const char *text, int64_t a, int64_t b, int64_t c)
{
    const size_t used = strlen(p->text);
    char numbers[64] = "";
    if (a >= 0)
        snprintf(numbers, sizeof numbers, " %lld,%lld,%lld", (long long)a, (long long)b, (long long)c);
    snprintf(p->text + used, TEXT - used, " | %s%s", text, numbers);
}

static inline bool wishes(const plan *p, feature f)
{
    return pairs_has(p->wish, f);
}

static inline bool draw(const plan *p, test_rng *rng, feature f, int n)
{
    return pairs_draw(p->wish, p->barred, rng, f, n);
}

/* --- layers -------------------------------------------------------------------------------------------------------
 */

static inline int64_t channels(const plan *p, test_rng *rng)
{
    const int64_t least = p->mesh.channel > 1 ? p->mesh.channel : 1;
    return test_int(rng, least, least + 4);
}

static inline bool shards_channels(const plan *p)
{
    return (p->how & WF_PARALLEL_CHANNEL) && p->mesh.channel > 1;
}

/* Outputs of a window, 0 or less where there are none. */
static inline int64_t outputs(int64_t length, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation)
{
    const int64_t room = length + 2 * pad - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

static inline bool fits(const wf_shape *s)
{
    return s->dim[2] > 0 && s->dim[3] > 0 && s->dim[2] < 24 && s->dim[3] < 24;
}

/* What every image of two pixels or more can have, and as far as any window reaches: `any`. */
static inline wf_boundary draw_boundary(plan *p, test_rng *rng, bool any)
{
    static const wf_edge edges[] = {WF_EDGE_REPLICATE, WF_EDGE_CONSTANT, WF_EDGE_CIRCULAR, WF_EDGE_REFLECT,
                                    WF_EDGE_SYMMETRIC};
    const wf_edge edge = edges[test_int(rng, 0, any ? 1 : 4)];
    if (!draw(p, rng, HAS_BOUNDARY, 3))
        return (wf_boundary){0};
    note(p, wf_edge_name(edge), -1, 0, 0);
    return (wf_boundary){.edge = edge, .value = 0.5};
}

static inline bool draw_conv(plan *p, part *l, test_rng *rng, wf_shape *s)
{
    wf_conv_opts *o = &l->conv;
    *o = (wf_conv_opts){.in = s->dim[1],
                        .out = channels(p, rng),
                        .kernel = test_int(rng, 1, 3),
                        .stride = test_int(rng, 1, 2),
                        .pad = test_int(rng, 0, 1),
                        .dilation = test_int(rng, 1, 2),
                        .no_bias = one_in(rng, 4),
                        .act = one_in(rng, 2)   ? WF_ACT_NONE
                               : one_in(rng, 2) ? WF_ACT_RELU
                                                : WF_ACT_LEAKY_RELU};
    o->boundary = draw_boundary(p, rng, l->kind == TRANSPOSED || s->dim[2] < 2 || s->dim[3] < 2);
    o->pad = o->boundary.edge && l->kind == CONV ? 1 : o->pad;
    if (l->kind == CONV && one_in(rng, 4) && !shards_channels(p))
        o->groups = o->out = o->in;
    note(p, l->kind == CONV ? "conv" : "transposed", o->kernel, o->stride, o->dilation);
    for (int d = 2; d < 4; d++)
        s->dim[d] = l->kind == CONV ? outputs(s->dim[d], o->kernel, o->stride, o->pad, o->dilation)
                                    : (s->dim[d] - 1) * o->stride - 2 * o->pad + o->dilation * (o->kernel - 1) + 1;
    s->dim[1] = o->out;
    return fits(s);
}

static inline bool draw_pool(plan *p, part *l, test_rng *rng, wf_shape *s)
{
    l->pool = (wf_pool_opts){
        .kernel = test_int(rng, 2, 3), .stride = test_int(rng, 1, 2), .pad = one_in(rng, 3), .dilation = 1};
    if (l->pool.pad > 0)
        l->pool.boundary = draw_boundary(p, rng, s->dim[2] < 2 || s->dim[3] < 2);
    note(p, l->kind == MAX_POOL ? "max" : "avg", l->pool.kernel, l->pool.stride, l->pool.pad);
    /* Heights that are a multiple of 3 become half as many rows by windows that overlap, without a draw of its own. */
    if (l->kind == MAX_POOL && !l->pool.boundary.edge && s->dim[2] % 3 == 0) {
        l->resize.size[0] = s->dim[2] = (s->dim[2] + 1) / 2;
        l->resize.size[1] = s->dim[3] = s->dim[3] > 2 ? s->dim[3] - 1 : s->dim[3];
        note(p, "adaptive", -1, (int)s->dim[2], (int)s->dim[3]);
        return fits(s);
    }
    for (int d = 2; d < 4; d++)
        s->dim[d] = outputs(s->dim[d], l->pool.kernel, l->pool.stride, l->pool.pad, 1);
    return fits(s);
}

/* Convolutions on one exchange of halos, where all ranks share pixels or samples; else the serial program's chain. */
static inline bool draw_linked(plan *p, part *l, test_rng *rng, const wf_shape *s)
{
    l->conv = (wf_conv_opts){.in = s->dim[1], .out = s->dim[1], .kernel = 3, .pad = 1, .act = WF_ACT_LEAKY_RELU};
    l->conv.boundary = draw_boundary(p, rng, s->dim[2] < 3 || s->dim[3] < 3);
    l->costs = wishes(p, HAS_MEASURED) ? COSTS_MEASURED : (costs)test_int(rng, 0, COSTS - 1);
    if (l->costs == COSTS_MEASURED && pairs_has(p->barred, HAS_MEASURED))
        l->costs = COSTS_GIVEN;
    note(p, "linked", l->costs, 0, 0);
    return is_spatial(p) && p->mesh.channel < 2;
}

/* Balanced blocks of heads are uneven where ranks do not divide them. */
static inline int64_t draw_heads(plan *p, part *l, test_rng *rng, int64_t features)
{
    int64_t heads;
    l->cut_heads = p->mesh.channel > 1 && draw(p, rng, HAS_CUT_HEADS, 2);
    do
        heads = test_int(rng, l->cut_heads ? p->mesh.channel : 1, features);
    while (features % heads != 0);
    return heads;
}

/* Tokens that ranks share come together by heads only where no other axis cuts these. */
static inline wf_attention_cut draw_cut(const plan *p, part *l, test_rng *rng)
{
    const int any = (int)test_int(rng, WF_ATTENTION_CHEAPER, WF_ATTENTION_RING);
    const wf_attention_cut cut = wishes(p, HAS_RING)       ? WF_ATTENTION_RING
                                 : wishes(p, HAS_BY_HEADS) ? WF_ATTENTION_BY_HEADS
                                                           : (wf_attention_cut)any;
    return cut == WF_ATTENTION_BY_HEADS && l->cut_heads ? WF_ATTENTION_CHEAPER : cut;
}

static inline bool draw_tokens(plan *p, part *l, test_rng *rng, const wf_shape *s)
{
    enum { MOST_TOKENS = 150 };
    const int64_t features = s->dim[1], tokens = s->dim[2] * s->dim[3], heads = draw_heads(p, l, rng, features);
    const int64_t least = p->mesh.channel;
    wf_transformer_block_opts *o = &l->attention;
    *o = (wf_transformer_block_opts){.features = features,
                                     .heads = heads,
                                     .hidden = test_int(rng, least, least + 2 * features),
                                     .causal = draw(p, rng, HAS_CAUSAL, 2),
                                     .dropout = one_in(rng, 3) ? 0.3 : 0,
                                     .drop_path = one_in(rng, 4) ? 0.3 : 0,
                                     .relative = one_in(rng, 2) ? 2 * test_int(rng, 0, 4) + 1 : 0,
                                     .rotary = features / heads % 2 == 0 && one_in(rng, 2) ? tokens : 0,
                                     .eps = 0.1,
                                     .cut = draw_cut(p, l, rng),
                                     .paired = one_in(rng, 2)};
    l->other = one_in(rng, 3);
    note(p, l->kind == BLOCK ? "block" : l->other ? "multihead of two" : "multihead", features, heads, o->causal);
    note(p, l->cut_heads ? "heads cut" : "heads whole", o->cut, o->paired, o->relative);
    return tokens <= MOST_TOKENS;
}

static inline bool draw_windows(plan *p, part *l, test_rng *rng, const wf_shape *s)
{
    const int64_t heads = draw_heads(p, l, rng, s->dim[1]), window = test_int(rng, 1, 4);
    l->windows = (wf_window_attention_opts){.features = s->dim[1],
                                            .heads = heads,
                                            .window = window,
                                            .shift = test_int(rng, 0, window - 1),
                                            .window_nd = {0, one_in(rng, 3) ? window + 1 : 0},
                                            .no_bias = one_in(rng, 4),
                                            .dropout = one_in(rng, 3) ? 0.3 : 0};
    note(p, l->cut_heads ? "windows, heads cut" : "windows", heads, window, l->windows.shift);
    return true;
}

static inline bool draw_neighbours(plan *p, part *l, test_rng *rng, const wf_shape *s)
{
    const int64_t heads = draw_heads(p, l, rng, s->dim[1]), side = s->dim[2] < s->dim[3] ? s->dim[2] : s->dim[3];
    const int64_t kernel = test_int(rng, 1, side < 5 ? side : 5);
    l->neighbours =
        (wf_neighbourhood_attention_opts){.features = s->dim[1],
                                          .heads = heads,
                                          .kernel = kernel,
                                          .dilation = test_int(rng, 1, side / kernel < 3 ? side / kernel : 3),
                                          .no_relative = one_in(rng, 3),
                                          .no_bias = one_in(rng, 4)};
    note(p, l->cut_heads ? "neighbours, heads cut" : "neighbours", heads, kernel, l->neighbours.dilation);
    return true;
}

static inline void draw_grouped(plan *p, part *l, test_rng *rng, const wf_shape *s)
{
    l->grouped = (grouped)test_int(rng, 0, l->text ? BY_PIXEL_RMS : GROUPEDS - 1);
    /* A group may have two elements: a small eps would make their difference ill conditioned. */
    l->groups = (wf_groupnorm_opts){
        .channels = s->dim[1], .groups = test_int(rng, 1, s->dim[1]), .eps = 0.1, .no_gamma = one_in(rng, 4)};
    while (s->dim[1] % l->groups.groups != 0)
        l->groups.groups--;
    l->plane = WF_SHAPE(s->dim[2], s->dim[3]);
    note(p, "grouped", l->grouped, l->groups.groups, 0);
}

static inline bool draw_upsample(plan *p, part *l, test_rng *rng, wf_shape *s)
{
    l->upsample = (wf_upsample_opts){.mode = one_in(rng, 2) ? WF_UPSAMPLE_LINEAR : WF_UPSAMPLE_NEAREST};
    if (l->upsample.mode == WF_UPSAMPLE_LINEAR)
        l->upsample.boundary = draw_boundary(p, rng, s->dim[2] < 2 || s->dim[3] < 2);
    note(p, "upsample", l->upsample.mode, 0, 0);
    /* Lengths that are no multiple of 3 change to any others, without a draw of its own. */
    if (l->upsample.mode == WF_UPSAMPLE_NEAREST && s->dim[2] % 3 != 0) {
        l->resize = (wf_resize_opts){.size = {s->dim[2] + 1, (s->dim[3] + 2) / 2},
                                     .mode = s->dim[3] % 2 ? WF_RESIZE_AREA : WF_RESIZE_CUBIC};
        s->dim[2] = l->resize.size[0];
        s->dim[3] = l->resize.size[1];
        note(p, "resize", l->resize.mode, (int)s->dim[2], (int)s->dim[3]);
        return fits(s);
    }
    s->dim[2] *= 2;
    s->dim[3] *= 2;
    return fits(s);
}

/* True if one of the first layers leaves whole channels, which are not added to shards of them. */
static inline bool leaves_whole(const plan *p, int layers)
{
    bool any = false;
    for (int i = 0; i < layers; i++)
        any = any || p->part[i].kind == WINDOWS || p->part[i].kind == NEIGHBOURS;
    return any && shards_channels(p);
}

/* What takes tokens [N,T,E]. */
static inline bool takes_texts(part_kind kind)
{
    return kind == GROUPED || kind == FUNCTION || kind == TWICE || kind == RANDOM || kind == MOVE ||
           kind == MULTIHEAD || kind == BLOCK;
}

static inline bool draw_kind(plan *p, part *l, test_rng *rng, wf_shape *s)
{
    const int64_t in = s->dim[1];
    l->text = p->words > 0;
    do
        l->kind = (part_kind)test_int(rng, 0, KINDS - 1);
    while (l->text && !takes_texts(l->kind));
    l->segment = draw(p, rng, HAS_SEGMENT, 5);
    switch (l->kind) {
    case CONV:
    case TRANSPOSED:
        return draw_conv(p, l, rng, s);
    case MAX_POOL:
    case AVG_POOL:
        return draw_pool(p, l, rng, s);
    case LINKED:
        return draw_linked(p, l, rng, s);
    case MULTIHEAD:
    case BLOCK:
        return draw_tokens(p, l, rng, s);
    case WINDOWS:
        return draw_windows(p, l, rng, s);
    case NEIGHBOURS:
        return draw_neighbours(p, l, rng, s);
    case TWICE:
        l->conv = (wf_conv_opts){.in = in, .out = in, .kernel = 3, .pad = 1, .act = WF_ACT_LEAKY_RELU};
        note(p, "twice", -1, 0, 0);
        return !leaves_whole(p, p->n);
    case NORM:
        l->norm = (wf_batchnorm_opts){.channels = in, .act = one_in(rng, 2) ? WF_ACT_RELU : WF_ACT_NONE};
        note(p, "norm", -1, 0, 0);
        return true;
    case GROUPED:
        draw_grouped(p, l, rng, s);
        return true;
    case UPSAMPLE:
        return draw_upsample(p, l, rng, s);
    case MOVE:
        l->move = (move)test_int(rng, 0, MOVES - 1);
        note(p, "move", l->move, 0, 0);
        return true;
    default:
        l->function = (int)test_int(rng, 0, 2);
        note(p, l->kind == RANDOM ? "random" : "function", l->function, 0, 0);
        return true;
    }
}

/* A layer that leaves no image, or that excludes what the sample should have, is drawn again. */
static inline void draw_layers(plan *p, test_rng *rng, wf_shape shape)
{
    const int64_t wanted = test_int(rng, 2, MOST_LAYERS);
    p->n = 0;
    while (p->n < wanted) {
        const wf_shape before = shape;
        const size_t used = strlen(p->text);
        p->part[p->n] = (part){0};
        const bool drawn = draw_kind(p, &p->part[p->n], rng, &shape);
        p->n++;
        if (drawn && (features_of_layers(p) & p->barred) == 0)
            continue;
        p->n--;
        p->text[used] = '\0';
        shape = before;
    }
}

/* Again until it has the layers that the sample should have, if it can. */
static inline void draw_model(plan *p, test_rng *rng)
{
    enum { TRIES = 60, OF_LAYERS = HAS_SEGMENT + 1 };
    const size_t used = strlen(p->text);
    const pairs_set layers = p->wish & (pairs_bit(OF_LAYERS) - 1);
    for (int tries = 0; tries < TRIES; tries++) {
        p->text[used] = '\0';
        draw_layers(p, rng, p->image);
        if ((layers & ~features_of_layers(p)) == 0)
            break;
    }
    p->joins = draw(p, rng, HAS_LATE, 3) ? p->n - 1 : p->n;
    /* A normalisation that joins by itself does not know that its channels are sharded. */
    if (p->joins < p->n && p->part[p->joins].kind == NORM && p->mesh.channel > 1)
        p->joins = p->n;
    /* The mean of all outputs counts those of each step alike. */
    if (leaves_whole(p, p->n))
        p->joins = p->n;
    p->named = draw(p, rng, HAS_NAMED, 2);
    p->head = draw(p, rng, HAS_HEAD, 2) && p->joins == p->n && p->words == 0;
}

/* --- the mesh, and what lies where --------------------------------------------------------------------------------
 */

static inline void draw_axes(plan *p, test_rng *rng, int size)
{
    int *const axis[] = {&p->mesh.channel, &p->mesh.height, &p->mesh.width};
    int left = size;
    for (int k = 0; k < 3; k++) {
        *axis[k] = p->words > 0 && axis[k] == &p->mesh.width ? 1 : (int)test_int(rng, 1, left < 4 ? left : 4);
        while (left % *axis[k] != 0)
            --*axis[k];
        left /= *axis[k];
    }
    p->mesh.data = left;
    p->how = WF_PARALLEL_SYNC_BN | (unsigned)test_int(rng, 0, 3);
}

/* The axes that attention and scores need, which should be cut. */
static inline bool has_axes(const plan *p)
{
    const bool tokens = wishes(p, HAS_RING) || wishes(p, HAS_BY_HEADS),
               channels = wishes(p, HAS_CUT_HEADS) || wishes(p, HAS_CLASSES);
    return (!tokens || ((p->how & WF_PARALLEL_SPATIAL) && p->mesh.height > 1)) && (!channels || p->mesh.channel > 1);
}

/* Again until it has the axes that the sample should have, if so many ranks can. */
static inline void draw_mesh(plan *p, test_rng *rng, int size)
{
    enum { TRIES = 300 };
    pairs_set want = bit_if(wishes(p, HAS_EMPTY_PLACE), HAS_PLACES) |
                     bit_if(wishes(p, HAS_LINKED) || wishes(p, HAS_MEASURED), HAS_PIXELS);
    for (int f = HAS_PLACES; f <= HAS_REPLICAS; f++)
        want |= p->wish & pairs_bit(f);
    for (int tries = 0; tries < TRIES; tries++) {
        draw_axes(p, rng, size);
        if (has_axes(p) && (want & ~features_of_mesh(p)) == 0 && (features_of_mesh(p) & p->barred) == 0)
            return;
    }
}

/* Ascending cut points; parts are uneven, and some of them empty. */
static inline void draw_cuts(test_rng *rng, int parts, int64_t length, int64_t *cut)
{
    cut[0] = 0;
    for (int i = 1; i < parts; i++)
        cut[i] = test_int(rng, cut[i - 1], length);
    cut[parts] = length;
}

static inline void draw_places(plan *p, test_rng *rng)
{
    draw_cuts(rng, p->mesh.data, p->image.dim[0], p->cut);
    if (wishes(p, HAS_EMPTY_PLACE) && p->mesh.data > 1)
        p->cut[1] = 0;
    p->bounds = draw(p, rng, HAS_BOUNDS, 2);
    draw_cuts(rng, p->mesh.height, p->image.dim[2], p->cut_points[0]);
    draw_cuts(rng, p->mesh.width, p->image.dim[3], p->cut_points[1]);
}

/* --- training -----------------------------------------------------------------------------------------------------
 */

/* Texts: scores of the last layer are a part of the model with labels, and then nothing joins late. */
static inline void draw_scores(plan *p, test_rng *rng)
{
    p->positions = one_in(rng, 2);
    p->labels = p->labels && p->joins == p->n;
    p->cut_classes = p->mesh.channel > 1 && draw(p, rng, HAS_CLASSES, 2);
    p->tied = draw(p, rng, HAS_TIED, 3);
    if (wishes(p, HAS_TIED))
        p->cut_classes = shards_channels(p);
    p->tied = p->tied && p->cut_classes == shards_channels(p);
    note(p, p->cut_classes ? "classes cut" : "classes whole", p->words, p->tied, p->positions);
}

static inline void draw_training(plan *p, test_rng *rng)
{
    p->accumulates = draw(p, rng, HAS_ACCUMULATES, 4);
    p->labels = draw(p, rng, HAS_LABELS, 2) || wishes(p, HAS_IGNORED);
    if (p->words > 0)
        draw_scores(p, rng);
    p->ignores = p->labels && draw(p, rng, HAS_IGNORED, 2);
    p->frozen = draw(p, rng, HAS_FROZEN, 4);
    p->positions = p->positions || (p->frozen && p->words > 0); /* something trains */
    p->optimizer = pairs_option(p->barred, rng, HAS_MOMENTUM, HAS_LAMB);
    p->clip_norm = draw(p, rng, HAS_CLIP_NORM, 3) ? 0.2 : 0;
    p->clip_value = draw(p, rng, HAS_CLIP_VALUE, 3) ? 0.05 : 0;
    if (draw(p, rng, HAS_SCHEDULE, 3))
        p->schedule = (wf_schedule_opts){.kind = (wf_schedule_kind)test_int(rng, 1, 4),
                                         .warmup = test_int(rng, 0, 2),
                                         .gamma = 0.5,
                                         .every = test_int(rng, 1, 2),
                                         .total = test_int(rng, 2, 4),
                                         .end = 0.25};
    p->opts = (wf_multi_node_opts){.bucket_bytes = draw(p, rng, HAS_BUCKETS, 2) ? 64 : 0,
                                   .first_bucket_bytes = one_in(rng, 2) ? 64 : 0,
                                   .no_overlap = draw(p, rng, HAS_NO_OVERLAP, 3),
                                   .shard_optimizer = draw(p, rng, HAS_SHARDED, 4),
                                   .compare_every = 1};
    p->opts.double_buffering = !p->opts.shard_optimizer && draw(p, rng, HAS_DELAYED, 5);
    p->own_sum = !p->opts.shard_optimizer && draw(p, rng, HAS_HOOK, 4);
    p->trainer = draw(p, rng, HAS_TRAINER, 3);
    p->evaluator = draw(p, rng, HAS_EVALUATOR, 3);
    p->saved = draw(p, rng, HAS_SAVED, 4);
}

static inline void draw_attempt(plan *p, test_rng *rng, int size)
{
    static const char *const communicators[] = {"flat", "naive", "hierarchical"};
    p->words = wishes(p, HAS_CLASSES) || wishes(p, HAS_TIED) || draw(p, rng, HAS_TEXT, 4) ? test_int(rng, 5, 12) : 0;
    draw_mesh(p, rng, size);
    p->communicator = communicators[pairs_option(p->barred, rng, HAS_FLAT, HAS_HIERARCHICAL)];
    snprintf(p->text, TEXT, "model %llu on %d ranks: data %d channel %d height %d width %d how %u",
             (unsigned long long)p->number, size, p->mesh.data, p->mesh.channel, p->mesh.height, p->mesh.width, p->how);
    const int64_t samples = test_int(rng, 2, 5), in = channels(p, rng);
    p->image = WF_SHAPE(samples, in, test_int(rng, 5, 10), test_int(rng, 5, 10));
    if (p->words > 0)
        p->image.dim[3] = 1;
    note(p, p->words > 0 ? "text" : "image", p->image.dim[0], p->image.dim[1], p->image.dim[2]);
    draw_model(p, rng);
    draw_places(p, rng);
    draw_training(p, rng);
    p->features = features_of(p);
}

/* The sample of this number on so many ranks: with two features that have not met yet, as far as such a one is found in
 * a few wishes of some attempts each. */
static inline void draw_plan(pairs *table, uint64_t number, int size, plan *p)
{
    enum { ATTEMPTS = 40, WISHES = 12 };
    test_rng rng = {number};
    for (int w = 0; w <= WISHES; w++) {
        const pairs_set wish = w < WISHES ? pairs_wish(table, size) : 0, barred = pairs_barred(table, wish);
        for (int attempt = 0; attempt < ATTEMPTS || wish == 0; attempt++) {
            *p = (plan){.number = number, .wish = wish, .barred = barred};
            draw_attempt(p, &rng, size);
            if ((wish & ~p->features) != 0)
                continue;
            note(p, "", -1, 0, 0);
            pairs_text(table, p->features, p->text + strlen(p->text), TEXT - strlen(p->text));
            pairs_count(table, p->features, p->text);
            return;
        }
        pairs_give_up(table, size, wish);
    }
}

#endif
