/* Arrays in device memory, as the slots of the kernel table take them. */
#ifndef WF_CORE_ARRAY_AUTHOR_H
#define WF_CORE_ARRAY_AUTHOR_H

#include "core/dtype.h"
#include "core/shape.h"

#include <stddef.h>

/* A filling's own copy of a parameter (a blocked filter, a bf16 copy), valid while `version` is the array's version.
 * The form itself comes from wf_malloc, its data from the pool; wf_packed_free frees both. */
typedef struct wf_packed_form {
    struct wf_packed_form *next;
    uint64_t key; /* chosen by the filling: identifies the form */
    uint64_t version;
    size_t bytes;
    void *data; /* from the context's pool */
} wf_packed_form;

/* A dense array in device memory. */
typedef struct wf_array {
    void *data; /* NULL where the count is 0 */
    wf_dtype dtype;
    wf_order order;
    wf_shape shape;
    uint64_t version;       /* of the contents; only meaningful with forms */
    wf_packed_form **forms; /* where a filling may keep packed copies; NULL: nowhere */
} wf_array;

/* A strided array, for `copy`. dim and stride are in any order, strides in elements; those of what is read may be 0 or
 * negative: an element that is repeated, or a dimension that is read backwards from `data` on. */
typedef struct wf_strided {
    void *data;
    wf_dtype dtype;
    int rank;
    int64_t dim[WF_MAX_RANK], stride[WF_MAX_RANK];
} wf_strided;

int64_t wf_array_count(const wf_array *a);
/* Samples N, channels C and pixels (product of dimensions 2 and up) of a rank 2 to 5 array; any pointer may be NULL. */
void wf_array_ncp(const wf_array *a, int64_t *n, int64_t *c, int64_t *pixels);
/* The strided view of a dense array, dimensions in logical order. */
wf_strided wf_array_strided(const wf_array *a);

#endif
