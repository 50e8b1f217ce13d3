/* Parameters: named tensors that a layer learns or keeps. Local. */
#ifndef WF_CORE_PARAM_H
#define WF_CORE_PARAM_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_param wf_param;

typedef enum wf_init_kind {
    WF_INIT_DEFAULT = 0,    /* the layer's choice, documented there */
    WF_INIT_CONSTANT,       /* a */
    WF_INIT_NORMAL,         /* mean a, standard deviation b */
    WF_INIT_UNIFORM,        /* [a, b) */
    WF_INIT_LECUN_NORMAL,   /* N(0, a^2/fan_in); a 0 means 1 in this and the next five */
    WF_INIT_LECUN_UNIFORM,  /* U(-l, l), l = a sqrt(3/fan_in) */
    WF_INIT_GLOROT_NORMAL,  /* N(0, 2 a^2/(fan_in+fan_out)) */
    WF_INIT_GLOROT_UNIFORM, /* l = a sqrt(6/(fan_in+fan_out)) */
    WF_INIT_HE_NORMAL,      /* N(0, 2 a^2/fan_in) */
    WF_INIT_HE_UNIFORM,     /* l = a sqrt(6/fan_in) */
    WF_INIT_ORTHOGONAL,     /* rows (or columns, whichever are fewer) orthonormal, times a (0 means 1) */
    WF_INIT_TRUNC_NORMAL,   /* WF_INIT_NORMAL without the numbers further than 2 b from a; their deviation is 0.88 b */
} wf_init_kind;

typedef struct wf_init {
    wf_init_kind kind;
    double a, b;
} wf_init;

/* The name is "W"; the path adds the names of the layers above, "gen/conv1/W". Both are valid until the layer is
 * moved into another one. */
const char *wf_param_name(const wf_param *param);
const char *wf_param_path(const wf_param *param);
/* The value; borrowed. It is initialised at its first use, with random numbers keyed by the path (wf_layer_path).
 * NULL on failure. */
wf_tensor *wf_param_value(wf_param *param);
/* The gradient of the last backward, or NULL if there was none; borrowed. */
wf_tensor *wf_param_grad(wf_param *param);
wf_shape wf_param_shape(const wf_param *param);
/* Which part of the serial parameter this rank holds: its global shape, this rank's box, and for each mesh axis over
 * which it is sharded the dimension that is. The mesh is not named (NULL): it is the layer's. */
wf_layout wf_param_layout(const wf_param *param);
/* False for running statistics and other values that backward and optimizers do not change. */
bool wf_param_trainable(const wf_param *param);
/* Excludes a parameter from gradients and updates, or includes it again. */
wf_status wf_param_set_trainable(wf_param *param, bool trainable);

#ifdef __cplusplus
}
#endif
#endif
