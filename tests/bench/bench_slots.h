/* Slots of a filling that passes of a training step do not name by themselves: random numbers, losses, pooling,
 * optimizers and what else is bound by memory, each as a call without arguments. */
#ifndef WF_TESTS_BENCH_SLOTS_H
#define WF_TESTS_BENCH_SLOTS_H

#include "tests/bench/bench.h"

typedef struct bench_slots bench_slots;

typedef struct bench_slot {
    const char *name;
    double arrays;  /* read and written at least once, in arrays of the shape */
    bool wide_only; /* for f32 alone */
    wf_status (*call)(void *slots);
} bench_slot;

extern const bench_slot bench_slot_table[];
extern const int bench_slot_count;

/* Arrays for all slots, of this type and shape ([N,C,H,H], H even); close frees them. */
bench_slots *bench_slots_open(wf_ctx *ctx, wf_dtype dtype, wf_shape shape);
void bench_slots_close(bench_slots *s);

#endif
