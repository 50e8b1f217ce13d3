/* Models over several ranks against the serial program with the same components: outputs, gradients of inputs and of
 * parameters, and steps of an optimizer; the bytes that are sent, and memory. */
#include "tests/optim/chain_nets.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 3, MOST_VALUES = MOST_SPECS * MOST_ENDS };

/* --- the serial program --------------------------------------------------------------------------------------------
 */

typedef struct named {
    const char *name;
    int rank; /* of the end outside */
    wf_var *var;
} named;

typedef struct serial {
    const specs *all;
    wf_layer *net;
    named value[MOST_VALUES];
    int values;
} serial;

static wf_var *unused(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static wf_layer *serial_net(const specs *all)
{
    wf_layer *net = wf_layer_named(wf_module(ctx, unused, NULL), "net");
    for (int i = 0; i < all->n; i++)
        wf_module_add(net, all->of[i].name, component_layer());
    return net;
}

static wf_var *find(const serial *s, const char *name)
{
    for (int i = 0; i < s->values; i++)
        if (strcmp(s->value[i].name, name) == 0)
            return s->value[i].var;
    return NULL;
}

static bool apply_spec(serial *s, const spec *c)
{
    wf_var *x[MOST_ENDS], *y[MOST_ENDS];
    if (find(s, c->out_name[0]))
        return false;
    for (int i = 0; i < c->n_in; i++)
        if (!(x[i] = find(s, c->in_name[i])))
            return false;
    WF_EXPECT_OK(apply_component(wf_layer_child(s->net, c->name), (void *)c, x, y));
    for (int i = 0; i < c->n_out; i++)
        s->value[s->values++] = (named){c->out_name[i], c->rank, y[c->out[i].output]};
    return true;
}

/* A component as soon as its inputs are there. */
static void run_serial(serial *s, wf_tape *tape, int64_t rows, int step)
{
    s->values = 0;
    for (int i = 0; i < s->all->n; i++)
        for (int e = 0; e < s->all->of[i].n_in; e++)
            if (s->all->of[i].in[e].rank == WF_OUTSIDE)
                s->value[s->values++] = (named){s->all->of[i].in_name[e], s->all->of[i].rank,
                                                leaf_of(tape, s->all->of[i].in_name[e], rows, step)};
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < s->all->n; i++)
            moved = apply_spec(s, &s->all->of[i]) || moved;
    }
}

/* Outside ends of a rank, or of all (-1), in the order of components. */
static int outside(const specs *all, int of_rank, bool outputs, const char **name)
{
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        const spec *s = &all->of[i];
        if (of_rank >= 0 && s->rank != of_rank)
            continue;
        for (int e = 0; e < (outputs ? s->n_out : s->n_in); e++)
            if ((outputs ? s->out : s->in)[e].rank == WF_OUTSIDE)
                name[n++] = outputs ? s->out_name[e] : s->in_name[e];
    }
    return n;
}

/* The sum of the means of squares of outputs. */
static wf_var *loss_of(int n, wf_var *const *y)
{
    wf_var *loss = NULL;
    for (int i = 0; i < n; i++) {
        wf_var *one = wf_mean(wf_mul(y[i], y[i]));
        loss = loss ? wf_add(loss, one) : one;
    }
    return loss;
}

/* --- both ------------------------------------------------------------------------------------------------------------
 */

typedef struct both {
    const specs *all;
    const char *what;
    wf_layer *chain;
    serial serial;
    wf_tape *tape, *serial_tape;
    const char *in[MOST_ENDS], *out[MOST_ENDS], *all_out[MOST_VALUES];
    int n_in, n_out, n_all_out;
    wf_var *x[MOST_ENDS], *y[MOST_ENDS];
} both;

static both both_open(const specs *all, const char *what)
{
    both b = {.all = all, .what = what, .chain = chain_of(all)};
    b.serial = (serial){.all = all, .net = serial_net(all)};
    b.tape = wf_tape_new(ctx);
    b.serial_tape = wf_tape_new(ctx);
    b.n_in = outside(all, rank, false, b.in);
    b.n_out = outside(all, rank, true, b.out);
    b.n_all_out = outside(all, -1, true, b.all_out);
    WF_EXPECT_OK(wf_multi_node_chain_connect(b.chain));
    return b;
}

static void both_close(both *b)
{
    wf_tape_free(b->tape);
    wf_tape_free(b->serial_tape);
    wf_layer_free(b->chain);
    wf_layer_free(b->serial.net);
}

static void expect_tensor(const both *b, const char *which, const wf_tensor *seen, const wf_tensor *should)
{
    WF_EXPECT(seen && should && wf_tensor_count(seen) == wf_tensor_count(should), "%s, rank %d: no %s", b->what, rank,
              which);
    if (!seen || !should || wf_tensor_count(seen) != wf_tensor_count(should))
        return;
    const int64_t n = wf_tensor_count(seen);
    double *mine = calloc((size_t)n + 1, sizeof *mine), *theirs = calloc((size_t)n + 1, sizeof *theirs);
    values_get(seen, mine);
    values_get(should, theirs);
    const double tolerance = wf_tensor_dtype(seen) == WF_F64 ? 1e-14 : 1e-5;
    WF_EXPECT(test_distance(n, mine, theirs) <= tolerance, "%s, rank %d of %d: %s is off by %g", b->what, rank, size,
              which, test_distance(n, mine, theirs));
    free(mine);
    free(theirs);
}

static void expect_params(const both *b, bool gradients)
{
    wf_param *const *params;
    int64_t n;
    WF_EXPECT_OK(wf_layer_params(b->chain, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_param *theirs = wf_layer_param(b->serial.net, strchr(wf_param_path(params[i]), '/') + 1);
        expect_tensor(b, wf_param_path(params[i]), gradients ? wf_param_grad(params[i]) : wf_param_value(params[i]),
                      gradients ? wf_param_grad(theirs) : wf_param_value(theirs));
    }
}

/* Forward of both; this rank's loss, or its token; *whole: the serial loss. */
static wf_var *forward(both *b, int64_t rows, int step, wf_var **whole)
{
    wf_var *ends[MOST_VALUES];
    run_serial(&b->serial, b->serial_tape, rows, step);
    for (int i = 0; i < b->n_all_out; i++)
        ends[i] = find(&b->serial, b->all_out[i]);
    *whole = loss_of(b->n_all_out, ends);
    for (int i = 0; i < b->n_in; i++)
        b->x[i] = leaf_of(b->tape, b->in[i], rows, step);
    wf_var *y = b->n_in <= 1 && b->n_out <= 1
                    ? wf_apply(b->chain, b->n_in ? b->x[0] : wf_no_loss(b->tape))
                    : wf_multi_node_chain_apply(b->chain, b->tape, b->n_in, b->x, b->n_out, b->y);
    WF_EXPECT(y, "%s, rank %d: %s", b->what, rank, wf_error_trail());
    if (b->n_out == 1)
        b->y[0] = y;
    for (int i = 0; i < b->n_out; i++)
        expect_tensor(b, b->out[i], wf_value(b->y[i]), wf_value(find(&b->serial, b->out[i])));
    return b->n_out > 0 ? loss_of(b->n_out, b->y) : y;
}

static void reset(const both *b)
{
    WF_EXPECT_OK(wf_tape_reset(b->tape));
    WF_EXPECT_OK(wf_tape_reset(b->serial_tape));
}

static void check_gradients(both *b, int64_t rows)
{
    wf_var *whole, *loss = forward(b, rows, 0, &whole);
    WF_EXPECT_OK(wf_backward(whole));
    WF_EXPECT_OK(wf_backward(loss));
    for (int i = 0; i < b->n_in; i++)
        expect_tensor(b, b->in[i], wf_grad(b->x[i]), wf_grad(find(&b->serial, b->in[i])));
    expect_params(b, true);
    reset(b);
}

static void check_steps(both *b, int64_t rows)
{
    const bool trains = wf_layer_param_count(b->chain) > 0;
    const wf_sgd_opts sgd = {.lr = 0.1, .momentum = 0.9};
    wf_optim *optim = wf_sgd(b->chain, sgd), *theirs = wf_sgd(b->serial.net, sgd);
    for (int t = 1; t <= STEPS; t++) {
        wf_var *whole, *loss = forward(b, rows, t, &whole);
        WF_EXPECT_OK(wf_optim_step(theirs, whole));
        WF_EXPECT_OK(trains ? wf_optim_step(optim, loss) : wf_backward(loss));
        reset(b);
    }
    expect_params(b, false);
    wf_optim_free(optim);
    wf_optim_free(theirs);
}

/* Nothing is recorded. */
static void check_evaluation(both *b, int64_t rows)
{
    wf_var *whole;
    WF_EXPECT_OK(wf_tape_set_mode(b->tape, WF_EVAL));
    forward(b, rows, 9, &whole);
    WF_EXPECT_OK(wf_backward(whole));
    reset(b);
    WF_EXPECT_OK(wf_tape_set_mode(b->tape, WF_TRAIN));
}

static void check_topology(topology kind, bool names, int64_t rows)
{
    static specs all;
    if (size == 1 && kind != SELF)
        return;
    topology_of(kind, size, names, &all);
    both b = both_open(&all, topology_name[kind]);
    check_gradients(&b, rows);
    check_steps(&b, rows);
    check_evaluation(&b, rows);
    both_close(&b);
}

static void equal_serial(void)
{
    open_comm(WF_F64);
    for (int kind = 0; kind < TOPOLOGIES; kind++)
        for (int names = 0; names < 2; names++)
            check_topology((topology)kind, names, names ? 3 : 0);
    close_comm();
}

/* Messages that a transport hands over only when their receiver is there. */
static void long_messages(void)
{
    open_comm(WF_F32);
    check_topology(CROSS, true, 40000);
    check_topology(TWIST, true, 40000);
    close_comm();
}

/* --- several applications, and what is not differentiated ----------------------------------------------------------
 */

/* Twice in a step, one behind the other: the second forward's gradients come back first. */
static void applied_twice(void)
{
    static specs all;
    open_comm(WF_F64);
    if (size > 1) {
        topology_of(CROSS, size, true, &all);
        both b = both_open(&all, "twice");
        wf_var *whole[2], *loss[2];
        for (int i = 0; i < 2; i++)
            loss[i] = forward(&b, 3, i, &whole[i]);
        wf_var *sum = rank < 2 ? wf_add(loss[0], loss[1]) : wf_pseudo_connect(loss[0], loss[1]);
        WF_EXPECT_OK(wf_backward(wf_add(whole[0], whole[1])));
        WF_EXPECT_OK(wf_backward(sum));
        expect_params(&b, true);
        reset(&b);
        both_close(&b);
    }
    close_comm();
}

/* Two models side by side, each on a pair of ranks with a batch of its own: the serial program on both batches. */
static void side_by_side(void)
{
    static specs all;
    open_comm(WF_F64);
    if (size == 4) {
        wf_comm *world = comm, *data = wf_comm_split(world, rank % 2, rank);
        const int pair = rank / 2;
        comm = wf_comm_split(world, pair, rank);
        rank %= 2;
        topology_of(CROSS, 2, true, &all);
        both b = both_open(&all, "side by side");
        wf_optim *optim = wf_multi_node(data, wf_sgd(b.chain, (wf_sgd_opts){.lr = 0.2}), (wf_multi_node_opts){0});
        wf_optim *theirs = wf_sgd(b.serial.net, (wf_sgd_opts){.lr = 0.2});
        for (int t = 0; t < STEPS; t++) {
            wf_var *mine, *other, *ends[2], *loss = forward(&b, 3, 10 * t + pair, &mine);
            run_serial(&b.serial, b.serial_tape, 3, 10 * t + 1 - pair);
            for (int i = 0; i < 2; i++)
                ends[i] = find(&b.serial, b.all_out[i]);
            other = loss_of(2, ends);
            WF_EXPECT_OK(wf_optim_step(optim, loss));
            WF_EXPECT_OK(wf_optim_step(theirs, wf_scale(wf_add(mine, other), 0.5)));
            reset(&b);
        }
        expect_params(&b, false);
        wf_optim_free(optim);
        wf_optim_free(theirs);
        both_close(&b);
        WF_EXPECT_OK(wf_comm_close(comm));
        WF_EXPECT_OK(wf_comm_close(data));
        comm = world;
    }
    close_comm();
}

/* A component without an optimizer gives values without a gradient, and no gradient is sent to it. */
static void frozen(void)
{
    open_comm(WF_F64);
    wf_layer *chain = wf_multi_node_chain(comm);
    wf_tape *tape = wf_tape_new(ctx);
    wf_component c = {.name = rank ? "b" : "a", .layer = component_layer()};
    const wf_chain_end out = {.rank = WF_OUTSIDE}, to = {.rank = 1}, from = {.rank = 0};
    c.n_in = c.n_out = 1;
    c.in = rank ? &from : &out;
    c.out = rank ? &out : &to;
    if (size > 1 && rank < 2)
        WF_EXPECT_OK(wf_multi_node_chain_add(chain, c));
    else
        wf_layer_free(c.layer);
    for (int64_t i = 0; rank == 0 && param_of(chain, i); i++)
        WF_EXPECT_OK(wf_param_set_trainable(param_of(chain, i), false));
    wf_tensor *x = input_of("x", 3, 0);
    wf_var *y = wf_apply(chain, wf_input(tape, x));
    WF_EXPECT(y, "%s", wf_error_trail());
    const wf_traffic before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_backward(size > 1 && rank == 1 ? wf_mean(y) : y));
    const wf_traffic after = wf_comm_traffic(comm);
    WF_EXPECT(after.bytes_sent == before.bytes_sent, "%lld bytes of gradients",
              (long long)(after.bytes_sent - before.bytes_sent));
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    wf_layer_free(chain);
    close_comm();
}

/* The bytes of values and gradients, and 8 ahead of each value. */
static void traffic(void)
{
    static specs all;
    open_comm(WF_F64);
    if (size > 1) {
        topology_of(CROSS, size, true, &all);
        both b = both_open(&all, "traffic");
        wf_var *whole;
        const wf_traffic before = wf_comm_traffic(comm);
        WF_EXPECT_OK(wf_backward(forward(&b, 3, 0, &whole)));
        const wf_traffic after = wf_comm_traffic(comm);
        const uint64_t should = rank < 2 ? 2 * 3 * WIDTH * sizeof(double) + 8 : 0;
        WF_EXPECT(after.bytes_sent - before.bytes_sent == should, "%llu bytes, should be %llu",
                  (unsigned long long)(after.bytes_sent - before.bytes_sent), (unsigned long long)should);
        WF_EXPECT_OK(wf_backward(whole));
        reset(&b);
        both_close(&b);
    }
    close_comm();
}

/* After the second step of a loop of fixed shape nothing is asked of the system. */
static void steady(void)
{
    static specs all;
    int64_t after[6] = {0};
    open_comm(WF_F32);
    if (size > 1) {
        topology_of(TWIST, size, true, &all);
        both b = both_open(&all, "steady");
        wf_optim *optim = wf_sgd(b.chain, (wf_sgd_opts){0}), *theirs = wf_sgd(b.serial.net, (wf_sgd_opts){0});
        for (int t = 0; t < 6; t++) {
            wf_var *whole, *loss = forward(&b, 5, t, &whole);
            WF_EXPECT_OK(wf_optim_step(optim, loss));
            WF_EXPECT_OK(wf_optim_step(theirs, whole));
            reset(&b);
            after[t] = wf_ctx_memory(ctx).system_allocations;
        }
        WF_EXPECT(after[5] == after[2], "%lld allocations in steps 4 to 6", (long long)(after[5] - after[2]));
        wf_optim_free(optim);
        wf_optim_free(theirs);
        both_close(&b);
    }
    close_comm();
}

/* --- sequences in pieces -------------------------------------------------------------------------------------------
 */

enum { SEQUENCES = 3, FEATURES = 3 };

/* Every rank has a cell of its own and a piece of all sequences; a rank takes the state from the one before it and
 * hands it on (ChainerMN's MultiNodeNStepRNN). The last rank hands on nothing, so its layer is a component as it is. */
static wf_status hand_on(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    const int *const inputs = user;
    y[0] = wf_recurrent(layer, x, *inputs, &y[1]);
    return y[0] ? WF_OK : wf_error_code();
}

static wf_layer *cell_of(bool gru)
{
    const wf_recurrent_opts o = {.in = FEATURES, .hidden = 5, .levels = 2};
    return gru ? wf_gru(ctx, o) : wf_lstm(ctx, o);
}

static wf_layer *n_step_chain(bool gru)
{
    static int inputs;
    inputs = rank == 0 ? 1 : 2;
    char name[16];
    snprintf(name, sizeof name, "cell%d", rank);
    const wf_chain_end in[] = {{.rank = WF_OUTSIDE}, {.rank = rank - 1, .name = "state"}};
    const wf_chain_end out[] = {{.rank = WF_OUTSIDE}, {.rank = rank + 1, .name = "state", .output = 1}};
    const int outputs = rank + 1 < size ? 2 : 1;
    wf_layer *chain = wf_layer_named(wf_multi_node_chain(comm), "net");
    WF_EXPECT_OK(wf_multi_node_chain_add(chain, (wf_component){.name = name,
                                                               .layer = cell_of(gru),
                                                               .function = outputs > 1 ? hand_on : NULL,
                                                               .user = &inputs,
                                                               .outputs = outputs,
                                                               .n_in = inputs,
                                                               .in = in,
                                                               .n_out = outputs,
                                                               .out = out}));
    WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
    return chain;
}

/* The piece of a rank: of another length on each. */
static wf_var *piece_of(wf_tape *tape, int of)
{
    test_rng rng = {(uint64_t)(100 + of)};
    const wf_shape shape = WF_SHAPE(SEQUENCES, 2 + of % 3, FEATURES);
    double host[SEQUENCES * 4 * FEATURES];
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        host[i] = test_uniform(&rng, -1, 1);
    wf_tensor *t = wf_tensor_from_host(ctx, WF_F64, shape, host);
    wf_var *x = wf_leaf(tape, t);
    wf_tensor_free(t);
    return x;
}

/* All cells one after the other; the outputs and the sum of the losses. */
static wf_var *run_cells(wf_layer *net, wf_var **x, wf_var **y)
{
    wf_var *state = NULL;
    for (int r = 0; r < size; r++) {
        char name[16];
        snprintf(name, sizeof name, "cell%d", r);
        y[r] = wf_recurrent(wf_layer_child(net, name), (wf_var *[]){x[r], state}, r == 0 ? 1 : 2, &state);
    }
    return loss_of(size, y);
}

static void check_cells(bool gru)
{
    both b = {.what = gru ? "gru" : "lstm", .chain = n_step_chain(gru)};
    b.serial.net = wf_layer_named(wf_module(ctx, unused, NULL), "net");
    for (int r = 0; r < size; r++) {
        char name[16];
        snprintf(name, sizeof name, "cell%d", r);
        wf_module_add(b.serial.net, name, cell_of(gru));
    }
    b.tape = wf_tape_new(ctx);
    b.serial_tape = wf_tape_new(ctx);
    const wf_sgd_opts sgd = {.lr = 0.5};
    wf_optim *optim = wf_sgd(b.chain, sgd), *theirs = wf_sgd(b.serial.net, sgd);
    for (int step = 0; step < STEPS; step++) {
        wf_var *x[MOST_ENDS], *y[MOST_ENDS];
        for (int r = 0; r < size; r++)
            x[r] = piece_of(b.serial_tape, r);
        wf_var *const whole = run_cells(b.serial.net, x, y), *const own = piece_of(b.tape, rank);
        wf_var *out;
        WF_EXPECT(wf_multi_node_chain_apply(b.chain, b.tape, 1, &own, 1, &out), "%s", wf_error_trail());
        expect_tensor(&b, "y", wf_value(out), wf_value(y[rank]));
        WF_EXPECT_OK(wf_optim_step(theirs, whole));
        WF_EXPECT_OK(wf_optim_step(optim, loss_of(1, &out)));
        expect_params(&b, true);
        expect_params(&b, false);
        reset(&b);
    }
    wf_optim_free(optim);
    wf_optim_free(theirs);
    both_close(&b);
}

static void multi_node_n_step_rnn(void)
{
    open_comm(WF_F64);
    check_cells(false);
    check_cells(true);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"equal_serial", equal_serial},
                                   {"long_messages", long_messages},
                                   {"applied_twice", applied_twice},
                                   {"side_by_side", side_by_side},
                                   {"frozen", frozen},
                                   {"traffic", traffic},
                                   {"steady", steady},
                                   {"multi_node_n_step_rnn", multi_node_n_step_rnn},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
