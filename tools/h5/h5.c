/* wf-h5: looks into model files, checkpoints and other HDF5 files. Exit code 0: all is well; 1: files differ, or are
 * damaged; 2: they cannot be read, or are no HDF5 files, or the command is wrong.
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

/* An element as the file has it: a float of any type fits `real`, an integer `integer`. */
typedef union number {
    double real;
    int64_t integer;
} number;

/* The elements: free() them; NULL with an error recorded. */
static number *numbers_of(wf_h5 *file, const char *name, const wf_h5_info *info)
{
    const int64_t n = info->empty ? 0 : wf_shape_count(info->shape);
    const bool is_float = wf_dtype_is_float(info->dtype);
    number *values = malloc((size_t)(n + 1) * sizeof *values);
    if (!values) {
        WF_RAISE(WF_ERR_MEMORY, "no memory for the %lld elements of %s", (long long)n, name);
        return NULL;
    }
    if (n > 0 && wf_h5_read(file, name, wf_box_of_shape(info->shape), is_float ? WF_F64 : WF_I64, values) != WF_OK) {
        free(values);
        return NULL;
    }
    return values;
}

/* --- ls, show ----------------------------------------------------------------------------------------------------- */

typedef struct showing {
    const char *only;
    bool statistics;
    int64_t shown;
} showing;

static void print_statistics(const number *values, bool is_float, int64_t n)
{
    double least = INFINITY, most = -INFINITY, sum = 0, norm = 0;
    int64_t odd = 0;
    for (int64_t i = 0; i < n; i++) {
        const double value = is_float ? values[i].real : (double)values[i].integer;
        odd += !isfinite(value);
        least = value < least ? value : least;
        most = value > most ? value : most;
        sum += value;
        norm = hypot(norm, value); /* the squares of small and of large numbers are none */
    }
    if (n > 0)
        printf("  least %.6g  most %.6g  mean %.6g  norm %.6g", least, most, sum / (double)n, norm);
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
        number *values = numbers_of(file, name, &info);
        WF_NEED(values);
        print_statistics(values, wf_dtype_is_float(info.dtype), info.empty ? 0 : wf_shape_count(info.shape));
        free(values);
    }
    putchar('\n');
    return WF_OK;
}

/* Returns true if the file ends with the manifest of a checkpoint, which *m then holds. */
static bool read_manifest(const char *path, wf_manifest *m)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *m = (wf_manifest){0};
    const bool read = file >= 0 && wf_manifest_read(file, path, m) == WF_OK;
    if (file >= 0)
        close(file);
    if (!read)
        wf_manifest_free(m);
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

/* The distance of two elements; *same: they are equal, or both are not a number. */
static double distance_of(number x, number y, bool is_float, bool *same)
{
    if (is_float) {
        *same = x.real == y.real || (isnan(x.real) && isnan(y.real));
        return *same ? 0 : fabs(x.real - y.real);
    }
    *same = x.integer == y.integer;
    /* Unsigned: the distance of two integers may have 64 bits. */
    return x.integer > y.integer ? (double)((uint64_t)x.integer - (uint64_t)y.integer)
                                 : (double)((uint64_t)y.integer - (uint64_t)x.integer);
}

static wf_status compare_values(comparison *c, wf_h5 *file, const char *name, const wf_h5_info *a, const wf_h5_info *b)
{
    const int64_t n = a->empty ? 0 : wf_shape_count(a->shape);
    const bool is_float = wf_dtype_is_float(a->dtype);
    int64_t different = 0;
    double difference = 0, norm = 0, most = 0;
    number *x = numbers_of(file, name, a), *y = numbers_of(c->other, name, b);
    for (int64_t i = 0; i < n && x && y; i++) {
        bool same;
        const double d = distance_of(x[i], y[i], is_float, &same);
        different += !same;
        difference = hypot(difference, d);
        norm = hypot(norm, is_float ? x[i].real : (double)x[i].integer);
        most = d > most || isnan(d) ? d : most;
    }
    const bool read = x && y;
    free(x);
    free(y);
    WF_CHECK(read, wf_error_code(), "%s", wf_error_message());
    if (different > 0) {
        c->different++;
        printf("%-48s differs: norm %.6g of %.6g, most %.6g, %lld of %lld elements\n", name, difference, norm, most,
               (long long)different, (long long)n);
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
    for (int i = 0; i < 2; i++)
        if (wf_h5_close(file[i]) != WF_OK)
            code = 2;
    return code;
}

/* --- verify ------------------------------------------------------------------------------------------------------- */

static wf_status read_all(void *user, wf_h5 *file, const char *name)
{
    wf_h5_info info;
    int64_t *sets = user;
    WF_TRY(wf_h5_stat(file, name, &info));
    number *values = numbers_of(file, name, &info);
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

/* A file that begins as HDF5 files do: what is wrong with it then is damage. */
static bool is_hdf5(int file)
{
    static const char mark[8] = "\x89HDF\r\n\x1a\n";
    char begin[sizeof mark];
    return pread(file, begin, sizeof begin, 0) == (ssize_t)sizeof begin && memcmp(begin, mark, sizeof mark) == 0;
}

/* A file without the end of a checkpoint, and why: all of it shall be readable, and it shall be no checkpoint, as its
 * attribute says. */
static wf_status read_without_sums(const char *path, const char *why, int64_t *sets)
{
    char kind[64];
    wf_h5 *h5 = wf_h5_open(path);
    WF_NEED(h5);
    wf_status status = wf_h5_get_text(h5, NULL, "weft", kind, sizeof kind);
    if (status == WF_OK && strncmp(kind, "checkpoint", strlen("checkpoint")) == 0)
        status = WF_RAISE(WF_ERR_FORMAT, "%s", why);
    if (status == WF_OK)
        status = wf_h5_each(h5, read_all, sets);
    const wf_status closed = wf_h5_close(h5);
    return status == WF_OK ? closed : status;
}

static int verify_without_sums(const char *path, bool hdf5, const char *why)
{
    int64_t sets = 0;
    const wf_status status = read_without_sums(path, why, &sets);
    if (status == WF_OK) {
        printf("%s: no checkpoint: there are no sums; %lld data sets can be read\n", path, (long long)sets);
        return 0;
    }
    if (!hdf5 || status == WF_ERR_MEMORY || status == WF_ERR_IO)
        return complain();
    printf("%s\n", wf_error_message());
    return 1;
}

static int command_verify(const char *path)
{
    wf_manifest m = {0};
    int code;
    /* Without O_NONBLOCK a pipe would be waited for; wf_h5_open says then that it is one. */
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && wf_manifest_read(file, path, &m) == WF_OK) {
        code = verify_blocks(file, path, &m);
    } else {
        char why[512];
        snprintf(why, sizeof why, "%s", file < 0 ? "" : wf_error_message());
        code = verify_without_sums(path, file >= 0 && is_hdf5(file), why);
    }
    wf_manifest_free(&m);
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
    const bool asked = argc == 2 && strcmp(command, "--help") == 0;
    fprintf(asked ? stdout : stderr, "usage: wf-h5 ls FILE | show FILE [NAME] | diff FILE FILE | verify FILE\n");
    return asked ? 0 : 2;
}
