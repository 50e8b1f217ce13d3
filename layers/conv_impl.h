/* What the forms of a convolution share: options, geometry, shapes, parameters. The serial, spatial and other forms
 * differ in how forward and backward run. */
#ifndef WF_LAYERS_CONV_IMPL_H
#define WF_LAYERS_CONV_IMPL_H

#include "core/window.h"
#include "layers/conv.h"
#include "layers/epilogue_impl.h"

/* The state of a convolution layer starts with this. */
typedef struct wf_conv_state {
    const char *name;
    wf_conv_opts opts; /* as they were given */
    bool transposed;   /* the backward-data of the convolution from its output to its input */
    int64_t in, out;
    wf_conv_geom geom;
    int64_t output_pad[WF_MAX_SPATIAL];
    wf_epilogue_opts epilogue;
    wf_param *w, *b; /* b NULL: no bias */
} wf_conv_state;

extern const wf_layer_kind wf_conv_serial;

/* Checks the options and fills in the state of a form `name` with nd spatial dimensions, but for its parameters. */
wf_status wf_conv_state_make(const char *name, int nd, bool transposed, const wf_conv_opts *opts,
                             wf_conv_state *state) WF_NODISCARD;
/* A layer of this kind whose state is `bytes` long and starts with a copy of *state, with parameters W and b. */
wf_layer *wf_conv_layer(wf_ctx *ctx, const wf_layer_kind *kind, const wf_conv_opts *opts, const wf_conv_state *state,
                        size_t bytes);
wf_window wf_conv_window(const wf_conv_geom *geom, int d);
/* The output for x as if it had this shape (the global one). Checks x. */
wf_status wf_conv_output_shape(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_shape *y) WF_NODISCARD;

#endif
