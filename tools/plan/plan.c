/* Plans how the ranks of a job should share a model, before the job runs:
 *
 *     wf-plan --ranks 8 --nodes 2 --memory 4GiB --link 1Gbit -o plan.json -- vgg_cifar --width 32 --batch 256
 *
 *     wf-plan --ranks 8 -o plan.json -- vgg16 --batch 256
 *
 * In place of a program one may name a model (tools/plan/model.c). It starts the program on a few ranks of this
 * machine, as many as a node has ranks and this machine processors, with the question in WEFT_PLAN. The program hands
 * its model to the planner (optim/planner.h), which answers and writes the files. */
#include "tools/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_RANKS 1000000
#define TEXT       4096

typedef struct question {
    const char *ranks, *nodes, *memory, *link, *latency, *mesh, *split, *chunks, *measure, *mpirun, *out, *curves, *to;
    char **program;
} question;

static const char usage[] =
    "usage: wf-plan --ranks R [OPTION ...] [--] PROGRAM [ARGUMENT ...]\n"
    "       wf-plan --ranks R [OPTION ...] [--] MODEL [--batch N] [--size N] [--width N]\n"
    "  MODEL             vgg16, resnet18, resnet50, convnext_t, unet, autoencoder, mnist_mlp or mnist_cnn, trained by "
    "SGD with momentum\n"
    "                    (a program of that name is written with its folder: ./autoencoder)\n"
    "  --ranks R         of the job that is planned\n"
    "  --nodes N         on which they are, equally many on each; or the ranks of each: 4,4 (default: 1)\n"
    "  --memory BYTES    of each rank, as 512MiB or 4GiB (default: no limit)\n"
    "  --link RATE       between nodes, as 1Gbit or 25Gbit a second; default: measured where the program runs on "
    "several\n"
    "                    nodes (--mpirun), else 1 GB/s\n"
    "  --latency TIME    of a message between nodes, as 50us (default, with --link)\n"
    "  --mesh AXES       look at this mesh alone, as data=2,height=2\n"
    "  --split HOW       split every layer alike: data, channel, spatial or mesh\n"
    "  --chunks N        of the batch in a pipeline, this number alone\n"
    "  --measure K       ranks that measure at once (default: those of a node, at most the processors here)\n"
    "  --mpirun COMMAND  starts them (default: mpirun)\n"
    "  -o FILE           the plan, for --plan FILE of the program\n"
    "  --curves PREFIX   predicted strong and weak scaling, as PREFIX.csv and PREFIX.svg\n"
    "  --to RANKS        where the curves end (default: 4096)\n";

static int wrong(const char *option, const char *value, const char *should)
{
    fprintf(stderr, "wf-plan: %s %s: should be %s\n", option, value, should);
    return 2;
}

static int refuse(const char *what, const char *option, const char *rest)
{
    fprintf(stderr, "wf-plan: %s%s%s; see wf-plan --help\n", what, option, rest);
    return 2;
}

/* Reads the command. Returns the exit code if it is wrong, else 0. */
static int ask(question *q, int argc, char **argv)
{
    const struct {
        const char *name, **value;
    } option[] = {{"--ranks", &q->ranks},
                  {"--nodes", &q->nodes},
                  {"--memory", &q->memory},
                  {"--link", &q->link},
                  {"--latency", &q->latency},
                  {"--mesh", &q->mesh},
                  {"--split", &q->split},
                  {"--chunks", &q->chunks},
                  {"--measure", &q->measure},
                  {"--mpirun", &q->mpirun},
                  {"-o", &q->out},
                  {"--curves", &q->curves},
                  {"--to", &q->to}};
    int i = 1;
    for (; i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i += 2) {
        size_t k = 0;
        while (k < sizeof option / sizeof *option && strcmp(option[k].name, argv[i]) != 0)
            k++;
        if (k == sizeof option / sizeof *option)
            return refuse("there is no option ", argv[i], "");
        if (i + 1 == argc)
            return refuse("", argv[i], " has no value");
        *option[k].value = argv[i + 1];
    }
    i += i < argc && strcmp(argv[i], "--") == 0;
    q->program = argv + i;
    if (!q->ranks)
        return refuse("there is no ", "--ranks R", ", the ranks of the job that is planned");
    return i < argc ? 0 : refuse("there is no program and no model", "", "");
}

/* 0: it is none, or more than any machine has. */
static double bytes_of(const char *text)
{
    const double bytes = number_amount(text, number_bytes);
    return bytes <= 0x1p60 ? bytes : 0;
}

static double rate_of(const char *text)
{
    static const number_unit units[] = {{"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"MB", 1e6}, {"GB", 1e9}, {0}};
    return number_amount(text, units);
}

static double seconds_of(const char *text)
{
    static const number_unit units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {0}};
    return number_amount(text, units);
}

/* From 1 to MOST_RANKS; 0: it is none. */
static int whole(const char *text)
{
    int64_t n = 0;
    return number_whole(text, 1, MOST_RANKS, &n) ? (int)n : 0;
}

/* "2", or "4,4", which must be equal and add up. */
static int nodes_of(const char *text, int ranks)
{
    int nodes = 0;
    int64_t first = 0, n, sum = 0;
    const int equal = whole(text);
    if (!strchr(text, ','))
        return equal > 0 && ranks % equal == 0 ? equal : 0;
    do {
        text += nodes > 0; /* the comma */
        if (!number_next(&text, 1, MOST_RANKS, &n) || (*text && *text != ',') || (nodes > 0 && n != first))
            return 0;
        first = n;
        sum += n;
        nodes++;
    } while (*text);
    return sum == ranks ? nodes : 0;
}

static int split_of(const char *text)
{
    static const char *const names[] = {"data", "channel", "spatial", "mesh"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], text) == 0)
            return i;
    return -1;
}

static void add(char *text, const char *key, const char *value)
{
    const size_t used = strlen(text);
    snprintf(text + used, TEXT - used, "%s=%s\n", key, value);
}

static void add_number(char *text, const char *key, double value)
{
    char number[64];
    snprintf(number, sizeof number, "%.17g", value);
    add(text, key, number);
}

/* Adds the path with its folder: the program that writes there may run in another one. */
static void add_path(char *text, const char *key, const char *path)
{
    char folder[TEXT / 2] = "", whole_path[TEXT];
    if (path[0] == '/' || !getcwd(folder, sizeof folder))
        snprintf(whole_path, sizeof whole_path, "%s", path);
    else
        snprintf(whole_path, sizeof whole_path, "%s/%s", folder, path);
    add(text, key, whole_path);
}

/* The question as text; the exit code where an option is wrong, else 0. */
static int write_question(const question *q, char text[TEXT], int *measure)
{
    const int ranks = whole(q->ranks), nodes = ranks ? nodes_of(q->nodes ? q->nodes : "1", ranks) : 0;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(text, TEXT, "WEFT_PLAN=");
    if (!ranks)
        return wrong("--ranks", q->ranks, "a whole number from 1 to 1000000");
    if (!nodes)
        return wrong("--nodes", q->nodes, "a number of nodes that divides the ranks, or equal ones as 4,4 that add up");
    add_number(text, "ranks", ranks);
    add_number(text, "nodes", nodes);
    if (q->memory && bytes_of(q->memory) <= 0)
        return wrong("--memory", q->memory, "bytes, as 512MiB or 4GiB");
    add_number(text, "memory", q->memory ? bytes_of(q->memory) : 0);
    if (q->link && rate_of(q->link) <= 0)
        return wrong("--link", q->link, "a rate, as 1Gbit or 10GB");
    if (q->latency && (seconds_of(q->latency) <= 0 || !q->link))
        return wrong("--latency", q->latency, "a time, as 50us, beside a --link");
    if (q->link) {
        add_number(text, "beta_s", 1 / rate_of(q->link));
        add_number(text, "alpha_s", q->latency ? seconds_of(q->latency) : 50e-6);
    }
    if (q->split && split_of(q->split) < 0)
        return wrong("--split", q->split, "data, channel, spatial or mesh");
    if (q->split)
        add_number(text, "split", split_of(q->split));
    if (q->mesh)
        add(text, "mesh", q->mesh);
    if (q->chunks && !whole(q->chunks))
        return wrong("--chunks", q->chunks, "a whole number from 1 to 1000000");
    if (q->chunks)
        add_number(text, "chunks", whole(q->chunks));
    if (q->to && !whole(q->to))
        return wrong("--to", q->to, "a whole number from 1 to 1000000");
    add_number(text, "most", q->to ? whole(q->to) : 4096);
    if (q->out)
        add_path(text, "out", q->out);
    if (q->curves)
        add_path(text, "curves", q->curves);
    if (q->measure && !whole(q->measure))
        return wrong("--measure", q->measure, "a whole number from 1 to 1000000");
    const int each = ranks / nodes;
    *measure = q->measure ? whole(q->measure) : each < processors ? each : (int)processors;
    return 0;
}

static bool is_model(const char *name)
{
    static const char *const names[] = {"vgg16", "resnet18",    "resnet50",  "convnext_t",
                                        "unet",  "autoencoder", "mnist_mlp", "mnist_cnn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* The program that has this model, beside this one; NULL: it is the name of no model. */
static char *model_program(const char *name)
{
    static char path[TEXT];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 16);
    if (!is_model(name) || length < 0)
        return NULL;
    path[length] = '\0';
    char *folder = strrchr(path, '/');
    snprintf(folder ? folder + 1 : path, 16, "wf-plan-model");
    return path;
}

static bool is_executable(const char *path)
{
    struct stat is;
    return stat(path, &is) == 0 && S_ISREG(is.st_mode) && access(path, X_OK) == 0;
}

/* Looks for a program where execvp would. */
static bool is_program(const char *name)
{
    const char *folder = getenv("PATH");
    if (strchr(name, '/') || !folder)
        return !folder || is_executable(name);
    for (;; folder++) {
        char path[TEXT];
        const size_t length = strcspn(folder, ":");
        snprintf(path, sizeof path, "%.*s%s%s", (int)length, folder, length ? "/" : "./", name);
        if (is_executable(path))
            return true;
        folder += length;
        if (!*folder)
            return false;
    }
}

/* Returns the exit code if there is neither a program nor a model of this name, else 0. A command of --mpirun may start
 * it in another system, where this one cannot look. */
static int check_program(const question *q)
{
    if (is_model(*q->program) || q->mpirun || is_program(*q->program))
        return 0;
    fprintf(stderr,
            "wf-plan: %s: neither a program nor a model; models are vgg16, resnet18, resnet50, convnext_t, unet, "
            "autoencoder, mnist_mlp and mnist_cnn\n",
            *q->program);
    return 2;
}

/* Passes on what the program prints. True if a line of it is the last one of an answer (optim/planner/answer.c). */
static bool pass_on(FILE *from)
{
    static const char last[] = "measured on ";
    char *line = NULL;
    size_t room = 0;
    bool answered = false;
    while (getline(&line, &room, from) >= 0) {
        answered = answered || strncmp(line, last, sizeof last - 1) == 0;
        fputs(line, stdout);
        fflush(stdout);
    }
    free(line);
    return answered;
}

/* The exit code of the program, or 1 where it has not answered. */
static int start(char **argv, const char *program)
{
    int ends[2], status = 0;
    const pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execvp(argv[0], argv);
        fprintf(stderr, "wf-plan: %s cannot be started\n", argv[0]);
        _exit(1);
    }
    FILE *from = child > 0 ? fdopen(ends[0], "r") : NULL;
    if (!from) {
        perror("wf-plan");
        return 1;
    }
    close(ends[1]);
    const bool answered = pass_on(from);
    fclose(from);
    if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return 1;
    if (WEXITSTATUS(status) == 0 && !answered) {
        fprintf(stderr,
                "wf-plan: %s has ended without a plan: it should call wf_planner_answer where wf_planner_asks says so "
                "(optim/planner.h)\n",
                program);
        return 1;
    }
    return WEXITSTATUS(status);
}

/* [mpirun -np K] env WEFT_PLAN=... PROGRAM ARGUMENTS */
static int run(const question *q, char *text, int measure)
{
    static char np[] = "-np", env[] = "env";
    char number[16], launcher[TEXT];
    char *argv[TEXT];
    int n = 0;
    snprintf(number, sizeof number, "%d", measure);
    snprintf(launcher, sizeof launcher, "%s", q->mpirun ? q->mpirun : "mpirun");
    if (measure > 1) {
        for (char *word = strtok(launcher, " "); word && n < 64; word = strtok(NULL, " "))
            argv[n++] = word;
        argv[n++] = np;
        argv[n++] = number;
    }
    argv[n++] = env;
    argv[n++] = text;
    if ((argv[n] = model_program(*q->program)))
        n++;
    for (char **word = q->program; *word && n < TEXT - 1; word++)
        argv[n++] = *word;
    argv[n] = NULL;
    return start(argv, *q->program);
}

int main(int argc, char **argv)
{
    question q = {0};
    char text[TEXT];
    int measure;
    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc == 1) {
        fputs(usage, stderr);
        return 2;
    }
    int code = ask(&q, argc, argv);
    if (!code)
        code = write_question(&q, text, &measure);
    if (!code)
        code = check_program(&q);
    return code ? code : run(&q, text, measure);
}
