/* Gradients that travel compressed, with error feedback: what a step leaves out is added to the next one's gradient. An
 * example of wf_multi_node_opts.reduce (optim/reduce_author.h).
 *
 *   powersgd:R  every matrix n x m as the product of n x R and m x R, after one step of a power iteration that goes on
 *               from step to step (Vogels et al. 2019); what would not become shorter is sent as it is
 *   topk:S      the share S of the elements that are largest by magnitude, each with its place
 */
#ifndef EXAMPLES_COMPRESSION_H
#define EXAMPLES_COMPRESSION_H

#include <weft/weft.h>

typedef struct compression compression;

#define COMPRESSION_COMPLAINT 256

/* NULL, with a complaint, for a text that is neither of the above; NULL without one for NULL. For one optimizer, which
 * is freed first. f32 alone. */
compression *compression_new(const char *text, char complaint[COMPRESSION_COMPLAINT]);
void compression_free(compression *c);
/* With the reduction in place; c NULL: as they are. */
wf_multi_node_opts compression_opts(compression *c, wf_multi_node_opts opts);

/* Elements that the last step of this rank put in place of its gradients (a place counts as one), and these. */
int64_t compression_sent(const compression *c);
int64_t compression_given(const compression *c);
/* What was left out of a bucket so far; NULL where there is none. */
const float *compression_error(const compression *c, int64_t bucket, int64_t *count);

#endif
