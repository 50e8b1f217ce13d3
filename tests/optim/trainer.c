/* The trainer: which hooks run in which iteration, means by counts, early stop, the best model, the log, what is shown,
 * exact continuation, failures. */
#include "optim/trainer.h"
#include "core/status_author.h"
#include "tests/file/run.h"
#include "tests/optim/trainer_json.h"

#include <math.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

/* What the steps of a test work with, and what they leave. */
typedef struct notes {
    char text[512]; /* a letter for each call */
    double means[64];
    int n_means;
    wf_layer *model;
    int64_t stop; /* the iteration at which something happens */
    run *run;
} notes;

static wf_status note(notes *n, char letter)
{
    const size_t used = strlen(n->text);
    WF_EXPECT(used + 1 < sizeof n->text, "the notes are full");
    n->text[used] = letter;
    return WF_OK;
}

static wf_status nothing(wf_trainer *trainer, void *user)
{
    return WF_OK;
}

/* --- Order -------------------------------------------------------------------------------------------------------- */

static wf_status step_noted(wf_trainer *trainer, void *user)
{
    WF_EXPECT_OK(wf_trainer_observe(trainer, "x", 1, 1));
    return note(user, 's');
}

static wf_status first_hook(wf_trainer *trainer, void *user)
{
    return note(user, 'a');
}

static wf_status second_hook(wf_trainer *trainer, void *user)
{
    return note(user, 'b');
}

static wf_status at_end(wf_trainer *trainer, void *user)
{
    return note(user, 'e');
}

/* The samples of the newest report tell when it was. */
static wf_status after_report(wf_trainer *trainer, void *user)
{
    return note(user, (char)('0' + (int)wf_trainer_weight(trainer, "x") / size));
}

/* Epochs of 3, 8 iterations. Reports: 2, 4, 6, 8 and the ends of epochs, 3 and 6. */
static void order_of_hooks(void)
{
    notes n = {0};
    wf_trainer *t = wf_trainer_new(
        comm, step_noted, &n,
        (wf_trainer_opts){
            .epoch_length = 3, .epochs = 7, .iterations = 8, .report = {.iterations = 2, .epochs = 1, .end = true}});
    WF_EXPECT_OK(wf_trainer_add_hook(t, "after", after_report, &n, (wf_when){.iterations = 1, .after_report = true}));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "end", at_end, &n, (wf_when){.end = true}));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "b", second_hook, &n, (wf_when){.iterations = 4, .epochs = 2}));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "a", first_hook, &n, (wf_when){.epochs = 1, .end = true}));
    WF_EXPECT_OK(wf_trainer_run(t));
    const char *want = "s0s2sa1sb1s1sba2s2seba2";
    WF_EXPECT(strcmp(n.text, want) == 0, "%s, should be %s", n.text, want);
    WF_EXPECT(wf_trainer_iteration(t) == 8 && wf_trainer_epoch(t) == 2, "iteration %lld, epoch %lld",
              (long long)wf_trainer_iteration(t), (long long)wf_trainer_epoch(t));
    WF_EXPECT_OK(wf_trainer_run(t)); /* there is nothing left to do */
    WF_EXPECT(strcmp(n.text, want) == 0, "%s, should be %s", n.text, want);
    wf_trainer_free(t);
}

static wf_status stop_in_third(wf_trainer *trainer, void *user)
{
    if (wf_trainer_iteration(trainer) == 3 && rank == size - 1)
        wf_trainer_stop(trainer);
    return WF_OK;
}

/* One rank asks in iteration 3; the report after iteration 4 brings it to all; what is due at the end follows. */
static void one_rank_asks(void)
{
    notes n = {0};
    wf_trainer *t = wf_trainer_new(comm, step_noted, &n,
                                   (wf_trainer_opts){.iterations = 50, .report = {.iterations = 2, .end = true}});
    WF_EXPECT_OK(wf_trainer_add_hook(t, "stop", stop_in_third, NULL, (wf_when){.iterations = 1}));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "end", at_end, &n, (wf_when){.end = true}));
    WF_EXPECT_OK(wf_trainer_run(t));
    WF_EXPECT(strcmp(n.text, "sssse") == 0, "%s, should be sssse", n.text);
    wf_trainer_free(t);
}

/* --- Means -------------------------------------------------------------------------------------------------------- */

static double value_at(int64_t iteration, int r, int k)
{
    return 0.125 * (double)((iteration * 7 + r * 5 + k * 3) % 17);
}

/* In iteration i rank r has (i + r) % 3 samples, so every rank is without any now and then. */
static wf_status uneven_step(wf_trainer *trainer, void *user)
{
    wf_tape *tape = user;
    const int64_t i = wf_trainer_iteration(trainer), count = (i + rank) % 3;
    double mean = 0;
    for (int k = 0; k < count; k++)
        mean += value_at(i, rank, k) / (double)count;
    WF_EXPECT_OK(wf_trainer_observe(trainer, "plain", count ? mean : NAN, (double)count));
    wf_tensor *value = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1));
    WF_EXPECT_OK(wf_tensor_import(value, &mean, sizeof mean));
    WF_EXPECT_OK(wf_trainer_observe_var(trainer, "var", wf_input(tape, value), (double)count));
    wf_tensor_free(value);
    return wf_tape_reset(tape);
}

static void means_by_counts(void)
{
    enum { ITERATIONS = 100 }; /* more than are kept unread */
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < ITERATIONS; i++)
        for (int r = 0; r < size; r++)
            for (int k = 0; k < (i + r) % 3; k++, weight++)
                sum += value_at(i, r, k);
    wf_tape *tape = wf_tape_new(ctx);
    wf_trainer *t = wf_trainer_new(comm, uneven_step, tape, (wf_trainer_opts){.iterations = ITERATIONS});
    WF_EXPECT(isnan(wf_trainer_mean(t, "plain")) && wf_trainer_weight(t, "plain") == 0, "a mean before the first");
    WF_EXPECT_OK(wf_trainer_run(t));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "var" : "plain";
        WF_EXPECT(fabs(wf_trainer_mean(t, name) - sum / weight) < 1e-12 && wf_trainer_weight(t, name) == weight,
                  "%s: %.17g of %g, should be %.17g of %g", name, wf_trainer_mean(t, name), wf_trainer_weight(t, name),
                  sum / weight, weight);
    }
    wf_trainer_free(t);
    wf_tape_free(tape);
}

/* --- Early stop and the best model -------------------------------------------------------------------------------- */

/* The mean over the ranks is 5, 3, 1, 2, 2, ...; alone, rank 0 sees values that only fall and the last one values that
 * only rise. The model's bias is the iteration. */
static wf_status parting_step(wf_trainer *trainer, void *user)
{
    static const double means[] = {5, 3, 1, 2, 2, 2, 2, 2, 2, 2};
    notes *n = user;
    const int64_t i = wf_trainer_iteration(trainer);
    const double off = size == 1 ? 0 : rank == 0 ? -10.0 * (double)i : rank == size - 1 ? 10.0 * (double)i : 0;
    WF_EXPECT_OK(wf_trainer_observe(trainer, "error", means[i] + off, 2));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(wf_layer_param(n->model, "b")), (double)(i + 1)));
    return note(n, 's');
}

static double bias_of(wf_layer *model)
{
    float b[2];
    WF_EXPECT_OK(wf_tensor_export(wf_param_value(wf_layer_param(model, "b")), b, sizeof b));
    return b[0];
}

static void stops_and_keeps_best(void)
{
    notes n = {.model = wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 2})};
    wf_trainer *t =
        wf_trainer_new(comm, parting_step, &n, (wf_trainer_opts){.iterations = 10, .report = {.iterations = 1}});
    const wf_best_opts opts = {.patience = 3, .model = n.model, .path = in_folder("best.h5")};
    WF_EXPECT_OK(wf_trainer_keep_best(t, "error", opts));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_trainer_keep_best(t, "other", opts));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_trainer_load_best(t));
    WF_EXPECT(isnan(wf_trainer_best(t)), "a best before the first");
    WF_EXPECT_OK(wf_trainer_run(t));
    WF_EXPECT(wf_trainer_iteration(t) == 6, "stopped after %lld iterations, should be 6",
              (long long)wf_trainer_iteration(t));
    WF_EXPECT(fabs(wf_trainer_best(t) - 1) < 1e-12 && wf_trainer_best_iteration(t) == 3, "the best is %g, of %lld",
              wf_trainer_best(t), (long long)wf_trainer_best_iteration(t));
    WF_EXPECT(bias_of(n.model) == 6, "the last model is that of iteration %g", bias_of(n.model));
    WF_EXPECT_OK(wf_trainer_load_best(t));
    WF_EXPECT(bias_of(n.model) == 3, "the best model is that of iteration %g", bias_of(n.model));
    wf_trainer_free(t);
    wf_layer_free(n.model);
}

/* --- The log ------------------------------------------------------------------------------------------------------ */

static wf_status odd_names(wf_trainer *trainer, void *user)
{
    WF_EXPECT_OK(wf_trainer_observe(trainer, "a \"b\\c\"\t", 0.5, 1));
    WF_EXPECT_OK(wf_trainer_observe(trainer, "bad", wf_trainer_iteration(trainer) ? INFINITY : NAN, 1));
    WF_EXPECT_OK(wf_trainer_observe(trainer, "none", 1, 0));
    wf_trainer_add_samples(trainer, 10);
    return WF_OK;
}

static char *slurp(const char *path)
{
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = '\0';
    if (file)
        fclose(file);
    return text;
}

static void json_lines(void)
{
    wf_layer *model = wf_linear(ctx, (wf_linear_opts){.in = 1, .out = 1});
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.25});
    const char *path = in_folder("log.jsonl");
    wf_trainer *t = wf_trainer_new(comm, odd_names, NULL,
                                   (wf_trainer_opts){.epoch_length = 2,
                                                     .iterations = 3,
                                                     .report = {.iterations = 1},
                                                     .log = path,
                                                     .unit = "images",
                                                     .optim = optim});
    WF_EXPECT_OK(wf_trainer_run(t));
    char *line = rank == 0 ? strtok(slurp(path), "\n") : NULL;
    for (int i = 1; rank == 0 && i <= 3; i++, line = strtok(NULL, "\n")) {
        char start[64];
        snprintf(start, sizeof start, "{\"iteration\": %d, \"epoch\": %d, ", i, i / 2);
        const bool good = line && json_is_object(line) && strncmp(line, start, strlen(start)) == 0 &&
                          strstr(line, "\"a \\\"b\\\\c\\\"\\u0009\": 0.5, \"bad\": null, \"lr\": 0.25, ") &&
                          strstr(line, "\"images_per_second\": ") && !strstr(line, "none");
        WF_EXPECT(good, "line %d of the log is %s", i, line ? line : "not there");
    }
    WF_EXPECT(!line, "a line too many: %s", line);
    wf_trainer_free(t);
    t = wf_trainer_new(comm, nothing, NULL, (wf_trainer_opts){.iterations = 1, .log = in_folder("no/such/log")});
    WF_EXPECT_ERROR(WF_ERR_IO, wf_trainer_run(t));
    wf_trainer_free(t);
    wf_optim_free(optim);
    wf_layer_free(model);
}

/* --- What is shown ------------------------------------------------------------------------------------------------ */

static wf_status slow_step(wf_trainer *trainer, void *user)
{
    WF_EXPECT_OK(wf_trainer_observe(trainer, "loss", 0.25, 1));
    wf_trainer_add_samples(trainer, 10);
    test_sleep_ms(25);
    if (wf_trainer_iteration(trainer) == 10)
        wf_trainer_print(trainer, "half of %d", 20);
    return WF_OK;
}

/* All that twenty iterations write `into` it and that comes out at `out`. */
static const char *shown(int into, int out)
{
    static char text[1 << 16];
    size_t used = 0;
    wf_trainer *t = wf_trainer_new(
        comm, slow_step, NULL,
        (wf_trainer_opts){
            .iterations = 20, .report = {.iterations = 1}, .progress = into, .line_seconds = 0.2, .unit = "images"});
    WF_EXPECT_OK(wf_trainer_run(t));
    wf_trainer_free(t);
    close(into);
    for (ssize_t n; used < sizeof text - 1 && (n = read(out, text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    close(out);
    text[used] = '\0';
    return text;
}

static int count_of(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

/* Half a second or longer: the first iteration, a line every 0.2 seconds, the last, and what was printed; on a machine
 * that hardly runs, every iteration has a line. */
static void lines_into_a_pipe(void)
{
    int ends[2];
    WF_EXPECT(pipe(ends) == 0, "no pipe");
    const char *text = shown(ends[1], ends[0]);
    const int lines = count_of(text, "\n"), rates = count_of(text, " images/s"), left = count_of(text, " left\n");
    const bool good = lines >= 4 && lines <= 21 && rates == lines - 1 && left == lines - 2 && !strchr(text, '\r') &&
                      strncmp(text, "iteration 1 of 20  loss 0.25  ", 30) == 0 && strstr(text, "\nhalf of 20\n") &&
                      strstr(text, "\niteration 20 of 20  ");
    WF_EXPECT(rank == 0 ? good : !*text, "rank %d shows:\n%s", rank, text);
}

/* No bar is wider than the terminal; only the printed line and the end of the run begin another line. */
static void bar_on_a_terminal(int width)
{
    int master, slave;
    WF_EXPECT(openpty(&master, &slave, NULL, NULL, &(struct winsize){.ws_row = 24, .ws_col = (unsigned short)width}) ==
                  0,
              "no pseudo terminal");
    const char *text = shown(slave, master);
    bool fits = true;
    for (const char *bar = strchr(text, '['); bar && fits; bar = strstr(bar, "\r["), bar = bar ? bar + 1 : NULL)
        fits = (int)strcspn(bar, "\033\r") < width;
    const bool good = fits && count_of(text, "\r[") >= 4 && count_of(text, "\n") == 2 &&
                      strstr(text, "\r\033[Khalf of 20\r\n") && strstr(text, "[====================] 100%");
    WF_EXPECT(rank == 0 ? good : !*text, "rank %d shows:\n%s", rank, text);
    WF_EXPECT(rank != 0 || width < 100 || (strstr(text, " images/s") && strstr(text, " left\033[K")), "%s", text);
}

static void progress(void)
{
    lines_into_a_pipe();
    bar_on_a_terminal(120);
    bar_on_a_terminal(40);
    int master, slave;
    WF_EXPECT(openpty(&master, &slave, NULL, NULL, NULL) == 0, "no pseudo terminal");
    WF_EXPECT(!strchr(shown(slave, master), '['), "a bar where the width is not known");
}

/* --- Exact continuation ------------------------------------------------------------------------------------------- */

enum { EPOCHS = 3 };

static wf_status run_step_of(wf_trainer *trainer, void *user)
{
    notes *n = user;
    wf_batch b;
    WF_EXPECT_OK(wf_iter_next(n->run->iter, &b));
    wf_var *scores = wf_apply(n->run->model, wf_input(n->run->tape, b.x));
    wf_var *loss = wf_softmax_cross_entropy(scores, b.labels, (wf_label_opts){0});
    WF_EXPECT_OK(wf_optim_step(n->run->optim, loss));
    WF_EXPECT_OK(wf_trainer_observe_var(trainer, "loss", loss, (double)b.size));
    WF_EXPECT_OK(wf_trainer_observe(trainer, "first", wf_trainer_iteration(trainer) * (rank + 0.1), (double)b.size));
    wf_trainer_add_samples(trainer, b.global);
    return wf_tape_reset(n->run->tape);
}

static wf_status keep_means(wf_trainer *trainer, void *user)
{
    notes *n = user;
    n->means[n->n_means++ % 64] = wf_trainer_mean(trainer, "loss") + 3 * wf_trainer_mean(trainer, "first");
    return WF_OK;
}

/* The signal that the launcher sends, to one rank. */
static wf_status send_signal(wf_trainer *trainer, void *user)
{
    notes *n = user;
    if (rank == 0 && wf_trainer_iteration(trainer) == n->stop)
        raise(SIGUSR1);
    return WF_OK;
}

/* From the newest checkpoint to the end, or to the signal. The iteration that was reached. */
static int64_t train_on(notes *n, const char *name, double *best)
{
    char log[64];
    int64_t step = 0;
    run r = run_open(&(way){.name = name}, comm, name);
    WF_EXPECT_OK(wf_checkpoint_close(r.saves));
    snprintf(log, sizeof log, "%s/log.jsonl", name);
    r.saves = wf_checkpoint_open(comm, in_folder(name), (wf_checkpoint_opts){.signals = true});
    WF_EXPECT_OK(wf_checkpoint_add_model(r.saves, "model", r.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(r.saves, "optim", r.optim));
    WF_EXPECT_OK(wf_checkpoint_add(r.saves, "tape", wf_tape_visit, r.tape));
    WF_EXPECT_OK(wf_checkpoint_add(r.saves, "batches", wf_iter_visit, r.iter));
    n->run = &r;
    wf_trainer *t = wf_trainer_new(comm, run_step_of, n,
                                   (wf_trainer_opts){.epoch_length = wf_iter_epoch_length(r.iter),
                                                     .epochs = EPOCHS,
                                                     .report = {.iterations = 3, .epochs = 1, .end = true},
                                                     .log = in_folder(log),
                                                     .optim = r.optim});
    WF_EXPECT_OK(wf_trainer_keep_best(t, "loss", (wf_best_opts){.least = 0.01}));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "keep", keep_means, n, (wf_when){.iterations = 1, .after_report = true}));
    WF_EXPECT_OK(wf_trainer_add_hook(t, "signal", send_signal, n, (wf_when){.iterations = 1}));
    WF_EXPECT_OK(wf_trainer_set_checkpoint(t, r.saves));
    WF_EXPECT_OK(wf_checkpoint_load_latest(r.saves, &step));
    WF_EXPECT(wf_trainer_iteration(t) == step, "continues at %lld of %lld", (long long)wf_trainer_iteration(t),
              (long long)step);
    WF_EXPECT_OK(wf_trainer_run(t));
    WF_EXPECT(wf_trainer_left(t) == (n->stop > 0), "left is %d", wf_trainer_left(t));
    *best = wf_trainer_best(t) + 1000 * (double)wf_trainer_best_iteration(t);
    const int64_t reached = wf_trainer_iteration(t);
    WF_EXPECT_OK(wf_barrier(comm));
    wf_trainer_free(t);
    run_close(&r);
    return reached;
}

/* The log without times. */
static void untimed(const char *path, char text[1 << 14])
{
    text[0] = '\0';
    for (char *line = strtok(slurp(path), "\n"); line; line = strtok(NULL, "\n")) {
        char *times = strstr(line, ", \"samples_per_second");
        if (times)
            *times = '\0';
        strncat(text, line, (1 << 14) - strlen(text) - 2);
        strcat(text, "\n");
    }
}

static void exact_continuation(void)
{
    static char want[1 << 14], got[1 << 14];
    double best = 0, best_again = 0;
    notes whole = {0};
    const int64_t end = train_on(&whole, "whole", &best);
    untimed(in_folder("whole/log.jsonl"), want);
    const int64_t stops[] = {1, end / EPOCHS - 1, end / EPOCHS, end / 2, end - 1};
    notes parts = {0};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        if (stops[i] <= parts.stop || stops[i] >= end)
            continue;
        parts.stop = stops[i];
        const int64_t reached = train_on(&parts, "parts", &best_again);
        WF_EXPECT(reached == stops[i], "stopped after %lld, should be %lld", (long long)reached, (long long)stops[i]);
        if (rank == 0) { /* what a killed run wrote after its last save is written again */
            FILE *log = fopen(in_folder("parts/log.jsonl"), "a");
            fputs("{\"iteration\": 999999, \"lost\": 1}\n", log);
            fclose(log);
        }
    }
    parts.stop = 0;
    WF_EXPECT(train_on(&parts, "parts", &best_again) == end, "the continued run has another end");
    WF_EXPECT(parts.n_means == whole.n_means && end < 64, "%d means, should be %d", parts.n_means, whole.n_means);
    for (int i = 0; i < whole.n_means; i++)
        WF_EXPECT(memcmp(&parts.means[i], &whole.means[i], sizeof *whole.means) == 0,
                  "iteration %d: %.17g, should be %.17g", i + 1, parts.means[i], whole.means[i]);
    WF_EXPECT(best == best_again, "the best is %.17g, should be %.17g", best_again, best);
    untimed(in_folder("parts/log.jsonl"), got);
    WF_EXPECT(rank != 0 || (*want && strcmp(want, got) == 0), "the log is\n%sshould be\n%s", got, want);
}

/* --- Other numbers of ranks --------------------------------------------------------------------------------------- */

static wf_status observe_own(wf_trainer *trainer, void *user)
{
    wf_comm *own = wf_trainer_comm(trainer);
    if (wf_comm_size(own) == size && wf_trainer_iteration(trainer) < 2)
        return wf_trainer_observe(trainer, "x", 10 * wf_comm_rank(own) + 1, wf_comm_rank(own) + 1);
    return WF_OK;
}

static wf_trainer *observer(wf_comm *own, wf_checkpoint **saves)
{
    wf_trainer *t =
        wf_trainer_new(own, observe_own, NULL, (wf_trainer_opts){.iterations = 3, .report = {.iterations = 3}});
    *saves = wf_checkpoint_open(own, in_folder("observer"), (wf_checkpoint_opts){.every = 2});
    WF_EXPECT_OK(wf_trainer_set_checkpoint(t, *saves));
    return t;
}

/* Sums that all ranks have made until the save count once where one rank goes on. */
static void sums_on_fewer_ranks(void)
{
    wf_checkpoint *saves;
    int64_t step = 0;
    wf_trainer *t = observer(comm, &saves);
    WF_EXPECT_OK(wf_trainer_run(t));
    const double mean = wf_trainer_mean(t, "x"), weight = wf_trainer_weight(t, "x");
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    wf_trainer_free(t);
    wf_comm *one = wf_comm_split(comm, rank == 0 ? 0 : -1, 0);
    if (rank == 0) {
        t = observer(one, &saves);
        WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
        WF_EXPECT_OK(wf_trainer_run(t));
        WF_EXPECT(step == 2 && fabs(wf_trainer_mean(t, "x") - mean) < 1e-12 && wf_trainer_weight(t, "x") == weight,
                  "step %lld, mean %g of %g, should be %g of %g", (long long)step, wf_trainer_mean(t, "x"),
                  wf_trainer_weight(t, "x"), mean, weight);
        WF_EXPECT_OK(wf_checkpoint_close(saves));
        wf_trainer_free(t);
        WF_EXPECT_OK(wf_comm_close(one));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

/* --- Failures ----------------------------------------------------------------------------------------------------- */

static wf_status fails_on_last(wf_trainer *trainer, void *user)
{
    const int64_t *at = user;
    const bool fails = wf_trainer_iteration(trainer) == *at && rank == size - 1;
    return fails ? WF_RAISE(WF_ERR_FORMAT, "no picture") : WF_OK;
}

static wf_status not_finite(wf_trainer *trainer, void *user)
{
    return wf_trainer_observe(trainer, "loss", rank == 0 ? NAN : 1, 1);
}

/* In the hook of iteration 2, or of the last one; in the step of iteration 3; or a mean that is not finite. */
static void one_rank_fails(void)
{
    for (int how = 0; how < 4; how++) {
        int64_t at = how == 0 ? 2 : how == 1 ? 5 : 3;
        wf_comm *own = test_comm_open("flat", (wf_ctx_opts){0});
        wf_trainer *t =
            wf_trainer_new(own,
                           how == 2   ? fails_on_last
                           : how == 3 ? not_finite
                                      : nothing,
                           &at, (wf_trainer_opts){.iterations = 5, .finite = true, .report = {.iterations = 1}});
        if (how < 2)
            WF_EXPECT_OK(wf_trainer_add_hook(t, "paint", fails_on_last, &at, (wf_when){.iterations = 1}));
        const wf_status status = wf_trainer_run(t), code = how == 3 ? WF_ERR_NUMERIC : WF_ERR_FORMAT;
        const char *says = how == 3 ? "loss is nan" : "no picture";
        WF_EXPECT(status == code && strstr(wf_error_message(), says), "how %d: %s: %s", how, wf_status_name(status),
                  wf_error_message());
        WF_EXPECT(how > 1 || strstr(wf_error_message(), "paint"), "the hook is not named: %s", wf_error_message());
        wf_error_clear();
        wf_trainer_free(t);
        (void)!wf_comm_close(own);
        wf_error_clear();
    }
}

static void misuse(void)
{
    static const wf_trainer_opts wrong[] = {{0},
                                            {.epochs = 1},
                                            {.iterations = -1},
                                            {.iterations = 1, .report = {.epochs = 1}},
                                            {.iterations = 1, .report = {.iterations = -1}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        WF_EXPECT(!wf_trainer_new(comm, nothing, NULL, wrong[i]), "options %zu are taken", i);
        wf_error_clear();
    }
    wf_trainer *t = wf_trainer_new(comm, nothing, NULL, (wf_trainer_opts){.iterations = 1});
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_add_hook(t, "never", nothing, NULL, (wf_when){0}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_add_hook(t, "epochs", nothing, NULL, (wf_when){.epochs = 1}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_keep_best(t, "x", (wf_best_opts){.path = "without a model"}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_keep_best(t, "x", (wf_best_opts){.patience = -1}));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_trainer_observe(t, "", 1, 1));
    wf_trainer_free(t);
    WF_EXPECT(!wf_trainer_new(comm, NULL, NULL, (wf_trainer_opts){.iterations = 1}), "no step is taken");
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"order_of_hooks", order_of_hooks},
                                               {"one_rank_asks", one_rank_asks},
                                               {"means_by_counts", means_by_counts},
                                               {"stops_and_keeps_best", stops_and_keeps_best},
                                               {"json_lines", json_lines},
                                               {"progress", progress},
                                               {"exact_continuation", exact_continuation},
                                               {"sums_on_fewer_ranks", sums_on_fewer_ranks},
                                               {"one_rank_fails", one_rank_fails},
                                               {"misuse", misuse},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
