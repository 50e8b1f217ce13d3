/* Chosen by CMake where NCCL is absent: no native transport, so nothing calls it. */
#include "comm/transport_author.h"

const wf_native_transport wf_transport_native = {.name = NULL};
