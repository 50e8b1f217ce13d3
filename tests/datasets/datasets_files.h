/* Files made by a test in a folder of its own. */
#ifndef WF_TESTS_DATASETS_FILES_H
#define WF_TESTS_DATASETS_FILES_H

#include "tests/test.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

typedef struct test_folder {
    char path[256], file[600]; /* file: the last made by test_path */
} test_folder;

static inline test_folder test_folder_new(void)
{
    test_folder folder = {.path = "/tmp/weft-datasets-XXXXXX"};
    WF_EXPECT(mkdtemp(folder.path), "no temporary folder");
    return folder;
}

static inline int test_remove(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    return remove(path);
}

static inline void test_folder_free(const test_folder *folder)
{
    nftw(folder->path, test_remove, 8, FTW_DEPTH | FTW_PHYS);
}

static inline const char *test_path(test_folder *folder, const char *name)
{
    snprintf(folder->file, sizeof folder->file, "%s/%s", folder->path, name);
    return folder->file;
}

static inline void test_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    WF_EXPECT(file && fwrite(data, 1, bytes, file) == bytes, "cannot write %s", path);
    if (file)
        fclose(file);
}

static inline void test_write_gz(const char *path, const void *data, size_t bytes)
{
    gzFile file = gzopen(path, "wb");
    WF_EXPECT(file && gzwrite(file, data, (unsigned)bytes) == (int)bytes, "cannot write %s", path);
    if (file)
        gzclose(file);
}

static inline unsigned char *test_slurp(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = malloc(1 << 20);
    WF_EXPECT(file, "cannot read %s", path);
    *bytes = file ? fread(data, 1, 1 << 20, file) : 0;
    if (file)
        fclose(file);
    return data;
}

/* An IDX file of u8 in `data`: the bytes of the file. Element i is first + i * step, modulo 256. */
static inline size_t test_idx(unsigned char *data, int rank, const unsigned *dim, unsigned first, unsigned step)
{
    size_t at = 0, elements = 1;
    data[at++] = 0;
    data[at++] = 0;
    data[at++] = 8;
    data[at++] = (unsigned char)rank;
    for (int d = 0; d < rank; d++) {
        for (int shift = 24; shift >= 0; shift -= 8)
            data[at++] = (unsigned char)(dim[d] >> shift);
        elements *= dim[d];
    }
    for (size_t i = 0; i < elements; i++)
        data[at++] = (unsigned char)(first + i * step);
    return at;
}

/* A message catalogue of these pairs, in the machine's byte order: the bytes of the file. */
static inline size_t test_catalogue(unsigned char *data, int pairs, const char *(*pair)[2])
{
    uint32_t at = 28 + 16 * (uint32_t)pairs;
    const uint32_t head[7] = {0x950412deU, 0, (uint32_t)pairs, 28, 28 + 8 * (uint32_t)pairs, 0, 0};
    memcpy(data, head, sizeof head);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < pairs; i++) {
            const uint32_t entry[2] = {(uint32_t)strlen(pair[i][side]), at};
            memcpy(data + head[3 + side] + 8 * i, entry, sizeof entry);
            memcpy(data + at, pair[i][side], entry[0] + 1);
            at += entry[0] + 1;
        }
    return at;
}

/* What TEST_FAILS checks. Clears the error. */
static __attribute__((noinline, unused)) void test_error_says(const char *file, int line, const char *call,
                                                              wf_status is, wf_status code, const char *word1,
                                                              const char *word2)
{
    const char *message = wf_error_message();
    if (is != code)
        test_failed(file, line, "%s: is %s, should be %s (%s)", call, wf_status_name(is), wf_status_name(code),
                    message);
    if (!strstr(message, word1) || !strstr(message, word2))
        test_failed(file, line, "%s: no \"%s\" and \"%s\" in \"%s\"", call, word1, word2, message);
    if (strchr(message, '\n'))
        test_failed(file, line, "%s: more than a line: %s", call, message);
    wf_error_clear();
}

/* The call fails with this code and a one-line message that holds both words. */
#define TEST_FAILS(code, call, word1, word2)                                                                           \
    test_error_says(__FILE__, __LINE__, #call, (call), (code), (word1), (word2))

#endif
