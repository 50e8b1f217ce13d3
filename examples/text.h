/* Text for a language model. */
#ifndef EXAMPLES_TEXT_H
#define EXAMPLES_TEXT_H

#include "examples/common.h"

/* All bytes of a file, or of the files in a folder one after the other: by their names, without links, folders and
 * hidden ones. Rank 0 reads, every rank gets a copy, to be freed. Ends the program if there is nothing to read, or less
 * than `least` bytes. Collective. */
uint8_t *text_read(wf_comm *comm, const char *path, int64_t least, int64_t *bytes);

#endif
