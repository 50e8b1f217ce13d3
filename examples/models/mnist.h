/* Networks for images [1,28,28] of ten classes: [N,1,28,28] -> scores [N,10]. */
#ifndef EXAMPLES_MODELS_MNIST_H
#define EXAMPLES_MODELS_MNIST_H

#include <weft/weft.h>

wf_layer *mnist_mlp(wf_ctx *ctx); /* 784-1000-1000-10 with ReLU */
wf_layer *mnist_cnn(wf_ctx *ctx); /* two convolutions with pooling, two linear layers */
/* BasicNet of docs/tutorial-ladder.md; gives log-probabilities [N,10]. */
wf_layer *mnist_basic(wf_ctx *ctx, bool dropout);

#endif
