/* Limits of the guard that whole calls reach only by chance: a full ring of records, a wait for a rank that has left
 * and then for another one, and a tensor of another type for oneself. */
#include "comm/comm_author.h"
#include "comm/guard/guard_impl.h"
#include "comm/reducer_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/ranks.h"

enum { RECORDS = 64 }; /* of comm/guard/control.c */

static wf_status announce(wf_comm *part, int number)
{
    wf_call_record record = wf_call_record_plain("records", -1);
    record.sequence = (uint64_t)number;
    record.dim[0] = number;
    return wf_control_announce(part, &record, (uint64_t)number);
}

/* All ranks have announced as many records as there is room for, and all but the last one have compared theirs. Its
 * left neighbour knows its own calls to be right, but must not overwrite a record that the last rank has not read. */
static void a_full_ring_of_records(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    WF_EXPECT_OK(wf_reducer_connect(part));
    WF_EXPECT_OK(wf_barrier(part));
    WF_EXPECT_OK(wf_guard_settle(part));
    WF_EXPECT_OK(wf_barrier(comm)); /* now all have read the records of this */
    WF_EXPECT(wf_comm_shares_memory(part), "no memory is shared");
    for (int i = 1; i <= RECORDS; i++) {
        WF_EXPECT(wf_control_has_room(part), "no room for record %d", i);
        WF_EXPECT_OK(announce(part, i));
    }
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank < size - 1)
        WF_EXPECT_OK(wf_control_poll(part, false));
    WF_EXPECT(wf_control_confirmed(part) == (rank < size - 1), "rank %d: the records are compared where they are not",
              rank);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(wf_control_has_room(part) == (rank < size - 2), "rank %d of %d: room for record %d", rank, size,
              RECORDS + 1);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT_OK(wf_control_poll(part, false));
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(wf_control_has_room(part), "rank %d: no room though all records are read", rank);
    WF_EXPECT_OK(wf_comm_close(part));
}

/* One look of a wait for `peer`, which is long enough to look around. */
static wf_status look_for(wf_comm *part, wf_deadline *wait, int peer)
{
    wait->peer = peer;
    wait->looked_ns = 0;
    return wf_deadline_poll(part, wait);
}

/* What a rank sent before it left may arrive for a second after this rank has seen it leave; a sight of it in an
 * earlier part of the wait does not count. */
static void leaving_is_seen_anew(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    if (rank > 0)
        WF_EXPECT_OK(wf_comm_close(part));
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0) {
        wf_deadline wait = wf_deadline_new();
        wait.start_ns -= 1500000000;
        WF_EXPECT_OK(look_for(part, &wait, 1));
        WF_EXPECT(wait.left_ns > 0, "rank 1 has closed, and is not seen to");
        wait.left_ns = 1; /* long ago */
        WF_EXPECT_OK(look_for(part, &wait, -1));
        WF_EXPECT_OK(look_for(part, &wait, 1));
        wait.left_ns = 1;
        WF_EXPECT(look_for(part, &wait, 1) == WF_ERR_COMM && strstr(wf_error_message(), "which has closed"), "\"%s\"",
                  wf_error_message());
        wf_error_clear();
        WF_EXPECT_OK(wf_comm_close(part));
    }
}

/* What a rank keeps for itself is compared like what it sends. */
static void own_slot_of_another_type(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    wf_tensor *x[8], *y[8];
    for (int r = 0; r < size; r++) {
        x[r] = wf_tensor_new(ctx, WF_I32, WF_SHAPE(3));
        y[r] = wf_tensor_new(ctx, r == 0 && rank == 0 ? WF_F32 : WF_I32, WF_SHAPE(3));
        WF_EXPECT_OK(wf_tensor_fill(x[r], 1));
    }
    wf_status status = wf_alltoall(part, x, y);
    status = status == WF_OK ? wf_barrier(part) : status;
    expect_same_error(comm, status, WF_ERR_COMM, "rank 0 sent i32 [3] where f32 [3] is expected", "own slot", 0);
    for (int r = 0; r < size; r++) {
        wf_tensor_free(x[r]);
        wf_tensor_free(y[r]);
    }
    WF_EXPECT_OK(wf_comm_close(part));
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("single_node"))
        return 1;
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"a_full_ring_of_records", a_full_ring_of_records},
                                               {"leaving_is_seen_anew", leaving_is_seen_anew},
                                               {"own_slot_of_another_type", own_slot_of_another_type},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
