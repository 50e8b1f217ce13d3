/* PNG and JPEG files, as wf_image_folder decodes them. The first byte: bit 0: a PNG's checksums are made right; then 1
 * to 4 channels; bit 3: the picture is resized. */
#include "datasets/readers.h"
#include "tests/fuzz/fuzz_samples.h"

#include <zlib.h>

static char folder[] = "/tmp/weft-fuzz-XXXXXX", name[64];

static void remove_folder(void)
{
    unlink(name);
    rmdir(folder);
}

static void make_folder(const fuzz_file *file)
{
    fuzz_need(mkdtemp(folder) != NULL, "no folder");
    snprintf(name, sizeof name, "%s/a.png", folder);
    fuzz_need(symlink(file->path, name) == 0, "no link");
    atexit(remove_folder);
}

/* The checksum of every chunk of what may be a PNG. */
static void mend_sums(uint8_t *data, size_t bytes)
{
    size_t at = 8;
    while (at + 12 <= bytes) {
        const uint8_t *b = data + at;
        const size_t length = (size_t)b[0] << 24 | (size_t)b[1] << 16 | (size_t)b[2] << 8 | b[3];
        if (length > bytes - at - 12)
            return;
        const uint32_t sum = (uint32_t)crc32(0, b + 4, (uInt)(length + 4));
        for (int i = 0; i < 4; i++)
            data[at + 8 + length + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
        at += 12 + length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    static uint8_t copy[1 << 16];
    if (!file.fd) {
        fuzz_file_open(&file);
        make_folder(&file);
    }
    if (size < 1 || size > sizeof copy)
        return 0;
    const uint8_t how = *data;
    memcpy(copy, data + 1, --size);
    if (how & 1)
        mend_sums(copy, size);
    fuzz_file_write(&file, copy, size);
    wf_image_folder_opts opts = {.channels = 1 + (how >> 1 & 3)};
    if (how & 8)
        opts.height = opts.width = 5;
    fuzz_dataset(wf_image_folder(fuzz_ctx(), folder, opts), 1);
    return 0;
}
