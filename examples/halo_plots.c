/* Draws the studies of a folder as one page: every panel answers one question, and lines join what belongs together,
 * the same channels and kernel. Called by halo_scaling on rank 0. Numbers come from the files alone, so studies of
 * several runs are shown together. */
#include "examples/halo_plots.h"

#include "examples/common.h"
#include "examples/halo_model.h"
#include "examples/plot.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLUMNS = 40, LINE = 4096, GROUPS = 64, COUNTS = 16 };

/* The numbers of all studies; `mode` is 0 for strong scaling and 1 for weak. */
typedef struct row {
    int mode, ranks, shared, size, channels, kernel, square;
    double efficiency, speedup, compute, exposed, exchange, predicted, busiest, bytes, formula;
} row;

typedef struct page {
    FILE *script;
    row *row;
    int64_t count;
    int groups, channels[GROUPS], kernel[GROUPS]; /* in the order of the files */
    int counts, ranks[COUNTS];                    /* ascending */
    int best;                                     /* the most ranks that have a core each, or of all */
    bool crowded;                                 /* these share cores too */
    const char *extrapolated;                     /* NULL: there is none */
} page;

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int cut(char *line, char *field[COLUMNS])
{
    int n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; at && n < COLUMNS; n++) {
        field[n] = at;
        at = strchr(at, ',');
        if (at)
            *at++ = '\0';
    }
    return n;
}

typedef struct table {
    char head[LINE], line[LINE], *name[COLUMNS], *field[COLUMNS];
    int columns;
} table;

static const char *text_of(const table *t, const char *name)
{
    for (int i = 0; i < t->columns; i++)
        if (!strcmp(t->name[i], name))
            return t->field[i];
    return "0";
}

static double number_of(const table *t, const char *name)
{
    return strtod(text_of(t, name), NULL);
}

static row row_of(const table *t)
{
    row r = {.mode = !strcmp(text_of(t, "mode"), "weak"),
             .ranks = (int)number_of(t, "ranks"),
             .shared = (int)number_of(t, "cores_shared"),
             .size = (int)number_of(t, "size"),
             .channels = (int)number_of(t, "channels"),
             .kernel = (int)number_of(t, "kernel"),
             .efficiency = number_of(t, "efficiency_both"),
             .speedup = number_of(t, "speedup_both"),
             .compute = number_of(t, "compute_s"),
             .exposed = number_of(t, "exposed_s"),
             .exchange = number_of(t, "exchange_s"),
             .predicted = number_of(t, "predicted_s"),
             .busiest = number_of(t, "busiest_bytes"),
             .bytes = number_of(t, "bytes_both"),
             .formula = number_of(t, "formula_both")};
    int grid[2];
    halo_grid(r.ranks, grid);
    r.square = number_of(t, "rows") == grid[0] && number_of(t, "columns") == grid[1];
    return r;
}

static void add_group(page *p, const row *r)
{
    for (int g = 0; g < p->groups; g++)
        if (p->channels[g] == r->channels && p->kernel[g] == r->kernel)
            return;
    if (p->groups == GROUPS)
        return;
    p->channels[p->groups] = r->channels;
    p->kernel[p->groups++] = r->kernel;
}

static void add_count(page *p, const row *r)
{
    int at = 0;
    while (at < p->counts && p->ranks[at] < r->ranks)
        at++;
    if ((at < p->counts && p->ranks[at] == r->ranks) || p->counts == COUNTS)
        return;
    memmove(&p->ranks[at + 1], &p->ranks[at], (size_t)(p->counts - at) * sizeof *p->ranks);
    p->ranks[at] = r->ranks;
    p->counts++;
}

static FILE *open_table(table *t, const char *path)
{
    FILE *csv = fopen(path, "r");
    if (!csv || !fgets(t->head, LINE, csv))
        example_abort("%s: cannot read", path);
    t->columns = cut(t->head, t->name);
    return csv;
}

static bool next_line(table *t, FILE *csv)
{
    while (fgets(t->line, LINE, csv))
        if (cut(t->line, t->field) == t->columns)
            return true;
    return false;
}

static void read_study(page *p, const char *path)
{
    static table t;
    FILE *csv = open_table(&t, path);
    while (next_line(&t, csv)) {
        row *longer = realloc(p->row, (size_t)(p->count + 1) * sizeof *longer);
        if (!longer)
            example_abort("out of memory for %s", path);
        p->row = longer;
        row *r = &p->row[p->count++];
        *r = row_of(&t);
        add_group(p, r);
        add_count(p, r);
        p->best = !r->shared && r->ranks > p->best ? r->ranks : p->best;
    }
    fclose(csv);
}

/* --- drawing ------------------------------------------------------------------------------------------------------ */

/* The processor and how many cores there are: times of another machine are others. */
static void machine(char *text, size_t size)
{
    char line[512], name[128] = "unknown processor";
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line, sizeof line, info))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(name, sizeof name, "%s", strchr(line, ':') + 2);
            name[strcspn(name, "\n\"'")] = '\0';
            break;
        }
    if (info)
        fclose(info);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(text, size, "%s, %ld core%s", name, cores, cores == 1 ? "" : "s");
}

/* Axis x in sizes or ranks, with a tick for each that there is. */
static void ticks(const page *p, bool ranks)
{
    const char *comma = "";
    fprintf(p->script, "set logscale x 2\nset xtics (");
    for (int i = 0; ranks && i < p->counts; i++, comma = ", ")
        fprintf(p->script, "%s%d", comma, p->ranks[i]);
    for (int64_t i = 0; !ranks && i < p->count; i++) {
        bool seen = false;
        for (int64_t k = 0; k < i; k++)
            seen = seen || p->row[k].size == p->row[i].size;
        if (!seen)
            fprintf(p->script, "%s%d", comma, p->row[i].size);
        comma = ", ";
    }
    fprintf(p->script, ")\n");
}

/* Efficiency over the size: a line for each channels and kernel, on the squarest grid. */
static void efficiency(const page *p, int mode)
{
    fprintf(p->script,
            "reset\nset grid\nset key outside bottom center horizontal\nset yrange [0:1.25]\nset ylabel 'efficiency'\n"
            "set offsets graph 0.05, graph 0.05, 0, 0\n");
    ticks(p, false);
    fprintf(p->script, "set title \"%s: efficiency of %d %s%s, forward and backward\"\nset xlabel '%s'\n",
            mode ? "Weak scaling" : "Strong scaling", p->best, p->best == 1 ? "rank" : "ranks",
            p->crowded ? ", which share cores" : "",
            mode ? "height and width of the part of a rank" : "height and width of the image");
    for (int g = 0; g < p->groups; g++) {
        fprintf(p->script, "$group%d <<end\n", g);
        for (int64_t i = 0; i < p->count; i++) {
            const row *r = &p->row[i];
            if (r->mode == mode && r->ranks == p->best && r->square && r->channels == p->channels[g] &&
                r->kernel == p->kernel[g])
                fprintf(p->script, "%d %g\n", r->size, r->efficiency);
        }
        fprintf(p->script, "end\n");
    }
    fprintf(p->script, "plot 1 with lines dashtype 3 linecolor 'gray' notitle");
    for (int g = 0; g < p->groups; g++)
        fprintf(p->script, ", \\\n$group%d with linespoints linetype %d title '%d channels, kernel %d'", g, g + 1,
                p->channels[g], p->kernel[g]);
    fprintf(p->script, "\n");
}

static int largest(const page *p)
{
    int size = 0;
    for (int64_t i = 0; i < p->count; i++)
        size = p->row[i].size > size ? p->row[i].size : size;
    return size;
}

/* Speed-up of the largest image over the ranks. Ranks that share cores are shown hollow, off the lines. */
static void speedup(const page *p)
{
    bool shared = false;
    fprintf(p->script,
            "reset\nset grid\nset key outside bottom center horizontal\nset yrange [0:*]\nset ylabel 'speed-up over "
            "one rank'\n"
            "set xlabel 'ranks'\nset offsets graph 0.05, graph 0.05, 0, 0\n"
            "set title \"Speed-up of an image of %d^2, forward and backward\"\n",
            largest(p));
    ticks(p, true);
    for (int sharing = 0; sharing < 2; sharing++)
        for (int g = 0; g < p->groups; g++) {
            fprintf(p->script, "$%s%d <<end\n", sharing ? "shared" : "group", g);
            for (int k = 0; k < p->counts; k++)
                for (int64_t i = 0; i < p->count; i++) {
                    const row *r = &p->row[i];
                    shared = shared || r->shared;
                    if (r->mode == 0 && r->size == largest(p) && r->square && !r->shared == !sharing &&
                        r->ranks == p->ranks[k] && r->channels == p->channels[g] && r->kernel == p->kernel[g])
                        fprintf(p->script, "%d %g\n", r->ranks, r->speedup);
                }
            fprintf(p->script, "end\n");
        }
    fprintf(p->script, "plot [1:%d] x with lines dashtype 3 linecolor 'gray' title 'ideal'", p->ranks[p->counts - 1]);
    for (int g = 0; g < p->groups; g++) {
        fprintf(p->script, ", \\\n$group%d with linespoints linetype %d title '%d channels, kernel %d'", g, g + 1,
                p->channels[g], p->kernel[g]);
        if (shared)
            fprintf(p->script, ", $shared%d with points linetype %d pointtype 6 %s", g, g + 1,
                    g == 0 ? "title 'hollow: ranks share cores'" : "notitle");
    }
    fprintf(p->script, "\n");
}

/* Two numbers of every row against each other, on axes of whole powers of ten; a colour for each channels and kernel,
 * hollow where the ranks are one column and not the squarest grid; ranks with a core each alone unless `all`. */
typedef struct scatter {
    const char *title, *x, *y, *line; /* line: what the diagonal means; NULL: none */
    double (*x_of)(const row *r), (*y_of)(const row *r);
    bool all;
} scatter;

static void widen(double range[2], double value)
{
    while (range[0] > value)
        range[0] /= 10;
    while (range[1] < value)
        range[1] *= 10;
}

static double power_below(double value)
{
    double power = 1;
    while (power > value)
        power /= 10;
    while (power * 10 <= value)
        power *= 10;
    return power;
}

static void draw_scatter(const page *p, const scatter *s)
{
    double x[2] = {0}, y[2] = {0};
    for (int set = 0; set < 2 * p->groups; set++) {
        const int g = set / 2;
        fprintf(p->script, "$set%d <<end\n", set);
        for (int64_t i = 0; i < p->count; i++) {
            const row *r = &p->row[i];
            const double a = s->x_of(r), b = s->y_of(r);
            if (r->channels != p->channels[g] || r->square != !(set % 2) || r->kernel != p->kernel[g] ||
                (r->shared && !s->all) || !(a > 0) || !(b > 0))
                continue;
            if (x[0] == 0) {
                x[0] = x[1] = power_below(a);
                y[0] = y[1] = power_below(b);
            }
            widen(x, a);
            widen(y, b);
            fprintf(p->script, "%g %g\n", a, b);
        }
        fprintf(p->script, "end\n");
    }
    if (x[0] == 0)
        return;
    x[1] = x[1] > x[0] ? x[1] : 10 * x[0];
    y[1] = y[1] > y[0] ? y[1] : 10 * y[0];
    fprintf(p->script,
            "reset\nset grid\nset key outside bottom center horizontal\nset logscale xy 10\nset format '10^{%%L}'\nset "
            "xtics 10\n"
            "set ytics 10\nset xrange [%g:%g]\nset yrange [%g:%g]\nset title \"%s\"\nset xlabel '%s'\nset ylabel '%s'\n"
            "plot ",
            x[0], x[1], y[0], y[1], s->title, s->x, s->y);
    if (s->line)
        fprintf(p->script, "x with lines dashtype 3 linecolor 'gray' title '%s', ", s->line);
    for (int g = 0; g < p->groups; g++)
        fprintf(p->script,
                "%s$set%d with points linetype %d pointtype 7 pointsize 0.6 title '%d channels, kernel %d', "
                "$set%d with points linetype %d pointtype 6 pointsize 0.6 %s",
                g ? ", \\\n" : "", 2 * g, g + 1, p->channels[g], p->kernel[g], 2 * g + 1, g + 1,
                g ? "notitle" : "title 'hollow: ranks in one column'");
    fprintf(p->script, "\n");
}

static double share_alone(const row *r)
{
    return r->exchange / r->compute;
}

static double share_shown(const row *r)
{
    return r->exposed / r->compute;
}

static double busiest(const row *r)
{
    return r->busiest;
}

static double exchange(const row *r)
{
    return r->exchange;
}

static double predicted(const row *r)
{
    return r->predicted;
}

static double bytes(const row *r)
{
    return r->bytes;
}

static double formula(const row *r)
{
    return r->formula;
}

/* Forward on more ranks than there are, if the exchange is wholly hidden, and if nothing of it is. */
static void extrapolation(const page *p)
{
    static const char *const mode[2] = {"strong", "weak"}, *const column[2] = {"hidden", "exposed"};
    static table t;
    for (int curve = 0; curve < 4; curve++) {
        FILE *csv = open_table(&t, p->extrapolated);
        fprintf(p->script, "$curve%d <<end\n", curve);
        while (next_line(&t, csv))
            if (!strcmp(text_of(&t, "mode"), mode[curve / 2]))
                fprintf(p->script, "%g %g\n", number_of(&t, "ranks"), number_of(&t, column[curve % 2]));
        fprintf(p->script, "end\n");
        fclose(csv);
    }
    fprintf(p->script, "reset\nset grid\nset key outside bottom center horizontal\nset logscale x 2\nset yrange "
                       "[0:1.1]\nset xlabel 'ranks'\n"
                       "set ylabel 'efficiency'\nset title 'Extrapolated by the fitted model, not measured'\nplot ");
    for (int curve = 0; curve < 4; curve++)
        fprintf(p->script, "%s$curve%d with linespoints title '%s, %s'", curve ? ", \\\n" : "", curve, mode[curve / 2],
                curve % 2 ? "nothing hidden" : "exchange hidden");
    fprintf(p->script, "\n");
}

static void write_page(const page *p)
{
    static const scatter panels[] = {
        {"Is the exchange hidden behind the convolution?", "exchange alone / convolution",
         "time in exchanges of the layer / convolution", "nothing hidden", share_alone, share_shown, false},
        {"What does an exchange cost?", "bytes of the busiest rank", "seconds, exchange alone", NULL, busiest, exchange,
         false},
        {"Does the model predict it?", "predicted seconds", "measured seconds", "equal", predicted, exchange, false},
        {"Are the bytes those of the formula?", "bytes by the formula", "bytes counted in the transport", "equal",
         formula, bytes, true},
    };
    char on[256];
    machine(on, sizeof on);
    fprintf(p->script,
            "set terminal svg size 1200,1700 background 'white'\n"
            "set multiplot layout 4,2 title \"Spatially parallel convolution: what halos cost\\n%s\"\n",
            on);
    efficiency(p, 0);
    efficiency(p, 1);
    if (p->ranks[p->counts - 1] == 1)
        return; /* one rank sends nothing */
    speedup(p);
    for (size_t i = 0; i < sizeof panels / sizeof *panels; i++)
        draw_scatter(p, &panels[i]);
    if (p->extrapolated)
        extrapolation(p);
}

int halo_plots(const char *dir)
{
    const char *name = example_path(dir, "halo.gnuplot"), *extrapolated = example_path(dir, "extrapolation.csv");
    glob_t studies;
    page p = {.script = fopen(name, "w")};
    if (!p.script)
        example_abort("%s: cannot write: %s", name, strerror(errno));
    if (glob(example_path(dir, "halo-*.csv"), 0, NULL, &studies) != 0)
        example_abort("%s: no studies here", dir);
    for (size_t i = 0; i < studies.gl_pathc; i++)
        read_study(&p, studies.gl_pathv[i]);
    globfree(&studies);
    p.extrapolated = access(extrapolated, R_OK) == 0 ? extrapolated : NULL;
    p.crowded = p.best == 0;
    if (p.count > 0) {
        p.best = p.crowded ? p.ranks[p.counts - 1] : p.best;
        write_page(&p);
    }
    free(p.row);
    if (fclose(p.script) != 0)
        example_abort("%s: cannot write: %s", name, strerror(errno));
    return script_draw(name, example_path(dir, "halo.svg"));
}
