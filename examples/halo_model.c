#include "examples/halo_model.h"

#include <math.h>

#define LEAST_OFF 0.01 /* an error below this is as good as none */
#define FITS      20

static halo_span cut(int64_t lo, int64_t hi, int64_t length)
{
    lo = lo < 0 ? 0 : lo;
    hi = hi > length ? length : hi;
    return lo < hi ? (halo_span){lo, hi} : (halo_span){0, 0};
}

static int64_t pad(const halo_case *c)
{
    return c->kernel / 2;
}

static int64_t outputs(const halo_case *c, int d)
{
    return c->length[d] + 2 * pad(c) - c->kernel + 1;
}

halo_span halo_own(const halo_case *c, int d, int r)
{
    const int64_t each = c->length[d] / c->ranks[d], more = c->length[d] % c->ranks[d];
    const int64_t lo = r * each + (r < more ? r : more);
    return cut(lo, lo + each + (r < more), c->length[d]);
}

/* Outputs are where their centre tap is. */
static int64_t first_output(const halo_case *c, int d, int r)
{
    if (r == 0 || r == c->ranks[d])
        return r ? outputs(c, d) : 0;
    const int64_t each = c->length[d] / c->ranks[d], more = c->length[d] % c->ranks[d];
    const int64_t at = r * each + (r < more ? r : more) + pad(c) - (c->kernel - 1) / 2;
    return at < 0 ? 0 : at > outputs(c, d) ? outputs(c, d) : at;
}

halo_span halo_outputs(const halo_case *c, int d, int r)
{
    return cut(first_output(c, d, r), first_output(c, d, r + 1), outputs(c, d));
}

halo_span halo_reads(const halo_case *c, int d, int r)
{
    const halo_span y = halo_outputs(c, d, r);
    return y.lo < y.hi ? cut(y.lo - pad(c), y.hi - 1 - pad(c) + c->kernel, c->length[d]) : y;
}

halo_span halo_readers(const halo_case *c, int d, int r)
{
    const halo_span x = halo_own(c, d, r);
    return x.lo < x.hi ? cut(x.lo + pad(c) - c->kernel + 1, x.hi + pad(c), outputs(c, d)) : x;
}

typedef halo_span (*span_of)(const halo_case *c, int d, int r);

static int64_t common(halo_span a, halo_span b)
{
    const int64_t lo = a.lo > b.lo ? a.lo : b.lo, hi = a.hi < b.hi ? a.hi : b.hi;
    return lo < hi ? hi - lo : 0;
}

/* What is in both `mine` of this rank and `theirs` of the others. */
static halo_sent shared(const halo_case *c, int rank, span_of mine, span_of theirs)
{
    const int row = rank / c->ranks[1], column = rank % c->ranks[1];
    const halo_span height = mine(c, 0, row), width = mine(c, 1, column);
    halo_sent sent = {0};
    for (int i = 0; i < c->ranks[0]; i++) {
        const int64_t rows = common(height, theirs(c, 0, i));
        for (int j = 0; rows > 0 && j < c->ranks[1]; j++) {
            const int64_t columns = common(width, theirs(c, 1, j));
            if (columns > 0 && (i != row || j != column)) {
                sent.bytes += rows * columns * c->channels * 4;
                sent.messages++;
            }
        }
    }
    return sent;
}

halo_sent halo_forward(const halo_case *c, int rank)
{
    return shared(c, rank, halo_own, halo_reads);
}

halo_sent halo_backward(const halo_case *c, int rank)
{
    int64_t travels = 0, returns = 0;
    for (int r = 0; r < c->ranks[0] * c->ranks[1]; r++) {
        travels += shared(c, r, halo_outputs, halo_readers).bytes;
        returns += shared(c, r, halo_reads, halo_own).bytes;
    }
    return travels <= returns ? shared(c, rank, halo_outputs, halo_readers) : shared(c, rank, halo_reads, halo_own);
}

halo_sent halo_busiest(const halo_case *c)
{
    halo_sent most = {0};
    for (int r = 0; r < c->ranks[0] * c->ranks[1]; r++) {
        const halo_sent sent = halo_forward(c, r);
        if (sent.bytes > most.bytes)
            most = sent;
    }
    return most;
}

int64_t halo_most_outputs(const halo_case *c)
{
    int64_t most = 0;
    for (int r = 0; r < c->ranks[0] * c->ranks[1]; r++) {
        const halo_span y = halo_outputs(c, 0, r / c->ranks[1]), x = halo_outputs(c, 1, r % c->ranks[1]);
        const int64_t count = (y.hi - y.lo) * (x.hi - x.lo);
        most = count > most ? count : most;
    }
    return most;
}

void halo_grid(int ranks, int grid[2])
{
    grid[0] = 1;
    for (int i = 2; i * i <= ranks; i++)
        if (ranks % i == 0)
            grid[0] = i;
    grid[1] = ranks / grid[0];
}

/* Errors are relative to what lies between the predicted and the measured, so that neither too much nor too little is
 * cheaper; and count less where an earlier fit is far off. */
static double weight_of(const halo_sample *s, const halo_cost *earlier)
{
    const double predicted = earlier->alpha * s->messages + earlier->beta * s->bytes;
    if (!(predicted > 0))
        return 1 / s->seconds;
    const double middle = sqrt(predicted * s->seconds), off = fabs(predicted - s->seconds) / middle;
    return 1 / middle / sqrt(off > LEAST_OFF ? off : LEAST_OFF);
}

/* The least squares of weighted errors. */
static halo_cost fit_weighted(const halo_sample *sample, int64_t count, const halo_cost *earlier)
{
    double mm = 0, mb = 0, bb = 0, m = 0, b = 0;
    for (int64_t i = 0; i < count; i++) {
        const double weight = weight_of(&sample[i], earlier);
        const double messages = sample[i].messages * weight, bytes = sample[i].bytes * weight;
        mm += messages * messages;
        mb += messages * bytes;
        bb += bytes * bytes;
        m += messages * sample[i].seconds * weight;
        b += bytes * sample[i].seconds * weight;
    }
    const double area = mm * bb - mb * mb;
    if (count < 2 || !(area > 1e-9 * mm * bb))
        return (halo_cost){0};
    halo_cost cost = {.alpha = (m * bb - b * mb) / area, .beta = (b * mm - m * mb) / area, .known = true};
    /* Neither costs less than nothing. */
    if (cost.alpha < 0)
        cost = (halo_cost){.beta = b / bb, .known = true};
    else if (cost.beta < 0)
        cost = (halo_cost){.alpha = m / mm, .known = true};
    return cost;
}

/* Weights of one over the square root of an error make the sum of squares one of errors. */
halo_cost halo_fit(const halo_sample *sample, int64_t count)
{
    halo_cost cost = {0};
    for (int i = 0; i < FITS; i++)
        cost = fit_weighted(sample, count, &cost);
    return cost;
}

double halo_predict(const halo_cost *cost, halo_sent sent)
{
    return cost->alpha * (double)sent.messages + cost->beta * (double)sent.bytes;
}
