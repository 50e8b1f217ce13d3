/* Models of examples/models beside those of torchvision and timm, whose names tools/from_pytorch.py knows:
 * named_models FOLDER f32|f64 SIDE MODEL... loads FOLDER/MODEL.h5 and saves it as MODEL-saved.h5. Where
 * FOLDER/MODEL.images is there (of this side, raw) it differentiates, from the gradient MODEL.dy of the scores:
 * MODEL.y, MODEL.dx, and MODEL-grads.h5 with gradients in place of the parameters. */
#include "examples/models/convnext.h"
#include "examples/models/resnet.h"
#include "examples/models/swin.h"
#include "examples/models/vit.h"
#include "layers/save.h"
#include "tests/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 2, CLASSES = 1000, MOST_PATH = 4096 };

static const char *folder;
static wf_dtype dtype;
static int64_t side;

static const convnext_opts tiny_convnext = {.blocks = {1, 2, 1, 1}, .width = 4, .classes = 3};
static const vit_opts tiny_vit = {.image = 8, .patch = 4, .features = 8, .heads = 2, .blocks = 2, .classes = 3};

static const swin_opts tiny_swin = {.blocks = {2, 1, 1, 1}, .width = 4, .heads = 1, .window = 3, .classes = 3};

static wf_layer *make(const char *model)
{
    static const char *const swins[SWIN_SIZES] = {"swin_t", "swin_s", "swin_b"};
    static const resnet_depth depth[] = {RESNET_18, RESNET_34, RESNET_50};
    static const char *const name[] = {"resnet18", "resnet34", "resnet50"};
    for (int i = 0; i < 3; i++)
        if (strcmp(model, name[i]) == 0)
            return resnet(ctx, (resnet_opts){.depth = depth[i], .classes = CLASSES, .large = true});
    if (strcmp(model, "convnext_tiny") == 0)
        return convnext(ctx, (convnext_opts){.classes = CLASSES, .drop_path = WF_ZERO});
    if (strcmp(model, "vit_tiny") == 0)
        return vit(ctx, (vit_opts){.image = side, .classes = CLASSES});
    if (strcmp(model, "vit_base") == 0)
        return vit(ctx, (vit_opts){.size = VIT_BASE, .image = side, .classes = CLASSES});
    if (strcmp(model, "small_resnet18") == 0)
        return resnet(ctx, (resnet_opts){.width = 4, .classes = 3, .large = true});
    if (strcmp(model, "small_resnet50") == 0)
        return resnet(ctx, (resnet_opts){.depth = RESNET_50, .width = 4, .classes = 3, .large = true});
    for (int i = 0; i < SWIN_SIZES; i++)
        if (strcmp(model, swins[i]) == 0)
            return swin(ctx, (swin_opts){.size = (swin_size)i, .classes = CLASSES, .drop_path = WF_ZERO});
    if (strcmp(model, "small_swin") == 0)
        return swin(ctx, tiny_swin);
    return strcmp(model, "small_convnext") == 0 ? convnext(ctx, tiny_convnext) : vit(ctx, tiny_vit);
}

static const char *path_of(const char *model, const char *ending)
{
    static char path[4][MOST_PATH];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s%s", folder, model, ending);
    return path[next];
}

/* NULL where there is no such file. */
static wf_tensor *read_raw(const char *path, wf_shape shape)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    const size_t bytes = (size_t)wf_shape_count(shape) * wf_dtype_size(dtype);
    void *x = malloc(bytes);
    if (!x || fread(x, 1, bytes, file) != bytes)
        abort();
    fclose(file);
    wf_tensor *rows = wf_tensor_from_host(ctx, dtype, shape, x);
    free(x);
    return rows;
}

static void write_raw(const char *path, const wf_tensor *x)
{
    const size_t bytes = wf_tensor_bytes(x);
    void *y = malloc(bytes);
    FILE *file = fopen(path, "wb");
    WF_MUST(wf_tensor_export(x, y, bytes));
    if (!y || !file || fwrite(y, 1, bytes, file) != bytes || fclose(file) != 0)
        abort();
    free(y);
}

static void step(wf_layer *model, const char *name, wf_tensor *images, wf_tensor *dy)
{
    wf_param *const *params = NULL;
    int64_t count = 0;
    wf_tape *tape = wf_tape_new(ctx);
    wf_var *x = wf_leaf(tape, images), *y = wf_apply(model, x);
    WF_MUST(wf_check(y));
    write_raw(path_of(name, ".y"), wf_value(y));
    WF_MUST(wf_backward_from(y, dy));
    write_raw(path_of(name, ".dx"), wf_grad(x));
    WF_MUST(wf_layer_params(model, &count, &params));
    for (int64_t i = 0; i < count; i++)
        if (wf_param_trainable(params[i]))
            WF_MUST(wf_tensor_assign(wf_param_value(params[i]), wf_param_grad(params[i])));
    WF_MUST(wf_save(model, path_of(name, "-grads.h5")));
    wf_tape_free(tape);
}

static void run(const char *name)
{
    wf_layer *model = make(name);
    WF_MUST(wf_check(model));
    WF_MUST(wf_load(model, path_of(name, ".h5")));
    WF_MUST(wf_save(model, path_of(name, "-saved.h5")));
    wf_tensor *images = read_raw(path_of(name, ".images"), WF_SHAPE(SAMPLES, 3, side, side));
    wf_tensor *dy = read_raw(path_of(name, ".dy"), WF_SHAPE(SAMPLES, CLASSES));
    if (images && dy)
        step(model, name, images, dy);
    wf_tensor_free(images);
    wf_tensor_free(dy);
    wf_layer_free(model);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    folder = argv[1];
    dtype = strcmp(argv[2], "f64") == 0 ? WF_F64 : WF_F32;
    side = strtoll(argv[3], NULL, 10);
    comm = test_comm_open("auto", (wf_ctx_opts){.dtype = dtype});
    WF_MUST(wf_check(comm));
    ctx = wf_comm_ctx(comm);
    for (int i = 4; i < argc; i++)
        run(argv[i]);
    return ranks_close(0);
}
