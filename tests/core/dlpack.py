"""Tensors that NumPy, and PyTorch where it is, share with the library: tests/core/dlpack.py LIBRARY.

Addresses and numbers are equal on both sides, in both directions, and a tensor lives as long as the last of its holders."""
import ctypes
import sys

import numpy

try:
    import torch
except ImportError:
    torch = None

library = ctypes.CDLL(sys.argv[1])
pointer = ctypes.c_void_p


class Shape(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int), ("dim", ctypes.c_int64 * 6)]


for name, result, arguments in [
    ("dlpack_ctx", pointer, []),
    ("dlpack_error", ctypes.c_char_p, []),
    ("wf_tensor_new", pointer, [pointer, ctypes.c_int, Shape]),
    ("wf_tensor_free", None, [pointer]),
    ("wf_tensor_fill", ctypes.c_int, [pointer, ctypes.c_double]),
    ("wf_tensor_item", ctypes.c_double, [pointer]),
    ("wf_tensor_data", pointer, [pointer]),
    ("wf_tensor_to_dlpack", pointer, [pointer]),
    ("wf_tensor_from_dlpack", pointer, [pointer, pointer]),
    ("wf_ctx_free", ctypes.c_int, [pointer]),
]:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments

capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = pointer, [ctypes.py_object, ctypes.c_char_p]
capsule_rename = ctypes.pythonapi.PyCapsule_SetName
capsule_rename.restype, capsule_rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor"  # kept: a capsule does not copy its name


class Exported:
    """What numpy.from_dlpack and torch.from_dlpack take."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, stream=None):
        return capsule_new(library.wf_tensor_to_dlpack(self.tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return 1, 0


def take(ctx, array):
    """A tensor on the memory of an array."""
    capsule = array.__dlpack__()
    tensor = library.wf_tensor_from_dlpack(ctx, capsule_pointer(capsule, b"dltensor"))
    assert tensor, library.dlpack_error()
    capsule_rename(capsule, USED)
    return tensor


def out(ctx, from_dlpack, address):
    tensor = library.wf_tensor_new(ctx, 0, Shape(2, (ctypes.c_int64 * 6)(2, 3)))
    assert library.wf_tensor_fill(tensor, 5.0) == 0
    array = from_dlpack(Exported(tensor))
    assert address(array) == library.wf_tensor_data(tensor), "another address"
    assert tuple(array.shape) == (2, 3) and float(array[1, 2]) == 5.0, array
    assert library.wf_tensor_fill(tensor, 6.0) == 0
    assert float(array[0, 0]) == 6.0, "a copy"
    library.wf_tensor_free(tensor)
    assert float(array.sum()) == 36.0, "the memory went with the tensor"


def back(ctx, array, address):
    array[...] = 8.0
    tensor = take(ctx, array)
    assert library.wf_tensor_data(tensor) == address(array), "another address"
    assert library.wf_tensor_fill(tensor, 9.0) == 0
    assert float(array[0]) == 9.0, "a copy"
    return tensor


ctx = library.dlpack_ctx()
assert ctx, library.dlpack_error()
kinds = [("NumPy", numpy.from_dlpack, lambda a: a.ctypes.data, lambda: numpy.zeros(1, numpy.float32))]
if torch:
    kinds.append(("PyTorch", torch.from_dlpack, lambda a: a.data_ptr(), lambda: torch.zeros(1)))
for name, from_dlpack, address, new in kinds:
    out(ctx, from_dlpack, address)
    array = new()
    tensor = back(ctx, array, address)
    del array  # the tensor holds its memory now
    assert library.wf_tensor_item(tensor) == 9.0
    library.wf_tensor_free(tensor)
    print(name, "shares")
assert library.wf_ctx_free(ctx) == 0, library.dlpack_error()
