/* The planner inside of a program that wf-plan has started: reads the request, measures, searches, prints, and writes
 * files. The program calls wf_planner_answer with its own model, optimizer and shapes, and ends; it trains nothing. */
#include "optim/planner/planner_impl.h"

#include "comm/comm_author.h"
#include "core/config_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RANKS 1000000 /* of wf-plan */
#define TEXT       4096

typedef struct request {
    wf_planner_opts opts;
    char out[TEXT], curves[TEXT], mesh[128];
    double alpha_s, beta_s; /* between nodes; 0: not given */
    int most;               /* ranks of the curves */
} request;

bool wf_planner_asks(void)
{
    return wf_config_get()->plan != NULL;
}

/* --- the request: lines of KEY=VALUE, which wf-plan has checked -----------------------------------------------------
 */

/* The last line of a key counts; without one the value is empty. */
static const char *value_of(const char *text, const char *key, char value[TEXT])
{
    const size_t length = strlen(key);
    value[0] = '\0';
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, key, length) == 0 && line[length] == '=')
            snprintf(value, TEXT, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
    return value;
}

/* 0 where the key is missing: the same as "not given". */
static double parse_number(const char *text, const char *key)
{
    char value[TEXT];
    return strtod(value_of(text, key, value), NULL);
}

static wf_status read_mesh(const char *text, wf_mesh_opts *mesh)
{
    const char *const names[] = {"data", "stage", "channel", "depth", "height", "width"};
    int *const size[] = {&mesh->data, &mesh->stage, &mesh->channel, &mesh->depth, &mesh->height, &mesh->width};
    int64_t ranks = 1;
    *mesh = (wf_mesh_opts){1, 1, 1, 1, 1, 1};
    while (*text) {
        const size_t length = strcspn(text, "=");
        int i = 0;
        while (i < 6 && (strlen(names[i]) != length || strncmp(names[i], text, length) != 0))
            i++;
        char *end = NULL;
        const long n = text[length] == '=' ? strtol(text + length + 1, &end, 10) : 0;
        WF_CHECK(i < 6 && n >= 1 && n <= MOST_RANKS && (*end == ',' || *end == '\0'), WF_ERR_ARGUMENT,
                 "a mesh of \"%.60s\": should be as data=2,height=2", text);
        ranks *= n;
        WF_CHECK(ranks <= MOST_RANKS, WF_ERR_ARGUMENT, "a mesh of more than %d ranks at \"%.60s\"", MOST_RANKS, text);
        *size[i] = (int)n;
        text = *end ? end + 1 : end;
    }
    return WF_OK;
}

/* wf-plan writes the request into WEFT_PLAN, so every rank has the same text. */
static wf_status read_request(request *r)
{
    const char *text = wf_config_get()->plan;
    char split[TEXT];
    *r = (request){.opts = {.ranks = (int)parse_number(text, "ranks"),
                            .nodes = (int)parse_number(text, "nodes"),
                            .memory = parse_number(text, "memory"),
                            .chunks = (int)parse_number(text, "chunks"),
                            .split = -1},
                   .alpha_s = parse_number(text, "alpha_s"),
                   .beta_s = parse_number(text, "beta_s"),
                   .most = (int)parse_number(text, "most")};
    (void)value_of(text, "out", r->out);
    (void)value_of(text, "curves", r->curves);
    /* -1: any split. A split of 0 means none. */
    if (*value_of(text, "split", split))
        r->opts.split = atoi(split);
    if (*value_of(text, "mesh", split))
        WF_TRY(read_mesh(split, &r->opts.mesh));
    WF_CHECK(r->opts.ranks >= 1 && r->opts.nodes >= 1, WF_ERR_ARGUMENT,
             "WEFT_PLAN asks for %d ranks on %d nodes: it is set by wf-plan", r->opts.ranks, r->opts.nodes);
    return WF_OK;
}

/* --- the answer -----------------------------------------------------------------------------------------------------
 */

static wf_status write_answer(const wf_gauge *g, const request *r, const wf_training_plan *plan)
{
    if (wf_comm_rank(g->comm) == 0) {
        wf_training_plan_print(plan, STDOUT_FILENO);
        dprintf(STDOUT_FILENO, "measured on %s: %d numbers, and %d were known\n", g->machine, g->measured, g->known);
        if (*r->out)
            WF_TRY(wf_training_plan_write(plan, r->out));
    }
    return WF_OK;
}

/* Every rank searches for itself: meters and options are equal, so are the plans, and none has to be sent. */
static wf_status answer(wf_gauge *g, wf_planner_model *m, request *r)
{
    wf_planner_meter meter;
    WF_TRY(wf_gauge_open(g, m, &meter));
    WF_TRY(wf_gauge_links(g, &meter));
    /* Links that were given by hand stand for another network than this one. */
    if (r->beta_s > 0) {
        meter.one_way = meter.exchange[1] = (wf_planner_link){r->alpha_s, r->beta_s};
        meter.links.alpha_s[1] = r->alpha_s;
        meter.links.beta_s[1] = r->beta_s;
    }
    wf_training_plan *plan = wf_planner_search(m, &meter, &r->opts);
    if (!plan)
        return wf_error_code();
    /* Only rank 0 writes; its failure is that of all. */
    wf_status status = wf_bcast_status(g->comm, write_answer(g, r, plan), 0);
    if (status == WF_OK && *r->curves)
        status = wf_planner_curves(g, m, &meter, plan, &(wf_curves_opts){&r->opts, r->most, r->curves});
    wf_training_plan_free(plan);
    return status;
}

wf_status wf_planner_answer(wf_comm *comm, wf_layer *model, wf_optim *optim, wf_shape input, unsigned can)
{
    return wf_planner_answer_n(comm, model, optim, 1, &(wf_planner_input){.shape = input}, can);
}

/* Traced on two samples: shapes do not depend on the batch, and one sample may be a special case. */
static wf_status trace_few(wf_layer *model, int n, const wf_planner_input *inputs, wf_planner_model *m)
{
    wf_planner_input *few = n > 0 ? wf_calloc(model->ctx, (size_t)n, sizeof *few) : NULL;
    if (n > 0 && !few)
        return wf_error_code();
    for (int i = 0; i < n; i++) {
        few[i] = inputs[i];
        few[i].shape.dim[0] = inputs[i].shape.dim[0] < 2 ? inputs[i].shape.dim[0] : 2;
    }
    const wf_status status = wf_planner_trace_n(model, n, few, m);
    free(few);
    return status;
}

wf_status wf_planner_answer_n(wf_comm *comm, wf_layer *model, wf_optim *optim, int n, const wf_planner_input *inputs,
                              unsigned can)
{
    request r;
    wf_planner_model m;
    WF_NEED(comm);
    WF_NEED(model);
    WF_NEED(optim);
    /* Programs ask wf_planner_asks first. */
    WF_CHECK(wf_planner_asks(), WF_ERR_STATE, "wf_planner_answer in a program that wf-plan did not start");
    WF_TRY(read_request(&r));
    r.opts.can = can;
    WF_NEED(inputs);
    r.opts.batch = inputs[0].shape.dim[0];
    WF_TRY(trace_few(model, n, inputs, &m));
    wf_gauge g = {.comm = comm, .optim = optim};
    /* The file of known numbers is read and written by rank 0 alone. */
    if (wf_comm_rank(comm) == 0)
        g.cache = wf_plan_cache_open(wf_comm_ctx(comm), wf_config_get()->cache);
    const wf_status status = wf_agree_status(comm, answer(&g, &m, &r));
    wf_gauge_close(&g);
    wf_planner_model_clear(&m);
    return status;
}
