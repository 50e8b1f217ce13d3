/* Progress of rank 0: a bar that is drawn over itself on a terminal, else a line every few seconds. What is shown was
 * brought together by the last report, since no rank knows when another one looks at its clock. */
#include "optim/trainer_impl.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_SECONDS 0.1 /* from one bar to the next */
#define BAR_CELLS   20
#define RATE_WINDOW 2.0 /* seconds over which the bar takes its rate */
#define LEAST_WIDTH 20

/* Launchers put a pseudo terminal of width 0 around a process whose output they forward to a file. */
static int width_of(FILE *file)
{
    struct winsize size;
    const int fd = fileno(file);
    return fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* A duplicate: closing it leaves the program's file open. */
wf_status wf_trainer_progress_open(wf_trainer *t)
{
    if (!t->first || t->opts.progress == 0)
        return WF_OK;
    const int own = dup(t->opts.progress);
    t->out = own >= 0 ? fdopen(own, "w") : NULL;
    if (t->out)
        return WF_OK;
    const int cause = errno;
    if (own >= 0)
        close(own);
    WF_FAIL(WF_ERR_IO, "progress cannot be shown on file %d: %s", t->opts.progress, strerror(cause));
}

/* What the program wrote before is to stand before. */
static void keep_order(const wf_trainer *t)
{
    if (t->opts.progress == STDOUT_FILENO)
        fflush(stdout);
}

const char *wf_trainer_rate_unit(const wf_trainer *t)
{
    return t->samples > 0 ? t->unit : "iterations";
}

/* Samples if the program counts them, else iterations, per second of training only. */
double wf_trainer_rate(const wf_trainer *t, wf_trainer_shown *since)
{
    const double now = wf_trainer_clock(), seconds = now - since->since - (t->paused - since->paused);
    const int64_t samples = t->samples - since->samples, steps = t->iteration - since->step;
    if (seconds > 0 && steps > 0)
        since->rate = (double)(t->samples > 0 ? samples : steps) / seconds;
    since->since = now;
    since->paused = t->paused;
    since->samples = t->samples;
    since->step = t->iteration;
    return since->rate;
}

/* --- The text ----------------------------------------------------------------------------------------------------- */

static void append(char *text, const char *format, ...) WF_PRINTF(2, 3);
static void append(char *text, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, WF_TRAINER_LINE - used, format, args);
    va_end(args);
}

static void append_time(char *text, double seconds)
{
    /* Runs without an end but by other means: more seconds than a long long holds. */
    const long long s = seconds > 0 ? (long long)fmin(seconds + 0.5, 1e15) : 0;
    if (s >= 3600)
        append(text, "  %lld:%02lld:%02lld left", s / 3600, s / 60 % 60, s % 60);
    else
        append(text, "  %lld:%02lld left", s / 60, s % 60);
}

/* 0 after the last iteration, and before the first iteration of a run whose iterations alone are bounded. */
static double seconds_left(const wf_trainer *t)
{
    const int64_t total = wf_trainer_total(t), made = t->iteration - t->begun;
    double left = t->opts.seconds > 0 ? t->opts.seconds - wf_trainer_seconds(t) : INFINITY;
    if (t->stopping || (total > 0 && t->iteration >= total))
        return 0;
    if (total > 0 && made > 0)
        left = fmin(left, (wf_trainer_clock() - t->start) / (double)made * (double)(total - t->iteration));
    return isfinite(left) ? left : 0;
}

/* The means of the device, without their prefix, or all others. */
static void append_means(const wf_trainer *t, char *text, bool device)
{
    const size_t prefix = strlen(WF_TRAINER_DEVICE);
    for (int64_t i = 0; i < t->latest.n; i++) {
        const wf_sum_entry *e = &t->latest.item[i];
        if ((strncmp(e->name, WF_TRAINER_DEVICE, prefix) == 0) == device)
            append(text, "  %s %.4g", e->name + (device ? prefix : 0), e->sum);
    }
}

/* "iteration 120 of 4000  epoch 1  loss 0.1234  512 images/s  0:42 left"; without "of 4000" in a run that ends by time.
 */
static void describe(const wf_trainer *t, char *text)
{
    const double left = seconds_left(t);
    append(text, "iteration %lld", (long long)t->iteration);
    if (t->opts.seconds == 0)
        append(text, " of %lld", (long long)wf_trainer_total(t));
    if (wf_trainer_has_epochs(t))
        append(text, "  epoch %lld", (long long)t->epoch);
    append_means(t, text, false);
    append(text, "  %.*f %s/s", t->shown.rate < 100 ? 2 : 0, t->shown.rate, wf_trainer_rate_unit(t));
    if (left > 0)
        append_time(text, left);
    append_means(t, text, true);
}

/* --- Bar and line ------------------------------------------------------------------------------------------------- */

static void draw_bar(wf_trainer *t, int width)
{
    char text[WF_TRAINER_LINE] = "[";
    const double share = t->stopping ? 1 : wf_trainer_share(t);
    for (int i = 0; i < BAR_CELLS; i++) {
        const int full = (int)(share * BAR_CELLS);
        append(text, "%c", i < full ? '=' : i == full ? '>' : ' ');
    }
    append(text, "] %3.0f%%  ", 100 * share);
    describe(t, text);
    fprintf(t->out, "\r%.*s\033[K", width - 1, text); /* a full line would begin another one */
    fflush(t->out);
    t->shown.drawn = true;
}

/* Width 0 is a file: lines then. */
void wf_trainer_progress_begin(wf_trainer *t)
{
    keep_order(t);
    if (t->out)
        t->shown = (wf_trainer_shown){.bar = width_of(t->out) >= LEAST_WIDTH, .since = t->start, .step = t->iteration};
}

void wf_trainer_progress_end(wf_trainer *t)
{
    if (!t->shown.drawn)
        return;
    fputc('\n', t->out);
    fflush(t->out);
    t->shown.drawn = false;
}

/* After every iteration on rank 0; cheap unless something is to be shown. */
void wf_trainer_progress(wf_trainer *t, bool last)
{
    wf_trainer_shown *shown = &t->shown;
    if (!t->out)
        return;
    const double now = wf_trainer_clock();
    if (!last && shown->last > 0 && now - shown->last < (shown->bar ? BAR_SECONDS : t->opts.line_seconds))
        return;
    /* The bar's rate is over the last seconds, that of a line over the time since the last line. */
    if (!shown->bar || shown->rate == 0 || now - shown->since >= RATE_WINDOW)
        wf_trainer_rate(t, shown);
    const int width = shown->bar ? width_of(t->out) : 0;
    shown->last = now;
    if (width < LEAST_WIDTH) {
        char text[WF_TRAINER_LINE] = "";
        describe(t, text);
        fprintf(t->out, "%s\n", text);
        fflush(t->out);
        return;
    }
    draw_bar(t, width);
    if (last)
        wf_trainer_progress_end(t);
}

/* The bar is cleared, the text stands above it, and the next bar is drawn below. */
void wf_trainer_print(wf_trainer *trainer, const char *format, ...)
{
    va_list args;
    wf_trainer *t = trainer;
    if (!t || !t->out)
        return;
    keep_order(t);
    if (t->shown.drawn)
        fputs("\r\033[K", t->out);
    t->shown.drawn = false;
    va_start(args, format);
    vfprintf(t->out, format, args);
    va_end(args);
    fputc('\n', t->out);
    fflush(t->out);
}
