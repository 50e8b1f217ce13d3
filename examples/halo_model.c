/* Predicts bytes and messages of a spatially parallel convolution by counting, independently of the library whose
 * numbers it is compared with. */
#include "examples/halo_model.h"

#include <stdlib.h>

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

/* What a sample says a byte costs, and how much it counts. */
typedef struct vote {
    double beta, weight;
} vote;

static int ascending(const void *a, const void *b)
{
    const double x = ((const vote *)a)->beta, y = ((const vote *)b)->beta;
    return (x > y) - (x < y);
}

/* The weighted median, at which the sum of weighted distances is least. */
static double middle(vote *votes, int64_t count)
{
    double all = 0, below = 0;
    qsort(votes, (size_t)count, sizeof *votes, ascending);
    for (int64_t i = 0; i < count; i++)
        all += votes[i].weight;
    for (int64_t i = 0; i < count; i++) {
        below += votes[i].weight;
        if (2 * below >= all)
            return votes[i].beta;
    }
    return 0;
}

static double alpha_of(const halo_sample *shortest, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += shortest[i].seconds / shortest[i].messages / (double)count;
    return sum;
}

halo_cost halo_fit(const halo_sample *shortest, int64_t shortests, const halo_sample *sample, int64_t count)
{
    vote *votes = calloc((size_t)count + 1, sizeof *votes);
    halo_cost cost = {.alpha = alpha_of(shortest, shortests)};
    int64_t n = 0;
    for (int64_t i = 0; votes && i < count; i++)
        if (sample[i].bytes > 0 && sample[i].seconds > 0)
            votes[n++] = (vote){(sample[i].seconds - cost.alpha * sample[i].messages) / sample[i].bytes,
                                sample[i].bytes / sample[i].seconds};
    cost.beta = middle(votes, n);
    cost.beta = cost.beta > 0 ? cost.beta : 0;
    cost.known = n > 0 && shortests > 0;
    free(votes);
    return cost;
}

double halo_predict(const halo_cost *cost, halo_sent sent)
{
    return cost->alpha * (double)sent.messages + cost->beta * (double)sent.bytes;
}
