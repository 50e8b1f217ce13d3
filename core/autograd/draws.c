/* Chooses the random numbers that are drawn on a tape: streams made of names, paths and counts that are equal on all
 * ranks. Called by wf_apply, which sets the scope, and by functions that draw. It draws nothing itself (the slot
 * `random` does), and never uses a count that a rank keeps for itself. */
#include "core/autograd/autograd_impl.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 64 };

void wf_tape_restart_draws(wf_tape *tape)
{
    tape->scope = (wf_scope){.stream = wf_hash_u64(0, tape->name)};
    tape->draws_in_scope = 0;
    tape->n_draws = 0;
    tape->draws_lost = false;
    tape->n_applied = 0;
    if (tape->applied)
        memset(tape->applied, 0, tape->cap_applied * sizeof *tape->applied);
}

wf_status wf_tape_set_name(wf_tape *tape, const char *name)
{
    WF_NEED(tape);
    WF_NEED(name);
    WF_CHECK(tape->n_draws == 0, WF_ERR_STATE,
             "the tape gets the name \"%s\" in the middle of a step; give it after wf_tape_new or wf_tape_reset", name);
    tape->name = *name ? wf_hash_text(0, name) : 0;
    wf_tape_restart_draws(tape);
    return WF_OK;
}

wf_status wf_tape_follow(wf_tape *tape, const wf_tape *of, uint64_t applied)
{
    WF_NEED(tape);
    WF_NEED(of);
    WF_CHECK(tape->n_vars == 0, WF_ERR_STATE, "a tape with %lld variables cannot follow another; reset it before",
             (long long)tape->n_vars);
    tape->mode = of->mode;
    tape->name = of->name;
    /* Each chunk of a pipeline begins at another number, so no two of them draw the same. */
    tape->applied_before = applied;
    tape->iteration = of->iteration;
    tape->iteration_drawn = of->iteration_drawn;
    wf_tape_restart_draws(tape);
    return WF_OK;
}

wf_scope wf_tape_enter(wf_tape *tape, wf_scope scope)
{
    wf_scope outside = tape->scope;
    /* The count of draws begins anew after the layer, so the draws before it become a part of the stream outside. */
    outside.stream = wf_hash_u64(outside.stream, tape->draws_in_scope);
    tape->scope = scope;
    tape->scope.stream = wf_hash_u64(scope.stream, tape->name);
    /* Inside of a layer that ranks compute together, a layer without ranks of its own has those: they wait if it fails.
     */
    if (!scope.comm)
        tape->scope.comm = outside.comm;
    tape->draws_in_scope = 0;
    return outside;
}

void wf_tape_leave(wf_tape *tape, wf_scope scope)
{
    tape->scope = scope;
    tape->draws_in_scope = 0;
}

/* Its entry, or the empty one where it belongs. There is always an empty one. */
static wf_applied *find_applied(wf_applied *table, size_t capacity, uint64_t layer)
{
    /* Linear probing; the capacity is a power of two and at most half full. */
    size_t at = (size_t)wf_hash_u64(0, layer) & (capacity - 1);
    while (table[at].key != 0 && table[at].key != layer)
        at = (at + 1) & (capacity - 1);
    return &table[at];
}

static wf_status grow_table(wf_tape *tape)
{
    const size_t capacity = tape->cap_applied ? 2 * tape->cap_applied : FEW;
    wf_applied *table = wf_calloc(tape->ctx, capacity, sizeof *table);
    if (!table)
        return wf_error_code();
    for (size_t i = 0; i < tape->cap_applied; i++)
        if (tape->applied[i].key != 0)
            *find_applied(table, capacity, tape->applied[i].key) = tape->applied[i];
    free(tape->applied);
    tape->applied = table;
    tape->cap_applied = capacity;
    return WF_OK;
}

wf_status wf_tape_count_application(wf_tape *tape, uint64_t layer, uint64_t *count)
{
    /* A layer that is computed again is not applied once more: its streams are those that were noted. */
    *count = 0;
    if (tape->repeat.on)
        return WF_OK;
    if (2 * (tape->n_applied + 1) > tape->cap_applied)
        WF_TRY(grow_table(tape));
    wf_applied *entry = find_applied(tape->applied, tape->cap_applied, layer);
    if (entry->key == 0)
        tape->n_applied++;
    entry->key = layer;
    *count = tape->applied_before + entry->count++;
    return WF_OK;
}

/* If memory for an entry is exhausted, the entry is left out; the next allocation of the step reports the error, or
 * the segment that draws it again. */
static void note_draw(wf_tape *tape, uint64_t stream)
{
    if (tape->n_draws == tape->cap_draws) {
        const int64_t capacity = tape->cap_draws ? 2 * tape->cap_draws : FEW;
        wf_draw *draw = wf_realloc(tape->ctx, tape->draw, (size_t)capacity * sizeof *draw);
        if (!draw) {
            tape->draws_lost = true;
            return;
        }
        tape->draw = draw;
        tape->cap_draws = capacity;
    }
    /* A copy: the layer makes its path anew when it moves, and a step's draws are named until the reset. */
    char *path = NULL;
    if (tape->scope.path) {
        const size_t bytes = strlen(tape->scope.path) + 1;
        path = wf_arena_take(tape->ctx, &tape->arena, bytes);
        if (path)
            memcpy(path, tape->scope.path, bytes);
    }
    tape->draw[tape->n_draws++] = (wf_draw){.stream = stream, .kind = tape->scope.kind, .path = path};
}

/* Past the end of the list the count shows that the segment draws more than the first time (segment.c). */
static uint64_t stream_again(wf_tape *tape)
{
    const int64_t at = tape->repeat.draw++;
    return at < tape->n_draws ? tape->draw[at].stream : 0;
}

static uint64_t next_stream(wf_tape *tape)
{
    if (tape->repeat.on)
        return stream_again(tape);
    const uint64_t stream = wf_hash_u64(tape->scope.stream, tape->draws_in_scope++);
    note_draw(tape, stream);
    return stream;
}

/* An element of a part is drawn by its place in the whole, so any division of the tensor draws the same numbers. */
wf_random wf_tape_random(wf_tape *tape, wf_shape shape, const wf_layout *layout)
{
    const bool spread = layout && layout->known;
    return (wf_random){.seed = tape->repeat.on ? tape->repeat.seed : tape->ctx->seed,
                       .stream = next_stream(tape),
                       .iteration = tape->iteration_drawn,
                       .global = spread ? layout->global : shape,
                       .box = spread ? layout->box : wf_box_of_shape(shape)};
}

const wf_draw *wf_tape_draws(const wf_tape *tape, int64_t *count)
{
    *count = tape->n_draws;
    return tape->draw;
}
