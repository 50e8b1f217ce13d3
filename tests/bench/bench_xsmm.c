/* Convolutions of ResNet-50 and VGG in f32 on one thread beside LIBXSMM's, forward and both gradients, without biases:
 * milliseconds, and the share of the speed of a large product of ours, which is measured before each row.
 *
 *     bench_xsmm
 *     WEFT_LEVEL=x86-64-v3 ONEDNN_MAX_CPU_ISA=AVX2 LIBXSMM_TARGET=hsw bench_xsmm
 *
 * LIBXSMM's arrays are in its own blocked layout with the padding written out, and its filters are transposed before
 * the clock starts, as ours are packed: what a network in its layouts would see. Its results are checked at some places
 * against plain sums. It is built where libxsmm-dev is installed; the library itself does not know LIBXSMM. */
#include "tests/bench/bench_conv.h"

#include <libxsmm.h>

#include <math.h>
#include <string.h>

enum { FORWARD, DATA, FILTER, WAYS };
enum { X, W, Y, DX, DW, DY, TENSORS };
enum { PLACES = 7 };

typedef struct xsmm_conv {
    libxsmm_dnn_layer *layer;
    libxsmm_dnn_tensor *tensor[TENSORS];
    libxsmm_dnn_tensor *turned; /* the transposed filter, which the gradient of the data reads */
    void *data[TENSORS], *turned_data, *scratch;
    float *plain[TENSORS]; /* NCHW and KCRS */
    int64_t count[TENSORS];
    bench_conv_shape shape;
    int64_t o; /* pixels of a side of the output */
} xsmm_conv;

static const libxsmm_dnn_tensor_type type_of[TENSORS] = {LIBXSMM_DNN_REGULAR_INPUT,   LIBXSMM_DNN_REGULAR_FILTER,
                                                         LIBXSMM_DNN_REGULAR_OUTPUT,  LIBXSMM_DNN_GRADIENT_INPUT,
                                                         LIBXSMM_DNN_GRADIENT_FILTER, LIBXSMM_DNN_GRADIENT_OUTPUT};
static const libxsmm_dnn_compute_kind kind_of[WAYS] = {LIBXSMM_DNN_COMPUTE_KIND_FWD, LIBXSMM_DNN_COMPUTE_KIND_BWD,
                                                       LIBXSMM_DNN_COMPUTE_KIND_UPD};

static void must(libxsmm_dnn_err_t status)
{
    if (status == LIBXSMM_DNN_SUCCESS)
        return;
    fprintf(stderr, "bench_xsmm: LIBXSMM says %s\n", libxsmm_dnn_get_error(status));
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *data = libxsmm_aligned_malloc(bytes, 2097152);
    if (!data) {
        fprintf(stderr, "bench_xsmm: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(data, 0, bytes);
    return data;
}

static bool is_filter(int t)
{
    return t == W || t == DW;
}

/* Pixels of a side of an array's images, without its padding. */
static int64_t side(const xsmm_conv *j, int t)
{
    return t == Y || t == DY ? j->o : j->shape.h;
}

/* Moves a plain array into LIBXSMM's tensor or back, by an array that has the padding, too. */
static void move(const xsmm_conv *j, int t, bool in)
{
    const bool flat = is_filter(t);
    const int64_t n = side(j, t), pad = j->shape.pad, wide = n + 2 * pad;
    const int64_t rows = flat ? 1 : j->count[t] / n, length = flat ? j->count[t] : n;
    float *padded = allocate((size_t)(flat ? length : rows / n * wide * wide) * sizeof *padded);
    const libxsmm_dnn_tensor_format format = flat ? LIBXSMM_DNN_TENSOR_FORMAT_KCRS : LIBXSMM_DNN_TENSOR_FORMAT_NCHW;
    if (!in)
        must(libxsmm_dnn_copyout_tensor(j->tensor[t], padded, format));
    for (int64_t r = 0; r < rows; r++) {
        float *const plain = j->plain[t] + r * length;
        float *const row = padded + (flat ? 0 : (r / n * wide + r % n + pad) * wide + pad);
        memcpy(in ? row : plain, in ? plain : row, (size_t)length * sizeof *row);
    }
    if (in)
        must(libxsmm_dnn_copyin_tensor(j->tensor[t], padded, format));
    libxsmm_free(padded);
}

/* Makes a tensor of numbers between -1 and 1, or of zeros if it is a result. */
static void open_tensor(xsmm_conv *j, int t)
{
    libxsmm_dnn_err_t status;
    libxsmm_dnn_tensor_datalayout *layout = libxsmm_dnn_create_tensor_datalayout(j->layer, type_of[t], &status);
    must(status);
    const size_t bytes = libxsmm_dnn_get_tensor_size(layout, &status);
    must(status);
    j->data[t] = allocate(bytes);
    j->tensor[t] = libxsmm_dnn_link_tensor(layout, j->data[t], &status);
    must(status);
    must(libxsmm_dnn_destroy_tensor_datalayout(layout));
    j->plain[t] = allocate((size_t)j->count[t] * sizeof(float));
    for (int64_t i = 0; i < j->count[t] && t != Y && t != DX && t != DW; i++)
        j->plain[t][i] = (float)((i * 7919 + t) % 1013) / 506.5F - 1;
    move(j, t, true);
    must(libxsmm_dnn_bind_tensor(j->layer, j->tensor[t], type_of[t]));
}

/* The transposed filter, which is an array of its own. */
static void open_turned(xsmm_conv *j)
{
    libxsmm_dnn_err_t status;
    libxsmm_dnn_tensor_datalayout *layout =
        libxsmm_dnn_create_tensor_datalayout(j->layer, LIBXSMM_DNN_REGULAR_FILTER_TRANS, &status);
    must(status);
    const size_t bytes = libxsmm_dnn_get_tensor_size(layout, &status);
    must(status);
    j->turned_data = allocate(bytes);
    j->turned = libxsmm_dnn_link_tensor(layout, j->turned_data, &status);
    must(status);
    must(libxsmm_dnn_destroy_tensor_datalayout(layout));
    must(libxsmm_dnn_bind_tensor(j->layer, j->turned, LIBXSMM_DNN_REGULAR_FILTER_TRANS));
}

static void xsmm_open(xsmm_conv *j, const bench_conv_shape *g)
{
    libxsmm_dnn_err_t status;
    const int pad = (int)g->pad;
    const libxsmm_dnn_conv_desc desc = {.N = (int)g->n,
                                        .C = (int)g->c,
                                        .H = (int)g->h,
                                        .W = (int)g->h,
                                        .K = (int)g->f,
                                        .R = (int)g->k,
                                        .S = (int)g->k,
                                        .u = (int)g->s,
                                        .v = (int)g->s,
                                        .pad_h = pad,
                                        .pad_w = pad,
                                        .pad_h_in = pad,
                                        .pad_w_in = pad,
                                        .pad_h_out = pad,
                                        .pad_w_out = pad,
                                        .threads = 1,
                                        .datatype_in = LIBXSMM_DNN_DATATYPE_F32,
                                        .datatype_out = LIBXSMM_DNN_DATATYPE_F32,
                                        .buffer_format = LIBXSMM_DNN_TENSOR_FORMAT_LIBXSMM,
                                        .filter_format = LIBXSMM_DNN_TENSOR_FORMAT_LIBXSMM,
                                        .algo = LIBXSMM_DNN_CONV_ALGO_DIRECT,
                                        .options = LIBXSMM_DNN_CONV_OPTION_BWD_NO_FILTER_TRANSPOSE_OVERWRITE};
    *j = (xsmm_conv){.shape = *g, .o = (g->h + 2 * g->pad - g->k) / g->s + 1};
    j->count[X] = j->count[DX] = g->n * g->c * g->h * g->h;
    j->count[Y] = j->count[DY] = g->n * g->f * j->o * j->o;
    j->count[W] = j->count[DW] = g->f * g->c * g->k * g->k;
    j->layer = libxsmm_dnn_create_conv_layer(desc, &status);
    must(status);
    for (int t = 0; t < TENSORS; t++)
        open_tensor(j, t);
    open_turned(j);
    const size_t scratch = libxsmm_dnn_get_scratch_size(j->layer, LIBXSMM_DNN_COMPUTE_KIND_ALL, &status);
    must(status);
    j->scratch = allocate(scratch ? scratch : 1);
    must(libxsmm_dnn_bind_scratch(j->layer, LIBXSMM_DNN_COMPUTE_KIND_ALL, j->scratch));
    must(libxsmm_dnn_trans_reg_filter(j->layer));
}

static void xsmm_close(xsmm_conv *j)
{
    for (int t = 0; t < TENSORS; t++) {
        must(libxsmm_dnn_release_tensor(j->layer, type_of[t]));
        must(libxsmm_dnn_destroy_tensor(j->tensor[t]));
        libxsmm_free(j->data[t]);
        libxsmm_free(j->plain[t]);
    }
    must(libxsmm_dnn_release_tensor(j->layer, LIBXSMM_DNN_REGULAR_FILTER_TRANS));
    must(libxsmm_dnn_destroy_tensor(j->turned));
    must(libxsmm_dnn_release_scratch(j->layer, LIBXSMM_DNN_COMPUTE_KIND_ALL));
    must(libxsmm_dnn_destroy_conv_layer(j->layer));
    libxsmm_free(j->turned_data);
    libxsmm_free(j->scratch);
}

static wf_status xsmm_forward(void *p)
{
    must(libxsmm_dnn_execute_st(((xsmm_conv *)p)->layer, kind_of[FORWARD], 0, 0));
    return WF_OK;
}

static wf_status xsmm_data(void *p)
{
    must(libxsmm_dnn_execute_st(((xsmm_conv *)p)->layer, kind_of[DATA], 0, 0));
    return WF_OK;
}

static wf_status xsmm_filter(void *p)
{
    must(libxsmm_dnn_execute_st(((xsmm_conv *)p)->layer, kind_of[FILTER], 0, 0));
    return WF_OK;
}

/* What pixel (i, j) of the output reads at tap (r, q): its place in x, or -1 beyond the edge. */
static int64_t place_in_x(const xsmm_conv *j, int64_t n, int64_t c, int64_t i, int64_t k, int64_t r, int64_t q)
{
    const bench_conv_shape *const g = &j->shape;
    const int64_t row = i * g->s + r - g->pad, column = k * g->s + q - g->pad;
    if (row < 0 || row >= g->h || column < 0 || column >= g->h)
        return -1;
    return ((n * g->c + c) * g->h + row) * g->h + column;
}

/* The element `at` of the result of a way, as a plain sum over all products of the convolution that concern it. */
static double plain_sum(const xsmm_conv *j, int way, int64_t at)
{
    const bench_conv_shape *const g = &j->shape;
    const int64_t area = g->k * g->k, pixels = j->o * j->o;
    double sum = 0;
    for (int64_t n = 0; n < g->n; n++)
        for (int64_t f = 0; f < g->f; f++)
            for (int64_t c = 0; c < g->c; c++) {
                if ((way == FORWARD && at / pixels != n * g->f + f) || (way == FILTER && at / area != f * g->c + c) ||
                    (way == DATA && at / (g->h * g->h) != n * g->c + c))
                    continue;
                for (int64_t o = 0; o < pixels; o++) {
                    const int64_t y = (n * g->f + f) * pixels + o;
                    if (way == FORWARD && y != at)
                        continue;
                    for (int64_t tap = 0; tap < area; tap++) {
                        const int64_t x = place_in_x(j, n, c, o / j->o, o % j->o, tap / g->k, tap % g->k);
                        const int64_t w = (f * g->c + c) * area + tap;
                        if (x < 0 || (way == FILTER && w != at) || (way == DATA && x != at))
                            continue;
                        sum += way == FORWARD ? (double)j->plain[X][x] * j->plain[W][w]
                               : way == DATA  ? (double)j->plain[DY][y] * j->plain[W][w]
                                              : (double)j->plain[DY][y] * j->plain[X][x];
                    }
                }
            }
    return sum;
}

/* Ends the program if LIBXSMM's result is another one than the plain sum. */
static void check(xsmm_conv *j, int way)
{
    static const int result[WAYS] = {Y, DX, DW};
    const int t = result[way];
    move(j, t, false);
    for (int64_t i = 0; i < PLACES; i++) {
        const int64_t at = i * (j->count[t] - 1) / (PLACES - 1);
        const double should = plain_sum(j, way, at), is = j->plain[t][at];
        if (fabs(is - should) > 1e-3 * (fabs(should) + 10)) {
            fprintf(stderr, "bench_xsmm: element %lld of result %d is %g, should be %g\n", (long long)at, way, is,
                    should);
            exit(1);
        }
    }
}

typedef struct conv_case {
    const char *name;
    bench_conv_shape shape;
} conv_case;

/* Ours and LIBXSMM's take turns: each has the least of two rounds. */
static void row(wf_ctx *ctx, const conv_case *c)
{
    static wf_status (*const ours[WAYS])(void *) = {bench_conv_forward, bench_conv_data, bench_conv_filter};
    static wf_status (*const theirs[WAYS])(void *) = {xsmm_forward, xsmm_data, xsmm_filter};
    bench_conv j;
    xsmm_conv x;
    bench_conv_open(&j, ctx, WF_F32, c->shape);
    j.no_bias = true;
    xsmm_open(&x, &c->shape);
    const double flop = bench_conv_flop(&j), peak = bench_peak(ctx, WF_F32);
    printf("%-10s %3lld to %4lld, %3lldx%-3lld k%lld s%lld", c->name, (long long)c->shape.c, (long long)c->shape.f,
           (long long)c->shape.h, (long long)c->shape.h, (long long)c->shape.k, (long long)c->shape.s);
    for (int way = 0; way < WAYS; way++) {
        WF_MUST(theirs[way](&x));
        check(&x, way);
        double least[2] = {1e9, 1e9};
        for (int round = 0; round < 2; round++) {
            const double mine = bench_best(ctx, NULL, 0.02, ours[way], &j);
            const double its = bench_best(ctx, NULL, 0.02, theirs[way], &x);
            least[0] = mine < least[0] ? mine : least[0];
            least[1] = its < least[1] ? its : least[1];
        }
        if (way == 0)
            printf(" %4.0f", 1e-9 * peak);
        printf(" | %7.2f %4.0f %% %7.2f %4.0f %% %5.2f", 1e3 * least[0], 100 * flop / peak / least[0], 1e3 * least[1],
               100 * flop / peak / least[1], least[1] / least[0]);
        fflush(stdout);
    }
    printf("\n");
    xsmm_close(&x);
    bench_conv_close(&j);
}

int main(void)
{
    static const conv_case list[] = {
        {"ResNet-50", {8, 64, 64, 56, 3, 1, 1, 1}},   {"ResNet-50", {8, 256, 64, 56, 1, 1, 0, 1}},
        {"ResNet-50", {8, 128, 128, 56, 3, 2, 1, 1}}, {"ResNet-50", {8, 512, 2048, 7, 1, 1, 0, 1}},
        {"VGG", {8, 64, 128, 112, 3, 1, 1, 1}},       {"VGG", {8, 512, 512, 14, 3, 1, 1, 1}},
    };
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.threads = 1});
    WF_MUST(wf_check(ctx));
    libxsmm_init();
    printf("one thread, f32, 8 samples; LIBXSMM %s, for %s\n", LIBXSMM_VERSION, libxsmm_get_target_arch());
    printf(
        "GFLOP/s of a product of 1024 x 1024 x 1024, before each row; then in each direction ours in ms, its share of\n"
        "that speed, LIBXSMM's two, and LIBXSMM's time over ours\n");
    printf("%-37s %5s | %-29s | %-29s | %s\n", "layer", "peak", "forward", "gradient of the data",
           "gradient of the filter");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        row(ctx, &list[i]);
    libxsmm_finalize();
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
