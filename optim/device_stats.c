/* Takes points: statistics of this process and its device at one time. Nothing here sends. */
#include "comm/comm_author.h"
#include "core/profile_author.h"
#include "optim/device_stats_impl.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define MIB (1 << 20)

static double read_processor_seconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* The second number of /proc/self/statm, in pages; NAN on a system without it. Calls of the system alone, since a
 * stream would allocate. */
static double read_resident_mib(void)
{
    char text[128], *end;
    const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0)
        close(file);
    if (bytes <= 0)
        return NAN;
    text[bytes] = '\0';
    strtol(text, &end, 10);
    return (double)strtol(end, NULL, 10) * (double)sysconf(_SC_PAGESIZE) / MIB;
}

wf_device_since wf_device_begin(const wf_comm *comm)
{
    return (wf_device_since){
        .ns = wf_profile_clock(), .seconds = read_processor_seconds(), .sent = wf_comm_traffic(comm).bytes_sent};
}

wf_device_point wf_device_take(wf_comm *comm, const wf_nvml *nvml, wf_device_since *since)
{
    const wf_device_since now = wf_device_begin(comm);
    const wf_ctx *ctx = wf_comm_ctx(comm);
    const double seconds = 1e-9 * (double)(now.ns - since->ns);
    const wf_setup_seconds setup = wf_ctx_setup_seconds(ctx);
    const wf_nvml_point gpu = wf_nvml_take(nvml);
    wf_device_point p = {.ns = now.ns};
    p.value[WF_DEVICE_CPU] = seconds > 0 ? 100 * (now.seconds - since->seconds) / seconds : NAN;
    p.value[WF_DEVICE_RESIDENT] = read_resident_mib();
    p.value[WF_DEVICE_POOL] = (double)wf_ctx_memory(ctx).bytes_reserved / MIB;
    p.value[WF_DEVICE_SENT] = seconds > 0 ? (double)(now.sent - since->sent) / MIB / seconds : NAN;
    p.value[WF_DEVICE_SETUP] = setup.planning + setup.tuning + setup.capturing;
    p.value[WF_DEVICE_GPU] = gpu.percent;
    p.value[WF_DEVICE_GPU_MEMORY] = gpu.mib;
    p.value[WF_DEVICE_GPU_HEAT] = gpu.celsius;
    p.value[WF_DEVICE_GPU_POWER] = gpu.watts;
    *since = now;
    return p;
}
