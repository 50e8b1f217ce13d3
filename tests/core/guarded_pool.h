/* Blocks of the pool that end, or begin, at a page that must not be touched, for programs that are linked with
 * guarded_pool_options (tests/core/core.cmake), by which all takes of the library come here.
 *
 * A block is as aligned as the pool promises: it begins at a multiple of 64 bytes. Up to 63 bytes between its end and
 * the shut page are filled, and checked when it is given back: kernels may read them unseen. Arrays of a test have no
 * such gap: guarded_array_take aligns them to their element, since an array may be a part of a larger one. A block is
 * gone once it is given back: who touches it later crashes, too.
 *
 * oneDNN cuts a scratchpad into parts of its own, with up to a few hundred bytes between them: what is written beyond
 * one part into the next is found where results are wrong. */
#ifndef WF_TESTS_GUARDED_POOL_H
#define WF_TESTS_GUARDED_POOL_H

#include "core/context_author.h"

/* As wf_pool_take and wf_pool_give, for an array of elements of `size` bytes. */
wf_status guarded_array_take(wf_ctx *ctx, size_t bytes, size_t size, void **data);
void guarded_array_give(wf_ctx *ctx, void *data, size_t bytes);

/* Every third block begins at its shut page instead, from now on, counted from `phase`. */
void guarded_pool_alternate(unsigned phase);
/* Blocks that were taken and not given back. */
int64_t guarded_pool_live(void);
/* Bytes beside blocks that were found changed so far. */
int64_t guarded_pool_damaged(void);
/* What lies at an address, for a message; async-signal-safe. False: no block is near it. */
bool guarded_pool_describe(const void *address, char *text, size_t room);

#endif
