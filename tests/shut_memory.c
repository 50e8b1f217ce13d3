/* Chunks of the memory open at their first touch, in the handler of SIGSEGV. */
#include "tests/shut_memory.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE   ((size_t)4096)
#define CHUNK  ((size_t)1 << 18)
#define CHUNKS 256 /* open at a time; more: all of it */

static char *base;
static size_t room;
static const size_t *used;
static void (*refused)(void);
static int depth;

static size_t opened[CHUNKS];
static int n_opened;
static size_t all_below; /* 0: chunks are open, or none */

static void protect(size_t from, size_t to, int how)
{
    if (from < to && mprotect(base + from, to - from, how) != 0) {
        perror("memory of the device: mprotect");
        abort();
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t whole_pages(void)
{
    return (*used + PAGE - 1) / PAGE * PAGE;
}

static void open_all(void)
{
    all_below = whole_pages();
    protect(0, all_below, PROT_READ | PROT_WRITE);
}

static void open_chunk(size_t at)
{
    const size_t from = at / CHUNK * CHUNK;
    if (n_opened == CHUNKS) {
        open_all();
        return;
    }
    opened[n_opened++] = from;
    protect(from, smaller(from + CHUNK, whole_pages()), PROT_READ | PROT_WRITE);
}

static void caught(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    const bool here = base && at >= base && at < base + room;
    if (here && depth > 0 && at < base + whole_pages()) {
        open_chunk((size_t)(at - base));
        return;
    }
    signal(SIGSEGV, SIG_DFL);
    if (here)
        refused();
}

/* The handler has a stack of its own: code that oneDNN generates lets the stack pointer point into the heap. */
static bool watch(void)
{
    static char stack[1 << 16];
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    return sigaltstack(&alternate, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0;
}

char *shut_memory(int file, size_t bytes, const size_t *so_far, void (*refuse)(void))
{
    void *const data = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (data == MAP_FAILED || !watch())
        return NULL;
    base = data;
    room = bytes;
    used = so_far;
    refused = refuse;
    return base;
}

/* Other threads have no stack for the handler. */
void shut_memory_open(bool by_others)
{
    depth++;
    if (by_others)
        open_all();
}

void shut_memory_close(void)
{
    if (--depth > 0)
        return;
    protect(0, all_below, PROT_NONE);
    all_below = 0;
    while (n_opened > 0) {
        const size_t from = opened[--n_opened];
        protect(from, smaller(from + CHUNK, room), PROT_NONE);
    }
}
