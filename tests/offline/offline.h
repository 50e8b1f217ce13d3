/* core/cuda on the emulated device with the real cuDNN, which plans for a GPU that is not there (cudnn-h100.json).
 *
 * Calls of core/cuda are sent here by the linker (-Wl,--wrap): target.c puts the GPU's properties before cuDNN,
 * execute.c computes what a plan would, and calls a convolution without an engine an error. */
#ifndef WF_TESTS_OFFLINE_H
#define WF_TESTS_OFFLINE_H

#include "core/cuda/dnn_impl.h"

/* What was asked of cuDNN so far: keys; those that found no plan, or no plan as they stand; those that are compiled. */
typedef struct offline_counts {
    int keys, refused, compiled;
    double longest_ms;
} offline_counts;

offline_counts offline_so_far(void);

#endif
