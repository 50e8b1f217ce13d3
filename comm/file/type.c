/* Element types in HDF5's words. Called by the other files of this folder with the lock held. */
#include "comm/file/file_impl.h"

/* A float of `size` bytes: the exponent has `exponent` bits, the mantissa the rest but for the sign. Fields are set
 * before the size, or HDF5 would find them outside the type. */
static hid_t small_float(size_t size, size_t exponent)
{
    const size_t bits = 8 * size, mantissa = bits - 1 - exponent;
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (type >= 0 && H5Tset_fields(type, bits - 1, mantissa, exponent, 0, mantissa) >= 0 &&
        H5Tset_size(type, size) >= 0 && H5Tset_ebias(type, ((size_t)1 << (exponent - 1)) - 1) >= 0)
        return type;
    H5Tclose(type);
    return -1;
}

/* A new type, which the caller closes; -1 for one that HDF5 has no words for. */
hid_t wf_h5_type(wf_dtype dtype)
{
    switch (dtype) {
    case WF_F32:
        return H5Tcopy(H5T_NATIVE_FLOAT);
    case WF_F64:
        return H5Tcopy(H5T_NATIVE_DOUBLE);
    case WF_BF16:
        return small_float(2, 8);
    case WF_F16:
        return small_float(2, 5);
    case WF_I32:
        return H5Tcopy(H5T_NATIVE_INT32);
    case WF_I64:
        return H5Tcopy(H5T_NATIVE_INT64);
    case WF_U8:
        return H5Tcopy(H5T_NATIVE_UINT8);
    default:
        return -1;
    }
}

/* The two types of 16 bits differ in the exponent's width alone. */
static wf_dtype float_type(hid_t type, size_t size)
{
    size_t sign, exponent_at, exponent = 0, mantissa_at, mantissa;
    if (size == 4 || size == 8)
        return size == 4 ? WF_F32 : WF_F64;
    if (size != 2 || H5Tget_fields(type, &sign, &exponent_at, &exponent, &mantissa_at, &mantissa) < 0)
        return WF_DTYPES;
    return exponent == 5 ? WF_F16 : exponent == 8 ? WF_BF16 : WF_DTYPES;
}

/* An integer that none of ours is goes by the next larger one. */
static wf_dtype integer_type(hid_t type, size_t size)
{
    const bool has_sign = H5Tget_sign(type) != H5T_SGN_NONE;
    if (size == 1 && !has_sign)
        return WF_U8;
    if (size < 4 || (size == 4 && has_sign))
        return WF_I32;
    return size <= 8 ? WF_I64 : WF_DTYPES;
}

/* Booleans of h5py: an enumeration of two names. */
static wf_dtype enum_type(hid_t type, size_t size)
{
    return size == 1 && H5Tget_nmembers(type) == 2 ? WF_U8 : WF_DTYPES;
}

/* WF_DTYPES for what no type of ours can hold. */
wf_dtype wf_h5_dtype(hid_t type)
{
    const size_t size = H5Tget_size(type);
    switch (H5Tget_class(type)) {
    /* Bytes of other order are converted by the library when it reads, so only class and size count. */
    case H5T_FLOAT:
        return float_type(type, size);
    case H5T_INTEGER:
        return integer_type(type, size);
    case H5T_ENUM:
        return enum_type(type, size);
    default:
        return WF_DTYPES;
    }
}
