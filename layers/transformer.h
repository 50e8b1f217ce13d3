/* Layers of transformers over tokens [N,T,E], row-major: linear layers of tokens, attention of several heads, blocks.
 *
 * With a mesh, heads and hidden features are cut over its channel axis (Shoeybi et al. 2019, "Megatron-LM"): a rank has
 * whole heads, in balanced blocks that may be uneven, and computes them alone. Tokens are whole on every rank of the
 * axis, so their variables need a layout; samples may be sharded over data. Attention sends one sum of [N,T,E] over
 * the axis in forward and one in backward, and so do the two linear layers of a block; nothing else is sent. Initial
 * values, dropout and results are those of the serial layers. With or without a mesh, tokens may be sharded over
 * another axis: attention is then wf_attention_tokens (of heads that are cut a ring), and everything else needs no
 * message. Such models train with wf_mesh_multi_node. Without a mesh, on tokens that are not shared, all of it is
 * local. */
#ifndef WF_LAYERS_TRANSFORMER_H
#define WF_LAYERS_TRANSFORMER_H

#include "comm/mesh.h"
#include "layers/attention.h"
#include "layers/form.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero means the default, here and below. */
typedef struct wf_token_linear_opts {
    int64_t in, out; /* required */
    bool no_bias;
    wf_init w_init;      /* default: LeCun normal, fan_in = in */
    wf_init b_init;      /* default: 0 */
    const wf_mesh *mesh; /* NULL: serial. Borrowed; must outlive the layer */
    wf_form form;        /* with a mesh. WF_FORM_FILTER: a rank has a part of the outputs, y is sharded along its last
                            dimension; WF_FORM_CHANNEL: of the inputs, along which x is sharded, and y is the sum */
    int64_t unit;        /* with a mesh: so many neighbouring features stay on one rank; 1 */
} wf_token_linear_opts;

/* y = x W^T + b over the last dimension: [N,T,in] -> [N,T,out], or of more dimensions. Parameters W [out,in], b [out].
 */
wf_layer *wf_token_linear(wf_ctx *ctx, wf_token_linear_opts opts);

typedef struct wf_class_token_opts {
    int64_t features; /* required */
    wf_init w_init;   /* default: 0 */
} wf_class_token_opts;

/* A learned token in front of those of every sample: [N,T,E] -> [N,T + 1,E]. Parameter W [E]. Samples may be sharded.
 */
wf_layer *wf_class_token(wf_ctx *ctx, wf_class_token_opts opts);

typedef struct wf_rotary_opts {
    int64_t length;   /* required: the most tokens */
    int64_t heads;    /* 1 */
    int64_t features; /* required: of a head; even */
    double base;      /* 10000 */
} wf_rotary_opts;

/* Rotary positions (Su et al. 2021): features c and c + D/2 of a head of D are turned by t base^(-2 c / D) at token t,
 * so that products of queries and keys depend on the difference of their places. [N,T,heads D]; tokens and whole heads
 * may be sharded. */
wf_layer *wf_rotary(wf_ctx *ctx, wf_rotary_opts opts);

typedef struct wf_multihead_opts {
    int64_t features; /* required */
    int64_t heads;    /* required: a divisor of features */
    bool causal, no_bias;
    double dropout;   /* of the weights */
    int64_t relative; /* rows of a learned table of relative positions, odd (wf_attention_opts.bias); 0: none */
    int64_t rotary;   /* rotary positions of at most so many tokens; 0: none */
    wf_init w_init;
    const wf_mesh *mesh;
    wf_attention_cut cut; /* how ranks share tokens that an axis cuts (layers/attention.h) */
    bool paired;          /* of the ring, for causal masks */
} wf_multihead_opts;

/* Multi-head attention of tokens x to themselves, or, of two inputs, to those of the second. Children query, key, value
 * and out, each a wf_token_linear; parameter relative [rows,heads]. With WEFT_LOG=debug a line says how tokens that
 * ranks share come together, and the bytes of both ways. */
wf_layer *wf_multihead(wf_ctx *ctx, wf_multihead_opts opts);

typedef struct wf_window_attention_opts {
    int64_t features, heads; /* as above */
    int64_t window;          /* pixels along a side of a window; required, here or in window_nd */
    int64_t shift;           /* by so many pixels windows begin late: half of the window in every second block; 0 */
    int64_t window_nd[2], shift_nd[2]; /* along H and W; those that are not 0 take the place of the ones above */
    bool no_bias;                      /* of queries, keys and values */
    double dropout;                    /* of the weights */
    wf_init w_init;
    const wf_mesh *mesh; /* cuts heads, as above */
} wf_window_attention_opts;

/* Multi-head attention within windows of an image [N,C,H,W] of any size (Liu et al. 2021, "Swin Transformer"). As in
 * torchvision the image is padded with zeros at its end to whole windows (a padding pixel is a token like any other,
 * but has no output); shifted windows hold pixels of both ends of the image, which do not see each other; along a side
 * of one window there is no shift. Children query, key, value and out, each a wf_token_linear; parameter relative
 * [(2 window - 1)^2,heads], by the difference of the places of query and key: row by row, then column.
 *
 * Samples, rows and columns may be sharded at any bounds, also into empty parts. Each rank computes the windows whose
 * first pixel it has: one exchange brings their pixels, one takes the outputs back, and backward has the same two. The
 * result is that of the serial layer. Collective over the axes that cut rows and columns. */
wf_layer *wf_window_attention(wf_ctx *ctx, wf_window_attention_opts opts);

typedef struct wf_neighbourhood_attention_opts {
    int64_t features, heads; /* as above */
    int nd;                  /* spatial dimensions, 1 to 3; 2 */
    int64_t kernel;   /* pixels along each dimension that a pixel sees, odd or even; required, here or in kernel_nd */
    int64_t dilation; /* steps between them; 1 */
    int64_t kernel_nd[3], dilation_nd[3]; /* those that are not 0 take the place of the ones above */
    double scale;                         /* of the products of queries and keys; 1 / sqrt(features of a head) */
    bool no_relative;                     /* no table of relative positions */
    bool no_bias;                         /* of queries, keys and values */
    wf_init w_init;
    const wf_mesh *mesh; /* cuts heads, as above */
} wf_neighbourhood_attention_opts;

/* Multi-head attention of each pixel of an image [N,C,L], [N,C,H,W] or [N,C,D,H,W] to those around it (Hassani et al.
 * 2023, "Neighborhood Attention Transformer"), by NATTEN's rule. Along a dimension of L pixels, with kernel k and
 * dilation r, pixel i sees k pixels that are i modulo r. Let i be the g-th of n such pixels: it sees those from the
 * clamp(g - k / 2, 0, n - k)-th on. So an even kernel has one pixel more before i than behind it, at the borders the
 * window is moved inside, and every pixel sees exactly k. k r > L is WF_ERR_SHAPE. Children query, key, value and out,
 * each a wf_token_linear; parameter relative [heads,2 k - 1,...], NATTEN's rpb: entry (place of the key - place of the
 * query) / r + k - 1 along each dimension is added to the score. No dropout of weights. Memory is linear in the pixels.
 *
 * Samples and pixels may be sharded at any bounds, one axis a dimension, also into parts smaller than the kernel and
 * into empty ones. Each rank computes its pixels: one exchange brings the keys and values around them, up to k r - r
 * pixels beyond each side, and backward has the same one, reversed. The result is that of the serial layer. Collective
 * over the axes that cut pixels. */
wf_layer *wf_neighbourhood_attention(wf_ctx *ctx, wf_neighbourhood_attention_opts opts);

typedef struct wf_transformer_block_opts {
    int64_t features, heads; /* as above */
    int64_t hidden;          /* of the linear layers; 4 features */
    bool causal;
    double dropout;   /* of the weights, and of what is added to x */
    double drop_path; /* stochastic depth */
    int64_t relative, rotary;
    double eps; /* of the normalisations; 1e-5 */
    wf_init w_init;
    const wf_mesh *mesh;
    wf_attention_cut cut; /* as above */
    bool paired;
} wf_transformer_block_opts;

/* y = x + attention(norm1(x)), then y + mlp(norm2(y)), mlp of two linear layers with GELU between them. Children norm1,
 * attention, norm2, up, down. */
wf_layer *wf_transformer_block(wf_ctx *ctx, wf_transformer_block_opts opts);

#ifdef __cplusplus
}
#endif
#endif
