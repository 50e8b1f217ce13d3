/* The serial form of the fully connected layer, for those that swap it. */
#ifndef WF_LAYERS_LINEAR_IMPL_H
#define WF_LAYERS_LINEAR_IMPL_H

#include "layers/layer_author.h"
#include "layers/linear.h"

extern const wf_layer_kind wf_linear_serial;
/* The options of such a layer. */
wf_linear_opts wf_linear_given(const wf_layer *layer);

#endif
