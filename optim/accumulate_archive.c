/* Accumulated gradients in an archive. Each rank's own sums are kept, with which the same partition goes on bit for
 * bit, and the sum over all ranks, which the first rank of another partition takes. */
#include "comm/comm_author.h"
#include "core/archive_author.h"
#include "layers/layer_author.h"
#include "optim/multi_node_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is kept of the losses, beside the gradients. */
enum { LOSS, WEIGHT, ADDING, LOCAL, PARTS, NUMBERS };

typedef struct visit {
    wf_optim *optim;
    wf_archive *archive;
    const wf_mesh *mesh; /* NULL: one rank */
    bool sums;           /* the sums over ranks are in the archive */
    bool own;            /* of loading: the archive's partition is this one, so each rank takes its own */
    double factor;       /* of loading: by which gradients are multiplied */
} visit;

/* Equal where ranks hold the same parts of parameters and of batches; 0 for one rank. 0 is one rank, so the hash of
 * several is never 0. */
static int64_t partition_of(const visit *v)
{
    uint64_t hash = 0;
    if (!v->mesh)
        return 0;
    for (int axis = 0; axis < WF_AXES; axis++)
        hash = wf_hash_u64(hash, (uint64_t)wf_mesh_size(v->mesh, (wf_axis)axis));
    for (int64_t i = 0; i < v->optim->n; i++)
        hash = wf_hash_u64(hash, v->optim->target[i]->axes << WF_AXES | v->optim->target[i]->shard_axes);
    /* A pipeline may be cut elsewhere on the same mesh. */
    for (int64_t i = 0; i < v->optim->n && wf_layer_part(v->optim->model) > 0; i++)
        hash = wf_hash_text(hash, v->optim->slot[v->optim->slot_of[i]].path);
    return (int64_t)(hash | 1);
}

/* The ranks of which each has a summand of what the archive holds as a sum. */
static wf_comm *summands(const visit *v, unsigned axes)
{
    return wf_mesh_comm(v->mesh, axes & wf_grad_axes(v->mesh));
}

/* A distributed optimizer has the numbers in the trailer of its buckets, a local one in itself. */
static double *trailer_of(const visit *v, wf_array *loss)
{
    double *trailer = &v->optim->weight_sum;
    *loss = (wf_array){.data = &v->optim->device->loss, .dtype = WF_F64, .shape = wf_shape_scalar()};
    if (v->optim->distributed)
        v->optim->distributed->accumulated(v->optim, loss, &trailer);
    return trailer;
}

/* --- Tensors ------------------------------------------------------------------------------------------------------ */

static wf_archive_place place_of(const wf_param *param, bool varies)
{
    return (wf_archive_place){.global = param->global, .box = param->box, .varies = varies};
}

static wf_status save_sum(const visit *v, const wf_tensor *x, wf_archive_place place, unsigned axes)
{
    wf_tensor *sum = wf_tensor_copy(x, wf_tensor_dtype(x), wf_tensor_order(x));
    /* The other ranks wait in the sum. */
    if (!sum)
        return wf_comm_post_failure(wf_mesh_world(v->mesh), wf_error_code());
    const int64_t n = wf_tensor_count(sum);
    wf_comm *comm = summands(v, axes);
    wf_status status = comm ? wf_allreduce_raw(comm, sum->data, sum->data, n, sum->dtype, WF_SUM) : wf_error_code();
    place.varies = false;
    if (status == WF_OK)
        status = wf_archive_part(v->archive, "sum", sum, place);
    wf_tensor_free(sum);
    return status;
}

/* Both forms: own values for the same partition, the sum for any other. */
static wf_status save_tensor(const visit *v, wf_tensor *x, wf_archive_place place, unsigned axes)
{
    if (!v->mesh)
        return wf_archive_tensor(v->archive, "own", x);
    WF_TRY(wf_archive_part(v->archive, "own", x, place));
    return v->sums ? save_sum(v, x, place, axes) : WF_OK;
}

/* Loads a tensor. A sum is loaded by one rank, and the others set theirs to zero, since the next step sums over ranks
 * again. */
static wf_status load_tensor(const visit *v, wf_tensor *x, wf_archive_place place, unsigned axes)
{
    if (!v->mesh)
        return wf_archive_tensor(v->archive, v->own ? "own" : "sum", x);
    if (v->own)
        return wf_archive_part(v->archive, "own", x, place);
    place.varies = false;
    WF_TRY(wf_archive_part(v->archive, v->sums ? "sum" : "own", x, place));
    wf_comm *comm = summands(v, axes);
    WF_NEED(comm);
    /* Zeros elsewhere: the sum over ranks in the next step is the loaded one. */
    return wf_comm_rank(comm) == 0 ? WF_OK : wf_tensor_fill(x, 0);
}

/* --- Numbers ------------------------------------------------------------------------------------------------------ */

static wf_strided first_of(const wf_tensor *numbers)
{
    return (wf_strided){.data = numbers->data, .dtype = WF_F64};
}

/* One tensor of numbers instead of five entries. */
static wf_tensor *numbers_now(const visit *v)
{
    wf_array loss;
    const double *trailer = trailer_of(v, &loss);
    double host[NUMBERS] = {0};
    if (v->optim->adding) {
        const bool trailing = v->optim->distributed != NULL;
        host[WEIGHT] = trailing ? trailer[WF_TRAILER_WEIGHT] : *trailer;
        host[ADDING] = 1;
        host[LOCAL] = trailing ? trailer[WF_TRAILER_LOCAL] : 1;
        host[PARTS] = trailing ? trailer[WF_TRAILER_PARTS] : 0;
    }
    wf_tensor *numbers = wf_tensor_from_host(v->optim->ctx, WF_F64, WF_SHAPE(NUMBERS), host);
    if (!numbers || !v->optim->adding)
        return numbers;
    /* The loss is in device memory, and is copied there. */
    const wf_strided from = wf_array_strided(&loss), to = first_of(numbers);
    if (v->optim->ctx->k->copy(v->optim->ctx, &from, &to, false) == WF_OK)
        return numbers;
    wf_tensor_free(numbers);
    return wf_error_null();
}

static wf_status set_numbers(const visit *v, const wf_tensor *numbers)
{
    wf_array loss;
    double host[NUMBERS], *trailer = trailer_of(v, &loss);
    const wf_strided from = first_of(numbers), to = wf_array_strided(&loss);
    WF_TRY(wf_tensor_export(numbers, host, sizeof host));
    WF_CHECK(host[WEIGHT] >= 0 && isfinite(host[WEIGHT]), WF_ERR_FORMAT,
             "the archive holds accumulated gradients of %g samples", host[WEIGHT]);
    /* With another partition every rank goes on adding, as the first has the sum. */
    v->optim->adding = !v->own || host[ADDING] > 0;
    if (!v->optim->adding)
        return WF_OK;
    WF_TRY(v->optim->ctx->k->copy(v->optim->ctx, &from, &to, false));
    if (!v->optim->distributed) {
        *trailer = host[WEIGHT];
        return WF_OK;
    }
    memset(trailer, 0, WF_TRAILER * sizeof *trailer);
    trailer[WF_TRAILER_WEIGHT] = host[WEIGHT];
    trailer[WF_TRAILER_LOCAL] = host[LOCAL];
    trailer[WF_TRAILER_PARTS] = host[PARTS];
    return WF_OK;
}

/* Numbers go the way of gradients, so they are summed over the same ranks. */
static wf_status visit_numbers(const visit *v)
{
    const wf_shape shape = WF_SHAPE(NUMBERS);
    const wf_archive_place place = {.global = shape, .box = wf_box_of_shape(shape), .varies = true};
    const bool loading = wf_archive_loading(v->archive);
    const unsigned all = (1u << WF_AXES) - 1;
    wf_tensor *numbers = loading ? wf_tensor_new(v->optim->ctx, WF_F64, shape) : numbers_now(v);
    WF_NEED(numbers);
    wf_status status = wf_archive_enter(v->archive, "numbers");
    if (status == WF_OK)
        status = loading ? load_tensor(v, numbers, place, all) : save_tensor(v, numbers, place, all);
    if (status == WF_OK)
        status = wf_archive_leave(v->archive);
    if (status == WF_OK && loading)
        status = set_numbers(v, numbers);
    wf_tensor_free(numbers);
    return status;
}

/* --- Gradients ---------------------------------------------------------------------------------------------------- */

static wf_tensor *zeros_like(const wf_param *param)
{
    wf_tensor *x = wf_tensor_new_ordered(param->ctx, param->dtype, param->shape, param->order);
    if (!x || wf_tensor_fill(x, 0) == WF_OK)
        return x;
    wf_tensor_free(x);
    return wf_error_null();
}

static wf_status save_gradient(const visit *v, int64_t i)
{
    const wf_optim *optim = v->optim;
    const wf_param *param = optim->target[i];
    /* A rank that has accumulated nothing has a summand of 0. */
    wf_tensor *x = !optim->adding    ? zeros_like(param)
                   : optim->restored ? wf_tensor_alias(optim->restored[i])
                                     : wf_tensor_alias(param->grad);
    WF_NEED(x);
    const wf_status status = save_tensor(v, x, place_of(param, true), param->axes);
    wf_tensor_free(x);
    return status;
}

static wf_status scale(const visit *v, wf_tensor *x)
{
    const wf_array all = wf_tensor_array(x);
    if (v->factor == 1 || wf_tensor_count(x) == 0)
        return WF_OK;
    return v->optim->ctx->k->binary(
        v->optim->ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = v->factor, .a = &all, .y = &all});
}

/* Gradients go into tensors of their own until the next backward has buffers for them. */
static wf_status load_gradient(const visit *v, int64_t i)
{
    const wf_param *param = v->optim->target[i];
    wf_tensor *x = zeros_like(param);
    WF_NEED(x);
    v->optim->restored[i] = x;
    WF_TRY(load_tensor(v, x, place_of(param, true), param->axes));
    return scale(v, x);
}

static wf_status visit_gradients(const visit *v)
{
    WF_TRY(wf_archive_enter(v->archive, "grad"));
    for (int64_t i = 0; i < v->optim->n; i++) {
        int depth;
        WF_TRY(wf_optim_enter_path(v->archive, v->optim->slot[v->optim->slot_of[i]].path, &depth));
        WF_TRY(wf_archive_loading(v->archive) ? load_gradient(v, i) : save_gradient(v, i));
        while (depth-- > 0)
            WF_TRY(wf_archive_leave(v->archive));
    }
    return wf_archive_leave(v->archive);
}

/* --- Both --------------------------------------------------------------------------------------------------------- */

static wf_status save_sums(visit *v)
{
    wf_optim *optim = v->optim;
    int64_t any = optim->adding, partition = partition_of(v);
    WF_CHECK(!optim->adding || optim->restored || wf_optim_grads_current(optim), WF_ERR_STATE,
             "another optimizer took the gradients between wf_optim_accumulate and the step that they belong to");
    /* A rank may have accumulated nothing, but it takes part in the sums if any other has. */
    if (v->sums) /* ranks accumulate equally often, or not */
        WF_TRY(wf_allreduce_i64(wf_mesh_world(v->mesh), &any, 1, WF_MAX));
    /* Nothing was accumulated, the usual case: the archive has no entry. */
    if (!any)
        return WF_OK;
    double loss_scale = wf_optim_loss_scale(optim);
    /* Without it the sums could not be continued under another scale. */
    WF_CHECK(isfinite(loss_scale), WF_ERR_NUMERIC, "the scale of the loss is %g", loss_scale);
    WF_TRY(wf_archive_enter(v->archive, "accumulated"));
    WF_TRY(wf_archive_i64(v->archive, "partition", &partition));
    WF_TRY(wf_archive_f64(v->archive, "scale", &loss_scale));
    WF_TRY(visit_numbers(v));
    WF_TRY(visit_gradients(v));
    return wf_archive_leave(v->archive);
}

static wf_status load_sums(visit *v)
{
    int64_t partition = 0;
    double loss_scale = 1;
    wf_accumulated_forget(v->optim);
    /* A checkpoint between two steps, the usual case. */
    if (!wf_archive_has(v->archive, "accumulated/partition"))
        return WF_OK;
    WF_TRY(wf_archive_enter(v->archive, "accumulated"));
    WF_TRY(wf_archive_i64(v->archive, "partition", &partition));
    WF_TRY(wf_archive_f64(v->archive, "scale", &loss_scale));
    WF_CHECK(loss_scale > 0 && isfinite(loss_scale), WF_ERR_FORMAT, "the archive holds gradients times %g", loss_scale);
    v->own = partition == partition_of(v);
    v->sums = partition != 0;
    /* Accumulated gradients carry the scale of their time, which may have changed. */
    v->factor = wf_optim_loss_scale(v->optim) / loss_scale;
    WF_TRY(visit_numbers(v));
    v->optim->restored = wf_calloc(v->optim->ctx, (size_t)v->optim->n, sizeof(wf_tensor *));
    WF_NEED(v->optim->restored);
    WF_TRY(visit_gradients(v));
    if (!v->optim->adding)
        wf_accumulated_forget(v->optim);
    return wf_archive_leave(v->archive);
}

wf_status wf_accumulated_archive(wf_optim *optim, wf_archive *archive)
{
    visit v = {.optim = optim, .archive = archive, .factor = 1};
    const wf_mesh *mesh = optim->distributed ? optim->distributed->mesh(optim) : NULL;
    v.mesh = mesh && wf_comm_size(wf_mesh_world(mesh)) > 1 ? mesh : NULL;
    if (!wf_archive_loading(archive)) {
        v.sums = v.mesh && wf_archive_spans_ranks(archive);
        return save_sums(&v);
    }
    const wf_status status = load_sums(&v);
    if (status != WF_OK)
        wf_accumulated_forget(optim);
    return status;
}
