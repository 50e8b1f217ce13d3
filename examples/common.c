/* What all example programs share. Wrong use ends the program with one line on rank 0 and none on the others, so that a
 * job's log stays readable. */
#include "examples/common.h"

#include <weft/core/config_author.h>

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_OPTIONS 48
#define MOST_REAL    1e9
#define FIRST_KEY    256 /* smaller keys are short options */
#define KEY_HELP     (FIRST_KEY + MOST_OPTIONS)

/* Before MPI is there, the launcher tells which rank this will be. */
static bool first_rank(void)
{
    return wf_config_get()->rank <= 0;
}

static error_t take_number(struct argp_state *state, const example_option *option, const char *text)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < option->least || value > option->most) {
        argp_error(state, "--%s %s: should be a whole number from %lld to %lld", option->name, text,
                   (long long)option->least, (long long)option->most);
        return EINVAL;
    }
    *option->number = value;
    return 0;
}

static error_t take_real(struct argp_state *state, const example_option *option, const char *text)
{
    char *end;
    const double value = strtod(text, &end);
    const bool least = option->zero ? value >= 0 : value > 0;
    if (end == text || *end || !least || value > MOST_REAL) {
        argp_error(state, "--%s %s: should be a number %s, up to %g", option->name, text,
                   option->zero ? "of 0 or more" : "above 0", MOST_REAL);
        return EINVAL;
    }
    *option->real = fabs(value); /* not -0 */
    return 0;
}

static error_t take(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG) {
        argp_error(state, "%s: there are options alone here", arg);
        return EINVAL;
    }
    if (key == KEY_HELP || key == '?')
        exit(EXIT_SUCCESS);
    if (key < FIRST_KEY || key >= KEY_HELP)
        return ARGP_ERR_UNKNOWN;
    const example_option *option = (const example_option *)state->input + (key - FIRST_KEY);
    if (option->number)
        return take_number(state, option, arg);
    if (option->real)
        return take_real(state, option, arg);
    if (option->flag)
        *option->flag = true;
    else
        *option->text = arg;
    return 0;
}

static void help_with_default(const example_option *option, char *help, size_t size)
{
    if (option->number)
        snprintf(help, size, "%s (%lld)", option->help, (long long)*option->number);
    else if (option->real && *option->real >= 0)
        snprintf(help, size, "%s (%g)", option->help, *option->real);
    else if (option->text && *option->text)
        snprintf(help, size, "%s (%s)", option->help, *option->text);
    else
        snprintf(help, size, "%s", option->help);
}

void example_options(int argc, char **argv, const char *about, const example_option *table)
{
    struct argp_option options[MOST_OPTIONS + 3] = {{0}};
    char help[MOST_OPTIONS][256];
    int i = 0;
    for (; table[i].name && i < MOST_OPTIONS; i++) {
        if (table[i].number && (table[i].most <= 0 || table[i].most > EXAMPLE_MOST_COUNT))
            example_abort("--%s has no most", table[i].name);
        if (table[i].real && *table[i].real == 0 && !table[i].zero)
            example_abort("--%s has the default 0, which it refuses", table[i].name);
        help_with_default(&table[i], help[i], sizeof help[i]);
        options[i] =
            (struct argp_option){.name = table[i].name, .key = FIRST_KEY + i, .arg = table[i].arg, .doc = help[i]};
    }
    if (!first_rank()) { /* who asks for help has it from the first rank, and the others end with it */
        options[i++] = (struct argp_option){.name = "help", .key = '?'};
        options[i++] = (struct argp_option){.name = "usage", .key = KEY_HELP};
        if (!freopen("/dev/null", "w", stdout))
            exit(EXIT_FAILURE);
    }
    const struct argp argp = {.options = options, .parser = take, .doc = about};
    if (argp_parse(&argp, argc, argv, first_rank() ? 0 : ARGP_NO_ERRS | ARGP_NO_HELP, NULL, (void *)table) == 0)
        return;
    if (!first_rank())
        sleep(20); /* the launcher ends the job with the first rank that ends: the one that speaks */
    exit(argp_err_exit_status);
}

static void say(const char *message)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, message);
}

static _Noreturn void end_here(wf_comm *comm)
{
    wf_comm_close(comm);
    exit(EXIT_FAILURE);
}

void example_check(wf_comm *comm, wf_status status)
{
    if (status == WF_OK)
        return;
    if (comm ? wf_comm_rank(comm) == 0 : first_rank())
        say(wf_error_message());
    end_here(comm);
}

void example_check_each(wf_comm *comm, wf_status status)
{
    for (int r = 0; r < wf_comm_size(comm); r++)
        example_check(comm, wf_bcast_status(comm, r == wf_comm_rank(comm) ? status : WF_OK, r));
}

void example_agree(wf_comm *comm, const char *complaint)
{
    char message[512] = "";
    if (wf_comm_rank(comm) == 0 && complaint)
        snprintf(message, sizeof message, "%s", complaint);
    WF_MUST(wf_bcast_bytes(comm, message, sizeof message, 0));
    if (!*message)
        return;
    if (wf_comm_rank(comm) == 0)
        say(message);
    WF_MUST(wf_barrier(comm)); /* the first rank that ends ends the others, which may still be in an earlier call */
    end_here(comm);
}

void example_compute(wf_comm *comm, const char *type)
{
    char complaint[256];
    snprintf(complaint, sizeof complaint, "--compute %s: should be bf16 or f16", type ? type : "");
    const bool bf16 = type && strcmp(type, "bf16") == 0, f16 = type && strcmp(type, "f16") == 0;
    example_agree(comm, type && !bf16 && !f16 ? complaint : NULL);
    WF_MUST(wf_ctx_set_compute(wf_comm_ctx(comm), bf16 ? WF_BF16 : f16 ? WF_F16 : WF_F32));
}

wf_optim *example_scaled(wf_optim *optim)
{
    if (optim && wf_ctx_compute(wf_layer_ctx(wf_optim_model(optim))) == WF_F16)
        WF_MUST(wf_optim_scale_loss(optim, (wf_loss_scale_opts){0}));
    return optim;
}

/* Leaves without the exit handlers, which would wait for the other ranks; the launcher ends those. */
void example_abort(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    _exit(EXIT_FAILURE);
}

void example_finite(const char *what, double value, int64_t step)
{
    if (!isfinite(value))
        example_abort("step %lld: the %s is %g; a smaller --lr may help", (long long)step, what, value);
}

void *example_room(int64_t bytes)
{
    void *room = calloc((size_t)bytes + 1, 1);
    if (!room)
        example_abort("no memory for %lld bytes", (long long)bytes);
    return room;
}

double example_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *example_path(const char *dir, const char *name)
{
    static char path[4][4096];
    static int next;
    next = (next + 1) % 4;
    if (snprintf(path[next], sizeof path[next], "%s/%s", dir, name) >= (int)sizeof path[next])
        example_abort("%s/%s: the name is too long", dir, name);
    return path[next];
}

void example_folder(wf_comm *comm, const char *dir)
{
    char complaint[4200] = "";
    struct stat is;
    if (wf_comm_rank(comm) == 0 && mkdir(dir, 0777) != 0 && errno != EEXIST)
        snprintf(complaint, sizeof complaint, "%s: cannot make this folder: %s", dir, strerror(errno));
    else if (wf_comm_rank(comm) == 0 && stat(dir, &is) == 0 && !S_ISDIR(is.st_mode))
        snprintf(complaint, sizeof complaint, "%s: is a file, should be a folder", dir);
    example_agree(comm, *complaint ? complaint : NULL);
}

FILE *example_create(wf_comm *comm, const char *dir, const char *name)
{
    char complaint[4200] = "";
    FILE *file = NULL;
    example_folder(comm, dir);
    if (wf_comm_rank(comm) == 0 && !(file = fopen(example_path(dir, name), "w")))
        snprintf(complaint, sizeof complaint, "%s: cannot write: %s", example_path(dir, name), strerror(errno));
    example_agree(comm, *complaint ? complaint : NULL);
    return file;
}

/* --- Training ----------------------------------------------------------------------------------------------------- */

wf_checkpoint *example_saves_open(wf_comm *comm, const example_saves *saves)
{
    char complaint[256];
    const bool resumes = saves->resume && strcmp(saves->resume, "auto") == 0;
    snprintf(complaint, sizeof complaint, "--resume %s: should be auto", saves->resume ? saves->resume : "");
    example_agree(comm, saves->resume && !resumes ? complaint : NULL);
    if (!resumes && saves->every == 0)
        return NULL;
    wf_checkpoint *checkpoint = wf_checkpoint_open(
        comm, saves->folder,
        (wf_checkpoint_opts){.every = saves->every, .keep = saves->keep, .async = true, .signals = true});
    example_check(comm, wf_check(checkpoint));
    return checkpoint;
}

static void go_on(wf_trainer *trainer, wf_checkpoint *checkpoint, const example_saves *saves)
{
    int64_t step = 0;
    wf_comm *comm = wf_trainer_comm(trainer);
    WF_MUST(wf_trainer_set_checkpoint(trainer, checkpoint));
    if (saves->resume)
        example_check(comm, wf_checkpoint_load_latest(checkpoint, &step));
    if (wf_comm_rank(comm) == 0 && step > 0)
        printf("goes on from step %lld, of %s\n", (long long)step, saves->folder);
    fflush(stdout);
}

int example_train(wf_trainer *trainer, wf_checkpoint *checkpoint, const example_saves *saves)
{
    WF_MUST(wf_check(trainer));
    wf_comm *comm = wf_trainer_comm(trainer);
    if (checkpoint)
        go_on(trainer, checkpoint, saves);
    const wf_status status = wf_trainer_run(trainer);
    const bool left = wf_trainer_left(trainer), saved = status == WF_OK;
    if (left && !saved && wf_comm_rank(comm) == 0)
        fprintf(stderr, "%s\n", wf_error_message());
    if (!left)
        example_check(comm, status);
    if (checkpoint)
        WF_MUST(wf_checkpoint_close(checkpoint));
    if (left && saved && wf_comm_rank(comm) == 0)
        printf("a signal has come: step %lld is saved, and this run ends\n", (long long)wf_trainer_iteration(trainer));
    fflush(stdout);
    WF_MUST(wf_barrier(comm));
    if (left)
        return saved ? WF_CHECKPOINT_EXIT : WF_CHECKPOINT_UNSAVED_EXIT;
    return 0;
}

wf_status example_epoch(wf_trainer *trainer, void *unused)
{
    const double accuracy = wf_trainer_mean(trainer, "accuracy"), of = wf_trainer_weight(trainer, "accuracy");
    wf_trainer_print(trainer, "epoch %lld  loss %.4f  accuracy %.4f (%.0f of %.0f)  %.1f s",
                     (long long)wf_trainer_epoch(trainer), wf_trainer_mean(trainer, "loss"), accuracy, accuracy * of,
                     of, wf_trainer_seconds(trainer));
    return WF_OK;
}

void example_keep_best(wf_trainer *trainer, wf_layer *model, const example_best *best, bool averages)
{
    if (best->path || best->patience)
        WF_MUST(wf_trainer_keep_best(trainer, "accuracy",
                                     (wf_best_opts){.larger = true,
                                                    .patience = best->patience,
                                                    .model = best->path ? model : NULL,
                                                    .path = best->path,
                                                    .averages = averages && best->path}));
}
