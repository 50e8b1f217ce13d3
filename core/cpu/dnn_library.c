/* Tells which oneDNN runs, by which instructions of the processor: a program may meet another version than that of the
 * headers, and ONEDNN_MAX_CPU_ISA may ask for fewer instructions than there are. */
#include "core/cpu/dnn_impl.h"

#include <ctype.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <stdio.h>
#include <string.h>

/* Without these instructions oneDNN computes bf16 in loops that are slower than f32 with conversions (core/cpu/wide.c).
 */
bool wf_dnn_takes_bf16(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

bool wf_dnn_has_amx(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
}

bool wf_cpu_multiplies(wf_dtype dtype)
{
    return dtype == WF_F32 || (dtype == WF_BF16 && wf_dnn_takes_bf16());
}

const char *wf_cpu_library(void)
{
    static const char prefix[] = "cpu_isa_";
    static char text[64];
    const dnnl_version_t *const v = dnnl_version();
    const char *isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
    if (strncmp(isa, prefix, sizeof prefix - 1) == 0)
        isa += sizeof prefix - 1;
    size_t n = (size_t)snprintf(text, sizeof text, "oneDNN %d.%d.%d, ", v->major, v->minor, v->patch);
    for (; *isa && n + 1 < sizeof text; isa++)
        text[n++] = (char)toupper((unsigned char)*isa);
    text[n] = '\0';
    return text;
}
