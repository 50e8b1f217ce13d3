/* What the files that call MPI share. */
#ifndef WF_COMM_MPI_IMPL_H
#define WF_COMM_MPI_IMPL_H

#include "comm/comm_impl.h"

#include <mpi.h>

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
/* For the exit of the process: a communicator is open and could be told; is no longer. */
void wf_mpi_opened(wf_comm *comm);
void wf_mpi_closed(wf_comm *comm);

/* The transport's and the control's communicator; taken over. */
wf_status wf_wire_open(wf_comm *comm, MPI_Comm data);
wf_status wf_control_open(wf_comm *comm, MPI_Comm control);

#endif
