/* Checkpoints: everything that a run is, in one HDF5 file per generation, so that a run that was stopped goes on bit
 * for bit, on the same ranks, or on any others.
 *
 *     wf_checkpoint *saves = wf_checkpoint_open(comm, "run1", (wf_checkpoint_opts){.every = 1000});
 *     wf_checkpoint_add_model(saves, "model", model);   wf_checkpoint_add_optim(saves, "optim", optim);
 *     wf_checkpoint_add(saves, "tape", wf_tape_visit, tape);
 *     wf_checkpoint_add(saves, "batches", wf_iter_visit, iter);
 *     wf_checkpoint_load_latest(saves, &step);          where there is none, step stays
 *     while (...) { one step, wf_tape_reset;  wf_checkpoint_step(saves, ++step, &leave); }
 *
 * A file "ckpt-00000012.h5" is generation 12. Rank 0 lays it out, every rank writes its part of it: the rows of a
 * replicated tensor are dealt out, of a sharded one each rank writes what it has. It is written under a temporary name,
 * brought to disk and renamed, and older ones go only then. Behind the HDF5 part, which any tool reads, lies a manifest
 * with a sum for every MiB; both the manifest and the sums are checked before anything is taken from a file.
 *
 * A save is made between steps (after wf_tape_reset), not between wf_optim_accumulate and its wf_optim_step. What
 * double buffering has in flight is completed first (wf_optim_flush). Tensors in the file are those of the serial
 * program, in logical order, so any mesh, number of ranks and form of the model loads them. Running statistics that
 * differ from rank to rank are kept for each; another number of ranks takes those of rank 0. The data position is that
 * of the epoch; where a batch is another part of the epoch than it was, as many whole batches are skipped as fit into
 * what was used.
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
    /* A save waits for the copy of its tensors alone; a thread, which never calls MPI, writes. The file gets its name
     * in a later wf_checkpoint_step, _save or _close, on all ranks together; the last two wait for it. */
    bool async;
    bool signals;        /* SIGTERM, SIGINT and SIGUSR1 save and leave: see wf_checkpoint_step */
    const wf_mesh *mesh; /* noted in the file, in words; may be NULL */
} wf_checkpoint_opts;

/* The folder is made if it is not there; all ranks must see the same one (WF_ERR_IO). The communicator has all ranks
 * that hold a part of the run, and is borrowed, as is what is added. Collective. */
WF_PLACED wf_checkpoint *wf_checkpoint_open(wf_comm *comm, const char *folder, wf_checkpoint_opts opts);
/* Ends an asynchronous save; a failed write is reported here at the latest. Frees. Collective. */
WF_PLACED wf_status wf_checkpoint_close(wf_checkpoint *checkpoint) WF_NODISCARD;

/* What is saved, under a name of its own; on all ranks in the same order. Numbers are those of rank 0. Local. */
wf_status wf_checkpoint_add(wf_checkpoint *checkpoint, const char *name, wf_archive_visit visit, void *object);
wf_status wf_checkpoint_add_model(wf_checkpoint *checkpoint, const char *name, wf_layer *model);
wf_status wf_checkpoint_add_optim(wf_checkpoint *checkpoint, const char *name, wf_optim *optim);
wf_status wf_checkpoint_add_i64(wf_checkpoint *checkpoint, const char *name, int64_t *value);
wf_status wf_checkpoint_add_f64(wf_checkpoint *checkpoint, const char *name, double *value);

/* A new generation. WF_ERR_IO on all ranks where any could not write: the file is not made, the earlier ones stay, and
 * training may go on. With `async` it may be the failure of the save before. Collective. */
WF_PLACED wf_status wf_checkpoint_save(wf_checkpoint *checkpoint, int64_t step) WF_NODISCARD;
/* To be called after every step. Saves where it is due. Where a signal has come to any rank, saves on all, completes
 * that, and *leave is true on all of them: they end together with WF_CHECKPOINT_EXIT, after wf_checkpoint_close and
 * wf_barrier. SIGINT for the second time ends the process at once. Collective where signals are on or an asynchronous
 * save is under way; else local but for the steps that save. */
WF_PLACED wf_status wf_checkpoint_step(wf_checkpoint *checkpoint, int64_t step, bool *leave) WF_NODISCARD;
#define WF_CHECKPOINT_EXIT 85

/* The newest generation that every rank finds whole; *step is the step at which it was saved, and stays where there is
 * no file at all. One that is damaged, or that a rank cannot read, is named in a warning, and the one before is used;
 * WF_ERR_FORMAT if all are. WF_ERR_FORMAT too where the run has what the file lacks, or with another shape; then the
 * run may have been loaded in part. Collective. */
WF_PLACED wf_status wf_checkpoint_load_latest(wf_checkpoint *checkpoint, int64_t *step) WF_NODISCARD;
/* The number of the generation that was loaded or saved last; -1 before. */
int64_t wf_checkpoint_generation(const wf_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
