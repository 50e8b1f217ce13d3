/* Training plans: how the ranks of a job share a model. wf-plan starts a program on a few ranks of one machine, which
 * hands its serial model to the planner; the planner measures the kernels of every layer, predicts the time of a step
 * for every way to split the work, and writes the fastest one that fits into memory as a file. The program follows the
 * file on all ranks:
 *
 *     wf-plan --ranks 8 --nodes 2 --memory 4GiB --link 1Gbit -o plan.json -- vgg_cifar --width 32 --batch 256
 *     mpirun -np 8 vgg_cifar --width 32 --batch 256 --plan plan.json
 *
 * What is chosen: the mesh; for each layer whether it is split by channels, by pixels, by both, or not at all; stages
 * of a pipeline, its cuts and its chunks; which layers are recomputed; whether the optimizer's state is sharded.
 * Samples are always divided along `data`.
 *
 * Where the ideas are from: that one configuration a layer (sample, channel, pixel) spans what there is to choose, and
 * that a measured cost of each operator plus the cost of moving its tensors predicts a step, is FlexFlow's (Jia,
 * Zaharia and Aiken, MLSys 2019, SOAP); the model of halos, statistics and sums of spatially parallel convolutions, and
 * the shortest path over the layers' distributions, are those of Dryden et al. (IPDPS 2019); the division into an outer
 * choice of stages with the mesh and an inner choice of how a stage's operators are split is Alpa's (Zheng et al., OSDI
 * 2022), whose inner problem is here a dynamic program over a chain and no integer program.
 *
 * A plan holds for the batch, the ranks and the machine for which it was made. A training plan is not the plan of an
 * exchange (comm/plan_author.h). */
#ifndef WF_OPTIM_PLANNER_H
#define WF_OPTIM_PLANNER_H

#include "core/shape.h"
#include "layers/pipeline.h"
#include "optim/multi_node.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a program can follow, a sum. Samples and the sharded optimizer: every one. */
typedef enum wf_planner_can {
    WF_PLANNER_CHANNEL = 1,   /* wf_training_plan_apply is called, and the loss takes the model's output as it comes */
    WF_PLANNER_SPATIAL = 2,   /* as WF_PLANNER_CHANNEL, and inputs are sharded over the mesh */
    WF_PLANNER_STAGE = 4,     /* wf_pipeline_new with wf_training_plan_pipeline */
    WF_PLANNER_RECOMPUTE = 8, /* wf_training_plan_apply is called */
    WF_PLANNER_DEPTH = 16     /* images are volumes, which may be cut along their depth */
} wf_planner_can;

/* True in a program that wf-plan has started: it calls wf_planner_answer once its serial model and its optimizer are
 * there, and ends. Local. */
bool wf_planner_asks(void);

/* Measures, plans, prints the predictions and writes the files that wf-plan asked for. `optim` is a local optimizer of
 * the model, `input` the shape of the global batch, `can` a sum of wf_planner_can. The model is trained for a few steps
 * on noise. WF_ERR_MEMORY, with one line, where no plan fits. Collective. */
WF_PLACED wf_status wf_planner_answer(wf_comm *comm, wf_layer *model, wf_optim *optim, wf_shape input,
                                      unsigned can) WF_NODISCARD;

/* One of several inputs of a model: of the global batch, as long as the first one. */
typedef struct wf_planner_input {
    wf_shape shape;
    int64_t below; /* whole numbers (WF_I64) from 0 on, below this one; 0: noise of the context's type */
} wf_planner_input;
/* As wf_planner_answer, for a model of n inputs (wf_apply_n). */
WF_PLACED wf_status wf_planner_answer_n(wf_comm *comm, wf_layer *model, wf_optim *optim, int n,
                                        const wf_planner_input *inputs, unsigned can) WF_NODISCARD;

typedef struct wf_training_plan wf_training_plan;

/* Reads a file of wf-plan, on rank 0, for all ranks. NULL, with one line, on all ranks where it cannot be read, is
 * damaged, or is for another number of ranks than `comm` has. Collective. */
WF_PLACED wf_training_plan *wf_training_plan_read(wf_comm *comm, const char *path);
void wf_training_plan_free(wf_training_plan *plan);

/* For wf_mesh_open. */
wf_mesh_opts wf_training_plan_mesh(const wf_training_plan *plan);
/* Samples of the global batch. */
int64_t wf_training_plan_batch(const wf_training_plan *plan);
/* True if some layer is split by pixels: inputs are sharded over the mesh, not over data alone. */
bool wf_training_plan_sharded(const wf_training_plan *plan);
/* For wf_mesh_multi_node: whether the state of the optimizer is sharded. */
wf_multi_node_opts wf_training_plan_multi_node(const wf_training_plan *plan);
/* For wf_pipeline_new, whose loss the program fills in; stages 1: the plan has no pipeline. The list of layers is
 * borrowed. */
wf_pipeline_opts wf_training_plan_pipeline(const wf_training_plan *plan);
/* Splits the layers of the serial model and marks those that are recomputed. `sync_bn`: normalise with the statistics
 * of the whole batch. WF_ERR_ARGUMENT where the plan is one of another model. Where there are stages, before
 * wf_pipeline_new. Local, as wf_parallelize is. */
wf_status wf_training_plan_apply(const wf_training_plan *plan, const wf_mesh *mesh, wf_layer *model,
                                 bool sync_bn) WF_NODISCARD;

/* Compares a run with its plan: called by every rank after each training step, it lets 3 steps pass, profiles 10, and
 * then writes a table of predicted against measured time and bytes, by layer, to this file descriptor, on rank 0; waits
 * for input do not count. Does
 * nothing while the context has another profile. Collective. */
WF_PLACED wf_status wf_training_plan_compare(wf_training_plan *plan, wf_comm *comm, int table) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
