/* The emulated machine has one device; what that is, and what its errors are called. */
#include "tests/emulate/dnn.h"
#include "tests/emulate/emulate.h"

#include <stdio.h>
#include <string.h>

enum { PROCESSORS = 2 };

static int capability = 90;

void emulated_capability(int tens)
{
    capability = tens;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
        return "capturing stream has unjoined work";
    default:
        return "an error";
    }
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated");
    properties->multiProcessorCount = PROCESSORS;
    properties->major = capability / 10;
    properties->minor = capability % 10;
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
