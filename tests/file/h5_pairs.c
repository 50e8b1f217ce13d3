/* Pairs of HDF5 files that differ in one number that is easily lost, for tests/file/h5_tool.sh: h5_pairs FOLDER. */
#include "comm/file_author.h"

#include <math.h>
#include <stdio.h>

static int failed;

static void write_one(const char *folder, const char *name, wf_dtype dtype, const void *value)
{
    char path[512];
    const wf_shape shape = WF_SHAPE(1);
    snprintf(path, sizeof path, "%s/%s.h5", folder, name);
    wf_h5 *file = wf_h5_create(path);
    if (file && wf_h5_add(file, "x", dtype, shape) == WF_OK &&
        wf_h5_write(file, "x", wf_box_of_shape(shape), value) == WF_OK && wf_h5_close(file) == WF_OK)
        return;
    fprintf(stderr, "%s: %s\n", path, wf_error_message());
    failed = 1;
}

int main(int argc, char **argv)
{
    const int64_t integer[2] = {(int64_t)1 << 53, ((int64_t)1 << 53) + 1};
    const double tiny[2] = {1e-200, 3e-200}, signs[2] = {0.0, -0.0}, nans[2] = {NAN, 1};
    if (argc != 2)
        return 2;
    for (int i = 0; i < 2; i++) {
        write_one(argv[1], i ? "integer1" : "integer0", WF_I64, &integer[i]);
        write_one(argv[1], i ? "tiny1" : "tiny0", WF_F64, &tiny[i]);
        write_one(argv[1], i ? "zero1" : "zero0", WF_F64, &signs[i]);
        write_one(argv[1], i ? "nan1" : "nan0", WF_F64, &nans[i]);
    }
    return failed;
}
