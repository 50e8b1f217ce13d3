/* Messages of programs, translated byte by byte: two LSTMs learn it from the catalogues that every Debian has.
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

#include <stdlib.h>
#include <string.h>

enum { IGNORED = 255, SHOWN = 5, MOST_BYTES = 1024 };

typedef struct settings {
    const char *communicator, *parallel, *language, *data;
    int64_t batch, steps, hidden, features, levels, most, tests, every, seed;
    double lr;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .parallel = "data",
                  .language = "de",
                  .batch = 128,
                  .steps = 4000,
                  .hidden = 256,
                  .features = 64,
                  .levels = 2,
                  .most = 40,
                  .tests = 500,
                  .every = 50,
                  .lr = 2e-3};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"parallel", "HOW", "data: parts of a batch; model: encoder and decoder on two ranks", .text = &s.parallel},
        {"language", "NAME", "of the translations: de, fr, ...", .text = &s.language},
        {"data", "PATH", "folder of message catalogues (*.mo), else the system's", .text = &s.data},
        {"batch", "N", "sentences in a step, of all ranks", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"steps", "N", "steps of training", .number = &s.steps, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"hidden", "N", "features of the state", .number = &s.hidden, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"features", "N", "features of a byte", .number = &s.features, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"levels", "N", "levels of either LSTM", .number = &s.levels, .most = 64, .least = 1},
        {"most", "N", "bytes of the longest sentence", .number = &s.most, .most = MOST_BYTES - 1, .least = 4},
        {"tests", "N", "sentences that are translated in the end", .number = &s.tests, .most = EXAMPLE_MOST_SIZE},
        {"log-every", "N", "steps between two lines", .number = &s.every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"lr", "X", "learning rate", .real = &s.lr},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        {0}};
    example_options(argc, argv, "Learns to translate the messages of programs, a byte at a time.", table);
    return s;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

typedef struct training {
    const settings *s;
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    bool cut;                    /* the decoder is on rank 0, which prints, the encoder on rank 1 */
    wf_layer *model;             /* owns the two */
    wf_layer *encoder, *decoder; /* NULL where another rank has it */
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *batches;
} training;

static void check_parallel(wf_comm *comm, const settings *s)
{
    char complaint[256] = "";
    if (strcmp(s->parallel, "data") != 0 && strcmp(s->parallel, "model") != 0)
        snprintf(complaint, sizeof complaint, "--parallel %s: should be data or model", s->parallel);
    else if (strcmp(s->parallel, "model") == 0 && wf_comm_size(comm) != 2)
        snprintf(complaint, sizeof complaint, "--parallel model on %d ranks, should be 2", wf_comm_size(comm));
    example_agree(comm, *complaint ? complaint : NULL);
}

/* Both halves in one model, or, as in ChainerMN's example, one half a rank: the state is what goes between them. */
static void make_model(training *t)
{
    const seq2seq_opts o = {.features = t->s->features, .hidden = t->s->hidden, .levels = (int)t->s->levels};
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
                                                                 WF_FROM({.rank = WF_OUTSIDE, .name = "bytes"},
                                                                         {.rank = WF_OUTSIDE, .name = "lengths"}),
                                                                 WF_TO({.rank = 0, .name = "state"})}));
    } else {
        t->decoder = seq2seq_decoder(t->ctx, o);
        WF_MUST(wf_multi_node_chain_add(
            t->model, (wf_component){.name = "decoder",
                                     .layer = t->decoder,
                                     WF_FROM({.rank = WF_OUTSIDE, .name = "bytes"}, {.rank = 1, .name = "state"}),
                                     WF_TO({.rank = WF_OUTSIDE})}));
    }
    WF_MUST(wf_multi_node_chain_connect(t->model));
}

static wf_dataset *pairs_of(const training *t, wf_dataset_split split)
{
    const wf_catalogue_opts o = {.path = t->s->data, .language = t->s->language, .most = t->s->most};
    wf_dataset *pairs = wf_catalogue(t->ctx, o, split);
    const wf_status status = wf_dataset_open(pairs); /* every rank reads the catalogues of its machine */
    for (int r = 0; r < wf_comm_size(t->comm); r++)
        example_check(t->comm, wf_bcast_status(t->comm, r == t->rank ? status : WF_OK, r));
    int64_t ends[2] = {wf_dataset_count(pairs), -wf_dataset_count(pairs)};
    WF_MUST(wf_allreduce_i64(t->comm, ends, 2, WF_MAX));
    example_agree(t->comm, ends[0] == -ends[1] ? NULL : "the ranks have catalogues of different numbers of messages");
    char complaint[256];
    snprintf(complaint, sizeof complaint, "%s: there is no pair of sentences to %s",
             t->s->data ? t->s->data : t->s->language, split == WF_TEST_SET ? "translate" : "learn from");
    example_agree(t->comm, wf_dataset_count(pairs) > 0 ? NULL : complaint);
    return pairs;
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

/* Sentences [lo, hi) of a batch, as long as the longest of the whole batch, so that parts have one shape. */
typedef struct sentences {
    const uint8_t *pair; /* [n,2,most] */
    int64_t most, lo, hi;
    int64_t longest[2];
} sentences;

static const char *sentence_of(const sentences *b, int64_t i, int side)
{
    return (const char *)b->pair + (2 * i + side) * b->most;
}

static sentences read_sentences(const uint8_t *pair, int64_t n, int64_t most, int part, int parts)
{
    sentences b = {.pair = pair, .most = most, .lo = n * part / parts, .hi = n * (part + 1) / parts, .longest = {1, 1}};
    for (int64_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            const int64_t length = (int64_t)strnlen(sentence_of(&b, i, side), (size_t)most);
            b.longest[side] = length > b.longest[side] ? length : b.longest[side];
        }
    return b;
}

static wf_var *input_of(const training *t, wf_dtype dtype, wf_shape shape, void *host)
{
    wf_tensor *x = wf_tensor_from_host(t->ctx, dtype, shape, host);
    wf_var *v = wf_input(t->tape, x);
    wf_tensor_free(x);
    free(host);
    return v;
}

static void *room_of(int64_t bytes)
{
    void *room = calloc((size_t)bytes + 1, 1);
    if (!room)
        example_abort("no memory for a batch of %lld bytes", (long long)bytes);
    return room;
}

static void read_sources(const training *t, const sentences *b, wf_var *x[2])
{
    const int64_t n = b->hi - b->lo, s = b->longest[0];
    uint8_t *bytes = room_of(n * s);
    int32_t *lengths = room_of(n * (int64_t)sizeof *lengths);
    for (int64_t i = 0; i < n; i++) {
        memcpy(bytes + i * s, sentence_of(b, b->lo + i, 0), (size_t)s);
        lengths[i] = (int32_t)strnlen((const char *)bytes + i * s, (size_t)s);
    }
    x[0] = input_of(t, WF_U8, WF_SHAPE(n, s), bytes);
    x[1] = input_of(t, WF_I32, WF_SHAPE(n), lengths);
}

/* The bytes before each byte of the translations, and the bytes themselves with the end; returns how many these are. */
static int64_t read_targets(const training *t, const sentences *b, wf_var **before, wf_tensor **labels)
{
    const int64_t n = b->hi - b->lo, s = b->longest[1] + 1;
    uint8_t *in = room_of(n * s), *out = room_of(n * s);
    int64_t counted = 0;
    memset(out, IGNORED, (size_t)(n * s));
    for (int64_t i = 0; i < n; i++) {
        const char *const text = sentence_of(b, b->lo + i, 1);
        const size_t length = strnlen(text, (size_t)b->most);
        memcpy(in + i * s + 1, text, length);
        memcpy(out + i * s, text, length);
        out[i * s + (int64_t)length] = 0;
        counted += (int64_t)length + 1;
    }
    *before = input_of(t, WF_U8, WF_SHAPE(n, s), in);
    *labels = wf_tensor_from_host(t->ctx, WF_U8, WF_SHAPE(n * s), out);
    free(out);
    return counted;
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* This rank's loss, or the token of the rank of the encoder; *counted: the bytes that the loss is a mean over. */
static wf_var *loss_of(const training *t, const sentences *b, int64_t *counted)
{
    wf_var *x[3] = {0};
    wf_tensor *labels = NULL;
    *counted = 0;
    if (t->encoder)
        read_sources(t, b, x);
    if (t->decoder)
        *counted = read_targets(t, b, &x[t->cut ? 0 : 2], &labels);
    wf_var *scores = wf_apply_n(t->model, x, !t->cut ? 3 : t->encoder ? 2 : 1);
    if (!t->decoder)
        return scores;
    const wf_label_opts opts = {.ignores = true, .ignored = IGNORED};
    wf_var *loss = wf_softmax_cross_entropy_with(scores, labels, opts);
    wf_tensor_free(labels);
    return loss;
}

static void train(training *t)
{
    const int64_t most = t->s->most;
    uint8_t *pair = room_of(t->s->batch * 2 * most);
    const double begun = example_seconds();
    for (int64_t step = 1; step <= t->s->steps; step++) {
        wf_batch batch;
        WF_MUST(wf_iter_next(t->batches, &batch));
        WF_MUST(wf_tensor_export(batch.x, pair, wf_tensor_bytes(batch.x)));
        const sentences b = read_sentences(pair, batch.size, most, t->cut ? 0 : t->rank, t->cut ? 1 : t->size);
        int64_t counted;
        wf_var *loss = loss_of(t, &b, &counted);
        WF_MUST(wf_check(loss));
        const bool logs = step % t->s->every == 0 || step == t->s->steps;
        double sums[2] = {logs && counted > 0 ? wf_item(loss) * (double)counted : 0, (double)counted};
        WF_MUST(wf_optim_step(t->optim, loss));
        WF_MUST(wf_tape_reset(t->tape));
        if (!logs)
            continue;
        WF_MUST(wf_allreduce_f64(t->comm, sums, 2, WF_SUM));
        if (t->rank == 0) {
            printf("step %lld: loss %.6f, %.0f s\n", (long long)step, sums[0] / sums[1], example_seconds() - begun);
            fflush(stdout);
        }
    }
    free(pair);
}

/* --- translation -------------------------------------------------------------------------------------------------- */

/* The state after the sentences, on the rank of the decoder; NULL elsewhere. */
static wf_var *encode(const training *t, const sentences *b)
{
    wf_var *state = NULL;
    if (t->encoder) {
        wf_var *x[2];
        read_sources(t, b, x);
        state = wf_apply_n(t->encoder, x, 2);
        WF_MUST(wf_check(state));
    }
    if (!t->cut)
        return state;
    if (t->encoder) {
        WF_MUST(wf_send_new(t->comm, wf_value(state), 0, 0));
        return NULL;
    }
    wf_tensor *received = wf_recv_new(t->comm, 1, 0);
    state = wf_input(t->tape, received);
    wf_tensor_free(received);
    return state;
}

static uint8_t best_of(const float *scores)
{
    int best = 0;
    for (int k = 1; k < SEQ2SEQ_SYMBOLS; k++)
        best = scores[k] > scores[best] ? k : best;
    return (uint8_t)best;
}

/* Takes the most probable byte each time, until every sentence has ended: text [n][MOST_BYTES]. */
static void decode(const training *t, wf_var *state, int64_t n, int64_t most, char (*text)[MOST_BYTES])
{
    float *scores = room_of(n * SEQ2SEQ_SYMBOLS * (int64_t)sizeof *scores);
    memset(text, 0, (size_t)n * sizeof *text);
    int64_t going = n;
    for (int64_t at = 0; at < most && going > 0; at++) {
        uint8_t *before = room_of(n);
        for (int64_t i = 0; i < n && at > 0; i++)
            before[i] = (uint8_t)text[i][at - 1];
        wf_var *y = seq2seq_go_on(t->decoder, input_of(t, WF_U8, WF_SHAPE(n, 1), before), &state);
        WF_MUST(wf_check(y));
        WF_MUST(wf_tensor_export(wf_value(y), scores, wf_tensor_bytes(wf_value(y))));
        going = 0;
        for (int64_t i = 0; i < n; i++) {
            const bool ended = at > 0 && text[i][at - 1] == 0;
            text[i][at] = ended ? 0 : (char)best_of(scores + i * SEQ2SEQ_SYMBOLS);
            going += text[i][at] != 0;
        }
    }
    free(scores);
}

/* Adds the sentences of a batch to both scores; shows the first ones. */
static void score_batch(const training *t, const sentences *b, bool shows, bleu *ours, bleu *copied)
{
    const int64_t n = b->hi - b->lo;
    wf_var *state = encode(t, b);
    if (!state || n == 0)
        return;
    char(*text)[MOST_BYTES] = room_of(n * MOST_BYTES);
    decode(t, state, n, b->most, text);
    for (int64_t i = 0; i < n; i++) {
        char from[MOST_BYTES] = {0}, to[MOST_BYTES] = {0};
        memcpy(from, sentence_of(b, b->lo + i, 0), (size_t)b->most);
        memcpy(to, sentence_of(b, b->lo + i, 1), (size_t)b->most);
        bleu_add(ours, text[i], to);
        bleu_add(copied, from, to);
        if (shows && i < SHOWN)
            printf("%s\n    translated:   %s\n    in catalogue: %s\n", from, text[i], to);
    }
    free(text);
}

static void translate(training *t)
{
    const int64_t most = t->s->most, size = 64;
    double sums[2][2 * BLEU_ORDERS + 2];
    bleu ours = {0}, copied = {0};
    wf_dataset *pairs = pairs_of(t, WF_TEST_SET);
    int64_t left = t->s->tests < wf_dataset_count(pairs) ? t->s->tests : wf_dataset_count(pairs);
    wf_iter *iter = wf_batches(pairs, (wf_batch_opts){.size = size, .shuffle = true, .raw = true, .seed = 1});
    uint8_t *pair = room_of(size * 2 * most);
    const int64_t all = left;
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    while (left > 0) {
        wf_batch batch;
        WF_MUST(wf_iter_next(iter, &batch));
        WF_MUST(wf_tensor_export(batch.x, pair, wf_tensor_bytes(batch.x)));
        const int64_t n = batch.size < left ? batch.size : left;
        const sentences b = read_sentences(pair, n, most, t->cut ? 0 : t->rank, t->cut ? 1 : t->size);
        score_batch(t, &b, left == all && t->rank == 0, &ours, &copied);
        left -= n;
        WF_MUST(wf_tape_reset(t->tape));
    }
    memcpy(sums[0], &ours, sizeof ours);
    memcpy(sums[1], &copied, sizeof copied);
    WF_MUST(wf_allreduce_f64(t->comm, sums[0], 2 * (2 * BLEU_ORDERS + 2), WF_SUM));
    memcpy(&ours, sums[0], sizeof ours);
    memcpy(&copied, sums[1], sizeof copied);
    if (t->rank == 0)
        printf("BLEU of %lld messages: %.2f; of the English ones as they are: %.2f\n", (long long)all,
               100 * bleu_score(&ours), 100 * bleu_score(&copied));
    free(pair);
    wf_iter_free(iter);
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open_with(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    check_parallel(comm, &s);
    training t = {.s = &s,
                  .comm = comm,
                  .ctx = wf_comm_ctx(comm),
                  .rank = wf_comm_rank(comm),
                  .size = wf_comm_size(comm),
                  .cut = strcmp(s.parallel, "model") == 0};
    wf_dataset *pairs = pairs_of(&t, WF_TRAIN_SET);
    if (t.rank == 0)
        printf("%lld messages to learn from\n", (long long)wf_dataset_count(pairs));
    t.batches =
        wf_batches(pairs, (wf_batch_opts){.size = s.batch, .shuffle = true, .raw = true, .seed = (uint64_t)s.seed + 1});
    t.tape = wf_tape_new(t.ctx);
    make_model(&t);
    t.optim = wf_lr_schedule(
        wf_adam(t.model, (wf_adam_opts){.lr = s.lr}),
        (wf_schedule_opts){
            .kind = WF_SCHEDULE_COSINE, .warmup = s.steps / 20, .total = s.steps - s.steps / 20, .end = 0.05});
    if (!t.cut)
        t.optim = wf_multi_node(comm, t.optim);
    example_check(comm, wf_check(t.optim));
    train(&t);
    if (s.tests > 0)
        translate(&t);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    wf_iter_free(t.batches);
    wf_tape_free(t.tape);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
