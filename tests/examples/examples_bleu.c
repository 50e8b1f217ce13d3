/* BLEU beside numbers worked out by hand, pieces of words, and catalogues for examples_translate.sh: examples_bleu
 * [FOLDER]. */
#include "examples/bleu.h"
#include "examples/pieces.h"
#include "tests/datasets/datasets_files.h"

#include <math.h>

static double of(int n, const char *const (*pair)[2])
{
    bleu b = {0};
    for (int i = 0; i < n; i++)
        bleu_add(&b, pair[i][0], pair[i][1]);
    return bleu_score(&b);
}

static void expect(const char *what, double got, double want)
{
    WF_EXPECT(fabs(got - want) < 1e-12, "%s: BLEU is %.12g, should be %.12g", what, got, want);
}

static void by_hand(void)
{
    expect("equal", of(1, (const char *const[][2]){{"one two three four", "one two three four"}}), 1);
    /* The first six words of eight: all n-grams are found, and the penalty is exp(1 - 8 / 6). */
    expect("short", of(1, (const char *const[][2]){{"a b c d e f", "a b c d e f g h"}}), exp(1 - 8.0 / 6));
    /* One word of six differs: 5 of 6, 3 of 5, 2 of 4, 1 of 3. */
    expect("one word", of(1, (const char *const[][2]){{"the cat sat on a mat", "the cat sat on the mat"}}),
           pow(5.0 / 6 * 3 / 5 * 2 / 4 * 1 / 3, 0.25));
    /* "a" counts once, as it is once in the reference: 4 of 7, then 3 of 6, 2 of 5, 1 of 4. */
    expect("clipped", of(1, (const char *const[][2]){{"a b c d a a a", "a b c d x y z"}}),
           pow(4.0 / 7 * 3 / 6 * 2 / 5 * 1 / 4, 0.25));
    /* Sums over both sentences: 6 of 7, 3 of 5, 2 of 3, 1 of 1; the mean of two scores would be another number. */
    expect("corpus", of(2, (const char *const[][2]){{"a b c d", "a b c d"}, {"x y z", "x z w"}}),
           pow(6.0 / 7 * 3 / 5 * 2 / 3 * 1 / 1, 0.25));
    expect("no four words", of(1, (const char *const[][2]){{"a b c", "a b c"}}), 0);
    expect("nothing", of(0, NULL), 0);
    /* Six words: can, ', t, open, file, !; and three words, as bytes beyond ASCII are letters. */
    expect("signs", of(1, (const char *const[][2]){{"can't open file!", "can 't open file !"}}), 1);
    expect("umlauts",
           of(1, (const char *const[][2]){{"\xc3\xbc"
                                           "ber a b",
                                           "\xc3\xbc"
                                           "ber a b"}}),
           0);
    expect("longer", of(1, (const char *const[][2]){{"a b c d e", "a b c d"}}),
           pow(4.0 / 5 * 3 / 4 * 2 / 3 * 1 / 2, 0.25));
}

static void expect_pieces(const pieces *p, const char *text, int64_t should)
{
    int32_t piece[64];
    char again[64];
    const int64_t n = pieces_split(p, text, piece);
    pieces_join(p, piece, n, again, sizeof again);
    WF_EXPECT(!strcmp(again, text), "\"%s\" comes back as \"%s\"", text, again);
    WF_EXPECT(n == should, "\"%s\" is %lld pieces, should be %lld", text, (long long)n, (long long)should);
    pieces_join(p, piece, n, again, 4);
    WF_EXPECT(strlen(again) < 4 && !strncmp(again, text, strlen(again)), "\"%s\" in 4 bytes is \"%s\"", text, again);
}

/* Twice " cat", twice "the", twice " %-5lu": these are pieces, and nothing that reaches over two words. */
static void words_in_pieces(void)
{
    const char *const text[] = {"the cat %-5lu", "the cat %-5lu", "a dog"};
    pieces *p = pieces_learn(text, 3, 400);
    WF_EXPECT(p && pieces_count(p) == PIECES_LEAST + 2 + 3 + 5, "%d pieces", p ? pieces_count(p) : 0);
    expect_pieces(p, "the cat %-5lu", 3);
    expect_pieces(p, "the the", 1 + 2); /* the space before the second was never joined to it */
    expect_pieces(p, "cats", 3);        /* "c", since that was joined to its space first, "at", "s" */
    expect_pieces(p,
                  " \xc3\xbc"
                  "b 100%, ...  ",
                  16);
    expect_pieces(p, "", 0);
    pieces_free(p);
    p = pieces_learn(text, 3, PIECES_LEAST + 1);
    WF_EXPECT(p && pieces_count(p) == PIECES_LEAST + 1, "%d pieces, should be no more than asked for", pieces_count(p));
    pieces_free(p);
    p = pieces_learn(text, 0, PIECES_LEAST);
    expect_pieces(p, "the", 3);
    pieces_free(p);
}

/* A language in which every word is another one. */
static int write_messages(const char *folder)
{
    enum { PAIRS = 120 };
    static const char *const word[8][2] = {{"open", "offen"}, {"file", "datei"}, {"read", "lies"},   {"the", "die"},
                                           {"new", "neue"},   {"no", "kein"},    {"user", "nutzer"}, {"list", "liste"}};
    static char text[PAIRS][2][64];
    static unsigned char data[1 << 16];
    const char *pair[PAIRS][2];
    char path[600];
    for (int i = 0; i < PAIRS; i++)
        for (int side = 0; side < 2; side++) {
            const int a = i % 8, b = i / 8 % 8, c = i * 5 % 7;
            snprintf(text[i][side], sizeof text[i][side], "%s %s %s", word[a][side], word[b][side], word[c][side]);
            pair[i][side] = text[i][side];
        }
    snprintf(path, sizeof path, "%s/messages.mo", folder);
    test_write(path, data, test_catalogue(data, PAIRS, pair));
    return test_failures() > 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && *argv[1] == '/')
        return write_messages(argv[1]);
    return test_main(argc, argv, (test_case[]){{"by_hand", by_hand}, {"words_in_pieces", words_in_pieces}, {0}});
}
