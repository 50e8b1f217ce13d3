/* Streamed batches: what a running program computes, given to a training while it computes.
 *
 * A simulation has its fields in memory of its own, divided over the ranks by bounds of its own. An iterator of this
 * kind hands that memory to the training as batches: nothing is copied, kept or sent. What stored fields would give,
 * these give too, bit for bit. A C program with such a loop is examples/closure.c.
 *
 *     static wf_status advance(void *user, int64_t index, wf_tensor **x, wf_tensor **target)
 *     {
 *         solver *s = user;
 *         solver_step(s);                                            (with messages of its own)
 *         *x = wf_tensor_wrap(s->ctx, WF_F32, s->shape, s->fields, (wf_wrap_opts){.order = WF_CHANNELS_LAST});
 *         *target = wf_tensor_wrap(s->ctx, WF_F32, s->shape, s->lacking, (wf_wrap_opts){.order = WF_CHANNELS_LAST});
 *         return wf_check(*target);
 *     }
 *
 *     wf_mesh_layout(mesh, WF_SHAPE(1, 3, rows, columns), (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(2)},
 *         .bounds = {[WF_AXIS_HEIGHT] = first_rows}}, &layout);
 *     wf_iter *iter = wf_streamed_batches(mesh, (wf_streamed_opts){.next = advance, .user = &s, .x = layout,
 *         .target = layout});
 */
#ifndef WF_DATASETS_STREAMED_H
#define WF_DATASETS_STREAMED_H

#include "comm/mesh.h"
#include "core/site.h"
#include "datasets/iterator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives batch `index` (0 and up, over all epochs) as tensors: handles, which the iterator frees, on memory that the
 * program keeps as it is until the next call. *x and *target are NULL at first. Shapes are those of this rank's parts
 * of the layouts, also where a part is empty. wf_iter_next calls it, on all ranks and on the thread that called; it may
 * use MPI and collectives. */
typedef wf_status (*wf_streamed_next)(void *user, int64_t index, wf_tensor **x, wf_tensor **target);

typedef struct wf_streamed_opts {
    wf_streamed_next next; /* required */
    void *user;
    wf_layout x;          /* of x, whose dimension 0 are samples: wf_mesh_layout, at any bounds; required */
    wf_layout target;     /* of what is learnt; not known: there is none */
    int64_t epoch_length; /* batches in an epoch; default: one epoch that does not end */
} wf_streamed_opts;

/* Makes an iterator whose batches are the program's own tensors: wf_batch.x and wf_batch.target, at the addresses where
 * they are, with these layouts. The mesh is borrowed.
 *
 * WF_ERR_ARGUMENT, on all ranks, for options without `next`, a negative length, layouts that are not known or of
 * another mesh, and for options that are not equal on all ranks. wf_iter_next: an error of `next` on one rank reaches
 * all; so do WF_ERR_ARGUMENT for a tensor that is missing or not asked for, WF_ERR_SHAPE for one of another shape than
 * the part. A value that is read by a backward after the next call is WF_ERR_STATE, since the program may have written
 * there. wf_iter_archive has the batch's number; the program archives its own state. wf_prefetch refuses it.
 * Collective. */
WF_PLACED wf_iter *wf_streamed_batches(const wf_mesh *mesh, wf_streamed_opts opts);

#ifdef __cplusplus
}
#endif

#endif
