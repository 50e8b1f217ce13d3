/* An optimizer that a program brings along: RMSprop whose steps are as long as every layer's parameters say. It is an
 * example of optim/optim_author.h; examples/scaled_rmsprop.c is all of it.
 *
 * g += weight_decay w, v = alpha v + (1 - alpha) g g, d = g / (sqrt(v) + eps), and w moves by lr norm(w) / norm(d)
 * along d. Biases, gamma and beta move by lr along d, without decay.
 *
 *     wf_optim *local = scaled_rmsprop(model, (scaled_rmsprop_opts){.lr = 0.02});
 *     wf_optim *optim = wf_multi_node(comm, local, (wf_multi_node_opts){0});
 */
#ifndef EXAMPLES_SCALED_RMSPROP_H
#define EXAMPLES_SCALED_RMSPROP_H

#include <weft/optim/optim.h>

typedef struct scaled_rmsprop_opts {
    double lr;           /* default 0.01 */
    double alpha;        /* default 0.99; WF_ZERO for 0 */
    double weight_decay; /* default 1e-4; WF_ZERO for 0 */
} scaled_rmsprop_opts;

wf_optim *scaled_rmsprop(wf_layer *model, scaled_rmsprop_opts opts);

#endif
