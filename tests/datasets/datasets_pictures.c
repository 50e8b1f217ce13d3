/* Folders of images, and pictures written. */
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"

#include <dirent.h>
#include <math.h>
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>

static wf_ctx *ctx;

/* Pixel (h, w) has red = 10 h + seed, green = 10 w, blue = 100. */
static void write_image(const char *path, int height, int width, int seed)
{
    unsigned char *data = malloc((size_t)(height * width * 3));
    for (int h = 0; h < height; h++)
        for (int w = 0; w < width; w++) {
            unsigned char *pixel = data + 3 * (h * width + w);
            pixel[0] = (unsigned char)(10 * h + seed);
            pixel[1] = (unsigned char)(10 * w);
            pixel[2] = 100;
        }
    const size_t length = strlen(path);
    const int done = strcmp(path + length - 3, "png") == 0 ? stbi_write_png(path, width, height, 3, data, 0)
                                                           : stbi_write_jpg(path, width, height, 3, data, 95);
    WF_EXPECT(done, "cannot write %s", path);
    free(data);
}

static wf_status read_first(wf_dataset *dataset)
{
    unsigned char x[4096];
    const wf_status status = wf_dataset_open(dataset);
    if (status == WF_OK && wf_dataset_sample_bytes(dataset) <= sizeof x) {
        const wf_status read = wf_dataset_read(dataset, 0, &(wf_sample_key){0}, x, NULL);
        wf_dataset_free(dataset);
        return read;
    }
    wf_dataset_free(dataset);
    return status;
}

static void flat_folder(void)
{
    test_folder f = test_folder_new();
    write_image(test_path(&f, "b.png"), 4, 6, 1);
    write_image(test_path(&f, "a.png"), 4, 6, 2);
    write_image(test_path(&f, "c.JPG"), 8, 12, 3);
    test_write(test_path(&f, "notes.txt"), "no image", 8);
    test_write(test_path(&f, ".hidden.png"), "no image", 8);
    wf_dataset *d = wf_image_folder(ctx, f.path, (wf_image_folder_opts){0});
    wf_dataset_info info = {0};
    WF_EXPECT(wf_dataset_info_get(d, NULL) == WF_ERR_ARGUMENT, "nowhere to put the facts");
    wf_error_clear();
    WF_EXPECT_OK(wf_dataset_info_get(d, &info));
    WF_EXPECT(info.count == 3 && wf_shape_equal(info.shape, WF_SHAPE(3, 4, 6)) && !info.labels && info.dtype == WF_U8,
              "count %lld", (long long)info.count);
    unsigned char x[72];
    for (int64_t i = 0; i < 2; i++) {
        WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, NULL));
        for (int h = 0; h < 4; h++)
            for (int w = 0; w < 6; w++) {
                const int p = 6 * h + w;
                WF_EXPECT(x[p] == 10 * h + 2 - i && x[24 + p] == 10 * w && x[48 + p] == 100, "image %lld at %d,%d",
                          (long long)i, h, w);
            }
    }
    WF_EXPECT_OK(wf_dataset_read(d, 2, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT(abs(x[48] - 100) < 12 && abs(x[24 + 11] - 105) < 15, "resized JPEG: %d %d", x[48], x[24 + 11]);
    wf_dataset_free(d);
    d = wf_image_folder(ctx, f.path, (wf_image_folder_opts){.height = 2, .width = 3, .channels = 1});
    WF_EXPECT_OK(wf_dataset_info_get(d, &info));
    WF_EXPECT(wf_shape_equal(info.shape, WF_SHAPE(1, 2, 3)), "shape");
    wf_dataset_free(d);
    test_folder_free(&f);
}

static void class_folders(void)
{
    test_folder f = test_folder_new();
    const char *classes[] = {"cat", "ant", "bee"};
    for (int c = 0; c < 3; c++) {
        char name[64];
        WF_EXPECT(mkdir(test_path(&f, classes[c]), 0700) == 0, "mkdir");
        for (int i = 0; i <= c; i++) {
            snprintf(name, sizeof name, "%s/%d.png", classes[c], i);
            write_image(test_path(&f, name), 2, 2, 10 * c + i);
        }
    }
    wf_dataset *d = wf_image_folder(ctx, f.path, (wf_image_folder_opts){0});
    wf_dataset_info info = {0};
    WF_EXPECT_OK(wf_dataset_info_get(d, &info));
    WF_EXPECT(info.count == 6 && info.classes == 3 && info.labels, "%lld of %lld", (long long)info.count,
              (long long)info.classes);
    const int seeds[] = {10, 11, 20, 21, 22, 0};
    const int64_t labels[] = {0, 0, 1, 1, 1, 2};
    for (int64_t i = 0; i < info.count; i++) {
        unsigned char x[12];
        int64_t label;
        WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, &label));
        WF_EXPECT(x[0] == seeds[i] && label == labels[i], "sample %lld: %d, %lld", (long long)i, x[0],
                  (long long)label);
    }
    wf_dataset_free(d);
    write_image(test_path(&f, "stray.png"), 2, 2, 0);
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, (wf_image_folder_opts){0})), "stray.png", "ant");
    test_folder_free(&f);
}

static void damaged(void)
{
    test_folder f = test_folder_new();
    const wf_image_folder_opts opts = {.height = 8, .width = 8};
    size_t bytes;
    TEST_FAILS(WF_ERR_IO, read_first(wf_image_folder(ctx, "/nowhere", opts)), "/nowhere", "No such");
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, opts)), f.path, "no PNG or JPEG");
    write_image(test_path(&f, "a.png"), 16, 16, 1);
    WF_EXPECT_OK(read_first(wf_image_folder(ctx, f.path, opts)));
    unsigned char *data = test_slurp(f.file, &bytes);
    data[bytes / 2] ^= 1;
    test_write(f.file, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, opts)), f.file, "damaged PNG");
    data[bytes / 2] ^= 1;
    test_write(f.file, data, bytes - 15);
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, opts)), f.file, "truncated PNG");
    test_write(f.file, "hello", 5);
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, opts)), f.file, "neither");
    test_write(f.file, "", 0);
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, opts)), f.file, "empty");
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, (wf_image_folder_opts){0})), f.file, "image");
    remove(f.file);
    WF_EXPECT(mkfifo(f.file, 0666) == 0, "no pipe");
    TEST_FAILS(WF_ERR_IO, read_first(wf_image_folder(ctx, f.path, opts)), f.file, "is not a file");
    remove(f.file);
    free(data);
    write_image(test_path(&f, "a.jpeg"), 16, 16, 1);
    WF_EXPECT_OK(read_first(wf_image_folder(ctx, f.path, opts)));
    data = test_slurp(f.file, &bytes);
    test_write(f.file, data, bytes * 2 / 3);
    TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, opts)), f.file, "truncated JPEG");
    free(data);
    TEST_FAILS(WF_ERR_ARGUMENT, read_first(wf_image_folder(ctx, f.path, (wf_image_folder_opts){.channels = 5})), "5",
               "1 to 4");
    test_folder_free(&f);
}

/* --- Upright ------------------------------------------------------------------------------------------------------ */

enum { STORED_H = 16, STORED_W = 24, STORED = STORED_H * STORED_W };

/* EXIF's data with one entry, the orientation. Its length. */
static size_t exif(unsigned char *to, bool little, int orientation)
{
    static const unsigned char big[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0};
    static const unsigned char small[] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    memcpy(to, little ? small : big, sizeof big);
    to[little ? 18 : 19] = (unsigned char)orientation;
    return sizeof big;
}

/* Puts EXIF's data where a JPEG and a PNG have it: after the first marker; after the header. */
static void tag(const char *path, const unsigned char *data, size_t bytes)
{
    unsigned char segment[128];
    size_t length, n;
    const bool png = strstr(path, ".png") != NULL;
    unsigned char *file = test_slurp(path, &length);
    const size_t at = png ? 33 : 2;
    if (png) {
        memcpy(segment, (unsigned char[]){0, 0, 0, (unsigned char)bytes, 'e', 'X', 'I', 'f'}, 8);
        memcpy(segment + 8, data, bytes);
        n = 12 + bytes;
        const unsigned long sum = crc32(0, segment + 4, (uInt)bytes + 4);
        for (int i = 0; i < 4; i++)
            segment[8 + bytes + (size_t)i] = (unsigned char)(sum >> (24 - 8 * i));
    } else {
        memcpy(segment, (unsigned char[]){0xFF, 0xE1, 0, (unsigned char)(8 + bytes), 'E', 'x', 'i', 'f', 0, 0}, 10);
        memcpy(segment + 10, data, bytes);
        n = 10 + bytes;
    }
    unsigned char *all = malloc(length + n);
    memcpy(all, file, at);
    memcpy(all + at, segment, n);
    memcpy(all + at + n, file + at, length - at);
    test_write(path, all, length + n);
    free(all);
    free(file);
}

/* Says where the stored pixel (r, c) is to be seen: EXIF's own words are "the 0th row is the visual right-hand side".
 */
static void seen_at(int orientation, int r, int c, int *row, int *col)
{
    const int low = STORED_H - 1 - r, far = STORED_W - 1 - c;
    const int rows[] = {r, r, low, low, c, c, far, far}, cols[] = {c, far, far, c, r, low, low, r};
    *row = rows[orientation - 1];
    *col = cols[orientation - 1];
}

static void expect_upright(const char *what, const char *dir, int orientation, const unsigned char *stored)
{
    unsigned char x[3 * STORED];
    wf_dataset_info info = {0};
    const int height = orientation < 5 ? STORED_H : STORED_W, width = orientation < 5 ? STORED_W : STORED_H;
    int64_t wrong = 0;
    wf_dataset *d = wf_image_folder(ctx, dir, (wf_image_folder_opts){0});
    WF_EXPECT_OK(wf_dataset_info_get(d, &info));
    WF_EXPECT(wf_shape_equal(info.shape, WF_SHAPE(3, height, width)), "%s %d has the stored shape", what, orientation);
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, x, NULL));
    for (int i = 0; i < 3 * STORED; i++) {
        int row, col;
        seen_at(orientation, i % STORED / STORED_W, i % STORED_W, &row, &col);
        wrong += x[i / STORED * STORED + row * width + col] != stored[i];
    }
    WF_EXPECT(wrong == 0, "%s %d: %lld elements are wrong", what, orientation, (long long)wrong);
    wf_dataset_free(d);
}

static void turned(const char *name)
{
    unsigned char stored[3 * STORED], data[64];
    test_folder f = test_folder_new();
    write_image(test_path(&f, name), STORED_H, STORED_W, 5);
    wf_dataset *d = wf_image_folder(ctx, f.path, (wf_image_folder_opts){0});
    WF_EXPECT_OK(wf_dataset_open(d));
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, stored, NULL));
    wf_dataset_free(d);
    for (int o = 1; o <= 8; o++)
        for (int little = 0; little < 2; little++) {
            write_image(f.file, STORED_H, STORED_W, 5);
            tag(f.file, data, exif(data, little, o));
            expect_upright(name, f.path, o, stored);
        }
    /* Data that make no sense leave the picture as it is stored. */
    for (int i = 0; i < 4; i++) {
        size_t bytes = exif(data, true, i == 0 ? 9 : 6);
        bytes = i == 1 ? 20 : bytes;
        data[4] = i == 2 ? 200 : 8;
        data[12] = i == 3 ? 4 : 3;
        write_image(f.file, STORED_H, STORED_W, 5);
        tag(f.file, data, bytes);
        expect_upright("senseless", f.path, 1, stored);
    }
    test_folder_free(&f);
}

static void orientations(void)
{
    turned("a.jpg");
    turned("a.png");
}

/* --- Four channels ------------------------------------------------------------------------------------------------ */

/* 8 x 8 pixels of four channels, each 128; Adobe's marker with this transform, or none: -1. */
static void write_four_channels(const char *path, int transform)
{
    static const unsigned char start[] = {0xFF, 0xD8}, end[] = {0, 0xFF, 0xD9};
    static const unsigned char frame[] = {0xFF, 0xC0, 0, 20,   8, 0, 8,    0, 8, 4,    1,
                                          0x11, 0,    2, 0x11, 0, 3, 0x11, 0, 4, 0x11, 0};
    /* One code of one bit: no difference, and the end of the block. */
    static const unsigned char codes[2][22] = {{0xFF, 0xC4, 0, 20, 0x00, 1}, {0xFF, 0xC4, 0, 20, 0x10, 1}};
    static const unsigned char scan[] = {0xFF, 0xDA, 0, 14, 4, 1, 0, 2, 0, 3, 0, 4, 0, 0, 63, 0};
    unsigned char steps[69] = {0xFF, 0xDB, 0, 67, 0};
    const unsigned char adobe[] = {0xFF, 0xEE, 0,   14, 'A', 'd', 'o', 'b',
                                   'e',  0,    100, 0,  0,   0,   0,   (unsigned char)transform};
    memset(steps + 5, 1, 64);
    FILE *file = fopen(path, "wb");
    fwrite(start, sizeof start, 1, file);
    fwrite(adobe, sizeof adobe, transform >= 0, file);
    fwrite(steps, sizeof steps, 1, file);
    fwrite(frame, sizeof frame, 1, file);
    fwrite(codes, sizeof codes, 1, file);
    fwrite(scan, sizeof scan, 1, file);
    fwrite(end, sizeof end, 1, file);
    WF_EXPECT(fclose(file) == 0, "cannot write %s", path);
}

/* Inks of a half, the black one too, leave a quarter of the light. */
static void four_channels(void)
{
    unsigned char x[3 * 64];
    test_folder f = test_folder_new();
    write_four_channels(test_path(&f, "a.jpg"), 0);
    wf_dataset *d = wf_image_folder(ctx, f.path, (wf_image_folder_opts){0});
    WF_EXPECT_OK(wf_dataset_open(d));
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, x, NULL));
    for (int i = 0; i < 3 * 64; i++)
        WF_EXPECT(x[i] == 64, "element %d is %d", i, x[i]);
    wf_dataset_free(d);
    for (int transform = -1; transform < 2; transform += 2) {
        write_four_channels(f.file, transform);
        TEST_FAILS(WF_ERR_FORMAT, read_first(wf_image_folder(ctx, f.path, (wf_image_folder_opts){0})), f.file,
                   "four channels without Adobe's marker");
    }
    test_folder_free(&f);
}

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count - 2;
}

static void grid(void)
{
    test_folder f = test_folder_new();
    float x[3 * 3 * 2 * 2];
    for (int i = 0; i < 36; i++)
        x[i] = i == 5 ? NAN : (float)i / 10.3f - 1; /* -1 to 2.4, black at -1, white at 1 */
    wf_tensor *t = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(3, 3, 2, 2), x);
    WF_EXPECT_OK(wf_write_png_grid(test_path(&f, "grid.png"), t, 2, 2, -1, 1));
    WF_EXPECT(entries(f.path) == 1, "%d files", entries(f.path));
    int w = 0, h = 0, channels = 0;
    unsigned char *pixels = stbi_load(f.file, &w, &h, &channels, 3);
    WF_EXPECT(pixels && w == 10 && h == 10 && channels == 3, "%d x %d x %d", h, w, channels);
    for (int image = 0; pixels && image < 3; image++)
        for (int i = 0; i < 12; i++) {
            const int c = i / 4, row = 2 + 4 * (image / 2) + i % 4 / 2, col = 2 + 4 * (image % 2) + i % 2;
            const float value = x[image * 12 + i];
            const int want = isnan(value) ? 0 : value >= 1 ? 255 : (int)lrintf((value + 1) / 2 * 255);
            const int is = pixels[3 * (10 * row + col) + c];
            WF_EXPECT(is == want, "image %d element %d: %d, should be %d", image, i, is, want);
        }
    WF_EXPECT(pixels && pixels[0] == 0 && pixels[3 * (10 * 7 + 7)] == 0, "border and empty cell are black");
    stbi_image_free(pixels);
    TEST_FAILS(WF_ERR_IO, wf_write_png_grid("/nowhere/x.png", t, 2, 2, 0, 1), "/nowhere/x.png", "No such");
    TEST_FAILS(WF_ERR_ARGUMENT, wf_write_png_grid(f.file, t, 2, 2, 1, 1), f.file, "white");
    mkdir(test_path(&f, "folder.png"), 0700);
    TEST_FAILS(WF_ERR_IO, wf_write_png_grid(f.file, t, 2, 2, 0, 1), f.file, "cannot write");
    WF_EXPECT(entries(f.path) == 2, "a partial file is left");
    TEST_FAILS(WF_ERR_IO, wf_write_png_grid("/dev/full/x.png", t, 2, 2, 0, 1), "/dev/full/x.png", "cannot write");
    wf_tensor_free(t);
    t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3, 2, 2, 2));
    TEST_FAILS(WF_ERR_SHAPE, wf_write_png_grid(f.file, t, 2, 2, 0, 1), "[3,2,2,2]", "[N,3,H,W]");
    wf_tensor_free(t);
    test_folder_free(&f);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){0});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"flat_folder", flat_folder},
                                               {"class_folders", class_folders},
                                               {"damaged", damaged},
                                               {"orientations", orientations},
                                               {"four_channels", four_channels},
                                               {"grid", grid},
                                               {0}});
    WF_MUST(wf_ctx_free(ctx));
    return failed;
}
