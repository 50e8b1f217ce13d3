/* Proof that the schedules of all ranks are right, whatever the order in which what may run together runs. Matching and
 * circles are found by the graph (graph.c); here memory: every access of every step is listed by the memory that it
 * touches, in an order in which all can happen. Each is compared with those before it that no write has covered since:
 * where one of the two writes, the earlier one must always happen first; what a device was told is over with a fence.
 */
#include "comm/proof/proof_author.h"

#include <stdlib.h>
#include <string.h>

#define SHARED ((int64_t)1 << 60)

/* What a step does to a range of bytes. `place` is that of its begin in the order. */
typedef struct access {
    int64_t memory; /* which: of one rank's operand, or a slot of the ring */
    size_t lo, hi;
    int64_t step, place; /* -1, at the end: what takes the result */
    bool writes;
    bool queued; /* the device does it, in the order in which it was told, some time before a fence behind it is over */
    bool joins;  /* comes behind what the device was told before */
} access;

/* Bytes that a read finds written: by a step before it. */
typedef struct cover {
    int64_t read;
    size_t lo, hi;
} cover;

typedef struct proof {
    wf_ctx *ctx;
    wf_schedule_graph *g;
    bool alias; /* outputs are inputs */
    access *list;
    int64_t count, room;
    int64_t *place;        /* of each event in the order */
    int32_t *stamp, round; /* of events: marked in this search */
    int32_t *seen, look;   /* by step: the search for a fence that met it last */
    int64_t looked, least; /* the step that was looked back from last, and how far */
    int64_t *stack;
    cover *covers;
    int64_t covered, cover_room;
} proof;

/* --- what happens before what ---------------------------------------------------------------------------------------
 */

/* Events in front of `least` cannot lead back behind it, since every edge goes from an earlier place to a later one. */
static int64_t push(proof *p, int64_t top, int64_t event, int64_t least)
{
    if (p->stamp[event] == p->round || p->place[event] < least)
        return top;
    p->stamp[event] = p->round;
    p->stack[top] = event;
    return top + 1;
}

/* What must have happened right before this event; the edges of graph.c, backwards. */
static int64_t push_before(proof *p, int64_t top, int64_t event, int64_t least)
{
    const wf_schedule_graph *g = p->g;
    const int64_t n = event / 2, first = g->first[g->rank[n]];
    const wf_schedule *s = g->all[g->rank[n]];
    const wf_step *step = &s->step[n - first];
    if (event % 2 == 1) {
        /* A message's end waits for the beginning of the other end, an await's for the end of its notification. */
        if (g->match[n] >= 0)
            top = push(p, top, 2 * g->match[n] + (step->kind == WF_STEP_AWAIT), least);
        return push(p, top, event - 1, least);
    }
    for (int32_t w = 0; w < step->waits; w++)
        top = push(p, top, 2 * (first + s->wait[step->wait + w]) + 1, least);
    return step->before >= 0 ? push(p, top, 2 * (first + step->before), least) : top;
}

/* Marks all events that happen before step n begins, back to place `least` in the order, by a search over the edges of
 * the happens-before graph. The inputs of one step follow each other and share one search. */
static void look_back(proof *p, int64_t n, int64_t least)
{
    int64_t top = 0;
    if (p->looked == n && p->least <= least)
        return;
    p->looked = n;
    p->least = least;
    p->round++;
    top = push(p, top, 2 * n, least);
    while (top > 0)
        top = push_before(p, top - 1, p->stack[top - 1], least);
}

/* Returns true if the end of step a happens before the start of the step that look_back was called with. */
static bool came_before(const proof *p, int64_t a)
{
    return p->stamp[2 * a + 1] == p->round;
}

/* Work on boxes in device memory is only enqueued by the step: the step's own end does not mean that it is done. */
static bool is_queued(const wf_schedule *s, const wf_step *step)
{
    const bool boxes = step->kind == WF_STEP_PACK || step->kind == WF_STEP_UNPACK || step->kind == WF_STEP_FILL ||
                       (step->kind == WF_STEP_COPY && step->list >= 0);
    return step->kind == WF_STEP_STAGE ? step->flags & WF_STEP_BEGUN : s->device && boxes;
}

/* Returns true if the access to this memory is ordered after all work that the device of the same rank was given
 * before: it is enqueued on the device itself, as native messages from and to device memory are. */
static bool joins_queue(const wf_schedule *s, const wf_step *step, int32_t operand)
{
    const bool message = step->kind == WF_STEP_SEND || step->kind == WF_STEP_RECV;
    const wf_operand_kind kind = s->operand[operand].kind;
    return step->kind == WF_STEP_STAGE || is_queued(s, step) ||
           (s->device && message && kind != WF_OPERAND_SCRATCH && kind != WF_OPERAND_SHARED);
}

/* Returns true if a fence that follows step n on its rank happens before the step that look_back was called with. The
 * search goes forwards from n, and only over steps that are marked as before. */
static bool was_fenced(proof *p, int64_t n)
{
    const int64_t first = p->g->first[p->g->rank[n]];
    const wf_schedule *s = p->g->all[p->g->rank[n]];
    int64_t top = 0;
    p->look++;
    p->stack[top++] = n;
    while (top > 0) {
        const int64_t at = p->stack[--top];
        if (wf_graph_step(p->g, at)->kind == WF_STEP_FENCE)
            return true;
        for (int32_t f = s->first_follower[at - first]; f < s->first_follower[at - first + 1]; f++) {
            const int64_t next = first + s->follower[f];
            if (p->seen[next] == p->look || !came_before(p, next))
                continue;
            p->seen[next] = p->look;
            p->stack[top++] = next;
        }
    }
    return false;
}

/* --- accesses -------------------------------------------------------------------------------------------------------
 */

/* Input i stands for output i where they may be the same. */
static int32_t stand_in(const proof *p, const wf_schedule *s, int32_t operand)
{
    const wf_operand *output = &s->operand[operand];
    for (int32_t i = 0; p->alias && output->kind == WF_OPERAND_OUTPUT && i < s->operands; i++)
        if (s->operand[i].kind == WF_OPERAND_INPUT && s->operand[i].index == output->index)
            return i;
    return operand;
}

static int64_t memory_of(const proof *p, int rank, int32_t operand)
{
    const wf_schedule *s = p->g->all[rank];
    if (s->operand[operand].kind == WF_OPERAND_SHARED)
        return SHARED | (int64_t)s->operand[operand].owner << 24 | s->operand[operand].index;
    return (int64_t)rank << 24 | stand_in(p, s, operand);
}

static wf_status add(proof *p, access a)
{
    access *grown = wf_grow(p->ctx, p->list, &p->room, p->count + 1, sizeof *grown);
    if (!grown)
        return wf_error_code();
    p->list = grown;
    p->list[p->count++] = a;
    return WF_OK;
}

/* Every access of a schedule comes through here, so bounds are checked here and nowhere else. */
static wf_status touch(proof *p, int64_t n, wf_address address, size_t bytes, bool writes)
{
    const int rank = p->g->rank[n];
    char text[WF_FAILURE_TEXT];
    if (address.operand < 0 || bytes == 0)
        return WF_OK;
    WF_CHECK(address.at + bytes <= p->g->all[rank]->operand[address.operand].bytes, WF_ERR_STATE,
             "touches bytes beyond the end of an operand: %.400s", wf_graph_text(p->g, n, text));
    return add(p, (access){.memory = memory_of(p, rank, address.operand),
                           .lo = address.at,
                           .hi = address.at + bytes,
                           .step = n,
                           .place = p->place[2 * n],
                           .writes = writes,
                           .queued = is_queued(p->g->all[rank], wf_graph_step(p->g, n)),
                           .joins = joins_queue(p->g->all[rank], wf_graph_step(p->g, n), address.operand)});
}

/* The rows of a box: runs along the innermost dimension in memory. Exact rows are needed, since two boxes of one array
 * may interlock without touching. */
static wf_status touch_box(proof *p, int64_t n, wf_address address, const wf_step_box *box, bool reads, bool writes)
{
    const size_t size = wf_dtype_size((wf_dtype)wf_graph_step(p->g, n)->dtype);
    const wf_shape shape = wf_box_shape(box->box);
    const int64_t count = wf_shape_count(shape);
    int64_t stride[WF_MAX_RANK], base = 0, index[WF_MAX_RANK] = {0};
    int inner = shape.rank - 1;
    memcpy(stride, box->stride, sizeof stride);
    for (int d = 0; d < shape.rank; d++) {
        base += (box->box.lo[d] - box->held.lo[d]) * stride[d];
        inner =
            stride[d] < stride[inner] || (stride[d] == stride[inner] && shape.dim[d] > shape.dim[inner]) ? d : inner;
    }
    const int64_t run = shape.rank > 0 ? shape.dim[inner] : 1;
    for (int64_t done = 0; done < count; done += run) {
        int64_t at = base;
        for (int d = 0; d < shape.rank; d++)
            at += d == inner ? 0 : index[d] * stride[d];
        const wf_address row = wf_address_add(address, (size_t)at * size);
        if (reads)
            WF_TRY(touch(p, n, row, (size_t)run * size, false));
        if (writes)
            WF_TRY(touch(p, n, row, (size_t)run * size, true));
        for (int d = shape.rank - 1; d >= 0; d--) {
            if (d == inner)
                continue;
            if (++index[d] < shape.dim[d])
                break;
            index[d] = 0;
        }
    }
    return WF_OK;
}

static wf_status touch_boxes(proof *p, int64_t n, const wf_step *step)
{
    const wf_step_box *box = &p->g->all[p->g->rank[n]]->box[step->list];
    if (step->kind == WF_STEP_UNPACK)
        WF_TRY(touch(p, n, step->from, step->bytes, false));
    else if (step->kind != WF_STEP_FILL)
        WF_TRY(touch_box(p, n, step->from, box, true, false));
    if (step->kind == WF_STEP_PACK)
        return touch(p, n, step->to, step->bytes, true);
    /* An unpack that adds reads what is there. */
    return touch_box(p, n, step->to, step->kind == WF_STEP_COPY ? box + 1 : box, step->flags & WF_STEP_ADDS, true);
}

/* What a native call reads and writes on this rank; the transport itself is taken to be right. */
static wf_status touch_native(proof *p, int64_t n, const wf_schedule *s, const wf_step *step)
{
    const wf_native_kind kind = (wf_native_kind)step->list;
    const size_t count = (size_t)step->value, ranks = (size_t)s->ranks;
    const size_t x = (kind == WF_NATIVE_REDUCE_SCATTER ? ranks : 1) * count * wf_dtype_size((wf_dtype)step->dtype);
    const size_t y = (kind == WF_NATIVE_ALLGATHER ? ranks : 1) * count * wf_dtype_size((wf_dtype)step->to_dtype);
    const bool root = step->peer == s->rank;
    /* The sender of a broadcast sends what is in y, the others receive into it. */
    WF_TRY(touch(p, n, kind == WF_NATIVE_BCAST && root ? step->to : step->from, x, false));
    return kind != WF_NATIVE_REDUCE || root || step->peer < 0 ? touch(p, n, step->to, y, true) : WF_OK;
}

static wf_status list_step(proof *p, int64_t n)
{
    const wf_step *step = wf_graph_step(p->g, n);
    const wf_schedule *s = p->g->all[p->g->rank[n]];
    switch (step->kind) {
    case WF_STEP_NOTIFY:
    case WF_STEP_AWAIT:
    case WF_STEP_FENCE:
        return WF_OK;
    case WF_STEP_SEND:
        return touch(p, n, step->from, step->bytes, false);
    case WF_STEP_RECV:
        return touch(p, n, step->to, step->bytes, true);
    case WF_STEP_COMBINE:
        for (int i = 0; i < step->inputs; i++)
            WF_TRY(touch(p, n, s->input[step->list + i], step->bytes, false));
        WF_TRY(touch(p, n, step->to, step->bytes, true));
        return touch(p, n, step->also, step->bytes, true);
    case WF_STEP_NATIVE:
        return touch_native(p, n, s, step);
    case WF_STEP_CALL:
        WF_TRY(touch(p, n, step->from, s->call[step->list].from_bytes, false));
        return touch(p, n, step->to, step->bytes, true);
    default:
        if (step->list >= 0)
            return touch_boxes(p, n, step);
        WF_TRY(touch(p, n, step->from, step->bytes, false));
        return touch(p, n, step->to, step->bytes, true);
    }
}

/* Lists the accesses of all steps of every rank, and a last read of every result: so "every byte of an output is
 * written" is a case of "no read before a write". */
static wf_status list_accesses(proof *p)
{
    const wf_schedule_graph *g = p->g;
    for (int64_t n = 0; n < g->first[g->ranks]; n++)
        WF_TRY(list_step(p, n));
    for (int r = 0; r < g->ranks; r++)
        for (int32_t i = 0; i < g->all[r]->operands; i++)
            if (g->all[r]->operand[i].kind == WF_OPERAND_OUTPUT && g->all[r]->operand[i].bytes > 0)
                WF_TRY(add(p, (access){.memory = memory_of(p, r, i),
                                       .hi = g->all[r]->operand[i].bytes,
                                       .step = -1,
                                       .place = INT64_MAX}));
    return WF_OK;
}

/* --- pairs ----------------------------------------------------------------------------------------------------------
 */

/* The result is looked at last. */
static int by_memory(const void *left, const void *right)
{
    const access *a = left, *b = right;
    if (a->memory != b->memory)
        return a->memory < b->memory ? -1 : 1;
    if (a->place != b->place)
        return a->place < b->place ? -1 : 1;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static int by_read(const void *left, const void *right)
{
    const cover *a = left, *b = right;
    if (a->read != b->read)
        return a->read < b->read ? -1 : 1;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static wf_status note_cover(proof *p, int64_t read, const access *write)
{
    cover *grown = wf_grow(p->ctx, p->covers, &p->cover_room, p->covered + 1, sizeof *grown);
    if (!grown)
        return wf_error_code();
    p->covers = grown;
    p->covers[p->covered++] = (cover){read, write->lo, write->hi};
    return WF_OK;
}

static bool concerns(const access *a, const access *b)
{
    return a->lo < b->hi && b->lo < a->hi && (a->writes || b->writes) && a->step != b->step;
}

/* Returns true if access a happens before the step of `later`, which look_back was called with. The last read comes
 * after the end of everything. */
static bool is_over(proof *p, const access *a, const access *later)
{
    if (later->step < 0)
        return true;
    if (!came_before(p, a->step))
        return false;
    return !a->queued || (later->joins && p->g->rank[a->step] == p->g->rank[later->step]) || was_fenced(p, a->step);
}

/* Access i, and those before it that are still to be compared with. */
static wf_status check_access(proof *p, int64_t i, const int64_t *open, int64_t opened)
{
    const access *later = &p->list[i];
    char first[WF_FAILURE_TEXT], second[WF_FAILURE_TEXT];
    int64_t least = INT64_MAX;
    for (int64_t k = 0; k < opened; k++) {
        const access *a = &p->list[open[k]];
        if (concerns(a, later) && p->place[2 * a->step + 1] < least)
            least = p->place[2 * a->step + 1];
    }
    if (least == INT64_MAX)
        return WF_OK;
    if (later->step >= 0)
        look_back(p, later->step, least);
    for (int64_t k = 0; k < opened; k++) {
        const access *a = &p->list[open[k]];
        if (!concerns(a, later))
            continue;
        WF_CHECK(is_over(p, a, later), WF_ERR_STATE,
                 "two steps touch the same bytes and may run together: %.230s; %.230s",
                 wf_graph_text(p->g, a->step, first), wf_graph_text(p->g, later->step, second));
        if (a->writes && !later->writes)
            WF_TRY(note_cover(p, i, a));
    }
    return WF_OK;
}

/* Its flag has one value, and the next one comes when all who await it have seen it. */
static wf_status check_slot_flag(proof *p, int64_t before, int64_t n)
{
    const int64_t first = p->g->raised[before];
    char one[WF_FAILURE_TEXT], other[WF_FAILURE_TEXT];
    int64_t least = p->place[2 * n];
    for (int64_t a = first; a >= 0; a = p->g->raised[a])
        least = p->place[2 * a + 1] < least ? p->place[2 * a + 1] : least;
    look_back(p, n, least);
    for (int64_t a = first; a >= 0; a = p->g->raised[a])
        WF_CHECK(came_before(p, a), WF_ERR_STATE, "the flag of a slot may change before it is seen: %.230s; %.230s",
                 wf_graph_text(p->g, a, one), wf_graph_text(p->g, n, other));
    return WF_OK;
}

static bool raises_slot(const wf_step *step, int32_t operand)
{
    return step->kind == WF_STEP_NOTIFY && step->to.operand == operand;
}

static wf_status check_slot_flags(proof *p)
{
    const wf_schedule_graph *g = p->g;
    for (int64_t n = 0; n < g->first[g->ranks]; n++) {
        const int32_t slot = wf_graph_step(g, n)->to.operand;
        int64_t before = n - 1;
        if (slot < 0 || !raises_slot(wf_graph_step(g, n), slot))
            continue;
        while (before >= g->first[g->rank[n]] && !raises_slot(wf_graph_step(g, before), slot))
            before--;
        if (before >= g->first[g->rank[n]])
            WF_TRY(check_slot_flag(p, before, n));
    }
    return WF_OK;
}

/* Returns true if the first contents of the memory may be read: inputs of the caller, tokens, and memory that is kept
 * from sum to sum. */
static bool is_defined(const proof *p, int64_t memory)
{
    if (memory & SHARED)
        return false;
    const wf_operand *operand = &p->g->all[memory >> 24]->operand[memory & 0xffffff];
    return operand->kind == WF_OPERAND_INPUT || operand->kind == WF_OPERAND_BOTH || operand->kind == WF_OPERAND_TOKEN ||
           operand->kind == WF_OPERAND_KEPT;
}

/* Covers of a read are sorted by their beginning: a gap before the next one is a byte that none wrote. */
static wf_status check_covers(proof *p, int64_t first, int64_t last)
{
    char text[WF_FAILURE_TEXT];
    int64_t at = 0;
    if (p->covered > 0)
        qsort(p->covers, (size_t)p->covered, sizeof *p->covers, by_read);
    for (int64_t i = first; i < last; i++) {
        const access *read = &p->list[i];
        size_t known = read->lo;
        while (at < p->covered && p->covers[at].read < i)
            at++;
        for (; at < p->covered && p->covers[at].read == i && p->covers[at].lo <= known; at++)
            known = p->covers[at].hi > known ? p->covers[at].hi : known;
        if (read->writes || known >= read->hi)
            continue;
        WF_CHECK(read->step >= 0, WF_ERR_STATE, "byte %zu of an output of rank %d is never written", known,
                 (int)(read->memory >> 24));
        WF_FAIL(WF_ERR_STATE, "byte %zu is read before it is written: %.400s", known,
                wf_graph_text(p->g, read->step, text));
    }
    return WF_OK;
}

/* Accesses [first, last) of one memory. What a write covers has happened before it, and needs no more comparison: who
 * happens after the write happens after what is covered. So `open` stays short, and the proof near n log n. */
static wf_status check_memory(proof *p, int64_t first, int64_t last, int64_t *open)
{
    int64_t opened = 0;
    p->covered = 0;
    for (int64_t i = first; i < last; i++) {
        const access *a = &p->list[i];
        int64_t kept = 0;
        WF_TRY(check_access(p, i, open, opened));
        for (int64_t k = 0; k < opened; k++) {
            const access *other = &p->list[open[k]];
            /* A write that covers another access as a whole takes its place. */
            if (!a->writes || other->lo < a->lo || other->hi > a->hi)
                open[kept++] = open[k];
        }
        open[kept++] = i;
        opened = kept;
    }
    return is_defined(p, p->list[first].memory) ? WF_OK : check_covers(p, first, last);
}

static wf_status check_all(proof *p, int64_t *open)
{
    qsort(p->list, (size_t)p->count, sizeof *p->list, by_memory);
    for (int64_t first = 0, last; first < p->count; first = last) {
        last = first;
        while (last < p->count && p->list[last].memory == p->list[first].memory)
            last++;
        WF_TRY(check_memory(p, first, last, open));
    }
    return WF_OK;
}

/* --- calls that all have begun --------------------------------------------------------------------------------------
 */

/* Returns true for steps that prove which call the other rank is in: messages by their tag, slot flags by their value.
 * Other flags hold a count only, which an earlier call may have raised. */
static bool tells_of_call(const wf_step *step)
{
    return step->kind == WF_STEP_RECV || (step->kind == WF_STEP_AWAIT && step->to.operand >= 0);
}

/* Ranks that are known to have begun when each step is over, a bit each: what a message brings is what its sender knew
 * when it began. */
static void note_begun(const wf_schedule_graph *g, uint64_t *begun)
{
    for (int64_t i = 0; i < 2 * g->first[g->ranks]; i++) {
        const int64_t n = g->order[i] / 2, first = g->first[g->rank[n]];
        const wf_step *step = wf_graph_step(g, n);
        if (g->order[i] % 2 == 1) {
            begun[n] |= tells_of_call(step) && g->match[n] >= 0 ? begun[g->match[n]] : 0;
            continue;
        }
        begun[n] = (uint64_t)1 << g->rank[n];
        for (int32_t w = 0; w < step->waits; w++)
            begun[n] |= begun[first + g->all[g->rank[n]]->wait[step->wait + w]];
    }
}

static wf_status check_begun(const wf_schedule_graph *g, const uint64_t *begun)
{
    for (int r = 0; r < g->ranks; r++) {
        uint64_t known = (uint64_t)1 << r;
        int other = 0;
        for (int64_t n = g->first[r]; n < g->first[r + 1]; n++)
            known |= begun[n];
        while (other < g->ranks && known >> other & 1)
            other++;
        WF_CHECK(other == g->ranks, WF_ERR_STATE, "rank %d may end before rank %d has begun", r, other);
    }
    return WF_OK;
}

/* A bit for each rank: above 64 the property is taken from smaller numbers of ranks, on which tests check the same
 * generator. */
static wf_status check_synchronizing(wf_ctx *ctx, const wf_schedule_graph *g)
{
    if (!g->all[0]->synchronizes || g->ranks > 64)
        return WF_OK;
    uint64_t *begun = wf_calloc(ctx, (size_t)g->first[g->ranks] + 1, sizeof *begun);
    if (!begun)
        return wf_error_code();
    note_begun(g, begun);
    const wf_status status = check_begun(g, begun);
    free(begun);
    return status;
}

/* --- all ------------------------------------------------------------------------------------------------------------
 */

static wf_status prove(wf_ctx *ctx, wf_schedule_graph *g, bool alias)
{
    const size_t events = 2 * (size_t)g->first[g->ranks] + 1;
    proof p = {.ctx = ctx, .g = g, .alias = alias, .looked = -1};
    int64_t *open = NULL;
    wf_status status = WF_ERR_MEMORY;
    p.place = wf_malloc(ctx, events * sizeof *p.place);
    p.stack = wf_malloc(ctx, events * sizeof *p.stack);
    p.stamp = wf_calloc(ctx, events, sizeof *p.stamp);
    p.seen = wf_calloc(ctx, events, sizeof *p.seen);
    if (p.place && p.stack && p.stamp && p.seen) {
        for (size_t i = 0; i + 1 < events; i++)
            p.place[g->order[i]] = (int64_t)i;
        status = check_slot_flags(&p);
    }
    if (status == WF_OK)
        status = list_accesses(&p);
    if (status == WF_OK && p.count > 0) {
        open = wf_malloc(ctx, (size_t)p.count * sizeof *open);
        status = open ? check_all(&p, open) : wf_error_code();
    }
    free(open);
    free(p.place);
    free(p.stack);
    free(p.stamp);
    free(p.seen);
    free(p.list);
    free(p.covers);
    return status;
}

wf_status wf_schedule_verify(wf_ctx *ctx, const wf_schedule *const *all, int ranks)
{
    wf_schedule_graph g;
    bool in_place = false, in_line = false;
    WF_TRY(wf_graph_make(ctx, all, ranks, &g));
    for (int r = 0; r < ranks; r++) {
        in_place = in_place || all[r]->in_place;
        in_line = in_line || all[r]->in_line;
    }
    wf_status status = check_synchronizing(ctx, &g);
    if (status == WF_OK)
        status = prove(ctx, &g, false);
    /* Aliasing adds conflicts, but a schedule that is right in place may still be wrong with two buffers: both are
     * proved. */
    if (status == WF_OK && in_place)
        status = prove(ctx, &g, true);
    wf_graph_clear(&g);
    /* Steps in line are an order of what may run together: nothing new but circles. */
    if (status == WF_OK && in_line) {
        status = wf_graph_make_in_line(ctx, all, ranks, &g);
        wf_graph_clear(&g);
    }
    return status;
}
