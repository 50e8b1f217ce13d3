/* A scaled loss: the gradient is scaled back, an overflow on one rank leaves the update out on all of them, the scale
 * grows and falls, and all of it survives an archive. The model's gradient is its input, so the test chooses it. */
#include "layers/functions.h"
#include "optim/multi_node.h"
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"

#include "core/archive.h"
#include "tests/world.h"

#include <math.h>

enum { N = 300 };

typedef struct trained {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *x;
} trained;

typedef struct way {
    int kind; /* 0: SGD with momentum, 1: Adam, 2: LAMB */
    bool local;
    double clip;
    wf_multi_node_opts opts;
    wf_loss_scale_opts scale;
} way;

static trained trained_new(const way *w, bool scales)
{
    static double start[N];
    trained t = {
        .model = dot_new(ctx, N, start), .tape = wf_tape_new(ctx), .x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(N))};
    t.optim = w->kind == 0   ? wf_sgd(t.model, (wf_sgd_opts){.lr = 0.5, .momentum = 0.9})
              : w->kind == 1 ? wf_adam(t.model, (wf_adam_opts){.lr = 0.5})
                             : wf_lamb(t.model, (wf_lamb_opts){.lr = 0.5});
    if (scales)
        WF_EXPECT_OK(wf_optim_scale_loss(t.optim, w->scale));
    if (!w->local)
        t.optim = wf_multi_node(comm, t.optim, w->opts);
    WF_EXPECT(t.optim, "%s", wf_error_trail());
    if (w->clip > 0)
        WF_EXPECT_OK(wf_optim_clip_norm(t.optim, w->clip));
    return t;
}

static void trained_free(trained *t)
{
    wf_tensor_free(t->x);
    wf_optim_free(t->optim);
    wf_tape_free(t->tape);
    wf_layer_free(t->model);
}

/* One step whose gradient is the mean of the ranks' numbers. What overflows does so in the last element alone, which
 * one rank sees where the optimizer is cut. */
static void step(trained *t, double gradient)
{
    const bool sound = fabs(gradient) < 1e30;
    WF_EXPECT_OK(wf_tensor_fill(t->x, sound ? gradient : 1));
    if (!sound) {
        wf_tensor *last = wf_tensor_view(t->x, (wf_box){.rank = 1, .lo = {N - 1}, .hi = {N}});
        WF_EXPECT_OK(wf_tensor_fill(last, gradient));
        wf_tensor_free(last);
    }
    wf_var *loss = wf_apply(t->model, wf_input(t->tape, t->x));
    /* As if it were a mean over one sample. */
    if (loss) {
        loss->loss_mean = true;
        loss->loss_count = 1;
    }
    WF_EXPECT_OK(wf_optim_step(t->optim, loss));
    WF_EXPECT_OK(wf_tape_reset(t->tape));
}

static double first(const trained *t)
{
    static double value[N];
    values_get(wf_param_value(param_of(t->model, 0)), value);
    for (int i = 1; i < N; i++)
        WF_EXPECT(value[i] == value[0], "element %d is %g, the first one %g", i, value[i], value[0]);
    return value[0];
}

/* On the last rank alone. */
static double somewhere(double there, double elsewhere)
{
    return rank == size - 1 ? there : elsewhere;
}

static void expect_state(const trained *t, const char *when, int64_t steps, int64_t skipped, double scale)
{
    WF_EXPECT(wf_optim_steps(t->optim) == steps && wf_optim_skipped(t->optim) == skipped &&
                  wf_optim_loss_scale(t->optim) == scale,
              "%s: %lld steps, %lld left out, scale %g; should be %lld, %lld, %g", when,
              (long long)wf_optim_steps(t->optim), (long long)wf_optim_skipped(t->optim), wf_optim_loss_scale(t->optim),
              (long long)steps, (long long)skipped, scale);
}

/* With a scale and without one, an overflow of one rank in between: as if that step had not been. */
static void same_path(const char *what, way w)
{
    w.scale = (wf_loss_scale_opts){.init = 1024, .interval = 1000};
    trained scaled = trained_new(&w, true), plain = trained_new(&w, false);
    static const double gradient[] = {0.25, -1, 3, 0.5, 0.125, 2};
    double before = 0;
    for (int i = 0; i < 6; i++) {
        step(&scaled, gradient[i] + rank);
        step(&plain, gradient[i] + rank);
        before = first(&scaled);
        WF_EXPECT(fabs(before - first(&plain)) <= 1e-6 * fabs(before), "%s: %.9g after step %d, without a scale %.9g",
                  what, before, i, first(&plain));
        if (i == 2) {
            step(&scaled, somewhere(1e38, 1)); /* infinite once it is scaled */
            WF_EXPECT(first(&scaled) == before, "%s: an update in spite of an overflow", what);
            expect_state(&scaled, what, 3, 1, 512);
        }
        if (i == 3) {
            step(&scaled, somewhere((double)NAN, 1));
            step(&scaled, somewhere((double)-INFINITY, 1));
            WF_EXPECT(first(&scaled) == before, "%s: an update in spite of a gradient that is no number", what);
            expect_state(&scaled, what, 4, 3, 128);
        }
    }
    expect_state(&scaled, what, 6, 3, 128);
    expect_state(&plain, what, 6, 0, 1);
    trained_free(&scaled);
    trained_free(&plain);
}

static void overflow(void)
{
    same_path("SGD", (way){.kind = 0});
    same_path("Adam", (way){.kind = 1});
    same_path("Adam, clipped", (way){.kind = 1, .clip = 2});
    same_path("Adam, small buckets", (way){.kind = 1, .opts = {.bucket_bytes = 100, .first_bucket_bytes = 1}});
    same_path("Adam in parts", (way){.kind = 1, .opts = {.shard_optimizer = true}});
    same_path("LAMB", (way){.kind = 2});
    same_path("LAMB in parts", (way){.kind = 2, .opts = {.shard_optimizer = true}});
    same_path("Adam in parts, clipped", (way){.kind = 1, .clip = 2, .opts = {.shard_optimizer = true}});
    if (size == 1) {
        same_path("Adam alone", (way){.kind = 1, .local = true});
        same_path("SGD alone, clipped", (way){.clip = 2, .local = true});
    }
}

/* What f16 on the wire cannot hold is an overflow like any other. */
static void narrow_grad_dtype(void)
{
    const way w = {.opts = {.grad_dtype = WF_F16}, .scale = {.init = 4096, .interval = 1000}};
    trained t = trained_new(&w, true);
    step(&t, somewhere(20, 1)); /* 81920 */
    WF_EXPECT(first(&t) == 0, "moved by %g", first(&t));
    expect_state(&t, "beyond f16", 0, 1, 2048);
    step(&t, 1);
    WF_EXPECT(first(&t) == -0.5, "moved by %g, should be -0.5", first(&t));
    expect_state(&t, "within f16", 1, 1, 2048);
    trained_free(&t);
}

static void growth(void)
{
    const way w = {.scale = {.init = 8, .growth = 4, .backoff = 0.25, .interval = 3}};
    trained t = trained_new(&w, true);
    static const double after[] = {8, 8, 32, 32, 32, 128};
    for (int i = 0; i < 6; i++) {
        step(&t, 1);
        expect_state(&t, "growing", i + 1, 0, after[i]);
    }
    step(&t, 1);
    step(&t, somewhere(3e38, 1));
    expect_state(&t, "fallen", 7, 1, 32);
    for (int i = 0; i < 2; i++)
        step(&t, 1);
    expect_state(&t, "the count begins anew", 9, 1, 32);
    step(&t, 1);
    expect_state(&t, "growing again", 10, 1, 128);
    trained_free(&t);
    const way usual = {0};
    t = trained_new(&usual, true);
    expect_state(&t, "default", 0, 0, 65536);
    trained_free(&t);
}

/* Gradients of several backwards have one scale, and one that overflows spoils them all. */
static void accumulated(void)
{
    const way w = {.scale = {.init = 1024, .interval = 1}};
    trained t = trained_new(&w, true);
    for (int round = 0; round < 3; round++) {
        const double before = first(&t);
        for (int i = 0; i < 3; i++) {
            WF_EXPECT_OK(wf_tensor_fill(t.x, round == 1 && i == 0 ? somewhere(3e38, 1) : i + 1));
            wf_var *loss = wf_apply(t.model, wf_input(t.tape, t.x));
            if (loss) {
                loss->loss_mean = true;
                loss->loss_count = 1;
            }
            WF_EXPECT_OK(i < 2 ? wf_optim_accumulate(t.optim, loss) : wf_optim_step(t.optim, loss));
        }
        WF_EXPECT_OK(wf_tape_reset(t.tape));
        if (round == 0)
            WF_EXPECT(first(&t) == -1, "moved by %.9g, should be -1", first(&t));
        if (round == 1)
            WF_EXPECT(first(&t) == before, "updated in spite of an overflow");
    }
    expect_state(&t, "accumulated", 2, 1, 2048);
    trained_free(&t);
}

static void archived(void)
{
    for (int cut = 0; cut < 2; cut++) {
        const way w = {.kind = 1, .opts = {.shard_optimizer = cut}, .scale = {.init = 64, .interval = 3}};
        trained one = trained_new(&w, true), two = trained_new(&w, true);
        wf_archive *archive = wf_archive_memory(ctx);
        step(&one, 1);
        step(&one, somewhere((double)NAN, 1));
        step(&one, 2);
        step(&one, 3);
        WF_EXPECT_OK(wf_optim_archive(one.optim, archive));
        WF_EXPECT_OK(wf_layer_archive(one.model, archive));
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        step(&two, 7);
        WF_EXPECT_OK(wf_optim_archive(two.optim, archive));
        WF_EXPECT_OK(wf_layer_archive(two.model, archive));
        expect_state(&two, "loaded", 3, 1, 32);
        for (int i = 0; i < 2; i++) {
            step(&one, 1 + i);
            step(&two, 1 + i);
            WF_EXPECT(first(&one) == first(&two), "%.9g went on as %.9g", first(&one), first(&two));
        }
        expect_state(&one, "gone on", 5, 1, 64);
        expect_state(&two, "loaded and gone on", 5, 1, 64);
        wf_archive_free(archive);
        trained_free(&one);
        trained_free(&two);
    }
}

static void refused(void)
{
    const way w = {.kind = 0}, late = {.opts = {.double_buffering = true}};
    trained t = trained_new(&w, false);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_scale_loss(t.optim, (wf_loss_scale_opts){.growth = 0.5}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_scale_loss(t.optim, (wf_loss_scale_opts){.backoff = 1}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_scale_loss(t.optim, (wf_loss_scale_opts){.init = -1}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_scale_loss(t.optim, (wf_loss_scale_opts){.interval = -2}));
    step(&t, 1);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_scale_loss(t.optim, (wf_loss_scale_opts){0}));
    trained_free(&t);
    t = trained_new(&late, false);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_scale_loss(t.optim, (wf_loss_scale_opts){0}));
    trained_free(&t);
    const way local = {.local = true};
    t = trained_new(&local, true);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_update(t.optim));
    trained_free(&t);
    WF_EXPECT(wf_optim_loss_scale(NULL) == 0 && wf_optim_skipped(NULL) == 0, "getters on NULL");
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("flat")))
        return 1;
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"overflow", overflow},
                                               {"narrow_grad_dtype", narrow_grad_dtype},
                                               {"growth", growth},
                                               {"accumulated", accumulated},
                                               {"archived", archived},
                                               {"refused", refused},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
