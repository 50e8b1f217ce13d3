/* Fuzz targets: readers on files that are random, or nearly right. A target is one file, tests/fuzz/fuzz_NAME.c, with
 * LLVMFuzzerTestOneInput; inputs to begin with lie in tests/fuzz/corpus/NAME. Built with WEFT_FUZZ it is a program of
 * libFuzzer; otherwise tests/fuzz/driver.c runs it on the corpus and on a fixed number of mutations of it.
 *
 * A reader either works, or fails with an error of one line; it never crashes, and takes no memory that the file's size
 * does not explain.
 */
#ifndef WF_TESTS_FUZZ_H
#define WF_TESTS_FUZZ_H

#include "core/status_author.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file in memory that has a name. */
typedef struct fuzz_file {
    int fd;
    char path[64];
} fuzz_file;

/* What is left of the input. */
typedef struct input {
    const uint8_t *at;
    size_t bytes;
} input;

static inline unsigned take(input *in)
{
    if (in->bytes == 0)
        return 0;
    in->bytes--;
    return *in->at++;
}

static inline void fuzz_need(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz: %s: %s\n", what, wf_error_message());
    abort();
}

static inline void fuzz_file_open(fuzz_file *file)
{
    file->fd = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_need(file->fd >= 0, "no file in memory");
    snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

static inline void fuzz_file_write(const fuzz_file *file, const void *data, size_t bytes)
{
    const bool written = ftruncate(file->fd, 0) == 0 && pwrite(file->fd, data, bytes, 0) == (ssize_t)bytes;
    fuzz_need(written, "cannot write a file in memory");
}

/* HDF5, and netCDF by way of it, ask for the real name of a file, which a file in memory lacks. */
static fuzz_file fuzz_named;

static inline void remove_name(void)
{
    unlink(fuzz_named.path);
}

static inline void make_name(void)
{
    strcpy(fuzz_named.path, "/dev/shm/weft-fuzz-XXXXXX");
    fuzz_named.fd = mkstemp(fuzz_named.path);
    fuzz_need(fuzz_named.fd >= 0, "no file");
    atexit(remove_name);
}

/* What came of it: fine, or an error with a message of one line. */
static inline void fuzz_end(wf_status status)
{
    const char *message = wf_error_message();
    fuzz_need(status == WF_OK || (status == wf_error_code() && *message && !strchr(message, '\n')), "an odd error");
    wf_error_clear();
}

#endif
