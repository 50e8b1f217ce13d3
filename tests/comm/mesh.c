/* Meshes: places, communicators of axes, layouts and shard bounds, cached exchanges, and options that do not fit. */
#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/context_author.h"
#include "core/tape.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

/* Every mesh that fits this number of ranks, of axes channel, height and width. */
static void for_all_meshes(void (*check)(const wf_mesh *mesh))
{
    for (int c = 1; c <= size; c++)
        for (int h = 1; h <= size; h++)
            for (int w = 1; w <= size; w++) {
                if (size % (c * h * w) != 0)
                    continue;
                wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = c, .height = h, .width = w});
                WF_EXPECT(mesh, "%s", wf_error_message());
                if (!mesh)
                    return;
                WF_EXPECT(wf_mesh_size(mesh, WF_AXIS_CHANNEL) == c && wf_mesh_size(mesh, WF_AXIS_HEIGHT) == h &&
                              wf_mesh_size(mesh, WF_AXIS_WIDTH) == w && wf_mesh_size(mesh, WF_AXIS_STAGE) == 1 &&
                              wf_mesh_size(mesh, WF_AXIS_DEPTH) == 1,
                          "sizes of %s", wf_mesh_text(mesh));
                WF_EXPECT(wf_mesh_size(mesh, WF_AXIS_DATA) == size / (c * h * w), "data takes what remains");
                check(mesh);
                wf_mesh_close(mesh);
            }
}

/* data slowest, width fastest; every rank has a place of its own. */
static void check_places(const wf_mesh *mesh)
{
    for (int r = 0; r < size; r++) {
        int place[WF_AXES];
        wf_mesh_place(mesh, r, place);
        int back = place[WF_AXIS_DATA];
        back = back * wf_mesh_size(mesh, WF_AXIS_STAGE) + place[WF_AXIS_STAGE];
        back = back * wf_mesh_size(mesh, WF_AXIS_CHANNEL) + place[WF_AXIS_CHANNEL];
        back = back * wf_mesh_size(mesh, WF_AXIS_DEPTH) + place[WF_AXIS_DEPTH];
        back = back * wf_mesh_size(mesh, WF_AXIS_HEIGHT) + place[WF_AXIS_HEIGHT];
        back = back * wf_mesh_size(mesh, WF_AXIS_WIDTH) + place[WF_AXIS_WIDTH];
        WF_EXPECT(back == r, "rank %d is at the place of %d", r, back);
        for (int a = 0; a < WF_AXES; a++) {
            WF_EXPECT(place[a] >= 0 && place[a] < wf_mesh_size(mesh, (wf_axis)a), "place %d", place[a]);
            WF_EXPECT(r != rank || wf_mesh_rank(mesh, (wf_axis)a) == place[a], "this rank's place");
        }
    }
}

static void places(void)
{
    for_all_meshes(check_places);
}

/* The ranks of a set's communicator are those that differ along it alone, in order. */
static void check_comm_of(const wf_mesh *mesh, unsigned axes)
{
    wf_comm *part = wf_mesh_comm(mesh, axes);
    WF_EXPECT(part && part == wf_mesh_comm(mesh, axes), "%s", wf_error_message());
    int expected = 1, own = 0, members[16], mine[WF_AXES], n = 0;
    for (int a = 0; a < WF_AXES; a++)
        expected *= axes >> a & 1u ? wf_mesh_size(mesh, (wf_axis)a) : 1;
    WF_EXPECT(wf_comm_size(part) == expected, "axes 0x%x have %d ranks, not %d", axes, wf_comm_size(part), expected);
    wf_mesh_place(mesh, rank, mine);
    for (int r = 0; r < size; r++) {
        int place[WF_AXES];
        bool same = true;
        wf_mesh_place(mesh, r, place);
        for (int a = 0; a < WF_AXES; a++)
            same = same && ((axes >> a & 1u) || place[a] == mine[a]);
        if (same && r == rank)
            own = n;
        if (same)
            members[n++] = r;
    }
    WF_EXPECT(wf_comm_rank(part) == own, "axes 0x%x: rank %d, not %d", axes, wf_comm_rank(part), own);
    int world[16];
    if (wf_comm_size(part) != expected)
        return;
    WF_EXPECT_OK(wf_allgather_bytes(part, &rank, sizeof rank, world));
    WF_EXPECT(!memcmp(world, members, (size_t)n * sizeof *world), "axes 0x%x join other ranks", axes);
}

static void check_comms(const wf_mesh *mesh)
{
    /* The communicators of one axis are there: one rank asks for them, and the others wait until it has them. */
    for (int a = 0; a < WF_AXES && rank == 0; a++)
        WF_EXPECT(wf_comm_size(wf_mesh_comm(mesh, WF_AXIS_BIT(a))) == wf_mesh_size(mesh, (wf_axis)a), "axis %d", a);
    WF_EXPECT_OK(wf_barrier(comm));
    for (unsigned axes = 0; axes < 1u << WF_AXES; axes++)
        check_comm_of(mesh, axes);
    WF_EXPECT(wf_mesh_world(mesh) == comm, "the whole is the communicator itself");
    WF_EXPECT(!wf_mesh_comm(mesh, 1u << WF_AXES) && wf_error_code() == WF_ERR_ARGUMENT, "no set");
    wf_error_clear();
}

static void comms(void)
{
    for_all_meshes(check_comms);
}

static void texts(void)
{
    char want[80];
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    snprintf(want, sizeof want, "height %d: rank %d is height %d", size, rank, rank);
    WF_EXPECT(!strcmp(wf_mesh_text(mesh), size == 1 ? "one rank" : want), "%s", wf_mesh_text(mesh));
    wf_mesh_close(mesh);
    if (size % 2 != 0 || size == 2)
        return;
    mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = 2});
    snprintf(want, sizeof want, "data %d x channel 2: rank %d is data %d, channel %d", size / 2, rank, rank / 2,
             rank % 2);
    WF_EXPECT(!strcmp(wf_mesh_text(mesh), want), "%s", wf_mesh_text(mesh));
    wf_mesh_close(mesh);
}

static void default_mesh(void)
{
    const wf_mesh *mesh = wf_comm_mesh(comm);
    WF_EXPECT(wf_mesh_size(mesh, WF_AXIS_DATA) == size && wf_mesh_rank(mesh, WF_AXIS_DATA) == rank, "data is all");
    WF_EXPECT(wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA)) == comm, "its communicator is the whole");
    WF_EXPECT(wf_comm_size(wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_WIDTH))) == 1, "other axes have one rank");
    check_places(mesh);
    check_comms(mesh);
}

static void expect_refused(wf_mesh_opts opts, const char *text)
{
    wf_mesh *mesh = wf_mesh_open(comm, opts);
    WF_EXPECT(!mesh && wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), text), "%s",
              wf_error_message());
    wf_mesh_close(mesh);
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(comm)); /* the communicator lives on */
}

static void does_not_fit(void)
{
    expect_refused((wf_mesh_opts){.height = size + 1}, "ranks, should be 0 (the default) to");
    expect_refused((wf_mesh_opts){.height = -1}, "height -1");
    if (size == 4) {
        expect_refused((wf_mesh_opts){.channel = 3}, "a mesh of channel 3 does not divide the 4 ranks");
        expect_refused((wf_mesh_opts){.data = 1, .height = 2},
                       "a mesh of data 1 x height 2 has 2 ranks and the communicator 4");
    }
    if (size > 1)
        expect_refused((wf_mesh_opts){.height = rank == size - 1 ? size : 1}, "all ranks give the same options");
    WF_EXPECT(!wf_mesh_open(NULL, (wf_mesh_opts){0}), "no communicator");
    wf_mesh_close(NULL);
}

static void check_activation(const wf_mesh *mesh)
{
    const wf_shape global = WF_SHAPE(10, 7, 5, 3);
    static const wf_axis axis[4] = {WF_AXIS_DATA, WF_AXIS_CHANNEL, WF_AXIS_HEIGHT, WF_AXIS_WIDTH};
    wf_layout layout, again;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &layout));
    WF_EXPECT(layout.known && layout.mesh == mesh && wf_shape_equal(layout.global, global), "the whole");
    for (int d = 0; d < 4; d++) {
        int64_t lo, hi;
        const int n = wf_mesh_size(mesh, axis[d]);
        wf_block(global.dim[d], n, wf_mesh_rank(mesh, axis[d]), &lo, &hi);
        WF_EXPECT(layout.box.lo[d] == lo && layout.box.hi[d] == hi, "dimension %d", d);
        WF_EXPECT(wf_layout_is_sharded(&layout, d) == (n > 1 || d == 0), "dimension %d counts as cut", d);
        if (n == 1)
            continue;
        const int64_t *cut = layout.bounds[axis[d]];
        WF_EXPECT(cut && cut == wf_mesh_blocks(mesh, axis[d], global.dim[d]), "shard bounds are kept once");
        WF_EXPECT(cut[0] == 0 && cut[n] == global.dim[d] && cut[wf_mesh_rank(mesh, axis[d])] == lo, "shard bounds");
    }
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &again));
    WF_EXPECT(wf_layout_equal(&layout, &again), "equal layouts");
    if (wf_mesh_size(mesh, WF_AXIS_HEIGHT) > 1) {
        int64_t bounds[17] = {0};
        for (int i = 1; i <= wf_mesh_size(mesh, WF_AXIS_HEIGHT); i++)
            bounds[i] = 5;
        wf_layout_shard(mesh, &again, WF_AXIS_HEIGHT, 2, bounds);
        WF_EXPECT(!wf_layout_equal(&layout, &again), "other shard bounds");
        WF_EXPECT(again.box.hi[2] == 5 && again.box.lo[2] == (wf_mesh_rank(mesh, WF_AXIS_HEIGHT) ? 5 : 0), "the box");
    }
}

/* Every element of the result is that of the whole, whoever holds it. */
static void halos_of(const wf_mesh *mesh, const int64_t widths[4])
{
    const wf_shape whole = WF_SHAPE(3, 2, 5, 7);
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, whole, &layout));
    double value[3 * 2 * 5 * 7];
    int64_t n = 0;
    const wf_box b = layout.box;
    for (int64_t i = b.lo[0]; i < b.hi[0]; i++)
        for (int64_t c = b.lo[1]; c < b.hi[1]; c++)
            for (int64_t y = b.lo[2]; y < b.hi[2]; y++)
                for (int64_t x = b.lo[3]; x < b.hi[3]; x++)
                    value[n++] = (double)(((i * 2 + c) * 5 + y) * 7 + x);
    wf_tensor *part = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(b), value);
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor *wide = wf_halo_exchange(mesh, part, widths, (wf_boundary){0});
    WF_EXPECT(wide, "%s", wf_error_trail());
    wf_box w = b;
    for (int d = 0; d < 4 && b.lo[d] < b.hi[d]; d++) {
        w.lo[d] = b.lo[d] > widths[d] ? b.lo[d] - widths[d] : 0;
        w.hi[d] = b.hi[d] + widths[d] < whole.dim[d] ? b.hi[d] + widths[d] : whole.dim[d];
    }
    bool empty = false;
    for (int d = 0; d < 4; d++)
        empty = empty || b.lo[d] == b.hi[d];
    WF_EXPECT(empty || wf_shape_equal(wf_tensor_shape(wide), wf_box_shape(w)), "the shape with halos");
    if (!empty)
        WF_EXPECT_OK(wf_tensor_export(wide, value, wf_tensor_bytes(wide)));
    n = 0;
    int64_t wrong = 0;
    for (int64_t i = w.lo[0]; i < w.hi[0] && !empty; i++)
        for (int64_t c = w.lo[1]; c < w.hi[1]; c++)
            for (int64_t y = w.lo[2]; y < w.hi[2]; y++)
                for (int64_t x = w.lo[3]; x < w.hi[3]; x++)
                    wrong += value[n++] != (double)(((i * 2 + c) * 5 + y) * 7 + x);
    WF_EXPECT(wrong == 0, "%s: %lld wrong elements", wf_mesh_text(mesh), (long long)wrong);
    wf_tensor_free(part);
    wf_tensor_free(wide);
}

static void check_halos(const wf_mesh *mesh)
{
    halos_of(mesh, (int64_t[]){0, 0, 1, 2});
    halos_of(mesh, (int64_t[]){1, 1, 0, 0});
    halos_of(mesh, (int64_t[]){9, 0, 9, 9});
    wf_tensor *local = wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 2));
    WF_EXPECT(!wf_halo_exchange(mesh, local, (int64_t[]){1, 1}, (wf_boundary){0}) && wf_error_code() == WF_ERR_SHAPE,
              "a local tensor");
    wf_error_clear();
    WF_EXPECT(!wf_halo_exchange(NULL, local, (int64_t[]){1, 1}, (wf_boundary){0}) &&
                  strstr(wf_error_message(), "wf_halo_exchange: mesh"),
              "no mesh: %s", wf_error_message());
    wf_error_clear();
    wf_tensor_free(local);
}

static void halos(void)
{
    for_all_meshes(check_halos);
}

/* Bounds of many lengths are kept once each, and found among the others. */
static void many_lengths(void)
{
    enum { LENGTHS = 500 };
    const int64_t *bounds[LENGTHS];
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){0});
    for (int i = 0; i < LENGTHS; i++)
        bounds[i] = wf_mesh_blocks(mesh, WF_AXIS_DATA, i);
    const int64_t made = wf_ctx_memory(ctx).system_allocations;
    for (int i = 0; i < LENGTHS; i++)
        WF_EXPECT(wf_mesh_blocks(mesh, WF_AXIS_DATA, i) == bounds[i] && bounds[i][0] == 0 && bounds[i][size] == i,
                  "bounds of %d", i);
    WF_EXPECT(wf_ctx_memory(ctx).system_allocations == made, "bounds that are known are made again");
    wf_mesh_close(mesh);
}

/* Asks for bounds that have not been asked for yet. */
static void ask_new(const wf_mesh *mesh, int64_t count)
{
    static int64_t length = 1000;
    for (int64_t i = 0; i < count; i++)
        WF_EXPECT(wf_mesh_blocks(mesh, WF_AXIS_DATA, length++), "%s", wf_error_message());
}

/* Returns true if the mesh still keeps balanced blocks of this length: asking for them allocates nothing. */
static bool still_has(const wf_mesh *mesh, int64_t length)
{
    const int64_t made = wf_ctx_memory(ctx).system_allocations;
    return wf_mesh_blocks(mesh, WF_AXIS_DATA, length) && wf_ctx_memory(ctx).system_allocations == made;
}

/* Checks that a mesh keeps the most recently used bounds only, and those that the program made, that a tensor has, or
 * that a step may still use. */
static void many_bounds(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){0});
    wf_layout own, passing = wf_mesh_layout_same(mesh, WF_SHAPE(9));
    WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(7), (wf_layout_opts){.dim = {WF_DIM(0)}}, &own));
    wf_layout_shard(mesh, &passing, WF_AXIS_DATA, 0, wf_mesh_blocks(mesh, WF_AXIS_DATA, 9));
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, wf_box_shape(passing.box));
    WF_EXPECT_OK(wf_tensor_set_layout(x, passing));
    ask_new(mesh, 2 * WF_PLANS_MOST);
    WF_EXPECT(wf_mesh_bounds_kept(mesh) == WF_PLANS_MOST, "%lld are kept", (long long)wf_mesh_bounds_kept(mesh));
    WF_EXPECT(still_has(mesh, 7), "the program's bounds are gone");
    WF_EXPECT(still_has(mesh, 9) && passing.bounds[0] == wf_mesh_blocks(mesh, WF_AXIS_DATA, 9),
              "the bounds of a tensor are gone");
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT(wf_input(tape, x), "%s", wf_error_message());
    const int64_t *step = wf_mesh_blocks(mesh, WF_AXIS_DATA, 8);
    ask_new(mesh, WF_PLANS_MOST);
    WF_EXPECT(still_has(mesh, 8) && step[size] == 8, "bounds of a step are gone");
    WF_EXPECT(wf_mesh_bounds_kept(mesh) > WF_PLANS_MOST, "%lld are kept", (long long)wf_mesh_bounds_kept(mesh));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    wf_tensor_free(x);
    ask_new(mesh, 1);
    WF_EXPECT(wf_mesh_bounds_kept(mesh) == WF_PLANS_MOST, "%lld are kept once the tape is empty",
              (long long)wf_mesh_bounds_kept(mesh));
    ask_new(mesh, WF_PLANS_MOST);
    WF_EXPECT(still_has(mesh, 7) && !still_has(mesh, 9), "bounds that no tensor has stay");
    wf_mesh_close(mesh);
}

/* Bounds that were just asked for stay, also where tensors hold as many as a mesh keeps. */
static void bounds_of_many_tensors(void)
{
    static wf_tensor *tensor[WF_PLANS_MOST];
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){0});
    for (int i = 0; i < WF_PLANS_MOST; i++) {
        wf_layout layout = wf_mesh_layout_same(mesh, WF_SHAPE(9));
        wf_layout_shard(mesh, &layout, WF_AXIS_DATA, 0, wf_mesh_blocks(mesh, WF_AXIS_DATA, 10 + i));
        tensor[i] = wf_tensor_new(ctx, WF_F32, wf_box_shape(layout.box));
        WF_EXPECT_OK(wf_tensor_set_layout(tensor[i], layout));
    }
    WF_EXPECT(wf_mesh_blocks(mesh, WF_AXIS_DATA, 8), "%s", wf_error_message());
    ask_new(mesh, WF_PLANS_MOST / 4);
    WF_EXPECT(still_has(mesh, 8), "bounds that were just asked for are gone");
    ask_new(mesh, WF_PLANS_MOST);
    WF_EXPECT(!still_has(mesh, 8) && still_has(mesh, 10), "which bounds are kept");
    WF_EXPECT(wf_mesh_bounds_kept(mesh) <= 2 * WF_PLANS_MOST, "%lld are kept", (long long)wf_mesh_bounds_kept(mesh));
    for (int i = 0; i < WF_PLANS_MOST; i++)
        wf_tensor_free(tensor[i]);
    wf_mesh_close(mesh);
}

static void layouts(void)
{
    for_all_meshes(check_activation);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){0});
    wf_layout layout;
    const wf_layout_opts twice = {.dim = {WF_DIM(0), WF_DIM(0)}}, beyond = {.dim = {0, WF_DIM(2)}}, none = {0};
    const wf_layout_opts before = {.dim = {-1}};
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_mesh_layout(mesh, WF_SHAPE(4, 4), twice, &layout));
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_mesh_layout(mesh, WF_SHAPE(4, 4), beyond, &layout));
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_mesh_layout(mesh, WF_SHAPE(4, 4), before, &layout));
    WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(4, 4), none, &layout));
    WF_EXPECT(layout.known && layout.placement[0] == WF_REPLICATED && layout.box.hi[0] == 4, "replicated");
    const wf_layout same = wf_mesh_layout_same(mesh, WF_SHAPE(4, 4));
    WF_EXPECT(wf_layout_equal(&same, &layout) && !wf_mesh_layout_same(NULL, WF_SHAPE(4)).known, "the same everywhere");
    /* All but one sample on the last rank. */
    int64_t own[17] = {0};
    for (int i = 1; i <= size; i++)
        own[i] = i < size ? 1 : 9;
    const wf_layout_opts cut = {.dim = {WF_DIM(0)}, .bounds = {own}};
    WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(9, 4), cut, &layout));
    WF_EXPECT(layout.box.lo[0] == own[rank] && layout.box.hi[0] == own[rank + 1], "own cut points");
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_mesh_layout(mesh, WF_SHAPE(8, 4), cut, &layout));
    const int64_t backwards[17] = {0, 3, 2, 1};
    if (size > 1)
        WF_EXPECT(!wf_mesh_bounds(mesh, WF_AXIS_DATA, backwards) && wf_error_code() == WF_ERR_ARGUMENT, "descending");
    wf_error_clear();
    int64_t late[17];
    for (int i = 0; i < 17; i++)
        late[i] = i + 1;
    WF_EXPECT(!wf_mesh_bounds(mesh, WF_AXIS_DATA, late) && wf_error_code() == WF_ERR_ARGUMENT,
              "bounds that begin at 1");
    wf_error_clear();
    wf_mesh_close(mesh);
}

/* Rows over height with one row of halo: the cache gives the same exchange, and the data arrives. */
static void check_halo(const wf_mesh *mesh)
{
    wf_range own[16], wide[16];
    const int n = wf_mesh_size(mesh, WF_AXIS_HEIGHT), place = wf_mesh_rank(mesh, WF_AXIS_HEIGHT);
    const int64_t rows = 3 * n;
    for (int i = 0; i < n; i++) {
        own[i] = (wf_range){3 * i, 3 * i + 3};
        wide[i] = (wf_range){i > 0 ? 3 * i - 1 : 0, i + 1 < n ? 3 * i + 4 : rows};
    }
    wf_regions have = {.global = WF_SHAPE(2, 1, rows, 4), .dim = {-1, -1, -1, 2, -1, -1}};
    wf_regions need = have;
    have.range[WF_AXIS_HEIGHT] = own;
    need.range[WF_AXIS_HEIGHT] = wide;
    wf_exchange *exchange = wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_ROW_MAJOR);
    WF_EXPECT(exchange && exchange == wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_ROW_MAJOR), "it is kept");
    WF_EXPECT(exchange != wf_mesh_exchange(mesh, &have, &need, WF_F64, WF_ROW_MAJOR), "types differ");
    WF_EXPECT(n == 1 || exchange != wf_mesh_exchange(mesh, &need, &have, WF_F32, WF_ROW_MAJOR), "regions differ");
    const int64_t mine = wide[place].hi - wide[place].lo;
    WF_EXPECT(wf_exchange_bytes(exchange) == ((place > 0) + (place + 1 < n)) * 2 * 4 * 4, "two faces of 8 floats");
    WF_EXPECT(wf_exchange_moves(exchange) == (n > 1), "moves");
    wf_tensor *x = wf_tensor_new_ordered(ctx, WF_F32, WF_SHAPE(2, 1, 3, 4), WF_ROW_MAJOR);
    wf_tensor *y = wf_tensor_new_ordered(ctx, WF_F32, WF_SHAPE(2, 1, mine, 4), WF_ROW_MAJOR);
    float values[24], got[5 * 2 * 4];
    for (int i = 0; i < 24; i++)
        values[i] = (float)(3 * place + i / 4 % 3);
    WF_EXPECT_OK(wf_tensor_import(x, values, sizeof values));
    WF_EXPECT_OK(wf_exchange_begin(exchange, x, y));
    WF_EXPECT_OK(wf_exchange_end(exchange));
    WF_EXPECT_OK(wf_tensor_export(y, got, wf_tensor_bytes(y)));
    for (int64_t i = 0; i < wf_tensor_count(y); i++)
        WF_EXPECT(got[i] == (float)(wide[place].lo + i / 4 % mine), "row %g", (double)got[i]);
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void exchanges(void)
{
    for_all_meshes(check_halo);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_range half[16], all[16];
    for (int i = 0; i < size; i++) {
        half[i] = (wf_range){0, 2};
        all[i] = (wf_range){0, 3};
    }
    wf_regions have = {.global = WF_SHAPE(3), .dim = {-1, -1, -1, 0, -1, -1}}, need = have;
    have.range[WF_AXIS_HEIGHT] = half;
    need.range[WF_AXIS_HEIGHT] = all;
    WF_EXPECT(!wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_ROW_MAJOR) && wf_error_code() == WF_ERR_SHAPE, "%s",
              wf_error_message());
    wf_error_clear();
    need.global = WF_SHAPE(3, 1);
    WF_EXPECT(!wf_mesh_exchange(mesh, &have, &need, WF_F32, WF_ROW_MAJOR) && wf_error_code() == WF_ERR_SHAPE, "%s",
              wf_error_message());
    wf_error_clear();
    wf_mesh_close(mesh);
}

/* Rows of one image over height, with one row of halo; what arrives is the row's number. */
static void check_image(const wf_mesh *mesh, int64_t rows)
{
    const int64_t widths[2] = {1, 0};
    double value[2 * 3 * 16];
    wf_layout layout;
    WF_EXPECT_OK(
        wf_mesh_layout(mesh, WF_SHAPE(rows, 2), (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(0)}}, &layout));
    const int64_t first = layout.box.lo[0], last = layout.box.hi[0];
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, wf_box_shape(layout.box));
    for (int64_t i = 0; i < wf_tensor_count(x); i++)
        value[i] = (double)(first + i / 2);
    WF_EXPECT_OK(wf_tensor_import(x, value, wf_tensor_bytes(x)));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    wf_tensor *y = wf_halo_exchange(mesh, x, widths, (wf_boundary){0});
    WF_EXPECT(y, "%lld rows: %s", (long long)rows, wf_error_message());
    const int64_t lo = first > 0 ? first - 1 : 0, hi = last < rows ? last + 1 : rows, all = last > first ? hi - lo : 0;
    WF_EXPECT(!y || wf_tensor_count(y) == 2 * all, "%lld rows: a part of %lld", (long long)rows, (long long)all);
    WF_EXPECT_OK(wf_tensor_export(y, value, wf_tensor_bytes(y)));
    for (int64_t i = 0; i < 2 * all; i++)
        WF_EXPECT(value[i] == (double)(lo + i / 2), "%lld rows: %g", (long long)rows, value[i]);
    wf_tensor_free(x);
    wf_tensor_free(y);
}

/* Images of ever new sizes: the mesh keeps no more exchanges than it promises, and makes those again that it has
 * dropped. */
static void many_sizes(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    for (int round = 0; round < 2; round++) {
        for (int64_t rows = 0; rows < 3 * size; rows++)
            check_image(mesh, rows);
        WF_EXPECT(wf_mesh_exchanges(mesh) <= WF_PLANS_MOST, "%lld are kept", (long long)wf_mesh_exchanges(mesh));
        for (int64_t i = 0; i < WF_PLANS_MOST; i++) {
            const wf_regions all = {.global = WF_SHAPE(1, 1 + i), .dim = {-1, -1, -1, -1, -1, -1}};
            WF_EXPECT(wf_mesh_exchange(mesh, &all, &all, WF_F32, WF_ROW_MAJOR), "%s", wf_error_message());
        }
        WF_EXPECT(wf_mesh_exchanges(mesh) == WF_PLANS_MOST, "%lld are kept", (long long)wf_mesh_exchanges(mesh));
    }
    wf_mesh_close(mesh);
}

/* A stage makes a communicator of two axes, which the other one never asks for. */
static void stages(void)
{
    const unsigned axes = WF_AXIS_BIT(WF_AXIS_CHANNEL) | WF_AXIS_BIT(WF_AXIS_HEIGHT);
    double one = 1;
    if (size != 8)
        return;
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.stage = 2, .channel = 2, .height = 2});
    WF_EXPECT(mesh, "%s", wf_error_message());
    if (wf_mesh_rank(mesh, WF_AXIS_STAGE) == 1) {
        wf_comm *part = wf_mesh_comm(mesh, axes);
        WF_EXPECT(part && wf_comm_size(part) == 4 && wf_comm_rank(part) == rank - 4, "%s", wf_error_message());
        WF_EXPECT_OK(wf_allreduce_f64(part, &one, 1, WF_SUM));
        WF_EXPECT(one == 4, "the sum over a stage is %g", one);
    }
    WF_EXPECT_OK(wf_barrier(comm));
    wf_mesh_close(mesh);
}

/* What this process maps together with others. */
static int64_t shared_bytes(void)
{
    char line[512], way[5];
    unsigned long lo, hi;
    int64_t bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &lo, &hi, way) == 3 && way[3] == 's')
            bytes += (int64_t)(hi - lo);
    if (maps)
        fclose(maps);
    return bytes;
}

/* A rank fails in a collective after it has asked for no communicator of two axes. Ranks whose communicator does not
 * include it make theirs, and learn of the failure in the collective; the others learn of it where they wait for that
 * rank. */
static void failure_after_a_part(void)
{
    const unsigned axes = WF_AXIS_BIT(WF_AXIS_CHANNEL) | WF_AXIS_BIT(WF_AXIS_HEIGHT);
    char byte = 0;
    if (size < 8)
        return;
    wf_comm *all = wf_comm_split(comm, 0, 0);
    wf_mesh *mesh = wf_mesh_open(all, (wf_mesh_opts){.channel = 2, .height = 2, .width = 2});
    const bool with_culprit = wf_mesh_rank(mesh, WF_AXIS_WIDTH) == 1;
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == size - 1) {
        WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_bcast_bytes(all, &byte, 1, size));
    } else {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        const wf_comm *part = wf_mesh_comm(mesh, axes);
        WF_EXPECT(with_culprit ? !part && wf_error_code() == WF_ERR_ARGUMENT : part != NULL, "width %d: %s",
                  with_culprit, wf_error_message());
        wf_error_clear();
        WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_barrier(all));
    }
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(all));
}

/* Memory that ranks share for sums and exchanges goes with the communicators that have it. */
static void memory_comes_back(void)
{
    struct statvfs s;
    /* If /dev/shm is nearly full (full_shm.sh), messages take the place of shared memory. */
    const bool has_room = statvfs("/dev/shm", &s) == 0 && (uint64_t)s.f_bavail * s.f_frsize > (uint64_t)256 << 20;
    int64_t before = 0;
    for (int i = 0; i < 6; i++) {
        const int64_t closed = shared_bytes();
        wf_comm *part = test_comm_open("single_node", (wf_ctx_opts){0});
        wf_mesh *mesh = wf_mesh_open(part, (wf_mesh_opts){.height = size});
        wf_layout rows, columns;
        WF_EXPECT(mesh, "%s", wf_error_message());
        WF_EXPECT_OK(
            wf_mesh_layout(mesh, WF_SHAPE(64, 64), (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(0)}}, &rows));
        WF_EXPECT_OK(
            wf_mesh_layout(mesh, WF_SHAPE(64, 64), (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(1)}}, &columns));
        wf_tensor *x = wf_tensor_new(wf_comm_ctx(part), WF_F32, wf_box_shape(rows.box));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        WF_EXPECT_OK(wf_tensor_set_layout(x, rows));
        wf_tensor *y = wf_tensor_redistribute(x, columns);
        WF_EXPECT(y, "%s", wf_error_message());
        WF_EXPECT(size == 1 || !has_room || shared_bytes() - closed > (int64_t)1 << 20,
                  "an open communicator shares %lld bytes", (long long)(shared_bytes() - closed));
        wf_tensor_free(x);
        wf_tensor_free(y);
        wf_mesh_close(mesh);
        WF_EXPECT_OK(wf_comm_close(part));
        before = i == 1 ? shared_bytes() : before;
    }
    const int64_t more = shared_bytes() - before;
    WF_EXPECT(more < (int64_t)1 << 20, "four communicators leave %lld bytes of shared memory behind", (long long)more);
    WF_EXPECT_OK(wf_barrier(comm));
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("naive"))
        return 1;
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"places", places},
                                               {"comms", comms},
                                               {"texts", texts},
                                               {"default_mesh", default_mesh},
                                               {"does_not_fit", does_not_fit},
                                               {"layouts", layouts},
                                               {"many_lengths", many_lengths},
                                               {"many_bounds", many_bounds},
                                               {"bounds_of_many_tensors", bounds_of_many_tensors},
                                               {"halos", halos},
                                               {"exchanges", exchanges},
                                               {"many_sizes", many_sizes},
                                               {"stages", stages},
                                               {"failure_after_a_part", failure_after_a_part},
                                               {"memory_comes_back", memory_comes_back},
                                               {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
