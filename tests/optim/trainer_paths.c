/* Files of a trainer that cannot be written: found before the first step, and a warning later. A log that lost its
 * end. */
#include "core/status_author.h"
#include "optim/trainer.h"
#include "tests/file/run.h"
#include "tests/file/said.h"
#include "tests/optim/trainer_json.h"

#include <sys/stat.h>
#include <unistd.h>

/* In the second iteration their folder goes. */
static wf_status lose_folder(wf_trainer *trainer, void *user)
{
    int64_t *steps = user;
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s", in_folder("goes"));
    if (++*steps == 2 && rank == 0)
        WF_EXPECT(system(command) == 0, "cannot remove the folder");
    WF_EXPECT_OK(wf_barrier(wf_trainer_comm(trainer)));
    return wf_trainer_observe(trainer, "loss", 10.0 - (double)*steps, 1);
}

/* The error, and how many steps were made before it. */
static wf_status run_with(const char *best, const char *timeline, int64_t *steps)
{
    wf_layer *model = wf_linear(ctx, (wf_linear_opts){.in = 1, .out = 1});
    *steps = 0;
    wf_trainer *t =
        wf_trainer_new(comm, lose_folder, steps,
                       (wf_trainer_opts){.iterations = 3, .report = {.iterations = 1}, .timeline = timeline});
    if (best)
        WF_EXPECT_OK(wf_trainer_keep_best(t, "loss", (wf_best_opts){.model = model, .path = best}));
    const wf_status status = wf_trainer_run(t);
    wf_trainer_free(t);
    wf_layer_free(model);
    return status;
}

/* Before the first step it is an error, of all ranks, which go on together; later a warning, as of checkpoints. */
static void paths_are_tried_before_the_first_step(void)
{
    int64_t steps;
    WF_EXPECT_ERROR(WF_ERR_IO, run_with(in_folder("no/such/best.h5"), NULL, &steps));
    WF_EXPECT(steps == 0, "%lld steps before the path of the best model is tried", (long long)steps);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT_ERROR(WF_ERR_IO, run_with(NULL, in_folder("no/such/line.json"), &steps));
    WF_EXPECT(steps == 0, "%lld steps before the path of the time line is tried", (long long)steps);
    WF_EXPECT_OK(wf_barrier(comm));
    /* A file of the user's stays, whatever name is tried. */
    char mine[64];
    snprintf(mine, sizeof mine, "best.h5.%ld", (long)getpid());
    FILE *file = fopen(in_folder(mine), "w");
    WF_EXPECT(file && fclose(file) == 0, "cannot write %s", mine);
    WF_EXPECT_OK(run_with(in_folder("best.h5"), NULL, &steps));
    WF_EXPECT(access(in_folder(mine), F_OK) == 0, "%s is gone", mine);
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0)
        WF_EXPECT(mkdir(in_folder("goes"), 0777) == 0, "cannot make a folder");
    WF_EXPECT_OK(wf_barrier(comm));
    said_begin();
    WF_EXPECT_OK(run_with(in_folder("goes/best.h5"), in_folder("goes/line.json"), &steps));
    /* Rank 0 warns of the best model in two iterations, and of the time line at the end. */
    const int warnings = said_end("cannot");
    WF_EXPECT(warnings == (rank == 0 ? 3 : 0), "%d warnings", warnings);
    WF_EXPECT(steps == 3, "%lld steps", (long long)steps);
    WF_EXPECT_OK(wf_barrier(comm));
}

static wf_status nothing(wf_trainer *trainer, void *user)
{
    return WF_OK;
}

/* Trains up to `iterations`, from the newest checkpoint on, with a line in the log for each. */
static void log_every_iteration(int64_t iterations)
{
    int64_t step = 0;
    wf_checkpoint *saves = wf_checkpoint_open(comm, in_folder("cut"), (wf_checkpoint_opts){.every = 1});
    wf_trainer *t = wf_trainer_new(
        comm, nothing, NULL,
        (wf_trainer_opts){.iterations = iterations, .report = {.iterations = 1}, .log = in_folder("cut/log.jsonl")});
    WF_EXPECT_OK(wf_trainer_set_checkpoint(t, saves));
    WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
    WF_EXPECT_OK(wf_trainer_run(t));
    wf_trainer_free(t);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
}

/* The log has a whole line for each of these iterations, and no more. */
static void expect_log(const char *path, size_t n, const int *iterations)
{
    char line[512], start[64];
    size_t lines = 0;
    FILE *log = fopen(path, "r");
    while (log && fgets(line, sizeof line, log)) {
        snprintf(start, sizeof start, "{\"iteration\": %d, ", lines < n ? iterations[lines] : 0);
        lines++;
        line[strcspn(line, "\n")] = '\0';
        WF_EXPECT(json_is_object(line) && strncmp(line, start, strlen(start)) == 0, "line %zu of the log is %s", lines,
                  line);
    }
    WF_EXPECT(lines == n, "the log has %zu lines", lines);
    if (log)
        fclose(log);
}

/* The file system lost the end of the log: no line is appended to what is left of another one. */
static void a_log_that_was_cut(void)
{
    struct stat info = {0};
    log_every_iteration(3);
    const char *path = in_folder("cut/log.jsonl");
    if (rank == 0)
        WF_EXPECT(stat(path, &info) == 0 && truncate(path, info.st_size - 9) == 0, "cannot cut %s", path);
    wf_log_set_level(WF_LOG_ERROR);
    log_every_iteration(5);
    wf_log_set_level(WF_LOG_INFO);
    log_every_iteration(6);
    if (rank == 0)
        expect_log(in_folder("cut/log.jsonl"), 5, (int[]){1, 2, 4, 5, 6});
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    folder_make();
    const int failed =
        test_main(argc, argv,
                  (test_case[]){{"paths_are_tried_before_the_first_step", paths_are_tried_before_the_first_step},
                                {"a_log_that_was_cut", a_log_that_was_cut},
                                {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
