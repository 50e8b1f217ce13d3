/* The parts of a pipeline, for this room. */
#ifndef WF_LAYERS_PIPELINE_IMPL_H
#define WF_LAYERS_PIPELINE_IMPL_H

#include "comm/outbox_author.h"
#include "layers/layer_author.h"
#include "layers/pipeline_author.h"
#include "layers/serial/serial_impl.h"

/* The part from which a computation needs something, or for which it makes something: the chain's (`skip` 0) or of a
 * skip; -1: there is none. */
int wf_pipeline_other_part(const wf_pipeline_schedule *schedule, const wf_pipeline_action *computation, bool needed,
                           int skip);
/* The message that a computation needs, or makes (as the stage of the computation sends or receives it); false: there
 * is none. */
bool wf_pipeline_message_of(const wf_pipeline_schedule *schedule, const wf_pipeline_action *computation, bool needed,
                            int skip, wf_pipeline_action *message);
/* The part that makes a message; -1: no part does. */
int wf_pipeline_maker(const wf_pipeline_schedule *schedule, const wf_pipeline_action *message);

/* Returns true if one action sends what the other receives, provided that each names the stage of the other as its
 * peer. */
static inline bool wf_pipeline_same_message(const wf_pipeline_action *a, const wf_pipeline_action *b)
{
    return a->part == b->part && a->chunk == b->chunk && a->gradient == b->gradient && a->skip == b->skip;
}

/* The duration of an action; the unit is a forward of a chunk through a part. */
static inline int wf_pipeline_duration(wf_pipeline_verb verb)
{
    return verb == WF_PIPELINE_FORWARD ? 1 : verb == WF_PIPELINE_BACKWARD ? 2 : 0;
}

/* One without actions. */
wf_pipeline_schedule *wf_pipeline_schedule_empty(wf_ctx *ctx, int stages, int parts, int chunks, int skips,
                                                 const wf_pipeline_skip *skip);

/* --- diagram.c: when each action begins, if a forward takes one unit of time, a backward two, a message none --------
 */

typedef struct wf_pipeline_times {
    const wf_pipeline_schedule *s;
    int **begin; /* of each stage and action */
    int end;     /* of the last one */
} wf_pipeline_times;

/* False: memory is exhausted. In any case the caller frees them. */
bool wf_pipeline_times_make(const wf_pipeline_schedule *schedule, wf_pipeline_times *times);
void wf_pipeline_times_free(wf_pipeline_times *times);

/* --- cut.c: where a chain is cut ------------------------------------------------------------------------------------
 */

/* The layers of a chain, those of chains inside it one by one. In pool memory of wf_malloc, which the caller frees.
 * WF_ERR_ARGUMENT: it is no chain. */
wf_status wf_chain_list(wf_layer *chain, int *count, wf_layer ***list) WF_NODISCARD;
/* Returns the first layer of the chain that does not come next in the list, from number *at on; NULL if all do. */
const wf_layer *wf_chain_stranger(const wf_layer *chain, int count, wf_layer *const *list, int *at);
/* Frees the layers of the chain that are in `list` with keep[i] false. */
void wf_chain_drop(wf_layer *chain, int count, wf_layer *const *list, const bool *keep);

/* pipe->cuts: as the options say, or balanced. Collective over the mesh where layers are measured. */
wf_status wf_pipeline_cut(wf_pipeline *pipe, const wf_pipeline_opts *opts, int count,
                          wf_layer *const *list) WF_NODISCARD;
/* The part that has layer number `layer` of the list, once it is cut. */
int wf_pipeline_part_of(const wf_pipeline *pipe, int layer);

/* --- skip.c, tie.c: what parts share beside the chain's values -------------------------------------------------------
 */

/* A skip connection of the model. */
typedef struct wf_pipeline_ends {
    wf_layer *stash, *pop; /* NULL: on another stage */
    int stash_place, pop_place;
    int taken; /* the place of the pop in the chain */
    wf_pipeline_skip parts;
} wf_pipeline_ends;

/* Finds the skips: first those between parts, which are as many as the schedule shall have, from the one that is taken
 * last on, which is the order of their gradients; then those inside of a part. WF_ERR_ARGUMENT for ends that a pipeline
 * cannot see, or that do not belong together. */
wf_status wf_pipeline_find_skips(wf_pipeline *pipe, int count, wf_layer *const *list) WF_NODISCARD;

/* A parameter that layers on several stages have. */
typedef struct wf_pipeline_tie {
    wf_param *param;  /* here; NULL: on other stages alone */
    bool *on;         /* of each stage */
    wf_tensor **come; /* in a sum: the gradient of each other stage */
    wf_tensor *sum;
} wf_pipeline_tie;

/* Finds the tied parameters that several stages have, and draws their values; before layers are dropped. */
wf_status wf_pipeline_find_ties(wf_pipeline *pipe, int count, wf_layer *const *list) WF_NODISCARD;
/* Which of its parameters stands for each tie on this stage, and what optimizers know of it; after layers were dropped.
 */
wf_status wf_pipeline_keep_ties(wf_pipeline *pipe) WF_NODISCARD;
/* At the begin of a step of training: values of tied parameters are the same on all their stages, every so often. */
wf_status wf_pipeline_compare_ties(wf_pipeline *pipe) WF_NODISCARD;
/* Sums the gradients of tied parameters over their stages, in the order of these, with the same bits on all. */
wf_status wf_pipeline_sum_ties(wf_pipeline *pipe) WF_NODISCARD;
void wf_pipeline_ties_free(wf_pipeline *pipe);

/* --- pipeline.c, step.c ---------------------------------------------------------------------------------------------
 */

/* A chunk in a part, from its forward to its backward. */
typedef struct wf_pipeline_slot {
    wf_pipeline *pipe;
    int part, chunk;
    wf_tape *tape; /* NULL: nothing is on its way */
    wf_var **x; /* of the first part: the inputs of the model; of others one, the input of the part; in pool memory */
    int n_x;
    wf_var *y; /* of which backward begins; of the last part: the loss */
} wf_pipeline_slot;

/* A chunk's value that one part makes and another takes: the chain's input of a part, or a skip. */
typedef struct wf_pipeline_link {
    wf_tensor *value, *gradient; /* on their way: made and not sent, or come and not used */
    wf_var *made, *taken;        /* on the tapes of the two parts, where they are here */
} wf_pipeline_link;

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
    int64_t number;      /* the same on all ranks, and another for each pipeline of the mesh */
    wf_pipeline_loss loss;
    wf_pipeline_recompute recompute;
    bool deferred; /* running statistics */
    wf_pipeline_schedule *schedule;
    wf_pipeline_schedule *in_order; /* that is run where NCCL moves the messages; else NULL */
    int stage, stages, parts, chunks;
    int *cuts;        /* layers of each part of the model */
    wf_layer **layer; /* of this stage, part after part */
    int *first;       /* of each of its parts, and one more: the first of `layer` */
    int skips;
    wf_pipeline_ends *skip;
    int ties;
    wf_pipeline_tie *tie;
    int64_t compare_every, steps; /* of training so far */
    wf_pipeline_slot *slot;       /* of each of its parts and chunk */
    wf_pipeline_link *link;       /* of each part of the model, then of each skip, and chunk */
    wf_tape **tape;               /* those that are free */
    int tapes;
    wf_layout *layout; /* of each part, then of each skip: of the chunk that came last */
    wf_pipeline_grads grads;
    wf_outbox *outbox;
};

/* --- chunk.c: one chunk in one part ---------------------------------------------------------------------------------
 */

/* What all chunks of a step have in common. */
typedef struct wf_pipeline_run {
    wf_pipeline *pipe;
    wf_tape *tape; /* the program's */
    int n_x;       /* on the first stage: inputs of the model */
    const wf_tensor *const *x;
    const wf_tensor *target; /* these are of the whole batch */
    uint64_t applied;        /* how often the model was applied on the tape before */
    bool known;              /* the batch has a layout */
    bool counted;            /* losses of chunks are means over labels that count, also where the layout is known */
    bool loses;              /* the last part ends in the loss */
    bool reached;            /* backward has reached a parameter of this stage */
    wf_tensor *loss;         /* f64: sum over the chunks, on the last stage; else NULL */
    double weight;           /* that it counts for */
    wf_tensor *like;         /* the loss of the first chunk: type and layout */
    double count, part;
    wf_tensor **y; /* of each chunk: the output on the last stage, where it does not end in the loss */
} wf_pipeline_run;

/* The row of wf_pipeline.link that is the input of a part, or, with a number of 1 or more, that skip. */
int wf_pipeline_link_row(const wf_pipeline *pipe, int part, int skip);
wf_pipeline_link *wf_pipeline_link_of(const wf_pipeline *pipe, int part, int skip, int chunk);

/* at_once: its backward is the next computation here. */
wf_status wf_pipeline_forward(wf_pipeline_run *run, int part, int chunk, bool at_once) WF_NODISCARD;
wf_status wf_pipeline_backward(wf_pipeline_run *run, int part, int chunk) WF_NODISCARD;
wf_status wf_pipeline_message(wf_pipeline_run *run, const wf_pipeline_action *action) WF_NODISCARD;
/* Gives up whatever is on its way. */
void wf_pipeline_forget(wf_pipeline *pipe);

/* --- layout.c --------------------------------------------------------------------------------------------------------
 */

/* Ahead of the first chunk of a link: the layout of its values. */
wf_status wf_pipeline_layout_send(wf_pipeline *pipe, const wf_tensor *value, int to) WF_NODISCARD;
wf_status wf_pipeline_layout_receive(wf_pipeline *pipe, int row, int from) WF_NODISCARD;
/* The layout of a chunk's value that came; chunks come in their order. */
wf_status wf_pipeline_layout_set(wf_pipeline *pipe, int row, int chunk, wf_tensor *value) WF_NODISCARD;

/* --- grads.c: gradients of a step, beside those that an optimizer laid out -------------------------------------------
 */

/* From begin to end the parameters' gradients are the pipeline's own, which the chunks' backward adds to. */
wf_status wf_pipeline_grads_begin(wf_pipeline *pipe) WF_NODISCARD;
void wf_pipeline_grads_end(wf_pipeline *pipe);
/* Returns true if backward has reached a parameter in this step. */
bool wf_pipeline_grads_reached(const wf_pipeline *pipe);
/* The gradient of a parameter, or zeros, which count from now on. NULL: it is none of the model's. */
wf_tensor *wf_pipeline_grads_of(wf_pipeline *pipe, const wf_param *param);
/* A wf_backward_opts.plan; user is the pipeline. */
wf_status wf_pipeline_grads_plan(void *user, int64_t n, wf_param *const *order) WF_NODISCARD;
/* Records the loss, whose handle is taken: its backward gives each parameter its sum, divided by `weight`. */
wf_var *wf_pipeline_grads_record(wf_pipeline *pipe, wf_tape *tape, wf_tensor *loss, double weight);
void wf_pipeline_grads_free(wf_pipeline *pipe);

#endif
