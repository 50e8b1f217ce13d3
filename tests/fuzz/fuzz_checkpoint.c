/* The manifest of a checkpoint, and what it says of the file. The first byte: 0: the whole file as it is; else the
 * input is a manifest behind `first byte` KiB of HDF5 part, to which the right last bytes are added. */
#include "comm/manifest_author.h"
#include "core/random_author.h"
#include "tests/fuzz/fuzz.h"

typedef struct trailer { /* as in comm/file/manifest.c */
    char mark[8];
    int64_t offset, bytes;
    uint64_t hash, own;
} trailer;

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t hash = bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, at + i, bytes - i < 8 ? bytes - i : 8);
        hash = wf_hash_u64(hash, word);
    }
    return hash;
}

/* Reads every entry that is small enough. */
static wf_status read_entries(const fuzz_file *file, const wf_manifest *m)
{
    static unsigned char block[1 << 20];
    int64_t bytes;
    wf_manifest_reader reader = {.file = file->fd, .path = file->path, .manifest = m, .block = -1, .data = block};
    for (int64_t b = 0; b < m->blocks && b < 4; b++)
        WF_TRY(wf_manifest_block(file->fd, file->path, m, b, block, &bytes));
    for (int64_t i = 0; i < m->n && i < 16; i++) {
        const wf_manifest_entry *e = &m->entry[i];
        const int64_t count = wf_shape_count(e->shape), size = (int64_t)wf_dtype_size(e->dtype);
        fuzz_need(wf_manifest_find(m, e->name) != NULL, "an entry without a name");
        if (count > (1 << 20))
            continue;
        unsigned char *x = malloc((size_t)(count * size));
        const wf_status status = wf_manifest_read_box(&reader, e, wf_box_of_shape(e->shape), x);
        free(x);
        WF_TRY(status);
    }
    return WF_OK;
}

/* The file of a manifest. Its sums are made right, if there is room for one. */
static size_t make_file(uint8_t *to, const uint8_t *data, size_t size, size_t part)
{
    memset(to, 7, part);
    memcpy(to + part, data, size);
    if (size >= 8) {
        uint64_t sum = 0;
        wf_file_sums(&sum, 0, 0, to, (int64_t)part);
        memcpy(to + part + size - 8, &sum, 8);
    }
    trailer t = {.offset = (int64_t)part, .bytes = (int64_t)size, .hash = hash_of(to + part, size)};
    memcpy(t.mark, "WEFT-END", 8);
    t.own = hash_of(&t, offsetof(trailer, own));
    memcpy(to + part + size, &t, sizeof t);
    return part + size + sizeof t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz_file file;
    static uint8_t whole[1 << 19];
    wf_manifest m;
    if (!file.fd)
        fuzz_file_open(&file);
    if (size < 1 || size > 1 << 16)
        return 0;
    const size_t part = (size_t)*data << 10;
    if (part == 0)
        fuzz_file_write(&file, data + 1, size - 1);
    else
        fuzz_file_write(&file, whole, make_file(whole, data + 1, size - 1, part));
    wf_status status = wf_manifest_read(file.fd, file.path, &m);
    if (status == WF_OK)
        status = read_entries(&file, &m);
    fuzz_end(status);
    wf_manifest_free(&m);
    return 0;
}
