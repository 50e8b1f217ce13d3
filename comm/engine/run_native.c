/* Native steps of a run: each hands its calls to the native transport, several of them as one group. */
#include "comm/engine/engine_impl.h"

static void *data_at(const wf_run *run, wf_address address)
{
    char *data = address.operand < 0 ? NULL : run->on.data[address.operand];
    return data ? data + address.at : NULL;
}

wf_status wf_run_native(const wf_run *run, const wf_step *step)
{
    const wf_binding *on = &run->on;
    const wf_native_part *part = &run->schedule->launch[step->list];
    WF_CHECK(on->launch, WF_ERR_STATE, "a native step runs without a native transport");
    if (step->inputs > 1)
        WF_TRY(on->launch(on->launch_own, NULL, NULL, NULL, false));
    for (int i = 0; i < step->inputs; i++)
        WF_TRY(on->launch(on->launch_own, &part[i], data_at(run, part[i].x), data_at(run, part[i].y), false));
    return step->inputs > 1 ? on->launch(on->launch_own, NULL, NULL, NULL, true) : WF_OK;
}
