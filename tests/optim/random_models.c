/* Random models on random meshes: steps of SGD on the ranks are those of one rank, in f64 on `ref`. Layers, options,
 * meshes, how the model is parallel, how samples lie on the ranks, names, accumulation, options of the optimizer,
 * layers that are applied twice and layers that join later are all drawn from the model's number.
 *
 *     random_models FIRST COUNT          models FIRST to FIRST + COUNT - 1, shared by the counts of ranks
 */
#include "core/param_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, MOST_LAYERS = 6, MOST = 1 << 16, TEXT = 1024, KINDS = 9 };

typedef enum kind { CONV, TRANSPOSED, NORM, MAX_POOL, AVG_POOL, UPSAMPLE, FUNCTION, TWICE, DROPOUT } kind;

typedef struct part {
    kind kind;
    wf_conv_opts conv;
    wf_pool_opts pool;
    wf_upsample_opts upsample;
    wf_batchnorm_opts norm;
    int function;
} part;

typedef struct plan {
    uint64_t number;
    wf_shape image; /* of the global batch */
    int n, joins;   /* joins: the layer that comes after the first step; none: n */
    part part[MOST_LAYERS];
    bool named, accumulates, head;
    int64_t classes;
    wf_mesh_opts mesh;
    unsigned how;
    wf_multi_node_opts opts;
    char text[TEXT];
} plan;

/* --- a plan ------------------------------------------------------------------------------------------------------- */

static void note(plan *p, const char *text, int64_t a, int64_t b, int64_t c)
{
    const size_t used = strlen(p->text);
    char numbers[64] = "";
    if (a >= 0)
        snprintf(numbers, sizeof numbers, " %lld,%lld,%lld", (long long)a, (long long)b, (long long)c);
    snprintf(p->text + used, TEXT - used, " | %s%s", text, numbers);
}

static bool one_in(test_rng *rng, int n)
{
    return test_int(rng, 1, n) == 1;
}

static int64_t channels(const plan *p, test_rng *rng)
{
    const int64_t least = p->mesh.channel > 1 ? p->mesh.channel : 1;
    return test_int(rng, least, least + 4);
}

/* Outputs of a window, 0 or less where there are none. */
static int64_t outputs(int64_t length, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation)
{
    const int64_t room = length + 2 * pad - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

static bool draw_conv(plan *p, part *l, test_rng *rng, wf_shape *s)
{
    wf_conv_opts *o = &l->conv;
    *o = (wf_conv_opts){.in = s->dim[1],
                        .out = channels(p, rng),
                        .kernel = test_int(rng, 1, 3),
                        .stride = test_int(rng, 1, 2),
                        .pad = test_int(rng, 0, 1),
                        .dilation = test_int(rng, 1, 2),
                        .no_bias = one_in(rng, 4),
                        .act = one_in(rng, 2)   ? WF_ACT_NONE
                               : one_in(rng, 2) ? WF_ACT_RELU
                                                : WF_ACT_LEAKY_RELU};
    if (l->kind == CONV && one_in(rng, 4) && p->mesh.channel < 2)
        o->groups = o->out = o->in;
    note(p, l->kind == CONV ? "conv" : "transposed", o->kernel, o->stride, o->dilation);
    for (int d = 2; d < 4; d++)
        s->dim[d] = l->kind == CONV ? outputs(s->dim[d], o->kernel, o->stride, o->pad, o->dilation)
                                    : (s->dim[d] - 1) * o->stride - 2 * o->pad + o->dilation * (o->kernel - 1) + 1;
    s->dim[1] = o->out;
    return s->dim[2] > 0 && s->dim[3] > 0 && s->dim[2] < 24 && s->dim[3] < 24;
}

static bool draw_part(plan *p, part *l, test_rng *rng, wf_shape *s)
{
    l->kind = (kind)test_int(rng, 0, KINDS - 1);
    if (l->kind == CONV || l->kind == TRANSPOSED)
        return draw_conv(p, l, rng, s);
    if (l->kind == TWICE) {
        l->conv = (wf_conv_opts){.in = s->dim[1], .out = s->dim[1], .kernel = 3, .pad = 1, .act = WF_ACT_LEAKY_RELU};
        note(p, "twice", -1, 0, 0);
    } else if (l->kind == NORM) {
        l->norm = (wf_batchnorm_opts){.channels = s->dim[1], .act = one_in(rng, 2) ? WF_ACT_RELU : WF_ACT_NONE};
        note(p, "norm", -1, 0, 0);
    } else if (l->kind == MAX_POOL || l->kind == AVG_POOL) {
        l->pool = (wf_pool_opts){
            .kernel = test_int(rng, 2, 3), .stride = test_int(rng, 1, 2), .pad = one_in(rng, 3), .dilation = 1};
        note(p, l->kind == MAX_POOL ? "max" : "avg", l->pool.kernel, l->pool.stride, l->pool.pad);
        for (int d = 2; d < 4; d++)
            s->dim[d] = outputs(s->dim[d], l->pool.kernel, l->pool.stride, l->pool.pad, 1);
    } else if (l->kind == UPSAMPLE) {
        l->upsample = (wf_upsample_opts){.mode = one_in(rng, 2) ? WF_UPSAMPLE_LINEAR : WF_UPSAMPLE_NEAREST};
        note(p, "upsample", l->upsample.mode, 0, 0);
        s->dim[2] *= 2;
        s->dim[3] *= 2;
    } else {
        l->function = (int)test_int(rng, 0, 2);
        note(p, l->kind == DROPOUT ? "dropout" : "function", l->function, 0, 0);
    }
    return s->dim[2] > 0 && s->dim[3] > 0 && s->dim[2] < 24 && s->dim[3] < 24;
}

static void draw_mesh(plan *p, test_rng *rng, int size)
{
    int *const axis[] = {&p->mesh.channel, &p->mesh.height, &p->mesh.width};
    int left = size;
    for (int k = 0; k < 3; k++) {
        *axis[k] = (int)test_int(rng, 1, left);
        while (left % *axis[k] != 0)
            --*axis[k];
        left /= *axis[k];
    }
    p->mesh.data = left;
    p->how = WF_PARALLEL_SYNC_BN | (unsigned)test_int(rng, 0, 3);
    p->opts = (wf_multi_node_opts){.bucket_bytes = one_in(rng, 2) ? 64 : 0,
                                   .first_bucket_bytes = one_in(rng, 2) ? 64 : 0,
                                   .no_overlap = one_in(rng, 3),
                                   .shard_optimizer = one_in(rng, 4),
                                   .compare_every = 1};
}

/* A layer that leaves no image is drawn again. */
static plan draw_plan(uint64_t number, int size)
{
    test_rng rng = {number};
    plan p = {.number = number};
    draw_mesh(&p, &rng, size);
    snprintf(p.text, TEXT, "model %llu: data %d channel %d height %d width %d how %u", (unsigned long long)number,
             p.mesh.data, p.mesh.channel, p.mesh.height, p.mesh.width, p.how);
    const int64_t samples = test_int(&rng, 2, 5), in = channels(&p, &rng);
    p.image = WF_SHAPE(samples, in, test_int(&rng, 5, 10), test_int(&rng, 5, 10));
    note(&p, "image", p.image.dim[0], p.image.dim[1], p.image.dim[2]);
    wf_shape shape = p.image;
    const int64_t wanted = test_int(&rng, 2, MOST_LAYERS);
    while (p.n < wanted) {
        const wf_shape before = shape;
        const size_t used = strlen(p.text);
        p.part[p.n] = (part){0};
        if (draw_part(&p, &p.part[p.n], &rng, &shape)) {
            p.n++;
            continue;
        }
        p.text[used] = '\0';
        shape = before;
    }
    p.joins = one_in(&rng, 3) ? p.n - 1 : p.n;
    /* A normalisation that joins by itself does not know that its channels are sharded. */
    if (p.joins < p.n && p.part[p.joins].kind == NORM && p.mesh.channel > 1)
        p.joins = p.n;
    p.named = one_in(&rng, 2);
    p.accumulates = one_in(&rng, 4);
    p.head = one_in(&rng, 2) && p.joins == p.n;
    p.classes = channels(&p, &rng);
    note(&p, p.named ? "named" : "unnamed", p.joins, p.accumulates, p.head);
    return p;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

static wf_var *tanh_of(wf_var *x)
{
    return wf_tanh(x);
}

static wf_var *leaky(wf_var *x)
{
    return wf_activate(x, WF_ACT_LEAKY_RELU, 0.1, 0);
}

static wf_var *dropped(wf_var *x)
{
    return wf_dropout(x, 0.3);
}

static wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.1);
}

static wf_var *apply_twice(wf_layer *self, void *user, wf_var *x)
{
    wf_layer *child = wf_layer_child(self, "shared");
    wf_var *once = wf_apply(child, x);
    return wf_apply(child, once);
}

static wf_layer *make_part(wf_ctx *ctx, const part *l)
{
    static wf_var *(*const functions[])(wf_var *) = {wf_relu, tanh_of, leaky};
    wf_layer *module;
    switch (l->kind) {
    case CONV:
        return wf_conv2d(ctx, l->conv);
    case TRANSPOSED:
        return wf_conv_transpose2d(ctx, l->conv);
    case NORM:
        return wf_batchnorm(ctx, l->norm);
    case MAX_POOL:
        return wf_max_pool2d(ctx, l->pool);
    case AVG_POOL:
        return wf_avg_pool2d(ctx, l->pool);
    case UPSAMPLE:
        return wf_upsample2d(ctx, l->upsample);
    case TWICE:
        module = wf_module(ctx, apply_twice, NULL);
        wf_module_add(module, "shared", wf_conv2d(ctx, l->conv));
        return module;
    case FUNCTION:
        return wf_lambda(ctx, functions[l->function]);
    case DROPOUT:
        return wf_lambda(ctx, l->function ? dropped : noisy);
    }
    return NULL;
}

/* A first layer with parameters of its own, since a model may be drawn that has none. */
static wf_layer *make_model(wf_ctx *ctx, const plan *p)
{
    const wf_conv_opts first = {.in = p->image.dim[1], .out = p->image.dim[1], .kernel = 1};
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, first)));
    char name[16];
    for (int i = 0; i < p->joins; i++) {
        snprintf(name, sizeof name, "part%d", i);
        wf_module_add(model, name, make_part(ctx, &p->part[i]));
    }
    if (p->head)
        wf_module_add(model, "pool", wf_global_avg_pool(ctx));
    return p->named ? wf_layer_named(model, "m") : model;
}

/* --- two programs ------------------------------------------------------------------------------------------------- */

/* One rank's program; the serial one has no mesh. */
typedef struct program {
    const plan *p;
    wf_comm *comm;
    wf_mesh *mesh;
    wf_ctx *ctx;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
} program;

/* Samples [lo, hi) of this rank: uneven blocks, some of them empty. */
static void samples_of(const program *r, int64_t *lo, int64_t *hi)
{
    const int64_t n = r->p->image.dim[0];
    const int size = r->mesh ? wf_mesh_size(r->mesh, WF_AXIS_DATA) : 1,
              rank = r->mesh ? wf_mesh_rank(r->mesh, WF_AXIS_DATA) : 0;
    int64_t cut[9] = {0};
    test_rng rng = {r->p->number ^ 77};
    for (int i = 1; i < size; i++)
        cut[i] = test_int(&rng, cut[i - 1], n);
    cut[size] = n;
    *lo = cut[rank];
    *hi = cut[rank + 1];
}

static wf_tensor *batch_of(const program *r, int64_t which)
{
    static double value[MOST];
    const wf_shape shape = r->p->image;
    test_rng rng = {r->p->number * 1000 + (uint64_t)which};
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        value[i] = test_uniform(&rng, -1, 1);
    wf_tensor *all = wf_tensor_from_host(r->ctx, WF_F64, shape, value);
    if (!r->mesh)
        return all;
    wf_box box = wf_box_of_shape(shape);
    samples_of(r, &box.lo[0], &box.hi[0]);
    wf_tensor *view = wf_tensor_view(all, box), *mine = wf_tensor_copy(view, WF_F64, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(mine, wf_layout_batch(r->mesh, shape, box.lo[0], box.hi[0])));
    wf_tensor_free(view);
    wf_tensor_free(all);
    return mine;
}

static wf_var *loss_of(program *r, int64_t which)
{
    wf_tensor *x = batch_of(r, which);
    wf_var *y = wf_apply(r->model, wf_input(r->tape, x));
    wf_tensor_free(x);
    wf_var *square = wf_mul(y, y);
    return wf_mean(square);
}

static wf_status one_step(program *r, int64_t i, double *loss)
{
    if (r->p->accumulates)
        WF_TRY(wf_optim_accumulate(r->optim, loss_of(r, 2 * i)));
    wf_var *last = loss_of(r, 2 * i + 1);
    WF_TRY(wf_optim_step(r->optim, last));
    *loss = wf_item(last);
    return wf_tape_reset(r->tape);
}

static bool program_open(program *r, const plan *p, wf_comm *comm)
{
    const wf_sgd_opts sgd = {.lr = 0.02, .momentum = 0.9};
    *r = (program){.p = p, .comm = comm};
    r->ctx = comm ? wf_comm_ctx(comm)
                  : wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64, .threads = 1, .seed = p->number + 1});
    r->mesh = comm ? wf_mesh_open(comm, p->mesh) : NULL;
    r->model = make_model(r->ctx, p);
    r->tape = wf_tape_new(r->ctx);
    if (!r->model || (comm && wf_parallelize(r->model, r->mesh, p->how) != WF_OK))
        return false;
    wf_optim *one = wf_sgd(r->model, sgd);
    r->optim = comm ? wf_mesh_multi_node_with(r->mesh, one, p->opts) : one;
    return r->optim;
}

static void program_close(program *r)
{
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    wf_layer_free(r->model);
    wf_mesh_close(r->mesh);
    if (!r->comm)
        WF_EXPECT_OK(wf_ctx_free(r->ctx));
}

static wf_status join_late(program *r)
{
    wf_layer *more = make_part(r->ctx, &r->p->part[r->p->joins]);
    WF_NEED(more);
    if (r->mesh)
        WF_TRY(wf_parallelize(more, r->mesh, r->p->how));
    return wf_check(wf_module_add(r->model, "late", more));
}

static void compare(const plan *p, const program *all, const program *one)
{
    int64_t n, m;
    wf_param *const *seen, *const *should;
    static double a[MOST], b[MOST];
    WF_EXPECT_OK(wf_layer_params(all->model, &n, &seen));
    WF_EXPECT_OK(wf_layer_params(one->model, &m, &should));
    WF_EXPECT(n == m, "%s: %lld parameters, should be %lld", p->text, (long long)n, (long long)m);
    for (int64_t i = 0; i < n && n == m; i++) {
        wf_tensor *view = wf_tensor_view(wf_param_value(should[i]), seen[i]->box);
        const int64_t count = wf_tensor_count(view);
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(seen[i]), a, (size_t)count * sizeof *a));
        WF_EXPECT_OK(wf_tensor_export(view, b, (size_t)count * sizeof *b));
        const double d = test_distance(count, a, b);
        WF_EXPECT(d <= 1e-8, "%s: %s is off by %g", p->text, wf_param_path(should[i]), d);
        wf_tensor_free(view);
    }
}

typedef struct tally {
    int64_t models, refused;
} tally;

/* What a mesh cannot do is refused by name, before anything is computed. */
static bool refused(const program *all)
{
    const wf_status why = wf_error_code();
    return !all->optim && (why == WF_ERR_ARGUMENT || why == WF_ERR_UNSUPPORTED);
}

static void steps(const plan *p, program *all, program *one)
{
    for (int64_t i = 0; i < STEPS; i++) {
        double is = 0, should = 0;
        const bool late = i == 1 && p->joins < p->n;
        wf_status status = late ? join_late(one) : WF_OK;
        if (status == WF_OK)
            status = one_step(one, i, &should);
        WF_EXPECT(status == WF_OK, "%s: serial step %lld: %s", p->text, (long long)i, wf_error_trail());
        status = status == WF_OK && late ? join_late(all) : status;
        if (status == WF_OK)
            status = one_step(all, i, &is);
        WF_EXPECT(status == WF_OK, "%s: step %lld: %s", p->text, (long long)i, wf_error_message());
        WF_EXPECT(status != WF_OK || fabs(is - should) <= 1e-9 * (1 + fabs(should)),
                  "%s: step %lld has loss %.15g, should be %.15g", p->text, (long long)i, is, should);
        if (status != WF_OK)
            return;
    }
    compare(p, all, one);
}

static void run_model(uint64_t number, int size, tally *t)
{
    const plan p = draw_plan(number, size);
    wf_comm *comm =
        test_comm_open("flat", (wf_ctx_opts){.device = "ref", .dtype = WF_F64, .threads = 1, .seed = p.number + 1});
    program one, all;
    WF_EXPECT(program_open(&one, &p, NULL), "%s: serial: %s", p.text, wf_error_trail());
    t->models++;
    if (program_open(&all, &p, comm)) {
        steps(&p, &all, &one);
    } else {
        WF_EXPECT(refused(&all), "%s: %s", p.text, wf_error_trail());
        t->refused++;
    }
    wf_error_clear();
    program_close(&all);
    program_close(&one);
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

static int size_of_world(void)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return size;
}

static int on_ranks(int argc, char **argv)
{
    static const int shares[] = {1, 2, 2, 3, 3, 4, 4, 4};
    const int size = size_of_world();
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
                   count = argc > 2 ? strtoull(argv[2], NULL, 10) : 8;
    tally t = {0};
    for (uint64_t i = first; i < first + count; i++)
        if (shares[i % 8] == size)
            run_model(i, size, &t);
    WF_EXPECT(t.refused * 5 <= t.models, "%lld of %lld models were refused", (long long)t.refused, (long long)t.models);
    printf("%d ranks: %lld models, %lld refused, %lld failures\n", size, (long long)t.models, (long long)t.refused,
           (long long)test_failures());
    return test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
