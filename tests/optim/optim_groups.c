/* Groups of parameters by patterns: formulas and separate optimizers give the same values, sharded, saved and loaded;
 * what is refused, on all ranks. */
#include "layers/pipeline.h"
#include "tests/optim/optim_pair.h"

#include <math.h>
#include <string.h>

enum { STEPS = 20, KINDS = 8, N = 5 };

/* --- one optimizer with groups, and one for each parameter --------------------------------------------------------
 */

static const double start[N] = {0.5, -1.25, 2.0, 0.1, -0.75};

static wf_optim *of_kind(wf_layer *model, int kind, double lr, double decay)
{
    const wf_adam_opts adam = {.lr = lr, .weight_decay = decay};
    switch (kind) {
    case 0:
        return wf_sgd(model, (wf_sgd_opts){.lr = lr, .weight_decay = decay});
    case 1:
        return wf_sgd(model, (wf_sgd_opts){.lr = lr, .momentum = 0.9, .nesterov = true, .weight_decay = decay});
    case 2:
        return wf_adam(model, adam);
    case 3:
        return wf_adamw(model, adam);
    case 4:
        return wf_lamb(model, (wf_lamb_opts){.lr = lr, .weight_decay = decay});
    case 5:
        return wf_radam(model, adam);
    case 6:
        return wf_adagrad(model, (wf_adagrad_opts){.lr = lr, .weight_decay = decay});
    default:
        return wf_rmsprop(model, (wf_rmsprop_opts){.lr = lr, .weight_decay = decay});
    }
}

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static void set_gradient(wf_param *param, int t, int of)
{
    double g[N];
    for (int i = 0; i < N; i++)
        g[i] = ((i * 5 + t * 3 + of) % 7 - 3) / 7.0;
    grad_set(param, g);
}

/* Three parameters: in/one (rate and decay of its own), in/two (the rate alone), top/three (neither). */
static void separate(const char *device, wf_dtype dtype, int kind)
{
    static const double lr[3] = {0.25, 0.25, 1}, decay[3] = {WF_ZERO, 0.125, 0.125};
    wf_ctx *own = ctx_of(device, dtype);
    wf_layer *model = wf_module(own, no_forward, NULL), *in = wf_module(own, no_forward, NULL), *single[3];
    wf_optim *alone[3];
    wf_module_add(model, "in", in);
    wf_module_add(in, "one", dot_new(own, N, start));
    wf_module_add(in, "two", dot_new(own, N, start));
    wf_module_add(model, "three", dot_new(own, N, start));
    wf_optim *optim = of_kind(model, kind, 0.1, 0.125);
    WF_EXPECT_OK(wf_optim_group(optim, "in/*", (wf_group_opts){.lr_scale = 0.5, .weight_decay = 7}));
    for (int p = 0; p < 3; p++) {
        single[p] = dot_new(own, N, start);
        alone[p] = of_kind(single[p], kind, 0.1 * lr[p], decay[p]);
    }
    for (int t = 0; t < 5; t++) {
        for (int p = 0; p < 3; p++) {
            set_gradient(param_of(model, p), t, p);
            set_gradient(param_of(single[p], 0), t, p);
            WF_EXPECT_OK(wf_optim_update(alone[p]));
        }
        /* Made before anything is bound and, of a local optimizer, between steps: later ones win. */
        if (t == 0) {
            WF_EXPECT_OK(wf_optim_group(optim, "in/*", (wf_group_opts){.lr_scale = 0.25, .weight_decay = 0.125}));
            WF_EXPECT_OK(wf_optim_group(optim, "*/one/?", (wf_group_opts){.weight_decay = WF_ZERO}));
        }
        WF_EXPECT_OK(wf_optim_update(optim));
    }
    for (int p = 0; p < 3; p++) {
        double a[N], b[N];
        values_get(wf_param_value(param_of(model, p)), a);
        values_get(wf_param_value(param_of(single[p], 0)), b);
        WF_EXPECT(test_distance(N, a, b) == 0, "kind %d on %s: parameter %d is off by %g", kind, device, p,
                  test_distance(N, a, b));
        wf_optim_free(alone[p]);
        wf_layer_free(single[p]);
    }
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(own));
}

static void separates(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        separate("ref", WF_F64, kind);
        separate("cpu", WF_F32, kind);
    }
}

/* A rate of 0 leaves values; what is added later is found between two steps. */
static void between_steps(void)
{
    wf_ctx *own = ctx_of("ref", WF_F64);
    wf_layer *model = dot_new(own, N, start);
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.5});
    double before[N], after[N];
    set_gradient(param_of(model, 0), 0, 0);
    WF_EXPECT_OK(wf_optim_update(optim));
    values_get(wf_param_value(param_of(model, 0)), before);
    WF_EXPECT(test_distance(N, before, start) > 0.1, "nothing moved");
    WF_EXPECT_OK(wf_optim_group(optim, "*/w", (wf_group_opts){.lr_scale = WF_ZERO, .vectors = true}));
    WF_EXPECT_OK(wf_optim_update(optim));
    values_get(wf_param_value(param_of(model, 0)), after);
    WF_EXPECT(test_distance(N, before, after) == 0, "a rate of 0 moves by %g", test_distance(N, before, after));
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_ctx_free(own));
}

/* --- AdamW on ranks, written out ----------------------------------------------------------------------------------
 */

static void expected(double p[ALL])
{
    double m[ALL] = {0}, v[ALL] = {0};
    for (int i = 0; i < ALL; i++)
        p[i] = start_of(i);
    for (int t = 0; t < STEPS; t++)
        for (int i = 0; i < ALL; i++) {
            const double lr = i < MATRIX ? 0.05 * 0.5 : 0.05, decay = i < MATRIX ? 0.2 : 0;
            double g = 0;
            for (int r = 0; r < size; r++)
                g += gradient_of(t, i, r) / size;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            p[i] -= lr * (m[i] / (1 - pow(0.9, t + 1)) / (sqrt(v[i] / (1 - pow(0.999, t + 1))) + 1e-8) + decay * p[i]);
        }
}

static wf_optim *grouped(wf_layer *model, double scale)
{
    wf_optim *optim = wf_adamw(model, (wf_adam_opts){.lr = 0.05, .weight_decay = 0.2});
    WF_EXPECT_OK(wf_optim_group(optim, "*", (wf_group_opts){.vectors = true, .weight_decay = WF_ZERO}));
    WF_EXPECT_OK(wf_optim_group(optim, "W", (wf_group_opts){.lr_scale = scale}));
    return optim;
}

/* Saved by either form after half of the steps and gone on with by either. */
static void formula(void)
{
    open_comm("flat", "ref", WF_F64);
    for (int c = 0; c < 4; c++) {
        const wf_multi_node_opts from = {.shard_optimizer = c & 1, .bucket_bytes = 700, .first_bucket_bytes = 700},
                                 to = {.shard_optimizer = c & 2};
        wf_layer *model = pair_new(), *copy = pair_new();
        wf_optim *optim = wf_multi_node(comm, grouped(model, 0.5), from);
        wf_optim *other = wf_multi_node(comm, grouped(copy, 0.5), to);
        wf_archive *archive = wf_archive_memory(ctx);
        double should[ALL];
        int64_t n;
        for (int t = 0; t < STEPS / 2; t++)
            WF_EXPECT_OK(pair_step(model, optim, t));
        visit_pair(model, optim, archive);
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        visit_pair(copy, other, archive);
        for (int t = STEPS / 2; t < STEPS; t++)
            WF_EXPECT_OK(pair_step(copy, other, t));
        expected(should);
        double *seen = values_of(copy, &n);
        WF_EXPECT(test_distance(ALL, seen, should) < 1e-13, "case %d: off by %g", c, test_distance(ALL, seen, should));
        free(seen);
        wf_archive_free(archive);
        wf_optim_free(optim);
        wf_optim_free(other);
        wf_layer_free(model);
        wf_layer_free(copy);
    }
    close_comm();
}

/* --- refused ------------------------------------------------------------------------------------------------------
 */

static void expect_refused(wf_status got, wf_status want, const char *what)
{
    WF_EXPECT(got == want && strstr(wf_error_message(), what), "%s: '%s' does not say %s", wf_status_name(got),
              wf_error_message(), what);
    wf_error_clear();
}

static void wrong_calls(void)
{
    const wf_group_opts slow = {.lr_scale = 0.5};
    char endless[200];
    open_comm("flat", "ref", WF_F64);
    wf_layer *model = pair_new();
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){0});
    memset(endless, '*', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    expect_refused(wf_optim_group(NULL, "*", slow), WF_ERR_ARGUMENT, "optim");
    expect_refused(wf_optim_group(optim, NULL, slow), WF_ERR_ARGUMENT, "pattern");
    expect_refused(wf_optim_group(optim, endless, slow), WF_ERR_ARGUMENT, "199 bytes");
    expect_refused(wf_optim_group(optim, "", slow), WF_ERR_ARGUMENT, "0 bytes");
    expect_refused(wf_optim_group(optim, "bias*", slow), WF_ERR_ARGUMENT,
                   "\"bias*\" of wf_optim_group; the first of 2");
    expect_refused(wf_optim_group(optim, "W", (wf_group_opts){.lr_scale = 0.5, .vectors = true}), WF_ERR_ARGUMENT,
                   "that is a vector matches the pattern \"W\"");
    expect_refused(wf_optim_group(optim, "W", (wf_group_opts){0}), WF_ERR_ARGUMENT, "changes nothing");
    expect_refused(wf_optim_group(optim, "W", (wf_group_opts){.lr_scale = -1}), WF_ERR_ARGUMENT, "is -1");
    expect_refused(wf_optim_group(optim, "W", (wf_group_opts){.weight_decay = NAN}), WF_ERR_ARGUMENT, "is nan");
    wf_optim *all = wf_multi_node(comm, optim, (wf_multi_node_opts){0});
    expect_refused(wf_optim_group(all, "W", slow), WF_ERR_STATE, "before wf_multi_node");
    wf_optim_free(all);
    wf_layer_free(model);
    close_comm();
}

static void other_groups(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_layer *model = pair_new();
    wf_optim *all = wf_multi_node(comm, grouped(model, rank == size - 1 ? 0.5 : 0.25), (wf_multi_node_opts){0});
    WF_EXPECT(!all == (size > 1), "groups that differ: %s", wf_error_message());
    WF_EXPECT(all || strstr(wf_error_message(), "\"W\" (lr_scale 0.25, weight_decay kept); on rank"), "'%s'",
              wf_error_message());
    wf_error_clear();
    wf_optim_free(all);
    wf_optim *with = grouped(model, 0.5), *other = grouped(model, 0.25), *none = wf_adamw(model, (wf_adam_opts){0});
    for (int c = 0; c < 3; c++) {
        wf_archive *archive = wf_archive_memory(ctx);
        WF_EXPECT_OK(wf_optim_archive(c == 2 ? none : with, archive));
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        expect_refused(wf_optim_archive(c == 0   ? other
                                        : c == 1 ? none
                                                 : with,
                                        archive),
                       WF_ERR_FORMAT,
                       c == 0   ? "2 in number; those of this optimizer are \"*\" of vectors"
                       : c == 1 ? "2 in number; those of this optimizer are none"
                                : "0 in number; those of this optimizer are \"*\"");
        wf_archive_free(archive);
    }
    wf_optim_free(with);
    wf_optim_free(other);
    wf_optim_free(none);
    wf_layer_free(model);
    close_comm();
}

/* A pattern that a parameter of one stage matches, and one that none does. */
static void stages(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.stage = size});
    for (int c = 0; c < 2; c++) {
        wf_layer *chain = wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = 4, .out = 4}),
                                                       wf_linear(ctx, (wf_linear_opts){.in = 4, .out = 4})));
        wf_pipeline *pipe = wf_pipeline_new(mesh, chain, (wf_pipeline_opts){.loss = wf_mean_cross_entropy});
        wf_optim *optim = wf_sgd(wf_pipeline_model(pipe), (wf_sgd_opts){0});
        const wf_status status = wf_optim_group(optim, c ? "7/*" : "1/W", (wf_group_opts){.lr_scale = 0.5});
        WF_EXPECT(status == (c && size == 1 ? WF_ERR_ARGUMENT : WF_OK), "%s", wf_error_message());
        optim = wf_mesh_multi_node(mesh, optim, (wf_multi_node_opts){0});
        WF_EXPECT(!optim == (c && size > 1), "%s", wf_error_message());
        WF_EXPECT(optim || strstr(wf_error_message(), "on any stage matches the pattern \"7/*\""), "'%s'",
                  wf_error_message());
        wf_error_clear();
        wf_optim_free(optim);
        wf_pipeline_free(pipe);
    }
    wf_mesh_close(mesh);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"separates", separates},
                                   {"between_steps", between_steps},
                                   {"formula", formula},
                                   {"wrong_calls", wrong_calls},
                                   {"other_groups", other_groups},
                                   {"stages", stages},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
