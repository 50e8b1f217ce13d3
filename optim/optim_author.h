/* How an optimizer is written, in the library or in a program: a wf_optim_rule and a constructor. optim/algorithms.c
 * has those of the library, optim/trust.c the update of LAMB; examples/scaled_rmsprop.c is one that a program brings
 * along.
 *
 * Everything else comes from the library: clipping, the schedule, loss scaling, sums of gradients over the ranks,
 * sharded state, archives, captured steps. */
#ifndef WF_OPTIM_OPTIM_AUTHOR_H
#define WF_OPTIM_OPTIM_AUTHOR_H

#include "core/kernels_author.h"
#include "core/opts.h"
#include "core/param_author.h"
#include "optim/optim.h"

/* Most states of one parameter. */
#define WF_OPTIM_STATES 2

/* One update, on this rank. What is not said to be in host memory is in device memory, which slots of the kernel table
 * alone read and write (ctx->k); `hyper` is, too, because it changes from step to step, and its `skip` too, which
 * optim_update obeys and others must. */
typedef struct wf_optim_work {
    wf_optim *optim;
    wf_ctx *ctx;
    void *state;                   /* host: of wf_optim_new */
    const wf_optim_hyper *hyper;   /* those of wf_optim_new; lr by the schedule, grad_scale with everything by which
                                      gradients are still to be multiplied: means, loss scale, clipping by norm */
    const wf_optim_hyper *options; /* host: as wf_optim_new was given them, for what does not change */
    wf_dtype dtype;
    /* The parameters that are updated, the same in the same order on all ranks. Of each, the part that this rank holds
     * and updates: all of it, or a shard (of a layer on a mesh, or of shard_optimizer), which may be empty. Both lists
     * are in host memory; the rule may change the segments. */
    int64_t n;
    wf_optim_segment *segment;
    wf_param *const *param;
} wf_optim_work;

typedef struct wf_optim_rule {
    const char *name;                    /* "lamb": in errors and archives */
    const char *states[WF_OPTIM_STATES]; /* of every parameter, in archives: of its shape and type, zero at first */
    wf_optim_kind kind;                  /* of the default update */
    /* The update. Local but for wf_optim_sum_parts. NULL: optim_update of the kernel table with `kind`. */
    wf_status (*update)(const wf_optim_work *work);
    void (*free)(void *state); /* what the state holds beyond plain values; may be NULL */
} wf_optim_rule;

/* An optimizer with a zeroed state of state_bytes. The rule is borrowed for its life. NULL, with WF_ERR_ARGUMENT, where
 * a number of hyper is out of its range: lr, decay, eps, momentum, or one of the betas and alpha. */
wf_optim *wf_optim_new(wf_layer *model, const wf_optim_rule *rule, wf_optim_hyper hyper, size_t state_bytes);
void *wf_optim_state(wf_optim *optim);
/* Records options beyond wf_optim_hyper as text: ranks must have the same. At most WF_OPTIM_NOTE characters are kept.
 */
#define WF_OPTIM_NOTE 128
void wf_optim_note(wf_optim *optim, const char *format, ...) WF_PRINTF(2, 3);

/* Numbers about parameters of which the ranks hold parts, such as sums of squares: `number`, in device memory, has
 * `per` f64 numbers for each parameter of the work. Each becomes the sum over the ranks that hold the other parts, the
 * same bits on all of them; of parameters that this rank holds whole it stays. WF_ERR_STATE if a parameter is a part
 * and the optimizer is not a multi-node one. Collective where there are parts. */
wf_status wf_optim_sum_parts(const wf_optim_work *work, int per, double *number) WF_NODISCARD;

/* What one parameter does in wf_optim_trust. */
typedef enum wf_trust {
    WF_TRUST_SCALED = 0, /* moves by lr times its own norm along its direction */
    WF_TRUST_AS_IS,      /* moves by lr times the direction */
    WF_TRUST_NO_DECAY,   /* moves by lr times the direction, which has no decay */
    WF_TRUST_SCALED_NO_DECAY
} wf_trust;
typedef wf_trust wf_trust_fn(const wf_optim_work *work, const wf_param *param);
/* The update of layer-wise optimizers (You et al. 2020): the direction is that of `kind`, which is scaled by
 * norm(parameter) / norm(direction), 1 where one of them is 0. Norms are of whole parameters. how: NULL: all SCALED. */
wf_status wf_optim_trust(const wf_optim_work *work, wf_optim_kind kind, wf_trust_fn *how) WF_NODISCARD;

#endif
