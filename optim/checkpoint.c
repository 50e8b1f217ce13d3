/* Checkpoints as objects: what a run consists of, and when it is saved. Programs call it after every step; the parts
 * of a save are in checkpoint_stage.c and checkpoint_write.c, loading in checkpoint_load.c. */
#include "core/captured_author.h"
#include "core/log.h"
#include "layers/layer_author.h"
#include "optim/checkpoint_impl.h"
#include "optim/ema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A failure of one rank is kept until the ranks agree: visits of tensors are collective, so no rank may leave early. */
wf_status wf_checkpoint_keep(wf_checkpoint *c, wf_status status)
{
    if (status != WF_OK && c->status == WF_OK)
        wf_error_save(&c->status, c->message, sizeof c->message);
    return WF_OK;
}

/* The first error of each rank goes in; all ranks leave with one of them. */
wf_status wf_checkpoint_agree(wf_checkpoint *c)
{
    const wf_status own = c->status;
    c->status = WF_OK;
    return wf_agree_status(c->comm, own == WF_OK ? WF_OK : WF_RAISE(own, "%s", c->message));
}

/* --- What is saved ------------------------------------------------------------------------------------------------ */

/* Numbers are visited in place, objects under a group of their name. */
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

/* During a visit of an item these are the ranks that have it. */
wf_comm *wf_checkpoint_over(const wf_checkpoint *c)
{
    return c->now ? c->now->comm : c->comm;
}

/* Ranks with other parts of a model visit other things, and may fail alone. */
static wf_status visit_items(wf_checkpoint *c, wf_archive *archive)
{
    wf_status status = WF_OK;
    for (int64_t i = 0; i < c->n_items && status == WF_OK; i++) {
        c->now = &c->item[i];
        status = visit_item(c->now, archive);
        if (c->now->comm != c->comm)
            status = wf_agree_status(c->comm, status);
    }
    c->now = NULL;
    return status;
}

wf_status wf_checkpoint_visit(wf_checkpoint *c, wf_archive *archive, int64_t *step)
{
    /* One visit saves and loads: what comes back in `seed` is the saved one. */
    int64_t seed = (int64_t)c->ctx->seed, ranks = c->size;
    WF_TRY(wf_archive_enter(archive, "weft"));
    WF_TRY(wf_archive_i64(archive, "step", step));
    WF_TRY(wf_archive_i64(archive, "ranks", &ranks));
    WF_TRY(wf_archive_i64(archive, "seed", &seed));
    WF_TRY(wf_archive_leave(archive));
    WF_TRY(visit_items(c, archive));
    /* Saved or loaded: the program draws as the run that saved did. */
    c->ctx->seed = (uint64_t)seed;
    return WF_OK;
}

/* --- Parts of models ---------------------------------------------------------------------------------------------- */

/* Returns true if each rank has the same part of both items. Two models whose parts are on the same ranks share one
 * communicator. */
static bool same_parts(const wf_checkpoint *c, const int *part, int64_t a, int64_t b)
{
    for (int r = 0; r < c->size; r++)
        if (part[r * c->n_items + a] != part[r * c->n_items + b])
            return false;
    return true;
}

/* part: of each rank and item. */
static wf_status join_ranks(wf_checkpoint *c, const int *part, int64_t i)
{
    wf_checkpoint_item *item = &c->item[i];
    bool parted = false;
    for (int r = 0; r < c->size; r++)
        parted = parted || part[r * c->n_items + i] > 0;
    item->comm = c->comm;
    item->key = 0;
    /* Parts were met before with the same distribution: its communicator serves. */
    for (int64_t k = 0; parted && k < i; k++)
        if (same_parts(c, part, k, i)) {
            item->comm = c->item[k].comm;
            item->key = c->item[k].key;
            return WF_OK;
        }
    if (!parted)
        return WF_OK;
    WF_CHECK(c->n_keys + 1 < WF_CATALOG_KEYS, WF_ERR_UNSUPPORTED,
             "more than %d models whose parts are on several ranks in one checkpoint", WF_CATALOG_KEYS - 1);
    item->key = ++c->n_keys;
    c->part[item->key] = part[c->rank * c->n_items + i];
    /* Ranks with equal parts talk to each other: replicas of one part. */
    item->comm = wf_comm_split(c->comm, c->part[item->key], c->rank);
    WF_NEED(item->comm);
    return WF_OK;
}

static void leave_ranks(wf_checkpoint *c)
{
    /* Several items may share one communicator, which is closed with the first of them. */
    for (int64_t i = 0; i < c->n_items; i++) {
        bool first = c->item[i].comm && c->item[i].comm != c->comm;
        for (int64_t k = 0; k < i; k++)
            first = first && c->item[k].key != c->item[i].key;
        if (first && wf_comm_close(c->item[i].comm) != WF_OK)
            wf_error_clear();
    }
    for (int64_t i = 0; i < c->n_items; i++)
        c->item[i].comm = NULL;
    c->n_keys = 0;
}

wf_status wf_checkpoint_find_parts(wf_checkpoint *c)
{
    int64_t items[2] = {c->n_items, -c->n_items};
    void *part = NULL;
    /* Nothing was added since: parts of models do not change. */
    if (c->n_parted == c->n_items)
        return WF_OK;
    WF_TRY(wf_allreduce_i64(c->comm, items, 2, WF_MAX));
    WF_CHECK(items[0] == -items[1], WF_ERR_ARGUMENT,
             "the ranks save different things: from %lld to %lld objects were added to the checkpoint",
             (long long)-items[1], (long long)items[0]);
    /* Communicators belong to the old list. */
    leave_ranks(c);
    const size_t bytes = (size_t)c->n_items * sizeof(int);
    WF_TRY(wf_host_take(c->comm, bytes * (size_t)(c->size + 1), &part));
    int *mine = (int *)part + c->size * c->n_items;
    for (int64_t i = 0; i < c->n_items; i++)
        mine[i] = c->item[i].model ? wf_layer_part(c->item[i].model) : 0;
    wf_status status = wf_allgather_bytes(c->comm, mine, bytes, part);
    for (int64_t i = 0; i < c->n_items && status == WF_OK; i++)
        status = join_ranks(c, part, i);
    wf_host_give(c->comm, part, bytes * (size_t)(c->size + 1));
    if (status == WF_OK)
        c->n_parted = c->n_items;
    return status;
}

/* --- Objects ------------------------------------------------------------------------------------------------------ */

/* Names become groups of an HDF5 file, so they follow its rules. */
static wf_status add(wf_checkpoint *c, const char *name, wf_checkpoint_item item)
{
    WF_NEED(c);
    WF_NEED(name);
    /* HDF5 takes "." for the group itself, so that one object's entries would be among those of all. */
    WF_CHECK(*name && !strchr(name, '/') && strcmp(name, ".") != 0, WF_ERR_ARGUMENT,
             "\"%s\" cannot be a name in a checkpoint: it should have a character, no slash, and not be \".\"", name);
    WF_CHECK(strcmp(name, "weft") != 0 && strcmp(name, "ranks") != 0, WF_ERR_ARGUMENT,
             "\"%s\" cannot be a name in a checkpoint, which has entries of its own under it", name);
    for (int64_t i = 0; i < c->n_items; i++)
        WF_CHECK(strcmp(c->item[i].name, name) != 0, WF_ERR_ARGUMENT, "the checkpoint has a \"%s\" already", name);
    /* One more at a time: there are a dozen objects at most. */
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
    /* Layers and optimizers are known, so that their parts and their pending updates are found. */
    if (visit == wf_layer_visit)
        return wf_checkpoint_add_model(checkpoint, name, object);
    if (visit == wf_optim_visit)
        return wf_checkpoint_add_optim(checkpoint, name, object);
    wf_layer *model = visit == wf_ema_visit ? wf_ema_model(object) : NULL;
    return add(checkpoint, name, (wf_checkpoint_item){.visit = visit, .object = object, .model = model});
}

wf_status wf_checkpoint_add_model(wf_checkpoint *checkpoint, const char *name, wf_layer *model)
{
    WF_NEED(model);
    return add(checkpoint, name, (wf_checkpoint_item){.visit = wf_layer_visit, .object = model, .model = model});
}

wf_status wf_checkpoint_add_optim(wf_checkpoint *checkpoint, const char *name, wf_optim *optim)
{
    WF_NEED(optim);
    return add(
        checkpoint, name,
        (wf_checkpoint_item){.visit = wf_optim_visit, .object = optim, .optim = optim, .model = wf_optim_model(optim)});
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

/* Room for the longest name of a file in the folder. */
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

/* Also of one that was opened in part. */
static void checkpoint_free(wf_checkpoint *c)
{
    leave_ranks(c);
    for (int64_t i = 0; i < c->n_items; i++)
        free(c->item[i].name);
    /* The thread that removes old files must end before its list is freed. */
    wf_checkpoint_folder_settle(c);
    wf_checkpoint_unlock(c);
    wf_checkpoint_forget(c);
    wf_checkpoint_drop_layout(c);
    free(c->item);
    free(c->piece);
    free(c->number);
    free(c->stage);
    free(c->damaged);
    free(c->entry_key);
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
        /* No generation is known yet. */
        c->generation = c->newest = -1;
        status = wf_checkpoint_folder_open(c);
    }
    /* The handler is the process's: it is set after everything else is there. */
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
    /* The last save is finished even if it fails, so that no thread is left. */
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

/* Updates of a delayed step are applied first: a checkpoint between gradient and update could not go on with the same
 * bits. */
static wf_status begin_save(wf_checkpoint *c, int64_t step)
{
    WF_TRY(wf_ctx_forbid_capture(c->ctx, "save a checkpoint", "save it between runs"));
    for (int64_t i = 0; i < c->n_items; i++)
        if (c->item[i].optim)
            WF_TRY(wf_optim_flush(c->item[i].optim));
    WF_TRY(wf_checkpoint_find_parts(c));
    WF_TRY(wf_checkpoint_stage(c, step));
    WF_TRY(wf_checkpoint_lay_out(c));
    wf_checkpoint_write(c);
    return WF_OK;
}

/* The failure of the save before is returned only if this one is good, and is not lost. */
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

/* The save of a run that leaves. An earlier one that failed is a warning, since this one has all that it had. */
static wf_status save_and_leave(wf_checkpoint *c, int64_t step)
{
    char message[512];
    const wf_status before = wf_checkpoint_finish(c);
    if (before != WF_OK && wf_comm_alive(c->comm) != WF_OK)
        return before;
    if (before != WF_OK && c->rank == 0)
        wf_log_write(WF_LOG_WARN, "the save before the last one failed: %s", wf_error_message());
    wf_error_clear();
    wf_status status = wf_checkpoint_save(c, step);
    if (status == WF_OK)
        status = wf_checkpoint_finish(c);
    if (status == WF_OK)
        return WF_OK;
    wf_error_save(&status, message, sizeof message);
    WF_FAIL(status, "a signal asks the run to leave, and step %lld is not saved: %s", (long long)step, message);
}

/* Called after every step on all ranks with the same step. */
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
        /* All ranks have written: the end, which is collective, waits for no thread. */
        if (c->pending && !any[1] && !*leave)
            status = wf_checkpoint_finish(c);
    }
    if (*leave)
        return save_and_leave(c, step);
    if (c->opts.every > 0 && step % c->opts.every == 0) {
        const wf_status saved = wf_checkpoint_save(c, step);
        status = saved == WF_OK ? status : saved;
    }
    return status;
}
