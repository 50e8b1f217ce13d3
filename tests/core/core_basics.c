/* Status and trail, shapes, boxes, layouts, pool, archive, waits. */
#include "core/archive.h"
#include "core/context_author.h"
#include "core/layout.h"
#include "core/version.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wf_status fails(int value)
{
    WF_FAIL(WF_ERR_SHAPE, "value is %d, should be 3", value);
}

static wf_status passes_on(int value)
{
    WF_TRY(fails(value));
    return WF_OK;
}

static void *makes(int value)
{
    WF_TRY_NULL(fails(value));
    return NULL;
}

static wf_status uses(const void *object)
{
    WF_NEED(object);
    return WF_OK;
}

static void trail(void)
{
    WF_EXPECT_ERROR(WF_ERR_SHAPE, passes_on(7));
    const wf_status status = passes_on(8);
    WF_EXPECT(status == WF_ERR_SHAPE && wf_error_code() == WF_ERR_SHAPE, "%d", status);
    WF_EXPECT(strcmp(wf_error_message(), "value is 8, should be 3") == 0, "%s", wf_error_message());
    WF_EXPECT(strstr(wf_error_trail(), "passes_on") != NULL, "%s", wf_error_trail());
    wf_error_clear();
    WF_EXPECT(wf_error_code() == WF_OK, "cleared");
}

static void sticky_null(void)
{
    /* The first pending error is the one that the verb returns, even if later ones were recorded. */
    void *object = makes(4);
    WF_EXPECT(fails(5) == WF_ERR_SHAPE, "fails");
    WF_EXPECT(uses(object) == WF_ERR_SHAPE, "taken over");
    WF_EXPECT(strstr(wf_error_message(), "value is 4") != NULL, "%s", wf_error_message());
    /* Consumed: the next NULL is just NULL. */
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, uses(NULL));
    /* Reading changes nothing; wf_error_clear ends a pending error. */
    object = makes(6);
    WF_EXPECT(strstr(wf_error_message(), "value is 6") && strstr(wf_error_trail(), "makes"), "%s", wf_error_trail());
    WF_EXPECT(wf_error_code() == WF_ERR_SHAPE && uses(object) == WF_ERR_SHAPE, "still pending");
    object = makes(6);
    wf_error_clear();
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, uses(object));
    /* A verb that fails by itself does not consume. */
    object = makes(9);
    WF_EXPECT(fails(1) == WF_ERR_SHAPE && wf_check(object) == WF_ERR_SHAPE, "not consumed");
    WF_EXPECT(strstr(wf_error_message(), "value is 9") != NULL, "%s", wf_error_message());
}

static int must_calls;
static void on_must(wf_status status, const char *file, int line, const char *expression)
{
    (void)file;
    (void)line;
    must_calls += status == WF_ERR_SHAPE && strcmp(expression, "fails(2)") == 0;
}

static void must(void)
{
    wf_must_set_handler(on_must);
    WF_MUST(WF_OK);
    WF_MUST(fails(2));
    wf_must_set_handler(NULL);
    WF_EXPECT(must_calls == 1, "%d calls", must_calls);
}

static void shapes(void)
{
    char text[WF_SHAPE_TEXT];
    WF_EXPECT(wf_shape_count(WF_SHAPE(2, 3, 4)) == 24 && wf_shape_count(wf_shape_scalar()) == 1, "counts");
    WF_EXPECT(wf_shape_count(WF_SHAPE(INT64_MAX, 0, 2)) == 0, "empty before overflow");
    WF_EXPECT(wf_shape_count(WF_SHAPE(INT64_MAX, 2)) == -1 && wf_shape_count(WF_SHAPE(2, -1)) == -1, "impossible");
    WF_EXPECT(WF_SHAPE(1, 1, 1, 1, 1, 1, 1).rank == -1, "rank 7");
    WF_EXPECT(strcmp(wf_shape_text(WF_SHAPE(64, 3, 32), text), "[64,3,32]") == 0, "%s", text);
    int64_t stride[WF_MAX_RANK];
    wf_order_strides(WF_SHAPE(2, 3, 4, 5), WF_CHANNELS_LAST, stride);
    WF_EXPECT(stride[0] == 60 && stride[1] == 1 && stride[2] == 15 && stride[3] == 3, "%ld %ld %ld %ld",
              (long)stride[0], (long)stride[1], (long)stride[2], (long)stride[3]);
    wf_order_strides(WF_SHAPE(2, 3, 4), WF_ROW_MAJOR, stride);
    WF_EXPECT(stride[0] == 12 && stride[1] == 4 && stride[2] == 1, "row-major");
}

static void boxes(void)
{
    const wf_box a = {.rank = 2, .lo = {0, 2}, .hi = {4, 6}}, b = {.rank = 2, .lo = {3, 0}, .hi = {9, 3}};
    const wf_box c = wf_box_intersect(a, b);
    WF_EXPECT(c.lo[0] == 3 && c.hi[0] == 4 && c.lo[1] == 2 && c.hi[1] == 3, "intersection");
    const wf_box far = {.rank = 2, .lo = {4, 2}, .hi = {5, 3}};
    WF_EXPECT(wf_box_empty(wf_box_intersect(a, far)) && !wf_box_empty(c), "touching boxes do not meet");
    WF_EXPECT(wf_box_contains(a, c) && !wf_box_contains(b, a), "containment");
    WF_EXPECT(wf_box_relative(c, a).lo[1] == 0 && wf_box_relative(c, a).lo[0] == 3, "relative");
    for (int64_t n = 0; n < 20; n++)
        for (int64_t p = 1; p < 6; p++) {
            int64_t lo, hi, next = 0;
            for (int64_t r = 0; r < p; r++, next = hi) {
                wf_block(n, p, r, &lo, &hi);
                WF_EXPECT(lo == next && hi - lo == n / p + (r < n % p), "part %ld of %ld of %ld", (long)r, (long)p,
                          (long)n);
            }
            WF_EXPECT(next == n, "parts of %ld over %ld end at %ld", (long)n, (long)p, (long)next);
        }
}

static void layouts(void)
{
    char text[WF_LAYOUT_TEXT];
    const wf_layout batch = wf_layout_batch(NULL, WF_SHAPE(10, 3, 8, 8), 4, 7);
    WF_EXPECT(wf_layout_is_sharded(&batch, 0) && !wf_layout_is_sharded(&batch, 1), "sharded over 0");
    wf_layout_text(&batch, text);
    WF_EXPECT(strcmp(text, "[10,3,8,8] sharded over data at dimension 0: [4,7)") == 0, "%s", text);
    wf_layout out;
    WF_EXPECT(wf_layout_follow(&batch, WF_SHAPE(16, 3), (int[]){-1, 0}, &out), "follows");
    WF_EXPECT(out.global.dim[1] == 10 && out.global.dim[0] == 16 && out.box.lo[1] == 4 && out.box.hi[1] == 7 &&
                  out.dim[WF_AXIS_DATA] == 1,
              "%s", wf_layout_text(&out, text));
    WF_EXPECT(!wf_layout_follow(&batch, WF_SHAPE(3, 8), (int[]){1, 2}, &out), "loses the sharded dimension");
    WF_EXPECT(!wf_layout_equal(&batch, &out) && wf_layout_equal(&batch, &batch), "equality");
    wf_layout partial = batch;
    partial.placement[WF_AXIS_DATA] = WF_PARTIAL;
    WF_EXPECT(wf_layout_is_partial(&partial) && !wf_layout_follow(&partial, WF_SHAPE(3), (int[]){0}, &out), "partial");
}

static void pool(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    void *p = NULL, *q = NULL;
    WF_EXPECT_OK(wf_pool_take_host(ctx, 1000, &p));
    memset(p, 1, 1000);
    WF_EXPECT(((uintptr_t)p & 63) == 0, "aligned");
    const int64_t before = wf_ctx_memory(ctx).system_allocations;
    wf_pool_give_host(ctx, p, 1000);
    WF_EXPECT_OK(wf_pool_take_host(ctx, 990, &q));
    WF_EXPECT(q == p && wf_ctx_memory(ctx).system_allocations == before, "the block is used again");
    wf_pool_give_host(ctx, q, 990);
    WF_EXPECT(wf_ctx_memory(ctx).bytes_in_use == 0, "%zu bytes in use", wf_ctx_memory(ctx).bytes_in_use);
    WF_EXPECT_OK(wf_pool_take(ctx, 1000, &p));
    wf_pool_give(ctx, p, 1000);
    WF_EXPECT_OK(wf_pool_take(ctx, 990, &q));
    WF_EXPECT(q == p, "a block of the device is used again");
    wf_pool_give(ctx, q, 990);
    /* Every size gets a block that holds it: write to the last byte of many live ones. */
    void *many[400];
    for (size_t i = 0; i < 400; i++) {
        WF_EXPECT_OK(wf_pool_take_host(ctx, 1 + i * i * 3, &many[i]));
        memset(many[i], (int)i, 1 + i * i * 3);
    }
    for (size_t i = 0; i < 400; i++) {
        WF_EXPECT(((unsigned char *)many[i])[i * i * 3] == (unsigned char)i, "block %zu was overwritten", i);
        wf_pool_give_host(ctx, many[i], 1 + i * i * 3);
    }
    WF_EXPECT_ERROR(WF_ERR_MEMORY, wf_pool_take(ctx, SIZE_MAX / 2, &p));
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void contexts(void)
{
    WF_EXPECT(wf_ctx_new((wf_ctx_opts){.device = "abacus"}) == NULL, "unknown device");
    WF_EXPECT(strstr(wf_error_message(), "abacus") != NULL, "%s", wf_error_message());
    WF_EXPECT(wf_ctx_new((wf_ctx_opts){.dtype = WF_I32}) == NULL, "type of parameters");
    WF_EXPECT(wf_ctx_new((wf_ctx_opts){.threads = -1}) == NULL, "threads");
    WF_EXPECT(strstr(wf_error_message(), "threads is -1") != NULL, "%s", wf_error_message());
    wf_error_clear();
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .seed = 5});
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2));
    WF_EXPECT(wf_ctx_free(ctx) == WF_ERR_STATE, "live objects");
    WF_EXPECT(strstr(wf_error_message(), "1 tensor") != NULL, "%s", wf_error_message());
    wf_tensor_free(t);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    WF_EXPECT_OK(wf_ctx_free(NULL));
}

static void archives(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    wf_tensor *t = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(3), (int32_t[]){1, 2, 3});
    wf_tensor *other = wf_tensor_new(ctx, WF_I32, WF_SHAPE(4));
    wf_archive *a = wf_archive_memory(ctx);
    int64_t n = 42, back = 0;
    double x = 2.5, y = 0;
    WF_EXPECT_OK(wf_archive_enter(a, "gen"));
    WF_EXPECT_OK(wf_archive_tensor(a, "W", t));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_archive_tensor(a, "W", t));
    WF_EXPECT_OK(wf_archive_i64(a, "n", &n));
    WF_EXPECT_OK(wf_archive_leave(a));
    WF_EXPECT_OK(wf_archive_f64(a, "x", &x));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_archive_leave(a));
    WF_EXPECT_OK(wf_archive_memory_rewind(a));
    WF_EXPECT_OK(wf_tensor_fill(t, 0));
    WF_EXPECT_OK(wf_archive_f64(a, "x", &y));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_archive_tensor(a, "W", t));
    WF_EXPECT_OK(wf_archive_enter(a, "gen"));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_archive_tensor(a, "W", other));
    WF_EXPECT_OK(wf_archive_tensor(a, "W", t));
    WF_EXPECT_OK(wf_archive_i64(a, "n", &back));
    int32_t got[3] = {0};
    WF_EXPECT_OK(wf_tensor_export(t, got, sizeof got));
    WF_EXPECT(got[2] == 3 && back == 42 && y == 2.5, "%d %ld %g", got[2], (long)back, y);
    wf_archive_free(a);
    wf_tensor_free(t);
    wf_tensor_free(other);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* A stop of the process, as by a signal, counts a fifth of a second, however long it was. */
static void stops_in_waits(void)
{
    wf_wait wait = {0};
    WF_EXPECT(wf_wait_ns(&wait) == 0, "a wait begins late");
    test_sleep_ms(600);
    const int64_t stopped = wf_wait_ns(&wait);
    WF_EXPECT(stopped == 200000000, "a stop counts %lld ns", (long long)stopped);
    for (int look = 0; look < 5; look++) {
        test_sleep_ms(10);
        (void)wf_wait_ns(&wait);
    }
    const int64_t waited = wf_wait_ns(&wait) - stopped;
    WF_EXPECT(waited >= 50000000, "five looks, 10 ms from one to the next, count %lld ns", (long long)waited);
}

static int stops;

/* Done after two stops, or never. */
static wf_status event_done(wf_ctx *ctx, wf_event *event, bool *done)
{
    *done = stops == 2;
    if (stops < 2) {
        stops++;
        test_sleep_ms(600);
    }
    return WF_OK;
}

/* The time-out of a wait for the device is 500 ms here. */
static void device_waits(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    const wf_kernels *own = ctx->k;
    wf_kernels device = *own;
    device.event_done = event_done;
    ctx->k = &device;
    WF_EXPECT_OK(wf_ctx_wait_event(ctx, NULL, "copied"));
    stops = 3;
    WF_EXPECT(wf_ctx_wait_event(ctx, NULL, "copied") == WF_ERR_TIMEOUT &&
                  strstr(wf_error_message(), "the device has not copied after"),
              "%s", wf_error_message());
    wf_error_clear();
    ctx->k = own;
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void version(void)
{
    char own[64];
    snprintf(own, sizeof own, "%d.%d.%d", WF_VERSION_MAJOR, WF_VERSION_MINOR, WF_VERSION_PATCH);
    WF_EXPECT(strcmp(wf_version(), own) == 0, "the library is %s, its headers are %s", wf_version(), own);
    WF_EXPECT(strstr(wf_configuration(), ", MPI ") && strstr(wf_configuration(), ", oneDNN "), "%s",
              wf_configuration());
    WF_EXPECT(!strstr(wf_configuration(), "no known version"), "%s", wf_configuration());
}

int main(int argc, char **argv)
{
    setenv("WEFT_TIMEOUT_MS", "500", 1); /* device_waits */
    return test_main(argc, argv,
                     (test_case[]){{"trail", trail},
                                   {"sticky_null", sticky_null},
                                   {"must", must},
                                   {"shapes", shapes},
                                   {"boxes", boxes},
                                   {"layouts", layouts},
                                   {"pool", pool},
                                   {"contexts", contexts},
                                   {"archives", archives},
                                   {"stops_in_waits", stops_in_waits},
                                   {"device_waits", device_waits},
                                   {"version", version},
                                   {0}});
}
