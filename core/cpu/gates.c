/* Steps of recurrent cells: all that follows the products, in one pass. Rows are cut into chunks that stay in the
 * first-level cache; 16-bit arrays are widened there. The products and the loop over steps are the layer's
 * (layers/serial/recurrent_pass.c). Gates are those of PyTorch and cuDNN: i, f, g, o of an LSTM, r, z, n of a GRU. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/vmath_impl.h"

/* A step of a backward pass opens 13 arrays, each with a room, needed or not. Rooms of a thread take 14 KiB. */
enum { CHUNK = 256, MOST_GATES = 4, ROOMS = 14 };

/* The arrays of `columns` features of one sample, as floats, and the rooms of those that are not. */
typedef struct step_chunk {
    const wf_gates_args *a;
    int64_t size, n, lo, columns;
    int taken;
    float (*room)[CHUNK];
} step_chunk;

static float *next_room(step_chunk *c)
{
    return c->room[c->taken++];
}

/* Block k of the columns of an array of `blocks` blocks a sample. */
static int64_t place_in(const step_chunk *c, int64_t blocks, int64_t k)
{
    return (blocks * c->n + k) * c->size + c->lo;
}

static const float *read_block(step_chunk *c, const wf_array *of, int64_t blocks, int64_t k)
{
    return wf_cpu_read(of, place_in(c, blocks, k), c->columns, next_room(c));
}

static float *open_block(step_chunk *c, const wf_array *of, int64_t blocks, int64_t k)
{
    return wf_cpu_place(of, place_in(c, blocks, k), c->columns, false, next_room(c));
}

static void close_block(const step_chunk *c, const wf_array *of, int64_t blocks, int64_t k, const float *from)
{
    wf_cpu_put(of, place_in(c, blocks, k), c->columns, from);
}

/* Returns the row plus its bias, made at `to`, or the row itself if there is no bias. The condition stays out of the
 * loop: for AVX2 a compiler makes masked loads of it, and one that meets a null pointer is slow. */
static const float *add_bias(int64_t columns, const float *row, const float *bias, float *to)
{
    if (!bias)
        return row;
#pragma omp simd
    for (int64_t j = 0; j < columns; j++)
        to[j] = row[j] + bias[j];
    return to;
}

/* Block k of input + bias and of recurrent + recurrent_bias: added, or the latter in a place of its own. */
static void add_block_sums(const step_chunk *c, int64_t blocks, int64_t k, float *sum, float *latter)
{
    float room[2][CHUNK];
    const wf_gates_args *const a = c->a;
    /* Products arrive in f32 whatever the type of the states is, so they need no room. */
    const int64_t at = place_in(c, blocks, k), column = k * c->size + c->lo;
    const float *const x = (const float *)a->input->data + at, *const h = (const float *)a->recurrent->data + at;
    const float *const b = wf_cpu_read(a->bias, column, c->columns, room[0]);
    const float *const rb = wf_cpu_read(a->recurrent_bias, column, c->columns, room[1]);
    const float *const own = add_bias(c->columns, x, b, room[0]), *const other = add_bias(c->columns, h, rb, room[1]);
    if (latter) {
        memcpy(sum, own, (size_t)c->columns * sizeof *sum);
        memcpy(latter, other, (size_t)c->columns * sizeof *latter);
        return;
    }
#pragma omp simd
    for (int64_t j = 0; j < c->columns; j++)
        sum[j] = own[j] + other[j];
}

static void copy_row(const wf_array *from, const wf_array *to, int64_t at, int64_t n)
{
    const size_t each = wf_dtype_size(to->dtype), first = (size_t)at * each;
    memcpy((char *)to->data + first, (const char *)from->data + first, (size_t)n * each);
}

/* h was made in its own place or in a room; y is a copy of it. */
static void close_states(const step_chunk *c, const float *h)
{
    close_block(c, c->a->h, 1, 0, h);
    copy_row(c->a->h, c->a->y, place_in(c, 1, 0), c->columns);
}

/* c = f c + i g and h = o tanh(c). `kept` is the new cell state, which backward and the next step read. */
static void forward_lstm(step_chunk *c)
{
    const wf_gates_args *const a = c->a;
    float sum[MOST_GATES][CHUNK], *gate[MOST_GATES];
    for (int k = 0; k < 4; k++) {
        add_block_sums(c, 4, k, sum[k], NULL);
        gate[k] = open_block(c, a->gates, 4, k);
    }
    float *const kept = open_block(c, a->kept, 1, 0), *const h = open_block(c, a->h, 1, 0);
    const float *const before = read_block(c, a->cell_before, 1, 0);
    float *const i = gate[0], *const f = gate[1], *const g = gate[2], *const o = gate[3];
#pragma omp simd
    for (int64_t j = 0; j < c->columns; j++) {
        i[j] = vm_sigmoid(sum[0][j]);
        f[j] = vm_sigmoid(sum[1][j]);
        g[j] = vm_tanh(sum[2][j]);
        o[j] = vm_sigmoid(sum[3][j]);
        kept[j] = wf_fma(f[j], before[j], i[j] * g[j]);
        h[j] = o[j] * vm_tanh(kept[j]);
    }
    for (int k = 0; k < 4; k++)
        close_block(c, a->gates, 4, k, gate[k]);
    close_states(c, h);
}

/* h = (1 - z) n + z h, written with one product. The recurrent part of n is kept without r, since its gradient goes to
 * r. */
static void forward_gru(step_chunk *c)
{
    const wf_gates_args *const a = c->a;
    float sum[MOST_GATES][CHUNK], *gate[MOST_GATES];
    float *const kept = open_block(c, a->kept, 1, 0), *const h = open_block(c, a->h, 1, 0);
    for (int k = 0; k < 3; k++) {
        add_block_sums(c, 3, k, sum[k], k == 2 ? kept : NULL);
        gate[k] = open_block(c, a->gates, 3, k);
    }
    const float *const before = read_block(c, a->before, 1, 0);
    float *const r = gate[0], *const z = gate[1], *const n = gate[2];
#pragma omp simd
    for (int64_t j = 0; j < c->columns; j++) {
        r[j] = vm_sigmoid(sum[0][j]);
        z[j] = vm_sigmoid(sum[1][j]);
        n[j] = vm_tanh(wf_fma(r[j], kept[j], sum[2][j]));
        h[j] = wf_fma(z[j], before[j] - n[j], n[j]);
    }
    for (int k = 0; k < 3; k++)
        close_block(c, a->gates, 3, k, gate[k]);
    close_states(c, h);
}

static void fill_zeros(const wf_array *of, int64_t at, int64_t n)
{
    const size_t each = wf_dtype_size(of->dtype);
    memset((char *)of->data + (size_t)at * each, 0, (size_t)n * each);
}

/* The sample has ended, or has not begun: the state passes unchanged, and y is 0 as in a padded batch. Gates are 0 so
 * that sums over all steps may read them. */
static void pass_forward(step_chunk *c)
{
    const wf_gates_args *const a = c->a;
    const int64_t blocks = wf_cell_gates(a->cell), at = c->n * c->size + c->lo;
    for (int64_t k = 0; k < blocks; k++)
        fill_zeros(a->gates, place_in(c, blocks, k), c->columns);
    if (a->cell == WF_CELL_LSTM)
        copy_row(a->cell_before, a->kept, at, c->columns);
    else
        fill_zeros(a->kept, at, c->columns);
    copy_row(a->before, a->h, at, c->columns);
    fill_zeros(a->y, at, c->columns);
}

/* dcell comes as the gradient of the new cell state and leaves as that of the old one. Input and recurrent product are
 * added, so one gradient serves both. */
static void back_lstm(step_chunk *c)
{
    const wf_gates_args *const a = c->a;
    const float *gate[MOST_GATES];
    float *to[MOST_GATES];
    for (int k = 0; k < 4; k++) {
        gate[k] = read_block(c, a->gates, 4, k);
        to[k] = open_block(c, a->dinput, 4, k);
    }
    const float *const kept = read_block(c, a->kept, 1, 0), *const before = read_block(c, a->cell_before, 1, 0);
    const float *const dy = read_block(c, a->dy, 1, 0);
    float *const dh = open_block(c, a->dh, 1, 0), *const dcell = open_block(c, a->dcell, 1, 0);
    const float *const i = gate[0], *const f = gate[1], *const g = gate[2], *const o = gate[3];
    float *const di = to[0], *const df = to[1], *const dg = to[2], *const dout = to[3];
#pragma omp simd
    for (int64_t j = 0; j < c->columns; j++) {
        const float t = vm_tanh(kept[j]), d = dy[j] + dh[j], dc = wf_fma(d * o[j], 1.0F - t * t, dcell[j]);
        di[j] = dc * g[j] * i[j] * (1.0F - i[j]);
        df[j] = dc * before[j] * f[j] * (1.0F - f[j]);
        dg[j] = dc * i[j] * (1.0F - g[j] * g[j]);
        dout[j] = d * t * o[j] * (1.0F - o[j]);
        dcell[j] = dc * f[j];
        /* All of h's gradient went into the gates: the products of the caller write what goes to the step before. */
        dh[j] = 0;
    }
    for (int k = 0; k < 4; k++)
        close_block(c, a->dinput, 4, k, to[k]);
}

/* n adds the recurrent part times r, so its two gradients differ and both are written; those of r and z are equal. */
static void back_gru(step_chunk *c)
{
    const wf_gates_args *const a = c->a;
    const float *gate[MOST_GATES];
    float *to[MOST_GATES], *back[MOST_GATES];
    for (int k = 0; k < 3; k++) {
        gate[k] = read_block(c, a->gates, 3, k);
        to[k] = open_block(c, a->dinput, 3, k);
        back[k] = open_block(c, a->drecurrent, 3, k);
    }
    const float *const kept = read_block(c, a->kept, 1, 0), *const before = read_block(c, a->before, 1, 0);
    const float *const dy = read_block(c, a->dy, 1, 0);
    float *const dh = open_block(c, a->dh, 1, 0);
    const float *const r = gate[0], *const z = gate[1], *const n = gate[2];
#pragma omp simd
    for (int64_t j = 0; j < c->columns; j++) {
        const float d = dy[j] + dh[j], dn = d * (1.0F - z[j]) * (1.0F - n[j] * n[j]);
        to[0][j] = back[0][j] = dn * kept[j] * r[j] * (1.0F - r[j]);
        to[1][j] = back[1][j] = d * (before[j] - n[j]) * z[j] * (1.0F - z[j]);
        to[2][j] = dn;
        back[2][j] = dn * r[j];
        dh[j] = d * z[j];
    }
    for (int k = 0; k < 3; k++) {
        close_block(c, a->dinput, 3, k, to[k]);
        close_block(c, a->drecurrent, 3, k, back[k]);
    }
}

/* The state was passed on, so dh and dcell are already the gradients of the step before; only the gates' are
 * cleared. */
static void pass_back(step_chunk *c)
{
    const wf_gates_args *const a = c->a;
    const int64_t blocks = wf_cell_gates(a->cell);
    for (int64_t k = 0; k < blocks; k++) {
        fill_zeros(a->dinput, place_in(c, blocks, k), c->columns);
        if (a->cell == WF_CELL_GRU)
            fill_zeros(a->drecurrent, place_in(c, blocks, k), c->columns);
    }
}

/* Every chunk of every sample through `run`, or through `pass` where the sample takes no part. */
static void each_chunk(wf_ctx *ctx, const wf_gates_args *a, const wf_array *like, void (*run)(step_chunk *c),
                       void (*pass)(step_chunk *c))
{
    const int64_t samples = like->shape.dim[0], size = like->shape.dim[1], chunks = (size + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 4 * samples * size)) schedule(static)
    for (int64_t i = 0; i < samples * chunks; i++) {
        float room[ROOMS][CHUNK];
        const int64_t n = i / chunks, lo = i % chunks * CHUNK;
        step_chunk c = {.a = a, .size = size, .n = n, .lo = lo, .columns = wf_cpu_min(CHUNK, size - lo), .room = room};
        /* `step` is a place in time, also for a layer that runs backward: padding is last in time, not in the pass. */
        const bool takes_part = !a->lengths || a->step < ((const int32_t *)a->lengths->data)[n];
        (takes_part ? run : pass)(&c);
    }
}

wf_status wf_cpu_gates_forward(wf_ctx *ctx, const wf_gates_args *args)
{
    if (args->h->dtype == WF_F64)
        return REF->gates_forward(ctx, args);
    each_chunk(ctx, args, args->h, args->cell == WF_CELL_LSTM ? forward_lstm : forward_gru, pass_forward);
    return WF_OK;
}

wf_status wf_cpu_gates_backward(wf_ctx *ctx, const wf_gates_args *args)
{
    if (args->dy->dtype == WF_F64)
        return REF->gates_backward(ctx, args);
    each_chunk(ctx, args, args->dy, args->cell == WF_CELL_LSTM ? back_lstm : back_gru, pass_back);
    return WF_OK;
}
