/* The trials of a study as rows. Every rank of the group reads the same answer of Python. */
#include "optim/study/study_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW_WORDS   7 /* number, state, value, seconds, retry of, reason, parameters */
#define PARAM_WORDS 3 /* name, kind, value */

void wf_study_table_free(wf_study *study)
{
    wf_words_free(&study->words);
    free(study->rows);
    free(study->params);
    free(study->importance);
    study->rows = NULL;
    study->params = NULL;
    study->importance = NULL;
    study->count = 0;
}

static wf_status state_of(const char *word, wf_study_state *state)
{
    /* Python's names of states are in the order of wf_study_state. */
    static const char *const names[] = {"COMPLETE", "PRUNED", "FAIL", "RUNNING", "WAITING", "RETRIED"};
    for (int i = 0; i < 6; i++)
        if (strcmp(word, names[i]) == 0) {
            *state = (wf_study_state)i;
            return WF_OK;
        }
    WF_FAIL(WF_ERR_FORMAT, "Python says that a trial is \"%.60s\"", word);
}

/* A categorical value stays text. A whole number is given as a real one too, for plots. */
static wf_status read_param(const wf_words *words, int64_t at, wf_study_param *param)
{
    const char *kind = words->word[at + 1];
    *param = (wf_study_param){.name = words->word[at], .text = words->word[at + 2], .kind = WF_STUDY_CATEGORICAL};
    if (strcmp(kind, "float") == 0) {
        param->kind = WF_STUDY_FLOAT;
        return wf_words_real(words, at + 2, &param->real);
    }
    if (strcmp(kind, "int") == 0) {
        param->kind = WF_STUDY_INT;
        WF_TRY(wf_words_int(words, at + 2, &param->integer));
        param->real = (double)param->integer;
    }
    return WF_OK;
}

/* *at moves behind the row. */
static wf_status read_row(const wf_words *words, int64_t *at, wf_study_row *row, wf_study_param *param)
{
    int64_t params = 0;
    WF_CHECK(*at + ROW_WORDS <= words->count, WF_ERR_FORMAT, "Python's table of trials ends in the middle");
    WF_TRY(wf_words_int(words, *at, &row->number));
    WF_TRY(state_of(words->word[*at + 1], &row->state));
    WF_TRY(wf_words_real(words, *at + 2, &row->value));
    WF_TRY(wf_words_real(words, *at + 3, &row->seconds));
    WF_TRY(wf_words_int(words, *at + 4, &row->retry_of));
    row->reason = words->word[*at + 5];
    WF_TRY(wf_words_int(words, *at + 6, &params));
    *at += ROW_WORDS;
    /* Divided, not multiplied: a wild count cannot overflow. */
    WF_CHECK(params >= 0 && params <= (words->count - *at) / PARAM_WORDS, WF_ERR_FORMAT,
             "Python's table of trials ends in the middle");
    row->params = (int)params;
    row->param = param;
    for (int64_t i = 0; i < params; i++, *at += PARAM_WORDS)
        WF_TRY(read_param(words, *at, &param[i]));
    return WF_OK;
}

static wf_status read_table(wf_study *study)
{
    const wf_words *words = &study->words;
    /* At most as many rows and parameters as their words allow. */
    study->rows = calloc((size_t)(words->count / ROW_WORDS + 1), sizeof *study->rows);
    study->params = calloc((size_t)(words->count / PARAM_WORDS + 1), sizeof *study->params);
    WF_CHECK(study->rows && study->params, WF_ERR_MEMORY, "no memory for the trials of a study");
    wf_study_param *param = study->params;
    /* Word 0 is "ok"; rows follow. */
    for (int64_t at = 1; at < words->count; study->count++) {
        WF_TRY(read_row(words, &at, &study->rows[study->count], param));
        param += study->rows[study->count].params;
    }
    return WF_OK;
}

static wf_status update_table(wf_study *study)
{
    wf_line line;
    wf_line_begin(&line, "table");
    wf_study_table_free(study);
    WF_TRY(wf_study_call(study, wf_line_end(&line), &study->words));
    /* Only the trial of this group may be in the middle of a call, so the table is a snapshot of one moment. */
    return wf_agree_status(study->group, read_table(study));
}

/* Rows point into the words of the answer, so they hold until the next question. */
wf_status wf_study_trials(wf_study *study, const wf_study_row **rows, int64_t *count)
{
    WF_NEED(study);
    WF_NEED(rows);
    WF_NEED(count);
    WF_TRY(update_table(study));
    *rows = study->rows;
    *count = study->count;
    return WF_OK;
}

wf_status wf_study_best(wf_study *study, const wf_study_row **best)
{
    WF_NEED(study);
    WF_NEED(best);
    WF_TRY(update_table(study));
    *best = NULL;
    /* The first of equal trials is the best: the earliest found. */
    for (int64_t i = 0; i < study->count; i++) {
        const wf_study_row *row = &study->rows[i];
        if (row->state == WF_TRIAL_COMPLETE &&
            (!*best || (study->opts.maximize ? row->value > (*best)->value : row->value < (*best)->value)))
            *best = row;
    }
    return WF_OK;
}

wf_status wf_study_importances(wf_study *study, const wf_study_importance **list, int *count)
{
    WF_NEED(study);
    WF_NEED(list);
    WF_NEED(count);
    WF_TRY(update_table(study));
    WF_TRY(wf_agree_status(study->group, wf_study_weigh(study, count)));
    *list = study->importance;
    return WF_OK;
}
