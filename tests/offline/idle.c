/* Linked to a program of which only the shapes matter. */
#include "tests/emulate/dnn.h"

__attribute__((constructor)) static void idle(void)
{
    emulated_idle();
}
