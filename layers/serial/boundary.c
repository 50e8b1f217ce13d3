/* The boundary among a layer's options: checked, kept and told in words. */
#include "layers/serial/serial_impl.h"

#include <string.h>

/* Refuses edges of samples and channels, which a program sets that counts from the first spatial dimension. */
static wf_status check_dimensions(const char *name, const wf_boundary *boundary, int nd)
{
    for (int d = 0; d < WF_MAX_RANK; d++) {
        const wf_edge edge = boundary->lo[d] != WF_EDGE_DEFAULT ? boundary->lo[d] : boundary->hi[d];
        WF_CHECK((d >= 2 && d < 2 + nd) || edge == WF_EDGE_DEFAULT, WF_ERR_ARGUMENT,
                 "%s: dimension %d has an edge %s, should have none: edges are of dimensions 2 to %d", name, d,
                 wf_edge_name(edge), 1 + nd);
    }
    return WF_OK;
}

wf_status wf_boundary_check_layer(const char *name, const wf_boundary *boundary, int nd)
{
    WF_TRY(check_dimensions(name, boundary, nd));
    const wf_status status = wf_boundary_check(boundary, 2 + nd);
    WF_CHECK(boundary->turned == 0 || (boundary->turned > 2 && boundary->turned <= 2 + nd), WF_ERR_ARGUMENT,
             "%s: a pole turns dimension %d, should be 2 to %d", name, boundary->turned - 1, 1 + nd);
    return status == WF_OK ? WF_OK : wf_error_frame(status, __FILE__, __LINE__, name);
}

size_t wf_boundary_list_bytes(const wf_boundary *boundary)
{
    return (size_t)(boundary->n_negated > 0 ? boundary->n_negated : 0) * sizeof *boundary->negated;
}

void wf_boundary_keep_list(wf_boundary *boundary, void *memory)
{
    if (boundary->n_negated > 0)
        memcpy(memory, boundary->negated, wf_boundary_list_bytes(boundary));
    boundary->negated = boundary->n_negated > 0 ? memory : NULL;
}

void wf_boundary_note(wf_layer *layer, const wf_boundary *boundary, int nd)
{
    if (!wf_boundary_given(boundary, nd))
        return;
    wf_layer_note(layer, ", edges");
    for (int d = 2; d < 2 + nd; d++)
        wf_layer_note(layer, " %d %d", (int)wf_boundary_edge(boundary, d, false),
                      (int)wf_boundary_edge(boundary, d, true));
    wf_layer_note(layer, " of %g, turned %d, row %d, %d signs", boundary->value, boundary->turned,
                  boundary->row_on_pole, boundary->n_negated);
}
