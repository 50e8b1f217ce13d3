/* The contract of the device slots of the kernel table: memory, copies, streams, events, sharing between processes,
 * which device, and what is left after shutdown. Runs on any device, those whose slots have little to do included. */
#include "core/context_author.h"
#include "tests/test.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE ((size_t)4 << 20) /* what the cuda filling stages at once */

static wf_ctx *ctx;
static const wf_kernels *k;

static wf_ctx *ctx_new(void)
{
    wf_ctx *made = wf_ctx_new((wf_ctx_opts){.threads = 2});
    WF_MUST(wf_check(made));
    return made;
}

static unsigned char *numbers(size_t bytes, uint64_t seed)
{
    unsigned char *v = malloc(bytes + 1);
    test_rng rng = {seed};
    for (size_t i = 0; i < bytes; i++)
        v[i] = (unsigned char)test_u64(&rng);
    return v;
}

static void *block(wf_ctx *of, size_t bytes)
{
    void *data = NULL;
    WF_EXPECT_OK(k->alloc(of, bytes, &data));
    WF_EXPECT(data && (uintptr_t)data % 64 == 0, "a block of %zu bytes at %p", bytes, data);
    return data;
}

static void *pinned(size_t bytes)
{
    void *data = NULL;
    WF_EXPECT_OK(k->pinned_alloc(ctx, bytes, &data));
    memset(data, 0x5a, bytes);
    return data;
}

static void expect_bytes(wf_ctx *of, const char *what, const void *device, const unsigned char *want, size_t bytes)
{
    unsigned char *got = malloc(bytes + 1);
    memset(got, 0x11, bytes + 1);
    WF_EXPECT_OK(k->to_host(of, got, device, bytes));
    WF_EXPECT(memcmp(got, want, bytes) == 0, "%s: %zu bytes differ", what, bytes);
    WF_EXPECT(got[bytes] == 0x11, "%s: a byte behind the host's memory was written", what);
    free(got);
}

/* to = from by the slot that kernels of the device make. */
static wf_status copied(void *to, void *from, size_t bytes)
{
    const wf_strided source = {.data = from, .dtype = WF_U8, .rank = 1, .dim = {(int64_t)bytes}, .stride = {1}};
    wf_strided target = source;
    target.data = to;
    return k->copy(ctx, &source, &target, false);
}

/* Slots that may be empty are so together: what they are for is not there. */
static void every_slot(void)
{
    const char *const table = (const char *)k;
    const size_t captures[] = {offsetof(wf_kernels, capture_begin), offsetof(wf_kernels, capture_end),
                               offsetof(wf_kernels, graph_launch), offsetof(wf_kernels, graph_free)};
    const bool any = k->capture_begin != NULL;
    for (size_t at = offsetof(wf_kernels, device_count); at <= offsetof(wf_kernels, shutdown); at += sizeof(void *)) {
        uintptr_t slot;
        memcpy(&slot, table + at, sizeof slot);
        bool may_lack = at == offsetof(wf_kernels, range_push) || at == offsetof(wf_kernels, range_pop);
        for (int i = 0; i < 4; i++)
            may_lack = may_lack || (at == captures[i] && !any);
        WF_EXPECT(slot != 0 || may_lack, "slot %zu is empty", (at - offsetof(wf_kernels, device_count)) / sizeof slot);
    }
    wf_range_push(ctx, "outer");
    wf_range_push(ctx, "inner");
    wf_range_pop(ctx);
    wf_range_pop(ctx);
}

static void memory(void)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1000003};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    char *at[SIZES];
    for (int i = 0; i < SIZES; i++)
        at[i] = block(ctx, sizes[i]);
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < SIZES; j++)
            WF_EXPECT(i == j || at[i] + sizes[i] <= at[j] || at[j] + sizes[j] <= at[i], "blocks %d and %d overlap", i,
                      j);
    for (int i = 0; i < SIZES; i++) {
        unsigned char *v = numbers(sizes[i], (uint64_t)i);
        WF_EXPECT_OK(k->to_device(ctx, at[i], v, sizes[i]));
        free(v);
    }
    for (int i = 0; i < SIZES; i++) {
        unsigned char *v = numbers(sizes[i], (uint64_t)i);
        expect_bytes(ctx, "memory", at[i], v, sizes[i]);
        free(v);
        k->release(ctx, at[i], sizes[i]);
    }
}

/* What a device cannot give is an error that does it no harm; whether a host can is the system's business. */
static void refused(void)
{
    void *data = &data;
    if (k->host)
        return;
    WF_EXPECT_ERROR(WF_ERR_MEMORY, k->alloc(ctx, (size_t)1 << 46, &data));
    void *after = block(ctx, 1 << 20);
    WF_EXPECT_OK(k->to_device(ctx, after, "works", 6));
    expect_bytes(ctx, "after a refusal", after, (const unsigned char *)"works", 6);
    k->release(ctx, after, 1 << 20);
}

/* Into the middle of a block, with sizes around those of pieces. The host's memory is written again at once. */
static void transfers(void)
{
    static const size_t sizes[] = {0, 1, 3, 4095, 4097, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 77};
    const size_t room = 3 * PIECE;
    unsigned char *whole = numbers(room, 5);
    char *at = block(ctx, room);
    WF_EXPECT_OK(k->to_device(ctx, at, whole, room));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t offset = 7 * i + 1;
        unsigned char *part = numbers(sizes[i], i + 100);
        memcpy(whole + offset, part, sizes[i]);
        WF_EXPECT_OK(k->to_device(ctx, at + offset, part, sizes[i]));
        memset(part, 0, sizes[i]);
        free(part);
        expect_bytes(ctx, "part", at + offset, whole + offset, sizes[i]);
    }
    expect_bytes(ctx, "whole", at, whole, room);
    WF_EXPECT_OK(k->to_device(ctx, NULL, NULL, 0));
    WF_EXPECT_OK(k->to_host(ctx, NULL, NULL, 0));
    k->release(ctx, at, room);
    free(whole);
}

/* Copies and kernels take turns on the same two blocks, and the host does not wait between them. */
static void in_order(void)
{
    enum { N = 20000, ROUNDS = 40 };
    int32_t *term = malloc(N * sizeof *term), *total = malloc(N * sizeof *total);
    void *const from = block(ctx, N * sizeof *term), *const to = block(ctx, N * sizeof *total);
    const wf_array sum = {.data = to, .dtype = WF_I32, .shape = WF_SHAPE(N)};
    const wf_strided source = {.data = from, .dtype = WF_I32, .rank = 1, .dim = {N}, .stride = {1}};
    wf_strided target = source;
    target.data = to;
    WF_EXPECT_OK(k->fill(ctx, &sum, 3));
    for (int i = 0; i < N; i++)
        total[i] = 3;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            term[i] = i % 11 + round;
            total[i] += term[i];
        }
        WF_EXPECT_OK(k->to_device(ctx, from, term, N * sizeof *term));
        WF_EXPECT_OK(k->copy(ctx, &source, &target, true));
    }
    expect_bytes(ctx, "sum of terms", to, (const unsigned char *)total, N * sizeof *total);
    k->release(ctx, from, N * sizeof *term);
    k->release(ctx, to, N * sizeof *total);
    free(term);
    free(total);
}

static void await(wf_event *event)
{
    const time_t begin = time(NULL);
    bool done = false;
    while (!done && time(NULL) - begin < 60) {
        WF_EXPECT_OK(k->event_done(ctx, event, &done));
        sched_yield();
    }
    WF_EXPECT(done, "an event does not come to pass");
}

static void begin_after(wf_event *event, wf_stream *before, wf_stream *after)
{
    WF_EXPECT_OK(k->event_record(ctx, event, before));
    WF_EXPECT_OK(k->event_wait(ctx, event, after));
}

/* What an event says, and of which record. */
static void events(void)
{
    enum { BYTES = 1 << 20 };
    wf_stream *a, *b;
    wf_event *event, *other;
    bool done = false;
    unsigned char *const first = pinned(BYTES), *const second = pinned(BYTES), *const out = pinned(BYTES);
    void *const x = block(ctx, BYTES), *const y = block(ctx, BYTES);
    unsigned char *one = numbers(BYTES, 1), *two = numbers(BYTES, 2);
    memcpy(first, one, BYTES);
    memcpy(second, two, BYTES);
    WF_EXPECT_OK(k->stream_new(ctx, &a));
    WF_EXPECT_OK(k->stream_new(ctx, &b));
    WF_EXPECT_OK(k->event_new(ctx, &event));
    WF_EXPECT_OK(k->event_new(ctx, &other));
    WF_EXPECT_OK(k->event_done(ctx, event, &done));
    WF_EXPECT(done, "an event that was never recorded is not done");
    WF_EXPECT_OK(k->event_wait(ctx, event, a));
    WF_EXPECT_OK(k->event_wait(ctx, event, NULL));

    WF_EXPECT_OK(k->to_device_begin(ctx, x, first, BYTES, a));
    begin_after(event, a, b);
    WF_EXPECT_OK(k->to_device_begin(ctx, y, second, BYTES, a));
    WF_EXPECT_OK(k->event_record(ctx, event, a));
    WF_EXPECT_OK(k->to_host_begin(ctx, out, x, BYTES, b));
    WF_EXPECT_OK(k->stream_finish(ctx, b));
    WF_EXPECT(memcmp(out, one, BYTES) == 0, "a stream did not wait for the record before");
    WF_EXPECT_OK(k->event_wait(ctx, event, NULL));
    expect_bytes(ctx, "the second record", y, two, BYTES);

    WF_EXPECT_OK(k->to_device(ctx, x, two, BYTES));
    begin_after(event, NULL, b);
    memset(out, 0, BYTES);
    WF_EXPECT_OK(k->to_host_begin(ctx, out, x, BYTES, b));
    WF_EXPECT_OK(k->event_record(ctx, other, b));
    await(other);
    WF_EXPECT(memcmp(out, two, BYTES) == 0, "an event is done before what comes before it");
    WF_EXPECT_OK(k->stream_finish(ctx, a));
    WF_EXPECT_OK(k->stream_finish(ctx, NULL));
    await(event);

    k->event_free(ctx, event);
    k->event_free(ctx, other);
    k->event_free(ctx, NULL);
    k->stream_free(ctx, a);
    k->stream_free(ctx, b);
    k->stream_free(ctx, NULL);
    k->pinned_release(ctx, first, BYTES);
    k->pinned_release(ctx, second, BYTES);
    k->pinned_release(ctx, out, BYTES);
    k->release(ctx, x, BYTES);
    k->release(ctx, y, BYTES);
    free(one);
    free(two);
}

/* Every slot works on the stream in use. */
static void stream_in_use(void)
{
    enum { N = 1000 };
    wf_stream *stream;
    wf_event *event;
    float v[N], want[N];
    const wf_array x = {.data = block(ctx, sizeof v), .dtype = WF_F32, .shape = WF_SHAPE(N)};
    for (int i = 0; i < N; i++)
        want[i] = 7;
    WF_EXPECT_OK(k->stream_new(ctx, &stream));
    WF_EXPECT_OK(k->event_new(ctx, &event));
    WF_EXPECT_OK(k->fill(ctx, &x, 3));
    begin_after(event, NULL, stream);
    WF_EXPECT_OK(k->stream_use(ctx, stream));
    WF_EXPECT_OK(k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 2, .a = &x, .y = &x}));
    WF_EXPECT_OK(k->to_host(ctx, v, x.data, sizeof v));
    WF_EXPECT(v[0] == 6 && v[N - 1] == 6, "to_host on the stream in use sees %g", (double)v[0]);
    WF_EXPECT_OK(k->fill(ctx, &x, 7));
    begin_after(event, stream, NULL);
    WF_EXPECT_OK(k->stream_use(ctx, NULL));
    expect_bytes(ctx, "on the context's own again", x.data, (const unsigned char *)want, sizeof want);
    k->event_free(ctx, event);
    k->stream_free(ctx, stream);
    k->release(ctx, x.data, sizeof v);
}

/* What is captured is done by launches, not before. */
static void graphs(void)
{
    enum { N = 5000 };
    float v[N];
    wf_graph *graph = NULL;
    if (!k->capture_begin)
        return;
    const wf_array x = {.data = block(ctx, sizeof v), .dtype = WF_F32, .shape = WF_SHAPE(N)};
    WF_EXPECT_OK(k->fill(ctx, &x, 1));
    WF_EXPECT_OK(k->capture_begin(ctx));
    WF_EXPECT_OK(k->fill(ctx, &x, 100));
    WF_EXPECT_ERROR(WF_ERR_STATE, k->to_host(ctx, v, x.data, sizeof v));
    WF_EXPECT_OK(k->capture_end(ctx, NULL));
    for (int launches = 0; launches < 4; launches++) {
        if (launches == 0) {
            WF_EXPECT_OK(k->capture_begin(ctx));
            WF_EXPECT_OK(k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 2, .a = &x, .y = &x}));
            WF_EXPECT_OK(k->capture_end(ctx, &graph));
        } else {
            WF_EXPECT_OK(k->graph_launch(ctx, graph));
        }
        WF_EXPECT_OK(k->to_host(ctx, v, x.data, sizeof v));
        WF_EXPECT(v[0] == (float)(1 << launches) && v[N - 1] == v[0], "%d launches give %g", launches, (double)v[0]);
    }
    k->graph_free(ctx, graph);
    k->release(ctx, x.data, sizeof v);
}

enum { HOPS = 9, STREAMS = 3, HOP_BYTES = 300001 };

typedef struct hop {
    void *data;
    bool host;
} hop;

/* Bytes go from block to block on streams that wait for each other by events alone. */
static void relay(const hop *at, wf_stream *const *stream, wf_event *event, test_rng *rng)
{
    int on = 0;
    for (int i = 1; i < HOPS; i++) {
        const int next = (int)test_int(rng, 0, STREAMS - 1);
        if (next != on)
            begin_after(event, stream[on], stream[next]);
        on = next;
        if (at[i - 1].host) {
            WF_EXPECT_OK(k->to_device_begin(ctx, at[i].data, at[i - 1].data, HOP_BYTES, stream[on]));
        } else if (at[i].host) {
            WF_EXPECT_OK(k->to_host_begin(ctx, at[i].data, at[i - 1].data, HOP_BYTES, stream[on]));
        } else {
            WF_EXPECT_OK(k->stream_use(ctx, stream[on]));
            WF_EXPECT_OK(copied(at[i].data, at[i - 1].data, HOP_BYTES));
            WF_EXPECT_OK(k->stream_use(ctx, NULL));
        }
    }
    WF_EXPECT_OK(k->event_record(ctx, event, stream[on]));
    await(event);
}

static void relay_once(wf_stream *const *stream, wf_event *event, test_rng *rng)
{
    const uint64_t seed = test_u64(rng);
    unsigned char *want = numbers(HOP_BYTES, seed), *poison = numbers(HOP_BYTES, seed + 1);
    hop at[HOPS];
    for (int i = 0; i < HOPS; i++) {
        at[i].host = i == 0 || i + 1 == HOPS || (!at[i - 1].host && i + 2 < HOPS && test_int(rng, 0, 1));
        at[i].data = at[i].host ? pinned(HOP_BYTES) : block(ctx, HOP_BYTES);
        if (!at[i].host)
            WF_EXPECT_OK(k->to_device(ctx, at[i].data, poison, HOP_BYTES));
    }
    WF_EXPECT_OK(k->stream_finish(ctx, NULL));
    memcpy(at[0].data, want, HOP_BYTES);
    relay(at, stream, event, rng);
    WF_EXPECT(memcmp(at[HOPS - 1].data, want, HOP_BYTES) == 0, "a relay over %d streams brings other bytes", STREAMS);
    for (int i = 0; i < HOPS; i++)
        if (at[i].host)
            k->pinned_release(ctx, at[i].data, HOP_BYTES);
        else
            k->release(ctx, at[i].data, HOP_BYTES);
    free(want);
    free(poison);
}

static void relays(void)
{
    wf_stream *stream[STREAMS] = {NULL};
    wf_event *event;
    test_rng rng = {11};
    for (int i = 1; i < STREAMS; i++)
        WF_EXPECT_OK(k->stream_new(ctx, &stream[i]));
    WF_EXPECT_OK(k->event_new(ctx, &event));
    for (int i = 0; i < 12; i++)
        relay_once(stream, event, &rng);
    k->event_free(ctx, event);
    for (int i = 1; i < STREAMS; i++)
        k->stream_free(ctx, stream[i]);
}

/* A label out of range is an error of the call or of the next to_host, once. */
static void labels_with(int32_t bad)
{
    const float logp[12] = {-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12};
    int32_t label[4] = {0, 1, 2, 0};
    char value[16];
    float out = 0;
    snprintf(value, sizeof value, "label %d ", (int)bad);
    const wf_array x = {.data = block(ctx, sizeof logp), .dtype = WF_F32, .shape = WF_SHAPE(4, 3)};
    const wf_array labels = {.data = block(ctx, sizeof label), .dtype = WF_I32, .shape = WF_SHAPE(4)};
    const wf_array loss = {.data = block(ctx, sizeof out), .dtype = WF_F32};
    WF_EXPECT_OK(k->to_device(ctx, x.data, logp, sizeof logp));
    for (int round = 0; round < 3; round++) {
        label[1] = round == 1 ? bad : 1;
        WF_EXPECT_OK(k->to_device(ctx, labels.data, label, sizeof label));
        const wf_status called = k->nll_forward(ctx, &x, &labels, WF_NONE_IGNORED, 1, &loss);
        const wf_status read = called == WF_OK ? k->to_host(ctx, &out, loss.data, sizeof out) : called;
        WF_EXPECT(read == (round == 1 ? WF_ERR_ARGUMENT : WF_OK), "round %d: %s", round, wf_status_name(read));
        if (round == 1)
            WF_EXPECT(strstr(wf_error_message(), value) && strstr(wf_error_message(), "row 1 ") &&
                          strstr(wf_error_message(), "3)"),
                      "says %s", wf_error_message());
        wf_error_clear();
        if (called == WF_OK)
            WF_EXPECT_OK(k->to_host(ctx, &out, loss.data, sizeof out));
        if (called == WF_OK)
            WF_EXPECT(out == (round == 1 ? 20 : 25), "round %d: the loss is %g", round, (double)out);
    }
    k->release(ctx, x.data, sizeof logp);
    k->release(ctx, labels.data, sizeof label);
    k->release(ctx, loss.data, sizeof out);
}

static void labels(void)
{
    labels_with(3);
    labels_with(-1);
}

/* What two processes tell each other about a block. */
typedef struct message {
    wf_share share;
    size_t bytes;
    uint64_t seed;
    wf_status status; /* of share, or of map */
    bool same;        /* the other process found the first's numbers */
    char identity[WF_DEVICE_IDENTITY];
} message;

static bool passed(ssize_t (*how)(int, void *, size_t), int file, message *m)
{
    return how(file, m, sizeof *m) == (ssize_t)sizeof *m;
}

static ssize_t sent(int file, void *data, size_t bytes)
{
    return write(file, data, bytes);
}

/* The other process: finds the numbers, puts others in their place. */
static int other_process(int in, int out)
{
    message m;
    void *mapped = NULL;
    ctx = ctx_new();
    k = ctx->k;
    if (!passed(read, in, &m))
        return 1;
    WF_MUST(k->device_identity(ctx, m.identity));
    m.status = k->map(ctx, &m.share, &mapped);
    if (m.status == WF_OK) {
        unsigned char *want = numbers(m.bytes, m.seed), *mine = numbers(m.bytes, m.seed + 1), *got = malloc(m.bytes);
        WF_MUST(k->to_host(ctx, got, mapped, m.bytes));
        m.same = memcmp(got, want, m.bytes) == 0;
        WF_MUST(k->to_device(ctx, mapped, mine, m.bytes));
        WF_MUST(k->stream_finish(ctx, NULL));
        k->unmap(ctx, mapped);
        free(want);
        free(mine);
        free(got);
    }
    WF_MUST(wf_ctx_free(ctx));
    return !passed(sent, out, &m);
}

/* Starts the program again and exchanges a message with it. */
static bool ask(message *m)
{
    int there[2], back[2], state = 0;
    char in[16], out[16];
    if (pipe(there) != 0 || pipe(back) != 0)
        return false;
    snprintf(in, sizeof in, "%d", there[0]);
    snprintf(out, sizeof out, "%d", back[1]);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "contract_device", "other process", in, out, (char *)NULL);
        _exit(1);
    }
    close(there[0]);
    close(back[1]);
    const bool good = passed(sent, there[1], m) && passed(read, back[0], m);
    close(there[1]);
    close(back[0]);
    return waitpid(child, &state, 0) == child && state == 0 && good;
}

/* Blocks of other processes, and who has the same device. */
static void shared(void)
{
    message m = {.bytes = 2 * PIECE + 5, .seed = 21};
    char identity[WF_DEVICE_IDENTITY], again[WF_DEVICE_IDENTITY];
    unsigned char *mine = numbers(m.bytes, m.seed), *theirs = numbers(m.bytes, m.seed + 1);
    void *const before = block(ctx, 100), *const data = block(ctx, m.bytes);
    WF_EXPECT_OK(k->to_device(ctx, data, mine, m.bytes));
    WF_EXPECT_OK(k->stream_finish(ctx, NULL));
    m.status = k->share(ctx, data, m.bytes, &m.share);
    const bool can = m.status == WF_OK;
    WF_EXPECT(can || m.status == WF_ERR_UNSUPPORTED, "share: %s", wf_error_message());
    WF_EXPECT(can || wf_error_message()[0], "nothing says why it is not shared");
    wf_error_clear();
    WF_EXPECT(ask(&m), "the other process failed");
    WF_EXPECT(m.status == (can ? WF_OK : WF_ERR_UNSUPPORTED), "map: %s", wf_status_name(m.status));
    if (can) {
        WF_EXPECT(m.same, "the other process sees other numbers");
        expect_bytes(ctx, "what the other process wrote", data, theirs, m.bytes);
    } else {
        printf("     device %s shares no memory between processes\n", k->name);
    }
    WF_EXPECT_OK(k->device_identity(ctx, identity));
    WF_EXPECT_OK(k->device_identity(ctx, again));
    WF_EXPECT(identity[0] && strcmp(identity, again) == 0, "identities \"%s\" and \"%s\"", identity, again);
    WF_EXPECT((strcmp(identity, m.identity) == 0) == !k->host, "\"%s\" here and \"%s\" there", identity, m.identity);
    k->release(ctx, before, 100);
    k->release(ctx, data, m.bytes);
    free(mine);
    free(theirs);
}

/* A context on another device, where there is one, by turns with the first. */
static void second_device(int count)
{
    wf_ctx *const other = ctx_new();
    char here[WF_DEVICE_IDENTITY], there[WF_DEVICE_IDENTITY];
    WF_EXPECT_OK(k->device_identity(ctx, here));
    WF_EXPECT_OK(k->device_choose(other, count - 1));
    WF_EXPECT_OK(k->device_identity(other, there));
    WF_EXPECT(strcmp(here, there) != 0, "device 0 and device %d are both \"%s\"", count - 1, here);
    void *const x = block(ctx, PIECE), *const y = block(other, PIECE);
    unsigned char *v = numbers(PIECE, 31), *w = numbers(PIECE, 32);
    WF_EXPECT_OK(k->to_device(ctx, x, v, PIECE));
    WF_EXPECT_OK(k->to_device(other, y, w, PIECE));
    expect_bytes(ctx, "the first device", x, v, PIECE);
    expect_bytes(other, "the second device", y, w, PIECE);
    k->release(ctx, x, PIECE);
    k->release(other, y, PIECE);
    WF_EXPECT_OK(wf_ctx_free(other));
    WF_EXPECT_OK(k->device_choose(ctx, 0));
    free(v);
    free(w);
}

static void devices(void)
{
    const int count = k->device_count();
    WF_EXPECT(count >= 1, "%d devices", count);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, k->device_choose(ctx, count));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, k->device_choose(ctx, -1));
    WF_EXPECT_OK(k->device_choose(ctx, 0));
    WF_EXPECT_OK(k->device_choose(ctx, 0));
    if (count > 1)
        second_device(count);
}

/* The pool gives its memory back after shutdown; a context that works again starts anew. */
static void after_shutdown(void)
{
    wf_ctx *const own = ctx_new();
    void *pooled, *const kept = block(own, 1 << 20);
    WF_EXPECT_OK(wf_pool_take(own, 1 << 20, &pooled));
    WF_EXPECT_OK(k->to_device(own, kept, "kept", 5));
    k->shutdown(own);
    k->release(own, kept, 1 << 20);
    k->shutdown(own);
    void *const fresh = block(own, 1 << 20);
    WF_EXPECT_OK(k->to_device(own, fresh, "again", 6));
    expect_bytes(own, "after shutdown", fresh, (const unsigned char *)"again", 6);
    k->release(own, fresh, 1 << 20);
    wf_pool_give(own, pooled, 1 << 20);
    WF_EXPECT_OK(wf_ctx_free(own));
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "other process") == 0)
        return other_process(atoi(argv[2]), atoi(argv[3]));
    ctx = ctx_new();
    k = ctx->k;
    printf("device %s\n", k->name);
    const int code = test_main(argc, argv,
                               (test_case[]){{"every_slot", every_slot},
                                             {"memory", memory},
                                             {"refused", refused},
                                             {"transfers", transfers},
                                             {"in_order", in_order},
                                             {"events", events},
                                             {"stream_in_use", stream_in_use},
                                             {"graphs", graphs},
                                             {"relays", relays},
                                             {"labels", labels},
                                             {"shared", shared},
                                             {"devices", devices},
                                             {"after_shutdown", after_shutdown},
                                             {0}});
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return code || test_failures() > 0;
}
