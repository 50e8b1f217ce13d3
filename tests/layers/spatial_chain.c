/* Chains with deep halos against the same layers one by one, serial, on the whole input; and fewer messages. */
#include "comm/mesh_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4, MOST_RANKS = 8 };

static wf_comm *comm;
static wf_ctx *ctx;
static wf_tape *tape;

typedef struct chain {
    int count, nd, depth;
    bool transposed[MOST];
    wf_conv_opts o[MOST];
    wf_shape x;
} chain;

static wf_layer *layer_of(const chain *c, int i, const wf_mesh *mesh)
{
    wf_conv_opts o = c->o[i];
    o.nd = c->nd;
    if (c->transposed[i])
        return mesh ? wf_spatial_conv_transpose(mesh, o) : wf_conv_transpose(ctx, o);
    return mesh ? wf_spatial_conv(mesh, o) : wf_conv(ctx, o);
}

static wf_layer *build(const chain *c, const wf_mesh *mesh)
{
    wf_layer *layers[MOST] = {0};
    for (int i = 0; i < c->count; i++)
        layers[i] = layer_of(c, i, mesh);
    return mesh ? wf_spatial_chain(mesh, (wf_spatial_chain_opts){.depth = c->depth}, c->count, layers)
                : wf_sequential(ctx, c->count, layers);
}

static wf_tensor *random_tensor(wf_shape shape, test_rng *rng)
{
    const int64_t n = wf_shape_count(shape);
    double *host = malloc((size_t)(n + 1) * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = test_uniform(rng, -1, 1);
    wf_tensor *t = wf_tensor_from_host(ctx, WF_F64, shape, host);
    free(host);
    return t;
}

static wf_tensor *part_of(const wf_tensor *whole, wf_layout layout)
{
    wf_tensor *view = wf_tensor_view(whole, layout.box), *part = wf_tensor_copy(view, WF_F64, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    return part;
}

static void expect_near(const char *name, const char *what, const wf_tensor *seen, const wf_tensor *should,
                        double tolerance)
{
    const int64_t n = wf_tensor_count(should);
    WF_EXPECT(seen && wf_tensor_count(seen) == n, "%s: %s is missing", name, what);
    if (!seen || wf_tensor_count(seen) != n)
        return;
    double *a = calloc((size_t)n + 1, sizeof *a), *b = calloc((size_t)n + 1, sizeof *b), most = 0;
    WF_EXPECT_OK(wf_tensor_export(seen, a, wf_tensor_bytes(seen)));
    WF_EXPECT_OK(wf_tensor_export(should, b, wf_tensor_bytes(should)));
    for (int64_t i = 0; i < n; i++)
        most = fabs(a[i] - b[i]) <= most ? most : fabs(a[i] - b[i]) / (1 + fabs(b[i]));
    WF_EXPECT(most <= tolerance, "%s: %s is off by %g", name, what, most);
    free(a);
    free(b);
}

static void expect_grads(const char *name, wf_layer *seen, wf_layer *should)
{
    int64_t n = 0;
    wf_param *const *a, *const *b;
    WF_EXPECT_OK(wf_layer_params(seen, &n, &a));
    WF_EXPECT_OK(wf_layer_params(should, &n, &b));
    for (int64_t i = 0; i < n; i++) {
        wf_tensor *all = wf_tensor_copy(wf_param_grad(a[i]), WF_F64, wf_tensor_order(wf_param_grad(a[i])));
        WF_EXPECT_OK(wf_allreduce(comm, all, all, WF_SUM));
        expect_near(name, wf_param_path(b[i]), all, wf_param_grad(b[i]), 1e-11);
        wf_tensor_free(all);
    }
}

/* Bounds at random, equal at times: empty parts, and parts of one row. */
static void recut(const wf_mesh *mesh, wf_layout *layout, test_rng *rng)
{
    int64_t bounds[MOST_RANKS + 1] = {0};
    for (int a = WF_AXIS_HEIGHT; a <= WF_AXIS_WIDTH; a++) {
        const int n = wf_mesh_size(mesh, (wf_axis)a);
        if (layout->placement[a] != WF_SHARDED)
            continue;
        const int64_t length = layout->global.dim[layout->dim[a]];
        for (int k = 1; k <= n; k++)
            bounds[k] =
                k == n ? length : test_int(rng, bounds[k - 1], bounds[k - 1] + 2 < length ? bounds[k - 1] + 2 : length);
        wf_layout_shard(mesh, layout, (wf_axis)a, layout->dim[a], bounds);
    }
}

static void check(const chain *c, const wf_mesh *mesh, test_rng *rng)
{
    char name[128];
    snprintf(name, sizeof name, "%d layers, %d-d, depth %d on %s", c->count, c->nd, c->depth, wf_mesh_text(mesh));
    wf_layer *serial = build(c, NULL), *deep = build(c, mesh);
    wf_tensor *x = random_tensor(c->x, rng);
    wf_layout in;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, c->x, &in));
    if (test_int(rng, 0, 1))
        recut(mesh, &in, rng);
    wf_tensor *x_part = part_of(x, in);
    if (serial && deep)
        WF_EXPECT(wf_layer_named(deep, "chain") && wf_layer_named(serial, "chain"), "%s", wf_error_message());
    wf_var *a = wf_leaf(tape, x), *b = wf_leaf(tape, x_part);
    wf_var *y = wf_apply(serial, a), *y_part = wf_apply(deep, b);
    WF_EXPECT(y && y_part, "%s: %s", name, wf_error_trail());
    if (y && y_part) {
        const wf_layout out = wf_tensor_layout(wf_value(y_part));
        wf_tensor *should = part_of(wf_value(y), out), *dy = random_tensor(wf_var_shape(y), rng),
                  *dy_part = part_of(dy, out);
        expect_near(name, "y", wf_value(y_part), should, 0);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
        wf_tensor *dx = part_of(wf_grad(a), in);
        expect_near(name, "dx", wf_grad(b), dx, 1e-12);
        expect_grads(name, deep, serial);
        wf_tensor_free(dx);
        wf_tensor_free(should);
        wf_tensor_free(dy);
        wf_tensor_free(dy_part);
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
    wf_layer_free(serial);
    wf_layer_free(deep);
}

/* Zeros beyond the edges, rings, mixed edges that are made again locally, and now and then a pole. */
static void draw_edges(chain *c, test_rng *rng)
{
    static const wf_edge mixed[] = {WF_EDGE_DEFAULT, WF_EDGE_CONSTANT, WF_EDGE_REFLECT, WF_EDGE_SYMMETRIC,
                                    WF_EDGE_REPLICATE};
    for (int d = 2; d < 2 + c->nd; d++) {
        const int kind = (int)test_int(rng, 0, 2);
        for (int i = 0; i < c->count; i++) {
            wf_boundary *b = &c->o[i].boundary;
            b->value = 2;
            b->lo[d] = kind == 0 ? WF_EDGE_DEFAULT : kind == 1 ? WF_EDGE_CIRCULAR : mixed[test_int(rng, 0, 4)];
            b->hi[d] = kind == 2 ? mixed[test_int(rng, 0, 4)] : b->lo[d];
            if (kind != 1)
                continue;
            /* Most rings come round: the stride divides them, and no noise is drawn beyond. */
            c->o[i].kernel += !c->transposed[i] && c->o[i].kernel % 2 == 0;
            c->o[i].pad = c->transposed[i] ? 1 : c->o[i].kernel / 2;
            c->o[i].noise = test_int(rng, 0, 7) == 0 ? 0.3 : 0;
            if (i == 0)
                c->x.dim[d] += c->x.dim[d] % 2;
        }
    }
    /* A pole turns an even number of columns. */
    for (int i = 0; i < c->count && c->nd == 2 && (c->transposed[0] || c->o[0].stride == 1); i++)
        if (c->o[i].boundary.lo[3] == WF_EDGE_CIRCULAR && test_int(rng, 0, 7) == 0)
            c->o[i].boundary.lo[2] = WF_EDGE_POLE;
}

static chain draw(test_rng *rng)
{
    chain c = {.count = (int)test_int(rng, 1, MOST), .nd = (int)test_int(rng, 1, 2), .depth = (int)test_int(rng, 0, 4)};
    int64_t channels = test_int(rng, 1, 3);
    c.x = (wf_shape){.rank = c.nd + 2, .dim = {test_int(rng, 0, 2), channels}};
    for (int d = 0; d < c.nd; d++)
        c.x.dim[2 + d] = test_int(rng, 9, 24);
    for (int i = 0; i < c.count; i++) {
        wf_conv_opts *o = &c.o[i];
        c.transposed[i] = test_int(rng, 0, 3) == 0;
        o->in = channels;
        o->out = channels = test_int(rng, 1, 3);
        o->kernel = c.transposed[i] ? 4 : test_int(rng, 1, 5);
        o->stride = c.transposed[i] ? 2 : i == 0 ? test_int(rng, 1, 2) : 1;
        o->pad = c.transposed[i] ? 1 : test_int(rng, 0, 1) + o->kernel / 2;
        o->act = test_int(rng, 0, 1) ? WF_ACT_LEAKY_RELU : WF_ACT_NONE;
        o->noise = test_int(rng, 0, 3) == 0 ? 0.3 : 0;
    }
    if (test_int(rng, 0, 1))
        draw_edges(&c, rng);
    return c;
}

static void open_all(void)
{
    comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1});
    ctx = wf_comm_ctx(comm);
    tape = wf_tape_new(ctx);
}

static void close_all(void)
{
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void random_chains(void)
{
    open_all();
    test_rng rng = {.state = 11};
    const int size = wf_comm_size(comm);
    for (int width = 1; width <= size; width++) {
        if (size % width != 0)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size / width, .width = width});
        for (int i = 0; i < 40; i++) {
            const chain c = draw(&rng);
            if (c.nd == 2 || width == size)
                check(&c, mesh, &rng);
        }
        wf_mesh_close(mesh);
    }
    close_all();
}

/* Chains of 3x3 layers of one channel on a tall image, sharded along its height. */
enum { ROWS = 48, COLUMNS = 3, LAYERS = 4, ELEMENT = 8 };

typedef struct sent {
    int64_t messages, bytes; /* of this rank */
} sent;

static sent sent_so_far(const wf_mesh *mesh)
{
    const wf_traffic t = wf_comm_traffic(wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT)));
    return (sent){(int64_t)t.messages, (int64_t)t.bytes_sent};
}

/* Once forward and backward: what either sends. The first input of a chain may measure what messages cost. */
static void tall_chain(const wf_mesh *mesh, wf_spatial_chain_opts opts, wf_edge edge, sent way[2])
{
    wf_layer *layers[LAYERS];
    test_rng rng = {.state = 2};
    for (int i = 0; i < LAYERS; i++)
        layers[i] =
            wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 1, .out = 1, .kernel = 3, .pad = 1, .boundary.edge = edge});
    wf_layer *layer = wf_spatial_chain(mesh, opts, LAYERS, layers);
    wf_tensor *x = random_tensor(WF_SHAPE(1, 1, ROWS, COLUMNS), &rng);
    wf_layout in;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, x->shape, &in));
    wf_tensor *part = part_of(x, in);
    for (int i = 0; i < 2; i++) {
        const sent before = sent_so_far(mesh);
        wf_var *y = wf_apply(layer, wf_leaf(tape, part));
        WF_EXPECT(y, "%s", wf_error_trail());
        const sent between = sent_so_far(mesh);
        WF_EXPECT_OK(wf_backward_from(y, part));
        const sent after = sent_so_far(mesh);
        way[0] = (sent){between.messages - before.messages, between.bytes - before.bytes};
        way[1] = (sent){after.messages - between.messages, after.bytes - between.bytes};
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor_free(x);
    wf_tensor_free(part);
    wf_layer_free(layer);
}

static int neighbours(void)
{
    const int rank = wf_comm_rank(comm);
    return (rank > 0) + (rank + 1 < wf_comm_size(comm));
}

/* By hand: an exchange for every `depth` layers, of a row for each of them to each neighbour, and back. A ring has two
 * neighbours everywhere, which may be one rank; what mirrors send is what zeros do. */
static void expect_sent(const wf_mesh *mesh, wf_edge edge)
{
    const int size = wf_comm_size(comm);
    const bool ring = edge == WF_EDGE_CIRCULAR && size > 1;
    const int sides = ring ? 2 : neighbours(), peers = ring && size == 2 ? 1 : sides;
    for (int depth = 1; depth <= LAYERS; depth++) {
        sent way[2];
        const int64_t messages = (int64_t)peers * ((LAYERS + depth - 1) / depth);
        /* Columns beyond the edges are made of the rows that come. */
        const int64_t bytes = (int64_t)sides * LAYERS * COLUMNS * ELEMENT;
        /* A circle of three columns goes round once. */
        if (edge == WF_EDGE_CIRCULAR && depth > COLUMNS)
            continue;
        tall_chain(mesh, (wf_spatial_chain_opts){.depth = depth}, edge, way);
        for (int i = 0; i < 2; i++)
            WF_EXPECT(way[i].messages == messages && way[i].bytes == bytes,
                      "%s, depth %d, %s: %lld messages and %lld bytes, should be %lld and %lld", wf_edge_name(edge),
                      depth, i ? "backward" : "forward", (long long)way[i].messages, (long long)way[i].bytes,
                      (long long)messages, (long long)bytes);
    }
}

static void traffic(void)
{
    open_all();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = wf_comm_size(comm)});
    expect_sent(mesh, WF_EDGE_DEFAULT);
    expect_sent(mesh, WF_EDGE_REFLECT);
    expect_sent(mesh, WF_EDGE_CIRCULAR);
    wf_mesh_close(mesh);
    close_all();
}

/* Seconds of `layers` layers on one exchange: rows that ranks compute besides their own are theirs and the image's. */
static double cost_of_group(const wf_spatial_chain_opts *o, int layers)
{
    const int size = wf_comm_size(comm);
    double rows = 0;
    for (int j = 0; j < layers; j++) /* j layers follow */
        rows += ROWS + 2.0 * (size - 1) * j;
    const double bytes = 2.0 * (size - 1) * layers * COLUMNS * ELEMENT;
    return (o->work_seconds * 9 * COLUMNS * rows + o->byte_seconds * bytes) / size +
           (size > 1 ? o->message_seconds : 0);
}

/* Every way to cut the chain: bit i says that a group ends after layer i. The groups of the cheapest one. */
static int cheapest_groups(const wf_spatial_chain_opts *o)
{
    double least = INFINITY;
    int groups = 0;
    for (unsigned bounds = 0; bounds < 1u << (LAYERS - 1); bounds++) {
        double seconds = 0;
        int layers = 0, n = 0;
        for (int i = 0; i < LAYERS; i++) {
            layers++;
            if (i + 1 < LAYERS && !(bounds >> i & 1u))
                continue;
            seconds += cost_of_group(o, layers);
            layers = 0;
            n++;
        }
        if (seconds < least) {
            least = seconds;
            groups = n;
        }
    }
    return groups;
}

/* From costly messages, where all go at once, to costly work, where each goes alone; and what is measured, of which is
 * known that all ranks choose alike (or the exchanges would not fit) and stay with it. */
static void choice(void)
{
    open_all();
    const int size = wf_comm_size(comm);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    bool seen[LAYERS + 1] = {false};
    sent way[2];
    for (double message = 1e-9; message < 1e-3; message *= 1.5) {
        const wf_spatial_chain_opts o = {.message_seconds = message, .byte_seconds = 1e-9, .work_seconds = 1e-8};
        const int groups = cheapest_groups(&o);
        tall_chain(mesh, o, WF_EDGE_DEFAULT, way);
        seen[groups] = true;
        WF_EXPECT(way[0].messages == groups * neighbours(), "messages of %g s: %lld sent, should be in %d groups",
                  message, (long long)way[0].messages, groups);
    }
    WF_EXPECT(size == 1 || (seen[1] && seen[2] && seen[LAYERS]), "not all depths were chosen");
    tall_chain(mesh, (wf_spatial_chain_opts){0}, WF_EDGE_DEFAULT, way);
    WF_EXPECT(way[0].messages == way[1].messages, "%lld messages forth and %lld back", (long long)way[0].messages,
              (long long)way[1].messages);
    wf_mesh_close(mesh);
    close_all();
}

static void refusals(void)
{
    open_all();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = wf_comm_size(comm)});
    const wf_conv_opts o = {.in = 1, .out = 1, .kernel = 3};
    wf_layer *wrong[] = {wf_spatial_conv2d(mesh, o), wf_conv2d(ctx, o)}, *one[] = {wf_spatial_conv2d(mesh, o)};
    WF_EXPECT(!wf_spatial_chain(mesh, (wf_spatial_chain_opts){0}, 2, wrong), "a serial layer in a chain");
    WF_EXPECT(!wf_spatial_chain(mesh, (wf_spatial_chain_opts){.depth = -1}, 1, one), "a negative depth");
    one[0] = wf_spatial_conv2d(mesh, o);
    WF_EXPECT(!wf_spatial_chain(mesh, (wf_spatial_chain_opts){.byte_seconds = -1}, 1, one), "a negative cost");
    wf_error_clear();
    wf_mesh_close(mesh);
    close_all();
}

/* A chain says where a pole cuts it: ranks compare that. */
static void poles_are_told(void)
{
    open_all();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = wf_comm_size(comm)});
    wf_conv_opts o = {.in = 1, .out = 1, .kernel = 3, .pad = 1, .boundary = {.edge = WF_EDGE_CIRCULAR}};
    wf_layer *layer[3];
    for (int i = 0; i < 3; i++) {
        o.boundary.lo[2] = i == 1 ? WF_EDGE_POLE : WF_EDGE_DEFAULT;
        layer[i] = wf_spatial_conv2d(mesh, o);
    }
    wf_layer *cut = wf_spatial_chain(mesh, (wf_spatial_chain_opts){.depth = 3}, 3, layer);
    WF_EXPECT(cut && strstr(cut->options, ", an exchange for layer 1 alone, which has a pole"), "it says: %s",
              cut ? cut->options : wf_error_message());
    WF_EXPECT(cut && !strstr(cut->options, "layer 0 alone") && !strstr(cut->options, "layer 2 alone"), "it says: %s",
              cut ? cut->options : "");
    wf_layer_free(cut);
    wf_mesh_close(mesh);
    close_all();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"random_chains", random_chains},
                                   {"traffic", traffic},
                                   {"choice", choice},
                                   {"refusals", refusals},
                                   {"poles_are_told", poles_are_told},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
