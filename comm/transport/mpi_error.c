/* Errors of MPI as errors of the library, and the note for the watchdog that a call of MPI may wait. */
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
