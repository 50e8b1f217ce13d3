/* Use, memory, temperature and power of a GPU by NVML (NVIDIA Management Library), which device_stats.c asks for. The
 * library comes with the driver, so it is opened at run time and nothing is linked. Names, types and the value 0 of the
 * results are those of NVML's reference manual (nvml.h: "NVML API Reference Guide") and of the CUDA driver API; only
 * what is called is declared here.
 *
 * NVML numbers all devices of the machine, and CUDA those that CUDA_VISIBLE_DEVICES leaves: a device is found by the
 * address of its PCI slot, for which the driver is asked. */
#include "optim/device_stats_impl.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct utilisation {
    unsigned gpu, memory; /* percent */
} utilisation;
typedef struct memory_info {
    unsigned long long total, free, used; /* bytes */
} memory_info;

enum { SENSOR_GPU = 0 };

struct wf_nvml {
    void *library, *driver, *device;
    int (*get_use)(void *device, utilisation *use);
    int (*get_memory)(void *device, memory_info *memory);
    int (*get_temperature)(void *device, int sensor, unsigned *celsius);
    int (*get_power)(void *device, unsigned *milliwatts);
    int (*shut)(void);
};

/* `function` is the address of a pointer to a function, which ISO C has no conversion to; POSIX says that its bytes are
 * those of what dlsym returns. */
static bool find_symbol(void *library, const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol;
}

/* The address of the slot of the current device; false where there is none. */
static bool read_slot(void *driver, char slot[32])
{
    int (*current)(int *);
    int (*slot_of)(char *, int, int);
    int device = 0;
    return find_symbol(driver, "cuCtxGetDevice", &current) && find_symbol(driver, "cuDeviceGetPCIBusId", &slot_of) &&
           current(&device) == 0 && slot_of(slot, 32, device) == 0;
}

static bool find_device(wf_nvml *n)
{
    char slot[32] = "";
    int (*init)(void);
    int (*find)(const char *, void **);
    n->driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->driver || !n->library || !read_slot(n->driver, slot) || !find_symbol(n->library, "nvmlInit_v2", &init) ||
        !find_symbol(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &find) || init() != 0)
        return false;
    find_symbol(n->library, "nvmlShutdown", &n->shut);
    find_symbol(n->library, "nvmlDeviceGetUtilizationRates", &n->get_use);
    find_symbol(n->library, "nvmlDeviceGetMemoryInfo", &n->get_memory);
    find_symbol(n->library, "nvmlDeviceGetTemperature", &n->get_temperature);
    find_symbol(n->library, "nvmlDeviceGetPowerUsage", &n->get_power);
    return find(slot, &n->device) == 0;
}

wf_nvml *wf_nvml_open(void)
{
    wf_nvml *n = calloc(1, sizeof *n);
    if (!n || find_device(n))
        return n;
    wf_nvml_close(n);
    return NULL;
}

void wf_nvml_close(wf_nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->shut)
        nvml->shut();
    if (nvml->library)
        dlclose(nvml->library);
    if (nvml->driver)
        dlclose(nvml->driver);
    free(nvml);
}

wf_nvml_point wf_nvml_take(const wf_nvml *nvml)
{
    utilisation use;
    memory_info memory;
    unsigned celsius, milliwatts;
    const wf_nvml *n = nvml;
    wf_nvml_point p = {NAN, NAN, NAN, NAN};
    if (!n)
        return p;
    if (n->get_use && n->get_use(n->device, &use) == 0)
        p.percent = use.gpu;
    if (n->get_memory && n->get_memory(n->device, &memory) == 0)
        p.mib = (double)memory.used / (1 << 20);
    if (n->get_temperature && n->get_temperature(n->device, SENSOR_GPU, &celsius) == 0)
        p.celsius = celsius;
    if (n->get_power && n->get_power(n->device, &milliwatts) == 0)
        p.watts = 1e-3 * milliwatts;
    return p;
}
