/* An optimizer that was saved and loaded goes on bit for bit. */
#include "optim/optim.h"
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"

#include <string.h>

enum { N = 5 };

static const double start[N] = {0.5, -1.25, 2.0, 0.1, -0.75};

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static wf_layer *model_new(wf_ctx *ctx)
{
    wf_layer *outer = wf_module(ctx, no_forward, NULL), *inner = wf_module(ctx, no_forward, NULL);
    inner = wf_module_add(outer, "inner", inner);
    wf_module_add(inner, "one", dot_new(ctx, N, start));
    wf_module_add(outer, "two", dot_new(ctx, N, start));
    return outer;
}

static wf_optim *optim_new(wf_layer *model, int kind)
{
    switch (kind) {
    case 0:
        return wf_sgd(model, (wf_sgd_opts){.lr = 0.1});
    case 1:
        return wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9, .nesterov = true});
    case 2:
        return wf_adam(model, (wf_adam_opts){.lr = 0.1});
    case 3:
        return wf_adamw(model, (wf_adam_opts){.lr = 0.1});
    case 4:
        return wf_lamb(model, (wf_lamb_opts){.lr = 0.1});
    case 5:
        return wf_radam(model, (wf_adam_opts){.lr = 0.1});
    case 6:
        return wf_adagrad(model, (wf_adagrad_opts){.lr = 0.1});
    case 7:
        return wf_rmsprop_sgd(model, (wf_rmsprop_sgd_opts){.centre = 6});
    default:
        return wf_rmsprop(model, (wf_rmsprop_opts){.lr = 0.1});
    }
}

static void update(wf_layer *model, wf_optim *optim, int from, int steps)
{
    double g[N];
    for (int t = from; t < from + steps; t++) {
        for (int64_t p = 0; p < 2; p++) {
            for (int i = 0; i < N; i++)
                g[i] = ((i * 5 + t * 3 + (int)p) % 7 - 3) / 7.0;
            grad_set(param_of(model, p), g);
        }
        WF_EXPECT_OK(wf_optim_update(optim));
    }
}

static void values_of(wf_layer *model, double out[2 * N])
{
    values_get(wf_param_value(param_of(model, 0)), out);
    values_get(wf_param_value(param_of(model, 1)), out + N);
}

static void archive_both(wf_layer *model, wf_optim *optim, wf_archive *archive)
{
    WF_EXPECT_OK(wf_archive_enter(archive, "model"));
    WF_EXPECT_OK(wf_layer_archive(model, archive));
    WF_EXPECT_OK(wf_archive_leave(archive));
    WF_EXPECT_OK(wf_archive_enter(archive, "optim"));
    WF_EXPECT_OK(wf_optim_archive(optim, archive));
    WF_EXPECT_OK(wf_archive_leave(archive));
}

static void resume(int kind)
{
    const wf_schedule_opts cosine = {.kind = WF_SCHEDULE_COSINE, .total = 20, .warmup = 2, .scale = 4};
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    wf_layer *model = model_new(ctx), *copy = model_new(ctx);
    wf_optim *optim = wf_lr_schedule(optim_new(model, kind), cosine), *other = optim_new(copy, kind);
    wf_archive *archive = wf_archive_memory(ctx);
    double a[2 * N] = {0}, b[2 * N] = {0};
    WF_EXPECT_OK(wf_optim_set_lr(optim, 0.07));
    update(model, optim, 0, 4);
    archive_both(model, optim, archive);
    update(model, optim, 4, 3);
    update(copy, other, 9, 2); /* state of its own, to be replaced */
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    archive_both(copy, other, archive);
    WF_EXPECT(wf_optim_steps(other) == 4, "%lld steps", (long long)wf_optim_steps(other));
    update(copy, other, 4, 3);
    values_of(model, a);
    values_of(copy, b);
    WF_EXPECT(test_distance(2 * N, a, b) == 0, "kind %d goes on differently, by %g", kind, test_distance(2 * N, a, b));
    WF_EXPECT(wf_optim_lr(other) == wf_optim_lr(optim), "rate %g, should be %g", wf_optim_lr(other),
              wf_optim_lr(optim));
    wf_archive_free(archive);
    wf_optim_free(optim);
    wf_optim_free(other);
    wf_layer_free(model);
    wf_layer_free(copy);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void resumes(void)
{
    for (int kind = 0; kind < 9; kind++)
        resume(kind);
}

/* Loaded before its first step, into a model that sits below another: paths are relative to the optimizer's model. */
static void moved(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F64);
    wf_layer *model = model_new(ctx), *copy = model_new(ctx), *above = wf_module(ctx, no_forward, NULL);
    wf_module_add(above, "net", copy);
    wf_optim *optim = optim_new(model, 2), *other = optim_new(copy, 2);
    wf_archive *archive = wf_archive_memory(ctx);
    double a[2 * N] = {0}, b[2 * N] = {0};
    update(model, optim, 0, 3);
    WF_EXPECT_OK(wf_optim_archive(optim, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_optim_archive(other, archive));
    for (int64_t p = 0; p < 2; p++)
        WF_EXPECT_OK(wf_tensor_assign(wf_param_value(param_of(copy, p)), wf_param_value(param_of(model, p))));
    update(model, optim, 3, 2);
    update(copy, other, 3, 2);
    values_of(model, a);
    values_of(copy, b);
    WF_EXPECT(test_distance(2 * N, a, b) == 0, "differs by %g", test_distance(2 * N, a, b));
    wf_archive_free(archive);
    wf_optim_free(optim);
    wf_optim_free(other);
    wf_layer_free(model);
    wf_layer_free(above);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void wrong_kind(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    wf_layer *model = model_new(ctx);
    wf_optim *adam = optim_new(model, 2), *sgd = optim_new(model, 1);
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(wf_optim_archive(adam, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    const wf_status status = wf_optim_archive(sgd, archive);
    WF_EXPECT(status == WF_ERR_FORMAT && strstr(wf_error_message(), "adam") && strstr(wf_error_message(), "sgd"),
              "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_archive(sgd, NULL));
    wf_archive_free(archive);
    wf_optim_free(adam);
    wf_optim_free(sgd);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"resumes", resumes}, {"moved", moved}, {"wrong_kind", wrong_kind}, {0}});
}
