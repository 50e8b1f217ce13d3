#include "examples/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_PATH = 4096, MOST_COMPLAINT = MOST_PATH + 200 };

/* What rank 0 has read. */
typedef struct reading {
    uint8_t *text;
    int64_t bytes;
    char complaint[MOST_COMPLAINT];
} reading;

static void append_file(reading *r, const char *path, int64_t bytes)
{
    errno = 0;
    FILE *file = fopen(path, "rb");
    uint8_t *longer = realloc(r->text, (size_t)(r->bytes + bytes) + 1);
    r->text = longer ? longer : r->text;
    if (!file || !longer || fread(r->text + r->bytes, 1, (size_t)bytes, file) != (size_t)bytes)
        snprintf(r->complaint, sizeof r->complaint, "%.4000s: cannot be read: %s", path,
                 errno ? strerror(errno) : "it became shorter");
    else
        r->bytes += bytes;
    if (file)
        fclose(file);
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Not alphasort, whose order is that of the language. */
static int compare_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void append_folder(reading *r, const char *path)
{
    struct dirent **entry = NULL;
    const int n = scandir(path, &entry, is_shown, compare_bytes);
    if (n < 0)
        snprintf(r->complaint, sizeof r->complaint, "%.4000s: cannot be read: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char file[MOST_PATH];
        struct stat about;
        const int length = snprintf(file, sizeof file, "%s/%s", path, entry[i]->d_name);
        if (!*r->complaint && length < MOST_PATH && lstat(file, &about) == 0 && S_ISREG(about.st_mode))
            append_file(r, file, about.st_size);
        free(entry[i]);
    }
    free(entry);
}

static void read_path(reading *r, const char *path, int64_t least)
{
    struct stat about;
    if (stat(path, &about) != 0)
        snprintf(r->complaint, sizeof r->complaint, "%.4000s: cannot be read: %s", path, strerror(errno));
    else if (S_ISDIR(about.st_mode))
        append_folder(r, path);
    else if (S_ISREG(about.st_mode)) /* to open a pipe would wait for its writer */
        append_file(r, path, about.st_size);
    else
        snprintf(r->complaint, sizeof r->complaint, "%.4000s: should be a file or a folder", path);
    if (!*r->complaint && r->bytes < least)
        snprintf(r->complaint, sizeof r->complaint, "%.4000s: %lld bytes of text, should be at least %lld", path,
                 (long long)r->bytes, (long long)least);
}

uint8_t *text_read(wf_comm *comm, const char *path, int64_t least, int64_t *bytes)
{
    reading r = {0};
    if (wf_comm_rank(comm) == 0)
        read_path(&r, path, least);
    example_agree(comm, *r.complaint ? r.complaint : NULL);
    WF_MUST(wf_bcast_bytes(comm, &r.bytes, sizeof r.bytes, 0));
    if (wf_comm_rank(comm) != 0)
        r.text = example_room(r.bytes);
    WF_MUST(wf_bcast_bytes(comm, r.text, (size_t)r.bytes, 0));
    *bytes = r.bytes;
    return r.text;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* The bytes of a character that begins with this one; 0: none does. */
static int length_of(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xc2)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Returns true if a whole character is valid, in its shortest form, and no control character. */
static bool is_harmless(const uint8_t *c, int length)
{
    static const uint32_t least[] = {0, 0, 0xa0, 0x800, 0x10000};
    if (length == 1)
        return (*c >= ' ' && *c != 127) || *c == '\n' || *c == '\t';
    uint32_t code = *c & (0x7fu >> length);
    for (int i = 1; i < length; i++)
        code = code << 6 | (c[i] & 0x3f);
    return code >= least[length] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

static void write_marks(text_writer *writer)
{
    for (; writer->count > 0; writer->count--)
        putchar('?');
}

void text_write(text_writer *writer, uint8_t byte)
{
    if (writer->count > 0 && (byte & 0xc0) != 0x80)
        write_marks(writer);
    writer->held[writer->count++] = byte;
    const int length = length_of(writer->held[0]);
    if (writer->count < length)
        return;
    if (length == 0 || !is_harmless(writer->held, length)) {
        write_marks(writer);
        return;
    }
    fwrite(writer->held, 1, (size_t)length, stdout);
    writer->count = 0;
}

void text_end(text_writer *writer)
{
    write_marks(writer);
    putchar('\n');
}
