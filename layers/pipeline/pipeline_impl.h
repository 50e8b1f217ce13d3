/* The parts of a pipeline, for this room. */
#ifndef WF_LAYERS_PIPELINE_IMPL_H
#define WF_LAYERS_PIPELINE_IMPL_H

#include "comm/outbox_author.h"
#include "layers/layer_author.h"
#include "layers/pipeline_author.h"
#include "layers/serial/serial_impl.h"

/* The message that a computation needs, or makes (as the stage of the computation sends or receives it); false: there
 * is none. */
bool wf_pipeline_message_of(const wf_pipeline_schedule *schedule, const wf_pipeline_action *computation, bool needed,
                            wf_pipeline_action *message);

/* --- cut.c: where a chain is cut ------------------------------------------------------------------------------------
 */

/* The layers of a chain, those of chains inside it one by one. In pool memory of wf_malloc, which the caller frees.
 * WF_ERR_ARGUMENT: it is no chain. */
wf_status wf_chain_list(wf_layer *chain, int *count, wf_layer ***list) WF_NODISCARD;
/* layers[0..parts): as the options say, or balanced. Collective over the mesh where layers are measured. */
wf_status wf_pipeline_cut(const wf_mesh *mesh, const wf_pipeline_opts *opts, int count, wf_layer *const *list,
                          int parts, int *layers) WF_NODISCARD;
/* Frees the layers of the chain that are in `list` with keep[i] false. */
void wf_chain_drop(wf_layer *chain, int count, wf_layer *const *list, const bool *keep);

/* --- pipeline.c, step.c ---------------------------------------------------------------------------------------------
 */

/* A chunk in a part, from its forward to its backward. */
typedef struct wf_pipeline_slot {
    wf_tensor *input;    /* that came, or of the batch */
    wf_tensor *gradient; /* of the output: that came */
    wf_tape *tape;       /* NULL: nothing is on its way */
    wf_var *x, *y;       /* y of the last part: the loss */
} wf_pipeline_slot;

typedef struct wf_pipeline_grads {
    int64_t n; /* parameters of the model */
    wf_param *const *param;
    wf_tensor **sum;  /* of each: over the chunks; NULL before its first */
    wf_tensor **kept; /* the parameter's own meanwhile */
    bool *reached;    /* in this step */
    bool swapped;
} wf_pipeline_grads;

struct wf_pipeline {
    wf_ctx *ctx;
    const wf_mesh *mesh; /* borrowed */
    wf_comm *comm;       /* of the stages */
    wf_layer *model;     /* this stage's layers, in the chain that was given */
    wf_pipeline_loss loss;
    wf_pipeline_recompute recompute;
    bool deferred; /* running statistics */
    wf_pipeline_schedule *schedule;
    int stage, stages, parts, chunks;
    int *cuts;              /* layers of each part of the model */
    wf_layer **layer;       /* of this stage, part after part */
    int *first;             /* of each of its parts, and one more: the first of `layer` */
    wf_pipeline_slot *slot; /* of each of its parts and chunk */
    wf_tape **tape;         /* those that are free */
    int tapes;
    wf_layout *layout; /* of each of its parts: of the input of the chunk that came last */
    wf_pipeline_grads grads;
    wf_outbox *outbox;
};

/* --- chunk.c: one chunk in one part ---------------------------------------------------------------------------------
 */

/* What all chunks of a step have in common. */
typedef struct wf_pipeline_run {
    wf_pipeline *pipe;
    wf_tape *tape;               /* the program's */
    const wf_tensor *x, *target; /* of the whole batch */
    uint64_t applied;            /* how often the model was applied on the tape before */
    bool known;                  /* the batch has a layout, so every chunk's loss is a part of the batch's mean */
    bool loses;                  /* the last part ends in the loss */
    double loss, weight;         /* sums over the chunks, on the last stage */
    wf_tensor *like;             /* the loss of the first chunk: type and layout */
    int64_t count;
    double part;
    wf_tensor **y; /* of each chunk: the output on the last stage, where it does not end in the loss */
} wf_pipeline_run;

/* at_once: its backward is the next computation here. */
wf_status wf_pipeline_forward(wf_pipeline_run *run, int part, int chunk, bool at_once) WF_NODISCARD;
wf_status wf_pipeline_backward(wf_pipeline_run *run, int part, int chunk) WF_NODISCARD;
wf_status wf_pipeline_message(wf_pipeline_run *run, const wf_pipeline_action *action) WF_NODISCARD;

/* --- layout.c --------------------------------------------------------------------------------------------------------
 */

/* Ahead of the first chunk of a part: the layout of its input. */
wf_status wf_pipeline_layout_send(wf_pipeline *pipe, const wf_tensor *y, int to) WF_NODISCARD;
wf_status wf_pipeline_layout_receive(wf_pipeline_run *run, int part, int from) WF_NODISCARD;
/* The layout of a chunk that came; chunks come in their order. */
wf_status wf_pipeline_layout_set(wf_pipeline *pipe, int part, int chunk, wf_tensor *x) WF_NODISCARD;
/* Gives up whatever is on its way. */
void wf_pipeline_forget(wf_pipeline *pipe);

/* --- grads.c: gradients of a step, beside those that an optimizer laid out -------------------------------------------
 */

/* From begin to end the parameters' gradients are the pipeline's own, which the chunks' backward adds to. */
wf_status wf_pipeline_grads_begin(wf_pipeline *pipe) WF_NODISCARD;
void wf_pipeline_grads_end(wf_pipeline *pipe);
/* A wf_backward_opts.plan; user is the pipeline. */
wf_status wf_pipeline_grads_plan(void *user, int64_t n, wf_param *const *order) WF_NODISCARD;
/* Records the loss, whose handle is taken: its backward gives each parameter its sum, divided by `weight`. */
wf_var *wf_pipeline_grads_record(wf_pipeline *pipe, wf_tape *tape, wf_tensor *loss, double weight);
void wf_pipeline_grads_free(wf_pipeline *pipe);

#endif
