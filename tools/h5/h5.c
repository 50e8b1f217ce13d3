/* wf-h5: looks into model files, checkpoints and other HDF5 files. Exit code 0: all is well; 1: files differ, or are
 * damaged; 2: they cannot be read, or the command is wrong.
 *
 *     wf-h5 ls FILE           names, types, shapes
 *     wf-h5 show FILE [NAME]  the same with least, most, mean and norm; what a checkpoint says of itself
 *     wf-h5 diff FILE FILE    data set by data set, with the norm of the difference
 *     wf-h5 verify FILE       the sums of a checkpoint; of other files, that all can be read
 */
#include "comm/manifest_author.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int complain(void)
{
    fprintf(stderr, "wf-h5: %s\n", wf_error_message());
    return 2;
}

/* The elements as doubles: free() them; NULL with an error recorded. */
static double *values_of(wf_h5 *file, const char *name, const wf_h5_info *info)
{
    const int64_t n = info->empty ? 0 : wf_shape_count(info->shape);
    const bool is_float = wf_dtype_is_float(info->dtype);
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    if (!values) {
        WF_RAISE(WF_ERR_MEMORY, "no memory for the %lld elements of %s", (long long)n, name);
        return NULL;
    }
    if (n > 0 && wf_h5_read(file, name, wf_box_of_shape(info->shape), is_float ? WF_F64 : WF_I64, values) != WF_OK) {
        free(values);
        return NULL;
    }
    for (int64_t i = 0; i < n && !is_float; i++) {
        int64_t integer;
        memcpy(&integer, &values[i], sizeof integer);
        values[i] = (double)integer;
    }
    return values;
}

/* --- ls, show ----------------------------------------------------------------------------------------------------- */

typedef struct showing {
    const char *only;
    bool statistics;
    int64_t shown;
} showing;

static void print_statistics(const double *values, int64_t n)
{
    double least = INFINITY, most = -INFINITY, sum = 0, squares = 0;
    int64_t odd = 0;
    for (int64_t i = 0; i < n; i++) {
        odd += !isfinite(values[i]);
        least = values[i] < least ? values[i] : least;
        most = values[i] > most ? values[i] : most;
        sum += values[i];
        squares += values[i] * values[i];
    }
    if (n > 0)
        printf("  least %.6g  most %.6g  mean %.6g  norm %.6g", least, most, sum / (double)n, sqrt(squares));
    if (odd > 0)
        printf("  not finite: %lld", (long long)odd);
}

static wf_status show(void *user, wf_h5 *file, const char *name)
{
    showing *s = user;
    wf_h5_info info;
    char text[WF_SHAPE_TEXT];
    if (s->only && strcmp(s->only, name) != 0)
        return WF_OK;
    s->shown++;
    if (wf_h5_stat(file, name, &info) != WF_OK) {
        printf("%-48s %s\n", name, wf_error_message());
        wf_error_clear();
        return WF_OK;
    }
    printf("%-48s %-4s %s", name, wf_dtype_name(info.dtype), info.empty ? "empty" : wf_shape_text(info.shape, text));
    if (s->statistics) {
        double *values = values_of(file, name, &info);
        WF_NEED(values);
        print_statistics(values, info.empty ? 0 : wf_shape_count(info.shape));
        free(values);
    }
    putchar('\n');
    return WF_OK;
}

/* Whether it ends as a checkpoint does. */
static bool read_manifest(const char *path, wf_manifest *m)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    *m = (wf_manifest){0};
    const bool read = file >= 0 && wf_manifest_read(file, path, m) == WF_OK;
    if (file >= 0)
        close(file);
    wf_error_clear();
    return read;
}

static int command_show(const char *path, const char *only, bool statistics)
{
    wf_manifest m;
    showing s = {.only = only, .statistics = statistics};
    wf_h5 *file = wf_h5_open(path);
    if (!file)
        return complain();
    if (statistics && !only && read_manifest(path, &m)) {
        printf("checkpoint: generation %lld, step %lld, by %lld rank%s%s%s\n", (long long)m.generation,
               (long long)m.step, (long long)m.ranks, m.ranks == 1 ? "" : "s", *m.mesh ? ", " : "", m.mesh);
        wf_manifest_free(&m);
    }
    wf_status status = wf_h5_each(file, show, &s);
    if (status == WF_OK && only && s.shown == 0)
        status = WF_RAISE(WF_ERR_FORMAT, "%s: %s is not in it", path, only);
    const int code = status == WF_OK ? 0 : complain();
    return wf_h5_close(file) == WF_OK ? code : 2;
}

/* --- diff --------------------------------------------------------------------------------------------------------- */

typedef struct comparison {
    wf_h5 *other;
    int64_t different;
    bool missing_alone; /* the second pass: what the first file lacks */
} comparison;

static wf_status compare_values(comparison *c, wf_h5 *file, const char *name, const wf_h5_info *a, const wf_h5_info *b)
{
    const int64_t n = a->empty ? 0 : wf_shape_count(a->shape);
    double difference = 0, norm = 0, most = 0;
    double *x = values_of(file, name, a), *y = values_of(c->other, name, b);
    for (int64_t i = 0; i < n && x && y; i++) {
        const bool same = x[i] == y[i] || (isnan(x[i]) && isnan(y[i]));
        const double d = same ? 0 : fabs(x[i] - y[i]);
        difference += d * d;
        norm += x[i] * x[i];
        most = d > most || isnan(d) ? d : most;
    }
    const bool read = x && y;
    free(x);
    free(y);
    WF_CHECK(read, wf_error_code(), "%s", wf_error_message());
    if (difference != 0) {
        c->different++;
        printf("%-48s differs: norm %.6g of %.6g, most %.6g\n", name, sqrt(difference), sqrt(norm), most);
    }
    return WF_OK;
}

static wf_status compare(void *user, wf_h5 *file, const char *name)
{
    comparison *c = user;
    wf_h5_info a, b;
    char text[2][WF_SHAPE_TEXT];
    if (!wf_h5_has(c->other, name)) {
        printf("%-48s is in the %s file alone\n", name, c->missing_alone ? "second" : "first");
        c->different++;
        return WF_OK;
    }
    if (c->missing_alone)
        return WF_OK;
    WF_TRY(wf_h5_stat(file, name, &a));
    WF_TRY(wf_h5_stat(c->other, name, &b));
    if (a.dtype != b.dtype || a.empty != b.empty || !wf_shape_equal(a.shape, b.shape)) {
        printf("%-48s is %s %s, and %s %s\n", name, wf_dtype_name(a.dtype), wf_shape_text(a.shape, text[0]),
               wf_dtype_name(b.dtype), wf_shape_text(b.shape, text[1]));
        c->different++;
        return WF_OK;
    }
    return compare_values(c, file, name, &a, &b);
}

static int command_diff(const char *one, const char *other)
{
    wf_h5 *file[2] = {wf_h5_open(one), wf_h5_open(other)};
    int code = 2;
    if (file[0] && file[1]) {
        comparison there = {.other = file[1]}, back = {.other = file[0], .missing_alone = true};
        wf_status status = wf_h5_each(file[0], compare, &there);
        if (status == WF_OK)
            status = wf_h5_each(file[1], compare, &back);
        code = status != WF_OK ? complain() : there.different + back.different > 0;
    } else {
        complain();
    }
    return wf_h5_close(file[0]) == WF_OK && wf_h5_close(file[1]) == WF_OK ? code : 2;
}

/* --- verify ------------------------------------------------------------------------------------------------------- */

static wf_status read_all(void *user, wf_h5 *file, const char *name)
{
    wf_h5_info info;
    int64_t *sets = user;
    WF_TRY(wf_h5_stat(file, name, &info));
    double *values = values_of(file, name, &info);
    WF_NEED(values);
    free(values);
    ++*sets;
    return WF_OK;
}

static int verify_blocks(int file, const char *path, const wf_manifest *m)
{
    int code = 0;
    int64_t bytes;
    void *data = malloc((size_t)WF_FILE_BLOCK);
    for (int64_t b = 0; b < m->blocks && data; b++)
        if (wf_manifest_block(file, path, m, b, data, &bytes) != WF_OK) {
            printf("%s\n", wf_error_message());
            code = 1;
        }
    if (data && code == 0)
        printf("%s: generation %lld, step %lld: %lld blocks are whole\n", path, (long long)m->generation,
               (long long)m->step, (long long)m->blocks);
    free(data);
    return data ? code : 2;
}

static int command_verify(const char *path)
{
    wf_manifest m;
    int64_t sets = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    int code = file < 0 ? 2 : 0;
    if (file >= 0 && wf_manifest_read(file, path, &m) == WF_OK) {
        code = verify_blocks(file, path, &m);
        wf_manifest_free(&m);
    } else {
        char why[512];
        snprintf(why, sizeof why, "%s", file < 0 ? "cannot read it" : wf_error_message());
        wf_h5 *h5 = wf_h5_open(path);
        const wf_status status = h5 ? wf_h5_each(h5, read_all, &sets) : wf_error_code();
        code = status == WF_OK && strstr(why, "or none") ? 0 : 1;
        printf("%s\n", status == WF_OK ? why : wf_error_message());
        if (code == 0)
            printf("%s: no checkpoint: there are no sums; %lld data sets can be read\n", path, (long long)sets);
        if (wf_h5_close(h5) != WF_OK)
            code = 2;
    }
    if (file >= 0)
        close(file);
    return code;
}

int main(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    if (argc == 3 && strcmp(command, "ls") == 0)
        return command_show(argv[2], NULL, false);
    if ((argc == 3 || argc == 4) && strcmp(command, "show") == 0)
        return command_show(argv[2], argc == 4 ? argv[3] : NULL, true);
    if (argc == 4 && strcmp(command, "diff") == 0)
        return command_diff(argv[2], argv[3]);
    if (argc == 3 && strcmp(command, "verify") == 0)
        return command_verify(argv[2]);
    fprintf(stderr, "usage: wf-h5 ls FILE | show FILE [NAME] | diff FILE FILE | verify FILE\n");
    return 2;
}
