/* A double of NVML and, of CUDA's driver, of the two functions that find a device's slot: one shared library, which
 * tests load under the names of both. The numbers are fixed; what a test sets here changes the answers. */
#include <string.h>

#define SLOT "0000:3B:00.0"

int fake_nvml_open;    /* calls of nvmlInit without one of nvmlShutdown */
int fake_nvml_unknown; /* 1: there is no device in that slot */
int fake_nvml_silent;  /* 1: the device does not tell its power */

struct use {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};

int cuCtxGetDevice(int *device);
int cuDeviceGetPCIBusId(char *slot, int length, int device);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *slot, void **device);
int nvmlDeviceGetUtilizationRates(void *device, struct use *use);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);

enum { NOT_FOUND = 6, NOT_SUPPORTED = 3, INVALID = 2 };

int cuCtxGetDevice(int *device)
{
    *device = 5;
    return 0;
}

int cuDeviceGetPCIBusId(char *slot, int length, int device)
{
    if (device != 5 || length < (int)sizeof SLOT)
        return 1;
    strcpy(slot, SLOT);
    return 0;
}

int nvmlInit_v2(void)
{
    fake_nvml_open++;
    return 0;
}

int nvmlShutdown(void)
{
    fake_nvml_open--;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *slot, void **device)
{
    if (fake_nvml_unknown || strcmp(slot, SLOT) != 0)
        return NOT_FOUND;
    *device = &fake_nvml_open;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *device, struct use *use)
{
    *use = (struct use){37, 99};
    return device == &fake_nvml_open ? 0 : INVALID;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    *memory = (struct memory){80ULL << 30, 76ULL << 30, 4ULL << 30};
    return device == &fake_nvml_open ? 0 : INVALID;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    *celsius = 61;
    return device == &fake_nvml_open && sensor == 0 ? 0 : INVALID;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 215500;
    return device == &fake_nvml_open && !fake_nvml_silent ? 0 : NOT_SUPPORTED;
}
