/* Transforms of values: normalise, scale, change of channels. Equal for equal samples: nothing here is random. */
#include "datasets/dataset_author.h"
#include "datasets/transforms.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Each value becomes value * scale[c] + shift[c]. */
typedef struct affine {
    int64_t channels; /* of the arrays */
    double *scale, *shift;
    bool only_u8;
} affine;

/* One value serves all channels, or each has its own. */
static wf_status affine_open(wf_dataset *dataset)
{
    affine *a = dataset->state;
    const wf_dataset_info inner = dataset->inner->info;
    const char *name = dataset->kind->name;
    WF_CHECK(inner.dtype == WF_U8 || (inner.dtype == WF_F32 && !a->only_u8), WF_ERR_DTYPE, "%s: samples of type %s",
             name, wf_dtype_name(inner.dtype));
    /* Samples without dimensions count as one channel. */
    const int64_t channels = inner.shape.rank > 0 ? inner.shape.dim[0] : 1;
    WF_CHECK(a->channels == 1 || a->channels == channels, WF_ERR_SHAPE,
             "%s: values for %lld channels, but the samples have %lld", name, (long long)a->channels,
             (long long)channels);
    dataset->info.dtype = WF_F32;
    return WF_OK;
}

static wf_status affine_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const affine *a = dataset->state;
    const wf_shape shape = dataset->info.shape;
    const int64_t count = wf_shape_count(shape), channels = shape.rank > 0 ? shape.dim[0] : 1;
    /* Bytes are scaled to [0, 1] first, as in torchvision, so means and deviations are of that range. */
    const bool u8 = dataset->inner->info.dtype == WF_U8;
    void *sample;
    WF_TRY(wf_dataset_read_inner(dataset, index, key, &sample, label));
    const int64_t plane = count > 0 ? count / channels : 0;
    float *out = x;
    const uint8_t *bytes = sample;
    const float *floats = sample;
    for (int64_t c = 0; c < channels; c++) {
        /* In double and rounded once, so that scale and shift lose nothing to each other. */
        const double scale = a->scale[a->channels == 1 ? 0 : c], shift = a->shift[a->channels == 1 ? 0 : c];
        for (int64_t i = c * plane; i < (c + 1) * plane; i++)
            out[i] = (float)((u8 ? bytes[i] / 255.0 : (double)floats[i]) * scale + shift);
    }
    wf_dataset_give_room(dataset, sample);
    return WF_OK;
}

/* Also of a transform that was made in part. */
static void affine_free(wf_dataset *dataset)
{
    affine *a = dataset->state;
    free(a->scale);
    free(a->shift);
}

static const wf_dataset_kind normalise_kind = {
    .name = "normalise",
    .open = affine_open,
    .read = affine_read,
    .free = affine_free,
    .concurrent = true,
};

static const wf_dataset_kind scale_kind = {
    .name = "scale",
    .open = affine_open,
    .read = affine_read,
    .free = affine_free,
    .concurrent = true,
};

/* Numbers are set by the caller. */
static wf_dataset *affine_new(wf_dataset *inner, const wf_dataset_kind *kind, int64_t channels)
{
    wf_dataset *dataset = wf_dataset_new(inner ? inner->ctx : NULL, kind, inner, sizeof(affine));
    if (!dataset)
        return NULL;
    affine *a = dataset->state;
    a->channels = channels;
    a->scale = wf_calloc(dataset->ctx, (size_t)channels, sizeof *a->scale);
    a->shift = wf_calloc(dataset->ctx, (size_t)channels, sizeof *a->shift);
    if (!a->scale || !a->shift) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}

static wf_status check_normalise(int64_t channels, const double *mean, const double *std)
{
    WF_CHECK(channels > 0 && mean && std, WF_ERR_ARGUMENT, "normalise: %lld channels%s", (long long)channels,
             mean && std ? "" : " without values");
    for (int64_t c = 0; c < channels; c++)
        WF_CHECK(isfinite(mean[c]) && isfinite(std[c]) && std[c] > 0, WF_ERR_ARGUMENT,
                 "normalise: mean %g and std %g of channel %lld: std should be positive", mean[c], std[c],
                 (long long)c);
    return WF_OK;
}

wf_dataset *wf_transform_normalise(wf_dataset *inner, int64_t channels, const double *mean, const double *std)
{
    if (!inner)
        return NULL;
    if (check_normalise(channels, mean, std) != WF_OK) {
        wf_dataset_free(inner);
        return wf_error_null();
    }
    wf_dataset *dataset = affine_new(inner, &normalise_kind, channels);
    if (!dataset)
        return NULL;
    affine *a = dataset->state;
    for (int64_t c = 0; c < channels; c++) {
        /* (x - mean) / std as one product and one sum. */
        a->scale[c] = 1 / std[c];
        a->shift[c] = -mean[c] / std[c];
    }
    return dataset;
}

wf_dataset *wf_transform_scale(wf_dataset *inner, double lo, double hi)
{
    wf_dataset *dataset = affine_new(inner, &scale_kind, 1);
    if (!dataset)
        return NULL;
    affine *a = dataset->state;
    /* Floats have no known range to map to [lo, hi], unlike u8. */
    a->only_u8 = true;
    a->scale[0] = hi - lo;
    a->shift[0] = lo;
    return dataset;
}

typedef struct channels_state {
    int64_t channels;
} channels_state;

static wf_status channels_open(wf_dataset *dataset)
{
    channels_state *s = dataset->state;
    const wf_shape shape = dataset->inner->info.shape;
    char text[WF_SHAPE_TEXT];
    WF_CHECK(shape.rank == 3, WF_ERR_SHAPE, "channels: samples of shape %s: should be [C,H,W]",
             wf_shape_text(shape, text));
    const wf_dtype dtype = dataset->info.dtype;
    WF_CHECK(dtype == WF_U8 || dtype == WF_F32, WF_ERR_DTYPE, "channels: samples of type %s: should be u8 or f32",
             wf_dtype_name(dtype));
    /* Only what has one usual meaning: grey repeated, colour to luma, alpha dropped. */
    const int64_t from = shape.dim[0], to = s->channels;
    WF_CHECK(from == to || from == 1 || (from == 4 && to == 3) || ((from == 3 || from == 4) && to == 1), WF_ERR_SHAPE,
             "channels: %lld to %lld: can do 1 to n, 3 or 4 to 1, 4 to 3", (long long)from, (long long)to);
    dataset->info.shape = WF_SHAPE(to, shape.dim[1], shape.dim[2]);
    return WF_OK;
}

/* The weights of ITU-R BT.601, which JPEG uses, too. Planes are red, green, blue; alpha is not read. */
static void luma(wf_dtype dtype, const void *in, int64_t plane, void *out)
{
    const uint8_t *b = in;
    const float *f = in;
    for (int64_t i = 0; i < plane; i++)
        if (dtype == WF_U8)
            ((uint8_t *)out)[i] = (uint8_t)lrint(0.299 * b[i] + 0.587 * b[plane + i] + 0.114 * b[2 * plane + i]);
        else
            ((float *)out)[i] =
                (float)(0.299 * (double)f[i] + 0.587 * (double)f[plane + i] + 0.114 * (double)f[2 * plane + i]);
}

static wf_status channels_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const channels_state *s = dataset->state;
    const wf_shape shape = dataset->info.shape;
    const int64_t from = dataset->inner->info.shape.dim[0], plane = shape.dim[1] * shape.dim[2];
    const size_t bytes = (size_t)plane * wf_dtype_size(dataset->info.dtype);
    void *sample;
    WF_TRY(wf_dataset_read_inner(dataset, index, key, &sample, label));
    if (s->channels == 1 && from >= 3)
        luma(dataset->info.dtype, sample, plane, x);
    /* One plane serves all channels of the result, or the first ones are taken. */
    else
        for (int64_t c = 0; c < s->channels; c++)
            memcpy((char *)x + (size_t)c * bytes, (const char *)sample + (from == 1 ? 0 : (size_t)c * bytes), bytes);
    wf_dataset_give_room(dataset, sample);
    return WF_OK;
}

static const wf_dataset_kind channels_kind = {
    .name = "channels",
    .open = channels_open,
    .read = channels_read,
    .concurrent = true,
};

wf_dataset *wf_transform_channels(wf_dataset *inner, int64_t channels)
{
    if (inner && channels < 1) {
        wf_dataset_free(inner);
        WF_FAIL_NULL(WF_ERR_ARGUMENT, "channels: %lld: should be 1 or more", (long long)channels);
    }
    wf_dataset *dataset = wf_dataset_new(inner ? inner->ctx : NULL, &channels_kind, inner, sizeof(channels_state));
    if (dataset)
        ((channels_state *)dataset->state)->channels = channels;
    return dataset;
}
