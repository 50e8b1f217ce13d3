/* A double of NCCL over MPI, on the guarded device's memory and streams. What is launched is done when the stream gets
 * there; every rank that takes part must then call the same with the same, or the communicator has an error on all of
 * them that says so (ncclCommGetAsyncError). All that two ranks send each other is matched in order. The end of a
 * communicator that NCCL would wait in for ever ends the process: graphs hold it, or work of another is ahead of its
 * own on the stream. */
#ifndef WF_TESTS_FAKE_NCCL_DOUBLE_H
#define WF_TESTS_FAKE_NCCL_DOUBLE_H

#include <stdint.h>

#define NCCL_FAKE_RANKS 64

/* What this process has called so far. */
typedef struct nccl_journal {
    uint64_t launches;    /* groups, and calls outside of a group */
    uint64_t collectives; /* among them */
    uint64_t order;       /* a number that the collectives have in this order with these arguments */
    uint64_t sent[NCCL_FAKE_RANKS], received[NCCL_FAKE_RANKS]; /* to and from each rank of the world, done */
    uint64_t communicators;
} nccl_journal;

nccl_journal nccl_fake_journal(void);
/* From here on it counts anew. */
void nccl_fake_journal_clear(void);
/* What ncclGetVersion says from now on; 0: that of the headers that it was made from. */
void nccl_fake_set_version(int version);
/* Makes one of the later sends and receives fail, counted from 0; negative: none. */
void nccl_fake_fail_message(int number);
/* From here on this rank gives up a wait after so many milliseconds, whatever the environment says; 0: as that says.
 * For waits that nothing else ends: one of them may begin late on a busy machine, and ends in a time-out all the same.
 */
void nccl_fake_limit_waits(long ms);
/* The next end of communicators is an error of its call. */
void nccl_fake_fail_end(void);
/* From now on a call of this name, of ncclCommInitRankConfig, ncclGroupEnd and ncclCommDestroy, never ends. */
void nccl_fake_block(const char *name);

#endif
