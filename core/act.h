/* Activations by name. */
#ifndef WF_CORE_ACT_H
#define WF_CORE_ACT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Activations. `slope` is the negative slope of leaky ReLU and the alpha of ELU. */
typedef enum wf_act {
    WF_ACT_NONE = 0,
    WF_ACT_RELU,
    WF_ACT_LEAKY_RELU,
    WF_ACT_ELU,
    WF_ACT_GELU, /* the exact one, by erf */
    WF_ACT_SIGMOID,
    WF_ACT_TANH,
    WF_ACT_SOFTPLUS,
    WF_ACTS
} wf_act;

#ifdef __cplusplus
}
#endif
#endif
