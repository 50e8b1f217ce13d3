/* The library's meter: whole steps of a model under a profile, and parts of layers by themselves, measured once and
 * kept in a file. All ranks of the gauge measure at the same time, since cores share memory and clocks. */
#include "optim/planner/planner_impl.h"

#include "comm/comm_author.h"
#include "core/config_author.h"
#include "core/profile_author.h"
#include "core/random_author.h"
#include "layers/functions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARM   2
#define STEPS  7
#define ROUNDS 7
#define KEY    1024

static int by_size(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

double wf_gauge_median(double *numbers, int count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, by_size);
    return count % 2 ? numbers[count / 2] : (numbers[count / 2 - 1] + numbers[count / 2]) / 2;
}

static double now(void)
{
    return 1e-9 * (double)wf_profile_clock();
}

/* --- what is known --------------------------------------------------------------------------------------------------
 */

/* Rank 0 looks, and all do the same. */
wf_status wf_gauge_find(wf_gauge *g, const char *key, int count, double *numbers, bool *found)
{
    int64_t is = wf_comm_rank(g->comm) == 0 && wf_plan_cache_find(g->cache, key, count, numbers);
    WF_TRY(wf_bcast_bytes(g->comm, &is, sizeof is, 0));
    *found = is;
    g->known += (int)is;
    return is ? wf_bcast_bytes(g->comm, numbers, (size_t)count * sizeof *numbers, 0) : WF_OK;
}

wf_status wf_gauge_note(wf_gauge *g, const char *key, int count, double *numbers)
{
    WF_TRY(wf_allreduce_f64(g->comm, numbers, count, WF_MAX));
    g->measured++;
    if (wf_comm_rank(g->comm) == 0)
        wf_plan_cache_add(g->cache, key, count, numbers);
    return WF_OK;
}

/* --- steps ----------------------------------------------------------------------------------------------------------
 */

typedef struct measuring {
    wf_gauge *g;
    const wf_planner_model *m;
    wf_planner_times *t;
    wf_tape *tape;
    wf_tensor *x;
    double *leaf; /* forward and backward of each leaf, by round */
    double wall[3][STEPS];
    size_t peak;
} measuring;

/* Of each leaf's kernels since the profile began, and of updates; the rest of what a profile has belongs to no leaf. */
static double take_rows(measuring *c, int round, bool forward)
{
    const wf_profile_row *row;
    const int64_t n = wf_profile_rows(c->m->ctx->profile, &row);
    double update = 0;
    for (int64_t i = 0; i < n; i++) {
        int leaf = 0;
        while (leaf < c->m->n_leaves && strcmp(c->m->leaf[leaf].path, row[i].layer) != 0)
            leaf++;
        if (row[i].kind == WF_PROFILE_KERNEL && leaf < c->m->n_leaves)
            c->leaf[(2 * leaf + !forward) * STEPS + round] += 1e-9 * (double)row[i].ns;
        if (row[i].kind == WF_PROFILE_KERNEL && strcmp(row[i].name, "optim_update") == 0)
            update += 1e-9 * (double)row[i].ns;
    }
    return update;
}

static wf_status apply_once(measuring *c, int round)
{
    const size_t before = wf_ctx_memory(c->m->ctx).bytes_in_use;
    double start = now();
    wf_var *y = wf_apply(c->m->model, wf_input(c->tape, c->x));
    c->wall[0][round] = now() - start;
    (void)take_rows(c, round, true);
    wf_var *loss = wf_mean(wf_mul(y, y));
    WF_TRY(wf_check(loss));
    c->t->kept = (double)(wf_ctx_memory(c->m->ctx).bytes_in_use - before);
    start = now();
    WF_TRY(wf_optim_step(c->g->optim, loss));
    c->wall[1][round] = now() - start;
    c->wall[2][round] = take_rows(c, round, false);
    c->wall[1][round] -= c->wall[2][round];
    for (int i = 0; i < c->m->n_leaves; i++)
        c->leaf[(2 * i + 1) * STEPS + round] -= c->leaf[2 * i * STEPS + round];
    return WF_OK;
}

/* One profile for both ways: it owns the names by which backward knows the layers. */
static wf_status step_once(measuring *c, int round)
{
    wf_ctx *ctx = c->m->ctx;
    for (int i = 0; i < 2 * c->m->n_leaves; i++)
        c->leaf[i * STEPS + round] = 0;
    WF_TRY(wf_barrier(c->g->comm));
    (void)wf_pool_mark(ctx);
    WF_TRY(wf_profile_begin(ctx, 0));
    wf_status status = apply_once(c, round);
    if (status == WF_OK)
        status = wf_tape_reset(c->tape);
    wf_profile_free(ctx->profile);
    c->peak = wf_pool_mark(ctx);
    c->t->fixed = (double)wf_ctx_memory(ctx).bytes_in_use - (double)wf_tensor_bytes(c->x);
    return status;
}

static void settle(measuring *c)
{
    wf_planner_times *t = c->t;
    t->forward_s = wf_gauge_median(c->wall[0], STEPS);
    t->backward_s = wf_gauge_median(c->wall[1], STEPS);
    t->update_s = wf_gauge_median(c->wall[2], STEPS);
    for (int i = 0; i < c->m->n_leaves; i++) {
        t->leaf_forward_s[i] = wf_gauge_median(c->leaf + (ptrdiff_t)(2 * i) * STEPS, STEPS);
        t->leaf_backward_s[i] = wf_gauge_median(c->leaf + (ptrdiff_t)(2 * i + 1) * STEPS, STEPS);
    }
    const double peak = (double)c->peak - (double)wf_tensor_bytes(c->x);
    t->more = peak > t->fixed + t->kept ? peak - t->fixed - t->kept : 0;
}

static wf_status measure(wf_gauge *g, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    measuring c = {.g = g, .m = m, .t = t, .tape = wf_tape_new(m->ctx)};
    wf_shape shape = m->input;
    shape.dim[0] = batch;
    c.leaf = wf_calloc(m->ctx, 2 * (size_t)m->n_leaves * STEPS + 1, sizeof *c.leaf);
    c.x = wf_keep(wf_rand_uniform(c.tape, shape, -1, 1, NULL));
    wf_status status = c.tape && c.leaf && c.x ? wf_tape_reset(c.tape) : wf_error_code();
    for (int i = -WARM; i < STEPS && status == WF_OK; i++)
        status = step_once(&c, i < 0 ? 0 : i);
    if (status == WF_OK)
        settle(&c);
    wf_tensor_free(c.x);
    wf_tape_free(c.tape);
    free(c.leaf);
    return wf_agree_status(g->comm, status);
}

static uint64_t signature_of(const wf_planner_model *m)
{
    uint64_t hash = wf_hash_u64(0, (uint64_t)m->ctx->compute);
    for (int i = 0; i < m->n_leaves; i++) {
        const wf_planner_leaf *l = &m->leaf[i];
        hash = wf_hash_text(hash, l->path);
        hash = wf_hash_text(hash, l->layer ? l->layer->options : "");
        for (int d = 1; d < l->x.rank; d++)
            hash = wf_hash_u64(hash, (uint64_t)l->x.dim[d]);
        for (int d = 1; d < l->y.rank; d++)
            hash = wf_hash_u64(hash, (uint64_t)l->y.dim[d]);
        hash = wf_hash_u64(hash, (uint64_t)l->params);
    }
    return hash;
}

static void pack(const wf_planner_model *m, wf_planner_times *t, double *numbers, bool out)
{
    double *const scalar[] = {&t->forward_s, &t->backward_s, &t->update_s, &t->kept, &t->fixed, &t->more};
    for (int i = 0; i < 6; i++)
        *(out ? &numbers[i] : scalar[i]) = *(out ? scalar[i] : &numbers[i]);
    for (int i = 0; i < m->n_leaves; i++) {
        double *f = &t->leaf_forward_s[i], *b = &t->leaf_backward_s[i];
        *(out ? &numbers[6 + 2 * i] : f) = *(out ? f : &numbers[6 + 2 * i]);
        *(out ? &numbers[7 + 2 * i] : b) = *(out ? b : &numbers[7 + 2 * i]);
    }
}

static wf_status step_of(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    wf_gauge *g = own;
    char key[KEY];
    bool found;
    const int count = 6 + 2 * m->n_leaves;
    double *numbers = wf_calloc(m->ctx, (size_t)count, sizeof *numbers);
    WF_TRY(wf_agree_status(g->comm, numbers ? WF_OK : wf_error_code()));
    t->batch = batch;
    snprintf(key, sizeof key, "step of %016llx, %zu bytes of state, batch %lld, %s",
             (unsigned long long)signature_of(m), wf_optim_state_bytes(g->optim), (long long)batch, g->machine);
    wf_status status = wf_gauge_find(g, key, count, numbers, &found);
    if (status == WF_OK && !found) {
        status = measure(g, m, batch, t);
        pack(m, t, numbers, true);
        if (status == WF_OK)
            status = wf_gauge_note(g, key, count, numbers);
    }
    if (status == WF_OK)
        pack(m, t, numbers, false);
    free(numbers);
    return status;
}

/* --- parts ----------------------------------------------------------------------------------------------------------
 */

static wf_status part_once(wf_tape *tape, wf_layer *layer, const wf_tensor *x, double *seconds)
{
    const double start = now();
    wf_var *y = wf_apply(layer, wf_leaf(tape, x));
    WF_TRY(wf_check(y));
    wf_tensor *ones = wf_tensor_new_like(wf_value(y));
    wf_status status = ones ? wf_tensor_fill(ones, 1) : wf_error_code();
    if (status == WF_OK)
        status = wf_backward_from(y, ones);
    *seconds = now() - start;
    wf_tensor_free(ones);
    return status == WF_OK ? wf_tape_reset(tape) : status;
}

/* `layout`: of the input; NULL: none. */
static wf_status time_part(wf_gauge *g, wf_layer *layer, wf_shape shape, const wf_layout *layout, double *seconds)
{
    wf_tape *tape = wf_tape_new(layer->ctx);
    wf_tensor *x = wf_keep(wf_rand_uniform(tape, shape, -1, 1, NULL));
    double took[ROUNDS];
    wf_status status = tape && x ? wf_tape_reset(tape) : wf_error_code();
    if (status == WF_OK && layout)
        status = wf_tensor_set_layout(x, *layout);
    for (int i = -WARM; i < ROUNDS && status == WF_OK; i++) {
        status = wf_barrier(g->comm);
        if (status == WF_OK)
            status = part_once(tape, layer, x, &took[i < 0 ? 0 : i]);
    }
    wf_tensor_free(x);
    wf_tape_free(tape);
    if (status == WF_OK)
        *seconds = wf_gauge_median(took, ROUNDS);
    return wf_agree_status(g->comm, status);
}

static void name_part(const wf_gauge *g, const wf_planner_leaf *leaf, const wf_layer *layer, wf_shape x, char key[KEY])
{
    int used = snprintf(key, KEY, "part of %s (%.300s)", layer->kind->name, layer->options);
    for (int i = 0; i < layer->n_params; i++)
        for (int d = 0; d < layer->params[i]->shape.rank; d++)
            used += snprintf(key + used, KEY - (size_t)used, "%c%lld", d ? 'x' : ' ',
                             (long long)layer->params[i]->shape.dim[d]);
    for (int d = 0; d < x.rank; d++)
        used += snprintf(key + used, KEY - (size_t)used, "%s%lld", d ? "x" : " on ", (long long)x.dim[d]);
    for (int d = 2; d < leaf->y.rank; d++) /* windows of one option text differ in it */
        used += snprintf(key + used, KEY - (size_t)used, ":%lld/%lld", (long long)leaf->x.dim[d],
                         (long long)leaf->y.dim[d]);
    snprintf(key + used, KEY - (size_t)used, ", %s", g->machine);
}

static wf_status part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out, double *seconds)
{
    wf_gauge *g = own;
    char key[KEY];
    bool found;
    wf_layer *made = wf_part_new(leaf->layer, in, out);
    WF_TRY(wf_agree_status(g->comm, wf_error_pending()));
    /* Pooling has no channels of its own, so the layer itself does. */
    wf_layer *layer = made ? made : leaf->layer;
    name_part(g, leaf, layer, x, key);
    wf_status status = wf_gauge_find(g, key, 1, seconds, &found);
    if (status == WF_OK && !found) {
        status = time_part(g, layer, x, NULL, seconds);
        if (status == WF_OK)
            status = wf_gauge_note(g, key, 1, seconds);
    }
    wf_layer_free(made);
    return status;
}

/* The parallel layer itself, on an image that gives each rank of the gauge a part of this shape. */
static wf_status time_cut(wf_gauge *g, const wf_planner_leaf *leaf, wf_shape x, wf_axis axis, double *seconds)
{
    const int ranks = wf_comm_size(g->comm), d = x.rank - 1 - (WF_AXIS_WIDTH - (int)axis);
    wf_mesh_opts opts = {.data = 1};
    wf_shape whole = x;
    wf_layout layout;
    whole.dim[d] *= ranks;
    *(axis == WF_AXIS_HEIGHT ? &opts.height : axis == WF_AXIS_WIDTH ? &opts.width : &opts.depth) = ranks;
    if (!g->mesh[axis] && !(g->mesh[axis] = wf_mesh_open(g->comm, opts)))
        return wf_error_code();
    wf_layer *layer = wf_part_new(leaf->layer, 1, 1);
    wf_status status = layer ? wf_parallelize(layer, g->mesh[axis], WF_PARALLEL_SPATIAL) : wf_error_code();
    if (status == WF_OK)
        status = wf_mesh_layout_activation(g->mesh[axis], whole, &layout);
    status = wf_agree_status(g->comm, status);
    if (status == WF_OK)
        status = time_part(g, layer, x, &layout, seconds);
    wf_layer_free(layer);
    return status;
}

static wf_status cut_of(void *own, const wf_planner_leaf *leaf, wf_shape x, wf_axis axis, double *seconds)
{
    wf_gauge *g = own;
    char key[KEY], part[KEY];
    bool found;
    *seconds = 0;
    if (wf_comm_size(g->comm) == 1 || wf_comm_inter_size(g->comm) > 1)
        return WF_OK;
    name_part(g, leaf, leaf->layer, x, part);
    snprintf(key, sizeof key, "cut along %s, %.900s", wf_axis_name(axis), part);
    wf_status status = wf_gauge_find(g, key, 1, seconds, &found);
    if (status == WF_OK && !found) {
        status = time_cut(g, leaf, x, axis, seconds);
        if (status == WF_OK)
            status = wf_gauge_note(g, key, 1, seconds);
    }
    return status;
}

void wf_gauge_close(wf_gauge *g)
{
    for (int a = 0; a < WF_AXES; a++)
        wf_mesh_close(g->mesh[a]);
    wf_plan_cache_close(g->cache);
}

/* --- the meter ------------------------------------------------------------------------------------------------------
 */

/* "model name	: Some processor" */
static void name_processor(char *text, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(text, size, "unknown processor");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        snprintf(text, size, "%.*s", (int)strcspn(value + 2, "\n\t"), value + 2);
        break;
    }
    if (file)
        fclose(file);
}

/* The state is there after a first step, of two samples. */
static wf_status bind_optimizer(wf_gauge *g, const wf_planner_model *m)
{
    wf_tape *tape = wf_tape_new(m->ctx);
    wf_shape shape = m->input;
    shape.dim[0] = 2;
    wf_var *y = wf_apply(m->model, wf_rand_uniform(tape, shape, -1, 1, NULL));
    wf_status status = wf_optim_step(g->optim, wf_mean(wf_mul(y, y)));
    if (status == WF_OK)
        status = wf_tape_reset(tape);
    wf_tape_free(tape);
    return wf_agree_status(g->comm, status);
}

wf_status wf_gauge_open(wf_gauge *g, const wf_planner_model *m, wf_planner_meter *meter)
{
    char processor[100], host[64] = "";
    double words = 0;
    WF_TRY(bind_optimizer(g, m));
    name_processor(processor, sizeof processor);
    gethostname(host, sizeof host - 1);
    snprintf(g->machine, sizeof g->machine, "weft %s, %s, %s on %s, %d ranks of %d threads", WF_VERSION,
             wf_ctx_device(m->ctx), processor, host, wf_comm_size(g->comm), wf_ctx_threads(m->ctx));
    for (int i = 0; i < m->n_leaves; i++)
        words += m->leaf[i].params;
    *meter = (wf_planner_meter){
        .own = g, .step = step_of, .cut = cut_of, .part = part_of, .links = wf_price_model_default()};
    meter->exchange_alpha_s = meter->links.alpha_s[0];
    meter->exchange_beta_s = meter->links.beta_s[0];
    if (words > 0)
        meter->state_words = (double)wf_optim_state_bytes(g->optim) / (4 * words);
    return WF_OK;
}
