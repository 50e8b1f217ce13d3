/* Early stopping by a mean that is known, for this folder. */
#ifndef WF_OPTIM_EARLY_STOP_IMPL_H
#define WF_OPTIM_EARLY_STOP_IMPL_H

#include "optim/early_stop.h"

/* As wf_early_stop_observe, of a mean that all ranks have already. *better: it is the best so far. Local. */
void wf_early_stop_take(wf_early_stop *stop, double mean, bool *better, bool *stops);

#endif
