/* The table and the pictures of a study. Called by search_mnist on rank 0. */
#include "examples/search_plots.h"

#include "examples/common.h"
#include "examples/plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char *const states[] = {"complete", "pruned", "failed", "running", "waiting", "retried"};

static FILE *create(const char *out, const char *name)
{
    FILE *file = fopen(example_path(out, name), "w");
    if (!file)
        example_abort("%s: cannot write: %s", example_path(out, name), strerror(errno));
    return file;
}

static void finish(FILE *file, const char *out, const char *name)
{
    if (ferror(file) || fclose(file) != 0)
        example_abort("%s: cannot write: %s", example_path(out, name), strerror(errno));
}

static void draw(const char *out, const char *script, const char *picture)
{
    if (script_draw(example_path(out, script), example_path(out, picture)) != 0)
        printf("%s is not drawn, since gnuplot is missing: gnuplot %s > %s\n", picture, example_path(out, script),
               picture);
}

/* Quotes inside of a field are doubled. */
static void write_field(FILE *file, const char *text)
{
    fputs(",\"", file);
    for (; *text; text++)
        fprintf(file, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', file);
}

/* The trial with the most parameters names the columns: one that ended early may lack some. */
static const wf_study_row *widest(const wf_study_row *rows, int64_t count)
{
    const wf_study_row *found = rows;
    for (int64_t i = 0; i < count; i++)
        if (rows[i].params > found->params)
            found = &rows[i];
    return found;
}

static void write_row(FILE *file, const wf_study_row *row, const wf_study_row *columns)
{
    fprintf(file, "%lld,%s,%.17g,%.3f", (long long)row->number, states[row->state], row->value, row->seconds);
    for (int c = 0; c < columns->params; c++) {
        const wf_study_param *found = NULL;
        for (int p = 0; p < row->params; p++)
            if (strcmp(row->param[p].name, columns->param[c].name) == 0)
                found = &row->param[p];
        if (!found)
            fputc(',', file);
        else if (found->kind == WF_STUDY_CATEGORICAL)
            write_field(file, found->text);
        else
            fprintf(file, ",%.17g", found->real);
    }
    write_field(file, row->reason);
    fputc('\n', file);
}

void search_write_table(const char *out, const wf_study_row *rows, int64_t count)
{
    FILE *file = create(out, "trials.csv");
    const wf_study_row none = {0}, *columns = count > 0 ? widest(rows, count) : &none;
    fprintf(file, "trial,state,value,seconds");
    for (int c = 0; c < columns->params; c++)
        fprintf(file, ",%s", columns->param[c].name);
    fprintf(file, ",reason\n");
    for (int64_t i = 0; i < count; i++)
        write_row(file, &rows[i], columns);
    finish(file, out, "trials.csv");
}

static void write_points(FILE *file, const char *name, wf_study_state state, const wf_study_row *rows, int64_t count)
{
    fprintf(file, "$%s << END\n", name);
    for (int64_t i = 0; i < count; i++)
        if (rows[i].state == state && isfinite(rows[i].value))
            fprintf(file, "%lld %.17g\n", (long long)rows[i].number, rows[i].value);
    fprintf(file, "END\n");
}

void search_draw_history(const char *out, const wf_study_row *rows, int64_t count)
{
    FILE *file = create(out, "history.gp");
    double best = -INFINITY;
    int64_t failed = 0;
    write_points(file, "complete", WF_TRIAL_COMPLETE, rows, count);
    write_points(file, "pruned", WF_TRIAL_PRUNED, rows, count);
    fprintf(file, "$best << END\n");
    for (int64_t i = 0; i < count; i++) {
        failed += rows[i].state == WF_TRIAL_FAILED;
        if (rows[i].state == WF_TRIAL_COMPLETE && rows[i].value > best)
            best = rows[i].value;
        if (isfinite(best))
            fprintf(file, "%lld %.17g\n", (long long)rows[i].number, best);
    }
    fprintf(file,
            "END\nset terminal svg size 800,480 background 'white'\nset grid\nset xlabel 'trial'\nset ylabel 'value'\n"
            "set key bottom right\nset title '%lld trials, %lld of them failed'\nset xrange [-0.5:%lld.5]\n"
            "plot $best using 1:2 with steps lw 2 title 'best so far', $complete using 1:2 with points pt 7 title "
            "'complete', $pruned using 1:2 with points pt 6 title 'pruned'\n",
            (long long)count, (long long)failed, (long long)(count > 0 ? count - 1 : 0));
    finish(file, out, "history.gp");
    draw(out, "history.gp", "history.svg");
}

void search_draw_importances(const char *out, const wf_study_importance *list, int count)
{
    FILE *file = create(out, "importances.gp");
    fprintf(file, "$shares << END\n");
    for (int i = 0; i < count; i++)
        fprintf(file, "\"%s\" %.6f\n", list[i].name, list[i].share);
    fprintf(file,
            "%sEND\nset terminal svg size 600,400 background 'white'\nset grid y\nset style fill solid 0.6\n"
            "set boxwidth 0.6\nset yrange [0:1]\nset ylabel 'share of the differences that it explains alone'\n"
            "plot $shares using 0:2:xtic(1) with boxes notitle\n",
            count > 0 ? "" : "\"no complete trial\" 0\n");
    finish(file, out, "importances.gp");
    draw(out, "importances.gp", "importances.svg");
}
