/* The parts of a multi-node optimizer, for this folder. */
#ifndef WF_OPTIM_MULTI_NODE_IMPL_H
#define WF_OPTIM_MULTI_NODE_IMPL_H

#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "optim/multi_node.h"
#include "optim/optim_impl.h"
#include "optim/reduce_author.h"

/* --- agree.c ------------------------------------------------------------------------------------------------------ */

/* All ranks have the same model: paths, shapes (of the serial parameters), types, order of memory, and mesh axes of its
 * parameters. The error names the first difference and is the same on all ranks (*agreed). Collective. */
wf_status wf_agree_model(wf_comm *comm, wf_optim *optim, bool *agreed) WF_NODISCARD;
/* Every parameter gets the value of the first rank, among those that hold the same part of it;
 * running statistics included. Collective. */
wf_status wf_agree_values(const wf_mesh *mesh, wf_optim *optim) WF_NODISCARD;
/* "data and height"; "no axis". */
#define WF_AXES_TEXT 64
const char *wf_axes_text(unsigned axes, char text[WF_AXES_TEXT]);
/* All ranks have the same kind of optimizer, with the same options, schedule, clipping and number of steps made.
 * Collective. */
wf_status wf_agree_optim(wf_comm *comm, const wf_optim *optim, bool *agreed) WF_NODISCARD;
/* All ranks of the mesh have the same groups of parameters, and each has a parameter on some rank. Collective. */
wf_status wf_agree_groups(wf_comm *world, const wf_optim *optim, bool *agreed) WF_NODISCARD;
/* Options are in their ranges and go together, else WF_ERR_ARGUMENT. Local. */
wf_status wf_check_opts(const wf_optim *optim, const wf_multi_node_opts *opts) WF_NODISCARD;
/* All ranks have the same options. Collective. */
wf_status wf_agree_opts(wf_comm *comm, wf_ctx *ctx, const wf_multi_node_opts *opts, bool *agreed) WF_NODISCARD;
/* All ranks, which train the same parameters, scale their losses alike; `order`, a permutation of optim->target,
 * becomes rank 0's. Collective. */
wf_status wf_agree_order(wf_comm *comm, wf_optim *optim, wf_param **order, bool *agreed) WF_NODISCARD;

/* --- replicas.c --------------------------------------------------------------------------------------------------- */

/* Seed and root of the model (wf_layer_root) become rank 0's; WF_ERR_COMM if a rank has drawn initial values of sharded
 * parameters from others, which no broadcast can mend. Collective. */
wf_status wf_agree_draws(wf_comm *comm, wf_optim *optim, bool *agreed) WF_NODISCARD;

/* What a rank has drawn in a step. Ranks that do not compare have zeros. */
typedef struct wf_draws_record {
    uint64_t compares, seed, hash;
    int64_t iteration, count;
    double samples; /* of all ranks, over which the loss is a mean; 0: it does not say, or counts labels */
} wf_draws_record;
/* Fills in the record and its part of the trailer. Local. */
void wf_draws_put(const wf_optim *optim, const wf_var *loss, bool compares, wf_draws_record *record, double *trailer);
/* With the sums of that trailer: WF_ERR_COMM on all ranks, naming one that drew otherwise; loss: of that step, or NULL
 * where its tape has gone on. Collective if there is an error, else local. */
wf_status wf_draws_check(wf_comm *comm, wf_optim *optim, const wf_var *loss, const wf_draws_record *record,
                         const double *trailer) WF_NODISCARD;
/* Ranks that hold the same part of a trainable parameter have the same bits; WF_ERR_COMM on all ranks names the first
 * that has not. agreed_at: the step after which they had. Collective. */
wf_status wf_replicas_compare(const wf_mesh *mesh, wf_comm *comm, wf_optim *optim, int64_t agreed_at) WF_NODISCARD;

/* *equal: they have; otherwise the first that has not is logged. Collective. */
wf_status wf_replicas_equal(const wf_mesh *mesh, wf_comm *comm, wf_optim *optim, bool *equal) WF_NODISCARD;

/* --- model_change.c ----------------------------------------------------------------------------------------------- */

struct wf_buckets;
/* Before the gradients of a changed model are laid out (of a new one: the first step): all ranks have made the same
 * change, else WF_ERR_COMM on all ranks names the difference. *moved: values differ between the ranks, which take rank
 * 0's once the running backward no longer needs them. Collective; ranks that have not changed are in a step of the old
 * model.
 */
wf_status wf_change_agree(struct wf_buckets *all, wf_comm *comm, bool *moved) WF_NODISCARD;
/* The error on a rank that has not changed its model, from the trailer of a step. Collective. */
wf_status wf_change_name(wf_comm *comm, wf_optim *optim) WF_NODISCARD;

/* --- grad_runs.c -------------------------------------------------------------------------------------------------- */

/* Parameters [first, last) of the flat buffer: those whose gradients are summed over the same axes of the mesh, and
 * which are sharded over the same ones. Axes that the mesh does not split are not named. */
typedef struct wf_grad_run {
    unsigned axes, sharded;
    int64_t first, last;
} wf_grad_run;

/* The axes that the mesh splits, without `stage`, whose ranks have models of their own. */
unsigned wf_grad_axes(const wf_mesh *mesh);
/* Reorders so that parameters of equal axes lie together, those that are summed over `last` at the end; otherwise the
 * order stays. */
void wf_grad_sort(const wf_mesh *mesh, unsigned last, int64_t n, wf_param **order);
/* The runs of an order, at most n; returns how many. */
int64_t wf_grad_runs(const wf_mesh *mesh, int64_t n, wf_param *const *order, wf_grad_run *runs);

/* --- buckets.c ---------------------------------------------------------------------------------------------------- */
/* 1 MiB: long enough that latency does not count, short enough that sums begin early. The first is a quarter of that,
 * since nothing hides what waits for it. */
#define WF_BUCKET_BYTES       ((int64_t)1 << 20)
#define WF_FIRST_BUCKET_BYTES ((int64_t)256 << 10)

typedef struct wf_buckets wf_buckets;

/* Consecutive gradients of the flat buffer that are summed over the same ranks, at once. */
typedef struct wf_bucket {
    wf_buckets *all;
    wf_comm *comm;
    uint64_t number;     /* wf_call.buffer */
    int64_t first, last; /* gradients [first, last) */
    int64_t missing;     /* of them, in this step so far */
    int64_t place;       /* of its last gradient in the order in which they come */
    bool trailer;        /* the trailer rides here; the last bucket that starts */
    int64_t lo, hi;      /* elements of the flat buffer whose sums this rank gets */
    int64_t *shard; /* from the first gradient on, those of every rank (wf_background_sum_shards); NULL: all get all */
    int64_t *relative;    /* offsets of its gradients from the first one on */
    wf_grad_bucket given; /* to a hook */
} wf_bucket;

/* The buckets of one flat buffer, in the order in which they start, which is the same on all ranks: the one in which
 * their last gradients came in rank 0's first step. A bucket waits for those before it. */
struct wf_buckets {
    wf_optim *optim;
    const wf_mesh *mesh; /* borrowed */
    unsigned axes;       /* over which the trailer is summed */
    wf_multi_node_opts opts;
    wf_param **arrived; /* the parameters in the order in which their gradients came */
    wf_grad_run *run;
    int64_t n_runs;
    wf_bucket *bucket;
    int64_t n, started, plans; /* plans: how often the gradients were cut into buckets */
    int64_t *bucket_of;        /* by place in the flat buffer; -1: not summed over ranks */
    int64_t *offset;           /* of the flat buffer: of the gradients, the trailer, and its end */
    void *narrow; /* room for the longest bucket in the gradient type in flight, where that is not the gradients' own */
    size_t narrow_bytes;
    int64_t *relative; /* room for those of the buckets */
    int64_t *shard;    /* room for those of the buckets */
    wf_tensor
        *values; /* the parameters in the order of the flat buffer, where the optimizer's state is sharded; else NULL */
    double trailer[WF_TRAILER];
    double sent[WF_TRAILER], summed[WF_TRAILER]; /* the last that was sent, and the sums that the host has looked at */
    double kept[WF_TRAILER];                     /* that of accumulated losses, during a flush */
    wf_tensor *loss;                             /* f64: of this rank, for the next trailer */
    wf_tensor *squares;                          /* f64: room for sums of squares, one for each set of axes */
    bool made;                                   /* for the flat buffer that is there */
    wf_grads *grads; /* whose sums are made: optim->grads; with double buffering the other one, while `pending` */
    wf_grads *other; /* of double buffering */
    bool pending;    /* sums are in flight between two steps */
    void *copied;    /* page-locked, for the trailer; NULL until an update is queued (queued.c) */
    wf_event *copy;  /* the trailer is there */
    bool copying;    /* the host has not waited for that yet */
};

wf_status wf_buckets_new(wf_optim *optim, const wf_mesh *mesh, wf_multi_node_opts opts, wf_buckets **all) WF_NODISCARD;
/* Connects what the model's parameters need. Collective. */
wf_status wf_buckets_open(wf_buckets *all) WF_NODISCARD;
/* Takes note of rank 0's order and sorts it into runs. Local. */
wf_status wf_buckets_plan(wf_buckets *all, int64_t n, wf_param **order) WF_NODISCARD;
/* Returns true if a layer has found in a forward since then that gradients of its parameter are summed over more axes;
 * *param is then such a parameter. Local. */
bool wf_buckets_outgrown(const wf_buckets *all, const wf_param **param);
/* The loss becomes that of all ranks, times a factor: from the trailer of grads. Local. */
wf_status wf_buckets_get_loss(const wf_buckets *all, const wf_grads *grads, double factor,
                              wf_tensor *loss) WF_NODISCARD;
/* The three calls of a step. begin: all->trailer has been filled in, backward will complete the gradients of `reached`;
 * starts the sums of buckets that have none of these. ready: one of them is complete. end: starts the rest, waits for
 * all, and leaves the sums of the trailer in all->trailer. Only end waits for other ranks; begin does, too, where it
 * makes the buckets, which is collective. */
wf_status wf_buckets_begin(wf_buckets *all, int64_t n, wf_param *const *reached) WF_NODISCARD;
wf_status wf_buckets_ready(wf_buckets *all, const wf_param *param) WF_NODISCARD;
wf_status wf_buckets_end(wf_buckets *all) WF_NODISCARD;
/* Like wf_buckets_end, in two parts, the first of which does not wait for the device: it puts a copy of the trailer on
 * the context's stream, and the sums are in all->trailer after wf_buckets_end_queued. Only where wf_queue_allowed. */
wf_status wf_buckets_end_begin(wf_buckets *all) WF_NODISCARD;
wf_status wf_buckets_end_queued(wf_buckets *all) WF_NODISCARD;
/* Joins the sums of a step after this rank's model has changed, with gradients that are not used: the trailer tells the
 * others of the change. *ranks is how many ranks do so. Collective. */
wf_status wf_buckets_announce(wf_buckets *all, double *ranks) WF_NODISCARD;
/* With double buffering in place of the three: the sums of the step before (*any: there are some) are waited for, those
 * of this one begin, and the parameters' gradients become the former. */
wf_status wf_buckets_swap(wf_buckets *all, bool *any) WF_NODISCARD;
/* At the end of training, with double buffering: waits for the sums in flight, as wf_buckets_swap, and begins no new
 * ones. */
wf_status wf_buckets_flush(wf_buckets *all) WF_NODISCARD;
/* After a flush in the middle of a step: the buffer and trailer of the gradients that were accumulated before it. */
wf_status wf_buckets_resume(wf_buckets *all) WF_NODISCARD;
void wf_buckets_free(wf_buckets *all);

/* Adds to the background stream the sums of a bucket's gradients, which are at `data`. */
wf_status wf_bucket_sum(wf_bucket *bucket, void *data, wf_dtype dtype) WF_NODISCARD;

/* --- queued.c ----------------------------------------------------------------------------------------------------- */

/* Returns true if the update of the running step can be queued before the host knows the trailer: the device has memory
 * of its own, the step is not captured, and no rank waits for others between the sums and the end of the update. The
 * same on all ranks. Local. */
bool wf_queue_allowed(const wf_buckets *all);
/* The trailer, in device memory, stops the update that follows or sets its grad_scale. Does not wait. Local. */
wf_status wf_queue_verdict(const wf_buckets *all, wf_optim_hyper *hyper) WF_NODISCARD;
/* Puts a copy of `bytes` at `from` on the context's stream; the second waits for it and gives its place. Local. */
wf_status wf_queue_copy(wf_buckets *all, const void *from, size_t bytes) WF_NODISCARD;
wf_status wf_queue_wait(wf_buckets *all, const void **copied) WF_NODISCARD;
void wf_queue_free(wf_buckets *all);

/* --- shard.c ------------------------------------------------------------------------------------------------------ */

/* Once the buckets are made: each rank's part of them, of the states, and the place of the parameters. Collective. */
wf_status wf_shards_plan(wf_buckets *all) WF_NODISCARD;
/* Parameters that are not there move into the flat buffer. Local. */
wf_status wf_shards_adopt(wf_buckets *all) WF_NODISCARD;
/* `per` f64 numbers for each parameter of the flat buffer, in its order: those of parameters of which the ranks hold
 * parts become the sums over these ranks. Collective. */
wf_status wf_shards_sum_numbers(const wf_buckets *all, int per, double *number) WF_NODISCARD;
/* Stages of a pipeline that have one parameter cut it into other parts, whose sums are rounded in other ways: all take
 * the numbers of the first of them, so that their copies stay equal. Collective over the stages. */
wf_status wf_shards_share_numbers(const wf_buckets *all, int per, double *number) WF_NODISCARD;
/* Every rank gets the parts that the others have updated. Collective. */
wf_status wf_shards_gather_values(wf_buckets *all) WF_NODISCARD;

/* --- grad_dtype.c ------------------------------------------------------------------------------------------------- */

/* Adds to the background stream the sums of a bucket's gradients in the gradient type in flight. */
wf_status wf_grad_dtype_reduce(wf_bucket *bucket) WF_NODISCARD;

#endif
