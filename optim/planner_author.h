/* The parts of the planner (optim/planner.h): a model as a list of what costs time, a meter that says how much, the
 * search, and the file. For tests, and for planners of one's own. All of it is local, but for the library's own meter.
 */
#ifndef WF_OPTIM_PLANNER_AUTHOR_H
#define WF_OPTIM_PLANNER_AUTHOR_H

#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"
#include "layers/parallelize_author.h"
#include "optim/planner.h"

#define WF_PLANNER_PATH 128

/* --- model.c --------------------------------------------------------------------------------------------------------
 */
/* A layer without children, or what a module or a function computes by itself under its path, in one step. */
typedef struct wf_planner_leaf {
    char path[WF_PLANNER_PATH];
    wf_layer *layer; /* NULL: functions of a module */
    wf_part_info info;
    wf_shape x, y; /* of the first application, on the batch of the trace */
    double params; /* trainable elements */
    double share;  /* of what forward keeps for backward, all leaves together 1 */
} wf_planner_leaf;

/* What a plan may split, recompute or cut at: a layer of the chain that the model is, without the chains inside. */
typedef struct wf_planner_unit {
    char path[WF_PLANNER_PATH];
    int first, leaves;
} wf_planner_unit;

typedef struct wf_planner_model {
    wf_ctx *ctx;
    wf_layer *model; /* borrowed */
    wf_shape input;  /* of the trace: the first one */
    int n_inputs;    /* all of them */
    wf_planner_input *inputs;
    int n_leaves, n_units;
    wf_planner_leaf *leaf;
    wf_planner_unit *unit;
} wf_planner_model;

/* Applies the model to noise once. The caller clears it. */
wf_status wf_planner_trace(wf_layer *model, wf_shape input, wf_planner_model *m) WF_NODISCARD;
wf_status wf_planner_trace_n(wf_layer *model, int n, const wf_planner_input *inputs, wf_planner_model *m) WF_NODISCARD;
/* Noise for every input, of so many samples: n_inputs tensors, which wf_planner_noise_free frees, with the list. */
wf_tensor **wf_planner_noise(const wf_planner_model *m, wf_tape *tape, int64_t batch);
void wf_planner_noise_free(const wf_planner_model *m, wf_tensor **x);
/* Bytes of that noise. */
double wf_planner_noise_bytes(const wf_planner_model *m, wf_tensor *const *x);
/* The model of that noise. */
wf_var *wf_planner_apply(const wf_planner_model *m, wf_tape *tape, wf_tensor *const *x);
void wf_planner_model_clear(wf_planner_model *m);

/* --- measure.c: what things cost ------------------------------------------------------------------------------------
 */
/* A step of one rank with so many samples, nothing split. */
typedef struct wf_planner_times {
    int64_t batch;
    bool chunk; /* given: one of several of a pipeline, for which parameters are packed once */
    double forward_s, backward_s, update_s; /* all of them; backward_s without the update */
    double kept, fixed, more; /* bytes: what forward keeps for backward; parameters, gradients, packed forms of
                                 parameters and the optimizer's state; and what a step takes beyond these at its peak */
    double passes_s;          /* of a chunk: a zeroing and a product of all gradients, which a pipeline makes once */
    double packed, packed_forward;            /* bytes of packed forms: of a step, and those that forward makes */
    double *leaf_forward_s, *leaf_backward_s; /* of the kernels of each leaf */
} wf_planner_times;

/* What a message costs. */
typedef struct wf_planner_link {
    double alpha_s, beta_s; /* a message, its byte */
} wf_planner_link;

/* How fast backward goes on while gradients are summed between nodes, and the sum while backward goes on; 1: as fast as
 * alone. */
typedef struct wf_planner_overlap {
    double compute, sum;
} wf_planner_overlap;

/* Forward and backward of a leaf, or of a part of it, by itself. */
typedef struct wf_planner_part {
    double seconds;
    double workspace; /* bytes at the peak of backward, beyond what forward keeps: gradients of output and input too */
} wf_planner_part;

typedef struct wf_planner_meter {
    void *own;
    /* Fills in all but the arrays' addresses. */
    wf_status (*step)(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *times);
    /* Forward and backward of a leaf that is split over `ranks` ranks of a node along this axis, with its messages, as
     * the library computes it. A rank's input has this shape: of an axis of pixels a part of the image; of the channel
     * axis all channels, or a rank's. Seconds are 0 where that cannot be measured here. NULL: never. */
    wf_status (*split)(void *own, const wf_planner_leaf *leaf, wf_shape x, wf_axis axis, int ranks,
                       wf_planner_part *part);
    /* Forward and backward of a part of a leaf: an input of this shape, 1/in of the input channels of its filters,
     * 1/out of the output channels. */
    wf_status (*part)(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out,
                      wf_planner_part *part);
    /* Backward of so many samples beside sums between nodes. Both rates are 1 where that cannot be measured here. NULL:
     * never. */
    wf_status (*overlap)(void *own, const wf_planner_model *m, int64_t batch, wf_planner_overlap *rates);
    double state_words;          /* of the optimizer, for each parameter */
    wf_price_model links;        /* of sums */
    wf_planner_link exchange[2]; /* inside a node, between nodes: of exchanges, in which both sides send at once */
    wf_planner_link one_way;     /* between nodes: while nothing comes from the other side */
} wf_planner_meter;

typedef struct wf_plan_cache wf_plan_cache;

typedef struct wf_gauge {
    wf_comm *comm; /* all its ranks measure at once, as they would compute at once; the slowest counts */
    wf_optim *optim;
    wf_plan_cache *cache;   /* of rank 0 */
    wf_mesh *mesh[WF_AXES]; /* of all ranks along one axis; NULL: not needed yet */
    char machine[256];
    int measured, known; /* numbers that were measured, and found */
} wf_gauge;
/* The library's meter, of a communicator and an optimizer of the model, which are set; the rest is 0. Collective. */
wf_status wf_gauge_open(wf_gauge *gauge, const wf_planner_model *m, wf_planner_meter *meter) WF_NODISCARD;
void wf_gauge_close(wf_gauge *gauge);

/* --- search.c -------------------------------------------------------------------------------------------------------
 */
typedef struct wf_planner_opts {
    int ranks, nodes;
    int64_t batch;         /* of all ranks */
    double memory;         /* bytes of a rank; 0: no limit */
    unsigned can;          /* wf_planner_can */
    wf_mesh_opts mesh;     /* the only one that is looked at; all 0: every one */
    int split;             /* the only form of all units, a sum of wf_parallel; -1: the best one of each */
    const unsigned *forms; /* not NULL: the form of each unit, in place of `split` */
    int chunks;            /* the only number of chunks of a pipeline; 0: several */
} wf_planner_opts;

/* What a plan says of a unit, and what it predicts for one rank in a step. */
typedef struct wf_plan_unit {
    char path[WF_PLANNER_PATH];
    unsigned split; /* of wf_parallel */
    bool recompute;
    double forward_s, backward_s, message_s; /* message_s: exchanges, sums and moves from layout to layout */
    double bytes;                            /* sent for these, without sums of gradients */
    double sum_bytes;                        /* of gradients, sent */
    double kept;                             /* bytes that backward needs */
} wf_plan_unit;

struct wf_training_plan {
    wf_ctx *ctx;
    int ranks, nodes;
    int64_t batch;
    wf_mesh_opts mesh; /* every axis at least 1 */
    bool zero;         /* the optimizer's state is sharded */
    int chunks;
    wf_pipeline_kind schedule; /* of a pipeline */
    int parts;                 /* of the model on each stage */
    double idle; /* of a pipeline: the part of its time in which a stage does not compute; not in a file */
    wf_pipeline_recompute recompute;          /* of a pipeline */
    int *stage_units;                         /* units of each part, mesh.stage * parts numbers; NULL: no pipeline */
    double seconds, other_s, sum_s, update_s; /* a step; of it outside of units; shown sums of gradients; updates */
    double bytes, memory;                     /* sent by a rank in a step; its peak */
    wf_price_model links;
    wf_planner_link exchange[2]; /* of the meter, as is `overlap`; not in a file */
    wf_planner_overlap overlap;
    int n_units;
    wf_plan_unit *unit;
    struct wf_plan_watch *watch; /* of a run that is compared */
};

/* The fastest plan. NULL with WF_ERR_MEMORY where none fits, WF_ERR_ARGUMENT for numbers that cannot be. */
wf_training_plan *wf_planner_search(const wf_planner_model *m, const wf_planner_meter *meter,
                                    const wf_planner_opts *opts);
/* "data 2 x height 2", into text, which is returned. */
const char *wf_planner_mesh_text(wf_mesh_opts mesh, char text[WF_PLANNER_PATH]);

/* --- file.c ---------------------------------------------------------------------------------------------------------
 */
wf_status wf_training_plan_write(const wf_training_plan *plan, const char *path) WF_NODISCARD;
/* From the text of a file; `name` is for errors. */
wf_training_plan *wf_training_plan_parse(wf_ctx *ctx, const char *text, const char *name);
/* The table of predictions. */
void wf_training_plan_print(const wf_training_plan *plan, int table);

#endif
