/* A message catalogue. */
#include "datasets/readers.h"
#include "tests/fuzz/fuzz_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    if (!file.fd)
        fuzz_file_open(&file);
    fuzz_file_write(&file, data, size);
    fuzz_dataset(wf_catalogue(fuzz_ctx(), (wf_catalogue_opts){.path = file.path}, WF_TRAIN_SET), 64);
    return 0;
}
