/* The inside of an optimizer, for this folder. */
#ifndef WF_OPTIM_OPTIM_IMPL_H
#define WF_OPTIM_OPTIM_IMPL_H

#include "core/tape_author.h"
#include "layers/layer.h"
#include "optim/optim_author.h"
#include "optim/schedule.h"

/* State of one parameter, found by its path relative to the model. Slots are never dropped: a parameter that is frozen
 * and taken in again goes on where it was. */
typedef struct wf_optim_slot {
    char *path;
    /* Type of the parameter; its shape and order, or where the state is sharded over ranks, its elements [lo, hi) in
     * memory. NULL where the kind has none, and zero where an optimizer that shards it has not yet. */
    wf_tensor *state[WF_OPTIM_STATES];
    struct wf_comm *comm; /* the ranks that have the other parts; NULL: whole */
    int64_t lo, hi;
    bool grouped; /* a group has the parameter, which has these numbers of its own */
    double lr_scale, decay;
} wf_optim_slot;

/* One call of wf_optim_group. */
typedef struct wf_optim_group_entry {
    char pattern[WF_GROUP_PATTERN];
    wf_group_opts opts;
    bool found; /* a parameter that this rank has is in it */
} wf_optim_group_entry;

/* In device memory. */
typedef struct wf_optim_device {
    wf_optim_hyper hyper;
    double sum_squares;
    double loss; /* of several backwards, each times its weight */
    wf_loss_scaling scaling;
} wf_optim_device;

/* What an optimizer over several ranks does beyond a local one. All are called with optim->distributed_state set. */
typedef struct wf_optim_distributed {
    int64_t trailer; /* elements that ride behind the gradients */
    /* Before backward: looks at the loss, and gives the seed of its gradient. */
    wf_status (*loss_weight)(wf_optim *optim, wf_var *loss, double *seed);
    /* Before flat gradients are made: `order` lists all of optim->target; all ranks leave with the same order. */
    wf_status (*agree)(wf_optim *optim, int64_t n, wf_param **order);
    /* As backward begins, with flat gradients at hand: it will complete these; the others are zero and stay so. */
    wf_status (*begin)(wf_optim *optim, int64_t n, wf_param *const *reached);
    /* In backward: a gradient is complete. */
    wf_status (*ready)(wf_optim *optim, wf_param *param);
    /* After backward: ends the sums of the flat gradients; the update multiplies them by *grad_scale; 0: there is
     * nothing to update with yet. */
    wf_status (*reduce)(wf_optim *optim, wf_var *loss, double *grad_scale);
    /* flush: like reduce without a step, for sums that are left in flight. pending: true if there are such. */
    wf_status (*flush)(wf_optim *optim, double *grad_scale);
    bool (*pending)(const wf_optim *optim);
    bool (*delayed)(const wf_optim *optim); /* updates come a step later: double buffering */
    /* After the update of a flush: goes on adding to the gradients that were accumulated before it. */
    wf_status (*resume)(wf_optim *optim);
    const wf_mesh *(*mesh)(const wf_optim *optim);
    /* What accumulated losses have left: their sum, in device memory, and the trailer. */
    void (*accumulated)(const wf_optim *optim, wf_array *loss, double **trailer);
    /* Numbers of parameters, as wf_optim_sum_parts says. */
    wf_status (*sum_parts)(wf_optim *optim, int per, double *number);
    /* After the numbers of the update were sent to the device: stops it there if the sums say so, where `reduce` has
     * not waited for them. Does not wait. */
    wf_status (*verdict)(wf_optim *optim);
    /* After the update: waits for the sums if `reduce` has not, and returns their errors; where state is sharded, every
     * rank gets what the others have updated. NULL: nothing to do. */
    wf_status (*updated)(wf_optim *optim);
    /* The sum of squares of all gradients, each part counted once, to `out` (f64, in device memory). */
    wf_status (*norm)(wf_optim *optim, const wf_array *out);
    /* A sum of squares that is non-finite on every rank if any gradient on any rank is non-finite; otherwise any
     * number. No read by the host. */
    wf_status (*overflow)(wf_optim *optim, const wf_array *out);
    /* This rank leaves a step with an error: tells the other ranks, unless all have it (optim->agreed), and returns
     * what the step returns. */
    wf_status (*failed)(wf_optim *optim, wf_status status);
    void (*free)(wf_optim *optim);
} wf_optim_distributed;

/* The state of the rule "rmsprop_sgd": when it turns, in updates. */
typedef struct wf_optim_transition {
    double centre, period;
} wf_optim_transition;

struct wf_optim {
    wf_ctx *ctx;
    wf_layer *model;           /* borrowed */
    const wf_optim_rule *rule; /* borrowed */
    void *state;               /* the rule's */
    char note[WF_OPTIM_NOTE];
    wf_optim_hyper hyper; /* what the options said; lr is the base */
    wf_schedule_opts schedule;
    double clip_norm; /* 0: none */
    wf_optim_group_entry *group;
    int n_groups;
    int group_changes; /* for captured steps */
    int64_t steps;     /* tried */
    bool scales;       /* the loss */
    wf_loss_scale_opts scale;
    wf_optim_device *device;

    /* The trainable parameters, in the model's order, and their slots; `capacity` entries each. */
    bool bound; /* the lists are whole */
    int64_t n, capacity;
    wf_param **target;
    wf_param **order;   /* scratch: the order of the flat buffer, and of the parameters of an update */
    int64_t *target_of; /* by place in the flat buffer */
    int64_t *slot_of;
    wf_optim_segment *segment;
    wf_optim_slot *slot;
    int64_t n_slots;

    wf_grads *grads; /* NULL until the first step */
    bool stale;      /* `grads` is of the parameters before a change of the model, some of which may be gone */

    bool queues;          /* the running step updates as soon as the gradients are summed */
    bool more;            /* the running backward is not the last of its step */
    bool adding;          /* gradients of earlier ones wait in `grads` */
    double weight_sum;    /* of their losses, where the optimizer is local */
    wf_tensor **restored; /* those of an archive, by target, until the next backward adds to them; else NULL */

    const wf_optim_distributed *distributed; /* NULL: local */
    void *distributed_state;
    bool agreed;       /* the error of this step is the same on all ranks, so no rank need be told of it */
    bool shards_state; /* state is, or will be, sharded over ranks */
};

/* By what archives distinguish optimizers, and the name of the one that has a number. */
int64_t wf_optim_rule_number(const wf_optim_rule *rule);
const char *wf_optim_rule_name(int64_t number);

/* Brings target, slot_of and slots up to date with what is trainable now. */
wf_status wf_optim_bind(wf_optim *optim) WF_NODISCARD;
/* Local: the seed of the loss, which is 1 unless gradients are added up; then the loss of all of them. */
wf_status wf_optim_loss_weight(wf_optim *optim, const wf_var *loss, double *seed) WF_NODISCARD;
/* The number of samples that the loss is a mean over, by which it counts among others. WF_ERR_STATE: it is no mean. */
wf_status wf_loss_samples(const wf_var *loss, double *weight) WF_NODISCARD;
/* The seed of a loss that counts by `weight`. */
double wf_loss_seed(const wf_var *loss, double weight);
wf_status wf_optim_weighted_loss(wf_optim *optim, wf_var *loss, double *grad_scale) WF_NODISCARD;
/* Losses stay in device memory: factor times the loss goes to an f64 number (or is added to it); factor times a float
 * number becomes the loss. */
wf_status wf_loss_add(wf_ctx *ctx, const wf_tensor *loss, double factor, const wf_array *sum, bool more) WF_NODISCARD;
wf_status wf_loss_set(wf_ctx *ctx, const wf_strided *sum, double factor, wf_tensor *loss) WF_NODISCARD;
/* Weighs the loss and differentiates it: flat gradients of all targets, zero where the loss does not reach. */
wf_status wf_optim_differentiate(wf_optim *optim, wf_var *loss) WF_NODISCARD;
/* Returns true if grads exists and every target's gradient lies in it. */
bool wf_optim_grads_current(const wf_optim *optim);
/* Clipping and update with the gradients that are there, times grad_scale. */
wf_status wf_optim_apply(wf_optim *optim, double grad_scale) WF_NODISCARD;

/* --- groups.c ----------------------------------------------------------------------------------------------------- */

/* The numbers that the groups give a parameter go into its slot. */
void wf_groups_apply(const wf_optim *optim, const wf_param *param, wf_optim_slot *slot);
uint64_t wf_groups_hash(const wf_optim *optim);
/* As a list; cut off where `bytes` end. */
void wf_groups_text(const wf_optim *optim, char *text, size_t bytes);
wf_status wf_groups_archive(const wf_optim *optim, wf_archive *archive) WF_NODISCARD;

/* --- scale.c: a loss that is scaled ------------------------------------------------------------------------------- */

/* What double buffering and a scaled loss have to say to each other. */
wf_status wf_scale_check_buffers(bool scales, bool double_buffering) WF_NODISCARD;
/* What an optimizer's options about it are: equal for equal ones. */
uint64_t wf_scale_hash(const wf_optim *optim, uint64_t hash);
wf_status wf_scale_archive(wf_optim *optim, wf_archive *archive) WF_NODISCARD;

/* --- optim_archive.c, accumulate_archive.c: saved and loaded -------------------------------------------------------
 */

/* Every component of a path is a group; *depth: how many were entered. */
wf_status wf_optim_enter_path(wf_archive *archive, const char *path, int *depth) WF_NODISCARD;
/* The states of what is bound, as a group "state". */
wf_status wf_optim_states_archive(wf_optim *optim, wf_archive *archive) WF_NODISCARD;
/* What wf_optim_accumulate has left for the next step, if anything. */
wf_status wf_accumulated_archive(wf_optim *optim, wf_archive *archive) WF_NODISCARD;
/* The gradients of an archive go where the next backward adds to them; or are forgotten. */
wf_status wf_accumulated_restore(wf_optim *optim) WF_NODISCARD;
void wf_accumulated_forget(wf_optim *optim);

/* --- shard.c: state that is sharded over ranks
 * ------------------------------------------------------------------------ */

/* The whole of state s, shaped as its parameter: a handle to be freed. Collective where the slot is sharded. */
wf_tensor *wf_slot_whole(const wf_optim *optim, const wf_optim_slot *slot, const wf_param *param, int s);
/* Keeps this rank's part of it. */
wf_status wf_slot_keep(const wf_optim *optim, wf_optim_slot *slot, int s, wf_tensor *whole) WF_NODISCARD;

/* WF_ERR_ARGUMENT says what is wrong. */
wf_status wf_schedule_check(const wf_schedule_opts *opts) WF_NODISCARD;

#endif
