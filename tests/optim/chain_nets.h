/* What the tests of models over several ranks share: a communicator, components, and their inputs. */
#ifndef WF_TESTS_OPTIM_CHAIN_NETS_H
#define WF_TESTS_OPTIM_CHAIN_NETS_H

#include "layers/chain.h"
#include "layers/communication.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/layers/chain_topologies.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"

enum { WIDTH = 4 };

static inline void open_comm(wf_dtype dtype)
{
    comm = test_comm_open(
        "flat", (wf_ctx_opts){.device = test_device(dtype == WF_F64 ? "ref" : "cpu"), .dtype = dtype, .threads = 1});
    WF_EXPECT(comm, "%s", wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static inline void close_comm(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

/* --- components: the same for all ranks and for the serial program -------------------------------------------------
 */

/* A layer of as many inputs as it is given, which count differently. */
static inline wf_var *join_inputs(wf_layer *self, void *user, wf_var *const *x, int n)
{
    wf_var *sum = x[0];
    for (int i = 1; i < n; i++)
        sum = wf_add(sum, wf_scale(x[i], 1 + 0.25 * i));
    return wf_apply(wf_layer_child(self, "net"), sum);
}

/* The outputs count differently, too. */
static inline wf_status apply_component(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    const spec *s = user;
    wf_var *h = wf_apply_n(layer, x, s->n_in);
    for (int i = 0; i < s->outputs; i++)
        y[i] = wf_scale(h, 1 + 0.5 * i);
    return h ? WF_OK : wf_error_code();
}

static inline wf_layer *component_layer(void)
{
    wf_layer *layer = wf_module_n(ctx, 1, 0, join_inputs, NULL);
    wf_module_add(layer, "net",
                  wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = WIDTH}),
                                               wf_lambda(ctx, wf_tanh))));
    return layer;
}

static inline wf_layer *chain_of(const specs *all)
{
    wf_layer *chain = wf_layer_named(wf_multi_node_chain(comm), "net");
    for (int i = 0; i < all->n; i++) {
        wf_component component = component_of(&all->of[i]);
        component.layer = component_layer();
        component.function = all->of[i].outputs > 1 ? apply_component : NULL;
        component.user = (void *)&all->of[i];
        if (all->of[i].rank == rank)
            WF_EXPECT_OK(wf_multi_node_chain_add(chain, component));
        else
            wf_layer_free(component.layer);
    }
    return chain;
}

/* Elements of the input of this name in step `step`. */
static inline wf_tensor *input_of(const char *name, int64_t rows, int step)
{
    test_rng rng = {(uint64_t)(1000 * step + 1)};
    for (; *name; name++)
        rng.state = rng.state * 31 + (unsigned char)*name;
    wf_tensor *x = wf_tensor_new(ctx, wf_ctx_dtype(ctx), WF_SHAPE(rows, WIDTH));
    double *host = calloc((size_t)(rows * WIDTH) + 1, sizeof *host);
    for (int64_t i = 0; i < rows * WIDTH; i++)
        host[i] = test_uniform(&rng, -1, 1);
    values_set(x, host);
    free(host);
    return x;
}

static inline wf_var *leaf_of(wf_tape *tape, const char *name, int64_t rows, int step)
{
    wf_tensor *x = input_of(name, rows, step);
    wf_var *leaf = wf_leaf(tape, x);
    wf_tensor_free(x);
    return leaf;
}

#endif
