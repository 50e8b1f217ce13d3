/* First part of a save: lists all tensors of the run and copies the elements that this rank writes. The step that
 * follows may change the tensors as soon as this is done. */
#include "core/random_author.h"
#include "optim/checkpoint_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEALT_BYTES 65536 /* replicated tensors from here on are written by all ranks, smaller ones by one */
#define MOST_BOXES  64

/* Everything of the last save: called before the next one and after loading. */
void wf_checkpoint_forget(wf_checkpoint *c)
{
    for (int64_t i = 0; i < c->manifest.n; i++)
        free(c->manifest.entry[i].name);
    wf_checkpoint_release(c);
    free(c->manifest.sums);
    c->manifest.sums = NULL;
    c->manifest.n = c->n_pieces = c->n_numbers = 0;
    c->staged = 0;
    c->layout = 0;
}

/* Tensors whose elements were written from where they are. */
void wf_checkpoint_release(wf_checkpoint *c)
{
    for (int64_t i = 0; i < c->n_pieces; i++) {
        wf_tensor_free(c->piece[i].view);
        c->piece[i].view = NULL;
    }
}

/* --- Lists that grow ---------------------------------------------------------------------------------------------- */

/* Room for one more element. */
static wf_status grow_list(wf_ctx *ctx, void **list, int64_t n, int64_t *room, size_t size)
{
    if (n < *room)
        return WF_OK;
    const int64_t more = *room ? 2 * *room : 64;
    void *longer = wf_realloc(ctx, *list, (size_t)more * size);
    /* The caller's pointer may be stale after this, so it takes the list back. */
    if (!longer)
        return wf_error_code();
    *list = longer;
    *room = more;
    return WF_OK;
}

static wf_status add_manifest_entry(wf_checkpoint *c, const char *path, wf_dtype dtype, wf_shape shape)
{
    wf_manifest *m = &c->manifest;
    void *list = m->entry;
    void *keys = c->entry_key;
    wf_status status = grow_list(c->ctx, &list, m->n, &c->entries_room, sizeof *m->entry);
    m->entry = list;
    if (status == WF_OK)
        status = grow_list(c->ctx, &keys, m->n, &c->keys_room, sizeof *c->entry_key);
    c->entry_key = keys;
    WF_TRY(status);
    /* Entries of models with parts are brought together by this key. */
    c->entry_key[m->n] = c->now ? c->now->key : 0;
    char *name = wf_strdup(c->ctx, path);
    if (!name)
        return wf_error_code();
    m->entry[m->n++] = (wf_manifest_entry){.name = name, .dtype = dtype, .shape = shape};
    /* Names, types and shapes in their order: equal hashes mean equal files up to their elements. */
    c->layout = wf_hash_u64(wf_hash_text(c->layout, path), (uint64_t)dtype);
    for (int d = 0; d < shape.rank; d++)
        c->layout = wf_hash_u64(c->layout, (uint64_t)shape.dim[d]);
    return WF_OK;
}

/* Doubles, so that the stage is moved a few times in the first save and never again. */
static wf_status stage_room(wf_checkpoint *c, size_t bytes)
{
    if (c->staged + bytes <= c->stage_room)
        return WF_OK;
    size_t room = c->stage_room ? c->stage_room : (size_t)1 << 20;
    while (room < c->staged + bytes)
        room *= 2;
    unsigned char *longer = wf_realloc(c->ctx, c->stage, room);
    if (!longer)
        return wf_error_code();
    c->stage = longer;
    c->stage_room = room;
    return WF_OK;
}

/* The elements of the last entry in `box` become `bytes` of the stage, which the caller fills at once: the next piece
 * may move the stage. */
static wf_status add_piece(wf_checkpoint *c, wf_box box, size_t bytes, void **data)
{
    void *list = c->piece;
    const wf_status status = grow_list(c->ctx, &list, c->n_pieces, &c->pieces_room, sizeof *c->piece);
    c->piece = list;
    WF_TRY(status);
    WF_TRY(stage_room(c, bytes));
    c->piece[c->n_pieces++] = (wf_checkpoint_piece){.entry = c->manifest.n - 1, .box = box, .at = c->staged};
    *data = c->stage + c->staged;
    /* Pieces begin at cache lines, which the copies and sums are fastest with. */
    c->staged += (bytes + 63) / 64 * 64;
    if (c->staged > c->stage_room)
        c->staged = c->stage_room;
    return WF_OK;
}

/* In memory as in the file: every row behind the one before it. */
static bool is_plain(const wf_tensor *tensor)
{
    int64_t step = 1;
    for (int d = tensor->shape.rank - 1; d >= 0; step *= tensor->shape.dim[d--])
        if (tensor->shape.dim[d] > 1 && tensor->stride[d] != step)
            return false;
    return true;
}

/* Stages the elements of `box` of `tensor`, which is the part `own` of the last entry. They are written from where they
 * are if the save waits until they are written. */
static wf_status stage_box(wf_checkpoint *c, const wf_tensor *tensor, wf_box own, wf_box box)
{
    void *data;
    if (wf_box_empty(box))
        return WF_OK;
    wf_tensor *view = wf_tensor_view(tensor, wf_box_relative(box, own));
    WF_NEED(view);
    /* A device's memory, and memory that the next step changes during the write, must be copied. */
    const bool stays = !c->opts.async && c->ctx->k->host && is_plain(view);
    const size_t bytes = stays ? 0 : wf_tensor_bytes(view);
    wf_status status = add_piece(c, box, bytes, &data);
    if (status == WF_OK && stays) {
        c->piece[c->n_pieces - 1].view = view;
        return WF_OK;
    }
    if (status == WF_OK)
        status = wf_tensor_export(view, data, bytes);
    wf_tensor_free(view);
    return status;
}

/* --- The archive -------------------------------------------------------------------------------------------------- */

/* The ranks that have what is visited now, and this rank's place among them. */
static int over_size(const wf_checkpoint *c)
{
    return wf_comm_size(wf_checkpoint_over(c));
}

static int over_rank(const wf_checkpoint *c)
{
    return wf_comm_rank(wf_checkpoint_over(c));
}

/* Returns true on the rank that writes a small replicated tensor. It follows from the name, which is the same on all
 * ranks and spreads the work: how many entries came before is not, if they have other parts of a model. */
static bool is_writer(const wf_checkpoint *c, const char *path)
{
    return wf_hash_text(0, path) % (uint64_t)over_size(c) == (uint64_t)over_rank(c);
}

/* The part of a replicated tensor that this rank writes. */
static wf_box dealt(const wf_checkpoint *c, const char *path, wf_shape shape, size_t bytes)
{
    wf_box box = wf_box_of_shape(shape);
    if (shape.rank > 0 && bytes >= DEALT_BYTES && shape.dim[0] >= over_size(c))
        wf_block(shape.dim[0], over_size(c), over_rank(c), &box.lo[0], &box.hi[0]);
    /* An empty box. */
    else if (!is_writer(c, path))
        box = wf_box_intersect(box, (wf_box){.rank = shape.rank});
    return box;
}

static wf_status visit_whole(wf_checkpoint *c, const char *path, const wf_tensor *tensor)
{
    const wf_shape shape = wf_tensor_shape(tensor);
    const wf_box box = dealt(c, path, shape, wf_tensor_bytes(tensor));
    const bool mine = shape.rank > 0 ? !wf_box_empty(box) : is_writer(c, path);
    WF_TRY(add_manifest_entry(c, path, wf_tensor_dtype(tensor), shape));
    return mine ? stage_box(c, tensor, wf_box_of_shape(shape), box) : WF_OK;
}

/* Tensors that all ranks have whole. No message: every rank knows by itself who writes what. */
static wf_status visit_tensor(wf_archive *archive, const char *path, wf_tensor *tensor)
{
    wf_checkpoint *c = wf_archive_state(archive);
    return wf_checkpoint_keep(c, visit_whole(c, path, tensor));
}

/* What a rank has of a tensor that ranks hold in parts. */
typedef struct claim {
    wf_box box;
    uint64_t hash; /* of its values, where ranks may differ; else 0 */
} claim;

/* What is left of a box without another: at most two slabs in each dimension. They do not overlap, so each element is
 * written once. */
static int subtract(wf_box a, wf_box b, wf_box *rest)
{
    const wf_box both = wf_box_intersect(a, b);
    int n = 0;
    if (wf_box_empty(both)) {
        rest[0] = a;
        return 1;
    }
    for (int d = 0; d < a.rank; d++) {
        if (a.lo[d] < both.lo[d]) {
            rest[n] = a;
            rest[n++].hi[d] = a.lo[d] = both.lo[d];
        }
        if (both.hi[d] < a.hi[d]) {
            rest[n] = a;
            rest[n++].lo[d] = a.hi[d] = both.hi[d];
        }
    }
    return n;
}

/* The boxes that no lower rank holds: together the ranks write each element once, whatever their parts overlap. */
static wf_status own_boxes(const wf_checkpoint *c, const claim *all, wf_box box[MOST_BOXES], int *n)
{
    wf_box rest[MOST_BOXES];
    box[0] = all[over_rank(c)].box;
    *n = 1;
    for (int r = 0; r < over_rank(c); r++) {
        int more = 0;
        for (int k = 0; k < *n; k++) {
            WF_CHECK(more + 2 * WF_MAX_RANK <= MOST_BOXES, WF_ERR_UNSUPPORTED,
                     "the parts of a tensor overlap in more ways than a checkpoint takes");
            more += subtract(box[k], all[r].box, rest + more);
        }
        memcpy(box, rest, (size_t)more * sizeof *box);
        *n = more;
    }
    return WF_OK;
}

static bool differ(const wf_checkpoint *c, const claim *all)
{
    for (int r = 1; r < over_size(c); r++)
        for (int q = 0; q < r; q++)
            /* Replicas that should be equal and are not: running statistics, for example. Each rank's own are then kept
             * too. */
            if (wf_box_equal(all[q].box, all[r].box) && all[q].hash != all[r].hash)
                return true;
    return false;
}

/* A hash of the values; they are staged for the time of it, and the next piece overwrites them. */
static wf_status hash_values(wf_checkpoint *c, const wf_tensor *tensor, uint64_t *hash)
{
    const size_t bytes = wf_tensor_bytes(tensor);
    WF_TRY(stage_room(c, bytes + 8));
    unsigned char *data = c->stage + c->staged;
    memset(data + bytes, 0, 8);
    WF_TRY(wf_tensor_export(tensor, data, bytes));
    *hash = bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        *hash = wf_hash_u64(*hash, word);
    }
    return WF_OK;
}

/* The values of every rank, below "ranks". */
static wf_status stage_all_ranks(wf_checkpoint *c, const char *path, const wf_tensor *tensor, wf_archive_place place)
{
    char name[2048];
    void *data;
    int64_t dim[WF_MAX_RANK] = {over_size(c)};
    wf_box box = {.rank = place.box.rank + 1, .lo = {over_rank(c)}, .hi = {over_rank(c) + 1}};
    WF_CHECK(box.rank <= WF_MAX_RANK && snprintf(name, sizeof name, "ranks/%s", path) < (int)sizeof name,
             WF_ERR_UNSUPPORTED, "%s: rank %d and different values on the ranks", path, place.box.rank);
    for (int d = 0; d < place.box.rank; d++) {
        dim[d + 1] = place.global.dim[d];
        box.lo[d + 1] = place.box.lo[d];
        box.hi[d + 1] = place.box.hi[d];
    }
    WF_TRY(add_manifest_entry(c, name, wf_tensor_dtype(tensor), wf_shape_make(box.rank, dim)));
    if (wf_tensor_count(tensor) == 0)
        return WF_OK;
    WF_TRY(add_piece(c, box, wf_tensor_bytes(tensor), &data));
    return wf_tensor_export(tensor, data, wf_tensor_bytes(tensor));
}

static wf_status stage_parts(wf_checkpoint *c, const char *path, const wf_tensor *tensor, wf_archive_place place,
                             const claim *all)
{
    wf_box box[MOST_BOXES];
    int n;
    WF_TRY(own_boxes(c, all, box, &n));
    WF_TRY(add_manifest_entry(c, path, wf_tensor_dtype(tensor), place.global));
    for (int k = 0; k < n; k++)
        WF_TRY(stage_box(c, tensor, place.box, box[k]));
    return differ(c, all) ? stage_all_ranks(c, path, tensor, place) : WF_OK;
}

/* Parts of all ranks are gathered once for each tensor: without them no rank knows who else has its elements. */
static wf_status visit_part(wf_archive *archive, const char *path, wf_tensor *tensor, const wf_archive_place *place)
{
    wf_checkpoint *c = wf_archive_state(archive);
    claim *all, mine;
    memset(&mine, 0, sizeof mine);
    mine.box = place->box;
    if (place->varies)
        wf_checkpoint_keep(c, hash_values(c, tensor, &mine.hash));
    /* The list is as long as the ranks that have the tensor. */
    WF_TRY(wf_host_take(c->comm, (size_t)over_size(c) * sizeof *all, (void **)&all));
    const wf_status status = wf_allgather_bytes(wf_checkpoint_over(c), &mine, sizeof mine, all);
    if (status == WF_OK)
        wf_checkpoint_keep(c, stage_parts(c, path, tensor, *place, all));
    wf_host_give(c->comm, all, (size_t)over_size(c) * sizeof *all);
    return status;
}

/* The entry of a number has rank 0's. All ranks keep theirs for the comparison that follows. */
static wf_status stage_number(wf_checkpoint *c, const char *path, wf_dtype dtype, const void *value)
{
    void *data, *list = c->number;
    const wf_status status = grow_list(c->ctx, &list, c->n_numbers, &c->numbers_room, sizeof *c->number);
    c->number = list;
    WF_TRY(status);
    WF_TRY(add_manifest_entry(c, path, dtype, wf_shape_scalar()));
    c->number[c->n_numbers].entry = c->manifest.n - 1;
    memcpy(&c->number[c->n_numbers++].bits, value, sizeof c->number->bits);
    if (over_rank(c) != 0)
        return WF_OK;
    WF_TRY(add_piece(c, wf_box_of_shape(wf_shape_scalar()), 8, &data));
    /* i64 and f64 are 8 bytes both. */
    memcpy(data, value, 8);
    return WF_OK;
}

static wf_status visit_i64(wf_archive *archive, const char *path, int64_t *value)
{
    wf_checkpoint *c = wf_archive_state(archive);
    return wf_checkpoint_keep(c, stage_number(c, path, WF_I64, value));
}

static wf_status visit_f64(wf_archive *archive, const char *path, double *value)
{
    wf_checkpoint *c = wf_archive_state(archive);
    return wf_checkpoint_keep(c, stage_number(c, path, WF_F64, value));
}

static const wf_archive_ops stage_ops = {
    .tensor = visit_tensor, .part = visit_part, .i64 = visit_i64, .f64 = visit_f64};

/* --- The entries of all ranks ------------------------------------------------------------------------------------- */

/* Keeps the pieces that this rank writes: of what several parts of a model have, the first one's are written. */
static void renumber(wf_checkpoint *c, const wf_catalog *catalog)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_pieces; i++) {
        wf_checkpoint_piece piece = c->piece[i];
        piece.entry = catalog->place[piece.entry];
        if (catalog->entry[piece.entry].mine)
            c->piece[n++] = piece;
        else
            wf_tensor_free(piece.view);
    }
    c->n_pieces = n;
    for (int64_t i = 0; i < c->n_numbers; i++)
        c->number[i].entry = catalog->place[c->number[i].entry];
}

static wf_status take_catalog(wf_checkpoint *c, const wf_catalog *catalog)
{
    wf_manifest *m = &c->manifest;
    renumber(c, catalog);
    for (int64_t i = 0; i < m->n; i++)
        free(m->entry[i].name);
    m->n = 0;
    c->layout = 0;
    for (int64_t i = 0; i < catalog->n; i++)
        WF_TRY(add_manifest_entry(c, catalog->entry[i].path, catalog->entry[i].dtype, catalog->entry[i].shape));
    return WF_OK;
}

/* Numbers are of the whole run: all ranks have the same ones, in the same order. A rank without would wait in the
 * gather below. */
static wf_status check_numbers(const wf_checkpoint *c)
{
    uint64_t hash = (uint64_t)c->n_numbers;
    for (int64_t i = 0; i < c->n_numbers; i++)
        hash = wf_hash_u64(hash, (uint64_t)c->number[i].entry);
    /* The lowest bit is dropped so that the negative exists. */
    int64_t most[2] = {(int64_t)(hash >> 1), -(int64_t)(hash >> 1)};
    WF_TRY(wf_allreduce_i64(c->comm, most, 2, WF_MAX));
    WF_CHECK(most[0] == -most[1], WF_ERR_ARGUMENT, "the ranks save different numbers, which belong to the whole run");
    return WF_OK;
}

/* What the file has: where ranks have parts of models, the whole of them. */
static wf_status unite(wf_checkpoint *c)
{
    wf_catalog catalog;
    const wf_manifest *m = &c->manifest;
    wf_catalog_entry *list = wf_calloc(c->ctx, (size_t)m->n + 1, sizeof *list);
    for (int64_t i = 0; list && i < m->n; i++)
        list[i] = (wf_catalog_entry){
            .path = m->entry[i].name, .dtype = m->entry[i].dtype, .shape = m->entry[i].shape, .key = c->entry_key[i]};
    wf_status status = list ? WF_OK : wf_error_code();
    status = wf_catalog_make(c->ctx, c->comm, status, c->part, m->n, list, &catalog);
    /* One part: the list of this rank is that of the file already. */
    if (status == WF_OK && catalog.parts > 1)
        status = wf_agree_status(c->comm, take_catalog(c, &catalog));
    if (status == WF_OK && catalog.parts > 1)
        status = check_numbers(c);
    wf_catalog_free(&catalog);
    free(list);
    return status;
}

/* A number that differs between ranks is also saved for each of them, below "ranks". */
static wf_status stage_own_number(wf_checkpoint *c, const wf_checkpoint_number *number)
{
    char name[2048];
    void *data;
    const wf_manifest_entry *entry = &c->manifest.entry[number->entry];
    WF_CHECK(snprintf(name, sizeof name, "ranks/%s", entry->name) < (int)sizeof name, WF_ERR_UNSUPPORTED,
             "%s: the name is too long", entry->name);
    WF_TRY(add_manifest_entry(c, name, entry->dtype, WF_SHAPE(c->size)));
    WF_TRY(add_piece(c, (wf_box){.rank = 1, .lo = {c->rank}, .hi = {c->rank + 1}}, sizeof number->bits, &data));
    memcpy(data, &number->bits, sizeof number->bits);
    return WF_OK;
}

/* One gather for all numbers together. */
static wf_status stage_own_numbers(wf_checkpoint *c)
{
    const size_t n = (size_t)c->n_numbers, bytes = n * sizeof(uint64_t);
    uint64_t *all;
    WF_TRY(wf_host_take(c->comm, ((size_t)c->size + 1) * bytes, (void **)&all));
    uint64_t *mine = all + (size_t)c->size * n;
    for (size_t i = 0; i < n; i++)
        mine[i] = c->number[i].bits;
    const wf_status status = wf_allgather_bytes(c->comm, mine, bytes, all);
    for (size_t i = 0; i < n && status == WF_OK; i++) {
        bool same = true;
        for (size_t r = 1; r < (size_t)c->size; r++)
            same = same && all[r * n + i] == all[i];
        if (!same)
            wf_checkpoint_keep(c, stage_own_number(c, &c->number[i]));
    }
    wf_host_give(c->comm, all, ((size_t)c->size + 1) * bytes);
    return status;
}

/* Collective. The first agreement ends the visits, the second what was added after them. */
wf_status wf_checkpoint_stage(wf_checkpoint *c, int64_t step)
{
    wf_checkpoint_forget(c);
    wf_archive *archive = wf_archive_new(c->ctx, &stage_ops, false, c);
    WF_NEED(archive);
    const wf_status status = wf_checkpoint_visit(c, archive, &step);
    wf_archive_free(archive);
    WF_TRY(status);
    WF_TRY(wf_checkpoint_agree(c));
    WF_TRY(unite(c));
    WF_TRY(stage_own_numbers(c));
    WF_TRY(wf_checkpoint_agree(c));
    c->manifest.step = step;
    c->manifest.ranks = c->size;
    if (c->opts.mesh)
        snprintf(c->manifest.mesh, sizeof c->manifest.mesh, "%s", wf_mesh_text(c->opts.mesh));
    return WF_OK;
}
