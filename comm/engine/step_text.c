/* Steps in words, for reports of a run that waits. */
#include "comm/engine/run_author.h"

#include <stdio.h>
#include <string.h>

#define PLACE 48

static const char *place_text(const wf_schedule *s, wf_address address, const int32_t *world_rank, char text[PLACE])
{
    static const char *const kinds[] = {"input", "output", "buffer", "scratch", "scratch", "token", "kept", "slot"};
    if (address.operand < 0) {
        snprintf(text, PLACE, "nothing");
        return text;
    }
    const wf_operand *operand = &s->operand[address.operand];
    int used = snprintf(text, PLACE, "%s %d", kinds[operand->kind], operand->index);
    if (operand->kind == WF_OPERAND_SHARED)
        used +=
            snprintf(text + used, (size_t)(PLACE - used), " of rank %s", WF_RANK_LISTED(world_rank, operand->owner));
    if (address.at > 0)
        snprintf(text + used, (size_t)(PLACE - used), " + %zu", address.at);
    return text;
}

static int box_text(wf_box box, char *text, size_t size)
{
    int used = snprintf(text, size, "[");
    for (int d = 0; d < box.rank && (size_t)used < size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld:%lld", d ? "," : "", (long long)box.lo[d],
                         (long long)box.hi[d]);
    return used + snprintf(text + used, size - (size_t)used, "]");
}

static void combine_text(const wf_schedule *s, const wf_step *step, const int32_t *world_rank, char *text, size_t size)
{
    static const char *const ops[] = {"sum", "max", "min", "prod"};
    char place[PLACE];
    int used = snprintf(text, size, "%s of %zu %s: ", ops[step->op], step->bytes / wf_dtype_size((wf_dtype)step->dtype),
                        wf_dtype_name((wf_dtype)step->dtype));
    /* Four inputs at most: the text is a line of an error message. */
    for (int i = 0; i < step->inputs && i < 4; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%s", i ? ", " : "",
                         place_text(s, s->input[step->list + i], world_rank, place));
    used += snprintf(text + used, size - (size_t)used, "%s into %s", step->inputs > 4 ? ", ..." : "",
                     place_text(s, step->to, world_rank, place));
    if (step->also.operand >= 0)
        snprintf(text + used, size - (size_t)used, " and %s", place_text(s, step->also, world_rank, place));
}

static void box_step_text(const wf_schedule *s, const wf_step *step, const int32_t *world_rank, char *text, size_t size)
{
    static const char *const verbs[WF_STEP_KINDS] = {
        [WF_STEP_COPY] = "copy", [WF_STEP_PACK] = "pack", [WF_STEP_UNPACK] = "unpack", [WF_STEP_FILL] = "fill"};
    const bool negates = step->flags & WF_STEP_NEGATES;
    char from[PLACE], to[PLACE];
    int used = snprintf(text, size, "%s%s box ", negates ? "negate and " : "",
                        step->flags & WF_STEP_ADDS ? "add" : verbs[step->kind]);
    used += box_text(s->box[step->list].box, text + used, size - (size_t)used);
    if (step->kind == WF_STEP_FILL)
        snprintf(text + used, size - (size_t)used, " (%zu bytes) of %s", step->bytes,
                 place_text(s, step->to, world_rank, to));
    else
        snprintf(text + used, size - (size_t)used, " (%zu bytes) of %s into %s", step->bytes,
                 place_text(s, step->from, world_rank, from), place_text(s, step->to, world_rank, to));
}

static const char *flag_text(int flag, char text[PLACE])
{
    static const char *const of_node[WF_FLAGS] = {[WF_FLAG_SLOT] = "copied", "reduced", "taken"};
    if (flag < WF_FLAGS)
        return of_node[flag];
    snprintf(text, PLACE, flag == wf_flag_posted((flag - WF_FLAGS) / 2) ? "parts to place %d" : "taken from place %d",
             (flag - WF_FLAGS) / 2);
    return text;
}

static const char *native_text(wf_native_kind kind)
{
    static const char *const marks[] = {"a copy", "the begin of a group", "the end of a group", "the end of a group",
                                        "a join"};
    return kind < WF_NATIVE_COPY ? "a call" : marks[kind - WF_NATIVE_COPY];
}

/* Shown where a run hangs: what the step waits for and with whom. */
const char *wf_step_text(const wf_schedule *s, int32_t i, const int32_t *world_rank, char text[WF_FAILURE_TEXT])
{
    const wf_step *step = &s->step[i];
    const size_t size = WF_FAILURE_TEXT;
    char from[PLACE], to[PLACE], flag[PLACE];
    place_text(s, step->from, world_rank, from);
    place_text(s, step->to, world_rank, to);
    switch (step->kind) {
    case WF_STEP_SEND:
        snprintf(text, size, "send %zu bytes of %s to rank %s", step->bytes, from,
                 WF_RANK_LISTED(world_rank, step->peer));
        break;
    case WF_STEP_RECV:
        snprintf(text, size, "receive %zu bytes from rank %s into %s", step->bytes,
                 WF_RANK_LISTED(world_rank, step->peer), to);
        break;
    case WF_STEP_COMBINE:
        combine_text(s, step, world_rank, text, size);
        break;
    case WF_STEP_STAGE:
        snprintf(text, size, "stage %zu bytes of %s into %s", step->bytes, from, to);
        break;
    case WF_STEP_NOTIFY:
        snprintf(text, size, "notify: %s %lld", flag_text(step->flag, flag), (long long)step->value);
        break;
    case WF_STEP_AWAIT:
        snprintf(text, size, "await rank %s: %s %lld", WF_RANK_LISTED(world_rank, step->peer),
                 flag_text(step->flag, flag), (long long)step->value);
        break;
    case WF_STEP_CALL:
        if (s->call[step->list].run)
            snprintf(text, size, "call on %s, to %s", from, to);
        else
            snprintf(text, size, "join");
        break;
    case WF_STEP_NATIVE:
        snprintf(text, size, "%s of the native transport", native_text((wf_native_kind)step->list));
        break;
    case WF_STEP_FENCE:
        snprintf(text, size, "until the device has done what it was given");
        break;
    default:
        if (step->list >= 0)
            box_step_text(s, step, world_rank, text, size);
        else
            snprintf(text, size, "copy %zu bytes of %s into %s", step->bytes, from, to);
        break;
    }
    return text;
}

const char *wf_run_text(const wf_run *run, char text[WF_FAILURE_TEXT])
{
    int32_t step = run->in_line && !wf_run_done(run) ? run->done : -1;
    for (int32_t i = run->landed; i < run->messages && step < 0; i++)
        step = run->message[i].done ? -1 : run->message[i].step;
    if (step < 0 && run->awaits > 0)
        step = run->awaiting[0];
    if (step < 0 && run->head < run->tail)
        step = run->ready[run->head];
    if (step < 0)
        strcpy(text, "nothing");
    else
        wf_step_text(run->schedule, step, run->world_rank, text);
    return text;
}
