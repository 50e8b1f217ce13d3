/* Models over several ranks that cannot be: refused before anything is sent, with the same error on every rank. */
#include "core/status_author.h"
#include "layers/chain_author.h"
#include "tests/optim/chain_nets.h"

typedef void (*planting)(specs *all);

static void nobody_gives(specs *all)
{
    all->of[1].in[0].rank = 1; /* of the ring's second component */
}

static void nobody_takes(specs *all)
{
    all->of[0].out[0].rank = 0;
}

static void two_givers(specs *all)
{
    spec *again = &all->of[all->n++];
    *again = all->of[0];
    again->rank = 1;
    snprintf(again->name, NAME, "again");
    again->in[0].rank = WF_OUTSIDE;
    again->out[0] = (wf_chain_end){.rank = 0, .name = "round_2"};
}

static void other_shape(specs *all)
{
    all->of[0].out[0].shape = WF_SHAPE(0, 4);
    all->of[1].in[0].shape = WF_SHAPE(0, 5);
}

static void other_name(specs *all)
{
    all->of[1].in[0].name = "around";
}

/* The ring's last component, on rank 0, is added first. */
static void circle(specs *all)
{
    const spec kept = all->of[0];
    all->of[0] = all->of[all->n - 1];
    all->of[all->n - 1] = kept;
    point_names(all, true);
}

static void same_component(specs *all)
{
    snprintf(all->of[1].name, NAME, "%s", all->of[0].name);
}

/* What all ranks together send to know each other's steps, and to agree on an error of one of them. */
static double described_bytes(const specs *all)
{
    int count[16] = {0}, most = 0;
    for (int i = 0; i < all->n; i++) {
        int *n = &count[all->of[i].rank];
        *n += all->of[i].n_in + 1 + all->of[i].n_out;
        most = *n > most ? *n : most;
    }
    const size_t each = sizeof(int64_t) + (size_t)most * sizeof(wf_chain_step), first = sizeof(int64_t), error = 1024;
    return (size - 1) * (size * (double)(each + first) + (double)error);
}

/* Since this rank had sent `before`; of all ranks. */
static double sent_since(uint64_t before)
{
    double bytes = (double)(wf_comm_traffic(comm).bytes_sent - before);
    WF_EXPECT_OK(wf_allreduce_f64(comm, &bytes, 1, WF_SUM));
    return bytes;
}

/* On every rank the same error, now and when the model is applied; nothing of the model is sent, and the communicator
 * goes on. */
static void expect_refused(const specs *all, const char *const says[2])
{
    char message[1024];
    wf_layer *chain = chain_of(all);
    wf_tape *tape = wf_tape_new(ctx);
    const uint64_t before = wf_comm_traffic(comm).bytes_sent;
    wf_status status = wf_multi_node_chain_connect(chain);
    WF_EXPECT(status == WF_ERR_STATE, "rank %d: %s", rank, wf_error_message());
    for (int k = 0; k < 2; k++)
        WF_EXPECT(strstr(wf_error_message(), says[k]), "rank %d: '%s' does not say '%s'", rank, wf_error_message(),
                  says[k]);
    snprintf(message, sizeof message, "%s", wf_error_message());
    wf_error_clear();
    const double sent = sent_since(before);
    WF_EXPECT(sent == described_bytes(all), "rank %d: %g bytes are sent, not %g", rank, sent, described_bytes(all));
    const wf_var *y = wf_apply(chain, rank == 0 ? leaf_of(tape, "x", 3, 0) : wf_no_loss(tape));
    WF_EXPECT(!y && wf_error_code() == WF_ERR_STATE && strstr(wf_error_message(), message),
              "rank %d: '%s', and applied: '%s'", rank, message, wf_error_message());
    wf_error_clear();
    wf_tape_free(tape);
    wf_layer_free(chain);
}

static void refused(void)
{
    static const struct {
        planting plant;
        const char *says[2];
    } list[] = {
        {nobody_gives, {"rank 0, step 2 (pass_0 gives \"round_1\" to rank 1)", "takes \"round_1\" from rank 1"}},
        {nobody_takes, {"rank 0, step 2 (pass_0 gives \"round_1\" to rank 0)", "rank 0 never takes it"}},
        {two_givers, {"rank 1, step", "to rank 0)"}},
        {other_shape, {"rank 0, step 2 (pass_0 gives \"round_1\" to rank 1), [0,4]", "[0,5]"}},
        {other_name, {"messages do not meet: rank 0, step 2", "rank 1, step 0 (pass_1 takes \"around\""}},
        {circle, {"in a circle", "(last_0 takes"}},
        {same_component, {"rank 1, step 1: a component \"pass_0\"", "on rank 0 already"}},
    };
    static specs all;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        open_comm(WF_F64);
        if (size > 1) {
            topology_of(CYCLE, size, true, &all);
            list[i].plant(&all);
            expect_refused(&all, list[i].says);
        }
        close_comm();
    }
}

/* What is given to the outside, or to the own rank, has the shape that the giver says. */
static void shape_of_an_output(void)
{
    for (int outside = 0; outside < 2; outside++) {
        open_comm(WF_F64);
        wf_layer *chain = wf_multi_node_chain(comm);
        wf_tape *tape = wf_tape_new(ctx);
        const int to = outside ? WF_OUTSIDE : 0;
        if (rank == 0) {
            WF_EXPECT_OK(wf_multi_node_chain_add(chain, (wf_component){.name = "a",
                                                                       .layer = component_layer(),
                                                                       WF_FROM({.rank = WF_OUTSIDE}),
                                                                       WF_TO({.rank = to, .shape = WF_SHAPE(0, 5)})}));
            if (!outside)
                WF_EXPECT_OK(wf_multi_node_chain_add(chain, (wf_component){.name = "b",
                                                                           .layer = component_layer(),
                                                                           WF_FROM({.rank = 0}),
                                                                           WF_TO({.rank = WF_OUTSIDE})}));
        }
        WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
        wf_var *y = wf_apply(chain, rank == 0 ? leaf_of(tape, "x", 3, 0) : wf_no_loss(tape));
        WF_EXPECT(rank > 0 ||
                      (!y && strstr(wf_error_message(), outside ? "gives output 0 to outside): [3,4], should be"
                                                                : "gives output 0 to rank 0): [3,4], should be")),
                  "rank %d: '%s'", rank, wf_error_message());
        wf_error_clear();
        wf_tape_free(tape);
        wf_layer_free(chain);
        close_comm();
    }
}

/* One rank has no input: it says so, and ranks that wait for it are told. */
static void input_is_null(void)
{
    static specs all;
    for (int many = 0; many < 2; many++) {
        open_comm(WF_F64);
        if (size > 1) {
            topology_of(CYCLE, size, true, &all);
            wf_layer *chain = chain_of(&all);
            wf_tape *tape = wf_tape_new(ctx);
            WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
            wf_error_clear();
            wf_var *none = NULL, *out,
                   *y = rank > 0 ? wf_apply(chain, wf_no_loss(tape))
                        : many   ? wf_multi_node_chain_apply(chain, tape, 1, &none, 1, &out)
                                 : wf_apply(chain, NULL);
            WF_EXPECT(!y && strstr(wf_error_message(), "multi_node_chain \"net\": its input is NULL"), "rank %d: '%s'",
                      rank, wf_error_message());
            WF_EXPECT(rank > 0 || wf_error_code() == WF_ERR_ARGUMENT, "%s", wf_status_name(wf_error_code()));
            wf_error_clear();
            wf_tape_free(tape);
            wf_layer_free(chain);
        }
        close_comm();
    }
}

/* The message alone shows it: the giver's or the taker's shape is another than it says. Both have the error; ranks that
 * wait for neither may learn of it later. */
static void shape_at_the_message(void)
{
    static specs all;
    for (int taker = 0; taker < 2; taker++) {
        open_comm(WF_F64);
        if (size > 1) {
            topology_of(CYCLE, size, true, &all);
            *(taker ? &all.of[1].in[0] : &all.of[0].out[0]) =
                (wf_chain_end){.rank = taker ? 0 : 1, .name = "round_1", .shape = WF_SHAPE(0, 5)};
            wf_layer *chain = chain_of(&all);
            wf_tape *tape = wf_tape_new(ctx);
            WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
            WF_EXPECT(!wf_apply(chain, rank == 0 ? leaf_of(tape, "x", 3, 0) : wf_no_loss(tape)) || rank > 1,
                      "rank %d goes on", rank);
            WF_EXPECT(rank > 1 || strstr(wf_error_message(), "[3,4], should be [0,5]"), "rank %d: '%s'", rank,
                      wf_error_message());
            wf_error_clear();
            wf_tape_free(tape);
            wf_layer_free(chain);
        }
        close_comm();
    }
}

static wf_status leaves_nothing(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    return WF_OK;
}

/* A component fails on one rank: those that wait for it, in either direction, have its error. */
static wf_status fails(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    return WF_RAISE(WF_ERR_NUMERIC, "no number came out of rank %d", rank);
}

static void one_rank_fails(void)
{
    static specs all;
    for (int silent = 0; silent < 2; silent++) {
        open_comm(WF_F64);
        if (size > 1) {
            topology_of(CYCLE, size, true, &all);
            wf_layer *chain = wf_multi_node_chain(comm);
            wf_tape *tape = wf_tape_new(ctx);
            for (int i = 0; i < all.n; i++) {
                wf_component c = component_of(&all.of[i]);
                c.function = rank != 1 ? apply_component : silent ? leaves_nothing : fails;
                c.user = &all.of[i];
                c.layer = all.of[i].rank == rank ? component_layer() : NULL;
                if (c.layer)
                    WF_EXPECT_OK(wf_multi_node_chain_add(chain, c));
            }
            WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
            WF_EXPECT(!wf_apply(chain, rank == 0 ? leaf_of(tape, "x", 3, 0) : wf_no_loss(tape)), "rank %d goes on",
                      rank);
            WF_EXPECT(strstr(wf_error_message(), silent ? "\"pass_1\" left output 0 NULL" : "out of rank 1"),
                      "rank %d: '%s'", rank, wf_error_message());
            wf_error_clear();
            wf_tape_free(tape);
            wf_layer_free(chain);
        }
        close_comm();
    }
}

/* A rank that calls no backward, and closes the communicator: whoever waits for the gradient says of which component.
 */
static void no_backward(void)
{
    static specs all;
    open_comm(WF_F64);
    if (size == 1) {
        close_comm();
        return;
    }
    topology_of(CYCLE, size, true, &all);
    wf_layer *chain = chain_of(&all);
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
    wf_var *y = wf_apply(chain, rank == 0 ? leaf_of(tape, "x", 3, 0) : wf_no_loss(tape));
    WF_EXPECT(y, "%s", wf_error_trail());
    if (rank == 0)
        WF_EXPECT(wf_backward(wf_mean(y)) == WF_ERR_COMM &&
                      strstr(wf_error_message(), "the gradient of what pass_0 gives") &&
                      strstr(wf_error_message(), "for rank 1"),
                  "'%s'", wf_error_message());
    else if (rank > 1)
        WF_EXPECT(wf_backward(y) == WF_OK || strstr(wf_error_message(), "pass_0"), "'%s'", wf_error_message());
    wf_error_clear();
    wf_tape_free(tape);
    wf_layer_free(chain);
    wf_comm_close(comm);
    wf_error_clear();
}

static void expect_says(wf_layer *chain, wf_component c, const char *says)
{
    WF_EXPECT(wf_multi_node_chain_add(chain, c) == WF_ERR_ARGUMENT && strstr(wf_error_message(), says),
              "\"%s\" expected: '%s'", says, wf_error_message());
    wf_error_clear();
}

/* Components that cannot be say the value, and what would be right. */
static void components(void)
{
    open_comm(WF_F64);
    wf_layer *chain = wf_multi_node_chain(comm);
    const wf_shape shape[] = {{.rank = -1}, {.rank = 7}, {.rank = 99}, {.rank = 2, .dim = {4, -3}}};
    static const char *const says[] = {"a shape of -1 dimensions; should be 1 to 6", "a shape of 7 dimensions",
                                       "a shape of 99 dimensions", "dimension 1 has length -3; should be 1 or more"};
    for (int i = 0; i < 4; i++) {
        expect_says(chain,
                    (wf_component){.name = "a",
                                   .layer = component_layer(),
                                   WF_FROM({.rank = WF_OUTSIDE, .shape = shape[i]}),
                                   WF_TO({.rank = WF_OUTSIDE})},
                    says[i]);
        expect_says(chain,
                    (wf_component){.name = "a",
                                   .layer = component_layer(),
                                   WF_FROM({.rank = WF_OUTSIDE}),
                                   WF_TO({.rank = WF_OUTSIDE, .shape = shape[i]})},
                    says[i]);
    }
    wf_component c = {.name = "a", WF_FROM({.rank = WF_OUTSIDE}), WF_TO({.rank = WF_OUTSIDE})};
    expect_says(chain, c, "the .layer of component \"a\" is NULL");
    c.layer = component_layer();
    c.outputs = -2;
    expect_says(chain, c, "has -2 outputs; should be 1 or more");
    wf_layer_free(chain);
    close_comm();
}

static void misuse(void)
{
    open_comm(WF_F64);
    wf_layer *chain = wf_multi_node_chain(comm), *other = component_layer();
    wf_tape *tape = wf_tape_new(ctx);
    wf_component c = {.name = "a", .layer = component_layer(), WF_FROM({.rank = WF_OUTSIDE}), WF_TO({.rank = rank})};
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_multi_node_chain_add(NULL, c));
    c.layer = component_layer();
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_multi_node_chain_add(other, c));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_multi_node_chain_connect(other));
    c.layer = component_layer();
    c.name = "a b";
    WF_EXPECT(wf_multi_node_chain_add(chain, c) == WF_ERR_ARGUMENT, "%s", wf_error_message());
    WF_EXPECT(wf_multi_node_chain_connect(NULL) == WF_ERR_ARGUMENT && strstr(wf_error_message(), "chain is NULL"),
              "the error that was returned before: '%s'", wf_error_message());
    wf_error_clear();
    c.layer = NULL;
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_multi_node_chain_add(chain, c));
    /* What was refused left nothing. */
    WF_EXPECT_OK(wf_multi_node_chain_connect(chain));
    c.name = "a";
    c.layer = component_layer();
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_multi_node_chain_add(chain, c));
    wf_var *y;
    WF_EXPECT(!wf_multi_node_chain_apply(chain, tape, 0, NULL, 1, &y), "an output that there is not");
    WF_EXPECT(strstr(wf_error_message(), "is asked for 1 outputs"), "'%s'", wf_error_message());
    wf_error_clear();
    wf_tape_free(tape);
    wf_layer_free(chain);
    wf_layer_free(other);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"refused", refused},
                                   {"shape_at_the_message", shape_at_the_message},
                                   {"shape_of_an_output", shape_of_an_output},
                                   {"input_is_null", input_is_null},
                                   {"components", components},
                                   {"one_rank_fails", one_rank_fails},
                                   {"no_backward", no_backward},
                                   {"misuse", misuse},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
