/* How the ranks share the work, as options say: --parallel, --mesh, --sync-bn, or as wf-plan has chosen: --plan. */
#ifndef EXAMPLES_PARALLEL_H
#define EXAMPLES_PARALLEL_H

#include "examples/common.h"

typedef struct parallel {
    const char *how;  /* "data", "channel", "spatial", or "mesh": channels and pixels at once */
    const char *axes; /* "height=2,width=2"; NULL: all ranks along the axis that `how` suggests. data takes the rest */
    bool fixed;       /* `how` is the program's own: it has no --parallel */
    int dims;         /* of an image: 3 for volumes; 0 means 2 */
    bool sync_bn;
    const char *plan;          /* file of wf-plan, in place of `how` and `axes`; NULL: none */
    wf_training_plan *planned; /* what is in it */
    wf_mesh *mesh;
    wf_comm *samples; /* the ranks that read different samples; borrowed from the mesh */
    bool counts;      /* of the ranks that have the same samples this is the first: the one that counts them */
    bool sharded;     /* images are cut: for wf_batch_opts */
} parallel;

/* Reads the ranks along axes, as "height=2,width=2"; false if the text is not like this, or names
 * an axis twice. */
bool parallel_axes(const char *text, wf_mesh_opts *axes);
/* Opens mesh and samples; ends the program, with a line from rank 0, if the options are wrong. Collective. */
void parallel_open(parallel *p, wf_comm *comm);
void parallel_close(parallel *p);
/* In a program that wf-plan has started: gives it the serial model and its optimizer, which are freed, and closes the
 * mesh and the communicator; the program's exit code. `input` is the whole batch, `can` a sum of wf_planner_can. */
int parallel_answer(parallel *p, wf_comm *comm, wf_layer *model, wf_optim *optim, wf_shape input, unsigned can);
/* Samples of each place along data: `batch`, or its part where a plan divides it, or all of it for wf-plan. */
int64_t parallel_batch(const parallel *p, wf_comm *comm, int64_t batch);
/* As wf_mesh_multi_node. */
wf_optim *parallel_optim(const parallel *p, wf_optim *optim);
/* After each step of a training: with a plan, a few of them are compared with it. */
void parallel_compare(const parallel *p, wf_comm *comm);
/* Swaps the layers of a model. Ends the program if it cannot be split like this. */
void parallel_model(const parallel *p, wf_comm *comm, wf_layer *model);

/* The option of a file of wf-plan. */
#define EXAMPLE_PLAN(target)                                                                                           \
    {                                                                                                                  \
        "plan", "FILE", "share the model as this file of wf-plan says, in place of --parallel and --mesh",             \
            .text = (target)                                                                                           \
    }

#endif
