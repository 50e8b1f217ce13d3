/* Counts which of its implementations oneDNN runs, for programs that are linked with dnn_counts_options
 * (tests/core/core.cmake). */
#ifndef WF_TESTS_DNN_COUNTS_H
#define WF_TESTS_DNN_COUNTS_H

#include <stdint.h>

enum { DNN_NAMES = 256, DNN_NAME = 80 };

/* Lies in memory that processes share, if the test has several. `name`: what it computed, and the implementation. */
typedef struct dnn_counts {
    int used;
    struct {
        char name[DNN_NAME];
        int64_t runs;
    } of[DNN_NAMES];
} dnn_counts;

/* Counts here from now on. */
void dnn_counts_into(dnn_counts *counts);
/* Calls of oneDNN so far. */
int64_t dnn_counts_runs(const dnn_counts *counts);
/* A table on stdout, ordered by name. */
void dnn_counts_print(dnn_counts *counts);

#endif
