/* A program follows a plan: reads it on all ranks, takes mesh, splits, stages from it, and compares a few steps with
 * it. Reading and comparing are collective, the rest is local. A plan never changes a model by itself: the program
 * applies it. */
#include "optim/planner/planner_impl.h"

#include "comm/comm_author.h"
#include "core/profile_author.h"
#include "layers/recompute.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files are read whole; a plan of a thousand layers has less than a megabyte. */
#define LARGEST  ((long)16 << 20) /* of a file */
#define PASSED   3                /* steps that are not compared */
#define COMPARED 10

/* --- reading --------------------------------------------------------------------------------------------------------
 */

static wf_status read_text(wf_ctx *ctx, const char *path, char **text, int64_t *length)
{
    FILE *file = fopen(path, "rb");
    WF_CHECK(file, WF_ERR_IO, "%s: %s", path, strerror(errno));
    /* The size is asked for first, so a device or a pipe is refused. */
    const bool known = fseek(file, 0, SEEK_END) == 0;
    const long size = known ? ftell(file) : -1;
    rewind(file);
    *text = size >= 0 && size <= LARGEST ? wf_calloc(ctx, (size_t)size + 1, 1) : NULL;
    *length = *text ? (int64_t)fread(*text, 1, (size_t)size, file) : 0;
    fclose(file);
    WF_CHECK(*text, WF_ERR_FORMAT, "%s: no file of a plan, by its size", path);
    return WF_OK;
}

/* Rank 0 has the text, or a failure, which all get. */
static wf_status share_text(wf_comm *comm, const char *path, char **text)
{
    int64_t length = 0;
    const bool first = wf_comm_rank(comm) == 0;
    const wf_status read = first ? read_text(wf_comm_ctx(comm), path, text, &length) : WF_OK;
    WF_TRY(wf_bcast_status(comm, read, 0));
    WF_TRY(wf_bcast_bytes(comm, &length, sizeof length, 0));
    /* One byte more, which ends the text. */
    if (!first)
        *text = wf_calloc(wf_comm_ctx(comm), (size_t)length + 1, 1);
    /* A rank without memory fails all of them, or it would miss the broadcast. */
    WF_TRY(wf_agree_status(comm, *text ? WF_OK : wf_error_code()));
    return length > 0 ? wf_bcast_bytes(comm, *text, (size_t)length, 0) : WF_OK;
}

wf_training_plan *wf_training_plan_read(wf_comm *comm, const char *path)
{
    char *text = NULL;
    WF_NEED_NULL(comm);
    WF_NEED_NULL(path);
    const wf_status status = share_text(comm, path, &text);
    wf_training_plan *plan = status == WF_OK ? wf_training_plan_parse(wf_comm_ctx(comm), text, path) : NULL;
    free(text);
    if (status != WF_OK)
        return wf_error_null();
    /* Every rank has parsed the same text, so all refuse alike. */
    if (!plan || plan->ranks == wf_comm_size(comm))
        return plan;
    const int ranks = plan->ranks;
    wf_training_plan_free(plan);
    WF_FAIL_NULL(WF_ERR_ARGUMENT, "%s: a plan for %d ranks, these are %d", path, ranks, wf_comm_size(comm));
}

wf_mesh_opts wf_training_plan_mesh(const wf_training_plan *plan)
{
    return plan ? plan->mesh : (wf_mesh_opts){0};
}

int64_t wf_training_plan_batch(const wf_training_plan *plan)
{
    return plan ? plan->batch : 0;
}

bool wf_training_plan_sharded(const wf_training_plan *plan)
{
    for (int i = 0; plan && i < plan->n_units; i++)
        if (plan->unit[i].split & WF_PARALLEL_SPATIAL)
            return true;
    return false;
}

wf_multi_node_opts wf_training_plan_multi_node(const wf_training_plan *plan)
{
    return (wf_multi_node_opts){.shard_optimizer = plan && plan->zero};
}

wf_pipeline_opts wf_training_plan_pipeline(const wf_training_plan *plan)
{
    if (!plan || !plan->stage_units)
        return (wf_pipeline_opts){0};
    return (wf_pipeline_opts){.chunks = plan->chunks,
                              .schedule = plan->schedule,
                              .parts = plan->parts,
                              .recompute = plan->recompute,
                              .layers = plan->stage_units};
}

/* --- applying -------------------------------------------------------------------------------------------------------
 */

typedef struct choice {
    const wf_training_plan *plan;
    unsigned more; /* WF_PARALLEL_SYNC_BN */
} choice;

/* The unit that contains this layer decides; a layer outside of all units stays whole. */
static unsigned chosen_split(void *user, const wf_layer *layer)
{
    const choice *c = user;
    const char *path = wf_layer_path(layer);
    for (int i = 0; i < c->plan->n_units; i++)
        if (wf_planner_inside(path, c->plan->unit[i].path))
            return c->plan->unit[i].split | c->more;
    return c->more;
}

wf_status wf_training_plan_apply(const wf_training_plan *plan, const wf_mesh *mesh, wf_layer *model, bool sync_bn)
{
    WF_NEED(plan);
    WF_NEED(mesh);
    WF_NEED(model);
    choice c = {plan, sync_bn ? WF_PARALLEL_SYNC_BN : 0};
    /* All units are looked for before the first layer changes. */
    for (int i = 0; i < plan->n_units; i++)
        WF_CHECK(wf_planner_find(model, plan->unit[i].path), WF_ERR_ARGUMENT,
                 "the plan is one of another model: this one has no layer \"%s\"", plan->unit[i].path);
    WF_TRY(wf_parallelize_by(model, mesh, chosen_split, &c));
    for (int i = 0; i < plan->n_units; i++)
        if (plan->unit[i].recompute)
            WF_NEED(wf_recompute(wf_planner_find(model, plan->unit[i].path)));
    return WF_OK;
}

/* --- comparing ------------------------------------------------------------------------------------------------------
 */

struct wf_plan_watch {
    int steps;
    wf_profile *profile;
    bool over;
};

void wf_plan_watch_free(struct wf_plan_watch *watch)
{
    if (watch)
        wf_profile_free(watch->profile);
    free(watch);
}

typedef struct measured {
    double compute_s, message_s, input_s, sent;
} measured;

/* Sums the rows inside of `path`; NULL: all rows. */
static measured sum_profile_rows(const wf_profile *profile, const char *path)
{
    const wf_profile_row *row;
    const int64_t n = wf_profile_rows(profile, &row);
    measured m = {0};
    for (int64_t i = 0; i < n; i++) {
        if (path && (!*row[i].layer || !wf_planner_inside(row[i].layer, path)))
            continue;
        /* Rows sum over COMPARED steps. */
        if (row[i].kind == WF_PROFILE_KERNEL)
            m.compute_s += 1e-9 * (double)row[i].ns / COMPARED;
        if (row[i].kind == WF_PROFILE_COLLECTIVE)
            m.message_s += 1e-9 * (double)row[i].ns / COMPARED;
        if (row[i].kind == WF_PROFILE_INPUT)
            m.input_s += 1e-9 * (double)row[i].ns / COMPARED;
        m.sent += row[i].sent / COMPARED;
    }
    return m;
}

static void print_comparison(const wf_training_plan *p, const wf_comm *comm, const wf_profile *profile, double memory,
                             int table)
{
    const measured all = sum_profile_rows(profile, NULL);
    const double step = 1e-9 * (double)wf_profile_ns(profile) / COMPARED - all.input_s;
    dprintf(table,
            "plan: a step takes %.3f ms besides %.3f ms for input, predicted %.3f ms (%+.1f %%); sent by rank %s %.3f "
            "MB, predicted %.3f MB; "
            "peak of memory %.1f MiB, predicted %.1f MiB\n",
            /* Against the step without waiting for input, which no plan predicts. */
            1e3 * step, 1e3 * all.input_s, 1e3 * p->seconds, 100 * (p->seconds / step - 1), WF_RANK(comm, 0),
            1e-6 * all.sent, 1e-6 * p->bytes, memory / 0x1p20, p->memory / 0x1p20);
    dprintf(table, "%-24s %12s %9s %12s %9s %12s %9s\n", "layer", "computes ms", "predicted", "sends ms", "predicted",
            "sent MB", "predicted");
    for (int i = 0; i < p->n_units; i++) {
        const wf_plan_unit *u = &p->unit[i];
        const measured m = sum_profile_rows(profile, u->path);
        if (m.compute_s > 0 || m.sent > 0)
            dprintf(table, "%-24s %12.3f %9.3f %12.3f %9.3f %12.3f %9.3f\n", u->path, 1e3 * m.compute_s,
                    1e3 * (u->forward_s + u->backward_s), 1e3 * m.message_s, 1e3 * u->message_s, 1e-6 * m.sent,
                    1e-6 * u->bytes);
    }
}

wf_status wf_training_plan_compare(wf_training_plan *p, wf_comm *comm, int table)
{
    WF_NEED(p);
    WF_NEED(comm);
    wf_ctx *ctx = wf_comm_ctx(comm);
    /* The state of the comparison hangs on the plan, so the program keeps nothing. */
    if (!p->watch && !(p->watch = wf_calloc(ctx, 1, sizeof *p->watch)))
        return wf_error_code();
    struct wf_plan_watch *w = p->watch;
    /* The first steps pack, tune and allocate. */
    if (w->over || ++w->steps < PASSED)
        return WF_OK;
    if (w->steps == PASSED) {
        /* A program that profiles for itself is not disturbed; on a device the host cannot time kernels. All ranks must
         * agree. */
        int64_t busy = ctx->profile || !ctx->k->host;
        WF_TRY(wf_allreduce_i64(comm, &busy, 1, WF_MAX));
        w->over = busy;
        WF_TRY(w->over ? WF_OK : wf_profile_begin(ctx, 0));
        w->profile = ctx->profile;
    }
    if (w->steps < PASSED + COMPARED)
        return WF_OK;
    wf_profile_end(w->profile);
    double memory = (double)wf_ctx_memory(ctx).bytes_peak;
    WF_TRY(wf_allreduce_f64(comm, &memory, 1, WF_MAX));
    if (wf_comm_rank(comm) == 0)
        print_comparison(p, comm, w->profile, memory, table);
    wf_profile_free(w->profile);
    w->profile = NULL;
    w->over = true;
    return WF_OK;
}
