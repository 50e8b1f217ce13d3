/* Blocks of queries, their scores, and products, for forward (attention.c) and backward (attention_gradient.c). All are
 * [rows][LANES] with one query in each lane; lanes in use without a query hold 0 and are never written to a result. */
#include "core/cpu/attention_impl.h"

#include "core/random_rows_author.h"

#include <math.h>
#include <string.h>

static const int32_t *whole_numbers(const wf_array *a)
{
    return a->data;
}

attention_block wf_attention_block(const attention_job *job, int64_t n, int64_t h, int64_t i)
{
    attention_block b = {.n = n, .h = h, .i = i, .count = wf_cpu_min(LANES, job->z.t - i)};
    const int64_t length = job->a->lengths ? whole_numbers(job->a->lengths)[n] : INT64_MAX;
    b.width = wf_pack_up(b.count);
    b.reach = wf_attention_reach(job->a, job->z.s, length, i + b.count - 1);
    return b;
}

attention_rows wf_attention_rows(const attention_job *job, const wf_array *of, int64_t n, int64_t h, int64_t first,
                                 int64_t count, float *room)
{
    /* Heads lie side by side in a token's row: the step to the next token is that of all heads, in memory, and of one
     * head in the room. */
    const int64_t all = of->shape.dim[2], each = all / job->a->heads;
    const int64_t at = (n * of->shape.dim[1] + first) * all + h * each;
    if (of->dtype == WF_F32)
        return (attention_rows){(const float *)of->data + at, all};
    for (int64_t j = 0; j < count; j++)
        wf_cpu_widen(of->dtype, each, (const uint16_t *)of->data + at + j * all, room + j * each);
    return (attention_rows){room, each};
}

/* Turns rows of four; the compiler makes shuffles of registers of it. */
WF_CPU_INLINE void turn_four(const float *from, int64_t from_step, float scale, float *to, int64_t to_step)
{
    typedef float four __attribute__((vector_size(16)));
    four row[4];
    for (int i = 0; i < 4; i++) {
        memcpy(&row[i], from + i * from_step, sizeof row[i]);
        row[i] *= scale;
    }
    const four low = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const four high = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const four low2 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const four high2 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    row[0] = __builtin_shufflevector(low, low2, 0, 1, 4, 5);
    row[1] = __builtin_shufflevector(low, low2, 2, 3, 6, 7);
    row[2] = __builtin_shufflevector(high, high2, 0, 1, 4, 5);
    row[3] = __builtin_shufflevector(high, high2, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(to + i * to_step, &row[i], sizeof row[i]);
}

void wf_attention_transpose(const float *from, int64_t from_step, int64_t rows, int64_t columns, float scale, float *to,
                            int64_t to_step)
{
    const int64_t most = rows / 4 * 4, whole = columns / 4 * 4;
    for (int64_t i = 0; i < most; i += 4)
        for (int64_t c = 0; c < whole; c += 4)
            turn_four(from + i * from_step + c, from_step, scale, to + c * to_step + i, to_step);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = i < most ? whole : 0; c < columns; c++)
            to[c * to_step + i] = scale * from[i * from_step + c];
}

/* Every key multiplies whole packs: lanes beyond the queries are 0. */
void wf_attention_turn(const attention_job *job, const wf_array *of, const attention_block *b, float scale, float *room,
                       float *to)
{
    const int64_t each = of->shape.dim[2] / job->a->heads;
    const attention_rows rows = wf_attention_rows(job, of, b->n, b->h, b->i, b->count, room);
    wf_attention_transpose(rows.data, rows.step, b->count, each, scale, to, LANES);
    for (int64_t c = 0; c < each && b->count < b->width; c++)
        memset(to + c * LANES + b->count, 0, (size_t)(b->width - b->count) * sizeof *to);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

enum { TALLEST = 8, MOST_PACKS = 4 };

/* `rows` of c by `packs` packs of its columns, both constants where it is inlined. */
WF_CPU_INLINE void multiply_tile(const attention_product *p, int64_t m, int64_t n, int rows, int packs)
{
    pack sum[TALLEST][MOST_PACKS];
    for (int r = 0; r < rows; r++)
        for (int x = 0; x < packs; x++)
            sum[r][x] = p->fresh ? (pack){0} : pack_load(p->c + (m + r) * p->ldc + n + x * PACK);
    /* All sums of the tile stay in registers over k. */
    const float *a = p->a + m * p->row, *b = p->b + n;
    for (int64_t k = 0; k < p->k; k++, a += p->column, b += p->ldb) {
        pack right[MOST_PACKS];
        for (int x = 0; x < packs; x++)
            right[x] = pack_load(b + x * PACK);
        for (int r = 0; r < rows; r++) {
            const pack left = pack_of(a[r * p->row]);
            for (int x = 0; x < packs; x++)
                sum[r][x] = pack_fma(left, right[x], sum[r][x]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int x = 0; x < packs; x++)
            pack_store(p->c + (m + r) * p->ldc + n + x * PACK, sum[r][x]);
}

/* The rows that are left, fewer than `tall`, in one tile: one after the other they would wait for each sum. */
WF_CPU_INLINE void multiply_rest(const attention_product *p, int64_t m, int64_t n, int tall, int packs)
{
    const int64_t left = p->m - m;
    if (tall > 7 && left == 7)
        multiply_tile(p, m, n, 7, packs);
    else if (tall > 6 && left == 6)
        multiply_tile(p, m, n, 6, packs);
    else if (tall > 5 && left == 5)
        multiply_tile(p, m, n, 5, packs);
    else if (tall > 4 && left == 4)
        multiply_tile(p, m, n, 4, packs);
    else if (left == 3)
        multiply_tile(p, m, n, 3, packs);
    else if (left == 2)
        multiply_tile(p, m, n, 2, packs);
    else if (left == 1)
        multiply_tile(p, m, n, 1, packs);
}

WF_CPU_INLINE void multiply_columns(const attention_product *p, int64_t n, int tall, int packs)
{
    int64_t m = 0;
    for (; m + tall <= p->m; m += tall)
        multiply_tile(p, m, n, tall, packs);
    multiply_rest(p, m, n, tall, packs);
}

/* A tile has at least eight sums, the additions that are in flight in two units of four cycles: 16 of them fit the 32
 * registers of AVX-512, 12 the 16 of others. */
void wf_attention_multiply(const attention_product *p)
{
    int64_t n = 0;
    if (PACK == 16)
        for (; n + 4 * PACK <= p->n; n += 4 * PACK)
            multiply_columns(p, n, 4, 4);
    for (; n + 2 * PACK <= p->n; n += 2 * PACK)
        multiply_columns(p, n, 6, 2);
    for (; n < p->n; n += PACK)
        multiply_columns(p, n, 8, 1);
}

/* --- scores ------------------------------------------------------------------------------------------------------- */

/* The last block of queries may be narrower than LANES: loops over `count` here, since the table has no rows for the
 * lanes beyond. */
static void add_table(const attention_job *job, const attention_block *b, int64_t first, int64_t count, float *scores)
{
    const float *const table = job->bias + b->h * job->z.rows;
    for (int64_t j = 0; job->places && j < count; j++) {
        const float *const from = job->places + (b->h * job->z.s + first + j) * job->across + b->i;
        float *const s = scores + j * LANES;
#pragma omp simd
        for (int64_t i = 0; i < b->width; i++)
            s[i] += from[i];
    }
    if (job->places)
        return;
    const int32_t *const index = job->a->index ? whole_numbers(job->a->index) : NULL;
    for (int64_t i = 0; i < b->count; i++)
        for (int64_t j = 0; j < count; j++) {
            const int64_t row = index ? index[(b->i + i) * job->z.s + first + j]
                                      : wf_attention_row(job->a, job->z.rows, b->i + i, first + j);
            scores[j * LANES + i] += table[row];
        }
}

static void add_mask(const attention_job *job, const attention_block *b, int64_t first, int64_t count, float *scores)
{
    const wf_strided *const m = job->a->mask;
    const float *const from =
        (const float *)m->data + b->n * m->stride[0] + b->h * m->stride[1] + b->i * m->stride[2] + first * m->stride[3];
    for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < b->count; i++)
            scores[j * LANES + i] += from[i * m->stride[2] + j * m->stride[3]];
}

/* Tokens of different regions do not see each other (shifted windows of Swin, Liu et al. 2021). Regions repeat from
 * group to group of samples. */
static void hide_regions(const attention_job *job, const attention_block *b, int64_t first, int64_t count,
                         float *scores)
{
    const int64_t group = wf_attention_sample(job->a, b->n) % job->z.groups;
    const int32_t *const k = whole_numbers(job->a->k_region) + group * job->z.s + first;
    int32_t q[LANES] = {0};
    memcpy(q, whole_numbers(job->a->q_region) + group * job->z.t + b->i, (size_t)b->count * sizeof *q);
    for (int64_t j = 0; j < count; j++) {
        float *const s = scores + j * LANES;
#pragma omp simd
        for (int64_t i = 0; i < b->width; i++)
            s[i] = q[i] != k[j] ? -INFINITY : s[i];
    }
}

/* The block was cut at the reach of its last query; earlier queries of a causal block end sooner. */
static void hide_beyond(const attention_job *job, const attention_block *b, int64_t first, int64_t count, float *scores)
{
    const int64_t length = job->a->lengths ? whole_numbers(job->a->lengths)[b->n] : INT64_MAX;
    for (int64_t i = 0; i < b->count; i++) {
        const int64_t reach = wf_attention_reach(job->a, job->z.s, length, b->i + i);
        for (int64_t j = reach > first ? reach - first : 0; j < count; j++)
            scores[j * LANES + i] = -INFINITY;
    }
}

void wf_attention_scores(const attention_job *job, const attention_block *b, const float *queries, attention_rows keys,
                         int64_t first, int64_t count, float *scores)
{
    wf_attention_multiply(&(attention_product){.fresh = true,
                                               .m = count,
                                               .n = b->width,
                                               .k = job->z.d,
                                               .a = keys.data,
                                               .row = keys.step,
                                               .column = 1,
                                               .b = queries,
                                               .ldb = LANES,
                                               .c = scores,
                                               .ldc = LANES});
    if (job->bias)
        add_table(job, b, first, count, scores);
    if (job->a->mask)
        add_mask(job, b, first, count, scores);
    if (job->a->q_region)
        hide_regions(job, b, first, count, scores);
    if (job->a->causal || job->a->lengths)
        hide_beyond(job, b, first, count, scores);
}

/* The random number of an element depends on its global sample, head, query and key, so a mask does not change with the
 * blocks, the threads or the ranks. Philox makes four at a time: neighbouring keys share one. */
void wf_attention_kept(const attention_job *job, const attention_block *b, int64_t first, int64_t count, float *kept)
{
    const wf_random *const r = job->a->random;
    const uint64_t key = wf_philox_key(r->seed, r->stream), iteration = r->iteration ? *r->iteration : 0;
    const float scale = (float)(1 / (1 - job->a->dropout));
    const int64_t sample = wf_attention_sample(job->a, b->n);
    for (int64_t i = 0; i < b->count; i++) {
        uint64_t at = (uint64_t)(wf_attention_place(r, sample, b->h, b->i + i) + first);
        uint32_t word[4] = {0};
        for (int64_t j = 0; j < count; j++, at++) {
            if (j == 0 || at % 4 == 0) {
                const uint64_t counter = at / 4;
                word[0] = (uint32_t)counter, word[1] = (uint32_t)(counter >> 32);
                word[2] = (uint32_t)iteration, word[3] = (uint32_t)(iteration >> 32);
                wf_philox_rounds((uint32_t)key, (uint32_t)(key >> 32), word);
            }
            kept[j * LANES + i] = wf_random_unit(word[at % 4]) < job->a->dropout ? 0 : scale;
        }
    }
}
