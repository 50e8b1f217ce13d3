/* How the ranks share the work, as options say: --parallel, --mesh, --sync-bn. */
#ifndef EXAMPLES_PARALLEL_H
#define EXAMPLES_PARALLEL_H

#include "examples/common.h"

typedef struct parallel {
    const char *how;  /* "data", "channel", "spatial", or "mesh": channels and pixels at once */
    const char *axes; /* "height=2,width=2"; NULL: all ranks along the axis that `how` suggests. data takes the rest */
    int dims;         /* of an image: 3 for volumes; 0 means 2 */
    bool sync_bn;
    wf_mesh *mesh;
    wf_comm *samples; /* the ranks that read different samples; borrowed from the mesh */
    bool counts;      /* of the ranks that have the same samples this is the first: the one that counts them */
    bool sharded;     /* images are cut: for wf_batch_opts */
} parallel;

/* Opens mesh and samples; ends the program, with a line from rank 0, if the options are wrong. Collective. */
void parallel_open(parallel *p, wf_comm *comm);
void parallel_close(parallel *p);
/* Swaps the layers of a model. Ends the program if it cannot be split like this. */
void parallel_model(const parallel *p, wf_comm *comm, wf_layer *model);

#endif
