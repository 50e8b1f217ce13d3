#include "comm/transport/transport_impl.h"

wf_status wf_mpi_raise(int code, const char *call, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0, name = 0;
    MPI_Error_string(code, text, &length);
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
