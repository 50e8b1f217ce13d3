/* wf_hdf5_dataset: which files, what is in them, and whether it fits together. Reading is in hdf5_read.c. */
#include "datasets/hdf5.h"

#include "datasets/datasets_impl.h"
#include "datasets/hdf5_impl.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Deflate cannot shrink data by more than this (zlib's technical details). A file that claims more is damaged or
 * malicious, and its shape is not believed. */
static const int64_t most_compression = 1032;

/* --- What is in a file -------------------------------------------------------------------------------------------- */

/* The elements are there: nothing is made of a shape that the file's bytes cannot fill. */
static wf_status check_stored(const wf_hdf5_file *f, const char *name, const wf_h5_info *info)
{
    const int64_t bytes = wf_shape_count(info->shape) * (int64_t)info->size, least = bytes / most_compression;
    const int64_t chunk = info->chunked ? wf_shape_count(info->chunk) * (int64_t)info->size : 0;
    /* Chunks may be compressed; contiguous elements take exactly their bytes. */
    WF_CHECK(info->chunked ? info->stored >= least : info->stored == bytes, WF_ERR_FORMAT,
             "%s: %s should have %lld bytes, of which the file has %lld", f->path, name, (long long)bytes,
             (long long)info->stored);
    WF_CHECK(bytes == 0 || (chunk >= 0 && chunk / most_compression <= info->stored), WF_ERR_FORMAT,
             "%s: a chunk of %s should have %lld bytes, all that is stored has %lld", f->path, name, (long long)chunk,
             (long long)info->stored);
    return WF_OK;
}

/* Only for samples that are read without the library, which checks its own reads. */
static wf_status check_place(const wf_hdf5_file *f, const char *name, const wf_h5_info *info)
{
    struct stat file;
    WF_CHECK(stat(f->path, &file) == 0, WF_ERR_IO, "%s: cannot look at it: %s", f->path, strerror(errno));
    WF_CHECK(info->offset <= file.st_size && info->stored <= file.st_size - info->offset, WF_ERR_FORMAT,
             "%s: %s should end at byte %lld of a file of %lld bytes", f->path, name,
             (long long)info->offset + (long long)info->stored, (long long)file.st_size);
    return WF_OK;
}

static wf_status look_at_samples(const wf_hdf5 *s, wf_hdf5_file *f, wf_h5 *h5)
{
    wf_h5_info *info = &f->info;
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_h5_stat(h5, s->x, info));
    WF_CHECK(!info->empty && info->shape.rank >= 1, WF_ERR_SHAPE, "%s: %s has shape %s: should be [count, sample...]",
             f->path, s->x, info->empty ? "(empty)" : wf_shape_text(info->shape, text));
    const int64_t elements = wf_shape_count(wf_shape_make(info->shape.rank - 1, info->shape.dim + 1));
    WF_CHECK(elements > 0 && elements <= INT64_MAX / 8, WF_ERR_SHAPE,
             "%s: %s has shape %s: samples without elements, or with too many", f->path, s->x,
             wf_shape_text(info->shape, text));
    f->count = info->shape.dim[0];
    WF_TRY(check_stored(f, s->x, info));
    /* Read by pread, without the library and its lock. */
    f->direct = info->contiguous && info->native;
    if (f->direct)
        WF_TRY(check_place(f, s->x, info));
    return WF_OK;
}

/* Samples are like those of the first file. */
static wf_status check_alike(const wf_hdf5 *s, const wf_hdf5_file *f)
{
    const wf_hdf5_file *first = &s->file[0];
    char text[2][WF_SHAPE_TEXT];
    bool same = f->info.shape.rank == first->info.shape.rank;
    for (int d = 1; same && d < f->info.shape.rank; d++)
        same = f->info.shape.dim[d] == first->info.shape.dim[d];
    WF_CHECK(same, WF_ERR_SHAPE, "%s: %s has shape %s, in %s %s: samples should have one shape", f->path, s->x,
             wf_shape_text(f->info.shape, text[0]), first->path, wf_shape_text(first->info.shape, text[1]));
    WF_CHECK(f->info.dtype == first->info.dtype, WF_ERR_DTYPE, "%s: %s is %s, in %s %s: should be one type", f->path,
             s->x, wf_dtype_name(f->info.dtype), first->path, wf_dtype_name(first->info.dtype));
    return WF_OK;
}

/* --- Labels ------------------------------------------------------------------------------------------------------- */

/* One for each sample: [count], or a column [count,1]. */
static bool fits_labels(const wf_h5_info *info, int64_t count)
{
    return !info->empty && info->shape.rank >= 1 && info->shape.dim[0] == count && wf_shape_count(info->shape) == count;
}

/* The labels of the samples before this file are there already. */
static wf_status read_labels(wf_hdf5 *s, const wf_hdf5_file *f, wf_h5 *h5)
{
    const char *name = s->labels_name;
    wf_h5_info info;
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_h5_stat(h5, name, &info));
    WF_CHECK(fits_labels(&info, f->count), WF_ERR_SHAPE, "%s: %s has shape %s for %lld samples: should be [%lld]",
             f->path, name, wf_shape_text(info.shape, text), (long long)f->count, (long long)f->count);
    WF_CHECK(!wf_dtype_is_float(info.dtype), WF_ERR_DTYPE, "%s: %s is %s: labels should be integers", f->path, name,
             wf_dtype_name(info.dtype));
    WF_TRY(check_stored(f, name, &info));
    /* Labels of all files stay in memory: eight bytes a sample, which shuffles read in any order. */
    const size_t count = (size_t)(f->first + f->count) + 1;
    /* One more than needed, so that no file of 0 samples asks for 0 bytes. */
    int64_t *labels = count <= SIZE_MAX / sizeof *labels ? realloc(s->labels, count * sizeof *labels) : NULL;
    WF_CHECK(labels, WF_ERR_MEMORY, "%s: no memory for %zu labels", f->path, count);
    s->labels = labels;
    return wf_h5_read(h5, name, wf_box_of_shape(info.shape), WF_I64, labels + f->first);
}

/* classes 0: not known yet. */
static wf_status check_hdf5_labels(const wf_hdf5 *s, const wf_hdf5_file *f, int64_t classes)
{
    for (int64_t i = 0; i < f->count; i++)
        WF_TRY(wf_label_check(WF_ERR_FORMAT, f->path, s->labels[f->first + i], i, classes));
    return WF_OK;
}

/* What the first file says of the number of classes; 0: nothing. */
static wf_status read_classes(const wf_hdf5_file *f, wf_h5 *h5, int64_t *classes)
{
    char text[24], *end = text;
    WF_TRY(wf_h5_get_text(h5, NULL, "classes", text, sizeof text));
    errno = 0;
    *classes = *text ? strtoll(text, &end, 10) : 0;
    WF_CHECK(*end == '\0' && errno == 0 && (*classes > 0 || !*text), WF_ERR_FORMAT,
             "%s: the attribute classes is no number above 0", f->path);
    return WF_OK;
}

/* --- Opening ------------------------------------------------------------------------------------------------------ */

static wf_status look_at_file(wf_hdf5 *s, wf_hdf5_file *f, wf_h5 *h5, wf_dataset_info *info)
{
    const bool is_first = f == s->file;
    /* Samples of all files are numbered through. */
    f->first = is_first ? 0 : f[-1].first + f[-1].count;
    WF_TRY(look_at_samples(s, f, h5));
    /* Far from the largest number, so that sums of counts and bytes of labels do not overflow. */
    WF_CHECK(f->count <= INT64_MAX / 16 - f->first, WF_ERR_FORMAT, "%s: too many samples", f->path);
    WF_TRY(check_alike(s, f));
    if (is_first) {
        info->labels = *s->labels_name && (s->labels_wanted || wf_h5_has(h5, s->labels_name));
        info->classes = s->given_classes;
    }
    if (!info->labels)
        return WF_OK;
    if (is_first && info->classes == 0)
        WF_TRY(read_classes(f, h5, &info->classes));
    WF_TRY(read_labels(s, f, h5));
    return check_hdf5_labels(s, f, info->classes);
}

static wf_status inspect_file(wf_hdf5 *s, wf_hdf5_file *f, wf_dataset_info *info)
{
    struct stat file;
    WF_CHECK(stat(f->path, &file) == 0, WF_ERR_IO, "%s: cannot open: %s", f->path, strerror(errno));
    WF_CHECK(S_ISREG(file.st_mode), WF_ERR_IO, "%s: cannot open: is not a file", f->path);
    wf_h5 *h5 = wf_h5_open(f->path);
    if (!h5)
        return wf_error_code();
    /* Closed in any case, and the first error is told. */
    const wf_status status = look_at_file(s, f, h5, info), closed = wf_h5_close(h5);
    return status != WF_OK ? status : closed;
}

/* The files that the pattern names; one that exists under exactly this name is that file. */
static wf_status list_files(wf_hdf5 *s)
{
    struct stat info;
    glob_t found = {0};
    /* A name with may exist as it is written; it is then no pattern. */
    const bool literal = stat(s->files, &info) == 0 || !strpbrk(s->files, "*?[");
    char *alone[] = {s->files};
    /* Sorted by name, the same on all ranks. */
    const int failed = literal ? 0 : glob(s->files, GLOB_ERR, NULL, &found);
    if (failed) {
        globfree(&found);
        WF_FAIL(failed == GLOB_NOSPACE ? WF_ERR_MEMORY : WF_ERR_IO, "%s: no file of such a name can be found",
                s->files);
    }
    const size_t n = literal ? 1 : found.gl_pathc;
    bool made = true;
    s->file = calloc(n, sizeof *s->file);
    for (size_t i = 0; s->file && i < n; i++) {
        s->file[i] = (wf_hdf5_file){.fd = -1, .path = strdup(literal ? alone[i] : found.gl_pathv[i])};
        made = made && s->file[i].path;
        s->n_files++;
    }
    globfree(&found);
    WF_CHECK(s->file && made, WF_ERR_MEMORY, "%s: no memory for the names of %zu files", s->files, n);
    return WF_OK;
}

static void forget(wf_hdf5 *s)
{
    wf_hdf5_cache_free(s);
    for (int64_t i = 0; i < s->n_files; i++) {
        wf_hdf5_file_close(s, &s->file[i]);
        free(s->file[i].path);
    }
    free(s->file);
    free(s->labels);
    s->file = NULL;
    s->labels = NULL;
    s->n_files = 0;
}

static wf_status hdf5_open(wf_dataset *dataset)
{
    wf_hdf5 *s = dataset->state;
    wf_dataset_info info = {0};
    forget(s);
    WF_TRY(list_files(s));
    for (int64_t i = 0; i < s->n_files; i++)
        WF_TRY(inspect_file(s, &s->file[i], &info));
    /* glob gives at least one name, or an error. */
    const wf_hdf5_file *last = &s->file[s->n_files - 1];
    const wf_h5_info *x = &s->file[0].info;
    info.count = last->first + last->count;
    info.dtype = x->dtype;
    info.shape = wf_shape_make(x->shape.rank - 1, x->shape.dim + 1);
    /* Without a number of classes it is the largest label and one. */
    for (int64_t i = 0; info.labels && s->given_classes == 0 && i < info.count; i++)
        info.classes = s->labels[i] >= info.classes ? s->labels[i] + 1 : info.classes;
    dataset->info = info;
    return WF_OK;
}

static wf_status hdf5_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                               int64_t *label)
{
    wf_hdf5 *s = dataset->state;
    *label = s->labels ? s->labels[index] : 0;
    return wf_hdf5_read(s, dataset->info.dtype, index, box, x);
}

static wf_status hdf5_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const wf_box whole = wf_box_of_shape(dataset->info.shape);
    return hdf5_read_box(dataset, index, key, &whole, x, label);
}

static void hdf5_free(wf_dataset *dataset)
{
    wf_hdf5 *s = dataset->state;
    forget(s);
    free(s->files);
    free(s->x);
    free(s->labels_name);
}

static const wf_dataset_kind hdf5_kind = {
    .name = "hdf5",
    .open = hdf5_open,
    .read = hdf5_read,
    .read_box = hdf5_read_box,
    .free = hdf5_free,
};

wf_status wf_hdf5_count(const wf_dataset *dataset, wf_hdf5_counters *counters)
{
    WF_NEED(dataset);
    WF_NEED(counters);
    WF_CHECK(dataset->kind == &hdf5_kind, WF_ERR_ARGUMENT, "%s is no hdf5 data set", dataset->kind->name);
    const wf_hdf5 *s = dataset->state;
    *counters = (wf_hdf5_counters){.open_files = s->n_open};
    for (int64_t i = 0; i < s->cache.sets * s->cache.ways; i++)
        counters->cache_bytes += s->cache.block[i].data ? s->cache.block_bytes : 0;
    return WF_OK;
}

wf_dataset *wf_hdf5_dataset(wf_ctx *ctx, const char *files, wf_hdf5_opts opts)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(files && *files, WF_ERR_ARGUMENT, "hdf5: no file");
    WF_CHECK_NULL(opts.classes >= 0, WF_ERR_ARGUMENT, "hdf5: %lld classes", (long long)opts.classes);
    wf_dataset *dataset = wf_dataset_new(ctx, &hdf5_kind, NULL, sizeof(wf_hdf5));
    if (!dataset)
        return NULL;
    wf_hdf5 *s = dataset->state;
    s->files = wf_strdup(ctx, files);
    s->x = wf_strdup(ctx, opts.x ? opts.x : "x");
    s->labels_name = wf_strdup(ctx, opts.labels ? opts.labels : "labels");
    s->labels_wanted = opts.labels != NULL;
    s->given_classes = opts.classes;
    s->budget = opts.cache_bytes ? opts.cache_bytes : (size_t)64 << 20;
    if (!s->files || !s->x || !s->labels_name) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}
