/* BLEU of a corpus (Papineni et al. 2002), with one reference a sentence:
 *
 *     BLEU = min(1, exp(1 - R / C)) exp((ln p1 + ln p2 + ln p3 + ln p4) / 4)
 *
 * R and C are the words of all references and all candidates. p_n is the share of the n-grams of all candidates that
 * the reference of the same sentence has, each at most as often as it is there. 0 if a p_n is 0 or has no n-gram:
 * nothing is smoothed. A word is a run of letters, digits and bytes of 128 and above; any other byte but white space is
 * a word by itself. Case counts. */
#ifndef EXAMPLES_BLEU_H
#define EXAMPLES_BLEU_H

#define BLEU_ORDERS 4

/* Zeros at first. All numbers are sums over sentences, so those of several ranks add up. */
typedef struct bleu {
    double found[BLEU_ORDERS], all[BLEU_ORDERS]; /* n-grams of the candidates */
    double candidate, reference;                 /* words */
} bleu;

void bleu_add(bleu *b, const char *candidate, const char *reference);
/* In [0, 1]. */
double bleu_score(const bleu *b);

#endif
