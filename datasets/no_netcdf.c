/* Chosen by CMake where libnetcdf is absent: every file is refused with what would be right. */
#include "datasets/netcdf_impl.h"

wf_status wf_nc_open(const char *path, wf_nc **file)
{
    *file = NULL;
    WF_FAIL(WF_ERR_UNSUPPORTED, "%s: this build of Weft has no netCDF: install libnetcdf-dev, and build it again",
            path);
}

void wf_nc_close(wf_nc *file)
{
}

int wf_nc_variables(const wf_nc *file)
{
    return 0;
}

wf_status wf_nc_describe(wf_nc *file, int id, wf_nc_variable *variable)
{
    return WF_ERR_UNSUPPORTED;
}

wf_status wf_nc_find(wf_nc *file, const char *name, wf_nc_variable *variable)
{
    return WF_ERR_UNSUPPORTED;
}

bool wf_nc_is_time(wf_nc *file, const char *dimension)
{
    return false;
}

wf_status wf_nc_read(wf_nc *file, const wf_nc_variable *variable, const wf_box *box, double *values)
{
    return WF_ERR_UNSUPPORTED;
}
