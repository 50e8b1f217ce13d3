/* Runs ONNX's node cases (onnx.h): on one rank on both host devices, and those with a parallel form cut over a mesh of
 * all ranks, on several. Each case is either run or excluded by a line of ONNX_EXCLUDED (onnx_excluded.txt) with its
 * reason; a line that excludes no case, or one that passes, is a failure. `make test` takes every tenth case. */
#include "tests/outside/onnx.h"
#include "tests/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The bounds of ONNX's own runner. */
static const double relative = 1e-3, absolute = 1e-7;

static const onnx_operator *const families[] = {onnx_shapes,     onnx_gathers,  onnx_arithmetic, onnx_activations,
                                                onnx_reductions, onnx_windows,  onnx_norms,      onnx_losses,
                                                onnx_products,   onnx_recurrent};

typedef struct exclusion {
    char kind[16], pattern[64]; /* kind: without the "+" of a line for later versions */
    bool later;
    int cases;
} exclusion;

enum { EXCLUSIONS = 256 };
static struct {
    char *text; /* of the cases; each pass cuts a copy of it */
    int cases, step, n_exclusions;
    exclusion exclusion[EXCLUSIONS];
} input;

static const onnx_operator *find_operator(const char *name)
{
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (const onnx_operator *o = families[f]; o->name; o++)
            if (strcmp(o->name, name) == 0)
                return o;
    return NULL;
}

/* A star of the pattern stands for any text. */
static bool matches(const char *pattern, const char *text)
{
    if (*pattern == '*')
        return matches(pattern + 1, text) || (*text && matches(pattern, text + 1));
    return *pattern == *text && (*text == 0 || matches(pattern + 1, text + 1));
}

static bool has_type(const onnx_case *c, const char *pattern)
{
    for (int i = 0; i < c->n_tensors; i++)
        if (matches(pattern, c->tensor[i].type))
            return true;
    for (int i = 0; i < c->n_expected; i++)
        if (matches(pattern, c->expected[i].type))
            return true;
    return false;
}

static bool has_operator(const onnx_case *c, const char *pattern)
{
    for (int i = 0; i < c->n_nodes; i++)
        if (matches(pattern, c->node[i].op))
            return true;
    return false;
}

/* Counts the case for the first line that excludes it. */
static const exclusion *find_exclusion(const onnx_case *c)
{
    for (int i = 0; i < input.n_exclusions; i++) {
        exclusion *e = &input.exclusion[i];
        const bool hit = strcmp(e->kind, "type") == 0       ? has_type(c, e->pattern)
                         : strcmp(e->kind, "operator") == 0 ? has_operator(c, e->pattern)
                                                            : matches(e->pattern, c->name);
        if (hit) {
            e->cases++;
            return e;
        }
    }
    return NULL;
}

/* --- one case ------------------------------------------------------------------------------------------------------
 */

typedef struct named {
    const char *name;
    wf_var *var;
} named;

typedef struct values {
    int n;
    named value[ONNX_TENSORS + ONNX_NODES * 2];
} values;

static void keep_value(values *v, const char *name, wf_var *var)
{
    if (v->n < (int)(sizeof v->value / sizeof v->value[0]))
        v->value[v->n++] = (named){name, var};
}

static wf_var *find_value(const values *v, const char *name)
{
    for (int i = v->n - 1; i >= 0; i--)
        if (strcmp(v->value[i].name, name) == 0)
            return v->value[i].var;
    return NULL;
}

/* What is wrong with the output, in `wrong`; false where nothing is. */
static bool differs(const onnx_tensor *t, const wf_var *y, char *wrong, size_t room)
{
    char seen[WF_SHAPE_TEXT], should[WF_SHAPE_TEXT];
    if (onnx_dtype(y) != onnx_held_type(t->type) || !wf_shape_equal(wf_var_shape(y), t->shape)) {
        snprintf(wrong, room, "%s is %s %s, should be %s %s", t->name, wf_dtype_name(onnx_dtype(y)),
                 wf_shape_text(wf_var_shape(y), seen), t->type, wf_shape_text(t->shape, should));
        return true;
    }
    double *number = onnx_numbers(y), off = 0;
    for (int64_t i = 0; i < wf_shape_count(t->shape); i++) {
        const double b = t->real ? t->real[i] : (double)t->whole[i], bound = absolute + relative * fabs(b);
        const bool equal = number[i] == b || (isnan(number[i]) && isnan(b));
        const double d = equal ? 0 : isfinite(b) && isfinite(number[i]) ? fabs(number[i] - b) / bound : INFINITY;
        if (d > off && d > (t->real ? 1 : 0))
            snprintf(wrong, room, "%s is %.9g at %lld, should be %.9g", t->name, number[i], (long long)i, b);
        off = d > off ? d : off;
    }
    free(number);
    return off > (t->real ? 1 : 0);
}

static bool is_sharded(const wf_var *x)
{
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    for (int a = 0; layout.known && a < WF_AXES; a++)
        if (layout.placement[a] == WF_SHARDED)
            return true;
    return false;
}

/* Runs a node; false where Weft cannot say it. */
static bool run_node(onnx_run *run, const onnx_case *c, const onnx_node *node, values *v)
{
    const onnx_operator *o = find_operator(node->op);
    onnx_call call = {.run = run, .of = c, .node = node};
    for (int i = 0; i < node->n_in; i++) {
        call.in[i] = strcmp(node->in[i], "-") == 0 ? NULL : find_value(v, node->in[i]);
        if (!call.in[i] && strcmp(node->in[i], "-") != 0)
            return false;
    }
    if (run->mesh)
        onnx_cut_inputs(&call, o->cut);
    for (int i = 0; run->mesh && i < node->n_in; i++)
        run->is_cut |= call.in[i] && is_sharded(call.in[i]);
    call.out[0] = o->function(&call);
    if (!call.out[0])
        return false;
    for (int i = 0; i < node->n_out; i++)
        if (call.out[i])
            keep_value(v, node->out[i], run->mesh ? wf_unshard(call.out[i]) : call.out[i]);
    return true;
}

typedef enum outcome { PASSED, UNSAID, WRONG, UNCUT } outcome;

/* Runs a case, on this rank or over the mesh, where UNCUT says that it passes and no input was in parts; what is wrong
 * goes into `wrong`. */
static outcome run_case(wf_tape *tape, const wf_mesh *mesh, const onnx_case *c, char *wrong, size_t room)
{
    onnx_run run = {.ctx = ctx, .tape = tape, .mesh = mesh, .version = c->version};
    static values v;
    outcome result = PASSED;
    wrong[0] = 0;
    v.n = 0;
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    for (int i = 0; i < c->n_tensors; i++)
        keep_value(&v, c->tensor[i].name, onnx_input(&run, &c->tensor[i]));
    for (int i = 0; i < c->n_nodes && result == PASSED; i++)
        if (!find_operator(c->node[i].op) || !run_node(&run, c, &c->node[i], &v)) {
            snprintf(wrong, room, "%s cannot be said: %s", c->node[i].op, wf_error_message());
            result = UNSAID;
        }
    for (int i = 0; i < c->n_expected && result == PASSED; i++) {
        const wf_var *y = find_value(&v, c->expected[i].name);
        if (!y) {
            snprintf(wrong, room, "the output %s cannot be said", c->expected[i].name);
            result = UNSAID;
        } else if (differs(&c->expected[i], y, wrong, room))
            result = WRONG;
    }
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
    for (int i = 0; i < run.n_layers; i++)
        wf_layer_free(run.layer[i]);
    for (int i = 0; i < run.n_held; i++)
        wf_tensor_free(run.held[i]);
    return result == PASSED && mesh && !run.is_cut ? UNCUT : result;
}

/* --- all cases -------------------------------------------------------------------------------------------------------
 */

static struct {
    wf_tape *tape;
    int seen, passed, unsaid, failed, cut, runs;
} all;

static void run_serial(onnx_case *c)
{
    const exclusion *e = find_exclusion(c);
    char wrong[1024];
    const outcome result = run_case(all.tape, NULL, c, wrong, sizeof wrong);
    if (e) {
        all.unsaid++;
        WF_EXPECT(result != PASSED, "%s passes, and \"%s %s\" excludes it", c->name, e->kind, e->pattern);
        return;
    }
    all.passed += result == PASSED;
    all.failed += result != PASSED;
    WF_EXPECT(result == PASSED, "%s: %s", c->name, wrong);
}

enum { MESHES = 8 };
static int open_meshes(wf_mesh *mesh[MESHES])
{
    const wf_mesh_opts grid[MESHES] = {{.data = size},
                                       {.height = size},
                                       {.width = size},
                                       {.depth = size},
                                       {.channel = 2, .width = size / 2},
                                       {.height = 2, .width = size / 2},
                                       {.data = 2, .width = size / 2}};
    int n = 0;
    for (; n < (size == 4 ? 7 : 5); n++) {
        mesh[n] = wf_mesh_open(comm, grid[n]);
        WF_EXPECT(mesh[n], "%s", wf_error_trail());
    }
    return n;
}

static void run_cut(onnx_case *c, int meshes, wf_mesh *const *mesh)
{
    const onnx_operator *o = c->n_nodes == 1 ? find_operator(c->node[0].op) : NULL;
    if (!o || o->cut == ONNX_WHOLE || find_exclusion(c))
        return;
    const int before = all.runs;
    for (int m = 0; m < meshes; m++) {
        if (!onnx_can_cut(c, o->cut, mesh[m]))
            continue;
        char wrong[1024];
        const outcome result = run_case(all.tape, mesh[m], c, wrong, sizeof wrong);
        const bool failed = result == UNSAID || result == WRONG;
        all.runs += result != UNCUT;
        all.failed += failed;
        WF_EXPECT(!failed, "%s on %s: %s", c->name, wf_mesh_text(mesh[m]), wrong);
    }
    all.cut += all.runs > before;
}

/* All cases on one rank, else those that are cut. */
static void read_cases(const char *device)
{
    all.tape = wf_tape_new(ctx);
    wf_mesh *mesh[MESHES];
    const int meshes = size > 1 ? open_meshes(mesh) : 0;
    static onnx_case c;
    char *copy = strdup(input.text), *at = copy;
    const char *only = getenv("ONNX_ONLY");
    for (int i = 0; onnx_next(&at, i % input.step != 0, &c); i++) {
        if (i % input.step == 0 && (!only || matches(only, c.name))) {
            all.seen++;
            size > 1 ? run_cut(&c, meshes, mesh) : run_serial(&c);
        }
        onnx_clear(&c);
    }
    if (size == 1)
        printf("  %s: %d cases of %d, %d passed, %d cannot be said, %d failed\n", device, all.seen, input.cases,
               all.passed, all.unsaid, all.failed);
    else if (rank == 0)
        printf("  %s on %d ranks: %d cases of %d cut, %d runs, %d failed\n", device, size, all.cut, all.seen, all.runs,
               all.failed);
    WF_EXPECT(size == 1 || only || 4 * all.cut > all.seen, "%d of %d cases were cut: fewer than a quarter", all.cut,
              all.seen);
    free(copy);
    for (int m = 0; m < meshes; m++)
        wf_mesh_close(mesh[m]);
    wf_tape_free(all.tape);
}

/* Parallel forms are the same code on both devices, so cases are cut on one of them. */
static void run_all(const char *device, bool cut)
{
    memset(&all, 0, sizeof all);
    comm = test_comm_open("flat", (wf_ctx_opts){.device = device});
    WF_EXPECT(comm, "%s", wf_error_trail());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    if (cut || size == 1)
        read_cases(device);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void on_ref(void)
{
    run_all("ref", false);
}

static void on_cpu(void)
{
    run_all("cpu", true);
}

static void lines_that_exclude(void)
{
    for (int i = 0; size == 1 && input.step == 1 && i < input.n_exclusions; i++)
        WF_EXPECT(input.exclusion[i].cases > 0 || input.exclusion[i].later, "\"%s %s\" excludes no case",
                  input.exclusion[i].kind, input.exclusion[i].pattern);
}

static bool read_input(void)
{
    const char *cases = getenv("ONNX_CASES"), *excluded = getenv("ONNX_EXCLUDED");
    FILE *file = cases ? fopen(cases, "r") : NULL, *lines = excluded ? fopen(excluded, "r") : NULL;
    if (!file || !lines) {
        fprintf(stderr, "ONNX_CASES (%s) and ONNX_EXCLUDED (%s) should name two files\n", cases ? cases : "not set",
                excluded ? excluded : "not set");
        return false;
    }
    memset(&input, 0, sizeof input);
    fseek(file, 0, SEEK_END);
    const size_t bytes = (size_t)ftell(file);
    rewind(file);
    input.text = calloc(bytes + 1, 1);
    const bool whole = fread(input.text, 1, bytes, file) == bytes;
    char line[512];
    while (input.n_exclusions < EXCLUSIONS && fgets(line, sizeof line, lines)) {
        exclusion *e = &input.exclusion[input.n_exclusions];
        if (line[0] == '#' || line[0] == '\n')
            continue;
        e->later = line[0] == '+';
        input.n_exclusions++;
        if (sscanf(line + e->later, "%15s %63[^: ]: ", e->kind, e->pattern) != 2)
            WF_EXPECT(false, "%s: \"%s\" should be KIND PATTERN: REASON", excluded, line);
    }
    fclose(file);
    fclose(lines);
    for (const char *at = input.text; (at = strstr(at, "case test_")); at++)
        input.cases += at == input.text || at[-1] == '\n';
    const int taken = test_samples(input.cases);
    input.step = taken > 0 ? (input.cases + taken - 1) / taken : 1;
    return whole && input.cases > 0;
}

static int run_ranks(int argc, char **argv)
{
    if (!read_input())
        return 1;
    const int failed = test_main(
        argc, argv,
        (test_case[]){{"on_ref", on_ref}, {"on_cpu", on_cpu}, {"lines_that_exclude", lines_that_exclude}, {0}});
    free(input.text);
    return failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run_ranks);
}
