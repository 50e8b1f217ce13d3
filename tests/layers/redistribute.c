/* Between any two layouts: the result is a slice of the global array, the gradient is that of the serial program, and
 * the bytes are what is needed and not there. */
#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/core.h"
#include "layers/layers.h"
#include "tests/random_mesh.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 4096 };

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;

static double value_at(uint64_t salt, int64_t index)
{
    test_rng rng = {.state = salt * 1000003 + (uint64_t)index};
    return test_uniform(&rng, -1, 1);
}

/* The box of a global array whose element i is value_at(salt, i), row-major. */
static int64_t slice(wf_shape global, wf_box box, uint64_t salt, double *values)
{
    int64_t at[WF_MAX_RANK], n = 0;
    memcpy(at, box.lo, sizeof at);
    if (wf_box_empty(box))
        return 0;
    for (;;) {
        int64_t index = 0;
        for (int d = 0; d < global.rank; d++)
            index = index * global.dim[d] + at[d];
        values[n++] = value_at(salt, index);
        int d = global.rank - 1;
        while (d >= 0 && ++at[d] == box.hi[d]) {
            at[d] = box.lo[d];
            d--;
        }
        if (d < 0)
            return n;
    }
}

static wf_tensor *tensor_of(const wf_layout *layout, uint64_t salt)
{
    static double values[MOST];
    slice(layout->global, layout->box, salt, values);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(layout->box), values);
    WF_EXPECT_OK(wf_tensor_set_layout(x, *layout));
    return x;
}

static void expect_slice(const char *what, const wf_tensor *x, wf_shape global, wf_box box, uint64_t salt,
                         double factor)
{
    static double want[MOST], got[MOST];
    WF_EXPECT(x && wf_shape_equal(wf_tensor_shape(x), wf_box_shape(box)), "%s: %s", what, wf_error_message());
    if (!x)
        return;
    const int64_t n = slice(global, box, salt, want);
    for (int64_t i = 0; i < n; i++)
        want[i] *= factor;
    WF_EXPECT_OK(wf_tensor_export(x, got, wf_tensor_bytes(x)));
    WF_EXPECT(test_distance(n, got, want) < 1e-14, "%s is off by %g", what, test_distance(n, got, want));
}

/* --- random layouts ------------------------------------------------------------------------------------------------
 */

static wf_layout random_layout(test_rng *rng, const wf_mesh *mesh, wf_shape global)
{
    wf_layout layout = {.known = true, .mesh = mesh, .global = global, .box = wf_box_of_shape(global)};
    bool taken[WF_MAX_RANK] = {0};
    int64_t bounds[16];
    for (int a = 0; a < WF_AXES; a++) {
        const int n = wf_mesh_size(mesh, (wf_axis)a), d = (int)test_int(rng, -1, global.rank - 1);
        if (d < 0 || taken[d])
            continue;
        taken[d] = true;
        bounds[0] = 0;
        for (int i = 1; i < n; i++)
            bounds[i] = test_int(rng, bounds[i - 1], global.dim[d]);
        bounds[n] = global.dim[d];
        wf_layout_shard(mesh, &layout, (wf_axis)a, d,
                        test_int(rng, 0, 1) ? bounds : wf_mesh_blocks(mesh, (wf_axis)a, bounds[n]));
    }
    return layout;
}

static uint64_t bytes_sent(const wf_comm *c)
{
    return wf_comm_traffic(c).bytes_sent;
}

static int64_t count(wf_box box)
{
    return wf_shape_count(wf_box_shape(box));
}

/* All together send what is needed and not there. */
static void expect_bytes(const wf_layout *from, const wf_layout *to, const wf_comm *used, uint64_t before)
{
    double total[2] = {(double)(bytes_sent(used) - before),
                       8.0 * (double)(count(to->box) - count(wf_box_intersect(from->box, to->box)))};
    WF_EXPECT_OK(wf_allreduce_f64(comm, total, 2, WF_SUM));
    WF_EXPECT(total[0] == total[1], "%g bytes were sent, %g are needed", total[0], total[1]);
}

static void check_pair(const wf_layout *from, const wf_layout *to)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_exchange *exchange = wf_mesh_exchange_layouts(from, to, WF_F64, wf_order_default(from->global.rank));
    const wf_comm *used = wf_exchange_comm(exchange);
    wf_tensor *x = tensor_of(from, 1), *dy = tensor_of(to, 2);
    wf_var *leaf = wf_leaf(tape, x);
    const uint64_t before = bytes_sent(used);
    wf_var *y = wf_redistribute(leaf, *to);
    WF_EXPECT(y, "%s", wf_error_message());
    expect_bytes(from, to, used, before);
    expect_slice("y", wf_value(y), to->global, to->box, 1, 1);
    const wf_layout got = wf_tensor_layout(wf_value(y));
    WF_EXPECT(wf_layout_equal(&got, to), "y has the target's layout");
    if (y != leaf) {
        WF_EXPECT_OK(wf_backward_from(y, dy));
        expect_slice("dx", wf_grad(leaf), from->global, from->box, 2, 1);
    }
    wf_tensor *moved = wf_tensor_redistribute(x, *to);
    expect_slice("the tensor", moved, to->global, to->box, 1, 1);
    wf_tensor_free(moved);
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_tensor_free(dy);
}

static void random_pairs(void)
{
    const uint64_t seed = 20261123;
    if (rank == 0)
        printf("seed %llu\n", (unsigned long long)seed);
    for (uint64_t m = 0; m < 5; m++) {
        test_rng rng = {.state = seed + m};
        wf_mesh *mesh = random_mesh(comm, &rng, 2);
        for (int i = 0; i < 100; i++) {
            wf_shape global = {.rank = (int)test_int(&rng, 1, 5)};
            for (int d = 0; d < global.rank; d++)
                global.dim[d] = test_int(&rng, 1, global.rank > 3 ? 5 : 9);
            const wf_layout from = random_layout(&rng, mesh, global), to = random_layout(&rng, mesh, global);
            check_pair(&from, &to);
        }
        wf_mesh_close(mesh);
    }
}

/* --- programs ------------------------------------------------------------------------------------------------------
 */

/* mean(x^2) has the gradient 2 x / n, whatever lies between: replicas do not add up. */
static void check_program(const wf_mesh *mesh, bool known, bool gather)
{
    const wf_shape global = WF_SHAPE(4, 3, 6, 5);
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &layout));
    const wf_layout whole = {.known = true, .mesh = mesh, .global = global, .box = wf_box_of_shape(global)};
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = tensor_of(&whole, 3);
    if (!known)
        WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_none()));
    wf_var *leaf = wf_leaf(tape, x);
    wf_var *part = wf_shard(leaf, mesh);
    expect_slice("the shard", wf_value(part), global, layout.box, 3, 1);
    wf_var *square = wf_mul(part, part);
    if (gather)
        square = wf_unshard(square);
    wf_var *loss = wf_mean(square);
    WF_EXPECT_OK(wf_backward(loss));
    expect_slice("the gradient", wf_grad(leaf), global, whole.box, 3, 2.0 / (4 * 3 * 6 * 5));
    const wf_layout of_grad = wf_tensor_layout(wf_value(leaf));
    WF_EXPECT(of_grad.known == known, "the leaf keeps its layout");
    WF_EXPECT(wf_unshard(leaf) == leaf || known, "a value without a layout is the whole");
    wf_tape_free(tape);
    wf_tensor_free(x);
}

static void programs(void)
{
    const wf_mesh_opts opts[4] = {{0},
                                  {.height = size},
                                  {.channel = size % 2 ? 1 : 2, .height = size / (size % 2 ? 1 : 2)},
                                  {.channel = size % 4 ? 1 : 2, .width = size % 2 ? 1 : 2}};
    for (int i = 0; i < 4; i++) {
        wf_mesh *mesh = wf_mesh_open(comm, opts[i]);
        WF_EXPECT(mesh, "%s", wf_error_message());
        for (int kind = 0; kind < 4; kind++)
            check_program(mesh, kind & 1, kind & 2);
        wf_mesh_close(mesh);
    }
}

/* Already there: the same variable. */
static void nothing_to_do(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(2, 1, 8, 3), &layout));
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = tensor_of(&layout, 4);
    wf_var *leaf = wf_leaf(tape, x);
    WF_EXPECT(wf_shard(leaf, mesh) == leaf, "sharded already");
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

/* --- batches: of the communicator's own mesh, whose shard bounds the ranks know only for themselves
 * --------------------
 */

static wf_layout batch_layout(wf_comm *over, wf_shape global)
{
    int64_t lo, hi;
    const int place = wf_comm_rank(over), places = wf_comm_size(over);
    wf_block(global.dim[0], places, places - 1 - place, &lo, &hi); /* sizes ascend with the rank */
    const int64_t n = hi - lo;
    lo = 0;
    for (int p = 0; p < place; p++) {
        int64_t a, b;
        wf_block(global.dim[0], places, places - 1 - p, &a, &b);
        lo += b - a;
    }
    /* The place of a part without samples does not matter. */
    return n > 0 ? wf_layout_batch(wf_comm_mesh(over), global, lo, lo + n)
                 : wf_layout_batch(wf_comm_mesh(over), global, global.dim[0], global.dim[0]);
}

static void check_batch(const wf_mesh *mesh, wf_comm *over, int64_t samples)
{
    const wf_shape global = WF_SHAPE(samples, 3, 6, 4);
    const wf_layout batch = batch_layout(over, global);
    wf_layout target;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &target));
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = tensor_of(&batch, 5), *dy = tensor_of(&target, 6);
    wf_var *leaf = wf_leaf(tape, x);
    wf_var *y = wf_shard(leaf, mesh);
    expect_slice("the batch", wf_value(y), global, target.box, 5, 1);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    expect_slice("its gradient", wf_grad(leaf), global, batch.box, 6, 1);
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_tensor_free(dy);
}

static void batches(void)
{
    const wf_mesh_opts opts[3] = {{0}, {.height = size}, {.height = size % 2 ? 1 : 2}};
    for (int i = 0; i < 6; i++) {
        const int64_t samples = i % 2 ? 7 : 3; /* of 3 some ranks have none */
        wf_mesh *mesh = wf_mesh_open(comm, opts[i / 2]);
        check_batch(mesh, comm, samples);
        if (wf_mesh_size(mesh, WF_AXIS_DATA) > 1)
            check_batch(mesh, wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA)), samples);
        if (wf_mesh_size(mesh, WF_AXIS_HEIGHT) > 1)
            check_batch(mesh, wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT)), samples);
        wf_mesh_close(mesh);
    }
}

/* All rows on one rank of the axis. */
static wf_layout rows_at(const wf_mesh *mesh, wf_shape global, int place)
{
    int64_t bounds[9] = {0};
    wf_layout layout;
    for (int r = place; r < size; r++)
        bounds[r + 1] = global.dim[2];
    WF_EXPECT_OK(wf_mesh_layout(
        mesh, global, (wf_layout_opts){.dim[WF_AXIS_HEIGHT] = WF_DIM(2), .bounds[WF_AXIS_HEIGHT] = bounds}, &layout));
    return layout;
}

/* Empty parts of what was permuted travel in the order of memory that the rank with all rows has, in both directions.
 */
static void transposed(void)
{
    const wf_shape global = WF_SHAPE(2, 3, 5, 2);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size});
    const wf_layout first = rows_at(mesh, global, 0), last = rows_at(mesh, global, size - 1);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = tensor_of(&first, 7);
    wf_var *leaf = wf_leaf(tape, x);
    wf_var *turned = wf_transpose(wf_redistribute(leaf, last), (int[]){0, 2, 3, 1});
    wf_var *y = wf_transpose(wf_unshard(turned), (int[]){0, 3, 1, 2});
    WF_EXPECT(y, "%s", wf_error_message());
    expect_slice("what was permuted", wf_value(y), global, wf_box_of_shape(global), 7, 1);
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    expect_slice("its gradient", wf_grad(leaf), global, first.box, 7, 2);
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

/* Parts of one row, permuted so that the whole is dense in neither order: a part may be dense in the order that the
 * whole does not have. All permutations of four dimensions. */
static void transposed_rows(void)
{
    const wf_shape global = WF_SHAPE(2, 3, size, 4);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout rows;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &rows));
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = tensor_of(&rows, 7);
    for (int code = 0; code < 256; code++) {
        const int perm[4] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6};
        int back[4] = {-1, -1, -1, -1};
        for (int d = 0; d < 4; d++)
            back[perm[d]] = d;
        if (back[0] < 0 || back[1] < 0 || back[2] < 0 || back[3] < 0)
            continue;
        wf_var *leaf = wf_leaf(tape, x), *turned = wf_transpose(leaf, perm);
        wf_var *y = wf_transpose(wf_unshard(turned), back);
        WF_EXPECT(y, "%s", wf_error_message());
        expect_slice("rows that were permuted", wf_value(y), global, wf_box_of_shape(global), 7, 1);
        WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(turned, turned))));
        expect_slice("their gradient", wf_grad(leaf), global, rows.box, 7, 2);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

static void no_allocations(void)
{
    int64_t warm = 0;
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    const wf_layout batch = batch_layout(comm, WF_SHAPE(5, 2, 9, 4));
    wf_tensor *x = tensor_of(&batch, 1);
    wf_tape *tape = wf_tape_new(ctx);
    for (int i = 0; i < 8; i++) {
        if (i == 3)
            warm = wf_ctx_memory(ctx).system_allocations;
        wf_var *leaf = wf_leaf(tape, x);
        wf_var *part = wf_shard(leaf, mesh);
        WF_EXPECT_OK(wf_backward(wf_mean(wf_mul(part, wf_unshard(part) == NULL ? NULL : part))));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    const int64_t more = wf_ctx_memory(ctx).system_allocations - warm;
    WF_EXPECT(more == 0, "%lld allocations in a loop", (long long)more);
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

/* --- errors --------------------------------------------------------------------------------------------------------
 */

static void expect_error(const wf_var *y, wf_status code, const char *text)
{
    WF_EXPECT(!y && wf_error_code() == code && strstr(wf_error_message(), text), "%s", wf_error_message());
    wf_error_clear();
}

static void misuse(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_tape *tape = wf_tape_new(ctx);
    const wf_shape global = WF_SHAPE(2, 2, 8, 2);
    wf_layout layout, other, partial;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &layout));
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(2, 2, 8, 3), &other));
    wf_tensor *x = tensor_of(&layout, 1);
    wf_var *leaf = wf_leaf(tape, x);
    expect_error(wf_redistribute(leaf, other), WF_ERR_SHAPE, "from [2,2,8,2] to a layout of [2,2,8,3]");
    expect_error(wf_redistribute(leaf, wf_layout_none()), WF_ERR_ARGUMENT, "without a mesh");
    partial = (wf_layout){.known = true, .mesh = mesh, .global = global, .box = wf_box_of_shape(global)};
    partial.placement[WF_AXIS_CHANNEL] = WF_PARTIAL;
    expect_error(wf_redistribute(leaf, partial), WF_ERR_UNSUPPORTED, "partial");
    WF_EXPECT(!wf_redistribute(NULL, layout) && !wf_shard(NULL, mesh) && !wf_shard(leaf, NULL) && !wf_unshard(NULL),
              "NULL passes");
    WF_EXPECT(!wf_tensor_redistribute(NULL, layout), "NULL passes");
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

/* A local value of another shape on one rank alone: an error on all. */
static void one_rank_is_wrong(void)
{
    if (size == 1)
        return;
    wf_comm *victim = wf_comm_split(comm, 0, rank);
    wf_mesh *mesh = wf_mesh_open(victim, (wf_mesh_opts){.height = size});
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(2, 2, 8, 2), &layout));
    WF_EXPECT_OK(wf_barrier(comm)); /* all have come so far before one fails */
    wf_tensor *x = rank == 0 ? wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 2, 8, 2)) : tensor_of(&layout, 1);
    const wf_layout whole = {
        .known = true, .mesh = mesh, .global = layout.global, .box = wf_box_of_shape(layout.global)};
    wf_tensor *y = wf_tensor_redistribute(x, whole);
    WF_EXPECT(!y && wf_error_code() == WF_ERR_SHAPE && strstr(wf_error_message(), "rank 0: a tensor [1,2,8,2]"), "%s",
              wf_error_message());
    wf_tensor_free(y);
    wf_tensor_free(x);
    wf_mesh_close(mesh);
    wf_error_clear();
    WF_EXPECT_OK(wf_comm_close(victim));
}

static int on_ranks(int argc, char **argv)
{
    comm = test_comm_open("naive", (wf_ctx_opts){.dtype = WF_F64});
    if (!comm)
        return 1;
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"random_pairs", random_pairs},
                                               {"programs", programs},
                                               {"nothing_to_do", nothing_to_do},
                                               {"batches", batches},
                                               {"transposed", transposed},
                                               {"transposed_rows", transposed_rows},
                                               {"no_allocations", no_allocations},
                                               {"misuse", misuse},
                                               {"one_rank_is_wrong", one_rank_is_wrong},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(comm));
    return failed || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
