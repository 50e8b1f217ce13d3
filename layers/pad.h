/* Functions that continue a variable beyond its edges, and that move it round, of any type and any number of
 * dimensions, on one rank and of parts on many. The result has the input's type and order of memory.
 *
 * Where dimensions that change are cut over a mesh, the ranks of those axes call the function together: each direction
 * is one exchange, in which each rank gets what its part of the result lacks. Dimensions that are not cut, or do not
 * change, send nothing. The result is that of the serial program bit for bit; gradients are added in a fixed order.
 */
#ifndef WF_LAYERS_PAD_H
#define WF_LAYERS_PAD_H

#include "core/boundary.h"
#include "core/site.h"
#include "core/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns x with lo[d] elements more before dimension d and hi[d] after it, as the boundary says; a negative number
 * takes elements away. The default edge is constant, of `value` (0). lo and hi have as many entries as x dimensions.
 * Each rank keeps its part of a dimension that is cut; the first and the last one get what is added. `boundary` with
 * its list of channels is copied. Collective over the axes that cut dimensions that change; local otherwise.
 * WF_ERR_SHAPE for an edge that is asked for more than it is defined for (core/boundary.h), for a length below 0 and
 * for a partial sum; WF_ERR_UNSUPPORTED for samples of a chunk of a pipeline that are cut over data. */
WF_PLACED wf_var *wf_pad(wf_var *x, const int64_t *lo, const int64_t *hi, wf_boundary boundary);

/* Returns x with its elements moved up by shifts[i] along dimension dims[i], for each of `count`, and those that pass
 * the end at the beginning: y[(j + shift) mod length] = x[j]. Shifts may be negative and longer than the dimension;
 * those of a dimension that is listed twice add up. The layout is x's. Collective and local as wf_pad is, with its
 * errors; WF_ERR_ARGUMENT for a dimension that x has not. */
WF_PLACED wf_var *wf_roll(wf_var *x, int count, const int64_t *shifts, const int *dims);

#ifdef __cplusplus
}
#endif

#endif
