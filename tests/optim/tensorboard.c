/* Event files for TensorBoard. The cases make what tests/optim/tensorboard_read.py reads, below $TENSORBOARD_RUNS;
 * files that cannot be written are tried here. */
#include "optim/tensorboard.h"
#include "datasets/datasets.h"
#include "fit/fit.h"
#include "layers/layers.h"
#include "tests/file/folder.h"
#include "tests/file/said.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>

static const char *run_folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", getenv("TENSORBOARD_RUNS"), name);
    return path;
}

static wf_status observe_loss(wf_trainer *trainer, void *user)
{
    const double i = (double)wf_trainer_iteration(trainer);
    WF_EXPECT_OK(wf_trainer_observe(trainer, "test/loss", 1 / (i + 1) + rank, 1));
    return wf_trainer_observe(trainer, "none", 1, 0);
}

/* Byte k of the pictures is 7 k modulo 256. */
static wf_tensor *pictures(wf_shape shape)
{
    float x[64 * 64];
    const int64_t n = wf_shape_count(shape);
    for (int64_t k = 0; k < n; k++)
        x[k] = (float)(7 * k % 256) / 255;
    return wf_tensor_from_host(ctx, WF_F32, shape, x);
}

static wf_status show(wf_trainer *trainer, void *user)
{
    const double values[] = {-3, -0.5, 0, 0, 1e-13, 2, 1e30, INFINITY, NAN};
    wf_tensor *x = pictures(WF_SHAPE(2, 3, 2, 3)), *grey = pictures(WF_SHAPE(1, 1, 5, 4)),
              *h = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(9), values),
              *empty = wf_tensor_new(ctx, WF_F32, WF_SHAPE(0));
    WF_EXPECT_OK(wf_trainer_image(trainer, "colour", x, 1, 2, 0, 1));
    WF_EXPECT_OK(wf_trainer_image(trainer, "grey", grey, 1, 1, 0, 1));
    WF_EXPECT_OK(wf_trainer_histogram(trainer, "h", h));
    WF_EXPECT_OK(wf_trainer_histogram(trainer, "empty", empty));
    wf_tensor_free(x);
    wf_tensor_free(grey);
    wf_tensor_free(h);
    wf_tensor_free(empty);
    return WF_OK;
}

static void train_to(int64_t iterations, bool load)
{
    int64_t step = 0;
    wf_checkpoint *saves = wf_checkpoint_open(comm, in_folder("saves"), (wf_checkpoint_opts){.every = 3});
    wf_trainer *t = wf_trainer_new(
        comm, observe_loss, NULL,
        (wf_trainer_opts){.iterations = iterations, .report = {.iterations = 1}, .tensorboard = run_folder("a/run")});
    WF_EXPECT_OK(wf_trainer_set_checkpoint(t, saves));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "show", show, NULL, (wf_when){.iterations = 2}));
    if (load)
        WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
    WF_EXPECT_OK(wf_trainer_run(t));
    wf_trainer_free(t);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
}

/* The second run continues after iteration 3, so what the first one says of 4 and 5 is not true any more. */
static void a_run_and_its_continuation(void)
{
    train_to(5, false);
    train_to(6, true);
    const int64_t files = files_in(run_folder("a/run"));
    WF_EXPECT(files == 2, "%lld files of events, should be 2", (long long)files);
}

static void a_fit(void)
{
    const float x[] = {0.5f, -1, 2, 0.25f};
    const int64_t labels[] = {0, 1, 0, 1};
    wf_layer *model = wf_layer_named(wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 2}), "fc");
    wf_fit_opts o = {.optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.25}),
                     .loss = wf_mean_cross_entropy,
                     .train = rank == 0 ? wf_memory_dataset(ctx, WF_F32, WF_SHAPE(2, 2), x, labels) : NULL,
                     .epochs = 2,
                     .tensorboard = run_folder("fit"),
                     .histograms = true};
    WF_EXPECT_OK(wf_fit(comm, o, NULL));
    o.optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.25});
    o.train = rank == 0 ? wf_memory_dataset(ctx, WF_F32, WF_SHAPE(2, 2), x, labels) : NULL;
    o.tensorboard = NULL;
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_fit(comm, o, NULL));
    wf_layer_free(model);
}

/* --- Files that cannot be written --------------------------------------------------------------------------------- */

static wf_status count_step(wf_trainer *trainer, void *user)
{
    ++*(int64_t *)user;
    return wf_trainer_observe(trainer, "loss", 1, 1);
}

static void no_folder(void)
{
    int64_t steps = 0;
    wf_trainer *t =
        wf_trainer_new(comm, count_step, &steps, (wf_trainer_opts){.iterations = 2, .tensorboard = "/dev/null/runs"});
    WF_EXPECT_ERROR(WF_ERR_IO, wf_trainer_run(t));
    WF_EXPECT(steps == 0, "%lld steps before the folder is made", (long long)steps);
    WF_EXPECT_OK(wf_barrier(comm));
    wf_trainer_free(t);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    WF_EXPECT(getrlimit(RLIMIT_FSIZE, &limit) == 0, "no limit of files");
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    WF_EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0, "files cannot be limited");
}

/* The picture does not fit into what is left. */
static wf_status fill_up(wf_trainer *trainer, void *user)
{
    wf_tensor *large = pictures(WF_SHAPE(1, 1, 64, 64));
    const bool full = wf_trainer_iteration(trainer) == 2;
    if (full)
        limit_files(2048);
    WF_EXPECT_OK(wf_trainer_image(trainer, "large", large, 1, 1, 0, 1));
    limit_files(RLIM_INFINITY);
    wf_tensor_free(large);
    return WF_OK;
}

static void full_disk(void)
{
    int64_t steps = 0;
    signal(SIGXFSZ, SIG_IGN);
    wf_trainer *t = wf_trainer_new(
        comm, count_step, &steps,
        (wf_trainer_opts){.iterations = 4, .report = {.iterations = 1}, .tensorboard = run_folder("full")});
    WF_EXPECT_OK(wf_trainer_add_hook(t, "fill", fill_up, NULL, (wf_when){.iterations = 2}));
    said_begin();
    WF_EXPECT_OK(wf_trainer_run(t));
    const int warnings = said_end("no more events for TensorBoard: ");
    WF_EXPECT(warnings == (rank == 0), "%d warnings", warnings);
    WF_EXPECT(steps == 4, "%lld steps", (long long)steps);
    wf_trainer_free(t);
}

/* A loop of the program's own is told at every call. */
static void failed_file(void)
{
    wf_tensorboard *board = wf_tensorboard_open(ctx, in_folder("own"), 0);
    wf_tensor *numbers = wf_tensor_new(ctx, WF_I32, WF_SHAPE(3)), *flat = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3));
    WF_EXPECT_OK(wf_tensorboard_scalar(board, "x", 1, 1));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_tensorboard_scalar(board, "", 1, 1));
    WF_EXPECT_ERROR(WF_ERR_DTYPE, wf_tensorboard_histogram(board, "x", 1, numbers));
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_tensorboard_image(board, "x", 1, flat, 1, 1, 0, 1));
    limit_files(1);
    WF_EXPECT_ERROR(WF_ERR_IO, wf_tensorboard_scalar(board, "x", 2, 1));
    limit_files(RLIM_INFINITY);
    WF_EXPECT_ERROR(WF_ERR_IO, wf_tensorboard_scalar(board, "x", 3, 1));
    WF_EXPECT_OK(wf_tensorboard_close(board));
    WF_EXPECT(!wf_tensorboard_open(ctx, in_folder("own"), -1), "a step before the first one");
    wf_error_clear();
    wf_tensor_free(numbers);
    wf_tensor_free(flat);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"a_run_and_its_continuation", a_run_and_its_continuation},
                                               {"a_fit", a_fit},
                                               {"no_folder", no_folder},
                                               {"full_disk", full_disk},
                                               {"failed_file", failed_file},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
