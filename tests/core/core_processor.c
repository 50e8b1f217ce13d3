/* The levels of the processor that the library and oneDNN take. Tests compare the lines with what they asked for. */
#include "core/kernels_author.h"
#include "core/processor_author.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    printf("level %s, device %s\n", wf_processor_level(), wf_kernels_cpu()->name);
    printf("%s\n", wf_kernels_cpu()->library());
    return strcmp(wf_kernels_cpu()->name, "cpu") != 0;
}
