/* The manifest of a checkpoint. It says what lies where in the file, with a sum for each block; checkpoints of many
 * ranks write and read it, so that no rank needs HDF5 to find its part. Whatever was read is checked before it is used
 * as a size. */
#include "comm/manifest_author.h"
#include "core/random_author.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Marks at both ends: the first says what the file is, the last that it is whole. */
static const char head_mark[8] = "WEFTCKPT", tail_mark[8] = "WEFT-END";
enum { VERSION = 1, MOST_NAME = 1024 };

/* At the beginning of the manifest; entries, names and sums follow. */
typedef struct head {
    char mark[8];
    int64_t version, generation, step, ranks, bytes, n, blocks;
    char mesh[WF_MANIFEST_MESH];
} head;

typedef struct line {
    int64_t dtype, rank, dim[WF_MAX_RANK], offset, name_bytes;
} line;

/* The last bytes of the file. */
typedef struct tail {
    char mark[8];
    int64_t offset, bytes; /* of the manifest */
    uint64_t hash;         /* of the manifest */
    uint64_t own;          /* of the fields above */
} tail;

/* The length is part of it, since the last word is filled up with zeros. This sum finds damage, not forgery. */
static uint64_t hash_bytes(const void *data, size_t bytes)
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

/* --- Writing ------------------------------------------------------------------------------------------------------ */

/* Writes at an offset, without moving the file's position: several threads may write to one descriptor. */
static wf_status write_at(int file, const char *path, const void *data, size_t bytes, int64_t offset)
{
    const char *at = data;
    while (bytes > 0) {
        const ssize_t n = pwrite(file, at, bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        /* Zero bytes written without an error mean that there is no more room. */
        WF_CHECK(n > 0, WF_ERR_IO, "%s: cannot write: %s", path, strerror(n < 0 ? errno : ENOSPC));
        at += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return WF_OK;
}

/* As many bytes as `fill` writes; the two change together. */
static size_t manifest_bytes(const wf_manifest *m)
{
    size_t bytes = sizeof(head) + (size_t)m->n * sizeof(line) + (size_t)m->blocks * sizeof *m->sums;
    for (int64_t i = 0; i < m->n; i++)
        bytes += strlen(m->entry[i].name);
    return bytes;
}

static unsigned char *append(unsigned char *at, const void *data, size_t bytes)
{
    if (bytes > 0)
        memcpy(at, data, bytes);
    return at + bytes;
}

static void fill(const wf_manifest *m, unsigned char *at)
{
    /* The fields are of eight bytes each, so the struct has no padding that could hold stray bytes. */
    head h = {.version = VERSION,
              .generation = m->generation,
              .step = m->step,
              .ranks = m->ranks,
              .bytes = m->bytes,
              .n = m->n,
              .blocks = m->blocks};
    memcpy(h.mark, head_mark, sizeof h.mark);
    memcpy(h.mesh, m->mesh, sizeof h.mesh);
    at = append(at, &h, sizeof h);
    for (int64_t i = 0; i < m->n; i++) {
        const wf_manifest_entry *e = &m->entry[i];
        line l = {
            .dtype = e->dtype, .rank = e->shape.rank, .offset = e->offset, .name_bytes = (int64_t)strlen(e->name)};
        memcpy(l.dim, e->shape.dim, sizeof l.dim);
        at = append(at, &l, sizeof l);
        at = append(at, e->name, strlen(e->name));
    }
    append(at, m->sums, (size_t)m->blocks * sizeof *m->sums);
}

/* The tail is written last: a file whose writing was cut off does not end with it, whatever it contains. */
wf_status wf_manifest_write(int file, const char *path, const wf_manifest *manifest)
{
    const size_t bytes = manifest_bytes(manifest);
    unsigned char *text = malloc(bytes);
    WF_CHECK(text, WF_ERR_MEMORY, "%s: no memory for a manifest of %zu bytes", path, bytes);
    fill(manifest, text);
    tail t = {.offset = manifest->bytes, .bytes = (int64_t)bytes, .hash = hash_bytes(text, bytes)};
    memcpy(t.mark, tail_mark, sizeof t.mark);
    /* The tail has a sum of its own: its offset is used before the manifest's sum can be compared. */
    t.own = hash_bytes(&t, offsetof(tail, own));
    wf_status status = write_at(file, path, text, bytes, manifest->bytes);
    if (status == WF_OK)
        status = write_at(file, path, &t, sizeof t, manifest->bytes + (int64_t)bytes);
    free(text);
    return status;
}

/* --- Reading ------------------------------------------------------------------------------------------------------ */

static wf_status read_at(int file, const char *path, void *data, size_t bytes, int64_t offset)
{
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = pread(file, at, bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        WF_CHECK(n >= 0, WF_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
        WF_CHECK(n > 0, WF_ERR_FORMAT, "%s: ends before byte %lld", path, (long long)offset + (long long)bytes);
        at += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return WF_OK;
}

static wf_status read_tail(int file, const char *path, tail *t)
{
    struct stat info;
    WF_CHECK(fstat(file, &info) == 0, WF_ERR_IO, "%s: cannot look at it: %s", path, strerror(errno));
    const int64_t size = info.st_size, at = size - (int64_t)sizeof *t;
    WF_CHECK(at >= (int64_t)sizeof(head), WF_ERR_FORMAT, "%s: too short for a checkpoint: %lld bytes", path,
             (long long)size);
    WF_TRY(read_at(file, path, t, sizeof *t, at));
    WF_CHECK(memcmp(t->mark, tail_mark, sizeof t->mark) == 0, WF_ERR_FORMAT,
             "%s: does not end as a checkpoint does: it is torn, or none", path);
    /* The three numbers must add up to the file's length, so none of them can lead outside it. */
    WF_CHECK(t->own == hash_bytes(t, offsetof(tail, own)) && t->bytes >= (int64_t)sizeof(head) && t->bytes <= at &&
                 t->offset == at - t->bytes,
             WF_ERR_FORMAT, "%s: its last bytes are damaged", path);
    return WF_OK;
}

/* What is left of the manifest's bytes. */
typedef struct rest {
    const unsigned char *at;
    size_t bytes;
} rest;

/* Every read of the manifest's bytes goes through here, and stops at its end. */
static bool take(rest *r, void *to, size_t bytes)
{
    if (bytes > r->bytes)
        return false;
    memcpy(to, r->at, bytes);
    r->at += bytes;
    r->bytes -= bytes;
    return true;
}

/* Everything that later code multiplies or adds is bounded here, so that a damaged or forged manifest cannot make it
 * read outside of the file or of memory. */
static bool good_entry(const wf_manifest *m, const line *l)
{
    if (l->dtype < 0 || l->dtype >= WF_DTYPES || l->rank < 0 || l->rank > WF_MAX_RANK || l->name_bytes < 1 ||
        l->name_bytes >= MOST_NAME || l->offset < 0 || l->offset > m->bytes)
        return false;
    const int64_t count = wf_shape_count(wf_shape_make((int)l->rank, l->dim));
    /* By division: the product of count and size might overflow. */
    return count >= 0 && count <= (m->bytes - l->offset) / (int64_t)wf_dtype_size((wf_dtype)l->dtype);
}

/* n is bounded by the manifest's length before it is used for memory. */
static wf_status parse_entries(const char *path, rest *r, wf_manifest *m, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        line l;
        wf_manifest_entry *e = &m->entry[i];
        WF_CHECK(take(r, &l, sizeof l) && good_entry(m, &l) && (size_t)l.name_bytes <= r->bytes, WF_ERR_FORMAT,
                 "%s: entry %lld of its manifest makes no sense", path, (long long)i);
        *e = (wf_manifest_entry){.dtype = (wf_dtype)l.dtype,
                                 .shape = wf_shape_make((int)l.rank, l.dim),
                                 .offset = l.offset,
                                 .name = malloc((size_t)l.name_bytes + 1)};
        WF_CHECK(e->name, WF_ERR_MEMORY, "%s: no memory for its manifest", path);
        /* Counted one by one, so that wf_manifest_free frees exactly what was made when an entry fails. */
        m->n = i + 1;
        take(r, e->name, (size_t)l.name_bytes);
        e->name[l.name_bytes] = '\0';
    }
    return WF_OK;
}

static wf_status parse(const char *path, rest r, wf_manifest *m)
{
    head h;
    WF_CHECK(take(&r, &h, sizeof h) && memcmp(h.mark, head_mark, sizeof h.mark) == 0 && h.version == VERSION,
             WF_ERR_FORMAT, "%s: its manifest is none of version %d", path, VERSION);
    /* Computed without adding first, which might overflow. */
    const int64_t blocks = h.bytes / WF_FILE_BLOCK + (h.bytes % WF_FILE_BLOCK > 0);
    WF_CHECK(h.bytes == m->bytes && h.blocks == blocks && h.n >= 0 && h.n <= (int64_t)(r.bytes / sizeof(line)) &&
                 h.ranks >= 1,
             WF_ERR_FORMAT, "%s: the head of its manifest makes no sense", path);
    m->generation = h.generation;
    m->step = h.step;
    m->ranks = h.ranks;
    memcpy(m->mesh, h.mesh, sizeof m->mesh);
    m->mesh[sizeof m->mesh - 1] = '\0';
    m->entry = calloc((size_t)h.n + 1, sizeof *m->entry);
    WF_CHECK(m->entry, WF_ERR_MEMORY, "%s: no memory for its manifest", path);
    WF_TRY(parse_entries(path, &r, m, h.n));
    WF_CHECK(r.bytes == (size_t)blocks * sizeof *m->sums, WF_ERR_FORMAT,
             "%s: its manifest has %zu bytes for the sums of %lld blocks", path, r.bytes, (long long)blocks);
    /* One more, so that a checkpoint without blocks has a list too. */
    m->sums = malloc(r.bytes + 1);
    WF_CHECK(m->sums, WF_ERR_MEMORY, "%s: no memory for its manifest", path);
    m->blocks = blocks;
    take(&r, m->sums, r.bytes);
    return WF_OK;
}

/* On failure the caller frees what was read so far by wf_manifest_free, as on success. */
wf_status wf_manifest_read(int file, const char *path, wf_manifest *manifest)
{
    tail t;
    *manifest = (wf_manifest){0};
    WF_TRY(read_tail(file, path, &t));
    unsigned char *text = malloc((size_t)t.bytes);
    WF_CHECK(text, WF_ERR_MEMORY, "%s: no memory for a manifest of %lld bytes", path, (long long)t.bytes);
    wf_status status = read_at(file, path, text, (size_t)t.bytes, t.offset);
    if (status == WF_OK && hash_bytes(text, (size_t)t.bytes) != t.hash)
        status = WF_RAISE(WF_ERR_FORMAT, "%s: its manifest is damaged", path);
    manifest->bytes = t.offset;
    manifest->hash = t.hash;
    if (status == WF_OK)
        status = parse(path, (rest){text, (size_t)t.bytes}, manifest);
    free(text);
    return status;
}

void wf_manifest_free(wf_manifest *manifest)
{
    for (int64_t i = 0; i < manifest->n; i++)
        free(manifest->entry[i].name);
    free(manifest->entry);
    free(manifest->sums);
    *manifest = (wf_manifest){0};
}

/* From the front for each name: a model has hundreds of entries, and each is looked for once. */
const wf_manifest_entry *wf_manifest_find(const wf_manifest *manifest, const char *name)
{
    for (int64_t i = 0; i < manifest->n; i++)
        if (strcmp(manifest->entry[i].name, name) == 0)
            return &manifest->entry[i];
    return NULL;
}

/* The sum of a block is checked whenever it is read, not once for the file: a rank reads only the blocks that it needs.
 */
wf_status wf_manifest_block(int file, const char *path, const wf_manifest *manifest, int64_t b, void *data,
                            int64_t *bytes)
{
    uint64_t sum = 0;
    const int64_t offset = b * WF_FILE_BLOCK, left = manifest->bytes - offset;
    *bytes = left < WF_FILE_BLOCK ? left : WF_FILE_BLOCK;
    WF_TRY(read_at(file, path, data, (size_t)*bytes, offset));
    wf_file_sums(&sum, b, offset, data, *bytes);
    WF_CHECK(sum == manifest->sums[b], WF_ERR_FORMAT, "%s: bytes %lld to %lld are damaged", path, (long long)offset,
             (long long)(offset + *bytes));
    return WF_OK;
}

/* --- Boxes -------------------------------------------------------------------------------------------------------- */

/* Calls back for each run of elements that is contiguous in the array and in the box, in order. Writers and readers of
 * checkpoints share it, so a part can be read on another number of ranks than it was written on. */
wf_status wf_box_runs(wf_shape shape, wf_box box, wf_box_run visit, void *user)
{
    int64_t run = 1, outer = 1, at[WF_MAX_RANK], stride[WF_MAX_RANK];
    int first = shape.rank; /* dimensions from here on are in the run */
    int64_t inner = 1;
    if (wf_box_empty(box))
        return WF_OK; /* beside a dimension of 0, the others may be so large that strides overflow */
    for (int d = shape.rank - 1; d >= 0; d--) {
        stride[d] = inner;
        inner *= shape.dim[d];
    }
    /* Trailing dimensions that the box has whole lie without a gap in the array; they and the next one make one run. */
    for (bool whole = true; first > 0 && whole; first--) {
        run *= box.hi[first - 1] - box.lo[first - 1];
        whole = box.hi[first - 1] - box.lo[first - 1] == shape.dim[first - 1];
    }
    for (int d = 0; d < shape.rank; d++)
        at[d] = box.lo[d];
    for (int d = 0; d < first; d++)
        outer *= box.hi[d] - box.lo[d];
    for (int64_t k = 0; k < outer && run > 0; k++) {
        int64_t place = 0;
        for (int d = 0; d < shape.rank; d++)
            place += at[d] * stride[d];
        WF_TRY(visit(user, place, k * run, run));
        /* A counter with a digit for each outer dimension; the last carries end the loop together with k. */
        for (int d = first - 1; d >= 0 && ++at[d] == box.hi[d]; d--)
            at[d] = box.lo[d];
    }
    return WF_OK;
}

typedef struct reading {
    wf_manifest_reader *reader;
    const wf_manifest_entry *entry;
    unsigned char *data;
} reading;

static wf_status read_run(void *user, int64_t in_array, int64_t in_box, int64_t count)
{
    const reading *r = user;
    wf_manifest_reader *from = r->reader;
    const int64_t size = (int64_t)wf_dtype_size(r->entry->dtype);
    int64_t offset = r->entry->offset + in_array * size, bytes = count * size;
    unsigned char *to = r->data + in_box * size;
    while (bytes > 0) {
        const int64_t block = offset / WF_FILE_BLOCK, inside = offset % WF_FILE_BLOCK;
        /* Runs that follow each other often lie in one block; it is kept. Its number is set only after a good read. */
        if (block != from->block) {
            from->block = -1;
            WF_TRY(wf_manifest_block(from->file, from->path, from->manifest, block, from->data, &from->bytes));
            from->block = block;
        }
        const int64_t part = bytes < from->bytes - inside ? bytes : from->bytes - inside;
        memcpy(to, from->data + inside, (size_t)part);
        offset += part;
        to += part;
        bytes -= part;
    }
    return WF_OK;
}

/* A reader may ask for any box: parts of several ranks' writing meet in it without being told. */
wf_status wf_manifest_read_box(wf_manifest_reader *reader, const wf_manifest_entry *entry, wf_box box, void *data)
{
    reading r = {reader, entry, data};
    return wf_box_runs(entry->shape, box, read_run, &r);
}
