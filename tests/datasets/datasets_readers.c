/* Readers, and every way in which their files can be wrong. */
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/datasets/datasets_files.h"

static wf_ctx *ctx;

static wf_status open_and_free(wf_dataset *dataset)
{
    const wf_status status = wf_dataset_open(dataset);
    wf_dataset_free(dataset);
    return status;
}

/* The error of a file must be the same at every try, and leave nothing behind. */
static wf_status open_twice(wf_dataset *dataset)
{
    const wf_status first = wf_dataset_open(dataset), second = wf_dataset_open(dataset);
    WF_EXPECT(first == second, "first %s, then %s", wf_status_name(first), wf_status_name(second));
    wf_dataset_free(dataset);
    return second;
}

static void expect_info(wf_dataset *dataset, int64_t count, wf_dtype dtype, wf_shape shape, int64_t classes)
{
    wf_dataset_info info = {0};
    char text[WF_SHAPE_TEXT];
    WF_EXPECT_OK(wf_dataset_info_get(dataset, &info));
    WF_EXPECT(info.count == count, "count %lld", (long long)info.count);
    WF_EXPECT(info.dtype == dtype, "type %s", wf_dtype_name(info.dtype));
    WF_EXPECT(wf_shape_equal(info.shape, shape), "shape %s", wf_shape_text(info.shape, text));
    WF_EXPECT(info.classes == classes && info.labels == (classes > 0), "classes %lld, labels %d",
              (long long)info.classes, info.labels);
}

static void fashion_mnist(void)
{
    for (int split = 0; split < 2; split++) {
        wf_dataset *d = wf_mnist(ctx, "/usr/share/datasets/fashion-mnist", (wf_dataset_split)split);
        const int64_t count = split == WF_TRAIN_SET ? 60000 : 10000;
        expect_info(d, count, WF_U8, WF_SHAPE(1, 28, 28), 10);
        int64_t per_class[10] = {0}, sum = 0;
        unsigned char x[784];
        for (int64_t i = 0; i < wf_dataset_count(d); i++) {
            int64_t label = -1;
            WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, &label));
            if (label >= 0 && label < 10)
                per_class[label]++;
            for (int p = 0; i < 100 && p < 784; p++)
                sum += x[p];
        }
        for (int c = 0; c < 10; c++)
            WF_EXPECT(per_class[c] == count / 10, "split %d class %d has %lld", split, c, (long long)per_class[c]);
        WF_EXPECT(sum > 784 * 100 * 40 && sum < 784 * 100 * 120, "mean pixel %g", (double)sum / 78400);
        wf_dataset_free(d);
    }
    int64_t label = -1;
    wf_dataset *d = wf_mnist(ctx, NULL, WF_TRAIN_SET);
    WF_EXPECT_OK(wf_dataset_open(d));
    unsigned char x[784];
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, x, &label));
    WF_EXPECT(label == 9, "the first training sample is an ankle boot, not %lld", (long long)label);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_dataset_read(d, 60000, &(wf_sample_key){0}, x, &label));
    wf_dataset_free(d);
}

static void idx_shapes(void)
{
    test_folder f = test_folder_new();
    unsigned char data[4096];
    char images[600];
    snprintf(images, sizeof images, "%s", test_path(&f, "a"));
    size_t bytes = test_idx(data, 3, (unsigned[]){5, 2, 3}, 0, 1);
    test_write(images, data, bytes);
    wf_dataset *d = wf_idx(ctx, images, NULL);
    expect_info(d, 5, WF_U8, WF_SHAPE(1, 2, 3), 0);
    unsigned char x[6];
    WF_EXPECT_OK(wf_dataset_read(d, 4, &(wf_sample_key){0}, x, NULL));
    for (int i = 0; i < 6; i++)
        WF_EXPECT(x[i] == 24 + i, "element %d is %d", i, x[i]);
    wf_dataset_free(d);

    bytes = test_idx(data, 1, (unsigned[]){5}, 3, 2);
    test_write_gz(test_path(&f, "b.gz"), data, bytes);
    d = wf_idx(ctx, images, f.file);
    expect_info(d, 5, WF_U8, WF_SHAPE(1, 2, 3), 12);
    int64_t label;
    WF_EXPECT_OK(wf_dataset_read(d, 3, &(wf_sample_key){0}, x, &label));
    WF_EXPECT(label == 9, "label %lld", (long long)label);
    wf_dataset_free(d);

    const unsigned char floats[] = {0, 0, 0x0D, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x3F, 0x80, 0, 0, 0xC0, 0x20, 0, 0};
    test_write(test_path(&f, "c"), floats, sizeof floats);
    d = wf_idx(ctx, f.file, NULL);
    expect_info(d, 1, WF_F32, WF_SHAPE(2), 0);
    float y[2];
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, y, NULL));
    WF_EXPECT(y[0] == 1.0f && y[1] == -2.5f, "%g %g", (double)y[0], (double)y[1]);
    wf_dataset_free(d);

    const unsigned char wide[] = {0, 0, 0x0C, 1, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0,
                                  1, 0, 0,    0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 7};
    test_write(test_path(&f, "d"), wide, sizeof wide);
    d = wf_idx(ctx, images, f.file);
    expect_info(d, 5, WF_U8, WF_SHAPE(1, 2, 3), 257);
    const int64_t labels[] = {1, 256, 3, 4, 7};
    for (int i = 0; i < 5; i++) {
        WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, &label));
        WF_EXPECT(label == labels[i], "label %d is %lld", i, (long long)label);
    }
    wf_dataset_free(d);
    test_folder_free(&f);
}

static void idx_wrong(void)
{
    test_folder f = test_folder_new();
    unsigned char data[4096];
    const size_t bytes = test_idx(data, 3, (unsigned[]){5, 4, 4}, 0, 1); /* 16 + 80 */

    TEST_FAILS(WF_ERR_IO, open_twice(wf_idx(ctx, test_path(&f, "none"), NULL)), f.file, "No such file");
    TEST_FAILS(WF_ERR_IO, open_twice(wf_idx(ctx, f.path, NULL)), f.path, "not a file");
    test_write(test_path(&f, "a"), "", 0);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "empty");
    test_write(f.file, data, bytes - 1);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "truncated: should have 96 bytes, has 95");
    test_write(f.file, data, 3);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "truncated");
    test_write(f.file, data, bytes + 7);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file,
               "too large: should have 96 bytes, has 103");
    data[0] = 0x89;
    test_write(f.file, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "begins with 0x89000803");
    data[0] = 0;
    data[2] = 0x0B;
    test_write(f.file, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "type 0x0b");
    data[2] = 8;
    data[3] = 9;
    test_write(f.file, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "rank 9");
    memset(data, 0xFF, 16);
    memcpy(data, (unsigned char[]){0, 0, 8, 3}, 4);
    test_write(f.file, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "impossible IDX dimensions");
    test_folder_free(&f);
}

static void gzip_wrong(void)
{
    test_folder f = test_folder_new();
    unsigned char *data = malloc(1 << 20);
    size_t bytes = test_idx(data, 3, (unsigned[]){100, 28, 28}, 0, 1), packed;
    test_rng rng = {7};
    for (size_t i = 16; i < bytes; i++)
        data[i] = (unsigned char)test_u64(&rng);

    test_write_gz(test_path(&f, "a.gz"), data, bytes - 10);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file,
               "truncated: should have 78416 bytes, has 78406");
    test_write_gz(f.file, data, bytes + 20);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file,
               "too large: should have 78416 bytes, has 78436");
    test_write_gz(f.file, data, bytes);
    WF_EXPECT_OK(open_and_free(wf_idx(ctx, f.file, NULL)));
    unsigned char *gz = test_slurp(f.file, &packed);
    test_write(f.file, gz, packed / 2);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "truncated: should have 78416 bytes");
    gz[packed / 2] ^= 0x55;
    test_write(f.file, gz, packed);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "damaged gzip");

    /* A small file that claims 4 GB: refused before memory is taken. */
    bytes = test_idx(data, 3, (unsigned[]){1, 1, 1}, 0, 1);
    memcpy(data + 4, (unsigned char[]){0x00, 0x40, 0, 0, 0, 0, 0, 32, 0, 0, 0, 32}, 12);
    test_write_gz(f.file, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_idx(ctx, f.file, NULL)), f.file, "cannot hold");
    free(gz);
    free(data);
    test_folder_free(&f);
}

static void write_mnist(test_folder *f, unsigned images, unsigned labels, unsigned first_label)
{
    unsigned char data[4096];
    size_t bytes = test_idx(data, 3, (unsigned[]){images, 2, 2}, 0, 1);
    test_write_gz(test_path(f, "train-images-idx3-ubyte.gz"), data, bytes);
    bytes = test_idx(data, 1, (unsigned[]){labels}, first_label, 1);
    test_write(test_path(f, "train-labels-idx1-ubyte"), data, bytes);
}

static void mnist_wrong(void)
{
    test_folder f = test_folder_new();
    TEST_FAILS(WF_ERR_IO, open_twice(wf_mnist(ctx, "/nowhere", WF_TRAIN_SET)), "/nowhere", "no such folder");
    TEST_FAILS(WF_ERR_IO, open_twice(wf_mnist(ctx, f.path, WF_TRAIN_SET)), f.path, "train-images-idx3-ubyte");
    write_mnist(&f, 6, 6, 4);
    WF_EXPECT_OK(open_and_free(wf_mnist(ctx, f.path, WF_TRAIN_SET)));
    TEST_FAILS(WF_ERR_IO, open_twice(wf_mnist(ctx, f.path, WF_TEST_SET)), f.path, "t10k-images-idx3-ubyte");
    write_mnist(&f, 6, 6, 5);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_mnist(ctx, f.path, WF_TRAIN_SET)), f.file,
               "label 10 of sample 5 is not in [0, 10)");
    write_mnist(&f, 6, 5, 0);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_mnist(ctx, f.path, WF_TRAIN_SET)), "5 labels for the 6 samples", f.file);
    write_mnist(&f, 6, 6, 0);
    remove(f.file);
    TEST_FAILS(WF_ERR_IO, open_twice(wf_mnist(ctx, f.path, WF_TRAIN_SET)), f.path, "train-labels-idx1-ubyte");
    test_folder_free(&f);
}

/* `records` CIFAR records; the label of record i is label + i, its pixels are i + 7 * pixel. */
static void write_cifar(const char *path, int records, int labels, int label, int extra)
{
    const size_t record = (size_t)labels + 3072, bytes = record * (size_t)records + (size_t)extra;
    unsigned char *data = calloc(bytes + 1, 1);
    for (int r = 0; r < records; r++) {
        unsigned char *at = data + (size_t)r * record;
        at[labels - 1] = (unsigned char)(label + r);
        for (int p = 0; p < 3072; p++)
            at[labels + p] = (unsigned char)(r + 7 * p);
    }
    test_write(path, data, bytes);
    free(data);
}

static void cifar(void)
{
    test_folder f = test_folder_new();
    char name[64];
    for (int b = 1; b <= 5; b++) {
        snprintf(name, sizeof name, "data_batch_%d.bin", b);
        write_cifar(test_path(&f, name), b, 1, b, 0);
    }
    wf_dataset *d = wf_cifar10(ctx, f.path, WF_TRAIN_SET);
    expect_info(d, 15, WF_U8, WF_SHAPE(3, 32, 32), 10);
    unsigned char x[3072];
    int64_t label;
    WF_EXPECT_OK(wf_dataset_read(d, 14, &(wf_sample_key){0}, x, &label));
    WF_EXPECT(label == 9 && x[0] == 4 && x[3071] == (4 + 7 * 3071) % 256, "label %lld, %d, %d", (long long)label, x[0],
              x[3071]);
    wf_dataset_free(d);
    WF_EXPECT(mkdir(test_path(&f, "cifar-100-binary"), 0700) == 0, "mkdir");
    write_cifar(test_path(&f, "cifar-100-binary/test.bin"), 3, 2, 97, 0);
    d = wf_cifar100(ctx, f.path, WF_TEST_SET);
    expect_info(d, 3, WF_U8, WF_SHAPE(3, 32, 32), 100);
    WF_EXPECT_OK(wf_dataset_read(d, 2, &(wf_sample_key){0}, x, &label));
    WF_EXPECT(label == 99 && x[1] == 9, "label %lld, %d", (long long)label, x[1]);
    wf_dataset_free(d);

    write_cifar(f.file, 3, 2, 98, 0);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_cifar100(ctx, f.path, WF_TEST_SET)), f.file, "label 100 of sample 2");
    TEST_FAILS(WF_ERR_IO, open_twice(wf_cifar10(ctx, f.path, WF_TEST_SET)), f.path, "test_batch.bin");
    write_cifar(test_path(&f, "data_batch_3.bin"), 3, 1, 8, 0);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_cifar10(ctx, f.path, WF_TRAIN_SET)), f.file, "label 10 of sample 2");
    write_cifar(f.file, 3, 1, 0, 1);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_cifar10(ctx, f.path, WF_TRAIN_SET)), f.file, "multiple of 3073");
    write_cifar(f.file, 2, 1, 0, 3000);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_cifar10(ctx, f.path, WF_TRAIN_SET)), f.file, "has 9146 bytes");
    write_cifar(f.file, 0, 1, 0, 0);
    TEST_FAILS(WF_ERR_FORMAT, open_twice(wf_cifar10(ctx, f.path, WF_TRAIN_SET)), f.file, "empty");
    remove(f.file);
    TEST_FAILS(WF_ERR_IO, open_twice(wf_cifar10(ctx, f.path, WF_TRAIN_SET)), f.file, "No such file");
    test_folder_free(&f);
}

static void memory(void)
{
    const float x[] = {0, 1, 2, 3, 4, 5};
    const int64_t labels[] = {2, 0, 1}, bad[] = {0, -1, 2};
    wf_dataset *d = wf_memory_dataset(ctx, WF_F32, WF_SHAPE(3, 2), x, labels);
    expect_info(d, 3, WF_F32, WF_SHAPE(2), 3);
    float y[2];
    int64_t label;
    WF_EXPECT_OK(wf_dataset_read(d, 1, &(wf_sample_key){0}, y, &label));
    WF_EXPECT(y[0] == 2 && y[1] == 3 && label == 0, "%g %g %lld", (double)y[0], (double)y[1], (long long)label);
    d = wf_subset(d, 4, (int64_t[]){2, 2, 0, 1});
    expect_info(d, 4, WF_F32, WF_SHAPE(2), 3);
    WF_EXPECT_OK(wf_dataset_read(d, 1, &(wf_sample_key){0}, y, &label));
    WF_EXPECT(y[0] == 4 && label == 1, "%g %lld", (double)y[0], (long long)label);
    wf_dataset_free(d);
    d = wf_memory_dataset(ctx, WF_F32, WF_SHAPE(3, 2), x, NULL);
    TEST_FAILS(WF_ERR_ARGUMENT, open_twice(wf_subset(d, 2, (int64_t[]){0, 3})), "index 3", "[0, 3)");
    TEST_FAILS(WF_ERR_ARGUMENT, open_and_free(wf_memory_dataset(ctx, WF_F32, WF_SHAPE(3, 2), x, bad)), "label -1",
               "sample 1");
    TEST_FAILS(WF_ERR_SHAPE, open_and_free(wf_memory_dataset(ctx, WF_F32, wf_shape_scalar(), x, NULL)), "shape", "[");
    TEST_FAILS(WF_ERR_ARGUMENT, open_and_free(wf_memory_dataset(ctx, WF_F32, WF_SHAPE(3, 2), NULL, NULL)), "without",
               "[3,2]");

    wf_tensor *tx = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(3, 2, 1, 1), x);
    wf_tensor *tl = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(3), labels);
    d = wf_tensor_dataset(tx, tl);
    expect_info(d, 3, WF_F32, WF_SHAPE(2, 1, 1), 3);
    WF_EXPECT_OK(wf_dataset_read(d, 2, &(wf_sample_key){0}, y, &label));
    WF_EXPECT(y[0] == 4 && y[1] == 5 && label == 1, "%g %g %lld", (double)y[0], (double)y[1], (long long)label);
    wf_dataset_free(d);
    TEST_FAILS(WF_ERR_DTYPE, open_and_free(wf_tensor_dataset(tx, tx)), "f32", "i64");
    wf_tensor_free(tx);
    wf_tensor_free(tl);

    d = wf_empty_dataset(ctx, NULL);
    expect_info(d, 0, WF_F32, wf_shape_scalar(), 0);
    wf_dataset_free(d);
    WF_EXPECT(wf_dataset_count(NULL) == 0 && !wf_subset(NULL, 0, NULL), "NULL is passed on");
}

/* Nearest mean of the first samples tells the class of later ones: there is something to learn. */
static void synthetic(void)
{
    const wf_synthetic_opts opts = {.count = 200, .shape = WF_SHAPE(3, 8, 8), .classes = 4, .seed = 11};
    wf_dataset *a = wf_synthetic(ctx, opts), *b = wf_synthetic(ctx, opts);
    expect_info(a, 200, WF_U8, WF_SHAPE(3, 8, 8), 4);
    WF_EXPECT_OK(wf_dataset_open(b));
    double mean[4][192] = {{0}};
    unsigned char x[192], y[192];
    int right = 0;
    for (int64_t i = 0; i < 200; i++) {
        int64_t label, other;
        WF_EXPECT_OK(wf_dataset_read(a, i, &(wf_sample_key){0}, x, &label));
        WF_EXPECT_OK(wf_dataset_read(b, i, &(wf_sample_key){.epoch = 3}, y, &other));
        WF_EXPECT(memcmp(x, y, sizeof x) == 0 && label == other && label == i % 4, "sample %lld", (long long)i);
        int best = 0;
        double least = 1e30;
        for (int c = 0; i >= 100 && c < 4; c++) {
            double distance = 0;
            for (int p = 0; p < 192; p++)
                distance += (mean[c][p] / 25 - x[p]) * (mean[c][p] / 25 - x[p]);
            best = distance < least ? c : best;
            least = distance < least ? distance : least;
        }
        for (int p = 0; i < 100 && p < 192; p++)
            mean[label][p] += x[p];
        right += i >= 100 && best == label;
    }
    WF_EXPECT(right == 100, "%d of 100 told", right);
    WF_EXPECT_OK(wf_dataset_read(a, 0, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT_OK(wf_dataset_read(a, 4, &(wf_sample_key){0}, y, NULL));
    WF_EXPECT(memcmp(x, y, sizeof x) != 0, "two samples of a class are equal");
    wf_dataset_free(a);
    wf_dataset_free(b);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, open_and_free(wf_synthetic(ctx, (wf_synthetic_opts){.classes = -1})));
}

/* --- message catalogues --------------------------------------------------------------------------------------------
 */

static int64_t count_of(const char *path, wf_dataset_split split)
{
    wf_dataset *d = wf_catalogue(ctx, (wf_catalogue_opts){.path = path}, split);
    const int64_t n = wf_dataset_count(d);
    WF_EXPECT(d, "%s", wf_error_message());
    wf_dataset_free(d);
    return n;
}

/* Messages of both sets: none is in both, and each is once. */
static void catalogue(void)
{
    enum { PAIRS = 200 };
    static char text[PAIRS][2][32];
    const char *pair[PAIRS + 8][2] = {
        {"", "Content-Type: text/plain"},   {"same name", "same name"}, {"two\nlines", "zwei Zeilen"},
        {"context\4word", "Wort, Kontext"}, {"abc", "zu kurz"},         {"no translation", ""}};
    static unsigned char data[1 << 16];
    test_folder folder = test_folder_new();
    for (int i = 0; i < PAIRS; i++) {
        snprintf(text[i][0], sizeof text[i][0], "message %d", i);
        snprintf(text[i][1], sizeof text[i][1], "Nachricht %d", i);
        pair[6 + i][0] = text[i][0];
        pair[6 + i][1] = text[i][1];
    }
    test_write(test_path(&folder, "a.mo"), data, test_catalogue(data, PAIRS + 6, pair));
    pair[6][1] = "again";
    test_write(test_path(&folder, "b.mo"), data, test_catalogue(data, 10, pair));
    test_write(test_path(&folder, "no-catalogue"), "x", 1);
    const int64_t train = count_of(folder.path, WF_TRAIN_SET), test = count_of(folder.path, WF_TEST_SET);
    WF_EXPECT(train + test == PAIRS && test > 5 && test < 45, "%lld and %lld pairs", (long long)train, (long long)test);
    bool seen[PAIRS] = {false};
    for (int split = 0; split < 2; split++) {
        wf_dataset *d = wf_catalogue(ctx, (wf_catalogue_opts){.path = folder.path}, (wf_dataset_split)split);
        expect_info(d, split ? test : train, WF_U8, WF_SHAPE(2, 60), 0);
        for (int64_t i = 0; i < wf_dataset_count(d); i++) {
            char x[2][60];
            int number = -1, other = -2;
            WF_EXPECT_OK(wf_dataset_read(d, i, &(wf_sample_key){0}, x, NULL));
            WF_EXPECT(sscanf(x[0], "message %d", &number) == 1 && sscanf(x[1], "Nachricht %d", &other) == 1 &&
                          number == other && !seen[number],
                      "\"%.60s\", \"%.60s\"", x[0], x[1]);
            seen[number < 0 ? 0 : number] = true;
        }
        wf_dataset_free(d);
    }
    test_folder_free(&folder);
}

static wf_status open_catalogue(const char *path)
{
    return open_twice(wf_catalogue(ctx, (wf_catalogue_opts){.path = path}, WF_TRAIN_SET));
}

static void catalogue_wrong(void)
{
    static unsigned char data[4096];
    const char *pair[][2] = {{"one message", "eine Nachricht"}, {"another one", "noch eine"}};
    test_folder folder = test_folder_new();
    const size_t bytes = test_catalogue(data, 2, pair);
    const char *path = test_path(&folder, "a.mo");
    test_write(path, data, 19);
    TEST_FAILS(WF_ERR_FORMAT, open_catalogue(path), "a.mo", "shorter than its header");
    test_write(path, data, bytes - 4);
    TEST_FAILS(WF_ERR_FORMAT, open_catalogue(path), "message 1", "of a file of");
    test_write(path, data, 40);
    TEST_FAILS(WF_ERR_FORMAT, open_catalogue(path), "2 messages", "40 bytes");
    test_write_gz(path, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_catalogue(path), "a.mo", "compressed");
    data[0] = 7;
    test_write(path, data, bytes);
    TEST_FAILS(WF_ERR_FORMAT, open_catalogue(path), "0x95041207", "0x950412de");
    TEST_FAILS(WF_ERR_IO, open_catalogue("/no/where"), "/no/where", "cannot open");
    remove(path);
    TEST_FAILS(WF_ERR_IO, open_catalogue(folder.path), folder.path, "no message catalogue");
    test_folder_free(&folder);
    TEST_FAILS(WF_ERR_ARGUMENT, open_and_free(wf_catalogue(ctx, (wf_catalogue_opts){0}, WF_TEST_SET)), "language",
               "de");
    TEST_FAILS(WF_ERR_ARGUMENT,
               open_and_free(wf_catalogue(ctx, (wf_catalogue_opts){.language = "de", .least = 9, .most = 8}, 0)), "9",
               "8");
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.seed = 5});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"fashion_mnist", fashion_mnist},
                                               {"idx_shapes", idx_shapes},
                                               {"idx_wrong", idx_wrong},
                                               {"gzip_wrong", gzip_wrong},
                                               {"mnist_wrong", mnist_wrong},
                                               {"cifar", cifar},
                                               {"memory", memory},
                                               {"synthetic", synthetic},
                                               {"catalogue", catalogue},
                                               {"catalogue_wrong", catalogue_wrong},
                                               {0}});
    WF_MUST(wf_ctx_free(ctx));
    return failed;
}
