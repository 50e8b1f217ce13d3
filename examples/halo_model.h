/* What a spatially parallel convolution should send, by the ranges of windows alone (nothing here asks the library),
 * and what a message costs: alpha seconds, and beta for each of its bytes.
 */
#ifndef EXAMPLES_HALO_MODEL_H
#define EXAMPLES_HALO_MODEL_H

#include <stdbool.h>
#include <stdint.h>

/* One image, stride 1, kernel/2 pads on every side, as many channels out as in, f32. */
typedef struct halo_case {
    bool weak;         /* every rank has size x size; else all have it together */
    int64_t size;      /* as the options say */
    int64_t length[2]; /* of the whole image: height, width */
    int64_t channels, kernel;
    int ranks[2]; /* along height and width; width is fastest */
} halo_case;

typedef struct halo_span {
    int64_t lo, hi; /* [lo, hi), empty as [0, 0) */
} halo_span;

/* Along dimension d (0: height, 1: width), of place r: the inputs and outputs that it owns, the inputs that its outputs
 * read, and the outputs that read its inputs. */
halo_span halo_own(const halo_case *c, int d, int r);
halo_span halo_outputs(const halo_case *c, int d, int r);
halo_span halo_reads(const halo_case *c, int d, int r);
halo_span halo_readers(const halo_case *c, int d, int r);

typedef struct halo_sent {
    int64_t bytes, messages;
} halo_sent;

/* What a rank sends forward, and in backward, where either the outputs' gradients travel to those who need them or the
 * inputs' gradients go back to their owners, whichever is less over all ranks (with WEFT_DETERMINISTIC always the
 * first, which is not looked at here). */
halo_sent halo_forward(const halo_case *c, int rank);
halo_sent halo_backward(const halo_case *c, int rank);
/* Bytes and messages of the rank that sends most bytes forward. */
halo_sent halo_busiest(const halo_case *c);
/* The most outputs of a rank. */
int64_t halo_most_outputs(const halo_case *c);

/* A squarest grid of `ranks`, height no more than width. */
void halo_grid(int ranks, int grid[2]);

typedef struct halo_cost {
    double alpha, beta;
    bool known;
} halo_cost;

typedef struct halo_sample {
    double messages, bytes, seconds;
} halo_sample;

/* alpha is what exchanges that send next to nothing take for each message; with it, beta makes the sum of relative
 * errors least, not of their squares: a few samples that something disturbed do not turn it, nor does either cost take
 * up what the other one leaves. Not known without samples of both kinds. */
halo_cost halo_fit(const halo_sample *shortest, int64_t shortests, const halo_sample *sample, int64_t count);
double halo_predict(const halo_cost *cost, halo_sent sent);

#endif
