/* What the pool keeps and what it returns, on a device whose memory is limited. */
#include "core/context_author.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static wf_ctx *ctx;
static wf_kernels limited;
static const wf_kernels *whole;
static size_t limit, taken;

static wf_status alloc_limited(wf_ctx *of, size_t bytes, void **data)
{
    WF_CHECK(taken + bytes <= limit, WF_ERR_MEMORY, "the device has %zu bytes left, not %zu", limit - taken, bytes);
    WF_TRY(whole->alloc(of, bytes, data));
    taken += bytes;
    return WF_OK;
}

static void release_limited(wf_ctx *of, void *data, size_t bytes)
{
    taken -= bytes;
    whole->release(of, data, bytes);
}

static void begin(size_t bytes)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    WF_MUST(wf_check(ctx));
    whole = ctx->k;
    limited = *whole;
    limited.alloc = alloc_limited;
    limited.release = release_limited;
    ctx->k = &limited;
    limit = bytes;
    taken = 0;
}

static void end(void)
{
    WF_EXPECT_OK(wf_ctx_free(ctx));
    WF_EXPECT(taken == 0, "%zu bytes were not released", taken);
}

static void *take(size_t bytes)
{
    void *data = NULL;
    WF_EXPECT_OK(wf_pool_take(ctx, bytes, &data));
    if (data)
        memset(data, (int)(bytes >> 20), bytes);
    return data;
}

static bool holds(const void *data, size_t bytes)
{
    const unsigned char *const c = data;
    return c && c[0] == (unsigned char)(bytes >> 20) && c[bytes - 1] == (unsigned char)(bytes >> 20);
}

/* Free blocks make room for another size; blocks in use stay, and are still found. */
static void retries(void)
{
    void *data = NULL;
    begin(12 * MIB);
    void *const small = take(2 * MIB), *const a = take(4 * MIB), *const b = take(5 * MIB);
    wf_pool_give(ctx, a, 4 * MIB);
    wf_pool_give(ctx, b, 5 * MIB);
    void *const large = take(10 * MIB);
    WF_EXPECT(holds(small, 2 * MIB) && holds(large, 10 * MIB), "contents of blocks in use");
    WF_EXPECT(wf_ctx_memory(ctx).bytes_reserved == 12 * MIB && taken == 12 * MIB, "%zu bytes reserved, %zu taken",
              wf_ctx_memory(ctx).bytes_reserved, taken);
    WF_EXPECT_ERROR(WF_ERR_MEMORY, wf_pool_take(ctx, 3 * MIB, &data));
    wf_pool_give(ctx, small, 2 * MIB);
    wf_pool_give(ctx, large, 10 * MIB);
    WF_EXPECT(take(2 * MIB) == small && wf_ctx_memory(ctx).bytes_in_use == 2 * MIB, "the block is used again");
    wf_pool_give(ctx, small, 2 * MIB);
    end();
}

/* What something outside may still use is not returned. */
static void held(void)
{
    void *data = NULL;
    begin(12 * MIB);
    void *const still = take(5 * MIB);
    wf_pool_hold(ctx, still);
    wf_pool_give(ctx, still, 5 * MIB);
    wf_pool_give(ctx, take(4 * MIB), 4 * MIB);
    data = take(6 * MIB);
    WF_EXPECT(holds(data, 6 * MIB) && holds(still, 5 * MIB), "contents");
    wf_pool_give(ctx, data, 6 * MIB);
    WF_EXPECT_ERROR(WF_ERR_MEMORY, wf_pool_take(ctx, 8 * MIB, &data));
    WF_EXPECT_OK(wf_ctx_free(ctx));
    WF_EXPECT(taken == 5 * MIB, "a held block stays, and nothing else: %zu bytes", taken);
}

/* One block after the other, each of another size: what is reserved stays near what is in use. */
static void many_sizes(void)
{
    begin(SIZE_MAX);
    for (size_t i = 1; i <= 100; i++)
        wf_pool_give(ctx, take(i * MIB), i * MIB);
    const wf_memory_counters memory = wf_ctx_memory(ctx);
    WF_EXPECT(memory.bytes_reserved <= memory.bytes_peak + memory.bytes_peak / 4 + 16 * MIB,
              "%zu bytes reserved, %zu in use at most", memory.bytes_reserved, memory.bytes_peak);
    end();
}

typedef struct piece {
    unsigned char *data;
    size_t bytes;
    unsigned char mark;
} piece;

/* Gives back a piece that still has its mark in every byte. */
static void give_marked(piece *p)
{
    size_t same = 0;
    while (same < p->bytes && p->data[same] == p->mark)
        same++;
    WF_EXPECT(same == p->bytes, "byte %zu of a block of %zu was written by another", same, p->bytes);
    wf_pool_give(ctx, p->data, p->bytes);
    *p = (piece){0};
}

/* Blocks of any size in any order: no two overlap, and what is reserved is bounded, since large blocks are cut and
 * their parts joined again. */
static void cut_and_joined(void)
{
    enum { PIECES = 64, TURNS = 4000 };
    piece list[PIECES] = {{0}};
    test_rng rng = {3};
    begin(SIZE_MAX);
    for (int turn = 0; turn < TURNS; turn++) {
        piece *const p = &list[test_int(&rng, 0, PIECES - 1)];
        const size_t bytes = (size_t)test_int(&rng, 1, 1 << test_int(&rng, 8, 20));
        if (p->data) {
            give_marked(p);
            continue;
        }
        void *data = NULL;
        WF_EXPECT_OK(wf_pool_take(ctx, bytes, &data));
        *p = (piece){data, bytes, (unsigned char)turn};
        memset(data, p->mark, bytes);
    }
    const wf_memory_counters memory = wf_ctx_memory(ctx);
    for (int i = 0; i < PIECES; i++)
        if (list[i].data)
            give_marked(&list[i]);
    WF_EXPECT(wf_ctx_memory(ctx).bytes_in_use == 0, "%zu bytes in use", wf_ctx_memory(ctx).bytes_in_use);
    WF_EXPECT(memory.bytes_reserved <= memory.bytes_peak + memory.bytes_peak / 4 + 16 * MIB,
              "%zu bytes reserved, %zu in use at most", memory.bytes_reserved, memory.bytes_peak);
    end();
}

/* At the bound, a small block takes no large one, and returns none. */
static void small_blocks(void)
{
    begin(SIZE_MAX);
    wf_pool_give(ctx, take(64 * MIB), 64 * MIB);
    take(24 * MIB);
    take(8 * MIB);
    WF_EXPECT(taken == 96 * MIB, "%zu bytes taken: not the bound", taken);
    take(256);
    WF_EXPECT(wf_ctx_memory(ctx).bytes_in_use == 32 * MIB + 256, "%zu bytes in use", wf_ctx_memory(ctx).bytes_in_use);
    take(64 * MIB);
    WF_EXPECT(taken == 96 * MIB + 256, "%zu bytes taken", taken);
    end();
}

/* A device that has no more memory: a free part serves before anything fails, also a small block. Steps of a fixed
 * shape on nearly the whole of it end up asking the device for nothing. */
static void cut_without_memory(void)
{
    begin(88 * MIB);
    wf_pool_give(ctx, take(64 * MIB), 64 * MIB);
    take(24 * MIB);
    take(24 * MIB);
    WF_EXPECT(taken == 88 * MIB, "%zu bytes taken: not all that there are", taken);
    take(8 * MIB);
    take(256);
    WF_EXPECT(taken == 88 * MIB && wf_ctx_memory(ctx).bytes_in_use == 56 * MIB + (16 << 10),
              "%zu bytes taken, %zu in use", taken, wf_ctx_memory(ctx).bytes_in_use);
    end();

    begin(100 * MIB);
    int64_t before = 0;
    for (int step = 0; step < 8; step++) {
        void *data[3];
        before = step < 4 ? wf_ctx_memory(ctx).system_allocations : before;
        for (int i = 0; i < 3; i++)
            data[i] = take(24 * MIB);
        for (int i = 0; i < 3; i++)
            wf_pool_give(ctx, data[i], 24 * MIB);
        wf_pool_give(ctx, take(32 * MIB), 32 * MIB);
    }
    WF_EXPECT(wf_ctx_memory(ctx).system_allocations == before, "%d allocations in the last steps",
              (int)(wf_ctx_memory(ctx).system_allocations - before));
    end();
}

/* A large block serves as two, and as one again once both came back; one part that is held keeps the whole. */
static void parts(void)
{
    begin(96 * MIB);
    wf_pool_give(ctx, take(64 * MIB), 64 * MIB);
    char *const a = take(24 * MIB), *const b = take(24 * MIB);
    WF_EXPECT(taken == 64 * MIB + 24 * MIB && wf_ctx_memory(ctx).bytes_in_use == 48 * MIB, "%zu bytes taken", taken);
    WF_EXPECT(holds(a, 24 * MIB) && holds(b, 24 * MIB), "contents");
    char *const c = take(24 * MIB);
    WF_EXPECT(c == b + 24 * MIB && taken == 88 * MIB, "%zu bytes taken for a third one", taken);
    wf_pool_give(ctx, b, 24 * MIB);
    wf_pool_give(ctx, c, 24 * MIB);
    char *const again = take(64 * MIB);
    WF_EXPECT(again == b && taken == 88 * MIB, "the parts are not joined: %zu bytes taken", taken);
    wf_pool_give(ctx, again, 64 * MIB);
    wf_pool_hold(ctx, take(40 * MIB));
    wf_pool_give(ctx, a, 24 * MIB);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    WF_EXPECT(taken == 64 * MIB, "%zu bytes stay, and the block has 64 MiB of which a part is held", taken);
}

/* Blocks of many sizes that come and go in any order: the ends of each are its owner's alone. There are enough of them
 * that searches in the pool's table meet, and that parts are cut and joined all the time. */
static void any_order(void)
{
    enum { PIECES = 600, STEPS = 40000 };
    static struct {
        uint64_t *data;
        size_t bytes;
    } owned[PIECES];
    test_rng rng = {1};
    size_t live = 0, wrong = 0;
    begin(SIZE_MAX);
    for (int step = 0; step < STEPS; step++) {
        const int64_t i = test_int(&rng, 0, PIECES - 1);
        uint64_t *const data = owned[i].data;
        const size_t words = owned[i].bytes / sizeof *data;
        if (data) {
            wrong += data[0] != (uint64_t)i || data[words - 1] != (uint64_t)i;
            live -= owned[i].bytes;
            wf_pool_give(ctx, data, owned[i].bytes);
            owned[i].data = NULL;
            continue;
        }
        void *taken_now = NULL;
        owned[i].bytes = (size_t)test_int(&rng, 32, 2048) << test_int(&rng, 3, 8);
        WF_MUST(wf_pool_take(ctx, owned[i].bytes, &taken_now));
        owned[i].data = taken_now;
        owned[i].data[0] = owned[i].data[owned[i].bytes / sizeof *data - 1] = (uint64_t)i;
        live += owned[i].bytes;
    }
    WF_EXPECT(wrong == 0, "%zu blocks were written by others", wrong);
    WF_EXPECT(wf_ctx_memory(ctx).bytes_in_use >= live, "%zu bytes in use, %zu are live",
              wf_ctx_memory(ctx).bytes_in_use, live);
    for (int i = 0; i < PIECES; i++)
        wf_pool_give(ctx, owned[i].data, owned[i].bytes);
    WF_EXPECT(wf_ctx_memory(ctx).bytes_in_use == 0, "%zu bytes in use at the end", wf_ctx_memory(ctx).bytes_in_use);
    end();
}

/* Bytes that were asked for and not given back, and the most so far. */
static size_t asked, asked_most;

static void *take_image(size_t bytes)
{
    void *data = NULL;
    WF_EXPECT_OK(wf_pool_take(ctx, bytes, &data));
    asked += bytes;
    asked_most = asked > asked_most ? asked : asked_most;
    return data;
}

static void give_image(void *data, size_t bytes)
{
    wf_pool_give(ctx, data, bytes);
    asked -= data ? bytes : 0;
}

/* Steps of images of many sizes: outputs are taken one after the other and given back in reverse, beside gradients.
 * What is reserved stays near what was asked for, and the system is rarely asked. */
static void many_images(void)
{
    enum { STEPS = 100, LEVELS = 16 };
    test_rng rng = {1};
    int64_t first = 0;
    asked = asked_most = 0;
    begin(SIZE_MAX);
    for (int step = 0; step < STEPS; step++) {
        const size_t pixels = (size_t)(test_int(&rng, 4, 16) * test_int(&rng, 4, 16)) << 8;
        size_t bytes[LEVELS];
        void *output[LEVELS], *gradient = NULL;
        for (int i = 0; i < LEVELS; i++) {
            bytes[i] = pixels << (8 - i % 4);
            output[i] = take_image(bytes[i]);
        }
        for (int i = LEVELS - 1; i >= 0; i--) {
            void *const next = take_image(bytes[i]);
            give_image(gradient, bytes[(i + 1) % LEVELS]);
            give_image(output[i], bytes[i]);
            gradient = next;
        }
        give_image(gradient, bytes[0]);
        first = step == STEPS / 2 ? wf_ctx_memory(ctx).system_allocations : first;
    }
    const wf_memory_counters memory = wf_ctx_memory(ctx);
    WF_EXPECT(4 * memory.bytes_reserved <= 9 * asked_most, "%zu MiB reserved, %zu in use and %zu asked for at most",
              memory.bytes_reserved / MIB, memory.bytes_peak / MIB, asked_most / MIB);
    WF_EXPECT(asked == 0, "%zu bytes asked for at the end", asked);
    WF_EXPECT(memory.system_allocations - first <= 2 * LEVELS, "%lld blocks in the second half",
              (long long)(memory.system_allocations - first));
    WF_EXPECT(memory.bytes_in_use == 0, "%zu bytes in use at the end", memory.bytes_in_use);
    end();
}

/* MiB that the process has in memory. */
static long resident(void)
{
    long all = 0, here = 0;
    FILE *const f = fopen("/proc/self/statm", "r");
    WF_EXPECT(f && fscanf(f, "%ld %ld", &all, &here) == 2, "no /proc/self/statm");
    if (f)
        fclose(f);
    return here * (sysconf(_SC_PAGESIZE) >> 10) >> 10;
}

/* Returns true if the system was asked for huge pages at `data`: the flag "hg" of its mapping. */
static bool asks_for_huge_pages(const void *data)
{
    char line[512];
    bool within = false, huge = false;
    FILE *const f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            within = from <= (uintptr_t)data && (uintptr_t)data < to;
        else if (within && strncmp(line, "VmFlags:", 8) == 0)
            huge = strstr(line, " hg") != NULL;
    }
    if (f)
        fclose(f);
    return huge;
}

/* A block takes memory when it is written, not when it is taken; with huge pages (cpu) and without (ref). Bounds leave
 * room for what a sanitizer keeps beside a block. */
static void first_touch(void)
{
    static const char *const devices[] = {"cpu", "ref"};
    for (int i = 0; i < 2; i++) {
        void *data = NULL;
        ctx = wf_ctx_new((wf_ctx_opts){.device = devices[i]});
        WF_MUST(wf_check(ctx));
        const long before = resident();
        WF_EXPECT_OK(wf_pool_take(ctx, 64 * MIB, &data));
        const long taken_more = resident() - before;
        memset(data, 1, 64 * MIB);
        const long written_more = resident() - before;
        const bool offered = access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
        WF_EXPECT(asks_for_huge_pages(data) == (offered && i == 0), "%s: huge pages %s", devices[i],
                  i == 0 ? "are not asked for" : "are asked for");
        WF_EXPECT(taken_more < 16, "%s: a block of 64 MiB has %ld MiB before it is written", devices[i], taken_more);
        WF_EXPECT(written_more >= 60, "%s: a block of 64 MiB has %ld MiB when it is written", devices[i], written_more);
        wf_pool_give(ctx, data, 64 * MIB);
        WF_EXPECT_OK(wf_ctx_free(ctx));
    }
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"first_touch", first_touch},
                                   {"retries", retries},
                                   {"held", held},
                                   {"many_sizes", many_sizes},
                                   {"cut_and_joined", cut_and_joined},
                                   {"small_blocks", small_blocks},
                                   {"cut_without_memory", cut_without_memory},
                                   {"parts", parts},
                                   {"any_order", any_order},
                                   {"many_images", many_images},
                                   {0}});
}
