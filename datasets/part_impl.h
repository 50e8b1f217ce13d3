/* A part of a data set that every rank can read, for wf_mesh_scatter_dataset. */
#ifndef WF_DATASETS_PART_IMPL_H
#define WF_DATASETS_PART_IMPL_H

#include "datasets/dataset_author.h"

/* The samples at places [part.first, part.first + part.count) of `order` (NULL: as they come; read during the call
 * only), each read when it is needed. Owns the data set, which is open. */
wf_dataset *wf_part_dataset(wf_dataset *dataset, wf_dataset_part part, const int64_t *order);

#endif
