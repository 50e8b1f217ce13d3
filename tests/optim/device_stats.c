/* Statistics of the device in reports: in the log, in what is shown and on the time line, on a CPU and, by a double of
 * NVML, on a device that is not the host. */
#include "core/context_author.h"
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "optim/trainer.h"
#include "tests/file/folder.h"
#include "tests/optim/trainer_json.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 4, NUMBERS = 1 << 18, PAUSE_US = 60000 };

static char text[1 << 16];

static const char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = '\0';
    return text;
}

/* One MiB is summed, and some milliseconds of a processor pass. */
static wf_status work(wf_trainer *trainer, void *user)
{
    wf_tensor *x = user;
    const clock_t begin = clock();
    WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_MAX));
    while (clock() - begin < CLOCKS_PER_SEC / 200)
        ;
    return wf_trainer_observe(trainer, "loss", 0.5, 1);
}

static wf_status pause_after(wf_trainer *trainer, void *user)
{
    usleep(PAUSE_US);
    return work(trainer, user);
}

/* Runs it; rank 0's errors and warnings go to the file "said". */
static void run(wf_train_function step, wf_trainer_opts opts)
{
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(NUMBERS));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    opts.iterations = STEPS;
    opts.report = (wf_when){.iterations = 1};
    const int kept = dup(STDERR_FILENO), said = open(in_folder("said"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (rank == 0)
        dup2(said, STDERR_FILENO);
    wf_trainer *t = wf_trainer_new(comm, step, x, opts);
    const wf_status status = wf_trainer_run(t);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(said);
    WF_EXPECT_OK(status);
    wf_trainer_free(t);
    wf_tensor_free(x);
}

/* The number under a name in a line; NaN if it is not there. */
static double number_of(const char *line, const char *name)
{
    char key[80];
    snprintf(key, sizeof key, "\"device/%s\": ", name);
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : NAN;
}

static bool is_between(double x, double least, double most)
{
    return x >= least && x <= most;
}

/* Every line has plausible values of a host; a rank of several sends what it sums. */
static bool is_plausible(const char *line)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    const double pool = (double)wf_ctx_memory(ctx).bytes_reserved / (1 << 20);
    const double sent = number_of(line, "sent_mib_per_second");
    return is_between(number_of(line, "cpu_percent"), 1e-3, 101.0 * (double)sysconf(_SC_NPROCESSORS_CONF)) &&
           is_between(number_of(line, "resident_mib"), 1, 2.0 * (double)used.ru_maxrss / 1024) &&
           is_between(number_of(line, "pool_mib"), 1, 2 * pool) &&
           is_between(sent, size > 1 ? 1e-6 : 0, size > 1 ? 1e6 : 0) &&
           is_between(number_of(line, "setup_seconds"), 0, 1e4);
}

/* The lines of the log: `good` says what each is to have; all are JSON. */
static void expect_lines(const char *path, bool (*good)(const char *line))
{
    int n = 0;
    if (rank > 0)
        return;
    read_text(path);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n++)
        WF_EXPECT(json_is_object(line) && good(line), "line %d of the log is %s", n + 1, line);
    WF_EXPECT(n == STEPS, "%d lines in the log", n);
    WF_EXPECT(!*read_text(in_folder("said")), "the run says: %s", text);
}

static bool lacks_gpu(const char *line)
{
    return is_plausible(line) && !strstr(line, "gpu_") && !strstr(line, "null");
}

static bool lacks_all(const char *line)
{
    return !strstr(line, "device/");
}

static bool has_gpu(const char *line)
{
    return is_plausible(line) && number_of(line, "gpu_percent") == 37 && number_of(line, "gpu_mib") == 4096 &&
           number_of(line, "gpu_celsius") == 61 && number_of(line, "gpu_watts") == 215.5;
}

static bool lacks_power(const char *line)
{
    return number_of(line, "gpu_celsius") == 61 && !strstr(line, "gpu_watts");
}

/* Returns true if a library is to be had that no test made: of a driver, on a machine with a GPU. */
static bool is_installed(const char *library, int flags)
{
    void *found = dlopen(library, RTLD_LAZY | flags);
    if (found)
        dlclose(found);
    return found != NULL;
}

/* Without NVML the log has no line about a GPU, and no error. */
static void log_lines(void)
{
    char path[256];
    const bool real = !ctx->k->host && is_installed("libnvidia-ml.so.1", 0);
    snprintf(path, sizeof path, "%s", in_folder("log.jsonl"));
    run(work, (wf_trainer_opts){.log = path, .device_statistics = true});
    expect_lines(path, real ? is_plausible : lacks_gpu);
    run(work, (wf_trainer_opts){.log = path});
    expect_lines(path, lacks_all);
}

/* The progress has them last, without their prefix. */
static void shown(void)
{
    int ends[2];
    WF_EXPECT(pipe(ends) == 0, "no pipe");
    run(work, (wf_trainer_opts){.progress = ends[1], .line_seconds = 1e-9, .device_statistics = true});
    close(ends[1]);
    const ssize_t bytes = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    text[bytes > 0 ? bytes : 0] = '\0';
    int lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        const char *rate = strstr(line, " iterations/s"), *cpu = strstr(line, "  cpu_percent "),
                   *pool = strstr(line, "  pool_mib ");
        WF_EXPECT(strstr(line, "  loss 0.5") && rate && cpu > rate && pool > cpu && !strstr(line, "device/"), "%s",
                  line);
    }
    WF_EXPECT(lines == (rank == 0 ? STEPS : 0), "%d lines are shown", lines);
}

/* Steps that pause longer than half the time between two points give every rank two points at least. */
static void time_line(void)
{
    static const char *const words[] = {"cpu_percent", "resident_mib", "pool_mib", "sent_mib_per_second",
                                        "setup_seconds"};
    char path[256], command[512], line[1024], begins[128];
    if (!ctx->k->host) /* a GPU has no time line */
        return;
    snprintf(path, sizeof path, "%s", in_folder("run.json"));
    run(pause_after, (wf_trainer_opts){.timeline = path, .device_statistics = true});
    for (int i = 0; rank == 0 && i < size * 5; i++) {
        int points = 0;
        snprintf(begins, sizeof begins, "{\"name\": \"%s\", \"ph\": \"C\", \"pid\": %d, \"ts\": ", words[i % 5], i / 5);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            points += strncmp(line, begins, strlen(begins)) == 0;
        if (file)
            fclose(file);
        WF_EXPECT(is_between(points, 2, STEPS), "rank %d has %d points of %s", i / 5, points, words[i % 5]);
    }
    snprintf(command, sizeof command, "! command -v python3 >/dev/null || python3 -m json.tool %s >/dev/null", path);
    WF_EXPECT(rank > 0 || system(command) == 0, "%s is not JSON", path);
}

/* A run that goes on without the statistics shows none, though the one before had them. */
static void shown_no_more(void)
{
    int ends[2];
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(NUMBERS));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT(pipe(ends) == 0, "no pipe");
    for (int more = 0; more < 2; more++) {
        wf_checkpoint *saves = wf_checkpoint_open(comm, in_folder("saves"), (wf_checkpoint_opts){.every = 1});
        wf_trainer *t = wf_trainer_new(comm, work, x,
                                       (wf_trainer_opts){.iterations = 2 + more,
                                                         .report = {.iterations = 1},
                                                         .progress = more ? ends[1] : 0,
                                                         .line_seconds = 1e-9,
                                                         .device_statistics = !more});
        int64_t step = 0;
        WF_EXPECT_OK(wf_trainer_set_checkpoint(t, saves));
        WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
        WF_EXPECT(step == 2 * more, "run %d goes on at %lld", more, (long long)step);
        WF_EXPECT_OK(wf_trainer_run(t));
        wf_trainer_free(t);
        WF_EXPECT_OK(wf_checkpoint_close(saves));
    }
    close(ends[1]);
    const ssize_t bytes = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    text[bytes > 0 ? bytes : 0] = '\0';
    WF_EXPECT(rank > 0 || (strstr(text, "loss 0.5") && !strstr(text, "cpu_percent")), "%s", text);
    wf_tensor_free(x);
}

static int *fake_number(void *library, const char *name)
{
    int *number = dlsym(library, name);
    WF_EXPECT(number, "the double has no %s", name);
    return number;
}

/* Libraries that are loaded already are found by their names: a real driver's before the double. */
static void nvml(void)
{
    char path[256];
    if (ctx->k->host || is_installed("libcuda.so.1", RTLD_NOLOAD))
        return;
    void *driver = dlopen(WF_TEST_FAKES "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL),
         *library = dlopen(WF_TEST_FAKES "/libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    WF_EXPECT(driver && library, "no double of NVML: %s", dlerror());
    snprintf(path, sizeof path, "%s", in_folder("log.jsonl"));
    run(work, (wf_trainer_opts){.log = path, .device_statistics = true});
    expect_lines(path, has_gpu);
    *fake_number(library, "fake_nvml_silent") = 1;
    run(work, (wf_trainer_opts){.log = path, .device_statistics = true});
    expect_lines(path, lacks_power);
    *fake_number(library, "fake_nvml_unknown") = 1;
    run(work, (wf_trainer_opts){.log = path, .device_statistics = true});
    expect_lines(path, lacks_gpu);
    WF_EXPECT(*fake_number(library, "fake_nvml_open") == 0, "NVML is left open");
    dlclose(library);
    dlclose(driver);
}

/* Planning counts when plans are made, and only then. */
static void set_up(void)
{
    wf_layer *conv = wf_conv2d(ctx, (wf_conv_opts){.in = 3, .out = 5, .kernel = 3});
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 3, 17, 19));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    for (int i = 0; i < 2; i++) {
        const wf_setup_seconds before = wf_ctx_setup_seconds(ctx);
        const int64_t plans = wf_ctx_memory(ctx).plans;
        WF_EXPECT_OK(wf_check(wf_apply(conv, wf_input(tape, x))));
        WF_EXPECT_OK(wf_tape_reset(tape));
        const wf_setup_seconds after = wf_ctx_setup_seconds(ctx);
        const bool plan = wf_ctx_memory(ctx).plans > plans;
        WF_EXPECT(plan ? after.planning > before.planning : after.planning == before.planning,
                  "planning took %g s, %s plan", after.planning - before.planning, plan ? "with a" : "without a");
        WF_EXPECT(i == 0 || !plan, "a shape is planned twice");
        WF_EXPECT(after.tuning == 0 && after.capturing == 0, "tuning took %g s, capturing %g s", after.tuning,
                  after.capturing);
    }
    WF_EXPECT(wf_ctx_memory(ctx).plans == 0 || wf_ctx_setup_seconds(ctx).planning > 0, "plans took no time");
    WF_EXPECT(wf_ctx_setup_seconds(NULL).planning == 0, "no context plans");
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(conv);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"log_lines", log_lines},
                                               {"shown", shown},
                                               {"shown_no_more", shown_no_more},
                                               {"time_line", time_line},
                                               {"nvml", nvml},
                                               {"set_up", set_up},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
