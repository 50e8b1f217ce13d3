/* wf_optim_step: which gradients it makes and clips, what it leaves alone. */
#include "core/tape_author.h"
#include "optim/optim.h"
#include "tests/optim/optim_model.h"

#include <math.h>
#include <string.h>

typedef struct fixture {
    wf_ctx *ctx;
    wf_layer *model, *a, *b; /* two dot products of 3 and 2 elements, in a module */
    wf_tape *tape;
    wf_tensor *xa, *xb;
} fixture;

static const double wa[3] = {1, 2, 3}, wb[2] = {-1, 4}, ga[3] = {3, 0, -6}, gb[2] = {2, 6};

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static fixture open_fixture(void)
{
    fixture f = {.ctx = ctx_of("cpu", WF_F64)};
    f.model = wf_module(f.ctx, no_forward, NULL);
    f.a = wf_module_add(f.model, "a", dot_new(f.ctx, 3, wa));
    f.b = wf_module_add(f.model, "b", dot_new(f.ctx, 2, wb));
    f.tape = wf_tape_new(f.ctx);
    f.xa = wf_tensor_new(f.ctx, WF_F64, WF_SHAPE(3));
    f.xb = wf_tensor_new(f.ctx, WF_F64, WF_SHAPE(2));
    values_set(f.xa, ga);
    values_set(f.xb, gb);
    return f;
}

static void close_fixture(fixture *f, wf_optim *optim)
{
    wf_tensor_free(f->xa);
    wf_tensor_free(f->xb);
    wf_tape_free(f->tape);
    wf_optim_free(optim);
    wf_layer_free(f->model);
    WF_EXPECT_OK(wf_ctx_free(f->ctx));
}

static wf_var *loss_a(fixture *f)
{
    return wf_apply(f->a, wf_input(f->tape, f->xa));
}

static wf_var *loss_b(fixture *f)
{
    return wf_apply(f->b, wf_input(f->tape, f->xb));
}

static wf_var *loss_both(fixture *f)
{
    wf_var *a = loss_a(f);
    wf_var *b = loss_b(f);
    return wf_add(a, b);
}

static void expect_values(const char *what, const wf_tensor *tensor, int n, const double *should)
{
    double seen[8] = {0};
    WF_EXPECT(tensor, "%s is absent", what);
    if (!tensor)
        return;
    values_get(tensor, seen);
    const double distance = test_distance(n, seen, should);
    WF_EXPECT(distance < 1e-14, "%s is off by %g: %g %g, should be %g %g", what, distance, seen[0], seen[1], should[0],
              should[1]);
}

static void expect_step(fixture *f, const double *old_a, const double *old_b, const double *step_a,
                        const double *step_b)
{
    double a[3], b[2];
    for (int i = 0; i < 3; i++)
        a[i] = old_a[i] - step_a[i];
    for (int i = 0; i < 2; i++)
        b[i] = old_b[i] - step_b[i];
    expect_values("a", wf_param_value(param_of(f->a, 0)), 3, a);
    expect_values("b", wf_param_value(param_of(f->b, 0)), 2, b);
}

static void plain_step(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 0.5});
    wf_var *loss = loss_both(&f);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    WF_EXPECT(wf_item(loss) == 3 - 18 - 2 + 24, "loss %g", wf_item(loss));
    expect_values("gradient of a", wf_param_grad(param_of(f.a, 0)), 3, ga);
    expect_values("gradient of b", wf_param_grad(param_of(f.b, 0)), 2, gb);
    expect_step(&f, wa, wb, (double[]){1.5, 0, -3}, (double[]){1, 3});
    close_fixture(&f, optim);
}

/* The first step reaches a alone, the second b alone: the other's gradient is zero, its momentum goes on. */
static void unreached(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1, .momentum = 0.5});
    WF_EXPECT_OK(wf_optim_step(optim, loss_a(&f)));
    expect_values("gradient of b", wf_param_grad(param_of(f.b, 0)), 2, (double[]){0, 0});
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_optim_step(optim, loss_b(&f)));
    expect_values("gradient of a", wf_param_grad(param_of(f.a, 0)), 3, (double[]){0, 0, 0});
    expect_step(&f, wa, wb, (double[]){4.5, 0, -9}, gb);
    close_fixture(&f, optim);
}

static void no_loss(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1, .momentum = 0.5});
    WF_EXPECT_OK(wf_optim_step(optim, wf_no_loss(f.tape)));
    expect_step(&f, wa, wb, (double[]){0, 0, 0}, (double[]){0, 0});
    WF_EXPECT(wf_optim_steps(optim) == 1, "%lld steps", (long long)wf_optim_steps(optim));
    WF_EXPECT_OK(wf_optim_step(optim, loss_a(&f)));
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_optim_step(optim, wf_no_loss(f.tape)));
    expect_step(&f, wa, wb, (double[]){4.5, 0, -9}, (double[]){0, 0});
    close_fixture(&f, optim);
}

static void frozen(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1, .momentum = 0.5});
    WF_EXPECT_OK(wf_optim_step(optim, loss_both(&f)));
    WF_EXPECT_OK(wf_param_set_trainable(param_of(f.a, 0), false));
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_optim_step(optim, loss_both(&f)));
    expect_step(&f, wa, wb, ga, (double[]){5, 15});
    WF_EXPECT_OK(wf_param_set_trainable(param_of(f.a, 0), true));
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_optim_step(optim, loss_a(&f)));
    expect_step(&f, wa, wb, (double[]){7.5, 0, -15}, (double[]){6.5, 19.5}); /* its momentum was kept */
    close_fixture(&f, optim);
}

/* The norm of all gradients together is sqrt(9 + 36 + 4 + 36). */
static void clip_norm(void)
{
    const double s = 2 / sqrt(85);
    for (int flat = 0; flat < 2; flat++) {
        fixture f = open_fixture();
        wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
        WF_EXPECT_OK(wf_optim_clip_norm(optim, 2));
        if (flat) {
            WF_EXPECT_OK(wf_optim_step(optim, loss_both(&f)));
        } else {
            WF_EXPECT_OK(wf_backward(loss_both(&f)));
            WF_EXPECT_OK(wf_optim_update(optim));
        }
        expect_step(&f, wa, wb, (double[]){3 * s, 0, -6 * s}, (double[]){2 * s, 6 * s});
        close_fixture(&f, optim);
    }
}

static void clip_norm_unneeded(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
    WF_EXPECT_OK(wf_optim_clip_norm(optim, 9.3));
    WF_EXPECT_OK(wf_optim_step(optim, loss_both(&f)));
    expect_step(&f, wa, wb, ga, gb);
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_optim_step(optim, wf_no_loss(f.tape))); /* norm 0 */
    expect_step(&f, wa, wb, ga, gb);
    close_fixture(&f, optim);
}

static void clip_value(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
    WF_EXPECT_OK(wf_optim_clip_value(optim, 2.5));
    WF_EXPECT_OK(wf_optim_step(optim, loss_both(&f)));
    expect_step(&f, wa, wb, (double[]){2.5, 0, -2.5}, (double[]){2, 2.5});
    close_fixture(&f, optim);
}

/* Each optimizer has its own model; a step does not touch the other's gradients or values. */
static void two_optimizers(void)
{
    fixture f = open_fixture();
    wf_optim *first = wf_sgd(f.a, (wf_sgd_opts){.lr = 1}), *second = wf_sgd(f.b, (wf_sgd_opts){.lr = 1});
    WF_EXPECT_OK(wf_optim_step(first, loss_both(&f)));
    WF_EXPECT(!wf_param_grad(param_of(f.b, 0)), "b has a gradient");
    expect_step(&f, wa, wb, ga, (double[]){0, 0});
    WF_EXPECT_OK(wf_optim_step(second, loss_both(&f)));
    expect_step(&f, wa, wb, ga, gb);
    wf_optim_free(first);
    close_fixture(&f, second);
}

/* Two optimizers of one model take the gradients from each other in turn; the second step has none for b. */
static void shared_model(void)
{
    const double both = 2 / sqrt(85), one = 2 / sqrt(45);
    fixture f = open_fixture();
    wf_optim *first = wf_sgd(f.model, (wf_sgd_opts){.lr = 1}), *second = wf_sgd(f.b, (wf_sgd_opts){.lr = 1});
    WF_EXPECT_OK(wf_optim_clip_norm(first, 2));
    for (int i = 0; i < 2; i++) {
        WF_EXPECT_OK(wf_optim_step(first, loss_both(&f)));
        WF_EXPECT_OK(wf_optim_step(second, loss_both(&f)));
        WF_EXPECT_OK(wf_tape_reset(f.tape));
        WF_EXPECT_OK(wf_tensor_fill(f.xb, 0));
    }
    expect_step(&f, wa, wb, (double[]){3 * (both + one), 0, -6 * (both + one)}, (double[]){2 + 2 * both, 6 + 6 * both});
    wf_optim_free(first);
    close_fixture(&f, second);
}

static void bad_losses(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
    wf_var *constant = wf_sum(wf_input(f.tape, f.xa));
    wf_var *spent = loss_both(&f);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_step(optim, NULL));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_step(optim, constant));
    WF_EXPECT_ERROR(WF_ERR_SHAPE,
                    wf_optim_step(optim, wf_mul(wf_param_var(f.tape, param_of(f.a, 0)), wf_input(f.tape, f.xa))));
    WF_EXPECT_OK(wf_optim_step(optim, spent));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_step(optim, spent));
    WF_EXPECT(wf_optim_steps(optim) == 1, "%lld steps", (long long)wf_optim_steps(optim));
    close_fixture(&f, optim);
}

static void nothing_to_train(void)
{
    fixture f = open_fixture();
    wf_optim *optim = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
    wf_var *loss = loss_both(&f);
    WF_EXPECT_OK(wf_param_set_trainable(param_of(f.a, 0), false));
    WF_EXPECT_OK(wf_param_set_trainable(param_of(f.b, 0), false));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_step(optim, loss));
    close_fixture(&f, optim);
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"plain_step", plain_step},
                                   {"unreached", unreached},
                                   {"no_loss", no_loss},
                                   {"frozen", frozen},
                                   {"clip_norm", clip_norm},
                                   {"clip_norm_unneeded", clip_norm_unneeded},
                                   {"clip_value", clip_value},
                                   {"two_optimizers", two_optimizers},
                                   {"shared_model", shared_model},
                                   {"bad_losses", bad_losses},
                                   {"nothing_to_train", nothing_to_train},
                                   {0}});
}
