/* examples_pictures DIR COUNT LEAST: the folder holds COUNT pictures that decode, of at least LEAST pixels a side, none
 * of one colour. */
#include <weft/weft.h>

#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what)
{
    printf("%s\n", what);
    return 1;
}

static bool one_colour(const wf_tensor *x)
{
    const int64_t count = wf_tensor_count(x);
    unsigned char *pixel = malloc((size_t)count);
    bool same = true;
    WF_MUST(wf_tensor_export(x, pixel, (size_t)count));
    for (int64_t i = 1; i < count; i++)
        same = same && pixel[i] == pixel[0];
    free(pixel);
    return same;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fail("examples_pictures DIR COUNT LEAST");
    const long least = atol(argv[3]);
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    wf_dataset *pictures = wf_image_folder(ctx, argv[1], (wf_image_folder_opts){0});
    wf_dataset_info info;
    WF_MUST(wf_dataset_info_get(pictures, &info));
    if (info.count != atol(argv[2]))
        return fail("not as many pictures as there should be");
    if (info.shape.dim[1] < least || info.shape.dim[2] < least)
        return fail("pictures are too small");

    wf_iter *iter = wf_batches(pictures, (wf_batch_opts){.size = 1, .raw = true});
    for (int64_t i = 0; i < info.count; i++) {
        wf_batch b;
        WF_MUST(wf_iter_next(iter, &b));
        if (one_colour(b.x))
            return fail("a picture of one colour");
    }
    wf_iter_free(iter);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
