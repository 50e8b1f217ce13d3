/* A rank leaves the program while the others wait for it. The test looks at what they print. must: by a WF_MUST that
 * fails. many: they wait in the last of many communicators. */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    const bool must = argc > 1 && !strcmp(argv[1], "must"), many = argc > 1 && !strcmp(argv[1], "many");
    for (int i = 0; i < 80 && many; i++)
        comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    if (wf_comm_rank(comm) == 1) {
        if (must)
            WF_MUST(wf_barrier(NULL));
        return 3;
    }
    const wf_status status = wf_barrier(comm);
    fprintf(stderr, "%s: %s\n", wf_status_name(status), wf_error_message());
    return status == WF_OK ? 0 : 4;
}
