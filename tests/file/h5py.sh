#!/bin/sh
# h5py reads a model file, and writes one that Weft loads: tests/file/h5py.sh MPIEXEC MODEL_FILES
set -eu
needs=h5py
. "$(dirname "$0")/python.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" -np 2 "$2" --save "$folder/weft.h5"
"$found" - "$folder" <<'END'
import math, sys
import h5py, numpy

# Names, types and shapes as chainer.serializers.save_hdf5 has them.
shapes = {"stem/conv1/W": (9, 3, 3, 3), "stem/conv1/b": (9,), "stem/bn/gamma": (9,), "stem/bn/beta": (9,),
          "stem/bn/avg_mean": (9,), "stem/bn/avg_var": (9,), "up/W": (9, 6, 2, 2), "up/b": (6,), "fc/W": (10, 6),
          "fc/b": (10,)}
def value(p, shape):
    i = numpy.arange(numpy.prod(shape), dtype=numpy.float64)
    x = numpy.array([math.sin((k + 1) * 0.37 + p) * (-0.0 if k % 7 == 3 else 1.0) for k in i])
    return x.astype(numpy.float32).reshape(shape)

with h5py.File(sys.argv[1] + "/weft.h5", "r") as f:
    names = []
    f.visititems(lambda name, o: names.append(name) if isinstance(o, h5py.Dataset) else None)
    assert sorted(names) == sorted(list(shapes) + ["stem/bn/N"]), names
    assert f["stem/bn/N"].dtype == numpy.int64 and f["stem/bn/N"].shape == (), f["stem/bn/N"]
    for p, (name, shape) in enumerate(shapes.items()):
        assert f[name].dtype == numpy.float32 and f[name].shape == shape, (name, f[name])
        assert numpy.array_equal(f[name][()], value(p, shape)), name
with h5py.File(sys.argv[1] + "/h5py.h5", "w") as f:
    for p, (name, shape) in enumerate(shapes.items()):
        data = value(p, shape)
        f.create_dataset(name, data=data, compression=4 if data.size > 1 else None)
    f.create_dataset("stem/bn/N", data=0)
    f.create_dataset("None", data=h5py.Empty("f"))
END
"$1" -np 2 "$2" --load "$folder/h5py.h5"
