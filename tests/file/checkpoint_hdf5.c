/* Checkpoints that fail inside HDF5, by which rank 0 lays out the file: call n of the library fails, or the disk is
 * full while the layout is written, which is not known yet. Each is one error on all ranks; the last good generation
 * stays and loads, the next save works, and the process ends well: HDF5 writes what it still has open while it exits.
 * With a folder on a small file system as argument, that gets full. */
#include "tests/file/bed.h"
#include "tests/file/failing_hdf5.h"
#include "tests/world.h"

#include <errno.h>

enum { NEXT = 10 }; /* steps between two good saves */

/* All ranks have the same error, of one line that names the folder. */
static void expect_one_error(const char *when, wf_status status, const char *path, const char *says)
{
    char first[512] = "";
    const char *message = wf_error_message();
    snprintf(first, sizeof first, "%s", message);
    WF_EXPECT(status == WF_ERR_IO, "%s: %s: %s", when, wf_status_name(status), message);
    WF_EXPECT(strncmp(message, path, strlen(path)) == 0 && !strchr(message, '\n') && strstr(message, says),
              "%s: says \"%s\", should say \"%s\"", when, message, says);
    WF_EXPECT_OK(wf_bcast_bytes(comm, first, sizeof first, 0));
    WF_EXPECT(strcmp(first, message) == 0, "%s: says \"%s\", and rank 0 \"%s\"", when, message, first);
    wf_error_clear();
}

/* The save of `step` by a checkpoint that knows no layout, after `good` was saved. Calls of HDF5 on rank 0. */
static int64_t save_with_fault(const char *when, const char *path, int n, bool on, int64_t good, int64_t step)
{
    bed b;
    bed_open_at(&b, path, (wf_checkpoint_opts){.keep = 1});
    bed_fill(&b, step);
    if (rank == 0)
        failing_hdf5_set(n, on);
    const wf_status status = wf_checkpoint_save(b.saves, step);
    int64_t calls = failing_hdf5_calls();
    failing_hdf5_set(0, false);
    WF_EXPECT_OK(wf_bcast_bytes(comm, &calls, sizeof calls, 0));
    if (status != WF_OK)
        expect_one_error(when, status, path, "");
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(status == WF_OK || files_in(path) == 1, "%s: %lld files are there", when, (long long)files_in(path));
    /* A handle that cannot be closed is no reason to refuse a file that is whole. */
    bed_expect_found(&b, when, status == WF_OK ? step : good);
    bed_save(&b, step + 1);
    bed_close(&b);
    return calls;
}

static void every_call_fails(const char *name, bool on)
{
    char path[256], when[64];
    snprintf(path, sizeof path, "%s", in_folder(name));
    int64_t step = NEXT;
    const int64_t calls = save_with_fault("a save", path, 0, false, 0, step), faults = test_samples((int)calls);
    WF_EXPECT(calls > 300, "%lld calls of HDF5 were counted in a save", (long long)calls);
    for (int64_t i = 0; i < faults; i++) {
        const int n = (int)(1 + i * (calls - 1) / (faults - 1));
        snprintf(when, sizeof when, "call %d of %lld%s", n, (long long)calls, on ? " and later ones" : "");
        save_with_fault(when, path, n, on, step + 1, step + NEXT);
        step += NEXT;
    }
}

static void every_call_of_a_save(void)
{
    every_call_fails("calls", false);
}

static void every_call_from_one_on(void)
{
    every_call_fails("calls-on", true);
}

/* --- A small file system ------------------------------------------------------------------------------------------ */

static const char *small_disk;

static void save_when_full(const char *path, const char *junk, int64_t pages)
{
    bed b;
    char when[64];
    bool leave = false;
    snprintf(when, sizeof when, "%lld pages are free", (long long)pages);
    bed_open_at(&b, path, (wf_checkpoint_opts){.keep = 1, .every = 1});
    leave_room(junk, pages);
    bed_fill(&b, 20);
    expect_one_error(when, wf_checkpoint_step(b.saves, 20, &leave), path, strerror(ENOSPC));
    WF_EXPECT(files_in(path) == 1, "%s: %lld files are there", when, (long long)files_in(path));
    bed_expect_found(&b, when, 10);
    leave_room(junk, -1);
    bed_close(&b);
}

/* From no page to all but the last: HDF5's own structures are most of the file. */
static void a_full_file_system(void)
{
    bed b;
    char path[256], junk[256], file[300];
    snprintf(path, sizeof path, "%s/layout", small_disk);
    snprintf(junk, sizeof junk, "%s/junk", small_disk);
    snprintf(file, sizeof file, "%s/ckpt-00000000.h5", path);
    bed_layers = 24;
    bed_open_at(&b, path, (wf_checkpoint_opts){0});
    bed_save(&b, 10);
    bed_close(&b);
    const int64_t pages = size_of(file) / DISK_PAGE;
    WF_EXPECT(pages > 8, "the file has only %lld pages", (long long)pages);
    for (int64_t k = 0; k < pages; k++)
        save_when_full(path, junk, k);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    bed_side = 3;
    bed_layers = 2;
    if (argc > 1 && *argv[1] == '/') {
        small_disk = argv[1];
        return ranks_close(test_main(1, argv, (test_case[]){{"a_full_file_system", a_full_file_system}, {0}}));
    }
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"every_call_of_a_save", every_call_of_a_save},
                                               {"every_call_from_one_on", every_call_from_one_on},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
