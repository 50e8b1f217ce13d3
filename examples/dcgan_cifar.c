/* A generative adversarial network on images of 32x32 pixels, trained by all ranks together:
 *
 *     mpirun -np 4 dcgan_cifar --channels 64 --epochs 5 --out result
 *     mpirun -np 4 dcgan_cifar --channels 32 --batch 16 --minutes 2 --out result
 *     mpirun -np 4 dcgan_cifar --parallel spatial --mesh height=2 --sync-bn
 */
#include "examples/images.h"
#include "examples/models/dcgan.h"
#include "examples/parallel.h"
#include "examples/plot.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    const char *communicator, *data, *out, *compute;
    int64_t batch, epochs, iterations, channels, latent, seed, sample_every, log_every;
    double minutes, lr_dis, lr_gen;
    bool captured;
    example_saves saves;
    parallel how;
} settings;

/* The networks, and what a step works with. */
typedef struct gan {
    wf_layer *gen, *dis;
    wf_optim *opt_gen, *opt_dis;
    wf_tape *tape;
    int64_t latent;
    wf_tensor *x;       /* the images */
    wf_tensor *loss[2]; /* of the last step: discriminator, generator */
} gan;

/* What rank 0 shows of the training. Images are made by all ranks if it takes all to apply the generator. */
typedef struct report {
    bool together, writes; /* writes: this is rank 0 */
    curves losses;
    wf_tape *tape; /* in evaluation mode */
    wf_tensor *z;  /* the same for all pictures */
} report;

/* What a step and the hooks work with. */
typedef struct training {
    const settings *s;
    gan g;
    wf_iter *iter;
    wf_captured *captured; /* or NULL */
    report report;
} training;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .out = "result",
                  .batch = 50,
                  .epochs = 100,
                  .channels = 512,
                  .latent = 100,
                  .lr_dis = 2e-4,
                  .lr_gen = 2e-4,
                  .sample_every = 500,
                  .log_every = 10,
                  .saves = {.keep = 3, .folder = "snapshots"},
                  .how = {.how = "data"}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"batch", "N", "images in a step for each place along the data axis", .number = &s.batch,
         .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"epochs", "N", "stop after N times all images", .number = &s.epochs, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"iterations", "N", "stop after N steps, if that is earlier; 0: do not", .number = &s.iterations,
         .most = EXAMPLE_MOST_COUNT},
        {"minutes", "T",
         "stop after T minutes, if that is earlier, and the learning rate falls to 0 over the second half; 0: "
         "do not",
         .real = &s.minutes, .zero = true},
        {"lr", "X", "learning rate of the discriminator, at first", .real = &s.lr_dis},
        {"lr-generator", "X", "that of the generator; ten times as much brings pictures sooner", .real = &s.lr_gen},
        {"channels", "N", "width of the networks, a multiple of 8", .number = &s.channels, .most = EXAMPLE_MOST_SIZE,
         .least = 8},
        {"latent", "N", "random numbers that the generator starts from", .number = &s.latent, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"data", "DIR", "CIFAR-10's binary files, a folder of PNG and JPEG images, or a file of wf-data, FILE.h5",
         .text = &s.data},
        {"out", "DIR", "where pictures and log go", .text = &s.out},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s.compute),
        {"sample-every", "N", "steps between pictures, with --minutes every tenth of the time; 0: none but the last",
         .number = &s.sample_every, .most = EXAMPLE_MOST_COUNT},
        {"log-every", "N", "steps between lines of the log", .number = &s.log_every, .most = EXAMPLE_MOST_COUNT,
         .least = 1},
        {"parallel", "HOW", "what is split beside the batch: data (nothing), channel, spatial or mesh",
         .text = &s.how.how},
        {"mesh", "AXES", "ranks along axes, as height=2,width=2; data takes the rest", .text = &s.how.axes},
        {"sync-bn", NULL, "normalise with the statistics of the whole batch", .flag = &s.how.sync_bn},
        {"captured", NULL, "replay the step as a whole, on devices that can; all batches are full then",
         .flag = &s.captured},
        EXAMPLE_SAVES(&s.saves),
        {0}};
    example_options(argc, argv, "Trains a DCGAN on images of 32x32 pixels, on all ranks of mpirun together.", table);
    return s;
}

static wf_iter *open_images(wf_comm *comm, const settings *s)
{
    wf_dataset *images = images_open(comm, s->how.mesh, s->data, WF_TRAIN_SET, false);
    wf_iter *iter = wf_batches(
        images,
        (wf_batch_opts){.size = s->batch, .shuffle = true, .drop_last = s->captured, .sharded = s->how.sharded});
    iter = wf_prefetch(iter, (wf_prefetch_opts){.depth = 2});
    example_check(comm, wf_check(iter));
    return iter;
}

static gan gan_new(wf_comm *comm, const settings *s)
{
    const wf_adam_opts of_gen = {.lr = s->lr_gen, .beta1 = 0.5, .weight_decay = 1e-4};
    const wf_adam_opts of_dis = {.lr = s->lr_dis, .beta1 = 0.5, .weight_decay = 1e-4};
    wf_ctx *ctx = wf_comm_ctx(comm);

    gan g = {.gen = dcgan_generator(ctx, s->channels, s->latent),
             .dis = dcgan_discriminator(ctx, s->channels),
             .tape = wf_tape_new(ctx),
             .latent = s->latent};
    parallel_model(&s->how, comm, g.gen);
    parallel_model(&s->how, comm, g.dis);
    g.opt_gen = example_scaled(wf_mesh_multi_node(s->how.mesh, wf_adam(g.gen, of_gen), (wf_multi_node_opts){0}));
    g.opt_dis = example_scaled(wf_mesh_multi_node(s->how.mesh, wf_adam(g.dis, of_dis), (wf_multi_node_opts){0}));
    example_check(comm, wf_check(g.opt_gen));
    example_check(comm, wf_check(g.opt_dis));
    example_check(comm, wf_check(g.tape));
    return g;
}

static void gan_free(gan *g)
{
    wf_tensor_free(g->loss[0]);
    wf_tensor_free(g->loss[1]);
    wf_tape_free(g->tape);
    wf_optim_free(g->opt_gen);
    wf_optim_free(g->opt_dis);
    wf_layer_free(g->gen);
    wf_layer_free(g->dis);
}

/* The discriminator learns to tell real from fake, then the generator to pass for real. */
static wf_status train_step(void *arg)
{
    gan *g = arg;
    wf_var *real = wf_input(g->tape, g->x);
    wf_var *z = wf_rand_uniform(g->tape, WF_SHAPE(wf_var_shape(real).dim[0], g->latent), -1, 1, real);
    wf_var *fake = wf_apply(g->gen, z);

    wf_var *loss_real = wf_bce_logits_constant(wf_apply(g->dis, real), 1);
    wf_var *loss_fake = wf_bce_logits_constant(wf_apply(g->dis, wf_detach(fake)), 0);
    wf_var *loss_dis = wf_add(loss_real, loss_fake);
    wf_status status = wf_optim_step(g->opt_dis, loss_dis);
    if (status != WF_OK)
        return status;

    wf_var *loss_gen = wf_bce_logits_constant(wf_apply(g->dis, fake), 1);
    status = wf_optim_step(g->opt_gen, loss_gen);
    if (status != WF_OK)
        return status;

    wf_tensor_free(g->loss[0]);
    wf_tensor_free(g->loss[1]);
    g->loss[0] = wf_keep(loss_dis);
    g->loss[1] = wf_keep(loss_gen);
    return wf_tape_reset(g->tape);
}

static report report_new(wf_comm *comm, const settings *s)
{
    report r = {.together = strcmp(s->how.how, "data") != 0, .writes = wf_comm_rank(comm) == 0};
    r.losses = (curves){.x_name = "iteration", .name = {"discriminator", "generator"}};
    r.tape = wf_tape_new(wf_comm_ctx(comm));
    r.z = wf_keep(wf_rand_uniform(r.tape, WF_SHAPE(100, s->latent), -1, 1, NULL));
    WF_MUST(wf_check(r.z));
    WF_MUST(wf_tape_reset(r.tape));
    WF_MUST(wf_tape_set_mode(r.tape, WF_EVAL));
    return r;
}

/* The losses of the last step; reading them waits for the device. They are those of all ranks. */
static wf_status observe_losses(wf_trainer *trainer, void *user)
{
    const training *t = user;
    WF_MUST(wf_trainer_observe(trainer, "dis_loss", wf_tensor_item(t->g.loss[0]), 1));
    return wf_trainer_observe(trainer, "gen_loss", wf_tensor_item(t->g.loss[1]), 1);
}

static wf_status add_to_curves(wf_trainer *trainer, void *user)
{
    training *t = user;
    const double loss[2] = {wf_trainer_mean(trainer, "dis_loss"), wf_trainer_mean(trainer, "gen_loss")};
    if (t->report.writes)
        curves_add(&t->report.losses, (double)wf_trainer_iteration(trainer), loss);
    return WF_OK;
}

/* Ten by ten images from the same random numbers as ever. */
static void write_samples(training *t, const char *name)
{
    const report *r = &t->report;
    if (!r->writes && !r->together)
        return;
    wf_var *z = wf_input(r->tape, r->z);
    wf_var *fake = wf_apply(t->g.gen, r->together ? wf_shard(z, t->s->how.mesh) : z);
    fake = wf_unshard(fake);
    WF_MUST(wf_check(fake));
    if (r->writes)
        WF_MUST(wf_write_png_grid(example_path(t->s->out, name), wf_value(fake), 10, 10, 0, 1));
    WF_MUST(wf_tape_reset(r->tape));
}

static wf_status samples(wf_trainer *trainer, void *user)
{
    char name[64];
    snprintf(name, sizeof name, "samples-%06lld.png", (long long)wf_trainer_iteration(trainer));
    write_samples(user, name);
    return WF_OK;
}

static void report_end(training *t)
{
    report *r = &t->report;
    const char *dir = t->s->out;
    write_samples(t, "samples.png");
    wf_tensor_free(r->z);
    wf_tape_free(r->tape);
    if (!r->writes)
        return;
    const int drawn = curves_draw(&r->losses, example_path(dir, "loss.gnuplot"), example_path(dir, "loss.svg"));
    printf("\nLook at %s/samples.png and, over time, %s/samples-*.png; numbers are in %s/log.jsonl.\n", dir, dir, dir);
    if (drawn == 0)
        printf("The curves are in %s/loss.svg.\n", dir);
    else
        printf("gnuplot is not there or failed: no curves. Later: gnuplot %s/loss.gnuplot > loss.svg\n", dir);
    curves_free(&r->losses);
}

/* A captured step reads from one tensor for ever; other steps read the batch itself. */
static void step_captured(gan *g, wf_captured *captured, const wf_batch *b)
{
    if (g->x)
        WF_MUST(wf_tensor_assign(g->x, b->x));
    else
        g->x = wf_tensor_copy(b->x, wf_tensor_dtype(b->x), wf_tensor_order(b->x));
    WF_MUST(wf_captured_run(captured));
}

/* By the share of the run, since a run that ends by time has no known number of steps. */
static wf_status lower_rate(const wf_trainer *trainer, const settings *s, gan *g)
{
    const double factor = fmin(1, 2 * (1 - wf_trainer_share(trainer)));
    const wf_status status = wf_optim_set_lr(g->opt_dis, s->lr_dis * factor);
    return status == WF_OK ? wf_optim_set_lr(g->opt_gen, s->lr_gen * factor) : status;
}

static wf_status step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_batch batch;
    if (t->s->minutes > 0)
        WF_MUST(lower_rate(trainer, t->s, &t->g));
    WF_MUST(wf_iter_next(t->iter, &batch));
    if (t->captured) {
        step_captured(&t->g, t->captured, &batch);
    } else {
        t->g.x = batch.x;
        WF_MUST(train_step(&t->g));
    }
    wf_trainer_add_samples(trainer, batch.global);
    return WF_OK;
}

static wf_checkpoint *saves_open(wf_comm *comm, const settings *s, gan *g, wf_iter *iter)
{
    wf_checkpoint *saves = example_saves_open(comm, &s->saves);
    if (!saves)
        return NULL;
    WF_MUST(wf_checkpoint_add_model(saves, "generator", g->gen));
    WF_MUST(wf_checkpoint_add_model(saves, "discriminator", g->dis));
    WF_MUST(wf_checkpoint_add_optim(saves, "generator_optimizer", g->opt_gen));
    WF_MUST(wf_checkpoint_add_optim(saves, "discriminator_optimizer", g->opt_dis));
    WF_MUST(wf_checkpoint_add(saves, "tape", wf_tape_visit, g->tape));
    WF_MUST(wf_checkpoint_add(saves, "batches", wf_iter_visit, iter));
    return saves;
}

static wf_trainer *trainer_new(training *t)
{
    const settings *s = t->s;
    wf_comm *comm = wf_mesh_world(s->how.mesh);
    const wf_when logged = {.iterations = s->log_every, .end = true};
    example_folder(comm, s->out);
    wf_trainer *trainer = wf_trainer_new(comm, step, t,
                                         (wf_trainer_opts){.epoch_length = wf_iter_epoch_length(t->iter),
                                                           .epochs = s->epochs,
                                                           .iterations = s->iterations,
                                                           .seconds = 60 * s->minutes,
                                                           .report = logged,
                                                           .log = example_path(s->out, "log.jsonl"),
                                                           .progress = STDOUT_FILENO,
                                                           .timeline = s->saves.timeline,
                                                           .profile = s->saves.profile ? STDOUT_FILENO : 0,
                                                           .unit = "images",
                                                           .finite = true});
    WF_MUST(wf_trainer_add_hook(trainer, "losses", observe_losses, t, logged));
    WF_MUST(wf_trainer_add_hook(trainer, "curves", add_to_curves, t,
                                (wf_when){.iterations = s->log_every, .end = true, .after_report = true}));
    const wf_when pictures = s->minutes > 0 ? (wf_when){.share = 0.1} : (wf_when){.iterations = s->sample_every};
    if (s->sample_every)
        WF_MUST(wf_trainer_add_hook(trainer, "samples", samples, t, pictures));
    return trainer;
}

int main(int argc, char **argv)
{
    settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_agree(comm, wf_planner_asks()
                            ? "wf-plan plans one model with one optimizer, and this program trains two in "
                              "turn; give --parallel and --mesh by hand"
                            : NULL);
    char complaint[96];
    snprintf(complaint, sizeof complaint, "--channels %lld: should be a multiple of 8", (long long)s.channels);
    example_agree(comm, s.channels % 8 == 0 ? NULL : complaint);
    example_compute(comm, s.compute);
    parallel_open(&s.how, comm);

    training t = {.s = &s, .iter = open_images(comm, &s)};
    t.g = gan_new(comm, &s);
    t.report = report_new(comm, &s);
    wf_checkpoint *saves = saves_open(comm, &s, &t.g, t.iter);
    t.captured = s.captured ? wf_capture(wf_comm_ctx(comm), train_step, &t.g) : NULL;
    wf_trainer *trainer = trainer_new(&t);
    const int code = example_train(trainer, saves, &s.saves);
    report_end(&t);

    wf_trainer_free(trainer);
    wf_captured_free(t.captured);
    if (s.captured)
        wf_tensor_free(t.g.x);
    gan_free(&t.g);
    wf_iter_free(t.iter);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return code;
}
