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
    /* Opening a pipe would wait for one who writes into it. */
    WF_CHECK(stat(path, &info) != 0 || S_ISREG(info.st_mode), WF_ERR_IO, "%s: cannot open: is not a file", path);
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

/* Like check_png_size: 8 x 8 pixels have a bit at least. `frame` follows the marker. */
static wf_status check_jpeg_size(const char *path, const unsigned char *frame, size_t bytes)
{
    const uint64_t height = (uint64_t)frame[3] << 8 | frame[4], width = (uint64_t)frame[5] << 8 | frame[6];
    WF_CHECK(height * width / 512 <= bytes, WF_ERR_FORMAT, "%s: damaged JPEG: %llu x %llu pixels in %zu bytes", path,
             (unsigned long long)height, (unsigned long long)width, bytes);
    return WF_OK;
}

/* --- Orientation -------------------------------------------------------------------------------------------------- */

static size_t tiff_number(const unsigned char *at, int bytes, bool little)
{
    size_t number = 0;
    for (int i = 0; i < bytes; i++)
        number = number << 8 | at[little ? bytes - 1 - i : i];
    return number;
}

/* The orientation that the first directory of EXIF's data has, 1 to 8; without one 1: upright as it is stored. */
static int orientation_of(const unsigned char *tiff, size_t bytes)
{
    enum { ENTRY = 12, ORIENTATION = 0x112, SHORT = 3 };
    if (bytes < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 1;
    const bool little = *tiff == 'I';
    const size_t directory = tiff_number(tiff + 4, 4, little);
    if (directory > bytes - 2)
        return 1;
    const size_t entries = tiff_number(tiff + directory, 2, little);
    for (size_t i = 0; i < entries && directory + 2 + (i + 1) * ENTRY <= bytes; i++) {
        const unsigned char *entry = tiff + directory + 2 + i * ENTRY;
        if (tiff_number(entry, 2, little) != ORIENTATION || tiff_number(entry + 2, 2, little) != SHORT)
            continue;
        const size_t value = tiff_number(entry + 8, 2, little);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* The upright picture in pixels that are stored otherwise: its size, its first pixel, and the steps to the pixel below
 * and to the right, in pixels. */
typedef struct upright {
    int64_t height, width, first, down, right;
} upright;

/* EXIF's numbers: where the stored first row and first column are to be seen. 5 to 8 exchange rows and columns. */
static upright upright_of(int orientation, int64_t height, int64_t width)
{
    const bool bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const bool right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const int64_t row = bottom ? -width : width, column = right ? -1 : 1;
    const int64_t first = (bottom ? (height - 1) * width : 0) + (right ? width - 1 : 0);
    if (orientation >= 5)
        return (upright){.height = width, .width = height, .first = first, .down = column, .right = row};
    return (upright){.height = height, .width = width, .first = first, .down = row, .right = column};
}

/* --- Whole files -------------------------------------------------------------------------------------------------- */

/* stb ignores checksums and takes what is missing for zeros, so wholeness is checked here: every chunk and the end. */
static wf_status check_png(const char *path, const unsigned char *data, size_t bytes, int *orientation)
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
        if (memcmp(type, "eXIf", 4) == 0)
            *orientation = orientation_of(type + 4, length);
        if (memcmp(type, "IEND", 4) == 0)
            return WF_OK;
        at += 12 + length;
    }
    WF_FAIL(WF_ERR_FORMAT, "%s: truncated PNG: ends at byte %zu without an end chunk", path, bytes);
}

/* What the segments before the first scan say. */
typedef struct jpeg_facts {
    int channels, orientation;
    bool adobe; /* says how four channels are coded */
} jpeg_facts;

/* A segment after its marker, of which the file has `bytes`. */
static void note_segment(unsigned char marker, const unsigned char *segment, size_t bytes, jpeg_facts *facts)
{
    enum { FRAME_0 = 0xC0, FRAME_2 = 0xC2, EXIF = 0xE1, ADOBE = 0xEE };
    const size_t length = (size_t)segment[0] << 8 | segment[1];
    if (length > bytes)
        return;
    if (marker >= FRAME_0 && marker <= FRAME_2 && length >= 8)
        facts->channels = segment[7];
    else if (marker == EXIF && length >= 8 && memcmp(segment + 2, "Exif\0", 6) == 0)
        facts->orientation = orientation_of(segment + 8, length - 8);
    else if (marker == ADOBE && length >= 14 && memcmp(segment + 2, "Adobe", 6) == 0)
        facts->adobe = segment[13] == 0 || segment[13] == 2; /* CMYK, YCCK */
}

/* Markers up to the first scan, then an end marker somewhere behind it (a thumbnail's lies before). */
static wf_status check_jpeg(const char *path, const unsigned char *data, size_t bytes, int *orientation)
{
    size_t at = 2;
    jpeg_facts facts = {.orientation = 1};
    while (at + 4 <= bytes && data[at] == 0xFF) {
        const unsigned char marker = data[at + 1];
        /* Any number of 0xFF may precede a marker. */
        if (marker == 0xFF) {
            at++;
            continue;
        }
        if (marker >= 0xC0 && marker <= 0xC2 && bytes - at >= 9)
            WF_TRY(check_jpeg_size(path, data + at + 2, bytes));
        note_segment(marker, data + at + 2, bytes - at - 2, &facts);
        at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
        if (marker != 0xDA)
            continue;
        /* Without the marker programs differ on whether 255 is all ink or none. */
        WF_CHECK(facts.channels != 4 || facts.adobe, WF_ERR_FORMAT,
                 "%s: a JPEG of four channels without Adobe's marker, which says what they are: save it as RGB", path);
        *orientation = facts.orientation;
        const unsigned char end[] = {0xFF, 0xD9};
        if (at < bytes && memmem(data + at, bytes - at, end, sizeof end))
            return WF_OK;
        break;
    }
    WF_FAIL(WF_ERR_FORMAT, "%s: damaged or truncated JPEG: %zu bytes without an end marker", path, bytes);
}

/* *orientation: EXIF's, 1 to 8. */
static wf_status check_whole(const char *path, const unsigned char *data, size_t bytes, int *orientation)
{
    *orientation = 1;
    static const unsigned char png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    if (bytes >= sizeof png && memcmp(data, png, sizeof png) == 0)
        return check_png(path, data, bytes, orientation);
    if (bytes >= 3 && data[0] == 0xFF && data[1] == 0xD8 && data[2] == 0xFF)
        return check_jpeg(path, data, bytes, orientation);
    WF_FAIL(WF_ERR_FORMAT, "%s: neither a PNG nor a JPEG file", path);
}

/* --- Pixels ------------------------------------------------------------------------------------------------------- */

/* stb's reason may hold bytes of the file. Without control characters, so that an error stays one line. */
static wf_status failed(const char *path, const char *what)
{
    char reason[64];
    snprintf(reason, sizeof reason, "%s", stbi_failure_reason());
    for (char *c = reason; *c; c++)
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    WF_FAIL(WF_ERR_FORMAT, "%s: %s: %s", path, what, reason);
}

static wf_status decode(const char *path, int channels, uint8_t **pixels, upright *u)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    int orientation, height = 0, width = 0, in_file;
    WF_TRY(read_whole(path, &data, &bytes));
    wf_status status = check_whole(path, data, bytes, &orientation);
    if (status == WF_OK) {
        *pixels = stbi_load_from_memory(data, (int)bytes, &width, &height, &in_file, channels);
        if (!*pixels)
            status = failed(path, "damaged image");
    }
    free(data);
    *u = upright_of(orientation, height, width);
    return status;
}

wf_status wf_picture_size(const char *path, int64_t *height, int64_t *width)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    int h = 0, w = 0, channels, orientation;
    WF_TRY(read_whole(path, &data, &bytes));
    wf_status status = check_whole(path, data, bytes, &orientation);
    if (status == WF_OK && !stbi_info_from_memory(data, (int)bytes, &w, &h, &channels))
        status = failed(path, "not an image that can be read");
    free(data);
    const upright u = upright_of(orientation, h, w);
    *height = u.height;
    *width = u.width;
    return status;
}

static void to_planes(const uint8_t *pixels, int64_t channels, const upright *u, uint8_t *planar)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t y = 0; y < u->height; y++) {
            const uint8_t *row = pixels + (u->first + y * u->down) * channels + c;
            for (int64_t x = 0; x < u->width; x++)
                *planar++ = row[x * u->right * channels];
        }
}

static wf_status resize_planes(const uint8_t *pixels, int64_t channels, const upright *u, int64_t height, int64_t width,
                               uint8_t *planar)
{
    const int64_t h = u->height, w = u->width;
    WF_CHECK(h > 0 && w > 0, WF_ERR_FORMAT, "an image of %lld x %lld pixels", (long long)h, (long long)w);
    uint8_t *whole = malloc((size_t)(channels * h * w));
    WF_CHECK(whole, WF_ERR_MEMORY, "no memory for an image of %lld x %lld pixels", (long long)h, (long long)w);
    to_planes(pixels, channels, u, whole);
    wf_status status = WF_OK;
    for (int64_t c = 0; c < channels && status == WF_OK; c++)
        status = wf_plane_resize(WF_U8, whole + c * h * w, h, w, planar + c * height * width, height, width);
    free(whole);
    return status;
}

wf_status wf_picture_read(const char *path, int64_t channels, int64_t height, int64_t width, uint8_t *planar)
{
    uint8_t *pixels = NULL;
    upright u = {0};
    WF_TRY(decode(path, (int)channels, &pixels, &u));
    wf_status status = WF_OK;
    if (u.height == height && u.width == width)
        to_planes(pixels, channels, &u, planar);
    else
        status = resize_planes(pixels, channels, &u, height, width, planar);
    stbi_image_free(pixels);
    return status;
}
