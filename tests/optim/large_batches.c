/* Layer-wise optimizers on several ranks against their formulas written out: LAMB, LARS, and
 * examples/scaled_rmsprop.c, which is written outside of the library; sharded state, archives; and a rule that does
 * something else. */
#include "examples/scaled_rmsprop.h"
#include "optim/multi_node.h"
#include "optim/optim_author.h"
#include "tests/optim/optim_pair.h"

#include <math.h>
#include <string.h>

enum { STEPS = 4 };

/* --- the formulas -------------------------------------------------------------------------------------------------
 */

typedef struct way {
    bool lars, nesterov, plain_vectors, scale_undecayed;
    double decay, clip;
    wf_multi_node_opts opts;
} way;

static double length_of(int n, const double *x)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void move_by(int n, double *p, const double *d, double lr, bool scaled)
{
    const double length = length_of(n, p), along = length_of(n, d);
    const double ratio = scaled && length > 0 && along > 0 ? length / along : 1;
    for (int i = 0; i < n; i++)
        p[i] -= lr * ratio * d[i];
}

static void one_parameter(const way *w, int t, int n, double *p, const double *g, double *m, double *v)
{
    const bool vector = n == VECTOR, decays = w->decay > 0 && !(vector && (w->lars || w->plain_vectors));
    double d[ALL];
    for (int i = 0; i < n; i++) {
        const double decay = decays ? w->decay * p[i] : 0;
        m[i] = w->lars ? 0.9 * m[i] + g[i] + decay : 0.9 * m[i] + 0.1 * g[i];
        v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
        d[i] = w->lars && w->nesterov ? 0.9 * m[i] + g[i] + decay
               : w->lars              ? m[i]
                                      : m[i] / (1 - pow(0.9, t)) / (sqrt(v[i] / (1 - pow(0.999, t))) + 1e-6) + decay;
    }
    move_by(n, p, d, 0.05, w->lars ? !vector : decays || w->scale_undecayed);
}

static void expected(const way *w, double p[ALL])
{
    double m[ALL] = {0}, v[ALL] = {0}, g[ALL];
    for (int i = 0; i < ALL; i++)
        p[i] = start_of(i);
    for (int t = 0; t < STEPS; t++) {
        for (int i = 0; i < ALL; i++) {
            g[i] = 0;
            for (int r = 0; r < size; r++)
                g[i] += gradient_of(t, i, r) / size;
        }
        const double length = length_of(ALL, g);
        for (int i = 0; i < ALL && w->clip > 0 && length > w->clip; i++)
            g[i] *= w->clip / length;
        one_parameter(w, t + 1, MATRIX, p, g, m, v);
        one_parameter(w, t + 1, VECTOR, p + MATRIX, g + MATRIX, m + MATRIX, v + MATRIX);
    }
}

static wf_optim *optim_of(wf_layer *model, const way *w)
{
    const double decay = w->decay > 0 ? w->decay : WF_ZERO;
    const wf_lamb_opts opts = {
        .lr = 0.05, .weight_decay = decay, .plain_vectors = w->plain_vectors, .scale_undecayed = w->scale_undecayed};
    wf_optim *local = w->lars
                          ? wf_lars(model, (wf_lars_opts){.lr = 0.05, .weight_decay = decay, .nesterov = w->nesterov})
                          : wf_lamb(model, opts);
    wf_optim *optim = wf_multi_node(comm, local, w->opts);
    WF_EXPECT(optim, "%s", wf_error_message());
    WF_EXPECT_OK(wf_optim_clip_norm(optim, w->clip));
    return optim;
}

static void check_way(const way *w)
{
    wf_layer *model = pair_new();
    wf_optim *optim = optim_of(model, w);
    double should[ALL];
    int64_t n;
    for (int t = 0; t < STEPS; t++)
        WF_EXPECT_OK(pair_step(model, optim, t));
    expected(w, should);
    double *seen = values_of(model, &n);
    const double off = test_distance(ALL, seen, should);
    WF_EXPECT(off < 1e-13, "%s, decay %g, clip %g%s%s%s on rank %d of %d: off by %g", w->lars ? "LARS" : "LAMB",
              w->decay, w->clip, w->plain_vectors ? ", plain vectors" : "",
              w->scale_undecayed ? ", scaled without decay" : "", w->opts.shard_optimizer ? ", sharded" : "", rank,
              size, off);
    free(seen);
    wf_optim_free(optim);
    wf_layer_free(model);
}

/* Sharded: in buckets of one gradient each, of both together, and cut at every line. */
static void formulas(void)
{
    static const int64_t buckets[] = {1, 1 << 20};
    open_comm("flat", "ref", WF_F64);
    for (int c = 0; c < 16; c++)
        for (int b = 0; b < 3; b++)
            check_way(&(way){.lars = c & 1,
                             .nesterov = c & 2,
                             .plain_vectors = c & 2,
                             .scale_undecayed = c & 4,
                             .decay = c & 8 ? 0.1 : 0,
                             .clip = c & 4 ? 0.7 : 0,
                             .opts = {.shard_optimizer = b > 0,
                                      .bucket_bytes = b ? buckets[b - 1] : 0,
                                      .first_bucket_bytes = b ? buckets[b - 1] : 0}});
    close_comm();
}

/* --- archives -----------------------------------------------------------------------------------------------------
 */

/* Saved by either form after two steps and gone on with by either: the end is that of the formula. */
static void resumes(void)
{
    open_comm("flat", "ref", WF_F64);
    for (int c = 0; c < 8; c++) {
        way from = {.lars = c & 1, .decay = 0.1, .opts = {.shard_optimizer = c & 2}}, to = from;
        to.opts.shard_optimizer = c & 4;
        wf_layer *model = pair_new(), *copy = pair_new();
        wf_optim *optim = optim_of(model, &from), *other = optim_of(copy, &to);
        wf_archive *archive = wf_archive_memory(ctx);
        double should[ALL];
        int64_t n;
        for (int t = 0; t < STEPS / 2; t++)
            WF_EXPECT_OK(pair_step(model, optim, t));
        visit_pair(model, optim, archive);
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        visit_pair(copy, other, archive);
        for (int t = STEPS / 2; t < STEPS; t++)
            WF_EXPECT_OK(pair_step(copy, other, t));
        expected(&from, should);
        double *seen = values_of(copy, &n);
        WF_EXPECT(test_distance(ALL, seen, should) < 1e-13, "case %d goes on differently, by %g", c,
                  test_distance(ALL, seen, should));
        free(seen);
        wf_archive_free(archive);
        wf_optim_free(optim);
        wf_optim_free(other);
        wf_layer_free(model);
        wf_layer_free(copy);
    }
    close_comm();
}

static void expect_refused(wf_optim *saved, wf_optim *loads, const char *by)
{
    wf_archive *archive = wf_archive_memory(ctx);
    WF_EXPECT_OK(wf_optim_archive(saved, archive));
    WF_EXPECT_OK(wf_archive_memory_rewind(archive));
    const wf_status status = wf_optim_archive(loads, archive);
    WF_EXPECT(status == WF_ERR_FORMAT && strstr(wf_error_message(), by), "%s: '%s' does not name %s",
              wf_status_name(status), wf_error_message(), by);
    wf_error_clear();
    wf_archive_free(archive);
}

static void archives_of_others(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_layer *model = pair_new();
    wf_optim *mine = scaled_rmsprop(model, (scaled_rmsprop_opts){0}), *theirs = wf_lamb(model, (wf_lamb_opts){0});
    wf_optim *sgd = wf_sgd(model, (wf_sgd_opts){.momentum = 0.9});
    expect_refused(mine, theirs, "does not know, the optimizer is lamb");
    expect_refused(theirs, mine, "of lamb, the optimizer is scaled_rmsprop");
    expect_refused(sgd, mine, "of sgd, the optimizer is scaled_rmsprop");
    wf_optim_free(sgd);
    wf_optim_free(mine);
    wf_optim_free(theirs);
    wf_layer_free(model);
    close_comm();
}

/* --- parameters of which ranks have parts -------------------------------------------------------------------------
 */

static void parts_need_the_mesh(void)
{
    open_comm("flat", "ref", WF_F64);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size});
    const bool parts = size > 1;
    wf_layer *model = wf_channel_linear(mesh, (wf_linear_opts){.in = 8, .out = 8});
    wf_optim *optim = wf_lamb(model, (wf_lamb_opts){0});
    for (int64_t i = 0; param_of(model, i); i++) {
        static const double g[64] = {1, 2, 3};
        grad_set(param_of(model, i), g);
    }
    const wf_status status = wf_optim_update(optim);
    WF_EXPECT(status == (parts ? WF_ERR_STATE : WF_OK), "%s: %s", wf_status_name(status), wf_error_message());
    WF_EXPECT(!parts || strstr(wf_error_message(), "use wf_mesh_multi_node"), "'%s'", wf_error_message());
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(model);
    wf_mesh_close(mesh);
    close_comm();
}

/* --- a rule with a state of its own, which it keeps and changes itself --------------------------------------------
 */

typedef struct averaging {
    double keep;
    int *freed;
} averaging;

/* Gradient descent, and an average of the values that it goes through. */
static wf_status average(const wf_optim_work *work)
{
    const averaging *own = work->state;
    WF_TRY(work->ctx->k->optim_update(work->ctx, WF_OPTIM_SGD, work->hyper, work->dtype, work->n, work->segment));
    for (int64_t i = 0; i < work->n; i++) {
        const wf_optim_segment *at = &work->segment[i];
        const wf_array p = {.data = at->p, .dtype = work->dtype, .shape = WF_SHAPE(at->n)};
        const wf_array mean = {.data = at->state1, .dtype = work->dtype, .shape = WF_SHAPE(at->n)};
        const wf_binary_args args = {.alpha = own->keep, .beta = 1 - own->keep, .a = &mean, .b = &p, .y = &mean};
        if (at->n > 0)
            WF_TRY(work->ctx->k->binary(work->ctx, &args));
    }
    return WF_OK;
}

static void average_free(void *state)
{
    ++*((averaging *)state)->freed;
}

static wf_optim *averaged_sgd(wf_layer *model, double keep, int *freed)
{
    static const wf_optim_rule rule = {
        .name = "averaged", .states = {"average"}, .update = average, .free = average_free};
    wf_optim *optim = wf_optim_new(model, &rule, (wf_optim_hyper){.lr = 0.5}, sizeof(averaging));
    averaging *own = wf_optim_state(optim);
    if (own)
        *own = (averaging){keep, freed};
    wf_optim_note(optim, " that keeps %g", keep);
    return optim;
}

/* The sum of what an archive has of the averages. */
static void own_rule(void)
{
    int freed = 0;
    open_comm("flat", "ref", WF_F64);
    for (int sharded = 0; sharded < 2; sharded++) {
        wf_layer *model = pair_new();
        const wf_multi_node_opts opts = {.shard_optimizer = sharded};
        wf_optim *optim = wf_multi_node(comm, averaged_sgd(model, 0.75, &freed), opts);
        wf_archive *archive = wf_archive_memory(ctx);
        wf_tensor *mean = wf_tensor_new(ctx, WF_F64, WF_SHAPE(VECTOR));
        double p[ALL], average_of[ALL] = {0}, seen[VECTOR];
        for (int i = 0; i < ALL; i++)
            p[i] = start_of(i);
        for (int t = 0; t < STEPS; t++) {
            WF_EXPECT_OK(pair_step(model, optim, t));
            for (int i = 0; i < ALL; i++) {
                for (int r = 0; r < size; r++)
                    p[i] -= 0.5 * gradient_of(t, i, r) / size;
                average_of[i] = 0.75 * average_of[i] + 0.25 * p[i];
            }
        }
        WF_EXPECT_OK(wf_optim_archive(optim, archive));
        WF_EXPECT_OK(wf_archive_memory_rewind(archive));
        WF_EXPECT_OK(wf_archive_tensor(archive, "state/b/average", mean));
        values_get(mean, seen);
        WF_EXPECT(test_distance(VECTOR, seen, average_of + MATRIX) < 1e-14, "averages are off by %g",
                  test_distance(VECTOR, seen, average_of + MATRIX));
        wf_tensor_free(mean);
        wf_archive_free(archive);
        wf_optim_free(optim);
        WF_EXPECT(freed == sharded + 1, "freed %d times", freed);
        wf_layer_free(model);
    }
    close_comm();
}

static void other_options(void)
{
    int freed = 0;
    open_comm("flat", "ref", WF_F64);
    wf_layer *model = pair_new();
    wf_optim *optim =
        wf_multi_node(comm, averaged_sgd(model, rank == size - 1 ? 0.5 : 0.75, &freed), (wf_multi_node_opts){0});
    WF_EXPECT(!optim == (size > 1), "options that differ: %s", wf_error_message());
    WF_EXPECT(optim || strstr(wf_error_message(), "averaged that keeps 0.5"), "'%s'", wf_error_message());
    wf_error_clear();
    wf_optim_free(optim);
    WF_EXPECT(!averaged_sgd(NULL, 1, &freed), "an optimizer of no model");
    wf_error_clear();
    WF_EXPECT(!wf_optim_new(model, NULL, (wf_optim_hyper){0}, 0), "an optimizer without a rule");
    wf_error_clear();
    wf_layer_free(model);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"formulas", formulas},
                                   {"resumes", resumes},
                                   {"archives_of_others", archives_of_others},
                                   {"parts_need_the_mesh", parts_need_the_mesh},
                                   {"own_rule", own_rule},
                                   {"other_options", other_options},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
