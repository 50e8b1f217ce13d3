/* Decodes PNG and JPEG by stb. The only file that includes its reader. image_folder.c calls it, also in the prefetch
 * thread. */
#include "datasets/datasets_impl.h"

#include <errno.h>
#include <limits.h>
#include <stb/stb_image.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* Plain malloc here: the prefetch thread may not touch the context's counters. */
static wf_status read_whole(const char *path, unsigned char **data, size_t *bytes)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    WF_CHECK(file, WF_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    /* stb counts bytes in int. */
    const bool known = fstat(fileno(file), &info) == 0 && info.st_size > 0 && info.st_size <= INT_MAX;
    *bytes = known ? (size_t)info.st_size : 0;
    *data = known ? malloc(*bytes) : NULL;
    const size_t got = *data ? fread(*data, 1, *bytes, file) : 0;
    fclose(file);
    WF_CHECK(known, WF_ERR_FORMAT, "%s: the file is empty or larger than 2 GiB", path);
    WF_CHECK(*data, WF_ERR_MEMORY, "%s: no memory for %zu bytes", path, *bytes);
    if (got == *bytes)
        return WF_OK;
    free(*data);
    *data = NULL;
    WF_FAIL(WF_ERR_IO, "%s: cannot read: %zu of %zu bytes came", path, got, *bytes);
}

/* Lengths and checksums of PNG are big endian. */
static uint32_t big_endian(const unsigned char *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* stb ignores checksums and takes what is missing for zeros, so wholeness is checked here: every chunk and the end. */
static wf_status check_png(const char *path, const unsigned char *data, size_t bytes)
{
    size_t at = 8;
    while (at + 12 <= bytes) {
        const size_t length = big_endian(data + at);
        if (length > bytes - at - 12)
            break;
        const unsigned char *type = data + at + 4;
        const uint32_t sum = (uint32_t)crc32(crc32(0, NULL, 0), type, (uInt)(length + 4));
        WF_CHECK(sum == big_endian(type + 4 + length), WF_ERR_FORMAT,
                 "%s: damaged PNG: wrong checksum of the chunk at byte %zu", path, at);
        if (memcmp(type, "IEND", 4) == 0)
            return WF_OK;
        at += 12 + length;
    }
    WF_FAIL(WF_ERR_FORMAT, "%s: truncated PNG: ends at byte %zu without an end chunk", path, bytes);
}

/* Markers up to the first scan, then an end marker somewhere behind it (a thumbnail's lies before). */
static wf_status check_jpeg(const char *path, const unsigned char *data, size_t bytes)
{
    size_t at = 2;
    while (at + 4 <= bytes && data[at] == 0xFF) {
        const unsigned char marker = data[at + 1];
        /* Any number of 0xFF may precede a marker. */
        if (marker == 0xFF) {
            at++;
            continue;
        }
        at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
        if (marker != 0xDA)
            continue;
        const unsigned char end[] = {0xFF, 0xD9};
        if (at < bytes && memmem(data + at, bytes - at, end, sizeof end))
            return WF_OK;
        break;
    }
    WF_FAIL(WF_ERR_FORMAT, "%s: damaged or truncated JPEG: %zu bytes without an end marker", path, bytes);
}

static wf_status check_whole(const char *path, const unsigned char *data, size_t bytes)
{
    static const unsigned char png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    if (bytes >= sizeof png && memcmp(data, png, sizeof png) == 0)
        return check_png(path, data, bytes);
    if (bytes >= 3 && data[0] == 0xFF && data[1] == 0xD8 && data[2] == 0xFF)
        return check_jpeg(path, data, bytes);
    WF_FAIL(WF_ERR_FORMAT, "%s: neither a PNG nor a JPEG file", path);
}

static wf_status decode(const char *path, int channels, uint8_t **pixels, int *height, int *width)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    WF_TRY(read_whole(path, &data, &bytes));
    wf_status status = check_whole(path, data, bytes);
    int in_file;
    if (status == WF_OK) {
        *pixels = stbi_load_from_memory(data, (int)bytes, width, height, &in_file, channels);
        if (!*pixels)
            status = WF_RAISE(WF_ERR_FORMAT, "%s: damaged image: %s", path, stbi_failure_reason());
    }
    free(data);
    return status;
}

wf_status wf_picture_size(const char *path, int64_t *height, int64_t *width)
{
    int h, w, channels;
    WF_CHECK(stbi_info(path, &w, &h, &channels), WF_ERR_FORMAT, "%s: not an image that can be read: %s", path,
             stbi_failure_reason());
    *height = h;
    *width = w;
    return WF_OK;
}

static void to_planes(const uint8_t *pixels, int64_t channels, int64_t count, uint8_t *planar)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < count; i++)
            planar[c * count + i] = pixels[i * channels + c];
}

static wf_status resize_planes(const uint8_t *pixels, int64_t channels, int64_t h, int64_t w, int64_t height,
                               int64_t width, uint8_t *planar)
{
    uint8_t *whole = malloc((size_t)(channels * h * w));
    WF_CHECK(whole, WF_ERR_MEMORY, "no memory for an image of %lld x %lld pixels", (long long)h, (long long)w);
    to_planes(pixels, channels, h * w, whole);
    wf_status status = WF_OK;
    for (int64_t c = 0; c < channels && status == WF_OK; c++)
        status = wf_plane_resize(WF_U8, whole + c * h * w, h, w, planar + c * height * width, height, width);
    free(whole);
    return status;
}

wf_status wf_picture_read(const char *path, int64_t channels, int64_t height, int64_t width, uint8_t *planar)
{
    uint8_t *pixels = NULL;
    int h, w;
    WF_TRY(decode(path, (int)channels, &pixels, &h, &w));
    wf_status status = WF_OK;
    if (h == height && w == width)
        to_planes(pixels, channels, height * width, planar);
    else
        status = resize_planes(pixels, channels, h, w, height, width, planar);
    stbi_image_free(pixels);
    return status;
}
