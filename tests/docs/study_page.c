/* The search of docs/running.md, where every second trial has an error: the study goes on, as the page promises. */
#include <weft/weft.h>

#include <stdio.h>

enum { TRIALS = 30 };

static wf_status train(wf_comm *comm, double lr, int64_t width, double *loss)
{
    *loss = lr + (double)width;
    return wf_barrier(comm);
}

static wf_status check_trial(const wf_trial *trial)
{
    static int calls;
    return ++calls % 2 == 0 ? wf_check(wf_tensor_new(NULL, WF_F32, WF_SHAPE(1))) : wf_trial_check(trial);
}

#define wf_trial_check check_trial
#include "tests/study_objective.c"

int main(int argc, char **argv)
{
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    const wf_study_row *rows;
    int64_t count = 0, failed = 0;
    WF_MUST(wf_check(comm));
    search(comm);
    wf_study *study = wf_study_open(comm, "mnist", (wf_study_opts){.storage = "mnist.db"});
    WF_MUST(wf_check(study));
    WF_MUST(wf_study_trials(study, &rows, &count));
    for (int64_t i = 0; i < count; i++)
        failed += rows[i].state == WF_TRIAL_FAILED;
    if (wf_comm_rank(comm) == 0)
        printf("%lld trials, %lld of them failed\n", (long long)count, (long long)failed);
    wf_study_close(study);
    WF_MUST(wf_comm_close(comm));
    /* Each of the two groups rounds its half down. */
    return count != TRIALS || failed < TRIALS / 2 - 1 || failed > TRIALS / 2;
}
