/* A file system in memory that gets full. */
#ifndef WF_TESTS_FILE_DISK_H
#define WF_TESTS_FILE_DISK_H

#include "tests/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DISK_PAGE = 4096 };

static inline int64_t size_of(const char *path)
{
    struct stat info = {0};
    stat(path, &info);
    return info.st_size;
}

/* The file `junk` takes all of it but `pages` pages. */
static inline void fill_disk(const char *junk, int64_t pages)
{
    static const char block[16 * DISK_PAGE];
    const int file = open(junk, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    while (write(file, block, sizeof block) > 0)
        ;
    const int64_t bytes = size_of(junk) - DISK_PAGE * pages;
    WF_EXPECT(file >= 0 && bytes > 0 && ftruncate(file, bytes) == 0, "cannot fill %s", junk);
    close(file);
}

#endif
