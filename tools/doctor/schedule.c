/* Prints the schedules that a call would run, for any number of ranks and nodes, on one process: nothing is sent. */
#include "tools/doctor/schedule.h"

#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"
#include "tools/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 65536
#define MOST_BYTES ((int64_t)64 << 30) /* in steps of a schedule, which are all in memory */

typedef struct question {
    const char *operation, *reducer, *nodes;
    const char *rank_text, *root_text, *bytes_text;
    int64_t bytes, rank, root; /* rank -1: all, one line each */
    bool shared;
} question;

static const char usage[] =
    "usage: wf-doctor --schedule CALL [--reducer NAME] [--nodes 4,3,1] [--bytes 1MiB] [--root R] "
    "[--rank R] [--no-shm]\n"
    "CALL: bcast, reduce, allreduce, allgather, gather, scatter, alltoall, reduce_scatter, "
    "barrier, sum_shards, gather_shards\n";

static bool ask(question *q, int argc, char **argv)
{
    *q = (question){.operation = argc > 0 ? argv[0] : NULL, .nodes = "4", .bytes_text = "1MiB", .shared = true};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--no-shm")) {
            q->shared = false;
            continue;
        }
        if (!value)
            return false;
        if (!strcmp(argv[i], "--reducer"))
            q->reducer = value;
        else if (!strcmp(argv[i], "--nodes"))
            q->nodes = value;
        else if (!strcmp(argv[i], "--bytes"))
            q->bytes_text = value;
        else if (!strcmp(argv[i], "--rank"))
            q->rank_text = value;
        else if (!strcmp(argv[i], "--root"))
            q->root_text = value;
        else
            return false;
        i++;
    }
    return q->operation;
}

/* "4,3,1": ranks of each node, one after the other. */
static wf_status read_nodes(wf_ctx *ctx, const question *q, wf_agreed *agreed)
{
    static int32_t node[MOST_RANKS];
    int ranks = 0, nodes = 0;
    const char *at = q->nodes;
    do {
        int64_t size;
        at += nodes > 0; /* the comma */
        WF_CHECK(number_next(&at, 1, MOST_RANKS - ranks, &size) && (*at == ',' || *at == 0), WF_ERR_ARGUMENT,
                 "--nodes %s: should be the ranks of each node, as in 4,3,1; at most %d in all", q->nodes, MOST_RANKS);
        for (int64_t i = 0; i < size; i++)
            node[ranks++] = nodes;
        nodes++;
    } while (*at);
    WF_TRY(wf_agreed_make(ctx, ranks, node, agreed));
    agreed->shared = q->shared;
    return WF_OK;
}

/* Returns true if `from` sends to `to` in a call on lists of tensors. */
static bool passes(const question *q, int from, int to)
{
    if (from == to)
        return false;
    return !strcmp(q->operation, "alltoall") || (!strcmp(q->operation, "gather") ? to : from) == q->root;
}

/* What a rank knows of such a call: the bytes that go to each rank, and come from it. */
static void list_parts(const question *q, int ranks, int rank, int64_t *part)
{
    for (int r = 0; r < ranks; r++) {
        part[r] = passes(q, rank, r) ? q->bytes : -1;
        part[ranks + r] = passes(q, r, rank) ? q->bytes : -1;
    }
}

static bool is_on_lists(const char *operation)
{
    return !strcmp(operation, "gather") || !strcmp(operation, "scatter") || !strcmp(operation, "alltoall");
}

static wf_status read_rank(const char *option, const char *text, const wf_agreed *agreed, int64_t *rank)
{
    WF_CHECK(!text || number_whole(text, 0, agreed->ranks - 1, rank), WF_ERR_ARGUMENT,
             "%s %s: should be a rank from 0 to %d", option, text, agreed->ranks - 1);
    return WF_OK;
}

static wf_status read_numbers(question *q, const wf_agreed *agreed)
{
    const double bytes = number_amount(q->bytes_text, number_bytes);
    q->bytes = bytes <= (double)MOST_BYTES ? (int64_t)bytes : 0;
    WF_CHECK(q->bytes > 0 && (double)q->bytes == bytes, WF_ERR_ARGUMENT,
             "--bytes %s: should be a whole number of bytes, as 100, 64KiB or 1MiB, at most 64GiB", q->bytes_text);
    WF_CHECK(is_on_lists(q->operation) || q->bytes % (int64_t)sizeof(float) == 0, WF_ERR_ARGUMENT,
             "--bytes %s: should be a multiple of %zu, of f32", q->bytes_text, sizeof(float));
    q->rank = -1;
    WF_TRY(read_rank("--rank", q->rank_text, agreed, &q->rank));
    return read_rank("--root", q->root_text, agreed, &q->root);
}

/* Makes the call of the question: of f32 with equal shards; lists are of bytes. */
static wf_status read_call(question *q, const wf_agreed *agreed, wf_call *call, int64_t *part)
{
    WF_TRY(read_numbers(q, agreed));
    *call = (wf_call){.dtype = WF_F32, .root = (int)q->root, .part = part};
    call->operation = is_on_lists(q->operation) ? WF_CALL_LISTS : wf_call_of_name(q->operation);
    call->count = q->bytes / (int64_t)sizeof(float);
    WF_CHECK(call->operation < WF_CALL_SUM || is_on_lists(q->operation), WF_ERR_ARGUMENT, "there is no call \"%.40s\"",
             q->operation);
    if (call->operation == WF_CALL_LISTS)
        call->dtype = WF_U8;
    const bool shards = call->operation == WF_CALL_SUM_SHARDS || call->operation == WF_CALL_GATHER_SHARDS;
    for (int r = 0; r <= agreed->ranks; r++)
        part[r] = shards ? r * call->count / agreed->ranks : call->count;
    if (!q->reducer)
        return WF_OK;
    WF_CHECK(call->operation == WF_CALL_ALLREDUCE, WF_ERR_ARGUMENT, "reducers are for allreduce alone");
    call->operation = WF_CALL_SUM;
    call->reducer = q->reducer;
    return WF_OK;
}

static void print_line(void *own, const char *text)
{
    printf("%s\n", text);
}

static void print_ranks(const wf_agreed *agreed, wf_schedule *const *all)
{
    printf("rank  node  steps  messages  bytes sent\n");
    for (int r = 0; r < agreed->ranks; r++)
        printf("%4d  %4d  %5d  %8llu  %10llu\n", r, (int)agreed->node[r], (int)all[r]->steps,
               (unsigned long long)all[r]->messages, (unsigned long long)all[r]->bytes_sent);
}

static wf_status print_all(wf_ctx *ctx, const question *q, const wf_agreed *agreed, wf_schedule **all,
                           const wf_call *call, int64_t *part)
{
    const wf_schedule *const *made = (const wf_schedule *const *)all;
    const wf_price_model model = wf_price_model_default();
    wf_price price;
    for (int r = 0; r < agreed->ranks; r++) {
        if (call->operation == WF_CALL_LISTS)
            list_parts(q, agreed->ranks, r, part);
        WF_TRY(wf_call_schedule(ctx, agreed, r, call, &all[r]));
    }
    if (q->rank >= 0)
        wf_schedule_print(all[q->rank], print_line, NULL);
    else
        print_ranks(agreed, all);
    WF_TRY(wf_schedule_verify(ctx, made, agreed->ranks));
    WF_TRY(wf_schedule_price(ctx, agreed, made, &model, &price));
    printf("%s%s%s of %lld bytes, %d ranks on %d nodes: %llu messages of %llu bytes in all, %llu bytes between nodes\n",
           q->operation, q->reducer ? " by " : "", q->reducer ? q->reducer : "", (long long)q->bytes, agreed->ranks,
           agreed->nodes, (unsigned long long)price.messages, (unsigned long long)price.bytes,
           (unsigned long long)price.between_bytes);
    printf("price: %.1f us, of which %.1f us in messages and %.1f us in local work on the longest chain "
           "(inside a node %g us and %g GB/s, between nodes %g us and %g GB/s)\n",
           price.seconds * 1e6, price.messages_s * 1e6, price.work_s * 1e6, model.alpha_s[0] * 1e6,
           1e-9 / model.beta_s[0], model.alpha_s[1] * 1e6, 1e-9 / model.beta_s[1]);
    printf("verified: every message meets its receiver, no circle of waits, no race\n");
    return WF_OK;
}

static wf_status report(wf_ctx *ctx, question *q)
{
    wf_agreed agreed;
    wf_call call;
    WF_TRY(read_nodes(ctx, q, &agreed));
    int64_t *part = calloc(2 * (size_t)agreed.ranks + 1, sizeof *part);
    wf_schedule **all = calloc((size_t)agreed.ranks, sizeof *all);
    wf_status status = part && all ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for %d ranks", agreed.ranks);
    if (status == WF_OK)
        status = read_call(q, &agreed, &call, part);
    if (status == WF_OK)
        status = print_all(ctx, q, &agreed, all, &call, part);
    for (int r = 0; all && r < agreed.ranks; r++)
        wf_schedule_free(all[r]);
    free(all);
    free(part);
    wf_agreed_clear(&agreed);
    return status;
}

int schedule_report(int argc, char **argv)
{
    question q;
    if (!ask(&q, argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const wf_status status = ctx ? report(ctx, &q) : wf_error_code();
    if (status != WF_OK)
        fprintf(stderr, "wf-doctor: %s\n", wf_error_message());
    return (ctx && wf_ctx_free(ctx) != WF_OK) || status != WF_OK;
}
