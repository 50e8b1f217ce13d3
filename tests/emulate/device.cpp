/* Runs the blocks of a kernel, one after another; the threads of a block are fibers.
 *
 * A thread runs until it ends or has to wait, then the next one is taken, every second block in descending order. So a
 * value that is read without a barrier is read too early, and a barrier that not all threads reach is found. */
#undef _FORTIFY_SOURCE // which takes a jump to another stack for a mistake
#include "tests/emulate/emulate.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
#else
static void __sanitizer_start_switch_fiber(void **, const void *, size_t)
{
}
static void __sanitizer_finish_switch_fiber(void *, const void **, size_t *)
{
}
#endif

enum { MOST_THREADS = 1024, WARP = 32, STACK = 256 << 10 };

/* What threads wait at; `passed` counts how often all were there. */
struct meeting {
    int arrived, passed;
};

struct fiber {
    emulated_place place; /* first: emulated_now points here */
    ucontext_t context; /* where it begins */
    jmp_buf left;       /* where it goes on */
    bool begun;
    char *stack;
    void *fake;
    int thread; /* -1: none */
    meeting *at;
    int seen; /* at->passed when it began to wait */
};

emulated_place *emulated_now;
dim3 emulated_block_dim, emulated_grid_dim;

static fiber fibers[MOST_THREADS];
static int n_fibers, threads, next_thread, finished;
static bool descending;
static dim3 block_index;
static const emulated_work *work;
static jmp_buf scheduler;
static void *scheduler_fake;
static const void *scheduler_bottom;
static size_t scheduler_size;
static meeting block_meeting, warp_meeting[MOST_THREADS / WARP];
static uint64_t slot[MOST_THREADS];

static fiber *now()
{
    return reinterpret_cast<fiber *>(emulated_now);
}

/* swapcontext would ask the kernel for the mask of signals each time, which takes longer than most threads compute. */
static void leave(fiber *f)
{
    __sanitizer_start_switch_fiber(&f->fake, scheduler_bottom, scheduler_size);
    if (_setjmp(f->left) == 0)
        _longjmp(scheduler, 1);
    __sanitizer_finish_switch_fiber(f->fake, &scheduler_bottom, &scheduler_size);
}

/* A fiber takes threads as long as there are any. */
static void live()
{
    fiber *const f = now();
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
    for (;;) {
        while (next_thread < threads) {
            const int t = descending ? threads - 1 - next_thread : next_thread;
            next_thread++;
            f->thread = t;
            const unsigned x = emulated_block_dim.x, y = emulated_block_dim.y, u = (unsigned)t;
            f->place.thread = dim3(u % x, u / x % y, u / x / y);
            f->place.block = block_index;
            work->thread();
            finished++;
        }
        f->thread = -1;
        leave(f);
    }
}

[[noreturn]] static void go(fiber *f)
{
    if (f->begun)
        _longjmp(f->left, 1);
    f->begun = true;
    setcontext(&f->context);
    abort();
}

static void enter(fiber *f)
{
    emulated_now = &f->place;
    __sanitizer_start_switch_fiber(&scheduler_fake, f->stack, STACK);
    if (_setjmp(scheduler) == 0)
        go(f);
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
}

static void prepare(fiber *f)
{
    f->thread = -1;
    f->stack = static_cast<char *>(malloc(STACK));
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, live, 0);
}

static fiber *idle_fiber()
{
    for (int i = 0; i < n_fibers; i++)
        if (fibers[i].thread < 0)
            return &fibers[i];
    getcontext(&fibers[n_fibers].context);
    prepare(&fibers[n_fibers]);
    return &fibers[n_fibers++];
}

static void wait_at(meeting *m, int members)
{
    fiber *const f = now();
    if (++m->arrived == members) {
        m->arrived = 0;
        m->passed++;
        return;
    }
    f->at = m;
    f->seen = m->passed;
    while (m->passed == f->seen)
        leave(f);
    f->at = nullptr;
}

void emulated_barrier(void)
{
    wait_at(&block_meeting, threads);
}

uint64_t emulated_shuffle(uint64_t mine, int lane_mask)
{
    const int t = now()->thread, warp = t / WARP;
    if (threads % WARP != 0)
        emulated_fail("a block of %d threads exchanges within a warp", threads);
    slot[t] = mine;
    wait_at(&warp_meeting[warp], WARP);
    const uint64_t theirs = slot[warp * WARP + ((t % WARP) ^ lane_mask) % WARP];
    wait_at(&warp_meeting[warp], WARP);
    return theirs;
}

static bool step()
{
    bool moved = false;
    for (int k = 0; k < n_fibers; k++) {
        fiber *const f = &fibers[descending ? n_fibers - 1 - k : k];
        if (f->thread >= 0 && f->at && f->at->passed != f->seen) {
            enter(f);
            moved = true;
        }
    }
    if (next_thread < threads) {
        enter(idle_fiber());
        moved = true;
    }
    return moved;
}

static void run_block()
{
    next_thread = finished = 0;
    block_meeting = meeting{};
    memset(warp_meeting, 0, sizeof warp_meeting);
    while (finished < threads)
        if (!step())
            emulated_fail("%d of %d threads of a block have ended while the others wait at a barrier", finished, threads);
    descending = !descending;
}

void emulated_run(const cudaLaunchConfig_t &config, const emulated_work *w)
{
    emulated_block_dim = config.blockDim;
    emulated_grid_dim = config.gridDim;
    threads = (int)(config.blockDim.x * config.blockDim.y * config.blockDim.z);
    work = w;
    for (unsigned z = 0; z < config.gridDim.z; z++)
        for (unsigned y = 0; y < config.gridDim.y; y++)
            for (unsigned x = 0; x < config.gridDim.x; x++) {
                block_index = dim3(x, y, z);
                run_block();
            }
}
