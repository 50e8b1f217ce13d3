/* Records in device memory by which a step of an optimizer and the kernels that update parameters speak: the trailer
 * behind the gradients, the numbers of the step, the scale of the loss, runs of parameters. Slots of the kernel table
 * (core/kernels_author.h) and optim use it. */
#ifndef WF_CORE_UPDATE_AUTHOR_H
#define WF_CORE_UPDATE_AUTHOR_H

#include <stdbool.h>
#include <stdint.h>

/* Places in the trailer: numbers behind the gradients of a step over several ranks, which are summed with them. */
enum {
    WF_TRAILER_LOSS = 0, /* the loss, times its weight where it is a local mean; never in host memory */
    WF_TRAILER_WEIGHT,   /* samples of local means */
    WF_TRAILER_SHARDED,  /* ranks whose loss is a part of a global mean */
    WF_TRAILER_LOCAL,    /* ranks whose loss is a local mean */
    WF_TRAILER_PARTS,    /* ranks whose losses, of several backwards, are parts of global means */
    WF_TRAILER_OVERFLOW, /* ranks that met a gradient which the gradient type in flight cannot hold */
    WF_TRAILER_CHANGED,  /* ranks whose model has changed since the step before, which send nothing else */
    WF_TRAILER_RANKS,    /* 1 of each: fewer are the sums of a collective that was given up */
    WF_TRAILER_COMPARED, /* ranks that compare what they drew */
    WF_TRAILER_DRAWS,    /* of those: the bits of a hash of it */
    WF_DRAWS_BITS = 16,
    WF_TRAILER = WF_TRAILER_DRAWS + WF_DRAWS_BITS
};

/* In device memory: written by `to_device` before the step. */
typedef struct wf_optim_hyper {
    double lr;
    double momentum; /* SGD momentum; 0: `state1` is not used */
    double beta1, beta2, eps;
    double alpha; /* RMSprop */
    double decay;
    double bias1, bias2; /* 1 - beta1^t, 1 - beta2^t */
    double grad_scale;   /* every gradient is multiplied by this first */
    double clip_value;   /* then cut to [-clip_value, clip_value]; 0: not */
    double nesterov;     /* not 0: Nesterov's form */
    double step;         /* t, counting skipped updates */
    double skip;         /* not 0: nothing is updated */
    double sgd, rms;     /* RMSPROP_SGD: the weights of the two directions */
} wf_optim_hyper;

/* The scale of a loss, in device memory. */
typedef struct wf_loss_scaling {
    double growth, backoff, interval; /* what the options said */
    double scale;                     /* of the loss of this step */
    double good;                      /* steps without overflow since the scale last changed */
    double skipped;                   /* steps with overflow so far */
    float seed;                       /* scale once more, as the gradient of a loss is multiplied by it */
} wf_loss_scaling;

/* One run of parameters: p, g, states of n elements of one float type. state1 is m (RMSPROP, ADAGRAD: v), state2 is v.
 * Unused states are NULL. */
typedef struct wf_optim_segment {
    void *p;
    const void *g;
    void *state1, *state2;
    int64_t n;
    bool no_decay; /* decay does not act on this run */
    bool grouped;  /* lr is multiplied by lr_scale here, and decay is that of the run */
    double lr_scale, decay;
    void *direction;       /* NULL; or p stays, and what it would move by goes here, without the sign and lr */
    const double *squares; /* TRUST: two numbers in device memory */
} wf_optim_segment;

#endif
