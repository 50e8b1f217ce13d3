/* Captured steps: on a device that captures, a run of a captured step is the same as the step, bit for bit: losses,
 * parameters, random numbers, what the host counts. */
#include "comm/comm_author.h"
#include "core/profile_author.h"
#include "tests/optim/captured_gan.h"
#include "tests/world.h"

/* A table whose slots are those that a replay may call; another call crashes. */
static wf_status run_bare(gan *g, wf_captured *c)
{
    const wf_kernels *all = g->ctx->k;
    const wf_kernels some = {.name = all->name,
                             .to_device = all->to_device,
                             .graph_launch = all->graph_launch,
                             .event_record = all->event_record};
    g->ctx->k = &some;
    const wf_status status = wf_captured_run(c);
    g->ctx->k = all;
    return status;
}

static void train_captured(gan *g, history *h)
{
    wf_captured *c = wf_capture(g->ctx, step, g);
    for (int i = 0; i < STEPS; i++) {
        next_batch(g, i);
        WF_EXPECT(wf_captured_replays(c) == (captures(g) && i > 2), "step %d: whether it replays is %d", i,
                  wf_captured_replays(c));
        const wf_memory_counters before = wf_ctx_memory(g->ctx);
        WF_EXPECT_OK(captures(g) && i > 4 ? run_bare(g, c) : wf_captured_run(c));
        const wf_memory_counters after = wf_ctx_memory(g->ctx);
        WF_EXPECT(i < 5 || after.system_allocations == before.system_allocations, "step %d: %lld allocations", i,
                  (long long)(after.system_allocations - before.system_allocations));
        WF_EXPECT(i < 5 || after.bytes_in_use == before.bytes_in_use, "step %d: it holds on to memory", i);
        note(g, h, i);
    }
    WF_EXPECT(g->runs == (captures(g) ? 3 : STEPS), "the function was called %d times", g->runs);
    const double seconds = wf_ctx_setup_seconds(g->ctx).capturing;
    WF_EXPECT(captures(g) ? seconds > 0 : seconds == 0, "capturing took %g s", seconds);
    note_end(g, h);
    wf_captured_free(c);
}

static void equals_eager(void)
{
    static history h;
    history expected = eager(false);
    gan g = gan_new();
    train_captured(&g, &h);
    gan_free(&g);
    expect_equal(&h, &expected, "captured");
}

/* An optimizer that works out norms of layers in each step. */
static void layerwise(void)
{
    static history h;
    gan_layerwise = true;
    history expected = eager(false);
    gan g = gan_new();
    train_captured(&g, &h);
    gan_free(&g);
    gan_layerwise = false;
    expect_equal(&h, &expected, "captured, with LAMB");
}

/* Their decay is another one in every step. */
static void averages(void)
{
    static history h;
    gan_averages = true;
    history expected = eager(false);
    gan g = gan_new();
    train_captured(&g, &h);
    wf_captured *c = wf_capture(g.ctx, step_gen, &g);
    WF_EXPECT(wf_captured_run(c) == WF_ERR_STATE && strstr(wf_error_message(), "swapped in"), "%s", wf_error_message());
    wf_error_clear();
    wf_captured_free(c);
    gan_free(&g);
    gan_averages = false;
    expect_equal(&h, &expected, "captured, with moving averages");
}

/* A replay that meets swapped averages says so and changes nothing; swapped back, runs go on as if it had not been. */
static void swapped_between(void)
{
    static history h;
    gan_averages = true;
    history expected = eager(false);
    gan g = gan_new();
    wf_captured *c = wf_capture(g.ctx, step, &g);
    for (int i = 0; i < STEPS; i++) {
        next_batch(&g, i);
        if (i == 5) {
            const int64_t updates = wf_ema_updates(g.ema), steps = wf_optim_steps(g.opt_gen);
            WF_EXPECT_OK(wf_ema_swap(g.ema));
            WF_EXPECT(!captures(&g) ||
                          (wf_captured_run(c) == WF_ERR_STATE && strstr(wf_error_message(), "swapped in") &&
                           wf_optim_steps(g.opt_gen) == steps && wf_ema_updates(g.ema) == updates),
                      "%lld steps, %lld updates: %s", (long long)wf_optim_steps(g.opt_gen),
                      (long long)wf_ema_updates(g.ema), wf_error_message());
            wf_error_clear();
            WF_EXPECT_OK(wf_ema_swap(g.ema));
        }
        WF_EXPECT_OK(wf_captured_run(c));
        note(&g, &h, i);
    }
    note_end(&g, &h);
    wf_captured_free(c);
    gan_free(&g);
    gan_averages = false;
    expect_equal(&h, &expected, "captured, with averages swapped in between");
}

static void recomputes(void)
{
    static history h;
    history expected = eager(false);
    gan_recomputes = true;
    gan g = gan_new();
    train_captured(&g, &h);
    gan_free(&g);
    gan_recomputes = false;
    expect_equal(&h, &expected, "captured, with segments that are recomputed");
}

/* Two captured steps by turns, which is what the one is made of. */
static void two_captures(void)
{
    static history h;
    history expected = eager(false);
    gan g = gan_new();
    wf_captured *dis = wf_capture(g.ctx, step_dis, &g), *gen = wf_capture(g.ctx, step_gen, &g);
    for (int i = 0; i < STEPS; i++) {
        next_batch(&g, i);
        WF_EXPECT_OK(wf_captured_run(dis));
        WF_EXPECT_OK(wf_captured_run(gen));
        note(&g, &h, i);
    }
    WF_EXPECT(wf_captured_replays(dis) == captures(&g) && wf_captured_replays(gen) == captures(&g), "not captured");
    note_end(&g, &h);
    wf_captured_free(dis);
    wf_captured_free(gen);
    gan_free(&g);
    expect_equal(&h, &expected, "two captures");
}

/* --- other work between the runs -----------------------------------------------------------------------------------
 */

enum { HELD = 24 };

/* Allocates tensors of the sizes that a step uses, and fills each with a number of its own. */
static void hold(const gan *g, wf_tensor *held[HELD], double number)
{
    for (int i = 0; i < HELD; i++) {
        held[i] = wf_tensor_new(g->ctx, WF_F32, WF_SHAPE(i < HELD / 2 ? (int64_t)1 << i : IMAGE));
        WF_EXPECT_OK(wf_tensor_fill(held[i], number + i));
    }
}

static void release(wf_tensor *held[HELD], double number, int step_number)
{
    static float host[1 << 12];
    for (int i = 0; i < HELD; i++) {
        int64_t wrong = 0;
        WF_EXPECT_OK(wf_tensor_export(held[i], host, wf_tensor_bytes(held[i])));
        for (int64_t k = 0; k < wf_tensor_count(held[i]); k++)
            wrong += host[k] != (float)(number + i);
        WF_EXPECT(wrong == 0, "step %d: a run wrote to memory that a tensor of %lld elements holds", step_number,
                  (long long)wf_tensor_count(held[i]));
        wf_tensor_free(held[i]);
    }
}

/* What the discriminator says of a batch, in evaluation: the sum of its scores. */
static wf_tensor *evaluate(const gan *g, wf_tape *tape)
{
    wf_tensor *kept = wf_keep(wf_sum(wf_apply(g->dis, wf_input(tape, g->x))));
    WF_EXPECT_OK(wf_tape_reset(tape));
    return kept;
}

static void train_between(gan *g, history *h, double score[STEPS], wf_captured *c)
{
    wf_tape *tape = wf_tape_new(g->ctx);
    wf_tensor *held[HELD], *kept = NULL;
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    for (int i = 0; i < STEPS; i++) {
        next_batch(g, i);
        if (i == 5) /* replays still write there */
            put(&g->fake, NULL);
        hold(g, held, 100.0 * i);
        WF_EXPECT_OK(c ? wf_captured_run(c) : step(g));
        score[i] = wf_tensor_item(kept); /* of the step before */
        put(&kept, evaluate(g, tape));
        release(held, 100.0 * i, i);
        note(g, h, i);
    }
    note_end(g, h);
    wf_tensor_free(kept);
    wf_tape_free(tape);
}

static void work_between(void)
{
    static history h[2];
    double score[2][STEPS];
    for (int captured = 0; captured < 2; captured++) {
        gan g = gan_new();
        wf_captured *c = captured ? wf_capture(g.ctx, step, &g) : NULL;
        train_between(&g, &h[captured], score[captured], c);
        wf_captured_free(c);
        gan_free(&g);
    }
    for (int i = 1; i < STEPS; i++)
        WF_EXPECT(score[0][i] == score[1][i], "step %d: evaluation gives %.9g, eager %.9g", i, score[1][i],
                  score[0][i]);
    expect_equal(&h[1], &h[0], "with evaluation between");
}

/* Makes the pool give blocks back to the device, by tensors that are each larger than all before. */
static void trim_pool(const gan *g)
{
    static const int64_t megabytes[] = {32, 40, 50};
    size_t reserved = 0;
    for (int i = 0; i < 3; i++) {
        reserved = wf_ctx_memory(g->ctx).bytes_reserved;
        wf_tensor_free(wf_tensor_new(g->ctx, WF_U8, WF_SHAPE(megabytes[i] << 20)));
    }
    WF_EXPECT(wf_ctx_memory(g->ctx).bytes_reserved < reserved + (size_t)(50 << 20), "the pool has given nothing back");
}

/* Memory that the replays use stays theirs. */
static void trims_between(void)
{
    static history h;
    history expected = eager(false);
    gan g = gan_new();
    wf_captured *c = wf_capture(g.ctx, step, &g);
    for (int i = 0; i < STEPS; i++) {
        next_batch(&g, i);
        if (i == 4)
            trim_pool(&g);
        WF_EXPECT_OK(wf_captured_run(c));
        note(&g, &h, i);
    }
    WF_EXPECT(wf_captured_replays(c) == captures(&g), "not captured");
    note_end(&g, &h);
    wf_captured_free(c);
    gan_free(&g);
    expect_equal(&h, &expected, "captured, with blocks that are given back between");
}

/* Rounded copies are made anew in every run and seen by the evaluation after it; the scale falls, grows and leaves
 * updates out in runs of the device alone. */
static void mixed_precision(void)
{
    for (int t = 0; t < 2; t++) {
        gan_computes = t ? WF_F16 : WF_BF16;
        work_between();
    }
    gan g = gan_new();
    wf_captured *c = wf_capture(g.ctx, step, &g);
    for (int i = 0; i < STEPS; i++) {
        next_batch(&g, i);
        WF_EXPECT_OK(wf_captured_run(c));
    }
    const int64_t skipped = wf_optim_skipped(g.opt_gen);
    WF_EXPECT(skipped > 3 && skipped < STEPS && wf_optim_steps(g.opt_gen) == STEPS - skipped,
              "%lld updates were left out and %lld made", (long long)skipped, (long long)wf_optim_steps(g.opt_gen));
    wf_captured_free(c);
    gan_free(&g);
    gan_computes = WF_F32;
}

static wf_status plan_for_long(gan *g)
{
    const int64_t start = wf_profile_clock();
    test_sleep_ms(50);
    g->ctx->planning_ns += wf_profile_clock() - start;
    return WF_OK;
}

/* A plan that is made while a step is captured counts as planning, and not as capturing too: all set-up of a run fits
 * into the run. */
static void plans_meanwhile(void)
{
    gan g = gan_new();
    g.also = plan_for_long;
    wf_captured *c = wf_capture(g.ctx, step, &g);
    for (int i = 0; i < 3; i++) {
        next_batch(&g, i);
        const wf_setup_seconds before = wf_ctx_setup_seconds(g.ctx);
        const int64_t start = wf_profile_clock();
        WF_EXPECT_OK(wf_captured_run(c));
        const double run = 1e-9 * (double)(wf_profile_clock() - start);
        const wf_setup_seconds after = wf_ctx_setup_seconds(g.ctx);
        const double planning = after.planning - before.planning, capturing = after.capturing - before.capturing;
        WF_EXPECT(planning >= 0.05 && capturing >= 0 && planning + capturing < run + 1e-6,
                  "run %d takes %g s, of which %g s plan and %g s capture", i, run, planning, capturing);
    }
    wf_captured_free(c);
    gan_free(&g);
}

/* Memory goes back with the captured step, and eager steps go on with it. */
static void freed(void)
{
    static history h;
    history expected = eager(false);
    gan g = gan_new();
    wf_captured *c = wf_capture(g.ctx, step, &g);
    int64_t before = 0;
    for (int i = 0; i < STEPS; i++) {
        next_batch(&g, i);
        WF_EXPECT_OK(i < 6 ? wf_captured_run(c) : step(&g));
        note(&g, &h, i);
        if (i == 5) {
            wf_captured_free(c);
            before = (int64_t)wf_ctx_memory(g.ctx).bytes_reserved;
        }
    }
    const int64_t more = (int64_t)wf_ctx_memory(g.ctx).bytes_reserved - before;
    WF_EXPECT(more < 1024, "%lld more bytes after the captured step is gone", (long long)more);
    note_end(&g, &h);
    gan_free(&g);
    expect_equal(&h, &expected, "captured, then eager");
}

/* --- several ranks --------------------------------------------------------------------------------------------------
 */

static bool staged(const gan *g)
{
    return captures(g) && wf_comm_size(g->comm) > 1 && strcmp(wf_comm_name(g->comm), "pure_nccl") != 0;
}

/* Gradients go by NCCL, or stay: a captured step like any. Through host memory: all ranks say so, and go on. */
static void over_ranks(const char *what)
{
    static history h;
    history expected = eager(true);
    gan g = gan_of_ranks();
    if (!staged(&g)) {
        train_captured(&g, &h);
    } else {
        wf_captured *c = wf_capture(g.ctx, step, &g);
        for (int i = 0; i < STEPS; i++) {
            next_batch(&g, i);
            if (i == 2) {
                WF_EXPECT(wf_captured_run(c) == WF_ERR_UNSUPPORTED && strstr(wf_error_message(), "pure_nccl"), "%s",
                          wf_error_message());
                wf_error_clear();
            }
            WF_EXPECT_OK(i < 2 ? wf_captured_run(c) : step(&g));
            note(&g, &h, i);
        }
        note_end(&g, &h);
        wf_captured_free(c);
    }
    gan_free(&g);
    expect_equal(&h, &expected, what);
}

static void ranks(void)
{
    over_ranks("over ranks");
    /* An overflow on the wire leaves the update out, and the host reads nothing. */
    gan_computes = gan_grad_dtype = WF_F16;
    over_ranks("over ranks, f16 on the wire");
    gan_computes = gan_grad_dtype = WF_F32;
}

/* --- the end of a communicator ---------------------------------------------------------------------------------------
 */

static void expect_ended(gan *g, wf_captured *c, const char *said)
{
    const int64_t steps = wf_optim_steps(g->opt_gen);
    for (int i = 0; i < 2; i++) {
        const wf_status status = wf_captured_run(c);
        WF_EXPECT(status != WF_OK && strstr(wf_error_message(), said), "%s: %s", wf_status_name(status),
                  wf_error_message());
        wf_error_clear();
    }
    WF_EXPECT(wf_optim_steps(g->opt_gen) == steps && !wf_captured_replays(c), "a run of an ended step counts");
}

static wf_status fail_alone(const gan *g)
{
    WF_RAISE(WF_ERR_NUMERIC, "its own failure");
    return wf_comm_post_failure(g->comm, WF_ERR_NUMERIC);
}

/* The run knows of it, or what is read. */
static wf_status run_and_read(const gan *g, wf_captured *c, bool late)
{
    const wf_status status = wf_captured_run(c);
    WF_EXPECT(late || status != WF_OK, "a replay that waits for a rank that failed before");
    if (status != WF_OK)
        return status;
    (void)wf_tensor_item(g->loss_gen);
    return wf_error_code();
}

/* A rank fails between two runs, at once for the others or while their replay waits for it on the GPU: the run, or what
 * is read of it, is that error on all ranks, and so are further runs. */
static void rank_fails(void)
{
    for (int late = 0; late < 2; late++) {
        gan g = gan_of_ranks();
        const int rank = wf_comm_rank(g.comm), size = wf_comm_size(g.comm);
        wf_captured *c = wf_capture(g.ctx, step, &g);
        for (int i = 0; i < 5 && !staged(&g); i++) {
            next_batch(&g, i);
            WF_EXPECT_OK(wf_captured_run(c));
        }
        if (captures(&g) && !staged(&g) && size > 1) {
            WF_EXPECT(wf_captured_replays(c), "not captured");
            next_batch(&g, 5);
            WF_EXPECT_OK(wf_barrier(g.comm)); /* no rank has learned of the failure before */
            if ((rank == size - 1) == (late == 1))
                test_sleep_ms(300);
            const wf_status status = rank == size - 1 ? fail_alone(&g) : run_and_read(&g, c, late);
            WF_EXPECT(status == WF_ERR_NUMERIC && strstr(wf_error_message(), "its own failure"), "%s",
                      wf_error_message());
            wf_error_clear();
            expect_ended(&g, c, "its own failure");
        }
        wf_captured_free(c);
        gan_free(&g);
    }
}

/* The communicator is closed before the captured step that uses it is freed. */
static void closed_first(void)
{
    gan g = gan_of_ranks();
    wf_captured *c = wf_capture(g.ctx, step, &g);
    const bool ends = captures(&g) && !staged(&g) && wf_comm_size(g.comm) > 1;
    for (int i = 0; i < 5 && !staged(&g); i++) {
        next_batch(&g, i);
        WF_EXPECT_OK(wf_captured_run(c));
    }
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_comm_close(g.comm));
    if (ends)
        expect_ended(&g, c, "was closed");
    wf_captured_free(c);
    g.comm = NULL; /* the context is ours by now */
    gan_free(&g);
}

typedef struct addends {
    wf_comm *comm;
    wf_tensor *x, *y;
} addends;

static wf_status add_up(void *arg)
{
    const addends *a = arg;
    return wf_allreduce(a->comm, a->x, a->y, WF_SUM);
}

/* A step that is one sum over the ranks, of one rank too where NCCL connects it with itself. */
static void sums(void)
{
    const wf_ctx_opts opts = {.device = test_device("cpu"), .threads = 1};
    addends a = {.comm = test_comm_open(test_communicator("auto"), opts)};
    wf_ctx *ctx = wf_comm_ctx(a.comm);
    const int size = wf_comm_size(a.comm);
    const bool native = ctx->k->capture_begin && !strcmp(wf_comm_name(a.comm), "pure_nccl");
    const bool connected = native && (size > 1 || getenv("WEFT_NCCL_ONE_RANK"));
    a.x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(4));
    a.y = wf_tensor_new(ctx, WF_F64, WF_SHAPE(4));
    wf_captured *c = wf_capture(ctx, add_up, &a);
    for (int i = 0; i < 5 && native; i++) {
        double values[4];
        WF_EXPECT_OK(wf_tensor_fill(a.x, i + 1));
        WF_EXPECT_OK(wf_captured_run(c));
        values_get(a.y, values);
        WF_EXPECT(values[3] == size * (i + 1), "run %d: a sum of %g over %d ranks", i, values[3], size);
    }
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_comm_close(a.comm));
    WF_EXPECT(!connected || !wf_captured_replays(c), "a graph outlives NCCL");
    if (connected) {
        WF_EXPECT(wf_captured_run(c) == WF_ERR_STATE && strstr(wf_error_message(), "was closed"), "%s",
                  wf_error_message());
        wf_error_clear();
    }
    wf_captured_free(c);
    wf_tensor_free(a.x);
    wf_tensor_free(a.y);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static int on_ranks(int argc, char **argv)
{
    setenv("WEFT_DETERMINISTIC", "1", 0);
    return test_main(argc, argv,
                     (test_case[]){{"equals_eager", equals_eager},
                                   {"layerwise", layerwise},
                                   {"averages", averages},
                                   {"swapped_between", swapped_between},
                                   {"recomputes", recomputes},
                                   {"two_captures", two_captures},
                                   {"work_between", work_between},
                                   {"trims_between", trims_between},
                                   {"mixed_precision", mixed_precision},
                                   {"plans_meanwhile", plans_meanwhile},
                                   {"freed", freed},
                                   {"ranks", ranks},
                                   {"rank_fails", rank_fails},
                                   {"closed_first", closed_first},
                                   {"sums", sums},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
