/* Writes for TensorBoard what a trainer has: the numbers of its reports, and what hooks show. An event that cannot be
 * written ends the file with one warning, as training goes on without it. */
#include "core/log.h"
#include "optim/trainer_impl.h"

#include <string.h>

wf_status wf_trainer_board_open(wf_trainer *t)
{
    if (!t->board_folder)
        return WF_OK;
    t->board = wf_tensorboard_open(t->ctx, t->board_folder, t->iteration);
    return wf_check(t->board);
}

void wf_trainer_board_close(wf_trainer *t)
{
    const wf_status status = wf_trainer_warn(t, wf_tensorboard_close(t->board), "the events for TensorBoard");
    t->board = NULL;
    if (status != WF_OK)
        wf_error_clear(); /* only WF_ERR_IO comes from a close, and the communicator may be dead */
}

/* The result of a call for the file. */
static wf_status settle(wf_trainer *t, wf_status status)
{
    if (status != WF_ERR_IO)
        return status;
    WF_TRY(wf_trainer_warn(t, status, "no more events for TensorBoard"));
    wf_trainer_board_close(t);
    return WF_OK;
}

/* Rank 0 has a board; the others come here and do nothing. */
wf_status wf_trainer_board_point(wf_trainer *t, const char *name, double value)
{
    return t->board ? settle(t, wf_tensorboard_scalar(t->board, name, t->iteration, value)) : WF_OK;
}

wf_status wf_trainer_image(wf_trainer *trainer, const char *name, const wf_tensor *x, int64_t rows, int64_t cols,
                           double lo, double hi)
{
    WF_NEED(trainer);
    wf_trainer *t = trainer;
    return t->board ? settle(t, wf_tensorboard_image(t->board, name, t->iteration, x, rows, cols, lo, hi)) : WF_OK;
}

wf_status wf_trainer_histogram(wf_trainer *trainer, const char *name, const wf_tensor *x)
{
    WF_NEED(trainer);
    wf_trainer *t = trainer;
    return t->board ? settle(t, wf_tensorboard_histogram(t->board, name, t->iteration, x)) : WF_OK;
}

/* A copy of each parameter to the host: for hooks that are due seldom. */
wf_status wf_trainer_histograms(wf_trainer *trainer, wf_layer *model)
{
    int64_t n;
    wf_param *const *params;
    WF_NEED(trainer);
    WF_TRY(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; trainer->board && i < n; i++)
        WF_TRY(wf_trainer_histogram(trainer, wf_param_path(params[i]), wf_param_value(params[i])));
    return WF_OK;
}
