/* Writes a grid of images as PNG, under a temporary name until it is whole. Called by programs that look at what a
 * network makes. The rest of the data sets does not use it. */
#include "datasets/image.h"
#include "comm/file_author.h"
#include "core/sheet_author.h"

#include <errno.h>
#include <stb/stb_image_write.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void to_file(void *file, void *data, int bytes)
{
    /* A failure stays in the stream's error flag. */
    const size_t written = fwrite(data, 1, (size_t)bytes, file);
    (void)written;
}

static wf_status write_png(const wf_sheet *s, const char *path, const char *temporary)
{
    FILE *file = fopen(temporary, "wb");
    WF_CHECK(file, WF_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    errno = 0;
    const int done = stbi_write_png_to_func(to_file, file, (int)s->width, (int)s->height, (int)s->channels, s->pixels,
                                            (int)(s->width * s->channels));
    const bool failed = fflush(file) != 0 || ferror(file);
    const int reason = errno;
    const bool closed = fclose(file) == 0;
    if (done && !failed && closed && rename(temporary, path) == 0)
        return WF_OK;
    const int why = failed ? reason : errno;
    remove(temporary);
    WF_FAIL(WF_ERR_IO, "%s: cannot write: %s", path, !done ? "no memory" : strerror(why));
}

wf_status wf_write_png_grid(const char *path, const wf_tensor *x, int64_t rows, int64_t cols, double lo, double hi)
{
    WF_NEED(path);
    char end[32], target[WF_FILE_PATH], temporary[WF_FILE_PATH];
    wf_sheet s;
    snprintf(end, sizeof end, ".%ld.tmp", (long)getpid());
    WF_TRY(wf_sheet_draw(path, x, rows, cols, lo, hi, &s));
    wf_status status = wf_file_target(path, end, target, temporary);
    if (status == WF_OK)
        status = write_png(&s, target, temporary);
    free(s.pixels);
    return status;
}
