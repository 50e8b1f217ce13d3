/* Event files of TensorBoard. The trainer and programs call it; it knows no training.
 *
 * A file is a row of records (TensorFlow, tensorflow/core/lib/io/record_writer.cc, described in "TFRecord and
 * tf.train.Example"): the length as 8 bytes, little-endian; the masked CRC-32C of these; the data; its masked CRC-32C.
 * Masked is rotated right by 15 bits, plus 0xa282ead8. The data of a record is an Event in the wire format of Protocol
 * Buffers ("Encoding", protobuf.dev). Fields, with their numbers, are those of TensorBoard's
 * tensorboard/compat/proto/event.proto, summary.proto and histogram.proto:
 *
 *     Event           1 double wall_time  2 int64 step  3 string file_version  5 Summary summary  7 SessionLog
 *     Summary         1 repeated Value
 *     Value           1 string tag  2 float simple_value  4 Image image  5 HistogramProto histo
 *     Image           1 height  2 width  3 colorspace (1 grey, 3 RGB)  4 bytes encoded_image_string
 *     HistogramProto  1 min  2 max  3 num  4 sum  5 sum_squares  6 packed bucket_limit  7 packed bucket, all double
 *     SessionLog      1 status (1: START)
 *
 * The first event has file_version "brain.Event:2". A START with a step makes readers drop what they have of it and
 * later ones, from the files before (event_accumulator.py, _CheckForRestartAndMaybePurge). */
#include "optim/tensorboard.h"
#include "comm/file_author.h"
#include "core/context_author.h"
#include "core/tensor_author.h"
#include "optim/tensorboard_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FIRST_LIMIT 1e-12 /* limits of intervals, as TensorFlow's (tensorflow/core/lib/histogram) */
#define LAST_LIMIT  1e20
#define LIMIT_RATIO 1.1

struct wf_tensorboard {
    wf_ctx *ctx;
    int file;
    bool failed; /* half a record may be in the file */
    char path[WF_FILE_PATH];
};

/* --- Protocol buffers --------------------------------------------------------------------------------------------- */

enum { VARINT = 0, EIGHT_BYTES = 1, LENGTH = 2, FOUR_BYTES = 5 };

static void add_varint(wf_bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7)
        wf_bytes_add(b, (unsigned char[]){(unsigned char)(value | 128)}, 1);
    wf_bytes_add(b, (unsigned char[]){(unsigned char)value}, 1);
}

static void add_key(wf_bytes *b, int field, int type)
{
    add_varint(b, (uint64_t)(field << 3 | type));
}

static void add_little_endian(wf_bytes *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        wf_bytes_add(b, (unsigned char[]){(unsigned char)(value >> 8 * i)}, 1);
}

static void add_integer(wf_bytes *b, int field, int64_t value)
{
    add_key(b, field, VARINT);
    add_varint(b, (uint64_t)value);
}

static void add_double(wf_bytes *b, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_little_endian(b, bits, sizeof bits);
}

static void add_double_field(wf_bytes *b, int field, double value)
{
    add_key(b, field, EIGHT_BYTES);
    add_double(b, value);
}

static void add_bytes(wf_bytes *b, int field, const void *data, size_t count)
{
    add_key(b, field, LENGTH);
    add_varint(b, count);
    wf_bytes_add(b, data, count);
}

/* Adds the inner message as a field, and frees it. */
static void add_inner(wf_bytes *b, int field, wf_bytes *inner)
{
    add_bytes(b, field, inner->data, inner->count);
    b->failed = b->failed || inner->failed;
    wf_bytes_free(inner);
}

/* --- Records ------------------------------------------------------------------------------------------------------ */

static uint32_t masked_sum(const void *data, size_t count)
{
    const uint32_t sum = wf_crc(WF_CRC_CASTAGNOLI, 0, data, count);
    return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

static wf_status write_all(wf_tensorboard *board, const unsigned char *data, size_t count)
{
    while (count > 0) {
        const ssize_t n = write(board->file, data, count);
        if (n < 0 && errno == EINTR)
            continue;
        board->failed = n <= 0;
        WF_CHECK(n > 0, WF_ERR_IO, "%s: cannot write: %s", board->path, strerror(n < 0 ? errno : ENOSPC));
        data += n;
        count -= (size_t)n;
    }
    return WF_OK;
}

/* Appends the record of an event, in one call of the system where it takes all; frees the event. */
static wf_status write_event(wf_tensorboard *board, wf_bytes *event)
{
    wf_bytes record = {0};
    add_little_endian(&record, event->count, 8);
    add_little_endian(&record, masked_sum(record.data, record.count), 4);
    wf_bytes_add(&record, event->data, event->count);
    add_little_endian(&record, masked_sum(event->data, event->count), 4);
    const bool whole = !event->failed && !record.failed;
    const wf_status status = whole ? write_all(board, record.data, record.count)
                                   : WF_RAISE(WF_ERR_MEMORY, "%s: no memory for an event", board->path);
    wf_bytes_free(event);
    wf_bytes_free(&record);
    return status;
}

static wf_bytes begin_event(int64_t step)
{
    wf_bytes event = {0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    add_double_field(&event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    add_integer(&event, 2, step);
    return event;
}

/* Writes one value of a summary, whose kind (its field) and content follow the tag. */
static wf_status write_value(wf_tensorboard *board, const char *name, int64_t step, const wf_bytes *content)
{
    wf_bytes event = begin_event(step), summary = {0}, value = {0};
    add_bytes(&value, 1, name, strlen(name));
    wf_bytes_add(&value, content->data, content->count);
    value.failed = value.failed || content->failed;
    add_inner(&summary, 1, &value);
    add_inner(&event, 5, &summary);
    return write_event(board, &event);
}

static wf_status check_call(const wf_tensorboard *board, const char *name)
{
    WF_NEED(board);
    WF_NEED(name);
    WF_CHECK(*name, WF_ERR_ARGUMENT, "%s: the name of a curve, picture or histogram is empty", board->path);
    WF_CHECK(!board->failed, WF_ERR_IO, "%s: an event could not be written, and none may follow it", board->path);
    return WF_OK;
}

/* --- Life --------------------------------------------------------------------------------------------------------- */

/* Two runs of one process may begin in one second. */
static wf_status create_file(wf_tensorboard *board, const char *folder)
{
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    WF_TRY(wf_folder_make(folder));
    for (int number = 0; board->file < 0; number++) {
        const int length = snprintf(board->path, sizeof board->path, "%s/events.out.tfevents.%lld.%s.%ld.%d", folder,
                                    (long long)time(NULL), host, (long)getpid(), number);
        WF_CHECK(length < (int)sizeof board->path, WF_ERR_ARGUMENT, "%.80s...: the name is too long", folder);
        board->file = open(board->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        WF_CHECK(board->file >= 0 || errno == EEXIST, WF_ERR_IO, "%s: cannot write: %s", board->path, strerror(errno));
    }
    return WF_OK;
}

static wf_status begin_file(wf_tensorboard *board, int64_t step)
{
    static const char version[] = "brain.Event:2";
    wf_bytes first = begin_event(0);
    add_bytes(&first, 3, version, strlen(version));
    WF_TRY(write_event(board, &first));
    if (step == 0)
        return WF_OK;
    wf_bytes restart = begin_event(step + 1), log = {0};
    add_integer(&log, 1, 1);
    add_inner(&restart, 7, &log);
    return write_event(board, &restart);
}

wf_tensorboard *wf_tensorboard_open(wf_ctx *ctx, const char *folder, int64_t step)
{
    if (!ctx)
        return NULL;
    WF_CHECK_NULL(folder, WF_ERR_ARGUMENT, "event files need a folder");
    WF_CHECK_NULL(step >= 0, WF_ERR_ARGUMENT, "%s: events after step %" PRId64 ": should be 0 or more", folder, step);
    wf_tensorboard *board = wf_calloc(ctx, 1, sizeof *board);
    if (!board)
        return wf_error_null();
    board->ctx = ctx;
    board->file = -1;
    wf_status status = create_file(board, folder);
    if (status == WF_OK)
        status = begin_file(board, step);
    if (status == WF_OK)
        return board;
    if (board->file >= 0)
        close(board->file);
    free(board);
    return wf_error_null();
}

wf_status wf_tensorboard_close(wf_tensorboard *board)
{
    if (!board)
        return WF_OK;
    wf_status status = WF_OK;
    if (close(board->file) != 0 && !board->failed) /* what failed before was told */
        status = WF_RAISE(WF_ERR_IO, "%s: cannot write: %s", board->path, strerror(errno));
    free(board);
    return status;
}

/* --- Values ------------------------------------------------------------------------------------------------------- */

wf_status wf_tensorboard_scalar(wf_tensorboard *board, const char *name, int64_t step, double value)
{
    WF_TRY(check_call(board, name));
    const float narrow = (float)value;
    uint32_t bits;
    wf_bytes content = {0};
    memcpy(&bits, &narrow, sizeof bits);
    add_key(&content, 2, FOUR_BYTES);
    add_little_endian(&content, bits, sizeof bits);
    const wf_status status = write_value(board, name, step, &content);
    wf_bytes_free(&content);
    return status;
}

wf_status wf_tensorboard_image(wf_tensorboard *board, const char *name, int64_t step, const wf_tensor *x, int64_t rows,
                               int64_t cols, double lo, double hi)
{
    wf_sheet sheet;
    WF_TRY(check_call(board, name));
    WF_TRY(wf_sheet_draw(name, x, rows, cols, lo, hi, &sheet));
    wf_bytes picture = {0}, image = {0}, content = {0};
    wf_png_add(&picture, &sheet);
    add_integer(&image, 1, sheet.height);
    add_integer(&image, 2, sheet.width);
    add_integer(&image, 3, sheet.channels);
    add_inner(&image, 4, &picture);
    add_inner(&content, 4, &image);
    free(sheet.pixels);
    const wf_status status = write_value(board, name, step, &content);
    wf_bytes_free(&content);
    return status;
}

/* --- Histograms --------------------------------------------------------------------------------------------------- */

/* Intervals from the most negative to the most positive limit: interval i ends at limit i and begins at the one before
 * it. */
typedef struct intervals {
    double limit[2 * 776 + 2]; /* log(1e32) / log(1.1) is 773.1 */
    int64_t count[2 * 776 + 2];
    int n;
    double least, most, sum, squares;
    int64_t finite, others;
} intervals;

static void set_limits(intervals *s)
{
    int positive = 0;
    double *limit = s->limit;
    double v = FIRST_LIMIT;
    while (v < LAST_LIMIT) {
        v *= LIMIT_RATIO;
        positive++;
    }
    s->n = 2 * (positive + 1) + 1;
    v = FIRST_LIMIT;
    for (int i = 0; i <= positive; i++, v *= LIMIT_RATIO) {
        const double each = i == positive ? DBL_MAX : v;
        limit[positive + 2 + i] = each;
        limit[positive - i] = -each;
    }
    limit[positive + 1] = 0;
}

/* The first interval whose limit is above the value, as in TensorFlow. */
static int find_interval(const intervals *s, double value)
{
    int low = 0, high = s->n - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (s->limit[middle] > value)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void count_value(intervals *s, double value)
{
    if (!isfinite(value)) {
        s->others++;
        return;
    }
    s->least = s->finite == 0 ? value : fmin(s->least, value);
    s->most = s->finite == 0 ? value : fmax(s->most, value);
    s->sum += value;
    s->squares += value * value;
    s->finite++;
    s->count[find_interval(s, value)]++;
}

static wf_status count_tensor(wf_ctx *ctx, const wf_tensor *x, intervals *s)
{
    const int64_t n = wf_tensor_count(x);
    wf_tensor *plain = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    WF_NEED(plain);
    double *values = wf_malloc(ctx, (size_t)(n ? n : 1) * sizeof *values);
    wf_status status = values ? wf_tensor_export(plain, values, (size_t)n * sizeof *values) : wf_error_code();
    for (int64_t i = 0; status == WF_OK && i < n; i++)
        count_value(s, values[i]);
    free(values);
    wf_tensor_free(plain);
    return status;
}

/* Empty intervals at both ends are left out, but for one before the first, which is where that one begins. */
static void add_histogram(wf_bytes *b, const intervals *s)
{
    wf_bytes limits = {0}, counts = {0};
    int first = 0, last = s->n - 1;
    while (first < last && s->count[first] == 0)
        first++;
    while (last > first && s->count[last] == 0)
        last--;
    for (int i = first > 0 ? first - 1 : 0; i <= last; i++) {
        add_double(&limits, s->limit[i]);
        add_double(&counts, (double)s->count[i]);
    }
    const double numbers[] = {s->least, s->most, (double)s->finite, s->sum, s->squares};
    for (int i = 0; i < 5; i++)
        add_double_field(b, i + 1, numbers[i]);
    add_inner(b, 6, &limits);
    add_inner(b, 7, &counts);
}

static wf_status write_histogram(wf_tensorboard *board, const char *name, int64_t step, const intervals *s)
{
    if (s->others > 0) {
        char curve[512];
        snprintf(curve, sizeof curve, "%.480s/not_finite", name);
        WF_TRY(wf_tensorboard_scalar(board, curve, step, (double)s->others));
    }
    if (s->finite == 0)
        return WF_OK;
    wf_bytes histogram = {0}, content = {0};
    add_histogram(&histogram, s);
    add_inner(&content, 5, &histogram);
    const wf_status status = write_value(board, name, step, &content);
    wf_bytes_free(&content);
    return status;
}

wf_status wf_tensorboard_histogram(wf_tensorboard *board, const char *name, int64_t step, const wf_tensor *x)
{
    WF_TRY(check_call(board, name));
    WF_NEED(x);
    WF_CHECK(wf_dtype_is_float(wf_tensor_dtype(x)), WF_ERR_DTYPE, "%s: a histogram of type %s: should be a float type",
             name, wf_dtype_name(wf_tensor_dtype(x)));
    intervals *s = wf_calloc(board->ctx, 1, sizeof *s);
    if (!s)
        return wf_error_code();
    set_limits(s);
    wf_status status = count_tensor(board->ctx, x, s);
    if (status == WF_OK)
        status = write_histogram(board, name, step, s);
    free(s);
    return status;
}
