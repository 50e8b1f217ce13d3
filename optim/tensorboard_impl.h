/* The writer of event files: bytes that grow, and what its two files share. */
#ifndef WF_OPTIM_TENSORBOARD_IMPL_H
#define WF_OPTIM_TENSORBOARD_IMPL_H

#include "core/sheet_author.h"

#include <stddef.h>
#include <stdint.h>

/* A message or picture that is being made. `failed`: there was no memory; later additions do nothing. */
typedef struct wf_bytes {
    unsigned char *data;
    size_t count, room;
    bool failed;
} wf_bytes;

void wf_bytes_add(wf_bytes *b, const void *data, size_t count);
void wf_bytes_free(wf_bytes *b);

/* --- tensorboard_sums.c --- */
/* The checksum of `count` bytes: CRC-32 with the reflected polynomial of Castagnoli (iSCSI), which records have, or of
 * IEEE 802.3, which PNG has. `before` is the sum of the bytes before these; 0: none. */
#define WF_CRC_CASTAGNOLI 0x82f63b78u
#define WF_CRC_IEEE       0xedb88320u
uint32_t wf_crc(uint32_t polynomial, uint32_t before, const void *data, size_t count);

/* Appends the sheet as PNG (RFC 2083): 8 bits, without compression. optim may not include zlib, which belongs to
 * datasets, and pictures in event files are small. */
void wf_png_add(wf_bytes *b, const wf_sheet *sheet);

#endif
