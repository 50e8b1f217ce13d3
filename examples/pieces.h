/* Pieces of words by byte pair encoding (Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword
 * Units"): at first every byte is a piece; then the pair of neighbours that is most frequent becomes a piece, again and
 * again. A text is cut into words first, so no piece reaches over two of them: a run of letters and bytes of 128 and
 * above, a format of printf ("%s", "%-10.3lu"), a digit, or a run of one other byte, each with the space before it. */
#ifndef EXAMPLES_PIECES_H
#define EXAMPLES_PIECES_H

#include <stdint.h>

enum { PIECES_LEAST = 256, PIECES_MOST = 8192 };

typedef struct pieces pieces;

/* Learns at most `most` pieces (PIECES_LEAST to PIECES_MOST) from n texts; the same ones from the same texts. Piece 0
 * is no text: it may stand for an end. NULL if there is no memory. */
pieces *pieces_learn(const char *const *text, int64_t n, int most);
void pieces_free(pieces *p);
int pieces_count(const pieces *p);

/* Cuts a text into pieces, at most one a byte, and returns their number. */
int64_t pieces_split(const pieces *p, const char *text, int32_t *piece);
/* Writes the text of n pieces and a NUL; ends before a piece that has no room. */
void pieces_join(const pieces *p, const int32_t *piece, int64_t n, char *text, int64_t room);

#endif
