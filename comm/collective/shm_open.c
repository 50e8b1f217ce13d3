#include "comm/collective/collective_impl.h"
#include "comm/transport/transport_impl.h"

#include <stdlib.h>

#define SEGMENT (WF_SHM_HEAD + WF_SHM_SLOTS * WF_SHM_SLOT)

static wf_shm *shm_new(const wf_comm *comm)
{
    const size_t size = (size_t)comm->intra_size;
    wf_shm *shm = calloc(1, sizeof *shm);
    if (!shm)
        return NULL;
    shm->rank = comm->intra_rank;
    shm->size = comm->intra_size;
    shm->at = calloc(size, sizeof *shm->at);
    shm->in = calloc(size, sizeof *shm->in);
    if (shm->at && shm->in)
        return shm;
    wf_shm_close(shm);
    return NULL;
}

static wf_status connect(wf_comm *comm, wf_shm *shm, void **base, int *rank, bool *shared, char why[WF_FAILURE_TEXT])
{
    WF_TRY(wf_mpi_share(comm, SEGMENT, base, rank, why));
    *shared = base[0] != NULL;
    for (int i = 0; i < shm->size && *shared; i++) {
        shm->at[i].flags = base[i];
        shm->at[i].slots = (char *)base[i] + WF_SHM_HEAD;
        shm->at[i].world = rank[i];
    }
    return WF_OK;
}

wf_status wf_shm_open(wf_comm *comm, wf_shm **out, char why[WF_FAILURE_TEXT])
{
    wf_shm *shm = shm_new(comm);
    void **base = calloc((size_t)comm->intra_size, sizeof *base);
    int *rank = calloc((size_t)comm->intra_size, sizeof *rank);
    bool shared = false;
    wf_status status = shm && base && rank ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a node's ranks");
    if (status == WF_OK)
        status = connect(comm, shm, base, rank, &shared, why);
    free(base);
    free(rank);
    if (!shared) {
        wf_shm_close(shm);
        shm = NULL;
    }
    *out = shm;
    return status;
}

void wf_shm_close(wf_shm *shm)
{
    if (!shm)
        return;
    free(shm->at);
    free(shm->in);
    free(shm);
}
