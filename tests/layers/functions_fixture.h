/* What tests of the values of functions share: leaves of given numbers, and what a result should be. */
#ifndef WF_TESTS_LAYERS_FUNCTIONS_FIXTURE_H
#define WF_TESTS_LAYERS_FUNCTIONS_FIXTURE_H

#include "core/tape_author.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static wf_ctx *ctx;
static wf_tape *tape;

static inline void begin(void)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = 7});
    tape = wf_tape_new(ctx);
}

static inline void end(void)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static inline wf_var *leaf_ordered(wf_shape shape, wf_order order, const double *host)
{
    wf_tensor *t = wf_tensor_new_ordered(ctx, WF_F64, shape, order);
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    wf_var *x = wf_leaf(tape, t);
    wf_tensor_free(t);
    return x;
}

static inline wf_var *leaf(wf_shape shape, const double *host)
{
    return leaf_ordered(shape, wf_order_default(shape.rank), host);
}

/* 0, 1, 2, ... */
static inline wf_var *counted(wf_shape shape, wf_order order)
{
    double host[256];
    for (int i = 0; i < 256; i++)
        host[i] = i;
    return leaf_ordered(shape, order, host);
}

static inline void expect_tensor(const char *what, const wf_tensor *t, int64_t n, const double *expected)
{
    double got[256];
    WF_EXPECT(t && wf_tensor_count(t) == n, "%s: %lld elements, not %lld (%s)", what, (long long)wf_tensor_count(t),
              (long long)n, t ? "" : wf_error_message());
    if (!t || wf_tensor_count(t) != n)
        return;
    WF_EXPECT_OK(wf_tensor_export(t, got, wf_tensor_bytes(t)));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT(got[i] == expected[i] || fabs(got[i] - expected[i]) <= 1e-12 * (1 + fabs(expected[i])),
                  "%s: element %lld is %.15g, not %.15g", what, (long long)i, got[i], expected[i]);
}

static inline void expect_values(const char *what, const wf_var *y, int64_t n, const double *expected)
{
    expect_tensor(what, wf_value(y), n, expected);
}

static inline void expect_null(const char *what, const void *result, wf_status code, const char *part)
{
    WF_EXPECT(!result, "%s gave a result", what);
    WF_EXPECT(wf_error_code() == code, "%s: is %s, should be %s", what, wf_status_name(wf_error_code()),
              wf_status_name(code));
    WF_EXPECT(strstr(wf_error_message(), part), "%s: \"%s\" does not say \"%s\"", what, wf_error_message(), part);
    wf_error_clear();
}

#endif
