/* Layer-wise updates (You et al. 2017, "LARS"; 2020, "LAMB"): every parameter moves by a length that its own norm
 * gives. Norms are of whole parameters, so ranks that hold parts add up their squares. Called by the rules of LAMB and
 * of programs. */
#include "optim/optim_author.h"
#include "optim/optim_impl.h"

enum { LINE = 64 };

/* Scratch of one update, in device memory: two squares for each parameter, then the directions. */
typedef struct scratch {
    void *data;
    size_t bytes;
} scratch;

/* A local optimizer has no ranks to ask: a part of a parameter is an error there. */
wf_status wf_optim_sum_parts(const wf_optim_work *work, int per, double *number)
{
    const wf_optim_distributed *distributed = work->optim->distributed;
    if (distributed)
        return distributed->sum_parts(work->optim, per, number);
    for (int64_t i = 0; i < work->n; i++) {
        const wf_param *param = work->param[i];
        WF_CHECK(wf_shape_count(param->shape) == wf_shape_count(param->global), WF_ERR_STATE,
                 "%s needs the norm of %s, of which this rank holds a part; use wf_mesh_multi_node",
                 work->optim->rule->name, wf_param_path(param));
    }
    return WF_OK;
}

/* Directions begin at cache lines, as parameters do. */
static size_t direction_bytes(const wf_optim_work *work, int64_t i)
{
    const size_t bytes = (size_t)work->segment[i].n * wf_dtype_size(work->dtype);
    return (bytes + LINE - 1) / LINE * LINE;
}

static bool scales(wf_trust how)
{
    return how == WF_TRUST_SCALED || how == WF_TRUST_SCALED_NO_DECAY;
}

/* The rule decides by the options of the parameter's group. */
static wf_trust how_of(const wf_optim_work *work, int64_t i, wf_trust_fn *how)
{
    const wf_optim_segment *segment = &work->segment[i];
    wf_optim_hyper options = *work->options;
    wf_optim_work own = *work;
    if (segment->grouped) {
        options.lr *= segment->lr_scale;
        options.decay = segment->decay;
    }
    own.options = &options;
    return how ? how(&own, work->param[i]) : WF_TRUST_SCALED;
}

/* The directions follow the squares. */
static size_t squares_bytes(const wf_optim_work *work)
{
    return ((size_t)work->n * 2 * sizeof(double) + LINE - 1) / LINE * LINE;
}

/* The kernel writes directions in place of moving parameters if a segment has one. */
static void place(const wf_optim_work *work, const scratch *room, wf_trust_fn *how)
{
    char *at = (char *)room->data + squares_bytes(work);
    for (int64_t i = 0; i < work->n; i++) {
        const wf_trust one = how_of(work, i, how);
        work->segment[i].direction = at;
        work->segment[i].squares = (const double *)room->data + 2 * i;
        work->segment[i].no_decay = one == WF_TRUST_NO_DECAY || one == WF_TRUST_SCALED_NO_DECAY;
        at += direction_bytes(work, i);
    }
}

static wf_status add_squares(const wf_optim_work *work, void *data, int64_t n, double *number)
{
    const wf_array part = {.data = data, .dtype = work->dtype, .shape = WF_SHAPE(n)};
    const wf_array out = {.data = number, .dtype = WF_F64, .shape = wf_shape_scalar()};
    return work->ctx->k->sum_squares(work->ctx, &part, &out, false);
}

/* Squares of the parameter and of its direction; those of parameters that are not scaled stay 0. */
static wf_status find_norms(const wf_optim_work *work, double *squares, wf_trust_fn *how)
{
    const wf_array all = {.data = squares, .dtype = WF_F64, .shape = WF_SHAPE(2 * work->n)};
    WF_TRY(work->ctx->k->fill(work->ctx, &all, 0));
    for (int64_t i = 0; i < work->n; i++) {
        const wf_optim_segment *segment = &work->segment[i];
        if (segment->n == 0 || !scales(how_of(work, i, how)))
            continue;
        WF_TRY(add_squares(work, segment->p, segment->n, squares + 2 * i));
        WF_TRY(add_squares(work, segment->direction, segment->n, squares + 2 * i + 1));
    }
    return wf_optim_sum_parts(work, 2, squares);
}

/* The second pass takes directions as gradients; decay and momentum are in them already. */
static wf_status move(const wf_optim_work *work)
{
    for (int64_t i = 0; i < work->n; i++) {
        wf_optim_segment *segment = &work->segment[i];
        *segment = (wf_optim_segment){.p = segment->p,
                                      .g = segment->direction,
                                      .n = segment->n,
                                      .squares = segment->squares,
                                      .grouped = segment->grouped,
                                      .lr_scale = segment->lr_scale};
    }
    return work->ctx->k->optim_update(work->ctx, WF_OPTIM_TRUST, work->hyper, work->dtype, work->n, work->segment);
}

/* Three passes: directions, norms, moves. All stay on the device, so the step can be captured. */
static wf_status update_params(const wf_optim_work *work, wf_optim_kind kind, const scratch *room, wf_trust_fn *how)
{
    place(work, room, how);
    WF_TRY(work->ctx->k->optim_update(work->ctx, kind, work->hyper, work->dtype, work->n, work->segment));
    WF_TRY(find_norms(work, room->data, how));
    return move(work);
}

wf_status wf_optim_trust(const wf_optim_work *work, wf_optim_kind kind, wf_trust_fn *how)
{
    WF_NEED(work);
    scratch room = {.bytes = squares_bytes(work)};
    for (int64_t i = 0; i < work->n; i++)
        room.bytes += direction_bytes(work, i);
    WF_TRY(wf_pool_take(work->ctx, room.bytes, &room.data));
    const wf_status status = update_params(work, kind, &room, how);
    wf_pool_give(work->ctx, room.data, room.bytes);
    return status;
}
