/* The activation and noise that convolution and normalisation apply in the pass that makes their output. */
#ifndef WF_LAYERS_EPILOGUE_IMPL_H
#define WF_LAYERS_EPILOGUE_IMPL_H

#include "layers/layer_author.h"

typedef struct wf_epilogue_opts {
    wf_act act;
    double slope, noise;
} wf_epilogue_opts;

/* Checks the options of a layer `what` and fills in the default slope. */
wf_status wf_epilogue_check(const char *what, wf_epilogue_opts *opts) WF_NODISCARD;
/* What the options mean for the output y on this tape: no noise in evaluation; random numbers for y's part. */
wf_epilogue wf_epilogue_on(const wf_epilogue_opts *opts, wf_tape *tape, const wf_tensor *y);
/* False: y is as it is without. */
bool wf_epilogue_acts(const wf_epilogue *epilogue);

#endif
