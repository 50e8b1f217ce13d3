/* The ranks that a test runs on. One mpirun starts as many as the largest count needs, and the test runs once on the
 * first n of them for every count n in TEST_RANKS ("1 2 3 4"); without that, on all. Meanwhile the others sleep.
 *
 *     static int run(int argc, char **argv) { return test_main(argc, argv, (test_case[]){{"adds", adds}, {0}}); }
 *     int main(int argc, char **argv) { return ranks_main(argc, argv, run); }
 *
 * A test opens its communicators by test_comm_open. `run` is called in one process for several counts: it sets what it
 * keeps in static variables anew.
 */
#ifndef WF_TESTS_WORLD_H
#define WF_TESTS_WORLD_H

#include "comm/comm.h"

/* The exit code: not 0 where `run` returned anything else under any count. */
int ranks_main(int argc, char **argv, int (*run)(int argc, char **argv));
/* As wf_comm_open, of the ranks under test. */
wf_comm *test_comm_open(const char *name, wf_ctx_opts opts);

#endif
