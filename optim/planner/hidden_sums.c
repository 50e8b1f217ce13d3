/* How much of the sums of gradients shows: backward of a step is played with its buckets, as optim/buckets.c fills them
 * and the background stream sums them, one after the other. While both go on, each is as slow as the meter says. */
#include "optim/planner/planner_impl.h"

static double less(double a, double b)
{
    return a < b ? a : b;
}

wf_hidden_sums wf_hidden_sums_begin(wf_planner_overlap rates)
{
    return (wf_hidden_sums){.rates = rates, .limit = (double)WF_FIRST_BUCKET_BYTES};
}

void wf_hidden_sums_add(wf_hidden_sums *sums, double backward_s, double bytes, double sum_s)
{
    const wf_planner_overlap *rates = &sums->rates;
    const double beside_s = less(backward_s / rates->compute, sums->left_s / rates->sum);
    sums->alone_s += backward_s;
    sums->wall_s += beside_s + backward_s - beside_s * rates->compute;
    sums->left_s -= beside_s * rates->sum;
    sums->bytes += bytes;
    sums->bucket_s += sum_s;
    if (sums->bytes < sums->limit)
        return;
    sums->left_s += sums->bucket_s;
    sums->limit = (double)WF_BUCKET_BYTES;
    sums->bytes = sums->bucket_s = 0;
}

double wf_hidden_sums_shown(wf_hidden_sums *sums)
{
    return sums->wall_s - sums->alone_s + sums->left_s + sums->bucket_s;
}
