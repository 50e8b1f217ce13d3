/* The networks of a DCGAN for images [3,32,32]. All weights start as N(0, 0.02). */
#ifndef EXAMPLES_MODELS_DCGAN_H
#define EXAMPLES_MODELS_DCGAN_H

#include <weft/weft.h>

/* [N,latent] -> [N,3,32,32] in 0 to 1. */
wf_layer *dcgan_generator(wf_ctx *ctx, int64_t channels, int64_t latent);
/* [N,3,32,32] -> logits [N,1]: positive says real. In training it adds noise of 0.2 to its input and before each
 * activation. */
wf_layer *dcgan_discriminator(wf_ctx *ctx, int64_t channels);

#endif
