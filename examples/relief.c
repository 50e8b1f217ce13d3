/* Sharpens the relief of the whole Earth: from every eighth point of each row and column to all of them. The one map is
 * cut over the ranks, each of which reads, holds and computes its own part; a band of longitudes is never trained on
 * and scores the result.
 *
 *     mpirun -np 4 relief --mesh height=2,width=2
 *
 * Any netCDF file with a field on a grid with rows on both poles will do: --data FILE --variable NAME.
 */
#include "examples/parallel.h"
#include "examples/planet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    const char *communicator, *data, *variable, *out;
    int64_t factor, channels, iterations, log_every, seed, band_from, band_to;
    double lr;
    parallel how;
} settings;

/* This rank's part of the map, rows by columns; numbers are in deviations of the whole. */
typedef struct map {
    int64_t rows, columns;
    bool south_first;
    double *area; /* of each row */
    double mean, deviation;
    wf_layout layout; /* [1,1,rows,columns] */
    float *truth, *coarse;
    wf_tensor *input, *target, *weight; /* [1,1,...] each */
} map;

typedef struct training {
    wf_comm *comm;
    const settings *s;
    map m;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
} training;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .data = "/usr/share/ferret-vis/data/etopo5.cdf",
                  .variable = "ROSE",
                  .out = "relief",
                  .factor = 8,
                  .channels = 16,
                  .iterations = 30,
                  .log_every = 5,
                  .band_from = 60,
                  .band_to = 120,
                  .lr = 3e-3,
                  .how = {.how = "spatial", .fixed = true}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, naive, flat", .text = &s.communicator},
        {"data", "FILE", "netCDF file", .text = &s.data},
        {"variable", "NAME", "of the file", .text = &s.variable},
        {"factor", "N", "every N-th row and column is given", .number = &s.factor, .most = 64, .least = 2},
        {"channels", "N", "channels of the network, where points are given", .number = &s.channels,
         .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"iterations", "N", "steps", .number = &s.iterations, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"lr", "X", "learning rate at the start; it falls along a cosine", .real = &s.lr},
        {"band-from", "N", "the band held out begins at this many degrees from the first column",
         .number = &s.band_from, .most = 359},
        {"band-to", "N", "and ends before this", .number = &s.band_to, .most = 360, .least = 1},
        {"mesh", "AXES", "ranks along axes, as height=2,width=2 (height: all)", .text = &s.how.axes},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        {"log-every", "N", "steps from line to line", .number = &s.log_every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"out", "DIR", "folder for log.jsonl and relief.png", .text = &s.out},
        {0}};
    example_options(argc, argv, "Sharpens a map of the whole Earth that is cut over all ranks of mpirun.", table);
    return s;
}

/* --- The map ------------------------------------------------------------------------------------------------------ */

static void check_map(const training *t, const wf_netcdf_info *info, const double *latitude)
{
    const settings *s = t->s;
    char complaint[256] = "";
    if (info->channels != 1 || info->times != 1)
        snprintf(complaint, sizeof complaint, "--variable %.100s: has %lld times and %lld levels: should be one map",
                 s->variable, (long long)info->times, (long long)info->channels);
    else if ((info->rows - 1) % s->factor != 0 || info->columns % s->factor != 0)
        snprintf(complaint, sizeof complaint,
                 "--factor %lld: should divide %lld rows but for the last one, and %lld columns", (long long)s->factor,
                 (long long)info->rows, (long long)info->columns);
    else if (fabs(latitude[0]) < 89.999 || fabs(latitude[info->rows - 1]) < 89.999)
        snprintf(complaint, sizeof complaint, "--variable %.100s: the first and the last row should lie on the poles",
                 s->variable);
    else if (s->band_from >= s->band_to)
        snprintf(complaint, sizeof complaint, "--band-from %lld: should be below --band-to %lld",
                 (long long)s->band_from, (long long)s->band_to);
    else if (wf_mesh_size(s->how.mesh, WF_AXIS_DATA) > 1)
        snprintf(complaint, sizeof complaint, "--mesh: there is one map: no rank can be along data");
    example_agree(t->comm, *complaint ? complaint : NULL);
}

/* The part of this rank from the file. */
static wf_tensor *map_read(training *t)
{
    wf_netcdf_info info = {0};
    wf_batch b = {0};
    map *m = &t->m;
    wf_dataset *d = wf_netcdf_dataset(wf_comm_ctx(t->comm), t->s->data, (wf_netcdf_opts){.variables = t->s->variable});
    example_check(t->comm, wf_netcdf_info_get(d, &info));
    double *latitude = calloc((size_t)info.rows, sizeof *latitude);
    m->area = calloc((size_t)info.rows, sizeof *m->area);
    if (!latitude || !m->area)
        example_abort("no memory for %lld rows", (long long)info.rows);
    example_check(t->comm, wf_netcdf_coordinate(d, info.y, info.rows, latitude));
    check_map(t, &info, latitude);
    planet_area(info.rows, latitude, m->area);
    m->rows = info.rows;
    m->columns = info.columns;
    m->south_first = latitude[0] < latitude[info.rows - 1];
    free(latitude);
    d = wf_mesh_scatter_dataset(t->s->how.mesh, d, (wf_scatter_opts){.each_reads = true});
    wf_iter *iter = wf_batches(d, (wf_batch_opts){.size = 1, .sharded = true});
    example_check(t->comm, wf_iter_next(iter, &b));
    m->layout = wf_tensor_layout(b.x);
    wf_tensor *x = wf_tensor_redistribute(b.x, m->layout); /* the iterator's own goes with it */
    example_check(t->comm, wf_check(x));
    wf_iter_free(iter);
    return x;
}

static float *export_floats(const wf_tensor *x)
{
    float *host = calloc((size_t)wf_tensor_count(x) + 1, sizeof *host);
    if (!host)
        example_abort("no memory for %lld elements", (long long)wf_tensor_count(x));
    WF_MUST(wf_tensor_export(x, host, wf_tensor_bytes(x)));
    return host;
}

/* Sums over the whole map, of parts whose rows are summed one by one. */
static void sum_map(const training *t, double *sums, int n)
{
    WF_MUST(wf_allreduce_f64(t->comm, sums, n, WF_SUM));
}

/* Mean and deviation of the whole, by area; the part becomes numbers of these. */
static void normalise_map(training *t)
{
    map *m = &t->m;
    const wf_box *box = &m->layout.box;
    const int64_t columns = box->hi[3] - box->lo[3], count = (box->hi[2] - box->lo[2]) * columns;
    double sums[2] = {0};
    for (int64_t i = 0; i < count; i++) {
        sums[0] += m->area[box->lo[2] + i / columns] * (double)m->truth[i];
        sums[1] += m->area[box->lo[2] + i / columns] * (double)m->truth[i] * (double)m->truth[i];
    }
    sum_map(t, sums, 2);
    const double all = (double)(m->rows * m->columns);
    m->mean = sums[0] / all;
    m->deviation = sqrt(sums[1] / all - m->mean * m->mean);
    m->deviation = m->deviation > 0 ? m->deviation : 1;
}

/* Bilinear between the points that are given. `wide` has `factor` rows and columns more on each side than this rank's
 * part, round the globe, but for rows beyond the poles, so the given points around each point are in it. */
static void interpolate(const training *t, const float *wide, int64_t first_row, int64_t width, float *to)
{
    const wf_box *box = &t->m.layout.box;
    const int64_t f = t->s->factor, last = t->m.rows - 1;
    for (int64_t r = box->lo[2]; r < box->hi[2]; r++) {
        const int64_t up = r / f * f, down = up < last ? up + f : up;
        const float v = (float)(r - up) / (float)f;
        for (int64_t c = box->lo[3]; c < box->hi[3]; c++) {
            const int64_t left = c / f * f - box->lo[3] + f; /* in `wide` */
            const float h = (float)(c % f) / (float)f;
            const float *a = wide + (up - first_row) * width + left, *b = wide + (down - first_row) * width + left;
            *to++ = (1 - v) * ((1 - h) * a[0] + h * a[f]) + v * ((1 - h) * b[0] + h * b[f]);
        }
    }
}

static wf_tensor *tensor_of(const training *t, const float *host)
{
    const map *m = &t->m;
    wf_tensor *x = wf_tensor_new(wf_comm_ctx(t->comm), WF_F32, wf_box_shape(m->layout.box));
    WF_MUST(wf_check(x));
    WF_MUST(wf_tensor_set_layout(x, m->layout));
    WF_MUST(wf_tensor_import(x, host, wf_tensor_bytes(x)));
    return x;
}

static bool in_band(const training *t, int64_t column)
{
    const double degree = 360.0 * (double)column / (double)t->m.columns;
    return degree >= (double)t->s->band_from && degree < (double)t->s->band_to;
}

/* The input of the network, interpolated heights, and its targets. */
static void tensors_open(training *t)
{
    map *m = &t->m;
    const wf_box *box = &m->layout.box;
    const int64_t columns = box->hi[3] - box->lo[3], count = (box->hi[2] - box->lo[2]) * columns;
    float *x = calloc((size_t)count + 1, sizeof *x), *target = calloc((size_t)count + 1, sizeof *target);
    float *weight = calloc((size_t)count + 1, sizeof *weight);
    if (!x || !target || !weight)
        example_abort("no memory for %lld points", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = box->lo[2] + i / columns, column = box->lo[3] + i % columns;
        x[i] = (float)(((double)m->coarse[i] - m->mean) / m->deviation);
        target[i] = (float)(((double)m->truth[i] - (double)m->coarse[i]) / m->deviation);
        weight[i] = in_band(t, column) ? 0 : (float)m->area[row];
    }
    m->input = tensor_of(t, x);
    m->target = tensor_of(t, target);
    m->weight = tensor_of(t, weight);
    free(x);
    free(target);
    free(weight);
}

static void map_open(training *t)
{
    map *m = &t->m;
    const int64_t f = t->s->factor, widths[4] = {0, 0, f, f};
    wf_tensor *x = map_read(t);
    m->truth = export_floats(x);
    normalise_map(t);
    wf_tensor *wide = wf_halo_exchange(t->s->how.mesh, x, widths,
                                       (wf_boundary){.lo = {[3] = WF_EDGE_CIRCULAR}, .hi = {[3] = WF_EDGE_CIRCULAR}});
    example_check(t->comm, wf_check(wide));
    float *host = export_floats(wide);
    m->coarse = calloc((size_t)wf_tensor_count(x) + 1, sizeof *m->coarse);
    if (!m->coarse)
        example_abort("no memory for %lld points", (long long)wf_tensor_count(x));
    const int64_t first = m->layout.box.lo[2] > f ? m->layout.box.lo[2] - f : 0;
    interpolate(t, host, first, wf_tensor_shape(wide).dim[3], m->coarse);
    free(host);
    wf_tensor_free(wide);
    wf_tensor_free(x);
    tensors_open(t);
}

static void map_close(map *m)
{
    free(m->area);
    free(m->truth);
    free(m->coarse);
    wf_tensor_free(m->input);
    wf_tensor_free(m->target);
    wf_tensor_free(m->weight);
}

/* --- Network ------------------------------------------------------------------------------------------------------ */

/* Heights of the given points, and how far each is above the mean of those around it, which is small beside heights. */
static wf_var *forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *given = wf_apply(wf_layer_child(self, "given"), x);
    wf_var *above = wf_sub(given, wf_apply(wf_layer_child(self, "around"), given));
    wf_var *seen = wf_concat(2, (wf_var *[]){given, wf_scale(above, 20)}, 1);
    wf_var *found = wf_apply(wf_layer_child(self, "deep"), seen);
    return wf_apply(wf_layer_child(self, "finer"), wf_concat(2, (wf_var *[]){seen, found}, 1));
}

/* [1,1,H,W] -> [1,1,H,W], what bilinear heights lack; it begins as nothing. It computes where points are given. A
 * transposed convolution, whose windows reach from one given point to the next, makes all points of these. */
static wf_layer *network(wf_ctx *ctx, const settings *s)
{
    const int64_t n = s->channels, f = s->factor;
    const wf_boundary globe = planet_globe(true, 0, NULL);
    const wf_init he = {WF_INIT_HE_NORMAL, 0, 0}, zero = {WF_INIT_CONSTANT, 0, 0};
    wf_conv_opts first = {
        .in = 2, .out = n, .kernel = 3, .pad = 1, .act = WF_ACT_RELU, .w_init = he, .boundary = globe};
    wf_conv_opts next = first;
    next.in = n;
    const wf_conv_opts finer = {.in = n + 2,
                                .out = 1,
                                .kernel = 2 * f - 1,
                                .stride = f,
                                .pad_lo_nd = {f - 1, f - 1},
                                .pad_hi_nd = {f - 1, 0}, /* no column is on both ends */
                                .no_bias = true,
                                .w_init = zero,
                                .boundary = globe};
    wf_layer *self = wf_module(ctx, forward, NULL);
    wf_layer *deep = wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, first), wf_conv2d(ctx, next), wf_conv2d(ctx, next)));
    const wf_pool_opts around = {.kernel = 3, .stride = 1, .pad = 1, .boundary = globe};
    bool good = wf_module_add(self, "given", wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 1, .stride = f}));
    good = wf_module_add(self, "around", wf_avg_pool2d(ctx, around)) && good;
    good = wf_module_add(self, "deep", deep) && good;
    good = wf_module_add(self, "finer", wf_conv_transpose2d(ctx, finer)) && good;
    return good ? self : NULL;
}

/* Cut as the map is, also if the last layer would cut its rows elsewhere. */
static wf_var *found_of(const training *t)
{
    return wf_redistribute(wf_apply(t->model, wf_input(t->tape, t->m.input)), t->m.layout);
}

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_var *difference = wf_sub(found_of(t), wf_input(t->tape, t->m.target));
    wf_var *loss = wf_mean(wf_mul(wf_input(t->tape, t->m.weight), wf_mul(difference, difference)));
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, 1));
    wf_trainer_add_samples(trainer, 1);
    return wf_tape_reset(t->tape);
}

static wf_status look(wf_trainer *trainer, void *user)
{
    wf_trainer_print(trainer, "iteration %lld  loss %.6g", (long long)wf_trainer_iteration(trainer),
                     wf_trainer_mean(trainer, "loss"));
    return WF_OK;
}

/* --- Scores ------------------------------------------------------------------------------------------------------- */

/* Draws bilinear heights and the truth, and below what bilinear lacks and what is left of it. */
static void draw_band(const training *t, const float *found)
{
    const map *m = &t->m;
    const int64_t columns = m->columns, count = m->rows * columns;
    float *error = calloc((size_t)count + 1, sizeof *error), *truth = calloc((size_t)count + 1, sizeof *truth);
    wf_var *const part[2] = {wf_input(t->tape, m->input), wf_input(t->tape, m->target)};
    wf_var *whole = wf_unshard(wf_concat(2, part, 1));
    WF_MUST(wf_check(whole));
    float *given = export_floats(wf_value(whole));
    if (!error || !truth)
        example_abort("no memory for a picture");
    for (int64_t i = 0; i < count; i++) {
        truth[i] = given[i] + given[count + i];
        error[i] = found[i] - given[count + i];
    }
    const planet_panel panel[4] = {{given, 2}, {truth, 2}, {given + count, 0.3}, {error, 0.3}};
    if (wf_comm_rank(t->comm) == 0)
        planet_picture(wf_comm_ctx(t->comm), example_path(t->s->out, "relief.png"), 2, 2, panel, m->rows, columns,
                       m->south_first);
    free(given);
    free(error);
    free(truth);
}

static void tell_end(const training *t)
{
    const map *m = &t->m;
    const wf_box *box = &m->layout.box;
    const int64_t columns = box->hi[3] - box->lo[3], count = (box->hi[2] - box->lo[2]) * columns;
    double sums[6] = {0}; /* bilinear, network, weight; where it is trained, and in the band */
    double peak = (double)wf_ctx_memory(wf_comm_ctx(t->comm)).bytes_peak;
    WF_MUST(wf_allreduce_f64(t->comm, &peak, 1, WF_MAX));
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    wf_var *found = found_of(t);
    WF_MUST(wf_check(found));
    float *y = export_floats(wf_value(found));
    for (int64_t i = 0; i < count; i++) {
        double *to = sums + (in_band(t, box->lo[3] + i % columns) ? 3 : 0);
        const double lacks = (double)m->truth[i] - (double)m->coarse[i], area = m->area[box->lo[2] + i / columns];
        const double left = lacks - (double)y[i] * m->deviation;
        to[0] += area * lacks * lacks;
        to[1] += area * left * left;
        to[2] += area;
    }
    free(y);
    sum_map(t, sums, 6);
    wf_var *whole = wf_unshard(found);
    WF_MUST(wf_check(whole));
    float *all = export_floats(wf_value(whole));
    draw_band(t, all);
    free(all);
    WF_MUST(wf_tape_reset(t->tape));
    if (wf_comm_rank(t->comm) != 0)
        return;
    printf("\nRMSE, in units of the data   trained on   held out (%lld to %lld degrees from the first column)\n",
           (long long)t->s->band_from, (long long)t->s->band_to);
    printf("bilinear                     %10.4f   %10.4f\n", sqrt(sums[0] / sums[2]), sqrt(sums[3] / sums[5]));
    printf("network                      %10.4f   %10.4f\n", sqrt(sums[1] / sums[2]), sqrt(sums[4] / sums[5]));
    printf("memory of the largest rank in training: %.1f MiB\n", peak / (1 << 20));
    printf("Look at %s/relief.png: bilinear heights and the truth, what bilinear lacks and what is left of it.\n",
           t->s->out);
}

/* --- The whole ---------------------------------------------------------------------------------------------------- */

static wf_trainer *trainer_new(training *t)
{
    const settings *s = t->s;
    example_folder(t->comm, s->out);
    const wf_when now = {.iterations = s->log_every, .end = true};
    wf_trainer *trainer = wf_trainer_new(t->comm, train_step, t,
                                         (wf_trainer_opts){.iterations = s->iterations,
                                                           .report = now,
                                                           .log = example_path(s->out, "log.jsonl"),
                                                           .progress = STDOUT_FILENO,
                                                           .unit = "maps",
                                                           .finite = true});
    const wf_when reported = {.iterations = s->log_every, .end = true, .after_report = true};
    WF_MUST(wf_trainer_add_hook(trainer, "look", look, t, reported));
    return trainer;
}

int main(int argc, char **argv)
{
    settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    parallel_open(&s.how, comm);

    training t = {.comm = comm, .s = &s, .tape = wf_tape_new(wf_comm_ctx(comm))};
    map_open(&t);
    t.model = network(wf_comm_ctx(comm), &s);
    parallel_model(&s.how, comm, t.model);
    wf_optim *adam = wf_adam(t.model, (wf_adam_opts){.lr = s.lr});
    adam = wf_lr_schedule(adam, (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = s.iterations});
    t.optim = parallel_optim(&s.how, adam);
    example_check(comm, wf_check(t.optim));
    wf_trainer *trainer = trainer_new(&t);
    example_check(comm, wf_trainer_run(trainer));
    tell_end(&t);

    wf_trainer_free(trainer);
    map_close(&t.m);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
