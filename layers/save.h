/* Model files: the parameters and running statistics of a model in HDF5.
 *
 * The layout is Chainer's: one group a layer, one data set a parameter ("conv1/W"), in the logical order of dimensions
 * and in the parameter's own type, so that h5py reads such files and writes them, and Chainer too. A file holds the
 * serial model, whatever layers are parallel, and on however many ranks its parts are (stages of a pipeline, ranks of a
 * multi_node_chain), so any other form of the model loads it: the serial one, or a pipeline of other stages. Beside
 * "avg_var" files have "N", which counts the batches that running statistics have seen; a model that was loaded is
 * saved with the same count, to which Weft adds nothing. Checkpoints do not hold it. The filter of a layer whose input
 * goes on beyond its edges, and not by zeros, has an attribute "padding_mode": "circular", "reflect", "replicate"
 * (as PyTorch has them, see tools/from_pytorch.py), "symmetric", "constant", or "mixed" where padded sides differ.
 *
 * Functions without a communicator are collective over the first one of the model's context, and local where there is
 * none. Rank 0 alone reads and writes files. A failure there is the same error on all ranks, and the communicator stays
 * usable. WF_ERR_ARGUMENT, on all ranks, names a parameter and two ranks if ranks have other parameters than their part
 * of the model explains, or the same one in other shapes.
 */
#ifndef WF_LAYERS_SAVE_H
#define WF_LAYERS_SAVE_H

#include "comm/comm.h"
#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes under a temporary name, brings it to disk and then renames, so that `path` is always a whole file. A symbolic
 * link stays, and the file that it leads to is replaced; a folder, a pipe or a device is WF_ERR_IO. Running statistics
 * are rank 0's (wf_allreduce_persistent brings them together). */
WF_PLACED wf_status wf_save(wf_layer *model, const char *path) WF_NODISCARD;
/* Every parameter must be in the file, with its shape (WF_ERR_FORMAT names it, and nothing is changed); floats of
 * another size are converted; other contents of the file are ignored. Where the file has a filter's padding_mode, the
 * padded sides of the layer must be so too; WF_ERR_FORMAT names both. It tells the edges of the sides, and neither a
 * constant's value nor the options of a pole. */
WF_PLACED wf_status wf_load(wf_layer *model, const char *path) WF_NODISCARD;
/* Loads what the file and the model have in common, by name and shape, for fine-tuning. *left_out gets one line for
 * everything else: "fc/W: [10,512] here, [1000,512] in the file", "fc/b: not in the file", "old/W: not in the model";
 * "" where there is nothing. The caller calls free() on it; left_out may be NULL. */
WF_PLACED wf_status wf_load_partial(wf_layer *model, const char *path, char **left_out) WF_NODISCARD;

/* Save and load models over the ranks of another communicator. */
WF_PLACED wf_status wf_save_over(wf_comm *comm, wf_layer *model, const char *path) WF_NODISCARD;
WF_PLACED wf_status wf_load_over(wf_comm *comm, wf_layer *model, const char *path) WF_NODISCARD;
WF_PLACED wf_status wf_load_partial_over(wf_comm *comm, wf_layer *model, const char *path,
                                         char **left_out) WF_NODISCARD;

/* The value of the serial parameter of which the ranks hold parts; a handle to be freed. Collective where the parameter
 * is sharded, over a communicator with all of its parts, else local. */
WF_PLACED wf_tensor *wf_param_gather(wf_comm *comm, wf_param *param);
/* The value becomes this rank's part of `whole`, which has the serial parameter's shape. Local. */
wf_status wf_param_import(wf_param *param, const wf_tensor *whole) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
