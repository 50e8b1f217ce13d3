/* Measures the cost of messages and sums here: exchanges of two lengths, sums of two lengths, and where there are
 * several nodes messages of two lengths between two of them. The constants of sums are those by which the price of the
 * library's own schedule is what was measured. Each kind has its own constants, since a link that carries messages in
 * both directions at once may be slower in each of them than one that carries them in one direction. */
#include "optim/planner/planner_impl.h"

#include "comm/comm_author.h"
#include "comm/exchange_author.h"
#include "comm/reducer_author.h"
#include "core/profile_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, WARM = 3, SHORT = 256, LONG = WF_PLANNER_SUM, STRIP = 1 << 16, MESSAGE = 1 << 20, FITS = 6 };

/* --- exchanges ------------------------------------------------------------------------------------------------------
 */

static wf_status exchange_once(wf_exchange *e, const wf_tensor *x, wf_tensor *y)
{
    WF_TRY(wf_exchange_begin_halo(e, x, y));
    return wf_exchange_end(e);
}

/* Rank r needs `length` elements of those of the next one, as in a picture cut into strips. */
static void strips(int size, int64_t length, wf_box *have, wf_box *need)
{
    for (int64_t r = 0; r < size; r++) {
        have[r] = (wf_box){.rank = 1, .lo = {r * length}, .hi = {(r + 1) * length}};
        need[r] =
            (wf_box){.rank = 1, .lo = {(r > 0 ? r - 1 : 0) * length}, .hi = {(r + 2 < size ? r + 2 : size) * length}};
    }
}

static wf_status time_exchange(wf_comm *comm, int64_t length, double *seconds)
{
    const int size = wf_comm_size(comm), rank = wf_comm_rank(comm);
    wf_box *have = wf_calloc(wf_comm_ctx(comm), 2 * (size_t)size, sizeof *have);
    double took[ROUNDS];
    if (!have)
        return wf_error_code();
    strips(size, length, have, have + size);
    wf_exchange *e = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, have + size);
    wf_tensor *x = wf_tensor_new(wf_comm_ctx(comm), WF_F32, wf_box_shape(have[rank])),
              *y = wf_tensor_new(wf_comm_ctx(comm), WF_F32, wf_box_shape(have[size + rank]));
    wf_status status = e && x && y ? wf_tensor_fill(x, 1) : wf_error_code();
    for (int i = -WARM; i < ROUNDS && status == WF_OK; i++) {
        status = wf_barrier(comm);
        const double start = wf_planner_now();
        if (status == WF_OK)
            status = exchange_once(e, x, y);
        took[i < 0 ? 0 : i] = wf_planner_now() - start;
    }
    if (status == WF_OK)
        *seconds = wf_gauge_median(took, ROUNDS);
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(e);
    free(have);
    return status;
}

/* --- sums -----------------------------------------------------------------------------------------------------------
 */

static wf_status time_sum(wf_comm *comm, int64_t count, double *seconds)
{
    wf_tensor *x = wf_tensor_new(wf_comm_ctx(comm), WF_F32, WF_SHAPE(count));
    const int64_t ends[] = {0, count};
    double took[ROUNDS];
    wf_status status = x ? wf_tensor_fill(x, 0) : wf_error_code();
    wf_call job = {.dtype = WF_F32, .parts = 1, .part = ends};
    job.out = x ? wf_tensor_array(x).data : NULL;
    for (int i = -WARM; i < ROUNDS && status == WF_OK; i++) {
        status = wf_barrier(comm);
        const double start = wf_planner_now();
        if (status == WF_OK)
            status = wf_reducer_sum(comm, &job);
        took[i < 0 ? 0 : i] = wf_planner_now() - start;
    }
    if (status == WF_OK)
        *seconds = wf_gauge_median(took, ROUNDS);
    wf_tensor_free(x);
    return status;
}

static wf_status price_of(wf_ctx *ctx, const wf_agreed *agreed, const wf_price_model *links, int64_t count, double *s)
{
    const int64_t ends[] = {0, count};
    const wf_call call = {.operation = WF_CALL_SUM,
                          .reducer = agreed->nodes > 1 && agreed->smallest > 1 ? "two_dimensional" : "hierarchical",
                          .dtype = WF_F32,
                          .count = count,
                          .part = ends,
                          .parts = 1};
    wf_price price;
    WF_TRY(wf_call_price(ctx, agreed, &call, links, &price));
    *s = price.seconds;
    return WF_OK;
}

/* alpha follows from the short sum. Inside a node gamma follows from the long one, and between nodes beta. */
static wf_status fit(wf_ctx *ctx, int ranks, int nodes, const double sum[2], wf_price_model *links)
{
    double *const of_long = nodes > 1 ? &links->beta_s[1] : &links->gamma_s;
    int32_t *node = wf_calloc(ctx, (size_t)ranks, sizeof *node);
    wf_agreed agreed;
    double price[2] = {0};
    if (!node)
        return wf_error_code();
    for (int r = 0; r < ranks; r++)
        node[r] = r / (ranks / nodes);
    wf_status status = wf_agreed_make(ctx, ranks, node, &agreed);
    free(node);
    WF_TRY(status);
    agreed.shared = true;
    for (int i = 0; i < FITS && status == WF_OK; i++) {
        status = price_of(ctx, &agreed, links, SHORT, &price[0]);
        if (status == WF_OK && price[0] > 0)
            links->alpha_s[nodes > 1] *= sum[0] / price[0];
        if (status == WF_OK)
            status = price_of(ctx, &agreed, links, LONG, &price[1]);
        if (status == WF_OK && price[1] > 0)
            *of_long *= sum[1] / price[1];
    }
    wf_agreed_clear(&agreed);
    return status;
}

/* --- between nodes --------------------------------------------------------------------------------------------------
 */

static wf_status pass(wf_comm *comm, wf_tensor *x, int other, double *seconds)
{
    const bool first = wf_comm_rank(comm) == 0;
    double took[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const double start = wf_planner_now();
        WF_TRY(first ? wf_send(comm, x, other, 0) : wf_recv(comm, x, 0, 0));
        WF_TRY(first ? wf_recv(comm, x, other, 0) : wf_send(comm, x, 0, 0));
        took[i] = (wf_planner_now() - start) / 2;
    }
    *seconds = wf_gauge_median(took, ROUNDS);
    return WF_OK;
}

/* Rank 0 and the first rank of another node; the others wait. */
static wf_status time_messages(wf_comm *comm, int64_t count, double *seconds)
{
    const int rank = wf_comm_rank(comm);
    int64_t other = wf_comm_inter_rank(comm) > 0 ? rank : wf_comm_size(comm);
    WF_TRY(wf_allreduce_i64(comm, &other, 1, WF_MIN));
    *seconds = 0;
    if (rank == 0 || rank == other) {
        wf_tensor *x = wf_tensor_new(wf_comm_ctx(comm), WF_F32, WF_SHAPE(count));
        wf_status status = x ? wf_tensor_fill(x, 0) : wf_error_code();
        if (status == WF_OK)
            status = pass(comm, x, (int)other, seconds);
        wf_tensor_free(x);
        WF_TRY(status);
    }
    return wf_allreduce_f64(comm, seconds, 1, WF_MAX);
}

/* --- all ------------------------------------------------------------------------------------------------------------
 */

enum { EXCHANGES = 0, SUMS = 2, MESSAGES = 4, NUMBERS = 6 };

static wf_status measure_links(wf_gauge *g, double numbers[NUMBERS])
{
    for (int i = 0; i < 2; i++) {
        WF_TRY(time_exchange(g->comm, i ? STRIP : 16, &numbers[EXCHANGES + i]));
        WF_TRY(time_sum(g->comm, i ? LONG : SHORT, &numbers[SUMS + i]));
        if (wf_comm_inter_size(g->comm) > 1)
            WF_TRY(time_messages(g->comm, i ? MESSAGE : 1, &numbers[MESSAGES + i]));
    }
    return WF_OK;
}

static double slope(double brief, double extended, double bytes, double least)
{
    const double beta = (extended - brief) / bytes;
    return beta > least ? beta : least;
}

wf_status wf_gauge_links(wf_gauge *g, wf_planner_meter *meter)
{
    const int size = wf_comm_size(g->comm), nodes = wf_comm_inter_size(g->comm);
    double n[NUMBERS] = {0};
    char key[512];
    bool found;
    if (size == 1)
        return WF_OK;
    snprintf(key, sizeof key, "links of %d nodes, sums of %d numbers, %s", nodes, (int)LONG, g->machine);
    WF_TRY(wf_gauge_find(g, key, NUMBERS, n, &found));
    if (!found) {
        WF_TRY(wf_agree_status(g->comm, measure_links(g, n)));
        WF_TRY(wf_gauge_note(g, key, NUMBERS, n));
    }
    /* If each rank has a link of its own, one between two others sends to both sides. */
    const double sides = size > 2 && (nodes == 1 || nodes == size) ? 2 : 1;
    wf_planner_link *exchange = &meter->exchange[nodes > 1];
    exchange->alpha_s = n[EXCHANGES] / sides;
    exchange->beta_s = slope(n[EXCHANGES], n[EXCHANGES + 1], sides * 4.0 * STRIP, 1e-12);
    meter->links.beta_s[nodes > 1] = exchange->beta_s;
    if (nodes > 1)
        meter->one_way = (wf_planner_link){n[MESSAGES], slope(n[MESSAGES], n[MESSAGES + 1], 4.0 * MESSAGE, 1e-12)};
    /* Nodes of unequal size have no price. */
    if (size % nodes != 0) {
        meter->links.alpha_s[1] = exchange->alpha_s;
        return WF_OK;
    }
    return fit(wf_comm_ctx(g->comm), size, nodes, n + SUMS, &meter->links);
}
