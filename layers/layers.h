/* Everything that layers offer to users. */
#ifndef WF_LAYERS_LAYERS_H
#define WF_LAYERS_LAYERS_H

#include "layers/chain.h"
#include "layers/channel.h"
#include "layers/communication.h"
#include "layers/conv.h"
#include "layers/embedding.h"
#include "layers/form.h"
#include "layers/functions.h"
#include "layers/group_norm.h"
#include "layers/layer.h"
#include "layers/layerscale.h"
#include "layers/linear.h"
#include "layers/loss.h"
#include "layers/mesh_conv.h"
#include "layers/mesh_norm.h"
#include "layers/norm.h"
#include "layers/pad.h"
#include "layers/parallelize.h"
#include "layers/pipeline.h"
#include "layers/pool.h"
#include "layers/positions.h"
#include "layers/prelu.h"
#include "layers/recompute.h"
#include "layers/redistribute.h"
#include "layers/save.h"
#include "layers/skip.h"
#include "layers/spatial.h"
#include "layers/sync_norm.h"
#include "layers/upsample.h"

#endif
