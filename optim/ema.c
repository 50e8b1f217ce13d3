/* Moving averages of parameters. What an optimizer does with its state (found by path, saved as of the serial program)
 * is right for averages too, so they are the state of a wf_optim that makes no steps. The update is the kernel of SGD
 * with the averages in place of the parameters and the parameters in place of gradients: p -= lr (p - g). */
#include "optim/ema.h"
#include "core/captured_author.h"
#include "optim/optim_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct wf_ema {
    wf_optim *averages; /* its steps are the updates */
    double decay;
    bool warm_up, swapped;
};

static const wf_optim_rule averages = {.name = "moving average", .states = {"average"}, .kind = WF_OPTIM_SGD};

wf_ema *wf_ema_new(wf_layer *model, wf_ema_opts opts)
{
    WF_NEED_NULL(model);
    const double decay = wf_opt(opts.decay, 0.999);
    WF_CHECK_NULL(decay >= 0 && decay < 1, WF_ERR_ARGUMENT, "a moving average of decay %g; it must be in [0, 1)",
                  decay);
    wf_ema *ema = wf_calloc(wf_layer_ctx(model), 1, sizeof *ema);
    if (!ema)
        return wf_error_null();
    *ema = (wf_ema){.decay = decay, .warm_up = opts.warm_up};
    ema->averages = wf_optim_new(model, &averages, (wf_optim_hyper){0}, 0);
    if (ema->averages)
        return ema;
    free(ema);
    return wf_error_null();
}

void wf_ema_free(wf_ema *ema)
{
    if (!ema)
        return;
    wf_optim_free(ema->averages);
    free(ema);
}

/* State 0 of the optimizer is the average. */
static wf_tensor *average_of(const wf_ema *ema, int64_t i)
{
    return ema->averages->slot[ema->averages->slot_of[i]].state[0];
}

/* A parameter that joins after the first update starts from its value: its average is not brought from 0. */
static wf_status bind_averages(const wf_ema *ema)
{
    wf_optim *o = ema->averages;
    const int64_t before = o->n_slots;
    WF_TRY(wf_optim_bind(o));
    for (int64_t i = 0; i < o->n && o->steps > 0; i++)
        if (o->slot_of[i] >= before)
            WF_TRY(wf_tensor_assign(average_of(ema, i), wf_param_value(o->target[i])));
    return WF_OK;
}

/* While swapped, the parameters are averages: an update would average averages. */
static wf_status check_not_swapped(const wf_ema *ema, const char *what)
{
    WF_CHECK(!ema->swapped, WF_ERR_STATE, "%s while the moving averages are swapped in; call wf_ema_swap before", what);
    return WF_OK;
}

/* Averages are 0 before the first update, whose rate of 1 makes them exactly the parameters. With warm-up the decay
 * rises as (1 + t) / (10 + t), as in TensorFlow. grad_scale -1 and decay 1 make the gradient of the kernel p - g. */
static wf_status choose_rate(void *own, double number, void *value)
{
    const wf_ema *ema = own;
    const double t = (double)(ema->averages->steps + 1), risen = (1 + t) / (10 + t);
    const double decay = ema->warm_up && risen < ema->decay ? risen : ema->decay;
    const wf_optim_hyper hyper = {.lr = t > 1 ? 1 - decay : 1, .grad_scale = -1, .decay = 1, .step = t};
    memcpy(value, &hyper, sizeof hyper);
    return WF_OK;
}

/* Checked again in each replay, since the host swaps between them. */
static wf_status check_replay(void *own, double number, void *value)
{
    return check_not_swapped(own, "an update");
}

/* Counted by a host operation, so replays count too. */
static wf_status count_update(void *own, double number, void *value)
{
    ((wf_ema *)own)->averages->steps++;
    return WF_OK;
}

static void uncount_update(void *own, double number)
{
    ((wf_ema *)own)->averages->steps--;
}

wf_status wf_ema_update(wf_ema *ema)
{
    WF_NEED(ema);
    wf_optim *o = ema->averages;
    WF_TRY(check_not_swapped(ema, "an update"));
    WF_TRY(bind_averages(ema));
    for (int64_t i = 0; i < o->n; i++) {
        const wf_tensor *value = wf_param_value(o->target[i]);
        WF_NEED(value);
        /* p and g in the roles of the kernel of SGD. */
        o->segment[i] = (wf_optim_segment){
            .p = average_of(ema, i)->data, .g = value->data, .n = wf_shape_count(o->target[i]->shape)};
    }
    /* Three host operations around one kernel: a captured step replays all of them in this order. */
    WF_TRY(wf_ctx_capture_host_op(o->ctx, (wf_host_op){.act = check_replay, .own = ema, .check = true}));
    WF_TRY(wf_ctx_capture_host_op(
        o->ctx,
        (wf_host_op){.act = choose_rate, .own = ema, .device = &o->device->hyper, .bytes = sizeof o->device->hyper}));
    WF_TRY(o->ctx->k->optim_update(o->ctx, WF_OPTIM_SGD, &o->device->hyper, o->target[0]->dtype, o->n, o->segment));
    return wf_ctx_capture_host_op(o->ctx, (wf_host_op){.act = count_update, .own = ema, .undo = uncount_update});
}

/* Through a third tensor, since both keep their memory: optimizers and layers point to it. */
static wf_status swap_contents(wf_tensor *a, wf_tensor *b)
{
    wf_tensor *held = wf_tensor_new_ordered(a->ctx, a->dtype, a->shape, a->order);
    WF_NEED(held);
    wf_status status = wf_tensor_assign(held, a);
    if (status == WF_OK)
        status = wf_tensor_assign(a, b);
    if (status == WF_OK)
        status = wf_tensor_assign(b, held);
    wf_tensor_free(held);
    return status;
}

wf_status wf_ema_swap(wf_ema *ema)
{
    WF_NEED(ema);
    wf_optim *o = ema->averages;
    WF_CHECK(o->steps > 0, WF_ERR_STATE, "moving averages are swapped before the first wf_ema_update");
    WF_TRY(wf_ctx_forbid_capture(o->ctx, "swap moving averages", "swap between the steps"));
    WF_TRY(bind_averages(ema));
    for (int64_t i = 0; i < o->n; i++)
        WF_TRY(swap_contents(wf_param_value(o->target[i]), average_of(ema, i)));
    ema->swapped = !ema->swapped;
    return WF_OK;
}

bool wf_ema_swapped(const wf_ema *ema)
{
    return ema && ema->swapped;
}

int64_t wf_ema_updates(const wf_ema *ema)
{
    return ema ? ema->averages->steps : 0;
}

wf_layer *wf_ema_model(const wf_ema *ema)
{
    return ema ? wf_optim_model(ema->averages) : NULL;
}

wf_status wf_ema_archive(wf_ema *ema, wf_archive *archive)
{
    WF_NEED(ema);
    WF_NEED(archive);
    int64_t updates = ema->averages->steps;
    WF_TRY(check_not_swapped(ema, "an archive"));
    WF_TRY(bind_averages(ema));
    /* A run that had no averages may go on with them: they begin with its next update. */
    if (wf_archive_loading(archive) && !wf_archive_has(archive, "updates")) {
        WF_CHECK(updates == 0, WF_ERR_FORMAT, "the archive holds no moving averages, and there are some already");
        return WF_OK;
    }
    WF_TRY(wf_archive_i64(archive, "updates", &updates));
    WF_CHECK(updates >= 0, WF_ERR_FORMAT, "the archive holds %lld updates of moving averages", (long long)updates);
    ema->averages->steps = updates;
    return wf_optim_states_archive(ema->averages, archive);
}

wf_status wf_ema_visit(void *ema, wf_archive *archive)
{
    return wf_ema_archive(ema, archive);
}
