/* The parts of a profile, for this folder. */
#ifndef WF_CORE_PROFILE_IMPL_H
#define WF_CORE_PROFILE_IMPL_H

#include "core/profile_author.h"

struct wf_profile {
    wf_ctx *ctx;
    const wf_kernels *device; /* the context's table before */
    wf_kernels table;         /* the same, with every kernel timed */
    int depth;                /* kernels inside each other: the outer one counts */
    int64_t start_ns, end_ns;
    const char *layer; /* one of `names` */
    wf_profile_row *row;
    int64_t n_rows, room;
    int32_t *slot; /* hash table of rows; -1: empty */
    int64_t slots;
    char **name; /* copies of names */
    int64_t n_names, names_room;
    wf_profile_event *event;
    int64_t n_events, most_events, left_out;
};

/* --- profile_kernels.c --- */
/* The device's table, with kernels that are timed. */
void wf_profile_table(wf_kernels *table);

#endif
