/* Tasks that go on while the program computes: a second stack, switched to at every poll, on which sums of gradients
 * wait for messages. One stack a context, so tasks run in the order in which they were added, and never beside each
 * other. */
#include "comm/nccl_author.h"
#include "comm/queue_author.h"
#include "comm/reduce/reduce_impl.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBERS 1
#endif
#endif
#ifdef FIBERS
#include <sanitizer/common_interface_defs.h>
#endif

/* 1 MiB of address space; only pages that are touched take memory. */
#define STACK ((size_t)1 << 20)

struct wf_queue {
    wf_ctx *ctx;
    wf_task *first, *last;
    bool leaves; /* the task in progress does */
    ucontext_t main, tasks;
    bool begun;          /* tasks have a stack with something on it */
    bool within;         /* a task has the processor */
    bool waited;         /* the main program has nothing else to do: a task that waits keeps the processor */
    const char *watched; /* what the watchdog has to know of whoever does not have the processor */
    char *stack;         /* above a page that cannot be touched */
    wf_errors *errors;
    wf_status status;
    char message[WF_FAILURE_TEXT];
    const void *main_stack; /* for the sanitizer, as are the next */
    size_t main_bytes;
    void *main_fake, *tasks_fake;
};

/* --- turns ------------------------------------------------------------------------------------------------------- */

/* The sanitizer is told of every change of stacks: before, from which (`fake` NULL: for the last time), and after. */
static void before_change(void **fake, const void *stack, size_t bytes)
{
#ifdef FIBERS
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}

static void after_change(void *fake, const void **stack, size_t *bytes)
{
#ifdef FIBERS
    __sanitizer_finish_switch_fiber(fake, stack, bytes);
#endif
}

static void run_task(wf_queue *q, wf_task *task)
{
    const wf_status status = task->run(task);
    if (status == WF_OK)
        return;
    wf_error_save(&q->status, q->message, sizeof q->message);
    q->status = status;
    wf_error_clear();
}

/* A new stack begins here; makecontext hands over no pointers. */
static wf_queue *beginning;

static void run_tasks(void)
{
    wf_queue *q = beginning;
    after_change(NULL, &q->main_stack, &q->main_bytes);
    while (q->first) {
        wf_task *task = q->first;
        q->first = task->next;
        q->leaves = task->leaves;
        if (q->status == WF_OK)
            run_task(q, task);
    }
    q->begun = false;
    before_change(NULL, q->main_stack, q->main_bytes);
    setcontext(&q->main);
}

static void begin_stack(wf_queue *q)
{
    getcontext(&q->tasks);
    q->tasks.uc_stack.ss_sp = q->stack;
    q->tasks.uc_stack.ss_size = STACK;
    q->tasks.uc_link = NULL;
    makecontext(&q->tasks, run_tasks, 0);
    q->begun = true;
    q->tasks_fake = NULL;
    beginning = q;
}

static void to_tasks(wf_queue *q)
{
    if (!q->begun)
        begin_stack(q);
    q->within = true;
    wf_errors_swap(q->errors);
    q->watched = wf_watch_swap(q->watched);
    before_change(&q->main_fake, q->stack, STACK);
    swapcontext(&q->main, &q->tasks);
    after_change(q->main_fake, NULL, NULL);
    q->watched = wf_watch_swap(q->watched);
    wf_errors_swap(q->errors);
    q->within = false;
    if (!q->begun) {
        q->watched = NULL;
        q->ctx->progress = NULL;
        q->ctx->progress_state = NULL;
    }
}

static void to_main(wf_queue *q)
{
    before_change(&q->tasks_fake, q->main_stack, q->main_bytes);
    swapcontext(&q->tasks, &q->main);
    after_change(q->tasks_fake, &q->main_stack, &q->main_bytes);
}

static void progress(void *queue)
{
    wf_queue *q = queue;
    if (!q->within && (q->begun || q->first))
        to_tasks(q);
}

bool wf_queue_yield(wf_comm *comm)
{
    wf_queue *q = comm->shared->queue;
    if (!q)
        return false;
    if (!q->within) {
        progress(q);
        return false;
    }
    if (q->waited)
        return false;
    to_main(q);
    return true;
}

bool wf_queue_within(const wf_comm *comm)
{
    return comm->shared->queue && comm->shared->queue->within;
}

bool wf_queue_leaves(const wf_comm *comm)
{
    return wf_queue_within(comm) && comm->shared->queue->leaves;
}

/* --- the queue --------------------------------------------------------------------------------------------------- */

static wf_queue *queue_new(wf_ctx *ctx)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    wf_queue *q = wf_calloc(ctx, 1, sizeof *q);
    if (!q)
        return NULL;
    q->ctx = ctx;
    q->errors = wf_errors_new();
    char *memory = mmap(NULL, page + STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    q->stack = memory == MAP_FAILED ? NULL : memory + page;
    if (q->errors && q->stack && mprotect(memory, page, PROT_NONE) == 0)
        return q;
    wf_queue_free(q);
    WF_FAIL_NULL(WF_ERR_MEMORY, "no memory for a second stack");
}

void wf_queue_free(wf_queue *q)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!q)
        return;
    if (q->stack)
        munmap(q->stack - page, page + STACK);
    wf_errors_free(q->errors);
    free(q);
}

static void finish_tasks(wf_queue *q)
{
    q->waited = true;
    progress(q);
    q->waited = false;
}

void wf_queue_add(wf_comm *comm, wf_task *task)
{
    wf_queue *q = comm->shared->queue;
    task->next = NULL;
    if (q->first)
        q->last->next = task;
    else
        q->first = task;
    q->last = task;
    q->ctx->progress = progress;
    q->ctx->progress_state = q;
    if (comm->shared->in_order)
        finish_tasks(q);
}

wf_status wf_queue_status(const wf_comm *comm)
{
    const wf_queue *q = comm->shared->queue;
    return q && q->status != WF_OK ? WF_RAISE(q->status, "%s", q->message) : WF_OK;
}

wf_status wf_queue_wait(wf_comm *comm)
{
    wf_queue *q = comm->shared->queue;
    if (!q)
        return WF_OK;
    finish_tasks(q);
    const wf_status status = wf_queue_status(comm);
    q->status = WF_OK;
    return status == WF_OK ? wf_nccl_join(comm) : status;
}

void wf_queue_end(wf_comm *comm)
{
    wf_queue *q = comm->shared->queue;
    if (!q)
        return;
    finish_tasks(q);
    q->status = WF_OK;
    if (wf_nccl_join(comm) != WF_OK)
        wf_log(WF_LOG_ERROR, "%s", wf_error_message());
}

/* --- its communicators ------------------------------------------------------------------------------------------- */

static wf_status connect_again(wf_comm *comm)
{
    if (!comm->shared->queue)
        comm->shared->queue = queue_new(comm->shared->ctx);
    WF_NEED(comm->shared->queue);
    if (comm->size == 1)
        return WF_OK;
    wf_comm *async = wf_comm_split(comm, 0, comm->rank);
    WF_NEED(async);
    /* Its calls happen inside others of the main program: time-outs and the watchdog are that one's. */
    async->nested = true;
    comm->async = async;
    return wf_reducer_connect(async);
}

wf_status wf_queue_open(wf_comm *comm)
{
    WF_NEED(comm);
    if (comm->async || (comm->size == 1 && comm->shared->queue))
        return WF_OK;
    return wf_guard_end(comm, "set-up", connect_again(comm));
}

void wf_queue_close(wf_comm *comm)
{
    wf_comm *async = comm->async;
    comm->async = NULL;
    if (wf_comm_close(async) != WF_OK)
        wf_log(WF_LOG_ERROR, "%s", wf_error_message());
}

/* Who waits in a call of the main program hears of it there. */
static wf_status fail_together(wf_comm *comm, const wf_comm *async)
{
    if (comm->control)
        wf_control_tell(comm, async->dead, async->death);
    return wf_failure_inherit(comm, async);
}

static wf_status async_of(wf_comm *comm, wf_comm **async)
{
    WF_NEED(comm);
    WF_CHECK(comm->async || comm->size == 1, WF_ERR_STATE, "the communicator was not opened for tasks");
    *async = comm->async ? comm->async : comm;
    return WF_OK;
}

/* What was sent beside counts as sent by comm, and what failed there as failed here. */
static wf_status end_async(wf_comm *comm, const wf_comm *async, wf_traffic before, wf_status status)
{
    if (async == comm)
        return status;
    comm->traffic.bytes_sent += async->traffic.bytes_sent - before.bytes_sent;
    comm->traffic.messages += async->traffic.messages - before.messages;
    comm->traffic.collectives += async->traffic.collectives - before.collectives;
    comm->traffic.bytes_copied += async->traffic.bytes_copied - before.bytes_copied;
    return status != WF_OK && async->dead && !comm->dead ? fail_together(comm, async) : status;
}

wf_status wf_reduce_async(wf_comm *comm, const wf_reduce_job *job)
{
    wf_comm *async = NULL;
    WF_TRY(async_of(comm, &async));
    const wf_traffic before = async->traffic;
    return end_async(comm, async, before, wf_reducer_sum(async, job));
}

wf_status wf_sum_shards_async(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    wf_comm *async = NULL;
    WF_TRY(async_of(comm, &async));
    const wf_traffic before = async->traffic;
    return end_async(comm, async, before, wf_shards_sum(async, data, shard, dtype));
}

wf_status wf_gather_shards_async(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    wf_comm *async = NULL;
    WF_TRY(async_of(comm, &async));
    const wf_traffic before = async->traffic;
    return end_async(comm, async, before, wf_shards_gather(async, data, shard, dtype));
}

wf_status wf_allgather_bytes_async(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    wf_comm *async = NULL;
    WF_TRY(async_of(comm, &async));
    const wf_traffic before = async->traffic;
    return end_async(comm, async, before, wf_allgather_bytes(async, mine, bytes, all));
}

void wf_count_staged_async(wf_comm *comm, size_t bytes)
{
    comm->traffic.bytes_copied += bytes;
}
