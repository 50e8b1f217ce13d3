/* Checkpoints of models whose parts are on several ranks: one file a generation, of the whole mesh. It resumes bit for
 * bit on the same division, and on any other number of stages, with data, channels, sharded state and ties; also
 * between wf_optim_accumulate and its step. */
#include "core/archive_author.h"
#include "core/status_author.h"
#include "optim/checkpoint.h"
#include "tests/file/batch.h"
#include "tests/file/model_parts.h"
#include "tests/file/same_files.h"
#include "tests/world.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>

enum { SAMPLES = 8, BEFORE = 4, AFTER = 3 };

static const form forms[] = {
    {.name = "whole", .ranks = 1, .mesh = {.data = 1}, .whole = true},
    {.name = "one_stage", .ranks = 1, .mesh = {.data = 1, .stage = 1}},
    {.name = "two_stages", .ranks = 2, .mesh = {.data = 1, .stage = 2}},
    {.name = "interleaved", .ranks = 2, .mesh = {.data = 1, .stage = 2}, .interleaved = true},
    {.name = "three_stages", .ranks = 3, .mesh = {.data = 1, .stage = 3}, .sharded_state = true},
    {.name = "data_two", .ranks = 2, .mesh = {.data = 2}, .whole = true, .sharded_state = true},
    {.name = "data_three", .ranks = 3, .mesh = {.data = 3}, .whole = true, .sharded_state = true},
    {.name = "channel_three", .ranks = 3, .mesh = {.data = 1, .channel = 3}, .whole = true},
    {.name = "four_stages", .ranks = 4, .mesh = {.data = 1, .stage = 4}},
    {.name = "stages_data", .ranks = 4, .mesh = {.data = 2, .stage = 2}},
    {.name = "stages_data_sharded", .ranks = 4, .mesh = {.data = 2, .stage = 2}, .sharded_state = true},
    {.name = "stages_channel", .ranks = 4, .mesh = {.data = 1, .channel = 2, .stage = 2}, .sharded_state = true},
    {.name = "data_channel", .ranks = 4, .mesh = {.data = 2, .channel = 2}, .whole = true}};
enum { FORMS = sizeof forms / sizeof *forms };

typedef struct trained {
    parted p;
    wf_optim *optim;
    wf_tape *tape;
    wf_checkpoint *saves;
    wf_tensor *x, *labels;
} trained;

static bool norms, within, buffered;

/* --- What is no model: small tensors that all ranks have -----------------------------------------------------------
 */

enum { EXTRAS = 5, EXTRA = 3 };

static double extras[EXTRAS][EXTRA];

static void fill_extras(double by)
{
    for (int i = 0; i < EXTRAS; i++)
        for (int k = 0; k < EXTRA; k++)
            extras[i][k] = by * (10 * i + k + 1);
}

static void expect_extras(const char *what)
{
    for (int i = 0; i < EXTRAS; i++)
        for (int k = 0; k < EXTRA; k++)
            WF_EXPECT(extras[i][k] == 10 * i + k + 1, "%s: element %d of tensor %d is %g", what, k, i, extras[i][k]);
}

static wf_status visit_extras(void *unused, wf_archive *archive)
{
    for (int i = 0; i < EXTRAS; i++) {
        char name[16];
        snprintf(name, sizeof name, "tensor%d", i);
        wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(EXTRA), extras[i]);
        wf_status status = x ? wf_archive_tensor(archive, name, x) : wf_error_code();
        if (status == WF_OK)
            status = wf_tensor_export(x, extras[i], sizeof extras[i]);
        wf_tensor_free(x);
        WF_TRY(status);
    }
    return WF_OK;
}

/* --- A run ----------------------------------------------------------------------------------------------------------
 */

static wf_checkpoint *open_saves(const trained *t, const char *name, wf_checkpoint_opts opts)
{
    wf_checkpoint *saves = wf_checkpoint_open(t->p.comm, in_folder(name), opts);
    WF_EXPECT(saves, "%s: %s", t->p.f->name, wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(saves, "model", t->p.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(saves, "optim", t->optim));
    WF_EXPECT_OK(wf_checkpoint_add(saves, "tape", wf_tape_visit, t->tape));
    WF_EXPECT_OK(wf_checkpoint_add(saves, "extras", visit_extras, &norms));
    return saves;
}

static trained open_form(const form *f, wf_comm *over, const char *name)
{
    trained t = {.p = parts_open(f, over, norms), .tape = wf_tape_new(ctx)};
    const wf_multi_node_opts opts = {
        .shard_optimizer = f->sharded_state, .bucket_bytes = 600, .double_buffering = buffered && !f->sharded_state};
    t.optim = wf_mesh_multi_node(t.p.mesh, wf_adam(t.p.model, (wf_adam_opts){.lr = 0.02}), opts);
    WF_EXPECT(t.optim, "%s: %s", f->name, wf_error_trail());
    t.saves = open_saves(&t, name, (wf_checkpoint_opts){.mesh = t.p.mesh, .async = norms});
    batch_open(t.p.mesh, WF_SHAPE(SAMPLES, PARTS_IN), PARTS_CLASSES, &t.x, &t.labels);
    return t;
}

static void close_form(trained *t)
{
    WF_EXPECT_OK(wf_checkpoint_close(t->saves));
    wf_tensor_free(t->x);
    wf_tensor_free(t->labels);
    wf_tape_free(t->tape);
    wf_optim_free(t->optim);
    parts_close(&t->p);
}

static wf_var *loss_of(trained *t)
{
    if (t->p.pipe)
        return wf_pipeline_step(t->p.pipe, t->tape, t->x, t->labels);
    return wf_softmax_cross_entropy(wf_apply(t->p.model, wf_input(t->tape, t->x)), t->labels, (wf_label_opts){0});
}

static void accumulate(trained *t)
{
    WF_EXPECT_OK(wf_optim_accumulate(t->optim, loss_of(t)));
    WF_EXPECT_OK(wf_tape_reset(t->tape));
}

static double step(trained *t)
{
    wf_var *loss = loss_of(t);
    WF_EXPECT_OK(wf_optim_step(t->optim, loss));
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_tape_reset(t->tape));
    return value;
}

static void train(trained *t)
{
    for (int i = 0; i < BEFORE; i++)
        step(t);
    if (within)
        accumulate(t);
}

/* One file, whoever saved it. */
static void expect_one_file(const char *name)
{
    int files = 0;
    DIR *dir = opendir(in_folder(name));
    for (const struct dirent *file; dir && (file = readdir(dir));)
        files += file->d_name[0] != '.';
    closedir(dir);
    WF_EXPECT(files == 1, "%s: %d files, should be 1", name, files);
}

static void save_as(const form *from, const char *name, double after[AFTER])
{
    wf_comm *over = wf_comm_split(comm, rank < from->ranks ? 0 : -1, rank);
    if (over) {
        trained t = open_form(from, over, name);
        train(&t);
        fill_extras(1);
        WF_EXPECT_OK(wf_checkpoint_save(t.saves, BEFORE));
        for (int i = 0; i < AFTER; i++)
            after[i] = step(&t);
        close_form(&t);
        WF_EXPECT_OK(wf_comm_close(over));
    }
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0)
        expect_one_file(name);
    WF_EXPECT_OK(wf_barrier(comm));
}

/* What was loaded is saved again and has the same tensors. */
static void save_again(trained *t, const char *what, const char *name, const char *again)
{
    char one[256], other[256];
    snprintf(one, sizeof one, "%s/%s/ckpt-00000000.h5", folder, name);
    snprintf(other, sizeof other, "%s/%s/ckpt-00000000.h5", folder, again);
    wf_checkpoint *saves = open_saves(t, again, (wf_checkpoint_opts){0});
    WF_EXPECT_OK(wf_checkpoint_save(saves, BEFORE));
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    if (rank == 0)
        expect_same(what, one, other, within);
}

static void load_as(const form *from, const form *to, const char *name, const double after[AFTER])
{
    char what[160], again[160];
    wf_comm *over = wf_comm_split(comm, rank < to->ranks ? 0 : -1, rank);
    snprintf(what, sizeof what, "%s to %s%s%s", from->name, to->name, within ? ", within a step" : "",
             buffered ? ", buffered" : "");
    snprintf(again, sizeof again, "%s-%s", name, to->name);
    if (over) {
        int64_t at = -1;
        trained t = open_form(to, over, name);
        if (!buffered) /* what is there is replaced */
            step(&t);
        fill_extras(-1);
        WF_EXPECT_OK(wf_checkpoint_load_latest(t.saves, &at));
        WF_EXPECT(at == BEFORE, "%s: step %lld", what, (long long)at);
        expect_extras(what);
        save_again(&t, what, name, again);
        if (buffered) /* the first loss is of this rank alone, until a step has brought them together */
            step(&t);
        for (int i = buffered; i < AFTER; i++) {
            const double loss = step(&t), bound = from == to ? 0 : 1e-6 * fabs(after[i]);
            WF_EXPECT(fabs(loss - after[i]) <= bound, "%s: loss %d is %.17g, was %.17g", what, i, loss, after[i]);
        }
        close_form(&t);
        WF_EXPECT_OK(wf_comm_close(over));
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

/* Every `stride`th other form; divisions of fewer ranks among themselves have had their turn on fewer ranks. */
static void load_others(int stride, bool same)
{
    for (int i = 0; i < FORMS; i++) {
        double after[AFTER] = {0};
        char name[64];
        if (forms[i].ranks > size || (stride > FORMS && forms[i].ranks < size))
            continue;
        snprintf(name, sizeof name, "from-%s-%d%d%d", forms[i].name, norms, within, buffered);
        save_as(&forms[i], name, after);
        WF_EXPECT_OK(wf_bcast_bytes(comm, after, sizeof after, 0));
        if (same && forms[i].ranks == size)
            load_as(&forms[i], &forms[i], name, after);
        for (int to = stride > FORMS ? FORMS : (i + 3) % stride; to < FORMS; to += stride)
            if (to != i && forms[to].ranks <= size && (forms[i].ranks == size || forms[to].ranks == size))
                load_as(&forms[i], &forms[to], name, after);
    }
}

/* All, or one or two others of each. */
static int stride_of(void)
{
    return test_samples(FORMS) == FORMS ? 1 : FORMS / 2 + 1;
}

static void any_division_resumes_any_other(void)
{
    norms = within = buffered = false;
    load_others(stride_of(), false);
}

static void accumulated_gradients_too(void)
{
    within = true;
    load_others(stride_of() + 1, true);
    within = false;
}

/* With running statistics of each rank, saved in the background, and gradients in flight. */
static void the_same_division_goes_on_bit_for_bit(void)
{
    norms = true;
    load_others(FORMS + 1, true);
    norms = false;
    buffered = true;
    load_others(FORMS + 1, true);
    buffered = false;
}

/* All stages leave after the same step, whichever of them got the signal. */
static void a_signal_to_one_stage_is_one_to_all(void)
{
    const form stages = {.name = "signalled", .ranks = size, .mesh = {.data = 1, .stage = size}};
    for (int victim = 0; victim < size; victim++) {
        int64_t at = 0;
        bool leave = false;
        trained t = open_form(&stages, comm, "unused");
        WF_EXPECT_OK(wf_checkpoint_close(t.saves));
        t.saves = open_saves(&t, "signalled", (wf_checkpoint_opts){.signals = true});
        WF_EXPECT_OK(wf_checkpoint_load_latest(t.saves, &at));
        WF_EXPECT(at == 2 * victim, "continues after step %lld", (long long)at);
        for (int i = 0; i < 2; i++) {
            step(&t);
            if (i == 1 && rank == victim)
                raise(SIGUSR1);
            WF_EXPECT_OK(wf_checkpoint_step(t.saves, at + i + 1, &leave));
            WF_EXPECT(leave == (i == 1), "step %d: leave is %d", i, leave);
        }
        close_form(&t);
    }
}

/* A file that lacks what one stage needs is the same error on all ranks, which go on together. */
static void what_one_stage_lacks_is_an_error_of_all(void)
{
    const form stages = {.name = "lacks", .ranks = size, .mesh = {.data = 1, .stage = size}};
    int64_t at = 0;
    trained t = open_form(&stages, comm, "lacks");
    WF_EXPECT_OK(wf_checkpoint_save(t.saves, 1));
    close_form(&t);
    norms = true;
    t = open_form(&stages, comm, "lacks");
    const wf_status status = wf_checkpoint_load_latest(t.saves, &at);
    WF_EXPECT(status == WF_ERR_FORMAT && strstr(wf_error_message(), "is not in it"), "%s: %s", wf_status_name(status),
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(comm));
    close_form(&t);
    norms = false;
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    WF_EXPECT_OK(wf_ctx_set_dtype(ctx, WF_F64));
    folder_make();
    const int failed =
        test_main(argc, argv,
                  (test_case[]){{"any_division_resumes_any_other", any_division_resumes_any_other},
                                {"accumulated_gradients_too", accumulated_gradients_too},
                                {"the_same_division_goes_on_bit_for_bit", the_same_division_goes_on_bit_for_bit},
                                {"a_signal_to_one_stage_is_one_to_all", a_signal_to_one_stage_is_one_to_all},
                                {"what_one_stage_lacks_is_an_error_of_all", what_one_stage_lacks_is_an_error_of_all},
                                {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
