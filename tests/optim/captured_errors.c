/* What cannot be captured, and the slots below. */
#include "tests/optim/captured_gan.h"

#include <math.h>

enum { ITEM, EXPORT, IMPORT, ITERATION, SWAP, TAPE, NESTED, FAILURE, MODES };

/* What cannot be captured, or is an error of the step's own. */
static wf_status forbid(gan *g)
{
    if (g->when >= 0 && g->when != g->runs)
        return WF_OK;
    static float host[IMAGE];
    double number[1] = {0};
    wf_captured *inner;
    wf_tape *tape;
    wf_status made;
    switch (g->mode) {
    case ITEM: /* its status is not looked at */
        (void)wf_tensor_item(g->loss_dis);
        return WF_OK;
    case EXPORT:
        return wf_tensor_export(g->loss_dis, number, wf_tensor_bytes(g->loss_dis));
    case IMPORT:
        return wf_tensor_import(g->x, host, sizeof host);
    case ITERATION:
        return wf_tape_set_iteration(g->tape, wf_tape_iteration(g->tape));
    case SWAP: /* and back */
        made = wf_ema_swap(g->ema);
        return made == WF_OK ? wf_ema_swap(g->ema) : made;
    case TAPE:
        tape = wf_tape_new(g->ctx);
        made = wf_check(tape);
        wf_tape_free(tape);
        return made;
    case NESTED:
        inner = wf_capture(g->ctx, step_gen, g);
        made = wf_captured_run(inner);
        wf_captured_free(inner);
        return made;
    default:
        return WF_ERR_NUMERIC;
    }
}

/* --- what cannot be captured ---------------------------------------------------------------------------------------
 */

static const char *const said[MODES] = {[ITEM] = "read a number back",
                                        [EXPORT] = "read a number back",
                                        [IMPORT] = "fill a tensor from host memory",
                                        [ITERATION] = "set the iteration",
                                        [SWAP] = "swap moving averages",
                                        [TAPE] = "set the iteration",
                                        [NESTED] = "a captured step runs inside another",
                                        [FAILURE] = ""};

/* Seen in the rehearsals: the third run says so, and changes nothing. */
static void barred_always(void)
{
    gan_averages = true;
    for (int mode = ITEM; mode <= TAPE; mode++) {
        gan g = gan_new();
        g.mode = mode;
        g.also = forbid;
        g.when = -1;
        wf_captured *c = wf_capture(g.ctx, step, &g);
        next_batch(&g, 0);
        WF_EXPECT_OK(wf_captured_run(c));
        WF_EXPECT_OK(wf_captured_run(c));
        const double before = wf_tensor_item(g.loss_gen);
        for (int i = 0; i < 2 && captures(&g); i++) {
            WF_EXPECT(wf_captured_run(c) == WF_ERR_UNSUPPORTED && strstr(wf_error_message(), said[mode]), "mode %d: %s",
                      mode, wf_error_message());
            wf_error_clear();
        }
        WF_EXPECT(g.runs == 2 && wf_tensor_item(g.loss_gen) == before && wf_optim_steps(g.opt_gen) == 2,
                  "mode %d: %d runs, %lld steps", mode, g.runs, (long long)wf_optim_steps(g.opt_gen));
        WF_EXPECT_OK(step(&g));
        wf_captured_free(c);
        gan_free(&g);
    }
    gan_averages = false;
}

/* Not before the capture itself: it is given up, and eager steps go on as if it had not begun. */
static void given_up(void)
{
    gan_averages = true;
    history expected = eager(false);
    for (int mode = 0; mode < MODES; mode++) {
        static history h;
        gan g = gan_new();
        g.mode = mode;
        if (!captures(&g)) {
            gan_free(&g);
            continue;
        }
        g.also = forbid;
        g.when = 3;
        wf_captured *c = wf_capture(g.ctx, step, &g);
        for (int i = 0; i < STEPS; i++) {
            next_batch(&g, i);
            if (i == 2) {
                const wf_status wanted = mode == FAILURE  ? WF_ERR_NUMERIC
                                         : mode == NESTED ? WF_ERR_STATE
                                                          : WF_ERR_UNSUPPORTED,
                                status = wf_captured_run(c);
                WF_EXPECT(status == wanted && (mode == FAILURE || strstr(wf_error_message(), said[mode])),
                          "mode %d: %s: %s", mode, wf_status_name(status), wf_error_message());
                wf_error_clear();
            }
            WF_EXPECT_OK(i < 2 ? wf_captured_run(c) : step(&g));
            note(&g, &h, i);
        }
        wf_captured_free(c);
        note_end(&g, &h);
        gan_free(&g);
        history same = expected;
        same.value = calloc(1 << 16, sizeof *same.value);
        memcpy(same.value, expected.value, (size_t)expected.n * sizeof *same.value);
        expect_equal(&h, &same, "after a capture that was given up");
    }
    free(expected.value);
    gan_averages = false;
}

/* A clipping norm and groups of parameters are a part of what was captured. */
static void other_clip(void)
{
    gan g = gan_new();
    wf_captured *c = wf_capture(g.ctx, step, &g);
    next_batch(&g, 0);
    for (int i = 0; i < 4; i++)
        WF_EXPECT_OK(wf_captured_run(c));
    WF_EXPECT_OK(wf_optim_clip_norm(g.opt_dis, 0.25));
    if (captures(&g))
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_captured_run(c));
    WF_EXPECT(wf_tape_iteration(g.tape) == 8 && wf_optim_steps(g.opt_gen) == 4, "iteration %lld, step %lld",
              (long long)wf_tape_iteration(g.tape), (long long)wf_optim_steps(g.opt_gen));
    WF_EXPECT_OK(wf_optim_clip_norm(g.opt_dis, 0.5));
    WF_EXPECT_OK(wf_captured_run(c));
    WF_EXPECT_OK(wf_optim_group(g.opt_dis, "*", (wf_group_opts){.lr_scale = 0.5}));
    if (captures(&g))
        WF_EXPECT_ERROR(WF_ERR_STATE, wf_captured_run(c));
    wf_captured_free(c);
    gan_free(&g);
}

static void misuse(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    WF_EXPECT(!wf_capture(ctx, NULL, NULL) && wf_error_code() == WF_ERR_ARGUMENT, "a capture of nothing");
    wf_error_clear();
    WF_EXPECT(!wf_capture(NULL, step, NULL) && !wf_captured_replays(NULL), "a capture without a context");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_captured_run(NULL));
    wf_captured_free(NULL);
    wf_captured *c = wf_capture(ctx, step, NULL);
    WF_EXPECT(wf_ctx_free(ctx) == WF_ERR_STATE && strstr(wf_error_message(), "1 captured step"), "%s",
              wf_error_message());
    wf_error_clear();
    wf_captured_free(c);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* --- labels ---------------------------------------------------------------------------------------------------------
 */

typedef struct classifier {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *x, *labels, *loss;
} classifier;

static wf_status classify(void *arg)
{
    classifier *c = arg;
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(c->model, wf_input(c->tape, c->x)), c->labels, (wf_label_opts){0});
    const wf_status status = wf_optim_step(c->optim, loss);
    put(&c->loss, wf_keep(loss));
    return status == WF_OK ? wf_tape_reset(c->tape) : status;
}

/* A label that is out of range in a replay is found as in any step: by the run, or where a number is asked for. */
static void bad_label(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    classifier c = {.model = wf_linear(ctx, (wf_linear_opts){.in = 4, .out = 3}), .tape = wf_tape_new(ctx)};
    int64_t label[2] = {2, 0};
    c.optim = wf_sgd(c.model, (wf_sgd_opts){0});
    c.x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 4));
    c.labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(2), label);
    WF_EXPECT_OK(wf_tensor_fill(c.x, 0.5));
    wf_captured *captured = wf_capture(ctx, classify, &c);
    for (int i = 0; i < 6; i++) {
        label[0] = i == 4 ? 3 : 2;
        WF_EXPECT_OK(wf_tensor_import(c.labels, label, sizeof label));
        const bool ran = wf_captured_run(captured) == WF_OK, found = !ran || isnan(wf_tensor_item(c.loss));
        WF_EXPECT(found == (i == 4), "run %d: found is %d", i, found);
        WF_EXPECT(!found || (wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), "label 3 in row 0")),
                  "run %d: %s", i, wf_error_message());
        wf_error_clear();
        if (i == 4 && !ran)
            break;
    }
    wf_captured_free(captured);
    wf_tensor_free(c.x);
    wf_tensor_free(c.labels);
    wf_tensor_free(c.loss);
    wf_tape_free(c.tape);
    wf_optim_free(c.optim);
    wf_layer_free(c.model);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* --- packed forms ---------------------------------------------------------------------------------------------------
 */

typedef struct seen {
    const wf_tensor *x;
    uint64_t version[4];
    int runs;
} seen;

static wf_status look(void *arg)
{
    seen *s = arg;
    s->version[s->runs++] = wf_tensor_array(s->x).version;
    return WF_OK;
}

/* A form that is up to date when a capture begins is made again in it, or replays would go on with an old one. */
static void forms(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    seen s = {.x = x};
    wf_captured *c = wf_capture(ctx, look, &s);
    for (int i = 0; i < 3; i++)
        WF_EXPECT_OK(wf_captured_run(c));
    WF_EXPECT(s.version[0] == s.version[1] && wf_tensor_array(x).version == s.version[0], "versions change");
    WF_EXPECT((s.version[2] != s.version[1]) == (ctx->k->capture_begin != NULL),
              "version %llu in a capture, before %llu", (unsigned long long)s.version[2],
              (unsigned long long)s.version[1]);
    wf_captured_free(c);
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* --- the slots ------------------------------------------------------------------------------------------------------
 */

/* x + 1 three times over. */
static void slots(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    const wf_kernels *k = ctx->k;
    wf_graph *graph = NULL;
    void *block = NULL, *pinned = NULL;
    bool done;
    float host[4] = {1, 2, 3, 4};
    if (!k->capture_begin) {
        WF_EXPECT(!k->capture_end && !k->graph_launch && !k->graph_free, "some slots of four");
        WF_EXPECT_OK(wf_ctx_free(ctx));
        return;
    }
    wf_event *event;
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4)), *one = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    WF_EXPECT_OK(wf_tensor_import(x, host, sizeof host));
    WF_EXPECT_OK(wf_tensor_fill(one, 1));
    const wf_array a = wf_tensor_array(x), b = wf_tensor_array(one);
    WF_EXPECT_OK(k->event_new(ctx, &event));
    WF_EXPECT_OK(k->capture_begin(ctx));
    WF_EXPECT_ERROR(WF_ERR_STATE, k->capture_begin(ctx));
    WF_EXPECT_OK(
        k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &a, .beta = 1, .b = &b, .y = &a}));
    WF_EXPECT_OK(k->event_record(ctx, event, NULL));
    WF_EXPECT_OK(k->capture_end(ctx, &graph));
    WF_EXPECT_OK(wf_tensor_export(x, host, sizeof host));
    WF_EXPECT(host[0] == 1 && host[3] == 4, "what is captured is done: %g %g", (double)host[0], (double)host[3]);
    for (int i = 0; i < 3; i++)
        WF_EXPECT_OK(k->graph_launch(ctx, graph));
    k->graph_free(ctx, graph);
    WF_EXPECT_OK(k->event_record(ctx, event, NULL));
    WF_EXPECT_OK(k->stream_finish(ctx, NULL));
    WF_EXPECT_OK(k->event_done(ctx, event, &done));
    WF_EXPECT_OK(wf_tensor_export(x, host, sizeof host));
    WF_EXPECT(host[0] == 4 && host[3] == 7, "three launches make %g %g", (double)host[0], (double)host[3]);
    WF_EXPECT_OK(k->capture_begin(ctx));
    WF_EXPECT_ERROR(WF_ERR_STATE, k->to_host(ctx, host, a.data, sizeof host));
    WF_EXPECT_ERROR(WF_ERR_STATE, k->to_device(ctx, a.data, host, sizeof host));
    WF_EXPECT_ERROR(WF_ERR_STATE, k->stream_finish(ctx, NULL));
    WF_EXPECT_ERROR(WF_ERR_STATE, k->event_done(ctx, event, &done));
    WF_EXPECT_OK(k->alloc(ctx, 1 << 20, &block));
    WF_EXPECT_OK(k->pinned_alloc(ctx, 1 << 20, &pinned));
    WF_EXPECT_OK(k->fill(ctx, &a, 9));
    WF_EXPECT_OK(k->capture_end(ctx, NULL));
    WF_EXPECT_OK(wf_tensor_export(x, host, sizeof host));
    WF_EXPECT(host[0] == 4, "what was given up is done");
    k->release(ctx, block, 1 << 20);
    k->pinned_release(ctx, pinned, 1 << 20);
    k->event_free(ctx, event);
    wf_tensor_free(x);
    wf_tensor_free(one);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* --- what captured steps read of layers --------------------------------------------------------------------------- */

typedef struct shifted {
    wf_ctx *ctx;
    wf_layer *layer;
    wf_tape *tape;
    wf_tensor *x, *y;
} shifted;

static wf_status attend_shifted(void *arg)
{
    shifted *s = arg;
    wf_tensor_free(s->y);
    s->y = wf_keep(wf_apply(s->layer, wf_input(s->tape, s->x)));
    return s->y ? wf_tape_reset(s->tape) : wf_error_code();
}

static wf_tensor *image_of(wf_ctx *ctx, int64_t rows, int64_t columns)
{
    float host[2 * 16];
    for (int i = 0; i < 2 * 16; i++)
        host[i] = (float)(i * 37 % 19) / 4 - 2;
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(1, 2, rows, columns));
    WF_EXPECT_OK(wf_tensor_import(x, host, wf_tensor_bytes(x)));
    return x;
}

/* A step with shifted windows is right after the layer has freed the table that the step reads, for that of another
 * image, and the program has taken all free memory of its size: the pool keeps what was in use at the capture. */
static void other_image(void)
{
    enum { TAKEN = 200 };
    static wf_tensor *taken[TAKEN];
    float want[2 * 16], got[2 * 16];
    shifted s = {.ctx = ctx_of("cpu", WF_F32)};
    s.layer = wf_layer_named(
        wf_window_attention(s.ctx, (wf_window_attention_opts){.features = 2, .heads = 1, .window = 2, .shift = 1}),
        "a");
    s.tape = wf_tape_new(s.ctx);
    s.x = image_of(s.ctx, 4, 4);
    wf_captured *c = wf_capture(s.ctx, attend_shifted, &s);
    for (int i = 0; i < 4; i++)
        WF_EXPECT_OK(wf_captured_run(c));
    WF_EXPECT_OK(wf_tensor_export(s.y, want, wf_tensor_bytes(s.y)));
    shifted other = s;
    other.y = NULL;
    other.x = image_of(s.ctx, 2, 8);
    WF_EXPECT_OK(attend_shifted(&other));
    for (int i = 0; i < TAKEN; i++) {
        taken[i] = wf_tensor_new(s.ctx, WF_I32, WF_SHAPE(16));
        WF_EXPECT_OK(wf_tensor_fill(taken[i], 7));
    }
    WF_EXPECT_OK(wf_captured_run(c));
    WF_EXPECT_OK(wf_tensor_export(s.y, got, wf_tensor_bytes(s.y)));
    WF_EXPECT(memcmp(want, got, wf_tensor_bytes(s.y)) == 0, "a captured step reads regions of another image");
    wf_captured_free(c);
    for (int i = 0; i < TAKEN; i++)
        wf_tensor_free(taken[i]);
    wf_tensor_free(other.x);
    wf_tensor_free(other.y);
    wf_tensor_free(s.x);
    wf_tensor_free(s.y);
    wf_layer_free(s.layer);
    wf_tape_free(s.tape);
    WF_EXPECT_OK(wf_ctx_free(s.ctx));
}

/* Another stream is forked off and joined again: 5 there, then + 1 here. */
static void forked(void)
{
    wf_ctx *ctx = ctx_of("cpu", WF_F32);
    const wf_kernels *k = ctx->k;
    if (!k->capture_begin) {
        WF_EXPECT_OK(wf_ctx_free(ctx));
        return;
    }
    wf_stream *side;
    wf_event *ready, *done;
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, wf_shape_scalar()), *one = wf_tensor_new(ctx, WF_F32, wf_shape_scalar());
    const wf_array a = wf_tensor_array(x), b = wf_tensor_array(one);
    WF_EXPECT_OK(k->stream_new(ctx, &side));
    WF_EXPECT_OK(k->event_new(ctx, &ready));
    WF_EXPECT_OK(k->event_new(ctx, &done));
    WF_EXPECT_OK(wf_tensor_fill(one, 1));
    for (int join = 0; join < 2; join++) {
        wf_graph *graph = NULL;
        WF_EXPECT_OK(wf_tensor_fill(x, 0));
        WF_EXPECT_OK(k->capture_begin(ctx));
        WF_EXPECT_OK(k->event_record(ctx, ready, NULL));
        WF_EXPECT_OK(k->event_wait(ctx, ready, side));
        WF_EXPECT_OK(k->stream_use(ctx, side));
        WF_EXPECT_OK(k->fill(ctx, &a, 5));
        WF_EXPECT_OK(k->stream_use(ctx, NULL));
        WF_EXPECT_OK(k->event_record(ctx, done, side));
        if (join) {
            WF_EXPECT_OK(k->event_wait(ctx, done, NULL));
            WF_EXPECT_OK(k->binary(
                ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &a, .beta = 1, .b = &b, .y = &a}));
            WF_EXPECT_OK(k->capture_end(ctx, &graph));
            WF_EXPECT_OK(k->graph_launch(ctx, graph));
        } else {
            WF_EXPECT_ERROR(WF_ERR_STATE, k->capture_end(ctx, &graph));
        }
        k->graph_free(ctx, graph);
        WF_EXPECT(wf_tensor_item(x) == (join ? 6 : 0), "join %d: %g", join, wf_tensor_item(x));
    }
    k->event_free(ctx, ready);
    k->event_free(ctx, done);
    k->stream_free(ctx, side);
    wf_tensor_free(x);
    wf_tensor_free(one);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    setenv("WEFT_DETERMINISTIC", "1", 0);
    return test_main(argc, argv,
                     (test_case[]){{"slots", slots},
                                   {"forked", forked},
                                   {"barred_always", barred_always},
                                   {"given_up", given_up},
                                   {"other_clip", other_clip},
                                   {"other_image", other_image},
                                   {"misuse", misuse},
                                   {"bad_label", bad_label},
                                   {"forms", forms},
                                   {0}});
}
