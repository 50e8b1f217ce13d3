/* One run, with all that a program saves (a trainer with its sums, its log and the best model, a scattered data set
 * read ahead, a schedule, sharded state, tied weights), which goes on in another division of its ranks again and again:
 * its log is that of the serial program. A batch is the whole epoch, so that all divisions see the same samples. */
#include "datasets/datasets.h"
#include "optim/checkpoint.h"
#include "optim/schedule.h"
#include "optim/trainer.h"
#include "tests/file/model_parts.h"
#include "tests/file/said.h"

enum { SAMPLES = 24, EACH = 3, MOST = 64 };

static const form forms[] = {
    {.name = "whole", .ranks = 1, .mesh = {.data = 1}, .whole = true},
    {.name = "four stages", .ranks = 4, .mesh = {.data = 1, .stage = 4}, .sharded_state = true},
    {.name = "data 2", .ranks = 2, .mesh = {.data = 2}, .whole = true, .sharded_state = true},
    {.name = "one stage", .ranks = 1, .mesh = {.data = 1, .stage = 1}},
    {.name = "three stages", .ranks = 3, .mesh = {.data = 1, .stage = 3}},
    {.name = "stages and data", .ranks = 4, .mesh = {.data = 2, .stage = 2}, .sharded_state = true},
    {.name = "data 3", .ranks = 3, .mesh = {.data = 3}, .whole = true},
    {.name = "two stages", .ranks = 2, .mesh = {.data = 1, .stage = 2}, .interleaved = true},
    {.name = "stages and channel", .ranks = 4, .mesh = {.data = 1, .channel = 2, .stage = 2}, .sharded_state = true},
    {.name = "channel 2", .ranks = 2, .mesh = {.data = 1, .channel = 2}, .whole = true}};
enum { FORMS = sizeof forms / sizeof *forms };

typedef struct run {
    parted p;
    wf_optim *optim;
    wf_ema *ema;
    wf_tape *tape;
    wf_iter *batches;
    wf_trainer *trainer;
    wf_checkpoint *saves;
} run;

static wf_status train(wf_trainer *trainer, void *user)
{
    run *r = user;
    wf_batch b;
    double loss = 0;
    WF_EXPECT_OK(wf_iter_next(r->batches, &b));
    wf_var *value = r->p.pipe ? wf_pipeline_step(r->p.pipe, r->tape, b.x, b.labels)
                              : wf_softmax_cross_entropy(wf_apply(r->p.model, wf_input(r->tape, b.x)), b.labels,
                                                         (wf_label_opts){0});
    WF_EXPECT_OK(wf_optim_step(r->optim, value));
    loss = wf_item(value);
    WF_EXPECT_OK(wf_tape_reset(r->tape));
    return wf_trainer_observe(trainer, "loss", loss, b.size);
}

static wf_iter *batches_of(const wf_mesh *mesh)
{
    const wf_synthetic_opts opts = {.count = SAMPLES, .shape = WF_SHAPE(PARTS_IN), .classes = PARTS_CLASSES, .seed = 3};
    wf_dataset *d = wf_mesh_scatter_dataset(mesh, wf_synthetic(ctx, opts),
                                            (wf_scatter_opts){.shuffle = true, .seed = 5, .each_reads = true});
    const int64_t each = SAMPLES / wf_mesh_size(mesh, WF_AXIS_DATA);
    return wf_prefetch(wf_batches(d, (wf_batch_opts){.size = each, .shuffle = true}), (wf_prefetch_opts){.depth = 2});
}

static void open_run(run *r, const form *f, wf_comm *over, const char *name, int64_t iterations)
{
    char log[300], best[300];
    snprintf(log, sizeof log, "%s/%s.jsonl", folder, name);
    snprintf(best, sizeof best, "%s/%s.h5", folder, name);
    *r = (run){.p = parts_open(f, over, false), .tape = wf_tape_new(ctx)};
    r->optim = wf_lr_schedule(wf_adam(r->p.model, (wf_adam_opts){.lr = 0.02}),
                              (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .warmup = 2, .total = 50});
    r->optim = wf_mesh_multi_node(r->p.mesh, r->optim, (wf_multi_node_opts){.shard_optimizer = f->sharded_state});
    r->ema = wf_ema_new(r->p.model, (wf_ema_opts){.decay = 0.8, .warm_up = true});
    r->batches = batches_of(r->p.mesh);
    r->trainer = wf_trainer_new(
        over, train, r,
        (wf_trainer_opts){
            .iterations = iterations, .report = {.iterations = 1}, .log = log, .optim = r->optim, .ema = r->ema});
    WF_EXPECT_OK(
        wf_trainer_keep_best(r->trainer, "loss", (wf_best_opts){.model = r->p.model, .path = best, .averages = true}));
    r->saves = wf_checkpoint_open(over, in_folder(name),
                                  (wf_checkpoint_opts){.every = EACH, .async = f->sharded_state, .mesh = r->p.mesh});
    WF_EXPECT(r->optim && r->saves, "%s: %s", f->name, wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(r->saves, "model", r->p.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(r->saves, "optim", r->optim));
    WF_EXPECT_OK(wf_checkpoint_add(r->saves, "tape", wf_tape_visit, r->tape));
    WF_EXPECT_OK(wf_checkpoint_add(r->saves, "batches", wf_iter_visit, r->batches));
    WF_EXPECT_OK(wf_trainer_set_checkpoint(r->trainer, r->saves));
}

static void close_run(run *r)
{
    wf_trainer_free(r->trainer);
    wf_iter_free(r->batches);
    wf_tape_free(r->tape);
    wf_ema_free(r->ema);
    wf_optim_free(r->optim);
    parts_close(&r->p);
}

/* Trains from the newest checkpoint to this iteration. */
static void go_on(const form *f, wf_comm *over, const char *name, int64_t from, int64_t iterations)
{
    run r;
    int64_t step = 0;
    open_run(&r, f, over, name, iterations);
    const wf_status loaded = wf_checkpoint_load_latest(r.saves, &step);
    WF_EXPECT(loaded == WF_OK && step == from, "%s: begins after %lld, should after %lld: %s", f->name, (long long)step,
              (long long)from, wf_error_message());
    const wf_status status = wf_trainer_run(r.trainer);
    WF_EXPECT(status == WF_OK, "%s: %s", f->name, wf_error_message());
    WF_EXPECT_OK(wf_checkpoint_close(r.saves));
    WF_EXPECT_OK(wf_trainer_load_best(r.trainer));
    close_run(&r);
}

static int losses_of(const char *name, double loss[MOST])
{
    char path[300], line[512];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s.jsonl", folder, name);
    FILE *log = fopen(path, "r");
    while (log && n < MOST && fgets(line, sizeof line, log)) {
        const char *at = strstr(line, "\"loss\": ");
        loss[n++] = at ? strtod(at + strlen("\"loss\": "), NULL) : -1;
    }
    if (log)
        fclose(log);
    return n;
}

/* The averages that the files of the best models have. */
static void compare_averages(wf_comm *over)
{
    double is[MOST], should[MOST];
    parted moves = parts_open(&forms[0], over, false), stays = parts_open(&forms[0], over, false);
    WF_EXPECT_OK(wf_load_over(over, moves.model, in_folder("moves.h5")));
    WF_EXPECT_OK(wf_load_over(over, stays.model, in_folder("stays.h5")));
    int64_t n;
    wf_param *const *p, *const *q;
    WF_EXPECT_OK(wf_layer_params(moves.model, &n, &p));
    WF_EXPECT_OK(wf_layer_params(stays.model, &n, &q));
    for (int64_t i = 0; i < n; i++) {
        const int64_t count = wf_tensor_count(wf_param_value(p[i]));
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(p[i]), is, (size_t)count * sizeof *is));
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(q[i]), should, (size_t)count * sizeof *should));
        WF_EXPECT(test_distance((int)count, is, should) < 1e-7, "the average of %s is off by %g", wf_param_path(p[i]),
                  test_distance((int)count, is, should));
    }
    parts_close(&moves);
    parts_close(&stays);
}

static void a_run_goes_on_in_every_division(void)
{
    double is[MOST], should[MOST];
    int64_t done = 0;
    wf_comm *alone = wf_comm_split(comm, rank, 0);
    for (int i = 0; i < FORMS; i++) {
        if (forms[i].ranks > size)
            continue;
        wf_comm *over = wf_comm_split(comm, rank < forms[i].ranks ? 0 : -1, rank);
        if (over) {
            go_on(&forms[i], over, "moves", done, done + EACH);
            WF_EXPECT_OK(wf_comm_close(over));
        }
        WF_EXPECT_OK(wf_barrier(comm));
        done += EACH;
    }
    if (rank == 0) {
        go_on(&forms[0], alone, "stays", 0, done);
        const int n = losses_of("moves", is), of = losses_of("stays", should);
        WF_EXPECT(n == done && of == done, "%d and %d lines, should be %lld", n, of, (long long)done);
        for (int i = 0; i < n && i < of; i++)
            WF_EXPECT(test_distance(1, &is[i], &should[i]) < 1e-7, "loss %d is %.9g, should be %.9g", i, is[i],
                      should[i]);
        compare_averages(alone);
    }
    WF_EXPECT_OK(wf_comm_close(alone));
}

/* Swaps the averages in, and leaves them there. */
static wf_status leave_averages(wf_trainer *trainer, void *user)
{
    const run *r = user;
    WF_EXPECT(!wf_ema_swapped(r->ema), "the averages are still swapped in");
    return wf_ema_swap(r->ema);
}

/* Six iterations, the last of which is saved and has the hook. Returns a parameter's value at the end. */
static double train_with_hook(wf_comm *over, const char *name, bool leaves)
{
    run r;
    double w[MOST];
    open_run(&r, &forms[0], over, name, 2 * EACH);
    if (leaves)
        WF_EXPECT_OK(wf_trainer_add_hook(r.trainer, "evaluate", leave_averages, &r, (wf_when){.iterations = 2}));
    said_begin();
    WF_EXPECT_OK(wf_trainer_run(r.trainer));
    const int lines = said_end("evaluate, after iteration");
    WF_EXPECT(lines == leaves, "%d lines say so", lines);
    WF_EXPECT(wf_ema_swapped(r.ema) == leaves, "at the end the averages are swapped in: %d", wf_ema_swapped(r.ema));
    if (leaves)
        WF_EXPECT_OK(wf_ema_swap(r.ema));
    wf_param *const *p;
    int64_t n;
    WF_EXPECT_OK(wf_layer_params(r.p.model, &n, &p));
    WF_EXPECT_OK(wf_tensor_export(wf_param_value(p[0]), w, wf_tensor_bytes(wf_param_value(p[0]))));
    WF_EXPECT_OK(wf_checkpoint_close(r.saves));
    close_run(&r);
    return w[0];
}

/* The training, its saves and a run that goes on from them are those of a program whose hook swaps back. */
static void a_hook_leaves_averages(void)
{
    static const char *const name[2] = {"tidy", "untidy"};
    double w[2], loss[2][MOST];
    wf_comm *alone = wf_comm_split(comm, rank, 0);
    for (int leaves = 0; leaves < 2 && rank == 0; leaves++) {
        w[leaves] = train_with_hook(alone, name[leaves], leaves);
        go_on(&forms[0], alone, name[leaves], 2 * EACH, 3 * EACH);
        WF_EXPECT(losses_of(name[leaves], loss[leaves]) == 3 * EACH, "another number of lines");
    }
    if (rank == 0)
        WF_EXPECT(w[0] == w[1] && memcmp(loss[0], loss[1], 3 * EACH * sizeof **loss) == 0,
                  "a weight of %.17g, should be %.17g, and the last loss %.17g, should be %.17g", w[1], w[0],
                  loss[1][3 * EACH - 1], loss[0][3 * EACH - 1]);
    WF_EXPECT_OK(wf_comm_close(alone));
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    WF_EXPECT_OK(wf_ctx_set_dtype(ctx, WF_F64));
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"a_run_goes_on_in_every_division", a_run_goes_on_in_every_division},
                                               {"a_hook_leaves_averages", a_hook_leaves_averages},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
