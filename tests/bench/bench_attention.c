/* Speed of attention by itself, forward and backward, beside a large product:
 *
 *     bench_attention [THREADS] [f32|bf16] [NAME]
 *
 * NAME: the shapes whose names begin with it alone. A causal mask halves the arithmetic that counts. Forward has two
 * products, backward five. bench_attention.py measures the same shapes in PyTorch.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

typedef struct shape_row {
    const char *name;
    int64_t n, heads, tokens, features;
    bool causal, window; /* of a window: a bias by an index, and regions */
} shape_row;

typedef struct attention_bench {
    wf_ctx *ctx;
    wf_array q, k, v, y, dy, dq, dk, dv, lse, bias, dbias, index, region;
    wf_attention_args args;
} attention_bench;

static wf_status forward(void *p)
{
    const attention_bench *b = p;
    return b->ctx->k->attention_forward(b->ctx, &b->args);
}

static wf_status backward(void *p)
{
    const attention_bench *b = p;
    return b->ctx->k->attention_backward(b->ctx, &b->args);
}

/* Places of keys from those of queries in a square window, as Swin counts them. */
static void fill_window(attention_bench *b, int64_t side)
{
    int32_t *const index = b->index.data, *const region = b->region.data;
    const int64_t tokens = side * side;
    for (int64_t i = 0; i < tokens; i++) {
        region[i] = i % side < side / 2;
        for (int64_t j = 0; j < tokens; j++)
            index[i * tokens + j] =
                (int32_t)((j / side - i / side + side - 1) * (2 * side - 1) + j % side - i % side + side - 1);
    }
}

static void open_bench(attention_bench *b, wf_ctx *ctx, wf_dtype dtype, const shape_row *s)
{
    wf_array *const tokens[] = {&b->q, &b->k, &b->v, &b->y, &b->dy, &b->dq, &b->dk, &b->dv};
    const int64_t side = s->window ? lround(sqrt((double)s->tokens)) : 1, rows = (2 * side - 1) * (2 * side - 1);
    *b = (attention_bench){.ctx = ctx};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        *tokens[i] = bench_array(ctx, dtype, WF_SHAPE(s->n, s->tokens, s->heads * s->features));
    b->lse = bench_array(ctx, WF_F32, WF_SHAPE(s->n, s->heads, s->tokens));
    b->bias = bench_array(ctx, WF_F32, WF_SHAPE(rows, s->heads));
    b->dbias = bench_array(ctx, WF_F32, WF_SHAPE(rows, s->heads));
    b->index = bench_array(ctx, WF_F32, WF_SHAPE(side * side, side * side));
    b->region = bench_array(ctx, WF_F32, WF_SHAPE(1, side * side));
    b->index.dtype = b->region.dtype = WF_I32;
    b->args = (wf_attention_args){.heads = s->heads,
                                  .scale = 1 / sqrt((double)s->features),
                                  .q = &b->q,
                                  .k = &b->k,
                                  .v = &b->v,
                                  .y = &b->y,
                                  .lse = &b->lse,
                                  .dy = &b->dy,
                                  .dq = &b->dq,
                                  .dk = &b->dk,
                                  .dv = &b->dv,
                                  .causal = s->causal};
    if (!s->window)
        return;
    fill_window(b, side);
    b->args.bias = &b->bias;
    b->args.dbias = &b->dbias;
    b->args.index = &b->index;
    b->args.q_region = b->args.k_region = &b->region;
}

static void close_bench(attention_bench *b)
{
    wf_array *const all[] = {&b->q,  &b->k,   &b->v,    &b->y,     &b->dy,    &b->dq,    &b->dk,
                             &b->dv, &b->lse, &b->bias, &b->dbias, &b->index, &b->region};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bench_array_free(b->ctx, all[i]);
}

static void print_row(wf_ctx *ctx, wf_dtype dtype, const shape_row *s, double peak)
{
    attention_bench b;
    open_bench(&b, ctx, dtype, s);
    const double product = 2.0 * (double)(s->n * s->heads * s->tokens * s->features) *
                           (double)(s->causal ? (s->tokens + 1) / 2 : s->tokens);
    const double f = bench_best(ctx, NULL, 0.01, forward, &b), g = bench_best(ctx, NULL, 0.01, backward, &b);
    printf("%-8s %4lld x %2lld heads of %3lld, %5lld tokens%-8s %9.3f ms %3.0f %% %9.3f ms %3.0f %% %9.3f ms\n",
           s->name, (long long)s->n, (long long)s->heads, (long long)s->features, (long long)s->tokens,
           s->causal ? ", causal" : "", 1e3 * f, 200 * product / peak / f, 1e3 * g, 500 * product / peak / g,
           1e3 * (f + g));
    fflush(stdout);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    static const shape_row list[] = {
        {"swin", 64, 3, 49, 32, false, true},     {"swin", 8, 24, 49, 32, false, true},
        {"vit", 1, 6, 197, 64, false, false},     {"heads64", 1, 8, 197, 64, false, false},
        {"heads64", 1, 8, 197, 64, true, false},  {"heads64", 1, 4, 1024, 64, false, false},
        {"heads64", 1, 4, 1024, 64, true, false}, {"heads64", 1, 1, 4096, 64, false, false},
        {"heads64", 1, 1, 4096, 64, true, false}, {"heads32", 1, 8, 197, 32, false, false},
        {"heads32", 1, 8, 197, 32, true, false},  {"heads32", 1, 4, 1024, 32, false, false},
        {"heads32", 1, 4, 1024, 32, true, false}, {"heads32", 1, 1, 4096, 32, false, false},
        {"heads32", 1, 1, 4096, 32, true, false},
    };
    bench_usage(argc, argv, 3, NULL, "bench_attention [THREADS] [f32|bf16] [NAME]");
    wf_ctx_opts opts = {0};
    wf_dtype dtype = WF_F32;
    const char *name = "";
    for (int i = 1; i < argc; i++) {
        if (isdigit((unsigned char)argv[i][0]))
            opts.threads = atoi(argv[i]);
        else if (strcmp(argv[i], "f32") == 0 || strcmp(argv[i], "bf16") == 0)
            dtype = argv[i][0] == 'f' ? WF_F32 : WF_BF16;
        else
            name = argv[i];
    }
    wf_ctx *ctx = wf_ctx_new(opts);
    WF_MUST(wf_check(ctx));
    const double peak = bench_peak(ctx, dtype);
    printf("%s, %d threads, a large product: %.0f GFLOP/s\n%-53s %21s %17s %12s\n", wf_dtype_name(dtype),
           wf_ctx_threads(ctx), 1e-9 * peak, "", "forward, of that", "backward", "both");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strncmp(list[i].name, name, strlen(name)) == 0)
            print_row(ctx, dtype, &list[i], peak);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
