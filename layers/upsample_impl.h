/* What the serial and the spatial form of upsampling share. */
#ifndef WF_LAYERS_UPSAMPLE_IMPL_H
#define WF_LAYERS_UPSAMPLE_IMPL_H

#include "layers/layer_author.h"
#include "layers/upsample.h"

/* The state of an upsampling layer starts with this. */
typedef struct wf_upsample_state {
    const char *name;
    wf_upsample_opts opts; /* as they were given */
    wf_resample_geom geom; /* without lengths and places */
} wf_upsample_state;

extern const wf_layer_kind wf_upsample_serial;

/* A layer of this kind whose state is `bytes` long and starts with a wf_upsample_state. */
wf_layer *wf_upsample_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, int nd,
                            const wf_upsample_opts *opts, size_t bytes);
/* Geometry and output for x as if it had this shape (the global one). Checks x. */
wf_status wf_upsample_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_resample_geom *geom,
                          wf_shape *y) WF_NODISCARD;

#endif
