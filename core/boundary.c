/* Boundaries: a box that reaches beyond the edges of an array, as pieces of the array. Every dimension is cut into runs
 * that come from the array in one way; pieces are the products of runs. Pure geometry. */
#include "core/boundary_author.h"

const char *wf_edge_name(wf_edge edge)
{
    static const char *const names[WF_EDGES] = {"default",   "constant",  "circular", "reflect",
                                                "symmetric", "replicate", "pole"};
    return (int)edge >= 0 && edge < WF_EDGES ? names[edge] : "no edge";
}

wf_piece wf_piece_of(int peer, wf_box box)
{
    wf_piece piece = {.peer = peer, .box = box, .at = box};
    for (int d = 0; d < WF_MAX_RANK; d++)
        piece.step[d] = 1;
    return piece;
}

bool wf_piece_plain(const wf_piece *piece)
{
    for (int d = 0; d < piece->box.rank; d++)
        if (piece->step[d] != 1)
            return false;
    return !piece->negate;
}

bool wf_piece_stays(const wf_piece *piece)
{
    return wf_piece_plain(piece) && wf_box_equal(piece->box, piece->at);
}

/* The part of a piece that has the source `part`. Against step -1 the place runs backwards, so the two ends swap; with
 * step 0 one element fills every place, so any part is all of it. */
wf_piece wf_piece_part(const wf_piece *piece, wf_box part)
{
    wf_piece p = *piece;
    p.box = part;
    for (int d = 0; d < part.rank; d++) {
        const int64_t from_lo = part.lo[d] - piece->box.lo[d], from_hi = piece->box.hi[d] - part.hi[d];
        if (piece->step[d] == 0)
            continue;
        p.at.lo[d] += piece->step[d] > 0 ? from_lo : from_hi;
        p.at.hi[d] -= piece->step[d] > 0 ? from_hi : from_lo;
    }
    return p;
}

wf_edge wf_boundary_edge(const wf_boundary *boundary, int dim, bool upper)
{
    const wf_edge own = upper ? boundary->hi[dim] : boundary->lo[dim];
    return own != WF_EDGE_DEFAULT ? own : boundary->edge;
}

/* --- checks ---------------------------------------------------------------------------------------------------------
 */

/* The dimension with a pole; -1: there is none. */
static int pole_of(const wf_boundary *b, int rank)
{
    int pole = -1;
    for (int d = 0; d < rank; d++)
        if (wf_boundary_edge(b, d, false) == WF_EDGE_POLE || wf_boundary_edge(b, d, true) == WF_EDGE_POLE)
            pole = d;
    return pole;
}

/* WF_DIM(d) is d + 1, so that 0 can mean the last dimension. */
static int turned_of(const wf_boundary *b, int rank)
{
    return b->turned ? b->turned - 1 : rank - 1;
}

/* True: the need crosses an edge of dimension d that is a pole. */
static bool leaves(wf_shape global, const wf_boundary *b, wf_box need, int d)
{
    return (need.lo[d] < 0 && wf_boundary_edge(b, d, false) == WF_EDGE_POLE) ||
           (need.hi[d] > global.dim[d] && wf_boundary_edge(b, d, true) == WF_EDGE_POLE);
}

static bool turns(wf_shape global, const wf_boundary *b, wf_box need)
{
    const int pole = pole_of(b, global.rank);
    return pole >= 0 && leaves(global, b, need, pole);
}

bool wf_boundary_moves(wf_shape global, const wf_boundary *boundary, wf_box need, int dim)
{
    if (need.lo[dim] != 0 || need.hi[dim] != global.dim[dim])
        return true;
    return turns(global, boundary, need) &&
           (dim == turned_of(boundary, global.rank) || (dim == 1 && boundary->n_negated > 0));
}

wf_status wf_boundary_check(const wf_boundary *b, int rank)
{
    int poles = 0;
    for (int d = 0; d < rank; d++) {
        const wf_edge lo = wf_boundary_edge(b, d, false), hi = wf_boundary_edge(b, d, true);
        WF_CHECK((int)lo >= 0 && lo < WF_EDGES && (int)hi >= 0 && hi < WF_EDGES, WF_ERR_ARGUMENT,
                 "the edges of dimension %d are %d and %d; should be of wf_edge", d, (int)lo, (int)hi);
        poles += lo == WF_EDGE_POLE || hi == WF_EDGE_POLE;
    }
    WF_CHECK(poles < 2, WF_ERR_ARGUMENT, "%d dimensions with a pole; should be one at most", poles);
    WF_CHECK(b->n_negated == 0 || (b->n_negated > 0 && b->negated), WF_ERR_ARGUMENT,
             "%d channels that change their sign, listed %s", b->n_negated, b->negated ? "somewhere" : "nowhere");
    return WF_OK;
}

/* Checks the other dimensions of a need that goes beyond a pole. Half way round must be an element, hence the even
 * length, and the rows must close to circles. Signs belong to whole channels that stay where they are. */
static wf_status check_pole(wf_shape global, const wf_boundary *b, wf_box need, int pole)
{
    const int turned = turned_of(b, global.rank);
    WF_CHECK(turned >= 0 && turned < global.rank && turned != pole, WF_ERR_ARGUMENT,
             "the pole of dimension %d turns dimension %d of %d; should be another one of them", pole, turned,
             global.rank);
    WF_CHECK(wf_boundary_edge(b, turned, false) == WF_EDGE_CIRCULAR &&
                 wf_boundary_edge(b, turned, true) == WF_EDGE_CIRCULAR && global.dim[turned] % 2 == 0,
             WF_ERR_SHAPE,
             "a pole turns dimension %d of %lld elements, whose edges are %s and %s; should be of even "
             "length, and circular",
             turned, (long long)global.dim[turned], wf_edge_name(wf_boundary_edge(b, turned, false)),
             wf_edge_name(wf_boundary_edge(b, turned, true)));
    if (b->n_negated == 0)
        return WF_OK;
    /* The runs of signs are cut along dimension 1, which must then have no other cuts. */
    WF_CHECK(pole != 1 && turned != 1 && need.lo[1] >= 0 && need.hi[1] <= global.dim[1], WF_ERR_ARGUMENT,
             "%d channels (dimension 1) change their sign across a pole; should neither be padded, turned nor mirrored",
             b->n_negated);
    for (int i = 0; i < b->n_negated; i++)
        WF_CHECK(b->negated[i] >= 0 && b->negated[i] < global.dim[1] && (i == 0 || b->negated[i] > b->negated[i - 1]),
                 WF_ERR_ARGUMENT,
                 "channel %lld of %lld changes its sign across a pole; should be below that, and above "
                 "the one before it",
                 (long long)b->negated[i], (long long)global.dim[1]);
    return WF_OK;
}

/* How far a need may go beyond an edge of this kind: one round, or one mirror image. Elements further out are not
 * defined. Replicate needs an element to repeat; the others have no bound. */
static int64_t most_beyond(const wf_boundary *b, wf_edge edge, int64_t length)
{
    switch (edge) {
    case WF_EDGE_CIRCULAR:
    case WF_EDGE_SYMMETRIC:
        return length;
    case WF_EDGE_REFLECT:
        return length - 1;
    case WF_EDGE_POLE:
        return b->row_on_pole ? length - 1 : length;
    case WF_EDGE_REPLICATE:
        return length > 0 ? INT64_MAX : 0;
    default:
        return INT64_MAX;
    }
}

static wf_status check_side(wf_shape global, const wf_boundary *b, int d, bool upper, int64_t beyond)
{
    const wf_edge edge = wf_boundary_edge(b, d, upper);
    const int64_t most = most_beyond(b, edge, global.dim[d]);
    WF_CHECK(beyond <= 0 || beyond <= most, WF_ERR_SHAPE,
             "%lld elements beyond the %s edge of dimension %d, which is %s and of length %lld; should be %lld at most",
             (long long)beyond, upper ? "upper" : "lower", d, wf_edge_name(edge), (long long)global.dim[d],
             (long long)(most > 0 ? most : 0));
    return WF_OK;
}

/* --- runs and pieces ------------------------------------------------------------------------------------------------
 */

/* Elements [lo, hi) of a need along one dimension, which come from the array in one way. */
typedef struct run {
    int64_t lo, hi, from; /* the first element of the source: the lowest */
    int8_t step;
    bool fills, negate;
} run;

typedef struct walk {
    wf_shape global;
    const wf_boundary *b;
    wf_box need;
    int pole, turned;
    bool beyond; /* the pole, in what is walked now */
    wf_piece piece;
    wf_piece_visit *visit;
    void *own;
} walk;

/* The quotient rounded down, where C rounds towards 0: places before the lower edge are negative. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/* Elements beyond a pole along the turned dimension: element i comes from i + half, modulo the length. A run ends where
 * that source wraps round. */
static run turned_run(const walk *w, int d, int64_t lo)
{
    const int64_t length = w->global.dim[d], half = length / 2, round = floor_div(lo + half, length);
    const int64_t end = (round + 1) * length - half;
    return (run){
        .lo = lo, .hi = end < w->need.hi[d] ? end : w->need.hi[d], .from = lo + half - round * length, .step = 1};
}

static run run_beyond(const walk *w, int d, run r, bool upper)
{
    const wf_edge edge = wf_boundary_edge(w->b, d, upper);
    const int64_t length = w->global.dim[d];
    const bool once = edge == WF_EDGE_REFLECT || (edge == WF_EDGE_POLE && w->b->row_on_pole);
    switch (edge) {
    case WF_EDGE_CIRCULAR:
        r.from = upper ? r.lo - length : r.lo + length;
        return r;
    case WF_EDGE_REFLECT:
    case WF_EDGE_SYMMETRIC:
    case WF_EDGE_POLE:
        /* Element i mirrors -i, or -1 - i where the edge is repeated; beyond the other edge 2 (length - 1) - i, or
         * 2 length - 1 - i. The last element comes from the lowest one. */
        r.from = (upper ? 2 * length - 1 : 0) - (r.hi - 1) - (once ? upper : 1 - upper);
        r.step = -1;
        return r;
    case WF_EDGE_REPLICATE:
        r.from = upper ? length - 1 : 0;
        r.step = 0;
        return r;
    default:
        r.fills = true;
        return r;
    }
}

static bool is_negated(const wf_boundary *b, int64_t channel)
{
    for (int i = 0; i < b->n_negated; i++)
        if (b->negated[i] == channel)
            return true;
    return false;
}

/* The longest run that begins at `lo`. Beyond a pole, runs of channels end also where the sign changes. */
static run run_at(const walk *w, int d, int64_t lo)
{
    const int64_t length = w->global.dim[d], end = w->need.hi[d];
    if (w->beyond && d == w->turned)
        return turned_run(w, d, lo);
    if (lo < 0)
        return run_beyond(w, d, (run){.lo = lo, .hi = end < 0 ? end : 0, .step = 1}, false);
    if (lo >= length)
        return run_beyond(w, d, (run){.lo = lo, .hi = end, .step = 1}, true);
    run r = {.lo = lo, .hi = end < length ? end : length, .from = lo, .step = 1};
    if (!w->beyond || d != 1 || w->b->n_negated == 0)
        return r;
    r.negate = is_negated(w->b, lo);
    for (int64_t c = lo + 1; c < r.hi; c++)
        if (is_negated(w->b, c) != r.negate)
            r.hi = c;
    return r;
}

/* The pole's dimension is walked first, since it says how another one is. */
static int dim_at(const walk *w, int level)
{
    if (w->pole < 0)
        return level;
    return level == 0 ? w->pole : level <= w->pole ? level - 1 : level;
}

static wf_status walk_from(walk *w, int level);

static wf_status walk_run(walk *w, int level, run r)
{
    const int d = dim_at(w, level);
    wf_piece *p = &w->piece;
    const bool negated = p->negate;
    p->at.lo[d] = r.lo;
    p->at.hi[d] = r.hi;
    if (r.fills) {
        /* Along the dimensions that are still to be walked, the need is filled as a whole. */
        for (int l = level + 1; l < w->global.rank; l++) {
            p->at.lo[dim_at(w, l)] = w->need.lo[dim_at(w, l)];
            p->at.hi[dim_at(w, l)] = w->need.hi[dim_at(w, l)];
        }
        return w->visit(w->own, p, true);
    }
    p->box.lo[d] = r.from;
    p->box.hi[d] = r.from + (r.step == 0 ? 1 : r.hi - r.lo);
    /* A run of one element has no direction, so it counts as plain. */
    p->step[d] = r.hi - r.lo == 1 ? 1 : r.step;
    /* Along each path of dimensions at most one run changes the sign: that of the channels. */
    p->negate = negated || r.negate;
    const wf_status status = walk_from(w, level + 1);
    p->negate = negated;
    return status;
}

static wf_status walk_from(walk *w, int level)
{
    if (level == w->global.rank)
        return w->visit(w->own, &w->piece, false);
    const int d = dim_at(w, level);
    for (int64_t lo = w->need.lo[d]; lo < w->need.hi[d];) {
        const run r = run_at(w, d, lo);
        /* Set before the inner dimensions are walked, whose runs depend on it; run_at does not read it for the pole's
         * own. */
        if (d == w->pole)
            w->beyond = (lo < 0 || lo >= w->global.dim[d]) && wf_boundary_edge(w->b, d, lo >= 0) == WF_EDGE_POLE;
        WF_TRY(walk_run(w, level, r));
        lo = r.hi;
    }
    return WF_OK;
}

wf_status wf_boundary_pieces(wf_shape global, const wf_boundary *boundary, wf_box need, int peer, wf_piece_visit *visit,
                             void *own)
{
    /* Without a boundary nothing lies beyond an edge, and the need is one piece. */
    if (!boundary) {
        if (wf_box_empty(need))
            return WF_OK;
        const wf_piece all = wf_piece_of(peer, need);
        return visit(own, &all, false);
    }
    WF_TRY(wf_boundary_check(boundary, global.rank));
    /* Before the look for an empty need: a rank without samples has the error that the others have. */
    for (int d = 0; d < global.rank; d++) {
        if (need.lo[d] >= need.hi[d])
            continue;
        WF_TRY(check_side(global, boundary, d, false, -need.lo[d]));
        WF_TRY(check_side(global, boundary, d, true, need.hi[d] - global.dim[d]));
    }
    walk w = {.global = global, .b = boundary, .need = need, .pole = -1, .visit = visit, .own = own};
    if (turns(global, boundary, need)) {
        w.pole = pole_of(boundary, global.rank);
        w.turned = turned_of(boundary, global.rank);
        WF_TRY(check_pole(global, boundary, need, w.pole));
    }
    if (wf_box_empty(need))
        return WF_OK;
    w.piece = wf_piece_of(peer, need);
    return walk_from(&w, 0);
}
