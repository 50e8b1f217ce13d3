/* The models that wf-plan knows by name, with SGD and momentum: wf-plan starts this program in place of one that trains
 * them. */
#include "examples/models/autoencoder.h"
#include "examples/models/convnext.h"
#include "examples/models/mnist.h"
#include "examples/models/resnet.h"
#include "examples/models/unet.h"
#include "examples/models/vgg.h"
#include "tools/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sizes {
    int64_t batch, size, width; /* 0: the model's own */
} sizes;

static autoencoder_codes codes;

static wf_layer *vgg_new(wf_ctx *ctx, const sizes *s)
{
    return vgg16(ctx, (vgg_opts){.width = s->width, .side = s->size});
}

static wf_layer *resnet18_new(wf_ctx *ctx, const sizes *s)
{
    return resnet(ctx, (resnet_opts){.width = s->width});
}

static wf_layer *resnet50_new(wf_ctx *ctx, const sizes *s)
{
    return resnet(ctx, (resnet_opts){.depth = RESNET_50, .width = s->width, .classes = 1000, .large = true});
}

static wf_layer *convnext_new(wf_ctx *ctx, const sizes *s)
{
    return convnext(ctx, (convnext_opts){.width = s->width, .classes = 1000});
}

static wf_layer *unet_new(wf_ctx *ctx, const sizes *s)
{
    return unet(ctx, (unet_opts){.width = s->width});
}

static wf_layer *autoencoder_new(wf_ctx *ctx, const sizes *s)
{
    return autoencoder(ctx, 2, s->width > 0 ? s->width : 512, &codes);
}

static wf_layer *mlp_new(wf_ctx *ctx, const sizes *s)
{
    return mnist_mlp(ctx);
}

static wf_layer *cnn_new(wf_ctx *ctx, const sizes *s)
{
    return mnist_cnn(ctx);
}

#define SPLIT (WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_STAGE | WF_PLANNER_RECOMPUTE)
#define CHAIN (WF_PLANNER_STAGE | WF_PLANNER_RECOMPUTE)

static const struct model {
    const char *name;
    wf_layer *(*make)(wf_ctx *ctx, const sizes *s);
    long channels, size;
    bool sized, scaled; /* images of other sizes, other widths are fine */
    unsigned can;
} models[] = {
    {"vgg16", vgg_new, 3, 32, true, true, SPLIT},          {"resnet18", resnet18_new, 3, 32, true, true, SPLIT},
    {"resnet50", resnet50_new, 3, 224, true, true, SPLIT}, {"convnext_t", convnext_new, 3, 224, true, true, SPLIT},
    {"unet", unet_new, 3, 256, true, true, SPLIT},         {"autoencoder", autoencoder_new, 1, 28, false, true, CHAIN},
    {"mnist_mlp", mlp_new, 1, 28, false, false, CHAIN},    {"mnist_cnn", cnn_new, 1, 28, false, false, CHAIN}};

static const struct model *find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

/* "--batch 64 --size 32 --width 16"; false if it is not like this. */
static bool read_sizes(int argc, char **argv, sizes *s)
{
    const char *const names[] = {"--batch", "--size", "--width"};
    int64_t *const value[] = {&s->batch, &s->size, &s->width};
    for (int i = 0; i < argc; i += 2) {
        int k = 0;
        while (k < 3 && strcmp(names[k], argv[i]) != 0)
            k++;
        if (k == 3 || i + 1 == argc || !number_whole(argv[i + 1], 1, INT32_MAX, value[k]))
            return false;
    }
    return true;
}

static wf_status answer(wf_comm *comm, const struct model *m, const sizes *s)
{
    wf_layer *model = m->make(wf_comm_ctx(comm), s);
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.01, .momentum = 0.9});
    const wf_shape input = WF_SHAPE(s->batch > 0 ? s->batch : 64, m->channels, s->size, s->size);
    const wf_status status = wf_planner_answer(comm, model, optim, input, m->can);
    wf_optim_free(optim);
    wf_layer_free(model);
    return status;
}

static void refuse(int argc, char **argv)
{
    fprintf(stderr, "wf-plan:");
    for (int i = 1; i < argc; i++)
        fprintf(stderr, " %s", argv[i]);
    fprintf(stderr, ": should be a model with --batch N, --size N (not for 28x28 images) and --width N (not for "
                    "mnist_*); a model is "
                    "one of");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        fprintf(stderr, " %s", models[i].name);
    fprintf(stderr, "\n");
}

int main(int argc, char **argv)
{
    const struct model *m = argc > 1 ? find(argv[1]) : NULL;
    sizes s = {.size = m ? m->size : 0};
    const bool good = wf_planner_asks() && m && read_sizes(argc - 2, argv + 2, &s) && (m->sized || s.size == m->size) &&
                      (m->scaled || s.width == 0);
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    if (good)
        WF_MUST(answer(comm, m, &s));
    else if (wf_comm_rank(comm) == 0)
        refuse(argc, argv);
    WF_MUST(wf_comm_close(comm));
    return good ? 0 : 2;
}
