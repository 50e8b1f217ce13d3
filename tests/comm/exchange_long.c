/* Long exchanges: messages of many parts, and ones that lie in memory as they travel. */
#include "comm/exchange_author.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdlib.h>

enum { MOST = 8 };

static void get(const wf_tensor *part, double *values)
{
    WF_EXPECT_OK(wf_tensor_export(part, values, wf_tensor_bytes(part)));
}

static double *numbers_of(wf_box box, int64_t columns)
{
    double *values = malloc((size_t)wf_shape_count(wf_box_shape(box)) * sizeof *values + 1), *v = values;
    for (int64_t i = box.lo[0]; i < box.hi[0]; i++)
        for (int64_t j = box.lo[1]; j < box.hi[1]; j++)
            *v++ = (double)(i * columns + j);
    return values;
}

/* There and back: y is what was needed, and dx what was there twice over, once per exchange. */
static void check_matrix(int64_t columns, const wf_box *have, const wf_box *need)
{
    const int64_t n = wf_shape_count(wf_box_shape(have[rank])), m = wf_shape_count(wf_box_shape(need[rank]));
    wf_exchange *exchange = wf_exchange_new(comm, WF_F64, WF_ROW_MAJOR, have, need);
    double *x_values = numbers_of(have[rank], columns), *y_values = numbers_of(need[rank], columns);
    double *got = malloc((size_t)(n > m ? n : m) * sizeof *got + 1);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(have[rank]), x_values);
    wf_tensor *y = wf_tensor_new(ctx, WF_F64, wf_box_shape(need[rank]));
    for (int i = 0; i < 3; i++) {
        WF_EXPECT_OK(wf_tensor_fill(y, -1));
        WF_EXPECT_OK(wf_exchange_begin(exchange, x, y));
        WF_EXPECT_OK(wf_exchange_poll(exchange));
        WF_EXPECT_OK(wf_exchange_end(exchange));
        get(y, got);
        WF_EXPECT(test_distance(m, got, y_values) == 0, "what is needed is off");
    }
    WF_EXPECT_OK(wf_tensor_fill(x, 0));
    WF_EXPECT_OK(wf_exchange_reverse_begin(exchange, y, x));
    WF_EXPECT_OK(wf_exchange_end(exchange));
    get(x, got);
    for (int64_t i = 0; i < n; i++) {
        int64_t at[2] = {have[rank].lo[0], have[rank].lo[1]}, times = 0;
        const int64_t width = have[rank].hi[1] - have[rank].lo[1];
        at[0] += i / width;
        at[1] += i % width;
        for (int q = 0; q < size; q++)
            times += at[0] >= need[q].lo[0] && at[0] < need[q].hi[0] && at[1] >= need[q].lo[1] && at[1] < need[q].hi[1];
        if (got[i] != (double)times * x_values[i]) {
            WF_EXPECT(false, "gradient %lld is %g, not %g", (long long)i, got[i], (double)times * x_values[i]);
            break;
        }
    }
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
    free(x_values);
    free(y_values);
    free(got);
}

/* Messages of many parts: rows become columns, every rank sends to every other one. */
static void long_strided(void)
{
    wf_box have[MOST], need[MOST];
    const int64_t rows = 512, columns = 2049;
    for (int r = 0; r < size; r++) {
        have[r] = need[r] = (wf_box){.rank = 2, .hi = {rows, columns}};
        wf_block(rows, size, r, &have[r].lo[0], &have[r].hi[0]);
        wf_block(columns, size, r, &need[r].lo[1], &need[r].hi[1]);
    }
    check_matrix(columns, have, need);
}

/* Long ones that lie in memory as they travel: two rows of each neighbour. */
static void long_contiguous(void)
{
    wf_box have[MOST], need[MOST];
    const int64_t rows = 4 * size, columns = 25000;
    for (int r = 0; r < size; r++) {
        have[r] = need[r] = (wf_box){.rank = 2, .lo = {4 * r, 0}, .hi = {4 * r + 4, columns}};
        need[r].lo[0] = r > 0 ? 4 * r - 2 : 0;
        need[r].hi[0] = r + 1 < size ? 4 * r + 6 : rows;
    }
    check_matrix(columns, have, need);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("naive"))
        return 1;
    const int failed =
        test_main(argc, argv, (test_case[]){{"long_strided", long_strided}, {"long_contiguous", long_contiguous}, {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
