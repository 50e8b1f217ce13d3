#include "examples/quantized.h"

#include <weft/comm/reducer_author.h>

#include <math.h>
#include <string.h>

#define GROUP 256 /* elements that have one scale */

/* A message of n elements: the scales, then the integers. */
static int64_t groups_of(int64_t n)
{
    return (n + GROUP - 1) / GROUP;
}

static size_t message_bytes(int64_t n)
{
    return (size_t)groups_of(n) * sizeof(float) + (size_t)n;
}

/* --- functions of the schedule: they get bytes, and know no ranks ------------------------------------------------- */

/* `to`: what this rank has left out of these n elements so far, and behind it the message. */
static wf_status quantize(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    const float *x = from;
    const int64_t n = (int64_t)(from_bytes / sizeof *x);
    float *left = to, *scale = left + n;
    int8_t *code = (int8_t *)(scale + groups_of(n));
    for (int64_t i = 0; i < n; i += GROUP) {
        const int64_t end = i + GROUP < n ? i + GROUP : n;
        float most = 0;
        for (int64_t k = i; k < end; k++) {
            left[k] += x[k];
            most = fabsf(left[k]) > most || left[k] != left[k] ? fabsf(left[k]) : most;
        }
        *scale = most / 127;
        for (int64_t k = i; k < end; k++) {
            code[k] = (int8_t)(isfinite(most) && most > 0 ? lrintf(left[k] / *scale) : 1);
            left[k] = isfinite(most) ? left[k] - *scale * (float)(most > 0 ? code[k] : 0) : 0;
        }
        scale++;
    }
    return WF_OK;
}

static void expand(const void *from, float *to, int64_t n, bool adds)
{
    const float *scale = from;
    const int8_t *code = (const int8_t *)(scale + groups_of(n));
    for (int64_t i = 0; i < n; i++)
        to[i] = (adds ? to[i] : 0) + scale[i / GROUP] * (float)code[i];
}

static wf_status add(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    expand(from, to, (int64_t)(to_bytes / sizeof(float)), true);
    return WF_OK;
}

static wf_status put(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    expand(from, to, (int64_t)(to_bytes / sizeof(float)), false);
    return WF_OK;
}

/* --- the ring ----------------------------------------------------------------------------------------------------- */

typedef struct ring {
    wf_builder *b;
    wf_address flat;
    int64_t first, count; /* elements of it */
    int ranks, rank;
} ring;

static int64_t block_of(const ring *r, int block, wf_address *at)
{
    int64_t lo, hi;
    wf_block(r->count, r->ranks, (block % r->ranks + r->ranks) % r->ranks, &lo, &hi);
    *at = wf_address_add(r->flat, (size_t)(r->first + lo) * sizeof(float));
    return hi - lo;
}

/* A block is rounded once on every rank; where the message is, behind what was left out. */
static wf_steps add_quantize(const ring *r, int block, wf_steps after, wf_address *message)
{
    wf_address at;
    const int64_t n = block_of(r, block, &at);
    const size_t bytes = (size_t)n * sizeof(float);
    const wf_address kept = wf_builder_kept(r->b, bytes + message_bytes(n));
    *message = wf_address_add(kept, bytes);
    wf_after(r->b, after);
    return wf_add_call(r->b, (wf_step_call){.run = quantize, .from_bytes = bytes}, at, kept, bytes + message_bytes(n));
}

static wf_steps add_expand(const ring *r, int block, wf_address message, wf_step_function how)
{
    wf_address at;
    const int64_t n = block_of(r, block, &at);
    const wf_step_call call = {.run = how, .from_bytes = message_bytes(n)};
    return wf_add_call(r->b, call, message, at, (size_t)n * sizeof(float));
}

static size_t bytes_of(const ring *r, int block)
{
    wf_address at;
    return message_bytes(block_of(r, block, &at));
}

static wf_steps receive(const ring *r, int block, wf_address *message)
{
    *message = wf_builder_scratch(r->b, bytes_of(r, block));
    return wf_add_recv(r->b, *message, bytes_of(r, block), (r->rank + r->ranks - 1) % r->ranks);
}

static void send(const ring *r, int block, wf_address message, wf_steps after)
{
    wf_after(r->b, after);
    wf_add_send(r->b, message, bytes_of(r, block), (r->rank + 1) % r->ranks);
}

/* At step s block rank - s goes on to the next rank, which adds its own; after the last one this rank has the whole sum
 * of block rank + 1. Then the sums go round, as they were rounded. */
static void add_ring(const ring *r)
{
    wf_address message;
    wf_steps ready = {0}, *rounded = wf_builder_room(r->b, (size_t)r->ranks * sizeof *rounded);
    for (int s = 0; rounded && s < r->ranks; s++) {
        rounded[s] = add_quantize(r, r->rank - s, ready, &message);
        send(r, r->rank - s, message, rounded[s]);
        if (s == r->ranks - 1) {
            wf_after(r->b, rounded[s]);
            add_expand(r, r->rank - s, message, put);
            break;
        }
        ready = receive(r, r->rank - s - 1, &message);
        wf_after(r->b, ready);
        ready = add_expand(r, r->rank - s - 1, message, add);
    }
    for (int s = 0; rounded && s < r->ranks - 1; s++) {
        const wf_steps came = receive(r, r->rank - s, &message);
        wf_after(r->b, came);
        wf_after(r->b, rounded[s]); /* which read what is overwritten now */
        add_expand(r, r->rank - s, message, put);
        if (s < r->ranks - 2)
            send(r, r->rank - s, message, came);
    }
}

static void build(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                  wf_dtype dtype)
{
    const wf_agreed *agreed = wf_builder_agreed(b);
    const wf_group all = wf_group_all(agreed, wf_builder_rank(b));
    const ring r = {.b = b,
                    .flat = flat,
                    .first = offset[0],
                    .count = dtype == WF_F32 ? offset[segments - exact] - offset[0] : 0,
                    .ranks = agreed->ranks,
                    .rank = wf_builder_rank(b)};
    if (r.ranks > 1 && r.count >= r.ranks)
        add_ring(&r);
    const int64_t from = r.first + (r.count >= r.ranks ? r.count : 0);
    const wf_address rest = wf_address_add(flat, (size_t)from * wf_dtype_size(dtype));
    wf_build_reduce(b, &all, rest, rest, offset[segments] - from, dtype, WF_SUM, -1);
}

wf_status quantized_register(void)
{
    static const wf_reducer quantized = {
        .name = "quantized", .does = "a ring of 8-bit integers with error feedback", .keeps = true, .build = build};
    return wf_reducer_register(&quantized);
}
