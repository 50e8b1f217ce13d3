/* Weft: everything a program needs. Installed as <weft/weft.h>. */
#ifndef WF_WEFT_H
#define WF_WEFT_H

#include "comm/comm.h"
#include "comm/mesh.h"
#include "core/core.h"
#include "datasets/datasets.h"
#include "fit/fit.h"
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "optim/confusion.h"
#include "optim/early_stop.h"
#include "optim/ema.h"
#include "optim/evaluator.h"
#include "optim/multi_node.h"
#include "optim/optim.h"
#include "optim/planner.h"
#include "optim/profiler.h"
#include "optim/schedule.h"
#include "optim/study.h"
#include "optim/tensorboard.h"
#include "optim/trainer.h"

#include <weft_places.h>

#endif
