/* Memory of the program under tensors: the same addresses, strides, the release, what is refused; and DLPack in and
 * out. On every device. */
#include "core/dlpack.h"
#include "core/tensor_author.h"
#include "tests/test.h"

#include <dlpack/dlpack.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;

/* A block of the device's memory that counts how often it was released. */
typedef struct block {
    void *data;
    size_t bytes;
    int released;
} block;

static block block_new(const float *host, int64_t n)
{
    block b = {.bytes = (size_t)n * sizeof *host};
    WF_MUST(ctx->k->alloc(ctx, b.bytes, &b.data));
    WF_MUST(ctx->k->to_device(ctx, b.data, host, b.bytes));
    return b;
}

static void block_read(const block *b, float *host)
{
    WF_MUST(ctx->k->to_host(ctx, host, b->data, b->bytes));
}

static void count_release(void *user)
{
    block *b = user;
    b->released++;
}

static void numbers(float *host, int n)
{
    for (int i = 0; i < n; i++)
        host[i] = (float)(i + 1);
}

static void dense(void)
{
    float host[24], got[24];
    numbers(host, 24);
    block b = block_new(host, 24);
    wf_tensor *t =
        wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3, 4), b.data, (wf_wrap_opts){.release = count_release, .user = &b});
    WF_EXPECT(t && wf_tensor_data(t) == b.data && wf_tensor_is_dense(t), "%s", wf_error_message());
    WF_EXPECT(wf_tensor_strides(t)[0] == 12 && wf_tensor_strides(t)[2] == 1, "strides");
    WF_EXPECT_OK(wf_tensor_export(t, got, sizeof got));
    WF_EXPECT(memcmp(got, host, sizeof got) == 0, "other numbers are exported");
    /* What the library writes is in the program's memory. */
    WF_EXPECT_OK(wf_tensor_fill(t, 7));
    block_read(&b, got);
    WF_EXPECT(got[0] == 7 && got[23] == 7, "the program sees %g and %g", got[0], got[23]);
    wf_tensor *view = wf_tensor_view(t, (wf_box){.rank = 3, .lo = {1, 0, 0}, .hi = {2, 3, 4}});
    wf_tensor_free(t);
    WF_EXPECT(b.released == 0, "released while a view is there");
    wf_tensor_free(view);
    WF_EXPECT(b.released == 1, "released %d times", b.released);
    ctx->k->release(ctx, b.data, b.bytes);
}

/* Rows of 5 numbers of which 3 are used, and columns before rows. */
static void strided(void)
{
    float host[20], got[12];
    numbers(host, 20);
    block b = block_new(host, 20);
    const int64_t rows[] = {5, 1}, columns[] = {1, 4};
    wf_tensor *t = wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(4, 3), b.data, (wf_wrap_opts){.stride = rows});
    WF_EXPECT(t && !wf_tensor_is_dense(t), "%s", wf_error_message());
    WF_EXPECT_OK(wf_tensor_export(t, got, sizeof got));
    for (int i = 0; i < 12; i++)
        WF_EXPECT(got[i] == host[i / 3 * 5 + i % 3], "place %d has %g", i, got[i]);
    WF_EXPECT_OK(wf_tensor_fill(t, 0));
    block_read(&b, host);
    WF_EXPECT(host[2] == 0 && host[3] == 4 && host[4] == 5 && host[5] == 0, "numbers between rows are written");
    wf_tensor_free(t);
    numbers(host, 20);
    WF_MUST(ctx->k->to_device(ctx, b.data, host, b.bytes));
    t = wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(4, 3), b.data, (wf_wrap_opts){.stride = columns});
    WF_EXPECT(t, "%s", wf_error_message());
    WF_EXPECT_OK(wf_tensor_export(t, got, sizeof got));
    for (int i = 0; i < 12; i++)
        WF_EXPECT(got[i] == host[i % 3 * 4 + i / 3], "place %d has %g", i, got[i]);
    wf_tensor_free(t);
    /* An image in channels-last memory, as a program may have it, is dense in that order. */
    const int64_t last[] = {12, 1, 6, 2};
    t = wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(1, 2, 2, 3), b.data, (wf_wrap_opts){.stride = last});
    WF_EXPECT(t && wf_tensor_is_dense(t) && wf_tensor_order(t) == WF_CHANNELS_LAST, "%s", wf_error_message());
    wf_tensor_free(t);
    ctx->k->release(ctx, b.data, b.bytes);
}

static void expect_refused(wf_tensor *t, wf_status code, const char *part)
{
    WF_EXPECT(!t, "a tensor comes where there should be: %s", part);
    WF_EXPECT(wf_error_code() == code && strstr(wf_error_message(), part), "\"%s\" does not say: %s",
              wf_error_message(), part);
    wf_error_clear();
    wf_tensor_free(t);
}

static void refused(void)
{
    float host[24];
    numbers(host, 24);
    block b = block_new(host, 24);
    const wf_wrap_opts release = {.release = count_release, .user = &b};
    wf_wrap_opts opts = release;
    const int64_t twice[] = {2, 1}, none[] = {0, 1}, back[] = {-3, 1};
    expect_refused(wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3), NULL, release), WF_ERR_ARGUMENT, "is NULL");
    expect_refused(wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3), (char *)b.data + 2, release), WF_ERR_ARGUMENT,
                   "should be a multiple of 4");
    expect_refused(wf_tensor_wrap(ctx, (wf_dtype)99, WF_SHAPE(2), b.data, release), WF_ERR_DTYPE, "99 is not a type");
    opts.stride = twice;
    expect_refused(wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3), b.data, opts), WF_ERR_ARGUMENT,
                   "stride of 2 in dimension 0, where elements 3 apart");
    opts.stride = none;
    expect_refused(wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3), b.data, opts), WF_ERR_ARGUMENT, "stride of 0");
    opts.stride = back;
    expect_refused(wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3), b.data, opts), WF_ERR_ARGUMENT, "stride of -3");
    if (!ctx->k->host)
        expect_refused(wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(2, 3), host, release), WF_ERR_ARGUMENT, "memory at ");
    WF_EXPECT(b.released == 0, "memory of a tensor that was not made is released");
    wf_tensor *empty = wf_tensor_wrap(ctx, WF_F32, WF_SHAPE(0, 3), NULL, (wf_wrap_opts){0});
    WF_EXPECT(empty && wf_tensor_count(empty) == 0, "%s", wf_error_message());
    wf_tensor_free(empty);
    ctx->k->release(ctx, b.data, b.bytes);
}

/* Out and in again: the same memory, alive until the last of the two lets it go. */
static void dlpack(void)
{
    static const wf_dtype types[] = {WF_F32, WF_F64, WF_F16, WF_BF16, WF_I32, WF_I64, WF_U8};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        wf_tensor *t = wf_tensor_new_ordered(ctx, types[i], WF_SHAPE(2, 3, 4, 5), WF_CHANNELS_LAST);
        WF_EXPECT_OK(wf_tensor_fill(t, 3));
        void *const data = wf_tensor_data(t);
        DLManagedTensor *out = wf_tensor_to_dlpack(t);
        WF_EXPECT(out && out->dl_tensor.data == data && out->dl_tensor.strides[1] == 1, "%s", wf_error_message());
        WF_EXPECT(out->dl_tensor.device.device_type == (ctx->k->host ? kDLCPU : kDLCUDA), "device type %d",
                  (int)out->dl_tensor.device.device_type);
        wf_tensor_free(t);
        wf_tensor *again = wf_tensor_from_dlpack(ctx, out);
        WF_EXPECT(again && wf_tensor_data(again) == data && wf_tensor_dtype(again) == types[i], "%s",
                  wf_error_message());
        WF_EXPECT(wf_tensor_order(again) == WF_CHANNELS_LAST && wf_tensor_is_dense(again), "order");
        wf_tensor *wide = wf_tensor_copy(again, WF_F64, WF_ROW_MAJOR);
        double got[120];
        WF_EXPECT_OK(wf_tensor_export(wide, got, sizeof got));
        WF_EXPECT(got[0] == 3 && got[119] == 3, "%s: %g", wf_dtype_name(types[i]), got[0]);
        wf_tensor_free(wide);
        wf_tensor_free(again); /* which frees `out`, and that the tensor */
    }
}

static void dlpack_refused(void)
{
    int64_t dim[9] = {2, 3};
    DLManagedTensor m = {.dl_tensor = {.ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = dim}};
    m.dl_tensor.device.device_type = ctx->k->host ? kDLCPU : kDLCUDA;
    m.dl_tensor.dtype.lanes = 2;
    expect_refused(wf_tensor_from_dlpack(ctx, &m), WF_ERR_DTYPE, "2 lanes");
    m.dl_tensor.dtype = (DLDataType){kDLComplex, 64, 1};
    expect_refused(wf_tensor_from_dlpack(ctx, &m), WF_ERR_DTYPE, "type code 5 with 64 bits");
    m.dl_tensor.dtype = (DLDataType){kDLFloat, 32, 1};
    m.dl_tensor.device.device_type = kDLVulkan;
    expect_refused(wf_tensor_from_dlpack(ctx, &m), WF_ERR_ARGUMENT, "device type 7");
    m.dl_tensor.device.device_type = ctx->k->host ? kDLCPU : kDLCUDA;
    m.dl_tensor.ndim = 9;
    expect_refused(wf_tensor_from_dlpack(ctx, &m), WF_ERR_SHAPE, "9 dimensions");
    expect_refused(wf_tensor_from_dlpack(ctx, NULL), WF_ERR_ARGUMENT, "NULL");
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    WF_MUST(wf_check(ctx));
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"dense", dense},
                                               {"strided", strided},
                                               {"refused", refused},
                                               {"dlpack", dlpack},
                                               {"dlpack_refused", dlpack_refused},
                                               {0}});
    WF_MUST(wf_ctx_free(ctx)); /* no tensor is left */
    return failed;
}
