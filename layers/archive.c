/* Layers in archives and files: the names of parameters there, and which part of a model this rank has. */
#include "layers/layer_author.h"

#include <string.h>

/* A path below the layer; NULL: it is none. */
static const char *below(const wf_layer *layer, const char *path)
{
    const char *above = wf_layer_path(layer);
    const size_t cut = strlen(above);
    if (cut == 0)
        return path;
    return strncmp(path, above, cut) == 0 && path[cut] == '/' ? path + cut + 1 : NULL;
}

const char *wf_layer_param_name(const wf_layer *layer, const wf_param *param)
{
    const char *serial = param->serial ? below(layer, param->serial) : NULL;
    const char *name = serial ? serial : below(layer, wf_param_path(param));
    return name ? name : wf_param_path(param);
}

int wf_layer_part(const wf_layer *layer)
{
    int part = layer->parts > 1 ? layer->part + 1 : 0;
    for (int i = 0; part == 0 && i < layer->n_children; i++)
        part = wf_layer_part(layer->children[i]);
    return part;
}

static wf_status archive_param(wf_param *param, const char *name, wf_archive *archive)
{
    wf_tensor *value = wf_param_value(param);
    /* Everything else is saved as a part of a whole, so that another number of ranks can load it; running statistics
     * may differ between ranks (`varies`). */
    if (param->trainable && !param->shard_axes)
        return wf_archive_tensor(archive, name, value);
    const wf_archive_place place = {.global = param->global, .box = param->box, .varies = !param->trainable};
    return wf_archive_part(archive, name, value, place);
}

/* "conv1/W" lies in the group conv1. */
static wf_status enter_groups(wf_archive *archive, const char **name, int *depth)
{
    char group[256];
    for (const char *end; (end = strchr(*name, '/')); (*depth)++) {
        const size_t length = (size_t)(end - *name);
        WF_CHECK(length < sizeof group, WF_ERR_ARGUMENT, "a name in the path %s is longer than %zu bytes", *name,
                 sizeof group - 1);
        memcpy(group, *name, length);
        group[length] = '\0';
        WF_TRY(wf_archive_enter(archive, group));
        *name = end + 1;
    }
    return WF_OK;
}

wf_status wf_layer_archive(wf_layer *layer, wf_archive *archive)
{
    int64_t n;
    wf_param *const *params;
    WF_NEED(layer);
    WF_NEED(archive);
    WF_TRY(wf_layer_params(layer, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        int depth = 0;
        const char *name = wf_layer_param_name(layer, params[i]);
        WF_TRY(enter_groups(archive, &name, &depth));
        WF_TRY(archive_param(params[i], name, archive));
        while (depth-- > 0)
            WF_TRY(wf_archive_leave(archive));
    }
    return WF_OK;
}

wf_status wf_layer_visit(void *layer, wf_archive *archive)
{
    return wf_layer_archive(layer, archive);
}
