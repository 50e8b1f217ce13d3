#include "examples/bleu.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MOST_WORDS = 1024 };

typedef struct words {
    int count;
    struct {
        const char *text;
        size_t length;
    } of[MOST_WORDS];
} words;

static bool is_letter(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 128;
}

static void split_words(const char *text, words *out)
{
    out->count = 0;
    while (*text && out->count < MOST_WORDS) {
        if (isspace((unsigned char)*text)) {
            text++;
            continue;
        }
        size_t length = 1;
        while (is_letter(text[0]) && is_letter(text[length]))
            length++;
        out->of[out->count].text = text;
        out->of[out->count++].length = length;
        text += length;
    }
}

/* n words from i of a, and from j of b, are equal. */
static bool are_equal(const words *a, int i, const words *b, int j, int n)
{
    for (int k = 0; k < n; k++)
        if (a->of[i + k].length != b->of[j + k].length ||
            memcmp(a->of[i + k].text, b->of[j + k].text, a->of[i + k].length) != 0)
            return false;
    return true;
}

/* How often the n-gram at `at` is in `of`, at places below `end`. */
static int count_before(const words *of, int end, const words *a, int at, int n)
{
    int count = 0;
    for (int j = 0; j < end && j + n <= of->count; j++)
        count += are_equal(a, at, of, j, n);
    return count;
}

void bleu_add(bleu *b, const char *candidate, const char *reference)
{
    words mine, theirs;
    split_words(candidate, &mine);
    split_words(reference, &theirs);
    b->candidate += mine.count;
    b->reference += theirs.count;
    for (int n = 1; n <= BLEU_ORDERS; n++)
        for (int i = 0; i + n <= mine.count; i++) {
            b->all[n - 1]++;
            /* One of k equal n-grams is found if the reference has more than those before it. */
            if (count_before(&theirs, theirs.count, &mine, i, n) > count_before(&mine, i, &mine, i, n))
                b->found[n - 1]++;
        }
}

double bleu_score(const bleu *b)
{
    double sum = 0;
    for (int n = 0; n < BLEU_ORDERS; n++) {
        if (b->found[n] == 0)
            return 0;
        sum += log(b->found[n] / b->all[n]) / BLEU_ORDERS;
    }
    return exp(sum) * (b->candidate < b->reference ? exp(1 - b->reference / b->candidate) : 1);
}
