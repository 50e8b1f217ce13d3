/* What each transform does to known samples, and that random ones depend on seed, epoch and sample alone. */
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"

#include <math.h>

static wf_ctx *ctx;

/* u8 [count,channels,height,width] 0, 1, 2, ... */
static wf_dataset *counting(int64_t count, int64_t channels, int64_t height, int64_t width)
{
    unsigned char x[4096];
    for (int i = 0; i < 4096; i++)
        x[i] = (unsigned char)i;
    return wf_memory_dataset(ctx, WF_U8, WF_SHAPE(count, channels, height, width), x, NULL);
}

static wf_status read_at(wf_dataset *d, int64_t index, int64_t epoch, void *x)
{
    const wf_status status = wf_dataset_open(d);
    if (status != WF_OK)
        return status;
    return wf_dataset_read(d, index, &(wf_sample_key){.seed = 3, .epoch = epoch, .sample = index}, x, NULL);
}

static wf_status open_and_free(wf_dataset *d)
{
    const wf_status status = wf_dataset_open(d);
    wf_dataset_free(d);
    return status;
}

static void values(void)
{
    float y[24];
    wf_dataset *d = wf_transform_normalise(counting(3, 2, 2, 2), 2, (double[]){0.5, 0.25}, (double[]){0.5, 2});
    WF_EXPECT_OK(read_at(d, 2, 0, y));
    for (int i = 0; i < 8; i++) {
        const double want = i < 4 ? ((16 + i) / 255.0 - 0.5) / 0.5 : ((16 + i) / 255.0 - 0.25) / 2;
        WF_EXPECT(fabs((double)y[i] - want) < 1e-6, "%d: %g, should be %g", i, (double)y[i], want);
    }
    wf_dataset_free(d);
    d = wf_transform_normalise(wf_transform_scale(counting(3, 2, 2, 2), -1, 1), 1, (double[]){1}, (double[]){4});
    WF_EXPECT_OK(read_at(d, 2, 0, y));
    for (int i = 0; i < 8; i++)
        WF_EXPECT(fabs((double)y[i] - ((16 + i) / 127.5 - 2) / 4) < 1e-6, "%d: %g", i, (double)y[i]);
    wf_dataset_free(d);
    const double two[] = {1, 1}, zero[] = {0, 0};
    TEST_FAILS(WF_ERR_ARGUMENT, open_and_free(wf_transform_normalise(counting(1, 2, 2, 2), 2, two, zero)), "std 0",
               "channel 0");
    TEST_FAILS(WF_ERR_SHAPE, open_and_free(wf_transform_normalise(counting(1, 3, 2, 2), 2, two, two)), "2 channels",
               "3");
    TEST_FAILS(WF_ERR_DTYPE, open_and_free(wf_transform_scale(wf_transform_scale(counting(1, 3, 2, 2), 0, 1), 0, 1)),
               "scale", "f32");
}

static void channels(void)
{
    unsigned char y[64];
    wf_dataset *d = wf_transform_channels(counting(2, 1, 2, 2), 3);
    WF_EXPECT_OK(read_at(d, 1, 0, y));
    for (int i = 0; i < 12; i++)
        WF_EXPECT(y[i] == 4 + i % 4, "%d: %d", i, y[i]);
    wf_dataset_free(d);
    d = wf_transform_channels(counting(1, 4, 2, 2), 3);
    WF_EXPECT_OK(read_at(d, 0, 0, y));
    for (int i = 0; i < 12; i++)
        WF_EXPECT(y[i] == i, "%d: %d", i, y[i]);
    wf_dataset_free(d);
    d = wf_transform_channels(counting(1, 3, 2, 2), 1);
    WF_EXPECT_OK(read_at(d, 0, 0, y));
    for (int i = 0; i < 4; i++)
        WF_EXPECT(y[i] == lrint(0.299 * i + 0.587 * (4 + i) + 0.114 * (8 + i)), "%d: %d", i, y[i]);
    wf_dataset_free(d);
    TEST_FAILS(WF_ERR_SHAPE, open_and_free(wf_transform_channels(counting(1, 3, 2, 2), 2)), "3 to 2", "1 to n");
    WF_EXPECT(!wf_transform_channels(NULL, 3), "NULL is passed on");
}

/* Every size to every other: a plane of one value keeps it, and a ramp of means keeps its mean and its order. */
static void resize_sizes(void)
{
    enum { MOST = 24 };
    for (int64_t from = 1; from <= MOST; from++)
        for (int64_t to = 1; to <= MOST; to++) {
            float x[2 * MOST], y[2 * MOST];
            double mean[2] = {0};
            for (int64_t i = 0; i < from; i++) {
                x[i] = (float)(i + 1) / (float)from;
                x[from + i] = 0.75f;
                mean[0] += (double)x[i] / (double)from;
            }
            wf_dataset *d = wf_memory_dataset(ctx, WF_F32, WF_SHAPE(1, 2, 1, from), x, NULL);
            d = wf_transform_resize(d, 1, to);
            WF_EXPECT_OK(wf_dataset_open(d));
            WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, y, NULL));
            for (int64_t i = 0; i < to; i++) {
                mean[1] += (double)y[i] / (double)to;
                WF_EXPECT(fabsf(y[to + i] - 0.75f) < 1e-6f && (i == 0 || y[i] >= y[i - 1]), "%d to %d: pixel %d",
                          (int)from, (int)to, (int)i);
            }
            WF_EXPECT(fabs(mean[0] - mean[1]) < 1e-6, "%d to %d: mean %g, should be %g", (int)from, (int)to, mean[1],
                      mean[0]);
            wf_dataset_free(d);
        }
}

/* Checks that no pixel is left out if a plane shrinks. */
static void resize_counts_all(void)
{
    enum { FROM = 24 };
    for (int64_t to = 1; to < FROM; to++) {
        float x[FROM * FROM] = {0}, y[FROM];
        for (int i = 0; i < FROM; i++)
            x[i * FROM + i] = 1;
        wf_dataset *d = wf_transform_resize(wf_memory_dataset(ctx, WF_F32, WF_SHAPE(FROM, 1, 1, FROM), x, NULL), 1, to);
        WF_EXPECT_OK(wf_dataset_open(d));
        for (int64_t i = 0; i < FROM; i++) {
            float sum = 0;
            WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, y, NULL));
            for (int64_t k = 0; k < to; k++)
                sum += y[k];
            WF_EXPECT(sum > 0.2f * (float)to / FROM, "to %d: pixel %d counts %g", (int)to, (int)i, (double)sum);
        }
        wf_dataset_free(d);
    }
}

static void resize(void)
{
    unsigned char y[64], x[16];
    for (int i = 0; i < 16; i++)
        x[i] = (unsigned char)(i % 4 < 2 ? 0 : 200);
    wf_dataset *d = wf_transform_resize(wf_memory_dataset(ctx, WF_U8, WF_SHAPE(1, 1, 4, 4), x, NULL), 8, 8);
    WF_EXPECT_OK(read_at(d, 0, 0, y));
    for (int h = 0; h < 8; h++)
        for (int w = 0; w < 8; w++) {
            const int want[] = {0, 0, 0, 50, 150, 200, 200, 200};
            WF_EXPECT(abs(y[8 * h + w] - want[w]) <= 1, "up %d,%d: %d", h, w, y[8 * h + w]);
        }
    wf_dataset_free(d);
    float *f = (float *)(void *)malloc(64 * sizeof(float));
    d = wf_transform_resize(wf_transform_scale(wf_memory_dataset(ctx, WF_U8, WF_SHAPE(1, 1, 4, 4), x, NULL), 0, 255), 8,
                            8);
    WF_EXPECT_OK(read_at(d, 0, 0, f));
    WF_EXPECT(fabsf(f[3] - 50) < 1e-3f && fabsf(f[4] - 150) < 1e-3f, "%g %g", (double)f[3], (double)f[4]);
    free(f);
    wf_dataset_free(d);
    d = wf_transform_resize(wf_memory_dataset(ctx, WF_U8, WF_SHAPE(1, 1, 4, 4), x, NULL), 2, 1);
    WF_EXPECT_OK(read_at(d, 0, 0, y));
    WF_EXPECT(abs(y[0] - 100) <= 1 && abs(y[1] - 100) <= 1, "down: %d %d", y[0], y[1]);
    wf_dataset_free(d);
}

static void flip(void)
{
    const int64_t n = 64;
    unsigned char y[12], again[12];
    int flipped[2] = {0}, changed = 0;
    bool before[64];
    wf_dataset *d = wf_transform_random_flip(counting(n, 2, 2, 3));
    for (int64_t epoch = 0; epoch < 2; epoch++)
        for (int64_t s = 0; s < n; s++) {
            WF_EXPECT_OK(read_at(d, s, epoch, y));
            WF_EXPECT_OK(read_at(d, s, epoch, again));
            WF_EXPECT(memcmp(y, again, sizeof y) == 0, "sample %lld changes between readings", (long long)s);
            const unsigned char first = (unsigned char)(12 * s);
            const bool mirrored = y[0] != first;
            for (int i = 0; i < 12; i++) {
                const int from = mirrored ? i / 3 * 3 + 2 - i % 3 : i;
                WF_EXPECT(y[i] == (unsigned char)(first + from), "sample %lld element %d: %d", (long long)s, i, y[i]);
            }
            flipped[epoch] += mirrored;
            changed += epoch > 0 && mirrored != before[s];
            before[s] = mirrored;
        }
    WF_EXPECT(flipped[0] > 16 && flipped[0] < 48 && changed > 16 && changed < 48, "%d flipped, %d changed", flipped[0],
              changed);
    wf_dataset_free(d);
}

static void crop(void)
{
    unsigned char y[64];
    bool seen[5][5] = {{0}};
    wf_dataset *d = wf_transform_random_crop(counting(4, 1, 4, 4), 2, 0, 0);
    for (int64_t epoch = 0; epoch < 100; epoch++) {
        WF_EXPECT_OK(read_at(d, 1, epoch, y));
        int found = 0;
        for (int top = -2; top <= 2; top++)
            for (int left = -2; left <= 2; left++) {
                bool same = true;
                for (int i = 0; i < 16; i++) {
                    const int h = top + i / 4, w = left + i % 4;
                    same = same && y[i] == (h >= 0 && h < 4 && w >= 0 && w < 4 ? 16 + 4 * h + w : 0);
                }
                found += same;
                seen[top + 2][left + 2] = seen[top + 2][left + 2] || same;
            }
        WF_EXPECT(found == 1, "epoch %lld: no window of the padded sample", (long long)epoch);
    }
    int places = 0;
    for (int i = 0; i < 25; i++)
        places += seen[i / 5][i % 5];
    WF_EXPECT(places >= 22, "only %d of 25 places in 100 epochs", places);
    wf_dataset_free(d);
    d = wf_transform_random_crop(counting(4, 1, 2, 2), 1, 4, 4);
    WF_EXPECT_OK(read_at(d, 0, 0, y));
    WF_EXPECT(y[0] == 0 && y[5] == 0 && y[6] == 1 && y[9] == 2 && y[10] == 3 && y[15] == 0, "plain padding");
    wf_dataset_free(d);
    d = wf_transform_centre_crop(counting(4, 1, 4, 5), 0, 2, 2);
    WF_EXPECT_OK(read_at(d, 1, 7, y));
    WF_EXPECT(y[0] == 26 && y[1] == 27 && y[2] == 31 && y[3] == 32, "the middle is %d, %d, %d, %d", y[0], y[1], y[2],
              y[3]);
    wf_dataset_free(d);
    d = wf_transform_centre_crop(counting(4, 1, 2, 2), 1, 4, 4);
    WF_EXPECT_OK(read_at(d, 0, 0, y));
    WF_EXPECT(y[0] == 0 && y[5] == 0 && y[6] == 1 && y[9] == 2 && y[10] == 3 && y[15] == 0, "the middle with zeros");
    wf_dataset_free(d);
    TEST_FAILS(WF_ERR_SHAPE, open_and_free(wf_transform_centre_crop(counting(1, 1, 2, 2), 0, 3, 2)), "centre_crop",
               "3 x 2 pixels of samples of 2 x 2");
    TEST_FAILS(WF_ERR_SHAPE, open_and_free(wf_transform_random_crop(counting(1, 1, 2, 2), 1, 5, 4)), "5 x 4", "2 x 2");
    TEST_FAILS(WF_ERR_ARGUMENT, open_and_free(wf_transform_random_crop(counting(1, 1, 2, 2), -1, 2, 2)), "pad -1",
               "random_crop");
    const float x[4] = {0};
    d = wf_memory_dataset(ctx, WF_F32, WF_SHAPE(2, 2), x, NULL);
    TEST_FAILS(WF_ERR_SHAPE, open_and_free(wf_transform_random_flip(d)), "[2]", "[C,H,W]");
}

/* Two crops in a chain must not make the same choice. */
static void chain(void)
{
    unsigned char y[64];
    int differ = 0;
    wf_dataset *d = wf_transform_random_crop(wf_transform_random_crop(counting(1, 1, 5, 5), 0, 4, 4), 0, 3, 3);
    for (int64_t epoch = 0; epoch < 40; epoch++) {
        WF_EXPECT_OK(read_at(d, 0, epoch, y));
        differ += y[0] % 5 == 1 || y[0] / 5 == 1; /* one of the two moved, the other not */
    }
    WF_EXPECT(differ > 20, "%d of 40", differ);
    wf_dataset_free(d);
}

/* Images and masks: a transform more, of another kind, leaves the choices of the others as they are. */
static void alike(void)
{
    unsigned char mask[12];
    float image[12];
    wf_dataset *masks = wf_transform_random_crop(wf_transform_random_flip(counting(64, 1, 3, 4)), 1, 3, 4);
    wf_dataset *images = wf_transform_scale(counting(64, 1, 3, 4), 0, 255);
    images = wf_transform_resize(wf_transform_random_flip(images), 3, 4);
    images = wf_transform_random_crop(images, 1, 3, 4);
    for (int64_t s = 0; s < 64; s++) {
        WF_EXPECT_OK(read_at(masks, s, 1, mask));
        WF_EXPECT_OK(read_at(images, s, 1, image));
        for (int i = 0; i < 12; i++)
            WF_EXPECT(fabs((double)image[i] - mask[i]) < 1e-3, "sample %lld pixel %d: %g in the image, %d in the mask",
                      (long long)s, i, (double)image[i], mask[i]);
    }
    wf_dataset_free(images);
    wf_dataset_free(masks);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){0});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"values", values},
                                               {"alike", alike},
                                               {"channels", channels},
                                               {"resize", resize},
                                               {"resize_sizes", resize_sizes},
                                               {"resize_counts_all", resize_counts_all},
                                               {"flip", flip},
                                               {"crop", crop},
                                               {"chain", chain},
                                               {0}});
    WF_MUST(wf_ctx_free(ctx));
    return failed;
}
