/* Weights that are tied on several stages of a pipeline, and on which the stages do not agree: one error of all ranks.
 */
#include "tests/layers/pipeline_fixture.h"

/* A dense layer for each stage; the first and the last one have the same weights. */
static wf_layer *tied_model(int stages)
{
    static const char *const names[] = {"1", "2", "3"};
    wf_layer *model = wf_layer_named(wf_sequential(on.ctx, WF_LAYERS(dense(IN, IN))), "net");
    for (int i = 1; i < stages; i++)
        WF_EXPECT(wf_module_add(model, i < stages - 1 ? names[i - 1] : "last", dense(IN, IN)), "%s", wf_error_trail());
    WF_EXPECT_OK(wf_layer_tie(model, "last/W", "0/W"));
    return model;
}

/* Tied weights that are frozen on all ranks, that one stage freezes in the beginning, and that one freezes after a
 * step, in a program of two steps: the last two are one error on all ranks. */
static void freeze(int on_one, int size)
{
    wf_layer *model = tied_model(size);
    if (on_one == 0 || (on_one == 1 && on.rank == 0))
        WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(model, "0/W"), false));
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = 2});
    wf_optim *optim =
        wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0});
    wf_tape *tape = wf_tape_new(on.ctx);
    const batch b = {.n = 4};
    wf_tensor *x = x_of(&b, WF_F32, 0, 4), *labels = labels_of(&b, 0, 4);
    for (int step = 0; step < 2; step++) {
        wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
        if (step + 1 == on_one) {
            char stages[96];
            snprintf(stages, sizeof stages, "/W is tied on several stages, and trained on stage %d but not on stage 0",
                     size - 1);
            WF_EXPECT(!loss && strstr(wf_error_message(), stages), "rank %d: '%s'", on.rank, wf_error_message());
            break;
        }
        WF_EXPECT(loss, "rank %d, step %d: %s", on.rank, step, wf_error_trail());
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        WF_EXPECT_OK(wf_tape_reset(tape));
        if (on_one == 2 && on.rank == 0)
            WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(wf_pipeline_model(pipe), "0/W"), false));
    }
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_pipeline_free(pipe);
}

static void frozen_ties(void)
{
    for (int on_one = 0; on_one < 3; on_one++) {
        const int size = open_stages(WF_F32);
        if (size > 1)
            freeze(on_one, size);
        close_stages();
    }
}

/* Returns true if the error names both copies. */
static bool names_copies(int size)
{
    char stages[96];
    snprintf(stages, sizeof stages, "last/W on stage %d should have equal values", size - 1);
    return strstr(wf_error_message(), "net/0/W on stage 0 and net/") && strstr(wf_error_message(), stages);
}

/* A program that changes one copy of tied weights, on the first stage or on the last: the next comparison is one error
 * of all ranks, which names both. Between two comparisons no rank notices. */
static void part(int every, bool first, int size)
{
    wf_pipeline *pipe =
        wf_pipeline_new(on.mesh, tied_model(size),
                        (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = 2, .compare_every = every});
    wf_optim *optim =
        wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0});
    wf_tape *tape = wf_tape_new(on.ctx);
    const batch b = {.n = 4};
    wf_tensor *x = x_of(&b, WF_F32, 0, 4), *labels = labels_of(&b, 0, 4);
    const int noticed = every < 0 ? 9 : every == 1 ? 1 : every;
    for (int step = 0; step < 4; step++) {
        wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
        if (step == noticed) {
            WF_EXPECT(!loss && names_copies(size), "rank %d: '%s'", on.rank, wf_error_message());
            break;
        }
        WF_EXPECT(loss, "rank %d, step %d: %s", on.rank, step, wf_error_trail());
        const wf_status status = wf_optim_step(optim, loss);
        /* Ranks without a copy take no part in the comparison: they may be told of it while they end the step before.
         */
        if (status != WF_OK && step + 1 == noticed && on.rank > 0 && on.rank < size - 1 && names_copies(size))
            break;
        WF_EXPECT_OK(status);
        WF_EXPECT_OK(wf_tape_reset(tape));
        if (step == 0 && on.rank == (first ? 0 : size - 1))
            WF_EXPECT_OK(wf_tensor_fill(
                wf_param_value(wf_layer_param(wf_pipeline_model(pipe), first ? "0/W" : "last/W")), 0.25));
    }
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_pipeline_free(pipe);
}

static void differing_ties(void)
{
    static const int every[] = {1, 3, -1};
    for (int i = 0; i < 6; i++) {
        const int size = open_stages(WF_F32);
        if (size > 1)
            part(every[i / 2], i % 2, size);
        close_stages();
    }
}

/* LAMB moves a parameter by its norm. Where optimizers are sharded, stages add up its squares in other parts, and tied
 * weights are equal bit for bit all the same: stages that compare them before every step find no difference. */
static void sharded_norms(void)
{
    test_rng rng = {5};
    on.comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1, .seed = 3});
    on.ctx = wf_comm_ctx(on.comm);
    const int stages = wf_comm_size(on.comm) == 4 ? 2 : 1;
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){.stage = stages});
    wf_layer *model = wf_layer_named(
        wf_sequential(on.ctx, WF_LAYERS(dense(IN, 7), dense(7, 7), dense(7, 7), dense(7, CLASSES))), "net");
    WF_EXPECT_OK(wf_layer_tie(model, "2/W", "1/W"));
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, model,
                                        (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
                                                           .chunks = 2,
                                                           .layers = stages == 2 ? (int[]){2, 2} : (int[]){4},
                                                           .compare_every = 1});
    wf_optim *optim = wf_mesh_multi_node(on.mesh, wf_lamb(wf_pipeline_model(pipe), (wf_lamb_opts){.lr = 0.1}),
                                         (wf_multi_node_opts){.shard_optimizer = true});
    wf_tape *tape = wf_tape_new(on.ctx);
    for (int step = 0; step < 8; step++) {
        const batch b = batch_of(&rng, 4);
        wf_tensor *x = x_of(&b, WF_F64, 0, 4), *labels = labels_of(&b, 0, 4);
        const wf_status status = wf_optim_step(optim, wf_pipeline_step(pipe, tape, x, labels));
        WF_EXPECT(status == WF_OK, "step %d: %s", step, wf_error_message());
        wf_tensor_free(x);
        wf_tensor_free(labels);
        if (status != WF_OK || wf_tape_reset(tape) != WF_OK)
            break;
    }
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_pipeline_free(pipe);
    close_stages();
}

static int run(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){
            {"frozen_ties", frozen_ties}, {"differing_ties", differing_ties}, {"sharded_norms", sharded_norms}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
