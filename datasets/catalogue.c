/* Message catalogues of GNU gettext (.mo) as pairs of sentences. A catalogue is two tables of (length, place) pairs, of
 * messages and of their translations, in the byte order that its first word tells; every number is checked before it is
 * used. All catalogues of a folder are read in the order of their names; the first translation of a message counts. */
#include "datasets/datasets_impl.h"
#include "datasets/readers.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CATALOGUES "/usr/share/locale"

enum { HEADER = 20, MOST_TEXT = 1 << 16 };

/* One more than this many pairs would not fit the table of hashes. */
static const int64_t most_pairs = (int64_t)1 << 28;

typedef struct catalogue {
    wf_rows rows; /* first, for wf_rows_read; rows.count pairs so far */
    wf_catalogue_opts opts;
    char *path, *language;
    wf_dataset_split split;
    int64_t room;   /* pairs that rows.x has room for */
    int64_t *table; /* of places of pairs by the hash of their message, -1: free; NULL before the first */
    int64_t slots;  /* a power of two, more than twice the room */
} catalogue;

/* A file in memory. */
typedef struct mo_file {
    const char *path;
    unsigned char *data;
    uint64_t bytes;
    bool big; /* byte order */
} mo_file;

static uint32_t word_at(const mo_file *f, uint64_t at)
{
    const unsigned char *const b = f->data + at;
    if (f->big)
        return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return (uint32_t)b[3] << 24 | (uint32_t)b[2] << 16 | (uint32_t)b[1] << 8 | b[0];
}

/* Entry i of a table of texts. The caller has checked that the table lies in the file; the text is checked here. */
static wf_status text_at(const mo_file *f, uint64_t table, uint64_t i, const char **text, uint64_t *length)
{
    const uint64_t at = table + 8 * i;
    *length = word_at(f, at);
    const uint64_t place = word_at(f, at + 4);
    /* By subtraction: a sum of numbers of the file might wrap around. */
    WF_CHECK(place <= f->bytes && *length <= f->bytes - place, WF_ERR_FORMAT,
             "%s: message %llu has bytes %llu to %llu of a file of %llu", f->path, (unsigned long long)i,
             (unsigned long long)place, (unsigned long long)(place + *length), (unsigned long long)f->bytes);
    *text = (const char *)f->data + place;
    return WF_OK;
}

/* --- pairs -------------------------------------------------------------------------------------------------------- */

/* The high half is folded in, since slots take the low bits. */
static uint64_t hash_message(const char *text, uint64_t length)
{
    uint64_t hash = 0xcbf29ce484222325U; /* FNV-1a */
    for (uint64_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3U;
    return hash ^ hash >> 32;
}

/* Messages are compared as they are kept, padded with zeros: none contains a zero. */
static int64_t *seek_pair(const catalogue *c, const char *padded, uint64_t hash)
{
    int64_t i = (int64_t)(hash & (uint64_t)(c->slots - 1));
    while (c->table[i] >= 0 &&
           memcmp(c->rows.x + (size_t)c->table[i] * c->rows.sample_bytes, padded, (size_t)c->opts.most) != 0)
        i = (i + 1) & (c->slots - 1);
    return &c->table[i];
}

static uint64_t hash_padded(const catalogue *c, const char *padded)
{
    return hash_message(padded, strnlen(padded, (size_t)c->opts.most));
}

/* Room for twice as many pairs, and a table for them. Places stay, only slots are found anew. */
static wf_status grow_pairs(wf_ctx *ctx, catalogue *c)
{
    const int64_t room = c->room ? 2 * c->room : 1024;
    WF_CHECK(room <= most_pairs, WF_ERR_MEMORY, "catalogue: more than %lld pairs", (long long)most_pairs);
    unsigned char *x = wf_realloc(ctx, c->rows.x, (size_t)room * c->rows.sample_bytes);
    WF_NEED(x);
    c->rows.x = x;
    int64_t *table = wf_malloc(ctx, (size_t)(4 * room) * sizeof *table);
    WF_NEED(table);
    free(c->table);
    c->table = table;
    c->room = room;
    c->slots = 4 * room;
    for (int64_t i = 0; i < c->slots; i++)
        table[i] = -1;
    for (int64_t i = 0; i < c->rows.count; i++) {
        const char *const text = (const char *)x + (size_t)i * c->rows.sample_bytes;
        *seek_pair(c, text, hash_padded(c, text)) = i;
    }
    return WF_OK;
}

/* One line of printable bytes, of a length that is asked for. A NUL parts plural forms, byte 4 ends a context. */
static bool is_sentence(const catalogue *c, const char *text, uint64_t length)
{
    if (length < (uint64_t)c->opts.least || length > (uint64_t)c->opts.most)
        return false;
    for (uint64_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 127)
            return false;
    return true;
}

/* Every tenth message, by its hash, is of the test set; so the sets share none, whatever is installed. */
static bool is_wanted(const catalogue *c, uint64_t hash)
{
    return (hash % 10 == 0) == (c->split == WF_TEST_SET);
}

static wf_status add_pair(wf_ctx *ctx, catalogue *c, const char *from, uint64_t from_length, const char *to,
                          uint64_t to_length)
{
    char padded[MOST_TEXT];
    const uint64_t hash = hash_message(from, from_length);
    if (!is_wanted(c, hash))
        return WF_OK;
    if (c->rows.count == c->room)
        WF_TRY(grow_pairs(ctx, c));
    memset(padded, 0, (size_t)c->opts.most);
    memcpy(padded, from, (size_t)from_length);
    /* The first translation counts, so later ones are dropped. */
    int64_t *const slot = seek_pair(c, padded, hash);
    if (*slot >= 0)
        return WF_OK;
    *slot = c->rows.count;
    unsigned char *const row = c->rows.x + (size_t)c->rows.count++ * c->rows.sample_bytes;
    memset(row, 0, c->rows.sample_bytes);
    memcpy(row, from, (size_t)from_length);
    memcpy(row + c->opts.most, to, (size_t)to_length);
    return WF_OK;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Messages that are not translated, or names that stay, are no pairs. */
static wf_status add_messages(wf_ctx *ctx, catalogue *c, const mo_file *f)
{
    const uint64_t count = word_at(f, 8), messages = word_at(f, 12), translations = word_at(f, 16);
    /* 8 count fits 64 bits: count has 32. */
    WF_CHECK(messages <= f->bytes && translations <= f->bytes && 8 * count <= f->bytes - messages &&
                 8 * count <= f->bytes - translations,
             WF_ERR_FORMAT, "%s: %llu messages do not fit in %llu bytes", f->path, (unsigned long long)count,
             (unsigned long long)f->bytes);
    for (uint64_t i = 0; i < count; i++) {
        const char *from, *to;
        uint64_t from_length, to_length;
        WF_TRY(text_at(f, messages, i, &from, &from_length));
        WF_TRY(text_at(f, translations, i, &to, &to_length));
        const bool same = from_length == to_length && memcmp(from, to, (size_t)to_length) == 0;
        if (!same && is_sentence(c, from, from_length) && is_sentence(c, to, to_length))
            WF_TRY(add_pair(ctx, c, from, from_length, to, to_length));
    }
    return WF_OK;
}

/* The whole file, since its tables may lie anywhere. */
static wf_status read_mo(wf_ctx *ctx, wf_data_file *file, mo_file *f)
{
    f->path = file->path;
    f->bytes = file->disk_bytes;
    WF_CHECK(!file->compressed && f->bytes >= HEADER, WF_ERR_FORMAT, "%s: not a message catalogue: %s", f->path,
             file->compressed ? "compressed" : "shorter than its header");
    f->data = wf_malloc(ctx, (size_t)f->bytes);
    WF_NEED(f->data);
    WF_TRY(wf_data_file_read(file, f->data, (size_t)f->bytes, f->bytes));
    const uint32_t magic = word_at(f, 0);
    /* The magic number in the other order tells the order. */
    f->big = magic == 0xde120495U;
    WF_CHECK(f->big || magic == 0x950412deU, WF_ERR_FORMAT,
             "%s: not a message catalogue: begins with 0x%08x, should be 0x950412de", f->path, (unsigned)magic);
    return WF_OK;
}

static wf_status add_file(wf_ctx *ctx, catalogue *c, const char *path)
{
    wf_data_file file;
    mo_file f = {0};
    WF_TRY(wf_data_file_open(&file, path));
    wf_status status = read_mo(ctx, &file, &f);
    wf_data_file_close(&file);
    if (status == WF_OK)
        status = add_messages(ctx, c, &f);
    free(f.data);
    return status;
}

static int is_catalogue(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name);
    return length > 3 && strcmp(entry->d_name + length - 3, ".mo") == 0;
}

/* By bytes, so that the order does not depend on the locale. */
static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static wf_status add_folder(wf_ctx *ctx, catalogue *c, const char *dir)
{
    struct dirent **entry;
    const int n = scandir(dir, &entry, is_catalogue, compare_names);
    WF_CHECK(n >= 0, WF_ERR_IO, "%s: cannot open the folder of catalogues: %s", dir, strerror(errno));
    wf_status status = WF_OK;
    for (int i = 0; i < n; i++) {
        char path[WF_PATH_MAX];
        if (status == WF_OK)
            status = wf_path_join(path, dir, entry[i]->d_name);
        if (status == WF_OK)
            status = add_file(ctx, c, path);
        free(entry[i]);
    }
    free(entry);
    /* A folder without any is a mistake of the path. */
    WF_CHECK(status != WF_OK || n > 0, WF_ERR_IO, "%s: no message catalogue (*.mo)", dir);
    return status;
}

static wf_status catalogue_open(wf_dataset *dataset)
{
    catalogue *c = dataset->state;
    char path[WF_PATH_MAX], locale[WF_PATH_MAX];
    /* Opened again, a data set begins anew. */
    wf_rows_free(&c->rows);
    c->room = 0;
    c->rows.sample_bytes = (size_t)(2 * c->opts.most);
    if (!c->path) {
        WF_TRY(wf_path_join(locale, CATALOGUES, c->language));
        WF_TRY(wf_path_join(path, locale, "LC_MESSAGES"));
    }
    const char *const at = c->path ? c->path : path;
    WF_TRY(wf_path_is_folder(at) ? add_folder(dataset->ctx, c, at) : add_file(dataset->ctx, c, at));
    dataset->info = (wf_dataset_info){.count = c->rows.count, .dtype = WF_U8, .shape = WF_SHAPE(2, c->opts.most)};
    return WF_OK;
}

static void catalogue_free(wf_dataset *dataset)
{
    catalogue *c = dataset->state;
    wf_rows_free(&c->rows);
    free(c->path);
    free(c->language);
    free(c->table);
}

static const wf_dataset_kind catalogue_kind = {
    .name = "catalogue",
    .open = catalogue_open,
    .read = wf_rows_read,
    .read_box = wf_rows_read_box,
    .free = catalogue_free,
    .concurrent = true,
};

wf_dataset *wf_catalogue(wf_ctx *ctx, wf_catalogue_opts o, wf_dataset_split split)
{
    WF_NEED_NULL(ctx);
    o.least = o.least ? o.least : 4;
    o.most = o.most ? o.most : 60;
    WF_CHECK_NULL(split == WF_TRAIN_SET || split == WF_TEST_SET, WF_ERR_ARGUMENT, "catalogue: %d is no split",
                  (int)split);
    WF_CHECK_NULL(o.least >= 1 && o.least <= o.most && o.most <= MOST_TEXT, WF_ERR_ARGUMENT,
                  "catalogue: sentences of %lld to %lld bytes, should be within 1 and %d", (long long)o.least,
                  (long long)o.most, MOST_TEXT);
    WF_CHECK_NULL(o.path || (o.language && *o.language && !strchr(o.language, '/')), WF_ERR_ARGUMENT,
                  "catalogue: language \"%s\", should be one such as de, or a path given",
                  o.language ? o.language : "");
    wf_dataset *dataset = wf_dataset_new(ctx, &catalogue_kind, NULL, sizeof(catalogue));
    if (!dataset)
        return NULL;
    catalogue *c = dataset->state;
    c->opts = o;
    c->split = split;
    c->path = o.path ? wf_strdup(ctx, o.path) : NULL;
    c->language = o.language ? wf_strdup(ctx, o.language) : NULL;
    if ((!o.path || c->path) && (!o.language || c->language))
        return dataset;
    wf_dataset_free(dataset);
    return wf_error_null();
}
