/* Pipelines: a chain of layers that is cut into stages, one after the other, along the mesh's `stage` axis. A batch is
 * cut into chunks, which go through the stages one behind the other, so that all stages compute at the same time.
 *
 *     wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.stage = 2});
 *     wf_pipeline *pipe = wf_pipeline_new(
 *         mesh, wf_sequential(ctx, WF_LAYERS(...)),
 *         (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = 8, .schedule = WF_PIPELINE_1F1B});
 *     wf_optim *opt = wf_adam(wf_pipeline_model(pipe), (wf_adam_opts){0});
 *     opt = wf_mesh_multi_node(mesh, opt, (wf_multi_node_opts){0});
 *     wf_tape *tape = wf_tape_new(ctx);
 *     while (...) {
 *         WF_MUST(wf_iter_next(iter, &batch));
 *         wf_var *loss = wf_pipeline_step(pipe, tape, batch.x, batch.labels);
 *         WF_MUST(wf_optim_step(opt, loss));
 *         WF_MUST(wf_tape_reset(tape));
 *     }
 *
 * The batch of each rank is divided like blocks of an array (wf_block): with n samples in c chunks the first n % c
 * chunks have one sample more than the rest, so 6 samples in 4 chunks are 2, 2, 1 and 1, and with fewer samples than
 * chunks the last ones are empty.
 *
 * The result is that of the serial program: loss and gradients are those of the whole batch, each chunk counting by its
 * samples, however the batch divides. They do not depend on the number of stages or the schedule, bit for bit where
 * the kernels compute the same. Initial values and random numbers are those of the serial program; what is drawn for
 * chunk c is what the layer's c-th application in a step draws, as in a loop over the chunks on one tape.
 *
 * Skip connections (layers/skip.h) may end on another stage than they begin: the value goes there directly, and its
 * gradient back. Tied weights (wf_layer_tie) may be on several stages: each of these keeps the parameter, and updates
 * it with the sum of the gradients of all, so that it stays equal bit for bit. All of these train it, or none: a step
 * is WF_ERR_COMM otherwise. A program that changes its value changes it on all of them: now and then (compare_every)
 * the stages compare theirs, and a step is WF_ERR_COMM, on all ranks, if the values differ.
 *
 * On GPUs that NCCL connects, messages go from device to device while stages compute, in one order on which all stages
 * agree (wf_pipeline_schedule_in_order), and a step can be captured (core/captured.h). Elsewhere they go through the
 * host's memory, and on a GPU a captured step of several stages is refused.
 */
#ifndef WF_LAYERS_PIPELINE_H
#define WF_LAYERS_PIPELINE_H

#include "comm/mesh.h"
#include "core/site.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_pipeline wf_pipeline;
typedef struct wf_pipeline_schedule wf_pipeline_schedule;

typedef enum wf_pipeline_kind {
    WF_PIPELINE_1F1B = 0, /* backward of a chunk as soon as it can be: a stage holds at most as many chunks as there are
                             stages from it to the last */
    WF_PIPELINE_GPIPE,    /* all forwards, then all backwards: a stage holds all chunks */
    WF_PIPELINE_INTERLEAVED /* 1F1B with several parts of the model on each stage, which shortens the idle time at both
                               ends of a step by as much, and sends as many times the bytes */
} wf_pipeline_kind;

typedef enum wf_pipeline_recompute {
    WF_RECOMPUTE_NEVER = 0,
    WF_RECOMPUTE_EXCEPT_LAST, /* not of chunks of which backward follows at once: there it saves nothing */
    WF_RECOMPUTE_ALWAYS
} wf_pipeline_recompute;

/* The loss of a chunk: a mean over its samples. wf_mean_cross_entropy and wf_bce_logits are such functions. If
 * it ignores labels (wf_label_opts), the loss of the batch is the mean over the labels of all chunks and ranks that
 * count, 0 if none counts. Adding a mean over other elements to it takes 1 chunk and a batch with a layout: a chunk is
 * differentiated before it is known how many labels of the whole batch count, so its two terms have no common weight
 * (WF_ERR_STATE, of wf_add where the batch has no layout). Means over the same labels may be added. */
typedef wf_var *(*wf_pipeline_loss)(wf_var *y, const wf_tensor *target);

typedef struct wf_pipeline_opts {
    wf_pipeline_loss loss; /* required; called on the last stage alone */
    int chunks;            /* of a batch; default 4 for each stage. 1: stages compute one after the other */
    wf_pipeline_kind schedule;
    int parts; /* of the model on each stage; default 1, with WF_PIPELINE_INTERLEAVED 2 */
    /* Forward keeps the input of each part alone, and backward computes the part again (layers/recompute.h): of every
     * chunk, or of all but those whose backward comes right behind their forward. Same bits, but for the gradient of a
     * value that a skip keeps, which is rounded once more. Segments that the model's own layers mark go on as they are.
     */
    wf_pipeline_recompute recompute;
    /* Running statistics of batch normalisations follow those of the whole batch once a step, with its unbiased
     * variance, though each chunk is normalised by its own. Default: they follow every chunk, one after the other. */
    bool deferred_batchnorm;
    /* The division of the chain: the number of its layers in each part, stages * parts numbers that add up to the
     * chain's length (chains inside the chain count by their layers). Default: so that the heaviest part is as light as
     * can be, by `cost`, one number a layer; by default its parameters, or if `sample` is given the time of its forward
     * and backward on it, a chunk of the first layer's input, measured once on every rank; with `by_memory` the bytes
     * that a part holds then: parameters with gradients and the optimizer's state, and what is kept of each chunk, as
     * if nothing was recomputed, times the chunks in flight in that part of the schedule. */
    const int *layers;
    const double *cost;
    const wf_tensor *sample;
    int n_more_samples; /* of a model of several inputs: chunks of the others */
    const wf_tensor *const *more_samples;
    bool by_memory;
    /* In the first step of training, and then in every so many, the stages compare hashes of the values of weights that
     * are tied on several of them; default 100, negative: never. Replays of a captured step are neither counted nor
     * compared. */
    int64_t compare_every;
} wf_pipeline_opts;

/* Cuts a chain (wf_sequential, or a layer whose kind says that it is one) and takes it over, also when it fails: layers
 * of other stages are freed, and the rest keep their names, so that files and initial values are the serial model's. To
 * load a file into it, do that before. Schedules of all stages are made and verified here. WF_ERR_ARGUMENT, on all
 * ranks, for an option that is out of its range, a stage without a layer, or a model that is no chain; WF_ERR_COMM
 * where ranks gave different options, with the name of the first one. Ends of a skip must be layers of the chain
 * itself. Optimizers refuse a stage whose layers have no parameters. Collective over the mesh, which is borrowed, as
 * are the arrays during the call. */
WF_PLACED wf_pipeline *wf_pipeline_new(const wf_mesh *mesh, wf_layer *chain, wf_pipeline_opts opts);
/* Frees the model, too. NULL is fine. */
void wf_pipeline_free(wf_pipeline *pipe);

/* This stage's layers, for its optimizer; borrowed. Layers that are added to a chain now are applied by no stage, so
 * steps are WF_ERR_STATE. Files hold the whole serial model: wf_save_over and wf_checkpoint_open take the communicator
 * of the whole mesh (wf_mesh_world), and any other number of stages, or the serial model, loads what they wrote. */
wf_layer *wf_pipeline_model(wf_pipeline *pipe);

/* Forward and backward of a batch. x [N,...] is read on the first stage, target [N,...] on the last; both may be NULL
 * elsewhere. Returns the loss of the batch, on every stage, whose backward gives this stage's parameters the gradients
 * that were computed here: for wf_optim_step, wf_optim_accumulate, or any other backward on the tape. NULL on failure,
 * and the other ranks get the error: WF_ERR_STATE for a loss that depends on no parameter of any stage; WF_ERR_COMM if
 * stages step different pipelines at the same time. In WF_EVAL: forward alone. Collective over the mesh; each rank
 * along the other axes gives its own samples, which count by their number. In a captured step all batches have the
 * lengths of the one that was captured, on every rank. A scaled loss (wf_optim_scale_loss) is scaled behind the chunks'
 * backward. */
WF_PLACED wf_var *wf_pipeline_step(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *x, const wf_tensor *target);
/* As wf_pipeline_step, for a chain of several inputs: x[0] to x[n - 1], each [N,...], are read on the first stage;
 * elsewhere x may be NULL. The chain's first layer takes them (wf_skip_inputs hands them to layers of any stage). */
WF_PLACED wf_var *wf_pipeline_step_n(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *const *x, int n,
                                     const wf_tensor *target);
/* The output of the chain, on a tape in WF_EVAL: on the last stage y of all chunks, elsewhere a token (wf_no_loss).
 * Collective over the mesh. */
WF_PLACED wf_var *wf_pipeline_apply(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *x);
WF_PLACED wf_var *wf_pipeline_apply_n(wf_pipeline *pipe, wf_tape *tape, const wf_tensor *const *x, int n);

/* The schedule; borrowed. */
const wf_pipeline_schedule *wf_pipeline_schedule_of(const wf_pipeline *pipe);
/* As a diagram, a row a stage, by `line`, time to the right: a forward is one unit, a backward, in brackets, two. As
 * SVG: the lines of a file. Local. */
void wf_pipeline_schedule_print(const wf_pipeline_schedule *schedule, void (*line)(void *own, const char *text),
                                void *own);
void wf_pipeline_schedule_svg(const wf_pipeline_schedule *schedule, void (*line)(void *own, const char *text),
                              void *own);
/* Layers in each part: stages * parts numbers; borrowed. */
const int *wf_pipeline_cuts(const wf_pipeline *pipe, int *parts);

#ifdef __cplusplus
}
#endif

#endif
