/* Everything that core offers to users. */
#ifndef WF_CORE_CORE_H
#define WF_CORE_CORE_H

#include "core/act.h"
#include "core/archive.h"
#include "core/boundary.h"
#include "core/captured.h"
#include "core/context.h"
#include "core/dlpack.h"
#include "core/dtype.h"
#include "core/layout.h"
#include "core/log.h"
#include "core/opts.h"
#include "core/param.h"
#include "core/shape.h"
#include "core/site.h"
#include "core/status.h"
#include "core/tape.h"
#include "core/tensor.h"
#include "core/version.h"

#endif
