/* What studies refuse: options, files, calls, and ranks that differ. */
#include "tests/optim/study.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void expect_refused(const char *name, wf_study_opts opts, wf_status code, const char *text)
{
    wf_study *study = wf_study_open(world, name, opts);
    const char *said = wf_error_message();
    WF_EXPECT(!study && wf_error_code() == code && strstr(said, text), "should say %s: %s, says %s: %s",
              wf_status_name(code), text, wf_status_name(wf_error_code()), said);
    wf_study_close(study);
    wf_error_clear();
}

void study_wrong_options(void)
{
    const char *journal = path("wrong.journal");
    expect_refused("", (wf_study_opts){0}, WF_ERR_ARGUMENT, "needs a name");
    expect_refused("a", (wf_study_opts){.groups = size + 1, .storage = journal}, WF_ERR_ARGUMENT, "should be 1 to");
    expect_refused("a", (wf_study_opts){.groups = -1}, WF_ERR_ARGUMENT, "should be 1 to");
    if (size > 1)
        expect_refused("a", (wf_study_opts){.groups = 2}, WF_ERR_ARGUMENT, "need a file");
    expect_refused("a", (wf_study_opts){.storage = "x.txt"}, WF_ERR_ARGUMENT, "should end in .db");
    expect_refused("a", (wf_study_opts){.storage = "a.db/x"}, WF_ERR_ARGUMENT, "should end in .db");
    expect_refused("a", (wf_study_opts){.trials = -1}, WF_ERR_ARGUMENT, "-1 trials");
    expect_refused("a", (wf_study_opts){.seed = 1LL << 32}, WF_ERR_ARGUMENT, "below 2^32");
    expect_refused("a", (wf_study_opts){.warmup_steps = -2}, WF_ERR_ARGUMENT, "should not be negative");
    expect_refused("a", (wf_study_opts){.sampler = (wf_study_sampler)9}, WF_ERR_ARGUMENT, "no sampler 9");
    expect_refused("a", (wf_study_opts){.pruner = (wf_study_pruner)9}, WF_ERR_ARGUMENT, "no pruner 9");
    expect_refused("a", (wf_study_opts){.storage = "/nowhere/a.db"}, WF_ERR_IO, "No such file");
    /* Debian's Optuna comes without scipy. */
    wf_study *study = wf_study_open(world, "qmc", (wf_study_opts){.sampler = WF_SAMPLER_QMC});
    WF_EXPECT(study || (wf_error_code() == WF_ERR_UNSUPPORTED && strstr(wf_error_message(), "pip install scipy")), "%s",
              wf_error_message());
    wf_error_clear();
    wf_study_close(study);
    study = open_study("direction", (wf_study_opts){.storage = journal});
    expect_refused("direction", (wf_study_opts){.storage = journal, .timeout_ms = 2000}, WF_ERR_STATE,
                   "open in another job");
    wf_study_close(study);
    expect_refused("direction", (wf_study_opts){.storage = journal, .maximize = true}, WF_ERR_ARGUMENT, "to minimize");
}

static void write_file(const char *name, const char *text)
{
    FILE *file = rank == 0 ? fopen(path(name), "a") : NULL;
    if (file) {
        fputs(text, file);
        fclose(file);
    }
    WF_EXPECT_OK(wf_barrier(world));
}

/* Files that are there and are no storage stay as they are, and a torn one is mended. */
void study_other_files(void)
{
    static const char *const files[] = {"user.log", "user.journal", "user.db"};
    static const char *const text = "epoch 1\nepoch 2\nepoch 3 loss 0.3";
    for (int i = 0; i < 3; i++) {
        char found[64] = "", said[600];
        write_file(files[i], text);
        snprintf(said, sizeof said, "storage %s is no %s", path(files[i]), i < 2 ? "journal" : "SQLite database");
        expect_refused("a", (wf_study_opts){.storage = path(files[i])}, WF_ERR_IO, said);
        FILE *file = fopen(path(files[i]), "r");
        if (file) {
            found[fread(found, 1, sizeof found - 1, file)] = '\0';
            fclose(file);
        }
        WF_EXPECT(strcmp(found, text) == 0, "%s holds \"%s\"", files[i], found);
        WF_EXPECT_OK(wf_barrier(world));
    }
    for (int run = 0; run < 3; run++) { /* the last line is half, then none is whole and ours */
        wf_trial *trial = NULL;
        const wf_study_opts opts = {.storage = path("torn.journal")};
        if (run == 2) {
            write_file("torn.journal", "no JSON\n");
            expect_refused("torn", opts, WF_ERR_IO, "torn.journal: JSONDecodeError");
            return;
        }
        wf_study *study = open_study("torn", opts);
        WF_EXPECT_OK(wf_study_ask(study, &trial));
        WF_EXPECT(trial && wf_trial_number(trial) == run, "trial %lld", (long long)wf_trial_number(trial));
        WF_EXPECT_OK(wf_study_tell(study, trial, 1));
        wf_study_close(study);
        WF_EXPECT_OK(wf_barrier(world));
        if (run == 0)
            write_file("torn.journal", "{\"op_code\": 4, \"wor");
    }
}

/* The last rank gives another option. */
void study_different_options(void)
{
    static const struct {
        wf_study_opts opts;
        const char *says;
    } others[] = {{{.maximize = true}, "maximize 0 and rank"},
                  {{.trials = 5}, "trials 0 and rank"},
                  {{.groups = 2}, "groups 1 and rank"},
                  {{.sampler = WF_SAMPLER_RANDOM}, "sampler 0 and rank"},
                  {{.seed = 5}, "seed 0 and rank"},
                  {{.startup_trials = 5}, "startup_trials 0 and rank"},
                  {{.pruner = WF_PRUNER_NONE}, "pruner 0 and rank"},
                  {{.warmup_steps = 5}, "warmup_steps 0 and rank"},
                  {{.timeout_ms = 5000}, "timeout_ms 0 and rank"},
                  {{.storage = "b.db"}, "storage \"memory\" and rank"}};
    const bool other = rank == size - 1;
    if (size < 2)
        return;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_refused("a", other ? others[i].opts : (wf_study_opts){0}, WF_ERR_ARGUMENT, others[i].says);
    expect_refused(other ? "b" : "a", (wf_study_opts){0}, WF_ERR_ARGUMENT, "the name \"a\" and rank");
    expect_refused(other ? "" : "a", (wf_study_opts){0}, WF_ERR_ARGUMENT, "the name \"a\" and rank");
}

/* The characters of a path mean nothing, and two jobs make the tables of one file. */
void study_fresh_files(void)
{
    static const char *const files[] = {"q?mode=ro.db", "q%41#{x}.db"};
    for (int i = 0; i < 2; i++) {
        wf_study_close(open_study("a", (wf_study_opts){.storage = path(files[i])}));
        WF_EXPECT(access(path(files[i]), F_OK) == 0, "there is no %s", files[i]);
    }
    wf_comm *half = wf_comm_split(world, rank % 2, rank);
    WF_EXPECT_OK(wf_check(half));
    for (int round = 0; round < 3 && size > 1; round++) {
        char name[32];
        snprintf(name, sizeof name, "fresh%d.db", round);
        WF_EXPECT_OK(wf_barrier(world));
        wf_study *study = wf_study_open(half, rank % 2 ? "odd" : "even", (wf_study_opts){.storage = path(name)});
        WF_EXPECT_OK(wf_check(study));
        wf_error_clear();
        wf_study_close(study);
    }
    WF_EXPECT_OK(wf_barrier(world));
    WF_EXPECT_OK(wf_comm_close(half));
}

static void suggest_wrong(wf_trial *trial, int i)
{
    static const char *const twice[] = {"a", "b", "a"};
    switch (i) {
    case 0:
        WF_EXPECT(isnan(wf_trial_suggest_float(trial, "x", 2, 1, WF_STUDY_LINEAR)), "a value of [2, 1]");
        break;
    case 1:
        (void)wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LOG);
        break;
    case 2:
        (void)wf_trial_suggest_float(trial, "x", 0, INFINITY, WF_STUDY_LINEAR);
        break;
    case 3:
        (void)wf_trial_suggest_int(trial, "x", 1, 8, WF_STUDY_STEP(0.5));
        break;
    case 4:
        (void)wf_trial_suggest_int(trial, "x", 0, INT64_MAX, WF_STUDY_LINEAR);
        break;
    case 5:
        (void)wf_trial_suggest_categorical(trial, "x", twice, 3);
        break;
    case 6:
        (void)wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LINEAR);
        (void)wf_trial_suggest_categorical(trial, "x", twice, 2);
        break;
    case 7:
        (void)wf_trial_suggest_float(trial, "x", 0, 1, WF_STUDY_LINEAR);
        WF_EXPECT(isnan(wf_trial_suggest_float(trial, "x", 5, 10, WF_STUDY_LINEAR)), "a value of another range");
        break;
    case 8:
        (void)wf_trial_suggest_float(trial, "M\xfcller", 0, 1, WF_STUDY_LINEAR);
        break;
    case 9: /* Optuna's own: x was a number in earlier trials */
        (void)wf_trial_suggest_categorical(trial, "x", twice, 2);
        break;
    default:
        (void)wf_trial_suggest_float(trial, "", 0, 1, WF_STUDY_LINEAR);
    }
}

static wf_status no_trial(wf_trial *trial, void *user, double *value)
{
    WF_EXPECT(false, "trial %lld is made", (long long)wf_trial_number(trial));
    return WF_OK;
}

void study_wrong_calls(void)
{
    static const char *const says[] = {"no range",
                                       "more than 0",
                                       "no range",
                                       "whole number",
                                       "2^53",
                                       "a twice",
                                       "a float of [0.0, 1.0], and now as one of a, b",
                                       "a float of [0.0, 1.0], and now as a float of [5.0, 10.0]",
                                       "no UTF-8",
                                       "parameter x: ValueError",
                                       "a name"};
    int64_t counted[6];
    wf_study *study = open_study("wrong", (wf_study_opts){0});
    wf_trial *trial, *other;
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_study_optimize(study, no_trial, NULL));
    for (int i = 0; i < 11; i++) {
        WF_EXPECT_OK(wf_study_ask(study, &trial));
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_study_ask(study, &other));
        suggest_wrong(trial, i);
        const wf_status status = wf_trial_check(trial);
        WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), says[i]), "%d: %s: %s", i,
                  wf_status_name(status), wf_error_message());
        WF_EXPECT(isnan(wf_trial_suggest_float(trial, "y", 0, 1, WF_STUDY_LINEAR)), "a value after an error");
        WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_study_tell(study, trial, 1));
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_study_tell(study, trial, 1));
    }
    count_rows(study, counted);
    WF_EXPECT(counted[WF_TRIAL_FAILED] == 11, "%lld failed", (long long)counted[WF_TRIAL_FAILED]);
    wf_study_close(study);
}

/* One rank asks for something else than rank 0: the study ends on all ranks, with both in the message. */
void study_other_words(void)
{
    wf_trial *trial;
    if (size < 2)
        return;
    wf_study *study = open_study("words", (wf_study_opts){0});
    WF_EXPECT_OK(wf_study_ask(study, &trial));
    (void)wf_trial_suggest_float(trial, rank == size - 1 ? "momentum" : "lr", 0, 1, WF_STUDY_LINEAR);
    wf_status status = wf_study_tell(study, trial, 1);
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), "momentum"), "%s: %s", wf_status_name(status),
              wf_error_message());
    wf_error_clear();
    wf_study_close(study);
    WF_EXPECT_OK(wf_barrier(world));
}
