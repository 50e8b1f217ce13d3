/* The parts of a model over several ranks, for this room. */
#ifndef WF_LAYERS_MULTI_NODE_CHAIN_IMPL_H
#define WF_LAYERS_MULTI_NODE_CHAIN_IMPL_H

#include "comm/outbox_author.h"
#include "layers/chain_author.h"
#include "layers/layer_author.h"

/* How one component is applied. */
typedef struct wf_chain_part {
    wf_layer *layer; /* a child of the model */
    wf_component_function function;
    void *user;
    int n_in, outputs;
} wf_chain_part;

typedef struct wf_chain_state {
    wf_comm *comm;         /* borrowed */
    wf_chain_steps *steps; /* of all ranks; before connect of this rank alone */
    wf_chain_part *part;
    int parts, inputs, outputs; /* inputs, outputs: of this rank from and to outside */
    bool connected;
    wf_outbox *outbox;
    /* During a forward, with one entry for each step. */
    wf_var **in;   /* of the component that comes next */
    wf_var **out;  /* of the one that was computed last */
    wf_var **held; /* given to this rank by itself, in order */
    int given, taken, from_outside, to_outside;
    wf_var *token;
} wf_chain_state;

/* What a program gives and gets in one call. */
typedef struct wf_chain_call {
    wf_tape *tape;
    int n_x, n_y;
    wf_var *const *x;
    wf_var **y;
} wf_chain_call;

/* --- run.c ----------------------------------------------------------------------------------------------------------
 */
/* Runs this rank's steps. */
wf_status wf_chain_run(wf_layer *chain, const wf_chain_call *call, wf_var **y) WF_NODISCARD;

#endif
