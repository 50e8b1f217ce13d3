/* Transforms of the image plane: flip, crop, resize. Random ones depend on seed, epoch and the number of the sample,
 * never on the rank. */
#include "datasets/dataset_author.h"
#include "datasets/datasets_impl.h"
#include "datasets/transforms.h"

#include <stdlib.h>
#include <string.h>

typedef struct space {
    bool middle;                /* of crop: no random place */
    int64_t pad, height, width; /* of crop and resize; 0: the sample's own */
    uint64_t stream;
} space;

/* The shape of samples is known when the data set below is open, not before. */
static wf_status space_open(wf_dataset *dataset)
{
    space *s = dataset->state;
    const wf_shape shape = dataset->inner->info.shape;
    char text[WF_SHAPE_TEXT];
    WF_CHECK(shape.rank == 3, WF_ERR_SHAPE, "%s: samples of shape %s: should be [C,H,W]", dataset->kind->name,
             wf_shape_text(shape, text));
    s->stream = wf_dataset_stream(dataset);
    s->height = s->height ? s->height : shape.dim[1];
    s->width = s->width ? s->width : shape.dim[2];
    dataset->info.shape = WF_SHAPE(shape.dim[0], s->height, s->width);
    return WF_OK;
}

static wf_dataset *space_new(wf_dataset *inner, const wf_dataset_kind *kind, space settings)
{
    /* A bound far above any image keeps sums of sides from overflowing. */
    const int64_t most = 1 << 20;
    if (inner && (settings.pad < 0 || settings.height < 0 || settings.width < 0 || settings.pad > most ||
                  settings.height > most || settings.width > most)) {
        wf_dataset_free(inner);
        WF_FAIL_NULL(WF_ERR_ARGUMENT, "%s: %lld x %lld pixels, pad %lld", kind->name, (long long)settings.height,
                     (long long)settings.width, (long long)settings.pad);
    }
    wf_dataset *dataset = wf_dataset_new(inner ? inner->ctx : NULL, kind, inner, sizeof(space));
    if (dataset)
        *(space *)dataset->state = settings;
    return dataset;
}

/* Four random words of this sample in this epoch: all that a transform draws, so threads may read in any order. */
static void draw_words(const space *s, const wf_sample_key *key, uint32_t word[4])
{
    wf_philox(key->seed, s->stream, (uint64_t)key->epoch, (uint64_t)key->sample, word);
}

static wf_status flip_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const space *s = dataset->state;
    const wf_shape shape = dataset->info.shape;
    const size_t size = wf_dtype_size(dataset->info.dtype), width = (size_t)shape.dim[2];
    uint32_t word[4];
    draw_words(s, key, word);
    /* The highest bit decides; an unflipped sample goes straight to its place. */
    if (word[0] >> 31 == 0)
        return wf_dataset_read(dataset->inner, index, key, x, label);
    void *sample;
    WF_TRY(wf_dataset_read_inner(dataset, index, key, &sample, label));
    for (int64_t row = 0; row < shape.dim[0] * shape.dim[1]; row++) {
        const char *in = (const char *)sample + (size_t)row * width * size;
        char *out = (char *)x + (size_t)row * width * size;
        for (size_t w = 0; w < width; w++)
            memcpy(out + w * size, in + (width - 1 - w) * size, size);
    }
    wf_dataset_give_room(dataset, sample);
    return WF_OK;
}

static const wf_dataset_kind flip_kind = {
    .name = "random_flip",
    .open = space_open,
    .read = flip_read,
    .concurrent = true,
};

wf_dataset *wf_transform_random_flip(wf_dataset *inner)
{
    return space_new(inner, &flip_kind, (space){0});
}

/* A crop of the padded sample must fit into it. */
static wf_status crop_open(wf_dataset *dataset)
{
    WF_TRY(space_open(dataset));
    const space *s = dataset->state;
    const wf_shape shape = dataset->inner->info.shape;
    WF_CHECK(s->height <= shape.dim[1] + 2 * s->pad && s->width <= shape.dim[2] + 2 * s->pad, WF_ERR_SHAPE,
             "%s: %lld x %lld pixels of samples of %lld x %lld, padded by %lld", dataset->kind->name,
             (long long)s->height, (long long)s->width, (long long)shape.dim[1], (long long)shape.dim[2],
             (long long)s->pad);
    return WF_OK;
}

/* A start in [0, room], of one random word. */
static int64_t below(uint32_t word, int64_t room)
{
    /* Multiply and shift instead of a remainder: the bias is below room / 2^32. */
    return (int64_t)((uint64_t)word * (uint64_t)(room + 1) >> 32);
}

/* The window of a whole sample that these random words choose. */
static void copy_window(const wf_dataset *dataset, const uint32_t word[4], const void *sample, void *x)
{
    const space *s = dataset->state;
    const wf_shape in = dataset->inner->info.shape;
    const size_t size = wf_dtype_size(dataset->info.dtype);
    const int64_t rows = in.dim[1] + 2 * s->pad - s->height, columns = in.dim[2] + 2 * s->pad - s->width;
    const int64_t top = (s->middle ? rows / 2 : below(word[0], rows)) - s->pad;
    const int64_t left = (s->middle ? columns / 2 : below(word[1], columns)) - s->pad;
    const int64_t from = left < 0 ? -left : 0; /* columns [from, to) of the window lie on the sample */
    const int64_t to = in.dim[2] - left < s->width ? in.dim[2] - left : s->width;
    /* What the window shows beside the sample is zero. Rows and columns beside the sample were padding. */
    memset(x, 0, wf_dataset_sample_bytes(dataset));
    if (from >= to)
        return;
    for (int64_t c = 0; c < in.dim[0]; c++)
        for (int64_t h = 0; h < s->height; h++) {
            const int64_t row = top + h;
            if (row < 0 || row >= in.dim[1])
                continue;
            const char *source =
                (const char *)sample + (size_t)((c * in.dim[1] + row) * in.dim[2] + left + from) * size;
            memcpy((char *)x + (size_t)((c * s->height + h) * s->width + from) * size, source,
                   (size_t)(to - from) * size);
        }
}

static wf_status crop_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    uint32_t word[4];
    void *sample;
    WF_TRY(wf_dataset_read_inner(dataset, index, key, &sample, label));
    draw_words(dataset->state, key, word);
    copy_window(dataset, word, sample, x);
    wf_dataset_give_room(dataset, sample);
    return WF_OK;
}

static const wf_dataset_kind crop_kind = {
    .name = "random_crop",
    .open = crop_open,
    .read = crop_read,
    .concurrent = true,
};

wf_dataset *wf_transform_random_crop(wf_dataset *inner, int64_t pad, int64_t height, int64_t width)
{
    return space_new(inner, &crop_kind, (space){.pad = pad, .height = height, .width = width});
}

static const wf_dataset_kind middle_kind = {
    .name = "centre_crop",
    .open = crop_open,
    .read = crop_read,
    .concurrent = true,
};

wf_dataset *wf_transform_centre_crop(wf_dataset *inner, int64_t pad, int64_t height, int64_t width)
{
    return space_new(inner, &middle_kind, (space){.middle = true, .pad = pad, .height = height, .width = width});
}

/* Planes are interpolated as bytes or floats; other types have no resize. */
static wf_status resize_open(wf_dataset *dataset)
{
    const wf_dtype dtype = dataset->inner->info.dtype;
    WF_CHECK(dtype == WF_U8 || dtype == WF_F32, WF_ERR_DTYPE, "resize: samples of type %s: should be u8 or f32",
             wf_dtype_name(dtype));
    WF_TRY(space_open(dataset));
    const wf_shape shape = dataset->inner->info.shape;
    WF_CHECK(wf_shape_count(shape) > 0, WF_ERR_SHAPE, "resize: samples without pixels");
    return WF_OK;
}

static wf_status resize_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const space *s = dataset->state;
    const wf_shape in = dataset->inner->info.shape;
    const wf_dtype dtype = dataset->info.dtype;
    /* Nothing to do for samples of that size. */
    if (wf_shape_equal(in, dataset->info.shape))
        return wf_dataset_read(dataset->inner, index, key, x, label);
    void *sample;
    WF_TRY(wf_dataset_read_inner(dataset, index, key, &sample, label));
    const size_t from = (size_t)(in.dim[1] * in.dim[2]) * wf_dtype_size(dtype);
    const size_t to = (size_t)(s->height * s->width) * wf_dtype_size(dtype);
    wf_status status = WF_OK;
    for (size_t c = 0; c < (size_t)in.dim[0] && status == WF_OK; c++)
        status = wf_plane_resize(dtype, (const char *)sample + c * from, in.dim[1], in.dim[2], (char *)x + c * to,
                                 s->height, s->width);
    wf_dataset_give_room(dataset, sample);
    return status;
}

static const wf_dataset_kind resize_kind = {
    .name = "resize",
    .open = resize_open,
    .read = resize_read,
    .concurrent = true,
};

wf_dataset *wf_transform_resize(wf_dataset *inner, int64_t height, int64_t width)
{
    return space_new(inner, &resize_kind, (space){.height = height, .width = width});
}
