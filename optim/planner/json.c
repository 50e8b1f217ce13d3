/* A reader of JSON: objects, lists, strings, numbers, true and false; null is refused. It keeps one copy of the text,
 * in which strings are decoded in place. */
#include "optim/json_impl.h"
#include "optim/planner/planner_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lists inside of each other: a file cannot exhaust the stack by brackets. */
#define MOST_DEEP 16

/* The line is counted only for a message, so reading keeps no count. */
static wf_status wrong(const wf_json *j, const char *what)
{
    int line = 1;
    for (const char *c = j->text; c < j->at; c++)
        line += *c == '\n';
    WF_FAIL(WF_ERR_FORMAT, "%s, line %d: %s", j->name, line, what);
}

static char next_of(wf_json *j)
{
    j->at += strspn(j->at, " \t\r\n");
    return *j->at;
}

/* A value's number stays the same when the array moves; a pointer would not. */
static wf_status add_value(wf_json *j, char kind, int *number)
{
    if (j->values == j->room) {
        const int room = j->room ? 2 * j->room : 256;
        wf_json_value *longer = wf_realloc(j->ctx, j->value, (size_t)room * sizeof *longer);
        if (!longer)
            return wf_error_code();
        j->value = longer;
        j->room = room;
    }
    *number = j->values++;
    j->value[*number] = (wf_json_value){.kind = kind, .next = -1, .child = -1};
    return WF_OK;
}

/* Decoded where it stands: an escape is never shorter than what it means. */
static wf_status read_string(wf_json *j, const char **text)
{
    char *to = j->at;
    *text = to;
    const char *end = wf_json_string(j->at, &to);
    if (!end)
        return wrong(j, "a string that does not end, or an escape that is not known");
    j->at += end - j->at;
    return WF_OK;
}

static wf_status read_value(wf_json *j, int deep, int *number);

/* Values of a list are linked by `next`, so members keep the order of the file. */
static wf_status read_list(wf_json *j, int deep, int list)
{
    const bool object = j->value[list].kind == '{';
    const char end = object ? '}' : ']';
    int last = -1;
    j->at++;
    while (next_of(j) != end) {
        const char *key = NULL;
        int one;
        if (last >= 0 && *j->at++ != ',')
            return wrong(j, "there should be a comma");
        if (object) {
            if (next_of(j) != '"')
                return wrong(j, "there should be a key in quotes");
            WF_TRY(read_string(j, &key));
            if (next_of(j) != ':')
                return wrong(j, "there should be a colon");
            j->at++;
        }
        WF_TRY(read_value(j, deep + 1, &one));
        j->value[one].key = key;
        *(last < 0 ? &j->value[list].child : &j->value[last].next) = one;
        last = one;
    }
    j->at++;
    return WF_OK;
}

static wf_status read_value(wf_json *j, int deep, int *number)
{
    static const char *const words[] = {"true", "false"};
    const char c = next_of(j);
    if (deep > MOST_DEEP)
        return wrong(j, "too many lists inside of each other");
    if (c == '{' || c == '[') {
        WF_TRY(add_value(j, c, number));
        return read_list(j, deep, *number);
    }
    if (c == '"') {
        WF_TRY(add_value(j, c, number));
        return read_string(j, &j->value[*number].text);
    }
    for (int i = 0; i < 2; i++)
        if (strncmp(j->at, words[i], strlen(words[i])) == 0) {
            j->at += strlen(words[i]);
            return add_value(j, words[i][0], number);
        }
    /* strtod would take "nan" and "inf" too, so the first letter is looked at before. */
    char *end = j->at;
    const double value = c == '-' || (c >= '0' && c <= '9') ? strtod(j->at, &end) : 0;
    if (end == j->at || !isfinite(value))
        return wrong(j, *j->at ? "there should be a value" : "the file ends here");
    j->at = end;
    WF_TRY(add_value(j, '0', number));
    j->value[*number].number = value;
    return WF_OK;
}

wf_status wf_json_read(wf_ctx *ctx, const char *text, const char *name, wf_json *j)
{
    int whole;
    *j = (wf_json){.ctx = ctx, .name = name, .text = wf_strdup(ctx, text)};
    if (!j->text)
        return wf_error_code();
    j->at = j->text;
    wf_status status = read_value(j, 0, &whole);
    if (status == WF_OK && next_of(j) != '\0')
        status = wrong(j, "there is more than one value");
    if (status != WF_OK)
        wf_json_clear(j);
    return status;
}

void wf_json_clear(wf_json *j)
{
    free(j->text);
    free(j->value);
    *j = (wf_json){0};
}

static const char *kind_text(char kind)
{
    switch (kind) {
    case '{':
        return "an object";
    case '[':
        return "a list";
    case '"':
        return "a text";
    case 't':
    case 'f':
        return "true or false";
    default:
        return "a number";
    }
}

/* The first member of the name counts if there are several. */
wf_status wf_json_get(const wf_json *j, int object, const char *key, char kind, int *value)
{
    int v = j->value[object].kind == '{' ? j->value[object].child : -1;
    while (v >= 0 && strcmp(j->value[v].key, key) != 0)
        v = j->value[v].next;
    const char *should = kind_text(kind);
    WF_CHECK(v >= 0, WF_ERR_FORMAT, "%s: there is no \"%s\", which should be %s (docs/planning.md has the format)",
             j->name, key, should);
    WF_CHECK(j->value[v].kind == kind, WF_ERR_FORMAT, "%s: \"%s\" should be %s", j->name, key, should);
    *value = v;
    return WF_OK;
}

wf_status wf_json_number(const wf_json *j, int object, const char *key, double least, double *number)
{
    int v;
    WF_TRY(wf_json_get(j, object, key, '0', &v));
    WF_CHECK(j->value[v].number >= least, WF_ERR_FORMAT, "%s: \"%s\" is %g, should be at least %g", j->name, key,
             j->value[v].number, least);
    *number = j->value[v].number;
    return WF_OK;
}

wf_status wf_json_int(const wf_json *j, int object, const char *key, int least, int *number)
{
    double value;
    WF_TRY(wf_json_number(j, object, key, least, &value));
    WF_CHECK(value <= INT32_MAX && value == floor(value), WF_ERR_FORMAT, "%s: \"%s\" is %g, should be a whole number",
             j->name, key, value);
    *number = (int)value;
    return WF_OK;
}

wf_status wf_json_bool(const wf_json *j, int object, const char *key, bool *value)
{
    int v = -1;
    const wf_status no = wf_json_get(j, object, key, 't', &v);
    if (no != WF_OK) {
        wf_error_clear();
        WF_TRY(wf_json_get(j, object, key, 'f', &v));
    }
    *value = j->value[v].kind == 't';
    return WF_OK;
}
