/* Reads the header of a classic netCDF file (CDF-1, CDF-2, CDF-5) without libnetcdf, before that opens the file. Two
 * faults of files pass through the library:
 *
 * - It copies a name and the ids of a variable's dimensions into the caller's buffers, which its manual sizes by
 *   NC_MAX_NAME and NC_MAX_VAR_DIMS, whatever number the header gives. A longer name in a file overwrites the stack.
 * - It reads zeros beyond the end of the file, so a file that is cut off would train a model on zeros.
 *
 * The grammar is that of "The NetCDF Classic Format Specification" (NetCDF User's Guide, appendix B): a magic, the
 * number of records, then lists of dimensions, attributes and variables, each a tag, a count and its entries. Numbers
 * are big-endian. A count has 4 bytes, in CDF-5 8; the place of a variable has 4 bytes in CDF-1 alone. */
#include "datasets/netcdf_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NC_MAX_NAME and NC_MAX_VAR_DIMS of netcdf.h, which a build without the library lacks. */
enum { MOST_NAME = WF_NETCDF_NAME - 1, MOST_DIMENSIONS = 1024 };

enum { TAG_DIMENSIONS = 10, TAG_VARIABLES = 11, TAG_ATTRIBUTES = 12 };

typedef struct classic_header {
    const char *path;
    FILE *file;
    int64_t at, length; /* bytes read or skipped, bytes of the file */
    int count, offset;  /* bytes of a count, of the place of a variable's data */
    uint64_t records, n_dims, *dim;
    /* Sizes of data are doubles, since those that a hostile header asks for do not fit into integers. */
    double fixed_end,
        first_record_end; /* of the last fixed variable; of the last variable of records, in the first record */
    double record, record_unpadded; /* bytes of all variables of a record, of the first one without its padding */
    double first_padded;
} classic_header;

/* Refuses `number` entries of `bytes` each, or more, if the file ends before. The quotient cannot overflow. */
static wf_status check_rest(const classic_header *h, uint64_t number, int bytes)
{
    const uint64_t rest = (uint64_t)(h->length - h->at);
    WF_CHECK(number <= rest / (uint64_t)bytes, WF_ERR_FORMAT,
             "%s: is cut off or damaged: its header has %.0f bytes more at least after byte %lld, the file has %llu",
             h->path, (double)number * bytes, (long long)h->at, (unsigned long long)rest);
    return WF_OK;
}

static wf_status read_number(classic_header *h, int bytes, uint64_t *number)
{
    unsigned char b[8];
    WF_TRY(check_rest(h, 1, bytes));
    WF_CHECK(fread(b, 1, (size_t)bytes, h->file) == (size_t)bytes, WF_ERR_IO, "%s: cannot read: %s", h->path,
             strerror(errno));
    *number = 0;
    for (int i = 0; i < bytes; i++)
        *number = *number << 8 | b[i];
    h->at += bytes;
    return WF_OK;
}

/* Skips names and values, which are padded to multiples of 4 bytes. */
static wf_status skip_padded(classic_header *h, uint64_t number, int bytes)
{
    WF_TRY(check_rest(h, number, bytes));
    const int64_t length = ((int64_t)number * bytes + 3) / 4 * 4;
    WF_TRY(check_rest(h, (uint64_t)length, 1));
    WF_CHECK(fseeko(h->file, length, SEEK_CUR) == 0, WF_ERR_IO, "%s: cannot read: %s", h->path, strerror(errno));
    h->at += length;
    return WF_OK;
}

static wf_status skip_name(classic_header *h)
{
    uint64_t length = 0;
    WF_TRY(read_number(h, h->count, &length));
    WF_CHECK(length <= MOST_NAME, WF_ERR_FORMAT, "%s: has a name of %llu bytes: should be at most %d", h->path,
             (unsigned long long)length, MOST_NAME);
    return skip_padded(h, length, 1);
}

/* Returns the number of entries of a list. An empty one has any tag, as for the library. */
static wf_status read_list(classic_header *h, uint64_t tag, uint64_t *number)
{
    uint64_t found = 0;
    WF_TRY(read_number(h, 4, &found));
    WF_TRY(read_number(h, h->count, number));
    WF_CHECK(found == tag || *number == 0, WF_ERR_FORMAT, "%s: is damaged: its header has tag %llu, should be %llu",
             h->path, (unsigned long long)found, (unsigned long long)tag);
    return WF_OK;
}

static wf_status read_type(classic_header *h, int *size)
{
    static const int sizes[] = {0, 1, 1, 2, 4, 4, 8, 1, 2, 4, 8, 8}; /* from NC_BYTE to NC_UINT64 */
    uint64_t type = 0;
    WF_TRY(read_number(h, 4, &type));
    WF_CHECK(type > 0 && type < sizeof sizes / sizeof *sizes, WF_ERR_FORMAT,
             "%s: is damaged: its header has type %llu, should be 1 to 11", h->path, (unsigned long long)type);
    *size = sizes[type];
    return WF_OK;
}

static wf_status read_dimensions(classic_header *h)
{
    WF_TRY(read_list(h, TAG_DIMENSIONS, &h->n_dims));
    /* The smallest entry has two counts. Memory is taken only for entries that the file can hold. */
    WF_TRY(check_rest(h, h->n_dims, 2 * h->count));
    h->dim = calloc(h->n_dims + 1, sizeof *h->dim);
    WF_CHECK(h->dim, WF_ERR_MEMORY, "%s: no memory for %llu dimensions", h->path, (unsigned long long)h->n_dims);
    for (uint64_t d = 0; d < h->n_dims; d++) {
        WF_TRY(skip_name(h));
        WF_TRY(read_number(h, h->count, &h->dim[d]));
    }
    return WF_OK;
}

static wf_status skip_attributes(classic_header *h)
{
    uint64_t number = 0, elements = 0;
    int size = 1;
    WF_TRY(read_list(h, TAG_ATTRIBUTES, &number));
    for (uint64_t a = 0; a < number; a++) { /* ends at the end of the file, since every entry has bytes */
        WF_TRY(skip_name(h));
        WF_TRY(read_type(h, &size));
        WF_TRY(read_number(h, h->count, &elements));
        WF_TRY(skip_padded(h, elements, size));
    }
    return WF_OK;
}

/* Returns the product of a variable's dimensions; of one of records, which has length 0 in the header, without it. */
static wf_status read_shape(classic_header *h, double *elements, bool *is_record)
{
    uint64_t rank = 0, id = 0;
    WF_TRY(read_number(h, h->count, &rank));
    WF_CHECK(rank <= MOST_DIMENSIONS, WF_ERR_FORMAT, "%s: has a variable of %llu dimensions: should be at most %d",
             h->path, (unsigned long long)rank, MOST_DIMENSIONS);
    *elements = 1;
    *is_record = false;
    for (uint64_t d = 0; d < rank; d++) {
        WF_TRY(read_number(h, h->count, &id));
        WF_CHECK(id < h->n_dims, WF_ERR_FORMAT, "%s: is damaged: a variable has dimension %llu of %llu", h->path,
                 (unsigned long long)id, (unsigned long long)h->n_dims);
        if (d == 0 && h->dim[id] == 0)
            *is_record = true;
        else
            *elements *= (double)h->dim[id];
    }
    return WF_OK;
}

/* The size in the header (vsize) is not used: it is too small for variables over 4 GiB, and the library computes its
 * own from the shape too. */
static wf_status read_variable(classic_header *h)
{
    uint64_t vsize = 0, begin = 0;
    double elements = 0;
    bool is_record = false;
    int size = 1;
    WF_TRY(skip_name(h));
    WF_TRY(read_shape(h, &elements, &is_record));
    WF_TRY(skip_attributes(h));
    WF_TRY(read_type(h, &size));
    WF_TRY(read_number(h, h->count, &vsize));
    WF_TRY(read_number(h, h->offset, &begin));
    const double bytes = elements * size, end = (double)begin + bytes;
    if (!is_record) {
        h->fixed_end = bytes > 0 ? fmax(h->fixed_end, end) : h->fixed_end;
        return WF_OK;
    }
    const double padded = 4 * ceil(bytes / 4);
    if (h->record == 0) {
        h->record_unpadded = bytes;
        h->first_padded = padded;
    }
    h->record += padded;
    h->first_record_end = fmax(h->first_record_end, end);
    return WF_OK;
}

/* Bytes after the last element are padding, which programs other than the library may leave out. Data begin where the
 * header says, since space may be reserved before them (nc__enddef). */
static wf_status check_length(const classic_header *h)
{
    /* Records of a single variable follow each other without padding. */
    const double record = h->record == h->first_padded ? h->record_unpadded : h->record;
    const double records_end =
        h->records > 0 && record > 0 ? h->first_record_end + ((double)h->records - 1) * record : 0;
    const double least = fmax(h->fixed_end, records_end);
    WF_CHECK((double)h->length >= least, WF_ERR_FORMAT, "%s: is cut off: %.0f bytes are missing: should have %.0f",
             h->path, least - (double)h->length, least);
    return WF_OK;
}

static wf_status check_open(classic_header *h)
{
    uint64_t magic = 0, variables = 0;
    if (h->length < 4) /* the library says what it is */
        return WF_OK;
    WF_TRY(read_number(h, 4, &magic));
    const uint64_t version = magic & 0xff;
    if (magic >> 8 != 0x434446 || (version != 1 && version != 2 && version != 5)) /* "CDF" */
        return WF_OK;
    h->count = version == 5 ? 8 : 4;
    h->offset = version == 1 ? 4 : 8;
    WF_TRY(read_number(h, h->count, &h->records));
    WF_TRY(read_dimensions(h));
    WF_TRY(skip_attributes(h));
    WF_TRY(read_list(h, TAG_VARIABLES, &variables));
    for (uint64_t v = 0; v < variables; v++)
        WF_TRY(read_variable(h));
    return check_length(h);
}

wf_status wf_nc_check_header(const char *path, int64_t length)
{
    classic_header h = {.path = path, .length = length, .file = fopen(path, "rb")};
    WF_CHECK(h.file, WF_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    const wf_status status = check_open(&h);
    free(h.dim);
    fclose(h.file);
    return status;
}
