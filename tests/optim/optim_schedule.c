/* The factor of every schedule at chosen update counts, by hand; bad options. */
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"

#include <math.h>
#include <string.h>

static const double start[1] = {1};

typedef struct fixture {
    wf_ctx *ctx;
    wf_layer *model;
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.ctx = ctx_of("cpu", WF_F64)};
    f.model = dot_new(f.ctx, 1, start);
    return f;
}

static void close_fixture(fixture f)
{
    wf_layer_free(f.model);
    WF_EXPECT_OK(wf_ctx_free(f.ctx));
}

/* Walks `count` updates with base 2 and compares the rate before each with 2 * factor. */
static void walk(const char *name, wf_schedule_opts opts, int count, const double *factor)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_lr_schedule(wf_sgd(f.model, (wf_sgd_opts){.lr = 2}), opts);
    double p = 1;
    for (int t = 0; t < count; t++) {
        WF_EXPECT(fabs(wf_optim_lr(optim) - 2 * factor[t]) < 1e-14, "%s: at %d the rate is %.17g, should be %.17g",
                  name, t, wf_optim_lr(optim), 2 * factor[t]);
        grad_set(param_of(f.model, 0), (double[]){1});
        WF_EXPECT_OK(wf_optim_update(optim));
        p -= 2 * factor[t];
    }
    double seen = NAN;
    values_get(wf_param_value(param_of(f.model, 0)), &seen);
    WF_EXPECT(fabs(seen - p) < 1e-12, "%s: the updates used other rates: %g, should be %g", name, seen, p);
    wf_optim_free(optim);
    close_fixture(f);
}

static void factors(void)
{
    const double half = sqrt(0.5);
    walk("constant", (wf_schedule_opts){0}, 3, (double[]){1, 1, 1});
    walk("step", (wf_schedule_opts){.kind = WF_SCHEDULE_STEP, .every = 2}, 5, (double[]){1, 1, 0.1, 0.1, 0.01});
    walk("step", (wf_schedule_opts){.kind = WF_SCHEDULE_STEP, .every = 1, .gamma = 0.5}, 3, (double[]){1, 0.5, 0.25});
    walk("exponential", (wf_schedule_opts){.kind = WF_SCHEDULE_EXPONENTIAL}, 3, (double[]){1, 0.999, 0.998001});
    walk("cosine", (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = 4}, 7,
         (double[]){1, (1 + half) / 2, 0.5, (1 - half) / 2, 0, 0, 0});
    walk("cosine to an end", (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = 2, .end = 0.2}, 4,
         (double[]){1, 0.6, 0.2, 0.2});
    walk("restarts", (wf_schedule_opts){.kind = WF_SCHEDULE_RESTARTS, .total = 2, .end = 0.2}, 5,
         (double[]){1, 0.6, 1, 0.6, 1});
    walk("longer and longer", (wf_schedule_opts){.kind = WF_SCHEDULE_RESTARTS, .total = 2, .power = 2, .warmup = 1}, 9,
         (double[]){1, 1, 0.5, 1, (1 + half) / 2, 0.5, (1 - half) / 2, 1, (1 + cos(acos(-1.0) / 8)) / 2});
    walk("linear", (wf_schedule_opts){.kind = WF_SCHEDULE_POLYNOMIAL, .total = 4}, 6,
         (double[]){1, 0.75, 0.5, 0.25, 0, 0});
    walk("square", (wf_schedule_opts){.kind = WF_SCHEDULE_POLYNOMIAL, .total = 2, .power = 2, .end = 0.1}, 4,
         (double[]){1, 0.1 + 0.9 * 0.25, 0.1, 0.1});
    walk("warm-up", (wf_schedule_opts){.warmup = 4}, 6, (double[]){0.25, 0.5, 0.75, 1, 1, 1});
    walk("scaled", (wf_schedule_opts){.scale = 8}, 3, (double[]){8, 8, 8});
    walk("scaled, warm-up", (wf_schedule_opts){.scale = 8, .warmup = 4}, 6, (double[]){1, 2.75, 4.5, 6.25, 8, 8});
    walk("scaled, warm-up, then step",
         (wf_schedule_opts){.kind = WF_SCHEDULE_STEP, .every = 2, .warmup = 2, .scale = 0.5}, 6,
         (double[]){1, 0.75, 0.5, 0.5, 0.05, 0.05});
    walk("warm-up, then step", (wf_schedule_opts){.kind = WF_SCHEDULE_STEP, .every = 2, .warmup = 2}, 6,
         (double[]){0.5, 1, 1, 1, 0.1, 0.1});
}

static void replaced(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
    optim = wf_lr_schedule(optim, (wf_schedule_opts){.kind = WF_SCHEDULE_EXPONENTIAL, .gamma = 0.5, .warmup = 4});
    WF_EXPECT(wf_optim_lr(optim) == 0.25, "rate %g", wf_optim_lr(optim));
    optim = wf_lr_schedule(optim, (wf_schedule_opts){0});
    WF_EXPECT(wf_optim_lr(optim) == 1, "rate %g", wf_optim_lr(optim));
    WF_EXPECT_OK(wf_optim_set_lr(optim, 3));
    WF_EXPECT(wf_optim_lr(optim) == 3, "rate %g", wf_optim_lr(optim));
    wf_optim_free(optim);
    close_fixture(f);
}

/* A refused schedule frees the optimizer: closing the context would tell otherwise. */
static void refuse(const char *field, wf_schedule_opts opts)
{
    fixture f = open_fixture();
    WF_EXPECT(!wf_lr_schedule(wf_sgd(f.model, (wf_sgd_opts){0}), opts), "a bad %s was taken", field);
    WF_EXPECT(wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), field), "%s: %s", field,
              wf_error_message());
    wf_error_clear();
    close_fixture(f);
}

static void bad_options(void)
{
    refuse("kind", (wf_schedule_opts){.kind = (wf_schedule_kind)17});
    refuse("warmup", (wf_schedule_opts){.warmup = -1});
    refuse("every", (wf_schedule_opts){.kind = WF_SCHEDULE_STEP});
    refuse("total", (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE});
    refuse("total", (wf_schedule_opts){.kind = WF_SCHEDULE_POLYNOMIAL, .total = -3});
    refuse("total", (wf_schedule_opts){.kind = WF_SCHEDULE_RESTARTS});
    refuse("power", (wf_schedule_opts){.kind = WF_SCHEDULE_RESTARTS, .total = 3, .power = 0.5});
    refuse("gamma", (wf_schedule_opts){.kind = WF_SCHEDULE_EXPONENTIAL, .gamma = -1});
    refuse("power", (wf_schedule_opts){.kind = WF_SCHEDULE_POLYNOMIAL, .total = 3, .power = -1});
    refuse("scale", (wf_schedule_opts){.scale = -4});
    refuse("end", (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = 3, .end = NAN});
    WF_EXPECT(!wf_lr_schedule(NULL, (wf_schedule_opts){0}), "a schedule of nothing");
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"factors", factors}, {"replaced", replaced}, {"bad_options", bad_options}, {0}});
}
