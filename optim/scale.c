/* Loss scaling. All that changes from step to step is in device memory, so a step reads nothing back and can be
 * captured. */
#include "optim/optim_impl.h"

#include <math.h>
#include <string.h>

static wf_status check_scale_opts(const wf_loss_scale_opts *o)
{
    /* Growth doubles it from there; the limit leaves room within f32's range. */
    WF_CHECK(o->init > 0 && o->init <= 0x1p100, WF_ERR_ARGUMENT, "a loss scale of %g at first; it must be above 0",
             o->init);
    WF_CHECK(o->growth >= 1 && isfinite(o->growth), WF_ERR_ARGUMENT,
             "a loss scale that grows by %g; it must be 1 or more", o->growth);
    WF_CHECK(o->backoff > 0 && o->backoff < 1, WF_ERR_ARGUMENT,
             "a loss scale that falls by %g; it must lie between 0 and 1", o->backoff);
    WF_CHECK(o->interval >= 1, WF_ERR_ARGUMENT, "a loss scale that grows after %lld steps; it must be 1 or more",
             (long long)o->interval);
    return WF_OK;
}

wf_status wf_scale_check_buffers(bool scales, bool double_buffering)
{
    WF_CHECK(!scales || !double_buffering, WF_ERR_ARGUMENT,
             "a scaled loss does not go with double_buffering, whose update would meet the next step's scale");
    return WF_OK;
}

static wf_status write_scaling(const wf_optim *optim, double scale, double good, double skipped)
{
    const wf_loss_scaling scaling = {.growth = optim->scale.growth,
                                     .backoff = optim->scale.backoff,
                                     .interval = (double)optim->scale.interval,
                                     .scale = scale,
                                     .good = good,
                                     .skipped = skipped,
                                     .seed = (float)scale};
    return optim->ctx->k->to_device(optim->ctx, &optim->device->scaling, &scaling, sizeof scaling);
}

wf_status wf_optim_scale_loss(wf_optim *optim, wf_loss_scale_opts o)
{
    WF_NEED(optim);
    o.init = wf_opt(o.init, 65536);
    o.growth = wf_opt(o.growth, 2);
    o.backoff = wf_opt(o.backoff, 0.5);
    o.interval = o.interval ? o.interval : 2000;
    WF_TRY(check_scale_opts(&o));
    /* The scale keeps small gradients of a 16-bit computation from becoming 0; f32 parameters are what it is combined
     * with. */
    WF_CHECK(wf_ctx_dtype(optim->ctx) == WF_F32, WF_ERR_DTYPE, "gradients of %s need no scaled loss",
             wf_dtype_name(wf_ctx_dtype(optim->ctx)));
    /* Gradients of before would be divided by a scale that they do not have. */
    WF_CHECK(!optim->grads && optim->steps == 0, WF_ERR_STATE,
             "the scale of the loss is set before the optimizer's first step");
    WF_TRY(wf_scale_check_buffers(true, optim->distributed && optim->distributed->delayed(optim)));
    optim->scale = o;
    WF_TRY(write_scaling(optim, o.init, 0, 0));
    optim->scales = true;
    return WF_OK;
}

static wf_status read_scaling(const wf_optim *optim, wf_loss_scaling *scaling)
{
    return wf_ctx_read(optim->ctx, scaling, &optim->device->scaling, sizeof *scaling);
}

double wf_optim_loss_scale(const wf_optim *optim)
{
    wf_loss_scaling scaling = {.scale = 1};
    if (!optim || !optim->scales)
        return optim ? 1 : 0;
    /* Waits for the device, so it is for reports, not for each step. */
    return read_scaling(optim, &scaling) == WF_OK ? scaling.scale : NAN;
}

int64_t wf_optim_skipped(const wf_optim *optim)
{
    wf_loss_scaling scaling;
    if (!optim || !optim->scales)
        return 0;
    return read_scaling(optim, &scaling) == WF_OK ? (int64_t)scaling.skipped : -1;
}

/* The bits are hashed, not the values: all ranks must agree exactly. */
uint64_t wf_scale_hash(const wf_optim *optim, uint64_t hash)
{
    const wf_loss_scale_opts *o = &optim->scale;
    const double numbers[] = {o->init, o->growth, o->backoff, (double)o->interval};
    for (size_t i = 0; optim->scales && i < sizeof numbers / sizeof *numbers; i++) {
        uint64_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        hash = wf_hash_u64(hash, bits);
    }
    return hash;
}

/* The state of an optimizer that scales its loss, for one that does not: it counts updates alone. */
static wf_status archive_unscaled(wf_optim *optim, wf_archive *archive)
{
    int64_t skipped = 0;
    WF_TRY(wf_archive_enter(archive, "loss_scale"));
    if (wf_archive_has(archive, "skipped"))
        WF_TRY(wf_archive_i64(archive, "skipped", &skipped));
    WF_TRY(wf_archive_leave(archive));
    WF_CHECK(skipped >= 0 && skipped <= optim->steps, WF_ERR_FORMAT, "the archive holds %lld updates left out of %lld",
             (long long)skipped, (long long)optim->steps);
    optim->steps -= skipped;
    return WF_OK;
}

wf_status wf_scale_archive(wf_optim *optim, wf_archive *archive)
{
    if (!optim->scales)
        return wf_archive_loading(archive) ? archive_unscaled(optim, archive) : WF_OK;
    /* Saved by an optimizer that does not scale: the scale starts from the beginning. */
    if (!wf_archive_has(archive, "loss_scale/scale"))
        return write_scaling(optim, optim->scale.init, 0, 0);
    wf_loss_scaling now;
    WF_TRY(read_scaling(optim, &now));
    int64_t good = (int64_t)now.good, skipped = (int64_t)now.skipped;
    WF_TRY(wf_archive_enter(archive, "loss_scale"));
    WF_TRY(wf_archive_f64(archive, "scale", &now.scale));
    WF_TRY(wf_archive_i64(archive, "good", &good));
    WF_TRY(wf_archive_i64(archive, "skipped", &skipped));
    WF_TRY(wf_archive_leave(archive));
    WF_CHECK(now.scale > 0 && isfinite(now.scale) && good >= 0 && skipped >= 0 && skipped <= optim->steps,
             WF_ERR_FORMAT, "the archive holds a loss scale of %g, %lld good steps and %lld left out of %lld",
             now.scale, (long long)good, (long long)skipped, (long long)optim->steps);
    return wf_archive_loading(archive) ? write_scaling(optim, now.scale, (double)good, (double)skipped) : WF_OK;
}
