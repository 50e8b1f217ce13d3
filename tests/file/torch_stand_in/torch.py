"""What tools/from_pytorch.py calls of PyTorch, for machines without it: tensors around NumPy's arrays, in files of pickle.
load refuses what is no tensor, container or number as torch.load with weights_only does, by an error of several lines."""
import pickle

import numpy

bfloat16 = "bfloat16"


class Tensor:
    def __init__(self, array):
        self.array = array
        self.dtype = array.dtype

    def detach(self):
        return self

    def contiguous(self):
        return self

    def numpy(self):
        return self.array


def from_numpy(array):
    return Tensor(array)


def save(saved, path):
    with open(path, "wb") as file:
        pickle.dump(saved, file)


class Weights(pickle.Unpickler):
    def find_class(self, module, name):
        if module.split(".")[0] not in ("torch", "numpy", "collections", "_codecs"):
            raise pickle.UnpicklingError(f"Weights only load failed.\n\n\tUnsupported global: GLOBAL {module}.{name}")
        return super().find_class(module, name)


def load(path, map_location, weights_only):
    assert map_location == "cpu" and weights_only
    with open(path, "rb") as file:
        return Weights(file).load()
