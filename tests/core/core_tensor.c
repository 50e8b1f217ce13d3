/* Tensors: import and export in every type and order, views, permutations, copies, layouts, lives. */
#include "core/tensor_author.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;

static void round_trip(void)
{
    static const wf_dtype types[] = {WF_F32, WF_F64, WF_BF16, WF_F16, WF_I32, WF_I64, WF_U8};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int order = 0; order < 2; order++) {
            wf_tensor *t = wf_tensor_new_ordered(ctx, types[i], WF_SHAPE(2, 3, 4, 5), (wf_order)order);
            unsigned char in[120 * 8], out[120 * 8];
            const size_t bytes = wf_tensor_bytes(t);
            for (size_t b = 0; b < bytes; b++) /* high bytes small: no NaN */
                in[b] = (unsigned char)(b % wf_dtype_size(types[i]) == wf_dtype_size(types[i]) - 1 ? b % 50 : b * 37);
            memset(out, 0, sizeof out);
            WF_EXPECT_OK(wf_tensor_import(t, in, bytes));
            WF_EXPECT_OK(wf_tensor_export(t, out, bytes));
            WF_EXPECT(memcmp(in, out, bytes) == 0, "%s order %d", wf_dtype_name(types[i]), order);
            WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_tensor_import(t, in, bytes - 1));
            wf_tensor_free(t);
        }
}

/* More than a cache holds, and no multiple of a cache line: whole, and from the middle of a line on. */
static void long_copies(void)
{
    const int64_t n = 3000017;
    float *in = malloc((size_t)n * sizeof *in), *out = malloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        in[i] = (float)i;
    wf_tensor *t = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(n), in);
    for (int64_t first = 0; first < 12; first += 11) {
        const size_t bytes = (size_t)(n - first) * sizeof *out;
        wf_tensor *view = wf_tensor_view(t, (wf_box){.rank = 1, .lo = {first}, .hi = {n}});
        memset(out, 0, bytes);
        WF_EXPECT_OK(wf_tensor_export(view, out, bytes));
        WF_EXPECT(memcmp(in + first, out, bytes) == 0, "a copy of %zu bytes is another", bytes);
        wf_tensor_free(view);
    }
    wf_tensor_free(t);
    free(in);
    free(out);
}

static wf_tensor *counting(wf_shape shape, wf_order order)
{
    float data[1024];
    const int64_t n = wf_shape_count(shape);
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)i;
    wf_tensor *t = wf_tensor_new_ordered(ctx, WF_F32, shape, order);
    WF_EXPECT_OK(wf_tensor_import(t, data, (size_t)n * sizeof *data));
    return t;
}

static void views(void)
{
    wf_tensor *t = counting(WF_SHAPE(2, 3, 4, 5), WF_CHANNELS_LAST);
    const wf_box box = {.rank = 4, .lo = {1, 1, 2, 0}, .hi = {2, 3, 4, 5}};
    wf_tensor *v = wf_tensor_view(t, box);
    float got[20];
    WF_EXPECT(!wf_tensor_is_dense(v), "a cut of channels is not dense");
    WF_EXPECT_OK(wf_tensor_export(v, got, sizeof got));
    WF_EXPECT(got[0] == 60 + 20 + 10 && got[19] == 60 + 40 + 15 + 4, "%g %g", (double)got[0], (double)got[19]);
    WF_EXPECT_OK(wf_tensor_fill(v, -1));
    float all[120];
    WF_EXPECT_OK(wf_tensor_export(t, all, sizeof all));
    int64_t changed = 0;
    for (int i = 0; i < 120; i++)
        changed += all[i] == -1;
    WF_EXPECT(changed == 20 && all[90] == -1 && all[89] == 89, "%ld elements filled", (long)changed);
    const wf_box outside = {.rank = 4, .lo = {1, 1, 2, 0}, .hi = {3, 3, 4, 5}};
    WF_EXPECT(wf_tensor_view(t, outside) == NULL, "outside");
    wf_error_clear();
    const wf_box first = {.rank = 4, .lo = {0, 0, 0, 0}, .hi = {1, 3, 4, 5}};
    wf_tensor *d = wf_tensor_view(t, first);
    WF_EXPECT(wf_tensor_is_dense(d), "a cut of samples is dense");
    wf_tensor_free(d);
    wf_tensor_free(v);
    wf_tensor_free(t);
}

static void permute_and_copy(void)
{
    wf_tensor *t = counting(WF_SHAPE(2, 3, 4), WF_ROW_MAJOR);
    wf_tensor *p = wf_tensor_permute(t, (int[]){2, 0, 1});
    wf_tensor *c = wf_tensor_copy(p, WF_F64, WF_ROW_MAJOR);
    double got[24];
    WF_EXPECT_OK(wf_tensor_export(c, got, sizeof got));
    WF_EXPECT(got[0] == 0 && got[1] == 4 && got[3] == 12 && got[6] == 1, "%g %g %g %g", got[0], got[1], got[3], got[6]);
    WF_EXPECT(wf_tensor_permute(t, (int[]){0, 0, 1}) == NULL, "not a permutation");
    WF_EXPECT(wf_tensor_permute(t, NULL) == NULL, "no permutation");
    wf_error_clear();
    wf_tensor *b = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(4), (float[]){-3, 300, 2.5f, NAN});
    wf_tensor *u = wf_tensor_copy(b, WF_U8, WF_ROW_MAJOR);
    uint8_t bytes[4];
    WF_EXPECT_OK(wf_tensor_export(u, bytes, sizeof bytes));
    WF_EXPECT(bytes[0] == 0 && bytes[1] == 255 && bytes[2] == 2 && bytes[3] == 0, "%d %d %d %d", bytes[0], bytes[1],
              bytes[2], bytes[3]);
    wf_tensor_free(u);
    wf_tensor_free(b);
    wf_tensor_free(c);
    wf_tensor_free(p);
    wf_tensor_free(t);
}

static void empty_and_scalar(void)
{
    wf_tensor *e = wf_tensor_new(ctx, WF_F32, WF_SHAPE(0, 3, 2, 2));
    WF_EXPECT(wf_tensor_count(e) == 0 && wf_tensor_bytes(e) == 0, "empty");
    WF_EXPECT_OK(wf_tensor_fill(e, 1));
    WF_EXPECT_OK(wf_tensor_export(e, NULL, 0));
    wf_tensor *s = wf_tensor_from_host(ctx, WF_BF16, wf_shape_scalar(), (uint16_t[]){0x4040});
    WF_EXPECT(wf_tensor_item(s) == 3, "%g", wf_tensor_item(s));
    WF_EXPECT(isnan(wf_tensor_item(e)) && isnan(wf_tensor_item(NULL)), "no single element");
    WF_EXPECT(wf_error_code() == WF_ERR_SHAPE && strstr(wf_error_message(), "should have one element"), "is %s: %s",
              wf_status_name(wf_error_code()), wf_error_message());
    wf_error_clear();
    wf_tensor_free(s);
    wf_tensor_free(e);
    WF_EXPECT(wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, -1)) == NULL, "negative dimension");
    WF_EXPECT(strstr(wf_error_message(), "[2,-1]") != NULL, "%s", wf_error_message());
    WF_EXPECT(wf_tensor_new(ctx, (wf_dtype)99, WF_SHAPE(2)) == NULL, "no type");
    wf_error_clear();
    WF_EXPECT(wf_tensor_alias(NULL) == NULL && wf_error_code() == WF_OK, "NULL passes silently");
}

static void layouts(void)
{
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3, 4));
    WF_EXPECT_OK(wf_tensor_set_layout(t, wf_layout_batch(NULL, WF_SHAPE(8, 4), 2, 5)));
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_tensor_set_layout(t, wf_layout_batch(NULL, WF_SHAPE(8, 4), 2, 6)));
    wf_tensor *a = wf_tensor_alias(t);
    WF_EXPECT(wf_tensor_layout(a).known && wf_tensor_layout(a).box.lo[0] == 2, "an alias has the layout");
    wf_tensor_free(a);
    wf_tensor_free(t);
}

static void steady(void)
{
    int64_t before = 0;
    for (int i = 0; i < 10; i++) {
        if (i == 2)
            before = wf_ctx_memory(ctx).system_allocations;
        wf_tensor *t[100];
        for (int j = 0; j < 100; j++)
            t[j] = wf_tensor_new(ctx, WF_F32, WF_SHAPE(j, 7));
        for (int j = 0; j < 100; j++)
            wf_tensor_free(t[j]);
    }
    const int64_t now = wf_ctx_memory(ctx).system_allocations;
    WF_EXPECT(now == before, "%ld allocations in steady state", (long)(now - before));
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){0});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"round_trip", round_trip},
                                               {"long_copies", long_copies},
                                               {"views", views},
                                               {"permute_and_copy", permute_and_copy},
                                               {"empty_and_scalar", empty_and_scalar},
                                               {"layouts", layouts},
                                               {"steady", steady},
                                               {0}});
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
