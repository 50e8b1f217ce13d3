/* Convolutions and wf_pad beside PyTorch's padding_mode and F.pad: y and all gradients of the cases in a file that
 * boundary_torch.py made, on ref in f64 and on cpu in f32. boundary_torch FILE */
#include "layers/pad.h"
#include "tests/layers/mesh_fixture.h"

enum { CONVOLUTION, PADDED, MODES = 4 };

static const wf_edge edges[MODES] = {WF_EDGE_DEFAULT, WF_EDGE_REFLECT, WF_EDGE_REPLICATE, WF_EDGE_CIRCULAR};

typedef struct question {
    int64_t kind, nd, mode, n, in, out, groups;
    int64_t length[3], kernel[3], stride[3], dilation[3], lo[3], hi[3];
} question;

static bool read_question(FILE *file, question *q)
{
    int64_t head[7], each[6];
    if (fread(head, sizeof head, 1, file) != 1)
        return false;
    *q = (question){head[0], head[1], head[2], head[3], head[4], head[5], head[6], {0}, {0}, {0}, {0}, {0}, {0}};
    for (int d = 0; d < q->nd; d++) {
        if (fread(each, sizeof each, 1, file) != 1)
            abort();
        q->length[d] = each[0];
        q->kernel[d] = each[1];
        q->stride[d] = each[2];
        q->dilation[d] = each[3];
        q->lo[d] = each[4];
        q->hi[d] = each[5];
    }
    return true;
}

/* Freed by the caller. */
static double *read_array(FILE *file, int64_t *count)
{
    double *x = fread(count, sizeof *count, 1, file) == 1 ? malloc(((size_t)*count + 1) * sizeof *x) : NULL;
    if (!x || fread(x, sizeof *x, (size_t)*count, file) != (size_t)*count)
        abort();
    return x;
}

static wf_tensor *tensor_of(wf_shape shape, const double *x)
{
    wf_tensor *f64 = wf_tensor_from_host(run.ctx, WF_F64, shape, x), *t = NULL;
    WF_EXPECT(f64, "%s", wf_error_message());
    if (f64)
        t = wf_tensor_copy(f64, run.dtype, wf_tensor_order(f64));
    wf_tensor_free(f64);
    return t;
}

/* The next array of the file is what is seen. */
static void expect_next(FILE *file, int64_t number, const char *what, const wf_tensor *seen)
{
    int64_t count;
    double *should = read_array(file, &count), *got = seen ? values(seen) : NULL, most = 1, off = 0;
    WF_EXPECT(got && wf_tensor_count(seen) == count, "case %d: %s has %d elements, should have %d", (int)number, what,
              got ? (int)wf_tensor_count(seen) : 0, (int)count);
    for (int64_t i = 0; got && i < count && wf_tensor_count(seen) == count; i++) {
        most = fmax(most, fabs(should[i]));
        off = fmax(off, isfinite(got[i]) ? fabs(got[i] - should[i]) : INFINITY);
    }
    WF_EXPECT(off <= run.tolerance * most, "case %d: %s is off by %g of %g", (int)number, what, off, most);
    free(got);
    free(should);
}

static wf_layer *conv_of(const question *q, FILE *file)
{
    wf_conv_opts o = {
        .nd = q->nd, .in = q->in, .out = q->out, .groups = q->groups, .boundary = {.edge = edges[q->mode]}};
    for (int d = 0; d < q->nd; d++) {
        o.kernel_nd[d] = q->kernel[d];
        o.stride_nd[d] = q->stride[d];
        o.dilation_nd[d] = q->dilation[d];
        o.pad_lo_nd[d] = q->lo[d];
        o.pad_hi_nd[d] = q->hi[d];
    }
    wf_layer *layer = wf_layer_named(wf_conv(run.ctx, o), "m");
    WF_EXPECT(layer, "%s", wf_error_message());
    for (int i = 0; layer && i < 2; i++) {
        int64_t count;
        double *x = read_array(file, &count);
        wf_tensor *whole = tensor_of(wf_param_shape(layer->params[i]), x);
        WF_EXPECT_OK(wf_param_import(layer->params[i], whole));
        wf_tensor_free(whole);
        free(x);
    }
    return layer;
}

static wf_var *pad_of(const question *q, wf_var *x)
{
    int64_t lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    for (int d = 0; d < q->nd; d++) {
        lo[2 + d] = q->lo[d];
        hi[2 + d] = q->hi[d];
    }
    return wf_pad(x, lo, hi, (wf_boundary){.edge = edges[q->mode]});
}

/* Skips arrays. */
static void pass_arrays(FILE *file, int n)
{
    int64_t count;
    for (int i = 0; i < n; i++)
        free(read_array(file, &count));
}

static void check(FILE *file, const question *q, int64_t number)
{
    wf_shape whole = {.rank = (int)q->nd + 2, .dim = {q->n, q->in}};
    int64_t count;
    memcpy(whole.dim + 2, q->length, (size_t)q->nd * sizeof *q->length);
    double *x = read_array(file, &count), *up = read_array(file, &count);
    /* The parameters come after y and the gradient of x. */
    const long at = ftell(file);
    pass_arrays(file, 2);
    wf_layer *layer = q->kind == CONVOLUTION ? conv_of(q, file) : NULL;
    const long rest = ftell(file);
    wf_tensor *in = tensor_of(whole, x);
    wf_var *leaf = wf_leaf(run.tape, in), *y = q->kind == CONVOLUTION ? wf_apply(layer, leaf) : pad_of(q, leaf);
    WF_EXPECT(y, "case %d: %s", (int)number, wf_error_message());
    if (fseek(file, at, SEEK_SET) != 0)
        abort();
    expect_next(file, number, "y", wf_value(y));
    wf_tensor *dy = tensor_of(wf_var_shape(y), up);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    expect_next(file, number, "dx", wf_grad(leaf));
    if (fseek(file, rest, SEEK_SET) != 0)
        abort();
    if (layer) {
        expect_next(file, number, "dw", wf_param_grad(layer->params[0]));
        expect_next(file, number, "db", wf_param_grad(layer->params[1]));
    }
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_layer_free(layer);
    wf_tensor_free(in);
    wf_tensor_free(dy);
    free(x);
    free(up);
}

static int64_t check_all(const char *path, const char *device, wf_dtype dtype, double tolerance)
{
    FILE *file = fopen(path, "rb");
    question q;
    int64_t number = 0;
    if (!file)
        return 0;
    open_run(device, dtype, tolerance);
    for (; read_question(file, &q) && test_failures() == 0; number++)
        check(file, &q, number);
    close_run();
    fclose(file);
    return number;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    const int64_t n = check_all(argv[1], "ref", WF_F64, 1e-12);
    const int64_t m = check_all(argv[1], "cpu", WF_F32, 1e-5);
    WF_EXPECT(n > 0 && m == n, "%d cases in f64 and %d in f32", (int)n, (int)m);
    if (test_failures() == 0)
        printf("%d cases are PyTorch's numbers: f64 to 1e-12, f32 to 1e-5\n", (int)n);
    return test_failures() > 0;
}
