/* Attention: gradients against central differences, values against the same made of products and softmax, memory, and
 * what it refuses. */
#define INPUTS 4
#include "layers/attention.h"

#include "core/tape_author.h"
#include "layers/transformer.h"
#include "tests/layers/gradcheck_fixture.h"

static wf_attention_opts opts; /* of the function under test */

static wf_var *attend(wf_var *const *x)
{
    wf_attention_opts o = opts;
    if (o.heads == 3)
        o.bias = x[3];
    return wf_attention(x[0], x[1], x[2], o);
}

static wf_var *attend_self(wf_var *x)
{
    return wf_attention(x, x, x, opts);
}

static wf_tensor *numbers(wf_shape shape, int64_t lo, int64_t hi)
{
    int32_t host[ELEMENTS];
    wf_tensor *t = wf_tensor_new(ctx, WF_I32, shape);
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        host[i] = (int32_t)test_int(&rng, lo, hi);
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    return t;
}

static wf_tensor *mask_of(wf_shape shape)
{
    double host[ELEMENTS];
    wf_tensor *t = wf_tensor_new(ctx, WF_F64, shape);
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        host[i] = test_int(&rng, 0, 3) == 0 ? -INFINITY : test_uniform(&rng, -1, 1);
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    return t;
}

static void check_attend(const char *name, int inputs, int64_t n, int64_t t, int64_t s, int64_t rows)
{
    const int64_t d = opts.heads == 0 ? 3 : 2 * opts.heads, e = opts.heads == 0 ? 2 : 3 * opts.heads;
    check(name, (function){.many = attend}, inputs,
          (wf_shape[]){WF_SHAPE(n, t, d), WF_SHAPE(n, s, d), WF_SHAPE(n, s, e), WF_SHAPE(rows, 3)},
          (wf_order[]){WF_ROW_MAJOR, WF_CHANNELS_LAST, WF_ROW_MAJOR, WF_ROW_MAJOR});
}

static void gradients(void)
{
    begin();
    opts = (wf_attention_opts){0};
    check_attend("attention", 3, 2, 3, 4, 0);
    check_attend("attention of no sample", 3, 0, 3, 4, 0);
    check_attend("attention without keys", 3, 2, 3, 0, 0);
    opts = (wf_attention_opts){.heads = 2, .causal = true, .scale = 0.3, .dropout = 0.4};
    check_attend("causal attention with dropout", 3, 2, 4, 5, 0);
    check("attention to itself", (function){.one = attend_self}, 1, (wf_shape[]){WF_SHAPE(2, 4, 4)},
          (wf_order[]){WF_ROW_MAJOR});
    wf_tensor *mask = mask_of(WF_SHAPE(2, 1, 3, 5)), *lengths = numbers(WF_SHAPE(2), 0, 5);
    wf_tensor *queries = numbers(WF_SHAPE(1, 3), 0, 1), *keys = numbers(WF_SHAPE(1, 5), 0, 1);
    opts = (wf_attention_opts){
        .heads = 2, .mask = mask, .lengths = lengths, .query_regions = queries, .key_regions = keys};
    check_attend("masked attention", 3, 2, 3, 5, 0);
    wf_tensor *index = numbers(WF_SHAPE(3, 5), 0, 5);
    opts = (wf_attention_opts){.heads = 3, .bias_index = index};
    check_attend("attention with a bias", 4, 2, 3, 5, 6);
    opts = (wf_attention_opts){.heads = 3};
    check_attend("attention with a bias of differences", 4, 2, 3, 5, 5);
    wf_tensor *const all[] = {mask, lengths, queries, keys, index};
    for (int i = 0; i < 5; i++)
        wf_tensor_free(all[i]);
    end();
}

/* Heads as a dimension of their own: [N,T,H D] to [N,H,T,D]. */
static wf_var *heads_of(wf_var *x, int64_t heads)
{
    const wf_shape s = wf_var_shape(x);
    return wf_transpose(wf_reshape(x, WF_SHAPE(s.dim[0], s.dim[1], heads, s.dim[2] / heads)), (int[]){0, 2, 1, 3});
}

static wf_var *composed(wf_var *q, wf_var *k, wf_var *v, const wf_tensor *mask)
{
    const wf_shape s = wf_var_shape(q);
    wf_var *scores = wf_matmul(heads_of(q, 2), heads_of(k, 2), (wf_matmul_opts){.b_transposed = true});
    scores = wf_add(wf_scale(scores, 1 / sqrt((double)s.dim[2] / 2)), wf_input(tape, mask));
    wf_var *y = wf_matmul(wf_softmax_over(scores, WF_DIMS(3)), heads_of(v, 2), (wf_matmul_opts){0});
    y = wf_transpose(y, (int[]){0, 2, 1, 3});
    return wf_reshape(y, WF_SHAPE(s.dim[0], s.dim[1], s.dim[2]));
}

static void export_doubles(const wf_tensor *t, double *host)
{
    WF_EXPECT_OK(wf_tensor_export(t, host, wf_tensor_bytes(t)));
}

/* y and the gradients of q, k and v: 4 arrays of ELEMENTS. */
static void run_once(bool composes, wf_tensor *const *x, const wf_tensor *mask, double (*to)[ELEMENTS])
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_var *q = wf_leaf(tape, x[0]), *k = wf_leaf(tape, x[1]), *v = wf_leaf(tape, x[2]);
    wf_var *y =
        composes ? composed(q, k, v, mask) : wf_attention(q, k, v, (wf_attention_opts){.heads = 2, .mask = mask});
    WF_EXPECT(y, "%s", wf_error_message());
    export_doubles(wf_value(y), to[0]);
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    export_doubles(wf_grad(q), to[1]);
    export_doubles(wf_grad(k), to[2]);
    export_doubles(wf_grad(v), to[3]);
}

static void values(void)
{
    static double got[4][ELEMENTS], want[4][ELEMENTS];
    double host[ELEMENTS];
    begin();
    wf_tensor *x[3], *mask = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 1, 5, 7));
    for (int64_t i = 0; i < 35; i++)
        host[i] = i % 7 > i / 7 + 2 ? -INFINITY : 0;
    WF_EXPECT_OK(wf_tensor_import(mask, host, wf_tensor_bytes(mask)));
    for (int i = 0; i < 3; i++) {
        x[i] = wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, i == 0 ? 5 : 7, 6));
        for (int j = 0; j < ELEMENTS; j++)
            host[j] = test_uniform(&rng, -1, 1);
        WF_EXPECT_OK(wf_tensor_import(x[i], host, wf_tensor_bytes(x[i])));
    }
    run_once(false, x, mask, got);
    run_once(true, x, mask, want);
    for (int i = 0; i < 4; i++) {
        const int64_t n = i < 2 ? 60 : 84;
        const double distance = test_distance(n, got[i], want[i]);
        WF_EXPECT(distance < 1e-12, "array %d differs by %g from products and softmax", i, distance);
    }
    for (int i = 0; i < 3; i++)
        wf_tensor_free(x[i]);
    wf_tensor_free(mask);
    end();
}

/* A pair of features is turned by as many radians as its token's place. */
static void rotary(void)
{
    begin();
    double host[12], got[12];
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 3, 4));
    for (int i = 0; i < 12; i++)
        host[i] = test_uniform(&rng, -1, 1);
    WF_EXPECT_OK(wf_tensor_import(x, host, sizeof host));
    wf_layer *layer = wf_rotary(ctx, (wf_rotary_opts){.length = 5, .heads = 2, .features = 2});
    wf_var *y = wf_apply(layer, wf_input(tape, x));
    WF_EXPECT(y, "%s", wf_error_message());
    export_doubles(wf_value(y), got);
    for (int i = 0; i < 12; i += 2) {
        const int t = i / 4;
        const double first = host[i] * cos(t) - host[i + 1] * sin(t), second = host[i] * sin(t) + host[i + 1] * cos(t);
        WF_EXPECT(fabs(got[i] - first) < 1e-14 && fabs(got[i + 1] - second) < 1e-14,
                  "token %d is turned to %g, %g, should be %g, %g", t, got[i], got[i + 1], first, second);
    }
    wf_layer_free(layer);
    wf_tensor_free(x);
    end();
}

/* Twice the tokens take at most twice the memory, and far less than an array of their square. */
static void memory(void)
{
    wf_ctx *own = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    wf_tape *on = wf_tape_new(own);
    const int64_t t = 4096;
    wf_tensor *x = wf_tensor_new(own, WF_F32, WF_SHAPE(1, t, 16));
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    wf_var *v = wf_leaf(on, x);
    wf_var *y = wf_attention(v, v, v, (wf_attention_opts){.causal = true});
    WF_EXPECT_OK(wf_backward(wf_sum(y)));
    const wf_memory_counters stats = wf_ctx_memory(own);
    /* q, k, v and their gradients. */
    const double arrays = 6.0 * (double)t * 16 * 4;
    WF_EXPECT((double)stats.bytes_peak < 4 * arrays,
              "%lld tokens took %.0f bytes, %.2f times q, k, v and their gradients", (long long)t,
              (double)stats.bytes_peak, (double)stats.bytes_peak / arrays);
    WF_EXPECT_OK(wf_tape_reset(on));
    wf_tensor_free(x);
    wf_tape_free(on);
    WF_EXPECT_OK(wf_ctx_free(own));
}

enum { THREADED = 200, WIDE = 12 };

/* y and the gradients of q, k and v of one head, 200 tokens, with so many threads; those not in `wanted` are 0. */
static void run_threads(int threads, unsigned wanted, float (*to)[THREADED * WIDE])
{
    static float host[THREADED * WIDE];
    wf_ctx *own = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = threads});
    wf_tape *on = wf_tape_new(own);
    test_rng draw = {9};
    wf_var *x[3];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < THREADED * WIDE; j++)
            host[j] = (float)test_uniform(&draw, -1, 1);
        wf_tensor *t = wf_tensor_new(own, WF_F32, WF_SHAPE(1, THREADED, WIDE));
        WF_EXPECT_OK(wf_tensor_import(t, host, sizeof host));
        x[i] = wanted >> i & 1 ? wf_leaf(on, t) : wf_input(on, t);
        wf_tensor_free(t);
    }
    wf_var *y = wf_attention(x[0], x[1], x[2], (wf_attention_opts){.causal = true});
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), to[0], sizeof *to));
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    for (int i = 0; i < 3; i++)
        if (wanted >> i & 1)
            WF_EXPECT_OK(wf_tensor_export(wf_grad(x[i]), to[1 + i], sizeof *to));
        else
            memset(to[1 + i], 0, sizeof *to);
    WF_EXPECT_OK(wf_tape_reset(on));
    wf_tape_free(on);
    WF_EXPECT_OK(wf_ctx_free(own));
}

/* A head over several threads, and gradients that some inputs do not want, are the same numbers. */
static void threads(void)
{
    static float one[4][THREADED * WIDE], other[4][THREADED * WIDE];
    run_threads(1, 7, one);
    for (unsigned wanted = 1; wanted < 8; wanted++) {
        run_threads(1 + (int)wanted % 4, wanted, other);
        for (int i = 0; i < 4; i++)
            if (i == 0 || wanted >> (i - 1) & 1)
                WF_EXPECT(memcmp(one[i], other[i], sizeof *one) == 0,
                          "array %d differs with %u threads and gradients %u", i, 1 + wanted % 4, wanted);
    }
}

static void refuse(wf_status code, const char *words, wf_var *y)
{
    WF_EXPECT(!y && wf_error_code() == code && strstr(wf_error_message(), words), "is \"%s\" (%s), should have \"%s\"",
              wf_error_message(), wf_status_name(wf_error_code()), words);
    wf_error_clear();
}

static void errors(void)
{
    begin();
    wf_tensor *t[3] = {wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 3, 4)), wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 5, 4)),
                       wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 5, 6))};
    for (int i = 0; i < 3; i++)
        WF_EXPECT_OK(wf_tensor_fill(t[i], 0.25));
    wf_tensor *narrow = numbers(WF_SHAPE(3), 0, 1), *index = numbers(WF_SHAPE(3, 4), 0, 1);
    wf_tensor *table = wf_tensor_new(ctx, WF_F64, WF_SHAPE(4, 1));
    WF_EXPECT_OK(wf_tensor_fill(table, 0));
    wf_var *q = wf_input(tape, t[0]), *k = wf_input(tape, t[1]), *v = wf_input(tape, t[2]), *w = wf_input(tape, table);
    const wf_status argument = WF_ERR_ARGUMENT, shape = WF_ERR_SHAPE;
    refuse(argument, "-1 heads", wf_attention(q, k, v, (wf_attention_opts){.heads = -1}));
    refuse(argument, "rate 1 is", wf_attention(q, k, v, (wf_attention_opts){.dropout = 1}));
    refuse(shape, "4 heads: 6 features", wf_attention(q, k, v, (wf_attention_opts){.heads = 4}));
    refuse(shape, "should be [N,T,E]", wf_attention(q, v, k, (wf_attention_opts){0}));
    refuse(shape, "should be [2]", wf_attention(q, k, v, (wf_attention_opts){.lengths = narrow}));
    refuse(WF_ERR_DTYPE, "i32", wf_attention(q, k, v, (wf_attention_opts){.lengths = table}));
    refuse(argument, "of queries alone", wf_attention(q, k, v, (wf_attention_opts){.query_regions = index}));
    refuse(shape, "should be [G,3]",
           wf_attention(q, k, v, (wf_attention_opts){.query_regions = index, .key_regions = index}));
    refuse(argument, "no bias", wf_attention(q, k, v, (wf_attention_opts){.bias_index = index}));
    refuse(shape, "should be [3,5]", wf_attention(q, k, v, (wf_attention_opts){.bias = w, .bias_index = index}));
    refuse(shape, "odd number of rows", wf_attention(q, k, v, (wf_attention_opts){.bias = w}));
    refuse(shape, "a mask of shape [4,1]", wf_attention(q, k, v, (wf_attention_opts){.mask = table}));
    wf_tensor *rows = wf_tensor_new(ctx, WF_I32, WF_SHAPE(3, 5));
    const int32_t outside[15] = {[7] = 4};
    WF_EXPECT_OK(wf_tensor_import(rows, outside, sizeof outside));
    refuse(argument, "index 4 in place 7 is outside [0, 4)",
           wf_attention(q, k, v, (wf_attention_opts){.bias = w, .bias_index = rows}));
    wf_tensor_free(rows);
    WF_EXPECT(!wf_attention(NULL, k, v, (wf_attention_opts){0}), "a missing input gives a variable");
    wf_error_clear();
    wf_tensor *const all[] = {t[0], t[1], t[2], narrow, index, table};
    for (int i = 0; i < 6; i++)
        wf_tensor_free(all[i]);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"gradients", gradients},
                                   {"values", values},
                                   {"rotary", rotary},
                                   {"memory", memory},
                                   {"threads", threads},
                                   {"errors", errors},
                                   {0}});
}
