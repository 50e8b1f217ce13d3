/* Shapes, boxes and the order of memory: plain geometry, values without ownership.
 *
 * A shape lists the logical dimensions in the order of the field: [N,C,H,W], [N,C,D,H,W], [F,C/g,kh,kw], [out,in].
 * An order says how a dense tensor of that shape lies in memory. A box is a half-open range per dimension.
 */
#ifndef WF_CORE_SHAPE_H
#define WF_CORE_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WF_MAX_RANK    6
#define WF_MAX_SPATIAL 3

typedef struct wf_shape {
    int rank;
    int64_t dim[WF_MAX_RANK]; /* entries from rank on are 0 */
} wf_shape;

/* WF_SHAPE(64, 3, 32, 32); a scalar is wf_shape_scalar(). */
#define WF_SHAPE(...)                                                                                                  \
    wf_shape_make((int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

/* Dimension d in an options struct, where 0 means that no dimension is named. */
#define WF_DIM(d) ((d) + 1)

/* rank is 0 to WF_MAX_RANK. Another rank gives a shape of rank -1, which every constructor rejects. */
wf_shape wf_shape_make(int rank, const int64_t *dim);
wf_shape wf_shape_scalar(void);
bool wf_shape_equal(wf_shape a, wf_shape b);
/* The number of elements: 1 for a scalar, 0 if any dimension is 0, -1 if rank or a dimension is negative or the product
 * does not fit 63 bits. */
int64_t wf_shape_count(wf_shape shape);
/* "[64,3,32,32]" into text, which is returned. */
#define WF_SHAPE_TEXT 160
const char *wf_shape_text(wf_shape shape, char text[WF_SHAPE_TEXT]);

typedef enum wf_order {
    WF_ROW_MAJOR = 0, /* the last logical dimension is innermost */
    WF_CHANNELS_LAST, /* dimension 1 is innermost: [N,C,H,W] lies in memory as N,H,W,C */
} wf_order;

/* The default order of a tensor of this rank: channels-last from rank 4 on, row-major below. */
wf_order wf_order_default(int rank);
/* Strides, in elements, of the dense tensor of this shape and order; by logical dimension. */
void wf_order_strides(wf_shape shape, wf_order order, int64_t stride[WF_MAX_RANK]);
/* The dimension that is number i from the outermost in memory, i in [0,rank). */
int wf_order_dim(wf_order order, int rank, int i);

typedef struct wf_box {
    int rank;
    int64_t lo[WF_MAX_RANK], hi[WF_MAX_RANK]; /* [lo, hi) */
} wf_box;

wf_box wf_box_of_shape(wf_shape shape); /* [0, dim) in every dimension */
wf_shape wf_box_shape(wf_box box);
bool wf_box_empty(wf_box box);
bool wf_box_equal(wf_box a, wf_box b);
/* The intersection; an empty box (lo == hi in every dimension) if there is none. */
wf_box wf_box_intersect(wf_box a, wf_box b);
bool wf_box_contains(wf_box outer, wf_box inner); /* an empty inner is contained */
/* box moved by -origin.lo: the same region in the coordinates of a tensor that holds `origin`. */
wf_box wf_box_relative(wf_box box, wf_box origin);

/* Part r of p of [0, n): the first n mod p parts have one element more. Empty where p is below 1. */
void wf_block(int64_t n, int64_t p, int64_t r, int64_t *lo, int64_t *hi);

#ifdef __cplusplus
}
#endif
#endif
