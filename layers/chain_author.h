/* The steps of a model whose parts are on several ranks (layers/chain.h), as data: what every rank takes, computes and
 * gives, in its order. Each rank makes its own list, all get the lists of all, and each verifies them. Backward is the
 * same steps in the opposite order and direction. */
#ifndef WF_LAYERS_CHAIN_AUTHOR_H
#define WF_LAYERS_CHAIN_AUTHOR_H

#include "comm/proof/proof_author.h"
#include "layers/chain.h"

#define WF_CHAIN_NAME 32

typedef enum wf_chain_verb {
    WF_CHAIN_TAKE = 0, /* an input of a component: waits for rank `peer` */
    WF_CHAIN_COMPUTE,
    WF_CHAIN_GIVE /* an output, to rank `peer`; goes on without waiting */
} wf_chain_verb;

/* Goes from rank to rank as bytes, so what is unused is 0. */
typedef struct wf_chain_step {
    int32_t verb, peer; /* peer: WF_OUTSIDE too, and the rank itself */
    int32_t component;  /* number on its rank */
    int32_t port;       /* which input, or output, of it; of COMPUTE how many outputs there are */
    int32_t rank;       /* of the shape that is said; 0: none */
    int32_t unused;
    int64_t dim[WF_MAX_RANK];
    char name[WF_CHAIN_NAME];    /* of the component */
    char message[WF_CHAIN_NAME]; /* "": none */
} wf_chain_step;

typedef struct wf_chain_steps {
    wf_ctx *ctx;
    const wf_comm *comm; /* whose ranks they are, for messages (wf_rank_text); NULL: constructed ones */
    int ranks;
    int *count; /* of each rank */
    wf_chain_step **step;
} wf_chain_steps;

/* --- steps.c -------------------------------------------------------------------------------------------------------
 */
/* comm: whose ranks they are; NULL: of none, as in proofs. */
wf_chain_steps *wf_chain_steps_new(wf_ctx *ctx, const wf_comm *comm, int ranks);
void wf_chain_steps_free(wf_chain_steps *steps);
/* Adds the steps of a component to those of a rank. WF_ERR_ARGUMENT for one that cannot be. Local. */
wf_status wf_chain_steps_add(wf_chain_steps *steps, int rank, const wf_component *component) WF_NODISCARD;
/* "rank 1, step 0 (decoder takes \"h\" from rank 0)" */
const char *wf_chain_step_text(const wf_chain_steps *steps, int rank, int step, char text[WF_FAILURE_TEXT]);

/* --- verify.c ------------------------------------------------------------------------------------------------------
 */
/* WF_OK where every message that is given is taken, in the order of each pair of ranks, with the same name and a shape
 * that fits; components have names of their own; and no ranks wait for each other in a circle, forward or backward.
 * Else WF_ERR_STATE with the ranks and the step. Local. */
wf_status wf_chain_steps_verify(const wf_chain_steps *steps) WF_NODISCARD;

/* The steps as schedules of the engine, forward and then backward, for proofs and simulations: all[r] of rank r, freed
 * by the caller. A value is a number of 8 bytes. Inputs of a rank are what comes from outside, in the order of its
 * steps, then the gradients of what it gives to the outside, the last step first; outputs in the same order: what it
 * gives, then the gradients of what it takes from outside. What a component makes of its numbers is wf_chain_mix. */
wf_status wf_chain_steps_schedules(const wf_chain_steps *steps, const wf_agreed *agreed,
                                   wf_schedule **all) WF_NODISCARD;
/* Output `port` of the component of this name, from its inputs; backward: the gradient of input `port`, from those of
 * everything that the component gives. */
uint64_t wf_chain_mix(const char *name, bool backward, int port, int n, const uint64_t *in);

#endif
