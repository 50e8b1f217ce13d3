/* Turns the tables of halo studies into plots by gnuplot. It measures nothing. */
#include "examples/halo_plots.h"

#include "examples/common.h"
#include "examples/plot.h"

#include <errno.h>
#include <glob.h>
#include <string.h>
#include <unistd.h>

/* One panel: a curve or points from every study. `using` is gnuplot's. */
static void panel(FILE *script, const glob_t *studies, const char *title, const char *x, const char *y,
                  const char *using, const char *also)
{
    fprintf(script, "set title \"%s\"\nset xlabel '%s'\nset ylabel '%s'\nplot \\\n", title, x, y);
    for (size_t i = 0; i < studies->gl_pathc; i++) {
        const char *ranks = strrchr(studies->gl_pathv[i], '-') + 1;
        fprintf(script, "'%s' using %s with points title '%.*s ranks', \\\n", studies->gl_pathv[i], using,
                (int)strcspn(ranks, "."), ranks);
    }
    fprintf(script, "%s\n", also);
}

static void write_panels(FILE *script, const glob_t *studies, const char *extrapolated)
{
    const char *const strong = "(strcol('mode') eq 'strong' ? column('size') : NaN):(column('efficiency'))";
    const char *const weak = "(strcol('mode') eq 'weak' ? column('size') : NaN):(column('efficiency'))";
    const char *const times = "(column('exchange_s') > 0 ? column('busiest_bytes') : NaN):(column('exchange_s'))";
    const char *const shown = "(column('exchange_s') > 0 ? column('exchange_s') / column('compute_s') : NaN):"
                              "(column('exposed_s') / column('compute_s'))";
    const char *const speedup = "(strcol('mode') eq 'strong' ? column('ranks') : NaN):(column('speedup_both'))";
    char also[9000] = "1 with lines dashtype 3 notitle";
    fprintf(script, "set terminal svg size 1200,1700 background 'white'\nset datafile separator ','\n"
                    "set datafile columnheaders\nset grid\nset key bottom right\n"
                    "set multiplot layout 4,2 title 'Spatially parallel convolution: halos'\n"
                    "set logscale x 2\nset yrange [0:1.5]\n");
    panel(script, studies, "Strong scaling, forward", "image height and width", "efficiency", strong, also);
    panel(script, studies, "Weak scaling, forward", "height and width for each rank", "efficiency", weak, also);
    if (studies->gl_pathc == 1 && strstr(studies->gl_pathv[0], "halo-1.csv"))
        return; /* one rank sends nothing */
    fprintf(script, "set key top left\nset logscale xy 10\nset autoscale y\nset format '%%g'\n");
    panel(script, studies, "Exchange that the layer shows", "exchange alone, share of the convolution",
          "time in exchanges, share of the convolution", shown, "x with lines dashtype 3 title 'nothing hidden'");
    fprintf(script, "unset logscale\nset logscale x 2\nset xrange [1:*]\nset yrange [0:*]\n");
    panel(script, studies, "Strong scaling, forward and backward", "ranks", "speed-up over one rank", speedup,
          "x with lines dashtype 3 title 'ideal'");
    fprintf(script, "set autoscale xy\nset logscale xy 10\n");
    panel(script, studies, "Bytes of forward and backward", "by the formula", "counted in the transport",
          "(column('formula_both') > 0 ? column('formula_both') : NaN):(column('bytes_both'))",
          "x with lines dashtype 3 title 'equal'");
    panel(script, studies, "Exchange alone", "bytes of the busiest rank", "seconds", times, "NaN notitle");
    if (access(extrapolated, R_OK) != 0)
        return;
    panel(script, studies, "Exchange alone: model", "predicted seconds", "measured seconds",
          "(column('predicted_s') > 0 ? column('predicted_s') : NaN):(column('exchange_s'))",
          "x with lines dashtype 3 title 'equal'");
    fprintf(script, "unset logscale\nset logscale x 2\nset yrange [0:]\n");
    snprintf(also, sizeof also,
             "'%s' using (strcol('mode') eq 'strong' ? column('ranks') : NaN):(column('exposed')) with linespoints "
             "title 'strong, nothing hidden', '' using (strcol('mode') eq 'strong' ? column('ranks') : NaN):"
             "(column('hidden')) with linespoints title 'strong, exchange hidden', '' using (strcol('mode') eq 'weak' "
             "? column('ranks') : NaN):(column('exposed')) with linespoints title 'weak, nothing hidden'",
             extrapolated);
    fprintf(script,
            "set title 'Extrapolated by the fitted model, not measured'\nset xlabel 'ranks'\n"
            "set ylabel 'efficiency'\nplot %s\n",
            also);
}

int halo_plots(const char *dir)
{
    const char *name = example_path(dir, "halo.gnuplot");
    FILE *script = fopen(name, "w");
    glob_t studies;
    if (!script)
        example_abort("%s: cannot write: %s", name, strerror(errno));
    if (glob(example_path(dir, "halo-*.csv"), 0, NULL, &studies) != 0)
        example_abort("%s: no studies here", dir);
    write_panels(script, &studies, example_path(dir, "extrapolation.csv"));
    globfree(&studies);
    if (fclose(script) != 0)
        example_abort("%s: cannot write: %s", name, strerror(errno));
    return script_draw(name, example_path(dir, "halo.svg"));
}
