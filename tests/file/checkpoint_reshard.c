/* What one partition saved, any other loads: fewer ranks, layers sharded by channels or not, optimizer state sharded or
 * not. All tensors are the same, and so are the next losses. */
#include "comm/manifest_author.h"
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "optim/multi_node.h"
#include "tests/file/folder.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

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

/* This rank's samples of the batch, which is the same in every step. */
static void make_batch(trained *t)
{
    enum { PIXELS = SIDE * SIDE };
    double host[SAMPLES * PIXELS];
    int64_t labels[SAMPLES], lo, hi;
    wf_block(SAMPLES, wf_mesh_size(t->mesh, WF_AXIS_DATA), wf_mesh_rank(t->mesh, WF_AXIS_DATA), &lo, &hi);
    for (int64_t i = 0; i < (hi - lo) * PIXELS; i++)
        host[i] = sin(0.7 * (double)(lo * PIXELS + i)) + 0.2 * cos(0.11 * (double)(lo * PIXELS + i));
    for (int64_t i = lo; i < hi; i++)
        labels[i - lo] = (i * i + 1) % CLASSES;
    t->x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(hi - lo, 1, SIDE, SIDE), host);
    t->labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(hi - lo), labels);
    const wf_layout_opts dim = {.dim = {[WF_AXIS_DATA] = WF_DIM(0)}};
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout(t->mesh, WF_SHAPE(SAMPLES, 1, SIDE, SIDE), dim, &layout));
    WF_EXPECT_OK(wf_tensor_set_layout(t->x, layout));
    WF_EXPECT_OK(wf_mesh_layout(t->mesh, WF_SHAPE(SAMPLES), dim, &layout));
    WF_EXPECT_OK(wf_tensor_set_layout(t->labels, layout));
}

static trained open_form(const form *f, wf_comm *over, const char *name)
{
    trained t = {.comm = over, .mesh = wf_mesh_open(over, f->mesh), .tape = wf_tape_new(ctx)};
    const wf_conv_opts conv = {.in = 1, .out = 6, .kernel = 3, .replicate = true};
    const wf_linear_opts fc = {.in = 6 * 4 * 4, .out = CLASSES, .replicate = true};
    t.model = wf_layer_named(wf_module(ctx, forward, NULL), "net");
    wf_module_add(t.model, "conv", wf_channel_conv2d(t.mesh, conv));
    wf_module_add(t.model, "fc", wf_channel_linear(t.mesh, fc));
    t.optim = wf_mesh_multi_node_with(t.mesh, wf_sgd(t.model, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9}),
                                      (wf_multi_node_opts){.shard_optimizer = f->sharded_state, .bucket_bytes = 600});
    t.saves = wf_checkpoint_open(over, in_folder(name), (wf_checkpoint_opts){.mesh = t.mesh});
    WF_EXPECT(t.optim && t.saves, "%s: %s", f->name, wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(t.saves, "model", t.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(t.saves, "optim", t.optim));
    WF_EXPECT_OK(wf_checkpoint_add(t.saves, "tape", wf_tape_visit, t.tape));
    make_batch(&t);
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
    return wf_softmax_cross_entropy(wf_apply(t->model, x), t->labels);
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

/* --- Two files are the same --------------------------------------------------------------------------------------- */

static wf_manifest_reader open_file(const char *path, wf_manifest *m)
{
    wf_manifest_reader reader = {.file = open(path, O_RDONLY), .path = path, .manifest = m, .block = -1};
    reader.data = malloc((size_t)WF_FILE_BLOCK);
    WF_EXPECT_OK(wf_manifest_read(reader.file, path, m));
    return reader;
}

static void close_file(wf_manifest_reader *reader, wf_manifest *m)
{
    close(reader->file);
    free(reader->data);
    wf_manifest_free(m);
}

static void expect_same(const char *what, const char *one, const char *other)
{
    wf_manifest m[2];
    wf_manifest_reader reader[2] = {open_file(one, &m[0]), open_file(other, &m[1])};
    int64_t compared = 0;
    for (int64_t i = 0; i < m[0].n; i++) {
        const wf_manifest_entry *a = &m[0].entry[i], *b = wf_manifest_find(&m[1], a->name);
        const bool partial = strncmp(a->name, "ranks/", 6) == 0 || strstr(a->name, "/accumulated/");
        if (strncmp(a->name, "weft/", 5) == 0 || (within && partial)) /* what each rank has */
            continue;
        const size_t bytes = (size_t)wf_shape_count(a->shape) * wf_dtype_size(a->dtype);
        unsigned char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
        WF_EXPECT(b && wf_shape_equal(a->shape, b->shape) && a->dtype == b->dtype, "%s: %s is another", what, a->name);
        WF_EXPECT_OK(wf_manifest_read_box(&reader[0], a, wf_box_of_shape(a->shape), x));
        if (b)
            WF_EXPECT_OK(wf_manifest_read_box(&reader[1], b, wf_box_of_shape(b->shape), y));
        WF_EXPECT(b && memcmp(x, y, bytes) == 0, "%s: the elements of %s are others", what, a->name);
        free(x);
        free(y);
        compared++;
    }
    WF_EXPECT(compared > 8 && (within || m[0].n == m[1].n), "%s: %lld data sets were compared", what,
              (long long)compared);
    close_file(&reader[0], &m[0]);
    close_file(&reader[1], &m[1]);
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
            expect_same(what, one, other);
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
