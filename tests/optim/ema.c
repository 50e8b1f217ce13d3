/* Moving averages of parameters: PyTorch's numbers, a plain loop over what each rank holds (whole, cut over channels,
 * in the buffers of a sharded optimizer), and models with averages swapped in. */
#include "optim/trainer.h"
#include "tests/optim/optim_nets.h"

#include <string.h>

enum { N = 6, STEPS = 5 };

static const double begin[N] = {0.5, -1.25, 2.0, 0.0, -0.75, 3.5};

/* torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(0.9) after 5 steps of SGD (lr 0.1, momentum 0.9) with
 * the gradients of optim_algorithms.c, by PyTorch 2.15. */
static const double golden[N] = {0.61314875000000002,   -1.3283784999999999,  2.0222459999999995,
                                 -0.082023750000000006, -0.78524424999999998, 3.56538025};

static void known_numbers(void)
{
    for (int wide = 0; wide < 2; wide++) {
        wf_ctx *own = ctx_of(wide ? "ref" : "cpu", wide ? WF_F64 : WF_F32);
        wf_layer *model = dot_new(own, N, begin);
        wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9});
        wf_ema *ema = wf_ema_new(model, (wf_ema_opts){.decay = 0.9});
        double g[N], is[N];
        for (int step = 0; step < STEPS; step++) {
            for (int i = 0; i < N; i++)
                g[i] = ((i * 7 + step * 3) % 11 - 5) / 8.0;
            grad_set(param_of(model, 0), g);
            WF_EXPECT_OK(wf_optim_update(optim));
            WF_EXPECT_OK(wf_ema_update(ema));
        }
        WF_EXPECT_OK(wf_ema_swap(ema));
        values_get(wf_param_value(param_of(model, 0)), is);
        WF_EXPECT(test_distance(N, is, golden) <= (wide ? 1e-14 : 1e-6), "off by %g", test_distance(N, is, golden));
        WF_EXPECT(wf_ema_updates(ema) == STEPS && wf_ema_model(ema) == model, "%lld updates",
                  (long long)wf_ema_updates(ema));
        wf_ema_free(ema);
        wf_optim_free(optim);
        wf_layer_free(model);
        WF_EXPECT_OK(wf_ctx_free(own));
    }
}

static void average_plainly(int64_t n, double *average, const double *value, int t, wf_ema_opts opts)
{
    const double risen = (1.0 + t) / (10.0 + t);
    const double decay = opts.warm_up && risen < opts.decay ? risen : opts.decay;
    for (int64_t i = 0; i < n; i++)
        average[i] = t == 1 ? value[i] : decay * average[i] + (1 - decay) * value[i];
}

static void train_averaged(const wf_mesh *mesh, wf_multi_node_opts how, wf_ema_opts opts)
{
    wf_layer *net = net_new(mesh);
    wf_optim *optim = wf_sgd(net, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9});
    wf_ema *ema = wf_ema_new(net, opts); /* before ranks are made equal: the first update comes after that */
    optim = mesh ? wf_mesh_multi_node(mesh, optim, how) : wf_multi_node(comm, optim, how);
    wf_tape *tape = wf_tape_new(ctx);
    const net_batch batch = net_batch_new();
    double *average = NULL;
    int64_t n = 0;
    start_alike(net);
    for (int t = 1; t <= STEPS; t++) {
        WF_EXPECT_OK(wf_optim_step(optim, net_loss(mesh, net, tape, batch, t)));
        WF_EXPECT_OK(wf_tape_reset(tape));
        WF_EXPECT_OK(wf_ema_update(ema));
        double *value = values_of(net, &n);
        average = average ? average : calloc((size_t)n, sizeof *average);
        average_plainly(n, average, value, t, opts);
        free(value);
    }
    for (int64_t i = 0, at = 0; param_of(net, i); i++) {
        wf_param *p = param_of(net, i);
        const int64_t count = wf_tensor_count(wf_param_value(p));
        double *is = calloc((size_t)count + 1, sizeof *is);
        if (i == 0)
            WF_EXPECT_OK(wf_ema_swap(ema));
        values_get(wf_param_value(p), is);
        const double off = wf_param_trainable(p) ? test_distance(count, is, average + at) : 0;
        WF_EXPECT(off < 1e-12, "%s on rank %d: off by %g", wf_param_path(p), rank, off);
        at += count;
        free(is);
    }
    free(average);
    net_batch_free(batch);
    wf_tape_free(tape);
    wf_ema_free(ema);
    wf_optim_free(optim);
    wf_layer_free(net);
}

static void equals_a_plain_loop(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size}); /* 5 channels over up to 4 ranks */
    for (int sharded = 0; sharded < 2; sharded++) {
        const wf_multi_node_opts how = {.shard_optimizer = sharded, .bucket_bytes = 900};
        train_averaged(NULL, how, (wf_ema_opts){.decay = 0.75});
        train_averaged(mesh, how, (wf_ema_opts){.decay = 0.3, .warm_up = true});
    }
    wf_mesh_close(mesh);
    close_comm();
}

/* A step in bf16: averages are of the masters. A model that has them loaded and one that has them swapped in compute
 * the same bits, and so does the trained model after they are swapped out. */
static void swaps(void)
{
    open_comm("flat", "cpu", WF_F32);
    WF_EXPECT_OK(wf_ctx_set_compute(ctx, WF_BF16));
    wf_layer *net = net_new(NULL);
    wf_optim *optim = wf_multi_node(comm, wf_sgd(net, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    wf_ema *ema = wf_ema_new(net, (wf_ema_opts){.decay = 0.5});
    wf_tape *tape = wf_tape_new(ctx);
    const net_batch batch = net_batch_new();
    const void *place = wf_param_value(param_of(net, 0))->data;
    double first[4], second[4], loss[3];
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_ema_swap(ema));
    for (int t = 1; t <= 2; t++) {
        WF_EXPECT_OK(wf_optim_step(optim, net_loss(NULL, net, tape, batch, t)));
        WF_EXPECT_OK(wf_tape_reset(tape));
        WF_EXPECT_OK(wf_ema_update(ema));
        double *value = values_of(net, &(int64_t){0});
        memcpy(t == 1 ? first : second, value, sizeof first);
        free(value);
    }
    for (int s = 0; s < 3; s++) {
        double *value = values_of(net, &(int64_t){0});
        for (int i = 0; i < 4; i++) {
            const double should = s == 1 ? (first[i] + second[i]) / 2 : second[i];
            WF_EXPECT(test_distance(1, &value[i], &should) <= (s == 1 ? 1e-7 : 0), "swap %d: %g, should be %g", s,
                      value[i], should);
        }
        free(value);
        loss[s] = wf_item(net_loss(NULL, net, tape, batch, 9));
        WF_EXPECT_OK(wf_tape_reset(tape));
        WF_EXPECT(wf_ema_swapped(ema) == (s == 1), "swap %d", s);
        WF_EXPECT_OK(wf_ema_swap(ema));
    }
    WF_EXPECT(loss[0] == loss[2] && loss[0] != loss[1], "losses %g, %g, %g", loss[0], loss[1], loss[2]);
    WF_EXPECT(place == wf_param_value(param_of(net, 0))->data, "a parameter moved");
    WF_EXPECT(wf_ema_swapped(ema), "swapped out");
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_ema_update(ema));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_ema_archive(ema, archive));
    wf_archive_free(archive);
    net_batch_free(batch);
    wf_tape_free(tape);
    wf_ema_free(ema);
    wf_optim_free(optim);
    wf_layer_free(net);
    close_comm();
}

/* A parameter that is trained later starts from its value. */
static void joins_later(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_layer *net = net_new(NULL);
    wf_param *late = param_of(net, 0);
    wf_ema *ema = wf_ema_new(net, (wf_ema_opts){.decay = 0.5});
    WF_EXPECT_OK(wf_param_set_trainable(late, false));
    WF_EXPECT_OK(wf_ema_update(ema));
    WF_EXPECT_OK(wf_param_set_trainable(late, true));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(late), 3));
    WF_EXPECT_OK(wf_ema_update(ema));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(late), 5));
    WF_EXPECT_OK(wf_ema_update(ema));
    WF_EXPECT_OK(wf_ema_swap(ema));
    double *value = values_of(net, &(int64_t){0});
    WF_EXPECT(value[0] == 4, "an average of %g, should be 4", value[0]);
    free(value);
    wf_ema_free(ema);
    wf_layer_free(net);
    close_comm();
}

static wf_status do_nothing(wf_trainer *trainer, void *user)
{
    return WF_OK;
}

static void wrong_calls(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_layer *net = net_new(NULL);
    WF_EXPECT(!wf_ema_new(net, (wf_ema_opts){.decay = 1}), "a decay of 1");
    WF_EXPECT(strstr(wf_error_message(), "decay 1; it must be in [0, 1)"), "'%s'", wf_error_message());
    wf_error_clear();
    WF_EXPECT(!wf_ema_new(NULL, (wf_ema_opts){0}), "averages of no model");
    wf_error_clear();
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_ema_update(NULL));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_ema_swap(NULL));
    WF_EXPECT(!wf_ema_swapped(NULL) && wf_ema_updates(NULL) == 0 && !wf_ema_model(NULL), "getters on NULL");
    wf_trainer *trainer = wf_trainer_new(comm, do_nothing, NULL, (wf_trainer_opts){.iterations = 1});
    WF_EXPECT_ERROR(
        WF_ERR_ARGUMENT,
        wf_trainer_keep_best(trainer, "loss", (wf_best_opts){.model = net, .path = "best.h5", .averages = true}));
    wf_trainer_free(trainer);
    wf_ema_free(NULL);
    wf_layer_free(net);
    close_comm();
}

/* A run that had no averages goes on with them; one that has some refuses an archive without. */
static void begins_later(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_layer *net = net_new(NULL);
    wf_ema *ema = wf_ema_new(net, (wf_ema_opts){.decay = 0.5});
    wf_archive *archive = wf_archive_memory(ctx);
    int64_t other = 3;
    WF_EXPECT_OK(wf_archive_i64(archive, "other", &other));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT_OK(wf_ema_archive(ema, archive));
    WF_EXPECT_OK(wf_ema_update(ema));
    WF_EXPECT(wf_ema_updates(ema) == 1, "%lld updates", (long long)wf_ema_updates(ema));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_ema_archive(ema, archive));
    wf_archive_free(archive);
    wf_ema_free(ema);
    wf_layer_free(net);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"known_numbers", known_numbers},
                                   {"equals_a_plain_loop", equals_a_plain_loop},
                                   {"swaps", swaps},
                                   {"joins_later", joins_later},
                                   {"begins_later", begins_later},
                                   {"wrong_calls", wrong_calls},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
