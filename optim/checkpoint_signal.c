/* Signals that ask a program to save and end. The handler sets a flag, on which wf_checkpoint_step acts; a second
 * SIGINT ends the process. */
#include "optim/checkpoint_impl.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
enum { SIGNALS = sizeof signals / sizeof *signals };

static volatile sig_atomic_t came, interrupted;
static struct sigaction before[SIGNALS];
static int users;

/* A second Ctrl-C ends the process without a save. Other signals before the first one do not count: a scheduler may
 * have sent SIGUSR1 when the user presses it. */
static void note(int number)
{
    if (number == SIGINT && interrupted) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    interrupted = interrupted || number == SIGINT;
    came = 1;
}

wf_status wf_checkpoint_signals_catch(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    if (users++ > 0)
        return WF_OK;
    came = interrupted = 0;
    for (int i = 0; i < SIGNALS; i++)
        WF_CHECK(sigaction(signals[i], &action, &before[i]) == 0, WF_ERR_STATE, "cannot catch signal %d: %s",
                 signals[i], strerror(errno));
    return WF_OK;
}

void wf_checkpoint_signals_release(void)
{
    if (--users > 0)
        return;
    for (int i = 0; i < SIGNALS; i++)
        if (signals[i] != SIGUSR1 || before[i].sa_handler != SIG_DFL)
            sigaction(signals[i], &before[i], NULL);
        else
            signal(SIGUSR1, SIG_IGN); /* it asks for a save, and would end a program that is about to end well */
}

bool wf_checkpoint_thread(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    sigset_t all, mask;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    const bool started = pthread_create(thread, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return started;
}

bool wf_checkpoint_signalled(void)
{
    return came != 0;
}
