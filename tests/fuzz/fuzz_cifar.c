/* CIFAR's binary files. The first byte: bit 0: CIFAR-100; bit 1: the length is rounded down to whole records. */
#include "datasets/readers.h"
#include "tests/fuzz/fuzz_samples.h"

static char folder[] = "/tmp/weft-fuzz-XXXXXX";

static void remove_folder(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/test_batch.bin", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/test.bin", folder);
    unlink(path);
    rmdir(folder);
}

/* Both names in the folder lead to the file in memory. */
static void make_folder(const fuzz_file *file)
{
    char path[64];
    fuzz_need(mkdtemp(folder) != NULL, "no folder");
    snprintf(path, sizeof path, "%s/test_batch.bin", folder);
    fuzz_need(symlink(file->path, path) == 0, "no link");
    snprintf(path, sizeof path, "%s/test.bin", folder);
    fuzz_need(symlink(file->path, path) == 0, "no link");
    atexit(remove_folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    if (!file.fd) {
        fuzz_file_open(&file);
        make_folder(&file);
    }
    if (size < 1)
        return 0;
    const uint8_t how = *data;
    const size_t record = 3072 + (how & 1 ? 2 : 1), bytes = size - 1;
    fuzz_file_write(&file, data + 1, how & 2 ? bytes / record * record : bytes);
    wf_ctx *ctx = fuzz_ctx();
    fuzz_dataset(how & 1 ? wf_cifar100(ctx, folder, WF_TEST_SET) : wf_cifar10(ctx, folder, WF_TEST_SET), 64);
    return 0;
}
