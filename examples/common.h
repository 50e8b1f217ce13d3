/* What the example programs share: options, an output folder, checkpoints, complaints. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <weft/weft.h>

#include <stdio.h>

/* The most that a number of an option may be: how often something is done; and how large something is, which takes
 * memory. */
#define EXAMPLE_MOST_COUNT INT32_MAX
#define EXAMPLE_MOST_SIZE  65536

/* An option "--name ARG": a whole number from `least` to `most`, which every number has, a positive real number up to
 * 1e9, or a text; or without ARG a flag. Its help shows the default, which is what the target holds at first. A real
 * number whose default is 0 says what that means, and may be 0 (`zero`); one whose default is below 0 tells it in its
 * help. */
typedef struct example_option {
    const char *name, *arg, *help;
    int64_t *number;
    int64_t least, most; /* most is above 0, and no more than EXAMPLE_MOST_COUNT */
    double *real;
    const char **text;
    bool *flag;
    bool zero;
} example_option;

/* Reads the command line (GNU argp, with --help) by a table that ends with {0}. Ends the program with one line if it is
 * wrong; under mpirun the first rank speaks for all. To be called before wf_comm_open. */
void example_options(int argc, char **argv, const char *about, const example_option *table);

/* Set-up, which fails on all ranks alike: if it did, rank 0 says why in one line, and all ranks end with exit code 1.
 */
void example_check(wf_comm *comm, wf_status status);
/* Like example_check, where each rank has read something of its own: the first one that failed tells all. Collective.
 */
void example_check_each(wf_comm *comm, wf_status status);
/* Like example_check, where only rank 0 looks, at something that is not Weft's. `complaint` counts on rank 0: NULL is
 * fine. Collective. */
void example_agree(wf_comm *comm, const char *complaint);
/* Ends the job at once, from any rank. */
_Noreturn void example_abort(const char *format, ...) WF_PRINTF(1, 2);

/* Ends the job if the value of this step, as of a loss, is not finite. */
void example_finite(const char *what, double value, int64_t step);

/* An option for mixed precision, and what it is for: from now on the context computes in bf16 or f16 (NULL: in f32).
 * Ends the program on another name. Collective. */
#define EXAMPLE_COMPUTE(target)                                                                                        \
    {                                                                                                                  \
        "compute", "TYPE", "mixed precision: bf16 or f16, else all is f32", .text = (target)                           \
    }
void example_compute(wf_comm *comm, const char *type);
/* The optimizer scales its loss where the context computes in f16; NULL passes. */
wf_optim *example_scaled(wf_optim *optim);

/* Options of every training: checkpoints, and where its time goes. */
typedef struct example_saves {
    int64_t every, keep; /* steps between two; 0: none. Generations that stay */
    const char *folder, *resume;
    const char *timeline; /* of the whole training; NULL: none */
    bool profile;
} example_saves;
#define EXAMPLE_SAVES(target)                                                                                          \
    {"snapshot-every", "N", "steps between checkpoints; 0: none", .number = &(target)->every,                          \
     .most = EXAMPLE_MOST_COUNT},                                                                                      \
        {"keep",    "N", "checkpoints that stay, the newest", .number = &(target)->keep, .most = EXAMPLE_MOST_COUNT,   \
         .least = 1},                                                                                                  \
        {"snapshots", "DIR", "folder of the checkpoints", .text = &(target)->folder},                                  \
        {"resume", "HOW", "auto: go on from the newest checkpoint, if there is one", .text = &(target)->resume},       \
        {"timeline", "FILE", "time line of all ranks, for chrome://tracing", .text = &(target)->timeline},             \
    {                                                                                                                  \
        "profile", NULL, "a table of where the time went, by kernel and by layer", .flag = &(target)->profile          \
    }
/* NULL where neither of both options is given. Collective. */
wf_checkpoint *example_saves_open(wf_comm *comm, const example_saves *saves);
/* Once all is added: the trainer goes on from the newest checkpoint, if it should, and saves where it is due; runs it;
 * and closes the checkpoint, which may be NULL. Ends the program where it fails. The program's exit code; it is not 0
 * if a signal came, and then all is saved. Collective. */
int example_train(wf_trainer *trainer, wf_checkpoint *checkpoint, const example_saves *saves);
/* A hook: a line of the newest means of "loss" and "accuracy". */
wf_status example_epoch(wf_trainer *trainer, void *unused);

/* Options about what is left of a training that is evaluated after every epoch, and what they are for. */
typedef struct example_best {
    const char *log, *path;
    int64_t patience;
    bool device_statistics;
} example_best;
#define EXAMPLE_BEST(target)                                                                                           \
    {"log", "FILE", "a line of JSON for every epoch", .text = &(target)->log},                                         \
        {"device-statistics", NULL, "processors, memory, traffic, GPU: in the log, the progress, the time line",       \
         .flag = &(target)->device_statistics},                                                                        \
        {"best", "FILE", "keep the model of the best accuracy here (HDF5)", .text = &(target)->path},                  \
    {                                                                                                                  \
        "patience", "N", "end after N epochs in a row without a better accuracy; 0: do not",                           \
            .number = &(target)->patience, .most = EXAMPLE_MOST_COUNT                                                  \
    }
/* averages: as of wf_best_opts. */
void example_keep_best(wf_trainer *trainer, wf_layer *model, const example_best *best, bool averages);

/* `bytes` of 0, and one more, for the caller to free(). Ends the job if there is no memory. */
void *example_room(int64_t bytes);

double example_seconds(void); /* a clock that never goes back */

/* "DIR/name", in one of a few static buffers. */
const char *example_path(const char *dir, const char *name);
/* Makes the folder (not its parents), if it is not there; if that is impossible the program ends as in example_agree.
 * Collective. */
void example_folder(wf_comm *comm, const char *dir);
/* Like example_folder, and opens the file `name` in it for writing, on rank 0; NULL on other ranks. Collective. */
FILE *example_create(wf_comm *comm, const char *dir, const char *name);

#endif
