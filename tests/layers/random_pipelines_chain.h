/* Draws the chain of layers of a program of random_pipelines.c. */
#ifndef WF_TESTS_RANDOM_PIPELINES_CHAIN_H
#define WF_TESTS_RANDOM_PIPELINES_CHAIN_H

#include "tests/layers/random_pipelines_plan.h"

static inline bool wishes(const plan *p, feature f)
{
    return pairs_has(p->wish, f);
}

static inline bool draw(const plan *p, test_rng *rng, feature f, int n)
{
    return pairs_draw(p->wish, p->barred, rng, f, n);
}

static inline void note(plan *p, const char *format, int a, int b)
{
    const size_t used = strlen(p->text);
    snprintf(p->text + used, TEXT - used, format, a, b);
}

/* --- the chain ------------------------------------------------------------------------------------------------------
 */

enum { MOST_SKIPS = 5 };

/* While it is drawn. */
typedef struct drawing {
    plan *p;
    test_rng *rng;
    wf_shape shape;
    int skips, open[LAYERS]; /* skips that are not taken yet */
    wf_shape kept[LAYERS];   /* what each of these keeps */
    int opens;
} drawing;

static inline void set_sides(wf_shape *shape, int64_t side)
{
    for (int i = 2; i < shape->rank; i++)
        shape->dim[i] = side;
}

/* Features, or channels: at least one for each rank along `channel`. */
static inline int64_t draw_width(const drawing *d)
{
    return test_int(d->rng, 2, d->shape.rank > 2 ? 5 : 8);
}

static inline void add_part(drawing *d, part l)
{
    l.in = d->shape;
    if (l.out == 0)
        l.out = d->shape.dim[1];
    d->p->part[d->p->n++] = l;
    d->shape.dim[1] = l.out;
}

/* Edges that images of one pixel have too. */
static inline wf_edge draw_edge(drawing *d)
{
    static const wf_edge edges[] = {WF_EDGE_DEFAULT, WF_EDGE_DEFAULT, WF_EDGE_CIRCULAR, WF_EDGE_SYMMETRIC,
                                    WF_EDGE_REPLICATE};
    return edges[test_int(d->rng, 0, 4)];
}

static inline void draw_weights(drawing *d)
{
    /* What is kept must fit what it is joined with. */
    const bool same = d->opens > 0;
    const int64_t side = is_image(d->shape) ? d->shape.dim[2] : 0;
    part l = {.kind = is_image(d->shape) ? CONV : DENSE, .out = same || one_in(d->rng, 3) ? 0 : draw_width(d)};
    l.edge = l.kind == CONV ? draw_edge(d) : WF_EDGE_DEFAULT;
    if (l.kind == CONV) {
        l.conv = one_in(d->rng, 3) ? 1 : 3;
        l.stride = !same && side >= 4 && draw(d->p, d->rng, HAS_STRIDE, 4);
    }
    if (!(l.stride && wishes(d->p, HAS_STRIDE)) && one_in(d->rng, 4)) {
        l.kind = BRANCH;
        l.conv = 3;
        l.stride = false;
        l.join = one_in(d->rng, 3) ? JOIN_MUL : JOIN_ADD;
        l.segment = draw(d->p, d->rng, HAS_SEGMENT, 3);
    }
    add_part(d, l);
    if (l.stride)
        set_sides(&d->shape, (side + 1) / 2);
}

/* Convolutions on one exchange of halos; the serial program has a chain of them. */
static inline void draw_linked(drawing *d)
{
    if (!is_image(d->shape) || !is_spatial(d->p) || pairs_has(d->p->barred, HAS_LINKED) || d->p->mesh.channel > 1)
        return;
    const bool measured = wishes(d->p, HAS_MEASURED);
    part l = {.kind = LINKED, .conv = 3, .links = (int)test_int(d->rng, 2, LINKS)};
    l.out = d->opens > 0 || one_in(d->rng, 2) ? 0 : draw_width(d);
    l.edge = draw_edge(d);
    l.segment = !pairs_has(d->p->barred, HAS_SEGMENT) && one_in(d->rng, 4);
    l.costs = measured ? COSTS_MEASURED : (costs)test_int(d->rng, 0, COSTS - 1);
    if (pairs_has(d->p->barred, HAS_MEASURED))
        l.costs = COSTS_GIVEN;
    add_part(d, l);
}

static inline void draw_move(drawing *d)
{
    if (!pairs_has(d->p->barred, HAS_MOVE))
        add_part(d, (part){.kind = MOVE, .move = (move)test_int(d->rng, 0, MOVES - 1)});
}

/* Attention to tokens or to what is near. Heads are cut over channels, unevenly where there are three for two ranks. */
static inline void draw_attention(drawing *d, bool near)
{
    plan *p = d->p;
    const bool image = is_image(d->shape), deep = d->shape.rank == 5;
    const int64_t features = d->shape.dim[1], side = d->shape.dim[2];
    if (d->shape.rank < 3 || (near && !image))
        return;
    part l = {.kind = !near                       ? (one_in(d->rng, 2) ? BLOCK : MULTIHEAD)
                      : deep || one_in(d->rng, 2) ? NEIGHBOURS
                                                  : WINDOWS};
    l.cut_heads = p->mesh.channel > 1 && draw(p, d->rng, HAS_CUT_HEADS, 2);
    if (!near && wishes(p, HAS_BY_HEADS) && one_in(d->rng, 2))
        l.cut_heads = false;
    do
        l.heads = test_int(d->rng, l.cut_heads ? p->mesh.channel : 1, features);
    while (features % l.heads != 0);
    l.drops = p->draws && l.kind != NEIGHBOURS && one_in(d->rng, 3);
    l.side = l.kind == NEIGHBOURS ? test_int(d->rng, 1, side < 4 ? side : 4) : test_int(d->rng, 1, 4);
    l.shift = test_int(d->rng, 0, l.side - 1);
    if (!near) {
        l.causal = draw(p, d->rng, HAS_CAUSAL, 2);
        l.paired = one_in(d->rng, 2);
        l.cut = wishes(p, HAS_RING)       ? WF_ATTENTION_RING
                : wishes(p, HAS_BY_HEADS) ? WF_ATTENTION_BY_HEADS
                                          : (wf_attention_cut)test_int(d->rng, 0, 2);
        if (l.cut == WF_ATTENTION_BY_HEADS && l.cut_heads)
            l.cut = WF_ATTENTION_CHEAPER;
        l.segment = draw(p, d->rng, HAS_SEGMENT, 4);
    }
    l.in = d->shape;
    /* What is near leaves whole channels, which a skip does not join with shards of them. */
    const bool alone = near && p->mesh.channel > 1;
    if ((features_of_attention(p, &l) & p->barred) != 0 || (alone && d->skips > 0))
        return;
    add_part(d, l);
    if (alone)
        d->skips = MOST_SKIPS;
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
    if (d->skips == MOST_SKIPS)
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
    const bool joins =
        d->opens == 0 && !d->p->words && d->p->mesh.channel < 2 && d->kept[skip].dim[1] + d->shape.dim[1] <= 10;
    part l = {.kind = POP, .skip = skip, .join = (join)test_int(d->rng, 0, joins ? JOIN_CONCAT : JOIN_MUL)};
    l.out = l.join == JOIN_CONCAT ? d->kept[skip].dim[1] + d->shape.dim[1] : 0;
    add_part(d, l);
}

static inline void draw_layer(drawing *d)
{
    const int64_t what = test_int(d->rng, 0, 14);
    if (what < 4)
        draw_weights(d);
    else if (what < 6)
        draw_function(d);
    else if (what == 6 && d->p->norms && !d->p->words)
        add_part(d, (part){.kind = NORM, .function = d->p->dtype == WF_F64 && one_in(d->rng, 2)});
    else if (what == 12)
        add_part(d, (part){.kind = GROUPED, .function = (int)test_int(d->rng, 0, d->p->words ? 1 : 4)});
    else if (what > 12)
        draw_attention(d, what == 14);
    else if (what == 10)
        draw_linked(d);
    else if (what == 11)
        draw_move(d);
    else if (what == 7)
        draw_window(d);
    else if (what == 8)
        draw_stash(d);
    else if (what == 9 && d->opens > 0)
        draw_pop(d);
}

/* A text's tokens are cut along height, at bounds of its own. */
static inline bool draw_text(plan *p, test_rng *rng)
{
    const bool wished = wishes(p, HAS_TEXTS), chance = one_in(rng, 4);
    const bool fits = p->mesh.depth < 2 && p->mesh.width < 2 && (!is_spatial(p) || !pairs_has(p->barred, HAS_BOUNDS));
    p->words = fits && (wished || (chance && !pairs_has(p->barred, HAS_TEXTS)));
    p->bounds = p->bounds || (p->words && is_spatial(p));
    return p->words;
}

static inline void draw_input(plan *p, test_rng *rng)
{
    const bool deep = wishes(p, HAS_VOLUMES) || p->mesh.depth > 1 ||
                      (!wishes(p, HAS_IMAGES) && !pairs_has(p->barred, HAS_VOLUMES) && one_in(rng, 6));
    const bool image = is_spatial(p) || wishes(p, HAS_IMAGES) || wishes(p, HAS_VOLUMES) ||
                       (!wishes(p, HAS_VECTORS) && (one_in(rng, 2) || pairs_has(p->barred, HAS_VECTORS)));
    p->x = draw_text(p, rng) ? WF_SHAPE(1, TOKENS)
           : !image          ? WF_SHAPE(1, IN)
           : deep            ? WF_SHAPE(1, 3, DEEP_SIDE, DEEP_SIDE, DEEP_SIDE)
                             : WF_SHAPE(1, 3, SIDE, SIDE);
}

static inline void draw_layers(plan *p, test_rng *rng)
{
    drawing d = {.p = p, .rng = rng, .shape = p->x};
    const int64_t wanted = test_int(rng, p->mesh.stage, 14);
    p->n = 0;
    if (p->words) {
        d.shape = WF_SHAPE(1, 0, TOKENS);
        add_part(&d, (part){.kind = EMBED, .out = draw_width(&d)});
    }
    draw_weights(&d);
    while (p->n < wanted)
        draw_layer(&d);
    while (d.opens > 0)
        draw_pop(&d);
    if (is_image(p->x) || p->words) {
        add_part(&d, (part){.kind = FLATTEN});
        d.shape = WF_SHAPE(1, wf_shape_count(d.shape));
    }
    add_part(&d, (part){.kind = DENSE, .out = CLASSES});
}

/* Again until it has the layers that the program should have, if it can. */
static inline void draw_chain(plan *p, test_rng *rng)
{
    enum { TRIES = 60 };
    pairs_set layers = 0;
    for (feature f = HAS_NORM; f <= HAS_MEASURED; f++)
        layers |=
            f == HAS_SYNC || f == HAS_DEFERRED || f == HAS_TIES || f == HAS_FROZEN || f == HAS_INNER ? 0 : pairs_bit(f);
    layers |= pairs_bit(HAS_SEGMENT) | (p->layout ? pairs_bit(HAS_MOVE) : 0);
    p->frozen = -1;
    p->ties = p->inner[0] = p->inner[1] = 0;
    draw_input(p, rng);
    for (int tries = 0; tries < TRIES; tries++) {
        draw_layers(p, rng);
        if ((p->wish & layers & ~features_of_layers(p)) == 0)
            return;
    }
}

/* Two layers of equal shapes share their weights, wherever they are. */
static inline void draw_ties(plan *p, test_rng *rng)
{
    p->ties = 0;
    p->ties_biases = one_in(rng, 2);
    /* Ranks may share the channels of equal layers in different ways. */
    if (!draw(p, rng, HAS_TIES, 2) || p->exact || p->mesh.channel > 1)
        return;
    for (int i = 0; i < p->n && p->ties < TIES; i++)
        for (int j = 0; j < i && p->ties < TIES; j++) {
            const part *a = &p->part[i], *b = &p->part[j];
            bool tied = a->kind != b->kind || (a->kind != DENSE && a->kind != CONV) || a->out != b->out ||
                        a->edge != b->edge || a->in.dim[1] != b->in.dim[1] || a->in.rank != b->in.rank ||
                        a->conv != b->conv;
            for (int k = 0; k < p->ties; k++)
                tied = tied || p->tie[k][0] == i || p->tie[k][0] == j;
            if (tied)
                continue;
            p->tie[p->ties][0] = i;
            p->tie[p->ties++][1] = j;
        }
}

#endif
