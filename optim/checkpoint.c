/* Checkpoints as objects: what a run consists of, and when it is saved. Programs call it after every step; the parts
 * of a save are in checkpoint_stage.c and checkpoint_write.c, loading in checkpoint_load.c. */
#include "core/captured_author.h"
#include "optim/checkpoint_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_status wf_checkpoint_keep(wf_checkpoint *c, wf_status status)
{
    if (status != WF_OK && c->status == WF_OK)
        wf_error_save(&c->status, c->message, sizeof c->message);
    return WF_OK;
}

wf_status wf_checkpoint_agree(wf_checkpoint *c)
{
    const wf_status own = c->status;
    c->status = WF_OK;
    return wf_agree_status(c->comm, own == WF_OK ? WF_OK : WF_RAISE(own, "%s", c->message));
}

/* --- What is saved ------------------------------------------------------------------------------------------------ */

static wf_status visit_item(const wf_checkpoint_item *item, wf_archive *archive)
{
    if (item->i64)
        return wf_archive_i64(archive, item->name, item->i64);
    if (item->f64)
        return wf_archive_f64(archive, item->name, item->f64);
    WF_TRY(wf_archive_enter(archive, item->name));
    WF_TRY(item->visit(item->object, archive));
    return wf_archive_leave(archive);
}

wf_status wf_checkpoint_visit(wf_checkpoint *c, wf_archive *archive, int64_t *step)
{
    /* The same visit saves and loads: what comes back in `seed` is the saved one. */
    int64_t seed = (int64_t)c->ctx->seed, ranks = c->size;
    WF_TRY(wf_archive_enter(archive, "weft"));
    WF_TRY(wf_archive_i64(archive, "step", step));
    WF_TRY(wf_archive_i64(archive, "ranks", &ranks));
    WF_TRY(wf_archive_i64(archive, "seed", &seed));
    WF_TRY(wf_archive_leave(archive));
    for (int64_t i = 0; i < c->n_items; i++)
        WF_TRY(visit_item(&c->item[i], archive));
    c->ctx->seed = (uint64_t)seed;
    return WF_OK;
}

static wf_status add(wf_checkpoint *c, const char *name, wf_checkpoint_item item)
{
    WF_NEED(c);
    WF_NEED(name);
    WF_CHECK(*name && !strchr(name, '/') && strcmp(name, "weft") != 0 && strcmp(name, "ranks") != 0, WF_ERR_ARGUMENT,
             "\"%s\" cannot be a name in a checkpoint", name);
    for (int64_t i = 0; i < c->n_items; i++)
        WF_CHECK(strcmp(c->item[i].name, name) != 0, WF_ERR_ARGUMENT, "the checkpoint has a \"%s\" already", name);
    wf_checkpoint_item *longer = wf_realloc(c->ctx, c->item, (size_t)(c->n_items + 1) * sizeof *longer);
    if (!longer)
        return wf_error_code();
    c->item = longer;
    item.name = wf_strdup(c->ctx, name);
    if (!item.name)
        return wf_error_code();
    c->item[c->n_items++] = item;
    return WF_OK;
}

wf_status wf_checkpoint_add(wf_checkpoint *checkpoint, const char *name, wf_archive_visit visit, void *object)
{
    WF_NEED(visit);
    WF_NEED(object);
    return add(checkpoint, name, (wf_checkpoint_item){.visit = visit, .object = object});
}

wf_status wf_checkpoint_add_model(wf_checkpoint *checkpoint, const char *name, wf_layer *model)
{
    WF_NEED(model);
    return add(checkpoint, name, (wf_checkpoint_item){.visit = wf_layer_visit, .object = model});
}

wf_status wf_checkpoint_add_optim(wf_checkpoint *checkpoint, const char *name, wf_optim *optim)
{
    WF_NEED(optim);
    return add(checkpoint, name, (wf_checkpoint_item){.visit = wf_optim_visit, .object = optim, .optim = optim});
}

wf_status wf_checkpoint_add_i64(wf_checkpoint *checkpoint, const char *name, int64_t *value)
{
    WF_NEED(value);
    return add(checkpoint, name, (wf_checkpoint_item){.i64 = value});
}

wf_status wf_checkpoint_add_f64(wf_checkpoint *checkpoint, const char *name, double *value)
{
    WF_NEED(value);
    return add(checkpoint, name, (wf_checkpoint_item){.f64 = value});
}

/* --- Life --------------------------------------------------------------------------------------------------------- */

static wf_status take_opts(wf_checkpoint *c, const char *folder, wf_checkpoint_opts opts)
{
    WF_NEED(folder);
    WF_CHECK(opts.keep >= 0 && opts.keep_every >= 0 && opts.every >= 0, WF_ERR_ARGUMENT,
             "a checkpoint with keep %lld, keep_every %lld, every %lld: should be 0 or more", (long long)opts.keep,
             (long long)opts.keep_every, (long long)opts.every);
    WF_CHECK(*folder && strlen(folder) < sizeof c->folder - 64, WF_ERR_ARGUMENT,
             "\"%s\" cannot be the folder of checkpoints", folder);
    c->opts = opts;
    c->opts.keep = opts.keep ? opts.keep : 3;
    strcpy(c->folder, folder);
    return WF_OK;
}

static void checkpoint_free(wf_checkpoint *c)
{
    for (int64_t i = 0; i < c->n_items; i++)
        free(c->item[i].name);
    wf_checkpoint_folder_settle(c);
    wf_checkpoint_forget(c);
    wf_checkpoint_drop_layout(c);
    free(c->item);
    free(c->piece);
    free(c->number);
    free(c->stage);
    free(c->damaged);
    free(c->manifest.entry);
    free(c);
}

wf_checkpoint *wf_checkpoint_open(wf_comm *comm, const char *folder, wf_checkpoint_opts opts)
{
    WF_NEED_NULL(comm);
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_checkpoint *c = wf_calloc(ctx, 1, sizeof *c);
    /* Options and memory are this rank's matter; the folder is opened together. */
    wf_status status = c ? take_opts(c, folder, opts) : wf_error_code();
    status = wf_agree_status(comm, status);
    if (status == WF_OK && c) {
        c->comm = comm;
        c->ctx = ctx;
        c->rank = wf_comm_rank(comm);
        c->size = wf_comm_size(comm);
        c->generation = c->newest = -1;
        status = wf_checkpoint_folder_open(c);
    }
    if (status == WF_OK && opts.signals)
        status = wf_agree_status(comm, wf_checkpoint_signals_catch());
    if (status == WF_OK)
        return c;
    if (c)
        checkpoint_free(c);
    return wf_error_null();
}

wf_status wf_checkpoint_close(wf_checkpoint *checkpoint)
{
    if (!checkpoint)
        return WF_OK;
    const wf_status status = wf_checkpoint_finish(checkpoint);
    if (checkpoint->opts.signals)
        wf_checkpoint_signals_release();
    checkpoint_free(checkpoint);
    return status;
}

int64_t wf_checkpoint_generation(const wf_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint->generation : 0;
}

/* --- Saving ------------------------------------------------------------------------------------------------------- */

static wf_status begin_save(wf_checkpoint *c, int64_t step)
{
    WF_TRY(wf_ctx_forbid_capture(c->ctx, "save a checkpoint", "save it between runs"));
    for (int64_t i = 0; i < c->n_items; i++)
        if (c->item[i].optim)
            WF_TRY(wf_optim_flush(c->item[i].optim));
    WF_TRY(wf_checkpoint_stage(c, step));
    WF_TRY(wf_checkpoint_lay_out(c));
    wf_checkpoint_write(c);
    return WF_OK;
}

wf_status wf_checkpoint_save(wf_checkpoint *checkpoint, int64_t step)
{
    char earlier[512];
    wf_status before, status;
    WF_NEED(checkpoint);
    before = wf_checkpoint_finish(checkpoint);
    if (before != WF_OK)
        wf_error_save(&before, earlier, sizeof earlier);
    status = begin_save(checkpoint, step);
    if (status == WF_OK && !checkpoint->opts.async)
        status = wf_checkpoint_finish(checkpoint);
    if (status != WF_OK || before == WF_OK)
        return status;
    WF_FAIL(before, "%s", earlier);
}

wf_status wf_checkpoint_step(wf_checkpoint *checkpoint, int64_t step, bool *leave)
{
    wf_status status = WF_OK;
    wf_checkpoint *c = checkpoint;
    WF_NEED(c);
    WF_NEED(leave);
    *leave = false;
    if (c->opts.signals || c->pending) {
        /* One small message per step where signals or a background save ask for it, none otherwise. All ranks leave
         * after the same step, whichever of them got the signal. */
        int64_t any[2] = {wf_checkpoint_signalled(), c->pending && !atomic_load(&c->done)};
        WF_TRY(wf_allreduce_i64(c->comm, any, 2, WF_MAX));
        *leave = any[0] != 0;
        if (c->pending && !any[1])
            status = wf_checkpoint_finish(c);
    }
    if (*leave || (c->opts.every > 0 && step % c->opts.every == 0)) {
        const wf_status saved = wf_checkpoint_save(c, step);
        status = saved == WF_OK ? status : saved;
    }
    if (*leave) {
        const wf_status ended = wf_checkpoint_finish(c);
        status = ended == WF_OK ? status : ended;
    }
    return status;
}
