/* A run that was stopped goes on bit for bit: whatever it trains, and wherever it stopped. The argument is how many
 * stops are tried. */
#include "tests/file/run.h"

enum { STEPS = 24 };

static int stops = 2;

static void check_losses(const way *w, int64_t stop, const double *expected, const double *seen)
{
    for (int64_t i = stop; i < STEPS; i++)
        if (memcmp(&expected[i], &seen[i], sizeof *seen) != 0) {
            test_failed(__FILE__, __LINE__, "%s, stopped after %lld steps: loss %lld is %.17g, was %.17g", w->name,
                        (long long)stop, (long long)i, seen[i], expected[i]);
            return;
        }
}

/* The last values of all parameters and running statistics, as one hash. */
static uint64_t digest(const run *r)
{
    wf_param *const *params;
    int64_t n;
    uint64_t hash = 1469598103934665603u;
    WF_EXPECT_OK(wf_layer_params(r->model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        const wf_tensor *value = wf_param_value(params[i]);
        const size_t bytes = wf_tensor_bytes(value);
        unsigned char *host = malloc(bytes);
        WF_EXPECT_OK(wf_tensor_export(value, host, bytes));
        for (size_t k = 0; k < bytes; k++)
            hash = (hash ^ host[k]) * 1099511628211u;
        free(host);
    }
    return hash;
}

/* The backwards of a step that a stop comes after; in a step in which ranks make a different number of them, rank 0
 * makes none of these. */
static int64_t made_before(const way *w)
{
    return rank == 0 && w->before > 0 && !w->channel && size > 1 ? w->before - 1 : w->before;
}

/* The run without a stop; where it flushes, as a save with double buffering does. */
static uint64_t uninterrupted(const way *w, int64_t stop, double losses[STEPS])
{
    run r = run_open(w, comm, "none");
    for (int64_t i = 0; i < STEPS; i++) {
        if (i == stop) {
            run_accumulate(&r, made_before(w));
            WF_EXPECT_OK(wf_optim_flush(r.optim));
        }
        losses[i] = run_step(&r);
    }
    const uint64_t end = digest(&r);
    run_close(&r);
    return end;
}

static void stop_and_go_on(const way *w, int64_t stop, const way *then)
{
    double expected[STEPS], losses[STEPS] = {0};
    int64_t step = -1;
    char name[64];
    snprintf(name, sizeof name, "%s-%lld", w->name, (long long)stop);
    const uint64_t end = uninterrupted(w, stop, expected);
    run first = run_open(w, comm, name);
    for (int64_t i = 0; i < stop; i++)
        run_step(&first);
    run_accumulate(&first, made_before(w));
    WF_EXPECT_OK(wf_checkpoint_save(first.saves, stop));
    if (w->async) /* what the step after changes is not what the thread writes */
        run_step(&first);
    run_close(&first);
    run second = run_open(then, comm, name);
    WF_EXPECT_OK(wf_checkpoint_load_latest(second.saves, &step));
    second.done = made_before(w);
    WF_EXPECT(step == stop, "%s: saved at step %lld, loaded %lld", w->name, (long long)stop, (long long)step);
    for (int64_t i = stop; i < STEPS; i++)
        losses[i] = run_step(&second);
    check_losses(w, stop, expected, losses);
    const uint64_t seen = digest(&second);
    WF_EXPECT(seen == end, "%s, stopped after %lld steps: parameters or running statistics are others", w->name,
              (long long)stop);
    run_close(&second);
}

static void try_stops(const way *w)
{
    test_rng rng = {.state = 77 + strlen(w->name)};
    for (int i = 0; i < stops; i++)
        stop_and_go_on(w, test_int(&rng, 1, STEPS - 5), w);
}

/* A scale that is a power of two changes no bit in f32, unless an update is left out. */
static void scaled_and_not(void)
{
    const way plain = {.name = "plain", .accumulate = 3, .before = 2};
    const way scaled = {.name = "wide", .accumulate = 3, .before = 2, .scales = true, .wide = true};
    for (int64_t stop = 3; stop < 3 + stops; stop++) {
        stop_and_go_on(&plain, stop, &scaled);
        stop_and_go_on(&scaled, stop, &plain);
    }
}

static void adamw_dropout_cosine(void)
{
    try_stops(&(way){.name = "adamw"});
}

static void momentum(void)
{
    try_stops(&(way){.name = "momentum", .plain = true});
}

static void scaled_loss(void)
{
    try_stops(&(way){.name = "scaled", .scales = true});
}

static void sharded_state(void)
{
    try_stops(&(way){.name = "sharded", .opts = {.shard_optimizer = true, .bucket_bytes = 512}});
}

static void accumulation(void)
{
    try_stops(&(way){.name = "accumulate", .accumulate = 3});
}

static void within_a_step(void)
{
    try_stops(&(way){.name = "within", .accumulate = 3, .before = 1});
    try_stops(&(way){.name = "within-2", .accumulate = 3, .before = 2, .async = true});
    try_stops(&(way){.name = "within-scaled", .accumulate = 3, .before = 2, .scales = true});
    try_stops(&(way){
        .name = "within-sharded", .accumulate = 3, .before = 2, .opts = {.shard_optimizer = true}, .plain = true});
    try_stops(&(way){.name = "within-channel", .accumulate = 2, .before = 1, .channel = true});
}

static void double_buffering(void)
{
    const wf_multi_node_opts doubled = {.double_buffering = true};
    try_stops(&(way){.name = "double", .opts = doubled});
    try_stops(&(way){.name = "double-within", .accumulate = 3, .before = 2, .opts = doubled});
}

static void asynchronous(void)
{
    try_stops(&(way){.name = "async", .async = true});
}

static void channels(void)
{
    try_stops(&(way){.name = "channel", .channel = true});
}

int main(int argc, char **argv)
{
    int failed = 1;
    if (!ranks_open(test_communicator("auto")))
        return 1;
    if (argc > 1)
        stops = atoi(argv[1]);
    folder_make();
    failed = test_main(1, argv,
                       (test_case[]){{"adamw_dropout_cosine", adamw_dropout_cosine},
                                     {"momentum", momentum},
                                     {"scaled_loss", scaled_loss},
                                     {"scaled_and_not", scaled_and_not},
                                     {"sharded_state", sharded_state},
                                     {"accumulation", accumulation},
                                     {"within_a_step", within_a_step},
                                     {"double_buffering", double_buffering},
                                     {"asynchronous", asynchronous},
                                     {"channels", channels},
                                     {0}});
    folder_remove();
    return ranks_close(failed);
}
