/* What Fortran programs have beside the headers for users: tools/fortran/helpers.f90 declares it. A file of
 * libweft_fortran.a, which links no MPI: the program that has ranks of its own brings it. */
#include "comm/comm.h"

#include <mpi.h>

wf_comm *wf_comm_from_fortran(int mpi_comm, const char *name, wf_ctx_opts opts);

wf_comm *wf_comm_from_fortran(int mpi_comm, const char *name, wf_ctx_opts opts)
{
    const MPI_Comm comm = MPI_Comm_f2c((MPI_Fint)mpi_comm);
    return wf_comm_from_mpi(&comm, name, opts);
}
