/* The begin of models of tokens: patches of an image as tokens, and patches that are merged. Local, but for the
 * merging of images that ranks share, which is one exchange. */
#ifndef WF_LAYERS_PATCH_H
#define WF_LAYERS_PATCH_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_patch_embed_opts {
    int64_t in, out;     /* channels of the image, features of a token; required */
    int nd;              /* spatial dimensions, 1 to 3; default 2 */
    int64_t patch;       /* length of a patch; required, here or in patch_nd */
    int64_t patch_nd[3]; /* where not 0: that of one dimension */
    bool no_bias;
    wf_init w_init, b_init; /* default: those of a convolution */
} wf_patch_embed_opts;

/* An image [N,in,...] as tokens [N,T,out], one for each patch, row by row: a convolution whose stride is its kernel,
 * then wf_tokens. Pixels behind the last whole patch are left out. A chain: parameters 0/W, 0/b. */
wf_layer *wf_patch_embed(wf_ctx *ctx, wf_patch_embed_opts opts);

typedef struct wf_patch_merging_opts {
    int64_t channels; /* required */
    int64_t out;      /* default: 2 channels */
    int64_t block;    /* length of the blocks that are merged; default 2 */
    double eps;       /* of the normalisation; default 1e-5, WF_ZERO: 0 */
} wf_patch_merging_opts;

/* [N,C,H,W] -> [N,out,H/block,W/block], as in Swin Transformer (Liu et al. 2021): blocks of pixels become channels
 * (wf_merge_patches), which are normalised in each pixel and multiplied by a matrix. H and W are multiples of block.
 * Parts of rows or columns that are cut within a block are moved to whole ones first, in one exchange. A chain:
 * parameters 1/gamma, 1/beta [block block C], 2/W [out,block block C,1,1]. */
wf_layer *wf_patch_merging(wf_ctx *ctx, wf_patch_merging_opts opts);

#ifdef __cplusplus
}
#endif
#endif
