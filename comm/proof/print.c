/* Schedules in words, a line a step, and the names of calls. */
#include "comm/proof/proof_author.h"

#include <stdio.h>
#include <string.h>

static const char *const names[WF_CALLS] = {
    [WF_CALL_BCAST] = "bcast",
    [WF_CALL_REDUCE] = "reduce",
    [WF_CALL_ALLREDUCE] = "allreduce",
    [WF_CALL_ALLGATHER] = "allgather",
    [WF_CALL_REDUCE_SCATTER] = "reduce_scatter",
    [WF_CALL_BARRIER] = "barrier",
    [WF_CALL_SUM_SHARDS] = "sum_shards",
    [WF_CALL_GATHER_SHARDS] = "gather_shards",
    [WF_CALL_SUM] = "sum",
    [WF_CALL_LISTS] = "lists",
    [WF_CALL_MEET] = "meet",
    [WF_CALL_RECEIVE] = "receive",
};
_Static_assert(WF_CALLS == 12, "a new operation: add its name, without which wf_call_of_name reads NULL");

const char *wf_call_name(wf_operation operation)
{
    return operation >= 0 && operation < WF_CALLS ? names[operation] : "no call";
}

wf_operation wf_call_of_name(const char *name)
{
    int i = 0;
    while (i < WF_CALLS && strcmp(names[i], name) != 0)
        i++;
    return (wf_operation)i;
}

void wf_schedule_print(const wf_schedule *s, void (*line)(void *own, const char *text), void *own)
{
    char step[WF_FAILURE_TEXT], text[2 * WF_FAILURE_TEXT];
    snprintf(text, sizeof text, "rank %d of %d: %d steps, %llu messages of %llu bytes in all", s->rank, s->ranks,
             (int)s->steps, (unsigned long long)s->messages, (unsigned long long)s->bytes_sent);
    line(own, text);
    for (int32_t i = 0; i < s->steps; i++) {
        int used = snprintf(text, sizeof text, "%5d  %s", (int)i, wf_step_text(s, i, NULL, step));
        for (int32_t w = 0; w < s->step[i].waits && (size_t)used + 16 < sizeof text; w++)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%d", w ? ", " : "; after ",
                             (int)s->wait[s->step[i].wait + w]);
        line(own, text);
    }
}
