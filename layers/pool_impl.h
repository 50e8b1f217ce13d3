/* What the serial and the spatial form of pooling share: options, geometry, shapes. */
#ifndef WF_LAYERS_POOL_IMPL_H
#define WF_LAYERS_POOL_IMPL_H

#include "core/window.h"
#include "layers/layer_author.h"
#include "layers/pool.h"

/* The state of a pooling layer starts with this. */
typedef struct wf_pool_state {
    const char *name;
    wf_pool_opts opts; /* as they were given */
    wf_pool_geom geom; /* nd 0: one window over the whole input */
    bool ceil;
} wf_pool_state;

extern const wf_layer_kind wf_pool_serial;

/* A layer of this kind whose state is `bytes` long and starts with a wf_pool_state. opts NULL: a global pool, nd 0. */
wf_layer *wf_pool_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, wf_pool_kind pool, int nd,
                        const wf_pool_opts *opts, size_t bytes);
wf_window wf_pool_window(const wf_pool_geom *geom, int d);
/* Geometry and output for x as if it had this shape (the global one). Checks x. */
wf_status wf_pool_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_pool_geom *geom,
                      wf_shape *y) WF_NODISCARD;

#endif
