/* One question of a group to its Python process: rank 0 asks, and all ranks read the same answer. Questions are in the
 * order of the program, which is the same on all ranks; the hash of the question notices a program where it is not. */
#include "optim/study/study_impl.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STEP_NS    10000000 /* from one look at the other groups to the next */
#define STEPS      10       /* for every lower group */
#define MOST_STEPS 100
#define SHORT      232 /* of an answer that goes with its header; longer ones take a message of their own */

typedef struct header {
    uint64_t line; /* a hash of the question */
    int64_t length;
    char text[SHORT];
} header;

uint64_t wf_study_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
    return hash;
}

/* If several groups fail at once, as when all Pythons are killed, the lowest one's error counts, and the others take
 * its words. Groups know of each other only by the communicator of all: a failure that was posted there is the error of
 * all. */
static wf_status let_lower_speak(const wf_study *study)
{
    wf_status status = wf_comm_alive(study->all);
    for (int i = 0; status == WF_OK && i < STEPS * study->index && i < MOST_STEPS; i++) {
        nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
        status = wf_comm_alive(study->all);
    }
    return status;
}

/* Ends the study on all ranks of all groups. Where it has ended already, that is the error. */
static wf_status end_study(wf_study *study, wf_status status)
{
    char message[WF_STUDY_TEXT];
    wf_status code;
    if (status == WF_OK)
        return WF_OK;
    /* Waiting may replace the last error. */
    wf_error_save(&code, message, sizeof message);
    WF_TRY(let_lower_speak(study));
    return wf_comm_post_failure(study->all, WF_RAISE(status, "%s", message));
}

static wf_status share_answer(wf_study *study, const char *line, const char *said, char **text)
{
    const bool asks = wf_comm_rank(study->group) == 0;
    /* One message for header and short answer: nearly all answers are a number. */
    header h = {.line = wf_study_hash(line)};
    if (asks) {
        h.length = (int64_t)strlen(said);
        snprintf(h.text, sizeof h.text, "%s", said);
    }
    WF_TRY(wf_bcast_bytes(study->group, &h, sizeof h, 0));
    /* Each rank compares for itself; the ones that differ end the study for all. */
    if (h.line != wf_study_hash(line))
        return end_study(
            study, WF_RAISE(WF_ERR_ARGUMENT, "rank %s asks the study %.200s, and rank %s of its group something else",
                            WF_RANK(study->all, wf_comm_rank(study->all)), line, WF_RANK(study->group, 0)));
    *text = malloc((size_t)h.length + 1);
    if (!*text)
        return end_study(study, WF_RAISE(WF_ERR_MEMORY, "no memory for an answer of the study"));
    if (h.length < SHORT) {
        memcpy(*text, h.text, (size_t)h.length + 1);
        return WF_OK;
    }
    if (asks)
        memcpy(*text, said, (size_t)h.length + 1);
    const wf_status status = wf_bcast_bytes(study->group, *text, (size_t)h.length + 1, 0);
    if (status != WF_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

wf_status wf_study_answer(const wf_words *answer)
{
    static const struct {
        const char *word;
        wf_status status;
    } meanings[] = {
        {"argument", WF_ERR_ARGUMENT}, {"io", WF_ERR_IO}, {"state", WF_ERR_STATE}, {"unsupported", WF_ERR_UNSUPPORTED}};
    /* "ok" and what was asked for, or the kind of an error and its message. */
    if (answer->count > 0 && strcmp(answer->word[0], "ok") == 0)
        return WF_OK;
    for (size_t i = 0; answer->count == 2 && i < sizeof meanings / sizeof *meanings; i++)
        if (strcmp(answer->word[0], meanings[i].word) == 0)
            return WF_RAISE(meanings[i].status, "%s", answer->word[1]);
    WF_FAIL(WF_ERR_FORMAT, "Python answered with \"%.60s\", which is no answer of the study",
            answer->count > 0 ? answer->word[0] : "");
}

/* `asked` is what rank 0 sends; every rank has the same `line`. */
static wf_status call_bridge(wf_study *study, const char *line, const char *asked, wf_words *answer)
{
    const bool asks = wf_comm_rank(study->group) == 0;
    const char *said = NULL;
    char *text = NULL;
    wf_status status = WF_OK;
    /* A study that has ended on another group asks no more questions. */
    WF_TRY(wf_comm_alive(study->all));
    if (asks) {
        status = wf_bridge_exchange(&study->bridge, asked, study->opts.timeout_ms, &said);
        /* Parsed before ranks agree, so that a malformed answer is the error of one rank. */
        status = status == WF_OK ? wf_words_parse(answer, said) : status;
    }
    if (status != WF_OK)
        return end_study(study, status);
    status = share_answer(study, line, said, &text);
    /* Text that parsed on rank 0 parses here too, unless memory fails. */
    if (status == WF_OK && !asks)
        status = end_study(study, wf_words_parse(answer, text));
    free(text);
    if (status == WF_OK)
        status = wf_study_answer(answer);
    if (status != WF_OK)
        wf_words_free(answer);
    return status;
}

/* Takes the line over, whatever happens. */
wf_status wf_study_call(wf_study *study, char *line, wf_words *answer)
{
    *answer = (wf_words){0};
    const wf_status status = line ? call_bridge(study, line, line, answer) : end_study(study, WF_ERR_MEMORY);
    free(line);
    return status;
}

wf_status wf_study_call_value(wf_study *study, char *line, double value, wf_words *answer)
{
    char *asked = NULL;
    *answer = (wf_words){0};
    const size_t size = line ? strlen(line) + 48 : 0;
    if (line)
        asked = malloc(size);
    /* In place of the bracket at its end. Only rank 0's value is sent, so the others need not have the same one. */
    if (asked)
        snprintf(asked, size, "%.*s,\"%a\"]", (int)strlen(line) - 1, line, value);
    const wf_status status = asked ? call_bridge(study, line, asked, answer)
                                   : end_study(study, WF_RAISE(WF_ERR_MEMORY, "no memory for a line to Python"));
    free(asked);
    free(line);
    return status;
}
