/* Text for a language model, and text on a terminal. */
#ifndef EXAMPLES_TEXT_H
#define EXAMPLES_TEXT_H

#include "examples/common.h"

/* All bytes of a file, or of the files in a folder one after the other: by their names, without links, folders and
 * hidden ones. Rank 0 reads, every rank gets a copy, to be freed. Ends the program if there is nothing to read, or less
 * than `least` bytes. Collective. */
uint8_t *text_read(wf_comm *comm, const char *path, int64_t least, int64_t *bytes);

/* Writes UTF-8 to stdout byte by byte. Control characters (of ASCII but for line feed and tab, and U+0080 to U+009F),
 * which would move a terminal's cursor or change its colours, and bytes that are no UTF-8 become '?'. Zero at first. */
typedef struct text_writer {
    uint8_t held[4]; /* of a character that is not complete */
    int count;
} text_writer;
void text_write(text_writer *writer, uint8_t byte);
/* Ends a character that is not complete, and the line. */
void text_end(text_writer *writer);

#endif
