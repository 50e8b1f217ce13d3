/* Data sets over the ranks of a communicator: divided from one rank's data set, or joined from those of all ranks. */
#ifndef WF_DATASETS_SCATTER_H
#define WF_DATASETS_SCATTER_H

#include "comm/mesh.h"
#include "core/site.h"
#include "datasets/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_scatter_opts {
    bool shuffle;  /* one random order before the division, and another order of each part in every epoch */
    uint64_t seed; /* of the order; default: the context's */
    int root;      /* the rank that reads */
    /* With n samples over P ranks, rank i holds [floor(n i / P), floor(n i / P) + ceil(n / P)): parts may overlap.
     * Default: every sample once, the first n mod P ranks hold one more. */
    bool force_equal_length;
    /* Nothing is sent or kept: every rank gives the same data set (WF_ERR_ARGUMENT if it is of another count or
     * shape) and reads its own samples from it when they are needed; of sharded images it reads only its own pixels
     * where the reader can do that. For files that all ranks can open. Random transforms given are applied anew in
     * every epoch, in the first one as if the samples were sent. */
    bool each_reads;
    size_t round_bytes; /* most bytes that the root reads ahead; default 32 MiB */
} wf_scatter_opts;

/* The root opens the data set and sends each rank its part, which is kept in memory; every rank gets a data set of its
 * part. Only the root's argument is used (others may give NULL, or the same unopened data set), and every rank's is
 * consumed. A failure on the root, such as a missing file, is the same error on all ranks. Transforms given on the root
 * are applied once. Collective. */
WF_PLACED wf_dataset *wf_scatter_dataset(wf_comm *comm, wf_dataset *dataset, wf_scatter_opts opts);

/* Like wf_scatter_dataset over a mesh: samples are sharded over its data axis, and the ranks along the other axes hold
 * the same ones. Batches have layouts of this mesh, so that they go into its layers as they are; for images whose
 * pixels are sharded too, see wf_batch_opts. `root` is a rank of the whole mesh, which is borrowed. Collective over the
 * mesh. */
WF_PLACED wf_dataset *wf_mesh_scatter_dataset(const wf_mesh *mesh, wf_dataset *dataset, wf_scatter_opts opts);

/* Joins the data sets that the ranks already have (their own files) into one; parts may have any length. A rank that
 * has used up its part gives empty batches, which have no weight, until the longest part ends. Samples must have the
 * same shape and type (WF_ERR_SHAPE on all ranks if not); a rank without samples may give wf_empty_dataset(ctx,
 * NULL). Owns the data set and opens it; a failure to do so on one rank is the same error on all. Collective. */
WF_PLACED wf_dataset *wf_joined_dataset(wf_comm *comm, wf_dataset *dataset);

/* The numbers of this rank's samples of n, as wf_scatter_dataset would give them; n and seed are the root's. The caller
 * calls free() on *index. Collective. */
WF_PLACED wf_status wf_scatter_index(wf_comm *comm, int64_t n, wf_scatter_opts opts, int64_t *count,
                                     int64_t **index) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
