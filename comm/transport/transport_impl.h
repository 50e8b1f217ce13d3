/* For comm/transport and for the files that call MPI: errors of MPI, transports. */
#ifndef WF_COMM_TRANSPORT_IMPL_H
#define WF_COMM_TRANSPORT_IMPL_H

#include "comm/safety/safety_impl.h"
#include "comm/transport_author.h"

#include <mpi.h>

enum { WF_MPI_LOOKS = 8 }; /* calls of MPI after which all messages that have come are delivered; one need not do */
#define TRY_MPI(call)                                                                                                  \
    do {                                                                                                               \
        const int try_mpi_code_ = (call);                                                                              \
        if (try_mpi_code_ != MPI_SUCCESS)                                                                              \
            return wf_mpi_raise(try_mpi_code_, #call, __FILE__, __LINE__);                                             \
    } while (0)

/* WF_ERR_COMM with MPI's own words. */
wf_status wf_mpi_raise(int code, const char *call, const char *file, int line);
/* MPI is about to wait for other ranks without looking at the clock, in the call of this name; NULL: no longer. */
void wf_mpi_waits(const char *what);
/* Returns true if the program has finalized MPI: nothing of it is called any more. */
bool wf_mpi_gone(void);

/* MPI's communicator of one that is open. */
MPI_Comm *wf_mpi_comm(const wf_comm *comm);
/* The transport's communicator; taken over. */
wf_status wf_transport_mpi_open(wf_comm *comm, MPI_Comm data);
/* Frees what the transport keeps for this communicator, if it has one; does not wait. */
void wf_transport_mpi_close(wf_comm *comm);

#endif
