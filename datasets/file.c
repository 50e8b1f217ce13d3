/* Files of data sets: paths, plain or gzip reading, and errors that name the file and what was expected. The readers
 * (idx.c, cifar.c) call it. */
#include "datasets/datasets_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* Deflate cannot shrink data by more than this (zlib's technical details). */
static const uint64_t most_compression = 1032;

wf_status wf_path_join(char path[WF_PATH_MAX], const char *dir, const char *name)
{
    const int length = snprintf(path, WF_PATH_MAX, "%s/%s", dir, name);
    WF_CHECK(length >= 0 && length < WF_PATH_MAX, WF_ERR_ARGUMENT, "%.80s.../%s: the path is too long", dir, name);
    return WF_OK;
}

bool wf_path_is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool wf_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

wf_status wf_data_file_open(wf_data_file *file, const char *path)
{
    *file = (wf_data_file){.path = path};
    struct stat info;
    WF_CHECK(stat(path, &info) == 0, WF_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    WF_CHECK(S_ISREG(info.st_mode), WF_ERR_IO, "%s: cannot open: is not a file", path);
    WF_CHECK(info.st_size > 0, WF_ERR_FORMAT, "%s: the file is empty", path);
    /* zlib reads plain files as they are, so that one path serves both. */
    gzFile stream = gzopen(path, "rb");
    WF_CHECK(stream, WF_ERR_IO, "%s: cannot open: %s", path, errno ? strerror(errno) : "no memory");
    /* Headers are read in pieces of a few bytes; the buffer makes large reads of them. */
    gzbuffer(stream, 1u << 17);
    file->stream = stream;
    file->compressed = !gzdirect(stream);
    file->disk_bytes = (uint64_t)info.st_size;
    return WF_OK;
}

void wf_data_file_close(wf_data_file *file)
{
    if (file->stream)
        gzclose_r(file->stream);
    file->stream = NULL;
}

static wf_status stream_error(const wf_data_file *file)
{
    int code;
    const char *text = gzerror(file->stream, &code);
    if (code == Z_ERRNO)
        WF_FAIL(WF_ERR_IO, "%s: cannot read: %s", file->path, strerror(errno));
    if (code == Z_MEM_ERROR)
        WF_FAIL(WF_ERR_MEMORY, "%s: no memory to decompress", file->path);
    WF_FAIL(WF_ERR_FORMAT, "%s: damaged gzip data after %llu bytes: %s", file->path, (unsigned long long)file->done,
            text);
}

/* Reads the rest of the file, at most `bytes`. */
static wf_status read_some(wf_data_file *file, void *data, size_t bytes, size_t *got)
{
    *got = 0;
    while (*got < bytes) {
        const size_t left = bytes - *got;
        /* gzread counts in int. */
        const unsigned chunk = left < (1u << 30) ? (unsigned)left : 1u << 30;
        const int n = gzread(file->stream, (char *)data + *got, chunk);
        if (n < 0)
            return stream_error(file);
        if (n == 0)
            break;
        *got += (size_t)n;
        file->done += (uint64_t)n;
    }
    return WF_OK;
}

wf_status wf_data_file_expect(wf_data_file *file, uint64_t total)
{
    const unsigned long long want = total, disk = file->disk_bytes;
    if (!file->compressed)
        WF_CHECK(total == file->disk_bytes, WF_ERR_FORMAT, "%s: %s: should have %llu bytes, has %llu", file->path,
                 total > file->disk_bytes ? "truncated" : "too large", want, disk);
    WF_CHECK(total / most_compression <= file->disk_bytes, WF_ERR_FORMAT,
             "%s: truncated: should have %llu bytes, which %llu compressed ones cannot hold", file->path, want, disk);
    return WF_OK;
}

wf_status wf_data_file_read(wf_data_file *file, void *data, size_t bytes, uint64_t total)
{
    size_t got;
    WF_TRY(read_some(file, data, bytes, &got));
    WF_CHECK(got == bytes, WF_ERR_FORMAT, "%s: truncated: should have %llu bytes, has %llu", file->path,
             (unsigned long long)total, (unsigned long long)file->done);
    return WF_OK;
}

wf_status wf_data_file_end(wf_data_file *file)
{
    /* For a compressed file this also reads the trailer, whose checksum zlib compares only there. */
    const unsigned long long expected = file->done;
    char rest[1 << 14];
    size_t got;
    do
        WF_TRY(read_some(file, rest, sizeof rest, &got));
    while (got == sizeof rest);
    WF_CHECK(file->done == expected, WF_ERR_FORMAT, "%s: too large: should have %llu bytes, has %llu", file->path,
             expected, (unsigned long long)file->done);
    return WF_OK;
}
