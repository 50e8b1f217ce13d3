/* Files that outlive a loss of power, and sums that notice damage. Checkpoints write by these. No HDF5, no context, no
 * communication. */
#include "comm/file_author.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A sync of a name brings to disk what any descriptor of the file has written. */
static wf_status sync_name(const char *path, int flags)
{
    const int file = open(path, flags | O_CLOEXEC);
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot open it to bring it to disk: %s", path, strerror(errno));
    const bool synced = fsync(file) == 0;
    /* close may change errno. */
    const int error = errno;
    close(file);
    WF_CHECK(synced, WF_ERR_IO, "%s: cannot bring it to disk: %s", path, strerror(error));
    return WF_OK;
}

wf_status wf_file_sync(const char *path)
{
    WF_NEED(path);
    return sync_name(path, O_RDONLY);
}

wf_status wf_folder_sync(const char *folder)
{
    WF_NEED(folder);
    return sync_name(folder, O_RDONLY | O_DIRECTORY);
}

/* Replaces a link by what it has; *linked is false if it is none. A relative link begins in its own folder. */
static wf_status follow_link(char target[WF_FILE_PATH], bool *linked)
{
    char link[WF_FILE_PATH];
    const ssize_t bytes = readlink(target, link, sizeof link - 1);
    *linked = bytes >= 0;
    if (!*linked)
        return WF_OK;
    link[bytes] = '\0';
    const char *slash = *link == '/' ? NULL : strrchr(target, '/');
    const size_t folder = slash ? (size_t)(slash + 1 - target) : 0;
    WF_CHECK(folder + (size_t)bytes < WF_FILE_PATH, WF_ERR_ARGUMENT, "%s: the name is too long", link);
    memcpy(target + folder, link, (size_t)bytes + 1);
    return WF_OK;
}

/* A rename would put a file in the place of a device or a pipe: as root, in that of /dev/null. */
static wf_status check_replaceable(const char *target)
{
    struct stat info;
    WF_CHECK(lstat(target, &info) != 0 || S_ISREG(info.st_mode), WF_ERR_IO, "%s: cannot write: it is %s", target,
             S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    return WF_OK;
}

/* As mkdir -p: a folder on the way may be there, or be made by another process at this moment; only the last one's
 * failure counts. */
wf_status wf_folder_make(const char *folder)
{
    char path[WF_FILE_PATH];
    WF_NEED(folder);
    WF_CHECK(*folder, WF_ERR_ARGUMENT, "the name of a folder is empty");
    WF_CHECK(snprintf(path, sizeof path, "%s", folder) < WF_FILE_PATH, WF_ERR_ARGUMENT,
             "%.80s...: the name is too long", folder);
    for (char *at = path + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        mkdir(path, 0777);
        *at = '/';
    }
    WF_CHECK(mkdir(path, 0777) == 0 || errno == EEXIST, WF_ERR_IO, "%s: cannot make this folder: %s", folder,
             strerror(errno));
    return WF_OK;
}

/* Writes go to a temporary name beside the target, so that rename stays inside one file system. Links are followed
 * first: rename would replace the link. */
wf_status wf_file_target(const char *path, const char *end, char target[WF_FILE_PATH], char temporary[WF_FILE_PATH])
{
    enum { LINKS = 40 }; /* as many as Linux follows */
    bool linked = true;
    WF_NEED(path);
    WF_CHECK(*path, WF_ERR_ARGUMENT, "the name of a file to write is empty");
    WF_CHECK(snprintf(target, WF_FILE_PATH, "%s", path) < WF_FILE_PATH, WF_ERR_ARGUMENT,
             "%.80s...: the name is too long", path);
    /* One more round than links, so that the last target is seen to be none. */
    for (int i = 0; i <= LINKS && linked; i++)
        WF_TRY(follow_link(target, &linked));
    WF_CHECK(!linked, WF_ERR_IO, "%s: cannot write: %s", path, strerror(ELOOP));
    WF_TRY(check_replaceable(target));
    WF_CHECK(snprintf(temporary, WF_FILE_PATH, "%s%s", target, end) < WF_FILE_PATH, WF_ERR_ARGUMENT,
             "%.80s...: the name is too long", target);
    return WF_OK;
}

/* The order makes the change atomic across a loss of power: the contents are on disk before the name points to them,
 * and the folder, which holds the name, follows. */
wf_status wf_file_commit(const char *temporary, const char *path)
{
    char folder[4096];
    WF_NEED(temporary);
    WF_NEED(path);
    WF_CHECK(strlen(path) < sizeof folder, WF_ERR_ARGUMENT, "%s: the name is too long", path);
    WF_TRY(wf_file_sync(temporary));
    WF_CHECK(rename(temporary, path) == 0, WF_ERR_IO, "%s: cannot rename %s to it: %s", path, temporary,
             strerror(errno));
    strcpy(folder, path);
    /* "/name" lies in "/", and a name without a slash in the folder where the program runs. */
    char *slash = strrchr(folder, '/');
    if (slash == folder)
        slash++;
    if (slash)
        *slash = '\0';
    return wf_folder_sync(slash ? folder : ".");
}

/* The factor of the word of four bytes at `place`, counted in words from the beginning of the file: odd, so that no
 * change of one word is lost, and another one for each. */
static uint64_t factor(uint64_t place)
{
    return (0x9E3779B97F4A7C15u * (place + 1) + 0xD1B54A32D192ED03u) | 1;
}

/* Sums wrap around at 2^64: they add up in any order, so several ranks may sum parts of one block and add. */
static uint64_t sum_words(uint64_t place, const unsigned char *data, int64_t words)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, data + 4 * i, sizeof word);
        sum += word * factor(place + (uint64_t)i);
    }
    return sum;
}

/* Bytes inside one block. The ends may be parts of words: each byte counts with the factor of its word, so parts of a
 * word that two ranks write add up to the word's. */
static uint64_t sum_bytes(int64_t offset, const unsigned char *data, int64_t bytes)
{
    uint64_t sum = 0;
    for (; bytes > 0 && offset % 4; offset++, data++, bytes--)
        sum += ((uint64_t)*data << (8 * (offset % 4))) * factor((uint64_t)offset / 4);
    sum += sum_words((uint64_t)offset / 4, data, bytes / 4);
    for (int64_t i = bytes / 4 * 4; i < bytes; i++)
        sum += ((uint64_t)data[i] << (8 * (i % 4))) * factor((uint64_t)(offset + i) / 4);
    return sum;
}

/* Adds to the sums of all blocks that the bytes touch. `first` is the block of sums[0]. */
void wf_file_sums(uint64_t *sums, int64_t first, int64_t offset, const void *data, int64_t bytes)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        const int64_t block = offset / WF_FILE_BLOCK, room = (block + 1) * WF_FILE_BLOCK - offset;
        const int64_t part = bytes < room ? bytes : room;
        sums[block - first] += sum_bytes(offset, at, part);
        offset += part;
        at += part;
        bytes -= part;
    }
}
