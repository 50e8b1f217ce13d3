/* Messages of programs, translated in pieces of words: LSTMs with attention or a transformer
 * (examples/models/seq2seq.h) learn it from the catalogues that every Debian has.
 *
 *     mpirun -np 2 translate --language de                      (each rank takes half of every batch)
 *     mpirun -np 2 translate --language de --parallel model     (the encoder on one rank, the decoder on the other)
 *
 * Both forms log the losses of one rank. In the end it translates messages that it never trained on, greedily, and
 * prints their BLEU (examples/bleu.h), and that of the English messages as they are.
 */
#include "examples/bleu.h"
#include "examples/common.h"
#include "examples/models/seq2seq.h"
#include "examples/pieces.h"
#include "examples/text.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IGNORED = -1, SHOWN = 5, MOST_BYTES = 256, POOLED = 16 };

typedef struct settings {
    const char *communicator, *parallel, *model, *language, *data, *compute;
    int64_t batch, steps, features, levels, pieces, most, tests, every, tests_every, seed;
    double lr, smoothing;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .parallel = "data",
                  .model = "lstm",
                  .language = "de",
                  .batch = 128,
                  .steps = 4000,
                  .features = 256,
                  .levels = 1,
                  .pieces = 4000,
                  .most = 40,
                  .tests = 500,
                  .every = 50,
                  .lr = 1e-3,
                  .smoothing = 0.1};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"parallel", "HOW", "data: parts of a batch; model: encoder and decoder on two ranks", .text = &s.parallel},
        {"model", "NAME", "lstm or transformer", .text = &s.model},
        {"language", "NAME", "of the translations: de, fr, ...", .text = &s.language},
        {"data", "PATH", "folder of message catalogues (*.mo), else the system's", .text = &s.data},
        {"batch", "N", "sentences in a step, of all ranks", .number = &s.batch, .most = 4096, .least = 1},
        {"steps", "N", "steps of training", .number = &s.steps, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"features", "N", "features of a piece, even", .number = &s.features, .most = EXAMPLE_MOST_SIZE, .least = 2},
        {"levels", "N", "levels of the encoder, and of the decoder", .number = &s.levels, .most = 64, .least = 1},
        {"pieces", "N", "pieces of words", .number = &s.pieces, .most = PIECES_MOST, .least = PIECES_LEAST},
        {"most", "N", "bytes of the longest sentence", .number = &s.most, .most = MOST_BYTES - 1, .least = 4},
        {"tests", "N", "sentences that are translated in the end", .number = &s.tests, .most = EXAMPLE_MOST_SIZE},
        {"test-every", "N", "steps between two translations of them; 0: in the end", .number = &s.tests_every,
         .most = EXAMPLE_MOST_COUNT},
        {"log-every", "N", "steps between two lines", .number = &s.every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"lr", "X", "learning rate", .real = &s.lr},
        {"smoothing", "X", "part of a target that all pieces share; 0: none", .real = &s.smoothing, .zero = true},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s.compute),
        {0}};
    example_options(argc, argv, "Learns to translate the messages of programs, in pieces of words.", table);
    return s;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

typedef struct sentence {
    char text[MOST_BYTES];
    int32_t piece[MOST_BYTES];
    int64_t length; /* in pieces */
} sentence;

/* A message and its translation. */
typedef struct pair {
    sentence side[2];
} pair;

/* Pairs of POOLED batches, by length, so that the sentences of a batch need little padding. */
typedef struct pool {
    pair *pairs;
    pair **sorted;
    int64_t count, batches, given;
} pool;

typedef struct training {
    const settings *s;
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    bool cut; /* the decoder is on rank 0, which prints, the encoder on rank 1 */
    pieces *pieces;
    wf_layer *model;             /* owns the two */
    wf_layer *encoder, *decoder; /* NULL where another rank has it */
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *pools;
    pool pool;
    double begun;
} training;

static void check_parallel(wf_comm *comm, const settings *s)
{
    char complaint[256] = "";
    if (strcmp(s->parallel, "data") != 0 && strcmp(s->parallel, "model") != 0)
        snprintf(complaint, sizeof complaint, "--parallel %s: should be data or model", s->parallel);
    else if (strcmp(s->model, "lstm") != 0 && strcmp(s->model, "transformer") != 0)
        snprintf(complaint, sizeof complaint, "--model %s: should be lstm or transformer", s->model);
    else if (s->features % 2 != 0)
        snprintf(complaint, sizeof complaint, "--features %lld: should be even", (long long)s->features);
    else if (s->smoothing >= 1)
        snprintf(complaint, sizeof complaint, "--smoothing %g: should be below 1", s->smoothing);
    else if (strcmp(s->parallel, "model") == 0 && wf_comm_size(comm) != 2)
        snprintf(complaint, sizeof complaint, "--parallel model on %d ranks, should be 2", wf_comm_size(comm));
    example_agree(comm, *complaint ? complaint : NULL);
}

/* Both halves in one model, or, as in ChainerMN's example, one half a rank: the state is what goes between them. */
static void make_model(training *t)
{
    const seq2seq_opts o = {.transformer = strcmp(t->s->model, "transformer") == 0,
                            .symbols = pieces_count(t->pieces),
                            .features = t->s->features,
                            .levels = (int)t->s->levels,
                            .most = t->s->most + 1};
    if (!t->cut) {
        t->model = wf_layer_named(seq2seq(t->ctx, o), "translate");
        t->encoder = wf_layer_child(t->model, "encoder");
        t->decoder = wf_layer_child(t->model, "decoder");
        return;
    }
    t->model = wf_layer_named(wf_multi_node_chain(t->comm), "translate");
    if (t->rank == 1) {
        t->encoder = seq2seq_encoder(t->ctx, o);
        WF_MUST(wf_multi_node_chain_add(t->model, (wf_component){.name = "encoder",
                                                                 .layer = t->encoder,
                                                                 WF_FROM({.rank = WF_OUTSIDE, .name = "source"},
                                                                         {.rank = WF_OUTSIDE, .name = "lengths"}),
                                                                 WF_TO({.rank = 0, .name = "encoded"})}));
    } else {
        t->decoder = seq2seq_decoder(t->ctx, o);
        WF_MUST(wf_multi_node_chain_add(
            t->model,
            (wf_component){.name = "decoder",
                           .layer = t->decoder,
                           WF_FROM({.rank = WF_OUTSIDE, .name = "before"}, {.rank = WF_OUTSIDE, .name = "source"},
                                   {.rank = WF_OUTSIDE, .name = "lengths"}, {.rank = 1, .name = "encoded"}),
                           WF_TO({.rank = WF_OUTSIDE})}));
    }
    WF_MUST(wf_multi_node_chain_connect(t->model));
}

static wf_dataset *pairs_of(const training *t, wf_dataset_split split)
{
    const wf_catalogue_opts o = {.path = t->s->data, .language = t->s->language, .most = t->s->most};
    wf_dataset *pairs = wf_catalogue(t->ctx, o, split);
    example_check_each(t->comm, wf_dataset_open(pairs)); /* every rank reads the catalogues of its machine */
    int64_t ends[2] = {wf_dataset_count(pairs), -wf_dataset_count(pairs)};
    WF_MUST(wf_allreduce_i64(t->comm, ends, 2, WF_MAX));
    example_agree(t->comm, ends[0] == -ends[1] ? NULL : "the ranks have catalogues of different numbers of messages");
    char complaint[256];
    snprintf(complaint, sizeof complaint, "%s: there is no pair of sentences to %s",
             t->s->data ? t->s->data : t->s->language, split == WF_TEST_SET ? "translate" : "learn from");
    example_agree(t->comm, wf_dataset_count(pairs) > 0 ? NULL : complaint);
    return pairs;
}

/* Every rank learns the same pieces, from both languages at once: names then are the same pieces in both. */
static void learn_pieces(training *t)
{
    const int64_t most = t->s->most;
    wf_dataset *pairs = pairs_of(t, WF_TRAIN_SET);
    const int64_t n = wf_dataset_count(pairs);
    char *text = example_room(2 * n * (most + 1));
    const char **texts = example_room(2 * n * (int64_t)sizeof *texts);
    uint8_t *raw = example_room(n * 2 * most);
    wf_iter *all = wf_batches(pairs, (wf_batch_opts){.size = n, .raw = true});
    wf_batch batch;
    WF_MUST(wf_iter_next(all, &batch));
    WF_MUST(wf_tensor_export(batch.x, raw, wf_tensor_bytes(batch.x)));
    for (int64_t i = 0; i < 2 * n; i++)
        texts[i] = memcpy(text + i * (most + 1), raw + i * most, (size_t)most);
    t->pieces = pieces_learn(texts, 2 * n, (int)t->s->pieces);
    if (!t->pieces)
        example_abort("no memory for %lld pieces", (long long)t->s->pieces);
    if (t->rank == 0)
        printf("%lld messages to learn from, in %d pieces of words\n", (long long)n, pieces_count(t->pieces));
    wf_iter_free(all);
    free(raw);
    free(texts);
    free(text);
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

/* Pairs [lo, hi) of a batch, as long as the longest of the whole batch, so that parts have one shape. */
typedef struct batch {
    pair *const *pairs;
    int64_t lo, hi;
    int64_t longest[2];
} batch;

static void read_pairs(const training *t, const wf_batch *from, int64_t n, pair *pairs)
{
    const int64_t most = t->s->most;
    uint8_t *raw = example_room((int64_t)wf_tensor_bytes(from->x));
    WF_MUST(wf_tensor_export(from->x, raw, wf_tensor_bytes(from->x)));
    for (int64_t i = 0; i < 2 * n; i++) {
        sentence *s = &pairs[i / 2].side[i % 2];
        memset(s->text, 0, sizeof s->text);
        memcpy(s->text, raw + i * most, (size_t)most);
        s->length = pieces_split(t->pieces, s->text, s->piece);
    }
    free(raw);
}

static batch take_part(const training *t, pair *const *pairs, int64_t n)
{
    const int part = t->cut ? 0 : t->rank, parts = t->cut ? 1 : t->size;
    batch b = {.pairs = pairs, .lo = n * part / parts, .hi = n * (part + 1) / parts, .longest = {1, 1}};
    for (int64_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            const int64_t length = pairs[i]->side[side].length;
            b.longest[side] = length > b.longest[side] ? length : b.longest[side];
        }
    return b;
}

/* By place where lengths are equal, since qsort need not keep their order. */
static int compare_pairs(const void *a, const void *b)
{
    const pair *const x = *(pair *const *)a, *const y = *(pair *const *)b;
    const int64_t nx = x->side[0].length + 2 * x->side[1].length, ny = y->side[0].length + 2 * y->side[1].length;
    return nx != ny ? (nx > ny) - (nx < ny) : (x > y) - (x < y);
}

static void fill_pool(training *t)
{
    pool *p = &t->pool;
    const int64_t most = t->s->batch * POOLED;
    if (!p->pairs) {
        p->pairs = example_room(most * (int64_t)sizeof *p->pairs);
        p->sorted = example_room(most * (int64_t)sizeof *p->sorted);
    }
    wf_batch from;
    WF_MUST(wf_iter_next(t->pools, &from));
    read_pairs(t, &from, from.size, p->pairs);
    for (int64_t i = 0; i < from.size; i++)
        p->sorted[i] = &p->pairs[i];
    qsort(p->sorted, (size_t)from.size, sizeof *p->sorted, compare_pairs);
    p->count = from.size;
    p->batches = (from.size + t->s->batch - 1) / t->s->batch;
    p->given = 0;
}

/* First every second batch of the pool, then the others: short and long ones alternate in either half. */
static batch next_batch(training *t)
{
    pool *p = &t->pool;
    if (p->given == p->batches)
        fill_pool(t);
    const int64_t even = (p->batches + 1) / 2, k = p->given++;
    const int64_t at = k < even ? 2 * k : 2 * (k - even) + 1;
    const int64_t lo = p->count * at / p->batches, hi = p->count * (at + 1) / p->batches;
    return take_part(t, p->sorted + lo, hi - lo);
}

static wf_var *input_of(const training *t, wf_shape shape, int32_t *host)
{
    wf_tensor *x = wf_tensor_from_host(t->ctx, WF_I32, shape, host);
    wf_var *v = wf_input(t->tape, x);
    wf_tensor_free(x);
    free(host);
    return v;
}

static void read_sources(const training *t, const batch *b, wf_var *x[2])
{
    const int64_t n = b->hi - b->lo, s = b->longest[0];
    int32_t *piece = example_room(n * s * (int64_t)sizeof *piece),
            *lengths = example_room(n * (int64_t)sizeof *lengths);
    for (int64_t i = 0; i < n; i++) {
        const sentence *from = &b->pairs[b->lo + i]->side[0];
        memcpy(piece + i * s, from->piece, (size_t)from->length * sizeof *piece);
        lengths[i] = (int32_t)from->length;
    }
    x[0] = input_of(t, WF_SHAPE(n, s), piece);
    x[1] = input_of(t, WF_SHAPE(n), lengths);
}

/* The pieces before each one of the translations, and these with the end; returns how many they are. */
static int64_t read_targets(const training *t, const batch *b, wf_var **before, wf_tensor **labels)
{
    const int64_t n = b->hi - b->lo, s = b->longest[1] + 1;
    int32_t *in = example_room(n * s * (int64_t)sizeof *in), *out = example_room(n * s * (int64_t)sizeof *out);
    int64_t counted = 0;
    for (int64_t i = 0; i < n; i++) {
        const sentence *to = &b->pairs[b->lo + i]->side[1];
        for (int64_t k = 0; k < s; k++) {
            in[i * s + k] = k > 0 && k <= to->length ? to->piece[k - 1] : 0;
            out[i * s + k] = k < to->length ? to->piece[k] : k == to->length ? 0 : IGNORED;
        }
        counted += to->length + 1;
    }
    *before = input_of(t, WF_SHAPE(n, s), in);
    *labels = wf_tensor_from_host(t->ctx, WF_I32, WF_SHAPE(n * s), out);
    free(out);
    return counted;
}

/* --- translation -------------------------------------------------------------------------------------------------- */

/* The states of the sources x that the decoder reads, on its rank; NULL elsewhere. */
static wf_var *encode(const training *t, wf_var *const x[2])
{
    wf_var *encoded = NULL;
    if (t->encoder) {
        encoded = wf_apply_n(t->encoder, x, 2);
        WF_MUST(wf_check(encoded));
    }
    if (!t->cut)
        return encoded;
    if (t->encoder) {
        WF_MUST(wf_send_new(t->comm, wf_value(encoded), 0, 0));
        return NULL;
    }
    wf_tensor *received = wf_recv_new(t->comm, 1, 0);
    encoded = wf_input(t->tape, received);
    wf_tensor_free(received);
    return encoded;
}

static int32_t best_of(const float *scores, int symbols)
{
    int best = 0;
    for (int k = 1; k < symbols; k++)
        best = scores[k] > scores[best] ? k : best;
    return best;
}

/* Takes the most probable piece each time, until every sentence has ended, or has about twice the pieces of the longest
 * source: told [n][most]. */
static void decode(const training *t, wf_var *const x[2], wf_var *encoded, int64_t n, int64_t most, int32_t *told)
{
    const int symbols = pieces_count(t->pieces);
    const int64_t limit = 2 * wf_tensor_shape(wf_value(x[0])).dim[1] + 8;
    int64_t going = n;
    for (int64_t at = 0; at < most && at < limit && going > 0; at++) {
        int32_t *before = example_room(n * (at + 1) * (int64_t)sizeof *before);
        for (int64_t i = 0; i < n; i++)
            memcpy(before + i * (at + 1) + 1, told + i * most, (size_t)at * sizeof *before);
        wf_var *of[] = {input_of(t, WF_SHAPE(n, at + 1), before), x[0], x[1], encoded};
        wf_var *y = wf_cast(wf_apply_n(t->decoder, of, 4), WF_F32);
        WF_MUST(wf_check(y));
        float *scores = example_room((int64_t)wf_tensor_bytes(wf_value(y)));
        WF_MUST(wf_tensor_export(wf_value(y), scores, wf_tensor_bytes(wf_value(y))));
        going = 0;
        for (int64_t i = 0; i < n; i++) {
            const bool ended = at > 0 && told[i * most + at - 1] == 0;
            told[i * most + at] = ended ? 0 : best_of(scores + (i * (at + 1) + at) * symbols, symbols);
            going += told[i * most + at] != 0;
        }
        free(scores);
    }
}

/* Catalogues may hold anything, and so may what is made of their pieces. */
static void print_text(const char *before, const char *text)
{
    text_writer out = {0};
    fputs(before, stdout);
    for (; *text; text++)
        text_write(&out, (uint8_t)*text);
    text_end(&out);
}

static void show_sentences(const char *source, const char *translated, const char *catalogue)
{
    print_text("", source);
    print_text("    translated:   ", translated);
    print_text("    in catalogue: ", catalogue);
}

/* Adds the sentences of a batch to both scores; shows the first ones. */
static void score_batch(const training *t, const batch *b, bool shows, bleu *ours, bleu *copied)
{
    const int64_t n = b->hi - b->lo, most = t->s->most;
    wf_var *x[2];
    read_sources(t, b, x);
    wf_var *encoded = encode(t, x);
    if (!encoded || n == 0)
        return;
    int32_t *told = example_room(n * most * (int64_t)sizeof *told);
    decode(t, x, encoded, n, most, told);
    for (int64_t i = 0; i < n; i++) {
        const sentence *side = b->pairs[b->lo + i]->side;
        char text[MOST_BYTES];
        pieces_join(t->pieces, told + i * most, most, text, sizeof text);
        bleu_add(ours, text, side[1].text);
        bleu_add(copied, side[0].text, side[1].text);
        if (shows && i < SHOWN)
            show_sentences(side[0].text, text, side[1].text);
    }
    free(told);
}

static void sum_scores(const training *t, bleu *of)
{
    double sums[2 * BLEU_ORDERS + 2];
    memcpy(sums, of, sizeof *of);
    WF_MUST(wf_allreduce_f64(t->comm, sums, 2 * BLEU_ORDERS + 2, WF_SUM));
    memcpy(of, sums, sizeof *of);
}

static void translate(training *t, bool shows)
{
    enum { TOGETHER = 64 };
    bleu ours = {0}, copied = {0};
    wf_dataset *pairs = pairs_of(t, WF_TEST_SET);
    const int64_t all = t->s->tests < wf_dataset_count(pairs) ? t->s->tests : wf_dataset_count(pairs);
    wf_iter *iter = wf_batches(pairs, (wf_batch_opts){.size = TOGETHER, .shuffle = true, .raw = true, .seed = 1});
    pair *room = example_room(TOGETHER * (int64_t)sizeof *room), *of[TOGETHER];
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (int64_t left = all; left > 0;) {
        wf_batch from;
        WF_MUST(wf_iter_next(iter, &from));
        const int64_t n = from.size < left ? from.size : left;
        read_pairs(t, &from, n, room);
        for (int64_t i = 0; i < n; i++)
            of[i] = &room[i];
        const batch b = take_part(t, of, n);
        score_batch(t, &b, shows && left == all && t->rank == 0, &ours, &copied);
        left -= n;
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_tape_set_mode(t->tape, WF_TRAIN));
    sum_scores(t, &ours);
    sum_scores(t, &copied);
    if (t->rank == 0) {
        printf("BLEU of %lld messages: %.2f; of the English ones as they are: %.2f\n", (long long)all,
               100 * bleu_score(&ours), 100 * bleu_score(&copied));
        fflush(stdout);
    }
    free(room);
    wf_iter_free(iter);
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* This rank's loss, or the token of the rank of the encoder; *counted: the pieces that the loss is a mean over. */
static wf_var *loss_of(const training *t, const batch *b, int64_t *counted)
{
    wf_var *source[2], *before = NULL;
    wf_tensor *labels = NULL;
    read_sources(t, b, source);
    *counted = t->decoder ? read_targets(t, b, &before, &labels) : 0;
    wf_var *scores = !t->cut      ? wf_apply_n(t->model, WF_INPUTS(source[0], source[1], before))
                     : t->encoder ? wf_apply_n(t->model, source, 2)
                                  : wf_apply_n(t->model, WF_INPUTS(before, source[0], source[1]));
    if (!t->decoder)
        return scores;
    const wf_label_opts opts = {.ignores = true, .ignored = IGNORED, .smoothing = t->s->smoothing};
    wf_var *loss = wf_softmax_cross_entropy(scores, labels, opts);
    wf_tensor_free(labels);
    return loss;
}

/* sums: this rank's loss, pieces, and seconds of its processors. */
static void print_step(const training *t, int64_t step, double sums[3])
{
    WF_MUST(wf_allreduce_f64(t->comm, sums, 3, WF_SUM));
    if (t->rank == 0) {
        example_finite("loss", sums[0] / sums[1], step);
        printf("step %lld: loss %.6f, %.0f s, %.0f s of processors\n", (long long)step, sums[0] / sums[1],
               example_seconds() - t->begun, sums[2]);
        fflush(stdout);
    }
}

static void train(training *t)
{
    const settings *s = t->s;
    t->begun = example_seconds();
    for (int64_t step = 1; step <= s->steps; step++) {
        const batch b = next_batch(t);
        int64_t counted;
        wf_var *loss = loss_of(t, &b, &counted);
        WF_MUST(wf_check(loss));
        const bool logs = step % s->every == 0 || step == s->steps;
        double sums[3] = {logs && counted > 0 ? wf_item(loss) * (double)counted : 0, (double)counted};
        WF_MUST(wf_optim_step(t->optim, loss));
        WF_MUST(wf_tape_reset(t->tape));
        sums[2] = (double)clock() / CLOCKS_PER_SEC;
        if (logs)
            print_step(t, step, sums);
        if (s->tests > 0 && s->tests_every > 0 && step % s->tests_every == 0 && step < s->steps)
            translate(t, false);
    }
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    check_parallel(comm, &s);
    example_compute(comm, s.compute);
    training t = {.s = &s,
                  .comm = comm,
                  .ctx = wf_comm_ctx(comm),
                  .rank = wf_comm_rank(comm),
                  .size = wf_comm_size(comm),
                  .cut = strcmp(s.parallel, "model") == 0};
    learn_pieces(&t);
    const wf_batch_opts pools = {.size = s.batch * POOLED, .shuffle = true, .raw = true, .seed = (uint64_t)s.seed + 1};
    t.pools = wf_batches(pairs_of(&t, WF_TRAIN_SET), pools);
    t.tape = wf_tape_new(t.ctx);
    make_model(&t);
    t.optim = wf_lr_schedule(
        wf_adam(t.model, (wf_adam_opts){.lr = s.lr}),
        (wf_schedule_opts){
            .kind = WF_SCHEDULE_COSINE, .warmup = s.steps / 20, .total = s.steps - s.steps / 20, .end = 0.05});
    if (!t.cut)
        t.optim = wf_multi_node(comm, t.optim, (wf_multi_node_opts){0});
    example_check(comm, wf_check(t.optim));
    train(&t);
    if (s.tests > 0)
        translate(&t, true);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    wf_iter_free(t.pools);
    free(t.pool.pairs);
    free(t.pool.sorted);
    pieces_free(t.pieces);
    wf_tape_free(t.tape);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
