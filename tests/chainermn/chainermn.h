/* What the programs of this folder share. Each function of theirs checks what one function of ChainerMN's own tests
 * (github.com/chainer/chainer, tests/chainermn_tests) checks, with its shapes and tolerances, by Weft's public API;
 * docs/porting.md has the table. */
#ifndef WF_TESTS_CHAINERMN_H
#define WF_TESTS_CHAINERMN_H

#include "core/core.h"
#include "layers/layers.h"
#include "tests/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Their element types: float16, float32, and mixed16, which is f32 parameters and f16 values here. */
typedef struct element {
    const char *name;
    wf_dtype value, compute;
    double tolerance;
} element;

static const element elements[] = {
    {"float16", WF_F16, WF_F32, 5e-3}, {"float32", WF_F32, WF_F32, 1e-5}, {"mixed16", WF_F16, WF_F16, 5e-3}};
enum { ELEMENTS = sizeof elements / sizeof *elements };

static inline void communicator_open(const char *name, wf_ctx_opts opts)
{
    opts.device = test_device("cpu");
    opts.threads = 1;
    comm = test_comm_open(name, opts);
    WF_EXPECT(comm, "%s: %s", name, wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static inline void communicator_close(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

/* Returns a tensor of these numbers, rounded to the type. */
static inline wf_tensor *tensor_of(wf_dtype dtype, wf_shape shape, const double *value)
{
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, shape, value);
    wf_tensor *tensor = wf_tensor_copy(wide, dtype, wf_order_default(shape.rank));
    wf_tensor_free(wide);
    return tensor;
}

/* Returns start, start + step, start + 2 step, ... */
static inline wf_tensor *arange(wf_dtype dtype, wf_shape shape, double start, double step)
{
    const int64_t n = wf_shape_count(shape);
    double *value = calloc((size_t)n + 1, sizeof *value);
    for (int64_t i = 0; i < n; i++)
        value[i] = start + step * (double)i;
    wf_tensor *tensor = tensor_of(dtype, shape, value);
    free(value);
    return tensor;
}

/* Returns numbers of [-1, 1] that are the same on all ranks for the same seed. */
static inline wf_tensor *random_tensor(wf_dtype dtype, wf_shape shape, uint64_t seed)
{
    test_rng rng = {seed};
    const int64_t n = wf_shape_count(shape);
    double *value = calloc((size_t)n + 1, sizeof *value);
    for (int64_t i = 0; i < n; i++)
        value[i] = test_uniform(&rng, -1, 1);
    wf_tensor *tensor = tensor_of(dtype, shape, value);
    free(value);
    return tensor;
}

/* Returns the elements as doubles, to be freed by free. */
static inline double *doubles_of(const wf_tensor *tensor)
{
    double *value = calloc((size_t)wf_tensor_count(tensor) + 1, sizeof *value);
    wf_tensor *wide = wf_tensor_copy(tensor, WF_F64, wf_order_default(wf_tensor_shape(tensor).rank));
    WF_EXPECT_OK(wf_tensor_export(wide, value, wf_tensor_bytes(wide)));
    wf_tensor_free(wide);
    return value;
}

/* Checks shape, type and elements; relative to 1 + the expected element. */
static inline void expect_near(const char *what, const wf_tensor *seen, const wf_tensor *should, double tolerance)
{
    if (!seen || !should || !wf_shape_equal(wf_tensor_shape(seen), wf_tensor_shape(should)) ||
        wf_tensor_dtype(seen) != wf_tensor_dtype(should)) {
        WF_EXPECT(false, "%s on rank %d of %d: missing, or of another shape or type (%s)", what, rank, size,
                  wf_error_message());
        return;
    }
    double *mine = doubles_of(seen), *theirs = doubles_of(should);
    const double off = test_distance(wf_tensor_count(seen), mine, theirs);
    WF_EXPECT(off <= tolerance, "%s on rank %d of %d is off by %g", what, rank, size, off);
    free(mine);
    free(theirs);
}

/* Checks that all elements are `value`. */
static inline void expect_all(const char *what, const wf_tensor *seen, double value, double tolerance)
{
    wf_tensor *should = seen ? arange(wf_tensor_dtype(seen), wf_tensor_shape(seen), value, 0) : NULL;
    expect_near(what, seen, should, tolerance);
    wf_tensor_free(should);
}

/* A variable of a tensor that is given away. */
static inline wf_var *leaf_given(wf_tape *tape, wf_tensor *tensor)
{
    wf_var *leaf = wf_leaf(tape, tensor);
    wf_tensor_free(tensor);
    return leaf;
}

static inline wf_var *input_given(wf_tape *tape, wf_tensor *tensor)
{
    wf_var *input = wf_input(tape, tensor);
    wf_tensor_free(tensor);
    return input;
}

/* --- their model of linear layers, whose gradients a test chooses ----------------------------------------------------
 */

static inline wf_var *apply_nothing(wf_layer *self, void *user, wf_var *x)
{
    (void)self, (void)user;
    return x;
}

static inline void add_linear(wf_layer *model, const char *name, int64_t in, int64_t out)
{
    WF_EXPECT(wf_module_add(model, name, wf_linear(ctx, (wf_linear_opts){.in = in, .out = out, .no_bias = true})),
              "%s: %s", name, wf_error_message());
}

/* Layers a (2 to 3), b (3 to 4) and, if `third` is not 0, c (4 to `third`). */
static inline wf_layer *example_model(int64_t third)
{
    wf_layer *model = wf_layer_named(wf_module(ctx, apply_nothing, NULL), "example");
    add_linear(model, "a", 2, 3);
    add_linear(model, "b", 3, 4);
    if (third)
        add_linear(model, "c", 4, third);
    return model;
}

static inline wf_tensor *value_of(wf_layer *model, const char *path)
{
    return wf_param_value(wf_layer_param(model, path));
}

/* Returns a loss, a mean over one sample, whose gradient of every element of this layer's W is `gradient`. */
static inline wf_var *loss_with(wf_tape *tape, wf_layer *model, const char *name, double gradient)
{
    const wf_shape shape = wf_param_shape(wf_layer_param(wf_layer_child(model, name), "W"));
    wf_var *x = input_given(tape, arange(WF_F32, WF_SHAPE(1, shape.dim[1]), 1, 0));
    wf_var *y = wf_apply(wf_layer_child(model, name), x);
    return wf_mean(wf_scale(y, gradient * (double)shape.dim[0]));
}

#endif
