/* Maxima with their places: of the serial and of the spatial layer. */
#include "layers/parallel/parallel_impl.h"
#include "layers/pool.h"
#include "layers/serial/serial_impl.h"

static wf_var *run_with_places(wf_layer *layer, void *user, wf_var *const *x, int n)
{
    wf_tensor **places = user;
    WF_CHECK_NULL(layer->kind == &wf_pool_serial || layer->kind == &wf_pool_spatial, WF_ERR_ARGUMENT,
                  "max_pool_with_places of %s \"%s\", should be a layer of maximum pooling", layer->kind->name,
                  wf_layer_path(layer));
    WF_TRY_NULL(wf_pool_check_places(layer));
    (void)n;
    return layer->kind == &wf_pool_serial ? wf_pool_run(layer, x[0], places) : wf_spatial_pool_run(layer, x[0], places);
}

wf_var *wf_max_pool_with_places(wf_layer *pool, wf_var *x, wf_var **places)
{
    WF_NEED_NULL(places);
    *places = NULL;
    WF_NEED_NULL(pool);
    wf_tensor *made = NULL;
    wf_var *y = wf_apply_with(pool, &x, 1, run_with_places, &made);
    *places = y ? wf_input(wf_var_tape(y), made) : NULL;
    wf_tensor_free(made);
    return *places ? y : NULL;
}
