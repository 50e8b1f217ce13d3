/* Every algorithm against PyTorch's numbers and against steps made by hand; the bounds of the options. */
#include "optim/optim.h"
#include "tests/optim/optim_model.h"

#include <math.h>
#include <string.h>

enum { N = 6, STEPS = 5 };

static const double start[N] = {0.5, -1.25, 2.0, 0.0, -0.75, 3.5};

static double gradient(int step, int i)
{
    return ((i * 7 + step * 3) % 11 - 5) / 8.0;
}

typedef struct golden {
    const char *name;
    double value[N];
} golden;

/* Made by optim_golden.py with PyTorch 2.15. */
static const golden expected[] = {
    {"sgd",
     {0.57500000000000007, -1.3374999999999999, 2.0249999999999999, 3.4694469519536142e-18, -0.77500000000000002,
      3.5874999999999999}},
    {"sgd momentum",
     {0.76304375000000013, -1.5031899999999998, 2.03139, -0.13573125000000003, -0.83888874999999996,
      3.6956912499999999}},
    {"sgd decay",
     {0.72459353647500013, -1.4177677220429687, 1.9006190673218748, -0.13189360160156252, -0.78787061778671874,
      3.4655676194499998}},
    {"sgd nesterov",
     {0.75896051535530584, -1.4536742425092462, 1.8870555913969906, -0.11471638768363245, -0.78877467607406482,
      3.469505374614581}},
    {"adam",
     {0.52796228033760451, -1.2796843028374878, 2.0108127402834075, -0.01633579170680274, -0.76993916207077295,
      3.5246285855511035}},
    {"adam dcgan",
     {0.53284078611869601, -1.2913051004709026, 1.9934662061925039, -0.017075744727589399, -0.77494636775696524,
      3.5050654747874632}},
    {"adam beta1 0",
     {0.52327037164795998, -1.2988242034760595, 2.0106543227404274, 0.0033538908779057013, -0.78077060628418404,
      3.5389576035818591}},
    {"adamw",
     {0.52770447189197056, -1.2790516977278816, 2.0098089563868871, -0.016330547885147671, -0.76955755652689839,
      3.5228727000593834}},
    {"adamw decay",
     {0.5453784495139713, -1.2839522456781212, 1.9816274661545115, -0.032254169751585321, -0.77446610995302534,
      3.4793185654557948}},
    {"adamw no decay",
     {0.5559245606752089, -1.3093686056749758, 2.0216254805668146, -0.03267158341360548, -0.78987832414154602,
      3.5492571711022065}},
    {"rmsprop",
     {0.61069371174993159, -1.4383035819955017, 2.050017476245495, -0.033366675494627809, -0.89275187698954594,
      3.6349222499130645}},
    {"rmsprop decay",
     {0.5610691106874337, -1.3550944122680526, 1.9881099569888712, -0.018897711029187837, -0.83023753837791381,
      3.5081800074587473}},
    {"lamb",
     {0.50895337186020051, -1.2601704741997068, 2.0013714308385486, -0.0053051518643239962, -0.75438927778767884,
      3.5080439484638255}},
    {"lamb decay",
     {0.5651518166229631, -1.3311846072556952, 1.936423906310381, -0.0084951601836409374, -0.78136400644280701,
      3.4296437981118895}},
    {"lamb no decay",
     {0.55592444827287124, -1.3093684366267484, 2.0216253869512695, -0.032671522768096269, -0.78987811165596467,
      3.5492570297575941}},
    {"lamb scaled",
     {0.68246261547011777, -1.4582944993358158, 2.0337365229828031, -0.10501082159234749, -0.8408661406290685,
      3.6740088768633137}},
    {"lamb clipped",
     {0.99083509987340967, -1.7855594099828107, 2.0429677175453076, -0.28022866714181943, -0.9449307532809933,
      3.9095244826810163}},
    {"radam",
     {0.50142173137224277, -1.2511120582425386, 2.000248747325621, -0.00090233190702178724, -0.75048705824253847,
      3.5008737473256204}},
    {"radam decay",
     {0.54504640978906238, -1.243005137514031, 1.9131766493186564, -0.044109087488072359, -0.73682285082568622,
      3.3699006425002436}},
    {"radam of 12",
     {0.50988067509021939, -1.2459543905669592, 1.9819539598219484, -0.015645419191129346, -0.74237209336013055,
      3.4680227151894698}},
    {"rmsprop_sgd",
     {0.52110689232036678, -1.3035736093735553, 2.0384545524856681, 0.020899869887178967, -0.76729994564849668,
      3.578951730913257}},
    {"rmsprop_sgd decay",
     {0.54791581694164659, -1.3200986219726152, 1.9925116607730489, -0.027622107556332088, -0.80549198803794886,
      3.5046327932326244}},
    {"adagrad",
     {0.51107049173729657, -1.2687940740146084, 2.0049973221371311, -0.0033666089289305298, -0.76426776132531704,
      3.5134711605321192}},
    {"adagrad decay",
     {0.59648777684801213, -1.4124436003172793, 1.9805243132641939, -0.032167372162860641, -0.87506942514631281,
      3.5121762797133211}},
};

static wf_optim *make(wf_layer *model, const char *name)
{
    if (strcmp(name, "sgd") == 0)
        return wf_sgd(model, (wf_sgd_opts){.lr = 0.1});
    if (strcmp(name, "sgd momentum") == 0)
        return wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9});
    if (strcmp(name, "sgd decay") == 0)
        return wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05});
    if (strcmp(name, "sgd nesterov") == 0)
        return wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true});
    if (strcmp(name, "adam") == 0)
        return wf_adam(model, (wf_adam_opts){.lr = 0.01});
    if (strcmp(name, "adam dcgan") == 0)
        return wf_adam(model, (wf_adam_opts){.lr = 0.02, .beta1 = 0.5, .beta2 = 0.9, .weight_decay = 0.05});
    if (strcmp(name, "adam beta1 0") == 0)
        return wf_adam(model, (wf_adam_opts){.lr = 0.02, .beta1 = WF_ZERO, .eps = 1e-3});
    if (strcmp(name, "adamw") == 0)
        return wf_adamw(model, (wf_adam_opts){.lr = 0.01});
    if (strcmp(name, "adamw decay") == 0)
        return wf_adamw(model, (wf_adam_opts){.lr = 0.02, .weight_decay = 0.2});
    if (strcmp(name, "adamw no decay") == 0)
        return wf_adamw(model, (wf_adam_opts){.lr = 0.02, .weight_decay = WF_ZERO});
    if (strcmp(name, "lamb") == 0)
        return wf_lamb(model, (wf_lamb_opts){0});
    if (strcmp(name, "lamb decay") == 0)
        return wf_lamb(model, (wf_lamb_opts){.lr = 0.02, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.2});
    if (strcmp(name, "lamb no decay") == 0) /* which plain vectors are like, too */
        return wf_lamb(model, (wf_lamb_opts){.lr = 0.02, .weight_decay = 0.3, .plain_vectors = true});
    if (strcmp(name, "lamb scaled") == 0)
        return wf_lamb(model, (wf_lamb_opts){.lr = 0.02, .weight_decay = WF_ZERO, .scale_undecayed = true});
    if (strcmp(name, "lamb clipped") == 0)
        return wf_lamb(model, (wf_lamb_opts){.lr = 0.05, .eps = 0.1});
    if (strcmp(name, "radam") == 0)
        return wf_radam(model, (wf_adam_opts){0});
    if (strcmp(name, "radam of 12") == 0)
        return wf_radam(model,
                        (wf_adam_opts){.lr = 0.02, .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.05});
    if (strcmp(name, "radam decay") == 0)
        return wf_radam(model, (wf_adam_opts){.lr = 0.05, .beta2 = 0.9, .weight_decay = 0.2});
    if (strcmp(name, "rmsprop_sgd") == 0)
        return wf_rmsprop_sgd(model, (wf_rmsprop_sgd_opts){.centre = 3});
    if (strcmp(name, "rmsprop_sgd decay") == 0)
        return wf_rmsprop_sgd(model, (wf_rmsprop_sgd_opts){.lr = 0.02,
                                                           .rmsprop_lr = 0.01,
                                                           .momentum = 0.5,
                                                           .alpha = 0.9,
                                                           .eps = 1e-3,
                                                           .weight_decay = 0.05,
                                                           .centre = 2,
                                                           .period = 6});
    if (strcmp(name, "adagrad") == 0)
        return wf_adagrad(model, (wf_adagrad_opts){0});
    if (strcmp(name, "adagrad decay") == 0)
        return wf_adagrad(model, (wf_adagrad_opts){.lr = 0.1, .eps = 1e-3, .weight_decay = 0.05});
    if (strcmp(name, "rmsprop") == 0)
        return wf_rmsprop(model, (wf_rmsprop_opts){0});
    return wf_rmsprop(model, (wf_rmsprop_opts){.lr = 0.02, .alpha = 0.9, .eps = 1e-4, .weight_decay = 0.05});
}

static void check_golden(const char *device, wf_dtype dtype, double tolerance)
{
    for (size_t c = 0; c < sizeof expected / sizeof *expected; c++) {
        wf_ctx *ctx = ctx_of(device, dtype);
        wf_layer *model = dot_new(ctx, N, start);
        wf_optim *optim = make(model, expected[c].name);
        double g[N], p[N];
        WF_EXPECT_OK(wf_optim_clip_norm(optim, strcmp(expected[c].name, "lamb clipped") == 0 ? 1 : 0));
        /* RAdam scales its steps from the sixth on. */
        const int steps = strcmp(expected[c].name, "radam of 12") == 0 ? 12 : STEPS;
        for (int step = 0; step < steps; step++) {
            for (int i = 0; i < N; i++)
                g[i] = gradient(step, i);
            grad_set(param_of(model, 0), g);
            WF_EXPECT_OK(wf_optim_update(optim));
        }
        values_get(wf_param_value(param_of(model, 0)), p);
        const double distance = test_distance(N, p, expected[c].value);
        WF_EXPECT(distance <= tolerance, "%s on %s: off by %g", expected[c].name, device, distance);
        WF_EXPECT(wf_optim_steps(optim) == steps, "%lld steps", (long long)wf_optim_steps(optim));
        wf_optim_free(optim);
        wf_layer_free(model);
        WF_EXPECT_OK(wf_ctx_free(ctx));
    }
}

static void golden_ref_f64(void)
{
    check_golden("ref", WF_F64, 1e-14);
}

static void golden_cpu_f32(void)
{
    check_golden("cpu", WF_F32, 2e-6);
}

static void golden_cpu_f64(void)
{
    check_golden("cpu", WF_F64, 1e-13);
}

/* Adam's first step is lr in the direction of the gradient's sign, whatever its size. */
static void first_adam_step(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F64);
    wf_layer *model = dot_new(ctx, N, start);
    wf_optim *optim = wf_adam(model, (wf_adam_opts){.lr = 0.25, .eps = 1e-300});
    double p[N], should[N];
    grad_set(param_of(model, 0), (double[N]){1e-9, -1e9, 3, -2, 1, -1});
    for (int i = 0; i < N; i++)
        should[i] = start[i] + (i % 2 ? 0.25 : -0.25);
    WF_EXPECT_OK(wf_optim_update(optim));
    values_get(wf_param_value(param_of(model, 0)), p);
    WF_EXPECT(test_distance(N, p, should) < 1e-12, "off by %g", test_distance(N, p, should));
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void refuse(wf_optim *optim, const char *field)
{
    WF_EXPECT(!optim, "a bad %s was taken", field);
    WF_EXPECT(wf_error_code() == WF_ERR_ARGUMENT, "%s: %s", field, wf_status_name(wf_error_code()));
    WF_EXPECT(strstr(wf_error_message(), field), "'%s' does not name %s", wf_error_message(), field);
    wf_optim_free(optim);
    wf_error_clear();
}

static void bad_options(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    wf_layer *model = dot_new(ctx, N, start);
    refuse(wf_sgd(model, (wf_sgd_opts){.lr = -1}), "lr");
    refuse(wf_sgd(model, (wf_sgd_opts){.lr = NAN}), "lr");
    refuse(wf_sgd(model, (wf_sgd_opts){.momentum = -0.5}), "momentum");
    refuse(wf_sgd(model, (wf_sgd_opts){.nesterov = true}), "nesterov");
    refuse(wf_sgd(model, (wf_sgd_opts){.weight_decay = -1e-4}), "weight_decay");
    refuse(wf_adam(model, (wf_adam_opts){.beta1 = 1}), "beta1");
    refuse(wf_adam(model, (wf_adam_opts){.beta2 = -0.1}), "beta2");
    refuse(wf_adamw(model, (wf_adam_opts){.eps = -1}), "eps");
    refuse(wf_rmsprop(model, (wf_rmsprop_opts){.alpha = 1.5}), "alpha");
    refuse(wf_lamb(model, (wf_lamb_opts){.weight_decay = -1}), "weight_decay");
    refuse(wf_rmsprop(model, (wf_rmsprop_opts){.lr = INFINITY}), "lr");
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void verbs_on_null(void)
{
    WF_EXPECT(!wf_sgd(NULL, (wf_sgd_opts){0}), "an optimizer of no model");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_step(NULL, NULL));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_update(NULL));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_set_lr(NULL, 1));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_clip_norm(NULL, 1));
    WF_EXPECT(wf_optim_lr(NULL) == 0 && wf_optim_steps(NULL) == 0 && !wf_optim_model(NULL), "getters on NULL");
    wf_optim_free(NULL);
}

static void learning_rate(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    wf_layer *model = dot_new(ctx, N, start);
    wf_optim *optim = wf_adam(model, (wf_adam_opts){0});
    WF_EXPECT(wf_optim_lr(optim) == 1e-3, "default %g", wf_optim_lr(optim));
    WF_EXPECT_OK(wf_optim_set_lr(optim, 0.5));
    WF_EXPECT(wf_optim_lr(optim) == 0.5, "set to %g", wf_optim_lr(optim));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_set_lr(optim, -0.5));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_clip_norm(optim, -1));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_optim_clip_value(optim, NAN));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_update(optim)); /* there are no gradients */
    WF_EXPECT(wf_optim_model(optim) == model, "another model");
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"golden_ref_f64", golden_ref_f64},
                                   {"golden_cpu_f32", golden_cpu_f32},
                                   {"golden_cpu_f64", golden_cpu_f64},
                                   {"first_adam_step", first_adam_step},
                                   {"bad_options", bad_options},
                                   {"verbs_on_null", verbs_on_null},
                                   {"learning_rate", learning_rate},
                                   {0}});
}
