/* A language model of bytes (examples/models/gpt.h): learns any text, tells how many bits it needs for a byte of a part
 * that it never saw, and writes on from a prompt.
 *
 *     mpirun -np 2 generate --minutes 10                        (the licences that every Debian has)
 *     mpirun -np 2 generate --text book.txt --parallel heads --prompt "It was "
 *     mpirun -np 4 generate --mesh channel=2,height=2           (heads and tokens at once)
 *
 * Every form of --parallel logs the losses of one rank. To write a byte the program computes the whole window before it
 * again: nothing is kept from one byte to the next.
 */
#include "examples/models/gpt.h"
#include "examples/parallel.h"
#include "examples/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 256, MOST_BATCH = 4096, WARMUP = 50, HELD_OUT = 10 /* the last of so many parts */ };

typedef struct settings {
    const char *communicator, *parallel, *axes, *text, *size, *prompt, *compute;
    int64_t batch, steps, tokens, features, heads, blocks, every, tests, write, top_k, seed;
    double minutes, lr, dropout, temperature;
    bool rotary;
    example_saves saves;
} settings;

typedef struct training {
    const settings *s;
    gpt_opts model_opts;
    wf_comm *comm;
    wf_mesh *mesh;
    wf_layer *model;
    wf_pipeline *pipe; /* NULL: the model is whole, or cut by its own layers */
    wf_optim *optim;
    wf_tape *tape;
    uint8_t *text;
    int64_t bytes, train; /* of the text; those that are learned */
    double held_out;      /* bits a byte, of the newest test */
} training;

static const char *const size_names[GPT_SIZES] = {"tiny", "medium", "small"};
static const char *const ways[] = {"data", "heads", "tokens", "pipeline"};

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .parallel = "data",
                  .text = "/usr/share/common-licenses",
                  .size = "tiny",
                  .prompt = "The ",
                  .batch = 16,
                  .every = 50,
                  .write = 400,
                  .lr = 2e-3,
                  .temperature = 0.8,
                  .saves = {.keep = 3, .folder = "snapshots"}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"parallel", "HOW", "what ranks share: data, heads, tokens, or a pipeline of blocks", .text = &s.parallel},
        {"mesh", "AXES", "in its place: channel=2,height=2 are heads and tokens; data takes the rest", .text = &s.axes},
        {"text", "PATH", "a file, or a folder of files", .text = &s.text},
        {"size", "NAME", "tiny, medium or small, which is GPT-2's small one", .text = &s.size},
        {"tokens", "N", "bytes that the model sees at once; 0: as --size says", .number = &s.tokens,
         .most = EXAMPLE_MOST_SIZE},
        {"features", "N", "of a byte; 0: as --size says", .number = &s.features, .most = EXAMPLE_MOST_SIZE},
        {"heads", "N", "of attention; 0: as --size says", .number = &s.heads, .most = 1024},
        {"blocks", "N", "0: as --size says", .number = &s.blocks, .most = 1024},
        {"rotary", NULL, "rotary positions in place of learned ones", .flag = &s.rotary},
        {"batch", "N", "windows of text in a step, of all ranks", .number = &s.batch, .most = MOST_BATCH, .least = 1},
        {"steps", "N", "ends after N steps; 0: after --minutes", .number = &s.steps, .most = EXAMPLE_MOST_COUNT},
        {"minutes", "X", "ends after so long; 0: after --steps, or 10 without these", .real = &s.minutes, .zero = true},
        {"log-every", "N", "steps between two lines", .number = &s.every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"tests", "N", "windows of text that are tested, evenly out of all; 0: all", .number = &s.tests,
         .most = EXAMPLE_MOST_COUNT},
        {"lr", "X", "learning rate", .real = &s.lr},
        {"dropout", "X", "rate at which numbers of the blocks become 0; 0: none do", .real = &s.dropout, .zero = true},
        {"prompt", "TEXT", "what the model writes on from", .text = &s.prompt},
        {"write", "N", "bytes that it writes", .number = &s.write, .most = EXAMPLE_MOST_COUNT},
        {"temperature", "X", "scores are divided by it: below 1 more probable bytes come more often",
         .real = &s.temperature},
        {"top-k", "N", "only the N most probable bytes come; 1: always the first; 0: all", .number = &s.top_k,
         .most = BYTES},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s.compute),
        EXAMPLE_SAVES(&s.saves),
        {0}};
    example_options(argc, argv, "Learns a text byte by byte, and writes on from a prompt.", table);
    return s;
}

/* The place of a name in a list, or -1. */
static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static wf_mesh_opts choose_axes(wf_comm *comm, const settings *s)
{
    const int size = wf_comm_size(comm), way = find_name(ways, 4, s->parallel);
    char complaint[256] = "";
    wf_mesh_opts o = {.channel = way == 1 ? size : 0, .height = way == 2 ? size : 0, .stage = way == 3 ? size : 0};
    if (way < 0)
        snprintf(complaint, sizeof complaint, "--parallel %.100s: should be data, heads, tokens or pipeline",
                 s->parallel);
    else if (s->axes && way > 0)
        snprintf(complaint, sizeof complaint, "--mesh %.100s: takes the place of --parallel %s", s->axes, s->parallel);
    else if (s->axes && (!parallel_axes(s->axes, &o) || o.depth > 1 || o.width > 1))
        snprintf(complaint, sizeof complaint,
                 "--mesh %.100s: should be axes as channel=2,height=2, out of data, channel, height", s->axes);
    example_agree(comm, *complaint ? complaint : NULL);
    return o;
}

static void check_numbers(wf_comm *comm, const settings *s, const gpt_opts *o)
{
    char complaint[256] = "";
    if (find_name(size_names, GPT_SIZES, s->size) < 0)
        snprintf(complaint, sizeof complaint, "--size %.100s: should be tiny, medium or small", s->size);
    else if (o->features % o->heads != 0)
        snprintf(complaint, sizeof complaint, "--features %lld: should be a multiple of %lld heads",
                 (long long)o->features, (long long)o->heads);
    else if (s->dropout >= 1)
        snprintf(complaint, sizeof complaint, "--dropout %g: should be below 1", s->dropout);
    else if (!*s->prompt)
        snprintf(complaint, sizeof complaint, "--prompt is empty, should have a byte");
    example_agree(comm, *complaint ? complaint : NULL);
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

/* This rank's part of windows of the text, and of the bytes behind each of theirs. */
typedef struct batch {
    wf_tensor *x, *labels;
} batch;

static wf_tensor *take_part(const training *t, const wf_layout *layout, const uint8_t *text, const int64_t *at)
{
    const wf_box *const box = &layout->box;
    const int64_t n = box->hi[0] - box->lo[0], tokens = box->hi[1] - box->lo[1];
    uint8_t *host = example_room(n * tokens);
    for (int64_t i = 0; i < n; i++)
        memcpy(host + i * tokens, text + at[box->lo[0] + i] + box->lo[1], (size_t)tokens);
    wf_tensor *part = wf_tensor_from_host(wf_comm_ctx(t->comm), WF_U8, WF_SHAPE(n, tokens), host);
    WF_MUST(wf_check(part));
    WF_MUST(wf_tensor_set_layout(part, *layout));
    free(host);
    return part;
}

/* n windows that begin at `at`. */
static batch read_windows(const training *t, const uint8_t *text, const int64_t *at, int64_t n)
{
    wf_layout layout;
    const wf_layout_opts cut = {.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(1)}};
    WF_MUST(wf_mesh_layout(t->mesh, WF_SHAPE(n, t->model_opts.tokens), cut, &layout));
    return (batch){take_part(t, &layout, text, at), take_part(t, &layout, text + 1, at)};
}

static wf_var *loss_of_scores(wf_var *scores, const wf_tensor *labels)
{
    return wf_token_cross_entropy(scores, labels, (wf_label_opts){0});
}

/* A part of the loss, or with a pipeline the loss. Frees the batch's tensors. */
static wf_var *loss_of(const training *t, batch b)
{
    wf_var *loss = t->pipe ? wf_pipeline_step(t->pipe, t->tape, b.x, b.labels)
                           : loss_of_scores(wf_apply(t->model, wf_input(t->tape, b.x)), b.labels);
    wf_tensor_free(b.x);
    wf_tensor_free(b.labels);
    WF_MUST(wf_check(loss));
    return loss;
}

/* SplitMix64 of both numbers. */
static uint64_t draw_number(uint64_t seed, uint64_t count)
{
    uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15u + count * 0xbf58476d1ce4e5b9u;
    for (int i = 0; i < 2; i++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return z;
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* Rises at first, then falls along a cosine with the share of the run that is over, as a run may end by the clock. */
static double rate_at(const training *t, wf_trainer *trainer)
{
    const double rise = (double)(wf_trainer_iteration(trainer) + 1) / WARMUP;
    const double fall = 0.1 + 0.45 * (1 + cos(3.14159265358979 * wf_trainer_share(trainer)));
    return t->s->lr * (rise < 1 ? rise : 1) * fall;
}

/* Windows follow from the step alone, so a run that goes on needs to know no more. */
static wf_status step(wf_trainer *trainer, void *user)
{
    training *t = user;
    int64_t at[MOST_BATCH];
    const int64_t n = t->s->batch, first = wf_trainer_iteration(trainer) * n;
    for (int64_t i = 0; i < n; i++)
        at[i] = (int64_t)(draw_number((uint64_t)t->s->seed, (uint64_t)(first + i)) %
                          (uint64_t)(t->train - t->model_opts.tokens));
    wf_var *loss = loss_of(t, read_windows(t, t->text, at, n));
    WF_MUST(wf_optim_set_lr(t->optim, rate_at(t, trainer)));
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, 1));
    wf_trainer_add_samples(trainer, n * t->model_opts.tokens);
    return wf_tape_reset(t->tape);
}

/* Results of a test so far on this rank: its parts of the sums. */
typedef struct test_sums {
    double loss;
    int64_t hits; /* bytes that had the largest score */
} test_sums;

/* The last stage of a pipeline has scores. */
static bool has_scores(const training *t)
{
    return !t->pipe || wf_mesh_rank(t->mesh, WF_AXIS_STAGE) == wf_mesh_size(t->mesh, WF_AXIS_STAGE) - 1;
}

static wf_var *apply_model(const training *t, const wf_tensor *x)
{
    wf_var *y = t->pipe ? wf_pipeline_apply(t->pipe, t->tape, x) : wf_apply(t->model, wf_input(t->tape, x));
    WF_MUST(wf_check(y));
    return y;
}

static void test_batch(const training *t, batch b, int64_t n, test_sums *all)
{
    wf_var *scores = apply_model(t, b.x);
    if (has_scores(t)) {
        const wf_var *loss = loss_of_scores(scores, b.labels);
        const int64_t hits =
            wf_count_correct(wf_image(scores, WF_SHAPE(wf_var_shape(scores).dim[1])), b.labels, (wf_label_opts){0});
        WF_MUST(wf_check(loss));
        WF_MUST(hits < 0 ? wf_error_code() : WF_OK);
        all->loss += (double)n * wf_item(loss);
        all->hits += hits;
    }
    wf_tensor_free(b.x);
    wf_tensor_free(b.labels);
    WF_MUST(wf_tape_reset(t->tape));
}

/* Ranks that share the vocabulary have the same hits, and a part of the loss each. */
static void add_up(const training *t, test_sums *all)
{
    const wf_axis_set rows = WF_AXIS_BIT(WF_AXIS_DATA) | WF_AXIS_BIT(WF_AXIS_HEIGHT) | WF_AXIS_BIT(WF_AXIS_STAGE);
    WF_MUST(wf_allreduce_f64(t->comm, &all->loss, 1, WF_SUM));
    WF_MUST(wf_allreduce_i64(wf_mesh_comm(t->mesh, rows), &all->hits, 1, WF_SUM));
}

/* Bits for a byte of the held-out part, in windows side by side: on average half a window stands before a byte. */
static wf_status test(wf_trainer *trainer, void *user)
{
    training *t = user;
    const int64_t tokens = t->model_opts.tokens, all = (t->bytes - t->train - 1) / tokens;
    const int64_t windows = t->s->tests > 0 && t->s->tests < all ? t->s->tests : all;
    const int64_t tested = windows * tokens;
    int64_t at[MOST_BATCH];
    test_sums sum = {0};
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (int64_t done = 0; done < windows;) {
        const int64_t n = windows - done < t->s->batch ? windows - done : t->s->batch;
        for (int64_t i = 0; i < n; i++)
            at[i] = (done + i) * all / windows * tokens;
        test_batch(t, read_windows(t, t->text + t->train, at, n), n, &sum);
        done += n;
    }
    WF_MUST(wf_tape_set_mode(t->tape, WF_TRAIN));
    add_up(t, &sum);
    t->held_out = sum.loss / (double)windows / log(2);
    wf_trainer_print(trainer, "step %lld: %.6f bits a byte of %lld that were held out, accuracy %.4f",
                     (long long)wf_trainer_iteration(trainer), t->held_out, (long long)tested,
                     (double)sum.hits / (double)tested);
    return WF_OK;
}

static wf_status print_step(wf_trainer *trainer, void *unused)
{
    wf_trainer_print(trainer, "step %lld: loss %.6f, %.4f bits a byte, %.0f s",
                     (long long)wf_trainer_iteration(trainer), wf_trainer_mean(trainer, "loss"),
                     wf_trainer_mean(trainer, "loss") / log(2), wf_trainer_seconds(trainer));
    return WF_OK;
}

/* FNV-1a */
static int64_t hash_text(const uint8_t *text, int64_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < bytes; i++)
        hash = (hash ^ text[i]) * 0x100000001b3u;
    return (int64_t)hash;
}

/* What the shapes of parameters do not tell: a run goes on with the same model and text only. */
static wf_status visit_kind(void *user, wf_archive *archive)
{
    static const char *const names[] = {"heads", "rotary", "tokens", "text"};
    const training *t = user;
    const gpt_opts *o = &t->model_opts;
    const int64_t here[] = {o->heads, o->rotary, o->tokens, hash_text(t->text, t->bytes)};
    char complaint[512] = "";
    for (int i = 0; i < 4; i++) {
        int64_t saved = here[i];
        const wf_status status = wf_archive_i64(archive, names[i], &saved);
        if (status != WF_OK)
            return status;
        if (saved != here[i] && i < 3)
            snprintf(complaint, sizeof complaint, "--%s %lld: the checkpoint in %.200s has %lld", names[i],
                     (long long)here[i], t->s->saves.folder, (long long)saved);
        else if (saved != here[i])
            snprintf(complaint, sizeof complaint, "--text %.200s: the checkpoint in %.200s has learned another text",
                     t->s->text, t->s->saves.folder);
    }
    example_agree(t->comm, *complaint ? complaint : NULL);
    return WF_OK;
}

static int train(training *t)
{
    const settings *s = t->s;
    const double minutes = s->minutes > 0 || s->steps > 0 ? s->minutes : 10;
    wf_checkpoint *saves = example_saves_open(t->comm, &s->saves);
    if (saves) {
        WF_MUST(wf_checkpoint_add(saves, "kind", visit_kind, t)); /* first: it refuses before parameters are loaded */
        WF_MUST(wf_checkpoint_add_model(saves, "model", t->model));
        WF_MUST(wf_checkpoint_add_optim(saves, "optimizer", t->optim));
        WF_MUST(wf_checkpoint_add(saves, "tape", wf_tape_visit, t->tape));
    }
    wf_trainer *trainer = wf_trainer_new(t->comm, step, t,
                                         (wf_trainer_opts){.iterations = s->steps,
                                                           .seconds = 60 * minutes,
                                                           .report = {.iterations = s->every, .end = true},
                                                           .progress = STDOUT_FILENO,
                                                           .timeline = s->saves.timeline,
                                                           .profile = s->saves.profile ? STDOUT_FILENO : 0,
                                                           .unit = "bytes",
                                                           .optim = t->optim,
                                                           .finite = true});
    const wf_when lines = {.iterations = s->every, .end = true, .after_report = true};
    WF_MUST(wf_trainer_add_hook(trainer, "print", print_step, NULL, lines));
    WF_MUST(wf_trainer_add_hook(trainer, "test", test, t, (wf_when){.share = 0.1, .end = true, .after_report = true}));
    const int code = example_train(trainer, saves, &s->saves);
    wf_trainer_free(trainer);
    return code;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* The rank that has scores: of a pipeline the last stage, else every one has them. */
static int find_scorer(const training *t)
{
    int place[WF_AXES], rank = 0;
    for (int r = 0; r < wf_comm_size(t->comm); r++) {
        wf_mesh_place(t->mesh, r, place);
        if (place[WF_AXIS_STAGE] == wf_mesh_size(t->mesh, WF_AXIS_STAGE) - 1) {
            rank = r;
            break;
        }
    }
    return rank;
}

/* The scores of the byte behind the n that a window begins with; 0 where another rank has them. What stands behind
 * these n is 0, and hidden by the causal mask, so every window has one shape. */
static void score_next(const training *t, const uint8_t *window, int64_t n, float scores[BYTES])
{
    wf_layout layout;
    const int64_t start = 0, tokens = t->model_opts.tokens;
    const wf_layout_opts cut = {.dim = {[WF_AXIS_HEIGHT] = WF_DIM(1)}};
    WF_MUST(wf_mesh_layout(t->mesh, WF_SHAPE(1, tokens), cut, &layout));
    wf_tensor *x = take_part(t, &layout, window, &start);
    wf_var *y = apply_model(t, x);
    wf_tensor_free(x);
    memset(scores, 0, BYTES * sizeof *scores);
    if (!has_scores(t))
        return;
    y = wf_cast(wf_unshard(y), WF_F32);
    WF_MUST(wf_check(y));
    float *all = example_room((int64_t)wf_tensor_bytes(wf_value(y)));
    WF_MUST(wf_tensor_export(wf_value(y), all, wf_tensor_bytes(wf_value(y))));
    memcpy(scores, all + (n - 1) * t->model_opts.symbols, BYTES * sizeof *scores);
    free(all);
}

typedef struct candidate {
    float score;
    int byte;
} candidate;

/* The most probable first; of equals the smaller byte. */
static int compare_candidates(const void *a, const void *b)
{
    const candidate *const x = a, *const y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->byte - y->byte;
}

static uint8_t choose_byte(const settings *s, const float scores[BYTES], int64_t count)
{
    candidate of[BYTES];
    double weight[BYTES], sum = 0;
    const int64_t k = s->top_k > 0 ? s->top_k : BYTES;
    for (int i = 0; i < BYTES; i++)
        of[i] = (candidate){scores[i], i};
    qsort(of, BYTES, sizeof *of, compare_candidates);
    for (int64_t i = 0; i < k; i++)
        sum += weight[i] = exp((double)(of[i].score - of[0].score) / s->temperature);
    double left = sum * (double)(draw_number(~(uint64_t)s->seed, (uint64_t)count) >> 11) * 0x1p-53;
    for (int64_t i = 0; i + 1 < k; i++) {
        left -= weight[i];
        if (left < 0)
            return (uint8_t)of[i].byte;
    }
    return (uint8_t)of[k - 1].byte;
}

static void write_on(const training *t)
{
    const settings *const s = t->s;
    const int64_t tokens = t->model_opts.tokens, begun = (int64_t)strlen(s->prompt);
    const int scorer = find_scorer(t), rank = wf_comm_rank(t->comm);
    uint8_t *text = example_room(begun + s->write + tokens);
    memcpy(text, s->prompt, (size_t)begun);
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    text_writer out = {0};
    if (rank == 0)
        puts("writes:");
    for (int64_t n = 0; n < begun && rank == 0; n++)
        text_write(&out, text[n]);
    for (int64_t n = begun; n < begun + s->write; n++) {
        float scores[BYTES];
        const int64_t seen = n < tokens ? n : tokens;
        score_next(t, text + n - seen, seen, scores);
        WF_MUST(wf_tape_reset(t->tape));
        if (rank == scorer)
            text[n] = choose_byte(s, scores, n);
        WF_MUST(wf_bcast_bytes(t->comm, &text[n], 1, scorer));
        if (rank == 0)
            text_write(&out, text[n]);
        fflush(stdout); /* a byte takes a moment */
    }
    if (rank == 0)
        text_end(&out);
    free(text);
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

static gpt_opts choose_model(const settings *s)
{
    const int size = find_name(size_names, GPT_SIZES, s->size);
    return gpt_with_defaults((gpt_opts){.size = size < 0 ? GPT_TINY : (gpt_size)size,
                                        .symbols = BYTES,
                                        .tokens = s->tokens,
                                        .features = s->features,
                                        .heads = s->heads,
                                        .blocks = (int)s->blocks,
                                        .rotary = s->rotary,
                                        .dropout = s->dropout});
}

/* Stages have serial layers, and ranks that share none of the rest too. */
static void make_model(training *t)
{
    const bool staged = strcmp(t->s->parallel, "pipeline") == 0;
    gpt_opts o = t->model_opts;
    o.mesh = staged ? NULL : t->mesh;
    t->model = wf_layer_named(gpt(wf_comm_ctx(t->comm), o), "gpt");
    example_check(t->comm, wf_check(t->model));
    if (wf_comm_rank(t->comm) == 0)
        printf("%lld bytes to learn from, %lld held out; %lld blocks of %lld features, windows of %lld bytes\n",
               (long long)t->train, (long long)(t->bytes - t->train), (long long)o.blocks, (long long)o.features,
               (long long)o.tokens);
    fflush(stdout);
    if (staged) {
        t->pipe = wf_pipeline_new(t->mesh, t->model, (wf_pipeline_opts){.loss = loss_of_scores});
        example_check(t->comm, wf_check(t->pipe));
        t->model = wf_pipeline_model(t->pipe);
    }
    t->optim = example_scaled(wf_mesh_multi_node(
        t->mesh, wf_adamw(t->model, (wf_adam_opts){.lr = t->s->lr, .weight_decay = 0.01}), (wf_multi_node_opts){0}));
    example_check(t->comm, wf_check(t->optim));
    WF_MUST(wf_optim_clip_norm(t->optim, 1));
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    training t = {.s = &s, .comm = comm, .model_opts = choose_model(&s)};
    check_numbers(comm, &s, &t.model_opts);
    example_compute(comm, s.compute);
    t.mesh = wf_mesh_open(comm, choose_axes(comm, &s));
    example_check(comm, wf_check(t.mesh));
    t.text = text_read(comm, s.text, HELD_OUT * (t.model_opts.tokens + 1), &t.bytes);
    t.train = t.bytes - t.bytes / HELD_OUT;
    t.tape = wf_tape_new(wf_comm_ctx(comm));
    make_model(&t);
    const int code = train(&t);
    if (code == 0 && s.write > 0)
        write_on(&t);
    wf_optim_free(t.optim);
    if (t.pipe)
        wf_pipeline_free(t.pipe);
    else
        wf_layer_free(t.model);
    wf_tape_free(t.tape);
    wf_mesh_close(t.mesh);
    free(t.text);
    WF_MUST(wf_comm_close(comm));
    return code;
}
