/* The table of a profile: by kernel and by layer, against what this machine can do. Written by each rank that is asked
 * to, of its own profile; nothing is sent. */
#include "optim/profiler_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIDE   768                /* of the matrices of the peak */
#define COUNT  ((int64_t)8 << 20) /* elements of each array of the peak of memory: more than caches hold */
#define ROUNDS 5

/* --- Peak --------------------------------------------------------------------------------------------------------- */

/* The library's own kernels are the measure: a kernel near 100 % is as fast as its best product or sum. */
static wf_array array_of(void *data, wf_dtype dtype, wf_shape shape)
{
    return (wf_array){.data = data, .dtype = dtype, .shape = shape};
}

/* The best of some products and sums, on three arrays of COUNT elements. */
static wf_status measure_peak(wf_ctx *ctx, void *const data[3], wf_profiler_peak *peak)
{
    const wf_dtype product = wf_ctx_compute(ctx), sum = wf_ctx_dtype(ctx);
    wf_array m[3], v[3];
    for (int i = 0; i < 3; i++) {
        m[i] = array_of(data[i], product, WF_SHAPE(SIDE, SIDE));
        v[i] = array_of(data[i], sum, WF_SHAPE(COUNT));
        /* Zeros need no preparation; products of them take as long as others, on a processor. */
        WF_TRY(ctx->k->fill(ctx, &v[i], 0));
    }
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t start = wf_profile_clock();
        WF_TRY(ctx->k->matmul(ctx, &(wf_matmul_args){.a = &m[0], .b = &m[1], .c = &m[2]}));
        const int64_t between = wf_profile_clock();
        WF_TRY(ctx->k->binary(ctx, &(wf_binary_args){.alpha = 1, .beta = 1, .a = &v[0], .b = &v[1], .y = &v[2]}));
        const double sums = 1e-9 * (double)(wf_profile_clock() - between), products = 1e-9 * (double)(between - start);
        /* The best round counts: whatever disturbs a round only makes it slower. */
        const double flops = 2.0 * SIDE * SIDE * SIDE / products;
        const double bytes = 3.0 * (double)COUNT * (double)wf_dtype_size(sum) / sums;
        peak->flops = flops > peak->flops ? flops : peak->flops;
        peak->bytes = bytes > peak->bytes ? bytes : peak->bytes;
    }
    return WF_OK;
}

wf_status wf_profiler_measure(wf_ctx *ctx, wf_profiler_peak *peak)
{
    void *data[3] = {NULL};
    wf_status status = WF_OK;
    const size_t bytes = (size_t)COUNT * wf_dtype_size(wf_ctx_dtype(ctx));
    for (int i = 0; i < 3 && status == WF_OK; i++)
        status = ctx->k->alloc(ctx, bytes, &data[i]); /* not from the pool, which would keep it */
    if (status == WF_OK)
        status = measure_peak(ctx, data, peak);
    for (int i = 0; i < 3; i++)
        if (data[i])
            ctx->k->release(ctx, data[i], bytes);
    return status;
}

/* --- Table -------------------------------------------------------------------------------------------------------- */

typedef enum group {
    BY_NAME,
    BY_LAYER,
} group;

static const char *label_of(const wf_profile_row *row, group by)
{
    if (by == BY_NAME || row->kind != WF_PROFILE_KERNEL)
        return row->name;
    return *row->layer ? row->layer : "(no layer)";
}

/* Adds up what has one label; `to` has room for all rows. Groups are few, so they are looked for one by one. */
static int64_t group_rows(int64_t n, const wf_profile_row *row, group by, wf_profile_row *to)
{
    int64_t groups = 0, g;
    for (int64_t i = 0; i < n; i++) {
        /* Messages and input belong to no layer. */
        if (by == BY_LAYER && row[i].kind != WF_PROFILE_KERNEL)
            continue;
        const char *label = label_of(&row[i], by);
        for (g = 0; g < groups && (to[g].kind != row[i].kind || strcmp(to[g].name, label) != 0); g++)
            ;
        if (g == groups)
            to[groups++] = (wf_profile_row){.kind = row[i].kind, .name = label};
        to[g].calls += row[i].calls;
        to[g].ns += row[i].ns;
        to[g].flops += row[i].flops;
        to[g].bytes += row[i].bytes;
    }
    return groups;
}

static int longer_first(const void *a, const void *b)
{
    const wf_profile_row *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

/* A rate, or nothing where there is none. */
static void write_rate(FILE *file, double amount, double seconds)
{
    if (amount > 0 && seconds > 0)
        fprintf(file, " %9.2f", 1e-9 * amount / seconds);
    else
        fprintf(file, " %9s", "");
}

static void write_row(FILE *file, const wf_profile_row *row, double all, wf_profiler_peak peak)
{
    static const char *const kinds[] = {"", "collective ", "input: "};
    char label[160];
    const double seconds = 1e-9 * (double)row->ns;
    snprintf(label, sizeof label, "%s%s", kinds[row->kind], row->name);
    fprintf(file, "%-32s %9lld %10.1f", label, (long long)row->calls, 1e3 * seconds);
    write_rate(file, row->flops, seconds);
    write_rate(file, row->bytes, seconds);
    fprintf(file, " %6.1f%%", 100 * seconds / all);
    /* A kernel is measured by what it needs most: arithmetic or memory. */
    const double products = row->flops / seconds / peak.flops, memory = row->bytes / seconds / peak.bytes;
    if (row->kind == WF_PROFILE_KERNEL && seconds > 0)
        fprintf(file, " %6.1f%%", 100 * (products > memory ? products : memory));
    fputc('\n', file);
}

/* The rows of a group, the longest first, and their sum. */
static void write_group(FILE *file, const char *title, int64_t n, wf_profile_row *row, double all,
                        wf_profiler_peak peak)
{
    wf_profile_row rest = {.name = "(kernels, together)"};
    fprintf(file, "\n%-32s %9s %10s %9s %9s %7s %7s\n", title, "calls", "ms", "GFLOP/s", "GB/s", "share", "of peak");
    qsort(row, (size_t)n, sizeof *row, longer_first);
    for (int64_t i = 0; i < n; i++) {
        write_row(file, &row[i], all, peak);
        if (row[i].kind != WF_PROFILE_KERNEL)
            continue;
        rest.calls += row[i].calls;
        rest.ns += row[i].ns;
        rest.flops += row[i].flops;
        rest.bytes += row[i].bytes;
    }
    write_row(file, &rest, all, peak);
}

/* Before steps are as fast as they become; part of the time of the kernels that asked for it. */
static void write_setup(FILE *file, wf_setup_seconds setup, double all)
{
    const double seconds[] = {setup.planning, setup.tuning, setup.capturing};
    static const char *const names[] = {"planning", "tuning", "capturing"};
    fprintf(file, "\n%-32s %9s %10s %9s %9s %7s\n", "set-up", "", "ms", "", "", "share");
    for (int i = 0; i < 3; i++)
        fprintf(file, "%-32s %9s %10.1f %9s %9s %6.1f%%\n", names[i], "", 1e3 * seconds[i], "", "",
                100 * seconds[i] / all);
}

static wf_status write_table(const wf_comm *comm, const wf_profile *profile, wf_profiler_peak peak,
                             wf_setup_seconds setup, FILE *file)
{
    const wf_profile_row *row;
    const int64_t n = wf_profile_rows(profile, &row);
    const double all = 1e-9 * (double)wf_profile_ns(profile);
    wf_profile_row *to = malloc((size_t)(n + 1) * sizeof *to);
    WF_CHECK(to, WF_ERR_MEMORY, "no memory for a table of %lld rows", (long long)n);
    fprintf(file, "\n%.3f s of rank %s; its peak is %.1f GFLOP/s in products and %.2f GB/s in memory\n", all,
            WF_RANK(comm, wf_comm_rank(comm)), 1e-9 * peak.flops, 1e-9 * peak.bytes);
    write_group(file, "kernel", group_rows(n, row, BY_NAME, to), to, all, peak);
    write_group(file, "layer", group_rows(n, row, BY_LAYER, to), to, all, peak);
    write_setup(file, setup, all);
    free(to);
    return WF_OK;
}

wf_status wf_profiler_table(const wf_comm *comm, const wf_profile *profile, wf_profiler_peak peak,
                            wf_setup_seconds setup, int file)
{
    if (file == STDOUT_FILENO)
        fflush(stdout); /* what the program wrote before stands before */
    /* Closing the stream must not close the caller's file. */
    const int own = dup(file);
    FILE *out = own >= 0 ? fdopen(own, "w") : NULL;
    WF_CHECK(out, WF_ERR_IO, "the profile cannot be written to file %d: %s", file, strerror(errno));
    const wf_status status = write_table(comm, profile, peak, setup, out);
    const bool failed = ferror(out);
    WF_CHECK(fclose(out) == 0 && !failed, WF_ERR_IO, "the profile cannot be written: %s", strerror(errno));
    return status;
}
