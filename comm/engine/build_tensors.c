/* Lists of tensors from rank to rank, whose types and shapes travel ahead of them in the same schedule. */
#include "comm/engine/collectives_author.h"

static wf_address frame_at(wf_address frames, int i)
{
    return wf_address_add(frames, (size_t)i * WF_FRAME_BYTES);
}

/* A frame is looked at as soon as it has come; its data are on their way meanwhile. */
void wf_build_parts(wf_builder *b, const wf_group *g, const wf_parts *parts)
{
    for (int i = 0; i < parts->count_in; i++) {
        const wf_part *in = &parts->in[i];
        const wf_address frame = frame_at(parts->frames_in, i);
        const wf_steps came = wf_add_recv(b, frame, WF_FRAME_BYTES, wf_group_rank(g, in->member));
        const wf_step_call check = {.run = parts->check, .own = in->expected, .from_bytes = WF_FRAME_BYTES};
        if (!parts->check)
            continue;
        wf_after(b, came);
        wf_add_call(b, check, frame, WF_NOWHERE, 0);
    }
    for (int i = 0; i < parts->count_out; i++)
        wf_add_send_frame(b, frame_at(parts->frames_out, i), WF_FRAME_BYTES, wf_group_rank(g, parts->out[i].member));
    for (int i = 0; i < parts->count_in; i++)
        wf_add_recv(b, parts->in[i].at, parts->in[i].bytes, wf_group_rank(g, parts->in[i].member));
    for (int i = 0; i < parts->count_out; i++)
        wf_add_send(b, parts->out[i].at, parts->out[i].bytes, wf_group_rank(g, parts->out[i].member));
}
