/* Trains a pipeline, saves it after each of two steps, and one rank is killed in the second save, at a write that the
 * arguments choose, of which half is done: checkpoint_mesh_kill FOLDER FORM RANDOM VICTIM. Before that it checks what
 * the run before left: losses, parameters and optimizer state follow from the number of steps, so a run of that many
 * steps from the beginning tells whether all that was loaded is of one generation. RANDOM -1: checks and ends. Rank 0
 * prints the step that it found. An odd VICTIM saves in the background.
 */
#include "optim/checkpoint.h"
#include "tests/file/batch.h"
#include "tests/file/model_parts.h"
#include "tests/ranks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SAMPLES = 8, WRONG = 3 };

static const form forms[] = {
    {.name = "stages", .mesh = {.data = 1}},
    {.name = "data", .mesh = {.data = 2}, .sharded_state = true},
    {.name = "channel", .mesh = {.data = 1, .channel = 2}, .sharded_state = true},
};

/* --- Dying in a write: these take the place of the C library's ------------------------------------------------------
 */

static atomic_long writes, dies_at;

/* Returns true in the write that is the last one. */
static bool is_last(void)
{
    return atomic_fetch_add(&writes, 1) + 1 == atomic_load(&dies_at);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    pause();
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t at)
{
    const bool last = is_last();
    const ssize_t n = syscall(SYS_pwrite64, file, data, last ? bytes / 2 : bytes, at);
    if (last)
        die();
    return n;
}

int fsync(int file)
{
    if (is_last())
        die();
    return (int)syscall(SYS_fsync, file);
}

int link(const char *from, const char *to)
{
    if (is_last())
        die();
    return (int)syscall(SYS_link, from, to);
}

/* --- A run ----------------------------------------------------------------------------------------------------------
 */

typedef struct run {
    parted p;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *x, *labels;
} run;

static form form_of(const char *name)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(forms[i].name, name) == 0) {
            form f = forms[i];
            f.ranks = size;
            f.mesh.stage = size / (f.mesh.data * (f.mesh.channel ? f.mesh.channel : 1));
            return f;
        }
    fprintf(stderr, "no form %s\n", name);
    exit(2);
}

static run run_open(const form *f)
{
    run r = {.p = parts_open(f, comm, true), .tape = wf_tape_new(ctx)};
    const wf_multi_node_opts opts = {.shard_optimizer = f->sharded_state, .bucket_bytes = 600};
    r.optim = wf_mesh_multi_node(r.p.mesh, wf_adam(r.p.model, (wf_adam_opts){.lr = 0.02}), opts);
    WF_EXPECT(r.optim, "%s", wf_error_trail());
    batch_open(r.p.mesh, WF_SHAPE(SAMPLES, PARTS_IN), PARTS_CLASSES, &r.x, &r.labels);
    return r;
}

static void run_close(run *r)
{
    wf_tensor_free(r->x);
    wf_tensor_free(r->labels);
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    parts_close(&r->p);
}

static double step(run *r)
{
    wf_var *loss = wf_pipeline_step(r->p.pipe, r->tape, r->x, r->labels);
    WF_MUST(wf_optim_step(r->optim, loss));
    const double value = wf_item(loss);
    WF_MUST(wf_tape_reset(r->tape));
    return value;
}

static void compare(const char *when, const run *a, const run *b)
{
    int64_t n;
    wf_param *const *one, *const *other;
    WF_MUST(wf_layer_params(a->p.model, &n, &one));
    WF_MUST(wf_layer_params(b->p.model, &n, &other));
    for (int64_t i = 0; i < n; i++) {
        double x[64], y[64];
        const size_t bytes = wf_tensor_bytes(wf_param_value(one[i]));
        WF_MUST(wf_tensor_export(wf_param_value(one[i]), x, bytes));
        WF_MUST(wf_tensor_export(wf_param_value(other[i]), y, bytes));
        WF_EXPECT(memcmp(x, y, bytes) == 0, "%s: %s is of another step", when, wf_param_path(one[i]));
    }
}

/* What was loaded is what `found` steps make, and so is the step after it. */
static void check(const form *f, run *loaded, int64_t found)
{
    double losses[2];
    run again = run_open(f);
    for (int64_t i = 0; i < found; i++)
        step(&again);
    compare("loaded", loaded, &again);
    losses[0] = step(loaded);
    losses[1] = step(&again);
    WF_EXPECT(losses[0] == losses[1], "the next loss is %.17g, should be %.17g", losses[0], losses[1]);
    compare("after the next step", loaded, &again);
    run_close(&again);
}

/* Saves, also what a thread writes. */
static void save(wf_checkpoint *saves, int64_t at)
{
    bool leave = false;
    const int64_t before = wf_checkpoint_generation(saves);
    WF_MUST(wf_checkpoint_save(saves, at));
    while (wf_checkpoint_generation(saves) == before)
        WF_MUST(wf_checkpoint_step(saves, at, &leave));
}

static wf_checkpoint *saves_open(const char *path, run *r, bool async)
{
    wf_checkpoint *saves = wf_checkpoint_open(comm, path, (wf_checkpoint_opts){.async = async, .mesh = r->p.mesh});
    WF_MUST(wf_checkpoint_add_model(saves, "model", r->p.model));
    WF_MUST(wf_checkpoint_add_optim(saves, "optim", r->optim));
    WF_MUST(wf_checkpoint_add(saves, "tape", wf_tape_visit, r->tape));
    return saves;
}

/* Returns the write that is the last one: any of `all`, or, every second time, one of those by which the file is ended
 * and gets its name. */
static long last_write(long number, long all)
{
    const long end = all < 6 ? all : 6;
    return number % 2 ? all - number / 2 % end : 1 + number / 2 % all;
}

int main(int argc, char **argv)
{
    if (argc != 5 || !ranks_open("auto"))
        return 2;
    WF_MUST(wf_ctx_set_dtype(ctx, WF_F64));
    const form f = form_of(argv[2]);
    const long number = atol(argv[3]), victim = atol(argv[4]);
    int64_t at = 0;
    run r = run_open(&f);
    wf_checkpoint *saves = saves_open(argv[1], &r, victim % 2);
    WF_MUST(wf_checkpoint_load_latest(saves, &at));
    if (rank == 0)
        printf("found %lld\n", (long long)at);
    fflush(stdout);
    check(&f, &r, at);
    int64_t wrong = test_failures();
    WF_MUST(wf_allreduce_i64(comm, &wrong, 1, WF_SUM));
    if (wrong > 0)
        return WRONG;
    if (number >= 0) {
        atomic_store(&writes, 0);
        save(saves, at + 1);
        step(&r);
        /* A new one, which makes the file's layout again, so that it makes as many writes. */
        WF_MUST(wf_checkpoint_close(saves));
        saves = saves_open(argv[1], &r, victim % 2);
        if (rank == victim % size)
            atomic_store(&dies_at, atomic_load(&writes) + last_write(number, atomic_load(&writes)));
        save(saves, at + 2);
    }
    WF_MUST(wf_checkpoint_close(saves));
    run_close(&r);
    return ranks_close(0);
}
