/* Batches that the program gives as tensors on its own memory. Ranks agree on the options once, when the iterator is
 * made; afterwards each batch is checked against this rank's part, and an error of one rank is posted to the others. */
#include "datasets/streamed.h"

#include "comm/comm_author.h"
#include "core/tensor_author.h"
#include "datasets/iterator_impl.h"

#include <stdlib.h>
#include <string.h>

/* What must be equal on all ranks: of a layout all but the own box. Fields of a fixed size, so that the record is sent
 * as it is. */
typedef struct form {
    int64_t known, rank, dim[WF_MAX_RANK], cut[WF_AXES]; /* cut: 1 + the dimension; 0: none */
    uint64_t bounds[WF_AXES];
} form;

typedef struct terms {
    form x, target;
    int64_t epoch_length;
} terms;

/* Bounds are compared by a hash: a rank has only its own box beside them. */
static form form_of(const wf_mesh *mesh, const wf_layout *layout)
{
    form f = {.known = layout->known};
    if (!layout->known)
        return f;
    f.rank = layout->global.rank;
    memcpy(f.dim, layout->global.dim, (size_t)f.rank * sizeof *f.dim);
    for (int a = 0; a < WF_AXES; a++) {
        if (layout->placement[a] != WF_SHARDED)
            continue;
        f.cut[a] = 1 + layout->dim[a];
        /* Ranks that know no bounds have 0. */
        for (int r = 0; layout->bounds[a] && r <= wf_mesh_size(mesh, (wf_axis)a); r++)
            f.bounds[a] = wf_hash_u64(f.bounds[a], (uint64_t)layout->bounds[a][r]);
    }
    return f;
}

/* The error is the same on all ranks, as all have the same records. */
static wf_status compare_forms(const wf_comm *comm, const char *name, int r, const form *first, const form *other)
{
    char text[2][WF_SHAPE_TEXT];
    const wf_shape mine = wf_shape_make((int)first->rank, first->dim),
                   its = wf_shape_make((int)other->rank, other->dim);
    WF_CHECK(first->known == other->known && wf_shape_equal(mine, its), WF_ERR_ARGUMENT,
             "streamed batches whose %s is %s on rank %s and %s on rank %s: should be one layout of all ranks", name,
             first->known ? wf_shape_text(mine, text[0]) : "left out", WF_RANK(comm, 0),
             other->known ? wf_shape_text(its, text[1]) : "left out", WF_RANK(comm, r));
    for (int a = 0; a < WF_AXES; a++)
        WF_CHECK(first->cut[a] == other->cut[a] && first->bounds[a] == other->bounds[a], WF_ERR_ARGUMENT,
                 "streamed batches whose %s is cut over %s at other bounds on rank %s than on rank %s: should be one "
                 "layout of all ranks",
                 name, wf_axis_name((wf_axis)a), WF_RANK(comm, r), WF_RANK(comm, 0));
    return WF_OK;
}

/* Against rank 0: equality with it is equality of all. */
static wf_status compare_terms(const wf_comm *comm, const terms *all)
{
    for (int r = 1; r < wf_comm_size(comm); r++) {
        WF_TRY(compare_forms(comm, "x", r, &all[0].x, &all[r].x));
        WF_TRY(compare_forms(comm, "target", r, &all[0].target, &all[r].target));
        WF_CHECK(all[r].epoch_length == all[0].epoch_length, WF_ERR_ARGUMENT,
                 "streamed batches of %lld an epoch on rank %s and %lld on rank %s: should be the same number",
                 (long long)all[0].epoch_length, WF_RANK(comm, 0), (long long)all[r].epoch_length, WF_RANK(comm, r));
    }
    return WF_OK;
}

/* Local: every rank checks its own options, and all agree on the verdict before any compares. */
static wf_status check_streamed_layout(const wf_mesh *mesh, const char *name, const wf_layout *layout)
{
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(layout->mesh == mesh && layout->global.rank >= 1 && !wf_layout_is_partial(layout), WF_ERR_ARGUMENT,
             "streamed batches whose %s is %s: should be [samples,...], sharded or replicated over this mesh", name,
             wf_layout_text(layout, text));
    return WF_OK;
}

static wf_status check_streamed_opts(const wf_mesh *mesh, const wf_streamed_opts *opts)
{
    WF_CHECK(opts->next, WF_ERR_ARGUMENT, "streamed batches without a function `next` that gives them");
    WF_CHECK(opts->x.known, WF_ERR_ARGUMENT, "streamed batches without a layout of x: wf_mesh_layout makes one");
    WF_CHECK(opts->epoch_length >= 0, WF_ERR_ARGUMENT, "streamed batches of %lld an epoch: should be 0 or more",
             (long long)opts->epoch_length);
    WF_TRY(check_streamed_layout(mesh, "x", &opts->x));
    return opts->target.known ? check_streamed_layout(mesh, "target", &opts->target) : WF_OK;
}

static wf_status agree_terms(const wf_mesh *mesh, const wf_streamed_opts *opts)
{
    wf_comm *comm = wf_mesh_world(mesh);
    const size_t bytes = (size_t)wf_comm_size(comm) * sizeof(terms);
    void *all = NULL;
    /* Ranks that fail here must still come to the agreement, so that none waits in the gather. */
    wf_status status = check_streamed_opts(mesh, opts);
    if (status == WF_OK)
        status = wf_host_take(comm, bytes, &all);
    WF_TRY_OUT(wf_agree_status(comm, status));
    const terms mine = {
        .x = form_of(mesh, &opts->x), .target = form_of(mesh, &opts->target), .epoch_length = opts->epoch_length};
    WF_TRY_OUT(wf_allgather_bytes(comm, &mine, sizeof mine, all));
    /* Every rank compares the same records, so all return the same error. */
    WF_TRY_OUT(compare_terms(comm, all));
out:
    wf_host_give(comm, all, bytes);
    return status;
}

wf_iter *wf_streamed_batches(const wf_mesh *mesh, wf_streamed_opts opts)
{
    WF_NEED_NULL(mesh);
    WF_TRY_NULL(agree_terms(mesh, &opts));
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    wf_iter *iter = wf_calloc(ctx, 1, sizeof *iter);
    wf_streamed *streamed = wf_calloc(ctx, 1, sizeof *streamed);
    if (!iter || !streamed) {
        free(iter);
        free(streamed);
        /* The agreement is over, and the other ranks go on with their iterators. */
        wf_comm_post_failure(wf_mesh_world(mesh), wf_error_code());
        return wf_error_null();
    }
    *streamed = (wf_streamed){.mesh = mesh, .opts = opts};
    iter->ctx = ctx;
    iter->opened = true;
    iter->streamed = streamed;
    wf_live_add(ctx, WF_LIVE_ITER, 1);
    return iter;
}

static void release_tensors(wf_streamed *s)
{
    wf_tensor_free(s->x);
    wf_tensor_free(s->target);
    s->x = s->target = NULL;
}

void wf_streamed_free(wf_ctx *ctx, wf_streamed *streamed)
{
    if (!streamed)
        return;
    release_tensors(streamed);
    if (streamed->read)
        ctx->k->event_free(ctx, streamed->read);
    free(streamed);
}

static wf_status dress_tensor(const wf_streamed *s, const char *name, wf_tensor *tensor, const wf_layout *layout)
{
    char text[2][WF_SHAPE_TEXT];
    WF_CHECK((tensor != NULL) == layout->known, WF_ERR_ARGUMENT, "batch %lld of a stream %s a %s: should have %s",
             (long long)s->given, tensor ? "has" : "lacks", name, layout->known ? "one" : "none, as its options say");
    if (!tensor)
        return WF_OK;
    const wf_shape part = wf_box_shape(layout->box);
    WF_CHECK(wf_shape_equal(wf_tensor_shape(tensor), part), WF_ERR_SHAPE,
             "batch %lld of a stream has a %s of shape %s: should be %s, this rank's part", (long long)s->given, name,
             wf_shape_text(wf_tensor_shape(tensor), text[0]), wf_shape_text(part, text[1]));
    return wf_tensor_set_layout(tensor, *layout);
}

/* The device may still read the last batch, whose memory the program is about to write. An event behind all kernels so
 * far; without a batch there is nothing to wait for. */
static wf_status wait_read(wf_ctx *ctx, wf_streamed *s)
{
    if (ctx->k->host || !s->x)
        return WF_OK;
    if (!s->read)
        WF_TRY(ctx->k->event_new(ctx, &s->read));
    WF_TRY(ctx->k->event_record(ctx, s->read, NULL));
    return wf_ctx_wait_event(ctx, s->read, "read a batch of the program's memory");
}

static wf_status take_batch(wf_ctx *ctx, wf_streamed *s)
{
    WF_TRY(wait_read(ctx, s));
    /* What a tape has saved of the last batch is told that the program may write there now. */
    if (s->x)
        wf_tensor_touch(s->x);
    /* The iterator held the tensors until the program was asked for others. */
    if (s->target)
        wf_tensor_touch(s->target);
    release_tensors(s);
    WF_TRY(s->opts.next(s->opts.user, s->given, &s->x, &s->target));
    WF_TRY(dress_tensor(s, "x", s->x, &s->opts.x));
    return dress_tensor(s, "target", s->target, &s->opts.target);
}

wf_status wf_streamed_batch(wf_iter *iter, wf_batch *batch)
{
    wf_streamed *s = iter->streamed;
    const int64_t length = s->opts.epoch_length;
    WF_TRY(take_batch(iter->ctx, s));
    const int64_t index = length ? s->given % length : s->given;
    /* Counted only when the batch was good: after an error the same batch is asked for again. */
    s->given++;
    *batch = (wf_batch){.x = s->x,
                        .target = s->target,
                        .size = wf_tensor_shape(s->x).dim[0],
                        .global = s->opts.x.global.dim[0],
                        .epoch = length ? (s->given - 1) / length : 0,
                        .index = index,
                        .last = length && index + 1 == length};
    /* Not by wf_batch_name: the target of a stream is no label. */
    batch->named[batch->names++] = (wf_batch_tensor){.name = "x", .tensor = s->x};
    if (s->target)
        batch->named[batch->names++] = (wf_batch_tensor){.name = "target", .tensor = s->target, .target = true};
    iter->epoch = length ? s->given / length : 0;
    return WF_OK;
}

/* total -1: a stream has no number of samples. */
void wf_streamed_place_get(const wf_iter *iter, wf_iter_place *place)
{
    const wf_streamed *s = iter->streamed;
    const int64_t length = s->opts.epoch_length;
    *place = (wf_iter_place){.epoch = iter->epoch,
                             .index = length ? s->given % length : s->given,
                             .length = length,
                             .samples = s->given,
                             .total = -1};
}

/* A place of another stream is refused: the program makes its batches, and nothing here could make up for it. */
wf_status wf_streamed_place_set(wf_iter *iter, const wf_iter_place *place)
{
    wf_streamed *s = iter->streamed;
    const int64_t length = s->opts.epoch_length;
    WF_CHECK(place->epoch >= 0 && place->index >= 0 && (!length || place->index < length), WF_ERR_FORMAT,
             "the archive holds batch %lld of epoch %lld, and the stream has %lld batches an epoch",
             (long long)place->index, (long long)place->epoch, (long long)length);
    WF_CHECK(place->length == length, WF_ERR_FORMAT,
             "the archive holds the place of a stream with %lld batches an epoch: should be %lld",
             (long long)place->length, (long long)length);
    WF_CHECK(!length || place->epoch < INT64_MAX / length, WF_ERR_FORMAT,
             "the archive holds epoch %lld of a stream with %lld batches an epoch: should be below %lld",
             (long long)place->epoch, (long long)length, (long long)(INT64_MAX / length));
    iter->epoch = place->epoch;
    s->given = length ? place->epoch * length + place->index : place->index;
    return WF_OK;
}
