/* Every network of this folder that tells images apart, by name. */
#ifndef EXAMPLES_MODELS_CLASSIFIER_H
#define EXAMPLES_MODELS_CLASSIFIER_H

#include <weft/weft.h>

typedef struct classifier_opts {
    int64_t size;         /* pixels along a side of the images; default 224, of mnist-conv 28 */
    int64_t classes;      /* default 10 */
    int64_t width;        /* channels of the first stage, features of a ViT's tokens; default the network's own */
    int64_t patch;        /* of the first layer of a ConvNeXt, Swin or ViT; default 4 and 16, to 64 pixels 2 and 4 */
    const wf_mesh *heads; /* over its channel axis a ViT's heads are cut; NULL: none */
    double drop_path;     /* of a ConvNeXt; default the network's own, WF_ZERO: none */
} classifier_opts;

typedef struct classifier {
    const char *name;
    int64_t channels; /* of the images */
    int64_t size;     /* the only one that it takes; 0: any */
    bool transformer; /* cut by samples and heads; the others by wf_parallelize */
    bool adamw;       /* usually trained by AdamW; else by SGD with momentum */
    unsigned can;     /* how it may be shared: a sum of wf_planner_can */
    wf_layer *(*make)(wf_ctx *ctx, int which, const classifier_opts *o);
    int which; /* of its family */
} classifier;

/* NULL: there is none of this name. */
const classifier *classifier_find(const char *name);
/* "resnet18, resnet34, ...". */
const char *classifier_names(void);
/* NULL, or what is wrong with these options, in a buffer that the next call overwrites. */
const char *classifier_complaint(const classifier *c, const classifier_opts *o);
/* [N,channels,size,size] -> scores [N,classes]. ResNets have the 3x3 stem for images of at most 64 pixels. */
wf_layer *classifier_new(wf_ctx *ctx, const classifier *c, classifier_opts o);

#endif
