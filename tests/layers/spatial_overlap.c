/* A rank computes its inside before the others send their halos. One rank starts a layer, forward or backward, only
 * when the other one has computed more than half of its outputs in one call of a kernel; if that one waits for halos
 * first, it never has. */
#include "comm/mesh_author.h"
#include "core/context_author.h"
#include "layers/layers.h"
#include "tests/ranks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 64, CHANNELS = 3, PATIENCE_MS = 20000 };

/* --- kernels that tell ---------------------------------------------------------------------------------------------
 */

static const wf_kernels *plain;
static wf_kernels telling;
static char flag[64];  /* a file */
static int64_t enough; /* outputs; 0: nothing is told */

static void tell(const wf_array *outputs)
{
    if (enough > 0 && 2 * wf_array_count(outputs) > enough)
        close(open(flag, O_CREAT | O_WRONLY, 0600));
}

static wf_status conv_forward(wf_ctx *c, const wf_conv_args *args)
{
    tell(args->y);
    return plain->conv_forward(c, args);
}

static wf_status conv_backward_data(wf_ctx *c, const wf_conv_args *args)
{
    tell(args->x);
    return plain->conv_backward_data(c, args);
}

static wf_status pool_forward(wf_ctx *c, const wf_pool_args *args)
{
    tell(args->y);
    return plain->pool_forward(c, args);
}

static wf_status pool_backward(wf_ctx *c, const wf_pool_args *args)
{
    tell(args->y);
    return plain->pool_backward(c, args);
}

static wf_status resample_forward(wf_ctx *c, const wf_resample_args *args)
{
    tell(args->y);
    return plain->resample_forward(c, args);
}

static wf_status resample_backward(wf_ctx *c, const wf_resample_args *args)
{
    tell(args->y);
    return plain->resample_backward(c, args);
}

static void hook(void)
{
    plain = ctx->k;
    telling = *plain;
    telling.conv_forward = conv_forward;
    telling.conv_backward_data = conv_backward_data;
    telling.pool_forward = pool_forward;
    telling.pool_backward = pool_backward;
    telling.resample_forward = resample_forward;
    telling.resample_backward = resample_backward;
    ctx->k = &telling;
}

/* --- who waits for whom --------------------------------------------------------------------------------------------
 */

static int late; /* the rank that waits */

static bool told(void)
{
    struct stat s;
    for (int ms = 0; ms < PATIENCE_MS && test_failures() == 0; ms++) {
        if (stat(flag, &s) == 0)
            return true;
        test_sleep_ms(1);
    }
    return false;
}

static void before(const char *name, const char *direction, int64_t outputs)
{
    WF_EXPECT_OK(wf_barrier(comm));
    enough = late < 0 || rank == late ? 0 : outputs;
    if (rank == late)
        WF_EXPECT(told(), "%s %s: nothing was computed before halos came", name, direction);
}

static void after(void)
{
    enough = 0;
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == late)
        unlink(flag);
}

/* --- layers --------------------------------------------------------------------------------------------------------
 */

static wf_tensor *noise(wf_tape *tape, wf_shape shape, wf_layout layout)
{
    wf_tensor *t = wf_keep(wf_randn(tape, shape, NULL));
    WF_EXPECT_OK(wf_tensor_set_layout(t, layout));
    return t;
}

/* Takes the layer. `windows`: backward's kernel makes inputs from outputs, else it spreads outputs over inputs. */
static void check(const char *name, const wf_mesh *mesh, wf_axis axis, wf_layer *layer, bool windows)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(1, CHANNELS, LENGTH, LENGTH), &layout));
    wf_tensor *x = noise(tape, wf_box_shape(layout.box), layout), *dy = NULL;
    const wf_comm *cut = wf_mesh_comm(mesh, WF_AXIS_BIT(axis));
    for (late = -1; late < size; late++) { /* the first time, what moves messages is made */
        uint64_t sent[3] = {wf_comm_traffic(cut).messages};
        before(name, "forward", dy ? wf_tensor_count(dy) : 0);
        wf_var *y = wf_apply(layer, wf_leaf(tape, x));
        WF_EXPECT(y, "%s: %s", name, wf_error_trail());
        after();
        sent[1] = wf_comm_traffic(cut).messages;
        if (!dy)
            dy = noise(tape, wf_var_shape(y), wf_tensor_layout(wf_value(y)));
        before(name, "backward", wf_tensor_count(windows ? x : dy));
        WF_EXPECT_OK(wf_backward_from(y, dy));
        after();
        sent[2] = wf_comm_traffic(cut).messages;
        int64_t messages[] = {(int64_t)(sent[1] - sent[0]), (int64_t)(sent[2] - sent[1])};
        WF_EXPECT_OK(wf_allreduce_i64(comm, messages, 2, WF_SUM));
        WF_EXPECT(messages[0] > 0 && messages[1] > 0, "%s sends %lld and %lld messages", name, (long long)messages[0],
                  (long long)messages[1]);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor_free(dy);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(layer);
}

static void along(wf_axis axis)
{
    const wf_conv_opts conv = {.in = CHANNELS, .out = CHANNELS, .kernel = 3, .pad = 1};
    const wf_conv_opts up = {.in = CHANNELS, .out = CHANNELS, .kernel = 4, .stride = 2, .pad = 1};
    const wf_pool_opts pool = {.kernel = 3, .stride = 2, .pad = 1};
    const wf_upsample_opts linear = {.mode = WF_UPSAMPLE_LINEAR};
    wf_mesh *mesh =
        wf_mesh_open(comm, axis == WF_AXIS_HEIGHT ? (wf_mesh_opts){.height = size} : (wf_mesh_opts){.width = size});
    check("convolution", mesh, axis, wf_spatial_conv2d(mesh, conv), true);
    check("transposed convolution", mesh, axis, wf_spatial_conv_transpose2d(mesh, up), true);
    check("maximum", mesh, axis, wf_spatial_max_pool2d(mesh, pool), false);
    check("average", mesh, axis, wf_spatial_avg_pool2d(mesh, pool), false);
    check("upsampling", mesh, axis, wf_spatial_upsample2d(mesh, linear), false);
    wf_mesh_close(mesh);
}

static void rows(void)
{
    along(WF_AXIS_HEIGHT);
}

static void columns(void)
{
    along(WF_AXIS_WIDTH);
}

int main(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    int64_t number = rank == 0 ? (int64_t)getpid() : 0;
    WF_EXPECT_OK(wf_allreduce_i64(comm, &number, 1, WF_MAX));
    snprintf(flag, sizeof flag, "/tmp/weft-overlap-%lld", (long long)number);
    const wf_kernels *own = ctx->k;
    hook();
    const int failed = test_main(argc, argv, (test_case[]){{"rows", rows}, {"columns", columns}, {0}});
    ctx->k = own;
    return ranks_close(failed);
}
