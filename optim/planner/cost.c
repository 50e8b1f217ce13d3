/* The cost of a unit in a form: its leaves' measured times, scaled by measured ratios of a part to the whole, and the
 * messages that its form needs, by alpha and beta. */
#include "optim/planner/planner_impl.h"

#include <stdlib.h>

#define SMALL_BYTES 32768.0 /* comm/comm.h: of all ranks together, that are summed in fewer steps */

/* How a leaf is split in a form. */
typedef struct leaf_split {
    bool pixels, channels; /* of its input, that are sharded */
    bool products;         /* along channels */
    int64_t in, out;       /* parts of its input and output channels */
} leaf_split;

/* --- messages -------------------------------------------------------------------------------------------------------
 */

/* Returns true if `span` neighbouring ranks are on more than one node. */
bool wf_place_between(const wf_place *p, int span)
{
    return span > p->ranks / p->nodes;
}

static double message_s(const wf_place *p, int span, double messages, double bytes)
{
    const wf_planner_link *link = &p->meter->exchange[wf_place_between(p, span)];
    return messages * link->alpha_s + bytes * link->beta_s;
}

typedef enum direction { FORWARD, BACKWARD } direction;

static void add_message(const wf_place *p, int span, double messages, double bytes, direction when, wf_unit_cost *c)
{
    const double seconds = message_s(p, span, messages, bytes);
    c->message_s += seconds;
    c->bytes += bytes;
    c->again_s += when == FORWARD ? seconds : 0;
    c->again_bytes += when == FORWARD ? bytes : 0;
}

static double steps_of(int ranks)
{
    double steps = 0;
    for (int n = 1; n < ranks; n *= 2)
        steps++;
    return steps;
}

/* Prices a call for each byte of a bucket, whose shards are equal. */
static wf_status price_call(const wf_place *p, const wf_agreed *agreed, wf_operation operation, double *seconds,
                            double *bytes)
{
    const int members = agreed->ranks, smallest = agreed->smallest;
    const int64_t shard = (WF_PLANNER_SUM + members - 1) / members, count = shard * members;
    const bool whole = operation == WF_CALL_SUM;
    int64_t *part = wf_calloc(p->m->ctx, (size_t)members + 1, sizeof *part);
    wf_price price;
    if (!part)
        return wf_error_code();
    for (int r = 0; r <= members; r++)
        part[r] = r * shard;
    part[1] = whole ? count : part[1];
    const wf_call call = {.operation = operation,
                          .reducer = smallest > 1 && smallest < members ? "two_dimensional" : "hierarchical",
                          .dtype = WF_F32,
                          .count = count,
                          .part = part,
                          .parts = whole};
    const wf_status status = wf_call_price(p->m->ctx, agreed, &call, &p->meter->links, &price);
    free(part);
    *seconds = price.seconds / (4.0 * (double)count);
    *bytes = (double)price.bytes / members / (4.0 * (double)count);
    return status;
}

/* In a node gamma is fitted to the passes of a whole sum over memory, of which a sum of shards and a gather have about
 * half each (measured: 0.64 and 0.43). */
static wf_status price_calls(const wf_place *p, const wf_agreed *agreed, wf_sum_cost *cost)
{
    double sums, gathers;
    WF_TRY(price_call(p, agreed, WF_CALL_SUM, &cost->sum_s, &cost->bytes));
    cost->shards_s = cost->gather_s = cost->sum_s / 2;
    cost->sharded_bytes = cost->bytes;
    if (agreed->nodes == 1)
        return WF_OK;
    WF_TRY(price_call(p, agreed, WF_CALL_SUM_SHARDS, &cost->shards_s, &sums));
    WF_TRY(price_call(p, agreed, WF_CALL_GATHER_SHARDS, &cost->gather_s, &gathers));
    cost->sharded_bytes = sums + gathers;
    return WF_OK;
}

wf_status wf_place_sum(const wf_place *p, int members, int stride, wf_sum_cost *cost)
{
    const int each = p->ranks / p->nodes, together = stride < each ? each / stride : 1;
    const int node_size = together > members ? members : members % together == 0 ? together : 1;
    wf_agreed agreed;
    *cost = (wf_sum_cost){0};
    if (members < 2)
        return WF_OK;
    int32_t *node = wf_calloc(p->m->ctx, (size_t)members, sizeof *node);
    if (!node)
        return wf_error_code();
    for (int r = 0; r < members; r++)
        node[r] = r / node_size;
    wf_status status = wf_agreed_make(p->m->ctx, members, node, &agreed);
    free(node);
    WF_TRY(status);
    agreed.shared = true;
    status = price_calls(p, &agreed, cost);
    wf_agreed_clear(&agreed);
    return status;
}

/* --- halos ----------------------------------------------------------------------------------------------------------
 */

static wf_range shard_range(int64_t n, int ranks, int r)
{
    wf_range range;
    wf_block(n, ranks, r, &range.lo, &range.hi);
    return range;
}

static double common(wf_range a, wf_range b)
{
    const int64_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi;
    return lo < hi ? (double)(hi - lo) : 0;
}

/* Elements along one dimension, summed over all places: needed of one tensor, and needed and owned by the same
 * place. */
typedef struct needs {
    double need, own, messages;
} needs;

/* What outputs y read of x along one dimension. Beyond a circular edge it is the other end, which another rank has if
 * there are several; beyond other edges it is made of what is there. */
static wf_range read_by(const wf_part_info *info, int d, int ranks, wf_range y, int64_t in)
{
    wf_window w = info->window[d];
    const int64_t pad = w.pad_hi > 0 ? w.pad_hi : 0;
    const int64_t lo = info->round_lo[d] && ranks > 1 ? in : 0, hi = info->round_hi[d] && ranks > 1 ? in : 0;
    const int64_t last = in + lo + (!info->transposed && pad < hi ? pad : hi);
    w.pad_lo += info->transposed ? w.stride * lo : -lo;
    const wf_range r = info->transposed ? wf_window_readers(w, y, last) : wf_window_reads(w, y, last);
    return r.lo < r.hi ? (wf_range){r.lo - lo, r.hi - lo} : r;
}

/* Along one dimension of x, for forward; or of y, for the gradients that are needed for the own inputs. */
static needs needs_of(const wf_part_info *info, int d, int ranks, int64_t in, int64_t out, bool gradients)
{
    needs n = {0};
    const wf_window w = info->window[d];
    for (int r = 0; r < ranks; r++) {
        const wf_range x = shard_range(in, ranks, r);
        wf_range y =
            info->transposed ? shard_range(out, ranks, r) : wf_window_anchored(w, x, out, r == 0, r + 1 == ranks);
        wf_range need = read_by(info, d, ranks, y, in), own = x;
        if (gradients) {
            need = info->transposed ? wf_window_reads(w, x, out) : wf_window_readers(w, x, out);
            own = y;
        }
        n.need += (double)(need.hi - need.lo);
        n.own += common(need, own);
        n.messages += (need.lo < own.lo) + (need.hi > own.hi);
    }
    n.messages /= ranks;
    return n;
}

/* Elements that a rank sends on average, for each channel and sample. */
static void halo_of(const wf_place *p, const wf_planner_leaf *leaf, bool gradients, double *elements, double *messages)
{
    const int nd = leaf->info.nd, ranks[3] = {p->mesh.depth, p->mesh.height, p->mesh.width};
    double need = 1, own = 1, around = 1;
    for (int d = 0; d < nd; d++) {
        const needs n = needs_of(&leaf->info, d, ranks[3 - nd + d], leaf->x.dim[2 + d], leaf->y.dim[2 + d], gradients);
        need *= n.need;
        own *= n.own;
        around *= 1 + n.messages;
    }
    *elements = (need - own) / p->pixels;
    *messages = around - 1;
}

/* Adds the halos of a convolution or of pooling on sharded images. A rank computes with all channels, or with its part
 * of those of the input or of the output. */
static void add_halos(const wf_place *p, const wf_planner_leaf *leaf, const leaf_split *split, bool first,
                      wf_unit_cost *c)
{
    const double size = (double)wf_dtype_size(WF_F32) * (double)p->batch;
    const bool conv = leaf->info.kind == WF_PART_CONV;
    double there, back, dy, messages, more;
    halo_of(p, leaf, false, &there, &messages);
    there *= size * (double)leaf->x.dim[1] / (double)(conv ? split->in : split->out);
    if (there > 0)
        add_message(p, p->pixels, messages, there, FORWARD, c);
    if (first)
        return;
    halo_of(p, leaf, true, &dy, &more);
    dy *= size * (double)leaf->y.dim[1] / (double)split->out;
    /* A convolution reads gradients of the output, or adds up those of the input, whichever is less; pooling adds,
     * and so does a boundary. */
    back = conv && !leaf->info.folds && dy < there ? dy : there;
    if (back > 0)
        add_message(p, p->pixels, messages, back, BACKWARD, c);
}

/* --- one leaf -------------------------------------------------------------------------------------------------------
 */

static double bytes_of(const wf_place *p, wf_shape s)
{
    return (double)wf_shape_count(s) / (double)s.dim[0] * (double)p->batch * (double)wf_dtype_size(WF_F32);
}

/* A tensor of which each of `ranks` gets what the others have. */
static void add_gather(const wf_place *p, int ranks, int span, double bytes, direction when, wf_unit_cost *c)
{
    if (ranks > 1)
        add_message(p, span, ranks - 1, bytes * (ranks - 1) / ranks, when, c);
}

/* A tensor that all of `ranks` add up (comm/comm.h): in parts, of which each gets all; or a small one in few steps. In
 * a node it goes through memory that they share: it sends nothing, and takes about the time of messages. */
static void add_sum(const wf_place *p, int ranks, int span, double bytes, direction when, wf_unit_cost *c)
{
    const double sent = c->bytes, again = c->again_bytes;
    if (ranks * bytes > SMALL_BYTES) {
        add_gather(p, ranks, span, bytes, when, c);
        add_gather(p, ranks, span, bytes, when, c);
    } else if (ranks > 1) {
        add_message(p, span, steps_of(ranks), bytes * (ranks - 1), when, c);
    }
    if (!wf_place_between(p, span)) {
        c->bytes = sent;
        c->again_bytes = again;
    }
}

/* Adds the cost of an input whose sharding differs from what the leaf needs: gathered in one direction, and divided in
 * the other. */
static void change_state(const wf_place *p, const wf_planner_leaf *leaf, unsigned wanted, bool first, wf_unit_cost *c)
{
    const bool cut = c->state & WF_PARALLEL_SPATIAL, sharded = c->state & WF_PARALLEL_CHANNEL;
    const bool joins = cut && !(wanted & WF_PARALLEL_SPATIAL), gathers = sharded && !(wanted & WF_PARALLEL_CHANNEL);
    const int inner = p->channels * p->pixels;
    const double bytes = bytes_of(p, leaf->x);
    const double here =
        (wanted & WF_PARALLEL_SPATIAL ? 1.0 / p->pixels : 1) / (wanted & WF_PARALLEL_CHANNEL ? p->channels : 1);
    if (joins || gathers || (wanted & WF_PARALLEL_SPATIAL && !cut && !first))
        c->kept += bytes * here; /* the leaf keeps what was moved; the one before, what it made */
    if (joins && gathers)
        add_gather(p, inner, inner, bytes, FORWARD, c);
    else if (gathers)
        add_gather(p, p->channels, inner, cut ? bytes / p->pixels : bytes, FORWARD, c);
    else if (joins)
        add_gather(p, p->pixels, p->pixels, sharded ? bytes / p->channels : bytes, FORWARD, c);
    /* A first layer passes no gradient back, and its input is sharded where it is made. */
    if (wanted & WF_PARALLEL_SPATIAL && !cut && !first)
        add_gather(p, p->pixels, p->pixels, sharded && !gathers ? bytes / p->channels : bytes, BACKWARD, c);
    c->state = (int)wanted;
}

/* The ways of layers/channel.h: true for the channel form. */
static bool takes_channel_form(const wf_planner_leaf *leaf, int ranks)
{
    if (leaf->info.groups > 1 || leaf->info.form == WF_FORM_FILTER)
        return leaf->info.groups > 1 && leaf->info.transposed;
    if (leaf->info.form != WF_FORM_CHANNEL && (leaf->info.in < ranks || leaf->info.out < ranks))
        return leaf->info.in >= ranks;
    const double x = (double)wf_shape_count(leaf->x), y = (double)wf_shape_count(leaf->y);
    return leaf->info.form == WF_FORM_CHANNEL || y < x;
}

static void add_channel_moves(const wf_place *p, const wf_planner_leaf *leaf, bool by_input, bool first,
                              wf_unit_cost *c)
{
    const bool cut = c->state & WF_PARALLEL_SPATIAL, sharded = c->state & WF_PARALLEL_CHANNEL;
    const double part = cut ? 1.0 / p->pixels : 1, x = bytes_of(p, leaf->x) * part, y = bytes_of(p, leaf->y) * part;
    const int n = p->channels, span = p->channels * p->pixels;
    const bool replicate = leaf->info.replicate;
    if (by_input && replicate) {
        add_sum(p, n, span, y, FORWARD, c);
    } else if (by_input) {
        add_gather(p, n, span, y, FORWARD, c); /* the sum, scattered */
        add_gather(p, n, span, y, BACKWARD, c);
    } else {
        if (sharded) {
            add_gather(p, n, span, x, FORWARD, c);
            c->kept += x;
        }
        if (replicate)
            add_gather(p, n, span, y, FORWARD, c);
    }
    if (!first && (by_input ? !sharded : sharded))
        add_gather(p, n, span, x, BACKWARD, c);
    else if (!first && !by_input)
        add_sum(p, n, span, x, BACKWARD, c);
    c->state = (c->state & ~WF_PARALLEL_CHANNEL) | (replicate ? 0 : WF_PARALLEL_CHANNEL);
}

/* True for a leaf whose parts are measured; of others a part takes its share of the whole. */
static bool has_parts(const wf_planner_leaf *leaf)
{
    return leaf->info.kind == WF_PART_CONV || leaf->info.kind == WF_PART_LINEAR || leaf->info.kind == WF_PART_NORM;
}

/* The measured time of the parallel form inside a node: a convolution over pixels with its exchange of halos; a product
 * over channels with its gathers; a function or pooling of sharded channels, whose runs in memory are short. */
static wf_status split_of(const wf_place *p, const wf_planner_leaf *leaf, const leaf_split *s, wf_shape part,
                          wf_planner_part *own)
{
    const wf_axis axis = p->mesh.height > 1 ? WF_AXIS_HEIGHT : p->mesh.width > 1 ? WF_AXIS_WIDTH : WF_AXIS_DEPTH;
    const wf_part_kind kind = leaf->info.kind;
    *own = (wf_planner_part){0};
    if (!p->meter->split || !leaf->layer || (s->pixels && (s->channels || s->products)))
        return WF_OK;
    if (s->pixels)
        return kind != WF_PART_CONV || leaf->info.nd != 2 || wf_place_between(p, p->pixels)
                   ? WF_OK
                   : p->meter->split(p->meter->own, leaf, part, axis, p->pixels, own);
    if (wf_place_between(p, p->channels) || !(s->products || (s->channels && !has_parts(leaf))))
        return WF_OK;
    wf_shape x = leaf->x;
    x.dim[0] = p->batch;
    if (s->channels && x.dim[1] % p->channels != 0)
        return WF_OK;
    x.dim[1] /= s->channels ? p->channels : 1;
    return p->meter->split(p->meter->own, leaf, x, WF_AXIS_CHANNEL, p->channels, own);
}

/* What a part takes of the whole layer's time; *timed: its messages come on top. Never less than its share: a part that
 * is measured by itself may lie in a cache that is too small for the whole, and in a step both come from memory.
 * *workspace is 0 where no part was measured. */
static wf_status ratio_of(const wf_place *p, const wf_planner_leaf *leaf, const leaf_split *s, double *ratio,
                          bool *timed, double *workspace)
{
    const int ranks[3] = {p->mesh.depth, p->mesh.height, p->mesh.width};
    const bool cut = s->pixels, measured = cut || s->products || s->channels;
    int64_t in = s->in, out = s->out;
    wf_shape whole = leaf->x, part;
    wf_planner_part all, own = {0};
    *ratio = 1;
    *timed = true;
    *workspace = 0;
    whole.dim[0] = p->batch;
    part = whole;
    for (int d = 2; d < part.rank && cut; d++) {
        const int n = ranks[3 - (part.rank - 2) + d - 2];
        const wf_window *w = leaf->info.kind == WF_PART_CONV ? &leaf->info.window[d - 2] : NULL;
        part.dim[d] = (part.dim[d] + n - 1) / n;
        /* With its halo it has as much as a window needs. */
        while (w && !leaf->info.transposed && part.dim[d] < whole.dim[d] &&
               wf_window_outputs(*w, part.dim[d], false) < 1)
            part.dim[d]++;
    }
    if (measured)
        WF_TRY(split_of(p, leaf, s, part, &own));
    const double share = (cut ? 1.0 / p->pixels : 1) / (double)(in * out);
    if (own.seconds <= 0 && !has_parts(leaf)) {
        *ratio = cut && wf_planner_attends(leaf) ? wf_planner_attention_of(p, leaf).share / (double)(in * out) : share;
        return WF_OK;
    }
    if (leaf->info.kind == WF_PART_NORM)
        in = out;
    part.dim[1] = (part.dim[1] + in - 1) / in;
    if (!cut && in == 1 && out == 1)
        return WF_OK;
    WF_TRY(p->meter->part(p->meter->own, leaf, whole, 1, 1, &all));
    *timed = own.seconds <= 0;
    if (*timed)
        WF_TRY(p->meter->part(p->meter->own, leaf, part, in, out, &own));
    *ratio = all.seconds > 0 ? own.seconds / all.seconds : 1;
    *workspace = own.workspace;
    *ratio = *ratio < share ? share : *ratio;
    return WF_OK;
}

/* True for a leaf that asks for its layout; others take what comes. */
static bool asks(const wf_planner_leaf *leaf)
{
    return leaf->info.kind != WF_PART_OTHER && leaf->info.kind != WF_PART_ATTENTION;
}

/* Forward, all ranks get mean, square and head of each other; backward, two short sums in f64 (layers/sync_norm.h). */
static void add_norm(const wf_place *p, const wf_planner_leaf *leaf, wf_unit_cost *c)
{
    const int parts = c->state & WF_PARALLEL_CHANNEL ? p->channels : 1;
    const double sums = 16.0 * (double)leaf->info.in / parts;
    add_message(p, p->pixels, steps_of(p->pixels), (sums + 48) * (p->pixels - 1), FORWARD, c);
    add_sum(p, p->pixels, p->pixels, sums, BACKWARD, c);
}

/* Every rank gets the whole output: a sum of what each has of a mean; of a maximum, the whole input first. */
static void add_global_pool(const wf_place *p, const wf_planner_leaf *leaf, wf_unit_cost *c)
{
    const int parts = c->state & WF_PARALLEL_CHANNEL ? p->channels : 1;
    if (leaf->info.kind == WF_PART_GLOBAL_MEAN)
        add_sum(p, p->pixels, p->pixels, bytes_of(p, leaf->y) / parts, FORWARD, c);
    else
        add_gather(p, p->pixels, p->pixels, bytes_of(p, leaf->x) / parts, FORWARD, c);
    c->state &= ~WF_PARALLEL_SPATIAL;
}

/* Windows come and their outputs go back, in each direction. */
static void add_attention(const wf_place *p, const wf_planner_leaf *leaf, wf_unit_cost *c)
{
    const wf_attention_cost a = wf_planner_attention_of(p, leaf);
    const double messages = a.messages * (leaf->info.kind == WF_PART_WINDOWS ? 2 : 1);
    if (a.forward > 0)
        add_message(p, p->pixels, messages, a.forward, FORWARD, c);
    if (a.backward > 0)
        add_message(p, p->pixels, messages, a.backward, BACKWARD, c);
}

/* Bytes of the gradients of output and input, with the channels that a rank computes with. */
static double gradient_bytes(const wf_place *p, const wf_planner_leaf *leaf, const leaf_split *split)
{
    const double pixels = split->pixels ? p->pixels : 1;
    const double channels = split->channels && !split->products ? p->channels : 1;
    const double x = bytes_of(p, leaf->x) / (double)split->in, y = bytes_of(p, leaf->y) / (double)split->out;
    return (x + y) / (pixels * channels);
}

static wf_status add_leaf(const wf_place *p, int i, unsigned form, wf_unit_cost *c)
{
    const wf_planner_leaf *leaf = &p->m->leaf[i];
    const wf_part_kind kind = leaf->info.kind;
    const bool first = i == 0, flattens = kind == WF_PART_OTHER && leaf->y.rank < leaf->x.rank && leaf->y.rank == 2;
    const bool multiplies = kind == WF_PART_CONV || kind == WF_PART_LINEAR;
    leaf_split split = {.in = 1, .out = 1};
    if (kind == WF_PART_LINEAR || leaf->x.rank < 3)
        form &= ~(unsigned)WF_PARALLEL_SPATIAL;
    if (asks(leaf)) {
        const unsigned channel =
            multiplies ? form & (unsigned)c->state & WF_PARALLEL_CHANNEL : (unsigned)c->state & WF_PARALLEL_CHANNEL;
        change_state(p, leaf, (form & WF_PARALLEL_SPATIAL) | channel, first, c);
    } else if (flattens) {
        change_state(p, leaf, 0, first, c);
    }
    const bool cut = c->state & WF_PARALLEL_SPATIAL, by_channels = multiplies && form & WF_PARALLEL_CHANNEL;
    const bool by_input = by_channels && takes_channel_form(leaf, p->channels);
    split.pixels = cut;
    split.channels = c->state & WF_PARALLEL_CHANNEL;
    split.products = by_channels;
    if (by_channels) {
        *(by_input ? &split.in : &split.out) = p->channels;
        c->possible = c->possible && (by_input ? leaf->info.in : leaf->info.out) >= p->channels;
        if (!c->possible)
            return WF_OK;
    } else if (!multiplies && split.channels) {
        split.out = p->channels;
    }
    if (cut && kind == WF_PART_NORM)
        add_norm(p, leaf, c);
    double ratio, workspace;
    bool timed;
    WF_TRY(ratio_of(p, leaf, &split, &ratio, &timed, &workspace));
    const double before_s = c->message_s, before_again_s = c->again_s;
    if (by_channels)
        add_channel_moves(p, leaf, by_input, first, c);
    if (cut && wf_planner_attends(leaf))
        add_attention(p, leaf, c);
    else if (cut && leaf->info.nd > 0)
        add_halos(p, leaf, &split, first, c);
    if (cut && (kind == WF_PART_GLOBAL_MEAN || kind == WF_PART_GLOBAL_MAX))
        add_global_pool(p, leaf, c);
    /* The bytes are counted, and where the measured time does not contain them they take time. */
    if (!timed) {
        c->message_s = before_s;
        c->again_s = before_again_s;
    }
    c->forward_s += ratio * p->times.leaf_forward_s[i];
    c->backward_s += ratio * p->times.leaf_backward_s[i];
    const double part = (cut ? 1.0 / p->pixels : 1) / (c->state & WF_PARALLEL_CHANNEL ? p->channels : 1);
    c->kept += leaf->share * p->times.kept * part;
    workspace = c->kept + (workspace > 0 ? workspace : gradient_bytes(p, leaf, &split));
    c->backward = workspace > c->backward ? workspace : c->backward;
    c->output = bytes_of(p, leaf->y) * part;
    c->params[cut && (kind == WF_PART_CONV || kind == WF_PART_NORM)] += leaf->params / (double)(split.in * split.out);
    return WF_OK;
}

/* A place may have no pixels at all: the others then have more than their share, as rounding up says. */
wf_status wf_place_cost(const wf_place *p, const wf_planner_unit *unit, unsigned form, int state, wf_unit_cost *c)
{
    *c = (wf_unit_cost){.possible = true, .form = (int)form, .state = state};
    for (int i = unit->first; i < unit->first + unit->leaves && c->possible; i++)
        WF_TRY(add_leaf(p, i, form, c));
    return WF_OK;
}

/* --- a mesh ---------------------------------------------------------------------------------------------------------
 */

wf_status wf_place_open(const wf_planner_model *m, const wf_planner_meter *meter, const wf_planner_opts *o,
                        wf_mesh_opts mesh, int64_t batch, wf_place *p)
{
    const int inner = mesh.channel * mesh.depth * mesh.height * mesh.width;
    *p = (wf_place){.m = m, .meter = meter, .ranks = o->ranks, .nodes = o->nodes, .mesh = mesh, .batch = batch};
    p->pixels = mesh.depth * mesh.height * mesh.width;
    p->channels = mesh.channel;
    p->times.leaf_forward_s = wf_calloc(m->ctx, 2 * (size_t)m->n_leaves + 1, sizeof(double));
    if (!p->times.leaf_forward_s)
        return wf_error_code();
    p->times.leaf_backward_s = p->times.leaf_forward_s + m->n_leaves;
    p->times.chunk = mesh.stage > 1 && batch < o->batch / mesh.data;
    wf_status status = meter->step(meter->own, m, batch, &p->times);
    if (status == WF_OK)
        status = wf_place_sum(p, mesh.data, inner * mesh.stage, &p->sum[0]);
    if (status == WF_OK && p->pixels > 1)
        status = wf_place_sum(p, mesh.data * p->pixels, mesh.data > 1 ? mesh.channel : 1, &p->sum[1]);
    p->overlap = (wf_planner_overlap){1, 1};
    if (status == WF_OK && mesh.stage == 1 && wf_place_between(p, o->ranks) && meter->overlap)
        status = meter->overlap(meter->own, m, batch, &p->overlap);
    if (status != WF_OK)
        wf_place_close(p);
    return status;
}

void wf_place_close(wf_place *p)
{
    free(p->times.leaf_forward_s);
    p->times.leaf_forward_s = NULL;
}
