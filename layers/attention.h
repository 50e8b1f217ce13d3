/* Attention of several heads over tokens [N,T,E]. */
#ifndef WF_LAYERS_ATTENTION_H
#define WF_LAYERS_ATTENTION_H

#include "core/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How ranks that share tokens compute attention. */
typedef enum wf_attention_cut {
    WF_ATTENTION_CHEAPER = 0, /* what sends fewer bytes in a step of training; the ring if there are more ranks than
                                 heads, of which some would have none, or another axis cuts heads */
    WF_ATTENTION_BY_HEADS,    /* wf_attention_by_heads */
    WF_ATTENTION_RING,        /* wf_attention_ring */
} wf_attention_cut;

/* Zero means the default. Tensors are read until backward, and must stay unchanged so long. */
typedef struct wf_attention_opts {
    int64_t heads;  /* 1; neighbouring features belong to a head */
    double scale;   /* of the products of queries and keys; 1 / sqrt(features of a head) */
    bool causal;    /* query i does not see keys j > i */
    double dropout; /* the rate in [0, 1) at which a weight becomes 0 in training; the others are divided by 1 - rate */
    /* Added to the scores: -infinity hides a key. [N,heads,T,S] of this rank, of a float type; dimensions of length 1
     * are repeated. No gradient. */
    const wf_tensor *mask;
    const wf_tensor *lengths; /* i32 [N] of this rank: the keys of sample n are its first lengths[n] */
    /* i32 [G,T] and [G,S], the same on all ranks: in sample n of all ranks' samples, query i sees key j only where
     * entry i of row n % G equals entry j. Both or none: windows of an image, or several texts in one sample. */
    const wf_tensor *query_regions, *key_regions;
    /* A table [rows,heads] of numbers that are added to the scores, with a gradient. Row bias_index[i,j] (i32 [T,S])
     * belongs to query i and key j; without an index rows is odd, and it is row j - i + rows / 2, cut to the table.
     * Another row is WF_ERR_ARGUMENT; on a GPU the next read to the host returns it. */
    wf_var *bias;
    const wf_tensor *bias_index;
    /* For wf_attention_ring: a rank computes with the k-th first and the k-th last of 2 P blocks of tokens, so that
     * ranks have equal work with a causal mask. q, k and v move there and y back: about 4 N T E / P numbers more. */
    bool paired;
    wf_attention_cut cut; /* for wf_attention_tokens */
} wf_attention_opts;

/* y[i] = sum_j softmax_j(scale q[i] . k[j] + bias + mask) v[j] for each head: q [N,T,heads D], k [N,S,heads D] and v
 * [N,S,heads E] give [N,T,heads E], row-major. bf16 and f16 are summed in f32. No array of T S elements is made, in
 * forward or backward. A query that sees no key gives 0, and no gradient.
 * Samples may have two or three dimensions, as windows of images have: [N,rows,columns,T,E]. Sample by sample they
 * count row by row, in lengths, masks (N: of this rank) and regions (n: of the whole); any of these dimensions may be
 * sharded.
 * Samples may be sharded, and features, if each rank has whole heads; the three have one layout. Dropout does not
 * depend on the partition. Tokens that are sharded are WF_ERR_SHAPE; wf_attention_by_heads takes them. A bias that is
 * the value of a parameter has its gradient summed by the optimizer; that of a variable with a layout is summed in
 * backward over the axes that cut q. One that was computed and has no layout is WF_ERR_SHAPE where heads are sharded,
 * and otherwise this rank's, which the optimizer sums with that of the parameters behind it. Local, but for that sum.
 */
wf_var *wf_attention(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts opts);
/* wf_attention of q [N,T,E], k and v [N,S,E], whose tokens may be sharded over an axis at any bounds, also into empty
 * parts. One redistribution of the three (of other bounds than the queries': one of q, one of k and v) gives each rank
 * all tokens of its heads (balanced blocks, which may be uneven or empty), one takes y back to the ranks of its tokens;
 * backward has the same, reversed. Of p ranks each sends about 3 (p-1)/p N T E / p numbers, then a third of that.
 * Masks, lengths, regions and the index of a bias are those of whole tokens; a mask has 1 in the place of heads. A
 * wrong shape or type of one is an error of all ranks before anything is sent. Collective over that axis. Where no axis
 * cuts tokens: wf_attention. */
WF_PLACED wf_var *wf_attention_by_heads(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts opts);
/* wf_attention_by_heads as a ring: a rank keeps its queries; blocks of keys and values go from rank to rank while it
 * computes with the one at hand, and results are joined by their logarithmic sums. Of p ranks each sends 2 (p-1) N S E
 * / p numbers in forward, and in backward as many and p/(p-1) as many of f32 (of f64 for f64) again for the gradients
 * of k and v. Any number of heads; another axis may cut features between heads, and a rank then does all this for its
 * own heads. It holds two blocks at a time beside its own tokens. Options are those of whole tokens; a mask may have
 * heads, this rank's. Equal to wf_attention but for the order of sums, which is fixed for a number of ranks. Collective
 * over that axis. */
WF_PLACED wf_var *wf_attention_ring(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts opts);
/* wf_attention_by_heads or wf_attention_ring, as opts.cut says; a mask then has 1 in the place of heads. Collective
 * over the axis that cuts tokens. Where none does: wf_attention. */
WF_PLACED wf_var *wf_attention_tokens(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts opts);

/* What wf_attention_tokens does. */
typedef struct wf_attention_choice {
    wf_attention_cut cut;     /* WF_ATTENTION_CHEAPER: no axis cuts tokens */
    double by_heads, by_ring; /* bytes that a rank sends in a step of training, on average over the axis */
} wf_attention_choice;
/* The choice for q [N,T,E] and k [N,S,E], the same on all ranks. A variable of NULL has none. Local. */
wf_attention_choice wf_attention_choose(const wf_var *q, const wf_var *k, const wf_attention_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
