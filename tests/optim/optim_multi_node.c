/* wf_multi_node on gradients that each rank chooses, and every way in which ranks can disagree. */
#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "core/tape_author.h"
#include "optim/multi_node.h"
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <string.h>

enum { N = 3, M = 2 };

static const double wa[N] = {1, 2, 3}, wb[M] = {-1, 4};

/* How the loss of a rank goes to wf_multi_node. */
typedef enum loss_kind { LOCAL, SHARDED, NONE, PLAIN } loss_kind;

typedef struct fixture {
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    wf_layer *model, *a, *b;
    wf_tape *tape;
    wf_tensor *xa, *xb;
} fixture;

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static void open_comm(fixture *f, const char *name)
{
    if (strcmp(name, "flat") == 0)
        name = test_communicator(name);
    f->comm = test_comm_open(name, (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1});
    WF_EXPECT(f->comm, "no communicator %s: %s", name, wf_error_message());
    f->ctx = wf_comm_ctx(f->comm);
    f->rank = wf_comm_rank(f->comm);
    f->size = wf_comm_size(f->comm);
    f->tape = wf_tape_new(f->ctx);
    f->model = wf_module(f->ctx, no_forward, NULL);
}

/* The gradient of a is (r+1) (1, 2, 3), of b it is (r+1) (-1, 1). */
static fixture open_fixture(const char *name)
{
    fixture f = {0};
    open_comm(&f, name);
    f.a = wf_module_add(f.model, "a", dot_new(f.ctx, N, wa));
    f.b = wf_module_add(f.model, "b", dot_new(f.ctx, M, wb));
    f.xa = wf_tensor_new(f.ctx, WF_F64, WF_SHAPE(N));
    f.xb = wf_tensor_new(f.ctx, WF_F64, WF_SHAPE(M));
    const double r = f.rank + 1;
    values_set(f.xa, (double[N]){r, 2 * r, 3 * r});
    values_set(f.xb, (double[M]){-r, r});
    return f;
}

static void close_fixture(fixture *f, wf_optim *optim)
{
    wf_tensor_free(f->xa);
    wf_tensor_free(f->xb);
    wf_tape_free(f->tape);
    wf_optim_free(optim);
    wf_layer_free(f->model);
    WF_EXPECT_OK(wf_comm_close(f->comm));
    wf_error_clear();
}

static wf_var *mark(fixture *f, wf_var *loss, loss_kind kind, int64_t count)
{
    if (loss && kind == LOCAL) {
        loss->loss_mean = true;
        loss->loss_count = count;
    }
    if (loss && kind == SHARDED) {
        wf_layout layout = {.known = true, .mesh = wf_comm_mesh(f->comm)};
        layout.placement[WF_AXIS_DATA] = WF_PARTIAL;
        WF_EXPECT_OK(wf_tensor_set_layout(loss->value, layout));
    }
    return loss;
}

static wf_var *loss_of(fixture *f, loss_kind kind, int64_t count)
{
    if (kind == NONE)
        return wf_no_loss(f->tape);
    wf_var *a = wf_apply(f->a, wf_input(f->tape, f->xa));
    wf_var *b = wf_apply(f->b, wf_input(f->tape, f->xb));
    return mark(f, wf_add(a, b), kind, count);
}

static double loss_at(int rank)
{
    return (rank + 1) * (1 + 4 + 9 + 1 + 4);
}

/* After steps with lr 1 that moved the parameters by `times` the gradient of rank 0. */
static void expect_moved(const char *what, fixture *f, double times_a, double times_b)
{
    double p[N] = {0}, should[N];
    for (int i = 0; i < N; i++)
        should[i] = wa[i] - times_a * (i + 1);
    values_get(wf_param_value(param_of(f->a, 0)), p);
    WF_EXPECT(test_distance(N, p, should) < 1e-14, "%s on rank %d: a is %g, should be %g", what, f->rank, p[0],
              should[0]);
    for (int i = 0; i < M; i++)
        should[i] = wb[i] - times_b * (i ? 1 : -1);
    values_get(wf_param_value(param_of(f->b, 0)), p);
    WF_EXPECT(test_distance(M, p, should) < 1e-14, "%s on rank %d: b is %g, should be %g", what, f->rank, p[0],
              should[0]);
}

/* Replicas are not compared, so on a device each update is queued before the host knows the trailer. */
static wf_optim *sgd(fixture *f)
{
    return wf_multi_node(f->comm, wf_sgd(f->model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){.compare_every = -1});
}

static void expect_loss(fixture *f, const wf_var *loss, double should)
{
    WF_EXPECT(fabs(wf_item(loss) - should) < 1e-12, "the loss on rank %d is %g, should be %g", f->rank, wf_item(loss),
              should);
}

/* Rank r has r samples, so rank 0 has none. */
static void local_means(const char *name)
{
    fixture f = open_fixture(name);
    wf_optim *optim = sgd(&f);
    double weight = 0, gradient = 0, loss = 0;
    for (int r = 0; r < f.size; r++) {
        weight += r;
        gradient += r * (r + 1);
        loss += r * loss_at(r);
    }
    wf_var *mine = loss_of(&f, LOCAL, f.rank);
    WF_EXPECT_OK(wf_optim_step(optim, mine));
    const double scale = weight > 0 ? 1 / weight : 0;
    expect_moved(name, &f, gradient * scale, gradient * scale);
    expect_loss(&f, mine, loss * scale);
    close_fixture(&f, optim);
}

static void means_naive(void)
{
    local_means("naive");
}

static void means_flat(void)
{
    local_means("flat");
}

/* A reducer that sums like "flat" and notes what it is told not to round. */
static struct {
    int sums, exact_sums;
    int64_t exact_elements;
} noted;

static void note_and_sum(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                         wf_dtype dtype)
{
    noted.sums++;
    noted.exact_sums += exact > 0;
    noted.exact_elements += offset[segments] - offset[segments - exact];
    wf_reducer_find("flat")->build(b, flat, offset, segments, exact, dtype);
}

/* The loss and its weight, in the last bucket, are not gradients; those of the first bucket may all be rounded. */
static void trailer_is_exact(void)
{
    static const wf_reducer reducer = {.name = "notes", .does = "sums", .build = note_and_sum};
    if (!wf_reducer_find("notes"))
        WF_EXPECT_OK(wf_reducer_register(&reducer));
    for (int shards = 0; shards < 2; shards++) {
        memset(&noted, 0, sizeof noted);
        fixture f = open_fixture("notes");
        wf_optim *optim =
            wf_multi_node(f.comm, wf_sgd(f.model, (wf_sgd_opts){.lr = 1}),
                          (wf_multi_node_opts){.bucket_bytes = 8, .first_bucket_bytes = 8, .shard_optimizer = shards});
        WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, LOCAL, f.rank)));
        const int sums = f.size == 1 ? 0 : shards ? 1 : 2;
        WF_EXPECT(noted.sums == sums && noted.exact_sums == (sums > 0),
                  "%d sums, of which %d have an end that must not be rounded, not %d and %d", noted.sums,
                  noted.exact_sums, sums, sums > 0);
        WF_EXPECT((noted.exact_elements > 0) == (sums > 0), "%lld elements are exact", (long long)noted.exact_elements);
        close_fixture(&f, optim);
    }
}

static void parts(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    double gradient = 0, loss = 0;
    for (int r = 0; r < f.size; r++) {
        gradient += r + 1;
        loss += loss_at(r);
    }
    wf_var *mine = loss_of(&f, SHARDED, 0);
    WF_EXPECT_OK(wf_optim_step(optim, mine));
    expect_moved("parts", &f, gradient, gradient);
    expect_loss(&f, mine, loss);
    close_fixture(&f, optim);
}

/* The last rank has no loss, then rank 0 has none, then no rank has one. */
static void no_loss(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    double moved = 0;
    for (int without = f.size - 1; without >= 0; without -= f.size > 1 ? f.size - 1 : 1) {
        double gradient = 0;
        for (int r = 0; r < f.size; r++)
            gradient += r == without ? 0 : r + 1;
        wf_var *mine = loss_of(&f, f.rank == without ? NONE : LOCAL, 1);
        WF_EXPECT_OK(wf_optim_step(optim, mine));
        moved += f.size > 1 ? gradient / (f.size - 1) : 0;
        expect_moved("no loss", &f, moved, moved);
        WF_EXPECT_OK(wf_tape_reset(f.tape));
    }
    wf_var *none = wf_no_loss(f.tape);
    WF_EXPECT_OK(wf_optim_step(optim, none));
    expect_moved("no rank", &f, moved, moved);
    expect_loss(&f, none, 0);
    close_fixture(&f, optim);
}

/* The first step reaches a alone on odd ranks, and both in another order on even ones above 0. */
static void different_graphs(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    double both = 0, even = 0;
    for (int r = 0; r < f.size; r++) {
        both += r + 1;
        even += r % 2 ? 0 : r + 1;
    }
    wf_var *a = NULL, *b = NULL, *loss;
    if (f.rank % 2 == 0 && f.rank > 0)
        b = wf_apply(f.b, wf_input(f.tape, f.xb));
    a = wf_apply(f.a, wf_input(f.tape, f.xa));
    if (f.rank == 0)
        b = wf_apply(f.b, wf_input(f.tape, f.xb));
    loss = mark(&f, b ? wf_add(a, b) : a, SHARDED, 0);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    expect_moved("different graphs", &f, both, even);
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, SHARDED, 0)));
    expect_moved("then the same", &f, 2 * both, even + both);
    close_fixture(&f, optim);
}

static void clipped_after_the_sum(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    WF_EXPECT_OK(wf_optim_clip_norm(optim, 0.5));
    WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, LOCAL, 3)));
    const double times = 0.5 / sqrt(1 + 4 + 9 + 1 + 1);
    expect_moved("clipped", &f, times, times);
    close_fixture(&f, optim);
}

/* What a step moves through is there before it: the first asks no more of the ranks along data than the second. */
static void connected_before_the_first_step(void)
{
    fixture f = open_fixture("hierarchical");
    wf_mesh *mesh = wf_mesh_open(f.comm, (wf_mesh_opts){.height = f.size % 2 ? 1 : 2});
    wf_comm *data = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA));
    wf_optim *optim =
        wf_mesh_multi_node(mesh, wf_sgd(f.model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){.compare_every = -1});
    uint64_t collectives[3];
    for (int step = 0; step < 3; step++) {
        collectives[step] = wf_comm_traffic(data).collectives;
        if (step < 2)
            WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, LOCAL, 1)));
        WF_EXPECT_OK(wf_tape_reset(f.tape));
    }
    const int first = (int)(collectives[1] - collectives[0]), second = (int)(collectives[2] - collectives[1]);
    WF_EXPECT(data == f.comm || first == second, "%d collectives in the first step, %d in the second", first, second);
    wf_optim_free(optim);
    wf_mesh_close(mesh);
    close_fixture(&f, NULL);
}

/* Values differ before, running statistics too. */
static void broadcast(void)
{
    fixture f = open_fixture("flat");
    const wf_param_opts opts = {.dtype = WF_F32, .shape = WF_SHAPE(4), .state = true};
    wf_param *running = wf_layer_add_param(f.a, "running", opts);
    double seen[4] = {0};
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(running), f.rank + 1));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(param_of(f.b, 0)), f.rank + 5));
    wf_optim *optim = sgd(&f);
    WF_EXPECT(optim, "%s", wf_error_message());
    values_get(wf_param_value(running), seen);
    WF_EXPECT(seen[0] == 1 && seen[3] == 1, "running statistics %g on rank %d", seen[0], f.rank);
    values_get(wf_param_value(param_of(f.b, 0)), seen);
    WF_EXPECT(seen[0] == 5 && seen[1] == 5, "b %g on rank %d", seen[0], f.rank);
    close_fixture(&f, optim);
}

/* Checks that all ranks get the same error, that nothing was updated, and that the communicator lives. */
static void different_kinds(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    if (f.size > 1) {
        WF_EXPECT_ERROR(WF_ERR_COMM, wf_optim_step(optim, loss_of(&f, f.rank == 1 ? SHARDED : LOCAL, 4)));
        expect_moved("different kinds", &f, 0, 0);
        WF_EXPECT(wf_optim_steps(optim) == 0, "%lld steps", (long long)wf_optim_steps(optim));
        WF_EXPECT_OK(wf_tape_reset(f.tape));
    }
    WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, LOCAL, 4)));
    expect_moved("afterwards", &f, (f.size + 1) / 2.0, (f.size + 1) / 2.0);
    close_fixture(&f, optim);
}

static void expect_models_differ(fixture *f, const char *first, const char *second)
{
    wf_optim *optim = sgd(f);
    if (f->size == 1) {
        WF_EXPECT(optim, "%s", wf_error_message());
    } else {
        WF_EXPECT(!optim && wf_error_code() == WF_ERR_COMM, "different models were taken on rank %d", f->rank);
        WF_EXPECT(strstr(wf_error_message(), first) && strstr(wf_error_message(), second),
                  "'%s' does not name %s and %s", wf_error_message(), first, second);
    }
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(f->comm));
    close_fixture(f, optim);
}

static void different_models(void)
{
    const double w[4] = {1, 2, 3, 4};
    fixture f = {0};
    open_comm(&f, "flat");
    wf_module_add(f.model, "a", dot_new(f.ctx, 2, w));
    wf_module_add(f.model, "b", dot_new(f.ctx, f.rank == f.size - 1 ? 4 : 3, w));
    expect_models_differ(&f, "b/w [3]", "b/w [4]");
    f = (fixture){0};
    open_comm(&f, "flat");
    wf_module_add(f.model, "a", dot_new(f.ctx, 2, w));
    if (f.rank == 0)
        wf_module_add(f.model, "more", dot_new(f.ctx, 3, w));
    expect_models_differ(&f, "\"more\" (dot)", "nothing");
    f = (fixture){0};
    open_comm(&f, "flat");
    wf_module_add(f.model, f.rank == 1 ? "other" : "a", dot_new(f.ctx, 2, w));
    expect_models_differ(&f, "\"a\" (dot)", "\"other\" (dot)");
}

/* A rank that would update the same parameters in another way. */
static void different_optimizers(void)
{
    static const char *const says[] = {"sgd of lr 1,", "momentum 0.5", "weight decay 0.25", "norm 3", "schedule 1"};
    for (int what = 0; what < 5; what++) {
        fixture f = open_fixture("flat");
        const bool other = f.rank == f.size - 1;
        wf_optim *optim = what == 0 && !other
                              ? wf_adam(f.model, (wf_adam_opts){.lr = 1})
                              : wf_sgd(f.model, (wf_sgd_opts){.lr = 1,
                                                              .momentum = what == 1 && other ? 0.5 : 0,
                                                              .weight_decay = what == 2 && other ? 0.25 : 0});
        if (what == 3 && other)
            WF_EXPECT_OK(wf_optim_clip_norm(optim, 3));
        if (what == 4 && other)
            optim = wf_lr_schedule(optim, (wf_schedule_opts){.kind = WF_SCHEDULE_STEP, .every = 2});
        wf_optim *made = wf_multi_node(f.comm, optim, (wf_multi_node_opts){0});
        WF_EXPECT((made == NULL) == (f.size > 1), "case %d: %s", what, wf_error_message());
        WF_EXPECT(made || (wf_error_code() == WF_ERR_COMM && strstr(wf_error_message(), "different optimizers") &&
                           strstr(wf_error_message(), says[what])),
                  "case %d: %s", what, wf_error_message());
        WF_EXPECT_OK(wf_barrier(f.comm)); /* it lives on */
        close_fixture(&f, made);
    }
}

/* The mean over the samples of all ranks, and no step. */
static void gradients_alone(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    double weight = 0, gradient = 0, loss = 0, g[N] = {0};
    for (int r = 0; r < f.size; r++) {
        weight += r + 1;
        gradient += (r + 1) * (r + 1);
        loss += (r + 1) * loss_at(r);
    }
    wf_var *mine = loss_of(&f, LOCAL, f.rank + 1);
    WF_EXPECT_OK(wf_optim_gradients(optim, mine));
    expect_moved("gradients alone", &f, 0, 0);
    expect_loss(&f, mine, loss / weight);
    values_get(wf_param_grad(param_of(f.a, 0)), g);
    for (int i = 0; i < N; i++)
        WF_EXPECT(fabs(g[i] - gradient / weight * (i + 1)) < 1e-12, "gradient %d is %g, should be %g", i, g[i],
                  gradient / weight * (i + 1));
    WF_EXPECT(wf_optim_steps(optim) == 0, "a step was counted");
    close_fixture(&f, optim);
}

static void different_trainables(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    WF_EXPECT_OK(wf_param_set_trainable(param_of(f.b, 0), f.rank != 1));
    if (f.size > 1)
        WF_EXPECT_ERROR(WF_ERR_COMM, wf_optim_step(optim, loss_of(&f, LOCAL, 4)));
    expect_moved("different trainables", &f, 0, 0);
    close_fixture(&f, optim);
}

/* After a step, so that the others are in their sums and have queued the update. */
static void one_rank_changes_its_model(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    const double once = (f.size + 1) / 2.0;
    WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, LOCAL, 4)));
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    WF_EXPECT_OK(wf_param_set_trainable(param_of(f.b, 0), f.rank != 1));
    if (f.size > 1)
        WF_EXPECT_ERROR(WF_ERR_COMM, wf_optim_step(optim, loss_of(&f, LOCAL, 4)));
    expect_moved("a model that changed", &f, once, once);
    WF_EXPECT(wf_optim_steps(optim) == 1, "%lld steps", (long long)wf_optim_steps(optim));
    close_fixture(&f, optim);
}

/* What the host asks the device for until an update is queued, and afterwards. */
static struct {
    const wf_kernels *k;
    wf_status (*await)(void *comm);
    int updates, reads[2];
} watched;

static wf_status watch_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                              int64_t segments, const wf_optim_segment *segment)
{
    watched.updates++;
    return watched.k->optim_update(ctx, kind, hyper, dtype, segments, segment);
}

static wf_status watch_read(wf_ctx *ctx, void *host, const void *device, size_t bytes)
{
    watched.reads[watched.updates > 0]++;
    return watched.k->to_host(ctx, host, device, bytes);
}

static wf_status watch_await(void *comm)
{
    watched.reads[watched.updates > 0]++;
    return watched.await(comm);
}

/* If NCCL sums, the device goes on to the update by itself; the host waits for the trailer after that. */
static void update_before_the_wait(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    const bool native = f.ctx->await != NULL && f.size > 1;
    WF_EXPECT_OK(wf_optim_step(optim, loss_of(&f, LOCAL, 4)));
    WF_EXPECT_OK(wf_tape_reset(f.tape));
    wf_var *loss = loss_of(&f, LOCAL, 4);
    memset(&watched, 0, sizeof watched);
    watched.k = f.ctx->k;
    watched.await = f.ctx->await;
    wf_kernels table = *watched.k;
    table.optim_update = watch_update;
    table.to_host = watch_read;
    f.ctx->k = &table;
    if (native)
        f.ctx->await = watch_await;
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    f.ctx->k = watched.k;
    f.ctx->await = watched.await;
    WF_EXPECT(watched.updates == 1, "%d updates", watched.updates);
    WF_EXPECT(!native || (watched.reads[0] == 0 && watched.reads[1] > 0),
              "the host waited %d times before the update and %d times after it", watched.reads[0], watched.reads[1]);
    expect_moved("two updates", &f, f.size + 1, f.size + 1);
    close_fixture(&f, optim);
}

/* One rank alone fails, in its first or in its second step: all return an error, none waits for ever. A slow rank may
 * learn of it in the step before. */
static void one_rank_fails(void)
{
    for (int64_t step = 0; step < 2; step++) {
        fixture f = open_fixture("flat");
        wf_optim *optim = sgd(&f);
        /* Without it the failure below may end a rank that still makes its optimizer. */
        wf_status status = wf_barrier(f.comm);
        if (step == 1)
            status = wf_optim_step(optim, loss_of(&f, LOCAL, 1));
        WF_EXPECT_OK(wf_tape_reset(f.tape));
        wf_var *loss = f.rank == f.size - 1 ? NULL : loss_of(&f, LOCAL, 1);
        if (status == WF_OK)
            status = wf_optim_step(optim, loss);
        WF_EXPECT(status != WF_OK, "rank %d went on", f.rank);
        WF_EXPECT(strstr(wf_error_message(), "loss is NULL"), "rank %d: '%s' does not name the reason", f.rank,
                  wf_error_message());
        WF_EXPECT(wf_optim_steps(optim) <= step, "%lld steps", (long long)wf_optim_steps(optim));
        double a = 0, should = wa[0] - (double)wf_optim_steps(optim) * (f.size + 1) / 2;
        WF_EXPECT_OK(f.ctx->k->to_host(f.ctx, &a, wf_param_value(param_of(f.a, 0))->data, sizeof a)); /* asks no rank */
        /* A device may have made the step in which its host learned that another rank fails in the next one. */
        const double more = f.ctx->k->host || wf_optim_steps(optim) == step ? 0 : (f.size + 1) / 2.0;
        WF_EXPECT(a == should || a == should - more, "a is %g on rank %d, should be %g", a, f.rank, should);
        close_fixture(&f, optim);
    }
}

/* Every rank fails for itself, so one may learn of another's failure first. */
static void no_mean(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    WF_EXPECT_OK(wf_barrier(f.comm)); /* as in one_rank_fails */
    const wf_status status = wf_optim_step(optim, loss_of(&f, PLAIN, 0));
    WF_EXPECT((status == WF_OK) == (f.size == 1), "a loss without a weight: %s", wf_status_name(status));
    WF_EXPECT(f.size == 1 || strstr(wf_error_message(), "no mean over samples"), "rank %d: '%s'", f.rank,
              wf_error_message());
    close_fixture(&f, optim);
}

static void one_rank_has_no_optimizer(void)
{
    fixture f = open_fixture("flat");
    const double lr = f.rank == 0 ? -1 : 1;
    WF_EXPECT_OK(wf_barrier(f.comm)); /* as in one_rank_fails */
    wf_optim *optim = wf_multi_node(f.comm, wf_sgd(f.model, (wf_sgd_opts){.lr = lr}), (wf_multi_node_opts){0});
    WF_EXPECT(!optim, "rank %d has an optimizer", f.rank);
    WF_EXPECT(strstr(wf_error_message(), "lr is -1"), "rank %d: '%s' does not name the reason", f.rank,
              wf_error_message());
    close_fixture(&f, optim);
}

static void misuse(void)
{
    fixture f = open_fixture("flat");
    wf_optim *optim = sgd(&f);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_update(optim));
    wf_optim *local = wf_sgd(f.model, (wf_sgd_opts){.lr = 1});
    if (f.size > 1)
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_optim_step(local, loss_of(&f, SHARDED, 0)));
    wf_optim_free(local);
    WF_EXPECT(!wf_multi_node(NULL, wf_sgd(f.model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0}),
              "no communicator");
    wf_error_clear();
    close_fixture(&f, optim);
    f = open_fixture("flat");
    WF_EXPECT(!wf_multi_node(f.comm, sgd(&f), (wf_multi_node_opts){0}), "an optimizer was wrapped twice");
    WF_EXPECT(wf_error_code() == WF_ERR_ARGUMENT, "%s", wf_error_message());
    wf_error_clear();
    close_fixture(&f, NULL);
    f = open_fixture("flat");
    param_of(f.b, 0)->axes |= WF_AXIS_BIT(WF_AXIS_HEIGHT);
    WF_EXPECT(!sgd(&f), "a parameter summed over height was taken");
    WF_EXPECT(wf_error_code() == WF_ERR_UNSUPPORTED, "%s", wf_error_message());
    wf_error_clear();
    close_fixture(&f, NULL);
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"means_naive", means_naive},
                                   {"means_flat", means_flat},
                                   {"trailer_is_exact", trailer_is_exact},
                                   {"parts", parts},
                                   {"no_loss", no_loss},
                                   {"different_graphs", different_graphs},
                                   {"clipped_after_the_sum", clipped_after_the_sum},
                                   {"connected_before_the_first_step", connected_before_the_first_step},
                                   {"broadcast", broadcast},
                                   {"different_kinds", different_kinds},
                                   {"different_models", different_models},
                                   {"different_optimizers", different_optimizers},
                                   {"gradients_alone", gradients_alone},
                                   {"different_trainables", different_trainables},
                                   {"one_rank_changes_its_model", one_rank_changes_its_model},
                                   {"update_before_the_wait", update_before_the_wait},
                                   {"one_rank_fails", one_rank_fails},
                                   {"one_rank_has_no_optimizer", one_rank_has_no_optimizer},
                                   {"no_mean", no_mean},
                                   {"misuse", misuse},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
