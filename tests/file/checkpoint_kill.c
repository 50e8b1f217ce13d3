/* Saves one generation after the other until it is killed, at a moment that the arguments choose; and checks what the
 * one before it left: checkpoint_kill FOLDER MICROSECONDS VICTIM. 0 microseconds: checks and ends. Rank 0 prints the
 * generation and the step that it found. */
#include "core/param_author.h"
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "tests/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum { ROWS = 601, COLUMNS = 500 };

static void end_now(int number)
{
    kill(getpid(), SIGKILL);
}

static float value_at(int64_t step, int64_t i)
{
    return (float)((step * 31 + i) % 65521);
}

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static void fill(wf_param *param, int64_t step)
{
    static float host[ROWS * COLUMNS];
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        host[i] = value_at(step, i);
    WF_MUST(wf_tensor_import(wf_param_value(param), host, sizeof host));
}

static int64_t wrong(wf_param *param, int64_t step)
{
    static float host[ROWS * COLUMNS];
    int64_t n = 0;
    WF_MUST(wf_tensor_export(wf_param_value(param), host, sizeof host));
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        n += host[i] != value_at(step, i);
    return n;
}

/* A rank dies after this time. */
static void arm(long microseconds)
{
    const struct itimerval timer = {.it_value = {.tv_sec = microseconds / 1000000, .tv_usec = microseconds % 1000000}};
    signal(SIGALRM, end_now);
    setitimer(ITIMER_REAL, &timer, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 4 || !ranks_open("auto"))
        return 2;
    const long after = atol(argv[2]), victim = atol(argv[3]);
    int64_t step = 0, own = 0;
    int64_t n_params;
    wf_param *const *params;
    wf_layer *model = wf_module(ctx, no_forward, NULL);
    wf_module_add(model, "fc0", wf_linear(ctx, (wf_linear_opts){.in = COLUMNS, .out = ROWS}));
    WF_MUST(wf_layer_params(model, &n_params, &params));
    wf_param *param = params[0];
    wf_checkpoint *saves = wf_checkpoint_open(comm, argv[1], (wf_checkpoint_opts){.async = after % 2});
    WF_MUST(wf_checkpoint_add_model(saves, "model", model));
    WF_MUST(wf_checkpoint_add_i64(saves, "own", &own));
    WF_MUST(wf_checkpoint_load_latest(saves, &step));
    const int64_t n = step > 0 ? wrong(param, step) : 0;
    if (n > 0 || own != step) {
        fprintf(stderr, "step %lld: %lld elements are wrong, the number is %lld\n", (long long)step, (long long)n,
                (long long)own);
        return 3;
    }
    if (rank == 0)
        printf("found %lld %lld\n", (long long)wf_checkpoint_generation(saves), (long long)step);
    fflush(stdout);
    WF_MUST(wf_barrier(comm));
    if (after > 0 && rank == victim % size)
        arm(after);
    bool leave = false;
    while (after > 0 && !leave) {
        own = ++step;
        fill(param, step);
        WF_MUST(wf_checkpoint_save(saves, step));
        WF_MUST(wf_checkpoint_step(saves, step, &leave));
    }
    WF_MUST(wf_checkpoint_close(saves));
    wf_layer_free(model);
    return ranks_close(0);
}
