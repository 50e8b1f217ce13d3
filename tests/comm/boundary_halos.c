/* Boundaries between ranks: halos of tensors on random meshes hold what the formula says, and exchanges of random needs
 * give back every gradient to the element that it came from, in both forms and with the bytes that the formula counts.
 * Halos along a dimension that no axis cuts send nothing; a boundary that reaches too far is one error on all ranks. */
#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "tests/boxes.h"
#include "tests/comm/boundary_formula.h"
#include "tests/comm/slabs.h"
#include "tests/random_mesh.h"
#include "tests/ranks.h"

#include <string.h>

enum { MOST = 8, MOST_ELEMENTS = 1 << 14 };

/* Small whole numbers, which every type adds exactly. */
static double number_at(int salt, const int64_t *at, int dims)
{
    test_rng rng = {.state = (uint64_t)salt};
    for (int d = 0; d < dims; d++)
        rng.state = test_u64(&rng) + (uint64_t)at[d];
    return (double)test_int(&rng, -9, 9);
}

static wf_tensor *tensor_of(wf_dtype dtype, wf_box box, int salt)
{
    static double values[MOST_ELEMENTS];
    int64_t at[WF_MAX_RANK], n = 0;
    memcpy(at, box.lo, sizeof at);
    if (!wf_box_empty(box))
        do
            values[n++] = number_at(salt, at, box.rank);
        while (box_next(box, at));
    wf_tensor *host = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(box), values);
    wf_tensor *x = wf_tensor_copy(host, dtype, wf_order_default(box.rank));
    wf_tensor_free(host);
    return x;
}

static int64_t read_all(const wf_tensor *x, double *values)
{
    wf_tensor *host = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_export(host, values, wf_tensor_bytes(host)));
    wf_tensor_free(host);
    return wf_tensor_count(x);
}

static wf_dtype random_type(test_rng *rng)
{
    static const wf_dtype types[] = {WF_F32, WF_F64, WF_BF16, WF_I32};
    return types[test_int(rng, 0, 3)];
}

static wf_shape random_shape(test_rng *rng)
{
    wf_shape shape = {.rank = (int)test_int(rng, 1, 4)};
    for (int d = 0; d < shape.rank; d++)
        shape.dim[d] = test_int(rng, 1, shape.rank < 3 ? 9 : 5);
    return shape;
}

/* Elements of a need that this rank lacks, each once, however often it is repeated: what it receives. */
static int64_t formula_received(wf_shape whole, const wf_boundary *b, wf_box have, wf_box need)
{
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], n = 0;
    memcpy(at, need.lo, sizeof at);
    if (wf_box_empty(need))
        return 0;
    bool *seen = formula_none_seen(whole);
    do
        n += formula_source(whole, b, at, source) != 0 && !box_has(have, source) && formula_notes(whole, source, seen);
    while (box_next(need, at));
    free(seen);
    return n;
}

static double summed(double v)
{
    WF_EXPECT_OK(wf_allreduce_f64(comm, &v, 1, WF_SUM));
    return v;
}

/* --- exchanges ------------------------------------------------------------------------------------------------------
 */

typedef struct problem {
    wf_shape whole;
    wf_boundary b;
    wf_box have[MOST], need[MOST];
    wf_dtype dtype;
    bool halo, in_slabs; /* in_slabs: the halo is held in slabs */
} problem;

static problem random_problem(test_rng *rng)
{
    problem p = {.whole = random_shape(rng), .dtype = random_type(rng), .halo = test_int(rng, 0, 1) == 0};
    p.in_slabs = p.halo && test_int(rng, 0, 1) == 0;
    p.b = formula_random(rng, &p.whole, wf_dtype_is_float(p.dtype));
    const int d = (int)test_int(rng, 0, p.whole.rank - 1);
    int64_t end = 0;
    for (int r = 0; r < size; r++) {
        p.have[r] = wf_box_of_shape(p.whole);
        p.have[r].lo[d] = end;
        end = p.have[r].hi[d] = r + 1 < size ? test_int(rng, end, p.whole.dim[d]) : p.whole.dim[d];
        p.need[r].rank = p.whole.rank;
        for (int k = 0; k < p.whole.rank; k++) {
            const int64_t length = p.whole.dim[k];
            const bool keeps = formula_keeps(&p.b, k);
            const int64_t lowest = keeps ? 0 : -formula_most(&p.b, k, false, length, 2);
            const int64_t highest = length + (keeps ? 0 : formula_most(&p.b, k, true, length, 2));
            const int64_t one = test_int(rng, lowest, highest), other = test_int(rng, lowest, highest);
            p.need[r].lo[k] = one < other ? one : other;
            p.need[r].hi[k] = one < other ? other : one;
        }
    }
    return p;
}

static void check_forward(const problem *p, const wf_tensor *y)
{
    static double got[MOST_ELEMENTS];
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], i = 0, wrong = 0;
    const wf_box need = p->need[rank];
    memcpy(at, need.lo, sizeof at);
    if (read_all(y, got) == 0)
        return;
    do {
        const int sign = formula_source(p->whole, &p->b, at, source);
        const bool stays = p->halo && sign != 0 && box_has(p->have[rank], at);
        const double want = stays ? 77 : sign ? sign * number_at(1, source, need.rank) : p->b.value;
        wrong += got[i++] != want;
    } while (box_next(need, at));
    WF_EXPECT(wrong == 0, "%d of %d elements are wrong", (int)wrong, (int)i);
}

/* Whole numbers: the sum does not depend on its order. */
static void check_reverse(const problem *p, const wf_tensor *dx)
{
    static double got[MOST_ELEMENTS], want[MOST_ELEMENTS];
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], i = 0;
    const wf_box have = p->have[rank];
    memcpy(at, have.lo, sizeof at);
    if (read_all(dx, got) == 0)
        return;
    do
        want[i++] = number_at(2, at, have.rank);
    while (box_next(have, at));
    for (int q = 0; q < size; q++) {
        memcpy(at, p->need[q].lo, sizeof at);
        if (wf_box_empty(p->need[q]))
            continue;
        do {
            const int sign = formula_source(p->whole, &p->b, at, source);
            const bool stays = p->halo && q == rank && sign != 0 && box_has(have, at);
            int64_t index = 0;
            for (int d = 0; d < have.rank && sign != 0; d++)
                index = index * (have.hi[d] - have.lo[d]) + source[d] - have.lo[d];
            if (sign != 0 && !stays && box_has(have, source))
                want[index] += sign * number_at(100 + q, at, have.rank);
        } while (box_next(p->need[q], at));
    }
    WF_EXPECT(test_distance(i, got, want) == 0, "gradients are off by %g", test_distance(i, got, want));
}

static void go_forward(const problem *p, wf_exchange *e, const wf_tensor *x, wf_tensor *y)
{
    const wf_order order = wf_order_default(p->whole.rank);
    wf_tensor *slabs = p->in_slabs ? slabs_of(e, order, y) : NULL;
    WF_EXPECT_OK(p->in_slabs ? wf_exchange_begin_slabs(e, x, slabs)
                 : p->halo   ? wf_exchange_begin_halo(e, x, y)
                             : wf_exchange_begin(e, x, y));
    WF_EXPECT_OK(wf_exchange_poll(e));
    WF_EXPECT_OK(wf_exchange_end(e));
    if (p->in_slabs)
        slabs_put(e, order, slabs, y);
}

static void go_back(const problem *p, wf_exchange *e, const wf_tensor *dy, wf_tensor *dx)
{
    wf_tensor *slabs = p->in_slabs ? slabs_of(e, wf_order_default(p->whole.rank), dy) : NULL;
    WF_EXPECT_OK(p->in_slabs ? wf_exchange_reverse_begin_slabs(e, slabs, dx)
                 : p->halo   ? wf_exchange_reverse_begin_halo(e, dy, dx)
                             : wf_exchange_reverse_begin(e, dy, dx));
    /* Until the end the caller may add to dx. */
    if (p->halo)
        WF_EXPECT_OK(wf_tensor_assign(dx, dx));
    WF_EXPECT_OK(wf_exchange_poll(e));
    WF_EXPECT_OK(wf_exchange_end(e));
    wf_tensor_free(slabs);
}

static void check_problem(const problem *p)
{
    const wf_beyond beyond = {.global = p->whole, .boundary = &p->b};
    wf_exchange *e = wf_exchange_new_beyond(comm, p->dtype, wf_order_default(p->whole.rank), p->have, p->need, &beyond);
    WF_EXPECT(e, "%s", wf_error_message());
    if (!e)
        return;
    wf_tensor *x = tensor_of(p->dtype, p->have[rank], 1), *dy = tensor_of(p->dtype, p->need[rank], 100 + rank);
    wf_tensor *y = wf_tensor_new(ctx, p->dtype, wf_box_shape(p->need[rank])),
              *dx = tensor_of(p->dtype, p->have[rank], 2);
    const int64_t lacks = formula_received(p->whole, &p->b, p->have[rank], p->need[rank]);
    const wf_traffic before = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_tensor_fill(y, 77));
    go_forward(p, e, x, y);
    const wf_traffic forward = wf_comm_traffic(comm);
    go_back(p, e, dy, dx);
    const wf_traffic reverse = wf_comm_traffic(comm);
    const double wanted = summed((double)lacks) * (double)wf_dtype_size(p->dtype);
    const double sent = summed((double)(forward.bytes_sent - before.bytes_sent));
    const double back = summed((double)(reverse.bytes_sent - forward.bytes_sent));
    WF_EXPECT(sent == wanted && back == wanted, "%g bytes were sent and %g sent back, the formula says %g", sent, back,
              wanted);
    WF_EXPECT(reverse.collectives - before.collectives == (wanted > 0 ? 2u : 0u), "%d collectives for %g bytes",
              (int)(reverse.collectives - before.collectives), wanted);
    check_forward(p, y);
    check_reverse(p, dx);
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_tensor_free(dx);
    wf_tensor_free(dy);
    wf_exchange_free(e);
}

static void exchanges(void)
{
    test_rng rng = {.state = 4100 + (uint64_t)size};
    for (int i = 0; i < test_samples(600); i++) {
        const problem p = random_problem(&rng);
        check_problem(&p);
    }
}

/* A halo takes the memory of two rows and two columns, each as a multiple of 16 elements; the whole need where a piece
 * lies in two slabs, as some do where a pole turns rows by half of an odd number of parts. */
static void sizes_of_slabs(void)
{
    const int64_t slabs = 2 * 80 + 2 * 16, all = 400;
    const struct {
        wf_boundary b;
        int64_t elements;
    } cases[] = {{{.edge = WF_EDGE_CONSTANT, .value = 3}, slabs},
                 {{.edge = WF_EDGE_CIRCULAR}, slabs},
                 {{.lo = {WF_EDGE_REFLECT, WF_EDGE_CONSTANT}, .hi = {WF_EDGE_REFLECT, WF_EDGE_CONSTANT}}, slabs},
                 {{.edge = WF_EDGE_CIRCULAR, .lo = {WF_EDGE_POLE}, .hi = {WF_EDGE_POLE}}, slabs},
                 {{.edge = WF_EDGE_CIRCULAR, .lo = {0, WF_EDGE_POLE}, .hi = {0, WF_EDGE_POLE}, .turned = WF_DIM(0)},
                  size % 2 ? all : slabs}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        problem p = {.whole = WF_SHAPE(4 * size, 64), .b = cases[i].b, .dtype = WF_F32, .halo = true, .in_slabs = true};
        const wf_beyond beyond = {.global = p.whole, .boundary = &p.b};
        for (int r = 0; r < size; r++) {
            p.have[r] = (wf_box){.rank = 2, .lo = {4 * r}, .hi = {4 * r + 4, 64}};
            p.need[r] = (wf_box){.rank = 2, .lo = {4 * r - 1, -1}, .hi = {4 * r + 5, 65}};
        }
        wf_exchange *e = wf_exchange_new_beyond(comm, p.dtype, WF_ROW_MAJOR, p.have, p.need, &beyond);
        const wf_slabs *held = wf_exchange_slabs(e);
        WF_EXPECT(held && held->elements == cases[i].elements, "case %d: slabs of %d elements, should be %d", (int)i,
                  held ? (int)held->elements : -1, (int)cases[i].elements);
        wf_exchange_free(e);
        check_problem(&p);
    }
}

/* In reverse, without its own part: what a boundary adds comes at the end, when the caller has written dx. */
static void written_meanwhile(void)
{
    const wf_boundary b = {.edge = WF_EDGE_CIRCULAR};
    const wf_beyond beyond = {.global = WF_SHAPE(4), .boundary = &b};
    wf_box have[MOST], need[MOST];
    for (int r = 0; r < size; r++) {
        have[r] = need[r] = (wf_box){.rank = 1, .hi = {r == 0 ? 4 : 0}};
        if (r == 0)
            need[r] = (wf_box){.rank = 1, .lo = {-1}, .hi = {6}};
    }
    wf_exchange *e = wf_exchange_new_beyond(comm, WF_F64, WF_ROW_MAJOR, have, need, &beyond);
    const double ones[7] = {1, 1, 1, 1, 1, 1, 1}, want[4] = {11, 11, 10, 11};
    double got[4] = {0};
    wf_tensor *dy = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(need[rank]), ones);
    wf_tensor *dx = wf_tensor_new(ctx, WF_F64, wf_box_shape(have[rank]));
    WF_EXPECT_OK(wf_exchange_reverse_begin_halo(e, dy, dx));
    WF_EXPECT_OK(wf_tensor_fill(dx, 10));
    WF_EXPECT_OK(wf_exchange_end(e));
    WF_EXPECT_OK(wf_tensor_export(dx, got, wf_tensor_bytes(dx)));
    WF_EXPECT(rank > 0 || test_distance(4, got, want) == 0, "%g %g %g %g", got[0], got[1], got[2], got[3]);
    wf_tensor_free(dy);
    wf_tensor_free(dx);
    wf_exchange_free(e);
}

/* --- halos of tensors -----------------------------------------------------------------------------------------------
 */

/* Every dimension over an axis, at random bounds: some parts are empty. */
static wf_layout random_layout(test_rng *rng, const wf_mesh *mesh, wf_shape whole)
{
    static const wf_axis axes[] = {WF_AXIS_HEIGHT, WF_AXIS_WIDTH, WF_AXIS_CHANNEL, WF_AXIS_DATA};
    wf_layout layout = {.known = true, .mesh = mesh, .global = whole, .box = wf_box_of_shape(whole)};
    int64_t bounds[MOST + 1] = {0};
    for (int i = 0; i < 4; i++) {
        const int n = wf_mesh_size(mesh, axes[i]), d = whole.rank - 1 - i;
        if (d < 0 || test_int(rng, 0, 4) == 0)
            continue;
        for (int k = 1; k <= n; k++)
            bounds[k] = k == n ? whole.dim[d] : test_int(rng, bounds[k - 1], whole.dim[d]);
        wf_layout_shard(mesh, &layout, axes[i], d, bounds);
    }
    return layout;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static wf_box need_of(const wf_layout *layout, const wf_boundary *b, const int64_t *widths)
{
    wf_box need = layout->box;
    for (int d = 0; d < need.rank; d++) {
        const int64_t length = layout->global.dim[d], lo = need.lo[d] - widths[d], hi = need.hi[d] + widths[d];
        if (need.lo[d] == need.hi[d])
            continue;
        need.lo[d] = lo < 0 && !formula_edge(b, d, false) ? 0 : lo;
        need.hi[d] = hi > length && !formula_edge(b, d, true) ? length : hi;
    }
    return need;
}

static void check_halo(const wf_layout *layout, wf_dtype dtype, wf_boundary b, const int64_t *widths)
{
    static double got[MOST_ELEMENTS];
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], i = 0, wrong = 0;
    const wf_box need = need_of(layout, &b, widths);
    wf_tensor *x = tensor_of(dtype, layout->box, 1);
    WF_EXPECT_OK(wf_tensor_set_layout(x, *layout));
    wf_tensor *y = wf_halo_exchange(layout->mesh, x, widths, b);
    WF_EXPECT(y && (wf_box_empty(layout->box) || wf_shape_equal(wf_tensor_shape(y), wf_box_shape(need))), "%s",
              wf_error_message());
    memcpy(at, need.lo, sizeof at);
    if (y && read_all(y, got) > 0)
        do {
            const int sign = formula_source(layout->global, &b, at, source);
            wrong += got[i++] != (sign ? sign * number_at(1, source, need.rank) : b.value);
        } while (box_next(need, at));
    WF_EXPECT(wrong == 0, "%s: %d of %d elements are wrong", wf_mesh_text(layout->mesh), (int)wrong, (int)i);
    wf_tensor_free(x);
    wf_tensor_free(y);
}

static void random_halo(test_rng *rng, const wf_mesh *mesh)
{
    int64_t widths[WF_MAX_RANK];
    wf_shape whole = random_shape(rng);
    const wf_dtype dtype = random_type(rng);
    const wf_boundary b = formula_random(rng, &whole, wf_dtype_is_float(dtype));
    const wf_layout layout = random_layout(rng, mesh, whole);
    for (int d = 0; d < whole.rank; d++) {
        const int64_t length = whole.dim[d];
        const int64_t most = least(formula_most(&b, d, false, length, 3), formula_most(&b, d, true, length, 3));
        widths[d] = formula_keeps(&b, d) ? 0 : test_int(rng, 0, most);
    }
    check_halo(&layout, dtype, b, widths);
}

static void halos(void)
{
    test_rng rng = {.state = 4200 + (uint64_t)size};
    for (int m = 0; m < 4; m++) {
        wf_mesh *mesh = random_mesh(comm, &rng, 2);
        for (int i = 0; i < test_samples(150); i++)
            random_halo(&rng, mesh);
        wf_mesh_close(mesh);
    }
}

/* Boundaries that differ in one thing only, of the same tensor: the mesh keeps a plan for each. */
static void kept_apart(void)
{
    static const int64_t channels[2][2] = {{0, 1}, {1, 2}};
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    const wf_shape whole = WF_SHAPE(4, 3, 2 * size);
    WF_EXPECT_OK(wf_mesh_layout(mesh, whole, (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(2)}}, &layout));
    for (wf_edge lo = WF_EDGE_DEFAULT; lo <= WF_EDGE_REPLICATE; lo++)
        for (wf_edge hi = WF_EDGE_DEFAULT; hi <= WF_EDGE_REPLICATE; hi++)
            for (int value = 0; value < 2; value++) {
                const wf_boundary b = {.lo = {lo, 0, lo}, .hi = {hi, 0, hi}, .value = value};
                check_halo(&layout, WF_F32, b, (int64_t[]){2, 1, 1});
            }
    for (int i = 0; i < 8; i++) {
        wf_boundary b = {.lo = {WF_EDGE_POLE}, .hi = {WF_EDGE_POLE}, .row_on_pole = i & 1, .n_negated = i & 2};
        b.lo[2] = b.hi[2] = WF_EDGE_CIRCULAR;
        b.negated = channels[i / 4];
        check_halo(&layout, WF_F32, b, (int64_t[]){2, 0, 1});
    }
    wf_mesh_close(mesh);
}

/* Rows of a ring go round it: what is sent is a row to either side, and nothing where one rank has all rows. Columns,
 * which are not cut, are never sent for. */
static void bytes_on_the_wire(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    WF_EXPECT_OK(
        wf_mesh_layout(mesh, WF_SHAPE(3 * size, 4), (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(0)}}, &layout));
    wf_tensor *x = tensor_of(WF_F32, layout.box, 1);
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    for (int columns = 0; columns < 2; columns++) {
        wf_comm *used = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT));
        const wf_traffic before = wf_comm_traffic(used);
        wf_tensor *y =
            wf_halo_exchange(mesh, x, (int64_t[]){!columns, columns}, (wf_boundary){.edge = WF_EDGE_CIRCULAR});
        const wf_traffic after = wf_comm_traffic(used);
        const int64_t sent = (int64_t)(after.bytes_sent - before.bytes_sent), should = size > 1 && !columns ? 32 : 0;
        WF_EXPECT(y && sent == should, "%d bytes, should be %d: %s", (int)sent, (int)should, wf_error_message());
        WF_EXPECT(after.collectives - before.collectives == (should > 0), "a collective that sends nothing");
        wf_tensor_free(y);
    }
    wf_tensor_free(x);
    wf_mesh_close(mesh);
}

static void too_far(void)
{
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_layout layout;
    WF_EXPECT_OK(
        wf_mesh_layout(mesh, WF_SHAPE(2 * size, 4), (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(0)}}, &layout));
    wf_tensor *x = tensor_of(WF_F32, layout.box, 1);
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    const int64_t most[2] = {2 * size - 1, 3}, above[2] = {2 * size, 3};
    wf_tensor *y = wf_halo_exchange(mesh, x, most, (wf_boundary){.edge = WF_EDGE_REFLECT});
    WF_EXPECT(y, "%s", wf_error_message());
    wf_tensor_free(y);
    WF_EXPECT(!wf_halo_exchange(mesh, x, above, (wf_boundary){.edge = WF_EDGE_REFLECT}) &&
                  strstr(wf_error_message(), "elements beyond the lower edge of dimension 0, which is reflect"),
              "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(!wf_halo_exchange(mesh, x, most, (wf_boundary){.edge = (wf_edge)-1}) &&
                  wf_error_code() == WF_ERR_ARGUMENT,
              "%s", wf_error_message());
    wf_error_clear();
    wf_tensor_free(x);
    wf_mesh_close(mesh);
    /* Nothing was sent, so the communicator goes on. */
    WF_EXPECT(summed(1) == size, "a sum after the errors");
}

static int run(int argc, char **argv)
{
    if (!ranks_open(test_communicator("naive")))
        return 1;
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"exchanges", exchanges},
                                               {"sizes_of_slabs", sizes_of_slabs},
                                               {"written_meanwhile", written_meanwhile},
                                               {"halos", halos},
                                               {"kept_apart", kept_apart},
                                               {"bytes_on_the_wire", bytes_on_the_wire},
                                               {"too_far", too_far},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
