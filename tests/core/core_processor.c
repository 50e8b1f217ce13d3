/* Which level of the processor the library takes. The tests compare the line with what they asked for. */
#include "core/kernels_author.h"
#include "core/processor_author.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    printf("level %s, device %s\n", wf_processor_level(), wf_kernels_cpu()->name);
    return strcmp(wf_kernels_cpu()->name, "cpu") != 0;
}
