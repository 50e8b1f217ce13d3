/* The environment variables of the library. No other file reads the environment. It is read once, at the first call;
 * docs/running.md documents each variable. */
#ifndef WF_CORE_CONFIG_AUTHOR_H
#define WF_CORE_CONFIG_AUTHOR_H

#include <stdbool.h>

typedef struct wf_config {
    const char *device; /* WEFT_DEVICE: "auto" (default), "cpu", "ref", "cuda" */
    const char *data;   /* WEFT_DATA: folder of data sets, or NULL */
    long timeout_ms;    /* WEFT_TIMEOUT_MS: longest wait for a peer that shows no sign of life; default 300000 */
    long far_ms;        /* the same, of a peer of another machine, whose signs are not seen; default 1800000 */
    long idle_ms;       /* WEFT_IDLE_MS: longest wait for a peer of this machine that works; default 3600000 */
    int log_level;      /* WEFT_LOG: error, warn, info, debug; a wf_log_level */
    const char *plan;   /* WEFT_PLAN: what wf-plan asks a program, or NULL */
    const char *cache;  /* WEFT_CACHE: folder of measured times; else that of the user's caches, or NULL */
    bool deterministic; /* WEFT_DETERMINISTIC: 1 = no sum whose order may vary */
    const char *level;  /* WEFT_LEVEL: of x86-64, that of the kernels of the CPU; NULL: the newest that runs */
    bool minimal;       /* WEFT_MINIMAL: 0 = no convolutions of the CPU by minimal filtering, which oneDNN then makes */
    bool tf32;          /* WEFT_TF32: 0 = f32 convolutions and products on a GPU do not round their inputs to tf32 */
    bool autotune;      /* WEFT_AUTOTUNE: 1 = time cuDNN's engines at the first use of a shape, and take the fastest */
    long chunk_bytes;   /* WEFT_CHUNK_BYTES: most bytes in one MPI call; default 1 GiB; set small in tests */
    const char *trace; /* WEFT_TRACE: folder of the flight recorders, or NULL: one of the job, removed at a clean end */
    const char *job;   /* the launcher's name of the job; made of a process's number if there is none */
    bool launched;     /* by an MPI launcher: config.c has the table of their variables */
    int rank;          /* in the job, as the launcher says before MPI starts; -1 if there is none */
    bool nccl_one_rank;   /* WEFT_NCCL_ONE_RANK: 1 = NCCL also connects a single rank with itself, for tests of NCCL */
    bool nccl_shares_gpu; /* NCCL_MULTI_RANK_GPU_ENABLE: 1 = NCCL may take several ranks on one GPU */
    int omp_threads;      /* OMP_NUM_THREADS, or 0 where it is not set */
    const char *python;   /* WEFT_PYTHON: the Python of a study, or NULL: one that is found */
} wf_config;

const wf_config *wf_config_get(void);
/* Asks NCCL to keep the order of launches over all communicators of a device (NCCL_LAUNCH_ORDER_IMPLICIT), unless the
 * user has set that variable, and says whether it is 1. Called before NCCL reads it. */
bool wf_config_order_nccl(void);
/* The environment for a process that has no part in the job: this one's without the variables of MPI and its launcher,
 * by which a program would take itself for a rank. NULL: memory is exhausted. Freed with free(); the strings are those
 * of the environment. */
char **wf_config_environment_for_child(void);

#endif
