/* Signals that ask a run to save and leave: which ones end it at once, and what it says when the save fails. The run is
 * one model or a pipeline with tied weights, alone or with two places along data or two shards of channels, whose
 * optimizer state is sharded. */
#include "optim/checkpoint.h"
#include "optim/trainer.h"
#include "tests/file/model_parts.h"

#include <signal.h>
#include <sys/resource.h>

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

enum { MOST_BYTES = 1000, LEAVES_AT = 3 }; /* a checkpoint has more bytes before the first value */

static const form forms[] = {
    {.name = "whole", .ranks = 1, .mesh = {.data = 1}, .whole = true},
    {.name = "two_stages", .ranks = 2, .mesh = {.data = 1, .stage = 2}, .sharded_state = true},
    {.name = "three_stages", .ranks = 3, .mesh = {.data = 1, .stage = 3}},
    {.name = "stages_data", .ranks = 4, .mesh = {.data = 2, .stage = 2}, .sharded_state = true},
    {.name = "stages_channel", .ranks = 4, .mesh = {.data = 1, .channel = 2, .stage = 2}, .sharded_state = true}};

static struct rlimit unlimited;

/* The files of one rank may not grow. */
static void fill_disk(int victim, bool full)
{
    struct rlimit limit = unlimited;
    limit.rlim_cur = full ? MOST_BYTES : unlimited.rlim_cur;
    if (rank == victim)
        WF_EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0, "cannot limit files");
}

typedef struct leaving {
    parted p;
    wf_optim *optim;
    wf_checkpoint *saves;
    int victim; /* whose disk is full */
} leaving;

static leaving open_run(const form *f, int victim, const char *name, bool async)
{
    const wf_multi_node_opts opts = {.shard_optimizer = f->sharded_state};
    leaving l = {.p = parts_open(f, comm, false), .victim = victim};
    l.optim = wf_mesh_multi_node(l.p.mesh, wf_adam(l.p.model, (wf_adam_opts){.lr = 0.02}), opts);
    l.saves = wf_checkpoint_open(comm, in_folder(name), (wf_checkpoint_opts){.signals = true, .async = async});
    WF_EXPECT(l.optim && l.saves, "%s", wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(l.saves, "model", l.p.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(l.saves, "optim", l.optim));
    return l;
}

static void close_run(leaving *l)
{
    WF_EXPECT_OK(wf_checkpoint_close(l->saves));
    wf_optim_free(l->optim);
    parts_close(&l->p);
}

static wf_status step_to_the_signal(wf_trainer *trainer, void *user)
{
    const leaving *l = user;
    if (wf_trainer_iteration(trainer) == LEAVES_AT - 1) {
        fill_disk(l->victim, true);
        if (rank == size - 1 - l->victim)
            raise(SIGUSR1);
    }
    return WF_OK;
}

/* The run ends where the signal says, and all ranks know that it is not saved. */
static void a_last_save_that_fails_is_an_error(const form *f, int victim, bool async)
{
    char name[64];
    int64_t step = -1;
    snprintf(name, sizeof name, "lost-%s-%d-%d", f->name, victim, async);
    leaving l = open_run(f, victim, name, async);
    wf_trainer *trainer = wf_trainer_new(comm, step_to_the_signal, &l, (wf_trainer_opts){.iterations = 9});
    WF_EXPECT_OK(wf_trainer_set_checkpoint(trainer, l.saves));
    WF_EXPECT_OK(wf_checkpoint_save(l.saves, 0));
    WF_EXPECT_OK(wf_checkpoint_load_latest(l.saves, &step));
    const wf_status status = wf_trainer_run(trainer);
    fill_disk(victim, false);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "step 3 is not saved"), "%s: %s: %s", name,
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT(wf_trainer_left(trainer) && wf_trainer_iteration(trainer) == LEAVES_AT, "%s: left is %d, after %lld",
              name, wf_trainer_left(trainer), (long long)wf_trainer_iteration(trainer));
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(files_in(in_folder(name)) == 1 && step == 0, "%s: %lld files are there", name,
              (long long)files_in(in_folder(name)));
    wf_trainer_free(trainer);
    close_run(&l);
}

static void the_last_save_fails(void)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (int victim = 0; victim < size && forms[i].ranks == size; victim++)
            a_last_save_that_fails_is_an_error(&forms[i], victim, (i + (size_t)victim) % 2);
}

/* An earlier save that failed is a warning where the last one is whole. */
static void the_last_save_counts(void)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        bool leave = false;
        int64_t step = -1;
        if (forms[i].ranks != size)
            continue;
        leaving l = open_run(&forms[i], size - 1, forms[i].name, true);
        WF_EXPECT_OK(wf_checkpoint_save(l.saves, 1));
        WF_EXPECT_OK(wf_checkpoint_load_latest(l.saves, &step)); /* waits for the save */
        fill_disk(size - 1, true);
        WF_EXPECT_OK(wf_checkpoint_save(l.saves, 2));
        test_sleep_ms(50); /* the thread tries to write */
        fill_disk(size - 1, false);
        raise(SIGUSR1);
        WF_EXPECT_OK(wf_checkpoint_step(l.saves, 3, &leave));
        WF_EXPECT(leave, "it does not leave");
        WF_EXPECT_OK(wf_checkpoint_load_latest(l.saves, &step));
        WF_EXPECT(step == 3, "found step %lld", (long long)step);
        close_run(&l);
    }
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
