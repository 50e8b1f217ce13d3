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
    WF_CHECK(known, WF_ERR_FORMAT, "%s: not an image: the file is empty or larger than 2 GiB", path);
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

/* stb takes memory for what a header says, and looks later whether the file has it: a file of 100 bytes may ask for a
 * gigabyte. So nothing is decoded that the file cannot hold. Deflate shrinks by 1032 at most. */
static wf_status check_png_size(const char *path, const unsigned char *data, size_t bytes)
{
    static const uint64_t channels[] = {1, 1, 3, 1, 2, 1, 4}; /* of each type of colour */
    WF_CHECK(bytes >= 33 && memcmp(data + 12, "IHDR", 4) == 0, WF_ERR_FORMAT, "%s: damaged PNG: no header", path);
    const uint64_t width = big_endian(data + 16), height = big_endian(data + 20);
    const uint64_t row = width * data[24] * channels[data[25] < 7 ? data[25] : 0] / 8;
    WF_CHECK(row == 0 || height <= 1032 * (uint64_t)bytes / row, WF_ERR_FORMAT,
             "%s: damaged PNG: %llu x %llu pixels in %zu bytes", path, (unsigned long long)height,
             (unsigned long long)width, bytes);
    return WF_OK;
}

/* The same: 8 x 8 pixels have a bit at least. `frame` is behind the marker. */
static wf_status check_jpeg_size(const char *path, const unsigned char *frame, size_t bytes)
{
    const uint64_t height = (uint64_t)frame[3] << 8 | frame[4], width = (uint64_t)frame[5] << 8 | frame[6];
    WF_CHECK(height * width / 512 <= bytes, WF_ERR_FORMAT, "%s: damaged JPEG: %llu x %llu pixels in %zu bytes", path,
             (unsigned long long)height, (unsigned long long)width, bytes);
    return WF_OK;
}

/* stb ignores checksums and takes what is missing for zeros, so wholeness is checked here: every chunk and the end. */
static wf_status check_png(const char *path, const unsigned char *data, size_t bytes)
{
    size_t at = 8;
    WF_TRY(check_png_size(path, data, bytes));
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
        if (marker >= 0xC0 && marker <= 0xC2 && bytes - at >= 9)
            WF_TRY(check_jpeg_size(path, data + at + 2, bytes));
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

/* stb's reason may hold bytes of the file. Without control characters, so that an error stays one line. */
static wf_status failed(const char *path, const char *what)
{
    char reason[64];
    snprintf(reason, sizeof reason, "%s", stbi_failure_reason());
    for (char *c = reason; *c; c++)
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    WF_FAIL(WF_ERR_FORMAT, "%s: %s: %s", path, what, reason);
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
            status = failed(path, "damaged image");
    }
    free(data);
    return status;
}

wf_status wf_picture_size(const char *path, int64_t *height, int64_t *width)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    int h = 0, w = 0, channels;
    WF_TRY(read_whole(path, &data, &bytes));
    wf_status status = check_whole(path, data, bytes);
    if (status == WF_OK && !stbi_info_from_memory(data, (int)bytes, &w, &h, &channels))
        status = failed(path, "not an image that can be read");
    free(data);
    *height = h;
    *width = w;
    return status;
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
