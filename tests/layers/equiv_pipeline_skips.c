/* Skip connections across stages and weights that are tied on two or three of them: pipelines compute what the serial
 * program does, tied parameters stay equal bit for bit, and wrong ends are refused on every rank. */
#include "tests/layers/pipeline_fixture.h"

#include "core/random_author.h"

enum { LAYERS = 18, WIDTH = 6 };

/* What is drawn for a run; samples of each place along data. */
typedef struct plan {
    wf_dtype dtype;
    int stages, data, parts, cuts[8], chunks, samples[4];
    bool draws, tied, frozen, clip, exact;
    wf_pipeline_kind kind;
    wf_pipeline_recompute recompute;
} plan;

static const char *text_of_plan(const plan *p)
{
    static char text[200];
    int used = snprintf(text, sizeof text, "%d stages, data %d, schedule %d, recompute %d, %d chunks%s%s%s%s, parts of",
                        p->stages, p->data, (int)p->kind, (int)p->recompute, p->chunks, p->tied ? ", tied" : "",
                        p->frozen ? ", frozen" : "", p->draws ? ", draws" : "", p->clip ? ", clipped" : "");
    for (int i = 0; i < p->stages * p->parts; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, " %d", p->cuts[i]);
    return text;
}

static wf_var *beside(wf_var *x, wf_var *kept)
{
    return wf_concat(2, (wf_var *[]){x, kept}, 1);
}

/* Skips that cross, that lie inside each other, that begin at one value, and one around a single layer. */
static wf_layer *skips_model(const plan *p)
{
    static wf_var *(*functions[])(wf_var *) = {wf_tanh, drop};
    wf_ctx *ctx = on.ctx;
    wf_layer *inner = wf_sequential(ctx, WF_LAYERS(dense(WIDTH, WIDTH), wf_skip_pop(ctx, "a", NULL),
                                                   wf_skip_stash(ctx, "d"), wf_lambda(ctx, wf_tanh)));
    wf_layer *model =
        wf_sequential(ctx, WF_LAYERS(dense(IN, WIDTH), wf_skip_stash(ctx, "a"), wf_skip_stash(ctx, "b"),
                                     block(WIDTH, WIDTH, &functions[p->draws]), wf_skip_stash(ctx, "c"), inner,
                                     wf_skip_pop(ctx, "c", wf_mul), dense(WIDTH, WIDTH), wf_skip_pop(ctx, "b", beside),
                                     dense(2 * WIDTH, WIDTH), wf_skip_stash(ctx, "e"), wf_lambda(ctx, wf_sigmoid),
                                     wf_skip_pop(ctx, "e", NULL), wf_skip_pop(ctx, "d", NULL)));
    WF_EXPECT(wf_module_add(model, "last", dense(WIDTH, WIDTH)), "%s", wf_error_trail());
    if (p->tied) {
        WF_EXPECT_OK(wf_layer_tie(model, "7/W", "3/dense/W"));
        WF_EXPECT_OK(wf_layer_tie(model, "last/W", "3/dense/W"));
        WF_EXPECT_OK(wf_layer_tie(model, "last/b", "5/0/b"));
    }
    if (p->frozen)
        WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(model, "3/dense/W"), false));
    return wf_layer_named(model, "net");
}

/* --- steps -----------------------------------------------------------------------------------------------------------
 */

typedef struct rows {
    int n;
    double x[4 * MOST * IN];
    int64_t label[4 * MOST];
} rows;

static wf_tensor *x_rows(const rows *b, wf_dtype dtype, int64_t lo, int64_t hi)
{
    wf_tensor *wide = wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(hi - lo, IN), b->x + lo * IN);
    wf_tensor *x = wf_tensor_copy(wide, dtype, WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return x;
}

/* Each chunk of each place along data by itself. */
static double expected_step(wf_optim *optim, wf_tape *const *tape, const rows *b, const plan *p)
{
    double sum = 0;
    for (int r = 0, first = 0; r < p->data; first += p->samples[r++])
        for (int c = 0; c < p->chunks; c++) {
            int64_t lo, hi;
            wf_block(p->samples[r], p->chunks, c, &lo, &hi);
            wf_tensor *x = x_rows(b, p->dtype, first + lo, first + hi),
                      *labels = wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(hi - lo), b->label + first + lo);
            wf_var *loss = wf_softmax_cross_entropy(wf_apply(wf_optim_model(optim), wf_input(tape[r], x)), labels);
            WF_EXPECT(loss, "%s", wf_error_trail());
            sum += hi > lo ? (double)(hi - lo) * wf_item(loss) : 0;
            const bool last = r == p->data - 1 && c == p->chunks - 1;
            WF_EXPECT_OK(last ? wf_optim_step(optim, loss) : wf_optim_accumulate(optim, loss));
            wf_tensor_free(x);
            wf_tensor_free(labels);
        }
    for (int r = 0; r < p->data; r++)
        WF_EXPECT_OK(wf_tape_reset(tape[r]));
    return sum / b->n;
}

static double stages_step(wf_pipeline *pipe, wf_optim *optim, wf_tape *tape, const rows *b, const plan *p)
{
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    int lo = 0;
    for (int r = 0; r < place; r++)
        lo += p->samples[r];
    wf_tensor *x = x_rows(b, p->dtype, lo, lo + p->samples[place]),
              *labels = wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(p->samples[place]), b->label + lo);
    wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
    WF_EXPECT(loss, "%s: %s", text_of_plan(p), wf_error_trail());
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double value = wf_item(loss);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return value;
}

/* The name under which the serial model lists what a layer's parameter is tied to. */
static const char *listed(const plan *p, const char *path)
{
    static const char *const names[][2] = {{"7/W", "3/dense/W"}, {"last/W", "3/dense/W"}, {"last/b", "5/0/b"}};
    for (int i = 0; i < 3 && p->tied; i++)
        if (strcmp(path, names[i][0]) == 0)
            return names[i][1];
    return path;
}

static void compare_all(const plan *p, int step, wf_layer *model, wf_layer *serial)
{
    const double tolerance = p->exact ? 0 : 1e-12;
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        double a[128], b[128];
        wf_param *other = wf_layer_param(serial, listed(p, wf_param_path(params[i]) + strlen("net/")));
        WF_EXPECT(other, "%s: %s", text_of_plan(p), wf_error_message());
        if (!other)
            return;
        values_get(wf_param_value(params[i]), a);
        values_get(wf_param_value(other), b);
        const double distance = test_distance(wf_shape_count(wf_param_shape(other)), a, b);
        WF_EXPECT(distance <= tolerance, "%s, step %d: %s is off by %g", text_of_plan(p), step,
                  wf_param_path(params[i]), distance);
    }
}

/* All ranks that have the parameter have its bits. */
static void same_bits(const plan *p, wf_layer *model, const char *first)
{
    static const char *const paths[] = {"3/dense/W", "7/W", "last/W", "5/0/b", "last/b"};
    wf_param *const *params;
    int64_t n = 0;
    int64_t range[2] = {INT64_MAX, INT64_MAX};
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 5; k++) {
            const char *path = wf_param_path(params[i]) + strlen("net/");
            double value[WIDTH * WIDTH];
            uint64_t hash = 0, word;
            if (strcmp(path, paths[k]) != 0 || strcmp(listed(p, path), first) != 0)
                continue;
            values_get(wf_param_value(params[i]), value);
            for (int64_t j = 0; j < wf_shape_count(wf_param_shape(params[i])); j++) {
                memcpy(&word, &value[j], sizeof word);
                hash = wf_hash_u64(hash, word);
            }
            range[0] = (int64_t)(hash >> 2);
            range[1] = -range[0];
        }
    WF_EXPECT_OK(wf_allreduce_i64(on.comm, range, 2, WF_MIN));
    WF_EXPECT(range[0] == -range[1], "%s: %s has other bits on another rank", text_of_plan(p), first);
}

/* --- runs ------------------------------------------------------------------------------------------------------------
 */

static void run_plan(const plan *p, test_rng *rng)
{
    static rows b;
    wf_layer *serial = skips_model(p);
    wf_optim *local = momentum_new(serial, 0.1, p->clip ? 0.1 : 0);
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, skips_model(p),
                                        (wf_pipeline_opts){.loss = wf_softmax_cross_entropy,
                                                           .chunks = p->chunks,
                                                           .schedule = p->kind,
                                                           .parts = p->kind == WF_PIPELINE_INTERLEAVED ? p->parts : 0,
                                                           .recompute = p->recompute,
                                                           .layers = p->cuts});
    WF_EXPECT(pipe, "%s: %s", text_of_plan(p), wf_error_trail());
    wf_optim *optim = wf_mesh_multi_node(on.mesh, momentum_new(wf_pipeline_model(pipe), 0.1, p->clip ? 0.1 : 0));
    WF_EXPECT(optim, "%s: %s", text_of_plan(p), wf_error_trail());
    wf_tape *tape = wf_tape_new(on.ctx), *own[4];
    for (int r = 0; r < 4; r++)
        own[r] = wf_tape_new(on.ctx);
    for (int step = 0; step < 3 && optim; step++) {
        b.n = 0;
        for (int r = 0; r < p->data; r++)
            b.n += p->samples[r];
        for (int i = 0; i < b.n * IN; i++)
            b.x[i] = test_uniform(rng, -1, 1);
        for (int i = 0; i < b.n; i++)
            b.label[i] = test_int(rng, 0, CLASSES - 1);
        const double expected = expected_step(local, own, &b, p), loss = stages_step(pipe, optim, tape, &b, p);
        WF_EXPECT(test_distance(1, &loss, &expected) <= (p->exact ? 1e-6 : 1e-12), "%s, step %d: a loss of %g, not %g",
                  text_of_plan(p), step, loss, expected);
        compare_all(p, step, wf_pipeline_model(pipe), serial);
    }
    if (p->tied && optim) {
        same_bits(p, wf_pipeline_model(pipe), "3/dense/W");
        same_bits(p, wf_pipeline_model(pipe), "5/0/b");
    }
    wf_tape_free(tape);
    for (int r = 0; r < 4; r++)
        wf_tape_free(own[r]);
    wf_optim_free(optim);
    wf_optim_free(local);
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
}

static bool open_mesh(wf_dtype dtype, wf_mesh_opts opts)
{
    on.comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = dtype, .threads = 1, .seed = 3});
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, opts);
    WF_EXPECT(on.mesh, "%s", wf_error_trail());
    return on.mesh;
}

static void close_mesh(void)
{
    wf_mesh_close(on.mesh);
    WF_EXPECT_OK(wf_comm_close(on.comm));
}

static int size_of_world(void)
{
    wf_comm *comm = test_comm_open("naive", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return size;
}

/* Every stage has a layer with parameters, as its optimizer wants. */
static bool trains(const plan *p)
{
    static const int with[] = {0, 3, 5, 10, 12, 17};
    bool any[4] = {false};
    for (int k = 0; k < 6; k++) {
        int part = 0;
        for (int end = p->cuts[0]; with[k] >= end; end += p->cuts[++part])
            ;
        any[part % p->stages] = true;
    }
    for (int s = 0; s < p->stages; s++)
        if (!any[s])
            return false;
    return true;
}

static void draw_cuts(plan *p, test_rng *rng)
{
    const int parts = p->stages * p->parts;
    do {
        for (int i = 0; i < parts; i++)
            p->cuts[i] = 1;
        for (int left = LAYERS - parts; left > 0; left--)
            p->cuts[test_int(rng, 0, parts - 1)]++;
    } while (!trains(p));
}

static void draw_plan(plan *p, test_rng *rng, int size)
{
    *p = (plan){.dtype = WF_F64, .chunks = (int)test_int(rng, 1, 5)};
    do
        p->stages = (int)test_int(rng, 1, 4);
    while (size % p->stages != 0 || size / p->stages > 4);
    p->data = size / p->stages;
    p->kind = (wf_pipeline_kind)test_int(rng, 0, 2);
    p->parts = p->kind == WF_PIPELINE_INTERLEAVED ? (int)test_int(rng, 1, 2) : 1;
    p->recompute = (wf_pipeline_recompute)test_int(rng, 0, 2);
    p->tied = test_int(rng, 0, 1);
    p->clip = test_int(rng, 0, 1);
    p->draws = test_int(rng, 0, 1);
    for (int r = 0; r < p->data; r++)
        p->samples[r] = (int)test_int(rng, 1, MOST);
    draw_cuts(p, rng);
}

static void samples(void)
{
    test_rng rng = {31};
    const int size = size_of_world(), all = test_samples(60);
    for (int i = 0; i < all; i++) {
        plan p;
        draw_plan(&p, &rng, size);
        p.tied = i % 2 == 0;
        p.frozen = i % 4 == 0;
        p.clip = p.tied || p.clip;
        if (open_mesh(p.dtype, (wf_mesh_opts){.stage = p.stages}))
            run_plan(&p, &rng);
        close_mesh();
    }
}

/* Whether a part ends in a value that is also kept: its gradient is then a sum of two that were rounded, where the
 * serial program adds to one of them and rounds once. */
static bool ends_in_stash(const plan *p)
{
    static const int stashes[] = {1, 2, 4, 7, 13};
    for (int part = 0, end = 0; part < p->stages * p->parts; part++) {
        end += p->cuts[part];
        for (int k = 0; k < 5; k++)
            if (stashes[k] == end - 1)
                return true;
    }
    return false;
}

/* Without ties and data the gradients are added in the order of the serial program. */
static void bits(void)
{
    test_rng rng = {37};
    const int size = size_of_world();
    for (int i = 0; i < test_samples(40) && size <= 4; i++) {
        plan p;
        do
            draw_plan(&p, &rng, size);
        while (p.data > 1 || ends_in_stash(&p));
        p.dtype = WF_F32;
        /* Of one or two samples, whose weights round nothing. */
        p.samples[0] = p.chunks + (int)test_int(&rng, 0, p.chunks);
        p.tied = p.clip = false;
        p.exact = true;
        if (open_mesh(p.dtype, (wf_mesh_opts){.stage = p.stages}))
            run_plan(&p, &rng);
        close_mesh();
    }
}

/* A chain that is balanced by time, or by bytes, and evaluated, where nothing waits for a backward. */
static void evaluates(void)
{
    const int size = size_of_world();
    for (int i = 0; i < 4 && size <= 3; i++) {
        test_rng rng = {41};
        const plan p = {.dtype = WF_F64, .stages = size, .data = 1, .parts = 1};
        if (!open_mesh(p.dtype, (wf_mesh_opts){.stage = size}))
            return;
        rows b = {.n = 7};
        for (int k = 0; k < 7 * IN; k++)
            b.x[k] = test_uniform(&rng, -1, 1);
        wf_tensor *x = x_rows(&b, WF_F64, 0, 7), *few = x_rows(&b, WF_F64, 0, 3);
        wf_layer *serial = skips_model(&p);
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, skips_model(&p),
                                            (wf_pipeline_opts){.loss = wf_softmax_cross_entropy,
                                                               .chunks = 3,
                                                               .sample = few,
                                                               .schedule = i % 2 ? WF_PIPELINE_INTERLEAVED : 0,
                                                               .by_memory = i / 2});
        WF_EXPECT(pipe, "%s", wf_error_trail());
        wf_tape *tape = wf_tape_new(on.ctx);
        WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
        wf_var *expected = wf_apply(serial, wf_input(tape, x)), *y = wf_pipeline_apply(pipe, tape, x);
        WF_EXPECT(y, "%s", wf_error_trail());
        if (y && on.rank == size - 1) {
            double got[7 * WIDTH], want[7 * WIDTH];
            values_get(wf_value(y), got);
            values_get(wf_value(expected), want);
            WF_EXPECT(test_distance(7 * WIDTH, got, want) == 0, "the output is off");
        }
        wf_tensor_free(x);
        wf_tensor_free(few);
        wf_tape_free(tape);
        wf_pipeline_free(pipe);
        wf_layer_free(serial);
        close_mesh();
    }
}

/* A gradient that overflows on one stage leaves out the step on all. */
static void overflow(void)
{
    if (size_of_world() != 2 || !open_mesh(WF_F32, (wf_mesh_opts){.stage = 2}))
        return;
    static const int layers[] = {1, 1};
    wf_layer *model = wf_layer_named(wf_sequential(on.ctx, WF_LAYERS(dense(IN, WIDTH), dense(WIDTH, CLASSES))), "net");
    wf_pipeline *pipe = wf_pipeline_new(
        on.mesh, model, (wf_pipeline_opts){.loss = wf_softmax_cross_entropy, .chunks = 2, .layers = layers});
    wf_optim *optim = wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), (wf_sgd_opts){.lr = 1}));
    WF_EXPECT_OK(wf_optim_scale_loss(optim, (wf_loss_scale_opts){.init = 8}));
    wf_tape *tape = wf_tape_new(on.ctx);
    rows b = {.n = 4};
    for (int step = 0; step < 2; step++) {
        /* Of the first stage alone: its gradient is the product of x and a gradient that is small. */
        for (int i = 0; i < 4 * IN; i++)
            b.x[i] = step == 0 ? 3e38 * (i % IN == 0) : 0.1 * i;
        if (on.rank == 1)
            WF_EXPECT_OK(
                wf_tensor_fill(wf_param_value(wf_layer_param(wf_pipeline_model(pipe), "1/W")), step == 0 ? 0 : 0.5));
        wf_tensor *x = x_rows(&b, WF_F32, 0, 4), *labels = wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(4), b.label);
        WF_EXPECT_OK(wf_optim_step(optim, wf_pipeline_step(pipe, tape, x, labels)));
        wf_tensor_free(x);
        wf_tensor_free(labels);
        WF_EXPECT_OK(wf_tape_reset(tape));
        double skipped = (double)wf_optim_skipped(optim);
        WF_EXPECT(skipped == 1, "rank %d, step %d: %g steps are left out, not 1", on.rank, step, skipped);
    }
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_pipeline_free(pipe);
    close_mesh();
}

/* --- errors ----------------------------------------------------------------------------------------------------------
 */

static void refuse(wf_layer *chain, const char *what)
{
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, chain, (wf_pipeline_opts){.loss = wf_softmax_cross_entropy});
    WF_EXPECT(!pipe && strstr(wf_error_message(), what), "\"%s\" expected: %s", what, wf_error_message());
    wf_error_clear();
    wf_pipeline_free(pipe);
}

static wf_var *apply_end(wf_layer *self, void *user, wf_var *x)
{
    return wf_apply(wf_layer_child(self, "end"), x);
}

static void wrong_ends(void)
{
    if (size_of_world() != 2 || !open_mesh(WF_F32, (wf_mesh_opts){.stage = 2}))
        return;
    wf_ctx *ctx = on.ctx;
    refuse(wf_sequential(ctx, WF_LAYERS(dense(3, 3), wf_skip_stash(ctx, "a"), dense(3, 3))),
           "the pipeline keeps \"a\" by \"1\", and no wf_skip_pop behind it takes it");
    refuse(wf_sequential(ctx, WF_LAYERS(dense(3, 3), wf_skip_pop(ctx, "a", NULL), dense(3, 3))),
           "no layer of its chains is a wf_skip_stash of \"a\"");
    refuse(wf_sequential(ctx, WF_LAYERS(wf_skip_pop(ctx, "a", NULL), wf_skip_stash(ctx, "a"), dense(3, 3))),
           "the pipeline keeps \"a\" by \"1\", and no wf_skip_pop behind it takes it");
    refuse(wf_sequential(ctx, WF_LAYERS(wf_skip_stash(ctx, "a"), wf_skip_pop(ctx, "a", NULL),
                                        wf_skip_pop(ctx, "a", NULL), dense(3, 3))),
           "has several stashes or pops");
    wf_layer *module = wf_module(ctx, apply_end, NULL);
    wf_module_add(module, "end", wf_skip_pop(ctx, "a", NULL));
    refuse(wf_sequential(ctx, WF_LAYERS(wf_skip_stash(ctx, "a"), module, dense(3, 3))),
           "\"1/end\" inside of it is an end of a skip; the ends of a skip should be layers of the chain");
    wf_mesh_close(on.mesh);
    wf_comm_close(on.comm);
    wf_error_clear();
}

static wf_var *joins_nothing(wf_var *x, wf_var *kept)
{
    return NULL;
}

/* A join that leaves nothing is named on both stages. */
static void silent_join(void)
{
    if (size_of_world() != 2 || !open_mesh(WF_F32, (wf_mesh_opts){.stage = 2}))
        return;
    static const int layers[] = {2, 2};
    wf_ctx *ctx = on.ctx;
    wf_layer *model = wf_sequential(
        ctx, WF_LAYERS(dense(IN, IN), wf_skip_stash(ctx, "a"), dense(IN, IN), wf_skip_pop(ctx, "a", joins_nothing)));
    wf_pipeline *pipe =
        wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = wf_softmax_cross_entropy, .layers = layers});
    wf_tape *tape = wf_tape_new(ctx);
    const rows b = {.n = 4};
    wf_tensor *x = x_rows(&b, WF_F32, 0, 4), *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(4), b.label);
    wf_error_clear();
    WF_EXPECT(!wf_pipeline_step(pipe, tape, x, labels), "a step without an output");
    WF_EXPECT(strstr(wf_error_message(), "skip_pop \"3\": the join of \"a\" returned NULL and no error"),
              "rank %d: '%s'", on.rank, wf_error_message());
    wf_error_clear();
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
    wf_mesh_close(on.mesh);
    wf_comm_close(on.comm);
    wf_error_clear();
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"samples", samples},
                                   {"bits", bits},
                                   {"evaluates", evaluates},
                                   {"overflow", overflow},
                                   {"wrong_ends", wrong_ends},
                                   {"silent_join", silent_join},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
