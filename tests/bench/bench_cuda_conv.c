/* Convolutions of the cuda filling beside cuDNN's fastest engine alone, for the layers of DCGAN, VGG-16 and U-Net.
 *     bench_cuda_conv [f32|bf16|f16] [SECONDS]     after so many no further row is begun; the tables take turns
 * A row has the milliseconds of the slot, of the best engine and their ratio (best / slot: 1 is as fast) in three
 * directions; the slot's choice is the heuristics', or with WEFT_AUTOTUNE=1 a measured one. */
#include "core/cuda/plan_author.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 9, ENOUGH_MS = 20, MOST = 200 };

static wf_ctx *ctx;
static wf_dtype dtype = WF_BF16;
static wf_stream *stream;
static cudaEvent_t start, stop;
static double share[MOST]; /* best / slot of every direction of every row */
static int shares;

typedef struct shape {
    int nd;
    int64_t n, c, f, length, kernel, stride, pad;
} shape;

typedef struct job {
    wf_conv_geom geom;
    wf_array x, w, y;
    wf_packed_form *forms;
} job;

static void cuda_must(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static wf_array array_new(int nd, int64_t n, int64_t c, int64_t length)
{
    const int64_t dim[5] = {n, c, length, length, length};
    wf_array a = {.dtype = dtype, .order = WF_CHANNELS_LAST, .shape = wf_shape_make(nd + 2, dim)};
    const wf_random random = {.seed = 1, .stream = (uint64_t)c, .global = a.shape, .box = wf_box_of_shape(a.shape)};
    WF_MUST(wf_pool_take(ctx, (size_t)wf_array_count(&a) * wf_dtype_size(dtype), &a.data));
    WF_MUST(ctx->k->random(ctx, WF_NORMAL, &random, 0, 1, &a));
    return a;
}

static wf_status slot(const job *j, wf_cuda_direction direction)
{
    const wf_conv_args args = {.geom = &j->geom, .x = &j->x, .w = &j->w, .y = &j->y};
    if (direction == WF_CUDA_FORWARD)
        return ctx->k->conv_forward(ctx, &args);
    if (direction == WF_CUDA_BACKWARD_DATA)
        return ctx->k->conv_backward_data(ctx, &args);
    return ctx->k->conv_backward_filter(ctx, &args);
}

static float time_of(const job *j, wf_cuda_direction direction, int calls)
{
    float ms;
    cuda_must(cudaEventRecord(start, (cudaStream_t)(void *)stream));
    for (int i = 0; i < calls; i++)
        WF_MUST(slot(j, direction));
    cuda_must(cudaEventRecord(stop, (cudaStream_t)(void *)stream));
    cuda_must(cudaEventSynchronize(stop));
    cuda_must(cudaEventElapsedTime(&ms, start, stop));
    return ms / (float)calls;
}

/* Milliseconds of one call: the best of some rounds of many. */
static double slot_ms(const job *j, wf_cuda_direction direction)
{
    float best = time_of(j, direction, 2);
    best = time_of(j, direction, 2);
    const int calls = 1 + (int)((float)ENOUGH_MS / (best + 1e-3F));
    for (int i = 0; i < ROUNDS; i++) {
        const float ms = time_of(j, direction, calls);
        best = ms < best ? ms : best;
    }
    return (double)best;
}

static void row(const shape *s)
{
    job j = {.geom = {.nd = s->nd, .groups = 1}};
    const int64_t out = (s->length + 2 * s->pad - s->kernel) / s->stride + 1;
    double flop = 2e-9 * (double)(s->n * s->c * s->f);
    for (int d = 0; d < s->nd; d++) {
        j.geom.kernel[d] = s->kernel;
        j.geom.stride[d] = s->stride;
        j.geom.dilation[d] = 1;
        j.geom.pad_lo[d] = j.geom.pad_hi[d] = s->pad;
        flop *= (double)(out * s->kernel);
    }
    j.x = array_new(s->nd, s->n, s->c, s->length);
    j.w = array_new(s->nd, s->f, s->c, s->kernel);
    j.y = array_new(s->nd, s->n, s->f, out);
    j.w.forms = &j.forms;
    printf("%d-D %4lld x %4lld -> %4lld %4lld k%lld s%lld", s->nd, (long long)s->n, (long long)s->c, (long long)s->f,
           (long long)s->length, (long long)s->kernel, (long long)s->stride);
    for (int d = 0; d < WF_CUDA_DIRECTIONS; d++) {
        double best;
        const double ours = slot_ms(&j, (wf_cuda_direction)d);
        const wf_conv_args args = {.geom = &j.geom, .x = &j.x, .w = &j.w, .y = &j.y};
        WF_MUST(wf_cuda_conv_best(ctx, (wf_cuda_direction)d, &args, &best));
        printf(" | %8.4f %8.4f %5.2f %6.0f", ours, best, best / ours, flop / ours);
        if (best > 0 && shares < MOST)
            share[shares++] = best / ours;
    }
    printf("\n");
    fflush(stdout);
    wf_packed_free(ctx, &j.forms);
    wf_pool_give(ctx, j.x.data, 0);
    wf_pool_give(ctx, j.w.data, 0);
    wf_pool_give(ctx, j.y.data, 0);
}

static const shape dcgan[] = {{2, 256, 3, 64, 32, 3, 1, 1},    {2, 256, 64, 128, 32, 4, 2, 1},
                              {2, 256, 128, 128, 16, 3, 1, 1}, {2, 256, 128, 256, 16, 4, 2, 1},
                              {2, 256, 256, 256, 8, 3, 1, 1},  {2, 256, 256, 512, 8, 4, 2, 1},
                              {2, 256, 512, 512, 4, 3, 1, 1}};
static const shape vgg[] = {
    {2, 256, 3, 64, 32, 3, 1, 1},    {2, 256, 64, 64, 32, 3, 1, 1},  {2, 256, 64, 128, 16, 3, 1, 1},
    {2, 256, 128, 128, 16, 3, 1, 1}, {2, 256, 128, 256, 8, 3, 1, 1}, {2, 256, 256, 256, 8, 3, 1, 1},
    {2, 256, 256, 512, 4, 3, 1, 1},  {2, 256, 512, 512, 4, 3, 1, 1}, {2, 256, 512, 512, 2, 3, 1, 1}};
static const shape unet2[] = {{2, 8, 64, 64, 512, 3, 1, 1},   {2, 8, 128, 128, 256, 3, 1, 1},
                              {2, 8, 256, 256, 128, 3, 1, 1}, {2, 8, 512, 512, 64, 3, 1, 1},
                              {2, 8, 512, 1024, 64, 2, 2, 0}, {2, 8, 128, 64, 512, 3, 1, 1}};
static const shape unet3[] = {{3, 1, 32, 32, 128, 3, 1, 1},  {3, 1, 64, 64, 64, 3, 1, 1},
                              {3, 1, 128, 128, 32, 3, 1, 1}, {3, 1, 256, 256, 16, 3, 1, 1},
                              {3, 1, 64, 128, 64, 2, 2, 0},  {3, 1, 64, 32, 128, 3, 1, 1}};

static void type_from(const char *name)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, wf_dtype_name(types[i])) == 0)
            dtype = types[i];
}

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static const struct {
    const char *title;
    const shape *rows;
    size_t count;
} tables[] = {{"DCGAN, 512 channels, batch 256", dcgan, COUNT(dcgan)},
              {"VGG-16, batch 256", vgg, COUNT(vgg)},
              {"U-Net 512^2, batch 8", unet2, COUNT(unet2)},
              {"U-Net 128^3", unet3, COUNT(unet3)}};

static void measure(double seconds)
{
    const double begin = bench_seconds();
    printf("%s: slot ms, best ms, best / slot, slot TFLOP/s of forward | data | filter\n", wf_dtype_name(dtype));
    for (size_t i = 0; i < COUNT(vgg); i++)
        for (size_t t = 0; t < COUNT(tables); t++)
            if (i < tables[t].count && bench_seconds() - begin < seconds) {
                printf("%-30s ", tables[t].title);
                row(&tables[t].rows[i]);
            }
    if (shares > 0) {
        const double middle = bench_median(share, shares);
        printf("figure: best / slot of %d convolutions in %s: least %.2f, median %.2f\n", shares, wf_dtype_name(dtype),
               share[0], middle);
    }
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 2, NULL, "bench_cuda_conv [f32|bf16|f16] [SECONDS]");
    if (argc > 1)
        type_from(argv[1]);
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    if (!ctx || strcmp(wf_ctx_device(ctx), "cuda") != 0) {
        fprintf(stderr, "this measures a GPU: %s\n", wf_error_message());
        return 1;
    }
    WF_MUST(ctx->k->stream_new(ctx, &stream));
    WF_MUST(ctx->k->stream_use(ctx, stream));
    cuda_must(cudaEventCreateWithFlags(&start, cudaEventDefault));
    cuda_must(cudaEventCreateWithFlags(&stop, cudaEventDefault));
    measure(argc > 2 ? strtod(argv[2], NULL) : 1e9);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    ctx->k->stream_free(ctx, stream);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
