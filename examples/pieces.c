#include "examples/pieces.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORD = 64 }; /* bytes; a longer word is cut */

typedef struct word {
    const char *text;
    int64_t count;
    int length; /* in pieces, of which `piece` holds the numbers */
    int32_t *piece;
} word;

struct pieces {
    int count, most;
    int32_t (*parts)[2]; /* of piece i >= 256 */
    int *bytes;          /* of each piece */
    int32_t *joined;     /* [most,most]: the piece of two neighbours, or 0 */
};

/* The words that pieces are learned from. */
typedef struct corpus {
    word *of;
    int64_t words, slots; /* open addressing; a slot with the count 0 is free */
    int32_t *count;       /* [most,most]: of two neighbours in all texts */
    int32_t *best;        /* [most]: the most frequent second piece of each first one */
    bool *changed;        /* [most]: best is to be looked for again */
} corpus;

static bool is_letter(char c)
{
    return isalpha((unsigned char)c) || (unsigned char)c >= 128;
}

/* The bytes of a format of printf, or 0. */
static int format_length(const char *text)
{
    int n = 1;
    if (text[0] != '%')
        return 0;
    n += (int)strspn(text + n, "-+#0123456789.*$'");
    n += (int)strspn(text + n, "hljztL");
    return text[n] && strchr("diouxXeEfgGcspm%", text[n]) ? n + 1 : 0;
}

static int word_length(const char *text)
{
    const int space = text[0] == ' ' && text[1] && text[1] != ' ';
    const char *const at = text + space;
    int n = format_length(at);
    if (n == 0 && is_letter(*at))
        while (is_letter(at[n]))
            n++;
    else if (n == 0 && !isdigit((unsigned char)*at))
        while (at[n] == *at)
            n++;
    n = n > 0 ? n + space : 1 + space;
    return n < MOST_WORD ? n : MOST_WORD;
}

/* --- learning ----------------------------------------------------------------------------------------------------- */

static uint64_t hash_word(const char *text, int bytes)
{
    uint64_t hash = 0xcbf29ce484222325U; /* FNV-1a */
    for (int i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3U;
    return hash ^ hash >> 32;
}

static bool add_word(corpus *c, const char *text, int bytes)
{
    uint64_t slot = hash_word(text, bytes) & (uint64_t)(c->slots - 1);
    while (c->of[slot].count > 0 && (c->of[slot].length != bytes || memcmp(c->of[slot].text, text, (size_t)bytes) != 0))
        slot = (slot + 1) & (uint64_t)(c->slots - 1);
    word *w = &c->of[slot];
    if (w->count++ > 0)
        return true;
    w->text = text;
    w->length = bytes;
    w->piece = malloc((size_t)bytes * sizeof *w->piece);
    for (int i = 0; w->piece && i < bytes; i++)
        w->piece[i] = (unsigned char)text[i];
    return w->piece != NULL;
}

/* Leaves the words alone, in an order that depends on the texts only. */
static bool read_words(corpus *c, const char *const *text, int64_t n)
{
    int64_t words = 0;
    for (int64_t i = 0; i < n; i++)
        for (const char *at = text[i]; *at; at += word_length(at))
            words++;
    for (c->slots = 16; c->slots < 2 * words; c->slots *= 2)
        ;
    c->of = calloc((size_t)c->slots, sizeof *c->of);
    if (!c->of)
        return false;
    for (int64_t i = 0; i < n; i++)
        for (const char *at = text[i]; *at; at += word_length(at))
            if (!add_word(c, at, word_length(at)))
                return false;
    for (int64_t i = 0; i < c->slots; i++)
        if (c->of[i].count > 0)
            c->of[c->words++] = c->of[i];
    return true;
}

static void count_pairs(const pieces *p, corpus *c, const word *w, int64_t sign)
{
    for (int i = 0; i + 1 < w->length; i++) {
        c->count[(int64_t)w->piece[i] * p->most + w->piece[i + 1]] += (int32_t)(sign * w->count);
        c->changed[w->piece[i]] = true;
    }
}

static int join_neighbours(int32_t *piece, int length, const int32_t parts[2], int32_t joined)
{
    int n = 0;
    for (int i = 0; i < length; i++) {
        const bool both = i + 1 < length && piece[i] == parts[0] && piece[i + 1] == parts[1];
        piece[n++] = both ? joined : piece[i];
        i += both;
    }
    return n;
}

static bool has_neighbours(const word *w, const int32_t parts[2])
{
    for (int i = 0; i + 1 < w->length; i++)
        if (w->piece[i] == parts[0] && w->piece[i + 1] == parts[1])
            return true;
    return false;
}

/* The most frequent pair, the first of equals; false if none is there twice. */
static bool choose_pair(const pieces *p, corpus *c, int32_t parts[2])
{
    int32_t most = 1;
    for (int32_t a = 0; a < p->count; a++) {
        const int32_t *const row = c->count + (int64_t)a * p->most;
        if (c->changed[a])
            for (int32_t b = c->best[a] = 0; b < p->count; b++)
                c->best[a] = row[b] > row[c->best[a]] ? b : c->best[a];
        c->changed[a] = false;
        if (row[c->best[a]] > most) {
            most = row[c->best[a]];
            parts[0] = a;
            parts[1] = c->best[a];
        }
    }
    return most > 1;
}

static void join_pairs(pieces *p, corpus *c)
{
    for (int64_t i = 0; i < c->words; i++)
        count_pairs(p, c, &c->of[i], 1);
    int32_t parts[2];
    while (p->count < p->most && choose_pair(p, c, parts)) {
        const int32_t joined = p->count++;
        memcpy(p->parts[joined], parts, sizeof parts);
        p->bytes[joined] = p->bytes[parts[0]] + p->bytes[parts[1]];
        p->joined[(int64_t)parts[0] * p->most + parts[1]] = joined;
        for (int64_t i = 0; i < c->words; i++) {
            word *const w = &c->of[i];
            if (!has_neighbours(w, parts))
                continue;
            count_pairs(p, c, w, -1);
            w->length = join_neighbours(w->piece, w->length, parts, joined);
            count_pairs(p, c, w, 1);
        }
    }
}

static void free_corpus(corpus *c)
{
    /* read_words may have failed before it moved the words to the front. */
    for (int64_t i = 0; i < (c->words ? c->words : c->slots) && c->of; i++)
        free(c->of[i].piece);
    free(c->of);
    free(c->count);
    free(c->best);
    free(c->changed);
}

pieces *pieces_learn(const char *const *text, int64_t n, int most)
{
    const size_t all = (size_t)most;
    corpus c = {.count = calloc(all * all, sizeof *c.count),
                .best = calloc(all, sizeof *c.best),
                .changed = calloc(all, sizeof *c.changed)};
    pieces *p = calloc(1, sizeof *p);
    if (p)
        *p = (pieces){.count = PIECES_LEAST,
                      .most = most,
                      .parts = calloc(all, sizeof *p->parts),
                      .bytes = calloc(all, sizeof *p->bytes),
                      .joined = calloc(all * all, sizeof *p->joined)};
    const bool fits = p && p->parts && p->bytes && p->joined && c.count && c.best && c.changed;
    if (fits && read_words(&c, text, n)) {
        for (int i = 1; i < PIECES_LEAST; i++)
            p->bytes[i] = 1;
        join_pairs(p, &c);
    } else {
        pieces_free(p);
        p = NULL;
    }
    free_corpus(&c);
    return p;
}

void pieces_free(pieces *p)
{
    if (!p)
        return;
    free(p->parts);
    free(p->bytes);
    free(p->joined);
    free(p);
}

int pieces_count(const pieces *p)
{
    return p->count;
}

/* --- use ---------------------------------------------------------------------------------------------------------- */

/* Joins neighbours in the order in which their pairs were learned. */
static int split_word(const pieces *p, const char *text, int bytes, int32_t *piece)
{
    int length = bytes;
    for (int i = 0; i < bytes; i++)
        piece[i] = (unsigned char)text[i];
    for (;;) {
        int32_t first = p->most;
        for (int i = 0; i + 1 < length; i++) {
            const int32_t joined = p->joined[(int64_t)piece[i] * p->most + piece[i + 1]];
            first = joined > 0 && joined < first ? joined : first;
        }
        if (first == p->most)
            return length;
        length = join_neighbours(piece, length, p->parts[first], first);
    }
}

int64_t pieces_split(const pieces *p, const char *text, int32_t *piece)
{
    int64_t n = 0;
    for (int bytes = 0; *text; text += bytes) {
        bytes = word_length(text);
        n += split_word(p, text, bytes, piece + n);
    }
    return n;
}

static char *write_piece(const pieces *p, int32_t piece, char *text)
{
    if (piece >= PIECES_LEAST)
        return write_piece(p, p->parts[piece][1], write_piece(p, p->parts[piece][0], text));
    *text = (char)piece;
    return text + (piece > 0);
}

void pieces_join(const pieces *p, const int32_t *piece, int64_t n, char *text, int64_t room)
{
    char *at = text;
    for (int64_t i = 0; i < n && at + p->bytes[piece[i]] < text + room; i++)
        at = write_piece(p, piece[i], at);
    *at = 0;
}
