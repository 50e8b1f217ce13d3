/* ResNet-18 for small images. */
#ifndef EXAMPLES_MODELS_RESNET_H
#define EXAMPLES_MODELS_RESNET_H

#include <weft/weft.h>

/* Four stages of two blocks with `width` (0: 64), 2, 4 and 8 times as many channels; the first convolution is 3x3 with
 * stride 1: [N,3,H,W] -> scores [N,classes] (0: 10). */
wf_layer *resnet18(wf_ctx *ctx, int64_t width, int64_t classes);

#endif
