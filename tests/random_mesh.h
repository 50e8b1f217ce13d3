/* A mesh at random. */
#ifndef WF_TESTS_RANDOM_MESH_H
#define WF_TESTS_RANDOM_MESH_H

#include "comm/comm.h"
#include "comm/mesh.h"
#include "tests/test.h"

/* Factors 2 and 3 of the number of ranks go to channels, height and width, each with a chance of `most` in `most` + 1;
 * data takes the rest. */
static inline wf_mesh *random_mesh(wf_comm *ranks, test_rng *rng, int64_t most)
{
    wf_mesh_opts opts = {.channel = 1, .height = 1, .width = 1};
    int left = wf_comm_size(ranks);
    int *const axis[3] = {&opts.channel, &opts.height, &opts.width};
    for (int i = 0; i < 3; i++)
        for (int f = 2; f <= 3; f++)
            if (left % f == 0 && test_int(rng, 0, most) > 0) {
                *axis[i] *= f;
                left /= f;
            }
    return wf_mesh_open(ranks, opts);
}

#endif
