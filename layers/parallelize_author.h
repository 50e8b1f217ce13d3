/* Models whose layers are split in different ways; for optim/planner.h. */
#ifndef WF_LAYERS_PARALLELIZE_AUTHOR_H
#define WF_LAYERS_PARALLELIZE_AUTHOR_H

#include "core/window.h"
#include "layers/form.h"
#include "layers/layer_author.h"
#include "layers/parallelize.h"

/* How a layer is split: a sum of wf_parallel. Asked for convolution, linear, pooling, upsampling, normalisation, and
 * attention in windows and neighbourhoods. */
typedef unsigned (*wf_parallel_choice)(void *user, const wf_layer *layer);

/* As wf_parallelize, with a choice for each layer. Where a layer needs another layout than what comes, its input is
 * redistributed: a layer that is not split computes the same on all ranks that share its samples. */
wf_status wf_parallelize_by(wf_layer *model, const wf_mesh *mesh, wf_parallel_choice choose, void *user) WF_NODISCARD;

/* --- part.c ---------------------------------------------------------------------------------------------------------
 */
/* The computation of a layer, as far as its cost depends on it. */
typedef enum wf_part_kind {
    WF_PART_OTHER = 0, /* element by element, or unknown */
    WF_PART_CONV,
    WF_PART_LINEAR,
    WF_PART_NORM,
    WF_PART_WINDOW, /* pooling and upsampling */
    WF_PART_GLOBAL_MEAN,
    WF_PART_GLOBAL_MAX,    /* of all pixels */
    WF_PART_ATTENTION,     /* of all tokens: nd is 0 */
    WF_PART_WINDOWS,       /* of the pixels of a window: its lengths are window[d].kernel */
    WF_PART_NEIGHBOURHOOD, /* of the pixels around: window[d].kernel and .dilation */
} wf_part_kind;
typedef struct wf_part_info {
    wf_part_kind kind;
    int64_t in, out, groups; /* channels, or features; 0: none */
    int nd;                  /* of a window; 0: none. Upsampling has none */
    wf_window window[WF_MAX_SPATIAL];
    bool round_lo[WF_MAX_SPATIAL], round_hi[WF_MAX_SPATIAL]; /* beyond this edge the other end follows */
    bool folds;                           /* a boundary adds gradients of what is beyond to where it came from */
    int64_t heads, shift[WF_MAX_SPATIAL]; /* of attention; of its windows */
    bool transposed, replicate;
    wf_form form;
} wf_part_info;
wf_part_info wf_part_of(const wf_layer *layer);
/* A serial layer of the size of one rank's part, to be timed: 1/in of the input channels and 1/out of the output
 * channels, rounded up. NULL without an error for a kind whose cost does not depend on channels. Local. */
wf_layer *wf_part_new(const wf_layer *layer, int64_t in, int64_t out);

#endif
