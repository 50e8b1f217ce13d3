/* Pairs of features that meet in random samples. A sample has a set of features, one bit for each. Before a sample is
 * drawn, pairs_wish names two features that have met in no sample so far; the generator draws the rest at random, and
 * pairs_count takes the set that came out.
 *
 * Generators draw features by pairs_draw and options by pairs_option: what is wished comes, what excludes it does not.
 *
 * Rules name pairs that cannot meet, with the reason: alternatives of one option, and what the library refuses. A
 * feature that needs another one inherits its rules.
 *
 * Everything follows from the number of the sample and those before it, so every rank draws the same sequence. Sample
 * n stays the same program while the features, the rules and the generator do; a change of one of them redraws all.
 */
#ifndef WF_TESTS_PAIRS_H
#define WF_TESTS_PAIRS_H

#include "tests/test.h"

#include <stdio.h>
#include <string.h>

enum { PAIRS_MOST = 96, PAIRS_WORLDS = 9 };

/* A set of features, one bit for each. */
__extension__ typedef unsigned __int128 pairs_set;

/* Features a and b cannot meet. */
typedef struct pairs_rule {
    int a, b;
    const char *why;
} pairs_rule;

/* Feature a comes only with feature b. */
typedef struct pairs_need {
    int a, b;
} pairs_need;

typedef struct pairs {
    int n, samples;
    const char *const *name;
    int met[PAIRS_MOST][PAIRS_MOST];         /* samples that had both; in the diagonal: that had the feature */
    const char *why[PAIRS_MOST][PAIRS_MOST]; /* the two cannot meet; NULL: they may */
    bool given_up[PAIRS_WORLDS][PAIRS_MOST][PAIRS_MOST]; /* not found on so many ranks */
} pairs;

static inline bool pairs_has(pairs_set set, int feature)
{
    return set >> feature & 1;
}

static inline pairs_set pairs_bit(int feature)
{
    return (pairs_set)1 << feature;
}

static inline pairs_set bit_if(bool has, int feature)
{
    return has ? pairs_bit(feature) : 0;
}

/* True for a feature that is wished, false for one that is barred, else one time in n. */
static inline bool pairs_draw(pairs_set wish, pairs_set barred, test_rng *rng, int feature, int n)
{
    const bool chance = one_in(rng, n);
    return pairs_has(wish, feature) || (chance && !pairs_has(barred, feature));
}

/* One of the features [first, last] that is not barred; they are values of one option. Counts from 0. */
static inline int pairs_option(pairs_set barred, test_rng *rng, int first, int last)
{
    int feature;
    do
        feature = (int)test_int(rng, first, last);
    while (pairs_has(barred, feature));
    return feature - first;
}

static inline void pairs_forbid(pairs *p, int a, int b, const char *why)
{
    if (a != b && !p->why[a][b])
        p->why[a][b] = p->why[b][a] = why;
}

/* Features [first, last] are values of one option. */
static inline void pairs_one_of(pairs *p, int first, int last)
{
    for (int a = first; a <= last; a++)
        for (int b = first; b < a; b++)
            pairs_forbid(p, a, b, "values of one option");
}

static inline void pairs_forbid_all(pairs *p, const pairs_rule *rule, int count)
{
    for (int i = 0; i < count; i++)
        pairs_forbid(p, rule[i].a, rule[i].b, rule[i].why);
}

/* After all rules: hands those of needed features on. Needs of a needed feature come first in the list. */
static inline void pairs_inherit(pairs *p, const pairs_need *need, int count)
{
    for (int i = 0; i < count; i++)
        for (int f = 0; f < p->n; f++)
            if (p->why[need[i].b][f])
                pairs_forbid(p, need[i].a, f, p->why[need[i].b][f]);
}

/* Features that cannot come with one of the set. */
static inline pairs_set pairs_barred(const pairs *p, pairs_set set)
{
    pairs_set barred = 0;
    for (int a = 0; a < p->n; a++)
        for (int b = 0; b < p->n && pairs_has(set, a); b++)
            barred |= p->why[a][b] ? pairs_bit(b) : 0;
    return barred;
}

/* Two features that have not met, for a sample on so many ranks; 0 if none are left there. The search begins somewhere
 * else for each sample, so that one rare feature does not take all the first ones. */
static inline pairs_set pairs_wish(const pairs *p, int world)
{
    const int all = p->n * p->n, begin = (int)((uint64_t)p->samples * 2654435761u % (uint64_t)all);
    for (int i = 0; i < all; i++) {
        const int at = (begin + i) % all, a = at / p->n, b = at % p->n;
        if (a < b && p->met[a][b] == 0 && !p->why[a][b] && !p->given_up[world][a][b])
            return pairs_bit(a) | pairs_bit(b);
    }
    return 0;
}

/* The generator did not find a sample with these two on so many ranks. */
static inline void pairs_give_up(pairs *p, int world, pairs_set wish)
{
    for (int a = 0; a < p->n; a++)
        for (int b = 0; b < p->n; b++)
            if (a != b && pairs_has(wish, a) && pairs_has(wish, b))
                p->given_up[world][a][b] = true;
}

/* A sample that breaks a rule is a mistake of the generator or of the rules. */
static inline void pairs_count(pairs *p, pairs_set set, const char *sample)
{
    p->samples++;
    for (int a = 0; a < p->n; a++)
        for (int b = 0; b < p->n; b++) {
            if (!pairs_has(set, a) || !pairs_has(set, b))
                continue;
            WF_EXPECT(!p->why[a][b], "%s: has %s and %s, which cannot meet: %s", sample, p->name[a], p->name[b],
                      p->why[a][b]);
            p->met[a][b]++;
        }
}

/* The names in a set, for messages. */
static inline void pairs_text(const pairs *p, pairs_set set, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < p->n && used < bytes; a++)
        if (pairs_has(set, a))
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", p->name[a]);
}

static inline void pairs_write_table(const pairs *p, FILE *file)
{
    fprintf(file, "samples with both");
    for (int b = 0; b < p->n; b++)
        fprintf(file, ",%s", p->name[b]);
    for (int a = 0; a < p->n; a++) {
        fprintf(file, "\n%s", p->name[a]);
        for (int b = 0; b < p->n; b++)
            p->why[a][b] ? fprintf(file, ",-") : fprintf(file, ",%d", p->met[a][b]);
    }
    fprintf(file, "\n\npairs that cannot meet,,why\n");
    for (int a = 0; a < p->n; a++)
        for (int b = a + 1; b < p->n; b++)
            if (p->why[a][b])
                fprintf(file, "%s,%s,%s\n", p->name[a], p->name[b], p->why[a][b]);
    fprintf(file, "\npairs that may meet and did not\n");
    for (int a = 0; a < p->n; a++)
        for (int b = a + 1; b < p->n; b++)
            if (!p->why[a][b] && p->met[a][b] == 0)
                fprintf(file, "%s,%s\n", p->name[a], p->name[b]);
}

/* Writes the table to FOLDER/NAME_SAMPLES.csv and prints the counts; with `all` every pair that may meet must have
 * met. */
static inline void pairs_report(const pairs *p, const char *folder, const char *name, bool all)
{
    int may = 0, met = 0;
    char path[1024];
    for (int a = 0; a < p->n; a++)
        for (int b = a + 1; b < p->n; b++) {
            may += !p->why[a][b];
            met += p->met[a][b] > 0;
            WF_EXPECT(!all || p->why[a][b] || p->met[a][b] > 0, "no sample of %d has %s and %s", p->samples, p->name[a],
                      p->name[b]);
        }
    snprintf(path, sizeof path, "%s/%s_%d.csv", folder, name, p->samples);
    FILE *file = fopen(path, "w");
    WF_EXPECT(file, "cannot write %s", path);
    if (file) {
        pairs_write_table(p, file);
        WF_EXPECT(fclose(file) == 0, "cannot write %s", path);
    }
    printf("%d of %d pairs of %d features met in %d samples: %s\n", met, may, p->n, p->samples, path);
}

#endif
