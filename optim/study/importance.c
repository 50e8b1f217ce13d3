/* The effect of each parameter alone on the values of the complete trials: the Kruskal-Wallis test's. Ranks of values
 * are compared instead of the values, so a few very bad trials do not decide. Local: all ranks have the same table. */
#include "optim/study/study_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUARTERS 4

/* One trial, as far as one parameter is concerned. */
typedef struct sample {
    double rank; /* of the trial's value, from 1, the mean of equal ones */
    double real;
    const char *text;
    int group;
} sample;

typedef struct ranked {
    const wf_study_row *row;
    double rank;
} ranked;

/* NaN cannot come here: such a trial is no complete one. */
static int by_value(const void *left, const void *right)
{
    const double a = ((const ranked *)left)->row->value, b = ((const ranked *)right)->row->value;
    return (a > b) - (a < b);
}

static int64_t rank_trials(const wf_study *study, ranked *list)
{
    int64_t n = 0;
    for (int64_t i = 0; i < study->count; i++)
        if (study->rows[i].state == WF_TRIAL_COMPLETE)
            list[n++].row = &study->rows[i];
    qsort(list, (size_t)n, sizeof *list, by_value);
    /* Equal values share the mean of the ranks that they would have: without this, their order in the table would
     * count. */
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && list[end].row->value == list[i].row->value;)
            end++;
        /* The mean of the ranks i + 1 to end. */
        for (int64_t j = i; j < end; j++)
            list[j].rank = 0.5 * (double)(i + 1 + end);
    }
    return n;
}

static const wf_study_param *param_of(const wf_study_row *row, const char *name)
{
    for (int p = 0; p < row->params; p++)
        if (strcmp(row->param[p].name, name) == 0)
            return &row->param[p];
    return NULL;
}

/* Equal numbers, and equal choices, come together. */
static int by_setting(const void *left, const void *right)
{
    const sample *a = left, *b = right;
    if (a->text && b->text)
        return strcmp(a->text, b->text);
    return (a->real > b->real) - (a->real < b->real);
}

/* Numbers the groups: a choice each, or quarters of the numbers, whose borders are not between equal ones. Groups are
 * runs of the sorted list. */
static int make_groups(sample *s, int64_t n)
{
    int64_t quarter = -1;
    int groups = 0;
    qsort(s, (size_t)n, sizeof *s, by_setting);
    for (int64_t i = 0; i < n; i++) {
        const bool differs = i == 0 || by_setting(&s[i - 1], &s[i]) != 0;
        if (differs && (s[i].text || i * QUARTERS / n != quarter)) {
            quarter = i * QUARTERS / n;
            groups++;
        }
        s[i].group = groups;
    }
    return groups;
}

/* With ties, H is (n - 1) times the share of the ranks' variance that lies between the groups. The result is epsilon
 * squared with its bias taken out: 0 where groups say no more than chance. */
static double effect(const sample *s, int64_t n, int groups)
{
    double total = 0, between = 0;
    const double middle = 0.5 * (double)(n + 1);
    for (int64_t i = 0, end; i < n; i = end) {
        double sum = 0;
        for (end = i; end < n && s[end].group == s[i].group; end++) {
            sum += s[end].rank - middle;
            total += (s[end].rank - middle) * (s[end].rank - middle);
        }
        between += sum * sum / (double)(end - i);
    }
    /* Too few trials to tell, or all values equal. */
    if (total == 0 || groups < 2 || n <= groups)
        return 0;
    const double h = (double)(n - 1) * between / total, share = (h - groups + 1) / (double)(n - groups);
    return share > 0 ? share : 0;
}

/* A parameter that was suggested only in some trials is weighed among those. */
static double weigh(const ranked *list, int64_t trials, const char *name, sample *samples)
{
    int64_t n = 0;
    for (int64_t i = 0; i < trials; i++) {
        const wf_study_param *p = param_of(list[i].row, name);
        if (p)
            samples[n++] = (sample){
                .rank = list[i].rank, .real = p->real, .text = p->kind == WF_STUDY_CATEGORICAL ? p->text : NULL};
    }
    return effect(samples, n, make_groups(samples, n));
}

/* Ties by name, so that the table is the same each time. */
static int by_share(const void *left, const void *right)
{
    const wf_study_importance *a = left, *b = right;
    return a->share != b->share ? (a->share < b->share) - (a->share > b->share) : strcmp(a->name, b->name);
}

/* The names of all parameters, each once, in study->importance. */
static wf_status collect_names(wf_study *study, const ranked *list, int64_t trials, int *count)
{
    int64_t most = 0;
    for (int64_t i = 0; i < trials; i++)
        most += list[i].row->params;
    study->importance = calloc((size_t)most + 1, sizeof *study->importance);
    WF_CHECK(study->importance, WF_ERR_MEMORY, "no memory for the importances of a study");
    *count = 0;
    for (int64_t i = 0; i < trials; i++)
        for (int p = 0; p < list[i].row->params; p++) {
            const char *name = list[i].row->param[p].name;
            int known = 0;
            while (known < *count && strcmp(study->importance[known].name, name) != 0)
                known++;
            if (known == *count)
                study->importance[(*count)++].name = name;
        }
    return WF_OK;
}

wf_status wf_study_weigh(wf_study *study, int *count)
{
    ranked *list = calloc((size_t)study->count + 1, sizeof *list);
    sample *samples = calloc((size_t)study->count + 1, sizeof *samples);
    wf_status status = list && samples ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for the importances of a study");
    const int64_t trials = status == WF_OK ? rank_trials(study, list) : 0;
    if (status == WF_OK)
        status = collect_names(study, list, trials, count);
    for (int i = 0; status == WF_OK && i < *count; i++)
        study->importance[i].share = weigh(list, trials, study->importance[i].name, samples);
    if (status == WF_OK)
        qsort(study->importance, (size_t)*count, sizeof *study->importance, by_share);
    free(list);
    free(samples);
    return status;
}
