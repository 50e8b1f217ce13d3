/* Runs the bodies of the contract tests on ref and on the device under test, and compares within the bound of the type.
 * Arrays have guard bytes around them, so writes beside an array are noticed. */
#include "tests/core/contract.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

static uint64_t seed_of_all = 20240607;
static wf_ctx *ref_ctx, *device_ctx;
static const run *running;
static contract_take *take_array; /* NULL: arrays have guard bytes behind them, in the pool's blocks */
static contract_give *give_array;

uint64_t contract_seed(void)
{
    return seed_of_all;
}

wf_ctx *contract_ref(void)
{
    return ref_ctx;
}

wf_ctx *contract_device(void)
{
    return device_ctx;
}

bool contract_open(void)
{
    ref_ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    /* More threads than a test is given cores: arrays are cut in odd places. */
    device_ctx = wf_ctx_new((wf_ctx_opts){.device = NULL, .threads = 3});
    if (!ref_ctx || !device_ctx)
        fprintf(stderr, "no context: %s\n", wf_error_message());
    return ref_ctx && device_ctx;
}

void contract_close(void)
{
    const size_t leaked = wf_ctx_memory(ref_ctx).bytes_in_use;
    WF_EXPECT(leaked == 0, "ref kept %zu bytes of workspace", leaked);
    WF_EXPECT_OK(wf_ctx_free(ref_ctx));
    WF_EXPECT_OK(wf_ctx_free(device_ctx));
}

const char *contract_note(void)
{
    return running ? running->note : "";
}

void contract_arrays_by(contract_take *take, contract_give *give)
{
    take_array = take;
    give_array = give;
}

int contract_main(int argc, char **argv, const test_case *cases)
{
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "seed=", 5) == 0)
            seed_of_all = strtoull(argv[i] + 5, NULL, 10);
        else
            argv[kept++] = argv[i];
    }
    if (!contract_open())
        return 1;
    printf("device %s, seed %llu\n", wf_ctx_device(device_ctx), (unsigned long long)seed_of_all);
    const int code = test_main(kept, argv, cases);
    contract_close();
    return code || test_failures() > 0;
}

/* bits of fraction, smallest exponent of a normal number, first value that is too large. */
static double round_bits(double v, int bits, int lowest, double limit)
{
    if (v == 0 || !isfinite(v))
        return v;
    int exponent;
    frexp(v, &exponent);
    const int step = (exponent - 1 < lowest ? lowest : exponent - 1) - bits;
    const double rounded = ldexp(nearbyint(ldexp(v, -step)), step);
    return fabs(rounded) >= limit ? copysign(INFINITY, v) : rounded;
}

double contract_round(wf_dtype dtype, double v)
{
    switch (dtype) {
    case WF_F32:
        return (float)v;
    case WF_BF16:
        return round_bits(v, 7, -126, 0x1p128);
    case WF_F16:
        return round_bits(v, 10, -14, 0x1p16);
    case WF_F64:
        return v;
    default:
        return nearbyint(v);
    }
}

static uint16_t half_bits(double v)
{
    const uint16_t sign = signbit(v) ? 0x8000 : 0;
    const double a = fabs(v);
    int exponent;
    if (isnan(v))
        return sign | 0x7e00;
    if (isinf(v))
        return sign | 0x7c00;
    if (a < 0x1p-14)
        return (uint16_t)(sign | (int)(a * 0x1p24));
    const double fraction = frexp(a, &exponent) * 2 - 1;
    return (uint16_t)(sign | (exponent + 14) << 10 | (int)(fraction * 1024));
}

static double half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double a = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                     : exponent     ? (1 + fraction / 1024.0) * pow(2, exponent - 15)
                                    : fraction * 0x1p-24;
    return h >> 15 ? -a : a;
}

static void encode_one(wf_dtype dtype, double v, char *out)
{
    const float f = (float)v;
    const int64_t i = wf_dtype_is_float(dtype) || isnan(v) ? 77 : (int64_t)v;
    const int32_t narrow = (int32_t)i;
    const uint8_t byte = (uint8_t)i;
    uint32_t bits;
    uint16_t half = half_bits(v);
    memcpy(&bits, &f, sizeof bits);
    const uint16_t upper = (uint16_t)(bits >> 16);
    const void *from[WF_DTYPES] = {&f, &v, &upper, &half, &narrow, &i, &byte};
    memcpy(out, from[dtype], wf_dtype_size(dtype));
}

static double decode_one(wf_dtype dtype, const char *in)
{
    union {
        float f;
        double d;
        uint16_t h;
        int32_t i;
        int64_t l;
        uint8_t b;
        uint32_t u;
    } v;
    v.u = 0;
    memcpy(&v, in, wf_dtype_size(dtype));
    switch (dtype) {
    case WF_F32:
        return v.f;
    case WF_F64:
        return v.d;
    case WF_BF16:
        v.u = (uint32_t)v.h << 16;
        return v.f;
    case WF_F16:
        return half_value(v.h);
    case WF_I32:
        return v.i;
    case WF_I64:
        return (double)v.l;
    default:
        return v.b;
    }
}

void contract_encode(wf_dtype dtype, int64_t n, const double *in, void *out)
{
    for (int64_t i = 0; i < n; i++)
        encode_one(dtype, in[i], (char *)out + i * (int64_t)wf_dtype_size(dtype));
}

void contract_decode(wf_dtype dtype, int64_t n, const void *in, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = decode_one(dtype, (const char *)in + i * (int64_t)wf_dtype_size(dtype));
}

static size_t guard_of(void)
{
    return take_array ? 0 : GUARD;
}

/* Device memory with a guard behind it, and its contents as they were. Every second block starts 8 bytes off the pool's
 * alignment: arrays may be parts of larger ones. */
static void *hold(run *r, const void *host, size_t bytes, size_t size, bool constant)
{
    const size_t shift = r->count % 2 && !take_array ? 8 : 0, guard = guard_of();
    if (r->count == RUN_HELD) {
        fprintf(stderr, "a run holds more than %d arrays\n", RUN_HELD);
        exit(1);
    }
    run_held *const h = &r->held[r->count++];
    *h = (run_held){.bytes = bytes, .shift = shift, .constant = constant, .before = malloc(bytes + GUARD)};
    if (bytes > 0)
        memcpy(h->before, host, bytes);
    memset(h->before + bytes, 0xa5, GUARD);
    if (take_array)
        WF_EXPECT_OK(take_array(r->ctx, bytes, size, &h->base));
    else
        WF_EXPECT_OK(wf_pool_take(r->ctx, shift + bytes + guard, &h->base));
    h->data = (char *)h->base + shift;
    WF_EXPECT_OK(r->k->to_device(r->ctx, h->data, h->before, bytes + guard));
    return h->data;
}

static void give_held(run *r, run_held *h)
{
    if (take_array)
        give_array(r->ctx, h->base, h->bytes);
    else
        wf_pool_give(r->ctx, h->base, h->shift + h->bytes + GUARD);
    free(h->before);
}

static void check_held(run *r, const run_held *h, int place)
{
    unsigned char *const after = malloc(h->bytes + GUARD);
    WF_EXPECT_OK(r->k->to_host(r->ctx, after, h->data, h->bytes + guard_of()));
    WF_EXPECT(memcmp(after + h->bytes, h->before + h->bytes, guard_of()) == 0, "%s wrote behind array %d: %s",
              r->k->name, place, r->note);
    WF_EXPECT(!h->constant || memcmp(after, h->before, h->bytes) == 0, "%s wrote its input, array %d: %s", r->k->name,
              place, r->note);
    free(after);
}

void *run_bytes(run *r, const void *host, size_t bytes)
{
    return hold(r, host, bytes, sizeof(double), false);
}

wf_array run_array(run *r, wf_dtype dtype, wf_shape shape, wf_order order, const double *value)
{
    const int64_t n = wf_shape_count(shape);
    const size_t bytes = (size_t)n * wf_dtype_size(dtype);
    wf_array a = {.dtype = dtype, .order = order, .shape = shape};
    char *const host = malloc(bytes + 1);
    const double poison = NAN;
    for (int64_t i = 0; i < n; i++)
        encode_one(dtype, value ? value[i] : poison, host + i * (int64_t)wf_dtype_size(dtype));
    void *const data = hold(r, host, bytes, wf_dtype_size(dtype), value != NULL);
    a.data = n > 0 ? data : NULL;
    free(host);
    return a;
}

void run_mutable(run *r)
{
    r->held[r->count - 1].constant = false;
}

wf_array run_in_of(run *r, wf_dtype dtype, wf_dtype round, wf_shape shape, wf_order order, double lo, double hi)
{
    const int64_t n = wf_shape_count(shape);
    double *const v = malloc(((size_t)n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        v[i] = test_uniform(&r->rng, lo, hi);
        if (r->grid != 0)
            v[i] = r->grid * nearbyint(v[i] / r->grid);
        v[i] = contract_round(round, v[i]);
    }
    const wf_array a = run_array(r, dtype, shape, order, v);
    free(v);
    return a;
}

wf_array run_in(run *r, wf_shape shape, wf_order order, double lo, double hi)
{
    return run_in_of(r, r->dtype, r->round, shape, order, lo, hi);
}

wf_array run_out_of(run *r, wf_dtype dtype, wf_dtype round, wf_shape shape, wf_order order, bool keep)
{
    const wf_array a = keep ? run_in_of(r, dtype, round, shape, order, -1, 1) : run_array(r, dtype, shape, order, NULL);
    run_mutable(r);
    return a;
}

wf_array run_out(run *r, wf_shape shape, wf_order order, bool keep)
{
    return run_out_of(r, r->dtype, r->round, shape, order, keep);
}

wf_dtype run_wide(const run *r)
{
    return r->dtype == WF_F64 ? WF_F64 : WF_F32;
}

wf_dtype run_wide_round(const run *r)
{
    return r->round == WF_F64 ? WF_F64 : WF_F32;
}

wf_order run_order(wf_shape shape)
{
    return shape.rank >= 3 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
}

wf_random run_random(run *r, wf_shape shape)
{
    const uint64_t iteration = test_u64(&r->rng) % 1000;
    wf_random random = {.seed = test_u64(&r->rng), .stream = test_u64(&r->rng), .global = shape};
    random.iteration = test_int(&r->rng, 0, 3) ? run_bytes(r, &iteration, sizeof iteration) : NULL;
    random.box = wf_box_of_shape(shape);
    for (int d = 0; d < shape.rank; d++) {
        const int64_t before = test_int(&r->rng, 0, 2);
        random.box.lo[d] += before;
        random.box.hi[d] += before;
        random.global.dim[d] += before + test_int(&r->rng, 0, 2);
    }
    return random;
}

void run_call(run *r, wf_status status)
{
    if (status == WF_ERR_UNSUPPORTED && !r->k->host) {
        r->skipped = true;
        wf_error_clear();
        return;
    }
    WF_EXPECT(status == WF_OK, "%s in %s: %s (%s)", r->k->name, wf_dtype_name(r->dtype), wf_error_message(), r->note);
}

static double *room_for(run *r, int64_t n, double weight)
{
    if (r->results + n > r->capacity) {
        r->capacity = 2 * r->capacity + n;
        r->value = realloc(r->value, (size_t)r->capacity * sizeof *r->value);
        r->weight = realloc(r->weight, (size_t)r->capacity * sizeof *r->weight);
    }
    for (int64_t i = 0; i < n; i++)
        r->weight[r->results + i] = weight;
    r->results += n;
    return r->value + r->results - n;
}

void run_result(run *r, const wf_array *a, double weight)
{
    const int64_t n = wf_array_count(a);
    const size_t bytes = (size_t)n * wf_dtype_size(a->dtype);
    if (n == 0)
        return;
    char *const host = malloc(bytes);
    WF_EXPECT_OK(r->k->to_host(r->ctx, host, a->data, bytes));
    contract_decode(a->dtype, n, host, room_for(r, n, weight));
    free(host);
}

void run_result_bytes(run *r, const double *device, int64_t count, double weight)
{
    WF_EXPECT_OK(r->k->to_host(r->ctx, room_for(r, count, weight), device, (size_t)count * sizeof(double)));
}

static void perform(run *r, wf_ctx *ctx, wf_dtype dtype, wf_dtype round, contract_body body, const void *args,
                    uint64_t seed, double grid)
{
    *r = (run){.ctx = ctx, .k = ctx->k, .dtype = dtype, .round = round, .rng = {seed}, .args = args, .grid = grid};
    running = r;
    body(r);
    for (int i = 0; i < r->count; i++) {
        check_held(r, &r->held[i], i);
        give_held(r, &r->held[i]);
    }
    running = NULL;
}

static void finish(run *r)
{
    free(r->value);
    free(r->weight);
}

/* Arithmetic in at least f32, then a few roundings to the type. */
static double tolerance(wf_dtype dtype)
{
    return dtype == WF_F64 ? 1e-11 : dtype == WF_F32 ? 3e-5 : dtype == WF_F16 ? 2e-3 : 1.2e-2;
}

static void compare(const char *what, const run *oracle, const run *r)
{
    if (r->skipped)
        return;
    WF_EXPECT(r->results == oracle->results, "%s: %lld results instead of %lld", what, (long long)r->results,
              (long long)oracle->results);
    for (int64_t i = 0; i < r->results && i < oracle->results; i++) {
        const double got = r->value[i], want = oracle->value[i];
        const double most = tolerance(r->dtype) * r->weight[i] * (1 + fabs(want));
        if (got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= most)
            continue;
        test_failed(__FILE__, __LINE__, "%s: %s in %s: result %lld is %.9g, should be %.9g (+- %.2g): %s", what,
                    r->k->name, wf_dtype_name(r->dtype), (long long)i, got, want, most, r->note);
        return;
    }
}

void contract_check(const char *what, contract_body body, const void *args, uint64_t seed)
{
    static const wf_dtype types[] = {WF_F64, WF_F32, WF_BF16, WF_F16};
    for (int t = 0; t < 4; t++) {
        run oracle, r;
        perform(&oracle, ref_ctx, WF_F64, types[t], body, args, seed, 0);
        if (types[t] != WF_F64) {
            perform(&r, ref_ctx, types[t], types[t], body, args, seed, 0);
            compare(what, &oracle, &r);
            finish(&r);
        }
        if (device_ctx->k != ref_ctx->k) {
            perform(&r, device_ctx, types[t], types[t], body, args, seed, 0);
            compare(what, &oracle, &r);
            finish(&r);
        }
        finish(&oracle);
    }
}

void contract_check_type(const char *what, contract_body body, const void *args, uint64_t seed, wf_dtype type,
                         double grid)
{
    run oracle, r;
    perform(&oracle, ref_ctx, WF_F64, type, body, args, seed, grid);
    perform(&r, device_ctx, type, type, body, args, seed, grid);
    compare(what, &oracle, &r);
    finish(&oracle);
    finish(&r);
}

run run_on(wf_ctx *ctx, wf_dtype dtype)
{
    return (run){.ctx = ctx, .k = ctx->k, .dtype = dtype, .round = dtype, .rng = {contract_seed()}};
}

void run_free(run *r)
{
    for (int i = 0; i < r->count; i++)
        give_held(r, &r->held[i]);
    free(r->value);
    free(r->weight);
}

void on_both(void (*body)(run *r))
{
    run a = run_on(contract_ref(), WF_F64), b = run_on(contract_device(), WF_F32);
    body(&a);
    body(&b);
    run_free(&a);
    run_free(&b);
}

const double *values(run *r, const wf_array *a)
{
    r->results = 0;
    run_result(r, a, 0);
    return r->value;
}

void expect(run *r, const char *what, const wf_array *a, const double *want)
{
    const int64_t n = wf_array_count(a);
    const double *const got = values(r, a);
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])) ||
                      fabs(got[i] - want[i]) <= 1e-6 * (1 + fabs(want[i])),
                  "%s on %s: element %lld is %.9g, should be %.9g", what, r->k->name, (long long)i, got[i], want[i]);
}
