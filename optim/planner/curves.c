/* Scaling curves: plans of one mesh for more and more ranks, whose sums are priced by representatives of the ranks
 * (wf_call_price). A table and a picture, which say that they are predictions. Everything but the mesh's data axis
 * stays as the plan has it. */
#include "optim/planner/planner_impl.h"

#include "comm/comm_author.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTS 64
#define TEXT   4200

typedef struct point {
    int ranks, nodes;
    int64_t batch;
    double seconds, compute_s, message_s, sum_s, bytes, memory, efficiency;
} point;

typedef struct curve {
    const char *name;
    bool weak;
    int points;
    point point[POINTS];
} curve;

static void fill_point(const wf_training_plan *plan, point *p)
{
    p->seconds = plan->seconds;
    p->sum_s = plan->sum_s;
    p->bytes = plan->bytes;
    p->memory = plan->memory;
    for (int i = 0; i < plan->n_units; i++)
        p->message_s += plan->unit[i].message_s;
    /* What is left is computing, the update with it. */
    p->compute_s = p->seconds - p->message_s - p->sum_s;
}

/* Samples a second and a rank, against those of the first point. */
static void rate(curve *c)
{
    const point *first = &c->point[0];
    for (int i = 0; i < c->points; i++) {
        point *p = &c->point[i];
        p->efficiency =
            (double)p->batch / p->seconds / p->ranks / ((double)first->batch / first->seconds / first->ranks);
    }
}

static wf_status add_point(const wf_planner_model *m, const wf_planner_meter *meter, const wf_training_plan *plan,
                           const wf_curves_opts *o, int data, curve *c)
{
    /* inner: ranks of one place along data; each: of a node. */
    const int inner = plan->ranks / plan->mesh.data, each = plan->ranks / plan->nodes, ranks = data * inner;
    point p = {.ranks = ranks, .nodes = ranks <= each ? 1 : ranks / each};
    p.batch = c->weak ? plan->batch / plan->mesh.data * data : plan->batch;
    /* Points that the ranks or the batch do not divide into are left out, not rounded. */
    if (p.batch % data != 0 || (ranks > each && ranks % each != 0) || c->points == POINTS)
        return WF_OK;
    wf_planner_opts opts = *o->plan;
    opts.ranks = ranks;
    opts.nodes = p.nodes;
    opts.batch = p.batch;
    opts.mesh = plan->mesh;
    opts.mesh.data = data;
    /* A pipeline needs a sample for each chunk. */
    if (p.batch / data < (opts.chunks ? opts.chunks : plan->mesh.stage) && plan->mesh.stage > 1)
        return WF_OK;
    wf_training_plan *one = wf_planner_search(m, meter, &opts);
    /* A point that does not fit into memory is a gap of the curve, no failure. */
    if (!one && wf_error_code() == WF_ERR_MEMORY) {
        wf_error_clear();
        return WF_OK;
    }
    if (!one)
        return wf_error_code();
    fill_point(one, &p);
    c->point[c->points++] = p;
    wf_training_plan_free(one);
    return WF_OK;
}

/* Doubled from one place along data on, and the last number that was asked for. The largest number that was asked for
 * need not be a power of two. */
static wf_status fill(const wf_planner_model *m, const wf_planner_meter *meter, const wf_training_plan *plan,
                      const wf_curves_opts *o, curve *c)
{
    const int inner = plan->ranks / plan->mesh.data, most = o->most / inner;
    int data = 1;
    for (; data < most; data *= 2)
        WF_TRY(add_point(m, meter, plan, o, data, c));
    WF_TRY(add_point(m, meter, plan, o, most, c));
    WF_CHECK(c->points > 0, WF_ERR_ARGUMENT, "no number of ranks up to %d is one that the plan's mesh can have",
             o->most);
    rate(c);
    return WF_OK;
}

/* --- the table ------------------------------------------------------------------------------------------------------
 */

static void describe(const wf_gauge *g, const wf_price_model *l, char text[2][TEXT])
{
    snprintf(text[0], TEXT, "Predicted, not measured. Kernels were measured on: %s", g->machine);
    snprintf(text[1], TEXT,
             "Constants: in a node %.3g us and %.3g GB/s, between nodes %.3g us and %.3g GB/s, local work %.3g GB/s",
             1e6 * l->alpha_s[0], 1e-9 / l->beta_s[0], 1e6 * l->alpha_s[1], 1e-9 / l->beta_s[1], 1e-9 / l->gamma_s);
}

static void write_table(FILE *file, const curve *c, int curves, char text[2][TEXT])
{
    fprintf(file, "# %s\n# %s\n", text[0], text[1]);
    fprintf(file, "scaling,ranks,nodes,batch,step_s,computes_s,exchanges_s,shown_sums_s,sent_bytes_per_rank,"
                  "memory_bytes,samples_per_s,efficiency\n");
    for (int k = 0; k < curves; k++)
        for (int i = 0; i < c[k].points; i++) {
            const point *p = &c[k].point[i];
            fprintf(file, "%s,%d,%d,%lld,%.6g,%.6g,%.6g,%.6g,%.0f,%.0f,%.6g,%.4f\n", c[k].name, p->ranks, p->nodes,
                    (long long)p->batch, p->seconds, p->compute_s, p->message_s, p->sum_s, p->bytes, p->memory,
                    (double)p->batch / p->seconds, p->efficiency);
        }
}

/* --- the picture ----------------------------------------------------------------------------------------------------
 */

enum { WIDTH = 760, HEIGHT = 420, LEFT = 70, TOP = 70, RIGHT = 730, BOTTOM = 360 };

/* Ranks are on a logarithmic scale, so doubling is one step to the right. */
static double x_of(double ranks, double most)
{
    return LEFT + (RIGHT - LEFT) * (most > 1 ? log2(ranks) / log2(most) : 0);
}

/* Up to 1.1: weak scaling may rise a little above 1 by noise. */
static double y_of(double efficiency)
{
    return BOTTOM - (BOTTOM - TOP) * efficiency / 1.1;
}

static void write_text(FILE *file, double x, double y, const char *style, const char *text)
{
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    /* The machine's name is text of another program. */
    for (; *text; text++)
        if (*text == '<' || *text == '&' || *text == '>')
            fprintf(file, "&#%d;", *text);
        else
            fputc(*text, file);
    fprintf(file, "</text>\n");
}

static void write_axes(FILE *file, double most)
{
    char text[32];
    for (int i = 0; i <= 10; i += 2) {
        const double y = y_of(0.1 * i);
        fprintf(file, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT, y, RIGHT, y);
        snprintf(text, sizeof text, "%.1f", 0.1 * i);
        write_text(file, LEFT - 8, y + 4, "text-anchor=\"end\"", text);
    }
    for (int64_t ranks = 1; (double)ranks <= most; ranks *= 4) {
        snprintf(text, sizeof text, "%lld", (long long)ranks);
        write_text(file, x_of((double)ranks, most), BOTTOM + 18, "text-anchor=\"middle\"", text);
    }
    write_text(file, (LEFT + RIGHT) / 2.0, BOTTOM + 38, "text-anchor=\"middle\"", "ranks");
    write_text(file, LEFT, TOP - 8, "", "efficiency");
}

static void write_picture(FILE *file, const curve *c, int curves, char text[2][TEXT])
{
    static const char *const colors[] = {"#1f5fa8", "#c2571a"};
    double most = 1;
    for (int k = 0; k < curves; k++)
        most = fmax(most, c[k].point[c[k].points - 1].ranks);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    write_text(file, 12, 20, "font-size=\"15\"", "Predicted scaling (not measured)");
    write_text(file, 12, 36, "font-size=\"9\"", text[0]);
    write_text(file, 12, 48, "font-size=\"9\"", text[1]);
    write_axes(file, most);
    for (int k = 0; k < curves; k++) {
        fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colors[k]);
        for (int i = 0; i < c[k].points; i++)
            fprintf(file, "%.1f,%.1f ", x_of(c[k].point[i].ranks, most), y_of(fmin(c[k].point[i].efficiency, 1.1)));
        fprintf(file, "\"/>\n");
        for (int i = 0; i < c[k].points; i++)
            fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x_of(c[k].point[i].ranks, most),
                    y_of(fmin(c[k].point[i].efficiency, 1.1)), colors[k]);
        fprintf(file, "<g fill=\"%s\">", colors[k]);
        write_text(file, LEFT + 110 * k, HEIGHT - 8, "", c[k].name);
        fprintf(file, "</g>\n");
    }
    fprintf(file, "</svg>\n");
}

/* --- both -----------------------------------------------------------------------------------------------------------
 */

static wf_status write_file(const char *path, const char *suffix, const curve *c, char text[2][TEXT],
                            void (*write)(FILE *file, const curve *c, int curves, char text[2][TEXT]))
{
    char name[TEXT];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    FILE *file = fopen(name, "w");
    WF_CHECK(file, WF_ERR_IO, "%s: cannot be written: %s", name, strerror(errno));
    write(file, c, 2, text);
    /* A full disk may show only when the file is closed. */
    const bool failed = ferror(file) != 0;
    WF_CHECK(fclose(file) == 0 && !failed, WF_ERR_IO, "%s: cannot be written: %s", name, strerror(errno));
    return WF_OK;
}

static wf_status write_files(const wf_gauge *g, const wf_planner_meter *meter, const wf_curves_opts *o, const curve *c)
{
    char text[2][TEXT];
    if (wf_comm_rank(g->comm) != 0)
        return WF_OK;
    describe(g, &meter->links, text);
    WF_TRY(write_file(o->path, ".csv", c, text, write_table));
    return write_file(o->path, ".svg", c, text, write_picture);
}

wf_status wf_planner_curves(const wf_gauge *g, const wf_planner_model *m, const wf_planner_meter *meter,
                            const wf_training_plan *plan, const wf_curves_opts *o)
{
    curve *c = wf_calloc(m->ctx, 2, sizeof *c);
    /* All ranks or none: `fill` measures, which is collective. */
    WF_TRY(wf_agree_status(g->comm, c ? WF_OK : wf_error_code()));
    c[0].name = "strong scaling";
    c[1].name = "weak scaling";
    c[1].weak = true;
    wf_status status = WF_OK;
    for (int k = 0; k < 2 && status == WF_OK; k++)
        status = fill(m, meter, plan, o, &c[k]);
    if (status == WF_OK)
        status = wf_bcast_status(g->comm, write_files(g, meter, o, c), 0);
    free(c);
    return status;
}
