/* Iterators that give the same batches to all ranks of a communicator, for models whose layers are distributed over
 * ranks. */
#ifndef WF_DATASETS_SHARED_H
#define WF_DATASETS_SHARED_H

#include "comm/comm.h"
#include "core/site.h"
#include "datasets/iterator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The batches of one rank, sent to all: only that rank reads. */
typedef struct wf_shared_iter wf_shared_iter;

/* Owns the iterator, which is the root's (others give NULL), of a data set that is not scattered. The communicator
 * is borrowed. Local; if it fails, the other ranks return the error from their next call. */
WF_PLACED wf_shared_iter *wf_shared_batches(wf_comm *comm, wf_iter *iter, int root);
void wf_shared_free(wf_shared_iter *shared);
/* The root's next batch on every rank, borrowed until the next call. A failure of the root's iterator is the same error
 * on all ranks, and the communicator lives on. Collective. */
WF_PLACED wf_status wf_shared_next(wf_shared_iter *shared, wf_batch *batch) WF_NODISCARD;

/* The place of the next batch, as wf_iter_archive has it: that of the root's iterator, on all ranks. A failure of the
 * root is the same error on all ranks. Collective. */
WF_PLACED wf_status wf_shared_archive(wf_shared_iter *shared, struct wf_archive *archive) WF_NODISCARD;
/* wf_shared_archive as a wf_archive_visit. */
wf_status wf_shared_visit(void *shared, struct wf_archive *archive) WF_NODISCARD;

/* Like wf_batches, on data sets that every rank can read, in the same order on all ranks: with rank 0's seed. Checks
 * that the ranks have equally many samples and the same options (WF_ERR_ARGUMENT on all ranks if not). Owns the data
 * set, which is not scattered. Opens it. Collective. */
WF_PLACED wf_iter *wf_synchronized_batches(wf_comm *comm, wf_dataset *dataset, wf_batch_opts opts);

#ifdef __cplusplus
}
#endif

#endif
