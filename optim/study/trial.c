/* Trials. Every call of a trial begins with an agreement of the group on how its ranks are: one that has failed alone
 * is in wf_study_tell_failed while the others are still in the middle of the trial, and they learn of it there. */
#include "optim/study/study_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_EXACT (1LL << 53) /* integers up to here are doubles */
#define LOOK_NS    100000000   /* from one look at the other groups' last trials to the next */

/* --- Agreement -----------------------------------------------------------------------------------------------------
 */

/* The status of the lowest rank of the group that has failed; *all_end where every rank ends the trial in this call,
 * and *wrong where a rank has an error that another trial would have too. Whether the group itself is well says
 * wf_comm_alive. One reduction carries all three: a maximum of a number that is larger for a lower rank names the
 * lowest. */
static wf_status agree(wf_study *study, bool ends, wf_status status, bool *all_end, bool *wrong)
{
    const int size = wf_comm_size(study->group);
    int64_t worst[3] = {status != WF_OK ? size - wf_comm_rank(study->group) : 0, !ends, study->trial.wrong};
    /* The reduction may replace the last error. */
    char message[sizeof study->trial.message];
    wf_status code;
    wf_error_save(&code, message, sizeof message);
    WF_TRY(wf_allreduce_i64(study->group, worst, 3, WF_MAX));
    *all_end = worst[1] == 0;
    *wrong = worst[2] != 0;
    if (worst[0] == 0)
        return WF_OK;
    /* The failing rank's own words are broadcast, so that all have the same message. */
    if (status != WF_OK)
        WF_RAISE(status, "%s", message);
    return wf_bcast_status(study->group, status, size - (int)worst[0]);
}

/* The first error of a trial is its error; later ones come of it. */
static wf_status keep_error(wf_trial *trial, wf_status status)
{
    wf_status code;
    if (status != WF_OK && trial->status == WF_OK) {
        trial->status = status;
        wf_error_save(&code, trial->message, sizeof trial->message);
    }
    return status;
}

wf_status wf_trial_check(const wf_trial *trial)
{
    WF_NEED(trial);
    WF_CHECK(trial->open, WF_ERR_STATE, "trial %lld was told", (long long)trial->number);
    return trial->status == WF_OK ? WF_OK : WF_RAISE(trial->status, "%s", trial->message);
}

/* A question in the middle of a trial; takes over the line. Every rank of the group asks it at the same place. */
static wf_status question(wf_trial *trial, char *line, const double *value, wf_words *answer)
{
    bool all_end, wrong;
    *answer = (wf_words){0};
    wf_status status = agree(trial->study, false, line ? WF_OK : WF_ERR_MEMORY, &all_end, &wrong);
    if (status != WF_OK) {
        free(line);
        return keep_error(trial, status);
    }
    status =
        value ? wf_study_call_value(trial->study, line, *value, answer) : wf_study_call(trial->study, line, answer);
    /* An error of Python's would come again in the next trial, so the study ends with it. */
    trial->wrong = trial->wrong || status != WF_OK;
    return keep_error(trial, status);
}

/* --- Suggestions ---------------------------------------------------------------------------------------------------
 */

static wf_status check_parameter_name(const char *name)
{
    WF_CHECK(name && *name, WF_ERR_ARGUMENT, "a parameter of a trial needs a name");
    return wf_study_check_text("the parameter", name);
}

static wf_status check_range(const char *name, double low, double high, wf_study_scale scale, double least)
{
    WF_TRY(check_parameter_name(name));
    WF_CHECK(isfinite(low) && isfinite(high) && low <= high, WF_ERR_ARGUMENT,
             "parameter %s of [%g, %g]: this is no range", name, low, high);
    WF_CHECK(!scale.log || low >= least, WF_ERR_ARGUMENT,
             "parameter %s of [%g, %g]: a logarithmic range should begin at %s", name, low, high,
             least > 0.5 ? "1 or more" : "more than 0");
    WF_CHECK(scale.step >= 0 && isfinite(scale.step) && !(scale.log && scale.step > 0), WF_ERR_ARGUMENT,
             "parameter %s: step %g%s", name, scale.step,
             scale.log ? " in a logarithmic range, which has none" : " should be positive");
    return WF_OK;
}

/* An error of the arguments is that of the trial, without a word to the others, who have the same one. The program sees
 * it when the trial is told. */
static bool begin(wf_trial *trial, wf_status status)
{
    trial->wrong = status != WF_OK;
    return keep_error(trial, status) == WF_OK;
}

/* After an error suggestions return a default at once, so a program need not check each of them. */
static bool usable(const wf_trial *trial)
{
    return trial && trial->open && trial->status == WF_OK;
}

/* Asks for a number in a range; ints go as doubles, which hold them exactly. */
static wf_status ask_in_range(wf_trial *trial, const char *kind, const char *name, const double range[2],
                              wf_study_scale scale, wf_words *answer)
{
    wf_line line;
    wf_line_begin(&line, kind);
    wf_line_add(&line, name);
    wf_line_add_real(&line, range[0]);
    wf_line_add_real(&line, range[1]);
    wf_line_add_int(&line, scale.log);
    wf_line_add_real(&line, scale.step);
    return question(trial, wf_line_end(&line), NULL, answer);
}

double wf_trial_suggest_float(wf_trial *trial, const char *name, double low, double high, wf_study_scale scale)
{
    /* The smallest double above 0: a logarithm needs a number above it. */
    if (!usable(trial) || !begin(trial, check_range(name, low, high, scale, 0x1p-1074)))
        return NAN;
    double value = NAN;
    wf_words answer;
    if (ask_in_range(trial, "float", name, (const double[]){low, high}, scale, &answer) == WF_OK)
        keep_error(trial, wf_words_real(&answer, 1, &value));
    wf_words_free(&answer);
    return value;
}

static wf_status check_ints(const char *name, int64_t low, int64_t high, wf_study_scale scale)
{
    /* Compared as doubles, which is exact within the bounds below. */
    WF_TRY(check_range(name, (double)low, (double)high, scale, 1));
    WF_CHECK(low >= -MOST_EXACT && high <= MOST_EXACT, WF_ERR_ARGUMENT,
             "parameter %s of [%lld, %lld]: should be within +-2^53", name, (long long)low, (long long)high);
    WF_CHECK(scale.step == floor(scale.step) && scale.step <= (double)MOST_EXACT, WF_ERR_ARGUMENT,
             "parameter %s: step %g should be a whole number", name, scale.step);
    return WF_OK;
}

int64_t wf_trial_suggest_int(wf_trial *trial, const char *name, int64_t low, int64_t high, wf_study_scale scale)
{
    if (!usable(trial) || !begin(trial, check_ints(name, low, high, scale)))
        return 0;
    int64_t value = 0;
    wf_words answer;
    if (ask_in_range(trial, "int", name, (const double[]){(double)low, (double)high}, scale, &answer) == WF_OK)
        keep_error(trial, wf_words_int(&answer, 1, &value));
    wf_words_free(&answer);
    return value;
}

static wf_status check_choices(const char *name, const char *const *choices, int count)
{
    WF_TRY(check_parameter_name(name));
    WF_CHECK(choices && count > 0, WF_ERR_ARGUMENT, "parameter %s has no choices", name);
    for (int i = 0; i < count; i++) {
        WF_CHECK(choices[i], WF_ERR_ARGUMENT, "parameter %s: choice %d is NULL", name, i);
        WF_TRY(wf_study_check_text("the choice", choices[i]));
        for (int j = 0; j < i; j++)
            WF_CHECK(strcmp(choices[i], choices[j]) != 0, WF_ERR_ARGUMENT, "parameter %s has the choice %s twice", name,
                     choices[i]);
    }
    return WF_OK;
}

int wf_trial_suggest_categorical(wf_trial *trial, const char *name, const char *const *choices, int count)
{
    int64_t value = 0;
    wf_words answer;
    if (!usable(trial) || !begin(trial, check_choices(name, choices, count)))
        return 0;
    wf_line line;
    wf_line_begin(&line, "categorical");
    wf_line_add(&line, name);
    for (int i = 0; i < count; i++)
        wf_line_add(&line, choices[i]);
    if (question(trial, wf_line_end(&line), NULL, &answer) == WF_OK)
        keep_error(trial, wf_words_int(&answer, 1, &value));
    wf_words_free(&answer);
    /* A choice that Python should not have given; the error is kept already if it is no number. */
    return value >= 0 && value < count ? (int)value : 0;
}

/* --- On the way ----------------------------------------------------------------------------------------------------
 */

/* The value of rank 0 counts. Every rank reports, at the same step. */
wf_status wf_trial_report(wf_trial *trial, double value, int64_t step)
{
    wf_words answer;
    WF_TRY(wf_trial_check(trial));
    WF_CHECK(step >= 0, WF_ERR_ARGUMENT, "trial %lld reports step %lld", (long long)trial->number, (long long)step);
    wf_line line;
    wf_line_begin(&line, "report");
    wf_line_add_int(&line, step);
    const wf_status status = question(trial, wf_line_end(&line), &value, &answer);
    wf_words_free(&answer);
    return status;
}

/* Ranks get one answer: a rank that prunes alone would leave the others in a collective. */
bool wf_trial_should_prune(wf_trial *trial)
{
    int64_t value = 0;
    wf_words answer;
    if (!usable(trial))
        return false;
    wf_line line;
    wf_line_begin(&line, "prune");
    if (question(trial, wf_line_end(&line), NULL, &answer) == WF_OK)
        keep_error(trial, wf_words_int(&answer, 1, &value));
    wf_words_free(&answer);
    return value != 0;
}

wf_status wf_trial_prune(wf_trial *trial)
{
    /* Only noted: the trial ends when it is told. */
    WF_TRY(wf_trial_check(trial));
    trial->pruned = true;
    return WF_OK;
}

int64_t wf_trial_number(const wf_trial *trial)
{
    return trial ? trial->number : 0;
}

/* Dies with a failed trial, and is made anew for the next. */
wf_comm *wf_trial_comm(const wf_trial *trial)
{
    return trial ? trial->study->work : NULL;
}

/* --- Begin and end -------------------------------------------------------------------------------------------------
 */

/* A communicator for the trial: the last one's, unless that died on any rank. A failure of a trial must not end the
 * study. */
static wf_status refresh_comm(wf_study *study)
{
    int64_t dead = !study->work || wf_comm_alive(study->work) != WF_OK;
    WF_TRY(wf_allreduce_i64(study->group, &dead, 1, WF_MAX));
    if (!dead)
        return WF_OK;
    /* The error of the communicator was that of the trial before. */
    wf_error_clear();
    (void)wf_comm_close(study->work);
    study->work = wf_comm_split(study->group, 0, wf_comm_rank(study->group));
    return wf_check(study->work);
}

/* A question whose answer is a number. */
static wf_status ask_number(wf_study *study, const char *request, int64_t *number)
{
    wf_words answer;
    wf_line line;
    wf_line_begin(&line, request);
    WF_TRY(wf_study_call(study, wf_line_end(&line), &answer));
    const wf_status status = wf_words_int(&answer, 1, number);
    wf_words_free(&answer);
    return status;
}

/* Looks at the storage again and again, since a wait for ranks that train for hours would come to its time-out. No
 * group begins a trial any more. */
static wf_status wait_for_others(wf_study *study)
{
    for (int64_t running = 1; running > 0;) {
        WF_TRY(ask_number(study, "running", &running));
        if (running > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return WF_OK;
}

wf_status wf_study_ask(wf_study *study, wf_trial **trial)
{
    int64_t number;
    WF_NEED(study);
    WF_NEED(trial);
    *trial = NULL;
    WF_CHECK(!study->trial.open, WF_ERR_STATE, "trial %lld is still open: it is told first",
             (long long)study->trial.number);
    if (study->finished)
        return WF_OK;
    WF_TRY(refresh_comm(study));
    WF_TRY(ask_number(study, "ask", &number));
    /* No number: the study has as many trials as were asked for. */
    if (number < 0) {
        study->finished = true;
        return wait_for_others(study);
    }
    study->trial = (wf_trial){.study = study, .open = true, .number = number};
    *trial = &study->trial;
    return WF_OK;
}

/* Until every rank of the group ends the trial: one that was told of a failure by its last call comes later. Those that
 * came early answer the questions of the others by agreeing again. */
static wf_status agree_to_end(wf_study *study, wf_status status, bool *wrong)
{
    for (bool all_end = false; !all_end;) {
        status = agree(study, true, status, &all_end, wrong);
        WF_TRY(wf_comm_alive(study->group));
    }
    return status;
}

static wf_status end_trial(wf_study *study, wf_trial *trial, wf_status status, double value)
{
    wf_words answer;
    bool wrong = false;
    const wf_status why = agree_to_end(study, status != WF_OK ? status : wf_trial_check(trial), &wrong);
    WF_TRY(wf_comm_alive(study->group));
    char reason[sizeof trial->message] = "";
    /* Kept before the next collective, which has errors of its own. */
    if (why != WF_OK)
        snprintf(reason, sizeof reason, "%s", wf_error_message());
    wf_error_clear();
    trial->open = false;
    wf_line line;
    wf_line_begin(&line, "tell");
    wf_line_add(&line, why != WF_OK ? "failed" : trial->pruned ? "pruned" : "complete");
    wf_line_add(&line, reason);
    status = wf_study_call_value(study, wf_line_end(&line), value, &answer);
    wf_words_free(&answer);
    /* The answer is agreed on, so the trial is closed for all or the study is over. */
    WF_TRY(status);
    return wrong ? WF_RAISE(why, "%s", reason) : WF_OK;
}

static wf_status check_told(const wf_study *study, const wf_trial *trial)
{
    WF_NEED(study);
    WF_NEED(trial);
    WF_CHECK(trial == &study->trial && trial->open, WF_ERR_STATE, "the trial that is told is not open in this study");
    return WF_OK;
}

wf_status wf_study_tell(wf_study *study, wf_trial *trial, double value)
{
    WF_TRY(check_told(study, trial));
    /* A NaN is no value for a sampler: the trial fails, and the study goes on. */
    const bool diverged = isnan(value) && !trial->pruned && trial->status == WF_OK;
    return end_trial(study, trial, diverged ? WF_RAISE(WF_ERR_NUMERIC, "the value is NaN") : WF_OK, value);
}

wf_status wf_study_tell_failed(wf_study *study, wf_trial *trial, wf_status status)
{
    WF_TRY(check_told(study, trial));
    WF_CHECK(status != WF_OK, WF_ERR_ARGUMENT, "trial %lld is told as failed with WF_OK", (long long)trial->number);
    char message[sizeof trial->message];
    wf_status code;
    wf_error_save(&code, message, sizeof message);
    /* The program's status need not come from this library. */
    if (code != status)
        snprintf(message, sizeof message, "%s", wf_status_name(status));
    /* Tells ranks that wait for this one in a call of the trial's communicator. */
    wf_comm_post_failure(study->work, WF_RAISE(status, "%s", message));
    return end_trial(study, trial, WF_RAISE(status, "%s", message), NAN);
}

wf_status wf_study_optimize(wf_study *study, wf_study_objective objective, void *user)
{
    WF_NEED(study);
    WF_NEED(objective);
    WF_CHECK(study->opts.trials > 0, WF_ERR_ARGUMENT, "study %s has no number of trials: set .trials", study->name);
    for (;;) {
        wf_trial *trial;
        double value = NAN;
        WF_TRY(wf_study_ask(study, &trial));
        if (!trial)
            return WF_OK;
        /* An objective that fails has ended its trial, not the study, unless the error is `wrong`. */
        const wf_status status = objective(trial, user, &value);
        WF_TRY(status == WF_OK ? wf_study_tell(study, trial, value) : wf_study_tell_failed(study, trial, status));
    }
}
