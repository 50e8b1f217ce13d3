/* A block is a mapping of its own between two pages without access. Blocks are kept in a list that a signal handler
 * reads. */
#include "tests/core/guarded_pool.h"
#include "tests/test.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGNED = 64, BLOCKS = 1024, FILL = 0x5a, POISON = 0xff };

typedef struct block {
    char *mapping; /* NULL: the place is free */
    size_t mapped;
    char *data;
    size_t bytes;
    bool array;
} block;

static block blocks[BLOCKS];
static int64_t live, damaged;
static unsigned turn;

/* The names that the linker gives to what it wraps. */
wf_status __wrap_wf_pool_take(wf_ctx *ctx, size_t bytes, void **data);
void __wrap_wf_pool_give(wf_ctx *ctx, void *data, size_t bytes);
void __wrap_wf_packed_free(wf_ctx *ctx, wf_packed_form **forms);
void __real_wf_packed_free(wf_ctx *ctx, wf_packed_form **forms);

void guarded_pool_alternate(unsigned phase)
{
    turn = phase;
}

int64_t guarded_pool_live(void)
{
    return live;
}

int64_t guarded_pool_damaged(void)
{
    return damaged;
}

static size_t up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static block *free_place(void)
{
    for (int i = 0; i < BLOCKS; i++)
        if (!blocks[i].mapping)
            return &blocks[i];
    return NULL;
}

static block *block_of(const void *data)
{
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].mapping && blocks[i].data == data)
            return &blocks[i];
    return NULL;
}

/* Pages of the block without the two that are shut. */
static char *first_byte(const block *b)
{
    return b->mapping + PAGE;
}

static char *behind(const block *b)
{
    return b->mapping + b->mapped - PAGE;
}

static wf_status take(size_t bytes, size_t align, bool array, void **data)
{
    block *const b = free_place();
    const size_t room = up(bytes ? bytes : 1, PAGE), mapped = room + 2 * PAGE;
    char *const mapping = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b || mapping == MAP_FAILED || mprotect(mapping + PAGE, room, PROT_READ | PROT_WRITE) != 0)
        WF_FAIL(WF_ERR_MEMORY, "no memory for a guarded block of %zu bytes beside %lld others", bytes, (long long)live);
    const bool begins = turn++ % 3 == 2;
    char *const start = mapping + PAGE + (begins ? 0 : room - up(bytes, align));
    memset(mapping + PAGE, FILL, room);
    memset(start, POISON, bytes); /* NaN in all float types */
    *b = (block){.mapping = mapping, .mapped = mapped, .data = start, .bytes = bytes, .array = array};
    live++;
    *data = start;
    return WF_OK;
}

static int64_t changed(const char *from, const char *to)
{
    int64_t count = 0;
    for (; from < to; from++)
        count += *from != FILL;
    return count;
}

static void give(void *data)
{
    block *const b = block_of(data);
    if (!b) {
        test_failed(__FILE__, __LINE__, "a block is given back that was not taken");
        return;
    }
    const int64_t before = changed(first_byte(b), b->data), after = changed(b->data + b->bytes, behind(b));
    damaged += before + after;
    if (before + after > 0)
        test_failed(__FILE__, __LINE__, "%lld bytes before and %lld behind a block of %zu bytes were written",
                    (long long)before, (long long)after, b->bytes);
    munmap(b->mapping, b->mapped);
    b->mapping = NULL;
    live--;
}

wf_status guarded_array_take(wf_ctx *ctx, size_t bytes, size_t size, void **data)
{
    return take(bytes, size, true, data);
}

void guarded_array_give(wf_ctx *ctx, void *data, size_t bytes)
{
    give(data);
}

wf_status __wrap_wf_pool_take(wf_ctx *ctx, size_t bytes, void **data)
{
    *data = NULL;
    return bytes > 0 ? take(bytes, ALIGNED, false, data) : WF_OK;
}

void __wrap_wf_pool_give(wf_ctx *ctx, void *data, size_t bytes)
{
    if (data)
        give(data);
}

/* In the pool's own file, whose calls of itself the linker does not wrap. */
void __wrap_wf_packed_free(wf_ctx *ctx, wf_packed_form **forms)
{
    for (wf_packed_form *form = *forms; form; form = form->next) {
        __wrap_wf_pool_give(ctx, form->data, form->bytes);
        form->data = NULL;
    }
    __real_wf_packed_free(ctx, forms);
}

/* Without printf, which a signal handler must not call. */
static char *append(char *at, const char *end, const char *text)
{
    while (*text && at + 1 < end)
        *at++ = *text++;
    *at = '\0';
    return at;
}

static char *append_number(char *at, const char *end, size_t number)
{
    char digits[24];
    int n = sizeof digits - 1;
    digits[n] = '\0';
    do
        digits[--n] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    return append(at, end, digits + n);
}

bool guarded_pool_describe(const void *address, char *text, size_t room)
{
    const char *const at = address, *const end = text + room;
    for (int i = 0; i < BLOCKS; i++) {
        const block *const b = &blocks[i];
        if (!b->mapping || at < b->mapping || at >= b->mapping + b->mapped)
            continue;
        const bool before = at < b->data;
        text = append(text, end, b->array ? "an array of " : "a workspace of ");
        text = append_number(text, end, b->bytes);
        text = append(text, end, " bytes was touched ");
        text = append_number(text, end, (size_t)(before ? b->data - at : at - (b->data + b->bytes)));
        append(text, end, before ? " bytes before its begin" : " bytes behind its end");
        return true;
    }
    return false;
}
