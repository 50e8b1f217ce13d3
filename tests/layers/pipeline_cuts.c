/* Checks where a pipeline divides a chain, how often its stages compute a layer, and what they hold. */
#include "tests/layers/pipeline_fixture.h"

#include <time.h>

/* --- cuts -----------------------------------------------------------------------------------------------------------
 */

static void expect_cuts(wf_layer *chain, wf_pipeline_opts opts, const int *expected)
{
    int parts = 0;
    opts.loss = wf_mean_cross_entropy;
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, chain, opts);
    const int *cuts = wf_pipeline_cuts(pipe, &parts);
    WF_EXPECT(pipe && parts == 2, "%s", wf_error_trail());
    for (int i = 0; i < 2 && cuts; i++)
        WF_EXPECT(cuts[i] == expected[i], "part %d has %d layers, not %d", i, cuts[i], expected[i]);
    wf_pipeline_free(pipe);
}

/* Given, by a cost, by parameters (48, 0, 63, 56, 48, 42, 42, 42, 28). */
static void cuts(void)
{
    const double cost[9] = {1, 1, 1, 1, 1, 1, 1, 1, 8};
    if (world_size() != 2 || !open_on("cpu", WF_F32, 2))
        return;
    expect_cuts(model_new(false, false), (wf_pipeline_opts){.layers = (int[]){7, 2}}, (int[]){7, 2});
    expect_cuts(model_new(false, false), (wf_pipeline_opts){.cost = cost}, (int[]){8, 1});
    expect_cuts(model_new(false, false), (wf_pipeline_opts){0}, (int[]){4, 5});
    close_on();
}

/* Computes for 20 ms, and has no parameters. */
static wf_var *slow(wf_var *x)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec) < 0.02);
    return wf_tanh(x);
}

/* By measured time a layer that takes a thousand times as long as the other five together is alone in its part. */
static void cuts_by_time(void)
{
    const batch b = {.n = 4};
    if (world_size() != 2 || !open_on("cpu", WF_F32, 2))
        return;
    wf_tensor *x = x_of(&b, WF_F32, 0, 4);
    for (int last = 0; last < 2; last++) {
        wf_layer *chain = wf_sequential(on.ctx, 0, NULL);
        for (int i = 0; i < 6; i++) {
            const char name[2] = {(char)('0' + i), 0};
            wf_layer *layer = i == 5 * last ? wf_lambda(on.ctx, slow) : dense(IN, IN);
            WF_EXPECT(wf_module_add(chain, name, layer), "%s", wf_error_trail());
        }
        expect_cuts(chain, (wf_pipeline_opts){.sample = x}, last ? (int[]){5, 1} : (int[]){1, 5});
    }
    wf_tensor_free(x);
    close_on();
}

static wf_var *wide(wf_var *x)
{
    return wf_tanh(wf_concat(4, (wf_var *[]){x, x, x, x}, 1));
}

static wf_var *narrow(wf_var *x)
{
    wf_box box = wf_box_of_shape(wf_var_shape(x));
    box.hi[1] = 64;
    return wf_slice(x, box);
}

/* Eight layers of 16 KiB of parameters each, so 80 KiB to train; two of the first ones keep 1.3 MiB of a chunk and are
 * to be balanced by six others only where memory counts, and GPipe holds all chunks, on both stages alike. */
static void cuts_by_memory(void)
{
    if (world_size() != 2 || !open_on("cpu", WF_F32, 2))
        return;
    wf_tensor *x = wf_tensor_new(on.ctx, WF_F32, WF_SHAPE(512, 64));
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    for (int gpipe = 0; gpipe < 2; gpipe++) {
        wf_layer *chain =
            wf_sequential(on.ctx, WF_LAYERS(dense(64, 64), wf_lambda(on.ctx, wide), wf_lambda(on.ctx, narrow),
                                            dense(64, 64), dense(64, 64), dense(64, 64), dense(64, 64), dense(64, 64)));
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, chain,
                                            (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
                                                               .schedule = gpipe ? WF_PIPELINE_GPIPE : WF_PIPELINE_1F1B,
                                                               .chunks = 8,
                                                               .sample = x,
                                                               .by_memory = true});
        WF_EXPECT(pipe, "%s", wf_error_trail());
        const int *cuts = wf_pipeline_cuts(pipe, NULL);
        /* With 1F1B the first stage holds two chunks, and the last one. */
        WF_EXPECT(cuts && cuts[0] == (gpipe ? 2 : 1), "%d layers on the first stage", cuts ? cuts[0] : 0);
        wf_pipeline_free(pipe);
    }
    wf_tensor_free(x);
    close_on();
}

/* --- another kind of chain ------------------------------------------------------------------------------------------
 */

static wf_var *apply_children(wf_layer *layer, wf_var *x)
{
    for (int i = 0; i < layer->n_children; i++)
        x = wf_apply(layer->children[i], x);
    return x;
}

static const wf_layer_kind own_kind = {.name = "own chain", .forward = apply_children, .chain = true};

static wf_layer *own_chain(wf_layer *first, wf_layer *second, wf_layer *third)
{
    wf_layer *chain = wf_layer_new(on.ctx, &own_kind, 0), *layer[] = {first, second, third};
    static const char *const names[] = {"first", "second", "third"};
    chain->takes_children = true;
    for (int i = 0; i < 3 && layer[i]; i++)
        WF_EXPECT(wf_module_add(chain, names[i], layer[i]), "%s", wf_error_trail());
    return chain;
}

static wf_layer *model_of_own_chains(void)
{
    return wf_layer_named(own_chain(dense(IN, 6), own_chain(dense(6, 7), dense(7, 6), NULL), dense(6, CLASSES)), "net");
}

static double own_step(wf_optim *optim, wf_tape *tape, wf_var *loss)
{
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return value;
}

/* A kind of layer that says it is a chain is cut between any two of its layers, also inside of another one, and trains
 * as it does on one rank. */
static void own_chains(void)
{
    const int size = world_size();
    test_rng rng = {31};
    int layers[4], parts = 0;
    if (size > 4 || !open_on("ref", WF_F64, size))
        return;
    for (int i = 0; i < size; i++)
        layers[i] = 4 * (i + 1) / size - 4 * i / size;
    wf_layer *serial = model_of_own_chains();
    wf_pipeline *pipe =
        wf_pipeline_new(on.mesh, model_of_own_chains(),
                        (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = 3, .layers = layers});
    WF_EXPECT(pipe && wf_pipeline_cuts(pipe, &parts) && parts == size, "%s", wf_error_trail());
    wf_optim *optim = wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), (wf_sgd_opts){.lr = 0.1}),
                                         (wf_multi_node_opts){0}),
             *local = wf_sgd(serial, (wf_sgd_opts){.lr = 0.1});
    wf_tape *tape = wf_tape_new(on.ctx);
    for (int step = 0; step < 3 && optim; step++) {
        const batch b = batch_of(&rng, 8);
        wf_tensor *x = x_of(&b, WF_F64, 0, 8), *labels = labels_of(&b, 0, 8);
        const double expected = own_step(
            local, tape, wf_softmax_cross_entropy(wf_apply(serial, wf_input(tape, x)), labels, (wf_label_opts){0}));
        const double loss = own_step(optim, tape, wf_pipeline_step(pipe, tape, x, labels));
        WF_EXPECT(isfinite(expected) && test_distance(1, &loss, &expected) < 1e-12, "step %d: a loss of %g, not %g",
                  step, loss, expected);
        wf_tensor_free(x);
        wf_tensor_free(labels);
    }
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_optim_free(local);
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
    close_on();
}

/* --- recomputation --------------------------------------------------------------------------------------------------
 */

static int forwards; /* on this rank */

static wf_var *counted(wf_var *x)
{
    forwards++;
    return wf_tanh(x);
}

/* Each part has a layer that counts. */
static wf_pipeline *counting_pipeline(int stages, wf_pipeline_opts opts)
{
    enum { PARTS = 8 };
    int layers[PARTS];
    wf_layer *layer[2 * PARTS];
    const int parts = stages * opts.parts;
    for (int i = 0; i < parts; i++) {
        layer[2 * i] = dense(IN, IN);
        layer[2 * i + 1] = wf_lambda(on.ctx, counted);
        layers[i] = 2;
    }
    opts.loss = wf_mean_cross_entropy;
    opts.layers = layers;
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, wf_sequential(on.ctx, 2 * parts, layer), opts);
    WF_EXPECT(pipe, "%s", wf_error_trail());
    return pipe;
}

/* What a step computes, of each chunk in each part: once, or once more in backward. */
static int expected_forwards(const wf_pipeline_opts *o, bool last_stage)
{
    /* The chunks of the stage's last part whose backward follows at once. GPipe's first backward is that of the first
     * chunk. */
    const bool at_once = o->chunks == 1 || (last_stage && o->schedule != WF_PIPELINE_GPIPE);
    if (o->recompute == WF_RECOMPUTE_NEVER)
        return o->parts * o->chunks;
    return (2 * o->parts - (o->recompute == WF_RECOMPUTE_EXCEPT_LAST && at_once)) * o->chunks;
}

static void count_forwards(int stages, wf_pipeline_opts opts)
{
    wf_pipeline *pipe = counting_pipeline(stages, opts);
    wf_tape *tape = wf_tape_new(on.ctx);
    const batch b = {.n = MOST};
    wf_tensor *x = x_of(&b, WF_F32, 0, MOST), *labels = labels_of(&b, 0, MOST);
    const int expected = expected_forwards(&opts, on.rank == stages - 1);
    forwards = 0;
    WF_EXPECT_OK(wf_backward(wf_pipeline_step(pipe, tape, x, labels)));
    WF_EXPECT(forwards == expected, "schedule %d, recompute %d, %d chunks: stage %d computes %d times, not %d",
              (int)opts.schedule, (int)opts.recompute, opts.chunks, on.rank, forwards, expected);
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    forwards = 0;
    WF_EXPECT(wf_pipeline_apply(pipe, tape, x), "%s", wf_error_trail());
    WF_EXPECT(forwards == opts.parts * opts.chunks, "stage %d evaluates %d times, not %d", on.rank, forwards,
              opts.parts * opts.chunks);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
}

static void recomputes(void)
{
    const int size = world_size();
    if (size > 4 || !open_on("ref", WF_F32, size))
        return;
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++)
        for (int how = WF_RECOMPUTE_NEVER; how <= WF_RECOMPUTE_ALWAYS; how++)
            for (int chunks = 1; chunks <= 6; chunks += chunks == 1 ? 4 : 1)
                count_forwards(size, (wf_pipeline_opts){.schedule = (wf_pipeline_kind)kind,
                                                        .recompute = (wf_pipeline_recompute)how,
                                                        .chunks = chunks,
                                                        .parts = kind == WF_PIPELINE_INTERLEAVED ? 2 : 1});
    close_on();
}

/* --- memory ---------------------------------------------------------------------------------------------------------
 */

static wf_var *square_error(wf_var *y, const wf_tensor *target)
{
    return wf_mse(y, wf_input(wf_var_tape(y), target));
}

/* Bytes that a stage holds at most in a step, beyond what it holds before. */
static double step_bytes(wf_pipeline_kind kind)
{
    enum { DEPTH = 32, SIDE = 64 };
    wf_layer *layer[DEPTH];
    layer[0] = wf_conv2d(on.ctx, (wf_conv_opts){.in = 1, .out = 1, .kernel = 1});
    for (int i = 1; i < DEPTH; i++)
        layer[i] = wf_lambda(on.ctx, wf_tanh);
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, wf_sequential(on.ctx, DEPTH, layer),
                                        (wf_pipeline_opts){.loss = square_error, .chunks = 8, .schedule = kind});
    WF_EXPECT(pipe, "%s", wf_error_trail());
    wf_tensor *x = wf_tensor_new(on.ctx, WF_F32, WF_SHAPE(32, 1, SIDE, SIDE));
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    wf_tape *tape = wf_tape_new(on.ctx);
    const size_t before = wf_ctx_memory(on.ctx).bytes_in_use;
    WF_EXPECT(wf_pipeline_step(pipe, tape, x, x), "%s", wf_error_trail());
    const size_t most = wf_ctx_memory(on.ctx).bytes_peak;
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_pipeline_free(pipe);
    return (double)(most - before);
}

/* Checks that, with eight chunks on four stages, 1F1B keeps the activations of four chunks on the first stage and of
 * one on the last. */
static void activations(void)
{
    double bytes[2] = {0};
    if (world_size() != 4)
        return;
    for (int gpipe = 0; gpipe < 2; gpipe++) {
        if (!open_on("cpu", WF_F32, 4))
            return;
        bytes[gpipe] = step_bytes(gpipe ? WF_PIPELINE_GPIPE : WF_PIPELINE_1F1B);
        close_on();
    }
    static const double most[] = {0.55, 0.43, 0.31, 0.2};
    WF_EXPECT(bytes[0] <= most[on.rank] * bytes[1], "stage %d holds %g bytes with 1F1B and %g with GPipe", on.rank,
              bytes[0], bytes[1]);
    WF_EXPECT(bytes[0] >= 0.9 * (4 - on.rank) / 8 * bytes[1], "stage %d holds %g bytes with 1F1B and %g with GPipe",
              on.rank, bytes[0], bytes[1]);
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"cuts", cuts},
                                   {"cuts_by_time", cuts_by_time},
                                   {"cuts_by_memory", cuts_by_memory},
                                   {"own_chains", own_chains},
                                   {"recomputes", recomputes},
                                   {"activations", activations},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
