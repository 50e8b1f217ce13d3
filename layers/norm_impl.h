/* Batch normalisation with the statistics of several ranks: what comes between computing and using them. */
#ifndef WF_LAYERS_NORM_IMPL_H
#define WF_LAYERS_NORM_IMPL_H

#include "comm/mesh.h"
#include "core/window.h"
#include "layers/layer_author.h"
#include "layers/norm.h"

/* All but `user` may be NULL. A merge is owned by its layer. */
typedef struct wf_norm_merge {
    /* mean and m2 of x (rows 0 and 1 of stats [2,C]), of which this rank has `count` elements per channel, become those
     * of all that share statistics, and `all` (f64 scalar) the count of those. */
    wf_status (*stats)(void *user, const wf_tensor *x, double count, const wf_array *stats, const wf_array *all);
    /* Sums of g and g xhat (rows of [2,C]) become those of all. */
    wf_status (*sums)(void *user, const wf_tensor *x, const wf_array *sums);
    /* This rank fails where others may be waiting for it; returns the status. */
    wf_status (*failed)(void *user, wf_status status);
    void (*free)(void *user);
    void *user;
} wf_norm_merge;

/* Takes `merge`, even on failure. */
wf_layer *wf_batchnorm_merged(wf_ctx *ctx, wf_batchnorm_opts opts, wf_norm_merge merge);

/* The layer is a batch normalisation, merged or not. */
bool wf_norm_is(const wf_layer *layer);
bool wf_norm_is_merged(const wf_layer *layer);
/* The options of a batch normalisation. */
wf_batchnorm_opts wf_norm_given(const wf_layer *layer);
/* From now on a batch normalisation that was not merged shares its statistics; takes `merge`. Parameters, name and path
 * stay. */
void wf_norm_set_merge(wf_layer *layer, wf_norm_merge merge);
/* From now on the layer takes inputs that hold these channels alone; the caller cuts the parameters likewise. */
void wf_norm_set_part(wf_layer *layer, wf_range part);

/* Over the ranks of a communicator, which is borrowed. *merge is for one layer. */
wf_status wf_norm_merge_over(wf_comm *comm, wf_norm_merge *merge) WF_NODISCARD;
/* Over the ranks of a mesh, which is borrowed, along the spatial axes that cut the input at hand, and with `samples`
 * along data too. *merge is for one layer. */
wf_status wf_norm_merge_mesh(const wf_mesh *mesh, bool samples, wf_norm_merge *merge) WF_NODISCARD;

#endif
