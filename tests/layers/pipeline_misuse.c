/* Programs that use a pipeline wrongly: one clear error, on all ranks, where something was left out in silence or the
 * message named no cause. */
#include "tests/layers/pipeline_fixture.h"

static wf_var *one_step(wf_pipeline *pipe, wf_tape *tape)
{
    const batch b = {.n = 4};
    wf_tensor *x = x_of(&b, WF_F64, 0, 4), *labels = labels_of(&b, 0, 4);
    wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return loss;
}

static wf_pipeline *pipeline_of(wf_layer *model, wf_pipeline_loss loss)
{
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = loss, .chunks = 2});
    WF_EXPECT(pipe, "%s", wf_error_message());
    return pipe;
}

/* The step fails on all ranks with this text in its message. */
static void expect_failure(wf_pipeline *pipe, const char *text)
{
    wf_tape *tape = wf_tape_new(on.ctx);
    const wf_var *loss = one_step(pipe, tape);
    WF_EXPECT(!loss && strstr(wf_error_message(), text), "rank %d: \"%s\" expected: %s", on.rank, text,
              loss ? "a loss" : wf_error_message());
    wf_error_clear();
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
}

/* --- layers --------------------------------------------------------------------------------------------------------
 */

/* A layer that the program adds to this stage's model, or to a chain inside of it, would never be applied. */
static void added_layers(void)
{
    for (int on_one = 0; on_one < 2; on_one++) {
        const int last = open_stages(WF_F64) - 1;
        wf_pipeline *pipe = pipeline_of(model_new(false, false), wf_mean_cross_entropy);
        if (!on_one || on.rank == last)
            WF_EXPECT(wf_module_add(wf_pipeline_model(pipe), "extra", dense(CLASSES, CLASSES)), "%s",
                      wf_error_message());
        expect_failure(pipe, "\"net/extra\" was added to the model of a pipeline after it was cut");
        close_stages();
    }
}

static wf_var *nothing(wf_layer *self, void *user, wf_var *x)
{
    (void)self;
    (void)user;
    (void)x;
    return NULL;
}

static wf_var *no_value(wf_var *y, const wf_tensor *target)
{
    (void)y;
    (void)target;
    return NULL;
}

/* Functions of the program that return NULL and no error. */
static void returns_nothing(void)
{
    (void)open_stages(WF_F64);
    expect_failure(pipeline_of(model_new(false, false), no_value),
                   "the loss of a pipeline returned NULL and no error, for chunk 0; should be a variable");
    close_stages();
    for (int recompute = WF_RECOMPUTE_NEVER; recompute <= WF_RECOMPUTE_ALWAYS; recompute++) {
        (void)open_stages(WF_F64);
        wf_layer *model = model_new(false, false);
        WF_EXPECT(wf_module_add(model, "mine", wf_module(on.ctx, nothing, NULL)), "%s", wf_error_message());
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, model,
                                            (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
                                                               .chunks = 2,
                                                               .recompute = (wf_pipeline_recompute)recompute});
        expect_failure(pipe, "module \"net/mine\" returned NULL and no error");
        close_stages();
    }
    (void)open_stages(WF_F64);
    WF_EXPECT(!wf_pipeline_new(on.mesh, NULL, (wf_pipeline_opts){.loss = wf_mean_cross_entropy}) &&
                  strstr(wf_error_message(), "wf_pipeline_new: chain is NULL"),
              "%s", wf_error_message());
    close_stages();
}

/* --- losses --------------------------------------------------------------------------------------------------------
 */

static wf_var *detached(wf_var *y, const wf_tensor *target)
{
    return wf_softmax_cross_entropy(wf_detach(y), target, (wf_label_opts){0});
}

/* A step that would train nothing is refused as in a serial program, and one that trains some stages is not. */
static void trains_nothing(void)
{
    static const char *const expected = "depends on no parameter";
    for (int frozen = 0; frozen < 3; frozen++) {
        wf_param *const *params;
        int64_t n = 0;
        (void)open_stages(WF_F64);
        wf_pipeline *pipe = pipeline_of(model_new(false, false), frozen == 0 ? detached : wf_mean_cross_entropy);
        WF_EXPECT_OK(wf_layer_params(wf_pipeline_model(pipe), &n, &params));
        for (int64_t i = 0; i < n; i++)
            if (frozen == 1 || (frozen == 2 && on.rank == 0))
                WF_EXPECT_OK(wf_param_set_trainable(params[i], false));
        if (frozen < 2) {
            expect_failure(pipe, expected);
        } else {
            wf_tape *tape = wf_tape_new(on.ctx);
            WF_EXPECT(one_step(pipe, tape), "%s", wf_error_message());
            WF_EXPECT_OK(wf_tape_reset(tape));
            WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
            WF_EXPECT(one_step(pipe, tape), "%s", wf_error_message());
            wf_tape_free(tape);
            wf_pipeline_free(pipe);
        }
        close_stages();
    }
}

/* --- ranks that differ ---------------------------------------------------------------------------------------------
 */

static void differs(wf_pipeline_opts opts, const char *what)
{
    opts.loss = wf_mean_cross_entropy;
    const wf_pipeline *pipe = wf_pipeline_new(on.mesh, model_new(false, false), opts);
    WF_EXPECT(!pipe && wf_error_code() == WF_ERR_COMM && strstr(wf_error_message(), "different chains or options") &&
                  strstr(wf_error_message(), what),
              "rank %d: \"%s\" expected: %s", on.rank, what, wf_error_message());
}

/* The message names the option, with the same words on all ranks. */
static void differing_options(void)
{
    const int case_count = 8;
    for (int i = 0; i < case_count; i++) {
        double cost[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
        const int stages = open_stages(WF_F64), one = on.rank == stages - 1;
        int layers[3] = {2, 2, 5};
        layers[0] += one;
        layers[1] -= one;
        if (stages == 2)
            layers[1] += 5;
        cost[0] += one;
        switch (i) {
        case 0:
            differs((wf_pipeline_opts){.recompute = (wf_pipeline_recompute)(2 * one)}, "recompute is 0 and 2");
            break;
        case 1:
            differs((wf_pipeline_opts){.deferred_batchnorm = one}, "deferred_batchnorm is 0 and 1");
            break;
        case 2:
            differs((wf_pipeline_opts){.cost = cost}, "cost differs");
            break;
        case 3:
            differs((wf_pipeline_opts){.cost = one ? cost : NULL}, "cost differs");
            break;
        case 4:
            differs((wf_pipeline_opts){.compare_every = 50 * one}, "compare_every is 50 and 100");
            break;
        case 5:
            differs((wf_pipeline_opts){.chunks = 3 + one}, "chunks is 3 and 4");
            break;
        case 6:
            differs((wf_pipeline_opts){.layers = layers}, "layers differs");
            break;
        default:
            differs((wf_pipeline_opts){.schedule = (wf_pipeline_kind)one}, "schedule is 0 and 1");
            break;
        }
        close_stages();
    }
}

/* Two pipelines that one stage steps in another order than the rest: their values fit each other. */
static void crosswise(void)
{
    for (int eval = 0; eval < 2; eval++) {
        const int last = open_stages(WF_F64) - 1;
        wf_pipeline *pipe[2];
        wf_tape *tape = wf_tape_new(on.ctx);
        for (int i = 0; i < 2; i++)
            pipe[i] = pipeline_of(model_new(false, false), wf_mean_cross_entropy);
        WF_EXPECT_OK(wf_tape_set_mode(tape, eval ? WF_EVAL : WF_TRAIN));
        for (int i = 0; i < 2; i++)
            WF_EXPECT(one_step(pipe[i], tape), "%s", wf_error_message());
        const wf_var *loss = one_step(pipe[on.rank == last], tape);
        WF_EXPECT(!loss && strstr(wf_error_message(), "all ranks should step the same pipelines in one order"),
                  "rank %d: %s", on.rank, loss ? "a loss" : wf_error_message());
        wf_error_clear();
        wf_tape_free(tape);
        wf_pipeline_free(pipe[0]);
        wf_pipeline_free(pipe[1]);
        close_stages();
    }
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"added_layers", added_layers},
                                   {"returns_nothing", returns_nothing},
                                   {"trains_nothing", trains_nothing},
                                   {"differing_options", differing_options},
                                   {"crosswise", crosswise},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
