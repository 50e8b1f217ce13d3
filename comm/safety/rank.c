/* How messages name ranks: by the world's numbers, which are the same whatever communicator a call is on. */
#include "comm/safety/safety_impl.h"

#include <stdio.h>

const char *wf_rank_numbers(int world, int own, char text[WF_RANK_TEXT])
{
    if (world == own)
        snprintf(text, WF_RANK_TEXT, "%d", own);
    else
        snprintf(text, WF_RANK_TEXT, "%d (%d)", world, own);
    return text;
}

const char *wf_rank_listed(const int32_t *world_rank, int own, char text[WF_RANK_TEXT])
{
    return wf_rank_numbers(world_rank ? world_rank[own] : own, own, text);
}

int wf_world_rank(const wf_comm *comm, int rank)
{
    return rank >= 0 && comm->ranks.world ? comm->ranks.world[rank] : rank;
}

const char *wf_rank_text(const wf_comm *comm, int rank, char text[WF_RANK_TEXT])
{
    return wf_rank_numbers(comm ? wf_world_rank(comm, rank) : rank, rank, text);
}
