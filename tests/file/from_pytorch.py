"""State dictionaries of torchvision's shapes, an eighth as wide: from_pytorch.py make|check FOLDER [torch]

make writes FOLDER/vgg.npz and resnet.npz (.pt with "torch"), and images; check compares what came back with them, and
the scores with PyTorch's."""
import sys

import h5py
import numpy

VGG = [8, 8, "M", 16, 16, "M", 32, 32, 32, "M", 64, 64, 64, "M", 64, 64, 64, "M"]
SIDE = {"vgg": 224, "resnet": 64}


def vgg_shapes():
    shapes, channels, at = {}, 3, 0
    for width in VGG:
        if width != "M":
            shapes[f"features.{at}.weight"] = (width, channels, 3, 3)
            shapes[f"features.{at}.bias"] = (width,)
            channels, at = width, at + 1
        at += 1
    for at, (out, n) in zip((0, 3, 6), ((64, 64 * 49), (64, 64), (10, 64))):
        shapes[f"classifier.{at}.weight"] = (out, n)
        shapes[f"classifier.{at}.bias"] = (out,)
    return shapes


def norm_shapes(name, channels):
    each = {f"{name}.{leaf}": (channels,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    return {**each, f"{name}.num_batches_tracked": ()}


def resnet_shapes():
    shapes = {"conv1.weight": (8, 3, 7, 7), **norm_shapes("bn1", 8)}
    channels = 8
    for stage in range(4):
        for b in range(2):
            block, out = f"layer{stage + 1}.{b}", 8 << stage
            for c, n in ((1, channels), (2, out)):
                shapes[f"{block}.conv{c}.weight"] = (out, n, 3, 3)
                shapes.update(norm_shapes(f"{block}.bn{c}", out))
            if channels != out:
                shapes[f"{block}.downsample.0.weight"] = (out, channels, 1, 1)
                shapes.update(norm_shapes(f"{block}.downsample.1", out))
            channels = out
    return {**shapes, "fc.weight": (10, 64), "fc.bias": (10,)}


def state(shapes, seed):
    rng = numpy.random.default_rng(seed)
    made = {}
    for name, shape in shapes.items():
        if name.endswith("num_batches_tracked"):
            made[name] = numpy.array(1000 + len(made), numpy.int64)
        elif len(shape) > 1:
            made[name] = rng.normal(0, (2 / numpy.prod(shape[1:])) ** 0.5, shape).astype(numpy.float32)
        else:
            low = 0.5 if name.endswith(("weight", "var")) else -0.5
            made[name] = rng.uniform(low, low + 1, shape).astype(numpy.float32)
    return made


def torch_scores(name, arrays, x):
    import torch
    import torch.nn.functional as F
    p = {key: torch.from_numpy(value) for key, value in arrays.items()}

    def vgg(x):
        at = 0
        for width in VGG:
            x = F.max_pool2d(x, 2) if width == "M" else F.relu(
                F.conv2d(x, p[f"features.{at}.weight"], p[f"features.{at}.bias"], padding=1))
            at += 1 if width == "M" else 2
        x = F.adaptive_avg_pool2d(x, 7).flatten(1)
        for at in (0, 3, 6):
            x = F.linear(x, p[f"classifier.{at}.weight"], p[f"classifier.{at}.bias"])
            x = F.relu(x) if at < 6 else x
        return x

    def bn(name, x):
        return F.batch_norm(x, p[f"{name}.running_mean"], p[f"{name}.running_var"], p[f"{name}.weight"],
                            p[f"{name}.bias"])

    def block(name, x, stride):
        y = F.relu(bn(f"{name}.bn1", F.conv2d(x, p[f"{name}.conv1.weight"], stride=stride, padding=1)))
        y = bn(f"{name}.bn2", F.conv2d(y, p[f"{name}.conv2.weight"], padding=1))
        if f"{name}.downsample.0.weight" in p:
            x = bn(f"{name}.downsample.1", F.conv2d(x, p[f"{name}.downsample.0.weight"], stride=stride))
        return F.relu(y + x)

    def resnet(x):
        x = F.relu(bn("bn1", F.conv2d(x, p["conv1.weight"], stride=2, padding=3)))
        x = F.max_pool2d(x, 3, 2, 1)
        for stage in range(4):
            for b in range(2):
                x = block(f"layer{stage + 1}.{b}", x, 2 if stage > 0 and b == 0 else 1)
        return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), p["fc.weight"], p["fc.bias"])

    with torch.no_grad():
        return (vgg if name == "vgg" else resnet)(torch.from_numpy(x)).numpy()


# LayerNorm over one and two dimensions, RMSNorm, GroupNorm, an affine InstanceNorm, and what is no normalisation.
NORMS = {"tokens.weight": (12,), "tokens.bias": (12,), "planes.weight": (3, 4), "planes.bias": (3, 4),
         "rms.weight": (12,), "groups.weight": (8,), "groups.bias": (8,), "instances.weight": (8,),
         "instances.bias": (8,), "fc.weight": (3, 4), "fc.bias": (3,), "plain.weight": (3, 4),
         "rnn.weight_ih_l0": (8, 3), "rnn.weight_hh_l0": (8, 2), "rnn.bias_ih_l0": (8,), "rnn.bias_hh_l0": (8,),
         "rnn.weight_ih_l0_reverse": (8, 3)}


def check_norms(folder, arrays):
    """Their parameters are gamma and beta in a model file, those of an LSTM keep their names; all come back."""
    with h5py.File(f"{folder}/norms.h5", "r") as file:
        for key, x in arrays.items():
            module, leaf = key.split(".")
            names = ("W", "b") if module in ("fc", "plain") else ("gamma", "beta")
            name = leaf if module == "rnn" else names[leaf == "bias"]
            assert numpy.array_equal(file[f"{module}/{name}"][()], x), (key, list(file[module]))
    back = dict(numpy.load(f"{folder}/norms-back.npz"))
    assert sorted(back) == sorted(arrays), set(back) ^ set(arrays)


# Some of what a model file has, and the module's array that it is.
PLACES = {"vgg": {"features/0/W": "features.0.weight", "features/28/b": "features.28.bias",
                  "classifier/0/W": "classifier.0.weight", "classifier/6/b": "classifier.6.bias"},
          "resnet": {"0/0/W": "conv1.weight", "0/1/gamma": "bn1.weight", "0/1/beta": "bn1.bias",
                     "0/1/avg_mean": "bn1.running_mean", "0/1/avg_var": "bn1.running_var",
                     "0/1/N": "bn1.num_batches_tracked", "4/round/0/W": "layer2.0.downsample.0.weight",
                     "11/W": "fc.weight"}}


def check_file(path, name, arrays):
    with h5py.File(path, "r") as file:
        for place, key in PLACES[name].items():
            assert numpy.array_equal(file[place][()], arrays[key]), (path, place)
            assert file[place].dtype == arrays[key].dtype and not file[place].attrs, (path, place)


def images(name):
    side = SIDE[name]
    return numpy.random.default_rng(7).normal(0, 1, (2, 3, side, side)).astype(numpy.float32)


def check(folder, name, arrays, with_torch):
    check_file(f"{folder}/{name}.h5", name, arrays)
    check_file(f"{folder}/{name}-saved.h5", name, arrays)
    if with_torch:
        import torch
        back = {key: x.numpy() for key, x in torch.load(f"{folder}/{name}-back.pt", weights_only=True).items()}
    else:
        back = dict(numpy.load(f"{folder}/{name}-back.npz"))
    assert sorted(back) == sorted(arrays), set(back) ^ set(arrays)
    for key, x in arrays.items():
        assert back[key].dtype == x.dtype and back[key].shape == x.shape, (key, back[key].dtype, back[key].shape)
        assert numpy.array_equal(back[key], x), key
    if with_torch:
        expected = torch_scores(name, arrays, images(name))
        seen = numpy.fromfile(f"{folder}/{name}.scores", numpy.float32).reshape(expected.shape)
        off = numpy.abs(seen - expected).max() / numpy.abs(expected).max()
        print(f"{name}: scores up to {numpy.abs(expected).max():.3g} differ by {off:.2g} of it")
        assert off <= 1e-5, off


def main():
    what, folder, with_torch = sys.argv[1], sys.argv[2], "torch" in sys.argv[3:]
    norms = state(NORMS, 7)
    if what == "check":
        check_norms(folder, norms)
    else:
        numpy.savez(f"{folder}/norms.npz", **norms)
    for seed, (name, shapes) in enumerate((("vgg", vgg_shapes()), ("resnet", resnet_shapes()))):
        arrays = state(shapes, seed)
        if what == "check":
            check(folder, name, arrays, with_torch)
            continue
        images(name).tofile(f"{folder}/{name}.images")
        if with_torch:
            import torch
            torch.save({key: torch.from_numpy(numpy.array(x)) for key, x in arrays.items()}, f"{folder}/{name}.pt")
        else:
            numpy.savez(f"{folder}/{name}.npz", **arrays)


main()
