/* A folder for the files of a test, the same on all ranks. */
#ifndef WF_TESTS_FILE_FOLDER_H
#define WF_TESTS_FILE_FOLDER_H

#include "tests/ranks.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static char folder[64];

/* Collective, as is the end. */
static inline void folder_make(void)
{
    strcpy(folder, "/tmp/weft-test-XXXXXX");
    if (rank == 0 && !mkdtemp(folder))
        test_failed(__FILE__, __LINE__, "cannot make %s", folder);
    WF_EXPECT_OK(wf_bcast_bytes(comm, folder, sizeof folder, 0));
}

static inline void folder_remove(void)
{
    char command[128];
    WF_EXPECT_OK(wf_barrier(comm));
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (rank == 0 && system(command) != 0)
        test_failed(__FILE__, __LINE__, "cannot remove %s", folder);
}

/* "FOLDER/name", in one of two static buffers. */
static inline const char *in_folder(const char *name)
{
    static char path[2][256];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

/* Files in a folder, but for hidden ones. */
static inline int64_t files_in(const char *path)
{
    int64_t n = 0;
    DIR *dir = opendir(path);
    for (const struct dirent *file; dir && (file = readdir(dir));)
        n += file->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

#endif
