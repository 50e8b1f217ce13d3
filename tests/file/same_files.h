/* Two checkpoints have the same tensors. */
#ifndef WF_TESTS_FILE_SAME_FILES_H
#define WF_TESTS_FILE_SAME_FILES_H

#include "comm/manifest_author.h"
#include "tests/file/folder.h"

#include <fcntl.h>
#include <unistd.h>

static inline wf_manifest_reader open_file(const char *path, wf_manifest *m)
{
    wf_manifest_reader reader = {.file = open(path, O_RDONLY), .path = path, .manifest = m, .block = -1};
    reader.data = malloc((size_t)WF_FILE_BLOCK);
    WF_EXPECT_OK(wf_manifest_read(reader.file, path, m));
    return reader;
}

static inline void close_file(wf_manifest_reader *reader, wf_manifest *m)
{
    close(reader->file);
    free(reader->data);
    wf_manifest_free(m);
}

/* within: gradients are accumulated for the step after the save; what each rank has of them is not compared. */
static inline void expect_same(const char *what, const char *one, const char *other, bool within)
{
    wf_manifest m[2];
    wf_manifest_reader reader[2] = {open_file(one, &m[0]), open_file(other, &m[1])};
    int64_t compared = 0;
    for (int64_t i = 0; i < m[0].n; i++) {
        const wf_manifest_entry *a = &m[0].entry[i], *b = wf_manifest_find(&m[1], a->name);
        const bool partial = strncmp(a->name, "ranks/", 6) == 0 || strstr(a->name, "/accumulated/");
        if (strncmp(a->name, "weft/", 5) == 0 || (within && partial)) /* what each rank has */
            continue;
        const size_t bytes = (size_t)wf_shape_count(a->shape) * wf_dtype_size(a->dtype);
        unsigned char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
        WF_EXPECT(b && wf_shape_equal(a->shape, b->shape) && a->dtype == b->dtype, "%s: %s is another", what, a->name);
        WF_EXPECT_OK(wf_manifest_read_box(&reader[0], a, wf_box_of_shape(a->shape), x));
        if (b)
            WF_EXPECT_OK(wf_manifest_read_box(&reader[1], b, wf_box_of_shape(b->shape), y));
        WF_EXPECT(b && memcmp(x, y, bytes) == 0, "%s: the elements of %s are others", what, a->name);
        free(x);
        free(y);
        compared++;
    }
    WF_EXPECT(compared > 8 && (within || m[0].n == m[1].n), "%s: %lld data sets were compared", what,
              (long long)compared);
    close_file(&reader[0], &m[0]);
    close_file(&reader[1], &m[1]);
}

#endif
