/* Tensors: handles on reference-counted storage. Local. The caller of a constructor frees the handle; storage is
 * freed with its last handle. Convolution, pooling and normalisation compute on tensors of rank 3 to 5 in channels-last
 * order, and copy an input of another order first. Otherwise a program need not know the order: host import, host
 * export and reshape use the logical order of elements. */
#ifndef WF_CORE_TENSOR_H
#define WF_CORE_TENSOR_H

#include "core/context.h"
#include "core/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_tensor wf_tensor;

/* Uninitialised, dense, in wf_order_default(rank). Any dimension may be 0. */
wf_tensor *wf_tensor_new(wf_ctx *ctx, wf_dtype dtype, wf_shape shape);
wf_tensor *wf_tensor_new_ordered(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, wf_order order);
/* Filled from `host`, which lists the elements row-major in logical order, in the tensor's type. */
wf_tensor *wf_tensor_from_host(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, const void *host);
/* Memory of the program under a tensor. */
typedef struct wf_wrap_opts {
    wf_order order;              /* of dense memory; default WF_ROW_MAJOR */
    const int64_t *stride;       /* from one index of each dimension to the next, in elements, positive; copied. NULL:
                                    dense */
    void (*release)(void *user); /* called once, when the last handle on the memory is freed; NULL: nothing is */
    void *user;                  /* its argument */
} wf_wrap_opts;
/* Returns a tensor on memory of the program, which is not copied: the tensor's elements are at `data` and on. With a
 * device it is memory of that device, and the release waits for the work that was put on the context's stream. The
 * program keeps the memory until it is released. What writes into it beside the library must not do so while a tape
 * holds values of it. WF_ERR_ARGUMENT for memory that the device cannot reach, for elements that are not aligned to
 * their size, and for strides by which two elements may share memory; `release` is then not called. */
wf_tensor *wf_tensor_wrap(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, void *data, wf_wrap_opts opts);
/* Another handle on the same elements. */
wf_tensor *wf_tensor_alias(const wf_tensor *tensor);
/* A view of the elements of `box`. It shares storage with the tensor and need not be dense. */
wf_tensor *wf_tensor_view(const wf_tensor *tensor, wf_box box);
/* A view with dimensions permuted: dimension d of the view is dimension perm[d] of the tensor. */
wf_tensor *wf_tensor_permute(const wf_tensor *tensor, const int *perm);
/* A new dense tensor with the same logical elements in another order and type (floats round to nearest even; a float
 * that an integer type cannot hold saturates). */
wf_tensor *wf_tensor_copy(const wf_tensor *tensor, wf_dtype dtype, wf_order order);
void wf_tensor_free(wf_tensor *tensor);

wf_ctx *wf_tensor_ctx(const wf_tensor *tensor);
wf_dtype wf_tensor_dtype(const wf_tensor *tensor);
wf_shape wf_tensor_shape(const wf_tensor *tensor);
wf_order wf_tensor_order(const wf_tensor *tensor);
int64_t wf_tensor_count(const wf_tensor *tensor);
size_t wf_tensor_bytes(const wf_tensor *tensor); /* of the elements: count times size */
bool wf_tensor_is_dense(const wf_tensor *tensor);
/* The address of the first element, in memory of the context's device; NULL for NULL. With a device other than the
 * host, work on it may still be under way. */
void *wf_tensor_data(const wf_tensor *tensor);
/* From one index of each dimension to the next, in elements; borrowed. NULL for NULL. */
const int64_t *wf_tensor_strides(const wf_tensor *tensor);
wf_layout wf_tensor_layout(const wf_tensor *tensor);
/* The layout's box must have the tensor's shape. */
wf_status wf_tensor_set_layout(wf_tensor *tensor, wf_layout layout) WF_NODISCARD;

/* Host copies, row-major in logical order. `bytes` is the size of the host buffer and must be wf_tensor_bytes. */
wf_status wf_tensor_import(wf_tensor *tensor, const void *host, size_t bytes) WF_NODISCARD;
wf_status wf_tensor_export(const wf_tensor *tensor, void *host, size_t bytes) WF_NODISCARD;

wf_status wf_tensor_fill(wf_tensor *tensor, double value) WF_NODISCARD;
/* Copies src to dst, logical element by element. Shapes must be equal; types and orders may differ, and contexts if
 * both are of the host's memory. */
wf_status wf_tensor_assign(wf_tensor *dst, const wf_tensor *src) WF_NODISCARD;
/* The value of a tensor of one element. NaN on failure. */
double wf_tensor_item(const wf_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
