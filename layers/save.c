/* Model files. Rank 0 alone opens the file; the other ranks send their parts to it and receive theirs from it. A
 * file that was not written whole never takes the place of a good one. Where ranks have different layers (stages of a
 * pipeline), the catalog says what the whole model is, and who has what of it. */
#include "layers/save.h"

#include "comm/comm_author.h"
#include "comm/file_author.h"
#include "core/boundary.h"
#include "layers/catalog_author.h"
#include "layers/layer_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAVE_TAG 16382 /* of parameters on their way to rank 0 */

enum { COUNT_NAME = 1024 };

/* One call. comm is NULL where there is one rank. */
typedef struct call {
    wf_comm *comm;
    wf_comm *holders; /* ranks that have the same layers as this one; comm, where that is all of them */
    wf_layer *model;
    wf_h5 *file;        /* on rank 0 */
    wf_catalog catalog; /* of the whole model */
    wf_param **own;     /* by place in the catalog; NULL: other ranks have it */
    char *text;         /* lines, of partial loading */
    size_t used, room;
} call;

static bool is_first(const call *c)
{
    return !c->comm || wf_comm_rank(c->comm) == 0;
}

/* Returns rank 0's status on all ranks. */
static wf_status spread(const call *c, wf_status status)
{
    return c->comm ? wf_bcast_status(c->comm, status, 0) : status;
}

/* --- The whole model ---------------------------------------------------------------------------------------------- */

static void list_params(const call *c, int64_t n, wf_param *const *params, wf_catalog_entry *list)
{
    for (int64_t i = 0; i < n; i++)
        list[i] = (wf_catalog_entry){.path = wf_layer_param_name(c->model, params[i]),
                                     .dtype = params[i]->dtype,
                                     .order = params[i]->order,
                                     .shape = params[i]->global,
                                     .note = params[i]->beyond};
}

/* Ranks with the same part of the model gather the parameters that they share. */
static wf_status find_holders(call *c)
{
    c->holders = c->comm;
    if (c->catalog.parts == 1)
        return WF_OK;
    c->holders = wf_comm_split(c->comm, c->catalog.leader, wf_comm_rank(c->comm));
    WF_NEED(c->holders);
    return WF_OK;
}

static wf_status make_catalog(call *c, wf_status status, int64_t n, wf_param *const *params)
{
    wf_ctx *ctx = wf_layer_ctx(c->model);
    const int key[WF_CATALOG_KEYS] = {status == WF_OK ? wf_layer_part(c->model) : 0};
    wf_catalog_entry *list = status == WF_OK ? wf_calloc(ctx, (size_t)n + 1, sizeof *list) : NULL;
    if (list)
        list_params(c, n, params, list);
    else if (status == WF_OK)
        status = wf_error_code();
    status = wf_catalog_make(ctx, c->comm, status, key, n, list, &c->catalog);
    free(list);
    WF_TRY(status);
    c->own = wf_calloc(ctx, (size_t)c->catalog.n + 1, sizeof(*c->own));
    status = c->own ? WF_OK : wf_error_code();
    WF_TRY(c->comm ? wf_agree_status(c->comm, status) : status);
    for (int64_t i = 0; i < n; i++)
        c->own[c->catalog.place[i]] = params[i];
    return find_holders(c);
}

static wf_status prepare(const call *c, const char *path, int64_t *n, wf_param *const **params)
{
    WF_NEED(c->model);
    WF_NEED(path);
    return wf_layer_params(c->model, n, params);
}

/* Arguments that one rank alone has wrong are an error on all. */
static wf_status begin(call *c, const char *path)
{
    int64_t n = 0;
    wf_param *const *params = NULL;
    const wf_status status = prepare(c, path, &n, &params);
    return make_catalog(c, status, n, params);
}

static wf_status end(call *c, wf_status status)
{
    const wf_status closed = wf_h5_close(c->file);
    if (c->holders && c->holders != c->comm && wf_comm_close(c->holders) != WF_OK && status == WF_OK)
        status = wf_error_code();
    wf_catalog_free(&c->catalog);
    free(c->own);
    return status == WF_OK ? closed : status;
}

/* --- Whole parameters --------------------------------------------------------------------------------------------- */

/* The ranks' boxes tell where in the whole each part lies; a view of the whole receives it in place. */
static wf_status gather_parts(wf_comm *comm, const wf_tensor *value, wf_tensor *whole, const wf_box *box,
                              wf_tensor **view)
{
    for (int r = 0; r < wf_comm_size(comm); r++) {
        view[r] = wf_tensor_view(whole, box[r]);
        WF_NEED(view[r]);
    }
    return wf_allgather(comm, value, view);
}

static wf_status gather_param(wf_comm *comm, wf_param *param, wf_tensor *whole)
{
    const wf_tensor *value = wf_param_value(param);
    const int size = wf_comm_size(comm);
    wf_ctx *ctx = param->ctx;
    wf_box *box = wf_calloc(ctx, (size_t)size, sizeof *box);
    wf_tensor **view = wf_calloc(ctx, (size_t)size, sizeof *view);
    wf_status status = value && box && view ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for parts of a parameter");
    if (status == WF_OK)
        status = wf_allgather_bytes(comm, &param->box, sizeof *box, box);
    if (status == WF_OK)
        status = gather_parts(comm, value, whole, box, view);
    for (int r = 0; view && r < size; r++)
        wf_tensor_free(view[r]);
    free(view);
    free(box);
    return status;
}

wf_tensor *wf_param_gather(wf_comm *comm, wf_param *param)
{
    if (!param)
        return NULL;
    /* Equal on all ranks: no message. */
    if (!param->shard_axes)
        return wf_tensor_alias(wf_param_value(param));
    WF_CHECK_NULL(comm, WF_ERR_ARGUMENT, "the parts of %s are gathered without a communicator", wf_param_path(param));
    wf_tensor *whole = wf_tensor_new_ordered(param->ctx, param->dtype, param->global, param->order);
    if (wf_comm_post_failure(comm, whole ? gather_param(comm, param, whole) : wf_error_code()) == WF_OK)
        return whole;
    wf_tensor_free(whole);
    return wf_error_null();
}

wf_status wf_param_import(wf_param *param, const wf_tensor *whole)
{
    char text[2][WF_SHAPE_TEXT];
    WF_NEED(param);
    WF_NEED(whole);
    WF_CHECK(wf_shape_equal(wf_tensor_shape(whole), param->global), WF_ERR_SHAPE, "%s is %s, the value given is %s",
             wf_param_path(param), wf_shape_text(param->global, text[0]),
             wf_shape_text(wf_tensor_shape(whole), text[1]));
    WF_NEED(wf_param_value(param));
    /* Each rank takes its part of the whole, whatever division the file was saved from. */
    wf_tensor *part = wf_tensor_view(whole, param->box);
    WF_NEED(part);
    const wf_status status = wf_tensor_assign(param->value, part);
    wf_tensor_free(part);
    return status;
}

/* --- Counts of batches -------------------------------------------------------------------------------------------- */

/* "bn/N" for "bn/avg_var": Chainer's batch normalisation expects there how many batches its statistics have seen, which
 * PyTorch counts too. Weft does not count them; what a file says is kept for the next file. False for other
 * parameters. */
static bool name_of_count(const char *path, char name[COUNT_NAME])
{
    const char *slash = strrchr(path, '/');
    const int above = slash ? (int)(slash - path) + 1 : 0;
    return strcmp(path + above, "avg_var") == 0 && snprintf(name, COUNT_NAME, "%.*sN", above, path) < COUNT_NAME;
}

/* 0 if the file has something else of this name, or nothing: a load needs only parameters. */
static wf_status read_count(wf_h5 *file, const char *name, int64_t *batches)
{
    wf_h5_info info;
    *batches = 0;
    if (wf_h5_has(file, name) && wf_h5_stat(file, name, &info) == WF_OK && wf_shape_count(info.shape) == 1 &&
        !info.empty && !wf_dtype_is_float(info.dtype))
        return wf_h5_read(file, name, wf_box_of_shape(info.shape), WF_I64, batches);
    wf_error_clear();
    return WF_OK;
}

static wf_status load_count(const call *c, const char *name, wf_param *own)
{
    int64_t batches = 0;
    WF_TRY(spread(c, is_first(c) ? read_count(c->file, name, &batches) : WF_OK));
    if (c->comm)
        WF_TRY(wf_bcast_bytes(c->comm, &batches, sizeof batches, 0));
    if (own)
        own->batches = batches;
    return WF_OK;
}

/* The count of the parameter that is saved, on rank 0. */
static wf_status bring_count(const call *c, int64_t i, int64_t *batches)
{
    *batches = c->own[i] ? c->own[i]->batches : 0;
    return c->catalog.parts > 1 ? wf_bcast_bytes(c->comm, batches, sizeof *batches, c->catalog.entry[i].owner) : WF_OK;
}

/* --- Padding modes ------------------------------------------------------------------------------------------------ */

/* What PyTorch calls padding_mode is no parameter, and not to be seen in one: a filter that was trained on a ring would
 * give other numbers between zeros. Files have it as an attribute of the filter, where it is not "zeros". */
static const char *const mode_attribute = "padding_mode";

enum { EDGE_BITS = 4, MODE_TEXT = 96 };

static const char *edge_word(int side)
{
    return side == 0 ? "none" : side == 1 + WF_EDGE_DEFAULT ? "zeros" : wf_edge_name((wf_edge)(side - 1));
}

/* One word where all padded sides have one edge, as PyTorch has; else one for each side, "none" of those without
 * padding. */
static const char *mode_of(int beyond, char text[MODE_TEXT])
{
    int padded = 0, at = 0;
    bool one = true;
    for (int rest = beyond; rest; rest >>= EDGE_BITS) {
        const int side = rest & ((1 << EDGE_BITS) - 1);
        one = one && (side == 0 || padded == 0 || side == padded);
        padded = side ? side : padded;
        at += snprintf(text + at, (size_t)(MODE_TEXT - at), "%s%s", at ? "," : "", edge_word(side));
    }
    return one ? edge_word(padded) : text;
}

static wf_status write_mode(wf_h5 *file, const wf_catalog_entry *e)
{
    char text[MODE_TEXT];
    const char *const mode = mode_of(e->note, text);
    if (e->note == 0 || strcmp(mode, edge_word(1 + WF_EDGE_DEFAULT)) == 0)
        return WF_OK;
    return wf_h5_set_text(file, e->path, mode_attribute, mode);
}

/* Returns true unless the file says of a filter what its layer, which pads, does not do. */
static bool mode_fits(wf_h5 *file, const wf_catalog_entry *e, char why[512])
{
    char text[MODE_TEXT], own[MODE_TEXT];
    if (e->note == 0)
        return true;
    const char *const here = mode_of(e->note, own);
    if (wf_h5_get_text(file, e->path, mode_attribute, text, sizeof text) != WF_OK) {
        snprintf(why, 512, "%s", wf_error_message());
        return false;
    }
    snprintf(why, 512, "%s is %s here, %s in the file; the layer's boundary should have the file's edge",
             mode_attribute, here, text);
    return !text[0] || strcmp(text, here) == 0;
}

/* --- Saving ------------------------------------------------------------------------------------------------------- */

static wf_status write_tensor(wf_h5 *file, const char *name, const wf_tensor *whole)
{
    const wf_shape shape = wf_tensor_shape(whole);
    const size_t bytes = wf_tensor_bytes(whole);
    WF_TRY(wf_h5_add(file, name, wf_tensor_dtype(whole), shape));
    void *host = wf_malloc(wf_tensor_ctx(whole), bytes ? bytes : 1);
    if (!host)
        return wf_error_code();
    wf_status status = wf_tensor_export(whole, host, bytes);
    if (status == WF_OK)
        status = wf_h5_write(file, name, wf_box_of_shape(shape), host);
    free(host);
    return status;
}

static wf_status write_count(wf_h5 *file, const char *name, int64_t batches)
{
    WF_TRY(wf_h5_add(file, name, WF_I64, wf_shape_scalar()));
    return wf_h5_write(file, name, wf_box_of_shape(wf_shape_scalar()), &batches);
}

/* Returns the value of a parameter on rank 0; on other ranks NULL, or what they have on the way. If no rank can go on,
 * all ranks are told. */
static wf_tensor *bring(call *c, int64_t i)
{
    const wf_catalog_entry *e = &c->catalog.entry[i];
    const int rank = c->comm ? wf_comm_rank(c->comm) : 0;
    /* If several parts of the model have the parameter, the value of the first one is saved. */
    const bool gives = c->own[i] && (c->catalog.parts == 1 || c->catalog.leader == e->owner);
    wf_tensor *whole = gives ? wf_param_gather(c->holders, c->own[i]) : NULL;
    wf_status status = gives && !whole ? wf_check(NULL) : WF_OK;
    if (c->catalog.parts == 1 || e->owner == 0)
        return whole;
    if (rank == 0)
        whole = wf_tensor_new_ordered(wf_layer_ctx(c->model), e->dtype, e->shape, e->order);
    if (rank == 0 && !whole)
        status = wf_check(NULL);
    if (wf_comm_post_failure(c->comm, status) == WF_OK && rank == e->owner)
        status = wf_send(c->comm, whole, 0, SAVE_TAG);
    else if (status == WF_OK && rank == 0)
        status = wf_recv(c->comm, whole, e->owner, SAVE_TAG);
    if (status == WF_OK)
        return whole;
    wf_tensor_free(whole);
    return wf_error_null();
}

/* A rank whose part fails continues, so that all ranks make the same calls. */
static wf_status save_param(call *c, int64_t i, wf_status before)
{
    char count[COUNT_NAME];
    int64_t batches = 0;
    const char *name = c->catalog.entry[i].path;
    const bool counts = name_of_count(name, count);
    wf_tensor *whole = bring(c, i);
    wf_status status = before;
    if (counts && bring_count(c, i, &batches) != WF_OK && status == WF_OK)
        before = status = wf_error_code();
    if (!whole && is_first(c))
        return before == WF_OK ? wf_check(NULL) : before;
    if (before == WF_OK && is_first(c))
        status = write_tensor(c->file, name, whole);
    if (status == WF_OK && is_first(c))
        status = write_mode(c->file, &c->catalog.entry[i]);
    if (status == WF_OK && is_first(c) && counts)
        status = write_count(c->file, count, batches);
    wf_tensor_free(whole);
    return status;
}

static wf_status write_all(call *c)
{
    wf_status status = WF_OK;
    for (int64_t i = 0; i < c->catalog.n; i++) {
        status = save_param(c, i, status);
        if (c->comm && wf_comm_alive(c->comm) != WF_OK)
            return wf_comm_alive(c->comm);
    }
    const wf_status closed = wf_h5_close(c->file);
    c->file = NULL;
    return status == WF_OK ? closed : status;
}

static wf_status create(call *c, const char *path, char target[WF_FILE_PATH], char temporary[WF_FILE_PATH])
{
    WF_TRY(wf_file_target(path, ".tmp", target, temporary));
    c->file = wf_h5_create(temporary);
    return wf_check(c->file);
}

static wf_status save_as(call *c, const char *path)
{
    char target[WF_FILE_PATH], temporary[WF_FILE_PATH];
    WF_TRY(spread(c, is_first(c) ? create(c, path, target, temporary) : WF_OK));
    wf_status status = write_all(c);
    if (status == WF_OK && is_first(c))
        status = wf_file_commit(temporary, target);
    status = spread(c, status);
    if (status != WF_OK && is_first(c))
        unlink(temporary);
    return status;
}

static wf_status save(wf_comm *comm, wf_layer *model, const char *path)
{
    call c = {.comm = comm, .model = model};
    wf_status status = begin(&c, path);
    if (status == WF_OK)
        status = save_as(&c, path);
    return end(&c, status);
}

/* --- Loading ------------------------------------------------------------------------------------------------------ */

static wf_status add_line(call *c, const char *name, const char *what)
{
    const size_t more = strlen(name) + strlen(what) + 4;
    if (c->used + more > c->room) {
        const size_t room = 2 * (c->used + more);
        char *longer = realloc(c->text, room);
        WF_CHECK(longer, WF_ERR_MEMORY, "no memory for the list of what was left out");
        c->text = longer;
        c->room = room;
    }
    c->used += (size_t)snprintf(c->text + c->used, c->room - c->used, "%s: %s\n", name, what);
    return WF_OK;
}

/* Returns true if the file has the parameter; if not, `why` says what is missing or differs. */
static bool fits(call *c, const wf_catalog_entry *e, char why[512])
{
    char text[2][WF_SHAPE_TEXT];
    wf_h5_info info;
    if (!wf_h5_has(c->file, e->path)) {
        snprintf(why, 512, "not in the file");
        return false;
    }
    if (wf_h5_stat(c->file, e->path, &info) != WF_OK) {
        snprintf(why, 512, "%s", wf_error_message());
        return false;
    }
    /* Written before the answer, so that the text is there where the caller wants it. */
    const bool same = wf_shape_equal(info.shape, e->shape) && !info.empty;
    snprintf(why, 512, "%s %s here, %s %s in the file", wf_dtype_name(e->dtype), wf_shape_text(e->shape, text[0]),
             wf_dtype_name(info.dtype), wf_shape_text(info.shape, text[1]));
    return same && wf_dtype_is_float(info.dtype) == wf_dtype_is_float(e->dtype) && mode_fits(c->file, e, why);
}

static wf_status check_all(call *c, const char *path)
{
    char why[512];
    for (int64_t i = 0; i < c->catalog.n; i++)
        WF_CHECK(fits(c, &c->catalog.entry[i], why), WF_ERR_FORMAT, "%s: %s: %s", path, c->catalog.entry[i].path, why);
    return WF_OK;
}

static wf_status list_unknown(void *user, wf_h5 *file, const char *name)
{
    call *c = user;
    char count[COUNT_NAME];
    for (int64_t i = 0; i < c->catalog.n; i++) {
        const char *path = c->catalog.entry[i].path;
        if (strcmp(path, name) == 0 || (name_of_count(path, count) && strcmp(name, count) == 0))
            return WF_OK;
    }
    return add_line(c, name, "not in the model");
}

static wf_status choose(call *c, bool *wanted)
{
    char why[512];
    WF_TRY(add_line(c, "", ""));
    c->used = 0;
    c->text[0] = '\0';
    for (int64_t i = 0; i < c->catalog.n; i++) {
        wanted[i] = fits(c, &c->catalog.entry[i], why);
        if (!wanted[i])
            WF_TRY(add_line(c, c->catalog.entry[i].path, why));
    }
    /* What did not fit is in the list and is no error of this call. */
    wf_error_clear();
    return wf_h5_each(c->file, list_unknown, c);
}

static wf_status read_whole(call *c, const wf_catalog_entry *e, wf_tensor *whole)
{
    const size_t bytes = wf_tensor_bytes(whole);
    void *host = wf_malloc(wf_layer_ctx(c->model), bytes ? bytes : 1);
    if (!host)
        return wf_error_code();
    wf_status status = wf_h5_read(c->file, e->path, wf_box_of_shape(e->shape), e->dtype, host);
    if (status == WF_OK)
        status = wf_tensor_import(whole, host, bytes);
    free(host);
    return status;
}

static wf_status load_param(call *c, int64_t i)
{
    char count[COUNT_NAME];
    const wf_catalog_entry *e = &c->catalog.entry[i];
    wf_tensor *whole = wf_tensor_new_ordered(wf_layer_ctx(c->model), e->dtype, e->shape, e->order);
    wf_status status = whole ? WF_OK : wf_error_code();
    if (c->comm)
        status = wf_agree_status(c->comm, status);
    if (status == WF_OK)
        status = spread(c, is_first(c) ? read_whole(c, e, whole) : WF_OK);
    if (status == WF_OK && c->comm)
        status = wf_bcast(c->comm, whole, 0);
    if (status == WF_OK && c->own[i])
        status = wf_param_import(c->own[i], whole);
    if (status == WF_OK && name_of_count(e->path, count))
        status = load_count(c, count, c->own[i]);
    wf_tensor_free(whole);
    return status;
}

static wf_status load_all(call *c, const bool *wanted)
{
    for (int64_t i = 0; i < c->catalog.n; i++)
        if (!wanted || wanted[i])
            WF_TRY(load_param(c, i));
    return WF_OK;
}

static wf_status open_file(call *c, const char *path)
{
    WF_TRY(begin(c, path));
    if (is_first(c))
        c->file = wf_h5_open(path);
    return spread(c, is_first(c) ? wf_check(c->file) : WF_OK);
}

static wf_status load(wf_comm *comm, wf_layer *model, const char *path)
{
    call c = {.comm = comm, .model = model};
    wf_status status = open_file(&c, path);
    if (status == WF_OK)
        status = spread(&c, is_first(&c) ? check_all(&c, path) : WF_OK);
    if (status == WF_OK)
        status = load_all(&c, NULL);
    return end(&c, status);
}

/* The list, on all ranks. */
static wf_status share_text(call *c)
{
    int64_t used = (int64_t)c->used;
    if (!c->comm)
        return WF_OK;
    WF_TRY(wf_bcast_bytes(c->comm, &used, sizeof used, 0));
    char *text = is_first(c) ? c->text : calloc(1, (size_t)used + 1);
    wf_status status = wf_agree_status(c->comm, text ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a list"));
    if (status == WF_OK)
        status = wf_bcast_bytes(c->comm, text, (size_t)used, 0);
    c->text = text; /* load_partial frees it or hands it out */
    return status;  /* NOLINT(clang-analyzer-unix.Malloc) */
}

static wf_status load_common(call *c, bool *wanted)
{
    WF_TRY(spread(c, is_first(c) ? choose(c, wanted) : WF_OK));
    if (c->comm)
        WF_TRY(wf_bcast_bytes(c->comm, wanted, (size_t)c->catalog.n * sizeof *wanted, 0));
    WF_TRY(share_text(c));
    return load_all(c, wanted);
}

static wf_status load_partial(wf_comm *comm, wf_layer *model, const char *path, char **left_out)
{
    call c = {.comm = comm, .model = model};
    wf_status status = open_file(&c, path);
    bool *wanted = calloc((size_t)c.catalog.n + 1, sizeof *wanted);
    if (status == WF_OK && comm)
        status = wf_agree_status(comm, wanted ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a list"));
    if (status == WF_OK)
        status = wanted ? load_common(&c, wanted) : WF_RAISE(WF_ERR_MEMORY, "no memory for a list");
    free(wanted);
    if (status == WF_OK && left_out)
        *left_out = c.text;
    else
        free(c.text);
    return end(&c, status);
}

/* --- With and without a communicator ------------------------------------------------------------------------------ */

static wf_comm *world_of(const wf_layer *model)
{
    const wf_ctx *ctx = wf_layer_ctx(model);
    return ctx && ctx->world && wf_comm_size(ctx->world) > 1 ? ctx->world : NULL;
}

wf_status wf_save(wf_layer *model, const char *path)
{
    return save(world_of(model), model, path);
}

wf_status wf_load(wf_layer *model, const char *path)
{
    return load(world_of(model), model, path);
}

wf_status wf_load_partial(wf_layer *model, const char *path, char **left_out)
{
    return load_partial(world_of(model), model, path, left_out);
}

wf_status wf_save_over(wf_comm *comm, wf_layer *model, const char *path)
{
    WF_NEED(comm);
    return save(comm, model, path);
}

wf_status wf_load_over(wf_comm *comm, wf_layer *model, const char *path)
{
    WF_NEED(comm);
    return load(comm, model, path);
}

wf_status wf_load_partial_over(wf_comm *comm, wf_layer *model, const char *path, char **left_out)
{
    WF_NEED(comm);
    return load_partial(comm, model, path, left_out);
}
