/* Checksums and PNG pictures for event files. The writer of events calls them; they know nothing of events. */
#include "optim/tensorboard_impl.h"

#include <stdlib.h>
#include <string.h>

#define STORED_MOST 65535u /* bytes of a stored block of deflate (RFC 1951) */
#define ADLER_MOD   65521u

/* A failure is kept in `failed`, so that callers check once, at the end. */
void wf_bytes_add(wf_bytes *b, const void *data, size_t count)
{
    if (b->failed || count == 0)
        return;
    if (count > b->room - b->count) {
        const size_t room = 2 * (b->count + count);
        unsigned char *longer = realloc(b->data, room);
        b->failed = !longer;
        if (!longer)
            return;
        b->data = longer;
        b->room = room;
    }
    memcpy(b->data + b->count, data, count);
    b->count += count;
}

void wf_bytes_free(wf_bytes *b)
{
    free(b->data);
    *b = (wf_bytes){0};
}

/* Bit by bit: 8 steps a byte are nothing beside a report, and no table has to be made safe for threads. */
uint32_t wf_crc(uint32_t polynomial, uint32_t before, const void *data, size_t count)
{
    const unsigned char *c = data;
    uint32_t sum = ~before;
    for (size_t i = 0; i < count; i++) {
        sum ^= c[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (polynomial & (0u - (sum & 1)));
    }
    return ~sum;
}

/* --- PNG ---------------------------------------------------------------------------------------------------------- */

static void add_big_endian(wf_bytes *b, uint32_t value)
{
    wf_bytes_add(b, (unsigned char[]){value >> 24 & 255, value >> 16 & 255, value >> 8 & 255, value & 255}, 4);
}

/* Length, type, content, checksum of type and content (PNG, section 5.3). */
static void add_chunk(wf_bytes *b, const char type[4], const wf_bytes *content)
{
    add_big_endian(b, (uint32_t)content->count);
    wf_bytes_add(b, type, 4);
    wf_bytes_add(b, content->data, content->count);
    add_big_endian(b, wf_crc(WF_CRC_IEEE, wf_crc(WF_CRC_IEEE, 0, type, 4), content->data, content->count));
    b->failed = b->failed || content->failed;
}

static uint32_t adler_sum(const wf_bytes *b)
{
    uint32_t low = 1, high = 0;
    for (size_t i = 0; i < b->count; i++) {
        low = (low + b->data[i]) % ADLER_MOD;
        high = (high + low) % ADLER_MOD;
    }
    return high << 16 | low;
}

/* Rows with their filter bytes (none) as a stream of zlib (RFC 1950) of stored blocks: not compressed, since pictures
 * of a report are small. */
static void add_stream(wf_bytes *b, const wf_bytes *rows)
{
    wf_bytes_add(b, (unsigned char[]){0x78, 0x01}, 2);
    for (size_t at = 0; at < rows->count;) {
        const size_t left = rows->count - at, n = left < STORED_MOST ? left : STORED_MOST;
        /* A stored block: last or not, length, and its complement. */
        const unsigned char head[] = {n == left, n & 255, n >> 8, ~n & 255, ~n >> 8 & 255};
        wf_bytes_add(b, head, sizeof head);
        wf_bytes_add(b, rows->data + at, n);
        at += n;
    }
    add_big_endian(b, adler_sum(rows));
    b->failed = b->failed || rows->failed;
}

/* 8 bits, grey or RGB, no palette, no interlace. */
void wf_png_add(wf_bytes *b, const wf_sheet *sheet)
{
    wf_bytes header = {0}, rows = {0}, stream = {0};
    const size_t width = (size_t)(sheet->width * sheet->channels);
    add_big_endian(&header, (uint32_t)sheet->width);
    add_big_endian(&header, (uint32_t)sheet->height);
    wf_bytes_add(&header, (unsigned char[]){8, sheet->channels == 3 ? 2 : 0, 0, 0, 0}, 5);
    for (int64_t h = 0; h < sheet->height; h++) {
        wf_bytes_add(&rows, "", 1);
        wf_bytes_add(&rows, sheet->pixels + (size_t)h * width, width);
    }
    add_stream(&stream, &rows);
    wf_bytes_add(b, (unsigned char[]){0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, 8);
    add_chunk(b, "IHDR", &header);
    add_chunk(b, "IDAT", &stream);
    add_chunk(b, "IEND", &(wf_bytes){0});
    wf_bytes_free(&header);
    wf_bytes_free(&rows);
    wf_bytes_free(&stream);
}
