/* A decoder of the kind of GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): blocks
 * of causal attention with the normalisations in front, a normalisation behind the last, and a head that is the
 * embedding's matrix (tied weights). */
#ifndef EXAMPLES_MODELS_GPT_H
#define EXAMPLES_MODELS_GPT_H

#include <weft/weft.h>

typedef enum gpt_size {
    GPT_TINY = 0, /* 0.8 M parameters: 4 blocks of 128 features, 128 tokens, bytes */
    GPT_MEDIUM,   /* 30.4 M: 6 blocks of 640 features, 1,024 tokens, bytes */
    GPT_SMALL,    /* GPT-2 small, 124.4 M: 12 blocks of 768 features, 1,024 tokens, 50,257 pieces of words */
    GPT_SIZES
} gpt_size;

typedef struct gpt_opts {
    gpt_size size;
    int64_t symbols;         /* different tokens; default that of the size */
    int64_t tokens;          /* of the longest text; default that of the size */
    int64_t features, heads; /* default those of the size: 128 and 4, 640 and 10, 768 and 12 */
    int blocks;              /* default that of the size */
    bool rotary;             /* rotary positions in attention, in place of learned ones */
    double dropout;
    /* Heads, hidden features, embedding and head are cut over its channel axis (layers/transformer.h), and scores come
     * cut by symbols; tokens may be cut over another axis. NULL: serial. */
    const wf_mesh *mesh;
    wf_attention_cut cut; /* how ranks that share tokens compute attention (layers/attention.h) */
} gpt_opts;

/* The options with their defaults filled in. */
gpt_opts gpt_with_defaults(gpt_opts opts);
/* Tokens [N,T] of an integer type -> scores [N,T,symbols] of the token behind each, for wf_token_cross_entropy. A
 * chain, also for wf_pipeline_new. */
wf_layer *gpt(wf_ctx *ctx, gpt_opts opts);

#endif
