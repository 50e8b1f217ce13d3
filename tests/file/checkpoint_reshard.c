/* What one partition saved, any other loads: fewer ranks, layers sharded by channels or not, optimizer state sharded or
 * not. All tensors are the same, and so are the next losses. */
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "optim/multi_node.h"
#include "tests/file/batch.h"
#include "tests/file/same_files.h"

#include <math.h>

enum { SAMPLES = 12, SIDE = 6, CLASSES = 5, BEFORE = 6, AFTER = 5 };

typedef struct form {
    const char *name;
    int ranks;
    bool sharded_state;
    wf_mesh_opts mesh; /* data 0: what remains */
} form;

static bool within; /* gradients are accumulated for the step after the save */

typedef struct trained {
    wf_comm *comm;
    wf_mesh *mesh;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_checkpoint *saves;
    wf_tensor *x, *labels;
} trained;

static wf_var *forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *h = wf_tanh(wf_apply(wf_layer_child(self, "conv"), x));
    return wf_apply(wf_layer_child(self, "fc"), wf_flatten(h));
}

static trained open_form(const form *f, wf_comm *over, const char *name)
{
    trained t = {.comm = over, .mesh = wf_mesh_open(over, f->mesh), .tape = wf_tape_new(ctx)};
    const wf_conv_opts conv = {.in = 1, .out = 6, .kernel = 3, .replicate = true};
    const wf_linear_opts fc = {.in = 6 * 4 * 4, .out = CLASSES, .replicate = true};
    t.model = wf_layer_named(wf_module(ctx, forward, NULL), "net");
    wf_module_add(t.model, "conv", wf_channel_conv2d(t.mesh, conv));
    wf_module_add(t.model, "fc", wf_channel_linear(t.mesh, fc));
    t.optim = wf_mesh_multi_node(t.mesh, wf_sgd(t.model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9}),
                                 (wf_multi_node_opts){.shard_optimizer = f->sharded_state, .bucket_bytes = 600});
    t.saves = wf_checkpoint_open(over, in_folder(name), (wf_checkpoint_opts){.mesh = t.mesh});
    WF_EXPECT(t.optim && t.saves, "%s: %s", f->name, wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(t.saves, "model", t.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(t.saves, "optim", t.optim));
    WF_EXPECT_OK(wf_checkpoint_add(t.saves, "tape", wf_tape_visit, t.tape));
    batch_open(t.mesh, WF_SHAPE(SAMPLES, 1, SIDE, SIDE), CLASSES, &t.x, &t.labels);
    return t;
}

static void close_form(trained *t)
{
    WF_EXPECT_OK(wf_checkpoint_close(t->saves));
    wf_tensor_free(t->x);
    wf_tensor_free(t->labels);
    wf_tape_free(t->tape);
    wf_optim_free(t->optim);
    wf_layer_free(t->model);
    wf_mesh_close(t->mesh);
}

static wf_var *loss_of(trained *t, double brightness)
{
    wf_var *x = wf_scale(wf_input(t->tape, t->x), brightness);
    return wf_softmax_cross_entropy(wf_apply(t->model, x), t->labels, (wf_label_opts){0});
}

/* Half of the next step, with other samples than the rest of it. */
static void accumulate(trained *t)
{
    WF_EXPECT_OK(wf_optim_accumulate(t->optim, loss_of(t, -3)));
    WF_EXPECT_OK(wf_tape_reset(t->tape));
}

static double step(trained *t)
{
    wf_var *loss = loss_of(t, 1);
    WF_EXPECT_OK(wf_optim_step(t->optim, loss));
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_tape_reset(t->tape));
    return value;
}

/* --- From one to the other ---------------------------------------------------------------------------------------- */

static void save_as(const form *from, const char *name, double after[AFTER])
{
    wf_comm *over = wf_comm_split(comm, rank < from->ranks ? 0 : -1, rank);
    if (over) {
        trained t = open_form(from, over, name);
        for (int i = 0; i < BEFORE; i++)
            step(&t);
        if (within)
            accumulate(&t);
        WF_EXPECT_OK(wf_checkpoint_save(t.saves, BEFORE));
        for (int i = 0; i < AFTER; i++)
            after[i] = step(&t);
        close_form(&t);
        WF_EXPECT_OK(wf_comm_close(over));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static void load_as(const form *from, const form *to, const char *name, const double after[AFTER])
{
    char what[128], one[256], other[256], again[128];
    wf_comm *over = wf_comm_split(comm, rank < to->ranks ? 0 : -1, rank);
    snprintf(what, sizeof what, "%s to %s%s", from->name, to->name, within ? ", within a step" : "");
    snprintf(again, sizeof again, "%s-%s", name, to->name);
    snprintf(one, sizeof one, "%s/%s/ckpt-00000000.h5", folder, name);
    snprintf(other, sizeof other, "%s/%s/ckpt-00000000.h5", folder, again);
    if (over) {
        int64_t at = -1;
        trained t = open_form(to, over, name), copy;
        step(&t);
        WF_EXPECT_OK(wf_checkpoint_load_latest(t.saves, &at));
        WF_EXPECT(at == BEFORE, "%s: step %lld", what, (long long)at);
        copy = t;
        copy.saves = wf_checkpoint_open(over, in_folder(again), (wf_checkpoint_opts){0});
        WF_EXPECT_OK(wf_checkpoint_add_model(copy.saves, "model", t.model));
        WF_EXPECT_OK(wf_checkpoint_add_optim(copy.saves, "optim", t.optim));
        WF_EXPECT_OK(wf_checkpoint_add(copy.saves, "tape", wf_tape_visit, t.tape));
        WF_EXPECT_OK(wf_checkpoint_save(copy.saves, BEFORE));
        WF_EXPECT_OK(wf_checkpoint_close(copy.saves));
        if (rank == 0)
            expect_same(what, one, other, within);
        for (int i = 0; i < AFTER; i++) {
            const double loss = step(&t);
            WF_EXPECT(fabs(loss - after[i]) <= 1e-6 * fabs(after[i]), "%s: loss %d is %.12g, was %.12g", what, i, loss,
                      after[i]);
        }
        close_form(&t);
        WF_EXPECT_OK(wf_comm_close(over));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static const form all[] = {
    {"one", 1, false, {.data = 1}},
    {"data2", 2, false, {.data = 2}},
    {"data3", 3, false, {.data = 3}},
    {"data4", 4, false, {.data = 4}},
    {"data8", 8, false, {.data = 8}},
    {"sharded2", 2, true, {.data = 2}},
    {"sharded4", 4, true, {.data = 4}},
    {"channel2", 2, false, {.data = 1, .channel = 2}},
    {"channel3", 3, true, {.data = 1, .channel = 3}},
    {"channel4", 4, false, {.data = 1, .channel = 4}},
    {"mixed4", 4, true, {.data = 2, .channel = 2}},
    {"height2width2", 4, false, {.data = 1, .height = 2, .width = 2}},
};
enum { FORMS = sizeof all / sizeof *all };

/* Loads every form by every `stride`th other. */
static void load_others(int stride)
{
    for (int i = 0; i < FORMS; i++) {
        double after[AFTER] = {0};
        char name[64];
        if (all[i].ranks > size)
            continue;
        snprintf(name, sizeof name, "from-%s-%d", all[i].name, within);
        save_as(&all[i], name, after);
        WF_EXPECT_OK(wf_bcast_bytes(comm, after, sizeof after, 0));
        for (int next = 1; next < FORMS; next += stride)
            if (all[(i + next) % FORMS].ranks <= size)
                load_as(&all[i], &all[(i + next) % FORMS], name, after);
    }
}

static void any_partition_loads_any_other(void)
{
    within = false;
    load_others(1);
}

static void accumulated_gradients_too(void)
{
    within = true;
    load_others(6);
}

int main(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    WF_EXPECT_OK(wf_ctx_set_dtype(ctx, WF_F64));
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"any_partition_loads_any_other", any_partition_loads_any_other},
                                               {"accumulated_gradients_too", accumulated_gradients_too},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}
