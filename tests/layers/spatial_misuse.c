/* Spatially parallel layers on inputs that they cannot take: an error on all ranks that says what to do. The
 * communicator is dead after it. */
#include "comm/mesh_author.h"
#include "layers/layers.h"
#include "tests/test.h"
#include "tests/world.h"

#include <string.h>

static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
} run;

static void open_run(void)
{
    run.comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    WF_EXPECT(run.comm, "%s", wf_error_trail());
    run.ctx = wf_comm_ctx(run.comm);
    run.tape = wf_tape_new(run.ctx);
}

typedef enum misuse {
    LOCAL,
    NO_CUTS,
    CHANNELS,
    REPLICATED,
    PARTIAL,
    OTHER_MESH,
    NO_OUTPUT,
    WRONG_CHANNELS,
    MISUSES
} misuse;

static wf_layout wrong_layout(misuse how, const wf_mesh *mesh, wf_shape global)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &layout));
    if (how == LOCAL)
        return wf_layout_none();
    for (int a = 0; a < WF_AXES; a++) {
        const bool spatial = a >= WF_AXIS_DEPTH && a <= WF_AXIS_WIDTH && layout.placement[a] == WF_SHARDED;
        if (how == NO_CUTS)
            layout.bounds[a] = NULL;
        if ((how == REPLICATED || how == PARTIAL) && spatial) {
            layout.placement[a] = how == PARTIAL ? WF_PARTIAL : WF_REPLICATED;
            layout.box = wf_box_of_shape(global);
        }
        if (how == CHANNELS && spatial)
            wf_layout_shard(mesh, &layout, (wf_axis)a, 1, wf_mesh_blocks(mesh, (wf_axis)a, global.dim[1]));
    }
    if (how == CHANNELS) {
        layout.box.lo[2] = layout.box.lo[3] = 0;
        layout.box.hi[2] = layout.box.hi[3] = global.dim[2];
    }
    return layout;
}

static void misuse_one(misuse how)
{
    static const char *const says[MISUSES] = {
        "wf_shard",        "shard bounds", "whole channels", "sharded over height too",
        "wf_redistribute", "other mesh",   "has no output",  "[N,5]"};
    const wf_shape global = WF_SHAPE(2, how == WRONG_CHANNELS ? 4 : 5, 6, 6);
    open_run();
    const wf_mesh_opts grid = {.height = wf_comm_size(run.comm)};
    wf_mesh *mesh = wf_mesh_open(run.comm, grid), *other = wf_mesh_open(run.comm, grid);
    WF_EXPECT_OK(wf_barrier(run.comm)); /* else the failure below may end a rank that still opens its mesh */
    wf_layer *layer =
        wf_spatial_conv2d(how == OTHER_MESH ? other : mesh,
                          (wf_conv_opts){.in = 5, .out = 2, .kernel = how == NO_OUTPUT ? 9 : 3, .pad = 1});
    const wf_layout layout = wrong_layout(how, mesh, global);
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, layout.known ? wf_box_shape(layout.box) : global);
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    const wf_var *y = wf_apply(layer, wf_input(run.tape, x));
    WF_EXPECT(!y && strstr(wf_error_message(), says[how]), "misuse %d: \"%s\" says nothing of \"%s\"", (int)how,
              wf_error_message(), says[how]);
    wf_error_clear();
    wf_layer_free(layer);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
    wf_mesh_close(other);
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
}

static void misuses(void)
{
    open_run();
    const bool alone = wf_comm_size(run.comm) == 1;
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
    for (int how = 0; how < MISUSES; how++)
        if (!alone || how == LOCAL || how >= OTHER_MESH)
            misuse_one((misuse)how);
}

static void constructors(void)
{
    open_run();
    wf_mesh *mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.height = wf_comm_size(run.comm)});
    WF_EXPECT(!wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 3, .out = 4}), "no kernel");
    WF_EXPECT(strstr(wf_error_message(), "spatial_conv2d"), "\"%s\" does not name the layer", wf_error_message());
    WF_EXPECT(!wf_spatial_max_pool2d(mesh, (wf_pool_opts){.kernel = 2, .pad = 2}), "pads wider than half the window");
    WF_EXPECT(!wf_spatial_upsample2d(mesh, (wf_upsample_opts){.scale = -2}), "a negative scale");
    WF_EXPECT(!wf_spatial_conv2d(NULL, (wf_conv_opts){.in = 3, .out = 4, .kernel = 3}), "no mesh");
    wf_error_clear();
    wf_mesh_close(mesh);
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"misuses", misuses}, {"constructors", constructors}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
