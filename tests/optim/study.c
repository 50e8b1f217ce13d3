/* Studies, with Optuna where it is not said otherwise (tests/optim/study.sh):
 *
 *     study cases FOLDER                      what trials do, and what they refuse
 *     study waits FOLDER                      the last group takes longer than ranks wait for each other
 *     study sequence SAMPLER PRUNER STORAGE   prints what is suggested, as tests/optim/study.py does with Optuna
 *     study run STORAGE GROUPS TRIALS PIDS    trials of some milliseconds, to be killed; every rank appends its process
 *     study dies STORAGE GROUPS TRIALS FOLDER the same; a process of trial 1 dies, and of its repetitions
 *     study open STORAGE TIMEOUT              opens a study and asks; every rank prints its error
 */
#include "tests/optim/study.h"
#include "tests/test.h"
#include "tests/timeouts.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

wf_comm *world;
int rank, size;
static const char *const names[] = {"data", "channel \"\\\n\xc3\xa9", "both"};
static const char *folder;

const char *path(const char *name)
{
    static char text[2][512];
    static int next;
    next = !next;
    snprintf(text[next], sizeof text[next], "%s/%s", folder, name);
    return text[next];
}

wf_study *open_study(const char *name, wf_study_opts opts)
{
    wf_study *study = wf_study_open(world, name, opts);
    WF_EXPECT_OK(wf_check(study));
    return study;
}

const wf_study_row *count_rows(wf_study *study, int64_t counted[6])
{
    const wf_study_row *rows = NULL;
    int64_t count = 0;
    memset(counted, 0, 6 * sizeof *counted);
    WF_EXPECT_OK(wf_study_trials(study, &rows, &count));
    for (int64_t i = 0; i < count; i++)
        counted[rows[i].state]++;
    return rows;
}

/* All ranks have the same bits. */
static void expect_same(const char *what, wf_comm *comm, const void *mine, size_t bytes)
{
    char all[8 * 16];
    WF_EXPECT_OK(wf_allgather_bytes(comm, mine, bytes, all));
    for (int r = 0; r < wf_comm_size(comm); r++)
        WF_EXPECT(memcmp(all + (size_t)r * bytes, mine, bytes) == 0, "%s differs between the group's ranks", what);
}

/* --- Cases ---------------------------------------------------------------------------------------------------------
 */

static wf_status settings(wf_trial *trial, void *user, double *value)
{
    const double lr = wf_trial_suggest_float(trial, "lr", 1e-5, 1e-1, WF_STUDY_LOG);
    const double x = wf_trial_suggest_float(trial, "x", -1, 1, WF_STUDY_STEP(0.25));
    const int64_t width = wf_trial_suggest_int(trial, "width", 32, 512, WF_STUDY_STEP(32));
    const int64_t large = wf_trial_suggest_int(trial, "large", -(1LL << 53), 1LL << 53, WF_STUDY_LINEAR);
    const int split = wf_trial_suggest_categorical(trial, names[1], names, 3);
    int64_t *calls = user;
    wf_comm *comm = wf_trial_comm(trial);
    ++*calls;
    WF_EXPECT_OK(wf_trial_check(trial));
    WF_EXPECT(lr >= 1e-5 && lr <= 1e-1, "lr %g", lr);
    WF_EXPECT(x >= -1 && x <= 1 && x * 4 == floor(x * 4), "x %g", x);
    WF_EXPECT(width >= 32 && width <= 512 && width % 32 == 0, "width %lld", (long long)width);
    WF_EXPECT(llabs(large) <= 1LL << 53, "large %lld", (long long)large);
    WF_EXPECT(split >= 0 && split < 3, "split %d", split);
    WF_EXPECT(wf_trial_suggest_float(trial, "lr", 1e-5, 1e-1, WF_STUDY_LOG) == lr, "another lr");
    expect_same("lr", comm, &lr, sizeof lr);
    expect_same("x", comm, &x, sizeof x);
    expect_same("width", comm, &width, sizeof width);
    expect_same("large", comm, &large, sizeof large);
    expect_same("split", comm, &split, sizeof split);
    /* Only rank 0's value counts. */
    *value = wf_comm_rank(comm) == 0 ? fabs(x) + (double)split : 1e9;
    return WF_OK;
}

static void suggestions(void)
{
    int64_t calls = 0, counted[6];
    const wf_study_row *best;
    const wf_study_importance *list;
    int count = 0;
    wf_study *study = open_study("settings", (wf_study_opts){.trials = 16, .seed = 3, .sampler = WF_SAMPLER_RANDOM});
    WF_EXPECT_OK(wf_study_optimize(study, settings, &calls));
    WF_EXPECT(calls == 16, "%lld trials", (long long)calls);
    const wf_study_row *rows = count_rows(study, counted);
    WF_EXPECT(counted[WF_TRIAL_COMPLETE] == 16, "%lld are complete", (long long)counted[WF_TRIAL_COMPLETE]);
    for (int i = 0; i < 16 && rows; i++) {
        const wf_study_param *split = &rows[i].param[0]; /* they come by name */
        WF_EXPECT(rows[i].number == i && rows[i].retry_of == -1 && rows[i].params == 5 && rows[i].seconds >= 0,
                  "row %d: number %lld, %d parameters, %g s", i, (long long)rows[i].number, rows[i].params,
                  rows[i].seconds);
        WF_EXPECT(strcmp(split->name, names[1]) == 0 && split->kind == WF_STUDY_CATEGORICAL, "parameter \"%s\"",
                  split->name);
        WF_EXPECT(rows[i].value == fabs(rows[i].param[4].real) + (double)(strcmp(split->text, names[1]) == 0) +
                                       2 * (double)(strcmp(split->text, names[2]) == 0),
                  "row %d: value %g of %g and \"%s\"", i, rows[i].value, rows[i].param[4].real, split->text);
    }
    WF_EXPECT_OK(wf_study_best(study, &best));
    WF_EXPECT(best && best->value < 1, "the best has %g", best ? best->value : NAN);
    WF_EXPECT_OK(wf_study_importances(study, &list, &count));
    WF_EXPECT(count == 5 && strcmp(list[0].name, names[1]) == 0 && list[0].share > 0.5,
              "%d importances, the first of \"%s\": %g", count, count ? list[0].name : "", count ? list[0].share : 0);
    for (int i = 1; i < count; i++)
        WF_EXPECT(list[i].share <= list[i - 1].share && list[i].share >= 0 && list[i].share < 0.5, "%s: %g",
                  list[i].name, list[i].share);
    wf_study_close(study);
}

/* Trial 1 diverges; 2 fails on all ranks; 3 and 4 on the last rank alone, while the others wait for it in a collective
 * (3) or report (4). */
static wf_status fails(wf_trial *trial, void *user, double *value)
{
    const bool last = wf_comm_rank(wf_trial_comm(trial)) == wf_comm_size(wf_trial_comm(trial)) - 1;
    double sum = 1;
    const double x = wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LINEAR);
    wf_status status = WF_OK;
    wf_error_clear();
    *value = wf_trial_number(trial) == 1 ? NAN : x;
    switch (wf_trial_number(trial)) {
    case 2:
        wf_tensor_free(wf_tensor_new(wf_comm_ctx(world), WF_F32, WF_SHAPE(-1)));
        return WF_ERR_SHAPE;
    case 3:
        status = last ? WF_ERR_IO : wf_allreduce_f64(wf_trial_comm(trial), &sum, 1, WF_SUM);
        break;
    case 4:
        status = last ? WF_ERR_MEMORY : wf_trial_report(trial, x, 0);
        break;
    default:
        WF_EXPECT_OK(wf_allreduce_f64(wf_trial_comm(trial), &sum, 1, WF_SUM));
        WF_EXPECT(sum == wf_comm_size(wf_trial_comm(trial)), "a sum of %g", sum);
    }
    WF_EXPECT((status != WF_OK) == (wf_trial_number(trial) == 3 || wf_trial_number(trial) == 4), "trial %lld: %s",
              (long long)wf_trial_number(trial), wf_status_name(status));
    return status;
}

static void failures(void)
{
    int64_t counted[6];
    wf_study *study = open_study("failures", (wf_study_opts){.trials = 7, .seed = 3});
    WF_EXPECT_OK(wf_study_optimize(study, fails, NULL));
    const wf_study_row *rows = count_rows(study, counted);
    WF_EXPECT(counted[WF_TRIAL_COMPLETE] == 3 && counted[WF_TRIAL_FAILED] == 4, "%lld complete, %lld failed",
              (long long)counted[WF_TRIAL_COMPLETE], (long long)counted[WF_TRIAL_FAILED]);
    static const char *const reasons[] = {"", "the value is NaN", "-1", "io", "memory", "", ""};
    for (int i = 0; i < 7 && rows; i++)
        WF_EXPECT(strstr(rows[i].reason, reasons[i]) && !*rows[i].reason == !*reasons[i],
                  "trial %d: reason \"%s\", not \"%s\"", i, rows[i].reason, reasons[i]);
    wf_study_close(study);
}

/* Even trials get better, odd ones are bad from the start. */
static wf_status prunes(wf_trial *trial, void *user, double *value)
{
    const double x = wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LINEAR);
    int *steps = user;
    for (int step = 0; step < 4; step++, ++*steps) {
        *value = wf_trial_number(trial) % 2 ? 100 + x : x / (step + 1);
        WF_EXPECT_OK(wf_trial_report(trial, *value, step));
        if (wf_trial_should_prune(trial))
            return wf_trial_prune(trial);
    }
    return WF_OK;
}

static void pruning(void)
{
    int64_t counted[6];
    int steps[2] = {0};
    for (int with = 0; with < 2; with++) {
        wf_study *study = open_study("pruning", (wf_study_opts){.trials = 8,
                                                                .seed = 5,
                                                                .startup_trials = 2,
                                                                .warmup_steps = 1,
                                                                .pruner = with ? WF_PRUNER_MEDIAN : WF_PRUNER_NONE});
        WF_EXPECT_OK(wf_study_optimize(study, prunes, &steps[with]));
        const wf_study_row *rows = count_rows(study, counted);
        WF_EXPECT(with ? counted[WF_TRIAL_PRUNED] >= 3 : counted[WF_TRIAL_COMPLETE] == 8, "%lld are pruned",
                  (long long)counted[WF_TRIAL_PRUNED]);
        WF_EXPECT(!rows || !with || (rows[3].state == WF_TRIAL_PRUNED && rows[3].value > 100), "trial 3 has %g",
                  rows ? rows[3].value : NAN);
        wf_study_close(study);
    }
    WF_EXPECT(steps[0] == 32 && steps[1] < 32, "%d and %d steps", steps[0], steps[1]);
}

static void groups(void)
{
    int64_t calls = 0, counted[6];
    const wf_study_opts opts = {.storage = path("groups.db"), .trials = 9, .groups = 2, .seed = 1};
    if (size < 2)
        return;
    for (int run = 0; run < 2; run++) { /* the second finds nothing to do */
        wf_study *study = open_study("a name/with signs", opts);
        WF_EXPECT(wf_study_group(study) == 2 * rank / size, "rank %d of %d: group %d", rank, size,
                  wf_study_group(study));
        WF_EXPECT_OK(wf_study_optimize(study, settings, &calls));
        count_rows(study, counted);
        WF_EXPECT(counted[WF_TRIAL_COMPLETE] == 9, "%lld are complete", (long long)counted[WF_TRIAL_COMPLETE]);
        wf_study_close(study);
        WF_EXPECT_OK(wf_barrier(world));
    }
    double mine = wf_comm_size(world) > 2 && rank % 2 ? 0 : (double)calls;
    WF_EXPECT_OK(wf_allreduce_f64(world, &mine, 1, WF_SUM));
    WF_EXPECT(size > 4 || size == 3 || mine == 9, "%g trials were made", mine);
}

static void seconds_pass(int seconds)
{
    nanosleep(&(struct timespec){.tv_sec = seconds}, NULL);
}

/* The last group takes longer than ranks wait for each other, in its trial and behind it (tests/optim/study.sh sets
 * that to five seconds). */
static void long_last(void)
{
    wf_trial *trial = NULL;
    int64_t counted[6];
    test_timeouts_end(); /* Python may take long to start */
    wf_study *study = open_study("long", (wf_study_opts){.storage = path("long.db"), .trials = 2, .groups = 2});
    const int group = wf_study_group(study);
    WF_EXPECT_OK(wf_study_ask(study, &trial));
    test_timeouts_begin();
    if (group == 1)
        seconds_pass(6);
    WF_EXPECT_OK(wf_study_tell(study, trial, group));
    if (group == 1)
        seconds_pass(6);
    WF_EXPECT_OK(wf_study_ask(study, &trial));
    WF_EXPECT(!trial, "a third trial");
    count_rows(study, counted);
    WF_EXPECT(counted[WF_TRIAL_COMPLETE] == 2, "%lld are complete", (long long)counted[WF_TRIAL_COMPLETE]);
    if (group == 0)
        seconds_pass(6); /* what follows is for all ranks */
    wf_study_close(study);
}

/* Trials fail with texts that are no UTF-8, or are cut in the middle of a character. */
static wf_status fails_with_bytes(wf_trial *trial, void *user, double *value)
{
    const int64_t number = wf_trial_number(trial);
    wf_layer *layer = user;
    char name[1200] = "M\xfcller";
    *value = 1;
    if (number > 2)
        return WF_OK;
    for (int i = 0; number > 0 && i < 1100; i += 2)
        snprintf(name + i + number, 3, "\xc3\xbc"); /* behind "M", or behind "M" and a byte */
    WF_EXPECT(!wf_layer_param(layer, name), "there is a parameter");
    return wf_error_code();
}

static void bytes(void)
{
    int64_t counted[6];
    wf_layer *layer = wf_linear(wf_comm_ctx(world), (wf_linear_opts){.in = 1, .out = 1});
    wf_study *study = open_study("bytes", (wf_study_opts){.trials = 4, .seed = 3});
    WF_EXPECT_OK(wf_study_optimize(study, fails_with_bytes, layer));
    const wf_study_row *rows = count_rows(study, counted);
    WF_EXPECT(counted[WF_TRIAL_COMPLETE] == 1 && counted[WF_TRIAL_FAILED] == 3, "%lld complete, %lld failed",
              (long long)counted[WF_TRIAL_COMPLETE], (long long)counted[WF_TRIAL_FAILED]);
    WF_EXPECT(!rows || strstr(rows[0].reason, "M\xef\xbf\xbdller"), "reason \"%s\"", rows ? rows[0].reason : "");
    WF_EXPECT(!rows || strstr(rows[1].reason, "M\xc3\xbc\xc3\xbc"), "reason \"%s\"", rows ? rows[1].reason : "");
    wf_study_close(study);
    wf_layer_free(layer);
}

/* --- For the script ------------------------------------------------------------------------------------------------
 */

static int sequence(const char *sampler, const char *pruner, const char *storage)
{
    static const char *const samplers[] = {"tpe", "random", "cmaes", "qmc"}, *const pruners[] = {"median", "none",
                                                                                                 "halving",
                                                                                                 "hyperband"};
    wf_study_opts opts = {.storage = *storage ? storage : NULL, .seed = 7};
    while (strcmp(sampler, samplers[opts.sampler]) != 0)
        opts.sampler++;
    while (strcmp(pruner, pruners[opts.pruner]) != 0)
        opts.pruner++;
    wf_study *study = open_study("sequence", opts);
    for (int i = 0; i < 25; i++) {
        wf_trial *trial;
        WF_MUST(wf_study_ask(study, &trial));
        const double x = wf_trial_suggest_float(trial, "x", -1, 1, WF_STUDY_LINEAR),
                     lr = wf_trial_suggest_float(trial, "lr", 1e-5, 1e-1, WF_STUDY_LOG);
        const int64_t n = wf_trial_suggest_int(trial, "n", 1, 1000, WF_STUDY_LOG);
        const int split = opts.sampler == WF_SAMPLER_CMAES ? 0 : wf_trial_suggest_categorical(trial, "split", names, 3);
        /* Additions alone: no compiler may round them otherwise. */
        const double value = fabs(x) + lr + (double)n + (double)split;
        bool pruned = false;
        for (int step = 0; step < 3 && !pruned; step++) {
            WF_MUST(wf_trial_report(trial, value + step, step));
            pruned = wf_trial_should_prune(trial);
        }
        if (pruned)
            WF_MUST(wf_trial_prune(trial));
        if (rank == size - 1)
            printf("%a %a %lld %d %d\n", x, lr, (long long)n, split, pruned);
        WF_MUST(wf_study_tell(study, trial, value));
    }
    wf_study_close(study);
    return 0;
}

/* Not to stdout: what a launcher that is killed has not passed on is lost. */
static void append(const char *name, int64_t number)
{
    FILE *file = fopen(path(name), "a");
    WF_EXPECT(file, "%s: cannot append", path(name));
    if (file)
        fprintf(file, "%lld\n", (long long)number);
    if (file)
        fclose(file);
}

static wf_status sleeps(wf_trial *trial, void *user, double *value)
{
    const double x = wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LINEAR);
    const int split = wf_trial_suggest_categorical(trial, "split", names, 3);
    WF_MUST(wf_trial_report(trial, x, 0));
    if (wf_comm_rank(wf_trial_comm(trial)) == 0) {
        append("begun", wf_trial_number(trial));
        /* The script is about to kill the job, in the middle of this trial. */
        const bool hold = access(path("hold"), F_OK) == 0;
        nanosleep(&(struct timespec){.tv_sec = hold ? 20 : 0, .tv_nsec = 20000000 + (long)(x * 6e7)}, NULL);
    }
    *value = x + (double)split;
    WF_MUST(wf_barrier(wf_trial_comm(trial)));
    if (wf_comm_rank(wf_trial_comm(trial)) == 0)
        append("made", wf_trial_number(trial));
    return WF_OK;
}

/* A process of trial 1, and of each of its repetitions, dies. */
static wf_status dies(wf_trial *trial, void *study, double *value)
{
    const wf_study_row *rows = NULL;
    int64_t count = 0, first = wf_trial_number(trial);
    *value = wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LINEAR);
    WF_MUST(wf_study_trials(study, &rows, &count));
    while (rows[first].retry_of >= 0)
        first = rows[first].retry_of;
    if (first == 1 && wf_comm_rank(wf_trial_comm(trial)) == 0) {
        append("died", wf_trial_number(trial));
        raise(SIGKILL);
    }
    return wf_barrier(wf_trial_comm(trial));
}

static int run(const char *storage, int number_of_groups, int64_t trials, wf_study_objective objective)
{
    int64_t counted[6];
    append("pids", getpid());
    wf_study *study = open_study("killed", (wf_study_opts){.storage = storage,
                                                           .groups = number_of_groups,
                                                           .trials = trials,
                                                           .seed = 11,
                                                           .sampler = WF_SAMPLER_RANDOM,
                                                           .pruner = WF_PRUNER_NONE});
    WF_MUST(wf_study_optimize(study, objective, study));
    const wf_study_row *rows = count_rows(study, counted);
    for (int64_t i = 0; rows && rank == 0 && i < trials + counted[WF_TRIAL_RETRIED]; i++)
        if (rows[i].state == WF_TRIAL_FAILED)
            printf("trial %lld, of trial %lld, failed: %s\n", (long long)rows[i].number, (long long)rows[i].retry_of,
                   rows[i].reason);
    const int64_t others =
        counted[WF_TRIAL_PRUNED] + counted[WF_TRIAL_FAILED] + counted[WF_TRIAL_RUNNING] + counted[WF_TRIAL_WAITING];
    if (rank == 0)
        printf("complete %lld, retried %lld, others %lld\n", (long long)counted[WF_TRIAL_COMPLETE],
               (long long)counted[WF_TRIAL_RETRIED], (long long)others);
    wf_study_close(study);
    return 0;
}

static int open_and_ask(const char *storage, int64_t timeout_ms)
{
    wf_trial *trial;
    wf_study *study = wf_study_open(
        world, "fake", (wf_study_opts){.storage = storage, .groups = size > 1 ? 2 : 1, .timeout_ms = timeout_ms});
    wf_status status = study ? wf_study_ask(study, &trial) : wf_error_code();
    char line[1200], first[1024], *all = malloc((size_t)size * sizeof line);
    snprintf(first, sizeof first, "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
    snprintf(line, sizeof line, "rank %d: %s", rank, first);
    /* Later calls say the same. */
    for (int i = 0; study && i < 2; i++) {
        const wf_study_row *best;
        char later[1024];
        status = i ? wf_study_ask(study, &trial) : wf_study_best(study, &best);
        snprintf(later, sizeof later, "%s: %s", wf_status_name(status), wf_error_message());
        wf_error_clear();
        if (strcmp(later, first) != 0)
            snprintf(line, sizeof line, "rank %d: %.500s, LATER %.500s", rank, first, later);
    }
    /* The program's own communicator is well. */
    WF_MUST(wf_allgather_bytes(world, line, sizeof line, all));
    for (int r = 0; rank == 0 && r < size; r++)
        printf("%s\n", all + (size_t)r * sizeof line);
    free(all);
    wf_study_close(study);
    return 0;
}

int main(int argc, char **argv)
{
    world = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    WF_MUST(wf_check(world));
    test_timeouts_begin();
    rank = wf_comm_rank(world);
    size = wf_comm_size(world);
    const char *mode = argc > 1 ? argv[1] : "";
    int code = 2;
    if (strcmp(mode, "cases") == 0 && argc > 2) {
        folder = argv[2];
        code = test_main(argc - 2, argv + 2,
                         (test_case[]){{"suggestions", suggestions},
                                       {"failures", failures},
                                       {"pruning", pruning},
                                       {"groups", groups},
                                       {"wrong_options", study_wrong_options},
                                       {"bytes", bytes},
                                       {"other_files", study_other_files},
                                       {"different_options", study_different_options},
                                       {"fresh_files", study_fresh_files},
                                       {"wrong_calls", study_wrong_calls},
                                       {"other_words", study_other_words},
                                       {0}});
    }
    if (strcmp(mode, "waits") == 0 && argc == 3) {
        folder = argv[2];
        code = test_main(argc - 2, argv + 2, (test_case[]){{"long_last", long_last}, {0}});
    }
    if (strcmp(mode, "sequence") == 0 && argc == 5)
        code = sequence(argv[2], argv[3], argv[4]);
    if ((strcmp(mode, "run") == 0 || strcmp(mode, "dies") == 0) && argc == 6) {
        folder = argv[5];
        code = run(argv[2], atoi(argv[3]), atoll(argv[4]), strcmp(mode, "run") == 0 ? sleeps : dies);
    }
    if (strcmp(mode, "open") == 0 && argc == 4)
        code = open_and_ask(argv[2], atoll(argv[3]));
    WF_MUST(wf_comm_close(world));
    return code;
}
