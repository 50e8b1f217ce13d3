/* Calls every function that weft.h declares with NULL and zeros, then with a real object in place of each NULL in turn,
 * and of all: no call crashes or hangs, a verb without its objects is an error, and a constructor without its
 * context, communicator, mesh or model names itself. The calls are made from the headers (every_call.awk); each runs in
 * a process of its own. */
#include "tests/test.h"

#define WF_LIBRARY /* the functions, not the macros that record call sites */
#include <weft/weft.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAS_ERROR, WAS_OK, WAS_SILENT, WAS_NAMELESS };
typedef enum { STATUS, OBJECT, OTHER } result_kind;

typedef struct call {
    const char *name;
    int (*run)(unsigned given);
    int objects;
    result_kind kind;
} call;

static struct {
    wf_ctx *ctx;
    wf_tensor *tensor;
    wf_var *var;
    wf_tape *tape;
    wf_layer *layer;
    wf_param *param;
    wf_optim *optim;
    wf_dataset *dataset;
    wf_iter *iter;
    wf_comm *comm;
    wf_mesh *mesh;
} object;

#include "tests/static/every_call_table.h"

/* Calls that leave the program by contract. */
static const char *const leaving[] = {"wf_must_failed"};

/* Verbs that are well without an object: there is nothing to do, or zero is a setting. */
static const char *const fine[] = {"wf_ctx_free", "wf_comm_close", "wf_site_leave", "wf_site_leave_lax", "wf_check"};

/* Getters: NULL is what they return for NULL, and no error. */
static const char *const getters[] = {"wf_comm_ctx",    "wf_comm_mesh",  "wf_layer_ctx",   "wf_layer_child",
                                      "wf_layer_param", "wf_mesh_world", "wf_param_gather"};

#define LISTED(name, list) listed(name, list, sizeof(list) / sizeof *(list))

static bool listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name, list[i]))
            return true;
    return false;
}

static void open_objects(void)
{
    static const float value[2 * 3 * 4 * 4];
    object.comm = wf_comm_open(NULL, NULL, "naive", (wf_ctx_opts){.device = "ref", .threads = 1});
    object.ctx = wf_comm_ctx(object.comm);
    object.mesh = wf_mesh_open(object.comm, (wf_mesh_opts){0});
    object.tensor = wf_tensor_from_host(object.ctx, WF_F32, WF_SHAPE(2, 3, 4, 4), value);
    object.tape = wf_tape_new(object.ctx);
    object.layer = wf_conv2d(object.ctx, (wf_conv_opts){.in = 3, .out = 2, .kernel = 3});
    object.param = wf_layer_param(object.layer, "W");
    object.optim = wf_sgd(object.layer, (wf_sgd_opts){.lr = 0.1});
    object.var = wf_apply(object.layer, wf_leaf(object.tape, object.tensor));
    object.dataset = wf_synthetic(object.ctx, (wf_synthetic_opts){.count = 4, .shape = WF_SHAPE(3, 4, 4)});
    object.iter = wf_batches(wf_synthetic(object.ctx, (wf_synthetic_opts){.count = 4, .shape = WF_SHAPE(3, 4, 4)}),
                             (wf_batch_opts){.size = 2});
    WF_EXPECT(object.mesh && object.var && object.optim && object.dataset && object.iter, "no objects: %s",
              wf_error_trail());
    wf_error_clear();
}

static bool names(const char *message, const char *name)
{
    return !strncmp(message, name, strlen(name));
}

/* What the call was in a process of its own; 1000 and more: it ended by that signal. */
static int run_apart(const call *c, unsigned given)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        alarm(20);
        int was = c->run(given);
        if (given == 0 && c->kind == OBJECT && was == WAS_ERROR && !names(wf_error_message(), c->name))
            was = WAS_NAMELESS;
        _exit(was);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void judge(const call *c, unsigned given, int was)
{
    WF_EXPECT(was < 1000, "%s: signal %d with objects 0x%x", c->name, was - 1000, given);
    WF_EXPECT(was >= 1000 || was <= WAS_NAMELESS, "%s left the program with %d, objects 0x%x", c->name, was, given);
    if (given != 0 || was >= 1000 || c->objects == 0)
        return;
    if (c->kind == STATUS)
        WF_EXPECT(was == WAS_ERROR || LISTED(c->name, fine), "%s of nothing is no error", c->name);
    if (c->kind == OBJECT && !LISTED(c->name, getters))
        WF_EXPECT(was == WAS_ERROR, "%s of nothing %s", c->name,
                  was == WAS_SILENT ? "returns NULL and no error"
                  : was == WAS_OK   ? "returns an object"
                                    : "has an error that does not name it");
}

static void every(void)
{
    const int n = (int)(sizeof every_call / sizeof *every_call);
    WF_EXPECT(n > 300, "only %d functions were found", n);
    open_objects();
    for (int i = 0; i < n; i++) {
        const call *c = &every_call[i];
        const unsigned all = (1u << c->objects) - 1;
        if (LISTED(c->name, leaving))
            continue;
        judge(c, 0, run_apart(c, 0));
        for (int k = 0; k < c->objects; k++)
            judge(c, 1u << k, run_apart(c, 1u << k));
        if (c->objects > 1)
            judge(c, all, run_apart(c, all));
    }
}

int main(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"every", every}, {0}});
}
