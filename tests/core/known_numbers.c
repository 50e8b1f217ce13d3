/* Random numbers and the types of numbers: known answers. */
#include "core/random_author.h"
#include "tests/core/contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void philox_vectors(void)
{
    static const struct {
        uint64_t seed, iteration, counter;
        uint32_t word[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t word[4];
        wf_philox(known[i].seed, 0, known[i].iteration, known[i].counter, word);
        WF_EXPECT(memcmp(word, known[i].word, sizeof word) == 0, "vector %d is %08x %08x %08x %08x", i, word[0],
                  word[1], word[2], word[3]);
    }
}

static void hashes_and_integers(void)
{
    WF_EXPECT(wf_hash_text(wf_hash_text(0, "ab"), "c") != wf_hash_text(wf_hash_text(0, "a"), "bc"),
              "texts run together");
    WF_EXPECT(wf_hash_text(1, "x") != wf_hash_text(2, "x"), "the running hash is lost");
    WF_EXPECT(wf_hash_u64(1, 0) != wf_hash_u64(0, 1), "hash and value are exchangeable");
    int64_t seen[10] = {0}, order[100], found = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        const uint64_t v = wf_random_below(3, 4, i, 10);
        WF_EXPECT(v < 10, "%llu is not below 10", (unsigned long long)v);
        seen[v % 10]++;
    }
    for (int i = 0; i < 10; i++)
        WF_EXPECT(seen[i] > 850 && seen[i] < 1150, "%d came %lld times in 10000", i, (long long)seen[i]);
    wf_random_permutation(7, 8, 100, order);
    for (int64_t i = 0; i < 100; i++)
        for (int j = 0; j < 100; j++)
            found += order[j] == i;
    WF_EXPECT(found == 100, "%lld of 100 numbers are in the permutation", (long long)found);
    WF_EXPECT(wf_random_below(1, 2, 3, 1) == 0, "only 0 is below 1");
    WF_EXPECT(wf_random_below(1, 2, 3, 1ull << 63) != wf_random_below(1, 2, 4, 1ull << 63), "counter without effect");
}

/* The first numbers of a fill, worked out from the words of the first block. */
static void random_numbers(run *r)
{
    const uint64_t iteration = 9;
    const wf_shape shape = WF_SHAPE(6);
    const wf_random random = {.seed = 3,
                              .stream = 4,
                              .iteration = run_bytes(r, &iteration, 8),
                              .global = shape,
                              .box = wf_box_of_shape(shape)};
    const wf_array u = run_out(r, shape, ROW, false), z = run_out(r, shape, ROW, false);
    const wf_array t = run_out(r, shape, ROW, false);
    double uniform[6], normal[6], truncated[6];
    for (uint64_t i = 0; i < 6; i++) {
        uint32_t word[4];
        wf_philox(3, 4, 9, i / 4, word);
        uniform[i] = -1 + 3 * ((word[i % 4] >> 8) / 16777216.0);
        const uint32_t *const pair = word + i % 4 / 2 * 2;
        const double radius = sqrt(-2 * log(((pair[0] >> 8) + 1) / 16777216.0));
        const double angle = 2 * acos(-1) * ((pair[1] >> 8) / 16777216.0);
        normal[i] = 0.5 + 2 * radius * (i % 2 ? sin(angle) : cos(angle));
    }
    run_call(r, r->k->random(r->ctx, WF_UNIFORM, &random, -1, 2, &u));
    for (int i = 0; i < 6; i++) {
        /* Newton's steps on the distribution, from the middle. */
        const double p = erfc(sqrt(2)) / 2 + ((uniform[i] + 1) / 3 + 0x1p-25) * (1 - erfc(sqrt(2)));
        double x = 0;
        for (int k = 0; k < 60; k++)
            x -= (erfc(-x / sqrt(2)) / 2 - p) * sqrt(2 * acos(-1)) * exp(x * x / 2);
        truncated[i] = 0.5 + 2 * x;
    }
    run_call(r, r->k->random(r->ctx, WF_NORMAL, &random, 0.5, 2, &z));
    run_call(r, r->k->random(r->ctx, WF_TRUNCATED, &random, 0.5, 2, &t));
    expect(r, "truncated", &t, truncated);
    expect(r, "uniform", &u, uniform);
    expect(r, "normal", &z, normal);
}

/* Checks that the number just below b is returned where a + (b - a) u would be rounded to b. */
static void upper_bounds(run *r)
{
    enum { N = 4096 };
    static const double bounds[][2] = {{1, 2}, {-2, -1}, {-1, 0}, {3, 3.5}, {-3.5, -3}, {2, 2}};
    const int digits = r->dtype == WF_F64 ? 53 : 24;
    const wf_random random = {.seed = 3, .stream = 4, .global = WF_SHAPE(N), .box = wf_box_of_shape(WF_SHAPE(N))};
    for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++) {
        /* an interval of a few numbers of the type, which are rounded to b often */
        const double b = bounds[k][1], a = k == 2 || k == 5 ? bounds[k][0] : b - ldexp(8, -digits);
        double v[N], raw[N];
        const wf_array y = run_out(r, WF_SHAPE(N), ROW, false);
        run_call(r, r->k->random(r->ctx, WF_UNIFORM, &random, a, b, &y));
        WF_EXPECT_OK(r->k->to_host(r->ctx, raw, y.data, N * wf_dtype_size(r->dtype)));
        contract_decode(r->dtype, N, raw, v);
        for (int i = 0; i < N; i++)
            WF_EXPECT(v[i] >= a && (v[i] < b || a == b), "%s: %.17g in [%.17g, %.17g)", r->k->name, v[i], a, b);
    }
}

static wf_array copied(run *r, wf_dtype from, wf_dtype to, int64_t n, const double *v)
{
    const wf_array a = run_array(r, from, WF_SHAPE(n), ROW, v), b = run_out_of(r, to, to, WF_SHAPE(n), ROW, false);
    const wf_strided src = wf_array_strided(&a), dst = wf_array_strided(&b);
    run_call(r, r->k->copy(r->ctx, &src, &dst, false));
    return b;
}

static void conversions(run *r)
{
    const double odd[] = {NAN, INFINITY, -INFINITY, 1e30, -1e30, 2.9, -2.9, 300, -5};
    const wf_array i32 = copied(r, WF_F64, WF_I32, 9, odd), u8 = copied(r, WF_F32, WF_U8, 9, odd);
    expect(r, "i32", &i32, LIST(0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 2, -2, 300, -5));
    expect(r, "u8", &u8, LIST(0, 255, 0, 255, 0, 2, 0, 255, 0));
    /* Ties go to even, what is just above a tie goes up, what is too large becomes infinite. */
    const double near[] = {1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-40, 1 + 3 * 0x1p-8, -1 - 0x1p-8, 3.4e38, 1e39, 0x1p-134,
                           1e-60};
    const wf_array b = copied(r, WF_F64, WF_BF16, 8, near);
    expect(r, "bf16", &b, LIST(1, 1 + 0x1p-7, 1 + 4 * 0x1p-8, -1, INFINITY, INFINITY, 0, 0));
    const double close[] = {1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-40, 1 + 3 * 0x1p-11, 65519, 65520, 0x1p-25, 0x1.8p-25,
                            -0x1p-24};
    const wf_array h = copied(r, WF_F64, WF_F16, 8, close);
    expect(r, "f16", &h, LIST(1, 1 + 0x1p-10, 1 + 4 * 0x1p-11, 65504, INFINITY, 0, 0x1p-24, -0x1p-24));
}

/* Every 16-bit pattern goes to f32 and back unchanged (NaN stays NaN), and random numbers round as contract_round does.
 */
static void half_types(run *r)
{
    static const wf_dtype types[] = {WF_BF16, WF_F16};
    enum { N = 65536 };
    double *const v = malloc(N * sizeof *v);
    uint16_t *const bits = malloc(N * sizeof *bits);
    for (int t = 0; t < 2; t++) {
        const wf_shape s = WF_SHAPE(N);
        for (int i = 0; i < N; i++)
            bits[i] = (uint16_t)i;
        wf_array a = {.data = run_bytes(r, bits, N * sizeof *bits), .dtype = types[t], .shape = s};
        const wf_array wide = run_out_of(r, WF_F32, WF_F32, s, ROW, false),
                       back = run_out_of(r, types[t], types[t], s, ROW, false);
        const wf_strided sa = wf_array_strided(&a), sw = wf_array_strided(&wide), sb = wf_array_strided(&back);
        run_call(r, r->k->copy(r->ctx, &sa, &sw, false));
        run_call(r, r->k->copy(r->ctx, &sw, &sb, false));
        contract_decode(types[t], N, bits, v);
        expect(r, "16 bits to f32", &wide, v);
        WF_EXPECT_OK(r->k->to_host(r->ctx, bits, back.data, N * sizeof *bits));
        int64_t wrong = 0;
        for (int i = 0; i < N; i++)
            wrong += bits[i] != i && !isnan(v[i]);
        WF_EXPECT(wrong == 0, "%s: %lld patterns of %s change", r->k->name, (long long)wrong, wf_dtype_name(types[t]));
        for (int i = 0; i < N; i++)
            v[i] = ldexp(test_uniform(&r->rng, -1, 1), (int)test_int(&r->rng, -30, 18));
        const wf_array rounded = copied(r, WF_F64, types[t], N, v);
        const double *const got = values(r, &rounded);
        for (int i = 0; i < N; i++)
            wrong += got[i] != contract_round(types[t], v[i]);
        WF_EXPECT(wrong == 0, "%s: %lld numbers round wrongly to %s", r->k->name, (long long)wrong,
                  wf_dtype_name(types[t]));
    }
    free(v);
    free(bits);
}

static void large_integers(run *r)
{
    const int64_t big[3] = {INT64_MAX - 1, INT64_MIN + 1, (1ll << 53) + 1};
    int64_t out[3];
    const wf_strided src = {
        .data = run_bytes(r, big, sizeof big), .dtype = WF_I64, .rank = 1, .dim = {3}, .stride = {1}};
    wf_strided dst = src;
    const int64_t ones[3] = {1, -1, 1};
    dst.data = run_bytes(r, ones, sizeof ones);
    run_call(r, r->k->copy(r->ctx, &src, &dst, true));
    WF_EXPECT_OK(r->k->to_host(r->ctx, out, dst.data, sizeof out));
    WF_EXPECT(out[0] == INT64_MAX && out[1] == INT64_MIN && out[2] == (1ll << 53) + 2, "%s: i64 lost bits", r->k->name);
}

/* A deep dilation of NaN: what is not a number must come out as such. */
static void not_a_number(run *r)
{
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(2), ROW, LIST(NAN, 1)), y = run_out(r, WF_SHAPE(2), ROW, false);
    for (int act = 0; act < WF_ACTS; act++) {
        run_call(r, r->k->act_forward(r->ctx, &(wf_act_args){.act = (wf_act)act, .slope = 0.5, .x = &x, .y = &y}));
        const double *const got = values(r, &y);
        WF_EXPECT(isnan(got[0]) && !isnan(got[1]), "%s: activation %d of NaN is %g", r->k->name, act, got[0]);
    }
}

/* Noise of an epilogue is the normal fill of the same stream. */
static void noise_is_random(run *r)
{
    const wf_shape s = WF_SHAPE(2, 3, 4, 5);
    const wf_random random = run_random(r, s);
    const wf_epilogue e = {.noise = 0.5, .random = random};
    const wf_array x = run_out(r, s, LAST, false), y = run_out(r, s, LAST, false), z = run_out(r, s, LAST, false);
    run_call(r, r->k->fill(r->ctx, &x, 2));
    run_call(r, r->k->epilogue_forward(r->ctx, &e, &x, &y));
    run_call(r, r->k->random(r->ctx, WF_NORMAL, &random, 2, 0.5, &z));
    double want[120];
    memcpy(want, values(r, &z), sizeof want);
    expect(r, "noise", &y, want);
}

static void array_helpers(void)
{
    const wf_array a = {.shape = WF_SHAPE(2, 3, 4, 5), .order = LAST};
    int64_t n, c, pixels;
    wf_array_ncp(&a, &n, &c, &pixels);
    WF_EXPECT(n == 2 && c == 3 && pixels == 20 && wf_array_count(&a) == 120, "%lld %lld %lld", (long long)n,
              (long long)c, (long long)pixels);
    const wf_strided s = wf_array_strided(&a);
    WF_EXPECT(s.stride[0] == 60 && s.stride[1] == 1 && s.stride[2] == 15 && s.stride[3] == 3, "strides");
}

BOTH(random_numbers)
BOTH(upper_bounds)
BOTH(conversions)
BOTH(half_types)
BOTH(large_integers)
BOTH(not_a_number)
BOTH(noise_is_random)

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"philox_vectors", philox_vectors},
                                       {"hashes_and_integers", hashes_and_integers},
                                       {"array_helpers", array_helpers},
                                       {"random_numbers", random_numbers_both},
                                       {"upper_bounds", upper_bounds_both},
                                       {"conversions", conversions_both},
                                       {"half_types", half_types_both},
                                       {"large_integers", large_integers_both},
                                       {"not_a_number", not_a_number_both},
                                       {"noise_is_random", noise_is_random_both},
                                       {0}});
}
