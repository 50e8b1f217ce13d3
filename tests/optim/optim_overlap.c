/* Gradients that are summed in buckets while backward goes on: the bits of the blocking form, whatever the order in
 * which they come, the size of the buckets and the reducer; types on the wire; a rank that fails in between. */
#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "core/context_author.h"
#include "core/tape_author.h"
#include "tests/optim/optim_nets.h"
#include "tests/world.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { STEPS = 3, PARTS = 6 };

static const int64_t sizes[] = {1, 700, 4096, (int64_t)1 << 30};

/* The trained parameters, freed by the caller */
static double *trained(const wf_mesh *mesh, wf_layer *net, wf_optim *optim, int64_t *count)
{
    wf_tape *tape = wf_tape_new(ctx);
    const net_batch batch = net_batch_new();
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    start_alike(net);
    for (int step = 0; step < STEPS; step++) {
        if (step == 2)
            WF_EXPECT_OK(wf_param_set_trainable(param_of(net, 1), false));
        WF_EXPECT_OK(wf_optim_step(optim, net_loss(mesh, net, tape, batch, step)));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    double *values = values_of(net, count);
    wf_optim_free(optim);
    wf_layer_free(net);
    net_batch_free(batch);
    wf_tape_free(tape);
    return values;
}

static double *trained_with(bool sync, wf_multi_node_opts opts, int64_t *count)
{
    wf_layer *net = net_new(NULL);
    if (sync)
        WF_EXPECT_OK(wf_to_sync_batchnorm(net, comm));
    return trained(NULL, net, wf_multi_node(comm, wf_adam(net, (wf_adam_opts){.lr = 0.01}), opts), count);
}

/* Running statistics of plain batch normalisation are each rank's own, the rest is not. */
static void expect_equal_on_ranks(const char *what, int64_t n, const double *values)
{
    double *first = malloc((size_t)n * sizeof *first);
    memcpy(first, values, (size_t)n * sizeof *first);
    WF_EXPECT_OK(wf_bcast_bytes(comm, first, (size_t)n * sizeof *first, 0));
    WF_EXPECT(!memcmp(first, values, (size_t)n * sizeof *first), "%s: rank %d has other bits than rank 0", what, rank);
    free(first);
}

static void same_bits(bool sync)
{
    for (int r = 0; r < COUNT(reducers); r += sync ? 3 : 1) {
        int64_t n = 0;
        open_comm(reducers[r], "cpu", WF_F32);
        double *blocking = trained_with(sync, (wf_multi_node_opts){.no_overlap = true}, &n);
        for (int s = 0; s < COUNT(sizes); s++) {
            const wf_multi_node_opts opts = {.bucket_bytes = sizes[s], .first_bucket_bytes = s % 2 ? 1 : sizes[s]};
            double *own = trained_with(sync, opts, &n);
            WF_EXPECT(!memcmp(own, blocking, (size_t)n * sizeof *own), "%s, buckets of %lld bytes: other bits",
                      reducers[r], (long long)sizes[s]);
            if (sync)
                expect_equal_on_ranks(reducers[r], n, own);
            free(own);
        }
        free(blocking);
        close_comm();
    }
}

static void blocking_bits(void)
{
    same_bits(false);
}

/* Backward has collectives of its own on the same communicator. */
static void beside_sync_norm(void)
{
    same_bits(true);
}

/* Gradients of one mesh axis, of two, and of none. */
static void mesh_axes(void)
{
    for (int channel = 1; channel <= 2; channel++) {
        open_comm("flat", "cpu", WF_F32);
        double *values[2] = {0};
        int64_t n = 0;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size % channel ? 1 : channel});
        for (int overlap = 0; overlap < 2; overlap++) {
            const wf_multi_node_opts opts = {.bucket_bytes = 1, .first_bucket_bytes = 1, .no_overlap = !overlap};
            wf_layer *net = net_new(mesh);
            values[overlap] =
                trained(mesh, net, wf_mesh_multi_node(mesh, wf_sgd(net, (wf_sgd_opts){.lr = 0.01}), opts), &n);
        }
        WF_EXPECT(!memcmp(values[0], values[1], (size_t)n * sizeof(double)), "channel %d: other bits", channel);
        free(values[0]);
        free(values[1]);
        wf_mesh_close(mesh);
        close_comm();
    }
}

/* --- gradients that a test chooses -------------------------------------------------------------------------------- */

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

/* Parameters of different lengths, each with gradient x. */
typedef struct parts {
    wf_layer *model, *part[PARTS];
    wf_tensor *x[PARTS];
    int64_t length[PARTS];
    wf_optim *optim;
    wf_tape *tape;
} parts;

static parts parts_new(int64_t unit, double value, wf_multi_node_opts opts)
{
    parts p = {.model = wf_module(ctx, no_forward, NULL), .tape = wf_tape_new(ctx)};
    for (int i = 0; i < PARTS; i++) {
        const char name[2] = {(char)('a' + i), 0};
        p.length[i] = unit * (1 + (5 * i) % 4);
        double *zero = calloc((size_t)p.length[i], sizeof *zero);
        p.part[i] = wf_module_add(p.model, name, dot_new(ctx, p.length[i], zero));
        p.x[i] = wf_tensor_new(ctx, wf_ctx_dtype(ctx), WF_SHAPE(p.length[i]));
        WF_EXPECT_OK(wf_tensor_fill(p.x[i], value));
        free(zero);
    }
    p.optim = wf_multi_node(comm, wf_sgd(p.model, (wf_sgd_opts){.lr = 1}), opts);
    WF_EXPECT(p.optim, "no optimizer: %s", wf_error_message());
    return p;
}

static void parts_free(parts *p)
{
    for (int i = 0; i < PARTS; i++)
        wf_tensor_free(p->x[i]);
    wf_tape_free(p->tape);
    wf_optim_free(p->optim);
    wf_layer_free(p->model);
}

static wf_var *use(parts *p, wf_var *sum, int i)
{
    wf_var *one = wf_apply(p->part[i], wf_input(p->tape, p->x[i]));
    return sum ? wf_add(sum, one) : one;
}

static wf_var *mean_of(wf_var *loss, int64_t count)
{
    loss->loss_mean = true;
    loss->loss_count = count;
    return loss;
}

static double first_of(const parts *p, int i)
{
    double *values = calloc((size_t)p->length[i], sizeof *values);
    values_get(wf_param_value(param_of(p->part[i], 0)), values);
    const double first = values[0];
    for (int64_t e = 0; e < p->length[i]; e++)
        WF_EXPECT(values[e] == first, "part %d: element %lld is %g, element 0 is %g", i, (long long)e, values[e],
                  first);
    free(values);
    return first;
}

/* Every rank goes through the parts in an order of its own, some of them twice, and leaves some out. */
static int uses(int step, int r, int i)
{
    return (i + r + step) % 4 == 0 ? 0 : (i + 2 * r) % 3 == 0 ? 2 : 1;
}

static void any_order(void)
{
    for (int s = 0; s < COUNT(sizes); s++) {
        open_comm(reducers[s], "ref", WF_F32);
        parts p = parts_new(40, 1, (wf_multi_node_opts){.bucket_bytes = sizes[s], .first_bucket_bytes = sizes[s]});
        double should[PARTS] = {0};
        for (int step = 0; step < STEPS; step++) {
            wf_var *loss = NULL;
            for (int k = 0; k < 2 * PARTS; k++) {
                const int i = (rank % 2 ? k : 2 * PARTS - 1 - k) * (rank > 1 ? 5 : 1) % PARTS;
                if (k / PARTS < uses(step, rank, i))
                    loss = use(&p, loss, i);
            }
            WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss, 1)));
            WF_EXPECT_OK(wf_tape_reset(p.tape));
            for (int i = 0; i < PARTS; i++) {
                double sum = 0;
                for (int r = 0; r < size; r++)
                    sum += uses(step, r, i);
                should[i] -= sum / size;
                WF_EXPECT(fabs(first_of(&p, i) - should[i]) < 1e-5, "step %d, part %d on rank %d: %g, should be %g",
                          step, i, rank, first_of(&p, i), should[i]);
            }
        }
        parts_free(&p);
        close_comm();
    }
}

/* --- in the midst of backward ------------------------------------------------------------------------------------- */

static wf_status (*meanwhile)(void);

static wf_status call_meanwhile(wf_node *node)
{
    WF_TRY(meanwhile());
    return wf_node_give(node, 0, wf_tensor_alias(wf_node_dy(node)), true);
}

/* x, whose backward calls `meanwhile`. */
static wf_var *in_backward(wf_var *x)
{
    static const wf_op op = {.name = "meanwhile", .backward = call_meanwhile};
    const wf_node_spec record = {.op = &op, .n_in = 1, .in = (wf_var *[]){x}};
    return wf_tape_record(x->tape, &record, wf_tensor_alias(x->value));
}

/* The first part comes last in backward, behind `meanwhile`; the others are complete before. */
static wf_var *loss_with_a_gap(parts *p)
{
    wf_var *loss = in_backward(use(p, NULL, 0));
    for (int i = 1; i < PARTS; i++)
        loss = use(p, loss, i);
    return loss;
}

static uint64_t sent_before;

/* A collective of the same communicator, and time for the buckets: some end before backward does. */
static wf_status wait_for_buckets(void)
{
    const time_t end = time(NULL) + 60;
    double one = 1;
    WF_TRY(wf_allreduce_f64(comm, &one, 1, WF_SUM));
    WF_EXPECT(one == size, "the sum of ones is %g", one);
    while (size > 1 && wf_comm_traffic(comm).bytes_sent - sent_before < 100000 && time(NULL) < end)
        wf_ctx_progress(ctx);
    WF_EXPECT(time(NULL) < end, "no bucket ended while backward waited for it");
    return WF_OK;
}

static void progress_in_backward(void)
{
    open_comm("flat", "cpu", WF_F32);
    parts p = parts_new(300000, 2, (wf_multi_node_opts){.bucket_bytes = 1, .first_bucket_bytes = 1});
    meanwhile = wait_for_buckets;
    for (int step = 1; step <= STEPS; step++) {
        sent_before = wf_comm_traffic(comm).bytes_sent;
        WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1)));
        WF_EXPECT_OK(wf_tape_reset(p.tape));
        for (int i = 0; i < PARTS; i++)
            WF_EXPECT(first_of(&p, i) == -2 * step, "part %d is %g", i, first_of(&p, i));
    }
    parts_free(&p);
    close_comm();
}

static wf_status fail_on_the_last(void)
{
    wf_ctx_progress(ctx);
    WF_CHECK(rank < size - 1, WF_ERR_IO, "the disk of a test is full");
    return WF_OK;
}

/* Buckets are under way on all ranks when one of them fails. */
static void one_rank_fails(void)
{
    for (int r = 0; r < COUNT(reducers); r += 3) {
        open_comm(reducers[r], "cpu", WF_F32);
        parts p = parts_new(200000, 2, (wf_multi_node_opts){.bucket_bytes = 1, .first_bucket_bytes = 1});
        meanwhile = fail_on_the_last;
        const wf_status status = wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1));
        WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "the disk of a test is full"),
                  "%s, rank %d: %s '%s'", reducers[r], rank, wf_status_name(status), wf_error_message());
        WF_EXPECT(wf_optim_steps(p.optim) == 0, "%lld steps", (long long)wf_optim_steps(p.optim));
        WF_EXPECT(!ctx->progress, "tasks are left after a failure");
        wf_error_clear();
        parts_free(&p);
        close_comm();
    }
}

/* --- tasks ---------------------------------------------------------------------------------------------------------
 */

static wf_status bad_task(void *own)
{
    WF_FAIL(WF_ERR_NUMERIC, "a task that fails");
}

static int ran;

static wf_status good_task(void *own)
{
    ran++;
    return WF_OK;
}

/* The error of a task is not one of the main program; tasks after it are not run. */
static void errors_of_tasks(void)
{
    open_comm("flat", "ref", WF_F32);
    WF_EXPECT_OK(wf_background_open(comm));
    ran = 0;
    WF_RAISE(WF_ERR_SHAPE, "an error of the main program");
    for (int i = 0; i < 3; i++)
        wf_background_call(comm, i == 1 ? bad_task : good_task, NULL);
    wf_ctx_progress(ctx);
    WF_EXPECT(strstr(wf_error_message(), "main program"), "the last error is '%s'", wf_error_message());
    WF_EXPECT(ran == 1 && !ctx->progress, "%d tasks ran", ran);
    WF_EXPECT(wf_background_status(comm) == WF_ERR_NUMERIC, "%s", wf_error_message());
    WF_EXPECT(wf_background_wait(comm) == WF_ERR_NUMERIC && strstr(wf_error_message(), "a task that fails"), "'%s'",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_background_wait(comm));
    close_comm();
}

/* --- types on the wire -------------------------------------------------------------------------------------------- */

/* 1000 + r samples on rank r: exact in f32, not in bf16. */
static void grad_dtype(wf_dtype grad_dtype, double error)
{
    open_comm("auto", "cpu", WF_F32);
    parts p = parts_new(5000, 1.0 / (3 + rank), (wf_multi_node_opts){.bucket_bytes = 30000, .grad_dtype = grad_dtype});
    double weight = 0, gradient = 0, loss = 0;
    for (int r = 0; r < size; r++) {
        weight += 1000 + r;
        gradient += (1000 + r) / (3.0 + r);
    }
    for (int i = 0; i < PARTS; i++)
        loss += (double)p.length[i];
    WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1000 + rank)));
    WF_EXPECT_OK(wf_tape_reset(p.tape));
    wf_var *second = loss_with_a_gap(&p);
    WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(second, 1000 + rank)));
    gradient /= weight;
    for (int i = 0; i < PARTS; i++) {
        double moved = first_of(&p, i);
        WF_EXPECT(fabs(moved / (-2 * gradient) - 1) < error, "%s: part %d moved by %g, should be %g",
                  wf_dtype_name(grad_dtype), i, moved, -2 * gradient);
        expect_equal_on_ranks(wf_dtype_name(grad_dtype), 1, &moved);
        if (i == 0)
            loss *= moved / 2 * gradient; /* of the second step: w x, and w is half of what it is now */
    }
    WF_EXPECT(fabs(wf_item(second) / loss - 1) < 1e-5 + error, "%s: the loss is %g, should be %g",
              wf_dtype_name(grad_dtype), wf_item(second), loss);
    parts_free(&p);
    close_comm();
}

static wf_status nothing(void)
{
    return WF_OK;
}

static void grad_dtypes(void)
{
    meanwhile = nothing;
    grad_dtype(WF_F32, 1e-6);
    grad_dtype(WF_BF16, 1.0 / 128);
    grad_dtype(WF_F16, 1.0 / 1024);
}

/* The weights of the average keep all their digits: gradients that bf16 holds come out exactly. */
static void exact_weights(void)
{
    open_comm("flat", "cpu", WF_F32);
    meanwhile = nothing;
    parts p = parts_new(3, 1, (wf_multi_node_opts){.grad_dtype = WF_BF16});
    WF_EXPECT_OK(wf_tensor_fill(p.x[0], rank == 0 ? 1 : 0));
    const int64_t samples = rank == 0 ? 256 : 1001; /* of which bf16 would make 1000 */
    WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), samples)));
    const double should = -256.0 / (256 + 1001 * (size - 1));
    WF_EXPECT(fabs(first_of(&p, 0) / should - 1) < 1e-6, "moved by %.9g, should be %.9g", first_of(&p, 0), should);
    parts_free(&p);
    close_comm();
}

/* One rank's gradient leaves the range: all ranks say so, nothing is updated, and training can go on. */
static void overflow(void)
{
    open_comm("flat", test_device("cpu"), WF_F32);
    meanwhile = nothing;
    /* Replicas are not compared, so that a device has the update before the host knows of the overflow. */
    parts p = parts_new(5000, 1, (wf_multi_node_opts){.grad_dtype = WF_F16, .bucket_bytes = 1, .compare_every = -1});
    WF_EXPECT_OK(wf_tensor_fill(p.x[2], rank == size - 1 ? 70000 : 1));
    WF_EXPECT_ERROR(WF_ERR_NUMERIC, wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1)));
    WF_EXPECT(wf_optim_steps(p.optim) == 0 && first_of(&p, 0) == 0, "updated in spite of it");
    WF_EXPECT_OK(wf_tape_reset(p.tape));
    WF_EXPECT_OK(wf_tensor_fill(p.x[2], 1));
    WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1)));
    WF_EXPECT(first_of(&p, 2) == -1, "moved by %g", first_of(&p, 2));
    parts_free(&p);
    close_comm();
}

/* --- bytes ---------------------------------------------------------------------------------------------------------
 */

static wf_traffic traffic_of(const char *name, wf_multi_node_opts opts, int64_t *bytes)
{
    open_comm(name, "cpu", WF_F32);
    meanwhile = nothing;
    parts p = parts_new(100000, 1, opts);
    WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1)));
    WF_EXPECT_OK(wf_tape_reset(p.tape));
    const wf_traffic before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_optim_step(p.optim, mean_of(loss_with_a_gap(&p), 1)));
    wf_traffic moved = wf_comm_traffic(comm);
    moved.bytes_sent -= before.bytes_sent;
    moved.bytes_copied -= before.bytes_copied;
    *bytes = 0;
    for (int i = 0; i < PARTS; i++)
        *bytes += (p.length[i] + 15) / 16 * 16 * (int64_t)sizeof(float);
    parts_free(&p);
    close_comm();
    return moved;
}

static void copies(void)
{
    int64_t bytes = 0;
    const wf_traffic messages = traffic_of("flat", (wf_multi_node_opts){0}, &bytes);
    WF_EXPECT(messages.bytes_copied == 0, "%llu bytes copied for messages", (unsigned long long)messages.bytes_copied);
    const wf_traffic half = traffic_of("flat", (wf_multi_node_opts){.grad_dtype = WF_BF16}, &bytes);
    WF_EXPECT(half.bytes_copied >= (uint64_t)bytes && half.bytes_copied < (uint64_t)bytes + 1000,
              "%llu bytes copied to and from bf16, of %lld", (unsigned long long)half.bytes_copied, (long long)bytes);
    const double part = (double)half.bytes_sent / (double)messages.bytes_sent;
    WF_EXPECT(size == 1 || (part > 0.499 && part < 0.501), "bf16 sends %g times the bytes of f32", part);
    const wf_traffic shared = traffic_of("hierarchical", (wf_multi_node_opts){0}, &bytes);
    const bool staged = size > 1 && shared.bytes_sent < messages.bytes_sent;
    WF_EXPECT((shared.bytes_copied > 0) == staged, "%llu bytes copied in shared memory",
              (unsigned long long)shared.bytes_copied);
}

/* --- misuse --------------------------------------------------------------------------------------------------------
 */

static void expect_refused(wf_multi_node_opts opts, wf_dtype dtype, wf_status code, const char *text)
{
    comm = test_comm_open("flat", (wf_ctx_opts){.device = "ref", .dtype = dtype, .threads = 1});
    ctx = wf_comm_ctx(comm);
    wf_layer *net = net_new(NULL);
    wf_optim *optim = wf_multi_node(comm, wf_sgd(net, (wf_sgd_opts){.lr = 1}), opts);
    WF_EXPECT(!optim && wf_error_code() == code && strstr(wf_error_message(), text), "'%s' does not say '%s'",
              wf_error_message(), text);
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(net);
    close_comm();
}

static void misuse(void)
{
    expect_refused((wf_multi_node_opts){.bucket_bytes = -5}, WF_F32, WF_ERR_ARGUMENT, "-5 bytes");
    expect_refused((wf_multi_node_opts){.grad_dtype = WF_I32}, WF_F32, WF_ERR_ARGUMENT, "as i32");
    expect_refused((wf_multi_node_opts){.grad_dtype = WF_BF16}, WF_F64, WF_ERR_ARGUMENT, "only f32 is narrowed");
    if (size > 1)
        expect_refused((wf_multi_node_opts){.bucket_bytes = rank == 1 ? 9 : 8}, WF_F32, WF_ERR_COMM,
                       "rank 1 has other bucket sizes");
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"blocking_bits", blocking_bits},
                                   {"beside_sync_norm", beside_sync_norm},
                                   {"mesh_axes", mesh_axes},
                                   {"any_order", any_order},
                                   {"progress_in_backward", progress_in_backward},
                                   {"one_rank_fails", one_rank_fails},
                                   {"errors_of_tasks", errors_of_tasks},
                                   {"grad_dtypes", grad_dtypes},
                                   {"exact_weights", exact_weights},
                                   {"overflow", overflow},
                                   {"copies", copies},
                                   {"misuse", misuse},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
