/* The table of launchers in core/config.c: which job and which rank a process takes from the variables of each; and
 * what a variable that is no number is worth. Every case is a child, since the variables are read once. */
#include "core/config_author.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_variables(const char *const *variables)
{
    static const char *const known[] = {"PMIX_RANK",    "PMIX_NAMESPACE",       "PMI_RANK",
                                        "PMI_JOBID",    "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
                                        "SLURM_JOB_ID", "SLURM_STEP_ID"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        unsetenv(known[i]);
    for (; *variables; variables++)
        putenv((char *)(uintptr_t)*variables);
}

/* Runs a case in a child. `job` may have %ld for the number of the child's parent or, without a launcher, its own. */
static void expect(const char *const *variables, bool launched, int rank, const char *job)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        set_variables(variables);
        const wf_config *config = wf_config_get();
        char wanted[64];
        snprintf(wanted, sizeof wanted, job, (long)(launched ? getppid() : getpid()));
        const bool same = config->launched == launched && config->rank == rank && !strcmp(config->job, wanted);
        if (!same)
            fprintf(stderr, "launched %d, rank %d, job %s: should be %d, %d, %s\n", config->launched, config->rank,
                    config->job, launched, rank, wanted);
        _exit(same ? 0 : 1);
    }
    int status = 1;
    WF_EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the case of %s: status %d",
              *variables ? *variables : "no variable", status);
}

#define CASE(...)                                                                                                      \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

/* Runs a case in a child, which is to warn once of `variable` set to `value`, or not at all. */
static void expect_numbers(const char *variable, const char *value, bool warns, int threads, long near, long far)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        FILE *said = tmpfile();
        char text[1024] = "", wanted[128];
        setenv(variable, value, 1);
        if (!said || dup2(fileno(said), STDERR_FILENO) < 0)
            _exit(2);
        const wf_config *config = wf_config_get();
        rewind(said);
        (void)!fread(text, 1, sizeof text - 1, said);
        snprintf(wanted, sizeof wanted, "%s is \"%s\", should be", variable, value);
        const char *first = strstr(text, wanted);
        const bool once = first && !strstr(first + 1, variable);
        const bool same = config->omp_threads == threads && config->timeout_ms == near && config->far_ms == far;
        _exit((warns ? once : !*text) && same ? 0 : 1);
    }
    int status = 1;
    WF_EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%s=%s: status %d", variable, value,
              status);
}

int main(void)
{
    unsetenv("OMP_NUM_THREADS");
    unsetenv("WEFT_TIMEOUT_MS");
    expect_numbers("OMP_NUM_THREADS", "abc", true, 0, 300000, 1800000);
    expect_numbers("OMP_NUM_THREADS", "2x", true, 0, 300000, 1800000);
    expect_numbers("OMP_NUM_THREADS", "0", true, 0, 300000, 1800000);
    expect_numbers("OMP_NUM_THREADS", "3 ,2", false, 3, 300000, 1800000);
    expect_numbers("OMP_NUM_THREADS", "", false, 0, 300000, 1800000);
    expect_numbers("WEFT_TIMEOUT_MS", "abc", true, 0, 300000, 1800000);
    expect_numbers("WEFT_TIMEOUT_MS", "7000", false, 0, 7000, 7000);
    expect((const char *const[]){NULL}, false, -1, "process-%ld");
    expect(CASE("PMIX_RANK=3", "PMIX_NAMESPACE=n7", "PMI_RANK=1", "OMPI_COMM_WORLD_RANK=2"), true, 3, "n7");
    expect(CASE("PMI_RANK=1"), true, 1, "launcher-%ld");
    expect(CASE("PMI_RANK=5", "PMI_JOBID=41.0", "SLURM_PROCID=5"), true, 5, "41.0");
    expect(CASE("OMPI_COMM_WORLD_RANK=2"), true, 2, "launcher-%ld");
    expect(CASE("SLURM_PROCID=4", "SLURM_JOB_ID=17", "SLURM_STEP_ID=2"), true, 4, "17.2");
    /* The script of a job has a rank too, but no step. */
    expect(CASE("SLURM_PROCID=0", "SLURM_JOB_ID=17"), false, -1, "process-%ld");
    expect(CASE("PMI_RANK="), false, -1, "process-%ld");
    return test_failures() > 0;
}
