/* Merges running statistics over all ranks, weighted by samples. Called by programs before they evaluate or save. */
#include "comm/comm_author.h"
#include "core/param_author.h"
#include "optim/evaluator.h"

#include <math.h>
#include <string.h>

typedef struct share {
    wf_comm *comm;
    double weight; /* of this rank, of the sum over all */
} share;

/* Running statistics: values that are saved and not trained. Counters of whole numbers are equal on all ranks
 * already. */
static bool is_state(const wf_param *param)
{
    return !param->trainable && wf_dtype_is_float(param->dtype);
}

/* Another running value of the same layer, of equal shape. */
static wf_param *beside(int64_t n, wf_param *const *params, const wf_param *param, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        if (params[i]->owner == param->owner && !strcmp(params[i]->name, name) && is_state(params[i]) &&
            wf_shape_equal(params[i]->shape, param->shape))
            return params[i];
    return NULL;
}

static wf_status read_values(wf_param *param, double *values)
{
    const wf_tensor *value = wf_param_value(param);
    WF_NEED(value);
    /* In f64, like the sums between ranks; running values may be kept in 16 bits. */
    wf_tensor *wide = wf_tensor_copy(value, WF_F64, WF_ROW_MAJOR);
    WF_NEED(wide);
    const wf_status status = wf_tensor_export(wide, values, wf_tensor_bytes(wide));
    wf_tensor_free(wide);
    return status;
}

static wf_status write_values(wf_param *param, const double *values)
{
    wf_tensor *wide = wf_tensor_from_host(param->ctx, WF_F64, param->shape, values);
    WF_NEED(wide);
    const wf_status status = wf_tensor_assign(param->value, wide);
    wf_tensor_free(wide);
    return status;
}

static wf_status average(const share *s, int64_t n, double *values)
{
    for (int64_t i = 0; i < n; i++)
        /* Weights of all ranks sum to 1, so the plain sum is the weighted mean. */
        values[i] *= s->weight;
    return wf_allreduce_f64(s->comm, values, n, WF_SUM);
}

/* own, mean, var: room for n numbers each. */
static wf_status merge(const share *s, wf_param *param, wf_param *variance, int64_t n, double *own)
{
    double *mean = own + n, *var = mean + n;
    WF_TRY(read_values(param, own));
    /* Both are needed: the shift between this rank's mean and the common one enters the variance. */
    memcpy(mean, own, (size_t)n * sizeof *own);
    WF_TRY(average(s, n, mean));
    WF_TRY(write_values(param, mean));
    if (!variance)
        return WF_OK;
    WF_TRY(read_values(variance, var));
    for (int64_t i = 0; i < n; i++)
        /* The variance of all samples is the mean of variances plus the variance of means. */
        var[i] += (own[i] - mean[i]) * (own[i] - mean[i]);
    WF_TRY(average(s, n, var));
    return write_values(variance, var);
}

static wf_status merge_one(const share *s, wf_param *param, wf_param *variance)
{
    void *room;
    const int64_t n = wf_shape_count(param->shape);
    const size_t bytes = 3 * (size_t)n * sizeof(double);
    if (n == 0)
        return WF_OK;
    WF_TRY(wf_host_take(s->comm, bytes, &room));
    const wf_status status = merge(s, param, variance, n, room);
    wf_host_give(s->comm, room, bytes);
    return status;
}

static wf_status merge_all(const share *s, int64_t n, wf_param *const *params)
{
    for (int64_t i = 0; i < n; i++) {
        wf_param *p = params[i];
        const bool mean = !strcmp(p->name, "avg_mean"), variance = !strcmp(p->name, "avg_var");
        /* A variance with a mean beside it is merged along with that mean. */
        if (!is_state(p) || (variance && beside(n, params, p, "avg_mean")))
            continue;
        WF_TRY(merge_one(s, p, mean ? beside(n, params, p, "avg_var") : NULL));
    }
    return WF_OK;
}

static wf_status persistent(wf_comm *comm, wf_layer *model, double weight)
{
    wf_param *const *params;
    int64_t n;
    WF_NEED(model);
    WF_CHECK(weight >= 0 && isfinite(weight), WF_ERR_ARGUMENT, "weight %g: should be 0 or more", weight);
    WF_TRY(wf_layer_params(model, &n, &params));
    double total = weight;
    /* Ranks without samples may give 0, as long as some rank has a weight. */
    WF_TRY(wf_allreduce_f64(comm, &total, 1, WF_SUM));
    /* The sum is the same on all ranks, so all fail together. */
    WF_CHECK(total > 0, WF_ERR_ARGUMENT, "weights of the ranks add up to %g: should be more than 0", total);
    return merge_all(&(share){comm, weight / total}, n, params);
}

wf_status wf_allreduce_persistent(wf_comm *comm, wf_layer *model, double weight)
{
    WF_NEED(comm);
    const wf_status status = persistent(comm, model, weight);
    /* A failure of this rank alone would leave the others in a sum; they are told. */
    return status == WF_OK ? WF_OK : wf_comm_post_failure(comm, status);
}
