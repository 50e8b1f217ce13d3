/* The inside of this folder. */
#ifndef WF_FIT_FIT_IMPL_H
#define WF_FIT_FIT_IMPL_H

#include "fit/fit.h"

/* An option that must be the same on all ranks. */
typedef struct wf_fit_number {
    const char *name;
    int64_t value;
} wf_fit_number;

/* Compares these options of all ranks, at most WF_FIT_NUMBERS: WF_ERR_ARGUMENT on all ranks names the first one that
 * differs, and two ranks. Collective. */
enum { WF_FIT_NUMBERS = 12 };
wf_status wf_fit_agree(wf_comm *comm, const char *function, int count, const wf_fit_number *mine) WF_NODISCARD;

#endif
