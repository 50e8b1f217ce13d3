/* Schedules of pipelines, as data: what every stage computes, sends and receives, in its order. A schedule is a pure
 * function of its numbers, so each rank makes those of all stages, and verifies them before anything is sent.
 *
 * A model is cut into stages * parts parts; part k is on stage k % stages. The input of part k + 1 is the output of
 * part k. A skip is one more value, from a part to a later one (layers/skip.h). Between two parts of one stage nothing
 * is sent.
 */
#ifndef WF_LAYERS_PIPELINE_AUTHOR_H
#define WF_LAYERS_PIPELINE_AUTHOR_H

#include "comm/proof/proof_author.h"
#include "layers/pipeline.h"

typedef enum wf_pipeline_verb {
    WF_PIPELINE_FORWARD = 0, /* of a chunk through a part */
    WF_PIPELINE_BACKWARD,
    WF_PIPELINE_SEND,   /* to stage `peer`; does not wait for the receiver. If in_order, the stage's next message waits
                           for this one, its computations do not */
    WF_PIPELINE_RECEIVE /* from stage `peer`; waits. If in_order, the stage's next message waits, and the computation
                           that needs this one */
} wf_pipeline_verb;

typedef struct wf_pipeline_skip {
    int from, to; /* parts */
} wf_pipeline_skip;

typedef struct wf_pipeline_action {
    wf_pipeline_verb verb;
    int part; /* that computes; of a message: the one that gets it */
    int chunk;
    int peer;      /* of a message */
    bool gradient; /* a message is the gradient of the part's output; else it is its input */
    int skip; /* a message is, instead, the value of this skip, or its gradient: 1 is the first one; 0: it is not */
} wf_pipeline_action;

struct wf_pipeline_schedule {
    wf_ctx *ctx;
    int stages, parts /* of each stage */, chunks, skips;
    bool in_order; /* all stages have one order of all messages: neither end of a message goes on to its next message
                      before both have reached it */
    wf_pipeline_skip *skip;
    int *count; /* of each stage: its actions */
    wf_pipeline_action **action;
};

/* --- schedule.c ----------------------------------------------------------------------------------------------------
 */
typedef struct wf_pipeline_schedule_opts {
    wf_pipeline_kind kind;
    int stages, parts /* of each stage */, chunks; /* required */
    int skips;
    const wf_pipeline_skip *skip; /* copied */
} wf_pipeline_schedule_opts;
/* The schedule of a kind; the caller frees it. WF_ERR_ARGUMENT names a number below 1. Local. */
wf_pipeline_schedule *wf_pipeline_schedule_new(wf_ctx *ctx, wf_pipeline_schedule_opts opts);
/* Returns a schedule of the same computations, with messages in one order of all stages, that in which they are made if
 * a backward takes as long as two forwards: for NCCL, which moves the messages of a stage one after the other, each
 * with both its ends. A stage may receive a message before it has computed what comes before its use. `schedule` must
 * pass wf_pipeline_schedule_verify. The caller frees it. Local. */
wf_pipeline_schedule *wf_pipeline_schedule_in_order(const wf_pipeline_schedule *schedule);
void wf_pipeline_schedule_free(wf_pipeline_schedule *schedule);
wf_status wf_pipeline_schedule_add(wf_pipeline_schedule *schedule, int stage, wf_pipeline_action action) WF_NODISCARD;
/* "stage 1, step 4 (receive the input of part 1, chunk 2, from stage 0)" */
const char *wf_pipeline_action_text(const wf_pipeline_schedule *schedule, int stage, int step,
                                    char text[WF_FAILURE_TEXT]);

/* --- verify.c ------------------------------------------------------------------------------------------------------
 */
/* WF_OK where every stage computes each chunk through each of its parts once forward and once backward, has what it
 * needs before it, gives away what others need after it; every send meets the receive of the same message; and no
 * stages wait for each other in a circle, in an ordered schedule even if each message waits until both its ends have
 * come. Else WF_ERR_STATE with the stages and the step. Local. */
wf_status wf_pipeline_schedule_verify(const wf_pipeline_schedule *schedule) WF_NODISCARD;

/* What the parts of a model cost: of one chunk, by part; NULL: nothing. */
typedef struct wf_pipeline_costs {
    const double *forward_s, *backward_s;
    const size_t *bytes;      /* of the input of the part */
    const size_t *skip_bytes; /* by skip */
} wf_pipeline_costs;
typedef struct wf_pipeline_price {
    double seconds; /* of a step, until the last stage is done */
    double bubble;  /* the fraction of stages * seconds in which a stage does not compute */
    uint64_t bytes; /* of all messages */
    int *live;      /* NULL, or room for one number a stage: the most chunks, over its parts, that wait for their
                       backward */
} wf_pipeline_price;
/* Prices it by the engine (wf_schedule_price), all ranks on one node where `model` says nothing else. Local. */
wf_status wf_pipeline_schedule_price(const wf_pipeline_schedule *schedule, const wf_pipeline_costs *costs,
                                     const wf_price_model *model, wf_pipeline_price *price) WF_NODISCARD;

#endif
