/* Autoencoders of images of 28x28 pixels: of dense layers, and of convolutions. */
#ifndef EXAMPLES_AUTOENCODER_H
#define EXAMPLES_AUTOENCODER_H

#include <weft/weft.h>

#define AUTOENCODER_CODE 32

/* Codes that an evaluation has computed, on the rank that computes them. */
typedef struct autoencoder_codes {
    int64_t count, most;
    float *code; /* AUTOENCODER_CODE each */
} autoencoder_codes;

/* x [N,1,28,28] -> logits [N,1,28,28]: 784, `depth` hidden layers of `width`, 32, and the same back. A chain of
 * 2 (depth + 1) layers, each with its activation, that may be cut anywhere. On a tape in WF_EVAL the codes are
 * collected. */
wf_layer *autoencoder(wf_ctx *ctx, int64_t depth, int64_t width, autoencoder_codes *codes);
/* x [N,1,28,28] -> pixels from 0 to 1, [N,1,28,28]: convolutions 1-8-64 of kernel 3 without padding, 36864-32, and the
 * same back by transposed convolutions, the last one with a sigmoid. A chain of 6 layers; codes as above. */
wf_layer *autoencoder_convolutional(wf_ctx *ctx, autoencoder_codes *codes);

#endif
