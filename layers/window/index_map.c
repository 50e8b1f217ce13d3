/* Finds the elements of an input that an output box reads, for convolution, pooling and upsampling alike, and how
 * kernels compute a box of outputs from a box of inputs. Pure arithmetic. */
#include "layers/window/window_impl.h"

#include "core/neighbourhood_author.h"

/* True if any side of a spatial dimension has an edge of its own. */
bool wf_boundary_given(const wf_boundary *boundary, int nd)
{
    for (int d = 2; d < 2 + nd; d++)
        if (wf_boundary_edge(boundary, d, false) != WF_EDGE_DEFAULT ||
            wf_boundary_edge(boundary, d, true) != WF_EDGE_DEFAULT)
            return true;
    return false;
}

/* How far beyond an edge the outputs of a dimension read at most. */
static int64_t most_read(const wf_index_map *index_map, int d, bool upper)
{
    const wf_window w = index_map->window[d];
    int64_t most = 0;
    if (index_map->kind == WF_INDEX_MAP_WINDOW)
        most = upper ? w.pad_hi : w.pad_lo;
    /* Linear resampling by centres reads half an input beyond the edge, so one. */
    else if (index_map->kind == WF_INDEX_MAP_RESAMPLE)
        most = index_map->resample.linear && !index_map->resample.align_corners && index_map->resample.scale[d] > 1;
    else if (index_map->kind == WF_INDEX_MAP_WINDOW_BACK && !upper)
        most = (wf_window_extent(w) - 1 - w.pad_lo) / w.stride;
    else if (index_map->kind == WF_INDEX_MAP_WINDOW_BACK)
        most = (index_map->out[d] - 1 + w.pad_lo) / w.stride + 1 - index_map->in[d];
    return most > 0 ? most : 0;
}

/* Only sides with an edge of their own go on; what no window reaches does not matter. */
void wf_index_map_continue(wf_index_map *index_map, const wf_boundary *boundary)
{
    bool beyond = false;
    for (int d = 0; boundary && d < index_map->nd; d++) {
        if (wf_boundary_edge(boundary, 2 + d, false) != WF_EDGE_DEFAULT)
            index_map->lo[d] = most_read(index_map, d, false);
        if (wf_boundary_edge(boundary, 2 + d, true) != WF_EDGE_DEFAULT)
            index_map->hi[d] = most_read(index_map, d, true);
        beyond = beyond || index_map->lo[d] > 0 || index_map->hi[d] > 0;
        /* The kernel sees the longer picture, and counts from its first element. */
        if (index_map->kind == WF_INDEX_MAP_RESAMPLE)
            index_map->resample.in[d] += index_map->lo[d] + index_map->hi[d];
    }
    index_map->boundary = beyond ? boundary : NULL;
}

/* Backward reads outputs to make gradients of inputs: the same windows, seen from the other side. */
wf_index_map wf_index_map_inverse(const wf_index_map *index_map)
{
    wf_index_map inverse = *index_map;
    inverse.boundary = NULL;
    inverse.kind = index_map->kind == WF_INDEX_MAP_WINDOW ? WF_INDEX_MAP_WINDOW_BACK : WF_INDEX_MAP_WINDOW;
    for (int d = 0; d < index_map->nd; d++) {
        inverse.in[d] = index_map->out[d];
        inverse.out[d] = index_map->in[d];
        inverse.lo[d] = inverse.hi[d] = 0;
    }
    return inverse;
}

/* Farther than any chain reads; products with strides fit 63 bits. */
#define FAR (INT64_C(1) << 40)

/* The window over inputs that are counted from `lo` before the first one. */
static wf_window moved_window(const wf_index_map *index_map, int d, int64_t lo)
{
    wf_window w = index_map->window[d];
    w.pad_lo += index_map->kind == WF_INDEX_MAP_WINDOW ? -lo : w.stride * lo;
    return w;
}

/* The elements inside that make these, of which some may be beyond the edges; all between them too. A constant edge is
 * made of nothing. */
static wf_range made_of(const wf_index_map *index_map, int d, wf_range r)
{
    const int64_t length = index_map->in[d], below = -r.lo, above = r.hi - length;
    const wf_boundary *b = index_map->boundary;
    if (r.lo >= r.hi || !b || index_map->round[d])
        return r;
    wf_range inside = {r.lo < 0 ? 0 : r.lo < length ? r.lo : length, r.hi < length ? r.hi : length};
    const wf_edge lo = wf_boundary_edge(b, 2 + d, false), hi = wf_boundary_edge(b, 2 + d, true);
    if (below > 0) {
        /* Reflected, the first element beyond is the second inside; symmetric, it is the first. */
        const int64_t end = lo == WF_EDGE_REFLECT     ? below + 1
                            : lo == WF_EDGE_SYMMETRIC ? below
                            : lo == WF_EDGE_REPLICATE ? 1
                                                      : 0;
        inside.hi = end > inside.hi ? end : inside.hi;
    }
    if (above > 0) {
        const int64_t start = length - (hi == WF_EDGE_REFLECT     ? above + 1
                                        : hi == WF_EDGE_SYMMETRIC ? above
                                        : hi == WF_EDGE_REPLICATE ? 1
                                                                  : 0);
        inside.lo = start < inside.lo ? start : inside.lo;
    }
    return inside.lo < inside.hi ? inside : (wf_range){0, 0};
}

/* The pixels of one class see the farther places the farther they are; neighbours may be of different classes. */
static wf_range reads_around(const wf_index_map *index_map, int d, wf_range outputs)
{
    const wf_window w = index_map->window[d];
    const wf_neighbourhood g = {.length = {index_map->in[d]}, .kernel = {w.kernel}, .dilation = {w.dilation}};
    wf_range reads = {index_map->in[d], 0};
    for (int64_t i = 0; i < w.dilation && outputs.lo + i < outputs.hi; i++) {
        const wf_neighbours first = wf_neighbourhood_keys(&g, 0, outputs.lo + i);
        const wf_neighbours last = wf_neighbourhood_keys(&g, 0, outputs.hi - 1 - i);
        const int64_t end = last.first + (last.count - 1) * last.step + 1;
        reads.lo = first.first < reads.lo ? first.first : reads.lo;
        reads.hi = end > reads.hi ? end : reads.hi;
    }
    return reads;
}

wf_range wf_index_map_reads(const wf_index_map *index_map, int d, wf_range outputs)
{
    if (index_map->kind == WF_INDEX_MAP_ALL)
        return (wf_range){0, index_map->in[d]};
    /* From the last layer of the chain back to its input. */
    for (int i = index_map->links - 1; i >= 0; i--)
        outputs = made_of(&index_map->link[i], d, wf_index_map_reads(&index_map->link[i], d, outputs));
    if (outputs.lo >= outputs.hi)
        return (wf_range){0, 0};
    if (index_map->kind == WF_INDEX_MAP_CHAIN)
        return outputs;
    if (index_map->kind == WF_INDEX_MAP_NEIGHBOURHOOD)
        return reads_around(index_map, d, outputs);
    const bool round = index_map->round[d];
    const int64_t lo = round ? FAR : index_map->lo[d],
                  length = index_map->in[d] + lo + (round ? FAR : index_map->hi[d]);
    wf_range reads;
    if (index_map->kind == WF_INDEX_MAP_WINDOW)
        reads = wf_window_reads(moved_window(index_map, d, lo), outputs, length);
    else if (index_map->kind == WF_INDEX_MAP_WINDOW_BACK)
        reads = wf_window_readers(moved_window(index_map, d, lo), outputs, length);
    else if (index_map->kind == WF_INDEX_MAP_RESIZE)
        reads = (wf_range){wf_resize_reads(&index_map->resize, d, outputs.lo).lo,
                           wf_resize_reads(&index_map->resize, d, outputs.hi - 1).hi};
    else {
        const int64_t before = lo * index_map->resample.scale[d];
        const wf_resample_tap first = wf_resample_taps(&index_map->resample, d, outputs.lo + before);
        const wf_resample_tap last = wf_resample_taps(&index_map->resample, d, outputs.hi - 1 + before);
        reads = (wf_range){first.at[0], (last.weight > 0 ? last.at[1] : last.at[0]) + 1};
    }
    return reads.lo < reads.hi ? (wf_range){reads.lo - lo, reads.hi - lo} : (wf_range){0, 0};
}

/* An empty box, of which the other dimensions stay. */
wf_box wf_index_map_nothing(wf_box own)
{
    for (int d = 2; d < own.rank; d++)
        own.lo[d] = own.hi[d] = 0;
    return own;
}

/* Dimensions are independent, so a box reads a box. */
wf_box wf_index_map_box(const wf_index_map *index_map, wf_box outputs, wf_box in)
{
    wf_box box = in;
    for (int d = 0; d < index_map->nd; d++) {
        const wf_range r = wf_index_map_reads(index_map, d, (wf_range){outputs.lo[2 + d], outputs.hi[2 + d]});
        if (r.lo >= r.hi)
            return wf_index_map_nothing(in);
        box.lo[2 + d] = r.lo;
        box.hi[2 + d] = r.hi;
    }
    return box;
}

/* The geometry of a part: the windows of the whole, with what they reach beyond the inputs at hand as padding. */
wf_window wf_index_map_local(const wf_index_map *index_map, int d, wf_range out, wf_range in)
{
    const bool back = index_map->kind == WF_INDEX_MAP_WINDOW_BACK;
    wf_window w = index_map->window[d];
    /* A part without inputs has no window. */
    if (back && in.lo >= in.hi) {
        w.pad_lo = w.pad_hi = 0;
        return w;
    }
    w = back ? wf_window_local(w, in, out) : wf_window_local(w, out, in);
    /* Inputs beyond the last window are not cropped. */
    if (w.pad_hi < 0 && -w.pad_hi < w.stride)
        w.pad_hi = 0;
    return w;
}

wf_conv_geom wf_index_map_geom(const wf_index_map *index_map, wf_box out, wf_box in)
{
    wf_conv_geom g = {.nd = index_map->nd, .groups = 1};
    for (int d = 0; d < index_map->nd; d++) {
        const wf_window w = wf_index_map_local(index_map, d, (wf_range){out.lo[2 + d], out.hi[2 + d]},
                                               (wf_range){in.lo[2 + d], in.hi[2 + d]});
        g.kernel[d] = w.kernel;
        g.stride[d] = w.stride;
        g.dilation[d] = w.dilation;
        g.pad_lo[d] = w.pad_lo;
        g.pad_hi[d] = w.pad_hi;
    }
    return g;
}

wf_resample_geom wf_index_map_resample(const wf_index_map *index_map, wf_box out, wf_box in)
{
    wf_resample_geom geom = index_map->resample;
    for (int d = 0; d < geom.nd; d++) {
        /* The kernel maps indices of the whole picture, so that a part is interpolated at exactly the points of the
         * whole. Elements before the first one come first. */
        geom.in_lo[d] = in.lo[2 + d] + index_map->lo[d];
        geom.out_lo[d] = out.lo[2 + d] + index_map->lo[d] * geom.scale[d];
    }
    return geom;
}
