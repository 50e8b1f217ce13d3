/* The IDX format of MNIST, plain or gzip: header, types and bounds are checked before memory is taken. mnist.c uses it
 * for its files, wf_idx for any others. */
#include "datasets/datasets_impl.h"
#include "datasets/readers.h"

#include <stdlib.h>
#include <string.h>

typedef struct idx_header {
    wf_dtype dtype;
    int rank;
    int64_t dim[WF_MAX_RANK];
    uint64_t elements;
    uint64_t total; /* bytes of the whole file */
} idx_header;

static uint32_t big_endian(const unsigned char *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Codes of the format; 0x09 and 0x0B, i8 and i16, have no type of ours. */
static bool idx_type(unsigned char code, wf_dtype *dtype)
{
    switch (code) {
    case 0x08:
        *dtype = WF_U8;
        return true;
    case 0x0C:
        *dtype = WF_I32;
        return true;
    case 0x0D:
        *dtype = WF_F32;
        return true;
    case 0x0E:
        *dtype = WF_F64;
        return true;
    default:
        return false;
    }
}

/* The fourth byte is the rank, the third the type. */
static wf_status read_header(wf_data_file *file, idx_header *header)
{
    unsigned char magic[4], dims[4 * WF_MAX_RANK];
    WF_TRY(wf_data_file_read(file, magic, sizeof magic, sizeof magic));
    WF_CHECK(magic[0] == 0 && magic[1] == 0, WF_ERR_FORMAT,
             "%s: not an IDX file: begins with 0x%08x, should be 0x0000 and a type and a rank", file->path,
             (unsigned)big_endian(magic));
    WF_CHECK(idx_type(magic[2], &header->dtype), WF_ERR_FORMAT,
             "%s: IDX type 0x%02x: should be 0x08 (u8), 0x0c (i32), 0x0d (f32) or 0x0e (f64)", file->path, magic[2]);
    /* A sample has the rank less one, and IDX has one dimension of samples. */
    WF_CHECK(magic[3] >= 1 && magic[3] < WF_MAX_RANK, WF_ERR_FORMAT, "%s: IDX rank %d: should be 1 to %d", file->path,
             magic[3], WF_MAX_RANK - 1);
    header->rank = magic[3];
    const size_t head = 4 + 4 * (size_t)header->rank;
    WF_TRY(wf_data_file_read(file, dims, head - 4, head));
    /* The product of dimensions from a file may exceed 64 bits, also where one of them is 0; 16 leaves room for the
     * largest element and the header. What is left of it: */
    uint64_t most = INT64_MAX / 16;
    header->elements = 1;
    for (int d = 0; d < header->rank; d++) {
        header->dim[d] = big_endian(dims + 4 * d);
        WF_CHECK(most >= (uint64_t)header->dim[d], WF_ERR_FORMAT, "%s: impossible IDX dimensions: %lld at dimension %d",
                 file->path, (long long)header->dim[d], d);
        most /= header->dim[d] ? (uint64_t)header->dim[d] : 1;
        header->elements *= (uint64_t)header->dim[d];
    }
    header->total = head + header->elements * wf_dtype_size(header->dtype);
    WF_TRY(wf_data_file_expect(file, header->total));
    return WF_OK;
}

/* Elements are big endian in the file. Reversed in place, byte by byte. */
static void to_host_order(unsigned char *data, uint64_t elements, size_t size)
{
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || size == 1)
        return;
    for (uint64_t i = 0; i < elements; i++, data += size)
        for (size_t b = 0; b < size / 2; b++) {
            const unsigned char t = data[b];
            data[b] = data[size - 1 - b];
            data[size - 1 - b] = t;
        }
}

static wf_status read_elements(wf_data_file *file, const idx_header *header, void *data)
{
    const size_t size = wf_dtype_size(header->dtype);
    WF_TRY(wf_data_file_read(file, data, (size_t)header->elements * size, header->total));
    /* Bytes behind the elements mean that the header does not belong to them. */
    WF_TRY(wf_data_file_end(file));
    to_host_order(data, header->elements, size);
    return WF_OK;
}

static wf_status load_samples(wf_ctx *ctx, const char *path, bool labels, wf_rows *rows, wf_dataset_info *info)
{
    wf_status status;
    wf_data_file file;
    idx_header header;
    WF_TRY_OUT(wf_data_file_open(&file, path));
    WF_TRY_OUT(read_header(&file, &header));
    const wf_shape sample =
        /* Images of MNIST have no dimension for their one channel; layers expect it. */
        header.rank == 3 ? WF_SHAPE(1, header.dim[1], header.dim[2]) : wf_shape_make(header.rank - 1, header.dim + 1);
    const size_t bytes = (size_t)wf_shape_count(sample) * wf_dtype_size(header.dtype);
    *info = (wf_dataset_info){.count = header.dim[0], .dtype = header.dtype, .shape = sample, .labels = labels};
    if (bytes == 0 && header.dim[0] > 0) { /* labels would take memory that this file does not explain */
        status = WF_RAISE(WF_ERR_FORMAT, "%s: %lld samples without elements", path, (long long)header.dim[0]);
        goto out;
    }
    /* Memory only now, when the file has been found long enough. */
    WF_TRY_OUT(wf_rows_alloc(ctx, path, rows, header.dim[0], bytes, labels));
    WF_TRY_OUT(read_elements(&file, &header, rows->x));
out:
    wf_data_file_close(&file);
    return status;
}

/* Without a number of classes from the caller it is one more than the largest label. */
static wf_status check_labels(const char *path, int64_t classes, const wf_rows *rows, wf_dataset_info *info)
{
    info->classes = classes;
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t label = rows->labels[i];
        WF_TRY(wf_label_check(WF_ERR_FORMAT, path, label, i, classes));
        if (label >= info->classes)
            info->classes = label + 1;
    }
    return WF_OK;
}

static wf_status load_labels(const char *path, const char *images, wf_rows *rows)
{
    wf_status status;
    wf_data_file file;
    idx_header header;
    WF_TRY_OUT(wf_data_file_open(&file, path));
    WF_TRY_OUT(read_header(&file, &header));
    if (header.rank != 1 || (header.dtype != WF_U8 && header.dtype != WF_I32)) {
        status = WF_RAISE(WF_ERR_FORMAT, "%s: labels of rank %d and type %s: should be rank 1, u8 or i32", path,
                          header.rank, wf_dtype_name(header.dtype));
        goto out;
    }
    if (header.dim[0] != rows->count) {
        status = WF_RAISE(WF_ERR_FORMAT, "%s: %lld labels for the %lld samples of %s", path, (long long)header.dim[0],
                          (long long)rows->count, images);
        goto out;
    }
    /* Read into the place of the i64 values, which is larger, and widened from the end, so that none is overwritten
     * before it is read. */
    WF_TRY_OUT(read_elements(&file, &header, rows->labels));
    for (int64_t i = rows->count - 1; i >= 0; i--) {
        const unsigned char *raw = (const unsigned char *)rows->labels;
        int32_t wide = header.dtype == WF_U8 ? raw[i] : 0;
        if (header.dtype == WF_I32)
            memcpy(&wide, raw + 4 * i, sizeof wide);
        rows->labels[i] = wide;
    }
out:
    wf_data_file_close(&file);
    return status;
}

/* Opened for each data set; the rows are whole in memory afterwards. */
wf_status wf_idx_load(wf_ctx *ctx, const char *images, const char *labels, int64_t classes, wf_rows *rows,
                      wf_dataset_info *info)
{
    WF_TRY(load_samples(ctx, images, labels != NULL, rows, info));
    if (!labels)
        return WF_OK;
    WF_TRY(load_labels(labels, images, rows));
    WF_TRY(check_labels(labels, classes, rows, info));
    return WF_OK;
}

typedef struct idx {
    wf_rows rows;
    char *images, *labels;
} idx;

static wf_status idx_open(wf_dataset *dataset)
{
    idx *state = dataset->state;
    WF_TRY(wf_idx_load(dataset->ctx, state->images, state->labels, 0, &state->rows, &dataset->info));
    return WF_OK;
}

static void idx_free(wf_dataset *dataset)
{
    idx *state = dataset->state;
    free(state->images);
    free(state->labels);
    wf_rows_free(&state->rows);
}

static const wf_dataset_kind idx_kind = {
    .name = "idx",
    .open = idx_open,
    .read = wf_rows_read,
    .read_box = wf_rows_read_box,
    .free = idx_free,
    .concurrent = true,
};

wf_dataset *wf_idx(wf_ctx *ctx, const char *images_path, const char *labels_path)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(images_path, WF_ERR_ARGUMENT, "idx: no path of the samples");
    wf_dataset *dataset = wf_dataset_new(ctx, &idx_kind, NULL, sizeof(idx));
    if (!dataset)
        return NULL;
    idx *state = dataset->state;
    state->images = wf_strdup(ctx, images_path);
    state->labels = labels_path ? wf_strdup(ctx, labels_path) : NULL;
    if (!state->images || (labels_path && !state->labels)) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}
