/* A build without libnetcdf (datasets/no_netcdf.c, which this program links in its place): one line that says what to
 * install. */
#include "datasets/datasets.h"
#include "tests/test.h"

#include <string.h>

static void refused(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    wf_dataset *d = wf_netcdf_dataset(ctx, "/etc/hostname", (wf_netcdf_opts){.variables = "WIND"});
    const wf_status status = wf_dataset_open(d);
    WF_EXPECT(status == WF_ERR_UNSUPPORTED && strstr(wf_error_message(), "install libnetcdf-dev"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT_ERROR(WF_ERR_UNSUPPORTED, wf_netcdf_each("/etc/hostname", NULL, NULL));
    wf_dataset_free(d);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"refused", refused}, {0}});
}
