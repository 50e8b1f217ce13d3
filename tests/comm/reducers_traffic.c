/* What the reducers that know of nodes send between nodes: their own count is what the formula says, and the link of
 * the virtual nodes (tests/comm/cluster.sh) counts the same within 5 %. */
#include "comm/comm_author.h"
#include "comm/engine/collectives_author.h"
#include "comm/proof/proof_author.h"
#include "comm/reducer_author.h"
#include "core/context_author.h"
#include "tests/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT ((int64_t)6 << 20) /* of f32: divides by nodes and shards */

static int argument_count;
static char **arguments;

static uint64_t link_bytes(void)
{
    uint64_t bytes = 0;
    FILE *file = fopen("/sys/class/net/weft0/statistics/tx_bytes", "r");
    if (file && fscanf(file, "%" SCNu64, &bytes) != 1)
        bytes = 0;
    if (file)
        fclose(file);
    return bytes;
}

static uint64_t other_ranks_too(wf_comm *comm, uint64_t mine)
{
    int64_t sum = (int64_t)mine;
    WF_EXPECT_OK(wf_allreduce_i64(comm, &sum, 1, WF_SUM));
    return (uint64_t)sum;
}

/* What the price of the same sum, by representatives of the ranks, says. */
static wf_price price_of(wf_comm *comm, const char *name, const int64_t offset[3])
{
    const int ranks = wf_comm_size(comm), each = wf_comm_intra_size(comm);
    const wf_price_model model = wf_price_model_default();
    const wf_call call = {
        .operation = WF_CALL_SUM, .reducer = name, .dtype = WF_F32, .count = offset[2], .part = offset, .parts = 2};
    wf_agreed agreed;
    wf_price price = {0};
    int32_t *node = calloc((size_t)ranks, sizeof *node);
    for (int r = 0; r < ranks; r++)
        node[r] = r / each;
    WF_EXPECT_OK(wf_agreed_make(wf_comm_ctx(comm), ranks, node, &agreed));
    agreed.shared = wf_comm_shares_memory(comm);
    WF_EXPECT_OK(wf_call_price(wf_comm_ctx(comm), &agreed, &call, &model, &price));
    wf_agreed_clear(&agreed);
    free(node);
    return price;
}

/* A node sends 2 n (M-1) / M, in as many parts as there are shards; in a node nothing is sent. */
static void check(const char *name, bool sharded)
{
    static float values[COUNT];
    const int64_t offset[] = {0, COUNT / 3, COUNT};
    const wf_call job = {.out = values, .dtype = WF_F32, .parts = 2, .part = offset};
    wf_comm *comm = wf_comm_open(&argument_count, &arguments, name, (wf_ctx_opts){0});
    WF_EXPECT(comm, "%s: %s", name, wf_error_message());
    const int nodes = wf_comm_inter_size(comm), shards = sharded ? wf_comm_intra_size(comm) : 1;
    const bool speaks = wf_comm_intra_rank(comm) < shards && nodes > 1;
    const uint64_t bytes = 2 * sizeof values / (uint64_t)nodes * (uint64_t)(nodes - 1) / (uint64_t)shards;
    WF_EXPECT_OK(wf_barrier(comm));
    const wf_traffic before = wf_comm_traffic(comm);
    const uint64_t link = link_bytes();
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
    const uint64_t sent = wf_comm_traffic(comm).bytes_sent - before.bytes_sent;
    const uint64_t messages = wf_comm_traffic(comm).messages - before.messages;
    WF_EXPECT_OK(wf_barrier(comm));
    const double ratio = (double)(link_bytes() - link) / (double)(bytes * (uint64_t)shards);
    WF_EXPECT(sent == (speaks ? bytes : 0), "%s: %" PRIu64 " bytes sent, should be %" PRIu64, name, sent,
              speaks ? bytes : 0);
    WF_EXPECT(nodes == 1 || sent <= messages << 16, "%s: %" PRIu64 " messages for %" PRIu64 " bytes wait for answers",
              name, messages, sent);
    if (link > 0 && nodes > 1) {
        WF_EXPECT(ratio >= 1 && ratio < 1.05, "%s: the link carried %g times what the formula says", name, ratio);
        printf("%s: the link carried %.4f times what the formula says\n", name, ratio);
    }
    WF_EXPECT(other_ranks_too(comm, sent) == (nodes > 1 ? bytes * (uint64_t)(shards * nodes) : 0), "%s: all ranks",
              name);
    const wf_price price = price_of(comm, name, offset);
    const uint64_t all = other_ranks_too(comm, sent), all_messages = other_ranks_too(comm, messages);
    WF_EXPECT(price.bytes == all && price.messages == all_messages,
              "%s: priced %" PRIu64 " bytes in %" PRIu64 " messages, sent %" PRIu64 " in %" PRIu64, name, price.bytes,
              price.messages, all, all_messages);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void hierarchical(void)
{
    check("hierarchical", false);
}

static void two_dimensional(void)
{
    check("two_dimensional", true);
}

int main(int argc, char **argv)
{
    argument_count = argc;
    arguments = argv;
    return test_main(argc, argv,
                     (test_case[]){{"hierarchical", hierarchical}, {"two_dimensional", two_dimensional}, {0}});
}
