/* The environment variables, read once into one struct. All parts of the library ask here; no other file may read
 * the environment. Nothing here changes it, but for a variable of NCCL's that has no other way in. A value that cannot
 * be parsed gives a warning and the default. */
#include "core/config_author.h"

#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *text_of(const char *name, const char *otherwise)
{
    const char *text = getenv(name);
    /* An empty variable counts as unset: launchers export names without values. */
    return text && *text ? text : otherwise;
}

/* Reads a whole number of at least `least` that is the whole text. */
static bool read_number(const char *text, long least, long *value)
{
    char *end;
    errno = 0;
    const long number = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || number < least)
        return false;
    *value = number;
    return true;
}

static long number_of(const char *name, long otherwise, long least)
{
    const char *text = text_of(name, NULL);
    long value = otherwise;
    if (!text || read_number(text, least, &value))
        return value;
    wf_log_write(WF_LOG_WARN, "%s is \"%s\", should be a whole number of at least %ld; taking %ld", name, text, least,
                 otherwise);
    return otherwise;
}

static int level_of(const char *text)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    wf_log_write(WF_LOG_WARN, "WEFT_LOG is \"%s\", should be error, warn, info or debug; taking info", text);
    return WF_LOG_INFO;
}

/* A program that no launcher named gets a name of its own for its trace files and shared memory. */
static const char *own_job(void)
{
    static char name[24];
    snprintf(name, sizeof name, "process-%ld", (long)getpid());
    return name;
}

/* The variables by which launchers tell a process its job and its rank before MPI starts, when the watchdog already
 * wants them; the first launcher whose rank is set counts. No other place of the library knows an MPI or a launcher by
 * name. Slurm sets SLURM_PROCID for a job's script too, so a step counts alone. */
static const struct {
    const char *rank, *job, *step;
} launchers[] = {
    {"PMIX_RANK", "PMIX_NAMESPACE", NULL},             /* OpenMPI's mpirun, PRRTE, Slurm by PMIx */
    {"PMI_RANK", "PMI_JOBID", NULL},                   /* MPICH's and Intel's mpiexec, Slurm by PMI */
    {"OMPI_COMM_WORLD_RANK", NULL, NULL},              /* an OpenMPI without PMIx */
    {"SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID"}, /* srun alone */
};

/* Some launchers name no job: its processes on one machine then share their parent. */
static const char *launched_job(const char *job, const char *step)
{
    static char name[96];
    if (job && step)
        snprintf(name, sizeof name, "%s.%s", job, step);
    else
        snprintf(name, sizeof name, "launcher-%ld", (long)getppid());
    return job && !step ? job : name;
}

static void read_launcher(wf_config *config)
{
    config->job = own_job();
    config->rank = -1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *step = launchers[i].step ? text_of(launchers[i].step, NULL) : NULL;
        if (!text_of(launchers[i].rank, NULL) || (launchers[i].step && !step))
            continue;
        config->launched = true;
        config->rank = (int)number_of(launchers[i].rank, -1, 0);
        config->job = launched_job(launchers[i].job ? text_of(launchers[i].job, NULL) : NULL, step);
        return;
    }
}

/* As the XDG base directory specification has it. */
static const char *own_cache(void)
{
    static char path[4096];
    const char *caches = text_of("XDG_CACHE_HOME", NULL), *home = text_of("HOME", NULL);
    if (caches)
        snprintf(path, sizeof path, "%s/weft", caches);
    else if (home)
        snprintf(path, sizeof path, "%s/.cache/weft", home);
    return caches || home ? path : NULL;
}

/* OMP_NUM_THREADS may list a number per level: the first counts. OpenMP allows spaces around each. */
static int omp_threads(void)
{
    const char *text = text_of("OMP_NUM_THREADS", NULL);
    if (!text)
        return 0;
    char *end;
    const long n = strtol(text, &end, 10);
    end += strspn(end, " \t");
    if (end > text && (*end == '\0' || *end == ',') && n > 0 && n < 4096)
        return (int)n;
    wf_log_write(WF_LOG_WARN,
                 "OMP_NUM_THREADS is \"%s\", should begin with a whole number from 1 to 4095; taking the "
                 "processors of this rank",
                 text);
    return 0;
}

/* The longest wait for a rank of another machine, which is longer by default. timeout_ms has warned of a text that is
 * no number. */
static long far_timeout(void)
{
    const char *text = text_of("WEFT_TIMEOUT_MS", NULL);
    long value = 1800000;
    if (text)
        (void)read_number(text, 1, &value);
    return value;
}

const wf_config *wf_config_get(void)
{
    static wf_config config;
    /* Read at the first use, which is before the library starts a thread, so no lock is needed; a later setenv changes
     * nothing, which keeps all parts of the library of one mind. */
    static bool read;
    if (!read) {
        read = true;
        config.log_level = level_of(text_of("WEFT_LOG", "info"));
        config.device = text_of("WEFT_DEVICE", "auto");
        config.data = text_of("WEFT_DATA", NULL);
        config.timeout_ms = number_of("WEFT_TIMEOUT_MS", 300000, 1);
        config.far_ms = far_timeout();
        config.idle_ms = number_of("WEFT_IDLE_MS", 3600000, 1);
        config.plan = text_of("WEFT_PLAN", NULL);
        config.cache = text_of("WEFT_CACHE", own_cache());
        config.deterministic = number_of("WEFT_DETERMINISTIC", 0, 0) != 0;
        config.level = text_of("WEFT_LEVEL", NULL);
        config.minimal = number_of("WEFT_MINIMAL", 1, 0) != 0;
        config.tf32 = number_of("WEFT_TF32", 1, 0) != 0;
        config.autotune = number_of("WEFT_AUTOTUNE", 0, 0) != 0;
        config.chunk_bytes = number_of("WEFT_CHUNK_BYTES", 1L << 30, 8);
        config.trace = text_of("WEFT_TRACE", NULL);
        read_launcher(&config);
        config.nccl_shares_gpu = number_of("NCCL_MULTI_RANK_GPU_ENABLE", 0, 0) == 1;
        config.nccl_one_rank = number_of("WEFT_NCCL_ONE_RANK", 0, 0) != 0;
        config.omp_threads = omp_threads();
        config.python = text_of("WEFT_PYTHON", NULL);
    }
    return &config;
}

bool wf_config_order_nccl(void)
{
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    return number_of("NCCL_LAUNCH_ORDER_IMPLICIT", 0, 0) == 1;
}

static bool is_of_the_job(const char *variable)
{
    static const char *const prefixes[] = {"OMPI_", "OPAL_", "ORTE_", "PMIX_",  "PMI_", "PMI2_",
                                           "PRTE_", "MPI_",  "MPIR_", "HYDRA_", "HYDI_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

char **wf_config_environment_for_child(void)
{
    size_t count = 0, kept = 0;
    while (environ && environ[count])
        count++;
    char **list = calloc(count + 1, sizeof *list);
    for (size_t i = 0; list && i < count; i++)
        if (!is_of_the_job(environ[i]))
            list[kept++] = environ[i];
    return list;
}
