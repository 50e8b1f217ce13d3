/* Everything that datasets offers to users. */
#ifndef WF_DATASETS_DATASETS_H
#define WF_DATASETS_DATASETS_H

#include "datasets/dataset.h"
#include "datasets/hdf5.h"
#include "datasets/image.h"
#include "datasets/iterator.h"
#include "datasets/netcdf.h"
#include "datasets/readers.h"
#include "datasets/scatter.h"
#include "datasets/shared.h"
#include "datasets/streamed.h"
#include "datasets/transforms.h"

#endif
