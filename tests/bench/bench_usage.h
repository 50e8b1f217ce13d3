/* Command lines of measurements that take words in a fixed order. Those with many options have a table of them instead
 * (example_options). */
#ifndef WF_TESTS_BENCH_USAGE_H
#define WF_TESTS_BENCH_USAGE_H

#include <stdint.h>

/* Ends the program with its usage if an argument is --help, and with one line if another argument looks like an option
 * that is not `option` (NULL: there is none), or if there are more than `most` arguments. Under mpirun the first rank
 * speaks for all. To be called before wf_comm_open. */
void bench_usage(int argc, char **argv, int most, const char *option, const char *usage);

/* Returns argument i, which is a whole number from `least` to `most`, or `usual` if there is none. Ends the program
 * with one line if it is anything else. To be called before wf_comm_open. */
int64_t bench_number(int argc, char **argv, int i, const char *name, int64_t least, int64_t most, int64_t usual);

#endif
