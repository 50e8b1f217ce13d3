/* Layouts of what goes from stage to stage. A stage has the same place along all other axes as its neighbours, so it
 * holds the same part of a value; which part that is is told once a step, with the first chunk of each part and skip.
 */
#include "comm/mesh_author.h"
#include "layers/pipeline/pipeline_impl.h"

#include <stdlib.h>
#include <string.h>

/* Places of the numbers in a message. The pipeline's number comes first, as it is checked before anything else is
 * read. */
enum {
    PIPELINE,
    KNOWN,
    CHUNK,
    RANK,
    GLOBAL,
    LO = GLOBAL + WF_MAX_RANK,
    HI = LO + WF_MAX_RANK,
    PLACED = HI + WF_MAX_RANK
};
enum { DIM = PLACED + WF_AXES, BOUNDED = DIM + WF_AXES, BOUNDS = BOUNDED + WF_AXES };

/* Numbers that a layout on this mesh needs. Equal on all stages: the message has room for the bounds of all axes, known
 * or not. */
static int64_t entries(const wf_mesh *mesh)
{
    int64_t n = BOUNDS;
    for (int a = 0; a < WF_AXES; a++)
        n += wf_mesh_size(mesh, (wf_axis)a) + 1;
    return n;
}

static void encode(const wf_mesh *mesh, const wf_layout *layout, int64_t *n)
{
    int64_t at = BOUNDS;
    n[KNOWN] = layout->known;
    n[CHUNK] = layout->chunk;
    n[RANK] = layout->global.rank;
    for (int d = 0; d < WF_MAX_RANK; d++) {
        n[GLOBAL + d] = layout->global.dim[d];
        n[LO + d] = layout->box.lo[d];
        n[HI + d] = layout->box.hi[d];
    }
    for (int a = 0; a < WF_AXES; a++) {
        const int64_t size = wf_mesh_size(mesh, (wf_axis)a) + 1;
        n[PLACED + a] = layout->placement[a];
        n[DIM + a] = layout->dim[a];
        n[BOUNDED + a] = layout->bounds[a] != NULL;
        if (layout->bounds[a])
            memcpy(n + at, layout->bounds[a], (size_t)size * sizeof *n);
        at += size;
    }
}

static wf_status decode_layout(const wf_mesh *mesh, const int64_t *n, wf_layout *layout)
{
    int64_t at = BOUNDS;
    *layout = (wf_layout){.known = n[KNOWN] != 0, .mesh = mesh, .chunk = n[CHUNK] != 0};
    layout->global = wf_shape_make((int)n[RANK], n + GLOBAL);
    layout->box.rank = (int)n[RANK];
    for (int d = 0; d < WF_MAX_RANK; d++) {
        layout->box.lo[d] = n[LO + d];
        layout->box.hi[d] = n[HI + d];
    }
    for (int a = 0; a < WF_AXES; a++) {
        layout->placement[a] = (uint8_t)n[PLACED + a];
        layout->dim[a] = (uint8_t)n[DIM + a];
        if (n[BOUNDED + a]) {
            /* Pointers mean nothing on another rank: the receiving mesh keeps its own copy of the bounds. */
            layout->bounds[a] = wf_mesh_bounds_recent(mesh, (wf_axis)a, n + at);
            WF_NEED(layout->bounds[a]);
        }
        at += wf_mesh_size(mesh, (wf_axis)a) + 1;
    }
    return WF_OK;
}

wf_status wf_pipeline_layout_send(wf_pipeline *p, const wf_tensor *y, int to)
{
    const int64_t n = entries(p->mesh);
    char text[WF_LAYOUT_TEXT];
    WF_CHECK(!y->layout.known || y->layout.mesh == p->mesh, WF_ERR_SHAPE,
             "a pipeline on the mesh %s passes on a value that is %s, on another mesh", wf_mesh_text(p->mesh),
             wf_layout_text(&y->layout, text));
    void *host = NULL;
    WF_TRY(wf_pool_take_host(p->ctx, (size_t)n * sizeof(int64_t), &host));
    /* All of it is sent, also what `encode` leaves out. */
    memset(host, 0, (size_t)n * sizeof(int64_t));
    if (y->layout.known)
        encode(p->mesh, &y->layout, host);
    ((int64_t *)host)[PIPELINE] = p->number;
    const wf_status status = wf_outbox_send_bytes(p->outbox, host, (size_t)n * sizeof(int64_t), to);
    wf_pool_give_host(p->ctx, host, (size_t)n * sizeof(int64_t));
    return status;
}

/* Values of another pipeline may fit this one's in everything else. */
static wf_status check_number(const wf_pipeline *p, int64_t theirs, int from)
{
    WF_CHECK(theirs == p->number, WF_ERR_COMM,
             "stage %d steps the pipeline of \"%s\" while stage %d steps another one; all ranks should step the same "
             "pipelines in one order",
             p->stage, wf_layer_path(p->model), from);
    return WF_OK;
}

wf_status wf_pipeline_layout_receive(wf_pipeline *p, int row, int from)
{
    const int64_t n = entries(p->mesh);
    void *host = NULL;
    WF_TRY(wf_pool_take_host(p->ctx, (size_t)n * sizeof(int64_t), &host));
    wf_status status = wf_outbox_receive_bytes(p->comm, host, (size_t)n * sizeof(int64_t), from);
    if (status == WF_OK)
        status = check_number(p, *(int64_t *)host, from);
    if (status == WF_OK)
        status = decode_layout(p->mesh, host, &p->layout[row]);
    wf_pool_give_host(p->ctx, host, (size_t)n * sizeof(int64_t));
    return status;
}

/* A chunk begins where the one before ends. The first one's place came with the layout. */
wf_status wf_pipeline_layout_set(wf_pipeline *p, int row, int chunk, wf_tensor *value)
{
    wf_layout *next = &p->layout[row];
    if (!next->known)
        return WF_OK;
    WF_CHECK(value->shape.rank > 0, WF_ERR_SHAPE, "a value of chunk %d comes to another stage without samples", chunk);
    if (chunk > 0)
        next->box.lo[0] = next->box.hi[0];
    next->box.hi[0] = next->box.lo[0] + value->shape.dim[0];
    return wf_tensor_set_layout(value, *next);
}
