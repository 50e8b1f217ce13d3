/* examples_pictures DIR COUNT LEAST: the folder holds COUNT pictures that decode, of at least LEAST pixels a side, none
 * of one colour.
 * examples_pictures DIR OTHER: both folders hold the same pictures, but for TEST_LEVELS (1) levels of grey in each
 * pixel. */
#include <weft/weft.h>

#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what)
{
    printf("%s\n", what);
    return 1;
}

static unsigned char *pixels_of(const wf_tensor *x)
{
    const size_t count = (size_t)wf_tensor_count(x);
    unsigned char *pixel = malloc(count);
    WF_MUST(wf_tensor_export(x, pixel, count));
    return pixel;
}

static bool one_colour(const wf_tensor *x)
{
    const int64_t count = wf_tensor_count(x);
    unsigned char *pixel = pixels_of(x);
    bool same = true;
    for (int64_t i = 1; i < count; i++)
        same = same && pixel[i] == pixel[0];
    free(pixel);
    return same;
}

static bool alike(const wf_tensor *x, const wf_tensor *y)
{
    const int64_t count = wf_tensor_count(x);
    const char *const levels = getenv("TEST_LEVELS");
    const int most = levels ? atoi(levels) : 1;
    bool same = wf_tensor_count(y) == count;
    unsigned char *a = pixels_of(x), *b = pixels_of(y);
    for (int64_t i = 0; i < count && same; i++)
        same = abs(a[i] - b[i]) <= most;
    free(a);
    free(b);
    return same;
}

static int compare(wf_ctx *ctx, char **folder)
{
    wf_iter *iter[2];
    wf_dataset_info info[2];
    bool same = true;
    for (int i = 0; i < 2; i++) {
        wf_dataset *pictures = wf_image_folder(ctx, folder[i], (wf_image_folder_opts){.channels = 1});
        WF_MUST(wf_dataset_info_get(pictures, &info[i]));
        iter[i] = wf_batches(pictures, (wf_batch_opts){.size = 1, .raw = true});
    }
    if (info[0].count != info[1].count)
        return fail("not as many pictures as there should be");
    for (int64_t i = 0; i < info[0].count; i++) {
        wf_batch x, y;
        WF_MUST(wf_iter_next(iter[0], &x));
        WF_MUST(wf_iter_next(iter[1], &y));
        same = same && alike(x.x, y.x);
    }
    wf_iter_free(iter[0]);
    wf_iter_free(iter[1]);
    WF_MUST(wf_ctx_free(ctx));
    return same ? 0 : fail("pictures differ by more levels of grey than they may");
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        return fail("examples_pictures DIR COUNT LEAST, or DIR OTHER");
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){0});
    if (argc == 3)
        return compare(ctx, argv + 1);
    const long least = atol(argv[3]);
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
