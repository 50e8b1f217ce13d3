/* Lists of tensors from rank to rank, whose types and shapes travel ahead of them in the same schedule, and scattered
 * bytes. */
#include "comm/engine/collectives_author.h"

wf_steps wf_build_parts(wf_builder *b, const wf_group *g, const wf_parts *parts)
{
    wf_steps came = {0};
    for (int i = 0; i < parts->count_in; i++) {
        const wf_steps one = wf_add_recv(b, wf_address_add(parts->frames_in, (size_t)i * WF_FRAME_BYTES),
                                         WF_FRAME_BYTES, wf_group_rank(g, parts->in[i].member));
        came.first = i == 0 ? one.first : came.first;
        came.last = one.last;
    }
    for (int i = 0; i < parts->count_out; i++)
        wf_add_send_frame(b, wf_address_add(parts->frames_out, (size_t)i * WF_FRAME_BYTES), WF_FRAME_BYTES,
                          wf_group_rank(g, parts->out[i].member));
    for (int i = 0; i < parts->count_in; i++)
        wf_add_recv(b, parts->in[i].at, parts->in[i].bytes, wf_group_rank(g, parts->in[i].member));
    for (int i = 0; i < parts->count_out; i++)
        wf_add_send(b, parts->out[i].at, parts->out[i].bytes, wf_group_rank(g, parts->out[i].member));
    if (parts->count_in == 0)
        return came;
    wf_step_call checked = parts->checked;
    checked.from_bytes = (size_t)parts->count_in * WF_FRAME_BYTES;
    wf_after(b, came);
    return wf_add_call(b, checked, parts->frames_in, WF_NOWHERE, 0);
}

/* The size comes ahead: of nothing there is no message that could be of the wrong size. */
void wf_build_scatter_bytes(wf_builder *b, const wf_group *g, const size_t *bytes, size_t y_bytes, int root,
                            wf_step_call checked)
{
    const wf_address y = wf_builder_operand(b, WF_OPERAND_OUTPUT, 0, y_bytes);
    const int others = g->size - 1;
    wf_parts parts = {.checked = checked};
    wf_part *part = wf_builder_room(b, (size_t)g->size * sizeof *part);
    if (!part)
        return;
    if (g->place != root) {
        *part = (wf_part){.member = root, .at = y, .bytes = y_bytes};
        parts.in = part;
        parts.count_in = 1;
        parts.frames_in = wf_builder_operand(b, WF_OPERAND_OUTPUT, 1, WF_FRAME_BYTES);
    } else {
        for (int m = 0; m < g->size; m++) {
            const wf_address x = wf_builder_operand(b, WF_OPERAND_INPUT, m, bytes[m]);
            if (m != root)
                part[parts.count_out++] = (wf_part){.member = m, .at = x, .bytes = bytes[m]};
            else
                wf_add_copy(b, x, y, bytes[m], false);
        }
        parts.out = part;
        if (others > 0)
            parts.frames_out = wf_builder_operand(b, WF_OPERAND_INPUT, g->size, (size_t)others * WF_FRAME_BYTES);
    }
    wf_build_parts(b, g, &parts);
}
