#!/usr/bin/env python3
"""Chainer itself loads a model file that Weft wrote, and Weft loads one of Chainer's; scores are equal:
chainer_files.py CHAINER_FILES, which is the program of chainer_files.c.

Needs Chainer 7.8 (PYTHONPATH may name its source) with a NumPy below 1.24 and h5py. Both programs compute the same network:
two convolutions, one of them transposed, a batch normalisation with its running values, and two linear layers.
"""
import pathlib
import subprocess
import sys
import tempfile

try:
    import chainer
    import chainer.functions as F
    import chainer.links as L
    import h5py
    import numpy as np
except Exception as reason:
    print(f"SKIP: no Chainer ({str(reason).splitlines()[0] if str(reason) else type(reason).__name__}); it needs NumPy below 1.24 and h5py")
    sys.exit(77)

SAMPLES = 5


class Stem(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(3, 8, 3, pad=1)
            self.bn = L.BatchNormalization(8)

    def forward(self, x):
        return F.relu(self.bn(self.conv1(x)))


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = Stem()
            self.up = L.Deconvolution2D(8, 6, 2, stride=2)
            self.fc1 = L.Linear(6 * 16 * 16, 20)
            self.fc2 = L.Linear(20, 10)

    def forward(self, x):
        h = F.relu(self.up(self.stem(x)))
        return self.fc2(F.tanh(self.fc1(h)))


def scores(net, x):
    with chainer.using_config("train", False), chainer.using_config("use_ideep", "never"):
        return net(x).array


def compare(what, seen, should):
    off = np.abs(seen - should).max() / np.abs(should).max()
    print(f"  {what}: scores differ by {off:.2g} of the largest")
    assert should.std() > 0.01, "the scores are all equal"
    assert off < 1e-5, what


def main():
    program = sys.argv[1]
    folder = pathlib.Path(tempfile.mkdtemp())
    x = np.random.RandomState(1).rand(SAMPLES, 3, 8, 8).astype(np.float32)
    x.tofile(folder / "images")
    subprocess.run([program, "save", folder], check=True)
    net = Net()
    chainer.serializers.load_hdf5(str(folder / "weft.h5"), net)
    compare("Chainer with Weft's file", scores(net, x), np.fromfile(folder / "weft.scores", np.float32).reshape(SAMPLES, 10))

    optimizer = chainer.optimizers.SGD(0.05).setup(net)
    labels = np.arange(SAMPLES, dtype=np.int32)
    for _ in range(3):  # running values and parameters that Weft has not seen
        optimizer.update(lambda: F.softmax_cross_entropy(net(x), labels))
    chainer.serializers.save_hdf5(str(folder / "chainer.h5"), net)
    subprocess.run([program, "load", folder], check=True)
    compare("Weft with Chainer's file", np.fromfile(folder / "loaded.scores", np.float32).reshape(SAMPLES, 10), scores(net, x))
    with h5py.File(folder / "chainer.h5", "r") as ours, h5py.File(folder / "resaved.h5", "r") as theirs:
        names = []
        ours.visititems(lambda name, o: names.append(name) if isinstance(o, h5py.Dataset) else None)
        for name in names:
            assert np.array_equal(ours[name][()], theirs[name][()]), f"{name} came back changed"
    again = Net()
    chainer.serializers.load_hdf5(str(folder / "resaved.h5"), again)
    assert np.array_equal(scores(again, x), scores(net, x)), "what Weft saved again gives other scores"
    print(f"  Chainer {chainer.__version__}, NumPy {np.__version__}: {len(names)} data sets came back bit for bit")
    subprocess.run(["rm", "-rf", folder], check=True)


main()
