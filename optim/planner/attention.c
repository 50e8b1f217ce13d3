/* The cost of attention where an image, or its tokens, are cut in balanced blocks: the work of the rank that has most,
 * and what is sent, both by shapes alone. */
#include "core/neighbourhood_author.h"
#include "optim/planner/planner_impl.h"

bool wf_planner_attends(const wf_planner_leaf *leaf)
{
    const wf_part_kind kind = leaf->info.kind;
    return kind == WF_PART_ATTENTION || kind == WF_PART_WINDOWS || kind == WF_PART_NEIGHBOURHOOD;
}

/* Along one dimension. */
typedef struct span_needs {
    double read, own;  /* elements, summed over all places: read, and read where they are */
    double most, all;  /* of the place that computes most; of all */
    double neighbours; /* whom a place reads from, on average */
} span_needs;

static wf_range find_block_range(int64_t n, int ranks, int r)
{
    wf_range range;
    wf_block(n, ranks, r, &range.lo, &range.hi);
    return range;
}

static int64_t shared_by(wf_range a, wf_range b)
{
    const int64_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi;
    return hi > lo ? hi - lo : 0;
}

/* Windows begin `shift` late and belong to the place of their first pixel; behind the last pixel the first ones follow.
 * The last place has the padding too. */
static span_needs window_needs(const wf_part_info *info, int d, int ranks, int64_t length)
{
    const int64_t window = info->window[d].kernel, count = (length + window - 1) / window, padded = count * window;
    const int64_t shift = count > 1 ? info->shift[d] : 0;
    span_needs n = {.all = (double)count};
    for (int r = 0; r < ranks; r++) {
        wf_range own = find_block_range(length, ranks, r);
        own.hi = r + 1 == ranks ? padded : own.hi;
        int64_t windows = 0, here = 0;
        for (int64_t g = 0; g < count; g++) {
            /* A window that reaches beyond the end goes on at the beginning: `round` is that part of it. */
            const wf_range at = {g * window + shift, (g + 1) * window + shift},
                           round = {at.lo - padded, at.hi - padded};
            const bool last = r + 1 == ranks && at.lo >= padded;
            if (!last && (at.lo < own.lo || at.lo >= own.hi))
                continue;
            windows++;
            here += shared_by(at, own) + shared_by(round, own);
        }
        n.read += (double)(windows * window);
        n.own += (double)here;
        n.most = (double)windows > n.most ? (double)windows : n.most;
        /* A place reads from others when not all pixels of its windows are its own. */
        n.neighbours += windows * window > here;
    }
    n.neighbours /= ranks;
    return n;
}

/* The pixels around those of a block, as layers/window/index_map.c has them. */
static span_needs around_needs(const wf_part_info *info, int d, int ranks, int64_t length)
{
    const int64_t step = info->window[d].dilation;
    const wf_neighbourhood g = {.length = {length}, .kernel = {info->window[d].kernel}, .dilation = {step}};
    span_needs n = {.all = (double)length};
    for (int r = 0; r < ranks; r++) {
        const wf_range own = find_block_range(length, ranks, r);
        wf_range read = own;
        for (int64_t i = own.lo; i < own.hi; i++) {
            const wf_neighbours seen = wf_neighbourhood_keys(&g, 0, i);
            const int64_t end = seen.first + (seen.count - 1) * seen.step + 1;
            read.lo = seen.first < read.lo ? seen.first : read.lo;
            read.hi = end > read.hi ? end : read.hi;
        }
        n.read += (double)(read.hi - read.lo);
        n.own += (double)(own.hi - own.lo);
        n.most = (double)(own.hi - own.lo) > n.most ? (double)(own.hi - own.lo) : n.most;
        /* One neighbour on each side that the place reads beyond. */
        n.neighbours += (read.lo < own.lo) + (read.hi > own.hi);
    }
    n.neighbours /= ranks;
    return n;
}

/* Windows: one exchange there and one back, each way. Neighbourhoods: keys and values, and the gradients of both. */
static wf_attention_cost image_cost(const wf_place *p, const wf_planner_leaf *leaf)
{
    const wf_part_info *const info = &leaf->info;
    const int ranks[3] = {p->mesh.depth, p->mesh.height, p->mesh.width};
    double read = 1, own = 1, around = 1;
    wf_attention_cost cost = {.share = 1};
    for (int d = 0; d < info->nd; d++) {
        const int parts = ranks[3 - info->nd + d];
        const span_needs n = info->kind == WF_PART_WINDOWS ? window_needs(info, d, parts, leaf->x.dim[2 + d])
                                                           : around_needs(info, d, parts, leaf->x.dim[2 + d]);
        read *= n.read;
        own *= n.own;
        /* Neighbours of a box: those along each dimension, and the corners between them. */
        around *= 1 + n.neighbours;
        /* Work is proportional to pixels, so shares multiply. */
        cost.share *= n.all > 0 ? n.most / n.all : 1;
    }
    cost.messages = around - 1;
    /* 4 bytes an element; twice, for what comes in and what goes out, or for keys and values. */
    cost.forward = cost.backward = 2 * (read - own) / p->pixels * (double)p->batch * (double)leaf->x.dim[1] * 4;
    return cost;
}

/* Tokens of rows: as a ring or by heads, whichever sends less (wf_attention_choose). */
static wf_attention_cost token_cost(const wf_place *p, const wf_planner_leaf *leaf)
{
    /* Bytes of a rank's tokens. */
    const double ranks = p->pixels, each = (double)p->batch * (double)(leaf->x.dim[1] * leaf->x.dim[2]) / ranks * 4;
    /* By heads: four exchanges of all but the own part. The ring: keys and values go round, and backward their
     * gradients with them. */
    const double by_heads = 4 * each * (ranks - 1) / ranks, there = 2 * each * (ranks - 1);
    const double back = there + 2 * each * ranks;
    const bool ring = (double)leaf->info.heads < ranks || there + back < 2 * by_heads;
    return (wf_attention_cost){.share = 1 / ranks,
                               .forward = ring ? there : by_heads,
                               .backward = ring ? back : by_heads,
                               .messages = ring ? ranks - 1 : 2 * (ranks - 1)};
}

wf_attention_cost wf_planner_attention_of(const wf_place *p, const wf_planner_leaf *leaf)
{
    const int rank = leaf->info.kind == WF_PART_ATTENTION ? 3 : leaf->info.nd + 2;
    /* A shape that the parallel layer would not cut that way: its work is shared, and nothing else is known. */
    if (p->pixels == 1 || leaf->x.rank != rank)
        return (wf_attention_cost){.share = 1.0 / p->pixels};
    return rank == 3 && leaf->info.nd == 0 ? token_cost(p, leaf) : image_cost(p, leaf);
}
