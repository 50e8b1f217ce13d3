/* wf_prepare and wf_fit against a plain loop of one process over all samples: in every case an epoch is one step on all
 * of them, so that the order of samples does not matter. */
#include "fit/fit.h"
#include "datasets/datasets.h"
#include "layers/layers.h"
#include "layers/save.h"
#include "tests/datasets/failing_threads.h"
#include "tests/file/folder.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "tests/fit/fit_models.h"

/* Takes the image, or two halves of it. */
static wf_var *halves_forward(wf_layer *self, void *user, wf_var *const *x, int n)
{
    return wf_apply(user, n == 2 ? wf_add(x[0], x[1]) : x[0]);
}

static wf_layer *halves_new(wf_layer *inner)
{
    wf_layer *model = wf_module_n(wf_layer_ctx(inner), 1, 2, halves_forward, inner);
    return wf_module_add(model, "inner", inner) ? model : NULL;
}

/* --- One process ------------------------------------------------------------------------------------------------- */

typedef struct serial_run {
    wf_ctx *ctx;
    wf_layer *model;
    double loss, test_loss, accuracy[LONGEST];
} serial_run;

static wf_tensor *whole_batch(wf_ctx *where, int count, uint64_t seed, wf_iter **iter, wf_tensor **labels)
{
    wf_batch b = {0};
    *iter = wf_batches(samples_new(where, count, seed), (wf_batch_opts){.size = count});
    WF_EXPECT_OK(wf_iter_next(*iter, &b));
    *labels = b.labels;
    return b.x;
}

static serial_run serial_averaged(wf_ctx *where, wf_layer *model, int epochs, double decay)
{
    serial_run s = {.ctx = where, .model = model};
    wf_optim *optim = optim_new(s.model);
    wf_ema *ema = decay > 0 ? wf_ema_new(s.model, (wf_ema_opts){.decay = decay}) : NULL;
    wf_tape *tape = wf_tape_new(s.ctx);
    wf_iter *iter[2];
    wf_tensor *labels[2], *x = whole_batch(s.ctx, SAMPLES, 1, &iter[0], &labels[0]),
                          *test = whole_batch(s.ctx, TESTED, 2, &iter[1], &labels[1]);
    for (int e = 0; e < epochs; e++) {
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(s.model, wf_input(tape, x)), labels[0], (wf_label_opts){0});
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        s.loss = wf_item(loss);
        WF_EXPECT_OK(wf_tape_reset(tape));
        if (ema) {
            WF_EXPECT_OK(wf_ema_update(ema));
            WF_EXPECT_OK(wf_ema_swap(ema));
        }
        WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
        wf_var *scores = wf_apply(s.model, wf_input(tape, test));
        s.test_loss = wf_item(wf_softmax_cross_entropy(scores, labels[1], (wf_label_opts){0}));
        s.accuracy[e] = (double)wf_count_correct(scores, labels[1], (wf_label_opts){0}) / TESTED;
        WF_EXPECT_OK(wf_tape_reset(tape));
        WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
        if (ema && e < epochs - 1)
            WF_EXPECT_OK(wf_ema_swap(ema));
    }
    wf_ema_free(ema);
    wf_iter_free(iter[0]);
    wf_iter_free(iter[1]);
    wf_tape_free(tape);
    wf_optim_free(optim);
    return s;
}

static serial_run serial(bool norm, int epochs)
{
    wf_ctx *where = wf_ctx_new((wf_ctx_opts){.dtype = WF_F64});
    return serial_averaged(where, model_new(where, norm), epochs, 0);
}

static void serial_free(serial_run *s)
{
    wf_layer_free(s->model);
    wf_ctx_free(s->ctx);
}

/* --- All ranks --------------------------------------------------------------------------------------------------- */

static const wf_metric accuracy[] = {{"accuracy", wf_accuracy}, {0}};

/* Ranks other than 0 give no data set: they need none. */
static wf_fit_opts fit_of(wf_layer *model)
{
    return (wf_fit_opts){.optim = optim_new(model),
                         .loss = wf_mean_cross_entropy,
                         .metrics = accuracy,
                         .train = rank == 0 ? samples_new(ctx, SAMPLES, 1) : NULL,
                         .test = rank == 0 ? samples_new(ctx, TESTED, 2) : NULL,
                         .batch = (SAMPLES + size - 1) / size,
                         .test_batch = 2,
                         .epochs = EPOCHS};
}

static void equals_serial(void)
{
    serial_run s = serial(true, EPOCHS);
    wf_layer *model = model_new(ctx, true);
    wf_fit_result r;
    WF_EXPECT_OK(wf_fit(comm, fit_of(model), &r));
    WF_EXPECT(r.steps == EPOCHS && r.epochs == EPOCHS && !r.left, "%lld steps of %lld epochs", (long long)r.steps,
              (long long)r.epochs);
    double best = 0;
    for (int e = 0; e < EPOCHS; e++)
        best = fmax(best, s.accuracy[e]);
    expect_near("loss", r.loss, s.loss);
    expect_near("test loss", r.test_loss, s.test_loss);
    expect_near("best accuracy", r.best, best);
    expect_same_model(model, s.model);
    wf_layer_free(model);
    serial_free(&s);
}

static wf_status halve(void *user, const wf_batch_samples *in, wf_batch_rows *rows)
{
    const double *x = in->x;
    for (int64_t i = 0; i < in->count * SIDE * SIDE; i++)
        ((double *)rows[0].data)[i] = ((double *)rows[2].data)[i] = x[i] / 2;
    memcpy(rows[1].data, in->labels, (size_t)in->count * sizeof *in->labels);
    return WF_OK;
}

static wf_var *loss_by_name(wf_var *scores, const wf_batch *b)
{
    WF_EXPECT(wf_tensor_layout(wf_batch_get(b, "left")).known, "a field without a layout");
    return wf_softmax_cross_entropy(scores, wf_batch_get(b, "class"), (wf_label_opts){0});
}

/* Batches of two inputs and a target, by name, from two threads: the model of the image. */
static void several_inputs(void)
{
    static const wf_batch_field fields[] = {
        {.name = "left", .dtype = WF_F64, .shape = {.rank = 3, .dim = {1, SIDE, SIDE}}},
        {.name = "class", .dtype = WF_I64, .target = true},
        {.name = "right", .dtype = WF_F64, .shape = {.rank = 3, .dim = {1, SIDE, SIDE}}},
        {0}};
    wf_ctx *alone = wf_ctx_new((wf_ctx_opts){.dtype = WF_F64});
    serial_run s = serial_averaged(alone, halves_new(model_new(alone, true)), EPOCHS, 0);
    wf_layer *model = halves_new(model_new(ctx, true));
    wf_fit_opts o = fit_of(model);
    wf_fit_result r;
    o.loss = NULL;
    o.batch_loss = loss_by_name;
    o.workers = 2;
    o.collate = (wf_collate){.function = halve, .fields = fields};
    WF_EXPECT_OK(wf_fit(comm, o, &r));
    expect_near("loss", r.loss, s.loss);
    expect_near("test loss", r.test_loss, s.test_loss);
    expect_same_model(model, s.model);
    wf_layer_free(model);
    serial_free(&s);
}

/* The model is tested by its averages, also after a resumption, keeps them in its file, and has them at the end. */
static void averages(void)
{
    wf_ctx *alone = wf_ctx_new((wf_ctx_opts){.dtype = WF_F64});
    serial_run s = serial_averaged(alone, model_new(alone, true), EPOCHS, 0.5);
    folder_make();
    for (int run = 0; run < 2; run++) {
        wf_layer *model = model_new(ctx, true), *best = model_new(ctx, true);
        wf_fit_opts o = fit_of(model);
        wf_fit_result r;
        o.checkpoints = folder;
        o.resume = true;
        o.ema = 0.5;
        o.best = in_folder("best");
        o.watch = "loss";
        o.epochs = run == 0 ? 2 : EPOCHS;
        WF_EXPECT_OK(wf_fit(comm, o, &r));
        if (run == 1) {
            expect_near("test loss", r.test_loss, s.test_loss);
            expect_same_model(model, s.model);
            WF_EXPECT_OK(wf_load(best, in_folder("best")));
            WF_EXPECT(r.best == r.test_loss, "the best loss is %g, the last %g", r.best, r.test_loss);
            expect_same_model(best, s.model);
        }
        wf_layer_free(best);
        wf_layer_free(model);
    }
    folder_remove();
    serial_free(&s);
}

static int64_t tests_of_rank; /* batches of tests that failing has seen */

/* No number on the last rank, in the second evaluation. */
static double failing(const wf_var *scores, const wf_tensor *labels)
{
    return tests_of_rank++ > 0 && rank == size - 1 ? NAN : 1;
}

/* An evaluation fails while the averages are swapped in: the model has the weights of its training again, on all ranks.
 */
static void averages_go_where_a_test_fails(void)
{
    static const wf_metric metric[] = {{"odd", failing}, {0}};
    serial_run s = serial(true, 2);
    wf_comm *const whole = comm;
    comm = test_comm_open("flat", (wf_ctx_opts){.dtype = WF_F64});
    ctx = wf_comm_ctx(comm);
    wf_layer *model = model_new(ctx, true);
    wf_fit_opts o = fit_of(model);
    tests_of_rank = 0;
    o.test_batch = TESTED;
    o.metrics = metric;
    o.ema = 0.5;
    WF_EXPECT(wf_fit(comm, o, NULL) == WF_ERR_NUMERIC && strstr(wf_error_message(), "the metric odd is no number"),
              "%s", wf_error_message());
    wf_error_clear();
    expect_same_model(model, s.model);
    wf_layer_free(model);
    if (wf_comm_close(comm) != WF_OK)
        wf_error_clear();
    comm = whole;
    ctx = wf_comm_ctx(comm);
    serial_free(&s);
}

static void accumulates(void)
{
    serial_run s = serial(false, EPOCHS);
    wf_layer *model = model_new(ctx, false);
    wf_fit_opts o = fit_of(model);
    wf_fit_result r;
    o.batch = (o.batch + 2) / 3;
    o.accumulate = 3;
    WF_EXPECT_OK(wf_fit(comm, o, &r));
    WF_EXPECT(r.steps == EPOCHS, "%lld steps, should be %d", (long long)r.steps, EPOCHS);
    expect_near("loss", r.loss, s.loss);
    expect_same_model(model, s.model);
    wf_layer_free(model);
    serial_free(&s);
}

/* The program's own loop over what wf_prepare gives. */
static void prepares(void)
{
    serial_run s = serial(true, EPOCHS);
    wf_layer *model = model_new(ctx, true);
    wf_tape *tape = wf_tape_new(ctx);
    wf_prepared p;
    WF_EXPECT_OK(wf_prepare(comm,
                            (wf_prepare_opts){.optim = optim_new(model),
                                              .train = rank == 0 ? samples_new(ctx, SAMPLES, 1) : NULL,
                                              .batch = (SAMPLES + size - 1) / size},
                            &p));
    WF_EXPECT(!p.test, "a data set that was not given has batches");
    for (int e = 0; e < EPOCHS; e++) {
        wf_batch b;
        WF_EXPECT_OK(wf_iter_next(p.train, &b));
        WF_EXPECT_OK(wf_optim_step(p.optim, wf_mean_cross_entropy(wf_apply(model, wf_input(tape, b.x)), b.labels)));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    expect_same_model(model, s.model);
    wf_prepared_free(&p);
    wf_tape_free(tape);
    wf_layer_free(model);
    serial_free(&s);
}

static void resumes(void)
{
    serial_run s = serial(true, EPOCHS);
    folder_make();
    for (int run = 0; run < 2; run++) {
        wf_layer *model = model_new(ctx, true);
        wf_fit_opts o = fit_of(model);
        wf_fit_result r;
        o.checkpoints = folder;
        o.resume = true; /* also of the first run, which finds none */
        o.epochs = run == 0 ? 2 : EPOCHS;
        if (run == 1) /* the checkpoint has another one */
            WF_EXPECT_OK(wf_optim_set_lr(o.optim, 1e-6));
        WF_EXPECT_OK(wf_fit(comm, o, &r));
        WF_EXPECT(r.epochs == o.epochs, "%lld epochs, should be %lld", (long long)r.epochs, (long long)o.epochs);
        if (run == 1) {
            expect_near("test loss", r.test_loss, s.test_loss);
            expect_same_model(model, s.model);
        }
        wf_layer_free(model);
    }
    folder_remove();
    serial_free(&s);
}

/* Batches that grow: a run that goes on from the middle of an epoch ends where one that was not left ends. */
static void resumes_growing(void)
{
    const int64_t part = (SAMPLES + size - 1) / size, first = (part + 4) / 5;
    wf_layer *whole = model_new(ctx, true);
    folder_make();
    for (int run = 0; run < 3; run++) {
        wf_layer *model = run == 0 ? whole : model_new(ctx, true);
        wf_fit_opts o = fit_of(model);
        wf_fit_result r;
        o.batch = 5;
        o.grows[0] = (wf_batch_growth){.epoch = 1, .size = 8};
        o.grows[1] = (wf_batch_growth){.epoch = 2, .size = 16};
        o.checkpoints = run ? folder : NULL;
        o.checkpoint_every = run ? first + 1 : 0; /* the last one is in the second epoch */
        o.resume = run == 2;
        o.epochs = run == 1 ? 2 : EPOCHS;
        WF_EXPECT_OK(wf_fit(comm, o, &r));
        const int64_t steps = first + (part + 7) / 8 + (run == 1 ? 0 : (EPOCHS - 2) * ((part + 15) / 16));
        WF_EXPECT(r.steps == steps, "%lld steps, should be %lld", (long long)r.steps, (long long)steps);
        if (run == 2)
            expect_same_model(model, whole);
        if (run > 0)
            wf_layer_free(model);
    }
    wf_layer_free(whole);
    folder_remove();
}

/* The loss over the test samples, which rises once the few training samples are known by heart. */
static void keeps_best(void)
{
    folder_make();
    wf_layer *model = model_new(ctx, true), *best = model_new(ctx, true);
    wf_fit_opts o = fit_of(model);
    wf_fit_result r;
    o.best = in_folder("best.h5");
    o.watch = "loss";
    o.patience = 2;
    o.epochs = LONGEST;
    WF_EXPECT_OK(wf_fit(comm, o, &r));
    WF_EXPECT(r.epochs < LONGEST && r.best < r.test_loss, "%lld epochs, best loss %g, last %g", (long long)r.epochs,
              r.best, r.test_loss);
    WF_EXPECT_OK(wf_load(best, in_folder("best.h5")));
    serial_run s = serial(true, (int)r.epochs - 2);
    expect_near("best loss", r.best, s.test_loss);
    expect_same_model(best, s.model);
    serial_free(&s);
    wf_layer_free(best);
    wf_layer_free(model);
    folder_remove();
}

static void shows(void)
{
    char text[2048] = "", banner[512];
    const int batch = (SAMPLES + size - 1) / size;
    folder_make();
    const int file = open(in_folder("shown"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    wf_layer *model = model_new(ctx, true);
    wf_fit_opts o = fit_of(model);
    o.progress = rank == 0 ? file : 0;
    o.epochs = 2;
    o.device_statistics = true;
    WF_EXPECT_OK(wf_fit(comm, o, NULL));
    if (rank == 0) {
        WF_EXPECT(pread(file, text, sizeof text - 1, 0) > 0, "nothing is shown");
        snprintf(banner, sizeof banner,
                 "samples          37, 11 of the test\nepochs           2\nbatch of a rank  %d\n"
                 "batch of a step  %d (ranks: %d, backward passes: 1)\nsteps            1 an epoch\n"
                 "parameters       239\ndevice           %s\n",
                 batch, batch * size, size, wf_ctx_device(ctx));
        const char *const said[] = {banner, "epoch 1  loss ", "test_accuracy", "  cpu_percent "};
        for (size_t i = 0; i < sizeof said / sizeof *said; i++)
            WF_EXPECT(strstr(text, said[i]), "\"%s\" is not in what is shown:\n%s", said[i], text);
    }
    close(file);
    wf_layer_free(model);
    folder_remove();
}

/* --- Bad input --------------------------------------------------------------------------------------------------- */

static double no_number(const wf_var *scores, const wf_tensor *labels)
{
    return NAN;
}

typedef struct refusal {
    const char *words; /* in the message */
    wf_fit_opts (*wrong)(wf_fit_opts o);
} refusal;

static wf_fit_opts without_loss(wf_fit_opts o)
{
    o.loss = NULL;
    return o;
}

static wf_fit_opts of_two_losses(wf_fit_opts o)
{
    o.batch_loss = loss_by_name;
    return o;
}

/* The last rank has other epochs, of more than two ranks another batch; a single one has a wrong batch. */
static wf_fit_opts of_other_numbers(wf_fit_opts o)
{
    if (rank == size - 1)
        *(size == 2 ? &o.epochs : &o.batch) += size == 1 ? -99 : 1;
    return o;
}

static wf_fit_opts of_negative_batch(wf_fit_opts o)
{
    if (rank == size - 1)
        o.batch = -3;
    return o;
}

static wf_fit_opts that_watches_nothing(wf_fit_opts o)
{
    o.watch = "accurracy";
    return o;
}

static wf_fit_opts that_resumes_nowhere(wf_fit_opts o)
{
    o.resume = true;
    return o;
}

static wf_fit_opts of_a_wrong_average(wf_fit_opts o)
{
    o.ema = size == 1 ? 1 : rank == size - 1 ? 0.9 : 0;
    return o;
}

static wf_fit_opts of_two_names(wf_fit_opts o)
{
    static const wf_metric twice[] = {{"accuracy", wf_accuracy}, {"accuracy", wf_accuracy}, {0}};
    o.metrics = twice;
    return o;
}

static wf_fit_opts without_test(wf_fit_opts o)
{
    wf_dataset_free(o.test);
    o.test = NULL;
    o.patience = 3;
    return o;
}

static wf_fit_opts without_samples(wf_fit_opts o)
{
    wf_dataset_free(o.train);
    o.train = NULL;
    return o;
}

static wf_fit_opts of_one_rank_alone(wf_fit_opts o)
{
    o.accumulate = rank == size - 1 ? -2 : 0;
    return o;
}

static wf_fit_opts of_a_missing_folder(wf_fit_opts o)
{
    wf_dataset_free(o.train);
    o.train = wf_mnist(ctx, "/nowhere/at/all", WF_TRAIN_SET);
    return o;
}

static wf_fit_opts of_a_reader_that_failed(wf_fit_opts o)
{
    wf_dataset_free(o.test);
    o.test = wf_memory_dataset(ctx, WF_F64, WF_SHAPE(-1, 1), NULL, NULL);
    return o;
}

static wf_fit_opts of_nothing(wf_fit_opts o)
{
    wf_dataset_free(o.train);
    o.train = rank == 0 ? wf_empty_dataset(ctx, NULL) : NULL;
    return o;
}

static wf_fit_opts of_steps_too_long(wf_fit_opts o)
{
    WF_EXPECT_OK(wf_optim_set_lr(o.optim, 1e300));
    return o;
}

static wf_fit_opts of_no_number(wf_fit_opts o)
{
    static const wf_metric wrong[] = {{"odd", no_number}, {0}};
    o.metrics = wrong;
    return o;
}

static wf_fit_opts without_labels(wf_fit_opts o)
{
    static const double x[4] = {0};
    wf_dataset_free(o.train);
    o.train = rank == 0 ? wf_memory_dataset(ctx, WF_F64, WF_SHAPE(4, 1, 1, 1), x, NULL) : NULL;
    return o;
}

/* Every rank gets an error with these words. The last ones leave the communicator dead, so each has one of its own. */
static void refuses(void)
{
    const refusal list[] = {{"wf_fit needs a loss", without_loss},
                            {"loss and batch_loss are given", of_two_losses},
                            {size == 2 ? "wf_fit: epochs is" : "wf_prepare: batch", of_other_numbers},
                            {"batches of -3 samples", of_negative_batch},
                            {"watch is accurracy: should be loss or the name of a metric", that_watches_nothing},
                            {size == 1 ? "ema is 1: should be 0" : "ema in millionths is 0 on", of_a_wrong_average},
                            {"need a folder of checkpoints", that_resumes_nowhere},
                            {"two metrics are named accuracy", of_two_names},
                            {"need a data set to test on", without_test},
                            {"no data set to train on", without_samples},
                            {"accumulate -2", of_one_rank_alone},
                            {"/nowhere/at/all", of_a_missing_folder},
                            {"memory", of_a_reader_that_failed},
                            {"the data set to train on is empty", of_nothing},
                            {"loss", of_steps_too_long},
                            {"the metric odd is no number", of_no_number},
                            {"the samples have no labels", without_labels}};
    wf_comm *const whole = comm;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        comm = test_comm_open("flat", (wf_ctx_opts){.dtype = WF_F64});
        ctx = wf_comm_ctx(comm);
        wf_layer *model = model_new(ctx, true);
        WF_EXPECT(wf_fit(comm, list[i].wrong(fit_of(model)), NULL) != WF_OK, "no error: %s", list[i].words);
        WF_EXPECT(strstr(wf_error_message(), list[i].words), "%s: should say: %s", wf_error_message(), list[i].words);
        wf_error_clear();
        wf_layer_free(model);
        if (wf_comm_close(comm) != WF_OK)
            wf_error_clear();
    }
    comm = whole;
    ctx = wf_comm_ctx(comm);
}

/* The last rank cannot start the thread of its batches. All ranks say so, and the communicator lives. */
static void one_rank_without_threads(void)
{
    wf_layer *model = model_new(ctx, true);
    wf_fit_opts o = fit_of(model);
    folder_make();
    o.checkpoints = folder;
    allow_threads(rank == size - 1 ? 0 : -1);
    WF_EXPECT_ERROR(WF_ERR_MEMORY, wf_fit(comm, o, NULL));
    allow_threads(-1);
    WF_EXPECT_OK(wf_barrier(comm));
    folder_remove();
    wf_layer_free(model);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    WF_EXPECT_OK(wf_ctx_set_dtype(ctx, WF_F64));
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"equals_serial", equals_serial},
                                               {"several_inputs", several_inputs},
                                               {"averages", averages},
                                               {"averages_go_where_a_test_fails", averages_go_where_a_test_fails},
                                               {"accumulates", accumulates},
                                               {"prepares", prepares},
                                               {"resumes", resumes},
                                               {"resumes_growing", resumes_growing},
                                               {"keeps_best", keeps_best},
                                               {"shows", shows},
                                               {"refuses", refuses},
                                               {"one_rank_without_threads", one_rank_without_threads},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
