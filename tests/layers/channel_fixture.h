/* What the tests of channel-parallel layers share: a mesh of channels, parts of global arrays, and the comparison of a
 * parallel model with the serial one on everything. */
#ifndef WF_TESTS_CHANNEL_FIXTURE_H
#define WF_TESTS_CHANNEL_FIXTURE_H

#include "comm/mesh_author.h"
#include "layers/channel.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>

typedef struct fixture {
    const char *device;
    wf_dtype dtype;
    double tolerance;
    wf_comm *comm;
    wf_ctx *ctx;
    wf_mesh *mesh;
    wf_tape *tape;
    int rank, size;
} fixture;

/* How the input lies over the channel axis. */
typedef enum held { HELD_WHOLE = 0, HELD_BLOCKS, HELD_SKEWED, HELDS } held;

static inline fixture fixture_open(const char *device, wf_dtype dtype, wf_mesh_opts opts)
{
    fixture b = {.device = test_device(device), .dtype = dtype, .tolerance = dtype == WF_F64 ? 1e-12 : 1e-5};
    b.comm = test_comm_open(test_communicator("flat"),
                            (wf_ctx_opts){.device = test_device(device), .dtype = dtype, .threads = 1});
    WF_EXPECT(b.comm, "no communicator: %s", wf_error_message());
    b.ctx = wf_comm_ctx(b.comm);
    b.mesh = wf_mesh_open(b.comm, opts);
    WF_EXPECT(b.mesh, "no mesh: %s", wf_error_message());
    b.tape = wf_tape_new(b.ctx);
    b.rank = wf_mesh_rank(b.mesh, WF_AXIS_CHANNEL);
    b.size = wf_mesh_size(b.mesh, WF_AXIS_CHANNEL);
    return b;
}

static inline fixture fixture_of_channels(const char *device, wf_dtype dtype)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return fixture_open(device, dtype, (wf_mesh_opts){.channel = size});
}

static inline void fixture_close(fixture *b)
{
    wf_tape_free(b->tape);
    wf_mesh_close(b->mesh);
    WF_EXPECT_OK(wf_comm_close(b->comm));
}

static inline double *numbers(int64_t n, uint64_t seed)
{
    test_rng rng = {seed};
    double *value = calloc((size_t)n + 1, sizeof *value);
    for (int64_t i = 0; i < n; i++)
        value[i] = (float)test_uniform(&rng, -1, 1);
    return value;
}

/* The elements of `box` of a row-major array. */
static inline double *part_of(const double *whole, wf_shape shape, wf_box box)
{
    const wf_shape local = wf_box_shape(box);
    const int64_t n = wf_shape_count(local);
    double *part = calloc((size_t)n + 1, sizeof *part);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int d = shape.rank - 1; d >= 0; d--) {
            at += (rest % local.dim[d] + box.lo[d]) * stride;
            rest /= local.dim[d];
            stride *= shape.dim[d];
        }
        part[i] = whole[at];
    }
    return part;
}

static inline wf_layout layout_of(const fixture *b, wf_shape global, held how)
{
    wf_layout layout = {.known = true, .mesh = b->mesh, .global = global, .box = wf_box_of_shape(global)};
    int64_t bounds[65] = {0};
    const int64_t n = global.dim[1];
    for (int r = 0; r <= b->size && how == HELD_SKEWED; r++)
        bounds[r] = r == b->size ? n : r * (r + 1) * n / (b->size * (b->size + 1)) / 2;
    if (how == HELD_SKEWED)
        wf_layout_shard(b->mesh, &layout, WF_AXIS_CHANNEL, 1, bounds);
    if (how == HELD_BLOCKS)
        wf_layout_shard(b->mesh, &layout, WF_AXIS_CHANNEL, 1, wf_mesh_blocks(b->mesh, WF_AXIS_CHANNEL, n));
    return layout;
}

static inline wf_tensor *tensor_of(const fixture *b, const double *whole, wf_layout layout)
{
    double *part = part_of(whole, layout.global, layout.box);
    wf_tensor *t = wf_tensor_new(b->ctx, b->dtype, wf_box_shape(layout.box));
    values_set(t, part);
    WF_EXPECT_OK(wf_tensor_set_layout(t, layout));
    free(part);
    return t;
}

/* `seen` is the part `box` of `should`. */
static inline void expect_part(const fixture *b, const char *what, const char *which, const wf_tensor *seen, wf_box box,
                               const wf_tensor *should, double tolerance)
{
    const wf_shape shape = wf_tensor_shape(should);
    const int64_t n = wf_tensor_count(seen);
    WF_EXPECT(seen && wf_shape_equal(wf_tensor_shape(seen), wf_box_shape(box)), "%s: %s has another shape", what,
              which);
    if (!seen || !wf_shape_equal(wf_tensor_shape(seen), wf_box_shape(box)))
        return;
    double *all = calloc((size_t)wf_shape_count(shape) + 1, sizeof *all), *mine = calloc((size_t)n + 1, sizeof *mine);
    values_get(should, all);
    values_get(seen, mine);
    double *part = part_of(all, shape, box), most = 0, off = 0;
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        most = fmax(most, fabs(all[i]));
    for (int64_t i = 0; i < n; i++)
        off = fabs(mine[i] - part[i]) <= off ? off : isnan(mine[i]) ? INFINITY : fabs(mine[i] - part[i]);
    WF_EXPECT(off <= tolerance * most, "%s %s, %s on rank %d of %d is off by %g of %g", b->device, what, which, b->rank,
              b->size, off, most);
    free(all);
    free(mine);
    free(part);
}

static inline double dot(const wf_tensor *a, const wf_tensor *c)
{
    const int64_t n = wf_tensor_count(a);
    double *x = calloc((size_t)n + 1, sizeof *x), *y = calloc((size_t)n + 1, sizeof *y), sum = 0;
    values_get(a, x);
    values_get(c, y);
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    free(x);
    free(y);
    return sum;
}

static inline double dot_of_all(const fixture *b, const wf_tensor *x, const wf_tensor *y)
{
    const wf_layout layout = wf_tensor_layout(x);
    double sum = dot(x, y);
    if (layout.placement[WF_AXIS_CHANNEL] != WF_SHARDED)
        return sum;
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(b->mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)), &sum, 1, WF_SUM));
    return sum;
}

/* One name: initial values are the same. */
static inline void same_name(wf_layer *mine, wf_layer *serial)
{
    WF_EXPECT(wf_layer_named(mine, "m") && wf_layer_named(serial, "m"), "%s", wf_error_message());
}

static inline void expect_params(const fixture *b, const char *what, wf_layer *serial, wf_layer *mine, bool gradients)
{
    char which[128];
    for (int64_t i = 0; param_of(serial, i); i++) {
        wf_param *p = param_of(mine, i), *q = param_of(serial, i);
        WF_EXPECT(p && wf_shape_equal(p->global, q->shape), "%s: the serial shape of %s is another", what,
                  wf_param_path(q));
        if (!p || (gradients && !q->grad))
            continue;
        snprintf(which, sizeof which, "%s%s", gradients ? "gradient of " : "", wf_param_path(q));
        expect_part(b, what, which, gradients ? wf_param_grad(p) : wf_param_value(p), p->box,
                    gradients ? wf_param_grad(q) : wf_param_value(q), b->tolerance);
    }
}

/* Both models, forward and backward, on the same x and dy. `linear`: without bias and activation, the adjoint test. */
static inline void compare_models(fixture *b, const char *what, wf_layer *serial, wf_layer *mine, wf_shape x_shape,
                                  held how, bool linear)
{
    double *x = numbers(wf_shape_count(x_shape), 3), *dy;
    WF_EXPECT(serial && mine, "%s: no layer: %s", what, wf_error_message());
    if (!serial || !mine)
        return;
    same_name(mine, serial);
    expect_params(b, what, serial, mine, false);
    wf_tensor *whole = tensor_of(b, x, (wf_layout){.global = x_shape, .box = wf_box_of_shape(x_shape)});
    wf_tensor *part = tensor_of(b, x, layout_of(b, x_shape, how));
    wf_var *vx = wf_leaf(b->tape, whole), *vp = wf_leaf(b->tape, part);
    wf_var *vy = wf_apply(serial, vx), *vz = wf_apply(mine, vp);
    WF_EXPECT(vy && vz, "%s on rank %d: no output: %s", what, b->rank, wf_error_message());
    if (vy && vz) {
        wf_tensor *y = wf_keep(vy), *z = wf_keep(vz);
        const wf_layout layout = wf_tensor_layout(z);
        const wf_shape y_shape = wf_tensor_shape(y);
        WF_EXPECT(layout.known && wf_shape_equal(layout.global, y_shape), "%s: the layout of y has another shape",
                  what);
        expect_part(b, what, "y", z, layout.box, y, b->tolerance);
        dy = numbers(wf_shape_count(y_shape), 5);
        wf_tensor *g = tensor_of(b, dy, (wf_layout){.global = y_shape, .box = wf_box_of_shape(y_shape)});
        wf_tensor *h = tensor_of(b, dy, layout);
        WF_EXPECT_OK(wf_backward_from(vy, g));
        WF_EXPECT_OK(wf_backward_from(vz, h));
        expect_part(b, what, "dx", wf_grad(vp), wf_tensor_layout(part).box, wf_grad(vx), b->tolerance);
        expect_params(b, what, serial, mine, true);
        expect_params(b, what, serial, mine, false);
        if (linear) {
            const double forwards = dot_of_all(b, z, h), backwards = dot_of_all(b, part, wf_grad(vp));
            WF_EXPECT(fabs(forwards - backwards) <= 100 * b->tolerance * (1 + fabs(forwards)),
                      "%s: <y, dy> is %.15g and <x, dx> %.15g", what, forwards, backwards);
        }
        wf_tensor_free(y);
        wf_tensor_free(z);
        wf_tensor_free(g);
        wf_tensor_free(h);
        free(dy);
    }
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(b->tape));
    wf_tensor_free(whole);
    wf_tensor_free(part);
    free(x);
}

#endif
