/* Initial values of parameters, called when a value is first used. Random ones are a function of (seed, stream of
 * the path, global index), so a part of a sharded parameter is the same slice of the serial one. It never
 * communicates. */
#include "core/param_author.h"

#include <math.h>
#include <stdlib.h>

static wf_status draw_values(wf_param *p, wf_distribution dist, uint64_t stream, double a, double b)
{
    const wf_random random = {.seed = p->ctx->seed, .stream = stream, .global = p->global, .box = p->box};
    const wf_array y = wf_tensor_array(p->value);
    return p->ctx->k->random(p->ctx, dist, &random, a, b, &y);
}

/* The rows of m [rows, cols], rows <= cols, become orthonormal: modified Gram-Schmidt, twice for accuracy. */
static bool orthonormal(double *m, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) {
        double *row = m + i * cols, norm = 0;
        /* Two passes over the rows above: one alone leaves errors of the size of the rows' condition number ("twice is
         * enough", Kahan and Parlett). */
        for (int64_t k = 0; k < 2 * i; k++) {
            const double *other = m + (k % i) * cols;
            double dot = 0;
            for (int64_t j = 0; j < cols; j++)
                dot += row[j] * other[j];
            for (int64_t j = 0; j < cols; j++)
                row[j] -= dot * other[j];
        }
        for (int64_t j = 0; j < cols; j++)
            norm += row[j] * row[j];
        /* Not "norm == 0": a NaN ends here as well. */
        if (!(norm > 0))
            return false;
        for (int64_t j = 0; j < cols; j++)
            row[j] /= sqrt(norm);
    }
    return true;
}

/* Drawn by the kernel and then read to the host, so that the values are those of every other random tensor, on any
 * device. */
static wf_status normals(wf_ctx *ctx, uint64_t stream, int64_t rows, int64_t cols, double *m)
{
    wf_tensor *t = wf_tensor_new_step(ctx, WF_F64, WF_SHAPE(rows, cols), WF_ROW_MAJOR);
    WF_NEED(t);
    const wf_random random = {
        .seed = ctx->seed, .stream = stream, .global = t->shape, .box = wf_box_of_shape(t->shape)};
    const wf_array y = wf_tensor_array(t);
    wf_status status;
    WF_TRY_OUT(ctx->k->random(ctx, WF_NORMAL, &random, 0, 1, &y));
    WF_TRY_OUT(wf_tensor_export(t, m, wf_tensor_bytes(t)));
out:
    wf_tensor_free(t);
    return status;
}

/* The serial parameter, [dim 0, the rest] as a matrix with orthonormal rows or columns, whichever are fewer; its slice.
 */
static wf_status orthogonal(wf_param *p, uint64_t stream, double scale)
{
    const int64_t count = wf_shape_count(p->global), first = p->global.rank > 0 ? p->global.dim[0] : 1;
    if (count == 0)
        return WF_OK;
    /* Every rank makes the whole matrix and keeps its slice: orthogonality is a property of all rows together. */
    const int64_t rest = count / first, rows = first < rest ? first : rest, cols = first < rest ? rest : first;
    double *m = wf_malloc(p->ctx, 2 * (size_t)count * sizeof *m), *out = m ? m + count : NULL;
    wf_tensor *whole = NULL, *part = NULL;
    WF_CHECK(m, WF_ERR_MEMORY, "no memory for an orthogonal matrix of %lld elements", (long long)count);
    wf_status status;
    WF_TRY_OUT(normals(p->ctx, stream, rows, cols, m));
    if (!orthonormal(m, rows, cols))
        WF_TRY_OUT(WF_RAISE(WF_ERR_NUMERIC, "no orthogonal matrix for %s", wf_param_path(p)));
    for (int64_t i = 0; i < first; i++)
        for (int64_t j = 0; j < rest; j++)
            out[i * rest + j] = scale * (first < rest ? m[i * cols + j] : m[j * cols + i]);
    whole = wf_tensor_new_ordered(p->ctx, WF_F64, p->global, WF_ROW_MAJOR);
    WF_TRY_OUT(wf_tensor_import(whole, out, wf_tensor_bytes(whole)));
    part = wf_tensor_view(whole, p->box);
    WF_TRY_OUT(wf_check(part));
    WF_TRY_OUT(wf_tensor_assign(p->value, part));
out:
    wf_tensor_free(part);
    wf_tensor_free(whole);
    free(m);
    return status;
}

wf_status wf_param_initialise(wf_param *p)
{
    uint64_t stream = 0;
    /* Two layers of one kind get different numbers by their paths; two ranks get the same ones. */
    if (p->path_of)
        p->path_of(p->owner, &stream);
    stream = wf_hash_text(stream, p->name);
    const wf_init init = p->init;
    const double scale = init.a == 0 ? 1 : init.a;
    const double in = p->fan_in > 0 ? (double)p->fan_in : 1, both = in + (p->fan_out > 0 ? (double)p->fan_out : 1);
    double deviation = 0, limit = 0;
    /* Packed forms of an earlier value (after a change of the name, before the first use) must not survive. */
    wf_tensor_touch(p->value);
    switch (init.kind) {
    case WF_INIT_DEFAULT:
    case WF_INIT_CONSTANT:
        return wf_tensor_fill(p->value, init.kind == WF_INIT_CONSTANT ? init.a : 0);
    case WF_INIT_NORMAL:
        return draw_values(p, WF_NORMAL, stream, init.a, init.b);
    case WF_INIT_UNIFORM:
        return draw_values(p, WF_UNIFORM, stream, init.a, init.b);
    case WF_INIT_TRUNC_NORMAL:
        return draw_values(p, WF_TRUNCATED, stream, init.a, init.b);
    case WF_INIT_ORTHOGONAL:
        return orthogonal(p, stream, scale);
    /* Deviations are those of the papers: LeCun 1998 (1 / fan-in), Glorot and Bengio 2010 (2 / (in + out)), He 2015 (2
     * / in). A uniform distribution on [-l, l] has the variance l l / 3, hence the 3 and 6. */
    case WF_INIT_LECUN_NORMAL:
        deviation = scale * sqrt(1 / in);
        break;
    case WF_INIT_GLOROT_NORMAL:
        deviation = scale * sqrt(2 / both);
        break;
    case WF_INIT_HE_NORMAL:
        deviation = scale * sqrt(2 / in);
        break;
    case WF_INIT_LECUN_UNIFORM:
        limit = scale * sqrt(3 / in);
        break;
    case WF_INIT_GLOROT_UNIFORM:
        limit = scale * sqrt(6 / both);
        break;
    case WF_INIT_HE_UNIFORM:
        limit = scale * sqrt(6 / in);
        break;
    }
    return limit > 0 ? draw_values(p, WF_UNIFORM, stream, -limit, limit)
                     : draw_values(p, WF_NORMAL, stream, 0, deviation);
}
