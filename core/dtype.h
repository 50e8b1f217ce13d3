/* Element types. */
#ifndef WF_CORE_DTYPE_H
#define WF_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_dtype {
    WF_F32 = 0,
    WF_F64,
    WF_BF16,
    WF_F16,
    WF_I32,
    WF_I64,
    WF_U8,
    WF_DTYPES /* how many there are */
} wf_dtype;

/* Bytes of one element; 0 for a value that is no type. */
size_t wf_dtype_size(wf_dtype dtype);
/* "f32". Never NULL. */
const char *wf_dtype_name(wf_dtype dtype);
bool wf_dtype_is_float(wf_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
