/* A reducer that a program brings along: a ring whose messages are 8-bit integers, with error feedback. It is an
 * example of comm/reducer_author.h; examples/quantized.c is all of it.
 *
 * A message holds one byte an element, and a scale for every 256: about a quarter of the bytes of f32. What rounding
 * leaves out on a rank is kept there and added to the same elements in the next sum of the same buffer, so that no part
 * of a gradient is lost for good. Sums are approximate, and the same on all ranks. The last segment of a buffer, which
 * holds losses and weights, is summed exactly; so is everything that is not f32.
 *
 *     WF_MUST(quantized_register());
 *     wf_comm *comm = wf_comm_open(&argc, &argv, "quantized", (wf_ctx_opts){0});
 */
#ifndef EXAMPLES_QUANTIZED_H
#define EXAMPLES_QUANTIZED_H

#include <weft/core/status.h>

/* Makes "quantized" a communicator's name. Once, before the communicators are opened. */
wf_status quantized_register(void) WF_NODISCARD;

#endif
