/* Batch normalisation with the statistics of several ranks. It is the model of a layer whose forward and backward sum
 * over ranks: wf_norm_merge in layers/serial/serial_impl.h is what the serial form leaves open, and
 * layers/parallel/sync_norm.c fills it. */
#ifndef WF_LAYERS_SYNC_NORM_H
#define WF_LAYERS_SYNC_NORM_H

#include "comm/comm.h"
#include "layers/norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As wf_batchnorm (same options, parameters and names), with the statistics of all elements that the ranks of `comm`
 * hold: all ranks, or a group (wf_comm_split, wf_mesh_comm). Ranks may hold different numbers of samples, or none.
 * The input may also be sharded over spatial dimensions, then `comm` must hold all parts of its samples
 * (WF_ERR_ARGUMENT): wf_mesh_comm(mesh, axes) of the spatial axes alone gives the statistics of this rank's samples
 * over all their pixels, and with WF_AXIS_DATA's bit those of all samples. It computes what wf_batchnorm computes on
 * one rank that holds everything, with the same bits of mean, variance and running statistics on all ranks. Gradients
 * of gamma and beta are this rank's share of the sum. One collective in each direction. With P ranks in `comm` and C
 * channels a rank sends: forward, an all-gather of 16 C + 48 bytes, (P-1) (16 C + 48); backward, an all-reduce of 16 C
 * bytes (comm/comm.h), (P-1) 16 C where they are few.
 *
 * Applied in training, and differentiated, by all ranks of `comm` equally often and in the same order; in evaluation
 * it is local. A failure on one rank is the same error on all. `comm` is borrowed and must outlive the layer. */
wf_layer *wf_sync_batchnorm(wf_comm *comm, wf_batchnorm_opts opts);

#ifdef __cplusplus
}
#endif
#endif
