/* Picks the level of x86-64 whose kernels the device `cpu` takes. Called by wf_ctx_make and wf-doctor. */
#include "core/processor_author.h"

#include "core/config_author.h"
#include "core/kernels_author.h"
#include "core/log.h"

#include <stdbool.h>
#include <string.h>

#ifdef WF_CPU_LEVELS
const wf_kernels *wf_kernels_cpu_x86_64(void);
const wf_kernels *wf_kernels_cpu_x86_64_v3(void);
const wf_kernels *wf_kernels_cpu_x86_64_v4(void);

typedef struct level {
    const char *name;
    const wf_kernels *(*kernels)(void);
    bool runs;
} level;

/* A processor with the named instructions has the others of their level: no compiler asks for all of them. v4 needs v3,
 * so levels are ordered and the first that runs is the newest. */
static level pick_level(void)
{
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const level levels[] = {{"x86-64-v4", wf_kernels_cpu_x86_64_v4, v4},
                            {"x86-64-v3", wf_kernels_cpu_x86_64_v3, v3},
                            {"x86-64", wf_kernels_cpu_x86_64, true}};
    const char *asked = wf_config_get()->level;
    int newest = 0;
    while (!levels[newest].runs)
        newest++;
    /* Only levels from the newest that runs: a level that the processor lacks is never taken, even if asked for. */
    for (int i = newest; asked && i < 3; i++)
        if (strcmp(levels[i].name, asked) == 0)
            return levels[i];
    if (asked)
        wf_log_write(WF_LOG_WARN,
                     "WEFT_LEVEL is \"%s\", should be x86-64, x86-64-v3 or x86-64-v4, at most %s here; taking %s",
                     asked, levels[newest].name, levels[newest].name);
    return levels[newest];
}

/* Picked once, by the first context, which is made before any thread: hence no lock. */
static const level *picked(void)
{
    static level one;
    if (!one.name)
        one = pick_level();
    return &one;
}

const wf_kernels *wf_kernels_cpu(void)
{
    return picked()->kernels();
}

const char *wf_processor_level(void)
{
    return picked()->name;
}
#else
const char *wf_processor_level(void)
{
    return "native";
}
#endif
