/* A network learns, while a simulation runs and from its own fields, what coarse cells lack.
 *
 *     mpirun -np 4 closure --cells 32 --steps 1000
 *
 * A solver of shallow water (examples/shallow.h) has its own ranks, messages, memory and rows. A fine run of it is the
 * truth. In every step the program takes the means of the fine fields over coarse cells, and what a coarse step from
 * there lacks; a closure, circular convolutions over all ranks, learns to say the second from the first. The library
 * gets the program's communicator, its memory as it is, and its rows. Afterwards the closure corrects a coarse run of
 * waves that it has not seen, step by step.
 */
#include "examples/common.h"
#include "examples/shallow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The difference that a coarse step lacks is so many times smaller than the fields; it is learnt in their size. */
#define GAIN 16.0F

/* Lines of the table; the fine run, the coarse one and the corrected one; pixels of a cell in the picture. */
enum { TELLS = 3, RUNS = 3, PIXELS = 6 };

typedef struct settings {
    const char *out;
    int64_t cells, finer, steps, run, seed, hidden;
    double lr;
    bool offline;
} settings;

/* The solver's side: all of it would be there without the library. */
typedef struct simulation {
    const settings *s;
    shallow fine, coarse, after; /* `after`: means of the fine run a step later */
    float *lacking;              /* as coarse.fields */
    float *stored;               /* with --offline, of every step: coarse.fields and `lacking` */
    size_t bytes;                /* of this rank's coarse fields */
    int64_t *first;              /* row of each rank */
} simulation;

typedef struct closure {
    wf_comm *comm;
    wf_mesh *mesh;
    wf_layout layout; /* of the fields of all ranks, [1,3,rows,columns] */
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    const settings *s;
} closure;

static settings read_settings(int argc, char **argv)
{
    settings s = {
        .out = "closure", .cells = 32, .finer = 4, .steps = 1000, .run = 30, .seed = 1, .hidden = 16, .lr = 5e-3};
    const example_option table[] = {
        {"cells", "N", "coarse cells along each side", .number = &s.cells, .most = 4096, .least = 1},
        {"finer", "N", "fine cells along the side of a coarse one", .number = &s.finer, .most = 16, .least = 2},
        {"steps", "N", "coarse steps to learn from", .number = &s.steps, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"run", "N", "coarse steps of each run, before other waves begin", .number = &s.run, .most = EXAMPLE_MOST_COUNT,
         .least = TELLS},
        {"hidden", "N", "channels between the two convolutions", .number = &s.hidden, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"lr", "X", "learning rate at the start", .real = &s.lr},
        {"seed", "N", "of waves and of the closure", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        {"offline", NULL, "keep all fields, and train a second closure on them afterwards", .flag = &s.offline},
        {"out", "DIR", "folder for losses.txt and closure.png", .text = &s.out},
        {0}};
    example_options(argc, argv, "Trains a closure of a coarse solver on the fields of a fine run while it runs.",
                    table);
    return s;
}

/* --- The simulation ----------------------------------------------------------------------------------------------- */

static void simulation_open(simulation *m, const settings *s, MPI_Comm world, int ranks)
{
    const double ratio = 0.3;
    int64_t *fine_first = calloc((size_t)ranks + 1, sizeof *fine_first);
    *m = (simulation){.s = s, .first = calloc((size_t)ranks + 1, sizeof *m->first)};
    if (!fine_first || !m->first)
        example_abort("no memory for the rows of %d ranks", ranks);
    shallow_bounds(s->cells, ranks, m->first);
    for (int r = 0; r <= ranks; r++)
        fine_first[r] = m->first[r] * s->finer;
    bool there = shallow_open(&m->fine, world, s->cells * s->finer, fine_first, ratio);
    there = shallow_open(&m->coarse, world, s->cells, m->first, ratio) && there;
    there = shallow_open(&m->after, world, s->cells, m->first, ratio) && there;
    m->bytes = (size_t)(m->coarse.rows * s->cells) * SHALLOW_FIELDS * sizeof *m->lacking;
    m->lacking = calloc(1, m->bytes);
    m->stored = s->offline ? malloc(2 * m->bytes * (size_t)s->steps) : NULL;
    if (!there || !m->lacking || (s->offline && !m->stored))
        example_abort("no memory for fields of %lld x %lld cells", (long long)s->cells, (long long)s->cells);
    free(fine_first);
}

static void simulation_close(simulation *m)
{
    shallow_close(&m->fine);
    shallow_close(&m->coarse);
    shallow_close(&m->after);
    free(m->lacking);
    free(m->stored);
    free(m->first);
}

/* A coarse step of the fine run. */
static void advance_fine(simulation *m)
{
    for (int64_t i = 0; i < m->s->finer; i++) {
        shallow_compute(&m->fine);
        shallow_turn(&m->fine);
    }
}

/* Waves 0 are for the test; `steps` of training have others, new ones every run. */
static void advance(simulation *m, int64_t step)
{
    if (step % m->s->run == 0)
        shallow_waves(&m->fine, (uint64_t)(m->s->seed * 1000003 + 1 + step / m->s->run));
    shallow_coarsen(&m->coarse, &m->fine, m->s->finer);
    shallow_compute(&m->coarse);
    advance_fine(m);
    shallow_coarsen(&m->after, &m->fine, m->s->finer);
    for (size_t i = 0; i < m->bytes / sizeof *m->lacking; i++)
        m->lacking[i] = GAIN * (m->after.fields[i] - m->coarse.next[i]);
    if (!m->stored)
        return;
    memcpy((char *)m->stored + 2 * m->bytes * (size_t)step, m->coarse.fields, m->bytes);
    memcpy((char *)m->stored + 2 * m->bytes * (size_t)step + m->bytes, m->lacking, m->bytes);
}

/* --- The closure -------------------------------------------------------------------------------------------------- */

/* Fields as they are in the solver's memory, with this rank's rows. */
static wf_tensor *wrap(const closure *c, float *fields)
{
    return wf_tensor_wrap(wf_comm_ctx(c->comm), WF_F32, wf_box_shape(c->layout.box), fields,
                          (wf_wrap_opts){.order = WF_CHANNELS_LAST});
}

static wf_tensor *wrap_rows(const closure *c, float *fields)
{
    wf_tensor *t = wrap(c, fields);
    WF_MUST(wf_check(t));
    WF_MUST(wf_tensor_set_layout(t, c->layout));
    return t;
}

/* Edges meet for the network as they do for the solver. */
static wf_layer *model_new(const closure *c)
{
    const wf_boundary ring = {.edge = WF_EDGE_CIRCULAR};
    const wf_conv_opts wide = {.in = SHALLOW_FIELDS, .out = c->s->hidden, .kernel = 5, .pad = 2, .boundary = ring};
    const wf_conv_opts last = {.in = c->s->hidden, .out = SHALLOW_FIELDS, .kernel = 3, .pad = 1, .boundary = ring};
    wf_ctx *ctx = wf_comm_ctx(c->comm);
    return wf_layer_named(wf_sequential(ctx, WF_LAYERS(wf_spatial_conv2d(c->mesh, wide), wf_lambda(ctx, wf_tanh),
                                                       wf_spatial_conv2d(c->mesh, last))),
                          "closure");
}

static closure closure_new(wf_comm *comm, wf_mesh *mesh, const settings *s, const int64_t *first)
{
    closure c = {.comm = comm, .mesh = mesh, .s = s};
    const wf_layout_opts rows = {.dim = {[WF_AXIS_HEIGHT] = WF_DIM(2)}, .bounds = {[WF_AXIS_HEIGHT] = first}};
    example_check(comm, wf_mesh_layout(mesh, WF_SHAPE(1, SHALLOW_FIELDS, s->cells, s->cells), rows, &c.layout));
    c.model = model_new(&c);
    example_check(comm, wf_check(c.model));
    wf_optim *adam = wf_lr_schedule(wf_adam(c.model, (wf_adam_opts){.lr = s->lr}),
                                    (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = s->steps});
    c.optim = wf_mesh_multi_node(mesh, adam, (wf_multi_node_opts){0});
    c.tape = wf_tape_new(wf_comm_ctx(comm));
    example_check(comm, wf_check(c.optim));
    return c;
}

static void closure_free(closure *c)
{
    wf_tape_free(c->tape);
    wf_optim_free(c->optim);
    wf_layer_free(c->model);
}

/* The mean loss of the step over all ranks. */
static double learn(closure *c, const wf_tensor *x, const wf_tensor *lacking)
{
    wf_var *loss = wf_mse(wf_apply(c->model, wf_input(c->tape, x)), wf_input(c->tape, lacking));
    WF_MUST(wf_optim_step(c->optim, loss));
    const double value = wf_item(loss);
    WF_MUST(wf_tape_reset(c->tape));
    return value;
}

/* A batch of the stream: the simulation goes on by a step. */
typedef struct feed {
    const closure *c;
    simulation *m;
} feed;

static wf_status feed_next(void *user, int64_t index, wf_tensor **x, wf_tensor **target)
{
    const feed *f = user;
    advance(f->m, index);
    *x = wrap(f->c, f->m->coarse.fields);
    *target = wrap(f->c, f->m->lacking);
    return wf_check(*target);
}

/* Trains while the simulation runs. Returns how many batches were not the solver's own memory. */
static int64_t train(closure *c, simulation *m, double *losses)
{
    feed f = {.c = c, .m = m};
    int64_t moved = 0;
    wf_iter *iter = wf_streamed_batches(
        c->mesh, (wf_streamed_opts){.next = feed_next, .user = &f, .x = c->layout, .target = c->layout});
    example_check(c->comm, wf_check(iter));
    FILE *log = example_create(c->comm, c->s->out, "losses.txt");
    for (int64_t step = 0; step < c->s->steps; step++) {
        wf_batch b;
        WF_MUST(wf_iter_next(iter, &b));
        moved += wf_tensor_data(b.x) != m->coarse.fields || wf_tensor_data(b.target) != m->lacking;
        losses[step] = learn(c, b.x, b.target);
        if (log) {
            fprintf(log, "%lld %.9g\n", (long long)step, losses[step]);
            example_finite("loss", losses[step], step); /* the mean of all ranks, so one of them tells */
        }
    }
    if (log && fclose(log) != 0)
        example_abort("%s: cannot write losses.txt", c->s->out);
    wf_iter_free(iter);
    WF_MUST(wf_allreduce_i64(c->comm, &moved, 1, WF_SUM));
    return moved;
}

/* Trains on the fields that were stored. Returns how many losses and parameters differ in a bit. */
static int64_t train_offline(closure *c, const closure *online, simulation *m, const double *losses)
{
    int64_t differ = 0, count, others;
    wf_param *const *params, *const *online_params;
    for (int64_t step = 0; step < c->s->steps; step++) {
        float *const fields = m->stored + 2 * m->bytes / sizeof *m->stored * (size_t)step;
        wf_tensor *x = wrap_rows(c, fields), *lacking = wrap_rows(c, fields + m->bytes / sizeof *fields);
        differ += learn(c, x, lacking) != losses[step];
        wf_tensor_free(x);
        wf_tensor_free(lacking);
    }
    WF_MUST(wf_layer_params(c->model, &count, &params));
    WF_MUST(wf_layer_params(online->model, &others, &online_params));
    for (int64_t i = 0; i < count; i++) {
        wf_tensor *a = wf_param_value(params[i]), *b = wf_param_value(online_params[i]);
        differ += count != others || memcmp(wf_tensor_data(a), wf_tensor_data(b), wf_tensor_bytes(a)) != 0;
    }
    WF_MUST(wf_allreduce_i64(c->comm, &differ, 1, WF_SUM));
    return differ;
}

/* --- What it is worth --------------------------------------------------------------------------------------------- */

/* A coarse step, to which what the closure says is added. */
static void step_corrected(closure *c, shallow *coarse, float *lacking)
{
    wf_tensor *x = wrap_rows(c, coarse->fields), *said = wrap_rows(c, lacking);
    WF_MUST(wf_tensor_assign(said, wf_value(wf_apply(c->model, wf_input(c->tape, x)))));
    WF_MUST(wf_tape_reset(c->tape));
    shallow_compute(coarse);
    for (int64_t i = 0; i < wf_tensor_count(said); i++)
        coarse->next[i] += lacking[i] / GAIN;
    shallow_turn(coarse);
    wf_tensor_free(x);
    wf_tensor_free(said);
}

/* The root of the mean square of a - b over all ranks; b NULL: of a. */
static double rms(const closure *c, const shallow *a, const shallow *b)
{
    const int64_t count = a->rows * a->side * SHALLOW_FIELDS;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)a->fields[i] - (b ? (double)b->fields[i] : 0);
        sum += d * d;
    }
    WF_MUST(wf_allreduce_f64(c->comm, &sum, 1, WF_SUM));
    return sqrt(sum / (double)(a->side * a->side * SHALLOW_FIELDS));
}

/* The water of the three runs beside each other. */
static void draw_picture(closure *c, shallow *const runs[RUNS])
{
    wf_tensor *t[RUNS];
    wf_var *fields[RUNS];
    for (int r = 0; r < RUNS; r++) {
        t[r] = wrap_rows(c, runs[r]->fields);
        fields[r] = wf_input(c->tape, t[r]);
    }
    wf_var *whole = wf_unshard(wf_concat(RUNS, fields, 0));
    WF_MUST(wf_check(whole));
    wf_box first = wf_box_of_shape(wf_var_shape(whole));
    first.hi[1] = 1;
    wf_layer *larger = wf_upsample2d(wf_comm_ctx(c->comm), (wf_upsample_opts){.scale = PIXELS});
    wf_var *water = wf_apply(larger, wf_slice(whole, first));
    WF_MUST(wf_check(water));
    if (wf_comm_rank(c->comm) == 0)
        WF_MUST(wf_write_png_grid(example_path(c->s->out, "closure.png"), wf_value(water), 1, RUNS, -0.8, 0.8));
    WF_MUST(wf_tape_reset(c->tape));
    wf_layer_free(larger);
    for (int r = 0; r < RUNS; r++)
        wf_tensor_free(t[r]);
}

/* A run of waves that were never trained on, coarse and corrected, beside the fine one. False if the closure makes it
 * worse. */
static bool compare(closure *c, simulation *m)
{
    const bool tells = wf_comm_rank(c->comm) == 0;
    shallow plain;
    double error = 0, corrected = 0;
    if (!shallow_open(&plain, m->coarse.comm, c->s->cells, m->first, (double)m->coarse.ratio))
        example_abort("no memory for fields");
    WF_MUST(wf_tape_set_mode(c->tape, WF_EVAL));
    shallow_waves(&m->fine, 0);
    shallow_coarsen(&m->coarse, &m->fine, c->s->finer);
    shallow_coarsen(&plain, &m->fine, c->s->finer);
    if (tells)
        printf("  step   size of the waves   error, coarse   error, with the closure\n");
    for (int64_t step = 1; step <= c->s->run; step++) {
        step_corrected(c, &m->coarse, m->lacking);
        shallow_compute(&plain);
        shallow_turn(&plain);
        advance_fine(m);
        if (step % (c->s->run / TELLS) != 0)
            continue;
        shallow_coarsen(&m->after, &m->fine, c->s->finer);
        const double waves = rms(c, &m->after, NULL);
        error = rms(c, &plain, &m->after);
        corrected = rms(c, &m->coarse, &m->after);
        if (tells)
            printf("%6lld %19.4f %15.4f %25.4f\n", (long long)step, waves, error, corrected);
    }
    draw_picture(c, (shallow *const[RUNS]){&m->after, &plain, &m->coarse});
    shallow_close(&plain);
    return corrected < error;
}

static void check_settings(wf_comm *comm, const settings *s)
{
    char complaint[128] = "";
    const int ranks = wf_comm_size(comm);
    if (s->cells < 2 * ranks)
        snprintf(complaint, sizeof complaint, "--cells %lld: should be at least %d, twice the ranks",
                 (long long)s->cells, 2 * ranks);
    example_agree(comm, *complaint ? complaint : NULL);
}

/* Trains, and compares: the exit code. */
static int work(closure *c, simulation *m, const closure *second)
{
    const bool tells = wf_comm_rank(c->comm) == 0;
    double *losses = malloc((size_t)c->s->steps * sizeof *losses);
    if (!losses)
        example_abort("no memory for %lld losses", (long long)c->s->steps);
    const int64_t moved = train(c, m, losses);
    if (tells)
        printf("trained %lld steps on %d ranks, first loss %.6g, last loss %.6g; %lld batches were copies\n",
               (long long)c->s->steps, wf_comm_size(c->comm), losses[0], losses[c->s->steps - 1], (long long)moved);
    int code = moved ? 2 : 0;
    if (second) {
        closure stored = *second;
        const int64_t differ = train_offline(&stored, c, m, losses);
        if (tells)
            printf("a closure trained on the stored fields: %lld losses and parameters differ in a bit\n",
                   (long long)differ);
        code = differ ? 2 : code;
    }
    free(losses);
    return compare(c, m) ? code : 2;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    MPI_Init(&argc, &argv); /* the program's, as its solver is */
    MPI_Comm world = MPI_COMM_WORLD;
    wf_comm *comm =
        wf_comm_from_mpi(&world, "auto", (wf_ctx_opts){.device = "cpu", .seed = (uint64_t)s.seed, .threads = 1});
    example_check(comm, wf_check(comm));
    check_settings(comm, &s);
    example_folder(comm, s.out);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = wf_comm_size(comm)});
    example_check(comm, wf_check(mesh));

    simulation m;
    simulation_open(&m, &s, world, wf_comm_size(comm));
    closure c = closure_new(comm, mesh, &s, m.first), second = {0};
    if (s.offline)
        second = closure_new(comm, mesh, &s, m.first);
    const int code = work(&c, &m, s.offline ? &second : NULL);

    closure_free(&second);
    closure_free(&c);
    simulation_close(&m);
    wf_mesh_close(mesh);
    WF_MUST(wf_comm_close(comm));
    MPI_Finalize();
    return code;
}
