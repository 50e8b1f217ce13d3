/* wf-data: converts data sets to HDF5 files that wf_hdf5_dataset and any other reader of HDF5 take. Exit code 0: the
 * file is whole; 1: it could not be made, and nothing is left of it; 2: the command is wrong. */
#include "comm/file_author.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tools/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: wf-data FORMAT INPUT... -o FILE.h5 [options]\n"
    "       wf-data ls FILE.nc\n"
    "\n"
    "Converts a data set to HDF5: samples as \"x\" [count, sample...], labels as \"labels\" [count] (i64), and the "
    "number of\n"
    "classes as the attribute \"classes\".\n"
    "\n"
    "  idx IMAGES [LABELS]  files of the IDX format, plain or gzip\n"
    "  mnist DIR            MNIST or Fashion-MNIST by the standard names\n"
    "  cifar10 DIR          CIFAR's binary files\n"
    "  cifar100 DIR         the same; the fine labels\n"
    "  catalogue DIR        message catalogues (*.mo): pairs of sentences\n"
    "  folder DIR           PNG and JPEG files; subfolders, in the order of their names, are the classes\n"
    "  netcdf FILE          fields of a netCDF file, as --variables says\n"
    "  ls FILE              prints the variables of a netCDF file: names, types, shapes, dimensions\n"
    "\n"
    "  -o FILE.h5        the file to make; an existing HDF5 file is replaced when the new one is whole\n"
    "  --test            the test set instead of the training set (mnist, cifar10, cifar100, catalogue)\n"
    "  --variables LIST  netcdf: names with commas between them; TEMP[0:3] for the first three levels\n"
    "  --frames N        netcdf: times in a sample; default 1\n"
    "  --ahead N         netcdf: times from one frame of a sample to the next; default 1\n"
    "  --time NAME       netcdf: the dimension that is time; default: unlimited, or with units since a date\n"
    "  --mask            netcdf: as many channels more, which say where values are there\n"
    "  --channels N      1 (grey) to 4 (RGBA); default: folder 3, others as they are\n"
    "  --resize HxW      pixels of every image; default: folder: those of the first image, others as they are\n"
    "  --crop HxW        the middle of every image, after --resize\n"
    "  --compress LEVEL  gzip 1 to 9, in chunks; default 0: not compressed, contiguous, which is read fastest\n"
    "  --chunk N         samples in a chunk; default: as many as fit into 256 KiB\n"
    "  --only A:B        samples A to B - 1 alone, to make several files\n"
    "  --help            this text\n";

typedef struct settings {
    const char *format, *input[2], *out;
    wf_netcdf_opts fields;
    int inputs;
    wf_dataset_split split;
    int64_t channels, height, width, crop_height, crop_width, level, chunk, first, last;
} settings;

static int wrong(const char *what, const char *value)
{
    fprintf(stderr, "wf-data: %s%s%s; wf-data --help says what there is\n", what, value ? " " : "", value ? value : "");
    return 2;
}

/* --- The command -------------------------------------------------------------------------------------------------- */

/* "A" or, where `mark` is given, "A<mark>B", each in [least, most]. */
static bool read_numbers(const char *text, char mark, int64_t least, int64_t most, int64_t *a, int64_t *b)
{
    if (!mark)
        return number_whole(text, least, most, a);
    return number_next(&text, least, most, a) && *text == mark && number_whole(text + 1, least, most, b);
}

/* An option with a number, or with two of them and a mark in between. */
typedef struct number_option {
    const char *name;
    char mark; /* '\0': one number */
    int64_t least, most, *a, *b;
} number_option;

static int wrong_number(const number_option *o, const char *value)
{
    char should[128];
    const long long least = (long long)o->least, most = (long long)o->most;
    if (o->mark == ':')
        snprintf(should, sizeof should, "A:B, whole numbers of which B is the larger one");
    else if (o->mark)
        snprintf(should, sizeof should, "HxW, each from %lld to %lld", least, most);
    else
        snprintf(should, sizeof should, "a whole number from %lld to %lld", least, most);
    fprintf(stderr, "wf-data: %s %s: should be %s\n", o->name, value, should);
    return 2;
}

/* 0, or the exit code. */
static int read_text(const char *name, const char *value, const char *should, const char **text)
{
    *text = value;
    if (*value)
        return 0;
    fprintf(stderr, "wf-data: %s is empty; should be %s\n", name, should);
    return 2;
}

/* 0, or the exit code. `value` is NULL where the command ends. */
static int read_option(settings *s, const char *name, const char *value)
{
    const int64_t side = (1 << 20) - 1;
    const struct {
        const char *name, *should, **text;
    } texts[] = {{"-o", "the name of a file", &s->out},
                 {"--variables", "names with commas between them", &s->fields.variables},
                 {"--time", "the name of a dimension", &s->fields.time}};
    const number_option numbers[] = {
        {"--frames", '\0', 1, side, &s->fields.frames, NULL},
        {"--ahead", '\0', 1, side, &s->fields.ahead, NULL},
        {"--channels", '\0', 1, 4, &s->channels, NULL},
        {"--resize", 'x', 1, side, &s->height, &s->width},
        {"--crop", 'x', 1, side, &s->crop_height, &s->crop_width},
        {"--compress", '\0', 0, 9, &s->level, NULL},
        {"--chunk", '\0', 1, (int64_t)1 << 31, &s->chunk, NULL},
        {"--only", ':', 0, INT64_MAX / 2, &s->first, &s->last},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(name, texts[i].name) == 0)
            return value ? read_text(name, value, texts[i].should, texts[i].text) : wrong(name, "has no value");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const number_option *o = &numbers[i];
        if (strcmp(name, o->name) != 0)
            continue;
        if (!value)
            return wrong(name, "has no value");
        const bool is = read_numbers(value, o->mark, o->least, o->most, o->a, o->b);
        return is && (o->mark != ':' || *o->b > *o->a) ? 0 : wrong_number(o, value);
    }
    return wrong("there is no option", name);
}

/* 0, or the exit code. */
static int read_command(int argc, char **argv, settings *s)
{
    *s = (settings){.last = INT64_MAX, .format = argc > 1 ? argv[1] : ""};
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--test") == 0) {
            s->split = WF_TEST_SET;
        } else if (strcmp(argv[i], "--mask") == 0) {
            s->fields.mask = true;
        } else if (*argv[i] == '-') {
            const int code = read_option(s, argv[i], argv[i + 1]); /* argv[argc] is NULL */
            if (code)
                return code;
            i++;
        } else if (s->inputs == 2) {
            return wrong("too many inputs:", argv[i]);
        } else {
            s->input[s->inputs++] = argv[i];
        }
    }
    const bool idx = strcmp(s->format, "idx") == 0;
    if (s->inputs < 1 || (s->inputs == 2 && !idx))
        return wrong(s->inputs ? "one input is enough for" : "there is no input of", s->format);
    if (strcmp(s->format, "ls") == 0)
        return argc > 3 ? wrong("options make no sense for", s->format) : 0;
    if (!s->out)
        return wrong("there is no -o FILE.h5", NULL);
    const wf_netcdf_opts *f = &s->fields;
    const bool netcdf = strcmp(s->format, "netcdf") == 0;
    if (netcdf && !f->variables)
        return wrong("there are no --variables of", s->input[0]);
    if (!netcdf && (f->variables || f->time || f->frames || f->ahead || f->mask))
        return wrong("options of netcdf make no sense for", s->format);
    const bool has_test =
        strcmp(s->format, "mnist") == 0 || strncmp(s->format, "cifar", 5) == 0 || strcmp(s->format, "catalogue") == 0;
    return s->split == WF_TEST_SET && !has_test ? wrong("--test makes no sense for", s->format) : 0;
}

/* The data set that the command names, resized; NULL with an error recorded, or none where there is no such format. */
static wf_dataset *input_of(wf_ctx *ctx, const settings *s)
{
    wf_dataset *d = NULL;
    if (strcmp(s->format, "folder") == 0)
        return wf_image_folder(ctx, s->input[0],
                               (wf_image_folder_opts){.height = s->height, .width = s->width, .channels = s->channels});
    if (strcmp(s->format, "idx") == 0)
        d = wf_idx(ctx, s->input[0], s->input[1]);
    else if (strcmp(s->format, "mnist") == 0)
        d = wf_mnist(ctx, s->input[0], s->split);
    else if (strcmp(s->format, "cifar10") == 0)
        d = wf_cifar10(ctx, s->input[0], s->split);
    else if (strcmp(s->format, "cifar100") == 0)
        d = wf_cifar100(ctx, s->input[0], s->split);
    else if (strcmp(s->format, "catalogue") == 0)
        d = wf_catalogue(ctx, (wf_catalogue_opts){.path = s->input[0]}, s->split);
    else if (strcmp(s->format, "netcdf") == 0)
        d = wf_netcdf_dataset(ctx, s->input[0], s->fields);
    if (s->channels)
        d = wf_transform_channels(d, s->channels);
    return s->height ? wf_transform_resize(d, s->height, s->width) : d;
}

/* --- The file ----------------------------------------------------------------------------------------------------- */

/* One conversion: samples [first, first + count) of `from`, the elements of `box`. */
typedef struct conversion {
    const settings *s;
    wf_dataset *from;
    wf_h5 *file;
    wf_box box;
    wf_shape shape; /* of "x" */
    int64_t first, round;
    size_t sample_bytes;
    unsigned char *x;
    int64_t *labels;
} conversion;

static wf_status middle(const settings *s, wf_shape sample, wf_box *box)
{
    char text[WF_SHAPE_TEXT];
    *box = wf_box_of_shape(sample);
    if (!s->crop_height)
        return WF_OK;
    WF_CHECK(sample.rank == 3 && s->crop_height <= sample.dim[1] && s->crop_width <= sample.dim[2], WF_ERR_ARGUMENT,
             "--crop %lldx%lld of samples %s: should be images that are at least as large", (long long)s->crop_height,
             (long long)s->crop_width, wf_shape_text(sample, text));
    box->lo[1] = (sample.dim[1] - s->crop_height) / 2;
    box->lo[2] = (sample.dim[2] - s->crop_width) / 2;
    box->hi[1] = box->lo[1] + s->crop_height;
    box->hi[2] = box->lo[2] + s->crop_width;
    return WF_OK;
}

static wf_status plan(conversion *c)
{
    const wf_dataset_info *info = &c->from->info;
    const settings *s = c->s;
    const int64_t last = s->last < info->count ? s->last : info->count;
    WF_TRY(middle(s, info->shape, &c->box));
    WF_CHECK(s->first < last, WF_ERR_ARGUMENT, "there are %lld samples: none from %lld on", (long long)info->count,
             (long long)s->first);
    WF_CHECK(info->shape.rank < WF_MAX_RANK, WF_ERR_SHAPE, "samples have rank %d: should be below %d", info->shape.rank,
             WF_MAX_RANK);
    c->first = s->first;
    const wf_shape sample = wf_box_shape(c->box);
    int64_t dim[WF_MAX_RANK] = {last - s->first};
    memcpy(dim + 1, sample.dim, (size_t)sample.rank * sizeof *dim);
    c->shape = wf_shape_make(sample.rank + 1, dim);
    c->sample_bytes = (size_t)wf_shape_count(sample) * wf_dtype_size(info->dtype);
    WF_CHECK(c->sample_bytes > 0, WF_ERR_SHAPE, "samples have no elements");
    return WF_OK;
}

/* Samples that lie within these bytes, at least one and at most all. */
static int64_t samples_in(const conversion *c, size_t bytes)
{
    const int64_t n = (int64_t)(bytes / c->sample_bytes);
    return n < 1 ? 1 : n < c->shape.dim[0] ? n : c->shape.dim[0];
}

static wf_status lay_out(conversion *c)
{
    const wf_dataset_info *info = &c->from->info;
    const settings *s = c->s;
    char text[24];
    c->round = samples_in(c, (size_t)8 << 20);
    if (s->level || s->chunk) {
        wf_shape chunk = c->shape;
        chunk.dim[0] = s->chunk ? s->chunk < chunk.dim[0] ? s->chunk : chunk.dim[0] : samples_in(c, (size_t)256 << 10);
        WF_TRY(wf_h5_add_chunked(c->file, "x", info->dtype, c->shape, chunk, (int)s->level));
        c->round = (c->round + chunk.dim[0] - 1) / chunk.dim[0] * chunk.dim[0]; /* every chunk is written once */
    } else {
        WF_TRY(wf_h5_add(c->file, "x", info->dtype, c->shape));
    }
    if (!info->labels)
        return WF_OK;
    WF_TRY(wf_h5_add(c->file, "labels", WF_I64, WF_SHAPE(c->shape.dim[0])));
    snprintf(text, sizeof text, "%lld", (long long)info->classes);
    return info->classes > 0 ? wf_h5_set_text(c->file, NULL, "classes", text) : WF_OK;
}

static wf_status write_round(conversion *c, int64_t at, int64_t n)
{
    wf_box x = wf_box_of_shape(c->shape), labels = {.rank = 1, .lo = {at}, .hi = {at + n}};
    for (int64_t i = 0; i < n; i++)
        WF_TRY(wf_dataset_read_box(c->from, c->first + at + i, &(wf_sample_key){0}, &c->box,
                                   c->x + (size_t)i * c->sample_bytes, c->labels + i));
    x.lo[0] = at;
    x.hi[0] = at + n;
    WF_TRY(wf_h5_write(c->file, "x", x, c->x));
    return c->from->info.labels ? wf_h5_write(c->file, "labels", labels, c->labels) : WF_OK;
}

static wf_status write_all(conversion *c)
{
    const int64_t count = c->shape.dim[0];
    WF_TRY(lay_out(c));
    c->x = malloc((size_t)c->round * c->sample_bytes);
    c->labels = malloc((size_t)c->round * sizeof *c->labels);
    WF_CHECK(c->x && c->labels, WF_ERR_MEMORY, "no memory for %lld samples", (long long)c->round);
    for (int64_t at = 0; at < count; at += c->round)
        WF_TRY(write_round(c, at, c->round < count - at ? c->round : count - at));
    return WF_OK;
}

/* A slip in the order of names would put the new file in the place of the data that it is made of. */
static wf_status check_replaced(const char *target)
{
    static const char signature[] = "\211HDF\r\n\032\n";
    char start[sizeof signature - 1];
    FILE *file = fopen(target, "rb");
    if (!file)
        return WF_OK;
    const size_t n = fread(start, 1, sizeof start, file);
    fclose(file);
    WF_CHECK(n == 0 || (n == sizeof start && memcmp(start, signature, n) == 0), WF_ERR_ARGUMENT,
             "%s: there is a file of this name that is not HDF5; only HDF5 files are replaced", target);
    return WF_OK;
}

/* The file appears under its name when it is whole. */
static wf_status convert(const settings *s, wf_dataset *from)
{
    char target[WF_FILE_PATH], temporary[WF_FILE_PATH];
    conversion c = {.s = s, .from = from};
    WF_TRY(wf_dataset_open(from));
    WF_TRY(plan(&c));
    WF_TRY(wf_file_target(s->out, ".unfinished", target, temporary));
    WF_TRY(check_replaced(target));
    c.file = wf_h5_create(temporary);
    if (!c.file)
        return wf_error_code();
    wf_status status = write_all(&c);
    free(c.x);
    free(c.labels);
    const wf_status closed = wf_h5_close(c.file);
    status = status == WF_OK ? closed : status;
    if (status == WF_OK)
        status = wf_file_commit(temporary, target);
    if (status != WF_OK)
        unlink(temporary);
    return status;
}

static wf_status print_variable(void *user, const char *name, const char *type, wf_shape shape, const char *dimensions)
{
    char text[WF_SHAPE_TEXT];
    printf("%-32s %-5s %-20s %s\n", name, type, wf_shape_text(shape, text), dimensions);
    return WF_OK;
}

static int list_variables(const char *path)
{
    if (wf_netcdf_each(path, print_variable, NULL) == WF_OK)
        return 0;
    fprintf(stderr, "wf-data: %s\n", wf_error_message());
    return 1;
}

int main(int argc, char **argv)
{
    settings s;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return 0;
        }
    const int code = read_command(argc, argv, &s);
    if (code != 0)
        return code;
    if (strcmp(s.format, "ls") == 0)
        return list_variables(s.input[0]);
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    wf_dataset *from = input_of(ctx, &s);
    if (!from && ctx && wf_error_code() == WF_OK) {
        wf_ctx_free(ctx);
        return wrong("there is no format", s.format);
    }
    const wf_status status = from ? convert(&s, from) : wf_error_code();
    if (status != WF_OK)
        fprintf(stderr, "wf-data: %s\n", wf_error_message());
    wf_dataset_free(from);
    wf_ctx_free(ctx);
    return status != WF_OK;
}
