/* Reads how ranks should share the work and opens the mesh for it. parallel_model then replaces the layers of a serial
 * model; models themselves know nothing of ranks. */
#include "examples/parallel.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"data", "channel", "depth", "height", "width"};

static int *axis_of(wf_mesh_opts *o, const char *name, size_t length)
{
    int *const ranks[] = {&o->data, &o->channel, &o->depth, &o->height, &o->width};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0)
            return ranks[i];
    return NULL;
}

bool parallel_axes(const char *text, wf_mesh_opts *o)
{
    do {
        const size_t length = strcspn(text, "=");
        int *ranks = axis_of(o, text, length);
        char *end;
        if (!ranks || *ranks || text[length] != '=')
            return false;
        const long n = strtol(text + length + 1, &end, 10);
        if (end == text + length + 1 || n < 1 || n > 1 << 20 || (*end && *end != ',') || (*end && !end[1]))
            return false;
        *ranks = (int)n;
        text = *end ? end + 1 : end;
    } while (*text);
    return true;
}

static unsigned how_of(const parallel *p)
{
    const unsigned bn = p->sync_bn ? WF_PARALLEL_SYNC_BN : 0;
    if (strcmp(p->how, "mesh") == 0)
        return bn | WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL;
    if (strcmp(p->how, "channel") == 0)
        return bn | WF_PARALLEL_CHANNEL;
    return strcmp(p->how, "spatial") == 0 ? bn | WF_PARALLEL_SPATIAL : bn;
}

/* From the file of --plan. */
static void plan_open(parallel *p, wf_comm *comm)
{
    p->planned = wf_training_plan_read(comm, p->plan);
    example_check(comm, wf_check(p->planned));
    const wf_mesh_opts o = wf_training_plan_mesh(p->planned);
    char complaint[512] = "";
    if (o.stage > 1)
        snprintf(complaint, sizeof complaint,
                 "--plan: it has stages, which this program cannot be cut into; %s has \"stage\": %d, should be 1",
                 p->plan, o.stage);
    example_agree(comm, *complaint ? complaint : NULL);
    p->mesh = wf_mesh_open(comm, o);
    p->sharded = wf_training_plan_sharded(p->planned);
}

/* Axes along which --parallel would have all ranks compute the same. */
static void complain_of_unused(const parallel *p, const wf_mesh_opts *o, char *complaint, size_t size)
{
    const unsigned how = how_of(p);
    const bool pixels = (o->depth > 1 || o->height > 1 || o->width > 1) && !(how & WF_PARALLEL_SPATIAL);
    const bool channels = o->channel > 1 && !(how & WF_PARALLEL_CHANNEL);
    if (p->fixed && (pixels || channels))
        snprintf(complaint, size, "--mesh %s: should be axes out of data, depth, height, width", p->axes);
    else if (pixels && o->channel > 1)
        snprintf(complaint, size, "--mesh %s: needs --parallel mesh", p->axes);
    else if (pixels || channels)
        snprintf(complaint, size, "--mesh %s: needs --parallel %s or mesh", p->axes, pixels ? "spatial" : "channel");
}

/* data takes what the other axes leave. */
static void complain_of_ranks(const parallel *p, const wf_mesh_opts *o, int ranks, char *complaint, size_t size)
{
    const int axes[] = {o->data, o->channel, o->depth, o->height, o->width};
    int64_t product = 1;
    for (size_t i = 0; i < sizeof axes / sizeof *axes && product <= INT32_MAX; i++)
        product *= axes[i] ? axes[i] : 1;
    if (o->data ? ranks == product : ranks % product == 0)
        return;
    snprintf(complaint, size, "--mesh %s: there %s %d rank%s; use -np %lld%s, or axes that %s", p->axes,
             ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s", (long long)product,
             o->data ? "" : " or a multiple", o->data ? "have as many ranks" : "divide the ranks");
}

static void mesh_open(parallel *p, wf_comm *comm)
{
    wf_mesh_opts o = {0};
    char complaint[512] = "";
    const bool channel = strcmp(p->how, "channel") == 0, spatial = strcmp(p->how, "spatial") == 0;
    const bool both = strcmp(p->how, "mesh") == 0;
    if (!channel && !spatial && !both && strcmp(p->how, "data") != 0)
        snprintf(complaint, sizeof complaint, "--parallel %s: should be data, channel, spatial or mesh", p->how);
    else if (p->axes && !parallel_axes(p->axes, &o))
        snprintf(complaint, sizeof complaint,
                 "--mesh %s: should be axes as height=2,width=2, out of data, channel, depth, height, width", p->axes);
    else if (o.depth > 1 && p->dims != 3)
        snprintf(complaint, sizeof complaint, "--mesh %s: images have no depth; cut them along height and width",
                 p->axes);
    else if (p->axes)
        complain_of_unused(p, &o, complaint, sizeof complaint);
    if (p->axes && !*complaint)
        complain_of_ranks(p, &o, wf_comm_size(comm), complaint, sizeof complaint);
    example_agree(comm, *complaint ? complaint : NULL);
    if (!p->axes && channel)
        o.channel = wf_comm_size(comm);
    if (!p->axes && spatial)
        o.height = wf_comm_size(comm);
    if (!p->axes && both) {
        o.channel = wf_comm_size(comm) % 2 ? wf_comm_size(comm) : 2;
        o.height = wf_comm_size(comm) / o.channel;
    }
    p->sharded = spatial || both;
    p->mesh = wf_mesh_open(comm, o);
}

void parallel_open(parallel *p, wf_comm *comm)
{
    if (p->plan)
        plan_open(p, comm);
    else
        mesh_open(p, comm);
    example_check(comm, wf_check(p->mesh));
    p->samples = wf_mesh_comm(p->mesh, WF_AXIS_BIT(WF_AXIS_DATA));
    example_check(comm, wf_check(p->samples));
    p->counts = true;
    for (wf_axis a = 0; a < WF_AXES; a++)
        p->counts = p->counts && (a == WF_AXIS_DATA || wf_mesh_rank(p->mesh, a) == 0);
    if (wf_comm_rank(comm) == 0 && wf_comm_size(comm) > 1 && !wf_planner_asks())
        printf("ranks: %s\n", wf_mesh_text(p->mesh));
}

void parallel_close(parallel *p)
{
    wf_training_plan_free(p->planned);
    wf_mesh_close(p->mesh);
}

int parallel_answer(parallel *p, wf_comm *comm, wf_layer *model, wf_optim *optim, wf_shape input, unsigned can)
{
    example_check(comm, wf_check(optim));
    example_check(comm, wf_planner_answer(comm, model, optim, input, can));
    wf_optim_free(optim);
    wf_layer_free(model);
    parallel_close(p);
    WF_MUST(wf_comm_close(comm));
    return 0;
}

int64_t parallel_batch(const parallel *p, wf_comm *comm, int64_t batch)
{
    char complaint[128] = "";
    if (!p->planned)
        return batch;
    const int64_t all = wf_training_plan_batch(p->planned);
    if (all != batch)
        snprintf(complaint, sizeof complaint, "--batch %lld: the plan is for %lld", (long long)batch, (long long)all);
    example_agree(comm, *complaint ? complaint : NULL);
    return batch / wf_mesh_size(p->mesh, WF_AXIS_DATA);
}

wf_optim *parallel_optim(const parallel *p, wf_optim *optim)
{
    return wf_mesh_multi_node(p->mesh, optim, wf_training_plan_multi_node(p->planned));
}

void parallel_compare(const parallel *p, wf_comm *comm)
{
    if (p->planned)
        WF_MUST(wf_training_plan_compare(p->planned, comm, STDOUT_FILENO));
}

void parallel_model(const parallel *p, wf_comm *comm, wf_layer *model)
{
    example_check(comm, wf_check(model));
    if (p->planned)
        example_check(comm, wf_training_plan_apply(p->planned, p->mesh, model, p->sync_bn));
    else
        example_check(comm, wf_parallelize(model, p->mesh, how_of(p)));
}
