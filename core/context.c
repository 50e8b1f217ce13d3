/* The context: chooses the device and its kernel table, keeps seed, types and counters, and reads values back from
 * the device. Programs make one through wf_comm_open or wf_ctx_new. It never looks up to comm: what a communicator
 * adds are hooks that comm fills. */
#include "core/context_author.h"

#include "core/captured_author.h"
#include "core/config_author.h"
#include "core/log.h"
#include "core/pool_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STOPPED_NS 200000000 /* between two looks: beyond it this process was stopped, as others may have been */

/* Fillings that are always there. */
static const struct {
    const char *name;
    const wf_kernels *(*kernels)(void);
} devices[] = {{"cpu", wf_kernels_cpu}, {"ref", wf_kernels_ref}};

/* A build with CUDA computes on the host where the machine has no GPU. `why` says so where the program asked for one,
 * or where there is one that cannot be used. */
static const wf_kernels *gpu_or_host(bool asked, char why[WF_CTX_NOTICE])
{
    const wf_kernels *k = wf_kernels_cuda();
    if (k)
        return k;
    const bool built = wf_error_code() != WF_ERR_UNSUPPORTED;
    if (!built && asked)
        return wf_error_null();
    if (built && (asked || wf_cuda_found()))
        snprintf(why, WF_CTX_NOTICE, "%s; computing on the CPU", wf_error_message());
    else if (built)
        wf_log_write(WF_LOG_DEBUG, "%s; computing on the CPU", wf_error_message());
    wf_error_clear();
    return wf_kernels_cpu();
}

/* A build with CUDA takes "cuda" for "auto" and says why there is no GPU: a program can be tried on a laptop. */
static const wf_kernels *device_kernels(const char *name, char why[WF_CTX_NOTICE])
{
    if (strcmp(name, "auto") == 0 || strcmp(name, "cuda") == 0)
        return gpu_or_host(name[0] == 'c', why);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (strcmp(name, devices[i].name) == 0)
            return devices[i].kernels();
    WF_FAIL_NULL(WF_ERR_ARGUMENT, "device \"%s\" is not known; use auto, cpu, ref or cuda", name);
}

/* The processors that this process may use, not those of the machine: in a container or under a binding they are fewer.
 */
static int default_threads(void)
{
    const int asked = wf_config_get()->omp_threads;
    cpu_set_t set;
    if (asked > 0)
        return asked;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static wf_status check_compute(wf_dtype dtype, wf_dtype compute)
{
    WF_CHECK(compute == WF_F32 || compute == WF_BF16 || compute == WF_F16, WF_ERR_DTYPE,
             "a context computes in its own type, bf16 or f16, not %s", wf_dtype_name(compute));
    WF_CHECK(compute == WF_F32 || dtype == WF_F32, WF_ERR_DTYPE,
             "a context of %s computes in %s; only one of f32 computes in bf16 or f16", wf_dtype_name(dtype),
             wf_dtype_name(dtype));
    return WF_OK;
}

/* No device is chosen yet: a communicator does that by this rank's place on its node (comm/open.c), else the first use
 * takes number 0. */
wf_ctx *wf_ctx_make(wf_ctx_opts opts)
{
    char notice[WF_CTX_NOTICE] = "";
    const wf_kernels *k = device_kernels(opts.device ? opts.device : wf_config_get()->device, notice);
    if (!k)
        return NULL;
    WF_CHECK_NULL(opts.dtype == WF_F32 || opts.dtype == WF_F64, WF_ERR_DTYPE, "a context's type is f32 or f64, not %s",
                  wf_dtype_name(opts.dtype));
    WF_TRY_NULL(check_compute(opts.dtype, opts.compute));
    wf_ctx *ctx = calloc(1, sizeof *ctx);
    WF_CHECK_NULL(ctx, WF_ERR_MEMORY, "no memory for a context");
    /* calloc and not the pool's functions: those count allocations in the pool, which is made of this context. */
    *ctx = (wf_ctx){.k = k, .dtype = opts.dtype, .compute = opts.compute, .seed = opts.seed};
    memcpy(ctx->notice, notice, sizeof notice);
    ctx->pool = wf_pool_new(ctx);
    if (ctx->pool && wf_ctx_set_threads(ctx, opts.threads ? opts.threads : default_threads()) == WF_OK)
        return ctx;
    wf_pool_free(ctx->pool);
    free(ctx);
    return wf_error_null();
}

void wf_ctx_announce(const wf_ctx *ctx)
{
    if (ctx && ctx->notice[0])
        wf_log_write(WF_LOG_INFO, "%s", ctx->notice);
}

wf_ctx *wf_ctx_new(wf_ctx_opts opts)
{
    wf_ctx *ctx = wf_ctx_make(opts);
    wf_ctx_announce(ctx);
    return ctx;
}

wf_status wf_ctx_free(wf_ctx *ctx)
{
    static const char *const names[WF_LIVES] = {"tensor",   "tape",     "layer",        "optimizer",
                                                "data set", "iterator", "communicator", "captured step"};
    if (!ctx)
        return WF_OK;
    char text[256] = "";
    int at = 0;
    for (int i = 0; i < WF_LIVES; i++)
        if (ctx->live[i] != 0)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld %s%s", at ? ", " : "", (long long)ctx->live[i],
                           names[i], ctx->live[i] == 1 ? "" : "s");
    WF_CHECK(at == 0, WF_ERR_STATE, "the context is closed with live objects: %s", text);
    if (ctx->k->shutdown)
        ctx->k->shutdown(ctx);
    /* The pool last: caches of the filling have their memory from it. */
    wf_pool_free(ctx->pool);
    free(ctx);
    return WF_OK;
}

const char *wf_ctx_device(const wf_ctx *ctx)
{
    return ctx ? ctx->k->name : "";
}

wf_dtype wf_ctx_dtype(const wf_ctx *ctx)
{
    return ctx ? ctx->dtype : WF_F32;
}

wf_dtype wf_ctx_compute(const wf_ctx *ctx)
{
    return ctx && ctx->compute != WF_F32 ? ctx->compute : wf_ctx_dtype(ctx);
}

uint64_t wf_ctx_seed(const wf_ctx *ctx)
{
    return ctx ? ctx->seed : 0;
}

int wf_ctx_threads(const wf_ctx *ctx)
{
    return ctx ? ctx->threads : 0;
}

wf_status wf_ctx_set_dtype(wf_ctx *ctx, wf_dtype dtype)
{
    WF_NEED(ctx);
    WF_CHECK(dtype == WF_F32 || dtype == WF_F64, WF_ERR_DTYPE, "a context's type is f32 or f64, not %s",
             wf_dtype_name(dtype));
    WF_CHECK(ctx->layers == 0, WF_ERR_STATE, "the context's type is set before the first layer is made");
    WF_TRY(check_compute(dtype, ctx->compute));
    ctx->dtype = dtype;
    return WF_OK;
}

wf_status wf_ctx_set_compute(wf_ctx *ctx, wf_dtype compute)
{
    WF_NEED(ctx);
    WF_TRY(check_compute(ctx->dtype, compute));
    ctx->compute = compute;
    if (ctx->k->multiplies && !ctx->k->multiplies(compute))
        wf_log_write(WF_LOG_INFO,
                     "this processor has no instructions for %s products: computing in %s is slower than in f32",
                     wf_dtype_name(compute), wf_dtype_name(compute));
    return WF_OK;
}

wf_status wf_ctx_set_seed(wf_ctx *ctx, uint64_t seed)
{
    WF_NEED(ctx);
    /* Parameters are drawn at their first use, so later ones would be of another seed than earlier ones. */
    WF_CHECK(ctx->layers == 0, WF_ERR_STATE, "the context's seed is set before the first layer is made");
    ctx->seed = seed;
    return WF_OK;
}

wf_status wf_ctx_set_threads(wf_ctx *ctx, int threads)
{
    WF_NEED(ctx);
    WF_CHECK(threads >= 1 && threads <= 4096, WF_ERR_ARGUMENT, "threads is %d, should be 1 to 4096", threads);
    ctx->threads = threads;
    return WF_OK;
}

wf_status wf_ctx_read(wf_ctx *ctx, void *host, const void *device, size_t bytes)
{
    WF_TRY(wf_ctx_forbid_capture(ctx, "read a number back from the device",
                                 "keep the tensor (wf_keep) and read it after wf_captured_run"));
    return wf_ctx_capture_read(ctx, host, device, bytes);
}

wf_status wf_ctx_capture_read(wf_ctx *ctx, void *host, const void *device, size_t bytes)
{
    /* NCCL works on a stream of its own: a value summed over ranks is not on this device's stream before comm has
     * waited for it. */
    if (ctx->await)
        WF_TRY(ctx->await(ctx->comm));
    return ctx->k->to_host(ctx, host, device, bytes);
}

wf_setup_seconds wf_ctx_setup_seconds(const wf_ctx *ctx)
{
    if (!ctx)
        return (wf_setup_seconds){0};
    return (wf_setup_seconds){.planning = 1e-9 * (double)ctx->planning_ns,
                              .tuning = 1e-9 * (double)ctx->tuning_ns,
                              .capturing = 1e-9 * (double)ctx->capturing_ns};
}

int64_t wf_wait_ns(wf_wait *wait)
{
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    const int64_t now = (int64_t)clock.tv_sec * 1000000000 + clock.tv_nsec;
    if (wait->start_ns == 0)
        *wait = (wf_wait){.start_ns = now, .seen_ns = now};
    const int64_t passed = now - wait->seen_ns;
    wait->lost_ns += passed > STOPPED_NS ? passed - STOPPED_NS : 0;
    wait->seen_ns = now;
    return now - wait->lost_ns - wait->start_ns;
}

/* Between two looks at a device that is still working: messages of other ranks move on, after a millisecond the core is
 * free for others, and a device that has stopped is an error instead of silence. */
static wf_status between_looks(wf_ctx *ctx, const char *what, wf_wait *wait)
{
    const int64_t waited = wf_wait_ns(wait) / 1000000, most = wf_config_get()->timeout_ms;
    wf_ctx_progress(ctx);
    if (ctx->waiting)
        WF_TRY(ctx->waiting(ctx->comm, wait));
    WF_CHECK(waited <= most, WF_ERR_TIMEOUT, "the device has not %s after %lld ms; WEFT_TIMEOUT_MS is %lld", what,
             (long long)waited, (long long)most);
    if (waited > 0)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return WF_OK;
}

wf_status wf_ctx_wait_event(wf_ctx *ctx, wf_event *event, const char *what)
{
    wf_wait wait = {0};
    for (bool done = false; !done;) {
        WF_TRY(ctx->k->event_done(ctx, event, &done));
        if (!done)
            WF_TRY(between_looks(ctx, what, &wait));
    }
    return WF_OK;
}

void wf_live_add(wf_ctx *ctx, wf_live kind, int64_t by)
{
    ctx->live[kind] += by;
}
