/* A study inside: the Python process, its lines, and the calls that all ranks of a group make together. */
#ifndef WF_OPTIM_STUDY_STUDY_IMPL_H
#define WF_OPTIM_STUDY_STUDY_IMPL_H

#include "comm/comm_author.h"
#include "optim/study.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* --- process.c: a Python process that runs bridge.py. Zero is one that is not started. -----------------------------
 */

typedef struct wf_bridge {
    pid_t child;  /* 0: none */
    int to, from; /* pipes */
    bool has_script;
    char *text; /* what it said: the last answer, and what has come behind it */
    size_t have, room;
} wf_bridge;

/* Starts `python`, a path or a name to be found in PATH. WF_ERR_UNSUPPORTED if there is no such program. Local. */
wf_status wf_bridge_start(wf_bridge *bridge, const char *python, const char *name) WF_NODISCARD;
/* Sends a line, without its end, and waits for the answer, which lives until the next one. WF_ERR_IO if the process has
 * ended, WF_ERR_TIMEOUT if it does not answer; it is then gone. Local. */
wf_status wf_bridge_exchange(wf_bridge *bridge, const char *line, int64_t timeout_ms, const char **answer) WF_NODISCARD;
/* Ends the process, which has a moment to do so itself. Local. */
void wf_bridge_end(wf_bridge *bridge);

/* --- message.c: lines, JSON arrays of strings ----------------------------------------------------------------------
 */

/* WF_ERR_ARGUMENT if the text, which is that of `what`, is no UTF-8. */
wf_status wf_study_check_text(const char *what, const char *text) WF_NODISCARD;

/* A line that is being written; it stays where it is meanwhile. NULL from `end`: memory is exhausted, and the
 * error is set. The text belongs to the caller. */
typedef struct wf_line {
    FILE *file;
    char *text;
    size_t size;
} wf_line;
void wf_line_begin(wf_line *line, const char *request);
void wf_line_add(wf_line *line, const char *word);
void wf_line_add_int(wf_line *line, int64_t value);
void wf_line_add_real(wf_line *line, double value); /* hexadecimal: exact */
char *wf_line_end(wf_line *line);

/* The strings of an answer. Zero is empty. */
typedef struct wf_words {
    char *text;
    const char **word;
    int64_t count;
} wf_words;
/* WF_ERR_FORMAT if it is no array of strings. */
wf_status wf_words_parse(wf_words *words, const char *line) WF_NODISCARD;
void wf_words_free(wf_words *words);
/* WF_ERR_FORMAT if the word is no number. */
wf_status wf_words_int(const wf_words *words, int64_t i, int64_t *value) WF_NODISCARD;
wf_status wf_words_real(const wf_words *words, int64_t i, double *value) WF_NODISCARD;

/* --- The study -----------------------------------------------------------------------------------------------------
 */

#define WF_STUDY_TEXT 512 /* of an error */

struct wf_trial {
    wf_study *study;
    bool open, pruned;
    bool wrong; /* its error is one of the program, or of Python: the next trial would have it too */
    int64_t number;
    wf_status status; /* its first error */
    char message[WF_STUDY_TEXT];
};

struct wf_study {
    wf_comm *all;   /* every rank of the study */
    wf_comm *group; /* this rank's group */
    wf_comm *work;  /* the same ranks, for the trials; NULL: to be made anew */
    char *name;
    wf_study_opts opts;
    int index; /* of the group */
    bool finished;
    wf_bridge bridge; /* on rank 0 of the group */
    wf_trial trial;
    wf_words words; /* of the table */
    wf_study_row *rows;
    int64_t count;
    wf_study_param *params;
    wf_study_importance *importance;
};

/* --- call.c --------------------------------------------------------------------------------------------------------
 */

/* Sends `line` to Python, from rank 0 of the group, and gives the answer to all its ranks, which have the same line. An
 * answer that is an error is returned by all; Python's end, or a rank with another line, ends the study. The answer is
 * to be freed. Takes over the line, which is NULL where memory is exhausted. Collective. */
wf_status wf_study_call(wf_study *study, char *line, wf_words *answer) WF_NODISCARD;
/* Like wf_study_call, with another value at the end of the line: that of rank 0 counts. */
wf_status wf_study_call_value(wf_study *study, char *line, double value, wf_words *answer) WF_NODISCARD;
uint64_t wf_study_hash(const char *text);
/* The status that an answer means, with its message. */
wf_status wf_study_answer(const wf_words *answer) WF_NODISCARD;

/* --- table.c -------------------------------------------------------------------------------------------------------
 */

void wf_study_table_free(wf_study *study);
/* importance.c: makes study->importance from the rows. Local. */
wf_status wf_study_weigh(wf_study *study, int *count) WF_NODISCARD;

#endif
