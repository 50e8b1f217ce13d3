/* The guarded device's memory is shut whenever no slot runs: who touches it then dies, wherever a slot was before. */
#include "core/kernels_author.h"
#include "tests/fake/guard.h"
#include "tests/test.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK ((size_t)80 << 20) /* more than the device opens piece by piece in one call */

static wf_ctx *ctx;

/* A child touches it. */
static bool dies(const volatile char *at)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        _exit(*at & 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void expect_shut(const char *when, const char *data)
{
    for (size_t at = 0; at < BLOCK; at += BLOCK / 8)
        WF_EXPECT(dies(data + at), "%s: byte %zu can be touched", when, at);
    WF_EXPECT(dies(data + BLOCK - 1), "%s: the last byte can be touched", when);
}

static void after_a_slot(int threads)
{
    void *data = NULL, *little = NULL;
    char *host = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ctx = wf_ctx_new((wf_ctx_opts){.threads = threads});
    WF_EXPECT_OK(ctx->k->alloc(ctx, 1, &little));
    WF_EXPECT(dies(little), "after a little was made: it can be touched");
    WF_EXPECT_OK(ctx->k->alloc(ctx, BLOCK, &data));
    expect_shut("after it was made", data);
    const wf_array touched = {.data = (char *)data + BLOCK / 2, .dtype = WF_F32, .shape = WF_SHAPE(1000)};
    WF_EXPECT_OK(ctx->k->fill(ctx, &touched, 7));
    expect_shut("after a slot touched a part", data);
    WF_EXPECT_OK(ctx->k->to_device(ctx, data, host, BLOCK));
    expect_shut("after all was written", data);
    guard_open();
    guard_open();
    guard_close();
    ((char *)data)[BLOCK - 1] = 1;
    guard_close();
    expect_shut("after it was opened twice", data);
    ctx->k->release(ctx, data, BLOCK);
    ctx->k->release(ctx, little, 1);
    munmap(host, BLOCK);
    wf_ctx_free(ctx);
}

static void one_thread(void)
{
    after_a_slot(1);
}

static void several_threads(void)
{
    after_a_slot(3);
}

int main(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"one_thread", one_thread}, {"several_threads", several_threads}, {0}});
}
