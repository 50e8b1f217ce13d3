/* Model files of models whose parts are on several ranks: one file holds the whole serial model, whoever has the parts,
 * and any other division loads it. */
#include "tests/file/model_parts.h"
#include "comm/file_author.h"
#include "optim/trainer.h"
#include "tests/world.h"

#include <math.h>
#include <unistd.h>

static const form forms[] = {
    {.name = "whole", .ranks = 1, .mesh = {.data = 1}, .whole = true},
    {.name = "whole on two", .ranks = 2, .mesh = {.data = 2}, .whole = true},
    {.name = "one stage", .ranks = 1, .mesh = {.data = 1, .stage = 1}},
    {.name = "two stages", .ranks = 2, .mesh = {.data = 1, .stage = 2}},
    {.name = "two stages of two parts", .ranks = 2, .mesh = {.data = 1, .stage = 2}, .interleaved = true},
    {.name = "three stages", .ranks = 3, .mesh = {.data = 1, .stage = 3}},
    {.name = "data 3", .ranks = 3, .mesh = {.data = 3}, .whole = true},
    {.name = "channel 3", .ranks = 3, .mesh = {.data = 1, .channel = 3}, .whole = true},
    {.name = "four stages", .ranks = 4, .mesh = {.data = 1, .stage = 4}},
    {.name = "two stages, data 2", .ranks = 4, .mesh = {.data = 2, .stage = 2}},
    {.name = "two stages, channel 2", .ranks = 4, .mesh = {.data = 1, .channel = 2, .stage = 2}},
    {.name = "channel 2", .ranks = 2, .mesh = {.data = 1, .channel = 2}, .whole = true}};
enum { FORMS = sizeof forms / sizeof *forms };

/* --- Values that follow from the name ----------------------------------------------------------------------------- */

/* Under which the serial model has it. */
static const char *serial_name(const wf_param *param)
{
    const char *path = wf_param_path(param) + strlen("net/");
    return strcmp(path, "8/W") == 0 ? "0/W" : path;
}

static float value_at(const char *name, int64_t i, int generation)
{
    double letters = 0.3 * generation;
    for (const char *c = name; *c; c++)
        letters = 1.7 * letters + *c;
    return (float)sin(letters + 0.37 * (double)i);
}

/* Other counts for the two normalisations. */
static int64_t batches_of(const wf_param *param, int generation)
{
    const char *name = serial_name(param);
    return strstr(name, "avg_var") ? 100 * generation + *name : 0;
}

static void fill(wf_layer *model, int generation)
{
    int64_t n;
    wf_param *const *params;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t p = 0; p < n; p++) {
        float host[64];
        const int64_t count = wf_shape_count(params[p]->global);
        for (int64_t i = 0; i < count; i++)
            host[i] = value_at(serial_name(params[p]), i, generation);
        wf_tensor *whole = wf_tensor_from_host(ctx, WF_F32, params[p]->global, host);
        WF_EXPECT_OK(wf_param_import(params[p], whole));
        params[p]->batches = batches_of(params[p], generation);
        wf_tensor_free(whole);
    }
}

/* Each rank looks at its own part. */
static void check(const char *what, wf_layer *model, int generation)
{
    int64_t n;
    wf_param *const *params;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    WF_EXPECT(n > 0, "%s: no parameters", what);
    for (int64_t p = 0; p < n; p++) {
        float host[64], own[64];
        const int64_t count = wf_shape_count(params[p]->global), mine = wf_shape_count(params[p]->shape);
        for (int64_t i = 0; i < count; i++)
            host[i] = value_at(serial_name(params[p]), i, generation);
        wf_tensor *whole = wf_tensor_from_host(ctx, WF_F32, params[p]->global, host);
        wf_tensor *part = wf_tensor_view(whole, params[p]->box);
        WF_EXPECT_OK(wf_tensor_export(part, host, (size_t)mine * sizeof *host));
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(params[p]), own, (size_t)mine * sizeof *own));
        WF_EXPECT(memcmp(host, own, (size_t)mine * sizeof *own) == 0, "%s: %s is not what was saved", what,
                  wf_param_path(params[p]));
        WF_EXPECT(params[p]->batches == batches_of(params[p], generation), "%s: %s has seen %lld batches", what,
                  wf_param_path(params[p]), (long long)params[p]->batches);
        wf_tensor_free(part);
        wf_tensor_free(whole);
    }
}

/* --- Any division to any other ------------------------------------------------------------------------------------ */

static wf_status find_name(void *user, wf_h5 *file, const char *name)
{
    static const char *const names[] = {"0/W",     "0/b", "1/N",        "1/avg_mean", "1/avg_var", "1/beta",
                                        "1/gamma", "3/W", "3/b",        "4/0/W",      "4/0/b",     "4/1/W",
                                        "4/1/b",   "5/N", "5/avg_mean", "5/avg_var",  "5/beta",    "5/gamma",
                                        "6/W",     "6/b", "8/b",        "9/W",        "9/b"};
    int64_t *found = user, i = 0;
    while (i < (int64_t)(sizeof names / sizeof *names) && strcmp(names[i], name) != 0)
        i++;
    WF_EXPECT(i < (int64_t)(sizeof names / sizeof *names), "%s is not of the serial model", name);
    *found += 1;
    return WF_OK;
}

/* Exactly the serial model's names. */
static void expect_serial_names(const char *what, const char *path)
{
    int64_t found = 0;
    wf_h5 *file = wf_h5_open(path);
    WF_EXPECT(file, "%s: %s", what, wf_error_message());
    WF_EXPECT_OK(wf_h5_each(file, find_name, &found));
    WF_EXPECT(found == 23, "%s: the file has %lld data sets, should have 23", what, (long long)found);
    WF_EXPECT_OK(wf_h5_close(file));
}

static void save_form(const form *f, const char *path)
{
    wf_comm *over = wf_comm_split(comm, rank < f->ranks ? 0 : -1, rank);
    if (over) {
        parted p = parts_open(f, over, true);
        fill(p.model, 0);
        WF_EXPECT_OK(wf_save_over(over, p.model, path));
        if (rank == 0)
            expect_serial_names(f->name, path);
        parts_close(&p);
        WF_EXPECT_OK(wf_comm_close(over));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static void load_form(const form *from, const form *to, const char *path, bool partial)
{
    char what[128];
    char *left_out = NULL;
    wf_comm *over = wf_comm_split(comm, rank < to->ranks ? 0 : -1, rank);
    snprintf(what, sizeof what, "%s from %s", to->name, from->name);
    if (over) {
        parted p = parts_open(to, over, true);
        fill(p.model, 1);
        if (partial)
            WF_EXPECT_OK(wf_load_partial_over(over, p.model, path, &left_out));
        else
            WF_EXPECT_OK(wf_load_over(over, p.model, path));
        WF_EXPECT(!partial || (left_out && !*left_out), "%s: left out is\n%s", what, left_out ? left_out : "NULL");
        free(left_out);
        check(what, p.model, 0);
        parts_close(&p);
        WF_EXPECT_OK(wf_comm_close(over));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static void any_division_loads_any_other(void)
{
    const int taken = FORMS / (test_samples(FORMS) + 1), stride = taken > 0 ? taken : 1;
    for (int from = 0; from < FORMS; from++) {
        if (forms[from].ranks > size)
            continue;
        save_form(&forms[from], in_folder("net.h5"));
        for (int to = from % stride; to < FORMS; to += stride)
            if (forms[to].ranks <= size && (forms[from].ranks == size || forms[to].ranks == size))
                load_form(&forms[from], &forms[to], in_folder("net.h5"), (from + to / stride) % 3 == 0);
    }
}

/* --- The best model ----------------------------------------------------------------------------------------------- */

static wf_status watch_step(wf_trainer *trainer, void *user)
{
    fill(user, (int)wf_trainer_iteration(trainer));
    return wf_trainer_observe(trainer, "loss", fabs((double)wf_trainer_iteration(trainer) - 2), 1);
}

static void the_best_model_is_whole(void)
{
    const form stages = {.ranks = size, .mesh = {.data = 1, .stage = size}};
    parted p = parts_open(&stages, comm, true);
    wf_trainer *t =
        wf_trainer_new(comm, watch_step, p.model, (wf_trainer_opts){.iterations = 5, .report = {.iterations = 1}});
    WF_EXPECT_OK(wf_trainer_keep_best(t, "loss", (wf_best_opts){.model = p.model, .path = in_folder("best.h5")}));
    WF_EXPECT_OK(wf_trainer_run(t));
    WF_EXPECT_OK(wf_trainer_load_best(t));
    check("the best", p.model, 2);
    if (rank == 0)
        expect_serial_names("the best", in_folder("best.h5"));
    wf_trainer_free(t);
    parts_close(&p);
}

/* --- Components on several ranks ---------------------------------------------------------------------------------- */

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

/* One component on each rank; the serial model has them all. */
static wf_layer *component_of(int r)
{
    return wf_linear(ctx, (wf_linear_opts){.in = 2 + r, .out = 3 + r});
}

static wf_layer *components(bool serial)
{
    char name[16];
    wf_layer *model = serial ? wf_module(ctx, no_forward, NULL) : wf_multi_node_chain(comm);
    for (int r = 0; r < size; r++) {
        snprintf(name, sizeof name, "part%d", r);
        if (serial)
            wf_module_add(model, name, component_of(r));
        else if (r == rank)
            WF_EXPECT_OK(
                wf_multi_node_chain_add(model, (wf_component){.name = name,
                                                              .layer = component_of(r),
                                                              WF_FROM({.rank = r == 0 ? WF_OUTSIDE : r - 1}),
                                                              WF_TO({.rank = r == size - 1 ? WF_OUTSIDE : r + 1})}));
    }
    model = wf_layer_named(model, "net");
    return model;
}

static void components_are_one_model(void)
{
    for (int from = 0; from < 2; from++) {
        wf_layer *model = components(from), *other = components(!from);
        fill(model, 0);
        fill(other, 1);
        WF_EXPECT_OK(wf_save_over(comm, model, in_folder("chain.h5")));
        WF_EXPECT_OK(wf_load_over(comm, other, in_folder("chain.h5")));
        check(from ? "components from the serial model" : "the serial model from components", other, 0);
        wf_layer_free(model);
        wf_layer_free(other);
    }
}

/* --- Lists that should not differ --------------------------------------------------------------------------------- */

static void expect_refused(wf_layer *model, const char *what, const char *one, const char *other)
{
    const wf_status status = wf_save_over(comm, model, in_folder("never.h5"));
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), one) && strstr(wf_error_message(), other),
              "%s: %s: %s", what, wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(access(in_folder("never.h5"), F_OK) != 0 && access(in_folder("never.h5.tmp"), F_OK) != 0,
              "%s: a file was made", what);
    wf_layer_free(model);
}

static void other_differences_are_errors(void)
{
    char ranks[64];
    if (size == 1)
        return;
    wf_layer *model = wf_module(ctx, no_forward, NULL);
    wf_module_add(model, "a", component_of(0));
    if (rank != size - 1)
        wf_module_add(model, "b", component_of(1));
    snprintf(ranks, sizeof ranks, "on rank 0 and not on rank %d", size - 1);
    expect_refused(model, "a layer that one rank lacks", "b/W is", ranks);
    model = wf_module(ctx, no_forward, NULL);
    if (rank == size - 1)
        wf_module_add(model, "c", component_of(1));
    snprintf(ranks, sizeof ranks, "on rank %d and not on rank 0", size - 1);
    expect_refused(model, "a layer that one rank has", "c/W is", ranks);
    model = wf_module(ctx, no_forward, NULL);
    wf_module_add(model, "a", component_of(rank == size - 1 ? 2 : 1));
    snprintf(ranks, sizeof ranks, "f32 [4,3] on rank 0 and f32 [5,4] on rank %d", size - 1);
    expect_refused(model, "another shape", "a/W is", ranks);
    if (size < 4)
        return;
    static const form stages = {.ranks = 4, .mesh = {.data = 2, .stage = 2}};
    parted p = parts_open(&stages, comm, true);
    if (rank == size - 1)
        wf_module_add(p.model, "more", component_of(0));
    const wf_status status = wf_save_over(comm, p.model, in_folder("never.h5"));
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), "more/W is on rank 3 and not on rank"), "%s",
              wf_error_message());
    wf_error_clear();
    parts_close(&p);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"any_division_loads_any_other", any_division_loads_any_other},
                                               {"the_best_model_is_whole", the_best_model_is_whole},
                                               {"components_are_one_model", components_are_one_model},
                                               {"other_differences_are_errors", other_differences_are_errors},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
