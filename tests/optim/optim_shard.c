/* An optimizer that is sharded over ranks: the bits of the whole one, state that falls by the number of ranks, archives
 * that either form can load, and the bytes of the formula. */
#include "core/tape_author.h"
#include "tests/optim/optim_nets.h"
#include "tests/world.h"

#include <string.h>

enum {
    STEPS = 4,
    KINDS = 9,
    LINE = 64,
    LAMB = 5 /* adds squares in another order, which a bias before a normalisation shows */
};

static const int64_t sizes[] = {1, 700, (int64_t)1 << 30};

/* --- training ------------------------------------------------------------------------------------------------------
 */

static wf_optim *optim_new(wf_layer *net, int kind)
{
    switch (kind) {
    case 0:
        return wf_sgd(net, (wf_sgd_opts){.lr = 0.1});
    case 1:
        return wf_sgd(net, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
    case 2:
        return wf_adam(net, (wf_adam_opts){.lr = 0.01});
    case 3:
        return wf_adamw(net, (wf_adam_opts){.lr = 0.01});
    case LAMB:
        return wf_lamb(net, (wf_lamb_opts){.lr = 0.01});
    case 6:
        return wf_radam(net, (wf_adam_opts){.lr = 0.01});
    case 7:
        return wf_adagrad(net, (wf_adagrad_opts){.lr = 0.01});
    case 8:
        return wf_rmsprop_sgd(net, (wf_rmsprop_sgd_opts){.lr = 0.01, .centre = 3});
    default:
        return wf_rmsprop(net, (wf_rmsprop_opts){.lr = 0.01});
    }
}

static wf_status step(const wf_mesh *mesh, wf_layer *net, wf_optim *optim, int t)
{
    wf_tape *tape = wf_tape_new(ctx);
    const net_batch batch = net_batch_new();
    const wf_status status = wf_optim_step(optim, net_loss(mesh, net, tape, batch, t));
    wf_tape_free(tape);
    net_batch_free(batch);
    return status;
}

typedef struct way {
    const wf_mesh *mesh;
    int kind;
    double clip;
    wf_multi_node_opts opts;
} way;

/* In the second half one parameter is frozen, and comes back at the end. */
static double *trained(const way *w, int64_t *count)
{
    wf_layer *net = net_new(w->mesh);
    wf_tensor *handle = wf_param_value(param_of(net, 0));
    wf_optim *optim = w->mesh ? wf_mesh_multi_node(w->mesh, optim_new(net, w->kind), w->opts)
                              : wf_multi_node(comm, optim_new(net, w->kind), w->opts);
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    WF_EXPECT_OK(wf_optim_clip_norm(optim, w->clip));
    start_alike(net);
    for (int t = 0; t < STEPS; t++) {
        if (t == 2 || t == 3)
            WF_EXPECT_OK(wf_param_set_trainable(param_of(net, 1), t == 3));
        WF_EXPECT_OK(step(w->mesh, net, optim, t));
    }
    WF_EXPECT(handle == wf_param_value(param_of(net, 0)), "the parameter has another handle");
    double *values = values_of(net, count);
    wf_optim_free(optim);
    wf_layer_free(net);
    return values;
}

static void expect_alike(const char *what, way w, double distance)
{
    int64_t n = 0;
    w.opts.shard_optimizer = false;
    double *whole = trained(&w, &n);
    w.opts.shard_optimizer = true;
    double *cut = trained(&w, &n);
    const double off = test_distance(n, cut, whole);
    WF_EXPECT(off <= distance, "%s, kind %d, buckets of %lld bytes on rank %d: off by %g", what, w.kind,
              (long long)w.opts.bucket_bytes, rank, off);
    free(whole);
    free(cut);
}

/* Between nodes the reducers with levels add in another order; Adam would amplify that. */
static void same_bits(void)
{
    for (int r = 0; r < COUNT(reducers); r++) {
        open_comm(reducers[r], "cpu", WF_F32);
        const bool levels = wf_comm_inter_size(comm) > 1 && r > 1;
        for (int s = 0; s < COUNT(sizes); s++) {
            const wf_multi_node_opts opts = {.bucket_bytes = sizes[s], .first_bucket_bytes = 1};
            expect_alike(reducers[r], (way){.kind = levels ? 1 : 2, .opts = opts}, levels ? 1e-5 : 0);
        }
        close_comm();
    }
}

static void kinds(void)
{
    open_comm("flat", "ref", WF_F64);
    for (int kind = 0; kind < KINDS; kind++)
        expect_alike("flat", (way){.kind = kind, .opts = {.bucket_bytes = 900}}, kind == LAMB ? 1e-9 : 0);
    close_comm();
}

static void clipped(void)
{
    open_comm("auto", "ref", WF_F64);
    expect_alike("clipped", (way){.kind = 1, .clip = 0.05, .opts = {.bucket_bytes = 900}}, 1e-12);
    close_comm();
}

static void narrow(void)
{
    open_comm("flat", "cpu", WF_F32);
    for (int grad_dtype = 0; grad_dtype < 2; grad_dtype++)
        expect_alike("narrow",
                     (way){.kind = 1, .opts = {.bucket_bytes = 900, .grad_dtype = grad_dtype ? WF_BF16 : WF_F16}}, 0);
    close_comm();
}

/* Parameters of which the ranks along channel have parts, and others that all have. */
static void mesh_axes(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size % 2 ? 1 : 2});
    expect_alike("mesh", (way){.mesh = mesh, .kind = 2, .opts = {.bucket_bytes = 900}}, 0);
    expect_alike("mesh", (way){.mesh = mesh, .kind = 1, .clip = 0.05, .opts = {.bucket_bytes = 900}}, 1e-12);
    expect_alike("mesh", (way){.mesh = mesh, .kind = LAMB, .opts = {.bucket_bytes = 900}}, 1e-12);
    wf_mesh_close(mesh);
    close_comm();
}

/* A layer whose shards along channel differ in size, and one that all ranks hold. */
static wf_layer *uneven_net(const wf_mesh *mesh)
{
    const wf_linear_opts cut = {.in = 3 * SIDE * SIDE, .out = 3, .form = WF_FORM_FILTER, .replicate = true},
                         whole = {.in = 3, .out = 200};
    return wf_sequential(ctx, WF_LAYERS(wf_lambda(ctx, wf_flatten), wf_channel_linear(mesh, cut),
                                        wf_lambda(ctx, wf_tanh), wf_linear(ctx, whole)));
}

/* The places along channel move what both hold by equal bits of its norm, though the shards beside it differ in size:
 * each step compares them. */
static void train_uneven(const char *name, bool shards, int kind, double clip)
{
    open_comm(name, "ref", WF_F64);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size % 2 ? 1 : 2});
    wf_layer *net = uneven_net(mesh);
    const wf_multi_node_opts opts = {.shard_optimizer = shards, .compare_every = 1};
    wf_optim *optim = wf_mesh_multi_node(mesh, optim_new(net, kind), opts);
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    WF_EXPECT_OK(wf_optim_clip_norm(optim, clip));
    start_alike(net);
    wf_status status = WF_OK;
    for (int t = 0; t < STEPS && status == WF_OK; t++) {
        status = step(mesh, net, optim, t);
        WF_EXPECT(status == WF_OK, "%s, kind %d, clip %g, step %d: %s", name, kind, clip, t, wf_error_message());
    }
    wf_optim_free(optim);
    wf_layer_free(net);
    wf_mesh_close(mesh);
    close_comm();
}

static void uneven_channels(void)
{
    train_uneven("flat", true, 1, 0.05);
    train_uneven("flat", true, LAMB, 0);
}

/* On two nodes of three ranks the places along channel have their samples on nodes in other ways. */
static void unlike_nodes(void)
{
    for (int r = 2; r < COUNT(reducers); r++) {
        train_uneven(reducers[r], false, 1, 0);
        train_uneven(reducers[r], true, LAMB, 0.05);
    }
}

/* --- memory and messages -------------------------------------------------------------------------------------------
 */

static wf_optim *sharded(wf_layer *net, int kind)
{
    wf_optim *optim = wf_multi_node(comm, optim_new(net, kind), (wf_multi_node_opts){.shard_optimizer = true});
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    return optim;
}

static int64_t lines_of(wf_layer *net)
{
    int64_t lines = 0;
    for (int64_t i = 0; param_of(net, i); i++)
        if (wf_param_trainable(param_of(net, i)))
            lines += ((int64_t)wf_tensor_bytes(wf_param_value(param_of(net, i))) + LINE - 1) / LINE;
    return lines;
}

static void memory(void)
{
    open_comm("flat", "cpu", WF_F32);
    wf_layer *net = net_new(NULL);
    wf_optim *optim = sharded(net, 2);
    double all = 0;
    WF_EXPECT(wf_optim_state_bytes(optim) == 0, "state before the first step");
    WF_EXPECT_OK(step(NULL, net, optim, 0));
    const int64_t bytes = (int64_t)wf_optim_state_bytes(optim), most = 2 * LINE * ((lines_of(net) + size - 1) / size);
    WF_EXPECT(bytes <= most, "rank %d keeps %lld bytes of state, should be at most %lld", rank, (long long)bytes,
              (long long)most);
    all = (double)bytes;
    WF_EXPECT_OK(wf_allreduce_f64(comm, &all, 1, WF_SUM));
    double whole = 0;
    for (int64_t i = 0; param_of(net, i); i++)
        if (wf_param_trainable(param_of(net, i)))
            whole += 2.0 * (double)wf_tensor_bytes(wf_param_value(param_of(net, i)));
    WF_EXPECT(all == whole, "all ranks keep %g bytes, should be %g", all, whole);
    wf_optim_free(optim);
    wf_layer_free(net);
    close_comm();
}

/* One bucket: n - own out and (P-1) own back, nothing copied in host memory but the short sum of what rides along. */
static void bytes_sent(void)
{
    open_comm("flat", "cpu", WF_F32);
    wf_layer *net = net_new(NULL);
    wf_optim *optim = sharded(net, 2);
    int64_t lo, hi;
    const int64_t n = lines_of(net);
    WF_EXPECT_OK(step(NULL, net, optim, 0));
    const wf_traffic before = wf_comm_traffic(comm);
    WF_EXPECT_OK(step(NULL, net, optim, 1));
    const wf_traffic after = wf_comm_traffic(comm);
    wf_block(n, size, rank, &lo, &hi);
    const int64_t own = hi - lo, tail = 25 * (int64_t)sizeof(float);
    const int64_t should = size > 1 ? LINE * (n - own + (size - 1) * own) + (size - 1) * tail : 0;
    WF_EXPECT((int64_t)(after.bytes_sent - before.bytes_sent) == should, "rank %d sent %lld bytes, should be %lld",
              rank, (long long)(after.bytes_sent - before.bytes_sent), (long long)should);
    const bool host =
        strcmp(wf_ctx_device(ctx), "cuda") != 0; /* else it goes through the host's memory, there and back */
    WF_EXPECT((int64_t)(after.bytes_copied - before.bytes_copied) <= (host ? tail : 4 * LINE * n + 3 * tail),
              "%lld bytes were copied", (long long)(after.bytes_copied - before.bytes_copied));
    wf_optim_free(optim);
    wf_layer_free(net);
    close_comm();
}

/* Fewer lines than ranks. */
static void tiny(void)
{
    open_comm("flat", "ref", WF_F64);
    const double start[3] = {1, 2, 3};
    wf_layer *net = dot_new(ctx, 3, start);
    wf_optim *optim = sharded(net, 1);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3));
    double seen[3];
    WF_EXPECT_OK(wf_tensor_fill(x, rank + 1));
    wf_var *loss = wf_apply(net, wf_input(tape, x));
    loss->loss_mean = true;
    loss->loss_count = 1;
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    values_get(wf_param_value(param_of(net, 0)), seen);
    for (int i = 0; i < 3; i++) { /* nesterov: (1 + 0.9) times the gradient and the decay */
        const double g = (size + 1) / 2.0 + 0.01 * start[i], should = start[i] - 0.1 * 1.9 * g;
        WF_EXPECT(test_distance(1, &seen[i], &should) < 1e-14, "element %d is %g, should be %g", i, seen[i], should);
    }
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(net);
    close_comm();
}

/* --- archives ------------------------------------------------------------------------------------------------------
 */

static wf_optim *of_form(wf_comm *on, wf_layer *net, int kind, bool is_sharded)
{
    const wf_multi_node_opts opts = {.bucket_bytes = 900, .shard_optimizer = is_sharded};
    wf_optim *optim = wf_multi_node(on, optim_new(net, kind), opts);
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    return optim;
}

static void visit(wf_layer *net, wf_optim *optim, wf_archive *archive)
{
    WF_EXPECT_OK(wf_layer_archive(net, archive));
    WF_EXPECT_OK(wf_archive_enter(archive, "optim"));
    WF_EXPECT_OK(wf_optim_archive(optim, archive));
    WF_EXPECT_OK(wf_archive_leave(archive));
}

/* Saved in one form, loaded in another before or after its first step; both go on alike. */
static void save_and_load(int kind, bool from, bool to, bool used)
{
    wf_layer *net = net_new(NULL), *copy = net_new(NULL);
    wf_optim *optim = of_form(comm, net, kind, from), *other = of_form(comm, copy, kind, to);
    wf_archive *archive = wf_archive_memory(ctx);
    int64_t n;
    WF_EXPECT_OK(step(NULL, net, optim, 0));
    WF_EXPECT_OK(step(NULL, net, optim, 1));
    if (used)
        WF_EXPECT_OK(step(NULL, copy, other, 5));
    visit(net, optim, archive);
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    visit(copy, other, archive);
    for (int t = 2; t < STEPS; t++) {
        WF_EXPECT_OK(step(NULL, net, optim, t));
        WF_EXPECT_OK(step(NULL, copy, other, t));
    }
    double *a = values_of(net, &n), *b = values_of(copy, &n);
    WF_EXPECT(test_distance(n, a, b) == 0, "kind %d, %s to %s: goes on differently, by %g", kind,
              from ? "cut" : "whole", to ? "cut" : "whole", test_distance(n, a, b));
    free(a);
    free(b);
    wf_archive_free(archive);
    wf_optim_free(optim);
    wf_optim_free(other);
    wf_layer_free(net);
    wf_layer_free(copy);
}

static void archives(void)
{
    open_comm("flat", "cpu", WF_F32);
    for (int form = 0; form < 4; form++) {
        save_and_load(2, form & 1, form & 2, false);
        save_and_load(1 + 3 * (form % 2), form & 1, form & 2, true);
    }
    close_comm();
}

/* What all ranks saved goes on on fewer: on each rank by itself, and on all but the last, cut otherwise. */
static void fewer_ranks(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_layer *net = net_new(NULL), *alone = net_new(NULL), *less = net_new(NULL);
    wf_optim *optim = of_form(comm, net, 1, true), *single = optim_new(alone, 1), *few = NULL;
    wf_comm *part = wf_comm_split(comm, rank == 0 || rank < size - 1 ? 0 : -1, rank);
    wf_archive *archive = wf_archive_memory(ctx);
    int64_t n;
    WF_EXPECT_OK(step(NULL, net, optim, 0));
    visit(net, optim, archive);
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    visit(alone, single, archive);
    WF_EXPECT(wf_optim_state_bytes(single) > 0, "no state");
    if (part) { /* all take the same samples, so the mean is that of one rank */
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        few = of_form(part, less, 1, true);
        visit(less, few, archive);
        wf_comm *all = comm;
        comm = wf_comm_split(part, rank, 0);
        WF_EXPECT_OK(step(NULL, less, few, 1));
        WF_EXPECT_OK(step(NULL, alone, single, 1));
        WF_EXPECT_OK(wf_comm_close(comm));
        comm = all;
        double *a = values_of(alone, &n), *b = values_of(less, &n);
        WF_EXPECT(test_distance(n, a, b) < 1e-12, "off by %g", test_distance(n, a, b));
        free(a);
        free(b);
    }
    wf_archive_free(archive);
    wf_optim_free(few);
    wf_optim_free(single);
    wf_optim_free(optim);
    wf_layer_free(net);
    wf_layer_free(alone);
    wf_layer_free(less);
    if (part)
        WF_EXPECT_OK(wf_comm_close(part));
    close_comm();
}

/* One rank's archive holds another kind of optimizer: all fail. */
static void one_rank_cannot_load(void)
{
    open_comm("flat", "cpu", WF_F32);
    wf_layer *net = net_new(NULL), *copy = net_new(NULL);
    wf_optim *optim = of_form(comm, net, 2, true), *other = optim_new(copy, rank == size - 1 ? 4 : 2);
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(step(NULL, net, optim, 0));
    if (wf_barrier(comm) != WF_OK) /* none learns of the failure in the step; some may here */
        wf_error_clear();
    WF_EXPECT_OK(wf_optim_archive(other, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    WF_EXPECT(wf_optim_archive(optim, archive) != WF_OK || rank < size - 1, "an archive of rmsprop was taken by adam");
    const wf_status status = step(NULL, net, optim, 1);
    WF_EXPECT(size == 1 || (status != WF_OK && strstr(wf_error_message(), "rmsprop")), "rank %d: %s '%s'", rank,
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    wf_archive_free(archive);
    wf_optim_free(optim);
    wf_optim_free(other);
    wf_layer_free(net);
    wf_layer_free(copy);
    close_comm();
}

/* Two optimizers that share a parameter take it from each other. */
static void shared_parameters(void)
{
    int64_t n;
    double *values[2];
    open_comm("flat", "cpu", WF_F32);
    for (int cut = 0; cut < 2; cut++) {
        wf_layer *net = net_new(NULL);
        wf_optim *one = of_form(comm, net, 1, cut), *two = of_form(comm, net, 2, cut);
        start_alike(net);
        for (int t = 0; t < STEPS; t++)
            WF_EXPECT_OK(step(NULL, net, t % 2 ? one : two, t));
        values[cut] = values_of(net, &n);
        wf_optim_free(one);
        wf_optim_free(two);
        wf_layer_free(net);
    }
    WF_EXPECT(test_distance(n, values[0], values[1]) == 0, "off by %g", test_distance(n, values[0], values[1]));
    free(values[0]);
    free(values[1]);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"same_bits", same_bits},
                                   {"kinds", kinds},
                                   {"clipped", clipped},
                                   {"narrow", narrow},
                                   {"mesh_axes", mesh_axes},
                                   {"uneven_channels", uneven_channels},
                                   {"unlike_nodes", unlike_nodes},
                                   {"memory", memory},
                                   {"bytes_sent", bytes_sent},
                                   {"tiny", tiny},
                                   {"archives", archives},
                                   {"fewer_ranks", fewer_ranks},
                                   {"one_rank_cannot_load", one_rank_cannot_load},
                                   {"shared_parameters", shared_parameters},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
