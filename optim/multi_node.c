#include "optim/multi_node.h"

#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "optim/multi_node_impl.h"

#include <stdlib.h>

/* What rides behind the gradients, summed with them. */
enum {
    TAIL_LOSS = 0, /* the loss, times its weight where it is a local mean */
    TAIL_WEIGHT,   /* samples of local means */
    TAIL_SHARDED,  /* ranks whose loss is a part of a global mean */
    TAIL_LOCAL,    /* ranks whose loss is a local mean */
    TAIL
};

typedef struct multi_node {
    const wf_mesh *mesh; /* borrowed */
    wf_comm *comm;       /* of all ranks that have this model */
    unsigned axes;       /* along which those lie */
    bool data_alone;     /* made by wf_multi_node */
    int64_t *offset;     /* of the reducer's segments: those of the gradients and the end of the tail */
    wf_grad_run *run;
    int64_t n_runs;
    double tail[TAIL];
} multi_node;

/* How many ranks have the same loss. */
static double copies(const multi_node *own, const wf_layout *layout)
{
    double ranks = 1;
    for (int axis = 0; axis < WF_AXES; axis++) {
        const bool part = layout->known ? layout->placement[axis] == WF_PARTIAL : axis == WF_AXIS_DATA;
        if ((own->axes >> axis & 1u) && !part)
            ranks *= wf_mesh_size(own->mesh, (wf_axis)axis);
    }
    return ranks;
}

static wf_status weigh_sharded(multi_node *own, const wf_layout *layout, double loss)
{
    char text[WF_LAYOUT_TEXT];
    bool fits = layout->mesh == own->mesh;
    for (int axis = 0; fits && axis < WF_AXES; axis++) {
        const bool split = own->axes >> axis & 1u, partial = layout->placement[axis] == WF_PARTIAL;
        fits = layout->placement[axis] != WF_SHARDED &&
               (partial ? split || wf_mesh_size(own->mesh, (wf_axis)axis) == 1 : !split || axis != WF_AXIS_DATA);
    }
    WF_CHECK(fits, WF_ERR_UNSUPPORTED,
             "the loss is %s; %s takes a part of a sum over data on its own mesh (a mean over a sharded batch), or a "
             "mean without a layout",
             wf_layout_text(layout, text), own->data_alone ? "wf_multi_node" : "wf_mesh_multi_node");
    own->tail[TAIL_SHARDED] = 1;
    own->tail[TAIL_LOSS] = loss / copies(own, layout);
    return WF_OK;
}

static wf_status weigh(wf_optim *optim, wf_var *loss, double *seed)
{
    multi_node *own = optim->across_own;
    const wf_layout layout = wf_tensor_layout(wf_value(loss));
    for (int i = 0; i < TAIL; i++)
        own->tail[i] = 0;
    if (loss->no_loss)
        return WF_OK;
    const double value = wf_item(loss);
    if (layout.known)
        return weigh_sharded(own, &layout, value);
    WF_CHECK(loss->loss_mean || wf_mesh_size(own->mesh, WF_AXIS_DATA) == 1, WF_ERR_STATE,
             "the loss is no mean over samples, so its weight across ranks is unknown; end it in wf_mean or a loss "
             "function");
    const double weight = loss->loss_mean ? (double)loss->loss_count : 1, share = weight / copies(own, &layout);
    *seed = weight > 0 ? weight : WF_ZERO;
    own->tail[TAIL_LOCAL] = 1;
    own->tail[TAIL_WEIGHT] = share;
    own->tail[TAIL_LOSS] = share > 0 ? share * value : 0;
    return WF_OK;
}

static wf_status check_parameters(const wf_optim *optim, bool data_alone)
{
    wf_param *const *params;
    int64_t n;
    WF_TRY(wf_layer_params(optim->model, &n, &params));
    for (int64_t i = 0; i < n && data_alone; i++) {
        WF_CHECK(!params[i]->trainable || params[i]->axes == 1u << WF_AXIS_DATA, WF_ERR_UNSUPPORTED,
                 "the gradient of %s is summed over mesh axes 0x%x; wf_multi_node sums over data (0x1) alone, use "
                 "wf_mesh_multi_node",
                 wf_param_path(params[i]), (unsigned)params[i]->axes);
        WF_CHECK(params[i]->cut_axes == 0, WF_ERR_UNSUPPORTED,
                 "%s is a part of a parameter that is cut over mesh axes 0x%x; use wf_mesh_multi_node",
                 wf_param_path(params[i]), (unsigned)params[i]->cut_axes);
    }
    return WF_OK;
}

static wf_status agree(wf_optim *optim, int64_t n, wf_param **order)
{
    multi_node *own = optim->across_own;
    WF_TRY(check_parameters(optim, own->data_alone));
    int64_t *offset = wf_realloc(optim->ctx, own->offset, (size_t)(n + 2) * sizeof *offset);
    WF_NEED(offset);
    own->offset = offset;
    wf_grad_run *run = wf_realloc(optim->ctx, own->run, (size_t)n * sizeof *run);
    WF_NEED(run);
    own->run = run;
    WF_TRY(wf_agree_order(own->comm, optim, order, &optim->agreed));
    wf_grad_sort(own->mesh, own->axes, n, order);
    own->n_runs = wf_grad_runs(own->mesh, n, order, own->run);
    return WF_OK;
}

/* The numbers of the tail to (or from) the end of the flat buffer, in its type. */
static wf_status move_tail(wf_optim *optim, double *tail, bool out)
{
    const wf_grads *grads = optim->grads;
    const wf_kernels *k = optim->ctx->k;
    const bool wide = grads->flat->dtype == WF_F64;
    const size_t size = wf_dtype_size(grads->flat->dtype);
    char *device = (char *)grads->flat->data + (size_t)grads->offset[grads->n] * size;
    float narrow[TAIL];
    void *host = wide ? (void *)tail : narrow;
    WF_CHECK(wide || grads->flat->dtype == WF_F32, WF_ERR_DTYPE, "gradients of type %s; they must be f32 or f64",
             wf_dtype_name(grads->flat->dtype));
    for (int i = 0; i < TAIL && !wide && !out; i++)
        narrow[i] = (float)tail[i];
    WF_TRY(out ? k->to_host(optim->ctx, host, device, TAIL * size)
               : k->to_device(optim->ctx, device, host, TAIL * size));
    for (int i = 0; i < TAIL && !wide && out; i++)
        tail[i] = narrow[i];
    return WF_OK;
}

static wf_status sum_segments(wf_optim *optim, unsigned axes, int64_t first, int64_t last)
{
    const multi_node *own = optim->across_own;
    const wf_reduce_job job = {.flat = optim->grads->flat->data,
                               .dtype = optim->grads->flat->dtype,
                               .segments = last - first,
                               .offset = own->offset + first};
    wf_comm *comm = axes == own->axes ? own->comm : wf_mesh_comm_of(own->mesh, axes);
    WF_NEED(comm);
    return wf_comm_reducer(comm)->reduce(comm, &job);
}

/* Gradients that are summed over the same ranks go together, and the tail with those that are summed over all. */
static wf_status sum(wf_optim *optim)
{
    multi_node *own = optim->across_own;
    const wf_grads *grads = optim->grads;
    int64_t first = 0;
    for (int64_t i = 0; i <= grads->n; i++)
        own->offset[i] = grads->offset[i];
    own->offset[grads->n + 1] = grads->offset[grads->n] + TAIL;
    for (int64_t r = 0; r < own->n_runs; r++) {
        const unsigned axes = own->run[r].axes;
        if (axes == own->axes)
            break;
        if (r + 1 < own->n_runs && own->run[r + 1].axes == axes)
            continue;
        if (axes != 0)
            WF_TRY(sum_segments(optim, axes, first, own->run[r].last));
        first = own->run[r].last;
    }
    return sum_segments(optim, own->axes, first, grads->n + 1);
}

static wf_status norm(wf_optim *optim, const wf_array *out)
{
    const multi_node *own = optim->across_own;
    const wf_kernels *k = optim->ctx->k;
    double sums[1 << WF_AXES] = {0}, total = 0;
    bool seen[1 << WF_AXES] = {false};
    for (int64_t r = 0; r < own->n_runs; r++) {
        const wf_grad_run *run = &own->run[r];
        double here = 0;
        wf_array part = wf_tensor_array(optim->grads->flat);
        part.data = (char *)part.data + (size_t)own->offset[run->first] * wf_dtype_size(part.dtype);
        part.shape = WF_SHAPE(own->offset[run->last] - own->offset[run->first]);
        WF_TRY(k->sum_squares(optim->ctx, &part, out, false));
        WF_TRY(k->to_host(optim->ctx, &here, out->data, sizeof here));
        sums[run->cut] += here;
        seen[run->cut] = true;
    }
    for (unsigned cut = 0; cut < 1u << WF_AXES; cut++) {
        if (seen[cut] && cut != 0)
            WF_TRY(wf_allreduce_f64(wf_mesh_comm_of(own->mesh, cut), &sums[cut], 1, WF_SUM));
        total += sums[cut];
    }
    return k->to_device(optim->ctx, out->data, &total, sizeof total);
}

/* From now on the loss is the one of all ranks. */
static wf_status set_loss(wf_var *loss, double value)
{
    wf_layout layout = wf_tensor_layout(loss->value);
    WF_TRY(wf_tensor_fill(loss->value, value));
    if (!layout.known)
        return WF_OK;
    for (int axis = 0; axis < WF_AXES; axis++)
        layout.placement[axis] = WF_REPLICATED;
    return wf_tensor_set_layout(loss->value, layout);
}

static wf_status reduce(wf_optim *optim, wf_var *loss, double *grad_scale)
{
    multi_node *own = optim->across_own;
    double *tail = own->tail;
    WF_TRY(move_tail(optim, tail, false));
    WF_TRY(sum(optim));
    WF_TRY(move_tail(optim, tail, true));
    optim->agreed = tail[TAIL_SHARDED] > 0 && tail[TAIL_LOCAL] > 0;
    WF_CHECK(
        !optim->agreed, WF_ERR_COMM,
        "the losses of the ranks differ in kind: %g are means over a sharded batch, %g local means without a layout",
        tail[TAIL_SHARDED], tail[TAIL_LOCAL]);
    const double weight = tail[TAIL_WEIGHT];
    *grad_scale = tail[TAIL_LOCAL] > 0 && weight > 0 ? 1 / weight : 1;
    return set_loss(loss, tail[TAIL_LOSS] * *grad_scale);
}

/* The others are on their way to a message that this rank will not send. */
static wf_status failed(wf_optim *optim, wf_status status)
{
    const multi_node *own = optim->across_own;
    return optim->agreed ? status : wf_comm_post_failure(wf_mesh_world(own->mesh), status);
}

static void free_own(wf_optim *optim)
{
    multi_node *own = optim->across_own;
    free(own->offset);
    free(own->run);
    free(own);
}

static wf_status attach(const wf_mesh *mesh, wf_optim *optim, bool data_alone, bool *agreed)
{
    static const wf_optim_across across = {.tail = TAIL,
                                           .weigh = weigh,
                                           .agree = agree,
                                           .reduce = reduce,
                                           .norm = norm,
                                           .failed = failed,
                                           .free = free_own};
    const unsigned axes = wf_grad_axes(mesh);
    wf_comm *comm = wf_mesh_comm_of(mesh, axes);
    WF_NEED(optim);
    WF_NEED(comm);
    WF_CHECK(!optim->across, WF_ERR_ARGUMENT, "%s around a multi-node optimizer",
             data_alone ? "wf_multi_node" : "wf_mesh_multi_node");
    WF_CHECK(optim->ctx == wf_comm_ctx(comm), WF_ERR_ARGUMENT,
             "the model belongs to another context than the communicator; make it with wf_comm_ctx");
    WF_TRY(wf_agree_model(comm, optim, agreed));
    *agreed = true; /* of equal models all ranks think the same */
    WF_TRY(check_parameters(optim, data_alone));
    *agreed = false;
    WF_TRY(wf_agree_values(mesh, optim));
    WF_TRY(wf_grad_connect(mesh, optim));
    multi_node *own = wf_calloc(optim->ctx, 1, sizeof *own);
    WF_NEED(own);
    *own = (multi_node){.mesh = mesh, .comm = comm, .axes = axes, .data_alone = data_alone};
    optim->across_own = own;
    optim->across = &across;
    wf_grads_free(optim->grads);
    optim->grads = NULL;
    return WF_OK;
}

static wf_optim *wrap(const wf_mesh *mesh, wf_optim *optim, bool data_alone)
{
    bool agreed = false;
    if (!mesh) {
        wf_optim_free(optim);
        return NULL;
    }
    const wf_status status = attach(mesh, optim, data_alone, &agreed);
    if (status == WF_OK)
        return optim;
    if (!agreed)
        wf_comm_post_failure(wf_mesh_world(mesh), status);
    wf_optim_free(optim);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}

wf_optim *wf_multi_node(wf_comm *comm, wf_optim *optim)
{
    return wrap(wf_comm_mesh(comm), optim, true);
}

wf_optim *wf_mesh_multi_node(const wf_mesh *mesh, wf_optim *optim)
{
    return wrap(mesh, optim, false);
}
