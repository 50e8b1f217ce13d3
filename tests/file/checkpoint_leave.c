/* Signals that ask a run to save and leave: which ones end it at once, and what it says when the save fails. */
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "optim/trainer.h"
#include "tests/file/folder.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

/* A Ctrl-C after another signal asks like the first one; only a second Ctrl-C ends the process. */
static void the_first_interrupt_asks(void)
{
    static const int earlier[] = {SIGUSR1, SIGTERM};
    for (int i = 0; i < 2; i++) {
        bool leave = false;
        wf_checkpoint *saves = wf_checkpoint_open(comm, in_folder("asks"), (wf_checkpoint_opts){.signals = true});
        if (rank == size - 1) {
            raise(earlier[i]);
            raise(SIGINT);
        }
        WF_EXPECT_OK(wf_checkpoint_step(saves, 7 + i, &leave));
        WF_EXPECT(leave && wf_checkpoint_generation(saves) == i, "leave is %d, generation %lld", leave,
                  (long long)wf_checkpoint_generation(saves));
        WF_EXPECT_OK(wf_checkpoint_close(saves));
    }
}

/* --- The disk is full --------------------------------------------------------------------------------------------- */

enum { SIDE = 300, LEAVES_AT = 3 };

static struct rlimit unlimited;

/* The last rank's files may not grow. */
static void fill_disk(bool full)
{
    struct rlimit limit = unlimited;
    limit.rlim_cur = full ? 50000 : unlimited.rlim_cur;
    if (rank == size - 1)
        WF_EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0, "cannot limit files");
}

static wf_status step_to_the_signal(wf_trainer *trainer, void *user)
{
    if (wf_trainer_iteration(trainer) == LEAVES_AT - 1) {
        fill_disk(true);
        if (rank == 0)
            raise(SIGUSR1);
    }
    return WF_OK;
}

static wf_layer *large_layer(void)
{
    return wf_linear(ctx, (wf_linear_opts){.in = SIDE, .out = SIDE});
}

/* The run ends where the signal says, and all ranks know that it is not saved. */
static void a_last_save_that_fails_is_an_error(bool async)
{
    const char *name = async ? "lost-async" : "lost";
    int64_t step = -1;
    wf_layer *model = large_layer();
    wf_checkpoint *saves =
        wf_checkpoint_open(comm, in_folder(name), (wf_checkpoint_opts){.signals = true, .async = async});
    wf_trainer *trainer = wf_trainer_new(comm, step_to_the_signal, NULL, (wf_trainer_opts){.iterations = 9});
    WF_EXPECT_OK(wf_checkpoint_add_model(saves, "model", model));
    WF_EXPECT_OK(wf_trainer_set_checkpoint(trainer, saves));
    WF_EXPECT_OK(wf_checkpoint_save(saves, 0));
    WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
    const wf_status status = wf_trainer_run(trainer);
    fill_disk(false);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "step 3 is not saved"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT(wf_trainer_left(trainer) && wf_trainer_iteration(trainer) == LEAVES_AT, "left is %d, after %lld",
              wf_trainer_left(trainer), (long long)wf_trainer_iteration(trainer));
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(files_in(in_folder(name)) == 1 && step == 0, "%lld files are there",
              (long long)files_in(in_folder(name)));
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    wf_trainer_free(trainer);
    wf_layer_free(model);
}

static void the_last_save_fails(void)
{
    a_last_save_that_fails_is_an_error(false);
    a_last_save_that_fails_is_an_error(true);
}

/* An earlier save that failed is a warning where the last one is whole. */
static void the_last_save_counts(void)
{
    bool leave = false;
    int64_t step = -1;
    wf_layer *model = large_layer();
    wf_checkpoint *saves =
        wf_checkpoint_open(comm, in_folder("late"), (wf_checkpoint_opts){.signals = true, .async = true});
    WF_EXPECT_OK(wf_checkpoint_add_model(saves, "model", model));
    WF_EXPECT_OK(wf_checkpoint_save(saves, 1));
    WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step)); /* waits for the save */
    fill_disk(true);
    WF_EXPECT_OK(wf_checkpoint_save(saves, 2));
    usleep(200000); /* the thread tries to write */
    fill_disk(false);
    raise(SIGUSR1);
    WF_EXPECT_OK(wf_checkpoint_step(saves, 3, &leave));
    WF_EXPECT(leave, "it does not leave");
    WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
    WF_EXPECT(step == 3, "found step %lld", (long long)step);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    wf_layer_free(model);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    getrlimit(RLIMIT_FSIZE, &unlimited);
    signal(SIGXFSZ, SIG_IGN);
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"the_first_interrupt_asks", the_first_interrupt_asks},
                                               {"the_last_save_fails", the_last_save_fails},
                                               {"the_last_save_counts", the_last_save_counts},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
