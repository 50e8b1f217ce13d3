/* Forecasts next month's winds over the whole Earth from those of the months before, on a globe without a seam:
 * circular along longitude, across the poles along latitude. The ranks share each map; a rank reads and holds its own
 * part.
 *
 *     mpirun -np 4 winds --mesh height=2,width=2
 *
 * Any netCDF file with fields on such a grid will do: --data FILE --variables NAMES. Two channels are taken for the
 * components of a wind, whose signs change across a pole, unless --scalars says otherwise.
 */
#include "examples/parallel.h"
#include "examples/planet.h"
#include "examples/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CHANNELS = 64, BESIDE = 2 }; /* columns on either side of the seam */

typedef struct settings {
    const char *communicator, *data, *variables, *edge, *out;
    bool circular; /* of --edge */
    bool scalars;
    int64_t inputs, steps, held_out, period, channels, batch, iterations, log_every, seed;
    double lr, decay;
    parallel how;
} settings;

/* Numbers that every rank has. */
typedef struct grid {
    int64_t times, channels, rows, columns, trained; /* months [0, trained) are trained on */
    bool south_first, on_poles;
    double *area; /* of each row */
    double deviation[MOST_CHANNELS];
} grid;

typedef struct training {
    wf_comm *comm;
    const settings *s;
    grid g;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *batches;
    wf_tensor *area; /* [batch,channels,rows,columns] of this rank's part */
    curves curves;
} training;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .data = "/usr/share/ferret-vis/data/monthly_navy_winds.cdf",
                  .variables = "UWND,VWND",
                  .edge = "globe",
                  .out = "winds",
                  .inputs = 3,
                  .steps = 3,
                  .held_out = 24,
                  .period = 12,
                  .channels = 16,
                  .batch = 8,
                  .iterations = 200,
                  .log_every = 20,
                  .lr = 2e-3,
                  .decay = 0.1,
                  .how = {.how = "spatial", .fixed = true}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, naive, flat", .text = &s.communicator},
        {"data", "FILE", "netCDF file", .text = &s.data},
        {"variables", "NAMES", "of the file, with commas between them", .text = &s.variables},
        {"scalars", NULL, "two channels are no components of a wind, whose signs change across a pole",
         .flag = &s.scalars},
        {"edge", "HOW", "globe: circular and across the poles; or zeros", .text = &s.edge},
        {"inputs", "N", "months that a forecast sees", .number = &s.inputs, .most = 64, .least = 1},
        {"steps", "N", "months ahead, each forecast from the one before", .number = &s.steps, .most = 64, .least = 1},
        {"held-out", "N", "last months, which are forecast and never trained on", .number = &s.held_out,
         .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"period", "N", "times of a year", .number = &s.period, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"channels", "N", "channels of the network", .number = &s.channels, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"batch", "N", "samples in a step, over all ranks", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"iterations", "N", "steps", .number = &s.iterations, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"lr", "X", "learning rate at the start; it falls along a cosine", .real = &s.lr},
        {"decay", "X", "weight decay; 0: none", .real = &s.decay, .zero = true},
        {"mesh", "AXES", "ranks along axes, as height=2,width=2; data takes the rest (height: all)",
         .text = &s.how.axes},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        {"log-every", "N", "steps from line to line", .number = &s.log_every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"out", "DIR", "folder for table.txt, log.jsonl and pictures", .text = &s.out},
        {0}};
    example_options(argc, argv, "Forecasts winds over the whole Earth, on maps that all ranks of mpirun share.", table);
    return s;
}

static void check_settings(wf_comm *comm, settings *s)
{
    char complaint[256] = "";
    s->circular = strcmp(s->edge, "globe") == 0;
    if (!s->circular && strcmp(s->edge, "zeros") != 0)
        snprintf(complaint, sizeof complaint, "--edge %.160s: should be globe or zeros", s->edge);
    example_agree(comm, *complaint ? complaint : NULL);
}

/* --- Data --------------------------------------------------------------------------------------------------------- */

/* Samples of `frames` months whose channels are values, masks and climatology of each. */
static wf_dataset *fields_open(const training *t, int64_t frames)
{
    const settings *s = t->s;
    wf_dataset *d = wf_netcdf_dataset(wf_comm_ctx(t->comm), s->data,
                                      (wf_netcdf_opts){.variables = s->variables, .frames = frames, .mask = true});
    example_check(t->comm, wf_check(d));
    /* Whole years, of the months that are trained on. */
    const wf_climatology_opts year = {
        .period = s->period, .last = t->g.trained / s->period * s->period, .channels = true};
    example_check(t->comm, wf_netcdf_normalise(t->comm, d, year));
    return d;
}

/* Batches of the samples whose first month is in [first, last). */
static wf_iter *batches_open(const training *t, int64_t frames, int64_t first, int64_t last, bool trains)
{
    const int64_t places = wf_mesh_size(t->s->how.mesh, WF_AXIS_DATA), count = last - first;
    int64_t *index = calloc((size_t)count + 1, sizeof *index);
    if (!index)
        example_abort("no memory for %lld samples", (long long)count);
    for (int64_t i = 0; i < count; i++)
        index[i] = first + i;
    wf_dataset *d = wf_subset(fields_open(t, frames), count, index);
    free(index);
    d = wf_mesh_scatter_dataset(t->s->how.mesh, d, (wf_scatter_opts){.shuffle = trains, .each_reads = true});
    wf_iter *iter = wf_batches(d, (wf_batch_opts){.size = t->s->batch / places, .drop_last = trains, .sharded = true});
    example_check(t->comm, wf_check(iter));
    return iter;
}

static void grid_open(training *t)
{
    const settings *s = t->s;
    wf_netcdf_info info = {0};
    grid *g = &t->g;
    char complaint[256] = "";
    wf_dataset *d = wf_netcdf_dataset(wf_comm_ctx(t->comm), s->data, (wf_netcdf_opts){.variables = s->variables});
    example_check(t->comm, wf_netcdf_info_get(d, &info));
    double *latitude = calloc((size_t)info.rows, sizeof *latitude);
    g->area = calloc((size_t)info.rows, sizeof *g->area);
    if (!latitude || !g->area)
        example_abort("no memory for %lld rows", (long long)info.rows);
    example_check(t->comm, wf_netcdf_coordinate(d, info.y, info.rows, latitude));
    wf_dataset_free(d);
    g->times = info.times;
    g->channels = info.channels;
    g->rows = info.rows;
    g->columns = info.columns;
    g->trained = info.times - s->held_out;
    g->south_first = latitude[0] < latitude[info.rows - 1];
    g->on_poles = fabs(latitude[0]) > 89.999 && fabs(latitude[info.rows - 1]) > 89.999;
    planet_area(info.rows, latitude, g->area);
    free(latitude);
    const int64_t places = wf_mesh_size(s->how.mesh, WF_AXIS_DATA);
    const int64_t samples = g->trained - s->inputs - s->steps + 1;
    /* Months that are held out may not come into the climatology. */
    if (g->trained < s->period)
        snprintf(complaint, sizeof complaint, "--held-out %lld: leaves %lld months, and one --period has %lld",
                 (long long)s->held_out, (long long)g->trained, (long long)s->period);
    else if (samples < s->batch)
        snprintf(complaint, sizeof complaint, "--batch %lld: %lld of %lld months make %lld samples to train on",
                 (long long)s->batch, (long long)g->trained, (long long)g->times,
                 (long long)(samples > 0 ? samples : 0));
    else if (s->batch % places != 0)
        snprintf(complaint, sizeof complaint, "--batch %lld: should divide by %lld ranks along data",
                 (long long)s->batch, (long long)places);
    else if (g->channels > MOST_CHANNELS)
        snprintf(complaint, sizeof complaint, "--variables %.100s: %lld channels: should be at most %d", s->variables,
                 (long long)g->channels, MOST_CHANNELS);
    else if (s->circular && g->columns % 2 != 0)
        snprintf(complaint, sizeof complaint, "--edge globe: %lld columns: should be an even number, or --edge zeros",
                 (long long)g->columns);
    example_agree(t->comm, *complaint ? complaint : NULL);
}

/* --- Network ------------------------------------------------------------------------------------------------------ */

/* One part is linear in the months seen, as damped persistence is; the other is deep. */
static wf_var *forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *linear = wf_apply(wf_layer_child(self, "linear"), x);
    return wf_add(linear, wf_apply(wf_layer_child(self, "deep"), x));
}

/* [N,inputs channels + channels,H,W] -> [N,channels,H,W]. It begins as the forecast 0, which is climatology. */
static wf_layer *network(wf_ctx *ctx, const settings *s, const grid *g)
{
    int64_t negated[MOST_CHANNELS * 64];
    const int64_t seen = s->inputs * g->channels, in = seen + g->channels, out = s->channels;
    for (int64_t i = 0; i < seen; i++)
        negated[i] = i;
    const wf_init zero = {WF_INIT_CONSTANT, 0, 0}, he = {WF_INIT_HE_NORMAL, 0, 0};
    const bool is_vector = g->channels == 2 && !s->scalars; /* the two components of a wind */
    wf_conv_opts linear = {.in = in, .out = g->channels, .kernel = 5, .pad = 2, .w_init = zero};
    wf_conv_opts one = {.in = in, .out = out, .kernel = 5, .pad = 2, .act = WF_ACT_RELU, .w_init = he};
    wf_conv_opts two = {.in = out, .out = out, .kernel = 5, .pad = 2, .act = WF_ACT_RELU, .w_init = he};
    wf_conv_opts three = {.in = out, .out = g->channels, .kernel = 3, .pad = 1, .w_init = zero};
    if (s->circular) {
        linear.boundary = one.boundary = planet_globe(g->on_poles, is_vector ? (int)seen : 0, negated);
        two.boundary = three.boundary = planet_globe(g->on_poles, 0, NULL);
    }
    wf_layer *self = wf_module(ctx, forward, NULL);
    bool good = wf_module_add(self, "linear", wf_conv2d(ctx, linear));
    wf_layer *deep = wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, one), wf_conv2d(ctx, two), wf_conv2d(ctx, three)));
    good = wf_module_add(self, "deep", deep) && good;
    return good ? self : NULL;
}

/* --- Forecasts ---------------------------------------------------------------------------------------------------- */

enum { VALUES, MASKS, CLIMATOLOGY };

/* The channels of one month in a sample of `frames`. */
static wf_var *month_of(const training *t, wf_var *x, int64_t frames, int what, int64_t frame)
{
    wf_box box = wf_box_of_shape(wf_var_shape(x));
    box.lo[1] = (what * frames + frame) * t->g.channels;
    box.hi[1] = box.lo[1] + t->g.channels;
    return wf_slice(x, box);
}

/* forecast[0] to forecast[steps - 1]: each step sees the forecasts before it in place of months. */
static void forecast_months(const training *t, wf_var *x, int64_t steps, wf_var **forecast)
{
    const int64_t inputs = t->s->inputs, frames = inputs + steps;
    wf_var *part[64 + 1];
    for (int64_t k = 0; k < steps; k++) {
        for (int64_t i = 0; i < inputs; i++)
            part[i] = k + i < inputs ? month_of(t, x, frames, VALUES, k + i) : forecast[k + i - inputs];
        part[inputs] = month_of(t, x, frames, CLIMATOLOGY, inputs + k);
        forecast[k] = wf_apply(t->model, wf_concat((int)inputs + 1, part, 1));
    }
}

/* Squares weighted by area; elements that are missing weigh nothing. */
static wf_var *loss_of(const training *t, wf_var *x)
{
    const int64_t inputs = t->s->inputs, steps = t->s->steps, frames = inputs + steps;
    wf_var *forecast[64], *sum = NULL;
    wf_var *area = wf_input(t->tape, t->area);
    forecast_months(t, x, steps, forecast);
    for (int64_t k = 0; k < steps; k++) {
        wf_var *difference = wf_sub(forecast[k], month_of(t, x, frames, VALUES, inputs + k));
        wf_var *weight = wf_mul(area, month_of(t, x, frames, MASKS, inputs + k));
        wf_var *loss = wf_mean(wf_mul(weight, wf_mul(difference, difference)));
        sum = sum ? wf_add(sum, loss) : loss;
    }
    return wf_scale(sum, 1.0 / (double)steps);
}

/* This rank's part of the areas, of the layout of a batch. */
static void area_open(training *t, const wf_tensor *x)
{
    const wf_layout whole = wf_tensor_layout(x);
    wf_layout layout;
    const wf_shape shape = WF_SHAPE(whole.global.dim[0], t->g.channels, t->g.rows, t->g.columns);
    WF_MUST(wf_mesh_layout_activation(t->s->how.mesh, shape, &layout));
    const wf_shape own = wf_box_shape(layout.box);
    float *host = calloc((size_t)wf_shape_count(own) + 1, sizeof *host);
    if (!host)
        example_abort("no memory for areas");
    for (int64_t i = 0; i < wf_shape_count(own); i++)
        host[i] = (float)t->g.area[layout.box.lo[2] + i / own.dim[3] % own.dim[2]];
    t->area = wf_tensor_new(wf_comm_ctx(t->comm), WF_F32, own);
    WF_MUST(wf_check(t->area));
    WF_MUST(wf_tensor_set_layout(t->area, layout));
    WF_MUST(wf_tensor_import(t->area, host, wf_tensor_bytes(t->area)));
    free(host);
}

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_batch b = {0};
    WF_MUST(wf_iter_next(t->batches, &b));
    if (!t->area)
        area_open(t, b.x);
    wf_var *loss = loss_of(t, wf_input(t->tape, b.x));
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, (double)b.size));
    wf_trainer_add_samples(trainer, b.global);
    return wf_tape_reset(t->tape);
}

/* --- Scores ------------------------------------------------------------------------------------------------------- */

enum { PERSISTENCE, DAMPED, NO_ANOMALY, NETWORK, METHODS };
static const char *const methods[METHODS] = {"persistence", "damped persistence", "climatology", "network"};

/* Sums over all held-out months at one lead, the same on every rank. */
typedef struct scores {
    double squares[METHODS], weight; /* in units of the data */
    double beside, beside_weight;    /* the network's, in columns beside the seam */
    double normal;                   /* the network's squares in deviations */
    planet_jumps truth, forecast;
} scores;

/* Whole fields [n,channels,rows,columns] on every rank: free() them. */
static float *host_of(wf_var *x, int64_t *n)
{
    wf_var *whole = wf_unshard(x);
    WF_MUST(wf_check(whole));
    const wf_tensor *value = wf_value(whole);
    float *host = calloc((size_t)wf_tensor_count(value) + 1, sizeof *host);
    if (!host)
        example_abort("no memory for %lld elements", (long long)wf_tensor_count(value));
    WF_MUST(wf_tensor_export(value, host, wf_tensor_bytes(value)));
    *n = wf_tensor_shape(value).dim[0];
    return host;
}

/* Each channel's regression of a month on the one `lead` before it, over the months that are trained on. */
static void fit_damping(const training *t, int64_t lead, double *damping)
{
    const grid *g = &t->g;
    const int64_t plane = g->rows * g->columns, frames = lead + 1, last = g->trained - lead;
    double product[MOST_CHANNELS] = {0}, square[MOST_CHANNELS] = {0};
    wf_iter *iter = batches_open(t, frames, 0, last, false);
    for (wf_batch b = {0}; !b.last;) {
        int64_t n;
        WF_MUST(wf_iter_next(iter, &b));
        float *x = host_of(wf_input(t->tape, b.x), &n);
        for (int64_t i = 0; i < n * g->channels * plane; i++) {
            const int64_t sample = i / plane / g->channels, c = i / plane % g->channels, e = i % plane;
            const float *values = x + sample * 3 * frames * g->channels * plane;
            const double from = (double)values[c * plane + e],
                         to = (double)values[(lead * g->channels + c) * plane + e];
            /* Both months have to be known; a missing one is given as 0. */
            const float *masks = values + g->channels * plane * frames;
            const double weight = g->area[e / g->columns] * (double)masks[c * plane + e] *
                                  (double)masks[(lead * g->channels + c) * plane + e];
            product[c] += weight * from * to;
            square[c] += weight * from * from;
        }
        free(x);
        WF_MUST(wf_tape_reset(t->tape));
    }
    wf_iter_free(iter);
    for (int64_t c = 0; c < g->channels; c++)
        damping[c] = square[c] > 0 ? product[c] / square[c] : 0;
}

/* One channel of one sample. */
static void add_scores(const training *t, const float *seen, const float *truth, const float *mask,
                       const float *forecast, double damping, double deviation, scores *s)
{
    const grid *g = &t->g;
    for (int64_t e = 0; e < g->rows * g->columns; e++) {
        const double weight = g->area[e / g->columns] * (double)mask[e], is = (double)truth[e];
        const int64_t column = e % g->columns;
        const double guess[METHODS] = {(double)seen[e], damping * (double)seen[e], 0, (double)forecast[e]};
        for (int m = 0; m < METHODS; m++)
            s->squares[m] += weight * (guess[m] - is) * (guess[m] - is) * deviation * deviation;
        s->weight += weight;
        s->normal += weight * (guess[NETWORK] - is) * (guess[NETWORK] - is);
        if (column < BESIDE || column >= g->columns - BESIDE) {
            s->beside += weight * (guess[NETWORK] - is) * (guess[NETWORK] - is) * deviation * deviation;
            s->beside_weight += weight;
        }
    }
    planet_add_jumps(&s->truth, truth, g->rows, g->columns, g->area);
    planet_add_jumps(&s->forecast, forecast, g->rows, g->columns, g->area);
}

static void draw_forecast(const training *t, const float *truth, const float *forecast)
{
    const grid *g = &t->g;
    const int64_t plane = g->rows * g->columns, shown = g->channels < 8 ? g->channels : 8;
    planet_panel panel[8 * 3];
    float *error = calloc((size_t)(shown * plane), sizeof *error);
    if (!error)
        example_abort("no memory for a picture");
    for (int64_t i = 0; i < shown * plane; i++)
        error[i] = forecast[i] - truth[i];
    for (int64_t c = 0; c < shown; c++) {
        panel[3 * c] = (planet_panel){truth + c * plane, 3};
        panel[3 * c + 1] = (planet_panel){forecast + c * plane, 3};
        panel[3 * c + 2] = (planet_panel){error + c * plane, 3};
    }
    if (wf_comm_rank(t->comm) == 0)
        planet_picture(wf_comm_ctx(t->comm), example_path(t->s->out, "winds.png"), (int)shown, 3, panel, g->rows,
                       g->columns, g->south_first);
    free(error);
}

/* All held-out months, `lead` after the last month that the forecast saw. */
static scores score_lead(training *t, int64_t lead, const double *damping, bool draws)
{
    const grid *g = &t->g;
    const int64_t inputs = t->s->inputs, frames = inputs + lead, plane = g->rows * g->columns,
                  all = g->channels * plane;
    scores s = {0};
    wf_iter *iter = batches_open(t, frames, g->trained - frames + 1, g->times - frames + 1, false);
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (wf_batch b = {0}; !b.last;) {
        wf_var *forecast[64];
        int64_t n;
        WF_MUST(wf_iter_next(iter, &b));
        wf_var *input = wf_input(t->tape, b.x);
        forecast_months(t, input, lead, forecast);
        float *x = host_of(input, &n), *y = host_of(forecast[lead - 1], &n);
        for (int64_t i = 0; i < n * g->channels; i++) {
            const int64_t c = i % g->channels;
            const float *sample = x + i / g->channels * 3 * frames * all;
            const float *truth = sample + (frames - 1) * all + c * plane;
            add_scores(t, sample + (inputs - 1) * all + c * plane, truth, truth + frames * all, y + i * plane,
                       damping ? damping[c] : 0, g->deviation[c], &s);
        }
        if (draws && b.last && n > 0)
            draw_forecast(t, x + ((n - 1) * 3 * frames + frames - 1) * all, y + (n - 1) * all);
        free(x);
        free(y);
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_tape_set_mode(t->tape, WF_TRAIN));
    wf_iter_free(iter);
    return s;
}

static void free_jumps(scores *s)
{
    planet_jumps_free(&s->truth);
    planet_jumps_free(&s->forecast);
}

static wf_status look(wf_trainer *trainer, void *user)
{
    training *t = user;
    scores s = score_lead(t, 1, NULL, false);
    const double point[CURVES] = {wf_trainer_mean(trainer, "loss"), s.normal / s.weight};
    free_jumps(&s);
    curves_add(&t->curves, (double)wf_trainer_iteration(trainer), point);
    wf_trainer_print(trainer, "iteration %lld  loss %.5f  held out %.5f", (long long)wf_trainer_iteration(trainer),
                     point[0], point[1]);
    return WF_OK;
}

/* The forecast's jump over that of the truth: at the seam; mean and most of all other places, and how many of them have
 * a larger one than the seam. */
typedef struct jumps {
    double seam, mean, most;
    int64_t above, places; /* places: with a ratio */
} jumps;

static jumps compare_jumps(const scores *s)
{
    const int64_t others = s->truth.columns - 1;
    jumps j = {.seam = planet_jump(&s->forecast, others) / planet_jump(&s->truth, others)};
    for (int64_t c = 0; c < others; c++) {
        const double ratio = planet_jump(&s->forecast, c) / planet_jump(&s->truth, c);
        if (!isfinite(ratio)) /* a column without values, or a truth that does not change there */
            continue;
        j.mean += (ratio - j.mean) / (double)++j.places;
        j.most = ratio > j.most ? ratio : j.most;
        j.above += ratio > j.seam;
    }
    return j;
}

static void print_jumps(FILE *to, const training *t, const scores *s)
{
    const char *const name[] = {"jump at the seam", "elsewhere: mean", "elsewhere: largest", "elsewhere: larger"};
    jumps all[64];
    for (int64_t k = 0; k < t->s->steps; k++)
        all[k] = compare_jumps(&s[k]);
    for (int row = 0; row < 3; row++) {
        fprintf(to, "\n%-22s", name[row]);
        for (int64_t k = 0; k < t->s->steps; k++)
            fprintf(to, "  %7.4f", row == 0 ? all[k].seam : row == 1 ? all[k].mean : all[k].most);
    }
    fprintf(to, "\n%-22s", name[3]);
    for (int64_t k = 0; k < t->s->steps; k++)
        fprintf(to, "  %7lld", (long long)all[k].above);
    fprintf(to, "  of %lld places\n", (long long)all[0].places);
}

static void print_table(FILE *to, const training *t, const scores *s)
{
    const int64_t steps = t->s->steps;
    fprintf(to, "RMSE of the last %lld times, weighted by area, in units of the data\n%-22s", (long long)t->s->held_out,
            "");
    for (int64_t k = 0; k < steps; k++)
        fprintf(to, "  %lld ahead", (long long)k + 1);
    for (int m = 0; m < METHODS; m++) {
        fprintf(to, "\n%-22s", methods[m]);
        for (int64_t k = 0; k < steps; k++)
            fprintf(to, "  %7.4f", sqrt(s[k].squares[m] / s[k].weight));
    }
    fprintf(to, "\n%-22s", "network, at the seam");
    for (int64_t k = 0; k < steps; k++)
        fprintf(to, "  %7.4f", sqrt(s[k].beside / s[k].beside_weight));
    print_jumps(to, t, s);
}

static void tell_end(training *t)
{
    const char *out = t->s->out;
    scores all[64];
    for (int64_t lead = 1; lead <= t->s->steps; lead++) {
        double damping[MOST_CHANNELS];
        fit_damping(t, lead, damping);
        all[lead - 1] = score_lead(t, lead, damping, lead == 1);
    }
    FILE *table = example_create(t->comm, out, "table.txt");
    if (wf_comm_rank(t->comm) == 0) {
        print_table(table, t, all);
        if (fclose(table) != 0)
            example_abort("%s/table.txt: cannot write", out);
        printf("\n");
        print_table(stdout, t, all);
    }
    for (int64_t k = 0; k < t->s->steps; k++)
        free_jumps(&all[k]);
    if (wf_comm_rank(t->comm) != 0)
        return;
    t->curves.x_name = "iteration";
    t->curves.name[0] = "trained on";
    t->curves.name[1] = "held out, 1 ahead";
    const bool drawn = curves_draw(&t->curves, example_path(out, "curves.gp"), example_path(out, "curves.svg")) == 0;
    printf("\nLook at %s/winds.png: truth, forecast and error of the last month, the seam of the array in the middle;\n"
           "at %s/%s; numbers are in %s/table.txt and %s/log.jsonl.\n",
           out, out, drawn ? "curves.svg" : "curves.gp (there is no gnuplot)", out, out);
}

/* --- The whole ---------------------------------------------------------------------------------------------------- */

static wf_trainer *trainer_new(training *t)
{
    const settings *s = t->s;
    example_folder(t->comm, s->out);
    wf_trainer *trainer = wf_trainer_new(t->comm, train_step, t,
                                         (wf_trainer_opts){.iterations = s->iterations,
                                                           .report = {.iterations = s->log_every, .end = true},
                                                           .log = example_path(s->out, "log.jsonl"),
                                                           .progress = STDOUT_FILENO,
                                                           .unit = "samples",
                                                           .optim = t->optim,
                                                           .finite = true});
    const wf_when reported = {.iterations = s->log_every, .end = true, .after_report = true};
    WF_MUST(wf_trainer_add_hook(trainer, "look", look, t, reported));
    return trainer;
}

/* The deviations are those of the climatology that all data sets of this program have. */
static void deviations_open(training *t)
{
    const wf_box one = {.rank = 3, .hi = {t->g.channels, 1, 1}};
    wf_dataset *d = fields_open(t, 1);
    example_check(t->comm, wf_netcdf_climatology(d, 0, &one, NULL, t->g.deviation));
    wf_dataset_free(d);
}

int main(int argc, char **argv)
{
    settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    check_settings(comm, &s);
    parallel_open(&s.how, comm);

    training t = {.comm = comm, .s = &s, .tape = wf_tape_new(wf_comm_ctx(comm))};
    grid_open(&t);
    deviations_open(&t);
    t.model = network(wf_comm_ctx(comm), &s, &t.g);
    parallel_model(&s.how, comm, t.model);
    wf_optim *adam = wf_adamw(t.model, (wf_adam_opts){.lr = s.lr, .weight_decay = s.decay > 0 ? s.decay : WF_ZERO});
    adam = wf_lr_schedule(adam, (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = s.iterations});
    t.optim = parallel_optim(&s.how, adam);
    example_check(comm, wf_check(t.optim));
    t.batches = batches_open(&t, s.inputs + s.steps, 0, t.g.trained - s.inputs - s.steps + 1, true);
    wf_trainer *trainer = trainer_new(&t);
    example_check(comm, wf_trainer_run(trainer));
    tell_end(&t);

    wf_trainer_free(trainer);
    wf_iter_free(t.batches);
    wf_tensor_free(t.area);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    curves_free(&t.curves);
    free(t.g.area);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
