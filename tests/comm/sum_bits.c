/* Sums of numbers whose sum depends on the order: gradients, shards and reversed exchanges, compared bit for bit with
 * the order that is promised. On one node and on several, with as many ranks each or not. */
#include "comm/background_author.h"
#include "comm/exchange_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_names.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 8 };

/* A number of random magnitude that the type holds exactly. */
static double value_of(wf_dtype dtype, int from, int64_t i)
{
    const int64_t spread = dtype == WF_F64 ? 40 : dtype == WF_F32 ? 20 : 5;
    test_rng rng = {.state = (uint64_t)(from + 1) * 1000003u + (uint64_t)i * 17};
    const double digits = (double)test_int(&rng, -100, 100);
    return ldexp(digits, (int)test_int(&rng, -spread, spread));
}

/* As the type's accumulator adds: f64 in f64, all others in f32. */
static double added(wf_dtype dtype, double a, double b)
{
    return dtype == WF_F64 ? a + b : (double)((float)a + (float)b);
}

static wf_tensor *tensor_of(wf_dtype dtype, const double *values, int64_t n)
{
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(n), values);
    wf_tensor *x = wf_tensor_copy(wide, dtype, WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return x;
}

static void values_of(const wf_tensor *x, double *values)
{
    wf_tensor *wide = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_export(wide, values, wf_tensor_bytes(wide)));
    wf_tensor_free(wide);
}

static void round_to(wf_dtype dtype, double *values, int64_t n)
{
    wf_tensor *x = tensor_of(dtype, values, n);
    values_of(x, values);
    wf_tensor_free(x);
}

static void expect_bits(int64_t n, const double *got, const double *want, const char *what, wf_dtype dtype)
{
    int64_t i = 0;
    while (i < n && got[i] == want[i])
        i++;
    if (i < n)
        test_failed(__FILE__, __LINE__, "%s of %lld %s: element %lld is %.17g, should be %.17g", what, (long long)n,
                    wf_dtype_name(dtype), (long long)i, got[i], want[i]);
}

static bool open_as(const char *name)
{
    comm = comm_open_named(name, (wf_ctx_opts){0});
    ctx = wf_comm_ctx(comm);
    return comm;
}

static void close_it(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* --- gradients ---------------------------------------------------------------------------------------------------- */

/* In rank order over the ranks of each of the groups, then in the order of groups; each sum is rounded once. */
static void sum_by_groups(const int *group, int groups, wf_dtype dtype, int64_t n, double *total)
{
    double *part = malloc((size_t)n * sizeof *part);
    memset(total, 0, (size_t)n * sizeof *total);
    for (int g = 0; g < groups; g++) {
        memset(part, 0, (size_t)n * sizeof *part);
        for (int r = 0; r < size; r++)
            for (int64_t i = 0; i < n && group[r] == g; i++)
                part[i] = added(dtype, part[i], value_of(dtype, r, i));
        round_to(dtype, part, n);
        for (int64_t i = 0; i < n; i++)
            total[i] = added(dtype, total[i], part[i]);
    }
    round_to(dtype, total, n);
    free(part);
}

/* Names that know of nodes add inside each of them first. */
static int groups_of(int group[MOST])
{
    const char *name = wf_comm_name(comm);
    const int node = wf_comm_inter_rank(comm);
    WF_EXPECT_OK(wf_allgather_bytes(comm, &node, sizeof node, group));
    if (strcmp(name, "hierarchical") != 0 && strcmp(name, "two_dimensional") != 0)
        memset(group, 0, MOST * sizeof *group);
    return memcmp(group, (int[MOST]){0}, (size_t)size * sizeof *group) ? wf_comm_inter_size(comm) : 1;
}

/* The segments begin behind elements of others, and others follow. */
static void check_gradients(wf_dtype dtype, int64_t n)
{
    enum { BEFORE = 5, AFTER = 3 };
    const int64_t all = BEFORE + n + AFTER, offset[4] = {BEFORE, BEFORE + n / 3, BEFORE + n / 3, BEFORE + n};
    double *values = malloc((size_t)all * sizeof *values), *want = malloc((size_t)all * sizeof *want);
    int group[MOST];
    const int groups = groups_of(group);
    for (int64_t i = 0; i < all; i++)
        values[i] = want[i] = value_of(dtype, rank, i - BEFORE);
    wf_tensor *x = tensor_of(dtype, values, all);
    const wf_call job = {.out = x->data, .dtype = dtype, .parts = 3, .part = offset};
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
    values_of(x, values);
    sum_by_groups(group, groups, dtype, n, want + BEFORE);
    expect_bits(all, values, want, wf_comm_name(comm), dtype);
    wf_tensor_free(x);
    free(values);
    free(want);
}

static void gradients(void)
{
    static const wf_dtype dtypes[] = {WF_F32, WF_F64, WF_BF16, WF_F16};
    static const int64_t counts[] = {1, 2, 3, 17, 4099, 70001};
    for (int k = 0; comm_names[k]; k++) {
        if (!strcmp(comm_names[k], "dummy") || !open_as(comm_names[k]))
            continue;
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (int t = 0; t < (counts[c] > 10000 ? 1 : 4); t++)
                check_gradients(dtypes[t], counts[c]);
        close_it();
    }
}

/* --- shards ------------------------------------------------------------------------------------------------------- */

static void run(void (*what)(wf_comm *c, void *data, const int64_t *shard, wf_dtype dtype), const wf_tensor *x,
                const int64_t *shard)
{
    what(comm, x->data, shard, x->dtype);
    WF_EXPECT_OK(wf_background_wait(comm));
}

/* The dummy's ranks keep what they have. */
static void check_shards(const int64_t *shard)
{
    const bool dummy = !strcmp(wf_comm_name(comm), "dummy");
    const int64_t n = shard[size];
    double *values = malloc((size_t)(n + 1) * sizeof *values), *want = malloc((size_t)(n + 1) * sizeof *want);
    double *got = malloc((size_t)(n + 1) * sizeof *got);
    for (int64_t i = 0; i < n; i++) {
        values[i] = value_of(WF_F32, rank, i);
        want[i] = dummy ? values[i] : 0;
        for (int r = 0; r < size && !dummy; r++)
            want[i] = added(WF_F32, want[i], value_of(WF_F32, r, i));
    }
    wf_tensor *x = tensor_of(WF_F32, values, n);
    run(wf_background_sum_shards, x, shard);
    values_of(x, got);
    for (int64_t i = shard[rank]; i < shard[rank + 1]; i++)
        values[i] = want[i];
    expect_bits(n, got, values, "own part of the sum, and what others keep", WF_F32);
    run(wf_background_gather_shards, x, shard);
    values_of(x, got);
    expect_bits(n, got, want, "gathered shards", WF_F32);
    wf_tensor_free(x);
    free(values);
    free(want);
    free(got);
}

/* The longest shard is `longest` and rank p's; the one behind it is empty, others have half. */
static void check_longest(int64_t longest, int p)
{
    int64_t shard[MOST + 1] = {0};
    for (int r = 0; r < size; r++)
        shard[r + 1] = shard[r] + (r == p ? longest : r == (p + 1) % size ? 0 : longest / 2);
    check_shards(shard);
}

/* Around every length of block that a vector may be cut into: multiples, one more and one less. */
static void shards(void)
{
    static const char *const names[] = {"naive", "hierarchical", "two_dimensional", "dummy"};
    for (int k = 0; k < 4; k++) {
        if (!open_as(names[k]))
            continue;
        WF_EXPECT_OK(wf_background_open(comm));
        for (int64_t longest = 0; longest < 34; longest++)
            check_longest(longest, (int)longest % size);
        const int64_t block = ((int64_t)1 << 18) / size;
        for (int64_t more = -1; more <= 1; more++) {
            check_longest(block + more, 0);
            check_longest(2 * block + more, size - 1);
            check_longest(((int64_t)1 << 14) + more, 1);
        }
        close_it();
    }
}

/* --- reversed exchanges ------------------------------------------------------------------------------------------- */

typedef struct problem {
    int64_t rows, columns;
    wf_box have[MOST], need[MOST];
    wf_dtype dtype;
    bool halo;
} problem;

/* dx keeps what it has, then comes this rank's own part, then those of the others in their order. */
static double expected(const problem *p, int64_t row, int64_t column, bool whole)
{
    const int64_t i = row * p->columns + column;
    double sum = value_of(p->dtype, MOST, i);
    for (int k = -1; k < (whole ? size : 0); k++) {
        const int q = k < 0 ? rank : k;
        const wf_box *need = &p->need[q];
        if (k == rank || (k < 0 && p->halo))
            continue;
        if (row >= need->lo[0] && row < need->hi[0] && column >= need->lo[1] && column < need->hi[1])
            sum = added(p->dtype, sum, value_of(p->dtype, q, i));
    }
    return sum;
}

/* What rank `from` has there; -1: the sums; -2: before those of the others are added. */
static int64_t fill(const problem *p, wf_box box, int from, double *values)
{
    int64_t n = 0;
    for (int64_t i = box.lo[0]; i < box.hi[0]; i++)
        for (int64_t j = box.lo[1]; j < box.hi[1]; j++, n++)
            values[n] = from < 0 ? expected(p, i, j, from == -1) : value_of(p->dtype, from, i * p->columns + j);
    return n;
}

static wf_tensor *boxed(const problem *p, wf_box box, int from)
{
    double *values = malloc((size_t)(wf_shape_count(wf_box_shape(box)) + 1) * sizeof *values);
    fill(p, box, from, values);
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(box), values);
    wf_tensor *x = wf_tensor_copy(wide, p->dtype, WF_ROW_MAJOR);
    wf_tensor_free(wide);
    free(values);
    return x;
}

/* Ranks begin one after the other, the last one first, so that what comes first is not what is added first. */
static void check_reverse(const problem *p, const char *what)
{
    wf_exchange *exchange = wf_exchange_new(comm, p->dtype, WF_ROW_MAJOR, p->have, p->need);
    wf_tensor *dx = boxed(p, p->have[rank], MOST), *dy = boxed(p, p->need[rank], rank);
    const int64_t n = wf_tensor_count(dx);
    double *got = malloc((size_t)(n + 1) * sizeof *got), *want = malloc((size_t)(n + 1) * sizeof *want);
    WF_EXPECT_OK(wf_barrier(comm));
    const wf_traffic before = wf_comm_traffic(comm);
    nanosleep(&(struct timespec){.tv_nsec = (size - 1 - rank) * 10000000L}, NULL);
    if (p->halo)
        WF_EXPECT_OK(wf_exchange_reverse_begin_halo(exchange, dy, dx));
    else
        WF_EXPECT_OK(wf_exchange_reverse_begin(exchange, dy, dx));
    for (int i = 0; i < 4; i++) {
        WF_EXPECT_OK(wf_exchange_poll(exchange));
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
    values_of(dx, got);
    fill(p, p->have[rank], -2, want);
    expect_bits(n, got, want, "dx before the end, to which the caller may add", p->dtype);
    WF_EXPECT_OK(wf_exchange_end(exchange));
    values_of(dx, got);
    fill(p, p->have[rank], -1, want);
    expect_bits(n, got, want, what, p->dtype);
    const wf_traffic now = wf_comm_traffic(comm);
    const uint64_t bytes = now.bytes_sent - before.bytes_sent, messages = now.messages - before.messages;
    /* Between nodes alone: long messages inside a node go as one. */
    WF_EXPECT(wf_comm_inter_size(comm) == 1 || wf_comm_intra_size(comm) > 1 || bytes <= messages << 16,
              "%llu messages for %llu bytes wait for answers", (unsigned long long)messages, (unsigned long long)bytes);
    wf_tensor_free(dx);
    wf_tensor_free(dy);
    wf_exchange_free(exchange);
    free(got);
    free(want);
}

/* Blocks of rows; every rank needs all rows, without the first `less` of its rank and from column `first` on. */
static problem rows_for_all(int64_t rows, int64_t columns, int64_t less, int64_t first)
{
    problem p = {.rows = rows, .columns = columns, .dtype = WF_F32};
    for (int r = 0; r < size; r++) {
        p.have[r] = p.need[r] = (wf_box){.rank = 2, .hi = {rows, columns}};
        wf_block(rows, size, r, &p.have[r].lo[0], &p.have[r].hi[0]);
        p.need[r].lo[0] = less * r;
        p.need[r].lo[1] = first;
    }
    return p;
}

static void exchanges(void)
{
    if (!open_as("naive"))
        return;
    for (int i = 0; i < 4; i++) {
        problem small = rows_for_all(4 * size, 5, i % 2, 0), strided = rows_for_all(2 * size, 3000, 1, 1500);
        problem all = rows_for_all(4 * size, 5, 0, 0);
        small.halo = strided.halo = all.halo = i < 2;
        small.dtype = strided.dtype = all.dtype = i % 2 ? WF_F64 : WF_F32;
        check_reverse(&small, "reverse of short pieces");
        check_reverse(&strided, "reverse of strided pieces");
        check_reverse(&all, "reverse of a gather");
    }
    close_it();
}

/* More than 256 KiB a piece, dense at both ends: such pieces do not go through shared memory even inside a node. */
static void exchanges_dense_and_long(void)
{
    if (!open_as("naive"))
        return;
    for (int halo = 0; halo < 2; halo++) {
        problem p = rows_for_all(2 * size, 34000, 1, 0);
        p.halo = halo;
        check_reverse(&p, "reverse of long pieces");
    }
    close_it();
}

static int on_ranks(int argc, char **argv)
{
    comm = test_comm_open("flat", (wf_ctx_opts){0});
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return test_main(argc, argv,
                     (test_case[]){{"gradients", gradients},
                                   {"shards", shards},
                                   {"exchanges", exchanges},
                                   {"exchanges_dense_and_long", exchanges_dense_and_long},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
