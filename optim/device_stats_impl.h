/* Statistics of this process and its device, for the reports of a trainer and for time lines. Local. */
#ifndef WF_OPTIM_DEVICE_STATS_IMPL_H
#define WF_OPTIM_DEVICE_STATS_IMPL_H

#include "comm/comm.h"

/* The words of a point, in the order of wf_device_point.value; a report has them with "device/" in front. */
#define WF_DEVICE_WORDS                                                                                                \
    {                                                                                                                  \
        "cpu_percent", "resident_mib", "pool_mib", "sent_mib_per_second", "setup_seconds", "gpu_percent", "gpu_mib",   \
            "gpu_celsius", "gpu_watts"                                                                                 \
    }
enum {
    WF_DEVICE_CPU = 0,  /* processor time of all threads of this process since the point before; one core is 100 */
    WF_DEVICE_RESIDENT, /* memory of this process */
    WF_DEVICE_POOL,     /* what the pool of the context has from the system, page-locked memory of the host too */
    WF_DEVICE_SENT,     /* wf_traffic.bytes_sent since the point before */
    WF_DEVICE_SETUP,    /* the three of wf_setup_seconds together */
    WF_DEVICE_GPU,      /* this and the next three of the whole device, as NVML has them; NAN: not told, or no GPU */
    WF_DEVICE_GPU_MEMORY,
    WF_DEVICE_GPU_HEAT,
    WF_DEVICE_GPU_POWER,
    WF_DEVICE_VALUES
};
typedef struct wf_device_point {
    int64_t ns; /* by wf_profile_clock */
    double value[WF_DEVICE_VALUES];
} wf_device_point;

/* The counters at the time from which a point counts. */
typedef struct wf_device_since {
    int64_t ns;
    double seconds; /* of processor time */
    uint64_t sent;
} wf_device_since;

/* --- nvml.c --- */
typedef struct wf_nvml wf_nvml;
typedef struct wf_nvml_point {
    double percent, mib, celsius, watts; /* NAN: not told */
} wf_nvml_point;
/* Opens NVML for the device that is current in CUDA's driver. NULL, and no error, if NVML or the driver is missing or
 * does not know the device. */
wf_nvml *wf_nvml_open(void);
void wf_nvml_close(wf_nvml *nvml);
/* All NAN if `nvml` is NULL. */
wf_nvml_point wf_nvml_take(const wf_nvml *nvml);

/* --- device_stats.c --- */
/* Begins to count. */
wf_device_since wf_device_begin(const wf_comm *comm);
/* Takes a point, and counts from there. Costs some calls of the system, a short file of /proc, and four calls of NVML
 * if it is not NULL. */
wf_device_point wf_device_take(wf_comm *comm, const wf_nvml *nvml, wf_device_since *since);

#endif
