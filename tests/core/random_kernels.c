/* Kernels of random geometries beside `ref`, at one level of the processor, on memory that ends at pages that must not
 * be touched: random_kernels CASES [seed=N] [from=N].
 *
 * Inputs of convolutions, products and pooling are -1, 0 and 1: sums are exact in f32, and the bound of contract_check
 * is below a half there, so that no wrong term passes. (Minimal filtering multiplies by fractions, and is not exact.)
 *
 * Cases run in processes of their own, a batch in each: one that crashes or does not end is reported with its geometry,
 * and the next process goes on behind it. The level is that of ONEDNN_MAX_CPU_ISA and WEFT_LEVEL
 * (tests/core/at_level.sh). In the end it prints which implementations of oneDNN ran. */
#include "core/processor_author.h"
#include "tests/core/dnn_counts.h"
#include "tests/core/guarded_pool.h"
#include "tests/core/random_draws.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The seconds bound a case that hangs, and say nothing of how long one may take. */
enum { BATCH = 500, FAULTS_MOST = 20, CASE_SECONDS = 600, NOTE = 400 };

/* What processes share. */
typedef struct progress {
    int64_t index; /* the case that runs, or ran last */
    int64_t cases[DRAWN_KINDS], own[DRAWN_KINDS], wrong;
    char note[NOTE], memory[NOTE];
    dnn_counts dnn;
} progress;

static progress *shared;
static uint64_t seed =
    3; /* among its first cases is one that finds the fault of strided pixels (core/cpu/dnn_faults.c) */

/* Must call what is safe in a handler alone. */
static void tell(int number)
{
    strncpy(shared->note, contract_note(), NOTE - 1);
    signal(number, SIG_DFL);
    raise(number);
}

static void tell_address(int number, siginfo_t *info, void *context)
{
    guarded_pool_describe(info->si_addr, shared->memory, NOTE);
    tell(number);
}

static void watch(void)
{
    static char stack[1 << 16]; /* code that oneDNN generates lets the stack pointer point into the heap */
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    const int numbers[] = {SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM};
    struct sigaction action = {.sa_handler = tell, .sa_flags = SA_ONSTACK | SA_NODEFER};
    sigaltstack(&alternate, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
    action = (struct sigaction){.sa_sigaction = tell_address, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
}

static void print_case(int64_t index, const char *what)
{
    const drawn t = draw(seed, index);
    fprintf(stderr, "%s: case %lld, %s in %s on %d threads; again: random_kernels 1 seed=%llu from=%lld\n", what,
            (long long)index, drawn_name(t.kind), wf_dtype_name(t.type), t.threads, (unsigned long long)seed,
            (long long)index);
}

static void run_case(int64_t index)
{
    const drawn t = draw(seed, index);
    const int64_t failures = test_failures(), dnn = dnn_counts_runs(&shared->dnn), kept = guarded_pool_live();
    guarded_pool_alternate((unsigned)index);
    WF_EXPECT_OK(wf_ctx_set_threads(contract_device(), t.threads));
    contract_check_type(drawn_name(t.kind), drawn_body(t.kind), &t.of, t.seed, t.type, t.grid);
    WF_EXPECT(guarded_pool_live() == kept, "%lld blocks are kept", (long long)(guarded_pool_live() - kept));
    shared->cases[t.kind]++;
    shared->own[t.kind] += dnn_counts_runs(&shared->dnn) == dnn;
    if (test_failures() > failures) {
        shared->wrong++;
        print_case(index, "wrong");
    }
}

static void run_batch(int64_t from, int64_t to)
{
    watch();
    dnn_counts_into(&shared->dnn);
    if (!contract_open())
        exit(1);
    contract_arrays_by(guarded_array_take, guarded_array_give);
    for (int64_t i = from; i < to && shared->wrong < FAULTS_MOST; i++) {
        shared->index = i;
        alarm(CASE_SECONDS);
        run_case(i);
    }
    alarm(0);
    contract_close();
    fflush(stdout);
    exit(test_failures() > 0);
}

/* False: the process ended before the batch did. */
static bool perform_batch(int64_t from, int64_t to)
{
    int status = 0;
    fflush(stdout);
    shared->index = from;
    shared->note[0] = shared->memory[0] = '\0';
    const pid_t child = fork();
    if (child == 0)
        run_batch(from, to);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("random_kernels");
        exit(1);
    }
    if (WIFEXITED(status)) {
        shared->wrong += WEXITSTATUS(status) != 0 && shared->wrong == 0;
        return true;
    }
    const int number = WTERMSIG(status);
    print_case(shared->index, number == SIGALRM ? "does not end" : strsignal(number));
    fprintf(stderr, "  %s\n  %s\n", shared->note, shared->memory);
    shared->wrong++;
    return false;
}

static void print_counts(int64_t from, int64_t count)
{
    printf("%s, WEFT_LEVEL %s, seed %llu, cases %lld to %lld: %lld wrong\n", wf_kernels_cpu()->library(),
           wf_processor_level(), (unsigned long long)seed, (long long)from, (long long)(from + count - 1),
           (long long)shared->wrong);
    for (int k = 0; k < DRAWN_KINDS; k++)
        printf("  %8lld  %s, %lld of them without oneDNN\n", (long long)shared->cases[k], drawn_name((drawn_kind)k),
               (long long)shared->own[k]);
    printf("calls of oneDNN:\n");
    dnn_counts_print(&shared->dnn);
}

int main(int argc, char **argv)
{
    int64_t count = 0, from = 0;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "seed=", 5) == 0)
            seed = strtoull(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "from=", 5) == 0)
            from = strtoll(argv[i] + 5, NULL, 10);
        else
            count = strtoll(argv[i], NULL, 10);
    if (count < 1) {
        fprintf(stderr, "random_kernels CASES [seed=N] [from=N]: at least 1 case\n");
        return 1;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("random_kernels: mmap");
        return 1;
    }
    for (int64_t at = from; at < from + count && shared->wrong < FAULTS_MOST;) {
        const int64_t to = at + BATCH < from + count ? at + BATCH : from + count;
        at = perform_batch(at, to) ? to : shared->index + 1;
    }
    print_counts(from, count);
    return shared->wrong > 0;
}
