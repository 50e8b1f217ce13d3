/* An optimizer that a program brings along: LARS, steps of stochastic gradient descent whose length every layer sets
 * for itself, for large batches (You, Gitman and Ginsburg 2017, in the form of You et al. 2020). It is an example of
 * optim/optim_author.h; examples/lars.c is all of it.
 *
 * m = momentum m + g + weight_decay w, and w moves by lr norm(w) / norm(m) along m. Biases, gamma and beta move by lr
 * along m, without decay.
 *
 *     wf_optim *optim = wf_multi_node(comm, lars(model, (lars_opts){.lr = 0.02}));
 */
#ifndef EXAMPLES_LARS_H
#define EXAMPLES_LARS_H

#include <weft/optim/optim.h>

typedef struct lars_opts {
    double lr;           /* default 0.01 */
    double momentum;     /* default 0.9; WF_ZERO for 0 */
    double weight_decay; /* default 1e-4; WF_ZERO for 0 */
} lars_opts;

wf_optim *lars(wf_layer *model, lars_opts opts);

#endif
