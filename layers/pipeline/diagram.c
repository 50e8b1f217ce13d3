/* Schedules as diagrams: time to the right, a row a stage. A forward takes one unit of time, a backward two, a message
 * none. */
#include "layers/pipeline/pipeline_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELL = 4, BOX = 22, ROW = 30, LEFT = 70 }; /* characters; pixels */

void wf_pipeline_times_free(wf_pipeline_times *t)
{
    for (int i = 0; t->begin && i < t->s->stages; i++)
        free(t->begin[i]);
    free(t->begin);
}

/* When the message that a stage receives there was sent; -1: not yet. */
static int sent_at(const wf_pipeline_times *t, const int *next, int stage, int step)
{
    const wf_pipeline_schedule *s = t->s;
    const wf_pipeline_action *a = &s->action[stage][step];
    for (int i = 0; i < next[a->peer]; i++) {
        const wf_pipeline_action *b = &s->action[a->peer][i];
        if (b->verb == WF_PIPELINE_SEND && b->peer == stage && wf_pipeline_same_message(a, b))
            return t->begin[a->peer][i];
    }
    return -1;
}

/* One more action of a stage, if it can be. False: its schedule is done, or it waits for a message that is not sent. */
static bool go_on(wf_pipeline_times *t, int stage, int *next, int *clock)
{
    const wf_pipeline_schedule *s = t->s;
    if (next[stage] == s->count[stage])
        return false;
    const wf_pipeline_action *a = &s->action[stage][next[stage]];
    if (a->verb == WF_PIPELINE_RECEIVE) {
        const int sent = sent_at(t, next, stage, next[stage]);
        if (sent < 0)
            return false;
        clock[stage] = sent > clock[stage] ? sent : clock[stage];
    }
    t->begin[stage][next[stage]++] = clock[stage];
    clock[stage] += wf_pipeline_duration(a->verb);
    t->end = clock[stage] > t->end ? clock[stage] : t->end;
    return true;
}

bool wf_pipeline_times_make(const wf_pipeline_schedule *s, wf_pipeline_times *t)
{
    *t = (wf_pipeline_times){.s = s, .begin = wf_calloc(s->ctx, (size_t)s->stages, sizeof(*t->begin))};
    int *next = wf_calloc(s->ctx, 2 * (size_t)s->stages, sizeof *next);
    bool whole = t->begin && next;
    for (int i = 0; whole && i < s->stages; i++) {
        t->begin[i] = wf_calloc(s->ctx, (size_t)s->count[i] + 1, sizeof(*t->begin[i]));
        whole = t->begin[i];
    }
    /* Stages go on in turns as far as they can. A schedule that hangs ends the loop too, since then no stage moves;
     * wf_pipeline_verify is what finds it. */
    for (bool moved = whole; moved;) {
        moved = false;
        for (int i = 0; i < s->stages; i++)
            while (go_on(t, i, next, next + s->stages))
                moved = true;
    }
    free(next);
    return whole;
}

/* "12" of a forward, "(12)" of a backward; with the part of the stage where there are several: "12b". */
static void cell_text(const wf_pipeline_schedule *s, const wf_pipeline_action *a, char text[16])
{
    const bool back = a->verb == WF_PIPELINE_BACKWARD;
    char part[2] = "";
    /* After z letters begin again: a diagram with more parts is not read anyway. */
    if (s->parts > 1)
        part[0] = (char)('a' + a->part / s->stages % 26);
    snprintf(text, 16, "%s%d%s%s", back ? "(" : "", a->chunk % 10000, part, back ? ")" : "");
}

static void print_stage(const wf_pipeline_times *t, int stage, char *row, size_t size)
{
    const wf_pipeline_schedule *s = t->s;
    const int used = snprintf(row, size, "stage %-3d", stage);
    /* Blanks first; cells are then written at their time, in any order. */
    memset(row + used, ' ', size - (size_t)used);
    for (int i = 0; i < s->count[stage]; i++) {
        const wf_pipeline_action *a = &s->action[stage][i];
        char text[16];
        /* Messages take no time and have no cell. */
        if (a->verb > WF_PIPELINE_BACKWARD)
            continue;
        cell_text(s, a, text);
        memcpy(row + used + (size_t)t->begin[stage][i] * CELL, text, strlen(text));
    }
    /* Blanks at the end are cut off, so lines compare well in tests. */
    size_t last = size - 1;
    while (last > 0 && row[last - 1] == ' ')
        last--;
    row[last] = '\0';
}

void wf_pipeline_schedule_print(const wf_pipeline_schedule *s, void (*line)(void *own, const char *text), void *own)
{
    wf_pipeline_times t;
    if (!s || !line)
        return;
    const bool made = wf_pipeline_times_make(s, &t);
    /* 64: the row's name, and a last cell that is longer than its time. */
    const size_t size = (size_t)t.end * CELL + 64;
    char *row = made ? wf_malloc(s->ctx, size) : NULL;
    for (int stage = 0; row && stage < s->stages; stage++) {
        print_stage(&t, stage, row, size);
        line(own, row);
    }
    free(row);
    wf_pipeline_times_free(&t);
}

static void svg_stage(const wf_pipeline_times *t, int stage, void (*line)(void *own, const char *text), void *own)
{
    const wf_pipeline_schedule *s = t->s;
    char text[320], label[16];
    const int y = 8 + stage * ROW;
    snprintf(text, sizeof text, "<text x=\"8\" y=\"%d\">stage %d</text>", y + 15, stage);
    line(own, text);
    for (int i = 0; i < s->count[stage]; i++) {
        const wf_pipeline_action *a = &s->action[stage][i];
        if (a->verb > WF_PIPELINE_BACKWARD)
            continue;
        const bool back = a->verb == WF_PIPELINE_BACKWARD;
        const int width = (back ? 2 : 1) * BOX, x = LEFT + t->begin[stage][i] * BOX;
        cell_text(s, a, label);
        snprintf(text, sizeof text,
                 "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"#555\"/>"
                 "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                 x, y, width, BOX, back ? "#b9d7a8" : "#a9c7e8", x + width / 2, y + 15, label);
        line(own, text);
    }
}

void wf_pipeline_schedule_svg(const wf_pipeline_schedule *s, void (*line)(void *own, const char *text), void *own)
{
    wf_pipeline_times t;
    char text[240];
    if (!s || !line)
        return;
    if (wf_pipeline_times_make(s, &t)) {
        snprintf(text, sizeof text,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
                 "font-size=\"11\">",
                 LEFT + t.end * BOX + 8, s->stages * ROW + 16);
        line(own, text);
        for (int stage = 0; stage < s->stages; stage++)
            svg_stage(&t, stage, line, own);
        line(own, "</svg>");
    }
    wf_pipeline_times_free(&t);
}
