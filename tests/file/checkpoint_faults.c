/* Files that are damaged, torn, unreadable on one rank; folders that are full; generations that stay and go. After each
 * the newest generation that is whole is found, on all ranks. */
#include "comm/manifest_author.h"
#include "core/log.h"
#include "tests/file/bed.h"
#include "tests/world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is found is this step. */
static void expect_found(const char *what, const char *name, int64_t expected)
{
    bed b;
    bed_open(&b, name, (wf_checkpoint_opts){0});
    wf_log_set_level(WF_LOG_ERROR);
    bed_expect_found(&b, what, expected);
    bed_close(&b);
}

/* Two generations, steps 10 and 20. */
static void two_generations(const char *name)
{
    bed b;
    bed_open(&b, name, (wf_checkpoint_opts){0});
    bed_save(&b, 10);
    bed_save(&b, 20);
    bed_close(&b);
}

static const char *newest(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s/ckpt-00000001.h5", folder, name);
    return path;
}

/* On rank 0, between barriers. */
static void flip(const char *path, int64_t at)
{
    unsigned char byte = 0;
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0) {
        const int file = open(path, O_RDWR);
        const bool read_it = pread(file, &byte, 1, at) == 1;
        byte ^= 0x10;
        WF_EXPECT(read_it && pwrite(file, &byte, 1, at) == 1, "cannot flip byte %lld of %s", (long long)at, path);
        close(file);
    }
    WF_EXPECT_OK(wf_barrier(comm));
}

static void a_flipped_byte_is_noticed(void)
{
    wf_manifest m;
    two_generations("flip");
    const char *path = newest("flip");
    const int file = open(path, O_RDONLY);
    WF_EXPECT_OK(wf_manifest_read(file, path, &m));
    close(file);
    expect_found("whole", "flip", 20);
    for (int64_t i = 0; i < m.n; i++) {
        const int64_t bytes = wf_shape_count(m.entry[i].shape) * (int64_t)wf_dtype_size(m.entry[i].dtype);
        const int64_t at = m.entry[i].offset + bytes / 2;
        flip(path, at);
        expect_found(m.entry[i].name, "flip", 10);
        flip(path, at);
    }
    const int64_t other[] = {0, 9, 100, m.bytes, m.bytes + 70, size_of(path) - 60, size_of(path) - 1};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        flip(path, other[i]);
        expect_found("outside of the data", "flip", 10);
        flip(path, other[i]);
    }
    expect_found("whole again", "flip", 20);
    wf_manifest_free(&m);
}

/* A pipe, a folder and a link to nothing are damaged files. */
static void what_is_no_file_is_left_out(void)
{
    bed b;
    char path[3][256];
    two_generations("pipes");
    for (int i = 0; i < 3; i++)
        snprintf(path[i], sizeof path[i], "%s/pipes/ckpt-0000000%d.h5", folder, 2 + i);
    if (rank == 0)
        WF_EXPECT(mkfifo(path[0], 0666) == 0 && mkdir(path[1], 0777) == 0 && symlink("nowhere", path[2]) == 0,
                  "cannot make them");
    WF_EXPECT_OK(wf_barrier(comm));
    expect_found("before what is no file", "pipes", 20);
    bed_open(&b, "pipes", (wf_checkpoint_opts){0});
    bed_save(&b, 30);
    bed_close(&b);
    expect_found("behind what is no file", "pipes", 30);
}

/* At 50 lengths, of which one leaves the whole HDF5 part, and one all but a byte. */
static void a_torn_file_is_noticed(void)
{
    two_generations("torn");
    const char *path = newest("torn");
    const int64_t size_before = size_of(path);
    for (int64_t i = 0; i < 50; i++) {
        WF_EXPECT_OK(wf_barrier(comm));
        const int64_t length = i == 0 ? size_before - 1 : size_before * (49 - i) / 49;
        if (rank == 0)
            WF_EXPECT(truncate(path, length) == 0, "cannot truncate");
        WF_EXPECT_OK(wf_barrier(comm));
        expect_found("torn", "torn", 10);
    }
}

static void all_damaged_is_an_error(void)
{
    bed b;
    int64_t step = 5;
    char path[256];
    two_generations("none");
    for (int g = 0; g < 2; g++) {
        snprintf(path, sizeof path, "%s/none/ckpt-0000000%d.h5", folder, g);
        flip(path, 4000);
    }
    bed_open(&b, "none", (wf_checkpoint_opts){0});
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 5, "the step became %lld", (long long)step);
    bed_save(&b, 30);
    bed_close(&b);
    expect_found("saved after", "none", 30);
    bed_open(&b, "empty", (wf_checkpoint_opts){0});
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 5 && wf_checkpoint_generation(b.saves) == -1, "something was found in an empty folder");
    bed_close(&b);
}

/* The last rank can open no file at all, then only the older one: all use that. It is in another folder of the same
 * relative name, which it entered after the checkpoint was opened. */
static void unreadable_on_one_rank(void)
{
    bed b;
    int64_t step = -1;
    char path[2][256], here[4096];
    if (size == 1)
        return;
    two_generations("unreadable");
    WF_EXPECT(getcwd(here, sizeof here) && chdir(folder) == 0, "cannot go to %s", folder);
    snprintf(path[0], sizeof path[0], "%s/elsewhere/unreadable", folder);
    if (rank == 0)
        WF_EXPECT(mkdir(in_folder("elsewhere"), 0777) == 0 && mkdir(path[0], 0777) == 0, "cannot make %s", path[0]);
    bed_open_at(&b, "unreadable", (wf_checkpoint_opts){0});
    wf_log_set_level(WF_LOG_ERROR);
    if (rank == size - 1)
        WF_EXPECT(chdir("elsewhere") == 0, "cannot go elsewhere");
    WF_EXPECT_ERROR(WF_ERR_IO, wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == -1, "the step became %lld", (long long)step);
    if (rank == size - 1) {
        snprintf(path[0], sizeof path[0], "%s/unreadable/ckpt-00000000.h5", folder);
        snprintf(path[1], sizeof path[1], "%s/elsewhere/unreadable/ckpt-00000000.h5", folder);
        WF_EXPECT(symlink(path[0], path[1]) == 0, "cannot link %s", path[1]);
    }
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 10 && wf_checkpoint_generation(b.saves) == 0, "found step %lld", (long long)step);
    bed_check(&b, 10);
    WF_EXPECT(chdir(folder) == 0, "cannot go back");
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 20, "found step %lld", (long long)step);
    bed_check(&b, 20);
    bed_close(&b);
    WF_EXPECT(chdir(here) == 0, "cannot go back to %s", here);
}

/* One rank's file may not grow: an error on all, the last good one stays, and later saves work. */
static void a_full_disk_leaves_the_last(bool async)
{
    bed b;
    struct rlimit before, small;
    const char *name = async ? "full-async" : "full";
    bool leave = false;
    bed_open(&b, name, (wf_checkpoint_opts){.async = async});
    bed_save(&b, 10);
    WF_EXPECT_OK(async ? wf_checkpoint_save(b.saves, 10) : WF_OK);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    bed_fill(&b, 20);
    wf_status status = WF_OK;
    while (async && wf_checkpoint_generation(b.saves) < 1)
        WF_EXPECT_OK(wf_checkpoint_step(b.saves, 10, &leave));
    if (rank == size - 1)
        setrlimit(RLIMIT_FSIZE, &small);
    if (async) /* the layout is known, so that only the thread writes */
        WF_EXPECT_OK(wf_checkpoint_save(b.saves, 20));
    for (int i = 0; async && i < 10000 && status == WF_OK; i++, usleep(1000))
        status = wf_checkpoint_step(b.saves, 20, &leave);
    WF_EXPECT_ERROR(WF_ERR_IO, async ? status : wf_checkpoint_save(b.saves, 20));
    setrlimit(RLIMIT_FSIZE, &before);
    expect_found("after a full disk", name, 10);
    bed_save(&b, 30);
    bed_close(&b);
    expect_found("with room again", name, 30);
}

static void full(void)
{
    a_full_disk_leaves_the_last(false);
}

/* `path` is on a file system that holds a few generations and no more. A save that finds it full leaves the last good
 * file and nothing else, training goes on, and the next save works once there is room. */
static void on_a_small_disk(const char *path, bool async)
{
    bed b;
    char saves[256], junk[256];
    bool leave = false;
    int64_t step = -1;
    wf_status status = WF_OK;
    snprintf(saves, sizeof saves, "%s/saves-%d", path, async);
    snprintf(junk, sizeof junk, "%s/junk", path);
    bed_open_at(&b, saves, (wf_checkpoint_opts){.async = async, .keep = 1});
    bed_save(&b, 10);
    while (async && wf_checkpoint_generation(b.saves) < 0)
        WF_EXPECT_OK(wf_checkpoint_step(b.saves, 10, &leave));
    leave_room(junk, 0);
    bed_fill(&b, 20);
    status = wf_checkpoint_save(b.saves, 20);
    for (int i = 0; async && i < 10000 && status == WF_OK; i++, usleep(1000))
        status = wf_checkpoint_step(b.saves, 20, &leave);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), strerror(ENOSPC)), "a full disk gives %s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(files_in(saves) == 1, "%lld files are there", (long long)files_in(saves));
    bed_check(&b, 20);
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 10, "found step %lld", (long long)step);
    bed_check(&b, 10);
    leave_room(junk, -1);
    bed_save(&b, 30);
    bed_close(&b);
    bed_open_at(&b, saves, (wf_checkpoint_opts){0});
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 30, "found step %lld with room again", (long long)step);
    bed_check(&b, 30);
    bed_close(&b);
}

static const char *small_disk;

/* On rank 0, between barriers. */
static void mount_read_only(bool yes)
{
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0)
        WF_EXPECT(mount(NULL, small_disk, NULL, MS_BIND | MS_REMOUNT | (yes ? MS_RDONLY : 0), NULL) == 0,
                  "cannot mount %s again: %s", small_disk, strerror(errno));
    WF_EXPECT_OK(wf_barrier(comm));
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    WF_EXPECT(file && fputs(text, file) >= 0 && fclose(file) == 0, "cannot write %s", path);
}

static void expect_io_error(wf_status status, const char *says)
{
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), says), "should say \"%s\": %s", says,
              wf_error_message());
    wf_error_clear();
}

/* A run is resumed from a folder that cannot be written, whoever has locked it; its saves are errors on all ranks. */
static void read_only_folder(void)
{
    bed b;
    bool leave = false;
    int64_t step = -1;
    char saves[256], empty[256], lock[300];
    snprintf(saves, sizeof saves, "%s/read-only", small_disk);
    snprintf(empty, sizeof empty, "%s/empty", small_disk);
    snprintf(lock, sizeof lock, "%s/.weft-lock", saves);
    bed_open_at(&b, saves, (wf_checkpoint_opts){.keep = 1});
    bed_save(&b, 10);
    bed_close(&b);
    if (rank == 0) {
        write_text(lock, "elsewhere 77 88 boot space job\n");
        WF_EXPECT(mkdir(empty, 0777) == 0, "cannot make %s", empty);
    }
    mount_read_only(true);
    wf_log_set_level(WF_LOG_ERROR);
    bed_open_at(&b, saves, (wf_checkpoint_opts){.every = 1, .signals = true});
    wf_log_set_level(WF_LOG_INFO);
    bed_fill(&b, 99);
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 10, "found step %lld", (long long)step);
    bed_check(&b, 10);
    for (int64_t i = 11; i < 13; i++)
        expect_io_error(wf_checkpoint_step(b.saves, i, &leave), "cannot write into this folder: Read-only file system");
    WF_EXPECT(!wf_checkpoint_open(comm, empty, (wf_checkpoint_opts){0}), "a folder without a generation is opened");
    expect_io_error(wf_error_code(), "cannot write into this folder: Read-only file system");
    mount_read_only(false);
    if (rank == 0)
        unlink(lock);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT_OK(wf_checkpoint_step(b.saves, 13, &leave));
    WF_EXPECT(wf_checkpoint_generation(b.saves) == 1, "generation %lld", (long long)wf_checkpoint_generation(b.saves));
    bed_close(&b);
}

static void full_file_system(void)
{
    on_a_small_disk(small_disk, false);
    on_a_small_disk(small_disk, true);
}

static bool there(const char *name, int generation)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/ckpt-%08d.h5", folder, name, generation);
    return access(path, F_OK) == 0;
}

static void the_newest_and_every_mth_stay(void)
{
    bed b;
    bed_open(&b, "keep", (wf_checkpoint_opts){.keep = 2, .keep_every = 3});
    for (int g = 0; g < 9; g++)
        bed_save(&b, g + 1);
    bed_close(&b);
    WF_EXPECT_OK(wf_barrier(comm));
    for (int g = 0; g < 9; g++)
        WF_EXPECT(there("keep", g) == (g >= 7 || g % 3 == 0), "generation %d is%s there", g,
                  there("keep", g) ? "" : " not");
    bed_open(&b, "keep", (wf_checkpoint_opts){.keep = 2, .keep_every = 3});
    bed_save(&b, 50);
    bed_close(&b);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(there("keep", 9) && there("keep", 8) && !there("keep", 7), "the numbers do not go on");
}

static void rename_newest(const char *name, const char *generation)
{
    char path[2][256];
    snprintf(path[0], sizeof path[0], "%s", newest(name));
    snprintf(path[1], sizeof path[1], "%s/%s/ckpt-%s.h5", folder, name, generation);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(rank > 0 || rename(path[0], path[1]) == 0, "cannot make %s", path[1]);
    WF_EXPECT_OK(wf_barrier(comm));
}

/* Numbers of nine digits and more are found, and go on to the last one there is. */
static void long_numbers(void)
{
    bed b;
    two_generations("long");
    rename_newest("long", "100000000");
    expect_found("nine digits", "long", 20);
    bed_open(&b, "long", (wf_checkpoint_opts){0});
    bed_save(&b, 30);
    WF_EXPECT(wf_checkpoint_generation(b.saves) == 100000001 && there("long", 100000001), "the number is %lld",
              (long long)wf_checkpoint_generation(b.saves));
    bed_close(&b);
    expect_found("the next one", "long", 30);
    two_generations("last");
    rename_newest("last", "9223372036854775807");
    expect_found("the last number", "last", 20);
    bed_open(&b, "last", (wf_checkpoint_opts){0});
    const wf_status status = wf_checkpoint_save(b.saves, 40);
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), "after generation 9223372036854775807"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    bed_close(&b);
}

/* The folder may be "."; an object's name may not, nor what else files cannot have. */
static void names(void)
{
    static const char *const bad[] = {".", "", "a/b", "weft", "ranks"};
    bed b;
    char here[1024];
    int64_t step = -1;
    WF_EXPECT(getcwd(here, sizeof here), "no folder");
    WF_EXPECT(rank > 0 || mkdir(in_folder("dot"), 0777) == 0, "no folder");
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(chdir(in_folder("dot")) == 0, "cannot go there");
    bed_open_at(&b, ".", (wf_checkpoint_opts){.every = 1});
    bed_save(&b, 10);
    WF_EXPECT(access("ckpt-00000000.h5", F_OK) == 0, "the file is not there");
    WF_EXPECT_OK(wf_checkpoint_load_latest(b.saves, &step));
    WF_EXPECT(step == 10, "found step %lld", (long long)step);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char says[64];
        snprintf(says, sizeof says, "\"%s\" cannot be a name in a checkpoint", bad[i]);
        const wf_status status = wf_checkpoint_add_i64(b.saves, bad[i], &step);
        WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), says), "\"%s\": %s", bad[i],
                  wf_error_message());
        wf_error_clear();
    }
    bed_close(&b);
    WF_EXPECT(chdir(here) == 0, "cannot go back to %s", here);
}

/* Another model is an error that names the first thing that is missing, and no reason to look further. */
static void another_model_is_an_error(void)
{
    bed b;
    int64_t step = 0, more = 0;
    two_generations("other");
    bed_open(&b, "other", (wf_checkpoint_opts){0});
    WF_EXPECT_OK(wf_checkpoint_add_i64(b.saves, "more", &more));
    const wf_status status = wf_checkpoint_load_latest(b.saves, &step);
    WF_EXPECT(status == WF_ERR_FORMAT && strstr(wf_error_message(), "more is not in it"), "%s", wf_error_message());
    wf_error_clear();
    bed_close(&b);
}

/* Sums of parts, split anywhere, are those of the whole; any flipped bit changes them. */
static void sums_add_up(void)
{
    enum { BYTES = 3 << 20 };
    test_rng rng = {.state = 3};
    unsigned char *data = malloc(BYTES);
    uint64_t whole[5] = {0}, parts[5] = {0};
    for (int64_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)test_u64(&rng);
    wf_file_sums(whole, 0, 1234567, data, BYTES);
    for (int64_t at = 0; at < BYTES;) {
        const int64_t left = BYTES - at, part = test_int(&rng, 1, left < 9999 ? left : 9999);
        wf_file_sums(parts, 0, 1234567 + at, data + at, part);
        at += part;
    }
    WF_EXPECT(memcmp(whole, parts, sizeof whole) == 0, "sums of parts do not add up");
    for (int i = 0; i < 200; i++) {
        const int64_t at = test_int(&rng, 0, BYTES - 1);
        uint64_t other[5] = {0};
        data[at] ^= (unsigned char)(1u << (i % 8));
        wf_file_sums(other, 0, 1234567, data, BYTES);
        WF_EXPECT(memcmp(whole, other, sizeof whole) != 0, "bit %d of byte %lld is not noticed", i % 8, (long long)at);
        data[at] ^= (unsigned char)(1u << (i % 8));
    }
    free(data);
}

static void full_async(void)
{
    a_full_disk_leaves_the_last(true);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    if (argc > 1) { /* the path of a small file system */
        small_disk = argv[1];
        return ranks_close(test_main(
            1, argv,
            (test_case[]){{"full_file_system", full_file_system}, {"read_only_folder", read_only_folder}, {0}}));
    }
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"sums_add_up", sums_add_up},
                                               {"a_flipped_byte_is_noticed", a_flipped_byte_is_noticed},
                                               {"a_torn_file_is_noticed", a_torn_file_is_noticed},
                                               {"what_is_no_file_is_left_out", what_is_no_file_is_left_out},
                                               {"all_damaged_is_an_error", all_damaged_is_an_error},
                                               {"unreadable_on_one_rank", unreadable_on_one_rank},
                                               {"full_disk", full},
                                               {"full_disk_later", full_async},
                                               {"the_newest_and_every_mth_stay", the_newest_and_every_mth_stay},
                                               {"long_numbers", long_numbers},
                                               {"names", names},
                                               {"another_model_is_an_error", another_model_is_an_error},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
