/* Every name of a communicator, for tests that run under all of them. */
#ifndef WF_TESTS_COMM_NAMES_H
#define WF_TESTS_COMM_NAMES_H

#include "comm/comm.h"
#include "tests/test.h"
#include "tests/world.h"

#include <string.h>

static const char *const comm_names[] = {"naive", "flat",  "hierarchical",   "two_dimensional", "single_node",
                                         "auto",  "dummy", "non_cuda_aware", "pure_nccl",       NULL};

/* Returns true if a communicator of this name can be opened here: single_node on one node only, those for the gradients
 * of a GPU on a GPU only. */
static inline bool comm_name_fits(const char *name, wf_ctx_opts opts)
{
    const bool node = !strcmp(name, "single_node"), gpu = !strcmp(name, "non_cuda_aware") || !strcmp(name, "pure_nccl");
    if (!node && !gpu)
        return true;
    wf_comm *comm = test_comm_open("flat", opts);
    const bool fits = node ? wf_comm_inter_size(comm) == 1 : !strcmp(wf_ctx_device(wf_comm_ctx(comm)), "cuda");
    WF_EXPECT_OK(wf_comm_close(comm));
    return fits;
}

/* The error of a name that cannot be here is one line, and says what is missing. */
static inline void comm_expect_refusal(const char *name)
{
    const bool nodes = !strcmp(name, "single_node");
    const char *word = nodes ? "nodes" : !strcmp(name, "pure_nccl") ? "NCCL" : "GPU", *said = wf_error_message();
    WF_EXPECT(wf_error_code() == (nodes ? WF_ERR_ARGUMENT : WF_ERR_UNSUPPORTED) && strstr(said, name) &&
                  strstr(said, word) && !strchr(said, '\n'),
              "%s: %s, \"%s\"", name, wf_status_name(wf_error_code()), said);
    wf_error_clear();
}

/* Opens by name; NULL, the same on all ranks, where that name cannot be. */
static inline wf_comm *comm_open_named(const char *name, wf_ctx_opts opts)
{
    const bool fits = comm_name_fits(name, opts);
    wf_comm *comm = test_comm_open(name, opts);
    WF_EXPECT((comm != NULL) == fits, "%s: %s", name, comm ? "opens, and should not" : wf_error_message());
    if (!comm) {
        comm_expect_refusal(name);
        return NULL;
    }
    const bool same = !strcmp(wf_comm_name(comm), name);
    WF_EXPECT(same != !strcmp(name, "auto"), "%s is called %s", name, wf_comm_name(comm));
    return comm;
}

#endif
