/* Layers as objects: the tree of names, paths, children and parameters. Every layer is made through this file, and
 * applied through apply.c. Two kinds are defined here, the module and the lambda, whose forward is the program's; of
 * all others it knows none by name. It computes nothing itself. A layer owns its children, its parameters and its
 * state. */
#include "layers/layer_author.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_layer *wf_layer_new(wf_ctx *ctx, const wf_layer_kind *kind, size_t state_bytes)
{
    /* As every constructor: NULL is an error that is pending already. */
    if (!ctx)
        return NULL;
    wf_layer *layer = wf_calloc(ctx, 1, sizeof *layer);
    if (!layer)
        return wf_error_null();
    *layer = (wf_layer){.kind = kind, .ctx = ctx, .id = ++ctx->layers, .least = 1, .most = 1};
    wf_live_add(ctx, WF_LIVE_LAYER, 1);
    /* Freed by wf_layer_free even if the kind's constructor fails half way, so kinds check for NULL in their `free`. */
    layer->state = wf_calloc(ctx, 1, state_bytes);
    if (!layer->state) {
        wf_layer_free(layer);
        return wf_error_null();
    }
    return layer;
}

void wf_layer_note(wf_layer *layer, const char *format, ...)
{
    /* Notes are compared between ranks when an optimizer takes the model; too long ones are cut at the same place on
     * all. */
    const size_t used = strlen(layer->options);
    va_list args;
    va_start(args, format);
    vsnprintf(layer->options + used, sizeof layer->options - used, format, args);
    va_end(args);
}

void wf_layer_free(wf_layer *layer)
{
    if (!layer)
        return;
    /* Before the parameters, since a kind may look at them. */
    if (layer->kind->free && layer->state)
        layer->kind->free(layer);
    for (int i = 0; i < layer->n_params; i++)
        wf_param_free(layer->params[i]);
    for (int i = 0; i < layer->n_children; i++)
        wf_layer_free(layer->children[i]);
    wf_live_add(layer->ctx, WF_LIVE_LAYER, -1);
    free(layer->params);
    free(layer->children);
    free(layer->all);
    free(layer->state);
    free(layer->name);
    free(layer->path);
    free(layer);
}

wf_ctx *wf_layer_ctx(const wf_layer *layer)
{
    return layer ? layer->ctx : NULL;
}

/* Invalidates the list of parameters of a layer and of all layers above it. */
static void forget_lists(wf_layer *layer)
{
    for (; layer; layer = layer->parent) {
        free(layer->all);
        layer->all = NULL;
    }
}

/* The name of this layer or its place in the tree has changed: all paths from here down begin with it. */
static void forget_paths(wf_layer *layer)
{
    free(layer->path);
    layer->path = NULL;
    for (int i = 0; i < layer->n_children; i++)
        forget_paths(layer->children[i]);
}

const char *wf_layer_path(const wf_layer *layer)
{
    if (!layer || !layer->name)
        return "";
    if (!layer->parent)
        return layer->name;
    /* The path is made on demand: adding a layer to a module changes the paths of all below. */
    if (layer->path)
        return layer->path;
    const char *above = wf_layer_path(layer->parent);
    const size_t bytes = strlen(above) + strlen(layer->name) + 2;
    char *path = wf_malloc(layer->ctx, bytes);
    if (!path)
        return layer->name;
    snprintf(path, bytes, "%s%s%s", above, *above ? "/" : "", layer->name);
    /* Kept: errors, random streams and files ask for it in every step. */
    ((wf_layer *)layer)->path = path;
    return path;
}

static wf_layer *root_of(const wf_layer *layer)
{
    while (layer->parent)
        layer = layer->parent;
    return (wf_layer *)layer;
}

uint64_t wf_layer_root(const wf_layer *layer)
{
    /* Models without names are distinguished by the order in which they are first used, which is the same on all ranks;
     * the order in which they are made need not be. */
    wf_layer *root = root_of(layer);
    if (!root->name && root->root == 0)
        root->root = ++root->ctx->roots;
    return root->name ? 0 : root->root;
}

/* Called where ranks have taken rank 0's number (optim/replicas.c). Roots that get a number later must not get it, too.
 */
void wf_layer_set_root(wf_layer *layer, uint64_t root)
{
    wf_layer *top = root_of(layer);
    if (top->name)
        return;
    top->root = root;
    top->ctx->roots = top->ctx->roots > root ? top->ctx->roots : root;
}

/* Random numbers follow from names, not from the order in which layers are made, and not from ranks: any division of
 * the model draws the same ones. */
uint64_t wf_layer_stream(const wf_layer *layer)
{
    return wf_hash_text(wf_hash_u64(0, wf_layer_root(layer)), wf_layer_path(layer));
}

/* For parameters, which belong to core and know their layer as an owner without a type. */
static const char *path_of(void *owner, uint64_t *stream)
{
    if (stream)
        *stream = wf_layer_stream(owner);
    return wf_layer_path(owner);
}

/* One more pointer at the end of an array of pointers. */
static wf_status append_pointer(wf_ctx *ctx, void ***array, int *n, void *item)
{
    void **longer = wf_realloc(ctx, *array, (size_t)(*n + 1) * sizeof *longer);
    WF_CHECK(longer, WF_ERR_MEMORY, "no memory for %d parts of a layer", *n + 1);
    longer[(*n)++] = item;
    *array = longer;
    return WF_OK;
}

wf_param *wf_layer_add_param(wf_layer *layer, const char *name, wf_param_opts opts)
{
    wf_param *param = layer ? wf_param_new(layer->ctx, name, opts) : NULL;
    if (!param)
        return NULL;
    param->owner = layer;
    /* Paths change while a model is put together, so a parameter asks for its path when it needs it. */
    param->path_of = path_of;
    const wf_status status = append_pointer(layer->ctx, (void ***)&layer->params, &layer->n_params, param);
    if (status != WF_OK) {
        wf_param_free(param);
        return wf_error_null();
    }
    forget_lists(layer);
    return param;
}

/* --- modules ------------------------------------------------------------------------------------------------------ */

typedef struct module_state {
    wf_forward forward; /* one of the two */
    wf_forward_n forward_n;
    void *user;
} module_state;

static wf_var *module_forward(wf_layer *layer, wf_var *const *x, int n)
{
    const module_state *state = layer->state;
    return state->forward ? state->forward(layer, state->user, x[0]) : state->forward_n(layer, state->user, x, n);
}

static const wf_layer_kind module_kind = {.name = "module", .forward_n = module_forward};

static wf_layer *module_new(wf_ctx *ctx, module_state own)
{
    wf_layer *layer = wf_layer_new(ctx, &module_kind, sizeof own);
    if (!layer)
        return NULL;
    *(module_state *)layer->state = own;
    /* Its function applies them; a child of another kind of layer would be listed and never used. */
    layer->takes_children = true;
    return layer;
}

wf_layer *wf_module(wf_ctx *ctx, wf_forward forward, void *user)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(forward, WF_ERR_ARGUMENT, "wf_module takes a function that computes y from x, not NULL");
    return module_new(ctx, (module_state){.forward = forward, .user = user});
}

wf_layer *wf_module_n(wf_ctx *ctx, int least, int most, wf_forward_n forward, void *user)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(forward, WF_ERR_ARGUMENT, "wf_module_n takes a function that computes y from its inputs, not NULL");
    WF_CHECK_NULL(least >= 1 && (most == 0 || most >= least), WF_ERR_ARGUMENT,
                  "wf_module_n of %d to %d inputs; should be 1 or more (0 for the second: any number)", least, most);
    wf_layer *layer = module_new(ctx, (module_state){.forward_n = forward, .user = user});
    if (!layer)
        return NULL;
    layer->least = least;
    layer->most = most;
    wf_layer_note(layer, "module of %d to %d inputs", least, most);
    return layer;
}

/* The old name stays until the copy exists, so a failure leaves the layer as it was. */
static wf_status set_name(wf_layer *layer, const char *name)
{
    char *copy = wf_strdup(layer->ctx, name);
    WF_CHECK(copy, WF_ERR_MEMORY, "no memory for the name \"%s\"", name);
    free(layer->name);
    layer->name = copy;
    forget_paths(layer);
    return WF_OK;
}

/* Names become parts of paths and of names in files, which are separated by '/'. */
static wf_status check_letters(const char *name)
{
    WF_NEED(name);
    const size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    WF_CHECK(*name && name[good] == '\0', WF_ERR_ARGUMENT,
             "a layer's name is \"%s\", should be letters, digits and '_'", name);
    return WF_OK;
}

static wf_status check_name(const wf_layer *module, const char *name)
{
    WF_TRY(check_letters(name));
    for (int i = 0; i < module->n_children; i++)
        WF_CHECK(strcmp(module->children[i]->name, name) != 0, WF_ERR_ARGUMENT,
                 "\"%s\" has a layer of the name \"%s\" already", wf_layer_path(module), name);
    return WF_OK;
}

/* True if the child cannot be added: it has a parent, or it is this module or contains it. */
static bool is_taken(const wf_layer *module, const wf_layer *child)
{
    for (; module; module = module->parent)
        if (module == child)
            return true;
    return child->parent != NULL;
}

/* Checks everything before it changes the child: wf_module_add frees a child that could not be added. */
static wf_status add_child(wf_layer *module, const char *name, wf_layer *child)
{
    WF_TRY(check_name(module, name));
    WF_CHECK(module->takes_children, WF_ERR_ARGUMENT,
             "the layer \"%s\" inside a layer of kind %s, which would never apply it: add it to a wf_module or a "
             "wf_sequential",
             name, module->kind->name);
    WF_CHECK(!child->parent, WF_ERR_STATE, "the layer \"%s\" has a parent already: it is \"%s\"", name,
             wf_layer_path(child));
    WF_CHECK(!is_taken(module, child), WF_ERR_STATE, "the layer \"%s\" would be inside itself", name);
    WF_CHECK(child->ctx == module->ctx, WF_ERR_ARGUMENT, "the layer \"%s\" belongs to another context", name);
    WF_TRY(set_name(child, name));
    WF_TRY(append_pointer(module->ctx, (void ***)&module->children, &module->n_children, child));
    child->parent = module;
    forget_paths(child);
    forget_lists(module);
    return WF_OK;
}

wf_layer *wf_module_add(wf_layer *module, const char *name, wf_layer *child)
{
    /* A child that is NULL is a constructor that failed, whose error is pending. */
    if (!child)
        return module ? NULL : wf_error_need_null(__func__, "module", __FILE__, __LINE__);
    /* Noted before the attempt, which may set the parent: a child that has a parent already must not be freed here. */
    const bool taken = is_taken(module, child);
    const wf_status status = module ? add_child(module, name, child) : WF_OK;
    if (module && status == WF_OK)
        return child;
    if (!taken)
        wf_layer_free(child);
    return status == WF_OK ? NULL : wf_error_null();
}

/* Parameters that have values already were initialised under the previous name. */
static wf_status check_undrawn(wf_layer *layer, const char *name)
{
    int64_t n;
    wf_param *const *params;
    WF_TRY(wf_layer_params(layer, &n, &params));
    for (int64_t i = 0; i < n; i++)
        WF_CHECK(!params[i]->value, WF_ERR_STATE,
                 "%s has its value already; a model gets its name (\"%s\") before its first use",
                 wf_param_path(params[i]), name);
    return WF_OK;
}

static wf_status give_name(wf_layer *layer, const char *name)
{
    WF_TRY(check_letters(name));
    WF_CHECK(!layer->parent, WF_ERR_STATE, "the name \"%s\" for a layer that has one in its model: \"%s\"", name,
             wf_layer_path(layer));
    WF_TRY(check_undrawn(layer, name));
    return set_name(layer, name);
}

wf_layer *wf_layer_named(wf_layer *layer, const char *name)
{
    WF_NEED_NULL(layer);
    const wf_status status = give_name(layer, name);
    if (status == WF_OK)
        return layer;
    /* Freed as by every constructor that wraps another; one that has a parent is the parent's. */
    if (!layer->parent)
        wf_layer_free(layer);
    return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
}

/* A loop over the names: modules have few children, and each is looked up once in a step. */
wf_layer *wf_layer_child(const wf_layer *layer, const char *name)
{
    for (int i = 0; layer && name && i < layer->n_children; i++)
        if (strcmp(layer->children[i]->name, name) == 0)
            return layer->children[i];
    if (!layer || !name)
        return NULL;
    WF_FAIL_NULL(WF_ERR_ARGUMENT, "\"%s\" has no layer \"%s\"", wf_layer_path(layer), name);
}

/* --- functions as layers ------------------------------------------------------------------------------------------ */

typedef struct lambda_state {
    wf_var *(*function)(wf_var *x);
} lambda_state;

static wf_var *lambda_forward(wf_layer *layer, wf_var *x)
{
    return ((const lambda_state *)layer->state)->function(x);
}

static const wf_layer_kind lambda_kind = {.name = "lambda", .forward = lambda_forward};

wf_layer *wf_lambda(wf_ctx *ctx, wf_var *(*function)(wf_var *x))
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(function, WF_ERR_ARGUMENT, "wf_lambda takes a function, not NULL");
    wf_layer *layer = wf_layer_new(ctx, &lambda_kind, sizeof(lambda_state));
    if (layer)
        ((lambda_state *)layer->state)->function = function;
    return layer;
}

/* For wf_parallelize, which gives some functions a parallel form and knows them by their address. */
bool wf_lambda_is(const wf_layer *layer, wf_var *(*function)(wf_var *x))
{
    return layer->kind == &lambda_kind && ((const lambda_state *)layer->state)->function == function;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* Tied parameters are left out here and in list_all: the one that stands for them is listed, once. */
static int64_t count_all(const wf_layer *layer)
{
    int64_t n = 0;
    for (int i = 0; i < layer->n_params; i++)
        n += !layer->params[i]->tied;
    for (int i = 0; i < layer->n_children; i++)
        n += count_all(layer->children[i]);
    return n;
}

/* In the order of the tree, which is the same on all ranks: archives, optimizers and comparisons rely on it. */
static int64_t list_all(const wf_layer *layer, wf_param **all)
{
    int64_t n = 0;
    for (int i = 0; i < layer->n_params; i++)
        if (!layer->params[i]->tied)
            all[n++] = layer->params[i];
    for (int i = 0; i < layer->n_children; i++)
        n += list_all(layer->children[i], all + n);
    return n;
}

wf_status wf_layer_params(wf_layer *layer, int64_t *count, wf_param *const **params)
{
    WF_NEED(layer);
    WF_NEED(count);
    WF_NEED(params);
    /* The list is made at the first question and kept until the tree changes (forget_lists). */
    if (!layer->all) {
        const int64_t n = count_all(layer);
        layer->all = wf_malloc(layer->ctx, (size_t)n * sizeof *layer->all);
        WF_CHECK(layer->all, WF_ERR_MEMORY, "no memory for a list of %lld parameters", (long long)n);
        layer->n_all = list_all(layer, layer->all);
    }
    *count = layer->n_all;
    *params = layer->all;
    return WF_OK;
}

/* The path below `layer`. */
static const char *relative(const wf_layer *layer, const wf_param *param)
{
    const size_t cut = strlen(wf_layer_path(layer));
    return wf_param_path(param) + cut + (cut > 0);
}

/* NULL if there is none. Tied parameters are in no list, so the tree is searched. */
static wf_param *find_param(const wf_layer *top, const wf_layer *layer, const char *path)
{
    wf_param *found = NULL;
    for (int i = 0; i < layer->n_params && !found; i++)
        if (strcmp(relative(top, layer->params[i]), path) == 0)
            found = layer->params[i];
    for (int i = 0; i < layer->n_children && !found; i++)
        found = find_param(top, layer->children[i], path);
    return found;
}

/* The parameter itself, also where another stands for it. */
static wf_param *own_param(const wf_layer *layer, const char *path)
{
    if (!layer || !path)
        return NULL;
    wf_param *param = find_param(layer, layer, path);
    WF_CHECK_NULL(param, WF_ERR_ARGUMENT, "the layer \"%s\" has no parameter \"%s\"", wf_layer_path(layer), path);
    return param;
}

wf_param *wf_layer_param(wf_layer *layer, const char *path)
{
    return wf_param_of(own_param(layer, path));
}

wf_status wf_layer_tie(wf_layer *model, const char *path, const char *with)
{
    wf_param *param = own_param(model, path), *other = own_param(model, with);
    WF_NEED(param);
    WF_NEED(other);
    WF_TRY(wf_param_tie(param, other));
    /* It is listed no more. */
    forget_lists(param->owner);
    return WF_OK;
}

int64_t wf_layer_param_count(wf_layer *layer)
{
    int64_t n = 0, elements = 0;
    wf_param *const *params = NULL;
    if (!layer || wf_layer_params(layer, &n, &params) != WF_OK)
        return 0;
    for (int64_t i = 0; i < n; i++)
        /* Running statistics are no parameters in the sense of a paper's count. */
        if (params[i]->trainable)
            elements += wf_shape_count(params[i]->shape);
    return elements;
}

/* --- for layers and functions ------------------------------------------------------------------------------------- */

wf_status wf_layer_check_whole(const char *what, const wf_layer *layer, const wf_var *x)
{
    char text[WF_LAYOUT_TEXT];
    const wf_layout *layout = &x->value->layout;
    /* Dimension 0 may be cut: samples do not mix in such a layer. */
    for (int a = 0; layout->known && a < WF_AXES; a++)
        WF_CHECK(layout->placement[a] != WF_SHARDED || layout->dim[a] == 0, WF_ERR_SHAPE,
                 "%s \"%s\" cannot take an input that is %s; wf_redistribute it first, or make the layer parallel "
                 "(wf_parallelize)",
                 what, wf_layer_path(layer), wf_layout_text(layout, text));
    return WF_OK;
}
