/* Skip connections across stages: evaluation, a step that overflows on one stage, and wrong ends, which are refused on
 * every rank. Training is in random_pipelines.c. */
#include "tests/layers/pipeline_fixture.h"

enum { WIDTH = 6 };

static wf_var *beside(wf_var *x, wf_var *kept)
{
    return wf_concat(2, (wf_var *[]){x, kept}, 1);
}

/* Skips that cross, that lie inside each other, that begin at one value, and one around a single layer. */
static wf_layer *skips_model(void)
{
    static wf_var *(*function)(wf_var *) = wf_tanh;
    wf_ctx *ctx = on.ctx;
    wf_layer *inner = wf_sequential(ctx, WF_LAYERS(dense(WIDTH, WIDTH), wf_skip_pop(ctx, "a", NULL),
                                                   wf_skip_stash(ctx, "d"), wf_lambda(ctx, wf_tanh)));
    wf_layer *model =
        wf_sequential(ctx, WF_LAYERS(dense(IN, WIDTH), wf_skip_stash(ctx, "a"), wf_skip_stash(ctx, "b"),
                                     block(WIDTH, WIDTH, &function), wf_skip_stash(ctx, "c"), inner,
                                     wf_skip_pop(ctx, "c", wf_mul), dense(WIDTH, WIDTH), wf_skip_pop(ctx, "b", beside),
                                     dense(2 * WIDTH, WIDTH), wf_skip_stash(ctx, "e"), wf_lambda(ctx, wf_sigmoid),
                                     wf_skip_pop(ctx, "e", NULL), wf_skip_pop(ctx, "d", NULL)));
    WF_EXPECT(wf_module_add(model, "last", dense(WIDTH, WIDTH)), "%s", wf_error_trail());
    return wf_layer_named(model, "net");
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

/* A chain that is balanced by time, or by bytes, and evaluated, where nothing waits for a backward. */
static void evaluates(void)
{
    const int size = size_of_world();
    for (int i = 0; i < 4 && size <= 3; i++) {
        test_rng rng = {41};
        if (!open_mesh(WF_F64, (wf_mesh_opts){.stage = size}))
            return;
        batch b = {.n = 7};
        for (int k = 0; k < 7 * IN; k++)
            b.x[k] = test_uniform(&rng, -1, 1);
        wf_tensor *x = x_of(&b, WF_F64, 0, 7), *few = x_of(&b, WF_F64, 0, 3);
        wf_layer *serial = skips_model();
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, skips_model(),
                                            (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
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
        on.mesh, model, (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = 2, .layers = layers});
    wf_optim *optim =
        wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0});
    WF_EXPECT_OK(wf_optim_scale_loss(optim, (wf_loss_scale_opts){.init = 8}));
    wf_tape *tape = wf_tape_new(on.ctx);
    batch b = {.n = 4};
    for (int step = 0; step < 2; step++) {
        /* Only the first stage overflows: its gradient is the product of x and a small gradient. */
        for (int i = 0; i < 4 * IN; i++)
            b.x[i] = step == 0 ? 3e38 * (i % IN == 0) : 0.1 * i;
        if (on.rank == 1)
            WF_EXPECT_OK(
                wf_tensor_fill(wf_param_value(wf_layer_param(wf_pipeline_model(pipe), "1/W")), step == 0 ? 0 : 0.5));
        wf_tensor *x = x_of(&b, WF_F32, 0, 4), *labels = labels_of(&b, 0, 4);
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
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, chain, (wf_pipeline_opts){.loss = wf_mean_cross_entropy});
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
        wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .layers = layers});
    wf_tape *tape = wf_tape_new(ctx);
    const batch b = {.n = 4};
    wf_tensor *x = x_of(&b, WF_F32, 0, 4), *labels = labels_of(&b, 0, 4);
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
                     (test_case[]){{"evaluates", evaluates},
                                   {"overflow", overflow},
                                   {"wrong_ends", wrong_ends},
                                   {"silent_join", silent_join},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
