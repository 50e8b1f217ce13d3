/* What a plan of cuDNN would compute, by the definition of the convolution; and a list of the keys that asked for one.
 */
#include "tests/offline/offline.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FORMS = 7 };

typedef struct form {
    int keys, planned, compiled;
    double ms, longest;
} form;

static form forms[WF_CUDA_DIRECTIONS][FORMS];
static offline_counts counts;

void __real_wf_cuda_plan_build(cudnnHandle_t handle, int from, cuda_conv_plan *plan);
void __wrap_wf_cuda_plan_build(cudnnHandle_t handle, int from, cuda_conv_plan *plan);
wf_status __wrap_wf_cuda_plan_run(wf_cuda *own, cuda_conv_plan *plan, void *const data[CUDA_ROLES], void *workspace,
                                  bool *done);
wf_status __real_wf_cuda_direct_forward(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                                        const wf_array *y);
wf_status __wrap_wf_cuda_direct_forward(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                                        const wf_array *y);
wf_status __real_wf_cuda_direct_data(wf_cuda *own, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *dx);
wf_status __wrap_wf_cuda_direct_data(wf_cuda *own, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *dx);
wf_status __real_wf_cuda_direct_filter(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, bool accumulate);
wf_status __wrap_wf_cuda_direct_filter(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, bool accumulate);

/* The emulated cuBLASLt asks which engines there are: all. */
unsigned emulated_present(void);
unsigned emulated_present(void)
{
    return ~0U;
}

static const char *const form_names[FORMS] = {"f32",         "f64",         "bf16, f16",      "with groups",
                                              "with a bias", "bias + ReLU", "other epilogues"};

static int form_of(const cuda_conv_key *key)
{
    if (wf_cuda_key_composed(key))
        return key->act == WF_ACT_NONE && !key->wide ? 4 : key->act == WF_ACT_RELU ? 5 : 6;
    return key->groups > 1 ? 3 : key->dtype == WF_F32 ? 0 : key->dtype == WF_F64 ? 1 : 2;
}

static void print_forms(void)
{
    static const char *const direction[] = {"forward", "data", "filter"};
    fprintf(stderr, "cuDNN %zu for %s\n%-8s %-16s %6s %8s %9s %9s %9s\n", cudnnGetVersion(), OFFLINE_PROPERTIES, "", "",
            "keys", "planned", "compiled", "mean ms", "most ms");
    for (int d = 0; d < WF_CUDA_DIRECTIONS; d++)
        for (int i = 0; i < FORMS; i++) {
            const form *const f = &forms[d][i];
            if (f->keys > 0)
                fprintf(stderr, "%-8s %-16s %6d %8d %9d %9.1f %9.1f\n", direction[d], form_names[i], f->keys,
                        f->planned, f->compiled, f->ms / f->keys, f->longest);
        }
}

offline_counts offline_so_far(void)
{
    return counts;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void __wrap_wf_cuda_plan_build(cudnnHandle_t handle, int from, cuda_conv_plan *plan)
{
    form *const f = &forms[plan->key.direction][form_of(&plan->key)];
    const double start = now_ms();
    if (counts.keys++ == 0)
        atexit(print_forms);
    __real_wf_cuda_plan_build(handle, from, plan);
    const double took = now_ms() - start;
    f->keys++;
    f->planned += plan->plan != NULL;
    f->compiled += plan->plan && plan->compiled;
    f->ms += took;
    if (took > f->longest)
        f->longest = took;
    counts.refused += !plan->plan;
    counts.compiled += plan->plan && plan->compiled;
}

static wf_array array_of(const cuda_conv_key *key, cuda_role role, void *data)
{
    const int64_t *const length = role == CUDA_X ? key->in : role == CUDA_W ? key->kernel : key->out;
    int64_t dim[2 + WF_MAX_SPATIAL] = {key->n, key->f};
    if (role == CUDA_X)
        dim[1] = key->c;
    if (role == CUDA_W) {
        dim[0] = key->f;
        dim[1] = key->c / key->groups;
    }
    for (int i = 0; i < key->nd; i++)
        dim[2 + i] = length[i];
    return (wf_array){.data = data,
                      .dtype = wf_cuda_key_dtype(key, role),
                      .order = WF_CHANNELS_LAST,
                      .shape = wf_shape_make(key->nd + 2, dim)};
}

static wf_status convolve(wf_cuda *own, const cuda_conv_key *key, const wf_array *x, const wf_array *w,
                          const wf_array *y)
{
    wf_conv_geom g = {.nd = key->nd, .groups = key->groups};
    for (int i = 0; i < key->nd; i++) {
        g.kernel[i] = key->kernel[i];
        g.stride[i] = key->stride[i];
        g.dilation[i] = key->dilation[i];
        g.pad_lo[i] = key->lo[i];
        g.pad_hi[i] = key->hi[i];
    }
    if (key->direction == WF_CUDA_FORWARD)
        return __real_wf_cuda_direct_forward(own, &g, x, w, y);
    if (key->direction == WF_CUDA_BACKWARD_DATA)
        return __real_wf_cuda_direct_data(own, &g, y, w, x);
    return __real_wf_cuda_direct_filter(own, &g, x, y, w, false);
}

wf_status __wrap_wf_cuda_plan_run(wf_cuda *own, cuda_conv_plan *plan, void *const data[CUDA_ROLES], void *workspace,
                                  bool *done)
{
    const cuda_conv_key *const key = &plan->key;
    const wf_array x = array_of(key, CUDA_X, data[CUDA_X]), w = array_of(key, CUDA_W, data[CUDA_W]),
                   y = array_of(key, CUDA_Y, data[CUDA_Y]), *const to = key->direction == WF_CUDA_FORWARD ? &y : &x;
    const wf_array bias = {.data = data[CUDA_B], .dtype = (wf_dtype)key->dtype, .shape = WF_SHAPE(to->shape.dim[1])};
    const wf_epilogue act = {.act = (wf_act)key->act, .slope = (double)key->slope};
    WF_TRY(convolve(own, key, &x, &w, &y));
    *done = plan->ran = true;
    if (!wf_cuda_key_composed(key))
        return WF_OK;
    return wf_cuda_bias_epilogue(own->ctx, key->align[CUDA_B] ? &bias : NULL, &act, to);
}

/* cuDNN is to have an engine for everything. */
static wf_status no_engine(const char *direction, const wf_conv_geom *g, const wf_array *x, const wf_array *w)
{
    char a[WF_SHAPE_TEXT], b[WF_SHAPE_TEXT];
    WF_FAIL(WF_ERR_UNSUPPORTED,
            "cuDNN has no engine for %s in %s: x %s, filter %s, groups %lld, strides %lld,%lld,%lld, dilations "
            "%lld,%lld,%lld, pads %lld,%lld,%lld and %lld,%lld,%lld",
            direction, wf_dtype_name(x->dtype), wf_shape_text(x->shape, a), wf_shape_text(w->shape, b),
            (long long)g->groups, (long long)g->stride[0], (long long)g->stride[1], (long long)g->stride[2],
            (long long)g->dilation[0], (long long)g->dilation[1], (long long)g->dilation[2], (long long)g->pad_lo[0],
            (long long)g->pad_lo[1], (long long)g->pad_lo[2], (long long)g->pad_hi[0], (long long)g->pad_hi[1],
            (long long)g->pad_hi[2]);
}

wf_status __wrap_wf_cuda_direct_forward(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                                        const wf_array *y)
{
    return no_engine("forward", geom, x, w);
}

wf_status __wrap_wf_cuda_direct_data(wf_cuda *own, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *dx)
{
    return no_engine("the gradient of data", geom, dx, w);
}

wf_status __wrap_wf_cuda_direct_filter(wf_cuda *own, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, bool accumulate)
{
    return no_engine("the gradient of a filter", geom, x, dw);
}
