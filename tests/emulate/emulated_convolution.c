/* Convolutions of the cuda filling on the emulated device, whose cuDNN has engines that can be taken away: whatever is
 * left, the numbers are those of ref; a plan is made once; what is repeated allocates nothing. */
#include "core/config_author.h"
#include "core/context_author.h"
#include "core/cuda/plan_author.h"
#include "tests/emulate/dnn.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

static wf_ctx *cuda, *ref;

/* An array on each device, with equal numbers. */
typedef struct pair {
    wf_array cuda, ref;
} pair;

static wf_array array_on(wf_ctx *ctx, wf_shape shape, wf_dtype dtype, uint64_t stream)
{
    wf_array a = {.dtype = dtype, .order = wf_order_default(shape.rank), .shape = shape};
    const wf_random random = {.seed = 1, .stream = stream, .global = shape, .box = wf_box_of_shape(shape)};
    WF_EXPECT_OK(wf_pool_take(ctx, (size_t)wf_array_count(&a) * wf_dtype_size(dtype), &a.data));
    WF_EXPECT_OK(ctx->k->random(ctx, WF_UNIFORM, &random, -1, 1, &a));
    return a;
}

static pair pair_new(wf_shape shape, wf_dtype dtype, uint64_t stream)
{
    return (pair){array_on(cuda, shape, dtype, stream), array_on(ref, shape, dtype, stream)};
}

static void pair_free(const pair *p)
{
    wf_pool_give(cuda, p->cuda.data, 0);
    wf_pool_give(ref, p->ref.data, 0);
}

/* |cuda - ref| relative to |ref|, both as vectors, through f32. */
static double relative_error(const pair *p)
{
    const int64_t n = wf_array_count(&p->cuda);
    const wf_array flat = {.dtype = WF_F32, .order = p->ref.order, .shape = p->ref.shape};
    float *got = malloc((size_t)n * sizeof *got);
    double difference = 0, size = 0;
    wf_array wide_cuda = flat, wide_ref = flat;
    WF_EXPECT_OK(wf_pool_take(cuda, (size_t)n * sizeof(float), &wide_cuda.data));
    WF_EXPECT_OK(wf_pool_take(ref, (size_t)n * sizeof(float), &wide_ref.data));
    const wf_strided from_cuda = wf_array_strided(&p->cuda), to_cuda = wf_array_strided(&wide_cuda);
    const wf_strided from_ref = wf_array_strided(&p->ref), to_ref = wf_array_strided(&wide_ref);
    WF_EXPECT_OK(cuda->k->copy(cuda, &from_cuda, &to_cuda, false));
    WF_EXPECT_OK(ref->k->copy(ref, &from_ref, &to_ref, false));
    WF_EXPECT_OK(cuda->k->to_host(cuda, got, wide_cuda.data, (size_t)n * sizeof *got));
    const float *const want = wide_ref.data;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        difference += d * d;
        size += (double)want[i] * (double)want[i];
    }
    wf_pool_give(cuda, wide_cuda.data, 0);
    wf_pool_give(ref, wide_ref.data, 0);
    free(got);
    return sqrt(difference / (size + 1e-30));
}

typedef struct layer {
    wf_conv_geom geom;
    wf_dtype dtype;
    pair x, w, y, bias_x, bias_y, db;
} layer;

static layer layer_new(wf_dtype dtype, int64_t groups, int64_t c, int64_t f, int64_t length, int64_t stride, int64_t lo,
                       int64_t hi)
{
    layer l = {.geom = {.nd = 2, .groups = groups}, .dtype = dtype};
    const int64_t out = (length + lo + hi - 3) / stride + 1;
    for (int d = 0; d < 2; d++) {
        l.geom.kernel[d] = 3;
        l.geom.stride[d] = stride;
        l.geom.dilation[d] = 1;
        l.geom.pad_lo[d] = lo;
        l.geom.pad_hi[d] = hi;
    }
    l.x = pair_new(WF_SHAPE(2, c, length, length), dtype, 1);
    l.w = pair_new(WF_SHAPE(f, c / groups, 3, 3), dtype, 2);
    l.y = pair_new(WF_SHAPE(2, f, out, out), dtype, 3);
    l.bias_x = pair_new(WF_SHAPE(c), dtype, 4);
    l.bias_y = pair_new(WF_SHAPE(f), dtype, 5);
    l.db = pair_new(WF_SHAPE(f), dtype, 6);
    return l;
}

static void layer_free(const layer *l)
{
    const pair *const all[] = {&l->x, &l->w, &l->y, &l->bias_x, &l->bias_y, &l->db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pair_free(all[i]);
}

static double most_of(wf_dtype dtype)
{
    return dtype == WF_F64   ? 1e-6
           : dtype == WF_F32 ? (wf_config_get()->tf32 ? 1e-3 : 1e-6)
           : dtype == WF_F16 ? 1e-3
                             : 6e-3;
}

static wf_conv_args cuda_args(const layer *l, const wf_epilogue *epilogue)
{
    return (wf_conv_args){.geom = &l->geom, .x = &l->x.cuda, .w = &l->w.cuda, .y = &l->y.cuda, .epilogue = epilogue};
}

static wf_conv_args ref_args(const layer *l, const wf_epilogue *epilogue)
{
    return (wf_conv_args){.geom = &l->geom, .x = &l->x.ref, .w = &l->w.ref, .y = &l->y.ref, .epilogue = epilogue};
}

static void forward(const layer *l, const wf_epilogue *epilogue)
{
    const pair y = pair_new(l->y.ref.shape, l->dtype, 7);
    wf_conv_args on_cuda = cuda_args(l, epilogue), on_ref = ref_args(l, epilogue);
    on_cuda.bias = &l->bias_y.cuda;
    on_ref.bias = &l->bias_y.ref;
    on_cuda.y = &y.cuda;
    on_ref.y = &y.ref;
    WF_EXPECT_OK(cuda->k->conv_forward(cuda, &on_cuda));
    WF_EXPECT_OK(ref->k->conv_forward(ref, &on_ref));
    WF_EXPECT(relative_error(&y) < most_of(l->dtype), "forward in %s: %g", wf_dtype_name(l->dtype), relative_error(&y));
    pair_free(&y);
}

static void backward_data(const layer *l, const wf_epilogue *epilogue)
{
    const pair dx = pair_new(l->x.ref.shape, l->dtype, 7);
    wf_conv_args on_cuda = cuda_args(l, epilogue), on_ref = ref_args(l, epilogue);
    on_cuda.bias = &l->bias_x.cuda;
    on_ref.bias = &l->bias_x.ref;
    on_cuda.x = &dx.cuda;
    on_ref.x = &dx.ref;
    WF_EXPECT_OK(cuda->k->conv_backward_data(cuda, &on_cuda));
    WF_EXPECT_OK(ref->k->conv_backward_data(ref, &on_ref));
    WF_EXPECT(relative_error(&dx) < most_of(l->dtype), "data in %s: %g", wf_dtype_name(l->dtype), relative_error(&dx));
    pair_free(&dx);
}

static void backward_filter(const layer *l, bool accumulate)
{
    const pair dw = pair_new(l->w.ref.shape, l->dtype, 7);
    wf_conv_args on_cuda = cuda_args(l, NULL), on_ref = ref_args(l, NULL);
    on_cuda.w = &dw.cuda;
    on_ref.w = &dw.ref;
    on_cuda.bias = &l->db.cuda;
    on_ref.bias = &l->db.ref;
    on_cuda.accumulate = on_ref.accumulate = accumulate;
    WF_EXPECT_OK(cuda->k->conv_backward_filter(cuda, &on_cuda));
    WF_EXPECT_OK(ref->k->conv_backward_filter(ref, &on_ref));
    WF_EXPECT(relative_error(&dw) < most_of(l->dtype), "filter in %s: %g", wf_dtype_name(l->dtype),
              relative_error(&dw));
    WF_EXPECT(relative_error(&l->db) < most_of(l->dtype), "bias in %s: %g", wf_dtype_name(l->dtype),
              relative_error(&l->db));
    pair_free(&dw);
}

static void everything(const layer *l)
{
    const wf_epilogue leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    forward(l, NULL);
    forward(l, &leaky);
    backward_data(l, NULL);
    backward_data(l, &leaky);
    backward_filter(l, false);
    backward_filter(l, true);
}

/* The engine that the last run on a new shape took, of those present. */
static unsigned engine_of(unsigned present, const layer *l, const wf_epilogue *epilogue)
{
    const int before = emulated_runs();
    emulated_engines(present);
    forward(l, epilogue);
    emulated_engines(EMULATED_ENGINES);
    return emulated_runs() == before ? 0 : emulated_last_engine();
}

/* Runs with every set of engines. Each case has an image length of its own, since plans are kept. */
static void engines(void)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16, WF_F64};
    static const unsigned present[] = {EMULATED_ENGINES,
                                       EMULATED_LATE | EMULATED_BROKEN | EMULATED_ROUGH,
                                       EMULATED_PLAIN,
                                       EMULATED_UNEVEN,
                                       EMULATED_BROKEN | EMULATED_TENSOR,
                                       0};
    static const int64_t pads[][2] = {{1, 1}, {0, 1}, {-1, 1}, {3, 0}};
    for (int64_t i = 0; i < 6; i++)
        for (int64_t t = 0; t < 4; t++) {
            const int64_t *const pad = pads[(i + t) % 4];
            const layer l = layer_new(types[t], 1 + t % 2, 16, 32, 5 + i, 1 + i % 2, pad[0], pad[1]);
            emulated_engines(present[i]);
            everything(&l);
            emulated_engines(EMULATED_ENGINES);
            layer_free(&l);
        }
}

/* Which engine is taken, and how: the fused graph first, copies only where pads differ, nothing that is rough. */
static void choice(void)
{
    const wf_epilogue none = {.act = WF_ACT_NONE}, relu = {.act = WF_ACT_RELU};
    const bool tf32 = wf_config_get()->tf32, fixed = wf_config_get()->deterministic, tuned = wf_config_get()->autotune;
    const layer half = layer_new(WF_BF16, 1, 16, 16, 12, 1, 1, 1), full = layer_new(WF_F32, 1, 16, 16, 12, 1, 1, 1);
    const layer odd = layer_new(WF_BF16, 1, 3, 16, 13, 1, 1, 1), leftover = layer_new(WF_BF16, 1, 16, 16, 12, 2, 1, 0);
    const layer uneven = layer_new(WF_BF16, 1, 16, 16, 14, 1, 0, 1), wide = layer_new(WF_F64, 1, 16, 16, 12, 1, 1, 1);
    const unsigned simple = fixed ? EMULATED_PLAIN : EMULATED_ATOMIC;
    if (!tuned) {
        const unsigned fused = engine_of(EMULATED_ENGINES, &half, &none);
        WF_EXPECT(fused == EMULATED_TENSOR, "a fused graph takes engine %u", fused);
        const unsigned exact = engine_of(EMULATED_ENGINES & ~(unsigned)EMULATED_ATOMIC, &full, &relu);
        WF_EXPECT(exact == (tf32 ? EMULATED_TENSOR : EMULATED_PLAIN), "tf32 %d takes engine %u", tf32, exact);
        const unsigned three = engine_of(EMULATED_ENGINES, &odd, &relu);
        WF_EXPECT(three == simple, "3 channels take engine %u", three);
    }
    const unsigned even = engine_of(EMULATED_PLAIN, &leftover, NULL);
    WF_EXPECT(even == EMULATED_PLAIN && emulated_last_pads() == 4, "pads that a stride leaves over: engine %u, pads %d",
              even, emulated_last_pads());
    const unsigned copied = engine_of(EMULATED_PLAIN, &uneven, NULL);
    WF_EXPECT(copied == EMULATED_PLAIN && emulated_last_pads() == 0, "uneven pads: engine %u, pads %d", copied,
              emulated_last_pads());
    const unsigned plain = engine_of(EMULATED_PLAIN, &wide, NULL);
    WF_EXPECT(plain == EMULATED_PLAIN, "f64 takes engine %u", plain);
    const layer *const all[] = {&half, &full, &odd, &leftover, &uneven, &wide};
    for (int i = 0; i < 6; i++)
        layer_free(all[i]);
}

/* What is measured to be fastest, though the heuristics prefer another one. */
static void tuning(void)
{
    if (!wf_config_get()->autotune || wf_config_get()->deterministic)
        return;
    const layer l = layer_new(WF_BF16, 1, 16, 16, 15, 1, 1, 1), even = layer_new(WF_BF16, 1, 3, 16, 15, 1, 1, 1);
    const wf_epilogue none = {.act = WF_ACT_NONE};
    wf_array bias = l.bias_y.cuda;
    const pair y = pair_new(l.y.ref.shape, l.dtype, 7);
    wf_conv_args args = cuda_args(&l, &none);
    args.y = &y.cuda;
    for (int i = 0; i < 2; i++) {
        args.bias = i ? &bias : NULL;
        WF_EXPECT_OK(cuda->k->conv_forward(cuda, &args));
    }
    WF_EXPECT(emulated_last_engine() == EMULATED_TENSOR, "engine %u", emulated_last_engine());
    /* The ReLU of the others loses NaN. */
    args.epilogue = &(wf_epilogue){.act = WF_ACT_RELU};
    WF_EXPECT_OK(cuda->k->conv_forward(cuda, &args));
    WF_EXPECT(emulated_last_engine() == EMULATED_STRICT, "with ReLU engine %u", emulated_last_engine());
    args = cuda_args(&even, NULL);
    args.y = &y.cuda;
    WF_EXPECT_OK(cuda->k->conv_forward(cuda, &args));
    WF_EXPECT(emulated_last_engine() == EMULATED_COMPILED, "engine %u", emulated_last_engine());
    everything(&l);
    everything(&even);
    pair_free(&y);
    layer_free(&l);
    layer_free(&even);
}

/* The gradient of a bf16 layer's filter in f32: the difference from ref's. */
static double wide_filter(const layer *l)
{
    const pair dw = pair_new(l->w.ref.shape, WF_F32, 7);
    const wf_conv_args on_cuda = {
        .geom = &l->geom, .x = &l->x.cuda, .y = &l->y.cuda, .w = &dw.cuda, .accumulate = true};
    const wf_conv_args on_ref = {.geom = &l->geom, .x = &l->x.ref, .y = &l->y.ref, .w = &dw.ref, .accumulate = true};
    WF_EXPECT_OK(cuda->k->conv_backward_filter(cuda, &on_cuda));
    WF_EXPECT_OK(ref->k->conv_backward_filter(ref, &on_ref));
    const double difference = relative_error(&dw);
    pair_free(&dw);
    return difference;
}

/* What cuDNN has to compile for each shape is taken where it was measured to be faster than two passes, and nowhere
 * else. */
static void composed(void)
{
    static const unsigned present[] = {EMULATED_TENSOR | EMULATED_COMPILED | EMULATED_PLAIN,
                                       EMULATED_TENSOR | EMULATED_CRAWLING | EMULATED_PLAIN};
    const wf_epilogue leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2}, relu = {.act = WF_ACT_RELU};
    for (int i = 0; i < 2; i++) {
        const layer l = layer_new(WF_BF16, 1, 16, 16, 17 + i, 1, 1, 1);
        const bool wanted = wf_config_get()->autotune && present[i] & EMULATED_COMPILED;
        const unsigned want = wanted ? EMULATED_COMPILED : EMULATED_TENSOR;
        const int before = emulated_compiled();
        emulated_engines(present[i]);
        forward(&l, &relu);
        WF_EXPECT(emulated_last_engine() == EMULATED_TENSOR, "ReLU takes engine %u", emulated_last_engine());
        forward(&l, &leaky);
        WF_EXPECT(emulated_last_engine() == EMULATED_TENSOR, "leaky ReLU takes engine %u", emulated_last_engine());
        backward_data(&l, NULL);
        WF_EXPECT(emulated_last_engine() == want, "a transposed one takes engine %u", emulated_last_engine());
        const double rounded = wide_filter(&l);
        WF_EXPECT(emulated_last_engine() == want, "a wide gradient takes engine %u", emulated_last_engine());
        WF_EXPECT(rounded < (wanted ? 1e-6 : 6e-3), "a wide gradient is %g off", rounded);
        emulated_engines(EMULATED_ENGINES);
        WF_EXPECT(wf_config_get()->autotune || emulated_compiled() == before, "%d engines were compiled",
                  emulated_compiled() - before);
        layer_free(&l);
    }
}

/* What making a plan costs: one graph; one question to the heuristics where mode A names an engine that will do. */
static void effort(void)
{
    const layer l = layer_new(WF_BF16, 1, 16, 16, 19, 1, 1, 1), uneven = layer_new(WF_BF16, 1, 16, 16, 19, 1, 0, 1);
    const pair y = pair_new(l.y.ref.shape, l.dtype, 7), z = pair_new(uneven.y.ref.shape, l.dtype, 7);
    int graphs = emulated_graphs(), questions = emulated_questions();
    emulated_engines(EMULATED_ENGINES & ~(unsigned)EMULATED_BROKEN);
    WF_EXPECT_OK(
        cuda->k->conv_forward(cuda, &(wf_conv_args){.geom = &l.geom, .x = &l.x.cuda, .w = &l.w.cuda, .y = &y.cuda}));
    WF_EXPECT(emulated_graphs() - graphs == 1, "%d graphs", emulated_graphs() - graphs);
    WF_EXPECT(emulated_questions() - questions == 1, "%d questions", emulated_questions() - questions);
    graphs = emulated_graphs();
    emulated_engines(EMULATED_UNEVEN);
    WF_EXPECT_OK(cuda->k->conv_forward(
        cuda, &(wf_conv_args){.geom = &uneven.geom, .x = &uneven.x.cuda, .w = &uneven.w.cuda, .y = &z.cuda}));
    emulated_engines(EMULATED_ENGINES);
    WF_EXPECT(emulated_last_engine() == EMULATED_UNEVEN, "engine %u", emulated_last_engine());
    WF_EXPECT(emulated_graphs() - graphs == 1, "%d graphs", emulated_graphs() - graphs);
    pair_free(&y);
    pair_free(&z);
    layer_free(&l);
    layer_free(&uneven);
}

/* A number that is none comes through ReLU, as on other devices. */
static void nans(void)
{
    const layer l = layer_new(WF_F32, 1, 16, 16, 6, 1, 1, 1);
    const wf_epilogue relu = {.act = WF_ACT_RELU}, leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    const pair y = pair_new(l.y.ref.shape, l.dtype, 7);
    float got = 0;
    WF_EXPECT_OK(cuda->k->fill(cuda, &l.x.cuda, NAN));
    for (int i = 0; i < 2; i++) {
        WF_EXPECT_OK(cuda->k->conv_forward(cuda, &(wf_conv_args){.geom = &l.geom,
                                                                 .x = &l.x.cuda,
                                                                 .w = &l.w.cuda,
                                                                 .bias = &l.bias_y.cuda,
                                                                 .epilogue = i ? &leaky : &relu,
                                                                 .y = &y.cuda}));
        WF_EXPECT_OK(cuda->k->to_host(cuda, &got, y.cuda.data, sizeof got));
        WF_EXPECT(isnan(got), "%s makes %g of NaN", i ? "leaky ReLU" : "ReLU", (double)got);
    }
    pair_free(&y);
    layer_free(&l);
}

/* The fastest engine alone: a task is a millisecond, and the engine of tensor cores puts two. */
static void best(void)
{
    const layer l = layer_new(WF_BF16, 1, 16, 16, 9, 1, 1, 1), uneven = layer_new(WF_BF16, 1, 16, 16, 9, 1, 0, 1);
    double ms = 0;
    const wf_conv_args args = cuda_args(&l, NULL), uneven_args = cuda_args(&uneven, NULL);
    WF_EXPECT_OK(wf_cuda_conv_best(cuda, WF_CUDA_FORWARD, &args, &ms));
    WF_EXPECT(ms == 2, "%g ms", ms);
    emulated_engines(EMULATED_PLAIN);
    WF_EXPECT_OK(wf_cuda_conv_best(cuda, WF_CUDA_BACKWARD_FILTER, &uneven_args, &ms));
    emulated_engines(EMULATED_ENGINES);
    WF_EXPECT(ms == -1, "%g ms where no engine takes it", ms);
    layer_free(&l);
    layer_free(&uneven);
}

/* A plan for each shape, direction and epilogue; then neither plans nor memory. */
static void repeated(void)
{
    const layer l = layer_new(WF_F32, 1, 8, 16, 11, 1, 1, 1), crop = layer_new(WF_BF16, 1, 8, 16, 11, 1, -1, 2);
    for (int i = 0; i < 2; i++) {
        everything(&l);
        everything(&crop);
    }
    const int plans = emulated_plans();
    const int64_t allocations = wf_ctx_memory(cuda).system_allocations;
    everything(&l);
    everything(&crop);
    WF_EXPECT(emulated_plans() == plans, "%d plans more", emulated_plans() - plans);
    WF_EXPECT(wf_ctx_memory(cuda).system_allocations == allocations, "%lld allocations more",
              (long long)(wf_ctx_memory(cuda).system_allocations - allocations));
    layer_free(&l);
    layer_free(&crop);
}

/* Runs the forward convolution of the layer from x into y, and returns how many lists of arrays it made. */
static int packs_of(const layer *l, const wf_array *x)
{
    const int before = emulated_packs();
    wf_conv_args args = cuda_args(l, NULL);
    args.x = x;
    WF_EXPECT_OK(cuda->k->conv_forward(cuda, &args));
    return emulated_packs() - before;
}

/* Layers of one shape share a plan, and in each step they have the arrays of the step before: their lists are made
 * once, and cuDNN knows its stream. */
static void packed(void)
{
    const layer l = layer_new(WF_F32, 1, 8, 16, 14, 1, 1, 1);
    const pair other = pair_new(l.x.ref.shape, WF_F32, 9);
    packs_of(&l, &l.x.cuda);
    packs_of(&l, &other.cuda);
    const int told = emulated_streams_told();
    for (int i = 0; i < 3; i++)
        WF_EXPECT(packs_of(&l, &l.x.cuda) == 0 && packs_of(&l, &other.cuda) == 0, "arrays are listed again");
    WF_EXPECT(emulated_streams_told() == told, "cuDNN is told its stream again");
    pair more[5];
    for (int i = 0; i < 5; i++) {
        more[i] = pair_new(l.x.ref.shape, WF_F32, 10);
        WF_EXPECT(packs_of(&l, &more[i].cuda) == 1, "arrays that were never seen are listed %d times", i);
    }
    WF_EXPECT(packs_of(&l, &l.x.cuda) == 1, "lists are kept without end");
    for (int i = 0; i < 5; i++)
        pair_free(&more[i]);
    pair_free(&other);
    layer_free(&l);
}

static void all_slots(const layer *l, const pair *dw)
{
    const wf_epilogue leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    const int64_t c = l->w.ref.shape.dim[0];
    wf_array a = l->bias_y.cuda, square = dw->cuda;
    a.shape = WF_SHAPE(1, c);
    a.order = square.order = WF_ROW_MAJOR;
    square.shape = WF_SHAPE(c, 4);
    wf_array out = l->bias_x.cuda;
    out.shape = WF_SHAPE(1, 4);
    out.order = WF_ROW_MAJOR;
    wf_conv_args args = cuda_args(l, &leaky);
    args.bias = &l->bias_y.cuda;
    WF_EXPECT_OK(cuda->k->conv_forward(cuda, &args));
    args.bias = &l->bias_x.cuda;
    WF_EXPECT_OK(cuda->k->conv_backward_data(cuda, &args));
    args = cuda_args(l, NULL);
    args.w = &dw->cuda;
    args.bias = &l->db.cuda;
    args.accumulate = true;
    WF_EXPECT_OK(cuda->k->conv_backward_filter(cuda, &args));
    WF_EXPECT_OK(cuda->k->matmul(cuda, &(wf_matmul_args){.a = &a, .b = &square, .c = &out, .accumulate = true}));
}

/* What is repeated only puts work on the stream, so that it can be captured. */
static void unwaited(void)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F64};
    for (int i = 0; i < 6; i++) {
        const layer l = layer_new(types[i / 2], 1, 8, 16, 10, 1, i % 2 ? -1 : 1, 1);
        const pair dw = pair_new(l.w.ref.shape, l.dtype, 7);
        all_slots(&l, &dw);
        const int before = emulated_waits();
        all_slots(&l, &dw);
        WF_EXPECT(emulated_waits() == before, "the host waits %d times", emulated_waits() - before);
        WF_EXPECT_OK(cuda->k->stream_finish(cuda, NULL));
        pair_free(&dw);
        layer_free(&l);
    }
}

/* Products, with and without the epilogue for f64 that cuBLASLt may lack, and depth 0. */
static void products(void)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16, WF_F64};
    for (int t = 0; t < 8; t++)
        for (int64_t depth = 0; depth < 20; depth += 19) {
            const bool distributed = t % 2, accumulate = t % 3 == 0;
            const pair a = pair_new(distributed ? WF_SHAPE(depth, 5) : WF_SHAPE(5, depth), types[t / 2], 1);
            const pair b = pair_new(distributed ? WF_SHAPE(7, depth) : WF_SHAPE(depth, 7), types[t / 2], 2);
            const pair bias = pair_new(WF_SHAPE(7), types[t / 2], 3), c = pair_new(WF_SHAPE(5, 7), types[t / 2], 4);
            emulated_engines(distributed ? 0 : EMULATED_ENGINES);
            WF_EXPECT_OK(cuda->k->matmul(cuda, &(wf_matmul_args){.a = &a.cuda,
                                                                 .a_transposed = distributed,
                                                                 .b = &b.cuda,
                                                                 .b_transposed = distributed,
                                                                 .bias = &bias.cuda,
                                                                 .c = &c.cuda,
                                                                 .accumulate = accumulate}));
            emulated_engines(EMULATED_ENGINES);
            WF_EXPECT_OK(ref->k->matmul(ref, &(wf_matmul_args){.a = &a.ref,
                                                               .a_transposed = distributed,
                                                               .b = &b.ref,
                                                               .b_transposed = distributed,
                                                               .bias = &bias.ref,
                                                               .c = &c.ref,
                                                               .accumulate = accumulate}));
            WF_EXPECT(relative_error(&c) < most_of(types[t / 2]), "product %d of depth %lld: %g", t, (long long)depth,
                      relative_error(&c));
            pair_free(&a);
            pair_free(&b);
            pair_free(&bias);
            pair_free(&c);
        }
}

/* True if a convolution, or a product, of this length makes no plan. */
static bool is_kept(int64_t length, bool product)
{
    const int plans = emulated_plans();
    const int64_t kept = wf_ctx_memory(cuda).plans, made = wf_ctx_memory(cuda).system_allocations;
    const pair a = product ? pair_new(WF_SHAPE(1, length), WF_F32, 1) : pair_new(WF_SHAPE(1, 1, 1, length), WF_F32, 1);
    const pair b = product ? pair_new(WF_SHAPE(length, 1), WF_F32, 2) : pair_new(WF_SHAPE(1, 1, 1, 1), WF_F32, 2);
    const pair y = product ? pair_new(WF_SHAPE(1, 1), WF_F32, 3) : pair_new(WF_SHAPE(1, 1, 1, length), WF_F32, 3);
    const wf_conv_geom point = {.nd = 2, .groups = 1, .kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}};
    const int64_t before = wf_ctx_memory(cuda).system_allocations - made;
    if (product)
        WF_EXPECT_OK(cuda->k->matmul(cuda, &(wf_matmul_args){.a = &a.cuda, .b = &b.cuda, .c = &y.cuda}));
    else
        WF_EXPECT_OK(
            cuda->k->conv_forward(cuda, &(wf_conv_args){.geom = &point, .x = &a.cuda, .w = &b.cuda, .y = &y.cuda}));
    const bool same = product ? wf_ctx_memory(cuda).system_allocations - made == before : emulated_plans() == plans;
    WF_EXPECT(!same || wf_ctx_memory(cuda).plans == kept, "a plan that is kept counts twice");
    pair_free(&a);
    pair_free(&b);
    pair_free(&y);
    return same;
}

/* Set-up has the time of every plan, of those as well that take the place of one whose engine fails in its first run.
 */
static void plans_count(void)
{
    const layer l = layer_new(WF_BF16, 1, 16, 16, 29, 1, 1, 1);
    const pair y = pair_new(l.y.ref.shape, l.dtype, 7);
    const int plans = emulated_plans();
    const wf_setup_seconds before = wf_ctx_setup_seconds(cuda);
    emulated_plans_take(4);
    WF_EXPECT_OK(
        cuda->k->conv_forward(cuda, &(wf_conv_args){.geom = &l.geom, .x = &l.x.cuda, .w = &l.w.cuda, .y = &y.cuda}));
    emulated_plans_take(0);
    const wf_setup_seconds after = wf_ctx_setup_seconds(cuda);
    const double seconds = after.planning + after.tuning - before.planning - before.tuning;
    const int made = emulated_plans() - plans;
    WF_EXPECT(made > 1, "%d plans: none fails in its first run", made);
    WF_EXPECT(seconds >= 0.004 * made, "%d plans of 4 ms count as %g s", made, seconds);
    WF_EXPECT(wf_config_get()->autotune || after.tuning == before.tuning, "tuning counts without being asked for");
    pair_free(&y);
    layer_free(&l);
}

/* Checks that the 1024 most recently used plans of each kind are kept. */
static void bounded(void)
{
    for (int product = 0; product < 2; product++) {
        for (int64_t i = 1; i <= 1100; i++) {
            is_kept(i, product);
            if (i % 100 == 99)
                WF_EXPECT(is_kept(7, product), "after %lld others a length that is used often is planned anew",
                          (long long)i);
        }
        WF_EXPECT(wf_ctx_memory(cuda).plans <= 1024 * (1 + product) + (product ? 0 : 100), "%lld plans are kept",
                  (long long)wf_ctx_memory(cuda).plans);
        WF_EXPECT(is_kept(1099, product) && is_kept(300, product), "lengths that were used lately are planned anew");
        WF_EXPECT(!is_kept(1, product), "the first of 1100 lengths is kept");
    }
}

int main(int argc, char **argv)
{
    cuda = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    ref = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    WF_MUST(wf_check(cuda));
    WF_MUST(wf_check(ref));
    const int code = test_main(argc, argv,
                               (test_case[]){{"engines", engines},
                                             {"choice", choice},
                                             {"tuning", tuning},
                                             {"composed", composed},
                                             {"effort", effort},
                                             {"nans", nans},
                                             {"best", best},
                                             {"repeated", repeated},
                                             {"packed", packed},
                                             {"unwaited", unwaited},
                                             {"products", products},
                                             {"plans_count", plans_count},
                                             {"bounded", bounded},
                                             {0}});
    WF_MUST(wf_ctx_free(cuda));
    WF_MUST(wf_ctx_free(ref));
    return code;
}
