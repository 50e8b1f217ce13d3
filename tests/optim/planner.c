/* The planner on models whose times are known: the plan that is obviously right is found, one that cannot be is refused
 * in a line, a file holds what was written and a damaged one is refused, and a model that follows a plan computes what
 * the serial one does. */
#include "tests/optim/planner_models.h"

#include "layers/layers.h"
#include "optim/planner_author.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what is obviously right ------------------------------------------------------------------------------------- */

static void many_samples_are_divided(void)
{
    const wf_planner_meter meter = meter_new(1e4);
    wf_layer *model = images(3);
    wf_training_plan *plan =
        plan_of(model, WF_SHAPE(64, 3, 16, 16), &meter, (wf_planner_opts){.ranks = 4, .can = EVERYTHING});
    WF_EXPECT(plan && plan->mesh.data == 4, "%s", plan ? "another mesh" : wf_error_message());
    free_both(plan, model);
}

static void one_large_image_is_cut(void)
{
    const wf_planner_meter meter = meter_new(1e6);
    wf_layer *model = images(3);
    char text[WF_PLANNER_PATH];
    wf_training_plan *plan = plan_of(model, WF_SHAPE(1, 3, 256, 256), &meter,
                                     (wf_planner_opts){.ranks = 4, .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL});
    WF_EXPECT(plan && plan->mesh.height * plan->mesh.width == 4, "mesh %s",
              plan ? wf_planner_mesh_text(plan->mesh, text) : wf_error_message());
    for (int i = 0; plan && i < plan->n_units; i++)
        WF_EXPECT(plan->unit[i].split == WF_PARALLEL_SPATIAL, "layer %d is split by %u", i, plan->unit[i].split);
    free_both(plan, model);
}

/* Sums of 4 MiB of weights would take longer than the products, and one sample's numbers are few. */
static void wide_layers_are_split_by_channels(void)
{
    const wf_planner_meter meter = meter_new(1e4);
    wf_layer *model = dense(3, 1024);
    char text[WF_PLANNER_PATH];
    wf_training_plan *plan = plan_of(model, WF_SHAPE(4, 1024), &meter,
                                     (wf_planner_opts){.ranks = 4, .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL});
    WF_EXPECT(plan && plan->mesh.channel == 4, "mesh %s",
              plan ? wf_planner_mesh_text(plan->mesh, text) : wf_error_message());
    for (int i = 0; plan && i < plan->n_units; i++)
        WF_EXPECT(plan->unit[i].split == WF_PARALLEL_CHANNEL, "layer %d is split by %u", i, plan->unit[i].split);
    free_both(plan, model);
}

/* Each layer its own way on one mesh: pixels where there are many, not where halos are all there is. */
static void layers_differ(void)
{
    wf_planner_meter meter = meter_new(1e6);
    meter.exchange[0].alpha_s = 1e-4; /* a halo of the small layer costs more than its products twice */
    wf_layer *model =
        wf_sequential(ctx, WF_LAYERS(conv(3, 8), wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 16, .stride = 16}),
                                     conv(8, 8), conv(8, 8)));
    wf_training_plan *plan =
        plan_of(model, WF_SHAPE(1, 3, 128, 128), &meter,
                (wf_planner_opts){.ranks = 2, .can = WF_PLANNER_SPATIAL, .mesh = {1, 1, 1, 2, 1, 1}});
    WF_EXPECT(plan, "%s", wf_error_message());
    if (plan)
        WF_EXPECT(plan->unit[0].split == WF_PARALLEL_SPATIAL && plan->unit[2].split == 0 && plan->unit[3].split == 0,
                  "splits %u %u %u %u", plan->unit[0].split, plan->unit[1].split, plan->unit[2].split,
                  plan->unit[3].split);
    free_both(plan, model);
}

/* Rows that a rank sends on average, forth and, of the second layer, back: of 4 ranks that share the height, zeros have
 * 3 borders, a ring 4; what mirrors needs no more than zeros do. */
static void rings_send_more(void)
{
    static const struct {
        wf_edge edge;
        double rows;
    } edges[] = {{WF_EDGE_DEFAULT, 1.5}, {WF_EDGE_REFLECT, 1.5}, {WF_EDGE_CIRCULAR, 2}};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        wf_planner_meter meter = meter_new(1e6);
        wf_conv_opts o = {.in = 8, .out = 8, .kernel = 3, .pad = 1};
        o.boundary.lo[2] = o.boundary.hi[2] = edges[i].edge;
        wf_layer *model = wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, o), wf_conv2d(ctx, o)));
        wf_training_plan *plan =
            plan_of(model, WF_SHAPE(1, 8, 256, 256), &meter,
                    (wf_planner_opts){.ranks = 4, .can = WF_PLANNER_SPATIAL, .mesh = {1, 1, 1, 4, 1, 1}});
        for (int u = 0; u < 2; u++) {
            const double bytes = edges[i].rows * (u + 1) * 256 * 8 * 4;
            WF_EXPECT(plan && plan->unit[u].split == WF_PARALLEL_SPATIAL && EQUAL(plan->unit[u].bytes, bytes),
                      "%s, layer %d: %g bytes, should be %g", wf_edge_name(edges[i].edge), u,
                      plan ? plan->unit[u].bytes : -1, bytes);
        }
        free_both(plan, model);
    }
}

/* All layers of an image [1,8,64,32] cut by height over 4 ranks. */
static wf_training_plan *plan_of_rows(wf_layer *model)
{
    const wf_planner_meter meter = meter_new(1e6);
    const unsigned forms[] = {WF_PARALLEL_SPATIAL, WF_PARALLEL_SPATIAL, WF_PARALLEL_SPATIAL};
    return plan_of(
        model, WF_SHAPE(1, 8, 64, 32), &meter,
        (wf_planner_opts){.ranks = 4, .can = WF_PLANNER_SPATIAL, .mesh = {1, 1, 1, 4, 1, 1}, .forms = forms});
}

/* Bytes and messages of a rank, forward and backward together; each of 4 ranks computes a quarter of the layer, which
 * is attention and four projections. */
static void expect_cost(const char *name, wf_layer *model, int u, double bytes, double messages)
{
    wf_training_plan *plan = plan_of_rows(model);
    const double seconds = messages * 1e-6 + bytes * 1e-10, forward_s = 0.1 * OPERATION_S * 8 * 64 * 32 * 5 / 4;
    const wf_plan_unit none = {.bytes = -1}, *unit = plan ? &plan->unit[u] : &none;
    WF_EXPECT(EQUAL(unit->bytes, bytes), "%s: %g bytes, should be %g", name, unit->bytes, bytes);
    WF_EXPECT(EQUAL(unit->message_s, seconds), "%s: messages of %g s, should be %g", name, unit->message_s, seconds);
    WF_EXPECT(EQUAL(unit->forward_s, forward_s), "%s: forward of %g s, should be %g", name, unit->forward_s, forward_s);
    free_both(plan, model);
}

static void expect_around(const char *name, wf_neighbourhood_attention_opts o, double bytes)
{
    o.features = 8;
    o.heads = 2;
    expect_cost(name, wf_sequential(ctx, WF_LAYERS(conv(8, 8), wf_neighbourhood_attention(ctx, o))), 1, bytes, 2 * 1.5);
}

static void expect_tokens(const char *name, int64_t heads, double bytes, double messages)
{
    expect_cost(name,
                wf_sequential(ctx, WF_LAYERS(conv(8, 8), wf_lambda(ctx, wf_tokens),
                                             wf_multihead(ctx, (wf_multihead_opts){.features = 8, .heads = heads}))),
                2, bytes, messages);
}

/* Rows of 8 channels of 32 pixels. A neighbourhood of 5 by 4 rows reads 2 rows above and 2 or 1 below, keys and values
 * alike, and twice that in steps of 2; shifted windows of 8 lack 4 rows on each rank, and their outputs go back. Tokens
 * go to heads and back; of fewer heads than ranks keys and values go round, and their gradients with them. */
static void attention_sends(void)
{
    const double row = 8 * 32 * 4;
    const wf_window_attention_opts window = {.features = 8, .heads = 2, .window = 8, .shift = 4};
    expect_around("odd neighbourhoods", (wf_neighbourhood_attention_opts){.kernel = 5}, 2 * 2 * 3 * row);
    expect_around("even neighbourhoods", (wf_neighbourhood_attention_opts){.kernel = 4}, 2 * 2 * 2.25 * row);
    expect_around("dilated neighbourhoods", (wf_neighbourhood_attention_opts){.kernel = 5, .dilation = 2},
                  2 * 2 * 6 * row);
    expect_cost("windows", wf_sequential(ctx, WF_LAYERS(conv(8, 8), wf_window_attention(ctx, window))), 1, 4 * 4 * row,
                2 * 2);
    expect_tokens("tokens by heads", 4, 2 * 4 * 0.75 * 16 * row, 2 * 2 * 3);
    expect_tokens("tokens in a ring", 2, (2 * 3 + 2 * 3 + 2 * 4) * 16 * row, 2 * 3);
}

/* Windows are computed whole: of 5 windows of 13 rows 4 ranks have two, one, one and one; projections take their share.
 */
static void whole_windows(void)
{
    const wf_window_attention_opts window = {.features = 8, .heads = 2, .window_nd = {13, 32}};
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(conv(8, 8), wf_window_attention(ctx, window)));
    wf_training_plan *plan = plan_of_rows(model);
    const double image = 8 * 64 * 32, windows = 8 * 65 * 32;
    const double seconds = 0.1 * OPERATION_S * (0.4 * image + 0.25 * 4 * windows);
    WF_EXPECT(plan && EQUAL(plan->unit[1].forward_s, seconds), "forward takes %g s, should take %g",
              plan ? plan->unit[1].forward_s : -1, seconds);
    free_both(plan, model);
}

/* The least time of all forms that four layers may have, each a search of its own. */
static double fastest_of_all(wf_layer *model, const wf_planner_meter *meter, wf_planner_opts o)
{
    double least = INFINITY;
    unsigned forms[4];
    o.forms = forms;
    for (unsigned all = 0; all < 256; all++) {
        memcpy(forms, (unsigned[]){all & 3, all >> 2 & 3, all >> 4 & 3, all >> 6}, sizeof forms);
        wf_training_plan *plan = plan_of(model, WF_SHAPE(1, 3, 64, 64), meter, o);
        least = fmin(least, plan ? plan->seconds : INFINITY);
        wf_training_plan_free(plan);
        wf_error_clear();
    }
    return least;
}

/* From messages that cost next to nothing, where all layers are split both ways, to those that cost more than all. */
static void no_forms_are_faster(void)
{
    wf_planner_meter meter = meter_new(1e6);
    const wf_planner_opts o = {.ranks = 4, .can = EVERYTHING, .mesh = {1, 2, 1, 2, 1, 1}};
    const wf_conv_opts last = {.in = 8, .out = 8, .kernel = 3, .pad = 1, .replicate = true};
    wf_layer *pool = wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 8, .stride = 8});
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(conv(3, 8), pool, conv(8, 8), wf_conv2d(ctx, last)));
    for (int k = 0; k < 6; k++) {
        meter.exchange[0] = (wf_planner_link){1e-9 * pow(10, k), 1e-13 * pow(10, k)};
        const double least = fastest_of_all(model, &meter, o);
        wf_training_plan *plan = plan_of(model, WF_SHAPE(1, 3, 64, 64), &meter, o);
        WF_EXPECT(plan && EQUAL(plan->seconds, least), "link %d: %g s, forms by hand %g s", k, plan ? plan->seconds : 0,
                  least);
        for (int u = 0; plan && u < 4; u++)
            WF_EXPECT(u == 1 || k > 0 || plan->unit[u].split == 3, "layer %d: split by %u", u, plan->unit[u].split);
        wf_training_plan_free(plan);
    }
    wf_layer_free(model);
}

/* Weights that take seconds to sum, and a large batch: every stage keeps its own weights. */
static void heavy_layers_become_stages(void)
{
    wf_planner_meter meter = meter_new(1e3);
    meter.links.gamma_s = 1e-6;
    wf_layer *model = dense(4, 256);
    char text[WF_PLANNER_PATH];
    wf_training_plan *plan =
        plan_of(model, WF_SHAPE(64, 256), &meter, (wf_planner_opts){.ranks = 2, .can = WF_PLANNER_STAGE});
    WF_EXPECT(plan && plan->mesh.stage == 2 && plan->chunks > 1, "mesh %s",
              plan ? wf_planner_mesh_text(plan->mesh, text) : wf_error_message());
    if (plan && plan->stage_units)
        for (int part = 0; part < 2 * plan->parts; part++)
            WF_EXPECT(plan->stage_units[part] == 2 / plan->parts, "%d layers in part %d of %d", plan->stage_units[part],
                      part, plan->parts);
    free_both(plan, model);
}

/* Checks prices made of the times of chunks: equal stages idle as the formula says, unequal ones longer. */
static void idle_time_is_priced(void)
{
    wf_planner_meter meter = meter_new(1e3);
    meter.links.gamma_s = 0;
    meter.exchange[0].alpha_s = meter.exchange[0].beta_s = 1e-15;
    double idle[2];
    for (int i = 0; i < 2; i++) {
        wf_layer *model = dense(4 + i, 256);
        wf_training_plan *plan =
            plan_of(model, WF_SHAPE(64, 256), &meter,
                    (wf_planner_opts){.ranks = 4, .can = WF_PLANNER_STAGE, .mesh = {1, 1, 1, 1, 1, 4}, .chunks = 8});
        WF_EXPECT(plan && plan->chunks == 8 && plan->parts == 1, "%s", plan ? "other chunks" : wf_error_message());
        idle[i] = plan ? plan->idle : 0;
        free_both(plan, model);
    }
    /* With five equal layers one stage has two, and the others wait for half of its time. */
    WF_EXPECT(fabs(idle[0] - 3.0 / 11) < 1e-3, "equal stages idle for %g, not %g", idle[0], 3.0 / 11);
    WF_EXPECT(idle[1] > 0.4, "with a stage that takes twice as long they idle for %g", idle[1]);
}

static double split_s; /* of each leaf that is split along channels */
static int splits;

static wf_status split_of(void *own, const wf_planner_leaf *leaf, wf_shape x, wf_axis axis, int ranks,
                          wf_planner_part *t)
{
    WF_EXPECT(axis == WF_AXIS_CHANNEL && ranks == 2 && x.dim[0] == 4, "axis %d of %d ranks", (int)axis, ranks);
    WF_EXPECT(x.dim[1] == 1024 || x.dim[1] == 512, "an input of %lld features", (long long)x.dim[1]);
    *t = (wf_planner_part){.seconds = split_s};
    splits++;
    return WF_OK;
}

/* What was measured of a split layer holds its messages, whose bytes are counted and whose time is not. */
static void split_layers_are_measured(void)
{
    wf_planner_meter meter = meter_new(1e4);
    const wf_planner_opts o = {.ranks = 2, .can = WF_PLANNER_CHANNEL, .mesh = {.data = 1, 2, 1, 1, 1, 1}};
    wf_layer *model = dense(3, 1024);
    wf_training_plan *priced = plan_of(model, WF_SHAPE(4, 1024), &meter, o);
    meter.split = split_of;
    split_s = 8e-3;
    wf_training_plan *measured = plan_of(model, WF_SHAPE(4, 1024), &meter, o);
    WF_EXPECT(priced && measured && splits >= 3, "%d splits measured: %s", splits, wf_error_message());
    for (int i = 0; priced && measured && i < 3; i++) {
        const wf_plan_unit *a = &priced->unit[i], *b = &measured->unit[i];
        WF_EXPECT(a->split == WF_PARALLEL_CHANNEL && b->split == WF_PARALLEL_CHANNEL, "layer %d is not split", i);
        /* The first layer has the whole input, of which no gradient is needed. */
        WF_EXPECT(
            (a->message_s > 0) == (i > 0) && b->message_s == 0 && a->bytes == b->bytes && (a->bytes > 0) == (i > 0),
            "layer %d: messages of %g and %g s, %g and %g bytes", i, a->message_s, b->message_s, a->bytes, b->bytes);
        WF_EXPECT(b->forward_s + b->backward_s > 7.999e-3 && b->forward_s + b->backward_s < 8.001e-3,
                  "layer %d takes %g s, measured 8 ms", i, b->forward_s + b->backward_s);
    }
    split_s = 1; /* so slow that no layer is split */
    wf_training_plan *none = plan_of(model, WF_SHAPE(4, 1024), &meter, o);
    WF_EXPECT(none && none->unit[0].split == 0 && none->unit[1].split == 0, "%s", none ? "split" : wf_error_message());
    wf_training_plan_free(none);
    wf_training_plan_free(priced);
    free_both(measured, model);
}

static wf_status squared_part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out,
                                 wf_planner_part *t)
{
    WF_TRY(part_of(own, leaf, x, in, out, t));
    t->seconds *= t->seconds;
    return WF_OK;
}

/* Half of a layer is measured in a quarter of its time, and counts as a half. */
static void a_part_takes_its_share(void)
{
    wf_planner_meter meter = meter_new(1e4);
    wf_layer *model = dense(3, 1024);
    wf_training_plan *plan[2];
    for (int i = 0; i < 2; i++) {
        plan[i] = plan_of(model, WF_SHAPE(4, 1024), &meter,
                          (wf_planner_opts){.ranks = 2, .can = WF_PLANNER_CHANNEL, .mesh = {.data = 1, 2, 1, 1, 1, 1}});
        WF_EXPECT(plan[i] && plan[i]->unit[1].split == WF_PARALLEL_CHANNEL, "%s", wf_error_message());
        meter.part = squared_part_of;
    }
    if (plan[0] && plan[1])
        WF_EXPECT(fabs(plan[1]->seconds / plan[0]->seconds - 1) < 1e-9, "a step of %g s, not %g s", plan[1]->seconds,
                  plan[0]->seconds);
    wf_training_plan_free(plan[0]);
    free_both(plan[1], model);
}

static wf_planner_overlap rates;

static wf_status overlap_of(void *own, const wf_planner_model *m, int64_t batch, wf_planner_overlap *out)
{
    *out = rates;
    return WF_OK;
}

/* What shows of the sums of three equal layers, each with a bucket of its own, between two nodes. */
static double shown_sums(wf_layer *model, double beta_s, double compute, double sum)
{
    wf_planner_meter meter = meter_new(1e4);
    meter.overlap = overlap_of;
    meter.links.beta_s[1] = beta_s;
    rates = (wf_planner_overlap){compute, sum};
    wf_training_plan *plan = plan_of(model, WF_SHAPE(8, 1024), &meter, (wf_planner_opts){.ranks = 2, .nodes = 2});
    WF_EXPECT(plan, "%s", wf_error_message());
    const double shown = plan ? plan->sum_s : 0;
    wf_training_plan_free(plan);
    return shown;
}

/* Short sums of the last two layers lie behind backward of the layers before them, which they slow down; the first
 * layer's has nothing to lie behind. Long sums go on from the end of the last layer's backward. */
static void sums_go_on_beside_backward(void)
{
    wf_layer *model = dense(3, 1024);
    const double backward_s = 2 * OPERATION_S * 4 * 1024 * 1024, sum_s = shown_sums(model, 5e-10, 1, 1);
    WF_EXPECT(sum_s > 2e-3 && sum_s < backward_s / 2, "a sum of %g s, backward of %g s", sum_s, backward_s);
    WF_EXPECT(EQUAL(shown_sums(model, 5e-10, 0.5, 1), 2 * sum_s) && EQUAL(shown_sums(model, 5e-10, 1, 0.5), sum_s) &&
                  EQUAL(shown_sums(model, 5e-10, 0.5, 0.5), 3 * sum_s),
              "%g s, %g s and %g s of sums of %g s show", shown_sums(model, 5e-10, 0.5, 1),
              shown_sums(model, 5e-10, 1, 0.5), shown_sums(model, 5e-10, 0.5, 0.5), sum_s);
    const double long_s = shown_sums(model, 1e-7, 1, 1);
    WF_EXPECT(EQUAL(shown_sums(model, 1e-7, 0.5, 1), long_s) &&
                  EQUAL(shown_sums(model, 1e-7, 1, 0.5), long_s + backward_s),
              "%g s and %g s of long sums show, not %g s and %g s", shown_sums(model, 1e-7, 0.5, 1),
              shown_sums(model, 1e-7, 1, 0.5), long_s, long_s + backward_s);
    wf_layer_free(model);
}

/* The price of a byte, over four ranks of one or four nodes. */
static double price_of(wf_operation operation, const wf_price_model *links, int nodes, int64_t count)
{
    enum { RANKS = 4 };
    const bool whole = operation == WF_CALL_SUM;
    int32_t node[RANKS];
    int64_t part[RANKS + 1];
    wf_agreed agreed;
    wf_price price = {0};
    for (int r = 0; r <= RANKS; r++)
        part[r] = r * count / (whole ? 1 : RANKS);
    for (int r = 0; r < RANKS; r++)
        node[r] = r * nodes / RANKS;
    WF_EXPECT_OK(wf_agreed_make(ctx, RANKS, node, &agreed));
    agreed.shared = true;
    const wf_call call = {.operation = operation,
                          .reducer = "hierarchical",
                          .dtype = WF_F32,
                          .count = count,
                          .part = part,
                          .parts = whole};
    WF_EXPECT_OK(wf_call_price(ctx, &agreed, &call, links, &price));
    wf_agreed_clear(&agreed);
    return price.seconds / (4.0 * (double)count);
}

/* With a sharded optimizer: the last layer's sum of shards lies behind backward of the layer before it, that one's has
 * nothing to lie behind, and both gathers follow the update. */
static void shards_have_their_own_price(void)
{
    wf_planner_meter meter = meter_new(1e4);
    meter.state_words = 4;
    meter.links.gamma_s = 1e-8;
    wf_layer *model = dense(2, 1024);
    const double bytes = 4.0 * (1024 * 1024 + 1024);
    wf_training_plan *plan =
        plan_of(model, WF_SHAPE(128, 1024), &meter, (wf_planner_opts){.ranks = 4, .nodes = 4, .memory = 2 * 5 * bytes});
    WF_EXPECT(plan && plan->zero, "%s", plan ? "not sharded" : wf_error_message());
    const double sum_s = price_of(WF_CALL_SUM_SHARDS, &meter.links, 4, 1 << 18) * bytes,
                 gather_s = price_of(WF_CALL_GATHER_SHARDS, &meter.links, 4, 1 << 18) * bytes;
    WF_EXPECT(sum_s > 4 * gather_s && sum_s < 2 * OPERATION_S * 32 * 1024 * 1024,
              "a sum of shards of %g s, a gather of %g s", sum_s, gather_s);
    if (plan)
        WF_EXPECT(EQUAL(plan->sum_s, sum_s + 2 * gather_s) && EQUAL(plan->unit[0].sum_bytes, 1.5 * bytes),
                  "%g s of sums show, not %g s; %g bytes, not %g", plan->sum_s, sum_s + 2 * gather_s,
                  plan->unit[0].sum_bytes, 1.5 * bytes);
    free_both(plan, model);
}

static void memory_is_kept(void)
{
    const wf_planner_meter meter = meter_new(1e6);
    wf_layer *model = images(9);
    const wf_shape input = WF_SHAPE(16, 3, 32, 32);
    wf_planner_opts o = {.ranks = 1, .can = WF_PLANNER_RECOMPUTE};
    wf_training_plan *free_plan = plan_of(model, input, &meter, o);
    WF_EXPECT(free_plan, "%s", wf_error_message());
    const double needs = free_plan ? free_plan->memory : 0;
    int again = 0;
    for (int i = 0; free_plan && i < free_plan->n_units; i++)
        again += free_plan->unit[i].recompute;
    WF_EXPECT(needs > 16e6 && again == 0, "%g bytes without a limit, %d layers recomputed", needs, again);
    /* Every layer keeps only its output, so a chain of plain layers saves nothing but in its blocks. */
    o.memory = needs * 2;
    wf_training_plan *roomy = plan_of(model, input, &meter, o);
    WF_EXPECT(roomy && free_plan && roomy->seconds == free_plan->seconds, "room for twice as much changes the plan");
    o.memory = 1000;
    wf_training_plan *none = plan_of(model, input, &meter, o);
    WF_EXPECT(!none && strstr(wf_error_message(), "no plan for 1 ranks fits into") && !strchr(wf_error_message(), '\n'),
              "1000 bytes: %s", none ? "a plan" : wf_error_message());
    wf_error_clear();
    wf_training_plan_free(free_plan);
    wf_training_plan_free(roomy);
    free_both(none, model);
}

/* Values, gradients and two words of state: with four ranks half a word of state is left, and the values are twice
 * there while they move into one buffer. In a node, sums and gathers of shards together take as long as a sum. */
static void the_state_is_sharded(void)
{
    wf_planner_meter meter = meter_new(10);
    meter.state_words = 2;
    wf_layer *model = dense(2, 512);
    const double params = 2.0 * (512 * 512 + 512);
    wf_planner_opts o = {.ranks = 4, .can = 0, .memory = params * 4 * 3.75};
    wf_training_plan *plan = plan_of(model, WF_SHAPE(64, 512), &meter, o);
    WF_EXPECT(plan && plan->zero && plan->memory < o.memory, "%s", plan ? "not sharded" : wf_error_message());
    const double sum_s = price_of(WF_CALL_SUM, &meter.links, 1, 1 << 18) * 4 * params;
    WF_EXPECT(plan && EQUAL(plan->sum_s, sum_s), "%g s of sums, not %g s", plan ? plan->sum_s : 0, sum_s);
    wf_training_plan_free(plan);
    /* In a pipeline of two stages, whose chunks have gradients of their own beside. */
    o = (wf_planner_opts){.ranks = 8, .can = WF_PLANNER_STAGE, .mesh = {4, 1, 1, 1, 1, 2}, .memory = params * 2 * 4.75};
    plan = plan_of(model, WF_SHAPE(64, 512), &meter, o);
    WF_EXPECT(plan && plan->zero && plan->memory < o.memory, "%s", plan ? "not sharded" : wf_error_message());
    free_both(plan, model);
}

/* A recomputed block keeps its output alone. */
static wf_var *block_forward(wf_layer *self, void *user, wf_var *x)
{
    x = wf_apply(wf_layer_child(self, "a"), x);
    x = wf_apply(wf_layer_child(self, "b"), x);
    return wf_apply(wf_layer_child(self, "c"), x);
}

static wf_layer *block(int64_t in)
{
    wf_layer *module = wf_module(ctx, block_forward, NULL);
    wf_module_add(module, "a", conv(in, 8));
    wf_module_add(module, "b", conv(8, 8));
    wf_module_add(module, "c", conv(8, 8));
    return module;
}

static void little_memory_recomputes(void)
{
    const wf_planner_meter meter = meter_new(1e6);
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(block(3), block(8), block(8), block(8), block(8), block(8)));
    const wf_shape input = WF_SHAPE(16, 3, 16, 16);
    wf_planner_opts o = {.ranks = 1, .can = WF_PLANNER_RECOMPUTE};
    wf_training_plan *all = plan_of(model, input, &meter, o);
    o.memory = all ? 0.75 * all->memory : 1;
    wf_training_plan *some = plan_of(model, input, &meter, o);
    o.memory = all ? 0.55 * all->memory : 1;
    wf_training_plan *more = plan_of(model, input, &meter, o);
    int n[2] = {0};
    for (int i = 0; some && more && i < some->n_units; i++) {
        n[0] += some->unit[i].recompute;
        n[1] += more->unit[i].recompute;
    }
    WF_EXPECT(all && some && more && n[0] > 0 && n[1] > n[0] && some->seconds > all->seconds &&
                  more->seconds > some->seconds && more->memory <= o.memory,
              "%d and %d of 6 blocks are recomputed: %s", n[0], n[1], wf_error_message());
    wf_error_clear();
    wf_training_plan_free(all);
    wf_training_plan_free(some);
    free_both(more, model);
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static char *file_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 65536);
    if (file && text)
        (void)!fread(text, 1, 65535, file);
    if (file)
        fclose(file);
    return text;
}

static void refused(const char *text, const char *from, const char *to)
{
    char *copy = calloc(1, strlen(text) + strlen(to) + 1);
    const char *at = strstr(text, from);
    WF_EXPECT(at, "no %s in the file", from);
    if (at && copy) {
        sprintf(copy, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
        wf_training_plan *plan = wf_training_plan_parse(ctx, copy, "bad.json");
        WF_EXPECT(!plan && strncmp(wf_error_message(), "bad.json", 8) == 0 && !strchr(wf_error_message(), '\n'),
                  "%s for %s: %s", to, from, plan ? "taken" : wf_error_message());
        wf_training_plan_free(plan);
        wf_error_clear();
    }
    free(copy);
}

static void a_file_holds_the_plan(void)
{
    char path[64];
    const wf_planner_meter meter = meter_new(1e6);
    wf_layer *model = images(3);
    snprintf(path, sizeof path, "planner-%ld.json", (long)getpid());
    wf_training_plan *plan = plan_of(model, WF_SHAPE(2, 3, 64, 64), &meter,
                                     (wf_planner_opts){.ranks = 4, .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL});
    WF_EXPECT_OK(wf_check(plan));
    WF_EXPECT_OK(wf_training_plan_write(plan, path));
    char *text = file_text(path), *again;
    wf_training_plan *read = wf_training_plan_parse(ctx, text, path);
    WF_EXPECT_OK(wf_check(read));
    WF_EXPECT_OK(wf_training_plan_write(read, path));
    again = file_text(path);
    WF_EXPECT(strcmp(text, again) == 0, "written again:\n%s\n%s", text, again);
    refused(text, "\"weft_plan\": 1", "\"weft_plan\": 2");
    refused(text, "\"ranks\": 4", "\"ranks\": 8");
    refused(text, "\"ranks\": 4", "\"ranks\": -4");
    refused(text, "\"batch\": 2", "\"batch\": \"two\"");
    refused(text, "\"batch\": 2", "\"batch\": 2.5");
    refused(text, "\"batch\": 2", "\"batch\": 1e300");
    refused(text, "\"stages\": []", "\"stages\": [1, 2]");
    refused(text, "\"split\"", "\"cut\"");
    refused(text, "\"split\": \"spatial\"", "\"split\": \"rows\"");
    refused(text, "\"layers\"", "\"lairs\"");
    refused(text, "},\n", "\n");
    refused(text, "}\n  ]\n}\n", "}");
    refused(text, "\"recompute\": false", "\"recompute\": 0");
    refused(text, "\"weft_plan\": 1", "\"a\nb\": 1, \"weft_plan\": 1");
    refused(text, "\"weft_plan\": 1", "\"a\\qb\": 1, \"weft_plan\": 1");
    for (size_t cut = strlen(text) - 3; cut > 8; cut = cut * 3 / 4) {
        text[cut] = '\0';
        WF_EXPECT(!wf_training_plan_parse(ctx, text, "torn.json"), "torn at %zu: taken", cut);
        wf_error_clear();
    }
    free(text);
    free(again);
    wf_training_plan_free(plan);
    free_both(read, model);
    unlink(path);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"many_samples_are_divided", many_samples_are_divided},
                                               {"one_large_image_is_cut", one_large_image_is_cut},
                                               {"wide_layers_are_split_by_channels", wide_layers_are_split_by_channels},
                                               {"layers_differ", layers_differ},
                                               {"rings_send_more", rings_send_more},
                                               {"attention_sends", attention_sends},
                                               {"whole_windows", whole_windows},
                                               {"no_forms_are_faster", no_forms_are_faster},
                                               {"heavy_layers_become_stages", heavy_layers_become_stages},
                                               {"idle_time_is_priced", idle_time_is_priced},
                                               {"split_layers_are_measured", split_layers_are_measured},
                                               {"a_part_takes_its_share", a_part_takes_its_share},
                                               {"sums_go_on_beside_backward", sums_go_on_beside_backward},
                                               {"shards_have_their_own_price", shards_have_their_own_price},
                                               {"memory_is_kept", memory_is_kept},
                                               {"the_state_is_sharded", the_state_is_sharded},
                                               {"little_memory_recomputes", little_memory_recomputes},
                                               {"a_file_holds_the_plan", a_file_holds_the_plan},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
