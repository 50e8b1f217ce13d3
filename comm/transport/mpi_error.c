/* Errors of MPI as errors of the library, the note for the watchdog that a call of MPI may wait, and the question
 * whether MPI can still be called. */
#include "comm/transport/transport_impl.h"

wf_status wf_mpi_raise(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0, name = 0;
    MPI_Error_string(code, text, &length);
    /* The macro passes the whole expression; the name of the function is enough for a user. */
    while (call[name] && call[name] != '(')
        name++;
    return wf_error_set(WF_ERR_COMM, file, line, "%.*s: %.200s", name, call, text);
}

void wf_mpi_waits(const char *what)
{
    wf_recorder_where(what ? what : "");
    if (what)
        wf_watch_begin(what);
    else
        wf_watch_end();
}

bool wf_mpi_gone(void)
{
    int finalized = 0;
    return MPI_Finalized(&finalized) == MPI_SUCCESS && finalized;
}
