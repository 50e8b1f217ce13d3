/* Constants of activations, and from which of x and y each derivative is computed: for the fillings of the kernel
 * table, which must agree, and for functions, which save that one. */
#ifndef WF_CORE_ACT_AUTHOR_H
#define WF_CORE_ACT_AUTHOR_H

#include "core/act.h"

#include <stdbool.h>

/* Returns true if the derivative of an activation is computed from its input, false if from its output. */
static inline bool wf_act_by_x(wf_act act)
{
    switch (act) {
    case WF_ACT_GELU:
    case WF_ACT_SOFTPLUS:
    case WF_ACT_SILU:
    case WF_ACT_GELU_TANH:
    case WF_ACT_HARD_SWISH:
    case WF_ACT_LOG:
    case WF_ACT_POW:
    case WF_ACT_ABS:
        return true;
    default:
        return false;
    }
}

/* The numbers of SELU: lambda, lambda times alpha; and of GELU by tanh: sqrt(2 / pi), and the factor of the cube. */
#define WF_SELU_SCALE 1.0507009873554804934193349852946
#define WF_SELU_ALPHA 1.7580993408473768599402175208123
#define WF_GELU_SCALE 0.79788456080286535587989211986876
#define WF_GELU_CUBE  0.044715

#endif
