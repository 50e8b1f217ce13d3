/* Scatters a data set: the root reads and sends each rank its samples, in rounds of bounded size, or every rank
 * reads its own. Called once, before training; a failure on the root is the same error on all ranks. */
#include "datasets/scatter.h"

#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "datasets/datasets_impl.h"

#include <stdlib.h>
#include <string.h>

/* What the root sends to the other ranks before any sample. */
typedef struct announcement {
    wf_dataset_info info; /* of the whole */
    uint64_t seed;
    uint64_t round_bytes;
    int32_t shuffle, equal;
} announcement;

/* Both forms depend on numbers only, so each rank knows the parts of all. */
static wf_dataset_part part_of(int64_t n, int64_t size, int64_t rank, bool equal)
{
    int64_t lo, hi;
    if (!equal) {
        wf_block(n, size, rank, &lo, &hi);
        return (wf_dataset_part){.first = lo, .count = hi - lo};
    }
    /* Parts of equal length overlap where n is no multiple of their number; the product is split so that n * rank
     * cannot overflow. */
    lo = n / size * rank + n % size * rank / size;
    return (wf_dataset_part){.first = lo, .count = (n + size - 1) / size};
}

static wf_dataset_part *parts_new(const wf_mesh *mesh, int64_t n, bool equal)
{
    const int size = wf_mesh_size(mesh, WF_AXIS_DATA);
    wf_dataset_part *parts = wf_malloc(wf_comm_ctx(wf_mesh_world(mesh)), (size_t)size * sizeof *parts);
    for (int r = 0; parts && r < size; r++)
        parts[r] = part_of(n, size, r, equal);
    return parts;
}

/* The random order before the division; NULL without an error if the order is not changed. All ranks could make it:
 * only those that read need it. */
static wf_status order_new(wf_ctx *ctx, const announcement *a, int64_t **order)
{
    const int64_t n = a->info.count;
    *order = NULL;
    if (!a->shuffle)
        return WF_OK;
    *order = wf_malloc(ctx, n ? (size_t)n * sizeof **order : 1);
    if (!*order)
        return WF_ERR_MEMORY;
    wf_random_permutation(a->seed, wf_hash_text(0, "scatter"), n, *order);
    return WF_OK;
}

/* Every rank fills one from its own options; the root's replaces it, but for each_reads also the data's description
 * must fit. */
static announcement announce(wf_comm *comm, wf_scatter_opts opts)
{
    /* memset: the padding is sent too. */
    announcement a;
    memset(&a, 0, sizeof a);
    a.seed = opts.seed ? opts.seed : wf_ctx_seed(wf_comm_ctx(comm));
    a.round_bytes = opts.round_bytes ? opts.round_bytes : (size_t)32 << 20;
    a.shuffle = opts.shuffle;
    a.equal = opts.force_equal_length;
    return a;
}

static wf_status check_root(wf_comm *comm, int root)
{
    WF_CHECK(root >= 0 && root < wf_comm_size(comm), WF_ERR_ARGUMENT, "scatter: root %d is not in [0, %d)", root,
             wf_comm_size(comm));
    return WF_OK;
}

/* The root's failure is told to all by the caller. */
static wf_status open_on_root(wf_dataset *dataset, announcement *a)
{
    WF_TRY(wf_check(dataset));
    WF_TRY(wf_dataset_open(dataset));
    WF_CHECK(!dataset->mesh, WF_ERR_ARGUMENT, "scatter: the data set is scattered already");
    a->info = dataset->info;
    return WF_OK;
}

/* One scatter in the making. The buffers hold one round of samples for every place along data, on the root. */
typedef struct round_trip {
    const wf_mesh *mesh;
    wf_comm *comm; /* the whole */
    wf_ctx *ctx;
    const announcement *a;
    int root, size, places; /* ranks, and places along data */
    bool is_root;
    wf_dataset_part *parts; /* the new data set's */
    int64_t *order;         /* on the root */
    wf_dataset *source;     /* on the root */
    wf_rows *rows;          /* of this rank */
    int64_t held;           /* samples of this rank */
    size_t sample_bytes;
    int64_t chunk; /* samples per place and round */
    unsigned char *x;
    int64_t *labels;
    const void **part; /* of each rank in a round, and its bytes */
    size_t *part_bytes;
} round_trip;

/* The root's memory for a round is bounded by this, whatever the size of the data set, and every rank computes the same
 * number from the announcement. */
static int64_t chunk_samples(const announcement *a, int places, size_t sample_bytes)
{
    const uint64_t all = (sample_bytes + sizeof(int64_t)) * (uint64_t)places;
    const int64_t chunk = (int64_t)(a->round_bytes / all);
    return chunk > 0 ? chunk : 1;
}

static wf_status prepare_root(round_trip *t)
{
    if (!t->is_root)
        return WF_OK;
    /* One byte more, since samples may have none. */
    const size_t samples = (size_t)(t->chunk * t->places);
    t->x = wf_malloc(t->ctx, samples * t->sample_bytes + 1);
    t->labels = wf_calloc(t->ctx, samples, sizeof *t->labels);
    t->part = wf_calloc(t->ctx, (size_t)t->size, sizeof *t->part);
    t->part_bytes = wf_calloc(t->ctx, (size_t)t->size, sizeof *t->part_bytes);
    if (!t->x || !t->labels || !t->part || !t->part_bytes)
        return WF_ERR_MEMORY;
    WF_TRY(order_new(t->ctx, t->a, &t->order));
    return WF_OK;
}

/* Samples [start, start + count) of a part, limited to what the part has: the last rounds of short parts are empty. */
static int64_t round_count(const round_trip *t, int64_t held, int64_t start)
{
    const int64_t left = held - start;
    return left < 0 ? 0 : left < t->chunk ? left : t->chunk;
}

static wf_status read_round(round_trip *t, int64_t start)
{
    if (!t->is_root)
        return WF_OK;
    for (int p = 0; p < t->places; p++)
        for (int64_t i = 0; i < round_count(t, t->parts[p].count, start); i++) {
            const int64_t place = t->parts[p].first + start + i, slot = p * t->chunk + i;
            const int64_t sample = t->order ? t->order[place] : place;
            /* Transforms below the scatter draw once, on the root, with keys that no later draw has. */
            const wf_sample_key key = wf_sample_key_before_scatter(t->a->seed, 0, sample);
            WF_TRY(wf_dataset_read(t->source, sample, &key, t->x + (size_t)slot * t->sample_bytes, t->labels + slot));
        }
    return WF_OK;
}

/* Scatters `bytes` for each sample of a round; `all` is the root's buffer, `mine` this rank's place. */
static wf_status scatter_round(round_trip *t, int64_t start, size_t bytes, const unsigned char *all, void *mine)
{
    /* Ranks that share a place along data get the same samples. */
    for (int r = 0; t->is_root && r < t->size; r++) {
        int place[WF_AXES];
        wf_mesh_place(t->mesh, r, place);
        const int p = place[WF_AXIS_DATA];
        t->part[r] = all + (size_t)(p * t->chunk) * bytes;
        t->part_bytes[r] = (size_t)round_count(t, t->parts[p].count, start) * bytes;
    }
    return wf_scatter_bytes(t->comm, t->part, t->part_bytes, mine, (size_t)round_count(t, t->held, start) * bytes,
                            t->root);
}

/* All ranks make as many rounds as the longest part needs, the status of each round first, so that a sample that the
 * root cannot read ends the scatter everywhere. */
static wf_status send_rounds(round_trip *t)
{
    const int64_t longest = (t->a->info.count + t->places - 1) / t->places;
    for (int64_t start = 0; start < longest; start += t->chunk) {
        const int64_t at = start < t->held ? start : t->held;
        /* Before the samples, as nothing else would tell the others that the root failed. */
        WF_TRY(wf_bcast_status(t->comm, read_round(t, start), t->root));
        WF_TRY(scatter_round(t, start, t->sample_bytes, t->x, t->rows->x + (size_t)at * t->sample_bytes));
        if (t->a->info.labels)
            WF_TRY(scatter_round(t, start, sizeof(int64_t), (const unsigned char *)t->labels, t->rows->labels + at));
    }
    return WF_OK;
}

/* The data set is this rank's part. */
static void mark(const round_trip *t, wf_dataset *dataset)
{
    dataset->mesh = t->mesh;
    dataset->parts = t->parts;
    dataset->reshuffled = t->a->shuffle;
}

/* The data set of this rank, still without samples. */
static wf_status prepare_part(round_trip *t, wf_dataset **out)
{
    const announcement *a = t->a;
    /* The other ranks learn here how much memory they need, before anything large is sent. */
    wf_dataset_info info = a->info;
    t->parts = parts_new(t->mesh, a->info.count, a->equal);
    if (!t->parts)
        return WF_ERR_MEMORY;
    info.count = t->held = t->parts[wf_mesh_rank(t->mesh, WF_AXIS_DATA)].count;
    *out = wf_rows_dataset_new(t->ctx, &info, &t->rows);
    if (!*out)
        return wf_check(*out);
    mark(t, *out);
    t->sample_bytes = wf_dataset_sample_bytes(*out);
    t->chunk = chunk_samples(a, t->places, t->sample_bytes);
    WF_TRY(prepare_root(t));
    return WF_OK;
}

/* Every rank reads for itself what wf_rows_dataset_new would hold. *dataset is taken. Counts, shapes and types must be
 * the root's, or parts of different data would be taken for one. */
static wf_status prepare_reader(round_trip *t, wf_dataset **dataset, wf_dataset **out)
{
    const announcement *a = t->a;
    const wf_dataset_info *own = &(*dataset)->info;
    char mine[WF_SHAPE_TEXT], roots[WF_SHAPE_TEXT];
    WF_CHECK(own->count == a->info.count && wf_shape_equal(own->shape, a->info.shape) && own->dtype == a->info.dtype &&
                 own->labels == a->info.labels,
             WF_ERR_ARGUMENT,
             "scatter with each_reads: rank %s has %lld samples %s, the root %lld samples %s: should be the same data",
             WF_RANK(t->comm, wf_comm_rank(t->comm)), (long long)own->count, wf_shape_text(own->shape, mine),
             (long long)a->info.count, wf_shape_text(a->info.shape, roots));
    t->parts = parts_new(t->mesh, a->info.count, a->equal);
    if (!t->parts)
        return WF_ERR_MEMORY;
    const wf_status status = order_new(t->ctx, a, &t->order);
    if (status == WF_OK)
        *out = wf_part_dataset(*dataset, t->parts[wf_mesh_rank(t->mesh, WF_AXIS_DATA)], t->order, a->seed);
    /* wf_part_dataset took it, also where it failed. */
    *dataset = status == WF_OK ? NULL : *dataset;
    if (*out)
        mark(t, *out);
    return *out ? WF_OK : wf_error_code();
}

static wf_status scatter(const wf_mesh *mesh, wf_dataset **dataset, wf_scatter_opts opts, wf_dataset **out)
{
    wf_comm *comm = wf_mesh_world(mesh);
    WF_TRY(wf_agree_status(comm, check_root(comm, opts.root)));
    announcement a = announce(comm, opts);
    round_trip t = {.mesh = mesh,
                    .comm = comm,
                    .ctx = wf_comm_ctx(comm),
                    .a = &a,
                    .root = opts.root,
                    .size = wf_comm_size(comm),
                    .places = wf_mesh_size(mesh, WF_AXIS_DATA)};
    t.is_root = wf_comm_rank(comm) == opts.root;
    t.source = t.is_root ? *dataset : NULL;
    wf_status status;
    if (opts.each_reads)
        WF_TRY_OUT(wf_agree_status(comm, open_on_root(*dataset, &a)));
    /* With each_reads every rank opens its own; else only the root has a data set. */
    else
        WF_TRY_OUT(wf_bcast_status(comm, t.is_root ? open_on_root(*dataset, &a) : WF_OK, opts.root));
    WF_TRY_OUT(wf_bcast_bytes(comm, &a, sizeof a, opts.root));
    if (opts.each_reads) {
        WF_TRY_OUT(wf_agree_status(comm, prepare_reader(&t, dataset, out)));
    } else {
        WF_TRY_OUT(wf_agree_status(comm, prepare_part(&t, out)));
        WF_TRY_OUT(send_rounds(&t));
    }
out:
    if (!*out)
        /* Freed here only on failure; the data set owns them after success. */
        free(t.parts);
    free(t.x);
    free(t.labels);
    free(t.part);
    free(t.part_bytes);
    free(t.order);
    return status;
}

wf_dataset *wf_mesh_scatter_dataset(const wf_mesh *mesh, wf_dataset *dataset, wf_scatter_opts opts)
{
    wf_dataset *out = NULL;
    /* Taken in any case, as constructors nest. */
    if (!mesh)
        wf_dataset_free(dataset);
    WF_NEED_NULL(mesh);
    const wf_status status = scatter(mesh, &dataset, opts, &out);
    wf_dataset_free(dataset);
    if (status != WF_OK) {
        wf_dataset_free(out);
        wf_error_frame(status, __FILE__, __LINE__, __func__);
        return wf_error_null();
    }
    return out;
}

wf_dataset *wf_scatter_dataset(wf_comm *comm, wf_dataset *dataset, wf_scatter_opts opts)
{
    if (!comm)
        wf_dataset_free(dataset);
    WF_NEED_NULL(comm);
    return wf_mesh_scatter_dataset(wf_comm_mesh(comm), dataset, opts);
}

/* As a status that all ranks agree on: a NULL on one rank is an error on all. */
static wf_status check_index(wf_comm *comm, int root, const int64_t *count, int64_t *const *index)
{
    WF_NEED(count);
    WF_NEED(index);
    return check_root(comm, root);
}

/* Uses the arithmetic of the data set, for programs that read their samples themselves. */
static wf_status own_index(wf_comm *comm, const announcement *a, int64_t *count, int64_t **index)
{
    const wf_dataset_part part = part_of(a->info.count, wf_comm_size(comm), wf_comm_rank(comm), a->equal);
    int64_t *order = NULL;
    WF_TRY(order_new(wf_comm_ctx(comm), a, &order));
    *index = wf_malloc(wf_comm_ctx(comm), part.count ? (size_t)part.count * sizeof **index : 1);
    for (int64_t i = 0; *index && i < part.count; i++)
        (*index)[i] = order ? order[part.first + i] : part.first + i;
    free(order);
    *count = part.count;
    return *index ? WF_OK : WF_ERR_MEMORY;
}

wf_status wf_scatter_index(wf_comm *comm, int64_t n, wf_scatter_opts opts, int64_t *count, int64_t **index)
{
    WF_NEED(comm);
    announcement a = announce(comm, opts);
    a.info.count = n;
    WF_TRY(wf_agree_status(comm, check_index(comm, opts.root, count, index)));
    WF_TRY(wf_bcast_bytes(comm, &a, sizeof a, opts.root));
    WF_CHECK(a.info.count >= 0, WF_ERR_ARGUMENT, "scatter: %lld samples", (long long)a.info.count);
    return wf_agree_status(comm, own_index(comm, &a, count, index));
}
