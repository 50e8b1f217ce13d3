/* Names and sizes of the element types. */
#include "core/dtype.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} types[WF_DTYPES] = {
    [WF_F32] = {"f32", 4, true}, [WF_F64] = {"f64", 8, true},  [WF_BF16] = {"bf16", 2, true},
    [WF_F16] = {"f16", 2, true}, [WF_I32] = {"i32", 4, false}, [WF_I64] = {"i64", 8, false},
    [WF_U8] = {"u8", 1, false},
};

size_t wf_dtype_size(wf_dtype dtype)
{
    return (unsigned)dtype < WF_DTYPES ? types[dtype].size : 0;
}

const char *wf_dtype_name(wf_dtype dtype)
{
    return (unsigned)dtype < WF_DTYPES ? types[dtype].name : "no type";
}

bool wf_dtype_is_float(wf_dtype dtype)
{
    return (unsigned)dtype < WF_DTYPES && types[dtype].is_float;
}
