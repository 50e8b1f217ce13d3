/* Attention: gradients against central differences, values against the same made of products and softmax, memory, and
 * what it refuses. */
#define INPUTS 4
#include "layers/attention.h"

#include "core/tape_author.h"
#include "layers/transformer.h"
#include "tests/layers/gradcheck_fixture.h"
#include "tests/layers/near_plain.h"

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

/* --- windows ------------------------------------------------------------------------------------------------------ */

typedef struct window_case {
    int64_t n, h, w, window[2], shift[2];
} window_case;

enum { WIDTH = 4, WINDOW_HEADS = 2, WINDOW_MOST = 1024 };

/* Host copies of the parameters: W [4][4] and b [4] of query, key, value and out, and the table. */
typedef struct window_host {
    double w[4][WIDTH][WIDTH], b[4][WIDTH], table[25][WINDOW_HEADS];
} window_host;

static const char *const projections[4] = {"query", "key", "value", "out"};

static void import_numbers(wf_tensor *t, const double *from)
{
    float narrow[WINDOW_MOST];
    const bool single = wf_tensor_dtype(t) == WF_F32;
    for (int64_t i = 0; i < wf_tensor_count(t); i++)
        narrow[i] = (float)from[i];
    WF_EXPECT_OK(wf_tensor_import(t, single ? (const void *)narrow : from, wf_tensor_bytes(t)));
}

static void set_windows(wf_layer *layer, const window_host *p)
{
    char path[32];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/W", projections[i]);
        import_numbers(wf_param_value(wf_layer_param(layer, path)), &p->w[i][0][0]);
        snprintf(path, sizeof path, "%s/b", projections[i]);
        import_numbers(wf_param_value(wf_layer_param(layer, path)), p->b[i]);
    }
    import_numbers(wf_param_value(wf_layer_param(layer, "relative")), &p->table[0][0]);
}

/* Padding is a token of zeros. */
static void project_pixel(const window_host *p, const window_case *t, const double *x, const int64_t at[3], int which,
                          double to[WIDTH])
{
    const bool padding = at[1] >= t->h || at[2] >= t->w;
    for (int64_t f = 0; f < WIDTH; f++) {
        to[f] = p->b[which][f];
        for (int64_t c = 0; c < WIDTH && !padding; c++)
            to[f] += p->w[which][f][c] * x[((at[0] * WIDTH + c) * t->h + at[1]) * t->w + at[2]];
    }
}

/* The window of a pixel of the padded image, its place in it, and how far the image went on beyond its end there. */
typedef struct window_place {
    int64_t window, place, turns;
} window_place;

static window_place place_of(int64_t at, int64_t length, int64_t window, int64_t shift)
{
    const int64_t padded = (length + window - 1) / window * window;
    const int64_t moved = padded > window ? at - shift : at;
    return (window_place){(moved + padded) % padded / window, (moved + padded) % window, moved < 0};
}

/* The output of one head of a pixel, by plain loops over all pixels of the image. */
static void attend_pixel(const window_host *p, const window_case *t, const double *x, const int64_t at[3], int head,
                         double y[WIDTH / WINDOW_HEADS])
{
    enum { EACH = WIDTH / WINDOW_HEADS };
    double q[WIDTH], k[WIDTH], v[WIDTH], sum = 0;
    const int64_t *const w = t->window;
    const int64_t h = (t->h + w[0] - 1) / w[0] * w[0], wide = (t->w + w[1] - 1) / w[1] * w[1];
    const window_place row = place_of(at[1], t->h, w[0], t->shift[0]);
    const window_place column = place_of(at[2], t->w, w[1], t->shift[1]);
    project_pixel(p, t, x, at, 0, q);
    memset(y, 0, EACH * sizeof *y);
    for (int64_t i = 0; i < h * wide; i++) {
        const int64_t key[3] = {at[0], i / wide, i % wide};
        const window_place r = place_of(key[1], t->h, w[0], t->shift[0]);
        const window_place c = place_of(key[2], t->w, w[1], t->shift[1]);
        if (r.window != row.window || c.window != column.window || r.turns != row.turns || c.turns != column.turns)
            continue;
        project_pixel(p, t, x, key, 1, k);
        project_pixel(p, t, x, key, 2, v);
        double s =
            p->table[(row.place - r.place + w[0] - 1) * (2 * w[1] - 1) + column.place - c.place + w[1] - 1][head];
        for (int f = head * EACH; f < (head + 1) * EACH; f++)
            s += q[f] * k[f] / sqrt(EACH);
        sum += exp(s);
        for (int f = 0; f < EACH; f++)
            y[f] += exp(s) * v[head * EACH + f];
    }
    for (int f = 0; f < EACH; f++)
        y[f] /= sum;
}

static void attend_plainly(const window_host *p, const window_case *t, const double *x, double *y)
{
    for (int64_t i = 0; i < t->n * t->h * t->w; i++) {
        const int64_t at[3] = {i / (t->h * t->w), i / t->w % t->h, i % t->w};
        double all[WIDTH];
        for (int head = 0; head < WINDOW_HEADS; head++)
            attend_pixel(p, t, x, at, head, all + head * WIDTH / WINDOW_HEADS);
        for (int64_t f = 0; f < WIDTH; f++) {
            double *const to = y + ((at[0] * WIDTH + f) * t->h + at[1]) * t->w + at[2];
            *to = p->b[3][f];
            for (int c = 0; c < WIDTH; c++)
                *to += p->w[3][f][c] * all[c];
        }
    }
}

static void compare_windows(wf_ctx *on, wf_tape *of, const window_case *t, wf_order order, double tolerance)
{
    static window_host p;
    double x[WINDOW_MOST], y[WINDOW_MOST], got[WINDOW_MOST];
    double *const numbers = &p.w[0][0][0];
    for (size_t i = 0; i < sizeof p / sizeof *numbers; i++)
        numbers[i] = test_uniform(&rng, -1, 1);
    for (int i = 0; i < WINDOW_MOST; i++)
        x[i] = test_uniform(&rng, -1, 1);
    const wf_shape shape = WF_SHAPE(t->n, WIDTH, t->h, t->w);
    wf_tensor *row_major = wf_tensor_new_ordered(on, wf_ctx_dtype(on), shape, WF_ROW_MAJOR);
    import_numbers(row_major, x);
    wf_tensor *image = wf_tensor_copy(row_major, wf_ctx_dtype(on), order);
    wf_layer *layer = wf_window_attention(on, (wf_window_attention_opts){.features = WIDTH,
                                                                         .heads = WINDOW_HEADS,
                                                                         .window_nd = {t->window[0], t->window[1]},
                                                                         .shift_nd = {t->shift[0], t->shift[1]}});
    WF_EXPECT(layer, "%s", wf_error_message());
    set_windows(layer, &p);
    WF_EXPECT_OK(wf_tape_reset(of));
    wf_var *out = wf_apply(layer, wf_input(of, image));
    WF_EXPECT(out, "%s", wf_error_message());
    wf_tensor *seen = wf_tensor_copy(wf_value(out), WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_export(seen, got, wf_tensor_bytes(seen)));
    attend_plainly(&p, t, x, y);
    const double distance = test_distance(wf_shape_count(shape), got, y);
    WF_EXPECT(distance < tolerance, "windows of %lld,%lld in %lld,%lld shifted by %lld,%lld differ by %g",
              (long long)t->window[0], (long long)t->window[1], (long long)t->h, (long long)t->w,
              (long long)t->shift[0], (long long)t->shift[1], distance);
    wf_tensor_free(seen);
    wf_layer_free(layer);
    wf_tensor_free(image);
    wf_tensor_free(row_major);
}

/* On `ref` in f64 and on `cpu` in f32. */
static void windows(void)
{
    static const window_case list[] = {
        {2, 6, 6, {3, 3}, {0, 0}}, {1, 6, 9, {3, 3}, {1, 2}},  {2, 7, 5, {3, 3}, {1, 1}}, {1, 2, 7, {3, 3}, {1, 1}},
        {1, 4, 4, {2, 3}, {1, 2}}, {1, 5, 10, {1, 3}, {0, 2}}, {1, 3, 3, {3, 3}, {2, 2}}, {1, 7, 8, {3, 3}, {2, 2}},
    };
    for (int single = 0; single < 2; single++) {
        wf_ctx *on = wf_ctx_new((wf_ctx_opts){
            .device = single ? "cpu" : test_device("ref"), .dtype = single ? WF_F32 : WF_F64, .threads = 1});
        wf_tape *of = wf_tape_new(on);
        for (size_t i = 0; i < sizeof list / sizeof *list; i++)
            compare_windows(on, of, &list[i], i % 2 ? WF_ROW_MAJOR : WF_CHANNELS_LAST, single ? 1e-5 : 1e-13);
        wf_tape_free(of);
        WF_EXPECT_OK(wf_ctx_free(on));
    }
}

static void compare_near(const near_plain *t)
{
    static near_host p;
    double x[NEAR_WIDTH * NEAR_PIXELS], want[NEAR_WIDTH * NEAR_PIXELS], got[NEAR_WIDTH * NEAR_PIXELS];
    double *const host = &p.w[0][0][0];
    for (size_t i = 0; i < sizeof p / sizeof *host; i++)
        host[i] = test_uniform(&rng, -1, 1);
    for (int i = 0; i < NEAR_WIDTH * NEAR_PIXELS; i++)
        x[i] = test_uniform(&rng, -1, 1);
    wf_tensor *image = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, NEAR_WIDTH, t->length[0], t->length[1]));
    import_numbers(image, x);
    wf_layer *layer = wf_neighbourhood_attention(
        ctx, (wf_neighbourhood_attention_opts){.features = NEAR_WIDTH,
                                               .heads = NEAR_HEADS,
                                               .kernel_nd = {t->kernel[0], t->kernel[1]},
                                               .dilation_nd = {t->dilation[0], t->dilation[1]},
                                               .scale = t->scale,
                                               .no_relative = t->bare,
                                               .no_bias = t->bare});
    WF_EXPECT(layer, "%s", wf_error_message());
    set_near(layer, t, &p);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor *seen = wf_tensor_copy(wf_value(wf_apply(layer, wf_input(tape, image))), WF_F64, WF_ROW_MAJOR);
    export_doubles(seen, got);
    attend_near_plainly(&p, t, x, want);
    const double distance = test_distance(NEAR_WIDTH * t->length[0] * t->length[1], got, want);
    WF_EXPECT(distance < 1e-13, "kernels of %lld,%lld in %lld,%lld differ by %g", (long long)t->kernel[0],
              (long long)t->kernel[1], (long long)t->length[0], (long long)t->length[1], distance);
    wf_tensor_free(seen);
    wf_tensor_free(image);
    wf_layer_free(layer);
}

static void neighbourhoods(void)
{
    static const near_plain list[] = {
        {{6, 7}, {3, 2}, {1, 1}, 0, false}, {{7, 6}, {2, 3}, {3, 2}, 0.4, false}, {{5, 4}, {3, 3}, {1, 1}, 0, true}};
    begin();
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        compare_near(&list[i]);
    end();
}

/* The most bytes that the pool held over those of q, k, v and their gradients, forward and backward. */
static double measure_memory(int64_t tokens, int64_t heads, int64_t features, bool causal)
{
    wf_ctx *own = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    wf_tape *on = wf_tape_new(own);
    wf_var *of[3];
    for (int i = 0; i < 3; i++) {
        wf_tensor *x = wf_tensor_new(own, WF_F32, WF_SHAPE(1, tokens, heads * features));
        WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
        of[i] = wf_leaf(on, x);
        wf_tensor_free(x);
    }
    wf_var *y = wf_attention(of[0], of[1], of[2], (wf_attention_opts){.heads = heads, .causal = causal});
    WF_EXPECT_OK(wf_backward(wf_sum(y)));
    const wf_memory_counters stats = wf_ctx_memory(own);
    WF_EXPECT_OK(wf_tape_reset(on));
    wf_tape_free(on);
    WF_EXPECT_OK(wf_ctx_free(own));
    return (double)stats.bytes_peak / (6.0 * (double)(tokens * heads * features) * sizeof(float));
}

/* Memory is linear in the tokens: one head of few features shows a square of the tokens first. The proof takes 16,384
 * tokens of eight heads of 64 features, the short suite an eighth. */
static void memory(void)
{
    const int64_t tokens = 1024 * (int64_t)test_samples(16);
    const double narrow = measure_memory(4096, 1, 16, true), wide = measure_memory(tokens, 8, 64, false);
    WF_EXPECT(narrow < 4, "4096 tokens of 16 features took %.2f times q, k, v and their gradients", narrow);
    WF_EXPECT(wide < 4, "%lld tokens of 8 heads of 64 took %.2f times q, k, v and their gradients", (long long)tokens,
              wide);
    printf("%lld tokens of 8 heads of 64 features: %.2f times q, k, v and their gradients\n", (long long)tokens, wide);
}

enum { THREADED = 600, WIDE = 12 };

/* y and the gradients of q, k and v of one head, 600 tokens, with so many threads; those not in `wanted` are 0. */
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

/* Gradients of all parameters of attention in 96 windows of 3 heads. */
static void run_window_threads(int threads, float *to)
{
    wf_ctx *own = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = threads});
    wf_tape *on = wf_tape_new(own);
    wf_layer *layer = wf_window_attention(own, (wf_window_attention_opts){.features = 6, .heads = 3, .window = 4});
    wf_var *y = wf_apply(layer, wf_randn(on, WF_SHAPE(6, 6, 16, 16), NULL));
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(layer, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        const wf_tensor *g = wf_param_grad(params[i]);
        WF_EXPECT_OK(wf_tensor_export(g, to, wf_tensor_bytes(g)));
        to += wf_tensor_count(g);
    }
    wf_tape_free(on);
    wf_layer_free(layer);
    WF_EXPECT_OK(wf_ctx_free(own));
}

static void window_threads(void)
{
    static float one[512], other[512]; /* the gradients are 315 numbers */
    run_window_threads(1, one);
    run_window_threads(3, other);
    WF_EXPECT(one[0] != 0 && memcmp(one, other, sizeof one) == 0, "gradients of windows differ with 3 threads");
}

static void refuse(wf_status code, const char *words, wf_var *y)
{
    WF_EXPECT(!y && wf_error_code() == code && strstr(wf_error_message(), words), "is \"%s\" (%s), should have \"%s\"",
              wf_error_message(), wf_status_name(wf_error_code()), words);
    wf_error_clear();
}

static void refuse_layer(const char *words, wf_window_attention_opts o)
{
    wf_layer *layer = wf_window_attention(ctx, o);
    WF_EXPECT(!layer && strstr(wf_error_message(), words), "is \"%s\", should have \"%s\"", wf_error_message(), words);
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
    wf_window_attention_opts o = {.features = 4, .heads = 2, .window = 3};
    wf_layer *layer = wf_window_attention(ctx, o);
    WF_EXPECT(!wf_apply(layer, q) && strstr(wf_error_message(), "should be an image [N,C,H,W]"), "is \"%s\"",
              wf_error_message());
    wf_layer_free(layer);
    refuse_layer("windows of 0 by 0 pixels", (wf_window_attention_opts){.features = 4, .heads = 2});
    o.shift = 3;
    refuse_layer("windows of 3 pixels are shifted by 3", o);
    refuse_layer("4 features of 3 heads", (wf_window_attention_opts){.features = 4, .heads = 3, .window = 3});
    wf_tensor *const all[] = {t[0], t[1], t[2], narrow, index, table};
    for (int i = 0; i < 6; i++)
        wf_tensor_free(all[i]);
    end();
}

static void refuse_around(const char *words, wf_neighbourhood_attention_opts o)
{
    wf_layer *layer = wf_neighbourhood_attention(ctx, o);
    WF_EXPECT(!layer && strstr(wf_error_message(), words), "is \"%s\", should have \"%s\"", wf_error_message(), words);
    wf_error_clear();
}

static void neighbourhood_errors(void)
{
    begin();
    const wf_neighbourhood_attention_opts good = {.features = 4, .heads = 2, .kernel = 3, .dilation = 2};
    wf_neighbourhood_attention_opts o = good;
    wf_tensor *x[2] = {wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 4, 6, 5)), wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 4, 6))};
    wf_layer *layer = wf_neighbourhood_attention(ctx, good);
    for (int i = 0; i < 2; i++)
        WF_EXPECT_OK(wf_tensor_fill(x[i], 1));
    refuse(WF_ERR_SHAPE, "3 pixels in steps of 2 do not fit into dimension 3 of [1,4,6,5], should be at most 2",
           wf_apply(layer, wf_input(tape, x[0])));
    refuse(WF_ERR_SHAPE, "should have 2 spatial dimensions", wf_apply(layer, wf_input(tape, x[1])));
    o.heads = 3;
    refuse_around("4 features of 3 heads", o);
    o = good;
    o.kernel = 0;
    refuse_around("a kernel of 0 pixels", o);
    o.kernel = 1025;
    refuse_around("a kernel of 1025 pixels, should be 1 to 1024", o);
    o = good;
    o.dilation_nd[1] = -1;
    refuse_around("a dilation of -1 pixels", o);
    o.dilation_nd[1] = (1 << 20) + 1;
    refuse_around("a dilation of 1048577 pixels, should be 1 to 1048576", o);
    o = good;
    o.nd = 4;
    refuse_around("of 4 spatial dimensions", o);
    o = good;
    o.scale = -1;
    refuse_around("scale is -1", o);
    wf_layer_free(layer);
    for (int i = 0; i < 2; i++)
        wf_tensor_free(x[i]);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"gradients", gradients},
                                   {"values", values},
                                   {"rotary", rotary},
                                   {"windows", windows},
                                   {"memory", memory},
                                   {"threads", threads},
                                   {"window_threads", window_threads},
                                   {"errors", errors},
                                   {"neighbourhoods", neighbourhoods},
                                   {"neighbourhood_errors", neighbourhood_errors},
                                   {0}});
}
