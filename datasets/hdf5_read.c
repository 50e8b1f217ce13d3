/* Reads parts of samples of HDF5 files: straight from their place in the file, or by way of decoded blocks that stay in
 * memory. wf_hdf5_dataset opens the files; the prefetch thread may be the one that reads, so memory is plain malloc.
 * One thread reads at a time: the data set is not `concurrent`. */
#include "comm/manifest_author.h"
#include "datasets/hdf5_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PAGE = 4096, /* pieces less than this apart are read in one go: the disk would read what is between them anyway */
    ROOM = 1 << 16, /* bytes that are read in one go, and that a block of a file without chunks has */
    PIECES = 256
};

/* --- Files -------------------------------------------------------------------------------------------------------- */

void wf_hdf5_file_close(wf_hdf5 *s, wf_hdf5_file *file)
{
    s->n_open -= file->fd >= 0 || file->h5;
    if (file->fd >= 0)
        close(file->fd);
    /* A file that was only read has nothing to lose. */
    if (wf_h5_close(file->h5) != WF_OK)
        wf_error_clear();
    file->fd = -1;
    file->h5 = NULL;
}

/* A data set may have more files than a process may open; the one that was used longest ago is closed. */
static void make_room(wf_hdf5 *s)
{
    wf_hdf5_file *oldest = NULL;
    for (int64_t i = 0; i < s->n_files; i++) {
        wf_hdf5_file *f = &s->file[i];
        if ((f->fd >= 0 || f->h5) && (!oldest || f->used < oldest->used))
            oldest = f;
    }
    wf_hdf5_file_close(s, oldest);
}

static wf_status file_open(wf_hdf5 *s, wf_hdf5_file *file)
{
    file->used = ++s->clock;
    if (file->fd >= 0 || file->h5)
        return WF_OK;
    if (s->n_open == WF_HDF5_OPEN)
        make_room(s);
    if (file->direct) {
        file->fd = open(file->path, O_RDONLY | O_CLOEXEC);
        WF_CHECK(file->fd >= 0, WF_ERR_IO, "%s: cannot open: %s", file->path, strerror(errno));
    } else {
        file->h5 = wf_h5_open(file->path);
        if (!file->h5)
            return wf_error_code();
    }
    s->n_open++;
    return WF_OK;
}

/* --- Straight from the file --------------------------------------------------------------------------------------- */

/* Pieces of the file that are near each other wait here to be read in one go. `piece` says where each run lies in the
 * file and where it goes. */
typedef struct gather {
    const wf_hdf5_file *file;
    size_t size; /* of an element */
    unsigned char *x;
    int64_t lo, hi; /* in the file: what waits */
    int n;
    struct {
        int64_t at, to, bytes;
    } piece[PIECES];
    unsigned char room[ROOM];
} gather;

static wf_status read_at(const wf_hdf5_file *file, void *data, int64_t bytes, int64_t offset)
{
    char *to = data;
    while (bytes > 0) {
        const ssize_t n = pread(file->fd, to, (size_t)bytes, offset);
        if (n < 0 && errno == EINTR)
            continue;
        WF_CHECK(n >= 0, WF_ERR_IO, "%s: cannot read: %s", file->path, strerror(errno));
        WF_CHECK(n > 0, WF_ERR_FORMAT, "%s: ends before byte %lld", file->path, (long long)(offset + bytes));
        to += n;
        offset += n;
        bytes -= n;
    }
    return WF_OK;
}

/* A single run goes to its place at once, without the copy. */
static wf_status gather_read(gather *g)
{
    const int n = g->n;
    g->n = 0;
    if (n == 1)
        return read_at(g->file, g->x + g->piece[0].to, g->piece[0].bytes, g->lo);
    if (n > 0)
        WF_TRY(read_at(g->file, g->room, g->hi - g->lo, g->lo));
    for (int i = 0; i < n; i++)
        memcpy(g->x + g->piece[i].to, g->room + (g->piece[i].at - g->lo), (size_t)g->piece[i].bytes);
    return WF_OK;
}

/* Runs come in ascending order, so what waits is one stretch of the file. */
static wf_status gather_run(void *user, int64_t in_array, int64_t in_box, int64_t count)
{
    gather *g = user;
    const int64_t size = (int64_t)g->size, bytes = count * size, at = g->file->info.offset + in_array * size;
    /* A gap of a page or more is not read; nor is more than the room holds. */
    if (g->n > 0 && (g->n == PIECES || at - g->hi >= PAGE || at + bytes - g->lo > ROOM))
        WF_TRY(gather_read(g));
    if (g->n == 0)
        g->lo = at;
    g->hi = at + bytes;
    g->piece[g->n].at = at;
    g->piece[g->n].to = in_box * size;
    g->piece[g->n++].bytes = bytes;
    return WF_OK;
}

/* The elements of a box of samples, in the file's own numbers. */
static wf_box samples_box(int64_t first, int64_t count, const wf_box *box)
{
    wf_box b = {.rank = box->rank + 1, .lo = {first}, .hi = {first + count}};
    for (int d = 0; d < box->rank; d++) {
        b.lo[d + 1] = box->lo[d];
        b.hi[d + 1] = box->hi[d];
    }
    return b;
}

static wf_status read_direct(const wf_hdf5_file *file, int64_t sample, const wf_box *box, void *x)
{
    gather g;
    g.file = file;
    g.size = file->info.size;
    g.x = x;
    g.n = 0;
    WF_TRY(wf_box_runs(file->info.shape, samples_box(sample, 1, box), gather_run, &g));
    return gather_read(&g);
}

/* --- By way of blocks --------------------------------------------------------------------------------------------- */

void wf_hdf5_cache_free(wf_hdf5 *s)
{
    wf_hdf5_cache *c = &s->cache;
    for (int64_t i = 0; i < c->sets * c->ways; i++)
        free(c->block[i].data);
    free(c->block);
    *c = (wf_hdf5_cache){0};
}

/* Samples in a block of this file: those of a chunk, as far as the budget goes. A chunk is decoded as a whole, so its
 * samples are kept together. */
static int64_t block_samples(const wf_hdf5 *s, const wf_hdf5_file *file)
{
    const size_t bytes = s->cache.sample_bytes;
    int64_t n = file->info.chunked ? file->info.chunk.dim[0] : ROOM / (int64_t)bytes;
    const int64_t most = (int64_t)(s->budget / bytes);
    n = n < file->count ? n : file->count;
    n = n < most ? n : most;
    return n > 1 ? n : 1;
}

/* Made anew for another box: blocks hold the part that this rank reads. */
static wf_status cache_make(wf_hdf5 *s, wf_dtype dtype, const wf_box *box)
{
    wf_hdf5_cache *c = &s->cache;
    int64_t largest = 1, blocks = 0; /* a block has a sample at least, and the box is not empty */
    wf_hdf5_cache_free(s);
    c->box = *box;
    c->sample_bytes = (size_t)wf_shape_count(wf_box_shape(*box)) * wf_dtype_size(dtype);
    for (int64_t i = 0; i < s->n_files; i++) {
        if (s->file[i].direct || s->file[i].count == 0)
            continue;
        const int64_t n = block_samples(s, &s->file[i]);
        largest = n > largest ? n : largest;
        blocks += (s->file[i].count + n - 1) / n;
    }
    c->block_bytes = (size_t)largest * c->sample_bytes;
    int64_t most = (int64_t)(s->budget / c->block_bytes);
    most = most < blocks ? most : blocks;
    /* No more blocks than there are, and at least one, however small the budget. */
    const int64_t ways = most < WF_HDF5_WAYS ? most > 1 ? most : 1 : WF_HDF5_WAYS;
    const int64_t sets = most / ways > 1 ? most / ways : 1;
    c->block = calloc((size_t)(sets * ways), sizeof *c->block);
    WF_CHECK(c->block, WF_ERR_MEMORY, "%s: no memory for %lld blocks", s->files, (long long)(sets * ways));
    c->sets = sets;
    c->ways = ways;
    return WF_OK;
}

/* The block's place: where it is, or that of its set which was used longest ago. Neighbouring blocks fall into
 * different sets. */
static wf_hdf5_block *find_block(wf_hdf5 *s, const wf_hdf5_file *file, int64_t first, int64_t number)
{
    wf_hdf5_cache *c = &s->cache;
    const uint64_t set = (uint64_t)(number + (file - s->file) * 7919) % (uint64_t)c->sets;
    wf_hdf5_block *b = c->block + set * (uint64_t)c->ways, *oldest = b;
    for (int64_t i = 0; i < c->ways; i++) {
        if (b[i].file == file && b[i].first == first)
            return &b[i];
        if (b[i].used < oldest->used)
            oldest = &b[i];
    }
    return oldest;
}

static wf_status fill_block(wf_hdf5 *s, wf_hdf5_file *file, wf_dtype dtype, int64_t first, int64_t count,
                            wf_hdf5_block *b)
{
    /* A block that failed half-way is found by none. */
    b->file = NULL; /* until it is read */
    if (!b->data)
        b->data = malloc(s->cache.block_bytes);
    WF_CHECK(b->data, WF_ERR_MEMORY, "%s: no memory for a block of %zu bytes", file->path, s->cache.block_bytes);
    WF_TRY(file_open(s, file));
    WF_TRY(wf_h5_read(file->h5, s->x, samples_box(first, count, &s->cache.box), dtype, b->data));
    b->file = file;
    b->first = first;
    return WF_OK;
}

static wf_status read_cached(wf_hdf5 *s, wf_hdf5_file *file, wf_dtype dtype, int64_t sample, const wf_box *box, void *x)
{
    if (s->cache.sets == 0 || !wf_box_equal(s->cache.box, *box))
        WF_TRY(cache_make(s, dtype, box));
    const int64_t per = block_samples(s, file), first = sample / per * per;
    wf_hdf5_block *b = find_block(s, file, first, sample / per);
    /* The last block of a file may be shorter. */
    if (b->file != file || b->first != first)
        WF_TRY(fill_block(s, file, dtype, first, first + per < file->count ? per : file->count - first, b));
    b->used = ++s->clock;
    memcpy(x, b->data + (size_t)(sample - first) * s->cache.sample_bytes, s->cache.sample_bytes);
    return WF_OK;
}

/* The file of a sample: the last one that begins at it or before. Empty files are passed over, since the next one
 * begins at the same number. */
static wf_hdf5_file *file_of(const wf_hdf5 *s, int64_t index)
{
    int64_t lo = 0, hi = s->n_files;
    while (hi - lo > 1) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (s->file[middle].first <= index)
            lo = middle;
        else
            hi = middle;
    }
    return &s->file[lo];
}

wf_status wf_hdf5_read(wf_hdf5 *s, wf_dtype dtype, int64_t index, const wf_box *box, void *x)
{
    wf_hdf5_file *file = file_of(s, index);
    if (wf_box_empty(*box))
        return WF_OK;
    if (!file->direct)
        return read_cached(s, file, dtype, index - file->first, box, x);
    WF_TRY(file_open(s, file));
    return read_direct(file, index - file->first, box, x);
}
