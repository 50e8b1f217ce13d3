/* Event files, which TensorBoard shows: curves of numbers, pictures and histograms over the steps of a training. The
 * trainer writes its reports as such by one option (optim/trainer.h); a loop of the program's own does it so:
 *
 *     wf_tensorboard *board = rank == 0 ? wf_tensorboard_open(ctx, "runs/first", 0) : NULL;
 *     ...
 *     if (board)
 *         WF_MUST(wf_tensorboard_scalar(board, "loss", step, wf_item(loss)));
 *     ...
 *     WF_MUST(wf_tensorboard_close(board));
 *
 * and `tensorboard --logdir runs` shows it. All functions are local; one rank writes. Every call appends one whole
 * record and hands it to the system, so that a run can be watched and a killed one keeps what it wrote. After an error
 * of the file (WF_ERR_IO) every later call fails too: what follows half a record could not be read. */
#ifndef WF_OPTIM_TENSORBOARD_H
#define WF_OPTIM_TENSORBOARD_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_tensorboard wf_tensorboard;

/* Makes the folder, where it is missing, and a new file in it, events.out.tfevents.SECONDS.HOST.PID.NUMBER, which
 * replaces none. `step` is 0, or the step after which a run continues: TensorBoard then leaves out what other files of
 * the folder say of later steps. NULL on failure: WF_ERR_IO where the folder or the file cannot be made. */
wf_tensorboard *wf_tensorboard_open(wf_ctx *ctx, const char *folder, int64_t step);
/* Closes the file and frees it, also on failure; NULL is fine. */
wf_status wf_tensorboard_close(wf_tensorboard *board) WF_NODISCARD;

/* A point of the curve `name`; TensorBoard keeps it in f32. A name with slashes is a group of curves: "test/loss". */
wf_status wf_tensorboard_scalar(wf_tensorboard *board, const char *name, int64_t step, double value) WF_NODISCARD;
/* The first rows x cols images of x [N,C,H,W] as one picture, as wf_write_png_grid draws it: C is 1 or 3, any float
 * type; values lo to hi become black to white. */
wf_status wf_tensorboard_image(wf_tensorboard *board, const char *name, int64_t step, const wf_tensor *x, int64_t rows,
                               int64_t cols, double lo, double hi) WF_NODISCARD;
/* How often values of x, of any float type and shape, lie in which interval; the limits of intervals are 0 and
 * +-1e-12 * 1.1^k. Values that are not finite lie in none: where x has some, the curve "NAME/not_finite" has their
 * number. */
wf_status wf_tensorboard_histogram(wf_tensorboard *board, const char *name, int64_t step,
                                   const wf_tensor *x) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
