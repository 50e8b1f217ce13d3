/* The convolution that a rank does on its part of the channels. */
#ifndef WF_LAYERS_CHANNEL_LOCAL_IMPL_H
#define WF_LAYERS_CHANNEL_LOCAL_IMPL_H

#include "layers/channel_impl.h"

/* Groups that are whole, or one of which a part is here. */
typedef struct wf_channel_piece {
    wf_range outer, inner; /* relative to the tensors */
    int64_t groups;
} wf_channel_piece;

/* Between the outer channels, dimension 0 of the filter, and the inner ones, dimension 1 for each group. A convolution
 * goes from the inner to the outer ones, its transposed form the other way. */
typedef struct wf_channel_local {
    int pieces; /* 1: bias and epilogue may be given */
    wf_channel_piece piece[3];
} wf_channel_local;

typedef enum wf_channel_way {
    WF_TO_OUTER = 0, /* conv_forward */
    WF_TO_INNER,     /* conv_backward_data */
} wf_channel_way;

typedef struct wf_channel_call {
    const wf_channel_local *local;
    wf_conv_geom geom; /* but for groups */
    wf_ctx *ctx;
    wf_channel_way way;
} wf_channel_call;

wf_channel_local wf_channel_local_of(const wf_channel_split *split);
/* Arrays are dense and channels-last. `from` is the other side of what the way says. bias and epilogue may be NULL. */
wf_status wf_channel_local_run(const wf_channel_call *call, const wf_array *from, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *to) WF_NODISCARD;
/* dbias (may be NULL) as conv_backward_filter has it, where there is one piece. */
wf_status wf_channel_local_filter(const wf_channel_call *call, const wf_array *inner, const wf_array *outer,
                                  const wf_array *dw, const wf_array *dbias, bool add) WF_NODISCARD;

#endif
