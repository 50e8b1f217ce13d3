/* Pipelines of parallel layers: stages together with data, channels, height, synchronised normalisation and sharded
 * optimizers compute what the serial program computes on the same chunks. */
#include "tests/layers/pipeline_fixture.h"

enum { CHANNELS = 3, SIDE = 8, PIXELS = CHANNELS * SIDE * SIDE, RUNS = 3 };

typedef struct grid {
    wf_mesh_opts mesh;
    const char *text;
} grid;

static const grid grids[] = {{{.stage = 2}, "stage 2"},
                             {{.stage = 3}, "stage 3"},
                             {{.stage = 2, .data = 2}, "stage 2, data 2"},
                             {{.stage = 2, .channel = 2}, "stage 2, channel 2"},
                             {{.stage = 2, .height = 2}, "stage 2, height 2"},
                             {{.stage = 3, .data = 2}, "stage 3, data 2"},
                             {{.stage = 3, .channel = 2}, "stage 3, channel 2"},
                             {{.stage = 2, .height = 3}, "stage 2, height 3"},
                             {{.stage = 2, .data = 2, .channel = 2}, "stage 2, data 2, channel 2"},
                             {{.stage = 2, .data = 2, .height = 2}, "stage 2, data 2, height 2"},
                             {{.stage = 2, .channel = 2, .height = 2}, "stage 2, channel 2, height 2"},
                             {{.stage = 4, .height = 2}, "stage 4, height 2"},
                             {{.stage = 2, .data = 4}, "stage 2, data 4"}};

/* What is drawn for a run: samples of each place along data, chunks, and how the pipeline and the optimizer work. */
typedef struct plan {
    const grid *grid;
    int data, samples[4], chunks;
    bool shard_optimizer, clip;
    wf_pipeline_opts pipeline;
} plan;

static wf_layer *images_model(void)
{
    const wf_batchnorm_opts norm4 = {.channels = 4, .eps = 0.5, .act = WF_ACT_RELU},
                            norm6 = {.channels = 6, .eps = 0.5};
    const int64_t features = 4 * (SIDE / 2 - 2) * (SIDE / 2 - 2);
    wf_layer *head = wf_linear(on.ctx, (wf_linear_opts){.in = features, .out = CLASSES, .replicate = true});
    return wf_layer_named(
        wf_sequential(on.ctx,
                      WF_LAYERS(wf_conv2d(on.ctx, (wf_conv_opts){.in = CHANNELS, .out = 4, .kernel = 3, .pad = 1}),
                                wf_batchnorm(on.ctx, norm4),
                                wf_avg_pool2d(on.ctx, (wf_pool_opts){.kernel = 3, .stride = 2, .pad = 1}),
                                wf_conv2d(on.ctx, (wf_conv_opts){.in = 4, .out = 6, .kernel = 3, .pad = 1}),
                                wf_batchnorm(on.ctx, norm6),
                                wf_conv2d(on.ctx, (wf_conv_opts){.in = 6, .out = 4, .kernel = 3, .act = WF_ACT_RELU}),
                                wf_lambda(on.ctx, wf_flatten), head)),
        "net");
}

/* --- data ------------------------------------------------------------------------------------------------------------
 */

typedef struct images {
    int n;
    double x[4 * MOST * PIXELS];
    int64_t label[4 * MOST];
} images;

/* Samples of the list, one behind the other. */
static wf_tensor *pixels_of(const images *b, int n, const int *index)
{
    double *x = calloc((size_t)n * PIXELS + 1, sizeof *x);
    for (int i = 0; i < n; i++)
        memcpy(x + (int64_t)i * PIXELS, b->x + (int64_t)index[i] * PIXELS, PIXELS * sizeof *x);
    wf_tensor *t = wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(n, CHANNELS, SIDE, SIDE), x);
    free(x);
    return t;
}

static wf_tensor *marks_of(const images *b, int n, const int *index)
{
    int64_t label[4 * MOST];
    for (int i = 0; i < n; i++)
        label[i] = b->label[index[i]];
    return wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(n), label);
}

/* --- steps -----------------------------------------------------------------------------------------------------------
 */

/* Chunk c of the mesh is chunk c of every place along data, whose statistics are synchronised. */
static double expected_step(wf_optim *optim, wf_tape *tape, const images *b, const plan *p)
{
    double sum = 0;
    for (int c = 0; c < p->chunks; c++) {
        int index[4 * MOST], n = 0, first = 0;
        for (int r = 0; r < p->data; first += p->samples[r++]) {
            int64_t lo, hi;
            wf_block(p->samples[r], p->chunks, c, &lo, &hi);
            for (int64_t i = lo; i < hi; i++)
                index[n++] = first + (int)i;
        }
        wf_tensor *x = pixels_of(b, n, index), *labels = marks_of(b, n, index);
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(wf_optim_model(optim), wf_input(tape, x)), labels);
        WF_EXPECT(loss, "%s", wf_error_trail());
        const double own = wf_item(loss);
        sum += n > 0 ? n * own : 0;
        WF_EXPECT_OK(c == p->chunks - 1 ? wf_optim_step(optim, loss) : wf_optim_accumulate(optim, loss));
        wf_tensor_free(x);
        wf_tensor_free(labels);
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    return sum / b->n;
}

static double mesh_step(wf_pipeline *pipe, wf_optim *optim, wf_tape *tape, const images *b, const plan *p)
{
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    int lo = 0, index[4 * MOST];
    for (int r = 0; r < place; r++)
        lo += p->samples[r];
    for (int i = 0; i < p->samples[place]; i++)
        index[i] = lo + i;
    const int n = p->samples[place];
    wf_tensor *x = pixels_of(b, n, index), *labels = marks_of(b, n, index);
    WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(on.mesh, WF_SHAPE(b->n, CHANNELS, SIDE, SIDE), lo, lo + n)));
    WF_EXPECT_OK(wf_tensor_set_layout(labels, wf_layout_batch(on.mesh, WF_SHAPE(b->n), lo, lo + n)));
    wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double value = wf_item(loss);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return value;
}

static void compare(const plan *p, int step, wf_layer *model, wf_layer *serial)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        static double a[4096], b[4096];
        wf_param *other = wf_layer_param(serial, wf_param_path(params[i]) + strlen("net/"));
        wf_tensor *view = other ? wf_tensor_view(wf_param_value(other), params[i]->box) : NULL;
        WF_EXPECT(view, "%s", wf_error_message());
        if (!view)
            return;
        values_get(wf_param_value(params[i]), a);
        values_get(view, b);
        const double distance = test_distance(wf_tensor_count(view), a, b);
        WF_EXPECT(distance <= 1e-12, "%s, %d chunks, schedule %d, recompute %d, sharded %d, step %d: %s is off by %g",
                  p->grid->text, p->chunks, (int)p->pipeline.schedule, (int)p->pipeline.recompute, p->shard_optimizer,
                  step, wf_param_path(params[i]), distance);
        wf_tensor_free(view);
    }
}

/* --- runs ------------------------------------------------------------------------------------------------------------
 */

static void run_plan(const plan *p, test_rng *rng)
{
    static images b;
    unsigned how = WF_PARALLEL_SYNC_BN;
    how |= p->grid->mesh.channel > 1 ? WF_PARALLEL_CHANNEL : 0;
    how |= p->grid->mesh.height > 1 ? WF_PARALLEL_SPATIAL : 0;
    wf_layer *serial = images_model(), *parallel = images_model();
    wf_optim *local = momentum_new(serial, 0.05, p->clip ? 0.05 : 0);
    WF_EXPECT_OK(wf_parallelize(parallel, on.mesh, how));
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, parallel, p->pipeline);
    WF_EXPECT(pipe, "%s: %s", p->grid->text, wf_error_trail());
    wf_optim *optim = wf_mesh_multi_node_with(on.mesh, momentum_new(wf_pipeline_model(pipe), 0.05, p->clip ? 0.05 : 0),
                                              (wf_multi_node_opts){.shard_optimizer = p->shard_optimizer});
    WF_EXPECT(optim, "%s: %s", p->grid->text, wf_error_trail());
    wf_tape *tape = wf_tape_new(on.ctx), *own = wf_tape_new(on.ctx);
    for (int step = 0; step < RUNS && optim; step++) {
        b.n = 0;
        for (int r = 0; r < p->data; r++)
            b.n += p->samples[r];
        for (int i = 0; i < b.n * PIXELS; i++)
            b.x[i] = test_uniform(rng, -1, 1);
        for (int i = 0; i < b.n; i++)
            b.label[i] = test_int(rng, 0, CLASSES - 1);
        const double expected = expected_step(local, own, &b, p), loss = mesh_step(pipe, optim, tape, &b, p);
        WF_EXPECT(test_distance(1, &loss, &expected) <= 1e-12, "%s, step %d: a loss of %.17g, not %.17g", p->grid->text,
                  step, loss, expected);
        compare(p, step, wf_pipeline_model(pipe), serial);
    }
    wf_tape_free(tape);
    wf_tape_free(own);
    wf_optim_free(optim);
    wf_optim_free(local);
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
}

static int ranks_of(const wf_mesh_opts *m)
{
    return m->stage * (m->data ? m->data : 1) * (m->channel ? m->channel : 1) * (m->height ? m->height : 1);
}

static void meshes(void)
{
    test_rng rng = {29};
    const int all = test_samples(10);
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        on.comm = test_comm_open("flat", (wf_ctx_opts){.device = "ref", .dtype = WF_F64, .threads = 1, .seed = 3});
        on.ctx = wf_comm_ctx(on.comm);
        const bool here = wf_comm_size(on.comm) == ranks_of(&grids[g].mesh);
        on.mesh = here ? wf_mesh_open(on.comm, grids[g].mesh) : NULL;
        WF_EXPECT(on.mesh || !here, "%s: %s", grids[g].text, wf_error_trail());
        for (int i = 0; i < all && on.mesh; i++) {
            plan p = {.grid = &grids[g], .data = wf_mesh_size(on.mesh, WF_AXIS_DATA)};
            p.chunks = (int)test_int(&rng, 1, 4);
            for (int r = 0; r < p.data; r++)
                p.samples[r] = (int)test_int(&rng, r ? 0 : p.chunks, MOST);
            p.shard_optimizer = i % 2;
            p.clip = i % 3 == 0;
            p.pipeline = (wf_pipeline_opts){.loss = wf_softmax_cross_entropy,
                                            .chunks = p.chunks,
                                            .schedule = (wf_pipeline_kind)test_int(&rng, 0, 2),
                                            .recompute = (wf_pipeline_recompute)test_int(&rng, 0, 2)};
            run_plan(&p, &rng);
        }
        wf_mesh_close(on.mesh);
        WF_EXPECT_OK(wf_comm_close(on.comm));
    }
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"meshes", meshes}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
