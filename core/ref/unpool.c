/* Places of maxima, and images made of them, in plain loops: the oracle. */
#include "core/ref/ref_impl.h"

#include <string.h>

wf_status wf_ref_pool_places(wf_ctx *ctx, const wf_places_args *a)
{
    const int32_t *const index = a->index->data;
    int64_t *const y = a->y->data;
    (void)ctx;
    /* Places inside this rank's image, of lengths `length` from `lo`, become places of the whole one. The coordinates
     * of a place are found from the last dimension to the first. */
    for (int64_t i = 0; i < wf_array_count(a->y); i++) {
        int64_t rest = index[i], place = 0, step = 1;
        for (int d = a->nd - 1; d >= 0 && index[i] >= 0; d--) {
            place += (rest % a->length[d] + a->lo[d]) * step;
            rest /= a->length[d];
            step *= a->whole[d];
        }
        y[i] = index[i] >= 0 ? place : -1;
    }
    return WF_OK;
}

/* Marks the larger image's pixels; a later pixel of the smaller one takes the place of an earlier one. */
static wf_status take_places(const wf_unpool_args *a, int64_t n, int64_t c, int64_t pixels, int64_t places)
{
    int32_t *const index = a->index->data, *const taken = a->taken->data;
    for (int64_t i = 0; i < n * pixels * c; i++) {
        const int64_t sample = i / (pixels * c);
        int64_t place;
        WF_TRY(wf_ref_integer("places", a->places, i, &place));
        WF_CHECK(place >= -1 && place < places, WF_ERR_ARGUMENT, "place %lld of element %lld is outside [0, %lld)",
                 (long long)place, (long long)i, (long long)places);
        index[i] = (int32_t)place;
        if (place >= 0)
            taken[(sample * places + place) * c + i % c] = (int32_t)(i / c % pixels);
    }
    return WF_OK;
}

wf_status wf_ref_unpool_index(wf_ctx *ctx, const wf_unpool_args *a)
{
    int64_t n, c, pixels, places;
    int32_t *const index = a->index->data, *const taken = a->taken->data;
    (void)ctx;
    wf_array_ncp(a->taken, &n, &c, &places);
    wf_array_ncp(a->index, &n, &c, &pixels);
    for (int64_t i = 0; i < n * places * c; i++)
        taken[i] = -1;
    WF_TRY(take_places(a, n, c, pixels, places));
    /* A pixel whose place was taken by a later one is struck out, so that backward gives it no gradient. */
    for (int64_t i = 0; i < n * pixels * c; i++)
        if (index[i] >= 0 && taken[(i / (pixels * c) * places + index[i]) * c + i % c] != i / c % pixels)
            index[i] = -1;
    return WF_OK;
}

wf_status wf_ref_pick_pixels(wf_ctx *ctx, const wf_array *x, const wf_array *index, const wf_array *y)
{
    int64_t n, c, from, to;
    const int32_t *const at = index->data;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, x);
    double *const yv = wf_ref_out(&frame, y, false);
    wf_array_ncp(x, &n, &c, &from);
    wf_array_ncp(y, &n, &c, &to);
    for (int64_t i = 0; i < n * to * c && frame.status == WF_OK; i++)
        yv[i] = at[i] < 0 ? 0 : xv[(i / (to * c) * from + at[i]) * c + i % c];
    return wf_ref_end(&frame);
}
