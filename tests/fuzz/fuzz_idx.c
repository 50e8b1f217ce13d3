/* IDX files, plain and gzip. The first byte: bit 0: with labels, which are the second half; bit 1: labels are right. */
#include "datasets/readers.h"
#include "tests/fuzz/fuzz_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file images, labels;
    if (!images.fd) {
        fuzz_file_open(&images);
        fuzz_file_open(&labels);
    }
    if (size < 2)
        return 0;
    const uint8_t how = *data++;
    const size_t half = how & 1 ? --size / 2 : --size;
    fuzz_file_write(&images, data, half);
    if (how & 2 && half > 8) {
        unsigned char right[264] = {0, 0, 8, 1, data[4], data[5], data[6], data[7]};
        for (size_t i = 8; i < sizeof right; i++)
            right[i] = (unsigned char)i;
        const size_t count = data[7];
        fuzz_file_write(&labels, right, 8 + count);
    } else {
        fuzz_file_write(&labels, data + half, size - half);
    }
    fuzz_dataset(wf_idx(fuzz_ctx(), images.path, how & 1 ? labels.path : NULL), 64);
    return 0;
}
