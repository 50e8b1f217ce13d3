/* Words of a command line: a number that is none would be 0 for atoll, and a layer of 0 channels ends the program with
 * a core dump. */
#include "tests/bench/bench_usage.h"

#include "core/config_author.h"
#include "tools/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REFUSED 2

/* Before MPI starts, the launcher tells which rank this will be. */
static bool is_first(void)
{
    return wf_config_get()->rank <= 0;
}

static const char *program_of(char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    return slash ? slash + 1 : argv[0];
}

/* The launcher ends the job with the first rank that ends badly, which has to be the one that speaks. */
static _Noreturn void refuse(char **argv, const char *what)
{
    if (is_first())
        fprintf(stderr, "%s: %s; see %s --help\n", program_of(argv), what, program_of(argv));
    else
        sleep(20);
    exit(REFUSED);
}

void bench_usage(int argc, char **argv, int most, const char *option, const char *usage)
{
    char what[256];
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            if (is_first())
                printf("usage: %s\n", usage);
            exit(EXIT_SUCCESS);
        }
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-' && (!option || strcmp(argv[i], option) != 0)) {
            snprintf(what, sizeof what, "there is no option %.100s", argv[i]);
            refuse(argv, what);
        }
    if (argc - 1 > most) {
        snprintf(what, sizeof what, "%d arguments: should be at most %d", argc - 1, most);
        refuse(argv, what);
    }
}

int64_t bench_number(int argc, char **argv, int i, const char *name, int64_t least, int64_t most, int64_t usual)
{
    char what[256];
    int64_t number = usual;
    if (i >= argc || number_whole(argv[i], least, most, &number))
        return number;
    snprintf(what, sizeof what, "%s %.100s: should be a whole number from %lld to %lld", name, argv[i],
             (long long)least, (long long)most);
    refuse(argv, what);
}
