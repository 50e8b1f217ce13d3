/* For tests/core/dlpack.py: a library that Python loads, with a context of its own. */
#include "core/dlpack.h"

#include <stdlib.h>

wf_ctx *dlpack_ctx(void);
const char *dlpack_error(void);

wf_ctx *dlpack_ctx(void)
{
    return wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
}

const char *dlpack_error(void)
{
    return wf_error_message();
}
