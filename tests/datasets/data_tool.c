/* wf-data: what it writes is, read by wf_hdf5_dataset, bit for bit what the readers give; and wrong commands and inputs
 * end with a line and leave no file. WF_DATA is the program. */
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"

#include <stb/stb_image_write.h>
#include <sys/wait.h>

static wf_ctx *ctx;
static test_folder f;

/* The exit code of wf-data with these arguments, in which every %s is the test's folder. Prints to FOLDER/out. */
static int run(const char *arguments)
{
    char command[2048];
    const char *p = f.path;
    const int n = snprintf(command, sizeof command, "cd %s && \"$WF_DATA\" %s >%s/out 2>&1", p, arguments, p);
    WF_EXPECT(n > 0 && n < (int)sizeof command, "the command is too long");
    const int code = system(command);
    return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

/* The samples [first, first + count) of `expected`, the elements of `box`, are those of the file. Frees `expected`. */
static void expect_file(const char *name, wf_dataset *expected, int64_t first, int64_t count, const wf_box *box)
{
    wf_dataset *d = wf_hdf5_dataset(ctx, test_path(&f, name), (wf_hdf5_opts){0});
    wf_dataset_info a = {0}, b = {0};
    WF_EXPECT_OK(wf_dataset_info_get(expected, &a));
    WF_EXPECT_OK(wf_dataset_info_get(d, &b));
    const wf_box whole = wf_box_of_shape(a.shape);
    box = box ? box : &whole;
    WF_EXPECT(b.count == count && a.dtype == b.dtype && a.labels == b.labels && a.classes == b.classes &&
                  wf_shape_equal(b.shape, wf_box_shape(*box)),
              "%s: %lld samples, %lld classes", name, (long long)b.count, (long long)b.classes);
    const size_t bytes = (size_t)wf_shape_count(b.shape) * wf_dtype_size(b.dtype);
    unsigned char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    for (int64_t i = 0; i < count && b.count == count; i++) {
        int64_t label[2] = {-1, -2};
        WF_EXPECT_OK(wf_dataset_read_box(expected, first + i, &(wf_sample_key){0}, box, x, &label[0]));
        WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, y, &label[1]));
        WF_EXPECT(memcmp(x, y, bytes) == 0 && label[0] == label[1], "%s: sample %lld is another", name, (long long)i);
    }
    free(x);
    free(y);
    wf_dataset_free(d);
    wf_dataset_free(expected);
}

static void write_idx(void)
{
    unsigned char data[4096];
    size_t bytes = test_idx(data, 3, (unsigned[]){11, 6, 4}, 3, 7);
    test_write(test_path(&f, "images"), data, bytes);
    test_write_gz(test_path(&f, "images.gz"), data, bytes);
    bytes = test_idx(data, 1, (unsigned[]){11}, 0, 1);
    test_write(test_path(&f, "labels"), data, bytes);
    /* f32, without labels: elements 0.5, 1, 1.5, ... */
    const unsigned char head[] = {0, 0, 0x0D, 2, 0, 0, 0, 5, 0, 0, 0, 3};
    memcpy(data, head, sizeof head);
    for (int i = 0; i < 15; i++) {
        const float value = 0.5f * (float)(i + 1);
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        for (int b = 0; b < 4; b++)
            data[sizeof head + (size_t)(4 * i + b)] = (unsigned char)(word >> (24 - 8 * b));
    }
    test_write(test_path(&f, "floats"), data, sizeof head + 60);
}

static wf_dataset *idx(const char *images, bool labels)
{
    char path[600];
    snprintf(path, sizeof path, "%s", test_path(&f, images));
    return wf_idx(ctx, path, labels ? test_path(&f, "labels") : NULL);
}

static void idx_files(void)
{
    write_idx();
    WF_EXPECT(run("idx images labels -o a.h5") == 0, "idx");
    expect_file("a.h5", idx("images", true), 0, 11, NULL);
    WF_EXPECT(run("idx images.gz labels -o b.h5 --compress 6 --chunk 3") == 0, "gzip, in chunks");
    expect_file("b.h5", idx("images", true), 0, 11, NULL);
    WF_EXPECT(run("idx floats -o c.h5") == 0, "floats");
    expect_file("c.h5", idx("floats", false), 0, 5, NULL);
    WF_EXPECT(run("idx images labels -o d.h5 --only 4:9 --crop 3x2") == 0, "a part");
    const wf_box middle = {.rank = 3, .lo = {0, 1, 1}, .hi = {1, 4, 3}};
    wf_dataset *whole = idx("images", true);
    wf_dataset_info info = {0};
    WF_EXPECT_OK(wf_dataset_info_get(whole, &info));
    expect_file("d.h5", whole, 4, 5, &middle);
    WF_EXPECT(info.classes == 11, "%lld classes", (long long)info.classes);
    WF_EXPECT(run("idx images labels -o a.h5 --resize 3x8 --channels 3") == 0, "an existing file, resized");
    expect_file("a.h5", wf_transform_resize(wf_transform_channels(idx("images", true), 3), 3, 8), 0, 11, NULL);
}

static void cifar_files(void)
{
    enum { RECORD = 1 + 3072 };
    static unsigned char data[4 * (RECORD + 1)];
    for (int i = 1; i <= 6; i++) {
        char name[32];
        for (size_t k = 0; k < 4 * RECORD; k++)
            data[k] = (unsigned char)(k % RECORD == 0 ? (k / RECORD + (size_t)i) % 10 : k * 13 + (size_t)i);
        snprintf(name, sizeof name, i == 6 ? "test_batch.bin" : "data_batch_%d.bin", i);
        test_write(test_path(&f, name), data, 4 * RECORD);
    }
    for (size_t k = 0; k < sizeof data; k++)
        data[k] = (unsigned char)(k % (RECORD + 1) < 2 ? k % 17 : k * 11);
    test_write(test_path(&f, "train.bin"), data, sizeof data);
    WF_EXPECT(run("cifar10 . -o train.h5 --compress 1") == 0, "cifar10");
    expect_file("train.h5", wf_cifar10(ctx, f.path, WF_TRAIN_SET), 0, 20, NULL);
    WF_EXPECT(run("cifar10 . -o test.h5 --test") == 0, "its test set");
    expect_file("test.h5", wf_cifar10(ctx, f.path, WF_TEST_SET), 0, 4, NULL);
    WF_EXPECT(run("cifar100 . -o fine.h5") == 0, "cifar100");
    expect_file("fine.h5", wf_cifar100(ctx, f.path, WF_TRAIN_SET), 0, 4, NULL);
}

static void catalogues(void)
{
    static unsigned char data[4096];
    static char text[30][16];
    const char *pair[30][2];
    for (int i = 0; i < 30; i++) {
        snprintf(text[i], sizeof text[i], "message %d", i);
        pair[i][0] = text[i];
        pair[i][1] = "Nachricht";
    }
    test_write(test_path(&f, "a.mo"), data, test_catalogue(data, 30, pair));
    for (int split = 0; split < 2; split++) {
        WF_EXPECT(run(split ? "catalogue . -o m.h5 --test" : "catalogue . -o m.h5") == 0, "catalogue");
        wf_dataset *d = wf_catalogue(ctx, (wf_catalogue_opts){.path = f.path}, (wf_dataset_split)split);
        expect_file("m.h5", d, 0, wf_dataset_count(d), NULL);
    }
}

static void folders(void)
{
    unsigned char pixels[3 * 9 * 8];
    for (int i = 0; i < 6; i++) {
        char name[64];
        for (size_t k = 0; k < sizeof pixels; k++)
            pixels[k] = (unsigned char)(k * 5 + (size_t)i * 40);
        snprintf(name, sizeof name, "pictures/%s", i < 2 ? "cat" : "dog");
        WF_EXPECT(mkdir(test_path(&f, "pictures"), 0700) == 0 || i > 0, "mkdir");
        WF_EXPECT(mkdir(test_path(&f, name), 0700) == 0 || i > 0, "mkdir");
        snprintf(name, sizeof name, "pictures/%s/%d.%s", i < 2 ? "cat" : "dog", i, i % 2 ? "jpg" : "png");
        const int done = i % 2 ? stbi_write_jpg(test_path(&f, name), 9, 8, 3, pixels, 90)
                               : stbi_write_png(test_path(&f, name), 9, 8, 3, pixels, 0);
        WF_EXPECT(done, "cannot write %s", name);
    }
    WF_EXPECT(run("folder pictures -o p.h5") == 0, "folder");
    char path[600];
    snprintf(path, sizeof path, "%s", test_path(&f, "pictures"));
    expect_file("p.h5", wf_image_folder(ctx, path, (wf_image_folder_opts){0}), 0, 6, NULL);
    WF_EXPECT(run("folder pictures -o q.h5 --resize 6x7 --crop 4x4 --channels 1 --compress 9") == 0,
              "resized, cropped");
    const wf_box middle = {.rank = 3, .lo = {0, 1, 1}, .hi = {1, 5, 5}};
    expect_file("q.h5", wf_image_folder(ctx, path, (wf_image_folder_opts){.height = 6, .width = 7, .channels = 1}), 0,
                6, &middle);
}

/* Writes a classic netCDF file: u [t,y,x], f32 [4,2,3], elements 0.5, 1, 1.5, ... */
static void write_netcdf(void)
{
    enum { NAME = 1, DIMENSIONS = 10, VARIABLES = 11, FLOAT = 5, BEGIN = 112, COUNT = 24 };
    const uint32_t head[BEGIN / 4] = {0x43444601,
                                      0, /* CDF, version 1; no records */
                                      DIMENSIONS,
                                      3,
                                      NAME,
                                      (uint32_t)'t' << 24,
                                      4,
                                      NAME,
                                      (uint32_t)'y' << 24,
                                      2,
                                      NAME,
                                      (uint32_t)'x' << 24,
                                      3,
                                      0,
                                      0, /* no attributes */
                                      VARIABLES,
                                      1,
                                      NAME,
                                      (uint32_t)'u' << 24,
                                      3,
                                      0,
                                      1,
                                      2,
                                      0,
                                      0,
                                      FLOAT,
                                      COUNT * 4,
                                      BEGIN};
    unsigned char data[BEGIN + 4 * COUNT];
    for (size_t i = 0; i < sizeof data / 4; i++) {
        const float value = 0.5f * (float)(i + 1 - BEGIN / 4);
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        word = i < BEGIN / 4 ? head[i] : word;
        for (int b = 0; b < 4; b++)
            data[4 * i + (size_t)b] = (unsigned char)(word >> (24 - 8 * b));
    }
    test_write(test_path(&f, "u.nc"), data, sizeof data);
}

/* The exit code, one line that says this, and no file. */
static void expect_complaint(int code, const char *text, const char *arguments)
{
    size_t bytes;
    const int is = run(arguments);
    char *said = (char *)test_slurp(test_path(&f, "out"), &bytes);
    said[bytes < 1 << 20 ? bytes : 0] = '\0';
    const char *end = strchr(said, '\n');
    WF_EXPECT(is == code && strstr(said, text) && end && end[1] == '\0', "wf-data %s: %d, \"%s\" does not say \"%s\"",
              arguments, is, said, text);
    free(said);
    WF_EXPECT(access(test_path(&f, "z.h5"), F_OK) != 0 && access(test_path(&f, "z.h5.unfinished"), F_OK) != 0,
              "wf-data %s: left a file", arguments);
}

static void complaints(void)
{
    write_idx();
    expect_complaint(2, "no input", "");
    expect_complaint(2, "no input of idx", "idx -o z.h5");
    expect_complaint(2, "no -o FILE.h5", "idx images");
    expect_complaint(2, "no format tar", "tar images -o z.h5");
    expect_complaint(2, "--resize", "idx images -o z.h5 --resize 3");
    expect_complaint(2, "--resize", "idx images -o z.h5 --resize 0x4");
    expect_complaint(2, "--compress", "idx images -o z.h5 --compress 10");
    expect_complaint(2, "--only", "idx images -o z.h5 --only 5:5");
    expect_complaint(2, "--fast", "idx images -o z.h5 --fast");
    expect_complaint(2, "too many inputs", "idx images labels more -o z.h5");
    expect_complaint(2, "one input is enough", "mnist images labels -o z.h5");
    expect_complaint(2, "--test makes no sense", "idx images --test -o z.h5");
    expect_complaint(1, "nowhere: cannot open", "idx nowhere -o z.h5");
    expect_complaint(1, "labels of rank 3", "idx images images -o z.h5");
    expect_complaint(1, "none from 11 on", "idx images -o z.h5 --only 11:12");
    expect_complaint(1, "--crop 7x1", "idx images -o z.h5 --crop 7x1");
    expect_complaint(1, "no/z.h5", "idx images -o no/z.h5");
    unsigned char data[64];
    test_write(test_path(&f, "short"), data, test_idx(data, 3, (unsigned[]){2, 3, 4}, 0, 1) - 1);
    expect_complaint(1, "truncated", "idx short -o z.h5");
    WF_EXPECT(mkdir(test_path(&f, "bad"), 0700) == 0, "mkdir");
    unsigned char pixels[12] = {0};
    WF_EXPECT(stbi_write_png(test_path(&f, "bad/a.png"), 2, 2, 3, pixels, 0), "png");
    test_write(test_path(&f, "bad/b.png"), "no picture", 10);
    expect_complaint(1, "b.png", "folder bad -o z.h5");
    /* The names in another order: the input stays. */
    size_t before, after;
    unsigned char *images = test_slurp(test_path(&f, "images"), &before);
    expect_complaint(1, "images: there is a file of this name that is not HDF5", "idx images labels -o images");
    unsigned char *left = test_slurp(test_path(&f, "images"), &after);
    WF_EXPECT(before == after && memcmp(images, left, after) == 0, "the input is another");
    free(images);
    free(left);
    WF_EXPECT(mkfifo(test_path(&f, "pipe"), 0600) == 0, "no pipe");
    expect_complaint(1, "pipe: cannot write: it is not a regular file", "idx images -o pipe");
    WF_EXPECT(run("--help") == 0, "--help");
}

static void netcdf_files(void)
{
    char path[600];
    size_t bytes;
    write_netcdf();
    if (run("ls u.nc") == 1) {
        expect_complaint(1, "this build of Weft has no netCDF", "netcdf u.nc --variables u -o z.h5");
        return;
    }
    char *said = (char *)test_slurp(test_path(&f, "out"), &bytes);
    WF_EXPECT(bytes > 1 && strncmp(said, "u ", 2) == 0 && memcmp(said + bytes - 8, "t, y, x\n", 8) == 0, "ls");
    free(said);
    WF_EXPECT(run("netcdf u.nc --variables u --time t --frames 2 --ahead 2 --mask -o u.h5") == 0, "netcdf");
    snprintf(path, sizeof path, "%s", test_path(&f, "u.nc"));
    const wf_netcdf_opts opts = {.variables = "u", .time = "t", .frames = 2, .ahead = 2, .mask = true};
    expect_file("u.h5", wf_netcdf_dataset(ctx, path, opts), 0, 2, NULL);
    wf_dataset *d = wf_hdf5_dataset(ctx, test_path(&f, "u.h5"), (wf_hdf5_opts){0});
    float x[24] = {0};
    WF_EXPECT_OK(wf_dataset_open(d));
    WF_EXPECT_OK(wf_dataset_read(d, 1, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT(x[0] == 3.5f && x[6] == 9.5f && x[12] == 1, "sample 1 begins %g, %g, %g", (double)x[0], (double)x[6],
              (double)x[12]);
    wf_dataset_free(d);
    expect_complaint(2, "no --variables", "netcdf u.nc -o z.h5");
    expect_complaint(2, "options make no sense for ls", "ls u.nc --mask -o x");
    expect_complaint(2, "make no sense for idx", "idx images --frames 2 -o z.h5");
    expect_complaint(1, "there is no variable v; there are u", "netcdf u.nc --variables v -o z.h5");
    WF_EXPECT(truncate(test_path(&f, "u.nc"), 200) == 0, "truncate");
    expect_complaint(1, "is cut off", "ls u.nc");
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    f = test_folder_new();
    int failed = test_main(argc, argv,
                           (test_case[]){{"idx_files", idx_files},
                                         {"cifar_files", cifar_files},
                                         {"catalogues", catalogues},
                                         {"folders", folders},
                                         {"netcdf_files", netcdf_files},
                                         {"complaints", complaints},
                                         {0}});
    test_folder_free(&f);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
