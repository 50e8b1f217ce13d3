/* How channel-parallel layers (layers/channel.h) split their weights; serial layers ignore it. */
#ifndef WF_LAYERS_FORM_H
#define WF_LAYERS_FORM_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_form {
    WF_FORM_AUTO = 0, /* whichever moves fewer words */
    WF_FORM_FILTER,   /* a rank computes some of the outputs from all inputs (linear: columns) */
    WF_FORM_CHANNEL,  /* a rank computes what some of the inputs contribute to all outputs; the contributions are summed
                         (linear: rows) */
    WF_FORM_BOTH,     /* a rank computes some of the outputs from some of the inputs */
} wf_form;

#ifdef __cplusplus
}
#endif
#endif
