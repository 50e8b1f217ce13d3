/* Errors on a communicator that is a part of the world, or has it in another order, name every rank by the world's
 * number, with its own one in brackets where that is another. Most cases run on `turned`, all ranks in the opposite
 * order. Run with WEFT_TRACE, the folder of the flight recorders. */
#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "comm/recorder_author.h"
#include "core/config_author.h"
#include "datasets/datasets.h"
#include "layers/chain.h"
#include "tests/comm/comm_cases.h"
#include "tests/layers/pipeline_fixture.h"

#include <stdarg.h>
#include <unistd.h>
#include <weft_places.h>

static wf_comm *world, *turned;
static wf_ctx *ctx;
static int rank, size;

/* --- what the cases share ----------------------------------------------------------------------------------------- */

static void begin_case(void)
{
    turned = wf_comm_split(world, 0, -rank);
    WF_EXPECT(turned, "%s", wf_error_message());
}

/* After an error, which the communicator then repeats. */
static void end_case(void)
{
    wf_error_clear();
    WF_EXPECT_OK(wf_comm_close(turned));
    WF_EXPECT_OK(wf_barrier(world));
}

/* Made without the library's help: what messages should call a rank. The last few stay valid. */
static const char *named(int in_world, int own)
{
    static char text[8][32];
    static int next;
    char *name = text[next++ % 8];
    if (in_world == own)
        snprintf(name, sizeof text[0], "%d", own);
    else
        snprintf(name, sizeof text[0], "%d (%d)", in_world, own);
    return name;
}

static const char *in_turned(int own)
{
    return named(size - 1 - own, own);
}

static bool is_turned(int own)
{
    return rank == size - 1 - own;
}

static const char *line_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *line_of(const char *format, ...)
{
    static char text[4][200];
    static int next;
    char *line = text[next++ % 4];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof text[0], format, args);
    va_end(args);
    return line;
}

/* The last error of this rank is of this code and says both. */
static void expect_says(wf_status code, const char *one, const char *other)
{
    WF_EXPECT(wf_error_code() == code && strstr(wf_error_message(), one) && strstr(wf_error_message(), other),
              "rank %d: %s: \"%s\" does not say \"%s\" and \"%s\"", rank, wf_status_name(wf_error_code()),
              wf_error_message(), one, other);
}

/* Asleep until it hears that the others have given up. */
static wf_status stay_away(wf_comm *comm)
{
    wf_status status = WF_OK;
    for (int i = 0; i < 2000 && status == WF_OK; i++) {
        test_sleep_ms(10);
        status = wf_comm_alive(comm);
    }
    return status;
}

/* How long this rank waits for one that does not come, though it lives. Returns what was set before. */
static wf_config set_limits(long timeout_ms, long idle_ms)
{
    wf_config *config = (wf_config *)wf_config_get();
    const wf_config before = *config;
    config->timeout_ms = timeout_ms;
    config->idle_ms = idle_ms;
    return before;
}

static const char *recorder_path(char path[512])
{
    char host[WF_TRACE_STRINGS] = "";
    gethostname(host, sizeof host - 1);
    snprintf(path, 512, "%s/%s-%ld" WF_TRACE_SUFFIX, wf_config_get()->trace, host, (long)getpid());
    return path;
}

/* The last event of this process, in words; "" if there is none. */
static void last_event(char text[WF_FAILURE_TEXT])
{
    char path[512];
    wf_trace *trace = calloc(1, sizeof *trace);
    FILE *file = fopen(recorder_path(path), "rb");
    text[0] = '\0';
    WF_EXPECT(file && trace && fread(trace, sizeof *trace, 1, file) == 1, "%s cannot be read", path);
    if (file)
        fclose(file);
    const wf_trace_event *event = &trace->event[trace->events % WF_TRACE_EVENTS];
    if (event->number > 0)
        wf_trace_event_text(event, 0, text);
    free(trace);
}

/* --- a communicator that was split -------------------------------------------------------------------------------- */

static void other_operation(void)
{
    for (int culprit = 0; size > 1 && culprit < size; culprit++) {
        double value = 1;
        begin_case();
        const wf_status status = is_turned(culprit) ? wf_barrier(turned) : wf_allreduce_f64(turned, &value, 1, WF_SUM);
        WF_EXPECT(status != WF_OK, "culprit %d: no error", culprit);
        /* Each rank compares itself with the one before it in the ring: the culprit's neighbour on either side. */
        const char *before = line_of("rank %s calls allreduce_f64", in_turned((culprit + size - 1) % size));
        const char *after = line_of("rank %s calls allreduce_f64", in_turned((culprit + 1) % size));
        expect_says(WF_ERR_COMM, line_of("rank %s calls barrier", in_turned(culprit)),
                    strstr(wf_error_message(), before) ? before : after);
        end_case();
    }
}

static void other_root(void)
{
    char data[100] = {0};
    if (size < 2)
        return;
    begin_case();
    const wf_status status = wf_bcast_bytes(turned, data, sizeof data, is_turned(1));
    expect_same_error(world, status == WF_OK ? wf_barrier(turned) : status, WF_ERR_COMM,
                      line_of("rank %s calls bcast_bytes(u8 [100], root %s)", in_turned(1), in_turned(1)), "other root",
                      1);
    end_case();
}

static void own_failure(void)
{
    if (size < 2)
        return;
    begin_case();
    const wf_status status =
        is_turned(0) ? wf_comm_post_failure(turned, WF_RAISE(WF_ERR_IO, "disk full")) : wf_barrier(turned);
    expect_same_error(world, status, WF_ERR_IO, line_of("rank %s: disk full", in_turned(0)), "own failure", 0);
    end_case();
}

static void other_message(void)
{
    if (size < 2)
        return;
    begin_case();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(is_turned(0) ? 4 : 3));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_status status = is_turned(0) ? wf_send(turned, x, 1, 7) : is_turned(1) ? wf_recv(turned, x, 0, 7) : WF_OK;
    if (status == WF_OK)
        status = wf_barrier(turned);
    expect_same_error(world, status, WF_ERR_COMM,
                      line_of("rank %s sent f32 [4] where f32 [3] is expected", in_turned(0)), "other message", 0);
    wf_tensor_free(x);
    end_case();
}

static void message_to_itself(void)
{
    if (size < 2)
        return;
    begin_case();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    const wf_status status = is_turned(0) ? wf_send(turned, x, 0, 7) : wf_barrier(turned);
    expect_same_error(world, status, WF_ERR_ARGUMENT, line_of("peer %s is this rank itself", in_turned(0)), "peer", 0);
    wf_tensor_free(x);
    end_case();
}

/* As the flight recorders of both processes say. It takes two seconds, so two ranks do. */
static void circle(void)
{
    if (size != 2)
        return;
    begin_case();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    const wf_status status = is_turned(0) ? wf_recv(turned, x, 1, 3) : wf_recv(turned, x, 0, 4);
    WF_EXPECT(status != WF_OK, "two ranks wait for each other without an error");
    expect_says(WF_ERR_COMM, line_of("rank %s in recv(rank %s, tag 3)", in_turned(0), in_turned(1)),
                line_of("rank %s in recv(rank %s, tag 4)", in_turned(1), in_turned(0)));
    wf_tensor_free(x);
    end_case();
}

/* --- axes of a mesh ----------------------------------------------------------------------------------------------- */

/* On `turned`: data 2 x height 2 of four ranks, else all along height. */
static wf_mesh *mesh_open(void)
{
    begin_case();
    wf_mesh *mesh = wf_mesh_open(turned, (wf_mesh_opts){.height = size == 4 ? 2 : size});
    WF_EXPECT(mesh, "%s", wf_error_message());
    return mesh;
}

static void mesh_close(wf_mesh *mesh)
{
    wf_error_clear();
    wf_mesh_close(mesh);
    end_case();
}

/* The world's numbers of the ranks of comm. */
static void list_members(wf_comm *comm, int member[8])
{
    WF_EXPECT_OK(wf_allgather_bytes(comm, &rank, sizeof rank, member));
}

static void axis_text(void)
{
    if (size < 2)
        return;
    wf_mesh *mesh = mesh_open();
    const char *who = line_of(": rank %s is ", in_turned(wf_comm_rank(turned)));
    WF_EXPECT(strstr(wf_mesh_text(mesh), who), "\"%s\" does not say \"%s\"", wf_mesh_text(mesh), who);
    mesh_close(mesh);
}

/* The numbers themselves, as a reader sees them: the data axis of the world joins ranks 0 and 2, and ranks 1 and 3. */
static void axis_of_four(void)
{
    double value = 1;
    if (size != 4)
        return;
    wf_mesh *mesh = wf_mesh_open(world, (wf_mesh_opts){.height = 2});
    wf_comm *axis = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA));
    const wf_status status = rank < 2 ? wf_barrier(axis) : wf_allreduce_f64(axis, &value, 1, WF_SUM);
    WF_EXPECT(status != WF_OK, "different calls on an axis without an error");
    expect_says(WF_ERR_COMM, rank % 2 ? "rank 1 (0) calls barrier" : "rank 0 calls barrier",
                rank % 2 ? "rank 3 (1) calls allreduce_f64" : "rank 2 (1) calls allreduce_f64");
    wf_error_clear();
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_barrier(world));
}

static void late_on_an_axis(void)
{
    int member[8];
    double values[3] = {0};
    if (size < 2)
        return;
    wf_mesh *mesh = mesh_open();
    wf_comm *axis = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT));
    list_members(axis, member);
    const bool missing = wf_comm_rank(axis) == 0;
    const wf_config before = set_limits(700, 700);
    const wf_status status = missing ? stay_away(axis) : wf_allreduce_f64(axis, values, 3, WF_SUM);
    set_limits(before.timeout_ms, before.idle_ms);
    WF_EXPECT(status == WF_ERR_TIMEOUT, "%s", wf_status_name(status));
    expect_says(WF_ERR_TIMEOUT, line_of("rank %s waited ", named(member[1], 1)),
                line_of(" ms for rank %s in allreduce_f64(f64 [3], sum)", named(member[0], 0)));
    mesh_close(mesh);
}

/* Ranks from 1 on leave the axis, and rank 0 waits for one of them. */
static void gone_from_an_axis(void)
{
    int member[8];
    char text[WF_FAILURE_TEXT];
    if (size < 2)
        return;
    wf_mesh *mesh = mesh_open();
    wf_comm *axis = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT));
    list_members(axis, member);
    const bool waits = wf_comm_rank(axis) == 0;
    if (!waits)
        wf_mesh_close(mesh);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    if (waits) {
        WF_EXPECT(wf_recv(axis, x, 1, 5) != WF_OK, "a message of a rank that has closed its mesh has come");
        expect_says(WF_ERR_COMM, line_of("rank %s waited ", named(member[0], 0)),
                    line_of("for rank %s, which has closed the communicator, in recv(rank %s, tag 5)",
                            named(member[1], 1), named(member[1], 1)));
        last_event(text);
        const char *step = line_of(" bytes from rank %s into ", named(member[1], 1));
        WF_EXPECT(strstr(text, step), "\"%s\" does not say \"%s\"", text, step);
    }
    wf_tensor_free(x);
    mesh_close(waits ? mesh : NULL);
}

/* --- halos -------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 4 };

/* Blocks of a line, each with a halo of `width` of its neighbours; rank 0 asks for one element before the line. */
static wf_exchange *exchange_of(wf_comm *comm, int width, bool outside)
{
    const int ranks = wf_comm_size(comm), end = ranks * BLOCK;
    wf_box have[8], need[8];
    for (int r = 0; r < ranks; r++) {
        have[r] = need[r] = (wf_box){.rank = 1, .lo = {r * BLOCK}, .hi = {(r + 1) * BLOCK}};
        need[r].lo[0] = r * BLOCK > width ? r * BLOCK - width : 0;
        need[r].hi[0] = (r + 1) * BLOCK + width < end ? (r + 1) * BLOCK + width : end;
    }
    need[ranks - 1].hi[0] += outside;
    return wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
}

static void halos(void)
{
    int member[8];
    if (size < 2)
        return;
    wf_mesh *mesh = mesh_open();
    wf_comm *axis = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT));
    const int own = wf_comm_rank(axis), last = wf_comm_size(axis) - 1;
    list_members(axis, member);
    WF_EXPECT(!exchange_of(axis, 1, true), "an exchange of what no rank has");
    expect_says(WF_ERR_SHAPE, line_of("rank %s needs a box of shape [1] that no rank has", named(member[last], last)),
                "");
    wf_error_clear();
    const int width = own == 0 ? 2 : 1;
    wf_exchange *exchange = exchange_of(axis, width, false);
    WF_EXPECT(exchange, "%s", wf_error_message());
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(BLOCK));
    wf_tensor *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(BLOCK + width * ((own > 0) + (own < last))));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_status status = wf_exchange_begin(exchange, x, y);
    if (status == WF_OK)
        status = wf_exchange_end(exchange);
    WF_EXPECT(status != WF_OK, "halos of different widths without an error");
    const char *before = line_of("rank %s calls exchange(", named(member[last], last));
    const char *after = line_of("rank %s calls exchange(", named(member[1], 1));
    expect_says(WF_ERR_COMM, line_of("rank %s calls exchange(", named(member[0], 0)),
                strstr(wf_error_message(), before) ? before : after);
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
    mesh_close(mesh);
}

/* --- layers, optimizers and data sets ----------------------------------------------------------------------------- */

static wf_var *fails(wf_layer *self, void *user, wf_var *x)
{
    (void)self;
    (void)user;
    (void)x;
    WF_FAIL_NULL(WF_ERR_NUMERIC, "a value is no number");
}

/* A layer of the last stage fails, which only that stage knows. */
static void pipeline_stage(void)
{
    const batch b = {.n = 4};
    if (size < 2)
        return;
    begin_case();
    on.comm = turned;
    on.ctx = ctx;
    on.mesh = wf_mesh_open(turned, (wf_mesh_opts){.stage = size});
    wf_layer *model = model_new(false, false);
    WF_EXPECT(wf_module_add(model, "last", wf_module(ctx, fails, NULL)), "%s", wf_error_message());
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = 2});
    WF_EXPECT(pipe, "%s", wf_error_message());
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = x_of(&b, WF_F64, 0, 4), *labels = labels_of(&b, 0, 4);
    WF_EXPECT(!wf_pipeline_step(pipe, tape, x, labels), "a step whose last stage fails");
    expect_says(WF_ERR_NUMERIC, line_of("rank %s: ", in_turned(size - 1)), "a value is no number");
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
    mesh_close(on.mesh);
}

/* Rank 0 gives rank 1 what that one never takes. */
static void multi_node_chain(void)
{
    if (size < 2)
        return;
    begin_case();
    wf_layer *chain = wf_multi_node_chain(turned);
    static const char *const name[] = {"part_0", "part_1", "part_2", "part_3"};
    const int own = wf_comm_rank(turned);
    WF_EXPECT_OK(wf_multi_node_chain_add(chain, (wf_component){.name = name[own],
                                                               .layer = wf_lambda(ctx, wf_relu),
                                                               WF_FROM({.rank = WF_OUTSIDE}),
                                                               WF_TO({.rank = own == 0 ? 1 : WF_OUTSIDE})}));
    expect_same_error(turned, wf_multi_node_chain_connect(chain), WF_ERR_STATE,
                      line_of("rank %s, step 2 (part_0 gives output 0 to rank %s): rank %s never takes it",
                              in_turned(0), in_turned(1), in_turned(1)),
                      "chain", 0);
    wf_layer_free(chain);
    end_case();
}

static void models(void)
{
    if (size < 2)
        return;
    begin_case();
    wf_layer *model = wf_linear(ctx, (wf_linear_opts){.in = 2, .out = is_turned(1) ? 4 : 3});
    wf_optim *optim = wf_multi_node(turned, wf_sgd(model, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    WF_EXPECT(!optim, "an optimizer of different models");
    expect_says(WF_ERR_COMM, line_of(" on rank %s, ", in_turned(0)), line_of(" on rank %s; ", in_turned(1)));
    wf_layer_free(model);
    end_case();
}

static void data_sets(void)
{
    const float x[8] = {0};
    if (size < 2)
        return;
    begin_case();
    wf_dataset *all = wf_memory_dataset(ctx, WF_F32, WF_SHAPE(is_turned(1) ? 7 : 8), x, NULL);
    WF_EXPECT(!wf_synchronized_batches(turned, all, (wf_batch_opts){.size = 2}), "batches of different data sets");
    expect_says(WF_ERR_ARGUMENT, line_of("8 samples on rank %s and", in_turned(0)),
                line_of("7 on rank %s", in_turned(1)));
    end_case();
}

/* --- the flight recorder ------------------------------------------------------------------------------------------ */

static void recorder(void)
{
    char data[8] = "", text[WF_FAILURE_TEXT];
    if (size < 2)
        return;
    begin_case();
    WF_EXPECT_OK(wf_bcast_bytes(turned, data, sizeof data, 1));
    last_event(text);
    const char *root = line_of("bcast_bytes(u8 [8], root %s)", in_turned(1));
    const char *who = line_of("(%d ranks) as rank %s, ", size, in_turned(wf_comm_rank(turned)));
    WF_EXPECT(strstr(text, root) && strstr(text, who), "\"%s\" does not say \"%s\" and \"%s\"", text, root, who);
    end_case();
}

static int on_ranks(int argc, char **argv)
{
    world = test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1});
    if (!world) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    ctx = wf_comm_ctx(world);
    rank = wf_comm_rank(world);
    size = wf_comm_size(world);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"other_operation", other_operation},
                                               {"other_root", other_root},
                                               {"own_failure", own_failure},
                                               {"other_message", other_message},
                                               {"message_to_itself", message_to_itself},
                                               {"circle", circle},
                                               {"axis_text", axis_text},
                                               {"axis_of_four", axis_of_four},
                                               {"late_on_an_axis", late_on_an_axis},
                                               {"gone_from_an_axis", gone_from_an_axis},
                                               {"halos", halos},
                                               {"pipeline_stage", pipeline_stage},
                                               {"multi_node_chain", multi_node_chain},
                                               {"models", models},
                                               {"data_sets", data_sets},
                                               {"recorder", recorder},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(world));
    return failed || test_failures() > 0;
}

/* The library leaves the file in a folder that the user names. */
static void remove_recorder(void)
{
    char path[512];
    unlink(recorder_path(path));
}

int main(int argc, char **argv)
{
    atexit(remove_recorder);
    return ranks_main(argc, argv, on_ranks);
}
