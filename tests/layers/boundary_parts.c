/* Layers whose inputs go on beyond the edges, of parts on random meshes, against the serial layer on the whole: output
 * bit for bit where channels are whole, gradients, and the bytes that the formula counts; what moves nothing between
 * ranks sends nothing. */
#include "core/profile_author.h"
#include "tests/layers/boundary_question.h"
#include "tests/world.h"

static double summed(double v)
{
    WF_EXPECT_OK(wf_allreduce_f64(run.comm, &v, 1, WF_SUM));
    return v;
}

/* Sums over all sets of axes: their communicators carry everything that a layer sends. */
static wf_traffic traffic_of(const wf_mesh *mesh)
{
    wf_traffic all = {0};
    unsigned split = 0;
    for (int a = 0; a < WF_AXES; a++)
        split |= wf_mesh_size(mesh, (wf_axis)a) > 1 ? 1u << a : 0;
    for (unsigned axes = 1; axes < 1u << WF_AXES; axes++) {
        const wf_traffic t = (axes & split) == axes ? wf_comm_traffic(wf_mesh_comm(mesh, axes)) : (wf_traffic){0};
        all.bytes_sent += t.bytes_sent;
        all.collectives += t.collectives;
    }
    return all;
}

/* Elements that this rank's outputs read and it lacks, each once: corners beyond the edges of rows that come are made
 * of these. */
static int64_t formula_received(const geometry *g, const wf_layout *x, const wf_layout *y)
{
    const wf_boundary *b = boundary_of((geometry *)g);
    wf_box need = x->box;
    int64_t at[WF_MAX_RANK], source[WF_MAX_RANK], n = 0;
    for (int d = 0; d < g->nd; d++) {
        const bool cut = wf_layout_is_sharded(x, 2 + d);
        const wf_range r = far_reads(g, d, cut ? y->box.lo[2 + d] : 0, cut ? y->box.hi[2 + d] : y->global.dim[2 + d]);
        need.lo[2 + d] = cut || r.lo < 0 ? r.lo : 0;
        need.hi[2 + d] = cut || r.hi > g->length[d] ? r.hi : g->length[d];
    }
    if (wf_box_empty(need))
        return 0;
    bool *seen = formula_none_seen(x->global);
    memcpy(at, need.lo, sizeof at);
    for (;;) {
        bool inside = formula_source(x->global, b, at, source) != 0;
        if (inside) {
            bool own = true;
            for (int d = 2; d < need.rank; d++)
                own = own && source[d] >= x->box.lo[d] && source[d] < x->box.hi[d];
            n += !own && formula_notes(x->global, source, seen);
        }
        int d = need.rank - 1;
        while (d >= 0 && ++at[d] == need.hi[d]) {
            at[d] = need.lo[d];
            d--;
        }
        if (d < 0)
            break;
    }
    free(seen);
    return n;
}

/* Some output reads beyond an edge. Where none does, convolutions may compute gradients of inputs from a halo of dy. */
static bool reaches(const geometry *g)
{
    for (int d = 0; d < g->nd; d++) {
        const wf_range r = far_reads(g, d, 0, outputs_of(g, d));
        if (r.lo < 0 || r.hi > g->length[d])
            return true;
    }
    return g->kind > TRANSPOSE;
}

/* A layer in both forms. */
typedef struct subject {
    char name[640];
    const geometry *g;
    const wf_mesh *mesh;
    wf_layout layout;
    wf_layer *serial, *parts;
} subject;

static void expect_param(const subject *s, wf_param *serial, wf_param *mine)
{
    wf_tensor *whole = wf_param_grad(serial), *view = wf_tensor_view(whole, mine->box);
    wf_tensor *seen = wf_tensor_copy(wf_param_grad(mine), run.dtype, serial->order);
    wf_tensor *should = wf_tensor_copy(view, run.dtype, serial->order);
    WF_EXPECT_OK(wf_allreduce(wf_mesh_comm(s->mesh, mine->axes), seen, seen, WF_SUM));
    expect_equal(s->name, serial->name, seen, should, whole, false);
    wf_tensor_free(view);
    wf_tensor_free(should);
    wf_tensor_free(seen);
}

static void expect_gradients(const subject *s, wf_var *a, wf_var *b, wf_var *y, wf_var *z, test_rng *rng, double bytes)
{
    const bool whole = wf_mesh_size(s->mesh, WF_AXIS_CHANNEL) == 1;
    wf_tensor *dy = random_tensor(wf_var_shape(y), rng), *dz = part_of(dy, wf_tensor_layout(wf_value(z)));
    wf_tensor *kept = wf_keep(z);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    const wf_traffic before = traffic_of(s->mesh);
    WF_EXPECT_OK(wf_backward_from(z, dz));
    const double sent = summed((double)(traffic_of(s->mesh).bytes_sent - before.bytes_sent));
    WF_EXPECT(!whole || !reaches(s->g) || sent == bytes, "%s: %g bytes were sent back, should be %g", s->name, sent,
              bytes);
    wf_tensor *dx = part_of(wf_grad(a), s->layout);
    expect_equal(s->name, "dx", wf_grad(b), dx, wf_grad(a), false);
    for (int i = 0; i < s->serial->n_params; i++)
        expect_param(s, s->serial->params[i], s->parts->params[i]);
    if (is_linear(s->g) && boundary_of((geometry *)s->g)->value == 0)
        expect_adjoint(s->name, wf_value(b), wf_grad(b), kept, dz);
    wf_tensor_free(kept);
    wf_tensor_free(dx);
    wf_tensor_free(dy);
    wf_tensor_free(dz);
}

static void compare(const subject *s, test_rng *rng)
{
    const bool whole = wf_mesh_size(s->mesh, WF_AXIS_CHANNEL) == 1;
    wf_tensor *x = random_tensor(s->layout.global, rng), *part = part_of(x, s->layout);
    wf_var *a = wf_leaf(run.tape, x), *b = wf_leaf(run.tape, part);
    const wf_traffic before = traffic_of(s->mesh);
    wf_var *y = wf_apply(s->serial, a), *z = wf_apply(s->parts, b);
    WF_EXPECT(y && z, "%s: %s", s->name, wf_error_trail());
    const wf_traffic after = traffic_of(s->mesh);
    const double sent = summed((double)(after.bytes_sent - before.bytes_sent));
    if (y && z) {
        const wf_layout out = wf_tensor_layout(wf_value(z));
        wf_tensor *should = part_of(wf_value(y), out);
        expect_equal(s->name, "y", wf_value(z), should, wf_value(y), whole);
        const double bytes = 8 * summed((double)formula_received(s->g, &s->layout, &out));
        WF_EXPECT(!whole || sent == bytes, "%s: %g bytes were sent, should be %g", s->name, sent, bytes);
        WF_EXPECT(!whole || bytes > 0 || after.collectives == before.collectives, "%s: a collective for no bytes",
                  s->name);
        run.added += sent > 0;
        expect_gradients(s, a, b, y, z, rng, bytes);
        wf_tensor_free(should);
    }
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_tensor_free(part);
}

/* `channels`: split over ranks, where there are several. */
static wf_mesh_opts draw_grid(const geometry *g, bool channels, test_rng *rng)
{
    const int size = wf_comm_size(run.comm);
    for (;;) {
        const wf_mesh_opts grid = {.data = (int)test_int(rng, 1, 2),
                                   .channel = channels && size > 1 ? (int)test_int(rng, 2, size) : 1,
                                   .depth = g->nd > 2 ? (int)test_int(rng, 1, size) : 1,
                                   .height = g->nd > 1 ? (int)test_int(rng, 1, size) : 1,
                                   .width = (int)test_int(rng, 1, size)};
        if (grid.data * grid.channel * grid.depth * grid.height * grid.width == size)
            return grid;
    }
}

static wf_layer *layer_on(const wf_mesh *mesh, const geometry *g)
{
    static wf_layer *(*const conv[2][2])(const wf_mesh *, wf_conv_opts) = {
        {wf_mesh_conv, wf_mesh_conv_transpose}, {wf_channel_conv, wf_channel_conv_transpose}};
    const bool pixels =
        wf_mesh_size(mesh, WF_AXIS_DEPTH) * wf_mesh_size(mesh, WF_AXIS_HEIGHT) * wf_mesh_size(mesh, WF_AXIS_WIDTH) > 1;
    if (g->kind > TRANSPOSE || wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1)
        return spatial_layer(mesh, g);
    return conv[!pixels][g->kind](mesh, conv_opts(g));
}

/* The serial layer, which wf_parallelize has made one of parts. */
static wf_layer *parallelized(const wf_mesh *mesh, const geometry *g)
{
    wf_layer *layer = serial_layer(g);
    WF_EXPECT_OK(wf_parallelize(layer, mesh, WF_PARALLEL_SPATIAL));
    return layer;
}

static void check(geometry *g, wf_mesh_opts grid, wf_layer *(*make)(const wf_mesh *, const geometry *), test_rng *rng)
{
    subject s = {.g = g, .mesh = mesh_of(grid)};
    wf_boundary *b = boundary_of(g);
    /* Channels are enough for every rank of their axis. */
    wf_conv_opts *o = &g->conv;
    const int64_t least = (grid.channel + o->groups - 1) / o->groups;
    if (grid.channel > 1) {
        o->in = o->groups * (least + test_int(rng, 0, 2));
        o->out = o->groups * (least + test_int(rng, 0, 3));
        o->form = o->groups > 1 ? WF_FORM_AUTO : (wf_form)test_int(rng, WF_FORM_AUTO, WF_FORM_BOTH);
    }
    b->n_negated = b->n_negated > 1 && o->in < 3 ? 1 : b->n_negated;
    describe(s.name, sizeof s.name, g, grid);
    for (int d = 2; d < 2 + g->nd; d++)
        snprintf(s.name + strlen(s.name), sizeof s.name - strlen(s.name), " %s %s",
                 wf_edge_name(formula_edge(b, d, false)), wf_edge_name(formula_edge(b, d, true)));
    snprintf(s.name + strlen(s.name), sizeof s.name - strlen(s.name), " turned %d row %d signs %d groups %d", b->turned,
             b->row_on_pole, b->n_negated, (int)o->groups);
    s.layout = random_layout(s.mesh, whole_of(g), (held)test_int(rng, 0, HELDS - 1), rng);
    s.serial = serial_layer(g);
    s.parts = make(s.mesh, g);
    WF_EXPECT(s.serial && s.parts, "%s: %s", s.name, wf_error_trail());
    if (wf_layer_named(s.parts, "m") && wf_layer_named(s.serial, "m"))
        compare(&s, rng);
    wf_layer_free(s.serial);
    wf_layer_free(s.parts);
}

static void parts(void)
{
    const char *text = getenv("EQUIV_SEED");
    open_run("ref", WF_F64, 1e-12);
    test_rng rng = {.state = text ? strtoull(text, NULL, 10) : 20261124 + (uint64_t)wf_comm_size(run.comm)};
    for (int i = 0; i < test_samples(340); i++) {
        geometry g = draw_question((kind)(i % (UPSAMPLE + 1)), &rng);
        while (!question_holds(&g)) /* an error of one application ends the communicator: see `refused` */
            g = draw_question(g.kind, &rng);
        check(&g, draw_grid(&g, i % 3 == 0, &rng), layer_on, &rng);
    }
    WF_EXPECT(wf_comm_size(run.comm) == 1 || run.added > 0, "nothing was sent");
    close_run();
}

/* Parts large enough for rows and samples of their own. */
static void large(void)
{
    static const geometry list[] = {
        {"ring", CONV, 2, 2, {192, 66}, CONV_OF(2, 6, 3, 1, 1, PAD(1), .boundary = {.edge = WF_EDGE_CIRCULAR})},
        {"mirror", CONV, 2, 1, {190, 67}, CONV_OF(2, 6, 5, 1, 1, PAD(2), .boundary = {.edge = WF_EDGE_REFLECT})},
        {"globe",
         CONV,
         2,
         2,
         {192, 66},
         CONV_OF(2, 6, 3, 1, 1, PAD(1), .boundary = {.edge = WF_EDGE_CIRCULAR, .lo[2] = WF_EDGE_POLE})}};
    open_run("ref", WF_F64, 1e-12);
    test_rng rng = {.state = 6};
    const int size = wf_comm_size(run.comm);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        geometry g = list[i];
        g.conv.groups = 1;
        check(&g, (wf_mesh_opts){.height = size}, i > 0 ? layer_on : parallelized, &rng);
        check(&g, (wf_mesh_opts){.width = size}, parallelized, &rng);
    }
    close_run();
}

/* Bytes that a kernel has read and written, or its operations. */
static double profiled(const char *kernel, bool operations)
{
    const wf_profile_row *row;
    double sum = 0;
    for (int64_t n = wf_profile_rows(run.ctx->profile, &row), i = 0; i < n; i++)
        if (strcmp(row[i].name, kernel) == 0)
            sum += operations ? row[i].flops : row[i].bytes;
    return sum;
}

/* What a convolution copies forward and backward, as parts of this rank's image, and the operations for gradients of
 * its inputs as a part of those for gradients of its filter. */
static void profile_conv(wf_boundary boundary, double copied[2], double *again)
{
    const int size = wf_comm_size(run.comm);
    const wf_shape whole = WF_SHAPE(1, 1, 256, 160);
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.height = size});
    const wf_conv_opts o = {.in = 1, .out = 1, .kernel = 3, .pad = 1, .boundary = boundary};
    wf_layer *layer = wf_layer_named(size > 1 ? wf_mesh_conv2d(mesh, o) : wf_conv2d(run.ctx, o), "m");
    test_rng rng = {.state = 9};
    wf_tensor *x = random_tensor(whole, &rng), *part = part_of(x, random_layout(mesh, whole, HELD_WHOLE, &rng));
    wf_var *leaf = wf_leaf(run.tape, size > 1 ? part : x);
    const double image = 2.0 * 8 * 256 * 160 / size;
    WF_EXPECT_OK(wf_profile_begin(run.ctx, 0));
    wf_var *y = wf_apply(layer, leaf);
    copied[0] = profiled("copy", false) / image;
    WF_EXPECT_OK(wf_backward_from(y, wf_value(leaf)));
    copied[1] = profiled("copy", false) / image - copied[0];
    *again = profiled("conv_backward_data", true) / profiled("conv_backward_filter", true);
    wf_profile *profile = run.ctx->profile;
    wf_profile_end(profile);
    wf_profile_free(profile);
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_tensor_free(part);
    wf_layer_free(layer);
}

/* In neither direction is this rank's part of the image copied: what is copied, messages included, is a frame of it.
 * Parts of two ranks or one are large enough for that. No gradient is computed twice but for the frame, also where a
 * pole turns rows so that a piece lies in two slabs, which it does on three ranks and on six. */
static void copies(void)
{
    static const wf_boundary list[] = {
        {.edge = WF_EDGE_CIRCULAR},
        {.edge = WF_EDGE_CONSTANT, .value = 2},
        {.edge = WF_EDGE_CIRCULAR, .lo[3] = WF_EDGE_POLE, .hi[3] = WF_EDGE_POLE, .turned = WF_DIM(2)}};
    open_run("ref", WF_F64, 1e-12);
    for (int i = 0; i < 3; i++) {
        double copied[2], again;
        profile_conv(list[i], copied, &again);
        for (int back = 0; back < 2 && wf_comm_size(run.comm) <= 2; back++)
            WF_EXPECT(copied[back] > 0 && copied[back] < 0.4, "boundary %d copies %g of the image, back %d", i,
                      copied[back], back);
        WF_EXPECT(again > 0.9 && again < 1.5, "boundary %d: gradients of inputs are computed %g times", i, again);
    }
    close_run();
}

/* A boundary that is not defined so far is one error on all ranks, also on those that do not reach beyond it. */
static void refused(void)
{
    open_run("ref", WF_F64, 1e-12);
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.height = wf_comm_size(run.comm)});
    wf_layer *layer = wf_spatial_conv2d(
        mesh, (wf_conv_opts){.in = 1, .out = 1, .kernel = 9, .pad = 8, .boundary = {.edge = WF_EDGE_REFLECT}});
    test_rng rng = {.state = 5};
    wf_tensor *x = random_tensor(WF_SHAPE(1, 1, 8, 9), &rng);
    wf_tensor *part = part_of(x, random_layout(mesh, WF_SHAPE(1, 1, 8, 9), HELD_WHOLE, &rng));
    WF_EXPECT_OK(wf_barrier(run.comm));
    WF_EXPECT(!wf_apply(layer, wf_leaf(run.tape, part)) && wf_error_code() == WF_ERR_SHAPE, "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_tensor_free(part);
    wf_layer_free(layer);
    for (int i = 0; i < run.n; i++)
        wf_mesh_close(run.mesh[i]);
    wf_tape_free(run.tape);
    wf_comm_close(run.comm); /* dead, on more than one rank */
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"parts", parts}, {"large", large}, {"copies", copies}, {"refused", refused}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
