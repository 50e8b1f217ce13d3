/* The library's meter: whole steps of a model under a profile, and parts of layers by themselves, measured once and
 * kept in a file. All ranks of the gauge measure at the same time, since cores share memory and clocks. */
#include "optim/planner/planner_impl.h"

#include "comm/comm_author.h"
#include "core/config_author.h"
#include "core/profile_author.h"
#include "core/random_author.h"
#include "core/version.h"
#include "layers/functions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* WARM steps fill caches and pools. STEPS and ROUNDS are odd, so that a median is one of the numbers. */
#define WARM   2
#define STEPS  7
#define ROUNDS 7
#define AGAIN  4 /* sets of rounds at most, while their times differ */
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

/* --- what is known --------------------------------------------------------------------------------------------------
 */

/* Rank 0 looks, and all do the same: a rank with another file would measure alone and hang. */
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
    /* The slowest rank's numbers: all wait for it in a step. */
    WF_TRY(wf_allreduce_f64(g->comm, numbers, count, WF_MAX));
    g->measured++;
    if (wf_comm_rank(g->comm) == 0)
        wf_plan_cache_add(g->cache, key, count, numbers);
    return WF_OK;
}

/* Sets *is if the rounds of all ranks took about as long: half of them at most a tenth longer than the fastest.
 * Otherwise other programs may have used the processors. */
static wf_status settled(wf_gauge *g, const double *took, int count, bool *is)
{
    double sorted[AGAIN * ROUNDS];
    memcpy(sorted, took, (size_t)count * sizeof *sorted);
    int64_t differ = wf_gauge_median(sorted, count) > 1.1 * sorted[0];
    WF_TRY(wf_allreduce_i64(g->comm, &differ, 1, WF_MAX));
    *is = !differ;
    return WF_OK;
}

/* --- steps ----------------------------------------------------------------------------------------------------------
 */

typedef struct measuring {
    wf_gauge *g;
    const wf_planner_model *m;
    wf_planner_times *t;
    wf_tape *tape;
    wf_tensor **x;
    double *leaf;          /* forward and backward of each leaf, by round */
    double wall[4][STEPS]; /* forward, backward, update, passes over gradients */
    size_t peak;
    bool packed_seen; /* forward has been asked what it packs */
} measuring;

/* Adds up the kernels of each leaf since the profile began; the other rows of the profile belong to no leaf. By path:
 * rows have no other tie to leaves. */
static void take_rows(measuring *c, int round, bool forward)
{
    const wf_profile_row *row;
    const int64_t n = wf_profile_rows(c->m->ctx->profile, &row);
    for (int64_t i = 0; i < n; i++) {
        int leaf = 0;
        while (leaf < c->m->n_leaves && strcmp(c->m->leaf[leaf].path, row[i].layer) != 0)
            leaf++;
        if (row[i].kind == WF_PROFILE_KERNEL && leaf < c->m->n_leaves)
            c->leaf[(2 * leaf + !forward) * STEPS + round] += 1e-9 * (double)row[i].ns;
    }
}

/* The kernel's own time: wf_optim_step also computes backward. */
static double update_seconds(const measuring *c)
{
    const wf_profile_row *row;
    const int64_t n = wf_profile_rows(c->m->ctx->profile, &row);
    double seconds = 0;
    for (int64_t i = 0; i < n; i++)
        if (row[i].kind == WF_PROFILE_KERNEL && strcmp(row[i].name, "optim_update") == 0)
            seconds += 1e-9 * (double)row[i].ns;
    return seconds;
}

/* Bytes of the packed forms that kernels keep beside the parameters; freed if asked. A form is made when a product
 * needs it first. */
static wf_status packed_of(const wf_planner_model *m, bool drop, double *bytes)
{
    int64_t n;
    wf_param *const *param;
    *bytes = 0;
    WF_TRY(wf_layer_params(m->model, &n, &param));
    for (int64_t i = 0; i < n; i++) {
        wf_storage *storage = param[i]->value->storage;
        for (const wf_packed_form *form = storage->forms; form; form = form->next)
            *bytes += (double)form->bytes;
        if (drop)
            wf_packed_free(m->ctx, &storage->forms);
    }
    return WF_OK;
}

static wf_var *loss_of(measuring *c)
{
    wf_var *y = wf_planner_apply(c->m, c->tape, c->x);
    /* Any loss with a gradient for each output will do. */
    return wf_mean(wf_mul(y, y));
}

/* What a pipeline does with gradients once in a step, beside its chunks: they are zero before the first one, and their
 * sums are scaled for the optimizer. */
static wf_status pass_gradients(const wf_planner_model *m)
{
    int64_t n;
    wf_param *const *param;
    WF_TRY(wf_layer_params(m->model, &n, &param));
    for (int64_t i = 0; i < n; i++) {
        if (!param[i]->trainable || !param[i]->grad)
            continue;
        const wf_array g = wf_tensor_array(param[i]->grad);
        WF_TRY(wf_tensor_fill(param[i]->grad, 0));
        /* The numbers stay zeros: only the time of the pass matters. */
        WF_TRY(
            m->ctx->k->binary(m->ctx, &(wf_binary_args){.op = WF_BINARY_MUL, .alpha = 1, .a = &g, .b = &g, .y = &g}));
    }
    return WF_OK;
}

/* A chunk's backward adds to the gradients of the chunks before it; the update comes with a chunk of its own. */
static wf_status backward_of_chunk(measuring *c, wf_var *loss, int round)
{
    double start = wf_planner_now();
    WF_TRY(wf_backward_run(loss, NULL, &(wf_backward_opts){.add = true}));
    c->wall[1][round] = wf_planner_now() - start;
    take_rows(c, round, false);
    start = wf_planner_now();
    WF_TRY(pass_gradients(c->m));
    c->wall[3][round] = wf_planner_now() - start;
    WF_TRY(wf_tape_reset(c->tape));
    WF_TRY(wf_optim_step(c->g->optim, loss_of(c)));
    c->wall[2][round] = update_seconds(c);
    return WF_OK;
}

static wf_status backward_of_step(measuring *c, wf_var *loss, int round)
{
    const double start = wf_planner_now();
    WF_TRY(wf_optim_step(c->g->optim, loss));
    c->wall[1][round] = wf_planner_now() - start;
    take_rows(c, round, false);
    c->wall[2][round] = update_seconds(c);
    /* The update is inside of the step, and is counted by itself. */
    c->wall[1][round] -= c->wall[2][round];
    return WF_OK;
}

static wf_status apply_once(measuring *c, int round)
{
    const size_t before = wf_ctx_memory(c->m->ctx).bytes_in_use;
    const double start = wf_planner_now();
    wf_var *y = wf_planner_apply(c->m, c->tape, c->x);
    c->wall[0][round] = wf_planner_now() - start;
    take_rows(c, round, true);
    wf_var *loss = wf_mean(wf_mul(y, y));
    WF_TRY(wf_check(loss));
    /* After forward everything is there that backward will read. */
    c->t->kept = (double)(wf_ctx_memory(c->m->ctx).bytes_in_use - before);
    if (!c->packed_seen) /* later the forms of backward are there, too */
        WF_TRY(packed_of(c->m, false, &c->t->packed_forward));
    c->packed_seen = true;
    WF_TRY(c->t->chunk ? backward_of_chunk(c, loss, round) : backward_of_step(c, loss, round));
    /* Rows add up over the profile, so those of forward are in both numbers. */
    for (int i = 0; i < c->m->n_leaves; i++)
        c->leaf[(2 * i + 1) * STEPS + round] -= c->leaf[2 * i * STEPS + round];
    return WF_OK;
}

/* The first of a step's chunks packs parameters for all of them, so it is not the one that is measured. */
static wf_status first_chunk(measuring *c)
{
    WF_TRY(wf_backward(loss_of(c)));
    return wf_tape_reset(c->tape);
}

/* One profile for both ways: it owns the names by which backward knows the layers. */
static wf_status step_once(measuring *c, int round)
{
    wf_ctx *ctx = c->m->ctx;
    for (int i = 0; i < 2 * c->m->n_leaves; i++)
        c->leaf[i * STEPS + round] = 0;
    if (c->t->chunk)
        WF_TRY(first_chunk(c));
    /* All ranks begin together: they share memory and clocks. */
    WF_TRY(wf_barrier(c->g->comm));
    /* The peak counts from here. */
    (void)wf_pool_mark(ctx);
    WF_TRY(wf_profile_begin(ctx, 0));
    wf_status status = apply_once(c, round);
    if (status == WF_OK)
        status = wf_tape_reset(c->tape);
    wf_profile_free(ctx->profile);
    c->peak = wf_pool_mark(ctx);
    /* What a step leaves behind: parameters, gradients, states. The noise is the measurement's own. */
    c->t->fixed = (double)wf_ctx_memory(ctx).bytes_in_use - wf_planner_noise_bytes(c->m, c->x);
    return status;
}

static void settle(measuring *c)
{
    wf_planner_times *t = c->t;
    t->forward_s = wf_gauge_median(c->wall[0], STEPS);
    t->backward_s = wf_gauge_median(c->wall[1], STEPS);
    t->update_s = wf_gauge_median(c->wall[2], STEPS);
    t->passes_s = wf_gauge_median(c->wall[3], STEPS);
    for (int i = 0; i < c->m->n_leaves; i++) {
        t->leaf_forward_s[i] = wf_gauge_median(c->leaf + (ptrdiff_t)(2 * i) * STEPS, STEPS);
        t->leaf_backward_s[i] = wf_gauge_median(c->leaf + (ptrdiff_t)(2 * i + 1) * STEPS, STEPS);
    }
    /* What is needed beyond what is kept: workspaces, and gradients on their way. */
    const double peak = (double)c->peak - wf_planner_noise_bytes(c->m, c->x);
    t->more = peak > t->fixed + t->kept ? peak - t->fixed - t->kept : 0;
}

/* Steps until they take about as long; of several attempts the fastest counts. */
static wf_status attempt(measuring *c)
{
    double best = 0;
    bool is = false;
    for (int again = 0; again < AGAIN && !is; again++) {
        /* Only before the first attempt: later ones are warm. */
        for (int i = again ? 0 : -WARM; i < STEPS; i++)
            WF_TRY(step_once(c, i < 0 ? 0 : i));
        double wall[STEPS];
        for (int i = 0; i < STEPS; i++)
            wall[i] = c->wall[0][i] + c->wall[1][i];
        WF_TRY(settled(c->g, wall, STEPS, &is));
        double took = wf_gauge_median(wall, STEPS);
        WF_TRY(wf_allreduce_f64(c->g->comm, &took, 1, WF_MAX));
        if (again == 0 || took < best) {
            /* All ranks compare the same number, so they keep the same attempt. */
            best = took;
            settle(c);
        }
    }
    return packed_of(c->m, false, &c->t->packed);
}

static wf_status measure(wf_gauge *g, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    measuring c = {.g = g, .m = m, .t = t, .tape = wf_tape_new(m->ctx)};
    c.leaf = wf_calloc(m->ctx, 2 * (size_t)m->n_leaves * STEPS + 1, sizeof *c.leaf);
    c.x = wf_planner_noise(m, c.tape, batch);
    wf_status status = c.tape && c.leaf && c.x ? wf_tape_reset(c.tape) : wf_error_code();
    t->packed_forward = 0;
    /* Batches of other sizes have had forms of their own. */
    if (status == WF_OK)
        status = packed_of(m, true, &t->packed);
    /* While `reusing` is set, kernels pack parameters as in a pipeline whose chunks share them. */
    m->ctx->reusing += t->chunk;
    if (status == WF_OK)
        status = attempt(&c);
    m->ctx->reusing -= t->chunk;
    wf_planner_noise_free(m, c.x);
    wf_tape_free(c.tape);
    free(c.leaf);
    /* A rank that failed has left the others in a collective that notices it; here all get one status. */
    return wf_agree_status(g->comm, status);
}

/* What the times depend on: types, options, shapes without the batch. Two models of equal layers share their
 * numbers. */
uint64_t wf_gauge_signature(const wf_planner_model *m)
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

/* Numbers as they lie in the cache's file; a new one needs another key. */
#define SCALARS 9

/* One list for both directions, so that order cannot differ between them. */
static void pack(const wf_planner_model *m, wf_planner_times *t, double *numbers, bool out)
{
    double *const scalar[SCALARS] = {&t->forward_s, &t->backward_s, &t->update_s,       &t->kept,    &t->fixed,
                                     &t->more,      &t->packed,     &t->packed_forward, &t->passes_s};
    for (int i = 0; i < SCALARS; i++)
        *(out ? &numbers[i] : scalar[i]) = *(out ? scalar[i] : &numbers[i]);
    for (int i = 0; i < m->n_leaves; i++) {
        double *f = &t->leaf_forward_s[i], *b = &t->leaf_backward_s[i];
        double *pair = &numbers[SCALARS + 2 * i];
        *(out ? &pair[0] : f) = *(out ? f : &pair[0]);
        *(out ? &pair[1] : b) = *(out ? b : &pair[1]);
    }
}

/* `chunk` is part of the key: chunks are measured in another way. */
static wf_status measure_step(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    wf_gauge *g = own;
    char key[KEY];
    bool found;
    const int count = SCALARS + 2 * m->n_leaves;
    double *numbers = wf_calloc(m->ctx, (size_t)count, sizeof *numbers);
    /* A rank without memory fails all, before the first collective of the measurement. */
    WF_TRY(wf_agree_status(g->comm, numbers ? WF_OK : wf_error_code()));
    t->batch = batch;
    snprintf(key, sizeof key, "%s of %016llx, %zu bytes of state, batch %lld, %s", t->chunk ? "chunk" : "step",
             (unsigned long long)wf_gauge_signature(m), wf_optim_state_bytes(g->optim), (long long)batch, g->machine);
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

/* Forward and backward together: a part costs both in every step. */
static wf_status part_once(wf_tape *tape, wf_layer *layer, const wf_tensor *x, double *seconds, size_t *workspace)
{
    const double start = wf_planner_now();
    (void)wf_pool_mark(layer->ctx);
    wf_var *y = wf_apply(layer, wf_leaf(tape, x));
    WF_TRY(wf_check(y));
    const size_t kept = wf_ctx_memory(layer->ctx).bytes_in_use;
    wf_tensor *ones = wf_tensor_new_like(wf_value(y));
    wf_status status = ones ? wf_tensor_fill(ones, 1) : wf_error_code();
    if (status == WF_OK)
        status = wf_backward_from(y, ones);
    *seconds = wf_planner_now() - start;
    *workspace = wf_pool_mark(layer->ctx) - kept;
    wf_tensor_free(ones);
    return status == WF_OK ? wf_tape_reset(tape) : status;
}

/* `layout`: of the input; NULL: none. */
static wf_status time_part(wf_gauge *g, wf_layer *layer, wf_shape shape, const wf_layout *layout, wf_planner_part *part)
{
    wf_tape *tape = wf_tape_new(layer->ctx);
    size_t workspace = 0;
    wf_tensor *x = wf_keep(wf_rand_uniform(tape, shape, -1, 1, NULL));
    double took[AGAIN * ROUNDS];
    bool is = false;
    int count = 0;
    wf_status status = tape && x ? wf_tape_reset(tape) : wf_error_code();
    if (status == WF_OK && layout)
        status = wf_tensor_set_layout(x, *layout);
    for (int i = 0; i < WARM && status == WF_OK; i++)
        status = part_once(tape, layer, x, &took[0], &workspace);
    /* More rounds until they settle; all of them count then. */
    while (!is && count < AGAIN * ROUNDS && status == WF_OK) {
        for (const int until = count + ROUNDS; count < until && status == WF_OK; count++) {
            status = wf_barrier(g->comm);
            if (status == WF_OK)
                status = part_once(tape, layer, x, &took[count], &workspace);
        }
        if (status == WF_OK)
            status = settled(g, took, count, &is);
    }
    wf_tensor_free(x);
    wf_tape_free(tape);
    if (status == WF_OK)
        *part = (wf_planner_part){wf_gauge_median(took, count), (double)workspace};
    return wf_agree_status(g->comm, status);
}

/* What a part's time depends on. Parts of different models with equal sizes share their numbers. */
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

static wf_status note_part(wf_gauge *g, const char *key, const wf_planner_part *part, double numbers[2])
{
    numbers[0] = part->seconds;
    numbers[1] = part->workspace;
    return wf_gauge_note(g, key, 2, numbers);
}

static wf_status part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out,
                         wf_planner_part *part)
{
    wf_gauge *g = own;
    char key[KEY];
    double numbers[2];
    bool found;
    /* The layer with other numbers of channels, and nothing else of the model. */
    wf_layer *made = wf_part_new(leaf->layer, in, out);
    /* NULL means no channels as well as a failure: the pending error tells. */
    WF_TRY(wf_agree_status(g->comm, wf_error_pending()));
    /* Pooling has no channels of its own, so the layer itself does. */
    wf_layer *layer = made ? made : leaf->layer;
    name_part(g, leaf, layer, x, key);
    wf_status status = wf_gauge_find(g, key, 2, numbers, &found);
    if (status == WF_OK && !found) {
        status = time_part(g, layer, x, NULL, part);
        if (status == WF_OK)
            status = note_part(g, key, part, numbers);
    }
    if (status == WF_OK)
        *part = (wf_planner_part){numbers[0], numbers[1]};
    wf_layer_free(made);
    return status;
}

static wf_status open_axis(wf_gauge *g, wf_axis axis)
{
    wf_mesh_opts opts = {.data = 1};
    int *const size[WF_AXES] = {[WF_AXIS_CHANNEL] = &opts.channel,
                                [WF_AXIS_DEPTH] = &opts.depth,
                                [WF_AXIS_HEIGHT] = &opts.height,
                                [WF_AXIS_WIDTH] = &opts.width};
    *size[axis] = wf_comm_size(g->comm);
    g->mesh[axis] = wf_mesh_open(g->comm, opts);
    return g->mesh[axis] ? WF_OK : wf_error_code();
}

/* The parallel layer itself, on an input that gives each rank of the gauge a part of this shape. So messages are in the
 * time. */
static wf_status time_split(wf_gauge *g, const wf_planner_leaf *leaf, wf_shape x, wf_axis axis, wf_planner_part *part)
{
    const bool channel = axis == WF_AXIS_CHANNEL, whole = channel && x.dim[1] == leaf->x.dim[1];
    const int d = channel ? 1 : x.rank - 1 - (WF_AXIS_WIDTH - (int)axis);
    wf_shape all = x;
    wf_layout layout;
    /* Meshes are kept: opening one is collective and takes time. */
    if (!g->mesh[axis])
        WF_TRY(open_axis(g, axis));
    /* x is one rank's part; its whole is as many times longer. */
    all.dim[d] *= whole ? 1 : wf_comm_size(g->comm);
    wf_layer *made = wf_part_new(leaf->layer, 1, 1), *layer = made ? made : leaf->layer;
    wf_status status = wf_error_pending();
    if (status == WF_OK && made)
        status = wf_parallelize(made, g->mesh[axis], channel ? WF_PARALLEL_CHANNEL : WF_PARALLEL_SPATIAL);
    if (status == WF_OK && whole)
        layout = wf_mesh_layout_same(g->mesh[axis], all);
    else if (status == WF_OK)
        status = wf_mesh_layout_activation(g->mesh[axis], all, &layout);
    status = wf_agree_status(g->comm, status);
    if (status == WF_OK)
        status = time_part(g, layer, x, &layout, part);
    wf_layer_free(made);
    return status;
}

static wf_status split_of(void *own, const wf_planner_leaf *leaf, wf_shape x, wf_axis axis, int ranks,
                          wf_planner_part *part)
{
    wf_gauge *g = own;
    char key[KEY], name[KEY];
    double numbers[2];
    bool found;
    *part = (wf_planner_part){0};
    /* Measured only where all ranks are on one node, and for channels only with as many ranks as are asked for: else
     * the caller prices it. */
    if (wf_comm_size(g->comm) == 1 || wf_comm_inter_size(g->comm) > 1 ||
        (axis == WF_AXIS_CHANNEL && ranks != wf_comm_size(g->comm)))
        return WF_OK;
    name_part(g, leaf, leaf->layer, x, name);
    snprintf(key, sizeof key, "split along %s, %.900s", wf_axis_name(axis), name);
    wf_status status = wf_gauge_find(g, key, 2, numbers, &found);
    if (status == WF_OK && !found) {
        status = time_split(g, leaf, x, axis, part);
        if (status == WF_OK)
            status = note_part(g, key, part, numbers);
    }
    if (status == WF_OK)
        *part = (wf_planner_part){numbers[0], numbers[1]};
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

/* The state is there after a first step, of two samples: its bytes are known only then. */
static wf_status bind_optimizer(wf_gauge *g, const wf_planner_model *m)
{
    wf_tape *tape = wf_tape_new(m->ctx);
    wf_tensor **x = wf_planner_noise(m, tape, 2);
    wf_var *y = wf_planner_apply(m, tape, x);
    wf_status status = wf_optim_step(g->optim, wf_mean(wf_mul(y, y)));
    wf_planner_noise_free(m, x);
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
    snprintf(g->machine, sizeof g->machine, "weft %s, %s, %s on %s, %d ranks of %d threads", wf_version(),
             wf_ctx_device(m->ctx), processor, host, wf_comm_size(g->comm), wf_ctx_threads(m->ctx));
    for (int i = 0; i < m->n_leaves; i++)
        words += m->leaf[i].params;
    *meter = (wf_planner_meter){
        .own = g, .step = measure_step, .split = split_of, .part = part_of, .overlap = wf_gauge_overlap};
    /* Until links are measured, the model's usual numbers stand for them. */
    meter->links = wf_price_model_default();
    for (int i = 0; i < 2; i++)
        meter->exchange[i] = (wf_planner_link){meter->links.alpha_s[i], meter->links.beta_s[i]};
    meter->one_way = meter->exchange[1];
    if (words > 0)
        meter->state_words = (double)wf_optim_state_bytes(g->optim) / (4 * words);
    return WF_OK;
}
