/* Checks that ranks which compute the same stay equal: that they draw the same random numbers, in every step, and that
 * their parameters have the same bits, now and then. It never repairs a difference; it reports it. A difference between
 * replicas does not show in the loss for a long time, and then as a model that does not learn. */
#include "core/captured_author.h"
#include "core/log.h"
#include "layers/layer_author.h"
#include "optim/multi_node_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 512, WHERE = 160 };

/* --- set-up ------------------------------------------------------------------------------------------------------- */

/* What initial values and draws are made from. */
typedef struct origin {
    uint64_t seed, root, roots, drawn; /* drawn: parts of parameters have values */
} origin;

/* Local. */
static wf_status origin_of(const wf_optim *optim, origin *mine)
{
    wf_param *const *params;
    int64_t n;
    memset(mine, 0, sizeof *mine);
    WF_TRY(wf_layer_params(optim->model, &n, &params));
    mine->seed = optim->ctx->seed;
    mine->root = wf_layer_root(optim->model);
    mine->roots = optim->ctx->roots;
    /* Any value of a sharded parameter that exists when optimizers are made. */
    for (int64_t i = 0; i < n; i++)
        /* Parts of a sharded parameter that were drawn with another seed cannot be mended by a broadcast of rank 0's
         * value. */
        mine->drawn |= params[i]->shard_axes != 0 && params[i]->value;
    return WF_OK;
}

/* Ranks that have drawn nothing yet take rank 0's numbers. */
static wf_status check_origins(const wf_comm *comm, const origin *all, uint64_t *roots)
{
    for (int r = 0; r < wf_comm_size(comm); r++) {
        /* New models get numbers that no rank has used. */
        *roots = all[r].roots > *roots ? all[r].roots : *roots;
        WF_CHECK((all[r].seed == all[0].seed && all[r].root == all[0].root) || (!all[r].drawn && !all[0].drawn),
                 WF_ERR_COMM,
                 "rank %s drew the initial values of a sharded model with seed %" PRIu64 " as model %" PRIu64
                 " of the program, rank %s with seed %" PRIu64 " as model %" PRIu64
                 ": set the same seed, and name the model (wf_layer_named)",
                 WF_RANK(comm, r), all[r].seed, all[r].root, WF_RANK(comm, 0), all[0].seed, all[0].root);
    }
    return WF_OK;
}

wf_status wf_agree_draws(wf_comm *comm, wf_optim *optim, bool *agreed)
{
    const int size = wf_comm_size(comm);
    origin mine, *all = wf_malloc(optim->ctx, (size_t)size * sizeof *all);
    WF_NEED(all);
    uint64_t roots = 0;
    wf_status status = origin_of(optim, &mine);
    if (status == WF_OK)
        status = wf_allgather_bytes(comm, &mine, sizeof mine, all);
    if (status == WF_OK) {
        *agreed = true;
        status = check_origins(comm, all, &roots);
    }
    /* Before any message of training: from here on all draw alike. */
    if (status == WF_OK) {
        *agreed = false;
        optim->ctx->seed = all[0].seed;
        wf_layer_set_root(optim->model, all[0].root);
        optim->ctx->roots = roots;
    }
    free(all);
    return status;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Bits of a hash ride as numbers in the trailer of the last bucket: comparing costs no message. */
void wf_draws_put(const wf_optim *optim, const wf_var *loss, bool compares, wf_draws_record *record, double *trailer)
{
    int64_t n;
    const wf_draw *draw = wf_tape_draws(loss->tape, &n);
    memset(record, 0, sizeof *record);
    for (int b = 0; b <= WF_DRAWS_BITS; b++)
        trailer[WF_TRAILER_COMPARED + b] = 0;
    if (!compares || wf_ctx_capturing(optim->ctx))
        return;
    *record = (wf_draws_record){.compares = 1,
                                .seed = optim->ctx->seed,
                                .iteration = wf_tape_iteration(loss->tape),
                                .count = n,
                                .samples = loss->value->layout.known && !loss->loss_counted ? loss->loss_count : 0};
    /* The streams of all draws of the step, in their order. */
    for (int64_t i = 0; i < n; i++)
        record->hash = wf_hash_u64(record->hash, draw[i].stream);
    uint64_t hash = wf_hash_u64(wf_hash_u64(record->seed, (uint64_t)record->iteration), record->hash);
    hash = wf_hash_u64(wf_hash_u64(hash, (uint64_t)n), (uint64_t)record->samples);
    trailer[WF_TRAILER_COMPARED] = 1;
    for (int b = 0; b < WF_DRAWS_BITS; b++)
        trailer[WF_TRAILER_DRAWS + b] = (double)(hash >> b & 1u);
}

/* Sums of bits: all ranks that compare have the same one where it is 0 or their number. */
static bool same_draws(const double *trailer)
{
    for (int b = 0; b < WF_DRAWS_BITS; b++) {
        const double sum = trailer[WF_TRAILER_DRAWS + b];
        if (sum != 0 && sum != trailer[WF_TRAILER_COMPARED])
            return false;
    }
    return true;
}

static void describe_draw(char text[WHERE], const wf_draw *draw)
{
    memset(text, 0, WHERE);
    if (!draw)
        snprintf(text, WHERE, "missing");
    else if (draw->path)
        snprintf(text, WHERE, "in the %s \"%s\"", draw->kind, draw->path);
    else
        snprintf(text, WHERE, "outside of all layers");
}

/* Finds the first draw in which ranks a and b differ, by its stream, and fails with where both made it. All ranks walk
 * along, in step, as each comparison is a collective. */
static wf_status name_draw(wf_comm *comm, wf_ctx *ctx, const wf_var *loss, int a, int b, int64_t most)
{
    const int size = wf_comm_size(comm);
    int64_t n, at = 0;
    const wf_draw *draw = wf_tape_draws(loss->tape, &n);
    uint64_t *streams = wf_malloc(ctx, (size_t)size * sizeof *streams);
    char mine[WHERE], *all = wf_malloc(ctx, (size_t)size * WHERE);
    wf_status status = streams && all ? WF_OK : WF_ERR_MEMORY;
    for (bool differ = false; status == WF_OK && !differ && at < most; at += !differ) {
        const uint64_t stream = at < n ? draw[at].stream : 0;
        status = wf_allgather_bytes(comm, &stream, sizeof stream, streams);
        differ = status == WF_OK && streams[a] != streams[b];
    }
    describe_draw(mine, at < n ? &draw[at] : NULL);
    if (status == WF_OK)
        status = wf_allgather_bytes(comm, mine, WHERE, all);
    if (status == WF_OK)
        status = WF_RAISE(
            WF_ERR_COMM,
            "the ranks drew other random numbers: draw %lld of this step is %s on rank %s, and %s on rank %s; "
            "apply layers that draw in the same order and equally often on all ranks",
            (long long)at + 1, all + (size_t)a * WHERE, WF_RANK(comm, a), all + (size_t)b * WHERE, WF_RANK(comm, b));
    free(streams);
    free(all);
    return status;
}

/* Two ranks whose records differ; there are such, since the sums differed. */
static wf_status name_record(wf_comm *comm, wf_ctx *ctx, const wf_var *loss, const wf_draws_record *all)
{
    const int size = wf_comm_size(comm);
    int a = 0, b;
    while (a < size - 1 && !all[a].compares)
        a++;
    for (b = a + 1; b < size - 1; b++)
        if (all[b].compares && memcmp(&all[a], &all[b], sizeof *all) != 0)
            break;
    const wf_draws_record *x = &all[a], *y = &all[b < size ? b : a];
    WF_CHECK(x->seed == y->seed, WF_ERR_COMM,
             "the ranks have different seeds: %" PRIu64 " on rank %s, %" PRIu64 " on rank %s", x->seed,
             WF_RANK(comm, a), y->seed, WF_RANK(comm, b));
    WF_CHECK(x->iteration == y->iteration, WF_ERR_COMM,
             "the ranks are in different iterations: %lld on rank %s, %lld on rank %s; call wf_tape_reset equally "
             "often on all ranks",
             (long long)x->iteration, WF_RANK(comm, a), (long long)y->iteration, WF_RANK(comm, b));
    WF_CHECK(x->samples == y->samples, WF_ERR_COMM,
             "the ranks' losses are parts of means over different numbers of samples: %.0f on rank %s, %.0f on rank "
             "%s; give batches the same size on all ranks",
             x->samples, WF_RANK(comm, a), y->samples, WF_RANK(comm, b));
    WF_CHECK(loss, WF_ERR_COMM, "the ranks drew other random numbers in a step: %lld times on rank %s, %lld on rank %s",
             (long long)x->count, WF_RANK(comm, a), (long long)y->count, WF_RANK(comm, b));
    return name_draw(comm, ctx, loss, a, b, x->count > y->count ? x->count : y->count);
}

/* Exact: the sums are of 0 and 1, far below 2^53. */
wf_status wf_draws_check(wf_comm *comm, wf_optim *optim, const wf_var *loss, const wf_draws_record *record,
                         const double *trailer)
{
    if (wf_comm_size(comm) == 1 || same_draws(trailer))
        return WF_OK;
    wf_draws_record *all = wf_malloc(optim->ctx, (size_t)wf_comm_size(comm) * sizeof *all);
    WF_NEED(all);
    wf_status status = wf_allgather_bytes(comm, record, sizeof *record, all);
    if (status == WF_OK) {
        optim->agreed = true;
        status = name_record(comm, optim->ctx, loss, all);
    }
    free(all);
    return status;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* The first element in which two dense tensors differ, into text. Two copies on the host, compared by bytes, as NaN
 * differs from itself. */
static wf_status name_element(const wf_comm *comm, const wf_param *param, const wf_tensor *first, char text[TEXT],
                              int other)
{
    const size_t bytes = wf_tensor_bytes(first), size = wf_dtype_size(first->dtype);
    char *mine = wf_malloc(param->ctx, 2 * bytes), *theirs = mine ? mine + bytes : NULL;
    WF_NEED(mine);
    wf_status status;
    size_t at = 0;
    WF_TRY_OUT(wf_tensor_export(param->value, mine, bytes));
    WF_TRY_OUT(wf_tensor_export(first, theirs, bytes));
    while (at + size < bytes && memcmp(mine + at, theirs + at, size) == 0)
        at += size;
    const bool wide = first->dtype == WF_F64;
    float narrow[2];
    double value[2];
    memcpy(wide ? (void *)&value[0] : &narrow[0], mine + at, size);
    memcpy(wide ? (void *)&value[1] : &narrow[1], theirs + at, size);
    snprintf(text, TEXT, "element %zu of %s is %.9g on rank %s and %.9g on rank %s", at / size, wf_param_path(param),
             wide ? value[1] : (double)narrow[1], WF_RANK(comm, other), wide ? value[0] : (double)narrow[0],
             WF_RANK(comm, wf_comm_rank(comm)));
out:
    free(mine);
    return status;
}

/* On the first rank of `same` whose value is not that of the first of them: what differs. Collective there. Only ranks
 * of `same` come here, in which a difference was found. */
static wf_status name_value(wf_comm *comm, wf_comm *same, wf_param *param, int64_t hash, int64_t parted,
                            char text[TEXT])
{
    const int size = wf_comm_size(same);
    int first_rank = wf_comm_rank(comm), other = 1;
    int64_t *all = wf_malloc(param->ctx, (size_t)size * sizeof *all);
    wf_tensor *first = wf_tensor_new_like(param->value);
    wf_status status = all && first ? WF_OK : WF_ERR_MEMORY;
    if (status == WF_OK)
        status = wf_allgather_bytes(same, &hash, sizeof hash, all);
    if (status == WF_OK)
        status = wf_bcast_bytes(same, &first_rank, sizeof first_rank, 0);
    if (status == WF_OK)
        status = wf_tensor_assign(first, param->value);
    if (status == WF_OK)
        status = wf_bcast(same, first, 0);
    while (status == WF_OK && other < size - 1 && all[other] == all[0])
        other++;
    if (status == WF_OK && wf_comm_rank(same) == other)
        status = name_element(comm, param, first, text, first_rank);
    if (status == WF_OK && *text)
        snprintf(text + strlen(text), TEXT - strlen(text), " (parameters that differ: %lld)", (long long)parted);
    wf_tensor_free(first);
    free(all);
    return status;
}

/* Parameters that are sharded over the same axes: hash[i] and its complement, of which the smallest of all ranks are
 * the smallest and the largest hash. Hashes of all parameters of the group in one reduction. */
static wf_status compare_group(wf_comm *comm, wf_comm *same, int64_t n, wf_param **param, int64_t *hash,
                               char text[TEXT])
{
    for (int64_t i = 0; i < n; i++)
        /* The smallest of the complements is the complement of the largest: one reduction finds both. */
        hash[n + i] = ~hash[i];
    int64_t *least = hash + 2 * n;
    memcpy(least, hash, 2 * (size_t)n * sizeof *hash);
    WF_TRY(wf_allreduce_i64(same, least, 2 * n, WF_MIN));
    int64_t parted = 0, first = 0;
    for (int64_t i = n - 1; i >= 0; i--)
        if (least[i] != ~least[n + i]) {
            first = i;
            parted++;
        }
    return parted ? name_value(comm, same, param[first], hash[first], parted, text) : WF_OK;
}

typedef struct room {
    wf_param **param;
    int64_t *hash;
} room;

static wf_status compare_groups(const wf_mesh *mesh, wf_comm *comm, wf_optim *optim, const room *r, char text[TEXT])
{
    const unsigned axes = wf_grad_axes(mesh);
    /* Every set of axes over which some parameter is sharded has ranks of its own that hold equal parts. */
    for (unsigned sharded = 0; sharded < 1u << WF_AXES; sharded++) {
        int64_t n = 0;
        for (int64_t i = 0; i < optim->n; i++)
            if ((optim->target[i]->shard_axes & axes) == sharded) {
                r->param[n] = optim->target[i];
                WF_TRY(wf_param_hash(r->param[n], &r->hash[n]));
                n++;
            }
        wf_comm *same = n > 0 ? wf_mesh_comm(mesh, axes & ~sharded) : NULL;
        if (n > 0)
            WF_NEED(same);
        if (n > 0 && wf_comm_size(same) > 1)
            WF_TRY(compare_group(comm, same, n, r->param, r->hash, text));
    }
    return WF_OK;
}

/* What one rank has found becomes known on all ranks; of several findings that of the lowest rank. */
static wf_status tell(wf_comm *comm, char text[TEXT])
{
    int64_t finder = *text ? wf_comm_rank(comm) : INT64_MAX;
    WF_TRY(wf_allreduce_i64(comm, &finder, 1, WF_MIN));
    return finder == INT64_MAX ? WF_OK : wf_bcast_bytes(comm, text, TEXT, (int)finder);
}

/* The first difference into text, which is empty where there is none; the same on all ranks. */
static wf_status find_difference(const wf_mesh *mesh, wf_comm *comm, wf_optim *optim, char text[TEXT])
{
    memset(text, 0, TEXT);
    const size_t each = sizeof(wf_param *) + 4 * sizeof(int64_t), bytes = (size_t)optim->n * each;
    void *memory;
    WF_TRY(wf_pool_take_host(optim->ctx, bytes, &memory));
    const room r = {.hash = memory, .param = (wf_param **)((char *)memory + 4 * (size_t)optim->n * sizeof(int64_t))};
    wf_status status = compare_groups(mesh, comm, optim, &r, text);
    if (status == WF_OK)
        status = tell(comm, text);
    wf_pool_give_host(optim->ctx, memory, bytes);
    return status;
}

wf_status wf_replicas_compare(const wf_mesh *mesh, wf_comm *comm, wf_optim *optim, int64_t agreed_at)
{
    char text[TEXT];
    WF_TRY(find_difference(mesh, comm, optim, text));
    if (!*text)
        return WF_OK;
    optim->agreed = true;
    WF_FAIL(WF_ERR_COMM, "replicas have parted: %s, after step %lld; after step %lld they were equal", text,
            (long long)optim->steps + 1, (long long)agreed_at);
}

wf_status wf_replicas_equal(const wf_mesh *mesh, wf_comm *comm, wf_optim *optim, bool *equal)
{
    char text[TEXT];
    WF_TRY(find_difference(mesh, comm, optim, text));
    *equal = !*text;
    if (!*equal && wf_comm_rank(comm) == 0)
        wf_log_write(
            WF_LOG_WARN,
            "the model has changed, and the values of the ranks differ: %s. All take rank %s's values, and this step "
            "updates nothing",
            text, WF_RANK(comm, 0));
    return WF_OK;
}
