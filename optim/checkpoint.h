/* Checkpoints: the whole state of a training run, in one HDF5 file for each generation. A run that was stopped
 * continues bit for bit on the same ranks, and can be loaded by any other number of ranks.
 *
 *     wf_checkpoint *saves = wf_checkpoint_open(comm, "run1", (wf_checkpoint_opts){.every = 1000});
 *     wf_checkpoint_add_model(saves, "model", model);   wf_checkpoint_add_optim(saves, "optim", optim);
 *     wf_checkpoint_add(saves, "tape", wf_tape_visit, tape);
 *     wf_checkpoint_add(saves, "batches", wf_iter_visit, iter);
 *     wf_checkpoint_load_latest(saves, &step);          where there is none, step stays
 *     while (...) { one step, wf_tape_reset;  wf_checkpoint_step(saves, ++step, &leave); }
 *
 * A file "ckpt-00000012.h5" is generation 12. Rank 0 creates its layout, and every rank writes a part: the rows of a
 * replicated tensor are divided among the ranks, and of a sharded tensor each rank writes its own part. The file is
 * written under a temporary name, synchronised to disk and renamed; only then are older files removed. The HDF5 part,
 * which any tool reads, is followed by a manifest with a checksum for every MiB; the manifest and the checksums are
 * verified before anything is loaded from a file.
 *
 * Models whose parts are on several ranks (stages of a pipeline, ranks of a multi_node_chain) are saved by one
 * checkpoint over all of these, wf_mesh_world, in one file of one generation: it has the whole serial model and its
 * optimizer state, by the serial parameters' paths, and any other number of stages loads it. Everything else that is
 * added has the same names, types and shapes on all ranks: WF_ERR_ARGUMENT names an entry and two ranks otherwise. A
 * signal to one stage is one to all.
 *
 * A save is made after wf_tape_reset: between steps, or between wf_optim_accumulate and its wf_optim_step, whose
 * gradients are then saved too. The pending update of double buffering is made first (wf_optim_flush). Tensors in the
 * file are those of the serial program, in logical order, so any mesh, number of ranks and form of the model loads
 * them. Running statistics and numbers that differ between ranks are saved for each rank; another number of ranks loads
 * those of rank 0. Accumulated gradients are saved for each rank, and as their sum, which rank 0 of another partition
 * loads. The position in the data is saved as samples of the epoch; if the global batch has another size after loading,
 * the iterator skips as many whole batches as fit into the samples that were used.
 */
#ifndef WF_OPTIM_CHECKPOINT_H
#define WF_OPTIM_CHECKPOINT_H

#include "comm/mesh.h"
#include "optim/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_checkpoint wf_checkpoint;

typedef struct wf_checkpoint_opts {
    int64_t keep;       /* newest generations that stay; default 3, at least 1 */
    int64_t keep_every; /* generations whose number is a multiple of this stay too; default: none */
    int64_t every;      /* steps between two saves of wf_checkpoint_step; default: only when a signal came */
    /* A save waits only until its tensors are copied; a thread, which never calls MPI, writes them. The file is
     * renamed in a later wf_checkpoint_step, wf_checkpoint_save or wf_checkpoint_close, on all ranks together; the
     * last two wait for the thread. */
    bool async;
    bool signals;        /* SIGTERM, SIGINT and SIGUSR1 save and leave: see wf_checkpoint_step */
    const wf_mesh *mesh; /* recorded in the file as text; may be NULL */
} wf_checkpoint_opts;

/* The folder is made if it is not there; all ranks must see the same one (WF_ERR_IO). One job at a time saves into it:
 * a run that has `every` or `signals` locks it here, another one at its first save, until wf_checkpoint_close.
 * WF_ERR_STATE names the job that holds the lock, and says what to do; the lock of one that has ended on this machine
 * is taken over, with a warning. Loading needs no lock. A folder that cannot be written, but has a generation, is
 * opened with a warning: the run can be loaded from it, and every save is WF_ERR_IO. The communicator has all ranks
 * that hold a part of the run, and is borrowed, as is what is added. Collective. */
WF_PLACED wf_checkpoint *wf_checkpoint_open(wf_comm *comm, const char *folder, wf_checkpoint_opts opts);
/* Completes an asynchronous save and frees the object; a failed write is reported here at the latest. Collective. */
WF_PLACED wf_status wf_checkpoint_close(wf_checkpoint *checkpoint) WF_NODISCARD;

/* Adds an object to the checkpoint, under a name of its own; all ranks add the same objects in the same order.
 * Local. */
wf_status wf_checkpoint_add(wf_checkpoint *checkpoint, const char *name, wf_archive_visit visit, void *object);
wf_status wf_checkpoint_add_model(wf_checkpoint *checkpoint, const char *name, wf_layer *model);
wf_status wf_checkpoint_add_optim(wf_checkpoint *checkpoint, const char *name, wf_optim *optim);
wf_status wf_checkpoint_add_i64(wf_checkpoint *checkpoint, const char *name, int64_t *value);
wf_status wf_checkpoint_add_f64(wf_checkpoint *checkpoint, const char *name, double *value);

/* Saves a new generation. WF_ERR_IO on all ranks if any rank could not write: the file is not created, earlier files
 * stay, and training may continue. With `async` the error may belong to the save before. Collective. */
WF_PLACED wf_status wf_checkpoint_save(wf_checkpoint *checkpoint, int64_t step) WF_NODISCARD;
/* Call this after every step. Saves if a save is due. If any rank has received a signal, all ranks save and complete
 * the save, and *leave is true on all of them: the program then calls wf_checkpoint_close and wf_barrier and ends
 * with WF_CHECKPOINT_EXIT, or, if that last save failed, which is an error here, with WF_CHECKPOINT_UNSAVED_EXIT. A
 * second SIGINT ends the process at once. After wf_checkpoint_close the handlers are those
 * from before; SIGUSR1 is ignored if it had none. Collective if signals are on or an asynchronous
 * save is in progress; otherwise local except in steps that save. */
WF_PLACED wf_status wf_checkpoint_step(wf_checkpoint *checkpoint, int64_t step, bool *leave) WF_NODISCARD;
#define WF_CHECKPOINT_EXIT         85
#define WF_CHECKPOINT_UNSAVED_EXIT 86

/* Loads the newest generation that is whole on every rank; *step becomes the step at which it was saved, and does not
 * change if there is no file at all. A file that is damaged, or that a rank cannot read, is named in a warning, and
 * the one before is used; WF_ERR_FORMAT if all are damaged. Another job may save meanwhile. Also WF_ERR_FORMAT if an
 * object of the run is not in the file or has another shape there; the run may then have been loaded in part.
 * Collective. */
WF_PLACED wf_status wf_checkpoint_load_latest(wf_checkpoint *checkpoint, int64_t *step) WF_NODISCARD;
/* The number of the generation that was loaded or saved last; -1 before. */
int64_t wf_checkpoint_generation(const wf_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
