/* Pipelines whose messages NCCL moves, on the fake of NCCL: each message of the schedule is one launch, nothing of a
 * message goes through the host's memory, computations do not wait for messages of others, and a message that fails is
 * one error of all ranks. */
#include "tests/fake/guard.h"
#include "tests/fake/nccl_fake.h"
#include "tests/layers/pipeline_fixture.h"

enum { CHUNKS = 3, ROWS = 6 };

static wf_pipeline *open_pipeline(void)
{
    on.comm = test_comm_open("pure_nccl", (wf_ctx_opts){.threads = 1, .seed = 5});
    WF_EXPECT(on.comm, "%s", wf_error_message());
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){.stage = wf_comm_size(on.comm)});
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, model_new(false, false),
                                        (wf_pipeline_opts){.loss = wf_mean_cross_entropy, .chunks = CHUNKS});
    WF_EXPECT(pipe, "%s", wf_error_trail());
    return pipe;
}

static void close_pipeline(wf_pipeline *pipe, bool failed)
{
    wf_pipeline_free(pipe);
    wf_mesh_close(on.mesh);
    const wf_status status = wf_comm_close(on.comm);
    WF_EXPECT(failed || status == WF_OK, "%s", wf_error_message());
    wf_error_clear();
}

static wf_var *step(wf_pipeline *pipe, wf_tape *tape)
{
    test_rng rng = {7};
    const batch b = batch_of(&rng, ROWS);
    wf_tensor *x = x_of(&b, WF_F32, 0, ROWS), *labels = labels_of(&b, 0, ROWS);
    wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return loss;
}

/* Messages of this stage's schedule. */
static int messages_of(const wf_pipeline *pipe)
{
    const wf_pipeline_schedule *s = wf_pipeline_schedule_of(pipe);
    int n = 0;
    for (int i = 0; i < s->count[on.rank]; i++)
        n += s->action[on.rank][i].verb > WF_PIPELINE_BACKWARD;
    return n;
}

static uint64_t sum_of(const uint64_t n[NCCL_FAKE_RANKS])
{
    uint64_t sum = 0;
    for (int r = 0; r < NCCL_FAKE_RANKS; r++)
        sum += n[r];
    return sum;
}

static void launches(void)
{
    wf_pipeline *pipe = open_pipeline();
    wf_tape *tape = wf_tape_new(on.ctx);
    const int messages = messages_of(pipe), size = wf_comm_size(on.comm);
    for (int i = 0; i < 3; i++) {
        const nccl_journal before = nccl_fake_journal();
        const int64_t reads = guard_reads();
        wf_var *loss = step(pipe, tape);
        WF_EXPECT(loss, "%s", wf_error_trail());
        WF_EXPECT(guard_reads() == reads, "the host reads %lld times in a step", (long long)(guard_reads() - reads));
        WF_EXPECT(wf_item(loss) > 0, "a loss of %g", wf_item(loss));
        const nccl_journal after = nccl_fake_journal();
        /* One launch each, and that of the loss. */
        const uint64_t n = after.launches - before.launches;
        WF_EXPECT(size == 1 || n == (uint64_t)messages + 1, "%d launches, not %d", (int)n, messages + 1);
        WF_EXPECT_OK(wf_barrier(on.comm));
        const uint64_t moved =
            sum_of(after.sent) + sum_of(after.received) - sum_of(before.sent) - sum_of(before.received);
        WF_EXPECT(moved == (uint64_t)messages, "%d messages, not %d", (int)moved, messages);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tape_free(tape);
    close_pipeline(pipe, false);
}

/* On each rank in turn, the first message and a later one. */
static void a_message_fails(void)
{
    int size = 2;
    for (int which = 0; which < 2 * size; which++) {
        wf_pipeline *pipe = open_pipeline();
        wf_tape *tape = wf_tape_new(on.ctx);
        size = wf_comm_size(on.comm);
        WF_EXPECT(step(pipe, tape), "%s", wf_error_trail());
        WF_EXPECT_OK(wf_tape_reset(tape));
        if (on.rank == which / 2)
            nccl_fake_fail_message(which % 2 ? CHUNKS : 0);
        wf_var *loss = size > 1 ? step(pipe, tape) : NULL;
        /* A rank that has launched all its work learns of the failure when it reads. */
        if (loss)
            (void)wf_item(loss);
        char who[24];
        snprintf(who, sizeof who, "rank %d: ", which / 2);
        WF_EXPECT(size == 1 || (wf_error_code() == WF_ERR_COMM && strstr(wf_error_message(), who) &&
                                strstr(wf_error_message(), "on device \"cuda\": error")),
                  "rank %d, case %d: '%s'", on.rank, which, wf_error_message());
        nccl_fake_fail_message(-1);
        wf_error_clear();
        wf_tape_free(tape);
        close_pipeline(pipe, true);
    }
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"launches", launches}, {"a_message_fails", a_message_fails}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
