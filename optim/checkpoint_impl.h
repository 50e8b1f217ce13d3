/* The parts of a checkpoint, for this folder. */
#ifndef WF_OPTIM_CHECKPOINT_IMPL_H
#define WF_OPTIM_CHECKPOINT_IMPL_H

#include "comm/comm_author.h"
#include "comm/manifest_author.h"
#include "core/archive_author.h"
#include "core/context_author.h"
#include "core/tensor_author.h"
#include "layers/catalog_author.h"
#include "optim/checkpoint.h"

#include <pthread.h>
#include <stdatomic.h>

#define WF_CHECKPOINT_PATH 4096

/* What is saved under one name. */
typedef struct wf_checkpoint_item {
    char *name;
    wf_archive_visit visit; /* or one of the numbers */
    void *object;
    wf_optim *optim; /* object, where it is one */
    wf_layer *model; /* object, or the optimizer's; NULL: neither */
    wf_comm *comm;   /* ranks that have the same part of the model, or all */
    int key;         /* in the catalog: 0, if all ranks have the same */
    int64_t *i64;
    double *f64;
} wf_checkpoint_item;

/* What this rank writes of an entry: its elements of `box`, which lie `at` bytes from the beginning of the stage. */
typedef struct wf_checkpoint_piece {
    int64_t entry;
    wf_box box;
    size_t at;
    wf_tensor *view; /* the elements themselves, which stay as they are until they are written; NULL: in the stage */
} wf_checkpoint_piece;

/* A number of this rank; the others may have another. */
typedef struct wf_checkpoint_number {
    int64_t entry;
    uint64_t bits;
} wf_checkpoint_number;

/* A part of the file between data sets: the same in every file of this layout. */
typedef struct wf_checkpoint_gap {
    int64_t offset, bytes;
    unsigned char *data;
} wf_checkpoint_gap;

struct wf_checkpoint {
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    char folder[WF_CHECKPOINT_PATH / 2];
    wf_checkpoint_opts opts;
    wf_checkpoint_item *item;
    int64_t n_items, n_parted; /* n_parted: items whose parts are known */
    int part[WF_CATALOG_KEYS]; /* of this rank, by key */
    int n_keys;
    const wf_checkpoint_item *now; /* the item that is visited; NULL: the run's own numbers */
    int64_t generation;            /* saved or loaded last; -1: none */
    int64_t newest;                /* number of the newest file that was ever seen here; -1: none */
    bool locked;                   /* of rank 0: the folder's lock is this process's */
    int64_t *damaged;              /* generations that are, of rank 0 */
    int64_t n_damaged;
    int64_t *outdated; /* generations that a thread of rank 0 removes; NULL: none */
    int64_t n_outdated;
    pthread_t remover;

    /* The save in progress: the contents of the file, equal on all ranks, and what this rank writes of it. */
    wf_manifest manifest;
    int64_t entries_room, keys_room;
    int *entry_key;         /* by entry, until the ranks' entries are united */
    uint64_t layout;        /* hash of the entries */
    uint64_t laid;          /* the layout whose offsets and gaps are known; 0: none */
    wf_checkpoint_gap *gap; /* of rank 0 */
    int64_t n_gaps;
    int64_t *offset;    /* by entry, of `laid` */
    int64_t laid_bytes; /* of the HDF5 part */
    wf_checkpoint_piece *piece;
    int64_t n_pieces, pieces_room;
    wf_checkpoint_number *number;
    int64_t n_numbers, numbers_room;
    unsigned char *stage;
    size_t staged, stage_room;
    wf_status status; /* the first failure of this rank alone, until all agree on it */
    char message[512];

    /* Writing. The thread uses the fields above and these, until `done`. */
    char temporary[WF_CHECKPOINT_PATH], path[WF_CHECKPOINT_PATH];
    bool pending; /* a save is not ended; the same on all ranks */
    bool threaded;
    pthread_t thread;
    atomic_bool done;
    wf_status job_status;
    char job_message[512];

    /* Loading. */
    wf_manifest_reader reader;
    char file[WF_CHECKPOINT_PATH];
};

/* Keeps a failure of this rank alone, which goes on so that all ranks make the same calls. Always WF_OK. */
wf_status wf_checkpoint_keep(wf_checkpoint *c, wf_status status);
/* All ranks get the first such failure; it is then forgotten. Collective. */
wf_status wf_checkpoint_agree(wf_checkpoint *c) WF_NODISCARD;

/* --- checkpoint.c: what a run is --- */
/* Finds out which parts of models this rank has, and who has the same. Collective. */
wf_status wf_checkpoint_find_parts(wf_checkpoint *c) WF_NODISCARD;
/* The ranks that have what is visited now. */
wf_comm *wf_checkpoint_over(const wf_checkpoint *c);
/* Visits everything. `step` is written, or read. */
wf_status wf_checkpoint_visit(wf_checkpoint *c, wf_archive *archive, int64_t *step) WF_NODISCARD;

/* --- checkpoint_stage.c: copies of what this rank writes --- */
wf_status wf_checkpoint_stage(wf_checkpoint *c, int64_t step) WF_NODISCARD;
void wf_checkpoint_forget(wf_checkpoint *c);
/* Lets go of the tensors that were written. */
void wf_checkpoint_release(wf_checkpoint *c);

/* --- checkpoint_write.c: the file --- */
/* Rank 0 lays out the file of these entries; all know where they lie. Collective. */
wf_status wf_checkpoint_lay_out(wf_checkpoint *c) WF_NODISCARD;
/* Writes what is staged, here or in a thread. Local; a failure shows in wf_checkpoint_finish. */
void wf_checkpoint_write(wf_checkpoint *c);
/* Waits for it, and the file gets its name. Nothing where nothing is pending. Collective. */
wf_status wf_checkpoint_finish(wf_checkpoint *c) WF_NODISCARD;
void wf_checkpoint_drop_layout(wf_checkpoint *c);

/* --- checkpoint_folder.c: which files there are --- */
/* Makes the folder, checks that all ranks see it, and locks it if the options say that the run saves. One that cannot
 * be written is an error if it has no generation. Collective. */
wf_status wf_checkpoint_folder_open(wf_checkpoint *c) WF_NODISCARD;
/* Before a save: the folder is this job's, and `newest` is what is there by now. Collective. */
wf_status wf_checkpoint_folder_hold(wf_checkpoint *c) WF_NODISCARD;
/* The generations that are there, newest first: `free` it. Collective. */
wf_status wf_checkpoint_folder_list(wf_checkpoint *c, int64_t *n, int64_t **generation) WF_NODISCARD;
void wf_checkpoint_folder_path(const wf_checkpoint *c, int64_t generation, const char *end,
                               char path[WF_CHECKPOINT_PATH]);
/* Begins to remove what is older than opts say; a thread does it, because it takes long for large files. Rank 0 alone.
 */
void wf_checkpoint_folder_prune(wf_checkpoint *c);
/* Waits until they are removed. */
void wf_checkpoint_folder_settle(wf_checkpoint *c);
void wf_checkpoint_folder_note_damage(wf_checkpoint *c, int64_t generation);

/* --- checkpoint_lock.c: one job saves into a folder; rank 0 alone --- */
/* WF_ERR_STATE names another job that holds the lock; WF_ERR_IO: the folder cannot be written. */
wf_status wf_checkpoint_lock(wf_checkpoint *c) WF_NODISCARD;
void wf_checkpoint_unlock(wf_checkpoint *c);

/* --- checkpoint_signal.c --- */
wf_status wf_checkpoint_signals_catch(void) WF_NODISCARD;
void wf_checkpoint_signals_release(void);
/* Starts a thread that gets no signals, which stay with the program's own threads; false if there can be none. */
bool wf_checkpoint_thread(pthread_t *thread, void *(*run)(void *argument), void *argument);
bool wf_checkpoint_signalled(void);

#endif
