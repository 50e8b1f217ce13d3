/* Skip connections of a chain: a value that goes past some of its layers.
 *
 *     wf_sequential(ctx, WF_LAYERS(first, wf_skip_stash(ctx, "a"), down, up, wf_skip_pop(ctx, "a", wf_add), last))
 *
 * A layer of several inputs takes them like this, and a chain of several inputs hands them on like this:
 *
 *     wf_layer *decoder = wf_sequential(ctx, WF_LAYERS(wf_skip_inputs(ctx, WF_NAMES("memory")), embed,
 *                                                      wf_skip_apply(attention, WF_NAMES("memory")), last));
 *     wf_var *y = wf_apply_n(decoder, WF_INPUTS(tokens, memory));
 *
 * Both ends are layers of a chain (wf_sequential, also inside each other). A pipeline may cut
 * between them: the value then goes straight from the stage that makes it to the stage that takes it, and its gradient
 * straight back (layers/pipeline.h). Skips inside of a module's function need no layers of their own. Local.
 */
#ifndef WF_LAYERS_SKIP_H
#define WF_LAYERS_SKIP_H

#include "layers/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y of the chain's value x and the one that was kept: wf_add, wf_mul, or a function of the program, as one that calls
 * wf_concat. Pixels that ranks share may come back at other shard bounds (halved and doubled where a half is uneven):
 * these functions bring `kept` to those of x; others do by wf_redistribute(kept, wf_tensor_layout(wf_value(x))). */
typedef wf_var *(*wf_skip_join)(wf_var *x, wf_var *kept);

#define WF_NAMES(...)                                                                                                  \
    (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)), (const char *const[])                    \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* Passes its input on, and keeps it under a name. */
wf_layer *wf_skip_stash(wf_ctx *ctx, const char *name);
/* Takes what was kept under that name: join(x, kept); NULL: wf_add. Each name has one stash and, behind it, one pop, in
 * the innermost chain that contains both: applying the pop is WF_ERR_STATE otherwise. With wf_recompute_chain both ends
 * lie in one segment, or outside of all. */
wf_layer *wf_skip_pop(wf_ctx *ctx, const char *name, wf_skip_join join);
/* The first layer of a chain of 1 + count inputs (wf_apply_n): passes the first one on, and keeps the others under
 * these names, as wf_skip_stash would. For an input that several layers take: give it as often, under as many names. */
wf_layer *wf_skip_inputs(wf_ctx *ctx, int count, const char *const *names);
/* A layer of 1 + count inputs in a chain: layer(x, what was kept under names[0], ...). As wf_skip_pop, it is behind the
 * stash of each name, which no other layer takes. Owns the layer, also when it fails, as its child "layer". */
wf_layer *wf_skip_apply(wf_layer *layer, int count, const char *const *names);

#ifdef __cplusplus
}
#endif

#endif
