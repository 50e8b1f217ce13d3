/* Activations by name. */
#ifndef WF_CORE_ACT_H
#define WF_CORE_ACT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Activations, and functions of one number that are computed like them. `slope` is the negative slope of leaky ReLU,
 * the alpha of ELU, and the exponent of pow. */
typedef enum wf_act {
    WF_ACT_NONE = 0,
    WF_ACT_RELU,
    WF_ACT_LEAKY_RELU,
    WF_ACT_ELU,
    WF_ACT_GELU, /* the exact one, by erf */
    WF_ACT_SIGMOID,
    WF_ACT_TANH,
    WF_ACT_SOFTPLUS,
    WF_ACT_SILU,       /* x sigmoid(x) */
    WF_ACT_GELU_TANH,  /* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
    WF_ACT_HARD_SWISH, /* x min(max(x + 3, 0), 6) / 6 */
    WF_ACT_SELU,       /* 1.0507 x, or 1.0507 1.6733 (exp(x) - 1) where x < 0 */
    WF_ACT_EXP,
    WF_ACT_LOG,
    WF_ACT_SQRT,
    WF_ACT_POW,
    WF_ACT_ABS, /* derivative 0 at 0 */
    WF_ACTS
} wf_act;

#ifdef __cplusplus
}
#endif
#endif
