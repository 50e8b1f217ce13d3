/* Native steps of a run: each hands its parts to the native transport. */
#include "comm/engine/engine_impl.h"

static void *data_at(const wf_run *run, wf_address address)
{
    char *data = address.operand < 0 ? NULL : run->data[address.operand];
    return data ? data + address.at : NULL;
}

/* A simulation has no native transport: messages of a group go by its link, and where the group begins and ends does
 * not matter to them. */
wf_status wf_run_native(const wf_run *run, const wf_step *step)
{
    const wf_native_part *part = &run->schedule->launch[step->list];
    WF_CHECK(run->launch || part->kind > WF_NATIVE_COPY, WF_ERR_STATE, "a native step runs without a native transport");
    return run->launch ? run->launch(run->launch_own, part, data_at(run, step->from), data_at(run, step->to)) : WF_OK;
}

wf_status wf_run_native_message(const wf_run *run, const wf_step *step)
{
    const bool receives = step->kind == WF_STEP_RECV;
    const wf_native_part part = {.kind = receives ? WF_NATIVE_RECV : WF_NATIVE_SEND,
                                 .count = (int64_t)step->bytes,
                                 .dtype = WF_U8,
                                 .peer = step->peer};
    return run->launch(run->launch_own, &part, data_at(run, step->from), data_at(run, step->to));
}
