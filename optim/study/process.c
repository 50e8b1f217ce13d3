/* The Python process of a study: started without fork (memory that MPI or a GPU driver has registered is not to be
 * copied), with pipes that no other process inherits, without the launcher's variables, and in a process group of its
 * own, so that signals for the ranks do not reach it. It ends when its standard input does, so it cannot outlive its
 * rank, however that ends. */
#include "core/config_author.h"
#include "optim/json_impl.h"
#include "optim/study/study_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LEAVE_MS 1000 /* for the process to end by itself */

/* bridge.py, made by the build. */
extern const char wf_study_script[];

/* Reads the script as a line. The folder of the program is no place to import modules from. */
#define BOOT                                                                                                           \
    "import sys; sys.path = [p for p in sys.path if p]; import json; exec(json.loads(sys.stdin.buffer.readline()))"

/* A clock that no one sets, for time-outs. */
static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void close_pipes(int pipes[4])
{
    for (int i = 0; i < 4; i++)
        if (pipes[i] >= 0)
            close(pipes[i]);
}

/* The child's ends are 0 and 3. Descriptors 0 to 2 may be closed in this process, so a pipe may have got such a number;
 * dup2 of the actions would then overwrite it. */
static wf_status open_pipes(int pipes[4])
{
    for (int i = 0; i < 4; i++)
        pipes[i] = -1;
    bool made = pipe2(pipes, O_CLOEXEC) == 0 && pipe2(pipes + 2, O_CLOEXEC) == 0;
    for (int i = 0; made && i < 4; i++)
        if (pipes[i] <= STDERR_FILENO) {
            const int low = pipes[i];
            pipes[i] = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
            close(low);
            made = pipes[i] >= 0;
        }
    /* This process never blocks on Python: it polls with a time-out. */
    made = made && fcntl(pipes[1], F_SETFL, O_NONBLOCK) == 0 && fcntl(pipes[2], F_SETFL, O_NONBLOCK) == 0;
    if (made)
        return WF_OK;
    close_pipes(pipes);
    WF_FAIL(WF_ERR_IO, "no pipes for Python: %s", strerror(errno));
}

/* Signals as a program from a shell has them. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int code = posix_spawnattr_setsigmask(attributes, &none);
    code = code ? code : posix_spawnattr_setsigdefault(attributes, &all);
    code = code ? code : posix_spawnattr_setpgroup(attributes, 0);
    return code ? code
                : posix_spawnattr_setflags(attributes,
                                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
}

/* 0, or errno. */
static int spawn(pid_t *child, const char *python, const char *name, const int pipes[4], char **environment)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    /* execve takes them without const, and writes to none of them. */
    const char *const words[] = {python, "-c", BOOT, "weft-study", name, NULL};
    char *argv[sizeof words / sizeof *words];
    memcpy(argv, words, sizeof words);
    if (posix_spawn_file_actions_init(&files) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    int code = posix_spawn_file_actions_adddup2(&files, pipes[0], STDIN_FILENO);
    code = code ? code : posix_spawn_file_actions_adddup2(&files, pipes[3], STDOUT_FILENO);
    code = code ? code : set_attributes(&attributes);
    code = code ? code : posix_spawnp(child, python, &files, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return code;
}

wf_status wf_bridge_start(wf_bridge *bridge, const char *python, const char *name)
{
    int pipes[4];
    *bridge = (wf_bridge){.to = -1, .from = -1};
    /* Without the variables of a launcher: a Python with a communicator of its own would join this job. */
    char **environment = wf_config_environment_for_child();
    WF_CHECK(environment, WF_ERR_MEMORY, "no memory for the environment of Python");
    const wf_status status = open_pipes(pipes);
    if (status != WF_OK) {
        free(environment);
        return status;
    }
    const int code = spawn(&bridge->child, python, name, pipes, environment);
    free(environment);
    if (code != 0) {
        bridge->child = 0;
        close_pipes(pipes);
        WF_FAIL(WF_ERR_UNSUPPORTED, "%s: %s", python, code == ENOENT ? "there is no such program" : strerror(code));
    }
    /* The child's ends; with a copy of them open here, its end would not be seen. */
    close(pipes[0]);
    close(pipes[3]);
    bridge->to = pipes[1];
    bridge->from = pipes[2];
    return WF_OK;
}

/* --- Ending --------------------------------------------------------------------------------------------------------
 */

/* Returns true if the child exists, running or not yet reaped, after at most `wait_ms` in which it may end; false if
 * another thread has reaped it. */
static bool wait_for_end(pid_t child, int64_t wait_ms)
{
    for (const int64_t end = now_ms() + wait_ms;;) {
        siginfo_t found = {0};
        /* WNOWAIT leaves the child for waitpid. */
        const int code = waitid(P_PID, (id_t)child, &found, WEXITED | WNOHANG | WNOWAIT);
        if (code != 0 && errno != EINTR)
            return false;
        if ((code == 0 && found.si_pid == child) || now_ms() >= end)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Ends the process and all that it has started in its group: Python may be a script that has started it. As long as the
 * process is not reaped, no other process has the number of its group. The result is as waitpid has it, or -1. */
static int end_group(pid_t child, int64_t wait_ms)
{
    int how = -1;
    if (!wait_for_end(child, wait_ms))
        return -1;
    /* The whole group, also if the leader has ended. */
    kill(-child, SIGKILL);
    while (waitpid(child, &how, 0) < 0)
        if (errno != EINTR)
            return -1;
    return how;
}

static int end_bridge(wf_bridge *bridge, int64_t wait_ms)
{
    if (bridge->to >= 0)
        close(bridge->to);
    if (bridge->from >= 0)
        close(bridge->from);
    const int how = bridge->child > 0 ? end_group(bridge->child, wait_ms) : -1;
    free(bridge->text);
    *bridge = (wf_bridge){.to = -1, .from = -1};
    return how;
}

void wf_bridge_end(wf_bridge *bridge)
{
    if (bridge->child > 0)
        (void)end_bridge(bridge, LEAVE_MS);
}

/* The pipe told that it has ended: how, says its exit. */
static wf_status ended(wf_bridge *bridge)
{
    const int how = end_bridge(bridge, LEAVE_MS);
    if (how >= 0 && WIFSIGNALED(how))
        WF_FAIL(WF_ERR_IO, "the Python process of the study was ended by signal %d (%s)", WTERMSIG(how),
                strsignal(WTERMSIG(how)));
    WF_FAIL(WF_ERR_IO, "the Python process of the study ended with exit code %d", how >= 0 ? WEXITSTATUS(how) : how);
}

static wf_status silent(wf_bridge *bridge, int64_t timeout_ms)
{
    /* One that does not answer would not end by itself either. */
    (void)end_bridge(bridge, 0);
    WF_FAIL(WF_ERR_TIMEOUT, "the Python process of the study did not answer within %lld ms, and was ended",
            (long long)timeout_ms);
}

/* --- Talking -------------------------------------------------------------------------------------------------------
 */

/* write() without the SIGPIPE that one to an ended process would raise in this one. A SIGPIPE that was pending before
 * is the program's, and stays. */
static ssize_t write_quietly(int file, const char *data, size_t size)
{
    sigset_t pipe_signal, pending, old;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &old);
    const ssize_t written = write(file, data, size);
    const int error = errno;
    if (written < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&pipe_signal, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
            continue;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = error;
    return written;
}

static bool again(void)
{
    return errno == EAGAIN || errno == EINTR;
}

/* Until the pipe is ready, or the time is over. */
static bool wait_ready(int file, short events, int64_t end_ms)
{
    for (;;) {
        const int64_t left = end_ms - now_ms();
        struct pollfd waits = {.fd = file, .events = events};
        /* In turns of a second at most: the time left may not fit an int. */
        const int found = poll(&waits, 1, left < 0 ? 0 : (int)(left < 1000 ? left : 1000));
        if (found > 0)
            return true;
        if (left <= 0)
            return false;
    }
}

static wf_status send_line(wf_bridge *bridge, const char *line, int64_t timeout_ms, int64_t end_ms)
{
    const size_t length = strlen(line);
    /* The end of the line is a part of its own, so that the text need not be copied. */
    for (size_t sent = 0; sent <= length;) {
        const ssize_t n =
            sent < length ? write_quietly(bridge->to, line + sent, length - sent) : write_quietly(bridge->to, "\n", 1);
        if (n > 0)
            sent += (size_t)n;
        else if (n < 0 && !again())
            return ended(bridge);
        else if (!wait_ready(bridge->to, POLLOUT, end_ms))
            return silent(bridge, timeout_ms);
    }
    return WF_OK;
}

static wf_status read_more(wf_bridge *bridge, int64_t timeout_ms, int64_t end_ms)
{
    /* A page at least, twice the room each time. */
    if (bridge->have + 4096 > bridge->room) {
        const size_t room = 2 * bridge->room + 8192;
        char *text = realloc(bridge->text, room);
        WF_CHECK(text, WF_ERR_MEMORY, "no memory for an answer of Python");
        bridge->text = text;
        bridge->room = room;
    }
    const ssize_t n = read(bridge->from, bridge->text + bridge->have, bridge->room - bridge->have);
    if (n > 0)
        bridge->have += (size_t)n;
    else if (n == 0 || !again())
        return ended(bridge);
    else if (!wait_ready(bridge->from, POLLIN, end_ms))
        return silent(bridge, timeout_ms);
    return WF_OK;
}

/* The script travels as a line of JSON, so no file has to be found. */
static wf_status send_script(wf_bridge *bridge, int64_t timeout_ms, int64_t end_ms)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    WF_CHECK(file, WF_ERR_MEMORY, "no memory for the script of a study");
    wf_json_text(file, wf_study_script);
    wf_status status = fclose(file) == 0 ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for the script of a study");
    if (status == WF_OK)
        status = send_line(bridge, text, timeout_ms, end_ms);
    free(text);
    return status;
}

wf_status wf_bridge_exchange(wf_bridge *bridge, const char *line, int64_t timeout_ms, const char **answer)
{
    const int64_t end_ms = now_ms() + timeout_ms;
    WF_CHECK(bridge->child > 0, WF_ERR_STATE, "the Python process of the study has ended");
    if (!bridge->has_script)
        WF_TRY(send_script(bridge, timeout_ms, end_ms));
    bridge->has_script = true;
    WF_TRY(send_line(bridge, line, timeout_ms, end_ms));
    /* What came before the question is no answer to it. */
    bridge->have = 0;
    size_t seen = 0;
    for (;;) {
        /* Only new bytes are searched. */
        char *end = bridge->have > seen ? memchr(bridge->text + seen, '\n', bridge->have - seen) : NULL;
        if (end) {
            *end = '\0';
            *answer = bridge->text;
            return WF_OK;
        }
        seen = bridge->have;
        WF_TRY(read_more(bridge, timeout_ms, end_ms));
    }
}
