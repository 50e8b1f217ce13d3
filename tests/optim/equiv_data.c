/* Data parallelism against the serial program: steps on P ranks, each with its part of a batch, give the loss,
 * gradients and parameters of the same steps on one rank with the whole batch. Parts are uneven, and may be empty. */
#include "core/tape_author.h"
#include "datasets/datasets.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHANNELS = 2, SIDE = 8, PIXELS = CHANNELS * SIDE * SIDE, CLASSES = 3, MOST = 8, STEPS = 2 };

typedef struct setting {
    const char *name, *device;
    wf_dtype dtype;
    double tolerance;
} setting;

/* How a rank says what its loss means. */
typedef enum form {
    LAYOUT = 0, /* the batch is sharded */
    MEANS,      /* local means */
    NO_LOSS,    /* local means; ranks without samples have no loss */
    DATASET,    /* batches of a scattered data set */
    FORMS
} form;

typedef enum cut { BLOCKS = 0, FIRST_HAS_ALL, LAST_HAS_ALL, GROWING, CUTS } cut;

typedef struct run {
    const setting *setting;
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    wf_layer *model, *serial;
    wf_optim *optim, *reference;
    wf_tape *tape;
    wf_tensor *labels[2]; /* must live until the step */
    int64_t n, lo, hi;
    double x[MOST * PIXELS];
    int64_t label[MOST];
} run;

static wf_layer *net_new(wf_ctx *ctx)
{
    wf_layer *first = wf_conv2d(ctx, (wf_conv_opts){.in = CHANNELS, .out = 4, .kernel = 3, .pad = 1});
    wf_layer *second = wf_conv2d(ctx, (wf_conv_opts){.in = 4, .out = 5, .kernel = 4, .stride = 2, .pad = 1});
    wf_layer *last = wf_linear(ctx, (wf_linear_opts){.in = 5 * SIDE * SIDE / 4, .out = CLASSES});
    return wf_sequential(ctx, WF_LAYERS(first, wf_lambda(ctx, wf_tanh), second, wf_lambda(ctx, wf_relu),
                                        wf_lambda(ctx, wf_flatten), last));
}

static void copy_values(wf_layer *to, wf_layer *from)
{
    for (int64_t i = 0; param_of(from, i); i++)
        WF_EXPECT_OK(wf_tensor_assign(wf_param_value(param_of(to, i)), wf_param_value(param_of(from, i))));
}

static run *run_open(const setting *s)
{
    const wf_sgd_opts sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01};
    run *r = calloc(1, sizeof *r);
    r->setting = s;
    r->comm = test_comm_open(test_communicator(s->name),
                             (wf_ctx_opts){.device = test_device(s->device), .dtype = s->dtype, .threads = 1});
    WF_EXPECT(r->comm, "no communicator %s: %s", s->name, wf_error_message());
    r->ctx = wf_comm_ctx(r->comm);
    r->rank = wf_comm_rank(r->comm);
    r->size = wf_comm_size(r->comm);
    r->model = net_new(r->ctx);
    r->serial = net_new(r->ctx);
    r->optim = wf_multi_node(r->comm, wf_sgd(r->model, sgd), (wf_multi_node_opts){0});
    WF_EXPECT(r->optim, "no optimizer: %s", wf_error_message());
    r->reference = wf_sgd(r->serial, sgd);
    copy_values(r->serial, r->model);
    r->tape = wf_tape_new(r->ctx);
    return r;
}

static void run_close(run *r)
{
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    wf_optim_free(r->reference);
    wf_layer_free(r->model);
    wf_layer_free(r->serial);
    WF_EXPECT_OK(wf_comm_close(r->comm));
    free(r);
}

static void make_batch(run *r, int64_t n, uint64_t seed)
{
    test_rng rng = {seed};
    r->n = n;
    for (int64_t i = 0; i < n * PIXELS; i++)
        r->x[i] = (float)test_uniform(&rng, -1, 1);
    for (int64_t i = 0; i < n; i++)
        r->label[i] = test_int(&rng, 0, CLASSES - 1);
}

static void make_part(run *r, cut how)
{
    const int64_t p = r->size, n = r->n;
    if (how == BLOCKS)
        wf_block(n, p, r->rank, &r->lo, &r->hi);
    if (how == FIRST_HAS_ALL || how == LAST_HAS_ALL) {
        const int64_t one = how == FIRST_HAS_ALL ? 0 : p - 1;
        r->lo = r->rank <= one ? 0 : n;
        r->hi = r->rank < one ? 0 : n;
    }
    if (how == GROWING) {
        r->lo = n * r->rank * (r->rank + 1) / (p * (p + 1));
        r->hi = n * (r->rank + 1) * (r->rank + 2) / (p * (p + 1));
    }
}

/* The loss of samples [lo, hi). */
static wf_var *loss_of(run *r, wf_layer *model, int64_t lo, int64_t hi, bool layout, wf_tensor **labels)
{
    const int64_t n = hi - lo;
    wf_tensor *x = wf_tensor_new(r->ctx, r->setting->dtype, WF_SHAPE(n, CHANNELS, SIDE, SIDE));
    values_set(x, r->x + lo * PIXELS);
    *labels = wf_tensor_from_host(r->ctx, WF_I64, WF_SHAPE(n), r->label + lo);
    if (layout) {
        const wf_mesh *mesh = wf_comm_mesh(r->comm);
        WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(mesh, WF_SHAPE(r->n, CHANNELS, SIDE, SIDE), lo, hi)));
        WF_EXPECT_OK(wf_tensor_set_layout(*labels, wf_layout_batch(mesh, WF_SHAPE(r->n), lo, hi)));
    }
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, wf_input(r->tape, x)), *labels, (wf_label_opts){0});
    wf_tensor_free(x);
    return loss;
}

static void expect_near(const run *r, const char *what, int64_t n, const double *seen, const double *should)
{
    double most = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(should[i]));
        const double d = fabs(seen[i] - should[i]);
        off = d <= off ? off : isnan(d) ? INFINITY : d;
    }
    WF_EXPECT(off <= r->setting->tolerance * most, "%s on rank %d of %d is off by %g of %g", what, r->rank, r->size,
              off, most);
}

static void expect_tensors(const run *r, const char *what, const wf_tensor *seen, double scale, const wf_tensor *should)
{
    const int64_t n = wf_tensor_count(should);
    double *a = calloc((size_t)n + 1, sizeof *a), *b = calloc((size_t)n + 1, sizeof *b);
    values_get(seen, a);
    values_get(should, b);
    for (int64_t i = 0; i < n; i++)
        a[i] *= scale;
    expect_near(r, what, n, a, b);
    free(a);
    free(b);
}

/* wf_param_grad of local means is the sum before the division by the samples. */
static void compare(run *r, const char *what, const wf_var *loss, const wf_var *whole, double scale)
{
    const double seen = wf_item(loss), should = wf_item(whole);
    char text[256];
    snprintf(text, sizeof text, "%s: loss", what);
    expect_near(r, text, 1, &seen, &should);
    for (int64_t i = 0; param_of(r->model, i); i++) {
        wf_param *mine = param_of(r->model, i), *other = param_of(r->serial, i);
        snprintf(text, sizeof text, "%s: gradient of %s", what, wf_param_path(mine));
        expect_tensors(r, text, wf_param_grad(mine), scale, wf_param_grad(other));
        snprintf(text, sizeof text, "%s: %s", what, wf_param_path(mine));
        expect_tensors(r, text, wf_param_value(mine), 1, wf_param_value(other));
    }
}

static void step_both(run *r, const char *what, wf_var *mine, double scale)
{
    wf_tensor *labels;
    WF_EXPECT_OK(wf_optim_step(r->optim, mine));
    wf_var *whole = loss_of(r, r->serial, 0, r->n, false, &labels);
    WF_EXPECT_OK(wf_optim_step(r->reference, whole));
    compare(r, what, mine, whole, scale);
    wf_tensor_free(labels);
}

static void steps_of_parts(run *r, form how, const char *what)
{
    for (int step = 0; step < STEPS; step++) {
        wf_tensor *labels = NULL;
        const bool none = how == NO_LOSS && r->lo == r->hi;
        wf_var *mine = none ? wf_no_loss(r->tape) : loss_of(r, r->model, r->lo, r->hi, how == LAYOUT, &labels);
        step_both(r, what, mine, how == LAYOUT ? 1 : 1 / (double)r->n);
        wf_tensor_free(labels);
        WF_EXPECT_OK(wf_tape_reset(r->tape));
    }
}

static void steps_of_dataset(run *r, const char *what)
{
    wf_dataset *all = NULL;
    if (r->rank == 0)
        all = wf_memory_dataset(r->ctx, WF_F64, WF_SHAPE(r->n, CHANNELS, SIDE, SIDE), r->x, r->label);
    wf_iter *iter = wf_batches(wf_scatter_dataset(r->comm, all, (wf_scatter_opts){0}), (wf_batch_opts){.size = MOST});
    for (int step = 0; step < STEPS; step++) {
        wf_batch b = {0};
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        WF_EXPECT(b.global == r->n, "a global batch of %lld, should be %lld", (long long)b.global, (long long)r->n);
        wf_var *scores = wf_apply(r->model, wf_input(r->tape, b.x));
        step_both(r, what, wf_softmax_cross_entropy(scores, b.labels, (wf_label_opts){0}), 1);
        WF_EXPECT_OK(wf_tape_reset(r->tape));
    }
    wf_iter_free(iter);
}

static void check(const setting *s)
{
    static const char *const form_name[FORMS] = {"sharded", "local means", "no loss", "data set"};
    static const char *const cut_name[CUTS] = {"blocks", "first has all", "last has all", "growing"};
    static const int64_t batch[] = {1, 2, 7, 8};
    char what[128];
    uint64_t seed = 1;
    for (int how = 0; how < FORMS; how++)
        for (int at = 0; at < (how == DATASET ? 1 : CUTS); at++)
            for (size_t b = 0; b < sizeof batch / sizeof *batch; b++) {
                run *r = run_open(s);
                make_batch(r, batch[b], seed++);
                make_part(r, (cut)at);
                snprintf(what, sizeof what, "%s %s, %s, %s, batch %d", s->name, s->device, form_name[how], cut_name[at],
                         (int)batch[b]);
                if (how == DATASET)
                    steps_of_dataset(r, what);
                else
                    steps_of_parts(r, (form)how, what);
                run_close(r);
            }
}

static void flat_f32(void)
{
    check(&(setting){"flat", "cpu", WF_F32, 1e-5});
}

static void flat_f64(void)
{
    check(&(setting){"flat", "ref", WF_F64, 1e-12});
}

static void naive_f32(void)
{
    check(&(setting){"naive", "cpu", WF_F32, 1e-5});
}

static void naive_f64(void)
{
    check(&(setting){"naive", "ref", WF_F64, 1e-12});
}

static int on_ranks(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){
            {"flat_f32", flat_f32}, {"flat_f64", flat_f64}, {"naive_f32", naive_f32}, {"naive_f64", naive_f64}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
