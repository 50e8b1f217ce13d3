/* The shapes that oneDNN tests itself with: every slot of the kernel table that has one, of the device beside plain
 * loops in f64. benchdnn_shapes TABLE [WORK]: shapes with more multiplications in one pass are made smaller. */
#include "tests/core/contract_bodies.h"
#include "tests/outside/benchdnn.h"

static const char *table;
static double most_work = 1e6;
static uint64_t number; /* of the case: its seed, and what alternates */

static void check_body(const char *what, contract_body body, const void *args)
{
    contract_check_type(what, body, args, contract_seed() + number, WF_F32, 0);
}

/* With inputs of -1, 0 and 1, so that long sums are exact in f32. */
static void check_sums(const char *what, contract_body body, const void *args)
{
    contract_check_type(what, body, args, contract_seed() + number, WF_F32, 1);
}

static void check_convolution(const benchdnn_shape *s)
{
    conv_case t = {.geom = {.nd = s->nd, .groups = s->groups}, .n = s->n, .c = s->c, .f = s->f};
    t.bias = number % 2;
    t.accumulate = number % 3 == 0;
    t.epilogue = number % 4 == 1;
    t.act = WF_ACT_RELU;
    for (int d = 0; d < s->nd; d++) {
        t.in[d] = s->in[d];
        t.geom.kernel[d] = s->kernel[d];
        t.geom.stride[d] = s->stride[d];
        t.geom.dilation[d] = s->dilation[d];
        t.geom.pad_lo[d] = s->lo[d];
        t.geom.pad_hi[d] = s->hi[d];
    }
    if (s->driver == OF_DECONV) { /* is the convolution of its outputs, backward */
        t.c = s->f;
        t.f = s->c;
        for (int d = 0; d < s->nd; d++)
            t.in[d] = window_length(s, d);
    }
    check_sums("conv_forward", conv_forward_body, &t);
    check_sums("conv_backward_data", conv_data_body, &t);
    check_sums("conv_backward_filter", conv_filter_body, &t);
}

static void check_pooling(const benchdnn_shape *s)
{
    pool_case t = {.geom = {.kind = (wf_pool_kind)(number % 3), .nd = s->nd}, .n = s->n, .c = s->c};
    for (int d = 0; d < s->nd; d++) {
        t.in[d] = s->in[d];
        t.geom.kernel[d] = s->kernel[d];
        t.geom.stride[d] = s->stride[d];
        t.geom.dilation[d] = s->dilation[d];
        t.geom.pad_lo[d] = s->lo[d];
        t.geom.pad_hi[d] = s->hi[d];
    }
    check_body("pool", pool_body, &t);
}

static void check_batch_norm(const benchdnn_shape *s)
{
    norm_case t = {.shape = {.rank = s->nd + 2, .dim = {s->n, s->c}}, .gamma = true, .beta = true, .batch = true};
    memcpy(t.shape.dim + 2, s->in, (size_t)s->nd * sizeof *s->in);
    t.epilogue = number % 2;
    t.act = WF_ACT_RELU;
    t.residual = number % 3 == 1;
    check_body("norm_stats", norm_stats_body, &t);
    check_body("norm_forward", norm_forward_body, &t);
    check_body("norm_backward", norm_backward_body, &t);
}

static void check_group_norm(const benchdnn_shape *s)
{
    group_case t = {.rows = s->m, .places = 1, .channels = s->k, .size = s->k, .gamma = true, .beta = true};
    if (s->driver == OF_GNORM) {
        t.rows = s->n;
        t.channels = s->c;
        t.size = s->c / s->groups;
        for (int d = 0; d < s->nd; d++)
            t.places *= s->in[d];
    }
    check_body("group_norm_stats", group_stats_body, &t);
    check_body("group_norm_forward", group_forward_body, &t);
    check_body("group_norm_backward", group_backward_body, &t);
}

/* Weft's factors are whole, and up. */
static bool check_resampling(const benchdnn_shape *s)
{
    resample_case t = {.geom = {.nd = s->nd, .linear = number % 2}, .x = {.rank = s->nd + 2, .dim = {s->n, s->c}}};
    t.y = t.x;
    for (int d = 0; d < s->nd; d++) {
        if (s->in[d] == 0 || s->out[d] % s->in[d] != 0 || s->out[d] == 0)
            return false;
        t.geom.scale[d] = s->out[d] / s->in[d];
        t.geom.in[d] = t.x.dim[2 + d] = s->in[d];
        t.y.dim[2 + d] = s->out[d];
    }
    check_body("resample", resample_body, &t);
    return true;
}

static bool check_shape(const benchdnn_shape *s)
{
    number++;
    switch (s->driver) {
    case OF_CONV:
    case OF_DECONV:
        check_convolution(s);
        return true;
    case OF_POOL:
        check_pooling(s);
        return true;
    case OF_BNORM:
        check_batch_norm(s);
        return true;
    case OF_GNORM:
    case OF_LNORM:
        check_group_norm(s);
        return true;
    case OF_SOFTMAX: {
        row_case t = {.shape = {.rank = s->nd}, .logarithm = number % 2, .spread = 5};
        memcpy(t.shape.dim, s->in, (size_t)s->nd * sizeof *s->in);
        check_body("softmax", softmax_body, &t);
        return true;
    }
    case OF_MATMUL: {
        const matmul_case t = {s->m, s->cols, s->k, .ta = number % 2, .tb = number % 3 == 1, .bias = number % 5 == 0};
        check_sums("matmul", matmul_body, &t);
        return true;
    }
    default:
        return check_resampling(s);
    }
}

static void shapes(void)
{
    each_shape(table, most_work, check_shape);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "benchdnn_shapes TABLE [WORK]\n");
        return 1;
    }
    table = argv[1];
    most_work = argc > 2 ? atof(argv[2]) : most_work;
    return contract_main(1, argv, (test_case[]){{"shapes", shapes}, {0}});
}
