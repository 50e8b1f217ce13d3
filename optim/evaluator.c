/* Metrics over all ranks: local sums under names, brought together in rank order, so that all ranks have the same bits.
 * Programs add what they measured on their own samples and finish once per evaluation. */
#include "optim/evaluator_impl.h"

#include "comm/comm_author.h"
#include "core/context_author.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

wf_evaluator *wf_evaluator_new(wf_comm *comm)
{
    WF_NEED_NULL(comm);
    wf_evaluator *evaluator = wf_calloc(wf_comm_ctx(comm), 1, sizeof *evaluator);
    if (!evaluator)
        return wf_error_null();
    evaluator->comm = comm;
    return evaluator;
}

void wf_evaluator_free(wf_evaluator *evaluator)
{
    if (!evaluator)
        return;
    free(evaluator->local.item);
    free(evaluator->result.item);
    free(evaluator);
}

/* Names are few, so they are compared one by one. */
wf_sum_entry *wf_sums_find(const wf_sums *list, const char *name)
{
    for (int64_t i = 0; name && i < list->n; i++)
        if (!strcmp(list->item[i].name, name))
            return &list->item[i];
    return NULL;
}

/* Takes part in no collective. */
wf_status wf_sums_add(wf_ctx *ctx, wf_sums *list, const char *name, double sum, double weight)
{
    wf_sum_entry *e = wf_sums_find(list, name);
    if (!e && list->n == list->cap) {
        const int64_t cap = list->cap ? 2 * list->cap : 8;
        wf_sum_entry *item = wf_realloc(ctx, list->item, (size_t)cap * sizeof *item);
        if (!item)
            return WF_ERR_MEMORY;
        list->item = item;
        list->cap = cap;
    }
    if (!e) {
        e = &list->item[list->n++];
        /* Entries travel as bytes, with their padding. */
        memset(e, 0, sizeof *e);
        memcpy(e->name, name, strlen(name));
    }
    e->sum += sum;
    e->weight += weight;
    return WF_OK;
}

wf_status wf_evaluator_add_sum(wf_evaluator *evaluator, const char *name, double sum, double weight)
{
    WF_NEED(evaluator);
    WF_NEED(name);
    WF_CHECK(*name && strlen(name) < WF_SUM_NAME, WF_ERR_ARGUMENT, "\"%s\" as a name: should have 1 to %d characters",
             name, WF_SUM_NAME - 1);
    WF_CHECK(weight >= 0 && isfinite(weight), WF_ERR_ARGUMENT, "%s with weight %g: should be 0 or more", name, weight);
    return wf_sums_add(wf_comm_ctx(evaluator->comm), &evaluator->local, name, sum, weight);
}

/* A mean of nothing may be NaN, and 0 times NaN would be. */
wf_status wf_evaluator_add(wf_evaluator *evaluator, const char *name, double mean, double weight)
{
    return wf_evaluator_add_sum(evaluator, name, weight == 0 ? 0 : mean * weight, weight);
}

/* all: `most` entries a rank, nameless where it has fewer. */
static wf_status collect(wf_evaluator *evaluator, int64_t most, wf_sum_entry *all)
{
    wf_comm *comm = evaluator->comm;
    const int size = wf_comm_size(comm);
    wf_sum_entry *own = all + size * most;
    memset(own, 0, (size_t)most * sizeof *own);
    /* Each rank's part behind those of all. */
    if (evaluator->local.n)
        memcpy(own, evaluator->local.item, (size_t)evaluator->local.n * sizeof *own);
    /* Memory for the result may fail on one rank only; the caller posts it. */
    WF_TRY(wf_allgather_bytes(comm, own, (size_t)most * sizeof *own, all));
    evaluator->result.n = 0;
    for (int64_t i = 0; i < size * most; i++)
        /* In rank order on every rank, so that all have the same bits. */
        if (all[i].name[0])
            WF_TRY(wf_sums_add(wf_comm_ctx(comm), &evaluator->result, all[i].name, all[i].sum, all[i].weight));
    /* A new evaluation begins. */
    evaluator->local.n = 0;
    return WF_OK;
}

wf_status wf_evaluator_finish(wf_evaluator *evaluator)
{
    WF_NEED(evaluator);
    wf_comm *comm = evaluator->comm;
    int64_t most = evaluator->local.n;
    void *all = NULL;
    /* Ranks may have added different names, and one whose part of the data is empty none at all. All send as many
     * entries as the longest list has. */
    WF_TRY(wf_allreduce_i64(comm, &most, 1, WF_MAX));
    const size_t bytes = (size_t)(wf_comm_size(comm) + 1) * (size_t)most * sizeof(wf_sum_entry);
    wf_status status = wf_host_take(comm, bytes, &all);
    if (status == WF_OK && most > 0)
        status = collect(evaluator, most, all);
    if (most == 0)
        evaluator->result.n = 0;
    /* An error of one rank alone ends it for all: the communicator knows then. */
    if (status != WF_OK)
        status = wf_comm_post_failure(comm, status);
    wf_host_give(comm, all, bytes);
    return status;
}

int64_t wf_evaluator_count(const wf_evaluator *evaluator)
{
    return evaluator ? evaluator->result.n : 0;
}

const char *wf_evaluator_name(const wf_evaluator *evaluator, int64_t i)
{
    return evaluator && i >= 0 && i < evaluator->result.n ? evaluator->result.item[i].name : NULL;
}

double wf_evaluator_mean(const wf_evaluator *evaluator, const char *name)
{
    const wf_sum_entry *e = evaluator ? wf_sums_find(&evaluator->result, name) : NULL;
    /* NaN where nothing was added. */
    return e && e->weight > 0 ? e->sum / e->weight : NAN;
}

double wf_evaluator_weight(const wf_evaluator *evaluator, const char *name)
{
    const wf_sum_entry *e = evaluator ? wf_sums_find(&evaluator->result, name) : NULL;
    return e ? e->weight : 0;
}

/* all: `most` bytes a rank, then room for this rank's, and the findings. */
static wf_status aggregate_all(wf_comm *comm, const uint64_t *sizes, uint64_t most, const void *found, char *all,
                               wf_finding *findings, wf_aggregate aggregate, void *user)
{
    const int ranks = wf_comm_size(comm);
    const uint64_t own = sizes[wf_comm_rank(comm)];
    /* No rank has found anything: nothing is sent. */
    if (most) {
        char *mine = all + (uint64_t)ranks * most;
        memset(mine, 0, most);
        if (own)
            memcpy(mine, found, own);
        WF_TRY(wf_allgather_bytes(comm, mine, most, all));
    }
    /* Findings are in the order of ranks, and every rank calls the function with all of them. */
    for (int r = 0; r < ranks; r++)
        findings[r] = (wf_finding){sizes[r] ? all + (uint64_t)r * most : NULL, sizes[r]};
    return aggregate(user, ranks, findings);
}

static wf_status evaluate_all(wf_comm *comm, const void *found, size_t bytes, wf_aggregate aggregate, void *user)
{
    const size_t ranks = (size_t)wf_comm_size(comm), heads = ranks * (sizeof(uint64_t) + sizeof(wf_finding));
    void *head = NULL, *all = NULL;
    uint64_t most = 0;
    wf_status status;
    WF_CHECK(aggregate && (found || !bytes), WF_ERR_ARGUMENT, "wf_evaluate_all takes a function, and data of %zu bytes",
             bytes);
    WF_TRY(wf_host_take(comm, heads, &head));
    uint64_t *sizes = head;
    wf_finding *findings = (wf_finding *)(sizes + ranks);
    /* Sizes first: the gather needs equal lengths, so the longest finding determines them. */
    const uint64_t mine = bytes;
    WF_TRY_OUT(wf_allgather_bytes(comm, &mine, sizeof mine, sizes));
    for (size_t r = 0; r < ranks; r++)
        most = sizes[r] > most ? sizes[r] : most;
    WF_TRY_OUT(wf_host_take(comm, (ranks + 1) * most, &all));
    WF_TRY_OUT(aggregate_all(comm, sizes, most, found, all, findings, aggregate, user));
out:
    wf_host_give(comm, all, (ranks + 1) * most);
    wf_host_give(comm, head, heads);
    return status;
}

/* Collective. `aggregate` runs on every rank, with the same findings. */
wf_status wf_evaluate_all(wf_comm *comm, const void *found, size_t bytes, wf_aggregate aggregate, void *user)
{
    WF_NEED(comm);
    return wf_comm_post_failure(comm, evaluate_all(comm, found, bytes, aggregate, user));
}
