/* Deep halos: several convolutions on one exchange. Each rank computes everything on which its own outputs depend,
 * so gradients of parameters are sums over its own outputs, and the input's halo gradient is returned once. */
#include "layers/parallel/parallel_impl.h"
#include "layers/spatial.h"

#include <stdio.h>

typedef struct spatial_chain {
    const wf_mesh *mesh;
    int depth;
    wf_chain_costs costs;
} spatial_chain;

/* The chain on one input: cuts[i] is the sharding of the input of layer i, cuts[count] that of the output. */
typedef struct chain_plan {
    const wf_mesh *mesh;
    wf_dtype dtype;
    int count;
    wf_index_map *index_map;
    wf_sharding *sharding;
    double *work;
    double *least; /* least[i]: what layers from i on cost at least, where the depth is chosen */
    int *next;     /* next[i]: where the group that starts at i ends */
} chain_plan;

/* State of the node, for backward. */
typedef struct deep_halo {
    wf_halo halo;
    wf_box own;
} deep_halo;

/* The chain's layers have added up the gradient of everything that this rank read; the halo's part of it goes home
 * here, once. */
static wf_status backward(wf_node *node)
{
    const deep_halo *deep = node->state;
    wf_tensor *whole = wf_tensor_alias(wf_node_dy(node));
    wf_tensor *dx = wf_halo_input_return(whole, node->in[0]->value, deep->own, &deep->halo);
    return wf_node_give(node, 0, dx, false);
}

static const wf_op deep_halo_op = {.name = "deep_halo", .backward = backward};

static wf_var *gather(wf_var *x, wf_box own_box, const wf_halo *halo)
{
    const deep_halo deep = {*halo, own_box};
    wf_layout layout = x->value->layout;
    /* One rank, or layers with kernels of one pixel. */
    if (!wf_halo_needed(halo))
        return x;
    wf_tensor *own = wf_dense_value(x), *whole = own ? wf_halo_input_whole(own, own_box, halo) : NULL;
    wf_tensor_free(own);
    if (!whole)
        return NULL;
    for (int d = 2; d < layout.box.rank; d++) {
        layout.box.lo[d] = halo->need.lo[d];
        layout.box.hi[d] = halo->need.hi[d];
    }
    whole->layout = layout;
    return wf_tape_record(
        x->tape, &(wf_node_spec){.op = &deep_halo_op, .n_in = 1, .in = &x, .state = &deep, .state_bytes = sizeof deep},
        whole);
}

/* Inputs of a chain that go on beyond the edges and arrive with its halo do so in circles. */
static const wf_boundary ring = {.edge = WF_EDGE_CIRCULAR};

/* Composes the maps of layers [first, last): what their last outputs read of the first inputs. */
static wf_index_map link_of(const chain_plan *p, int first, int last)
{
    wf_index_map index_map = {
        .kind = WF_INDEX_MAP_CHAIN, .nd = p->index_map[first].nd, .link = p->index_map + first, .links = last - first};
    for (int d = 0; d < index_map.nd; d++) {
        index_map.in[d] = p->index_map[first].in[d];
        index_map.out[d] = p->index_map[last - 1].out[d];
        index_map.boundary = p->index_map[first].round[d] ? &ring : index_map.boundary;
    }
    return index_map;
}

/* Groups. */

static bool is_circular(const wf_index_map *link, int d)
{
    return link->boundary && wf_boundary_edge(link->boundary, 2 + d, false) == WF_EDGE_CIRCULAR &&
           wf_boundary_edge(link->boundary, 2 + d, true) == WF_EDGE_CIRCULAR;
}

/* The dimension goes on beyond an edge by `edge`. */
static bool goes_on(const wf_index_map *link, int d, wf_edge edge)
{
    return link->boundary && ((link->lo[d] > 0 && wf_boundary_edge(link->boundary, 2 + d, false) == edge) ||
                              (link->hi[d] > 0 && wf_boundary_edge(link->boundary, 2 + d, true) == edge));
}

/* Outputs beyond the edge are those of the other end, as inputs are: the stride divides the length, and noise is not
 * drawn again. `last`: there are none. */
static bool goes_round(const wf_layer *layer, const wf_index_map *link, int d, bool last)
{
    const wf_window w = link->window[d];
    const bool back = link->kind == WF_INDEX_MAP_WINDOW_BACK;
    const wf_conv_state *s = layer->state;
    if (!is_circular(link, d) && (w.kernel > 1 || w.pad_lo != 0 || w.pad_hi != 0))
        return false;
    return last || (s->epilogue.noise == 0 &&
                    (back ? link->out[d] == w.stride * link->in[d] : link->in[d] == w.stride * link->out[d]));
}

/* One exchange can serve layers [first, last) along a dimension. Circular ones get all elements beyond their edges with
 * the halo of the first layer, at most once round. Reflected, symmetric and repeated elements are made again of each
 * layer's own input. A pole's are columns of other ranks. */
static bool joins_along(const chain_plan *p, wf_layer *const *layers, int first, int last, int d)
{
    bool round = false;
    for (int i = first; i < last; i++) {
        if (goes_on(&p->index_map[i], d, WF_EDGE_POLE))
            return false;
        round = round || goes_on(&p->index_map[i], d, WF_EDGE_CIRCULAR);
    }
    for (int i = first; i < last; i++) {
        p->index_map[i].round[d] = round;
        if (round && !goes_round(layers[i], &p->index_map[i], d, i + 1 == last))
            return false;
    }
    if (!round)
        return true;
    const wf_index_map all = link_of(p, first, last);
    const wf_range read = wf_index_map_reads(&all, d, (wf_range){0, all.out[d]});
    return read.lo >= -all.in[d] && read.hi <= 2 * all.in[d];
}

/* Settles how the layers go on beyond their edges in this group; false: they are none. Marks in the plan of each layer
 * how it continues, also if the answer is false: the caller tries another group or runs the layer alone. */
static bool join(const chain_plan *p, wf_layer *const *layers, int first, int last)
{
    bool joins = true;
    for (int i = first; i < last; i++)
        for (int d = 0; d < p->index_map[i].nd; d++)
            p->index_map[i].round[d] = false;
    for (int d = 0; last > first + 1 && d < p->index_map[first].nd; d++)
        joins = joins && joins_along(p, layers, first, last, d);
    return joins;
}

/* Layers [first, last) on one exchange. */
static wf_var *run_group(wf_layer *chain, const chain_plan *p, int first, int last, wf_var *x)
{
    const bool joins = join(p, chain->children, first, last);
    const wf_index_map all = link_of(p, first, last);
    const wf_layout base = x->value->layout;
    wf_halo halo;
    WF_CHECK_NULL(joins, WF_ERR_STATE, "layers %d to %d of a chain on one exchange", first, last - 1);
    WF_TRY_NULL(wf_halo_make(&p->sharding[first], &all, &p->sharding[last], NULL, p->dtype, &halo));
    wf_box has = wf_halo_needed(&halo) ? halo.need : p->sharding[first].box;
    wf_var *y = gather(x, p->sharding[first].box, &halo);
    for (int i = first; i < last && y; i++) {
        /* What the layers behind this one read of its output, for this rank's outputs of the last layer: more than its
         * own share, by the halo of those layers. */
        const wf_index_map rest = i + 1 < last ? link_of(p, i + 1, last) : all;
        wf_spatial_link step = {.index_map = p->index_map[i], .x_box = has, .y_box = p->sharding[i + 1].box};
        if (i + 1 < last)
            step.y_box = wf_index_map_box(&rest, p->sharding[last].box, p->sharding[i + 1].box);
        wf_sharding sharding = p->sharding[i + 1];
        sharding.box = step.y_box;
        step.layout = wf_sharding_layout(&sharding, &base);
        y = wf_spatial_conv_apply(chain->children[i], y, &step);
        has = step.y_box;
    }
    return y;
}

/* Cost. */

/* The number of outputs of layer i, for each sample, that all ranks together must compute to get their outputs of layer
 * last - 1. Outputs that several ranks need are computed by each of them: this is what a deeper halo costs. */
static double outputs_of(const chain_plan *p, int i, int last)
{
    const wf_index_map rest = link_of(p, i + 1 < last ? i + 1 : i, last);
    const wf_sharding *want = &p->sharding[last];
    double n = (double)p->sharding[i + 1].channels;
    for (int d = 0; d < rest.nd; d++) {
        /* Along a dimension that no axis cuts there is one place. */
        int64_t along = 0;
        const int places = want->axis[d] < 0 ? 1 : wf_mesh_size(p->mesh, (wf_axis)want->axis[d]);
        for (int r = 0; r < places; r++) {
            wf_range out = {0, want->length[d]};
            if (want->axis[d] >= 0)
                out = (wf_range){want->bounds[d][r], want->bounds[d][r + 1]};
            if (i + 1 < last)
                out = wf_index_map_reads(&rest, d, out);
            along += out.hi - out.lo;
        }
        n *= (double)along;
    }
    return n;
}

/* Estimates the seconds of layers [first, last) with one exchange before them. All ranks get the same number, since it
 * sums over all of them. */
static wf_status cost_of(const chain_plan *p, const wf_chain_costs *costs, int first, int last, double *seconds)
{
    const wf_index_map all = link_of(p, first, last);
    double work = 0, volume;
    int places = 1;
    /* Bytes and work of all ranks, divided below by the number of ranks that share them. */
    WF_TRY(wf_halo_volume(&p->sharding[first], &all, &p->sharding[last], &volume));
    for (int d = 0; d < all.nd; d++)
        if (p->sharding[first].axis[d] >= 0)
            places *= wf_mesh_size(p->mesh, (wf_axis)p->sharding[first].axis[d]);
    for (int i = first; i < last; i++)
        work += outputs_of(p, i, last) * p->work[i];
    /* Divided by the number of places: all ranks compute and send at the same time. A message costs its latency once.
     */
    *seconds = (costs->work * work + costs->byte * volume * (double)wf_dtype_size(p->dtype)) / places +
               (volume > 0 ? costs->message : 0);
    return WF_OK;
}

/* Dynamic programming from the last layer backwards: the cheapest division of the remaining layers into groups. */
static wf_status choose_groups(const chain_plan *p, wf_layer *const *layers, const wf_chain_costs *costs)
{
    p->least[p->count] = 0;
    for (int first = p->count - 1; first >= 0; first--)
        for (int last = first + 1; last <= p->count; last++) {
            double seconds = 0;
            if (!join(p, layers, first, last))
                continue;
            WF_TRY(cost_of(p, costs, first, last, &seconds));
            seconds += p->least[last];
            /* One layer is always a group, whatever it costs; ties keep the shorter group. */
            if (last > first + 1 && seconds >= p->least[first])
                continue;
            p->least[first] = seconds;
            p->next[first] = last;
        }
    return WF_OK;
}

static wf_status make_groups(spatial_chain *s, wf_layer *const *layers, const chain_plan *p)
{
    /* The given depth, shortened to where one exchange serves. */
    for (int i = 0; i < p->count; i++) {
        p->next[i] = i + s->depth < p->count ? i + s->depth : p->count;
        while (p->next[i] > i + 1 && !join(p, layers, i, p->next[i]))
            p->next[i]--;
    }
    if (s->depth > 0)
        return WF_OK;
    WF_TRY(wf_chain_costs_complete(s->mesh, &s->costs));
    return choose_groups(p, layers, &s->costs);
}

/* Forward. */

/* Plans all layers before any runs: a layer that does not take its input fails before something was sent. */
static wf_status plan_chain(const wf_layer *chain, const wf_var *x, chain_plan *p)
{
    wf_shape shape = x->value->layout.global, y;
    WF_TRY(wf_sharding_of(chain, "spatial_chain", p->mesh, x, WF_SHARDING_SUMS_WHOLE, &p->sharding[0]));
    for (int i = 0; i < p->count; i++) {
        const wf_layer *layer = chain->children[i];
        WF_TRY(wf_spatial_conv_map(layer, x, shape, &p->index_map[i], &p->work[i], &y));
        WF_TRY(wf_sharding_outputs(&p->sharding[i], &p->index_map[i], &p->sharding[i + 1]));
        p->sharding[i + 1].channels = p->sharding[i + 1].box.hi[1] = wf_spatial_conv_channels(layer);
        shape = y;
    }
    return WF_OK;
}

static wf_var *run_chain(wf_layer *chain, chain_plan *p, wf_var *x)
{
    WF_TRY_NULL(plan_chain(chain, x, p));
    WF_TRY_NULL(make_groups(chain->state, chain->children, p));
    for (int first = 0, last; first < p->count && x; first = last) {
        last = p->next[first];
        /* A group of one layer is that layer, with its own exchange. */
        x = last == first + 1 ? wf_apply(chain->children[first], x) : run_group(chain, p, first, last, x);
    }
    return x;
}

static wf_var *forward(wf_layer *chain, wf_var *x)
{
    const spatial_chain *s = chain->state;
    chain_plan p = {.mesh = s->mesh, .dtype = x->value->dtype, .count = chain->n_children};
    const size_t n = (size_t)p.count, bytes = n * (sizeof *p.index_map + sizeof *p.work + sizeof *p.next) +
                                              (n + 1) * (sizeof *p.sharding + sizeof *p.least);
    void *memory;
    WF_TRY_NULL(wf_pool_take_host(chain->ctx, bytes, &memory));
    /* One block for all lists, the types of largest alignment first. */
    p.index_map = memory;
    p.sharding = (wf_sharding *)(p.index_map + n);
    p.work = (double *)(p.sharding + n + 1);
    p.least = p.work + n;
    p.next = (int *)(p.least + n + 1);
    wf_var *y = run_chain(chain, &p, x);
    wf_pool_give_host(chain->ctx, memory, bytes);
    return y;
}

static const wf_layer_kind spatial_chain_kind = {.name = "spatial_chain", .forward = forward, .computes = true};

/* Takes the layers: a failure frees those that have no parent yet, in the caller. */
static wf_status add_layers(wf_layer *chain, const wf_mesh *mesh, int count, wf_layer *const *layers)
{
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        WF_NEED(layers[i]);
        WF_CHECK(wf_is_spatial_conv(layers[i], mesh), WF_ERR_ARGUMENT,
                 "spatial_chain: layer %d is a %s, should be a spatial convolution on the chain's mesh", i,
                 layers[i]->kind->name);
        WF_NEED(wf_module_add(chain, name, layers[i]));
    }
    return WF_OK;
}

/* Tells where the chain splits whatever its depth. */
static void note_poles(wf_layer *chain)
{
    for (int i = 0; i < chain->n_children; i++) {
        const wf_conv_state *s = chain->children[i]->state;
        for (int d = 2; d < 2 + s->geom.nd; d++)
            if (wf_boundary_edge(&s->opts.boundary, d, false) == WF_EDGE_POLE ||
                wf_boundary_edge(&s->opts.boundary, d, true) == WF_EDGE_POLE)
                wf_layer_note(chain, ", an exchange for layer %d alone, which has a pole", i);
    }
}

static wf_status check_chain_opts(const wf_spatial_chain_opts *o, int count)
{
    WF_CHECK(o->depth >= 0 && count >= 1, WF_ERR_ARGUMENT,
             "spatial_chain: depth is %d and %d layers; should be 0 or more, and 1 or more", o->depth, count);
    WF_CHECK(o->message_seconds >= 0 && o->byte_seconds >= 0 && o->work_seconds >= 0, WF_ERR_ARGUMENT,
             "spatial_chain: costs are %g, %g and %g seconds; should be 0 (measured) or more", o->message_seconds,
             o->byte_seconds, o->work_seconds);
    return WF_OK;
}

wf_layer *wf_spatial_chain(const wf_mesh *mesh, wf_spatial_chain_opts opts, int count, wf_layer *const *layers)
{
    WF_NEED_NULL(mesh);
    WF_CHECK_NULL(count == 0 || layers, WF_ERR_ARGUMENT, "wf_spatial_chain takes layers, not %d at NULL", count);
    wf_layer *chain =
        mesh ? wf_layer_new(wf_comm_ctx(wf_mesh_world(mesh)), &spatial_chain_kind, sizeof(spatial_chain)) : NULL;
    wf_status status = WF_OK;
    if (chain) {
        *(spatial_chain *)chain->state =
            (spatial_chain){mesh, opts.depth, {opts.message_seconds, opts.byte_seconds, opts.work_seconds}};
        chain->takes_children = true;
        chain->comm = wf_mesh_world(mesh);
        wf_layer_note(chain, "spatial_chain of depth %d, costs %g, %g, %g", opts.depth, opts.message_seconds,
                      opts.byte_seconds, opts.work_seconds);
        status = check_chain_opts(&opts, count);
        if (status == WF_OK)
            status = add_layers(chain, mesh, count, layers);
        if (status == WF_OK)
            note_poles(chain);
        if (status == WF_OK)
            return chain;
    }
    for (int i = 0; i < count; i++)
        if (layers[i] && !layers[i]->parent)
            wf_layer_free(layers[i]);
    wf_layer_free(chain);
    return status == WF_OK ? NULL : wf_error_null();
}
