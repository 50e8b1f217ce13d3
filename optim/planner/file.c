/* Plans as files and as tables. Files are JSON, which a person may have changed, so reading checks what the numbers say
 * of each other. */
#include "optim/json_impl.h"
#include "optim/planner/planner_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION    1
#define AXES       6
#define MOST_BATCH 9007199254740992.0 /* 2^53: a number of JSON is a double */

static const char *const splits[] = {"data", "channel", "spatial", "mesh"};
static const char *const schedules[] = {"1f1b", "gpipe", "interleaved"};
static const char *const recomputations[] = {"never", "except_last", "always"};
/* In the order of the file, which is also the order of axis_of. */
static const char *const axes[AXES] = {"data", "stage", "channel", "depth", "height", "width"};

static int *axis_of(wf_mesh_opts *m, int i)
{
    int *const size[AXES] = {&m->data, &m->stage, &m->channel, &m->depth, &m->height, &m->width};
    return size[i];
}

/* --- writing --------------------------------------------------------------------------------------------------------
 */

static void write_numbers(const wf_training_plan *p, FILE *file)
{
    /* A copy, since axis_of gives places that reading writes to. */
    wf_mesh_opts mesh = p->mesh;
    fprintf(file, "{\n  \"weft_plan\": %d,\n  \"ranks\": %d,\n  \"nodes\": %d,\n  \"batch\": %lld,\n  \"mesh\": {",
            VERSION, p->ranks, p->nodes, (long long)p->batch);
    for (int i = 0; i < AXES; i++)
        fprintf(file, "%s\"%s\": %d", i ? ", " : "", axes[i], *axis_of(&mesh, i));
    fprintf(file, "},\n  \"shard_optimizer\": %s,\n", p->zero ? "true" : "false");
    fprintf(file, "  \"chunks\": %d,\n  \"schedule\": \"%s\",\n  \"recompute_stages\": \"%s\",\n  \"stages\": [",
            p->chunks, schedules[p->schedule], recomputations[p->recompute]);
    for (int i = 0; p->stage_units && i < p->mesh.stage * p->parts; i++)
        fprintf(file, "%s%d", i ? ", " : "", p->stage_units[i]);
    /* Seconds as %.9g and bytes as %.17g: bytes are compared as whole numbers, seconds only predict. */
    fprintf(file, "],\n  \"predicted\": {\"step_s\": %.9g, \"other_s\": %.9g, \"sum_s\": %.9g, \"update_s\": %.9g, ",
            p->seconds, p->other_s, p->sum_s, p->update_s);
    fprintf(file, "\"bytes\": %.17g, \"memory_bytes\": %.17g},\n", p->bytes, p->memory);
    fprintf(file,
            "  \"links\": {\"node_alpha_s\": %.9g, \"node_beta_s\": %.9g, \"alpha_s\": %.9g, \"beta_s\": %.9g, "
            "\"gamma_s\": %.9g},\n",
            p->links.alpha_s[0], p->links.beta_s[0], p->links.alpha_s[1], p->links.beta_s[1], p->links.gamma_s);
}

static void write_units(const wf_training_plan *p, FILE *file)
{
    fprintf(file, "  \"layers\": [");
    for (int i = 0; i < p->n_units; i++) {
        const wf_plan_unit *u = &p->unit[i];
        fprintf(file, "%s\n    {\"path\": ", i ? "," : "");
        wf_json_text(file, u->path);
        /* Four splits, so the mask keeps any value inside the table. */
        fprintf(file, ", \"split\": \"%s\", \"recompute\": %s, \"forward_s\": %.9g, \"backward_s\": %.9g, ",
                splits[u->split & 3], u->recompute ? "true" : "false", u->forward_s, u->backward_s);
        fprintf(file, "\"message_s\": %.9g, \"bytes\": %.17g, \"sum_bytes\": %.17g, \"kept_bytes\": %.17g}",
                u->message_s, u->bytes, u->sum_bytes, u->kept);
    }
    fprintf(file, "\n  ]\n}\n");
}

wf_status wf_training_plan_write(const wf_training_plan *p, const char *path)
{
    WF_NEED(p);
    WF_NEED(path);
    FILE *file = fopen(path, "w");
    WF_CHECK(file, WF_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    write_numbers(p, file);
    write_units(p, file);
    const bool failed = ferror(file) != 0;
    WF_CHECK(fclose(file) == 0 && !failed, WF_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return WF_OK;
}

/* --- reading --------------------------------------------------------------------------------------------------------
 */

static wf_status read_word(const wf_json *j, int object, const char *key, const char *const *words, int count,
                           int *which)
{
    int v;
    WF_TRY(wf_json_get(j, object, key, '"', &v));
    for (*which = 0; *which < count; ++*which)
        if (strcmp(words[*which], j->value[v].text) == 0)
            return WF_OK;
    WF_FAIL(WF_ERR_FORMAT, "%s: \"%s\" is \"%.40s\", which is none of those that there are", j->name, key,
            j->value[v].text);
}

static int length_of(const wf_json *j, int list)
{
    int n = 0;
    for (int v = j->value[list].child; v >= 0; v = j->value[v].next)
        n++;
    return n;
}

static wf_status read_mesh(const wf_json *j, wf_training_plan *p)
{
    int mesh;
    int64_t ranks = 1;
    WF_TRY(wf_json_get(j, 0, "mesh", '{', &mesh));
    for (int i = 0; i < AXES; i++) {
        WF_TRY(wf_json_int(j, mesh, axes[i], 1, axis_of(&p->mesh, i)));
        /* The product stops growing above int, so it cannot overflow; such a mesh is refused below. */
        ranks = ranks <= INT32_MAX ? ranks * *axis_of(&p->mesh, i) : ranks;
    }
    WF_CHECK(ranks == p->ranks, WF_ERR_FORMAT, "%s: the mesh has %lld ranks, should have %d", j->name, (long long)ranks,
             p->ranks);
    WF_CHECK(p->nodes <= p->ranks && p->ranks % p->nodes == 0, WF_ERR_FORMAT, "%s: %d ranks on %d nodes", j->name,
             p->ranks, p->nodes);
    return WF_OK;
}

static wf_status read_stages(const wf_json *j, wf_training_plan *p)
{
    int list, which, sum = 0, i = 0;
    WF_TRY(wf_json_int(j, 0, "chunks", 1, &p->chunks));
    WF_TRY(read_word(j, 0, "schedule", schedules, 3, &which));
    p->schedule = (wf_pipeline_kind)which;
    WF_TRY(read_word(j, 0, "recompute_stages", recomputations, 3, &which));
    p->recompute = (wf_pipeline_recompute)which;
    WF_TRY(wf_json_get(j, 0, "stages", '[', &list));
    const int n = length_of(j, list);
    const bool several = p->schedule == WF_PIPELINE_INTERLEAVED, whole = n > 0 && n % p->mesh.stage == 0;
    /* Several parts of the model on a stage only with the interleaved schedule. */
    p->parts = whole && several ? n / p->mesh.stage : 1;
    WF_CHECK(
        n == (p->mesh.stage > 1 ? p->mesh.stage * p->parts : 0), WF_ERR_FORMAT,
        "%s: \"stages\" has %d numbers; should have one for each of %d stages, or several with schedule interleaved, "
        "and none without stages",
        j->name, n, p->mesh.stage);
    if (n == 0)
        return WF_OK;
    p->stage_units = wf_calloc(p->ctx, (size_t)n, sizeof *p->stage_units);
    if (!p->stage_units)
        return wf_error_code();
    for (int v = j->value[list].child; v >= 0; v = j->value[v].next) {
        const double units = j->value[v].kind == '0' ? j->value[v].number : 0;
        WF_CHECK(units >= 1 && units <= p->n_units && units == (int)units, WF_ERR_FORMAT, "%s: a stage of %g layers",
                 j->name, units);
        p->stage_units[i++] = (int)units;
        sum += (int)units;
    }
    WF_CHECK(sum == p->n_units, WF_ERR_FORMAT, "%s: stages have %d layers, the plan has %d", j->name, sum, p->n_units);
    return WF_OK;
}

static wf_status read_unit(const wf_json *j, int v, wf_plan_unit *u)
{
    int path, which;
    WF_TRY(wf_json_get(j, v, "path", '"', &path));
    WF_CHECK(strlen(j->value[path].text) < sizeof u->path, WF_ERR_FORMAT, "%s: a path of %zu letters", j->name,
             strlen(j->value[path].text));
    snprintf(u->path, sizeof u->path, "%s", j->value[path].text);
    WF_TRY(read_word(j, v, "split", splits, 4, &which));
    u->split = (unsigned)which;
    WF_TRY(wf_json_bool(j, v, "recompute", &u->recompute));
    WF_TRY(wf_json_number(j, v, "forward_s", 0, &u->forward_s));
    WF_TRY(wf_json_number(j, v, "backward_s", 0, &u->backward_s));
    WF_TRY(wf_json_number(j, v, "message_s", 0, &u->message_s));
    WF_TRY(wf_json_number(j, v, "bytes", 0, &u->bytes));
    WF_TRY(wf_json_number(j, v, "sum_bytes", 0, &u->sum_bytes));
    return wf_json_number(j, v, "kept_bytes", 0, &u->kept);
}

static wf_status read_units(const wf_json *j, wf_training_plan *p)
{
    int list, i = 0;
    WF_TRY(wf_json_get(j, 0, "layers", '[', &list));
    p->n_units = length_of(j, list);
    WF_CHECK(p->n_units > 0, WF_ERR_FORMAT, "%s: no layers", j->name);
    p->unit = wf_calloc(p->ctx, (size_t)p->n_units, sizeof *p->unit);
    if (!p->unit)
        return wf_error_code();
    for (int v = j->value[list].child; v >= 0; v = j->value[v].next)
        WF_TRY(read_unit(j, v, &p->unit[i++]));
    return WF_OK;
}

static wf_status read_predictions(const wf_json *j, wf_training_plan *p)
{
    int o, l;
    WF_TRY(wf_json_get(j, 0, "predicted", '{', &o));
    WF_TRY(wf_json_number(j, o, "step_s", 0, &p->seconds));
    /* Time outside of layers is a difference of measured times and may come out below 0. */
    WF_TRY(wf_json_number(j, o, "other_s", -1e9, &p->other_s));
    WF_TRY(wf_json_number(j, o, "sum_s", 0, &p->sum_s));
    WF_TRY(wf_json_number(j, o, "update_s", 0, &p->update_s));
    WF_TRY(wf_json_number(j, o, "bytes", 0, &p->bytes));
    WF_TRY(wf_json_number(j, o, "memory_bytes", 0, &p->memory));
    WF_TRY(wf_json_get(j, 0, "links", '{', &l));
    WF_TRY(wf_json_number(j, l, "node_alpha_s", 0, &p->links.alpha_s[0]));
    WF_TRY(wf_json_number(j, l, "node_beta_s", 0, &p->links.beta_s[0]));
    WF_TRY(wf_json_number(j, l, "alpha_s", 0, &p->links.alpha_s[1]));
    WF_TRY(wf_json_number(j, l, "beta_s", 0, &p->links.beta_s[1]));
    return wf_json_number(j, l, "gamma_s", 0, &p->links.gamma_s);
}

static wf_status read_plan(const wf_json *j, wf_training_plan *p)
{
    int version;
    double batch;
    WF_TRY(wf_json_int(j, 0, "weft_plan", 1, &version));
    WF_CHECK(version == VERSION, WF_ERR_FORMAT, "%s: a plan of version %d, should be %d", j->name, version, VERSION);
    WF_TRY(wf_json_int(j, 0, "ranks", 1, &p->ranks));
    WF_TRY(wf_json_int(j, 0, "nodes", 1, &p->nodes));
    WF_TRY(wf_json_number(j, 0, "batch", 1, &batch));
    WF_CHECK(batch <= MOST_BATCH && batch == floor(batch), WF_ERR_FORMAT,
             "%s: \"batch\" is %g, should be a whole number up to 2^53", j->name, batch);
    p->batch = (int64_t)batch;
    WF_TRY(read_mesh(j, p));
    WF_CHECK(p->batch % p->mesh.data == 0, WF_ERR_FORMAT, "%s: a batch of %lld on %d places along data", j->name,
             (long long)p->batch, p->mesh.data);
    WF_TRY(wf_json_bool(j, 0, "shard_optimizer", &p->zero));
    /* Before the stages, whose sum is compared with the number of units. */
    WF_TRY(read_units(j, p));
    WF_TRY(read_stages(j, p));
    return read_predictions(j, p);
}

wf_training_plan *wf_training_plan_parse(wf_ctx *ctx, const char *text, const char *name)
{
    wf_json j;
    WF_TRY_NULL(wf_json_read(ctx, text, name, &j));
    wf_training_plan *plan = wf_calloc(ctx, 1, sizeof *plan);
    wf_status status = plan ? WF_OK : wf_error_code();
    if (plan) {
        plan->ctx = ctx;
        status = read_plan(&j, plan);
    }
    wf_json_clear(&j);
    if (status == WF_OK)
        return plan;
    wf_training_plan_free(plan);
    return wf_error_null();
}

/* --- the table ------------------------------------------------------------------------------------------------------
 */

void wf_training_plan_print(const wf_training_plan *p, int table)
{
    char text[WF_PLANNER_PATH];
    dprintf(table, "predicted: %.3f ms a step of %lld samples on %s; %.1f MiB of each rank; %.3f MB sent by each\n",
            1e3 * p->seconds, (long long)p->batch, wf_planner_mesh_text(p->mesh, text), p->memory / 0x1p20,
            1e-6 * p->bytes);
    dprintf(table, "optimizer's state: %s%s\n", p->zero ? "sharded" : "on every rank",
            p->stage_units ? "; stages in chunks" : "");
    /* The ideal share of idle time is (S - 1) / (parts chunks + S - 1), with S stages. */
    if (p->stage_units)
        dprintf(
            table,
            "stages: %d chunks, %s, %d parts of the model on each, recompute %s; idle for %.1f %% of the time, %.1f %% "
            "if all were equal\n",
            p->chunks, schedules[p->schedule], p->parts, recomputations[p->recompute], 100 * p->idle,
            100.0 * (p->mesh.stage - 1) / (p->parts * p->chunks + p->mesh.stage - 1));
    dprintf(table, "%-24s %-8s %9s %9s %9s %11s %11s %10s\n", "layer", "split", "fwd ms", "bwd ms", "sends ms",
            "sent MB", "grads MB", "kept MB");
    for (int i = 0; i < p->n_units; i++) {
        const wf_plan_unit *u = &p->unit[i];
        dprintf(table, "%-24s %-8s %9.3f %9.3f %9.3f %11.3f %11.3f %10.3f%s\n", u->path, splits[u->split & 3],
                1e3 * u->forward_s, 1e3 * u->backward_s, 1e3 * u->message_s, 1e-6 * u->bytes, 1e-6 * u->sum_bytes,
                1e-6 * u->kept, u->recompute ? " recomputed" : "");
    }
    dprintf(table, "outside of layers %.3f ms, sums of gradients that show %.3f ms, updates %.3f ms\n",
            1e3 * p->other_s, 1e3 * p->sum_s, 1e3 * p->update_s);
    dprintf(table, "sums: in a node %.3g us and %.3g GB/s, between nodes %.3g us and %.3g GB/s, work %.3g GB/s\n",
            1e6 * p->links.alpha_s[0], 1e-9 / p->links.beta_s[0], 1e6 * p->links.alpha_s[1], 1e-9 / p->links.beta_s[1],
            1e-9 / p->links.gamma_s);
    dprintf(table, "exchanges: in a node %.3g us and %.3g GB/s, between nodes %.3g us and %.3g GB/s\n",
            1e6 * p->exchange[0].alpha_s, 1e-9 / p->exchange[0].beta_s, 1e6 * p->exchange[1].alpha_s,
            1e-9 / p->exchange[1].beta_s);
    if (p->nodes > 1)
        dprintf(table, "while sums go on between nodes, backward has %.2f of its speed, and sums have %.2f of theirs\n",
                p->overlap.compute, p->overlap.sum);
}
