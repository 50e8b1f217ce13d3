/* Layers: objects with parameters that turn one or more variables into a variable. Local unless a layer says otherwise.
 *
 * The caller of a constructor owns the layer, until it adds the layer to a module, which owns it from then on. The
 * initial values of parameters and the random numbers drawn in a layer are keyed by the seed and the layer's path, so
 * they do not depend on the partition. A path begins with the model's name (wf_layer_named): two models of the same
 * name and parts have the same numbers, also in two programs. Models without a name are distinguished by the order in
 * which they are first used, which wf_multi_node makes that of rank 0.
 */
#ifndef WF_LAYERS_LAYER_H
#define WF_LAYERS_LAYER_H

#include "core/archive.h"
#include "core/site.h"
#include "core/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_layer wf_layer;

/* y = layer(x). NULL on failure, and if the layer or x is NULL. */
WF_PLACED wf_var *wf_apply(wf_layer *layer, wf_var *x);
/* y = layer(inputs[0], ..., inputs[n - 1]), which are read during the call: wf_apply_n(attention, WF_INPUTS(q, k, v)).
 * All inputs are variables of one tape. WF_ERR_ARGUMENT where the layer takes another number of inputs. NULL on
 * failure, and if the layer or an input is NULL. wf_apply is the form for one. */
WF_PLACED wf_var *wf_apply_n(wf_layer *layer, wf_var *const *inputs, int n);
#define WF_INPUTS(...) (wf_var *const[]){__VA_ARGS__}, (int)(sizeof((wf_var *const[]){__VA_ARGS__}) / sizeof(wf_var *))
void wf_layer_free(wf_layer *layer);
wf_ctx *wf_layer_ctx(const wf_layer *layer);

/* A layer that the program writes: `forward` computes y from x with the module's children, which it finds through
 * `user` or wf_layer_child. The module owns its children; the program owns `user`. */
typedef wf_var *(*wf_forward)(wf_layer *self, void *user, wf_var *x);
wf_layer *wf_module(wf_ctx *ctx, wf_forward forward, void *user);
/* As wf_module, for a layer of several inputs: at least `least`, at most `most` (0: any number), so that the last ones
 * may be left out. `x` holds the n that wf_apply_n was given, none of them NULL.
 *
 *     static wf_var *decode(wf_layer *self, void *user, wf_var *const *x, int n)        (x, and what the encoder made)
 *     {
 *         wf_var *y = wf_apply(wf_layer_child(self, "up"), x[0]);
 *         return wf_apply(wf_layer_child(self, "conv"), wf_concat(2, (wf_var *[]){y, x[1]}, 1));
 *     }
 *     wf_layer *decoder = wf_module_n(ctx, 2, 2, decode, NULL);
 */
typedef wf_var *(*wf_forward_n)(wf_layer *self, void *user, wf_var *const *x, int n);
wf_layer *wf_module_n(wf_ctx *ctx, int least, int most, wf_forward_n forward, void *user);
/* Adds a child under a name of letters, digits and '_' that no sibling has; returns the child, NULL on failure (the
 * child is then freed). `module` is a wf_module, or a chain such as wf_sequential. */
wf_layer *wf_module_add(wf_layer *module, const char *name, wf_layer *child);
wf_layer *wf_layer_child(const wf_layer *layer, const char *name);
/* A chain: applies its children one after the other. They are named "0", "1", ...: wf_sequential(ctx, WF_LAYERS(a,
 * b, c)). Owns the children, also when it fails. The first one takes all inputs of the chain; wf_skip_inputs hands
 * some of them to layers further down (layers/skip.h). */
wf_layer *wf_sequential(wf_ctx *ctx, int count, wf_layer *const *layers);
#define WF_LAYERS(...)                                                                                                 \
    (int)(sizeof((wf_layer *const[]){__VA_ARGS__}) / sizeof(wf_layer *)), (wf_layer *const[])                          \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
/* A function as a layer, for wf_sequential: wf_lambda(ctx, wf_relu). */
wf_layer *wf_lambda(wf_ctx *ctx, wf_var *(*function)(wf_var *x));

/* Names a layer that is in no other: wf_layer_named(generator_new(ctx), "gen"). Before its first use, since initial
 * values depend on it. Returns the layer; NULL on failure (the layer is then freed, unless it is part of another). */
wf_layer *wf_layer_named(wf_layer *layer, const char *name);
/* "gen/conv1"; for a root its name, or "". */
const char *wf_layer_path(const wf_layer *layer);
/* Every parameter, trainable or not, children in the order in which they were added. Borrowed pointers; the array
 * belongs to the layer and lives until it changes. */
wf_status wf_layer_params(wf_layer *layer, int64_t *count, wf_param *const **params) WF_NODISCARD;
/* The parameter of this path, relative to the layer: "conv1/W"; of a tied one, the parameter that stands for it. */
wf_param *wf_layer_param(wf_layer *layer, const char *path);
/* Tied weights: from now on the parameter `with` stands for the one of this path too, as in an embedding whose matrix
 * the last layer reads; both paths as in wf_layer_param. It has the sum of both gradients, and is listed, saved and
 * counted once, under its own path; the other path finds it too. Ties may be chained: one parameter then stands for
 * all. After wf_parallelize, before the optimizer is made. WF_ERR_ARGUMENT where they differ in shape, type, or how
 * ranks share them, or are one already; WF_ERR_STATE where the parameter of `path` is tied already. */
wf_status wf_layer_tie(wf_layer *model, const char *path, const char *with) WF_NODISCARD;
/* The number of trainable elements. */
int64_t wf_layer_param_count(wf_layer *layer);
/* Saves, loads, sends, ...: visits every parameter under its path. */
wf_status wf_layer_archive(wf_layer *layer, wf_archive *archive) WF_NODISCARD;
/* wf_layer_archive as a wf_archive_visit. */
wf_status wf_layer_visit(void *layer, wf_archive *archive) WF_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
