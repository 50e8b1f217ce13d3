#include "examples/models/classifier.h"

#include "examples/models/convnext.h"
#include "examples/models/mnist.h"
#include "examples/models/resnet.h"
#include "examples/models/swin.h"
#include "examples/models/vgg.h"
#include "examples/models/vit.h"

#include <stdio.h>
#include <string.h>

static bool is_small(const classifier_opts *o)
{
    return o->size <= 64;
}

static wf_layer *resnet_new(wf_ctx *ctx, int which, const classifier_opts *o)
{
    return resnet(
        ctx,
        (resnet_opts){.depth = (resnet_depth)which, .width = o->width, .classes = o->classes, .large = !is_small(o)});
}

static int64_t convnext_patch(const classifier_opts *o)
{
    return o->patch ? o->patch : is_small(o) ? 2 : 4;
}

static wf_layer *convnext_new(wf_ctx *ctx, int which, const classifier_opts *o)
{
    return convnext(ctx, (convnext_opts){.size = (convnext_size)which,
                                         .width = o->width,
                                         .classes = o->classes,
                                         .patch = convnext_patch(o),
                                         .drop_path = o->drop_path});
}

static wf_layer *swin_new(wf_ctx *ctx, int which, const classifier_opts *o)
{
    return swin(ctx, (swin_opts){.size = (swin_size)which,
                                 .width = o->width,
                                 .classes = o->classes,
                                 .patch = convnext_patch(o),
                                 .drop_path = o->drop_path});
}

static int64_t vit_patch(const classifier_opts *o)
{
    return o->patch ? o->patch : is_small(o) ? 4 : 16;
}

static wf_layer *vit_new(wf_ctx *ctx, int which, const classifier_opts *o)
{
    return vit(ctx, (vit_opts){.size = (vit_size)which,
                               .image = o->size,
                               .patch = vit_patch(o),
                               .features = o->width,
                               .classes = o->classes,
                               .mesh = o->heads});
}

static wf_layer *vgg_new(wf_ctx *ctx, int which, const classifier_opts *o)
{
    return vgg16(ctx, (vgg_opts){.width = o->width, .classes = o->classes, .side = o->size});
}

static wf_layer *mnist_new(wf_ctx *ctx, int which, const classifier_opts *o)
{
    return mnist_cnn(ctx);
}

#define CONVOLUTIONS (WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_RECOMPUTE)

static const classifier classifiers[] = {
    {"resnet18", 3, 0, false, false, CONVOLUTIONS, resnet_new, RESNET_18},
    {"resnet34", 3, 0, false, false, CONVOLUTIONS, resnet_new, RESNET_34},
    {"resnet50", 3, 0, false, false, CONVOLUTIONS, resnet_new, RESNET_50},
    {"resnet101", 3, 0, false, false, CONVOLUTIONS, resnet_new, RESNET_101},
    {"resnet152", 3, 0, false, false, CONVOLUTIONS, resnet_new, RESNET_152},
    {"convnext-t", 3, 0, false, true, CONVOLUTIONS, convnext_new, CONVNEXT_TINY},
    {"convnext-s", 3, 0, false, true, CONVOLUTIONS, convnext_new, CONVNEXT_SMALL},
    {"convnext-b", 3, 0, false, true, CONVOLUTIONS, convnext_new, CONVNEXT_BASE},
    {"convnext-l", 3, 0, false, true, CONVOLUTIONS, convnext_new, CONVNEXT_LARGE},
    {"swin-t", 3, 0, false, true, WF_PLANNER_RECOMPUTE, swin_new, SWIN_TINY},
    {"swin-s", 3, 0, false, true, WF_PLANNER_RECOMPUTE, swin_new, SWIN_SMALL},
    {"swin-b", 3, 0, false, true, WF_PLANNER_RECOMPUTE, swin_new, SWIN_BASE},
    {"vit-ti", 3, 0, true, true, WF_PLANNER_RECOMPUTE, vit_new, VIT_TINY},
    {"vit-s", 3, 0, true, true, WF_PLANNER_RECOMPUTE, vit_new, VIT_SMALL},
    {"vit-b", 3, 0, true, true, WF_PLANNER_RECOMPUTE, vit_new, VIT_BASE},
    {"vgg16", 3, 0, false, false, CONVOLUTIONS, vgg_new, 0},
    {"mnist-conv", 1, 28, false, true, CONVOLUTIONS, mnist_new, 0},
};
enum { CLASSIFIERS = sizeof classifiers / sizeof *classifiers };

const classifier *classifier_find(const char *name)
{
    for (int i = 0; i < CLASSIFIERS; i++)
        if (strcmp(classifiers[i].name, name) == 0)
            return &classifiers[i];
    return NULL;
}

const char *classifier_names(void)
{
    static char names[256];
    size_t length = 0;
    for (int i = 0; i < CLASSIFIERS && length < sizeof names; i++)
        length +=
            (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "", classifiers[i].name);
    return names;
}

const char *classifier_complaint(const classifier *c, const classifier_opts *o)
{
    static char complaint[256];
    const long long size = o->size, heads = c->which == VIT_TINY ? 3 : c->which == VIT_SMALL ? 6 : 12;
    *complaint = 0;
    if (c->size && (o->size != c->size || o->classes > 10))
        snprintf(complaint, sizeof complaint,
                 "%s is for images of %lld pixels and 10 classes, these have %lld and %lld", c->name,
                 (long long)c->size, size, (long long)o->classes);
    else if (c->make == vgg_new && o->size % 32)
        snprintf(complaint, sizeof complaint, "%s: images of %lld pixels: should be a multiple of 32", c->name, size);
    else if (c->make == vit_new && o->size % vit_patch(o))
        snprintf(complaint, sizeof complaint, "%s: images of %lld pixels: should be a multiple of the patch, %lld",
                 c->name, size, (long long)vit_patch(o));
    else if (c->make == vit_new && o->width % heads)
        snprintf(complaint, sizeof complaint, "%s: width %lld: should be a multiple of its heads, %lld", c->name,
                 (long long)o->width, heads);
    else if (c->make == swin_new && o->width % (c->which == SWIN_BASE ? 4 : 3))
        snprintf(complaint, sizeof complaint, "%s: width %lld: should be a multiple of its heads, %d", c->name,
                 (long long)o->width, c->which == SWIN_BASE ? 4 : 3);
    else if ((c->make == convnext_new || c->make == swin_new) && o->size < 8 * convnext_patch(o))
        snprintf(complaint, sizeof complaint, "%s: images of %lld pixels: should be at least 8 patches of %lld",
                 c->name, size, (long long)convnext_patch(o));
    return *complaint ? complaint : NULL;
}

wf_layer *classifier_new(wf_ctx *ctx, const classifier *c, classifier_opts o)
{
    if (o.size == 0)
        o.size = c->size ? c->size : 224;
    return c->make(ctx, c->which, &o);
}
