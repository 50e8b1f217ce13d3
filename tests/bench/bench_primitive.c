/* Makes oneDNN's primitives by its C API and times them. The library's own way to oneDNN is not used: what is measured
 * shall owe nothing to it. */
#include "tests/bench/bench_primitive.h"

#include "tests/bench/bench.h"

#include <oneapi/dnnl/dnnl.h>

#include <string.h>

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void must(dnnl_status_t status)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "bench: oneDNN gave status %d\n", (int)status);
    exit(1);
}

/* Version 2 makes primitives from operation descriptors, version 3 from memory descriptors, which are handles there. */
#if DNNL_VERSION_MAJOR < 3

typedef dnnl_memory_desc_t description;

typedef union operation {
    dnnl_convolution_desc_t conv;
    dnnl_inner_product_desc_t linear;
    dnnl_batch_normalization_desc_t norm;
    dnnl_eltwise_desc_t act;
} operation;

static description describe(int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    description made;
    must(dnnl_memory_desc_init_by_tag(&made, rank, dims, type, tag));
    return made;
}

static size_t bytes_of(dnnl_primitive_desc_t pd, int argument, dnnl_memory_t *memory)
{
    const dnnl_memory_desc_t *desc = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, argument);
    const size_t bytes = desc ? dnnl_memory_desc_get_size(desc) : 0;
    if (bytes > 0)
        must(dnnl_memory_create(memory, desc, engine, DNNL_MEMORY_ALLOCATE));
    return bytes;
}

#define OF(d)     (&(d))
#define BOTH(d)   (&(d))
#define WINDOW(g) (g)->stride, (g)->pad, (g)->pad
#define MAKE_BACKWARD(pd, hint, call, ...)                                                                             \
    do {                                                                                                               \
        operation op;                                                                                                  \
        must(call##_desc_init((void *)&op, __VA_ARGS__));                                                              \
        must(dnnl_primitive_desc_create(&(pd), &op, NULL, engine, hint));                                              \
    } while (0)
#define MAKE_FORWARD(pd, call, ...) MAKE_BACKWARD(pd, NULL, call, __VA_ARGS__)

#else

typedef dnnl_memory_desc_t description;

static description describe(int rank, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    description made;
    must(dnnl_memory_desc_create_with_tag(&made, rank, dims, type, tag));
    return made;
}

static size_t bytes_of(dnnl_primitive_desc_t pd, int argument, dnnl_memory_t *memory)
{
    const_dnnl_memory_desc_t desc = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, argument);
    const size_t bytes = desc ? dnnl_memory_desc_get_size(desc) : 0;
    if (bytes > 0)
        must(dnnl_memory_create(memory, desc, engine, DNNL_MEMORY_ALLOCATE));
    return bytes;
}

#define OF(d)                              (d)
#define BOTH(d)                            (d), (d)
#define WINDOW(g)                          (g)->stride, (g)->dilates, (g)->pad, (g)->pad
#define MAKE_BACKWARD(pd, hint, call, ...) must(call##_primitive_desc_create(&(pd), engine, __VA_ARGS__, hint, NULL))
#define MAKE_FORWARD(pd, call, ...)        must(call##_primitive_desc_create(&(pd), engine, __VA_ARGS__, NULL))

#endif

/* Descriptions of a convolution with input x and output y; for a transposed one x and y are exchanged. */
typedef struct geometry {
    description x, w, b, y, dw, db;
    dnnl_dims_t stride, dilates, pad;
} geometry;

static geometry geometry_of(const bench_primitive *p, dnnl_data_type_t type)
{
    const bool up = p->op == BENCH_DECONV, rows = p->op == BENCH_LINEAR;
    const int64_t o = rows ? 1 : (p->h + 2 - p->k) / p->s + 1;
    const dnnl_dims_t large = {p->n, p->c, p->h, p->h}, small = {p->n, p->f, o, o}, bias = {up ? p->c : p->f};
    const dnnl_dims_t filter = {up ? p->c : p->f, up ? p->f : p->c, p->k, p->k};
    const int rank = rows ? 2 : 4;
    const dnnl_format_tag_t tag = rows ? dnnl_nc : dnnl_nhwc;
    return (geometry){.x = describe(rank, up ? small : large, type, tag),
                      .y = describe(rank, up ? large : small, type, tag),
                      .w = describe(rank, filter, type, dnnl_format_tag_any),
                      .dw = describe(rank, filter, dnnl_f32, dnnl_format_tag_any),
                      .b = describe(1, bias, type, dnnl_x),
                      .db = describe(1, bias, dnnl_f32, dnnl_x),
                      .stride = {p->s, p->s},
                      .pad = {1, 1}};
}

static dnnl_primitive_desc_t conv_pd(const bench_primitive *p, const geometry *g)
{
    dnnl_primitive_desc_t forward = NULL, pd = NULL;
    MAKE_FORWARD(forward, dnnl_convolution_forward, dnnl_forward_training, dnnl_convolution_direct, OF(g->x), OF(g->w),
                 OF(g->b), OF(g->y), WINDOW(g));
    if (p->way == BENCH_FORWARD)
        return forward;
    if (p->way == BENCH_DATA)
        MAKE_BACKWARD(pd, forward, dnnl_convolution_backward_data, dnnl_convolution_direct, OF(g->x), OF(g->w),
                      OF(g->y), WINDOW(g));
    else
        MAKE_BACKWARD(pd, forward, dnnl_convolution_backward_weights, dnnl_convolution_direct, OF(g->x), OF(g->dw),
                      OF(g->db), OF(g->y), WINDOW(g));
    must(dnnl_primitive_desc_destroy(forward));
    return pd;
}

static dnnl_primitive_desc_t deconv_pd(const bench_primitive *p, const geometry *g)
{
    dnnl_primitive_desc_t forward = NULL, pd = NULL;
    MAKE_FORWARD(forward, dnnl_deconvolution_forward, dnnl_forward_training, dnnl_deconvolution_direct, OF(g->x),
                 OF(g->w), OF(g->b), OF(g->y), WINDOW(g));
    if (p->way == BENCH_FORWARD)
        return forward;
    if (p->way == BENCH_DATA)
        MAKE_BACKWARD(pd, forward, dnnl_deconvolution_backward_data, dnnl_deconvolution_direct, OF(g->x), OF(g->w),
                      OF(g->y), WINDOW(g));
    else
        MAKE_BACKWARD(pd, forward, dnnl_deconvolution_backward_weights, dnnl_deconvolution_direct, OF(g->x), OF(g->dw),
                      OF(g->db), OF(g->y), WINDOW(g));
    must(dnnl_primitive_desc_destroy(forward));
    return pd;
}

static dnnl_primitive_desc_t linear_pd(const bench_primitive *p, const geometry *g)
{
    dnnl_primitive_desc_t forward = NULL, pd = NULL;
    MAKE_FORWARD(forward, dnnl_inner_product_forward, dnnl_forward_training, OF(g->x), OF(g->w), OF(g->b), OF(g->y));
    if (p->way == BENCH_FORWARD)
        return forward;
    if (p->way == BENCH_DATA)
        MAKE_BACKWARD(pd, forward, dnnl_inner_product_backward_data, OF(g->x), OF(g->w), OF(g->y));
    else
        MAKE_BACKWARD(pd, forward, dnnl_inner_product_backward_weights, OF(g->x), OF(g->dw), OF(g->db), OF(g->y));
    must(dnnl_primitive_desc_destroy(forward));
    return pd;
}

static dnnl_primitive_desc_t norm_pd(const bench_primitive *p, description x)
{
    const unsigned flags = dnnl_use_scale | dnnl_use_shift | dnnl_fuse_norm_relu;
    dnnl_primitive_desc_t forward = NULL, pd = NULL;
    MAKE_FORWARD(forward, dnnl_batch_normalization_forward, dnnl_forward_training, BOTH(x), 2e-5F, flags);
    if (p->way == BENCH_FORWARD)
        return forward;
    MAKE_BACKWARD(pd, forward, dnnl_batch_normalization_backward, dnnl_backward, BOTH(x), OF(x), 2e-5F, flags);
    must(dnnl_primitive_desc_destroy(forward));
    return pd;
}

/* The sigmoid's gradient is that from its output, as Weft computes it. */
static dnnl_primitive_desc_t act_pd(const bench_primitive *p, description x)
{
    const bool leaky = p->op == BENCH_LEAKY;
    const dnnl_alg_kind_t back = leaky ? dnnl_eltwise_relu : dnnl_eltwise_logistic_use_dst_for_bwd;
    dnnl_primitive_desc_t forward = NULL, pd = NULL;
    MAKE_FORWARD(forward, dnnl_eltwise_forward, dnnl_forward_training, back, BOTH(x), leaky ? 0.2F : 0.0F, 0.0F);
    if (p->way == BENCH_FORWARD)
        return forward;
    MAKE_BACKWARD(pd, forward, dnnl_eltwise_backward, back, BOTH(x), OF(x), leaky ? 0.2F : 0.0F, 0.0F);
    must(dnnl_primitive_desc_destroy(forward));
    return pd;
}

static dnnl_primitive_desc_t pd_of(const bench_primitive *p, bool bf16)
{
    const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t dims = {p->n, p->c, p->h, p->h};
    if (p->op == BENCH_NORM || p->op == BENCH_LEAKY || p->op == BENCH_SIGMOID) {
        const description x = describe(4, dims, type, dnnl_nhwc);
        return p->op == BENCH_NORM ? norm_pd(p, x) : act_pd(p, x);
    }
    const geometry g = geometry_of(p, type);
    if (p->op == BENCH_LINEAR)
        return linear_pd(p, &g);
    return p->op == BENCH_DECONV ? deconv_pd(p, &g) : conv_pd(p, &g);
}

enum { ARGUMENTS_MOST = 16 };

typedef struct runnable {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t argument[ARGUMENTS_MOST];
} runnable;

/* Bytes of 0x3f: 0.75 in f32 and in bf16. */
static runnable runnable_of(dnnl_primitive_desc_t pd)
{
    static const int each[] = {DNNL_ARG_SRC,       DNNL_ARG_WEIGHTS,      DNNL_ARG_BIAS,      DNNL_ARG_DST,
                               DNNL_ARG_DIFF_SRC,  DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST,
                               DNNL_ARG_MEAN,      DNNL_ARG_VARIANCE,     DNNL_ARG_SCALE,     DNNL_ARG_SHIFT,
                               DNNL_ARG_WORKSPACE, DNNL_ARG_DIFF_SCALE,   DNNL_ARG_DIFF_SHIFT};
    runnable r = {0};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        dnnl_memory_t memory = NULL;
        const size_t bytes = bytes_of(pd, each[i], &memory);
        void *data = NULL;
        if (bytes == 0)
            continue;
        must(dnnl_memory_get_data_handle(memory, &data));
        memset(data, 0x3f, bytes);
        r.argument[r.count++] = (dnnl_exec_arg_t){each[i], memory};
    }
    must(dnnl_primitive_create(&r.primitive, pd));
    return r;
}

static double run(const runnable *r)
{
    const double start = bench_seconds();
    must(dnnl_primitive_execute(r->primitive, stream, r->count, r->argument));
    must(dnnl_stream_wait(stream));
    return bench_seconds() - start;
}

double bench_primitive_seconds(const bench_primitive *p, bool bf16)
{
    if (!engine) {
        must(dnnl_engine_create(&engine, dnnl_cpu, 0));
        must(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    }
    dnnl_primitive_desc_t pd = pd_of(p, bf16);
    runnable r = runnable_of(pd);
    const double start = bench_seconds();
    double best = run(&r);
    for (int i = 0; i < 10 || bench_seconds() - start < 0.1; i++) {
        const double each = run(&r);
        best = each < best ? each : best;
    }
    for (int i = 0; i < r.count; i++)
        must(dnnl_memory_destroy(r.argument[i].memory));
    must(dnnl_primitive_destroy(r.primitive));
    must(dnnl_primitive_desc_destroy(pd));
    return best;
}
