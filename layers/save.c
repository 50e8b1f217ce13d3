/* Model files. Rank 0 alone opens the file; the other ranks send their parts to it and receive theirs from it. A
 * file that was not written whole never takes the place of a good one. */
#include "layers/save.h"

#include "comm/comm_author.h"
#include "comm/file_author.h"
#include "layers/layer_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One call. comm is NULL where there is one rank. */
typedef struct call {
    wf_comm *comm;
    wf_layer *model;
    wf_h5 *file; /* on rank 0 */
    int64_t n;
    wf_param *const *params;
    char *text; /* lines, of partial loading */
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

/* The path below the model. */
static const char *name_of(const call *c, const wf_param *param)
{
    const size_t above = strlen(wf_layer_path(c->model));
    return wf_param_path(param) + above + (above > 0);
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

static wf_status gather(wf_comm *comm, wf_param *param, wf_tensor *whole)
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
    /* The same on all ranks: no message. */
    if (!param->shard_axes)
        return wf_tensor_alias(wf_param_value(param));
    WF_CHECK_NULL(comm, WF_ERR_ARGUMENT, "the parts of %s are gathered without a communicator", wf_param_path(param));
    wf_tensor *whole = wf_tensor_new_ordered(param->ctx, param->dtype, param->global, param->order);
    if (wf_comm_post_failure(comm, whole ? gather(comm, param, whole) : wf_error_code()) == WF_OK)
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

/* Chainer's batch normalisation also expects a count of updates. */
static wf_status write_count(wf_h5 *file, const char *name)
{
    char count[1024];
    const char *slash = strrchr(name, '/');
    const int above = slash ? (int)(slash - name) + 1 : 0;
    const int64_t zero = 0;
    if (strcmp(name + above, "avg_var") != 0)
        return WF_OK;
    WF_CHECK(snprintf(count, sizeof count, "%.*sN", above, name) < (int)sizeof count, WF_ERR_ARGUMENT,
             "%s: the path is too long", name);
    WF_TRY(wf_h5_add(file, count, WF_I64, wf_shape_scalar()));
    return wf_h5_write(file, count, wf_box_of_shape(wf_shape_scalar()), &zero);
}

/* A rank whose part fails continues, so that all ranks make the same calls. */
static wf_status save_param(call *c, wf_param *param, wf_status before)
{
    wf_tensor *whole = wf_param_gather(c->comm, param);
    wf_status status = before;
    if (!whole)
        return before == WF_OK ? wf_check(NULL) : before;
    if (before == WF_OK && is_first(c))
        status = write_tensor(c->file, name_of(c, param), whole);
    if (status == WF_OK && is_first(c))
        status = write_count(c->file, name_of(c, param));
    wf_tensor_free(whole);
    return status;
}

static wf_status write_all(call *c)
{
    wf_status status = WF_OK;
    for (int64_t i = 0; i < c->n; i++) {
        status = save_param(c, c->params[i], status);
        if (c->comm && wf_comm_alive(c->comm) != WF_OK)
            return wf_comm_alive(c->comm);
    }
    const wf_status closed = wf_h5_close(c->file);
    return status == WF_OK ? closed : status;
}

static wf_status save_as(call *c, const char *temporary, const char *path)
{
    if (is_first(c))
        c->file = wf_h5_create(temporary);
    WF_TRY(spread(c, is_first(c) ? wf_check(c->file) : WF_OK));
    wf_status status = write_all(c);
    if (status == WF_OK && is_first(c))
        status = wf_file_commit(temporary, path);
    status = spread(c, status);
    if (status != WF_OK && is_first(c))
        unlink(temporary);
    return status;
}

static wf_status save(wf_comm *comm, wf_layer *model, const char *path)
{
    call c = {.comm = comm, .model = model};
    char temporary[4096];
    WF_NEED(model);
    WF_NEED(path);
    WF_CHECK(snprintf(temporary, sizeof temporary, "%s.tmp", path) < (int)sizeof temporary, WF_ERR_ARGUMENT,
             "%s: the name is too long", path);
    WF_TRY(wf_layer_params(model, &c.n, &c.params));
    return save_as(&c, temporary, path);
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

/* Whether the file has the parameter; if not, why. */
static bool fits(call *c, const wf_param *param, char why[512])
{
    char text[2][WF_SHAPE_TEXT];
    wf_h5_info info;
    if (!wf_h5_has(c->file, name_of(c, param))) {
        snprintf(why, 512, "not in the file");
        return false;
    }
    if (wf_h5_stat(c->file, name_of(c, param), &info) != WF_OK) {
        snprintf(why, 512, "%s", wf_error_message());
        return false;
    }
    /* Written before the answer, so that the text is there where the caller wants it. */
    const bool same = wf_shape_equal(info.shape, param->global) && !info.empty;
    snprintf(why, 512, "%s %s here, %s %s in the file", wf_dtype_name(param->dtype),
             wf_shape_text(param->global, text[0]), wf_dtype_name(info.dtype), wf_shape_text(info.shape, text[1]));
    return same && wf_dtype_is_float(info.dtype) == wf_dtype_is_float(param->dtype);
}

static wf_status check_all(call *c, const char *path)
{
    char why[512];
    for (int64_t i = 0; i < c->n; i++)
        WF_CHECK(fits(c, c->params[i], why), WF_ERR_FORMAT, "%s: %s: %s", path, name_of(c, c->params[i]), why);
    return WF_OK;
}

static wf_status list_unknown(void *user, wf_h5 *file, const char *name)
{
    call *c = user;
    for (int64_t i = 0; i < c->n; i++)
        if (strcmp(name_of(c, c->params[i]), name) == 0)
            return WF_OK;
    return add_line(c, name, "not in the model");
}

static wf_status choose(call *c, bool *wanted)
{
    char why[512];
    WF_TRY(add_line(c, "", ""));
    c->used = 0;
    c->text[0] = '\0';
    for (int64_t i = 0; i < c->n; i++) {
        wanted[i] = fits(c, c->params[i], why);
        if (!wanted[i])
            WF_TRY(add_line(c, name_of(c, c->params[i]), why));
    }
    /* What did not fit is in the list and is no error of this call. */
    wf_error_clear();
    return wf_h5_each(c->file, list_unknown, c);
}

static wf_status read_whole(call *c, const wf_param *param, wf_tensor *whole)
{
    const size_t bytes = wf_tensor_bytes(whole);
    void *host = wf_malloc(param->ctx, bytes ? bytes : 1);
    if (!host)
        return wf_error_code();
    wf_status status = wf_h5_read(c->file, name_of(c, param), wf_box_of_shape(param->global), param->dtype, host);
    if (status == WF_OK)
        status = wf_tensor_import(whole, host, bytes);
    free(host);
    return status;
}

static wf_status load_param(call *c, wf_param *param)
{
    wf_tensor *whole = wf_tensor_new_ordered(param->ctx, param->dtype, param->global, param->order);
    wf_status status = whole ? WF_OK : wf_error_code();
    if (c->comm)
        status = wf_agree_status(c->comm, status);
    if (status == WF_OK)
        status = spread(c, is_first(c) ? read_whole(c, param, whole) : WF_OK);
    if (status == WF_OK && c->comm)
        status = wf_bcast(c->comm, whole, 0);
    if (status == WF_OK)
        status = wf_param_import(param, whole);
    wf_tensor_free(whole);
    return status;
}

static wf_status load_all(call *c, const bool *wanted)
{
    for (int64_t i = 0; i < c->n; i++)
        if (!wanted || wanted[i])
            WF_TRY(load_param(c, c->params[i]));
    return WF_OK;
}

static wf_status open_file(call *c, const char *path)
{
    WF_NEED(c->model);
    WF_NEED(path);
    WF_TRY(wf_layer_params(c->model, &c->n, &c->params));
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
    const wf_status closed = wf_h5_close(c.file);
    return status == WF_OK ? closed : status;
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
        WF_TRY(wf_bcast_bytes(c->comm, wanted, (size_t)c->n * sizeof *wanted, 0));
    WF_TRY(share_text(c));
    return load_all(c, wanted);
}

static wf_status load_partial(wf_comm *comm, wf_layer *model, const char *path, char **left_out)
{
    call c = {.comm = comm, .model = model};
    wf_status status = open_file(&c, path);
    bool *wanted = calloc((size_t)c.n + 1, sizeof *wanted);
    if (status == WF_OK && comm)
        status = wf_agree_status(comm, wanted ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a list"));
    if (status == WF_OK)
        status = wanted ? load_common(&c, wanted) : WF_RAISE(WF_ERR_MEMORY, "no memory for a list");
    free(wanted);
    const wf_status closed = wf_h5_close(c.file);
    if (status == WF_OK && left_out)
        *left_out = c.text;
    else
        free(c.text);
    return status == WF_OK ? closed : status;
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
