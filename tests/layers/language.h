/* Steps of a whole GPT (examples/models/gpt.h) by samples, heads, tokens, heads and tokens at once, or stages, of which
 * the first and the last have the matrix that embedding and head share: losses and parameters are those of the serial
 * model. For equiv_attention. */
#ifndef WF_TESTS_LANGUAGE_H
#define WF_TESTS_LANGUAGE_H

#include "examples/models/gpt.h"
#include "tests/layers/attention_parts.h"

#include <math.h>

enum { GPT_TEXTS = 5, GPT_TOKENS = 7, GPT_SYMBOLS = 11, GPT_STEPS = 2 };

typedef struct language {
    const wf_mesh *mesh; /* NULL: serial */
    wf_layer *model;
    wf_pipeline *pipe;
    wf_optim *optim;
    wf_tape *tape;
} language;

static wf_var *next_token_loss(wf_var *scores, const wf_tensor *labels)
{
    return wf_token_cross_entropy(scores, labels, (wf_label_opts){.ignores = true, .ignored = 200});
}

static language language_open(const wf_mesh *mesh, bool rotary)
{
    const bool staged = mesh && wf_mesh_size(mesh, WF_AXIS_STAGE) > 1;
    const gpt_opts o = {.symbols = GPT_SYMBOLS,
                        .tokens = GPT_TOKENS,
                        .features = 12,
                        .heads = 3,
                        .blocks = 2,
                        .rotary = rotary,
                        .mesh = staged ? NULL : mesh};
    language l = {.mesh = mesh, .model = wf_layer_named(gpt(ctx, o), "gpt"), .tape = wf_tape_new(ctx)};
    WF_EXPECT(l.model, "%s", wf_error_message());
    if (staged) {
        l.pipe = wf_pipeline_new(mesh, l.model, (wf_pipeline_opts){.loss = next_token_loss, .chunks = 3});
        WF_EXPECT(l.pipe, "%s", wf_error_message());
        l.model = wf_pipeline_model(l.pipe);
    }
    wf_optim *sgd = wf_sgd(l.model, (wf_sgd_opts){.lr = 0.5, .momentum = 0.9});
    l.optim = mesh ? wf_mesh_multi_node(mesh, sgd, (wf_multi_node_opts){0}) : sgd;
    WF_EXPECT(l.optim, "%s", wf_error_message());
    return l;
}

static void language_close(language *l)
{
    wf_optim_free(l->optim);
    if (l->pipe)
        wf_pipeline_free(l->pipe);
    else
        wf_layer_free(l->model);
    wf_tape_free(l->tape);
}

/* This rank's part of whole texts. */
static wf_tensor *texts_of(const language *l, const uint8_t *host)
{
    const wf_shape shape = WF_SHAPE(GPT_TEXTS, GPT_TOKENS);
    wf_tensor *whole = wf_tensor_from_host(ctx, WF_U8, shape, host);
    wf_layout layout;
    if (!l->mesh)
        return whole;
    WF_EXPECT_OK(wf_mesh_layout(
        l->mesh, shape, (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(1)}}, &layout));
    wf_tensor *part = wf_tensor_redistribute(whole, layout);
    wf_tensor_free(whole);
    return part;
}

static double language_step(language *l, int step)
{
    uint8_t text[GPT_TEXTS * GPT_TOKENS], next[GPT_TEXTS * GPT_TOKENS];
    for (int i = 0; i < GPT_TEXTS * GPT_TOKENS; i++) {
        text[i] = (uint8_t)((i * i + step) % GPT_SYMBOLS);
        next[i] = i % 6 == 4 ? 200 : (uint8_t)((i * i + 2 * i + 1 + step) % GPT_SYMBOLS);
    }
    wf_tensor *x = texts_of(l, text), *labels = texts_of(l, next);
    wf_var *loss = l->pipe ? wf_pipeline_step(l->pipe, l->tape, x, labels)
                           : next_token_loss(wf_apply(l->model, wf_input(l->tape, x)), labels);
    WF_EXPECT(loss, "%s", wf_error_message());
    WF_EXPECT_OK(wf_optim_step(l->optim, loss));
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_tape_reset(l->tape));
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return value;
}

/* A stage has some of the parameters, a rank parts of them. */
static void compare_parameters(const char *name, const language *serial, const language *parallel)
{
    int64_t count = 0;
    wf_param *const *mine;
    WF_EXPECT_OK(wf_layer_params(parallel->model, &count, &mine));
    for (int64_t i = 0; i < count; i++) {
        double got[MOST], want[MOST];
        wf_param *whole = wf_layer_param(serial->model, wf_param_path(mine[i]) + strlen("gpt/"));
        WF_EXPECT(whole, "%s: %s is in no serial model", name, wf_param_path(mine[i]));
        wf_tensor *view = mine[i]->shard_axes ? wf_tensor_view(wf_param_value(whole), mine[i]->box)
                                              : wf_tensor_alias(wf_param_value(whole));
        values_get(wf_param_value(mine[i]), got);
        values_get(view, want);
        const double off = test_distance(wf_tensor_count(view), got, want);
        WF_EXPECT(off < 1e-12, "%s: %s is off by %g", name, wf_param_path(mine[i]), off);
        wf_tensor_free(view);
    }
}

static void compare_language(wf_mesh_opts axes, bool rotary)
{
    char name[128];
    wf_mesh *mesh = wf_mesh_open(comm, axes);
    WF_EXPECT(mesh, "%s", wf_error_message());
    snprintf(name, sizeof name, "GPT, %s%s", wf_mesh_text(mesh), rotary ? ", rotary" : "");
    language serial = language_open(NULL, rotary), parallel = language_open(mesh, rotary);
    for (int i = 0; i < GPT_STEPS; i++) {
        const double should = language_step(&serial, i), is = language_step(&parallel, i);
        WF_EXPECT(fabs(is - should) < 1e-12, "%s: loss %.15g of step %d, should be %.15g", name, is, i, should);
    }
    compare_parameters(name, &serial, &parallel);
    language_close(&serial);
    language_close(&parallel);
    wf_mesh_close(mesh);
}

/* The three heads are enough for three ranks of the channel axis. */
static void languages(void)
{
    begin_ranks();
    for (int channel = 1; channel <= 3; channel++)
        for (int high = 1; channel * high <= size; high++)
            if (size % (channel * high) == 0)
                compare_language((wf_mesh_opts){.data = size / channel / high, .channel = channel, .height = high},
                                 high > 1);
    for (int stages = 2; stages <= size && stages <= 5; stages++)
        if (size % stages == 0)
            compare_language((wf_mesh_opts){.data = size / stages, .stage = stages}, false);
    WF_EXPECT_OK(wf_comm_close(comm));
}

#endif
