#!/usr/bin/python3
"""Turns a state_dict of PyTorch into a model file that wf_load reads, and back.

    from_pytorch.py [--names TABLE] net.pt net.h5      to HDF5
    from_pytorch.py [--names TABLE] net.h5 net.pt      back
    from_pytorch.py --list net.pt                      its modules, as lines for a table
    from_pytorch.py --whole module.pt net.h5           of a whole module, with what its convolutions pad with
    from_pytorch.py --padding conv1=circular net.pt net.h5
    from_pytorch.py --model torchvision.resnet resnet50.pth net.h5     for a model of examples/models

The endings tell which is which: .h5 is a model file (one group for each layer, Chainer's layout), .pt and .pth are what
torch.save wrote, .npz is a state_dict of NumPy arrays, for machines without PyTorch. Of a training checkpoint the
state_dict is taken that lies under "state_dict", "model" or "model_state_dict"; where all names begin with "module.",
as DistributedDataParallel makes them, they lose it. Both are told.

A table has one line for each module, "MODULE LAYER": "layer1.0.conv1 1/0/path/0". A LAYER "-" leaves the module out, "."
is the model itself, and # begins a comment. A convolution's padding_mode may follow as a third word. Without a table, dots become slashes: features.0 is the layer features/0. A
module or a layer that the table lacks is an error that names it.

Parameters are W and b in convolutions (transposed ones too) and in linear layers, and gamma, beta, avg_mean, avg_var and
N in normalisations (batch, layer, RMS, group, instance), which are known by their running statistics, by a weight of one
dimension, or by a bias of as many dimensions as the weight. Those of an LSTM or GRU keep their names. Shapes and elements stay as they are. bfloat16 becomes
float32, which HDF5 has. Give wf_batchnorm PyTorch's eps, 1e-5, and a convolution's padding_mode to wf_conv_opts.boundary
(WF_EDGE_CIRCULAR, WF_EDGE_REFLECT, WF_EDGE_REPLICATE).

--model LIBRARY.FAMILY, in place of a table, knows the names of torchvision and timm for the models of examples/models:
resnet (18 to 152), convnext (tiny to large) and vit (of both libraries), swin (of torchvision), in both directions. Linear layers over channels
become convolutions of 1x1, and the joined weights of queries, keys and values become three layers.

A state_dict does not hold padding_mode. It becomes an attribute of the filter in the model file, which wf_load compares
with the layer's boundary, where it is known: of a whole module (torch.save(net), read by --whole; that runs code that the
file names, so take files from people whom you trust), by the third word of a table's line, or by --padding MODULE=MODE,
which may be there several times, and of which * stands for all convolutions. On the way back it is told.
"""
import argparse
import math
import os
import pickle
import re
import sys
import zipfile
import zlib

import h5py
import numpy

PLAIN = {"weight": "W", "bias": "b"}
NORM = {"weight": "gamma", "bias": "beta", "running_mean": "avg_mean", "running_var": "avg_var",
        "num_batches_tracked": "N"}

# LSTM and GRU, whose parameters have the same names here.
RECURRENT = re.compile(r"(weight|bias)_(ih|hh)_l[0-9]+(_reverse)?")

# The keys under which training checkpoints have the state_dict.
WRAPPERS = ("state_dict", "model", "model_state_dict")
PARALLEL = "module."
MODES = ("zeros", "reflect", "replicate", "circular")
MODE = "padding_mode" # the attribute's name in model files


def fail(message):
    """The first line of the message, for PyTorch's have many."""
    sys.exit(f"from_pytorch: {str(message).splitlines()[0]}")


def tell(message):
    print(f"from_pytorch: {message}", file=sys.stderr)


def is_torch(path):
    return path.endswith((".pt", ".pth"))


def read_npz(path):
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            fail(f"{path}: should be what numpy.savez wrote; it is empty, cut or something else")
        file.seek(0)
        with numpy.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}


def is_module(saved):
    return hasattr(saved, "state_dict") and hasattr(saved, "named_modules")


def unwrap(path, saved):
    """The state_dict in what torch.save wrote, or the module."""
    if is_module(saved):
        return saved
    if not isinstance(saved, dict):
        fail(f"{path}: should be a state_dict; it is a {type(saved).__name__}")
    for key in WRAPPERS:
        if isinstance(saved.get(key), dict) or is_module(saved.get(key)):
            others = ", ".join(str(other) for other in saved if other != key)
            tell(f'{path}: takes the state_dict under "{key}"' + (f" and leaves out {others}" if others else ""))
            return saved[key]
    return saved


def read_torch(path, whole):
    """The arrays, and the padding modes of what has one."""
    import torch
    try:
        saved = torch.load(path, map_location="cpu", weights_only=not whole)
    except pickle.UnpicklingError:
        fail(f"{path}: should be a state_dict; it has other objects, as a whole module has: save its state_dict(), or "
             "give --whole, which runs code that the file names")
    except (AttributeError, ModuleNotFoundError) as error:
        fail(f"{path}: the classes of a whole module must be found where they were: {error}")
    except (EOFError, RuntimeError) as error:
        fail(f"{path}: should be what torch.save wrote; it is empty, cut or something else: {error}")
    state, modes = unwrap(path, saved), {}
    if is_module(state):
        modes = {name: module.padding_mode for name, module in state.named_modules()
                 if isinstance(getattr(module, MODE, None), str)}
        state = state.state_dict()
    for name, x in state.items():
        if not isinstance(name, str):
            fail(f"{path}: should have names of tensors; there is {name!r}")
        if not isinstance(x, torch.Tensor):
            fail(f"{path}: {name} should be a tensor; it is a {type(x).__name__}")
    arrays = {name: to_numpy(path, name, x.float() if x.dtype == torch.bfloat16 else x) for name, x in state.items()}
    return arrays, modes


def to_numpy(path, name, x):
    """NumPy has no sparse tensors, and none of eight bits."""
    try:
        return x.detach().contiguous().numpy()
    except (TypeError, RuntimeError) as error:
        fail(f"{path}: {name}: {error}")


def read_state(path, whole=False):
    state, modes = read_torch(path, whole) if is_torch(path) else (read_npz(path), {})
    if not state or not all(name.startswith(PARALLEL) for name in state):
        return state, modes
    tell(f'{path}: takes "{PARALLEL}" off all names')
    return tuple({name.removeprefix(PARALLEL): x for name, x in items.items()} for items in (state, modes))


# --- Models by name: the table, and {tensor of PyTorch: Part} of tensors that are not called, or not shaped, as usual.

class Part:
    """The places of a tensor in the model file, along whose first dimension it is cut, and its shapes there and here."""

    def __init__(self, *places, there=lambda shape: shape, here=lambda shape: shape):
        self.places, self.there, self.here = places, there, here

    def cut(self, x):
        return {place: part.reshape(self.there(part.shape))
                for place, part in zip(self.places, numpy.split(x, len(self.places)))}

    def join(self, parts):
        x = numpy.concatenate(parts)
        return x.reshape(self.here(x.shape))


class Places(Part):
    """Torchvision's index of the table of relative positions, which follows from the table's length."""

    def __init__(self, table):
        super().__init__(table)

    def cut(self, x):
        return {}

    def join(self, parts):
        side = (math.isqrt(len(parts[0])) + 1) // 2
        rows, columns = (x.ravel() for x in numpy.indices((side, side)))
        down, right = (x[:, None] - x + side - 1 for x in (rows, columns))
        return (down * (2 * side - 1) + right).ravel()


def as_pixels(place):
    """A linear layer over channels, which is a convolution of 1x1 here."""
    return Part(place, there=lambda shape: (*shape[:2], 1, 1), here=lambda shape: shape[:2])


def resnet_names(library, names):
    deep = any(".conv3." in name or "/path/4/" in name for name in names)
    table = {"conv1": "0/0", "bn1": "0/1", "fc": "6"}
    for stage in range(1, 5):
        for block in range(36):
            module, layer = f"layer{stage}.{block}", f"{stage}/{block}"
            last = 3 if deep else 2
            for i in range(1, last + 1):
                table[f"{module}.conv{i}"] = f"{layer}/path/{2 * i - 2}"
                table[f"{module}.bn{i}"] = f"{layer}/norm" if i == last else f"{layer}/path/{2 * i - 1}"
            for i in range(2):
                table[f"{module}.downsample.{i}"] = f"{layer}/round/{i}"
    return table, {}


def convnext_names(library, names):
    ours = library == "torchvision"
    ends, leaves, scale = CONVNEXT[library]
    table, parts = dict(zip(ends, ("0/0", "0/1", "norm", "head"))), {}
    for stage in range(4):
        for i in range(2 if stage else 0):
            table[f"features.{2 * stage}.{i}" if ours else f"stages.{stage}.downsample.{i}"] = f"down{stage}/{i}"
        for block in range(36):
            module = f"features.{2 * stage + 1}.{block}" if ours else f"stages.{stage}.blocks.{block}"
            path = f"stage{stage}/{block}/path"
            table.update({f"{module}.{leaf}": f"{path}/{i}" for leaf, i in zip(leaves, (0, 1, 2, 4))})
            for leaf, i in zip(leaves[2:], (2, 4)):
                parts[f"{module}.{leaf}.weight"] = as_pixels(f"{path}/{i}/W")
            parts[f"{module}.{scale}"] = Part(f"{path}/5/gamma", there=lambda shape: shape[:1],
                                              here=lambda shape: (*shape, 1, 1) if ours else shape)
    return table, parts


def vit_names(library, names):
    ends, token, places, block_name, joined, leaves = VIT[library]
    table = dict(zip(ends, ("0", "norm", "head")))
    parts = {token: Part("2/W", there=lambda shape: shape[-1:], here=lambda shape: (1, 1, *shape)),
             places: Part("3/W", there=lambda shape: shape[1:], here=lambda shape: (1, *shape))}
    for block in range(64):
        module, layer = f"{block_name}{block}", f"block{block}"
        for place, those in leaves.items():
            table.update({f"{module}.{leaf}": f"{layer}/{place}" for leaf in those})
        for leaf, name in PLAIN.items():
            parts[f"{module}.{joined}{leaf}"] = Part(
                *(f"{layer}/attention/{which}/{name}" for which in ("query", "key", "value")))
    return table, parts


def swin_names(library, names):
    table, parts = {"features.0.0": "0/0", "features.0.2": "0/1", "norm": "norm", "head": "head"}, {}
    for stage in range(4):
        if stage:
            table[f"features.{2 * stage}.norm"] = f"down{stage}/1/1"
            parts[f"features.{2 * stage}.reduction.weight"] = as_pixels(f"down{stage}/1/2/W")
        for block in range(36):
            module, layer = f"features.{2 * stage + 1}.{block}", f"stage{stage}/{block}"
            attention = f"{layer}/attention/1"
            table.update({f"{module}.norm1": f"{layer}/attention/0", f"{module}.attn.proj": f"{attention}/out",
                          f"{module}.norm2": f"{layer}/mlp/0", f"{module}.mlp.0": f"{layer}/mlp/1",
                          f"{module}.mlp.3": f"{layer}/mlp/3"})
            for leaf in (0, 3):
                parts[f"{module}.mlp.{leaf}.weight"] = as_pixels(f"{layer}/mlp/{1 if leaf == 0 else 3}/W")
            for leaf, name in PLAIN.items():
                parts[f"{module}.attn.qkv.{leaf}"] = Part(
                    *(f"{attention}/{which}/{name}" for which in ("query", "key", "value")))
            parts[f"{module}.attn.relative_position_index"] = Places(f"{attention}/relative")
            parts[f"{module}.attn.relative_position_bias_table"] = Part(f"{attention}/relative")
    return table, parts


# Names that differ between the libraries. If a module has two, the last one is used on the way back.
CONVNEXT = {
    "torchvision": (("features.0.0", "features.0.1", "classifier.0", "classifier.2"),
                    ("block.0", "block.2", "block.3", "block.5"), "layer_scale"),
    "timm": (("stem.0", "stem.1", "head.norm", "head.fc"), ("conv_dw", "norm", "mlp.fc1", "mlp.fc2"), "gamma")}
VIT = {
    "torchvision": (("conv_proj", "encoder.ln", "heads.head"), "class_token", "encoder.pos_embedding",
                    "encoder.layers.encoder_layer_", "self_attention.in_proj_",
                    {"norm1": ["ln_1"], "norm2": ["ln_2"], "attention/out": ["self_attention.out_proj"],
                     "up": ["mlp.linear_1", "mlp.0"], "down": ["mlp.linear_2", "mlp.3"]}),
    "timm": (("patch_embed.proj", "norm", "head"), "cls_token", "pos_embed", "blocks.", "attn.qkv.",
             {"norm1": ["norm1"], "norm2": ["norm2"], "attention/out": ["attn.proj"], "up": ["mlp.fc1"],
              "down": ["mlp.fc2"]})}
FAMILIES = {"resnet": resnet_names, "convnext": convnext_names, "vit": vit_names, "swin": swin_names}
LIBRARIES = ("torchvision", "timm")
MODELS = [f"{a}.{b}" for a in LIBRARIES for b in FAMILIES if (a, b) != ("timm", "swin")]


def model_names(model, arrays, back):
    """The table of a model, of what is in the file alone; and its parts."""
    library, _, family = model.partition(".")
    if model not in MODELS:
        fail(f"--model {model}: should be one of " + ", ".join(MODELS))
    table, parts = FAMILIES[family](library, arrays)
    there = modules_of(arrays, "/" if back else ".")
    return {module: layer for module, layer in table.items() if (layer if back else module) in there}, parts


def cut_parts(state, parts):
    """Takes the tensors that are parts out of a state_dict: what they are in the model file, by name."""
    result = {}
    for name in [name for name in state if name in parts]:
        try:
            result.update(parts[name].cut(state.pop(name)))
        except (ValueError, IndexError) as error:
            fail(f"{name}: {error}")
    return result


def join_parts(arrays, parts):
    """The way back."""
    result, used = {}, set()
    for name, part in parts.items():
        if all(place in arrays for place in part.places):
            result[name] = part.join([arrays[place] for place in part.places])
            used.update(part.places)
    for place in used:
        del arrays[place]
    return result


def write_state(path, state, ending):
    if ending == ".npz":
        with open(path, "wb") as file: # numpy would add an ending to a name
            numpy.savez(file, **state)
        return
    import torch
    torch.save({name: torch.from_numpy(numpy.array(x)) for name, x in state.items()}, path)


def read_file(path):
    arrays = {}

    def keep(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()]
            if MODE in item.attrs:
                mode = item.attrs[MODE]
                mode = mode.decode(errors="replace") if isinstance(mode, bytes) else mode
                tell(f"{path}: {name} has {MODE} {mode}, which a state_dict does not hold")

    with h5py.File(path, "r") as file:
        file.visititems(keep)
    return {name: numpy.asarray(x) for name, x in arrays.items() if not isinstance(x, h5py.Empty)}


def write_file(path, arrays, modes):
    """As Chainer does: gzip 4 and chunks, but for data sets of one element."""
    with h5py.File(path, "w") as file:
        for name, x in arrays.items():
            packed = {"compression": 4} if x.size > 1 else {}
            try:
                item = file.create_dataset(name, data=x, **packed)
                if name in modes:
                    item.attrs[MODE] = modes[name]
            except (TypeError, ValueError) as error: # names that cross, types that HDF5 lacks
                fail(f"{name}: {error}")


def replace(path, write):
    """The file appears under its name when it is whole; one that is there stays until then."""
    target = os.path.realpath(path)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def modules_of(names, separator):
    """The names of each module's arrays: {"features.0": ["weight", "bias"]}."""
    modules = {}
    for name in names:
        module, _, leaf = name.rpartition(separator)
        modules.setdefault(module, []).append(leaf)
    return modules


def read_table(path):
    table, modes = {}, {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split("#")[0].split()
            if len(words) not in (0, 2, 3):
                fail(f'{path}:{number}: should be "MODULE LAYER", or "MODULE LAYER PADDING_MODE"')
            if words and words[0] in table:
                fail(f"{path}:{number}: {words[0]} is there a second time")
            if words:
                table[words[0]] = words[1]
            if len(words) == 3:
                modes["" if words[0] == "." else words[0]] = words[2]
    layers = [layer for layer in table.values() if layer != "-"]
    for layer in layers:
        if layers.count(layer) > 1:
            fail(f"{path}: {layer} is the layer of two modules")
    return table, modes


def leaves_of(module, leaves, arrays, separator):
    """How the arrays of a module are called on the other side; those of a layer likewise, the other way round."""
    back = separator == "/"
    if all(RECURRENT.fullmatch(leaf) for leaf in leaves):
        return {leaf: leaf for leaf in leaves}
    if back:
        norm = not {"gamma", "beta", "avg_mean", "avg_var"}.isdisjoint(leaves)
    else:
        weight = arrays.get(f"{module}.weight" if module else "weight")
        bias = arrays.get(f"{module}.bias" if module else "bias")
        norm = "running_mean" in leaves or (weight is not None and (
            weight.ndim == 1 or (bias is not None and bias.ndim == weight.ndim)))
    names = {new: old for old, new in (NORM if norm else PLAIN).items()} if back else NORM if norm else PLAIN
    for leaf in leaves:
        if leaf not in names:
            fail(f"{module or '.'}: {leaf} is no part of a {'normalisation' if norm else 'convolution or linear layer'}")
    return names


def read_modes(options):
    """Those of --padding: {"features.0": "circular"}."""
    modes = {}
    for option in options:
        module, equals, mode = option.rpartition("=")
        if not equals or not module:
            fail(f'--padding {option}: should be "MODULE=MODE"')
        modes["" if module == "." else module] = mode
    return modes


def filters_of(state):
    """The modules that may pad: those with a weight of three dimensions or more."""
    names = {module: f"{module}.weight" if module else "weight" for module in modules_of(state, ".")}
    return [module for module, name in names.items() if name in state and state[name].ndim > 2]


def place_modes(state, modes, table):
    """Padding modes by the names of data sets."""
    filters, result = filters_of(state), {}
    every = modes.pop("*", None)
    for module, mode in {**({m: every for m in filters} if every else {}), **modes}.items():
        if mode not in MODES:
            fail(f"{module or '.'}: {MODE} {mode}; should be one of {', '.join(MODES)}")
        if module not in filters:
            fail(f"{module or '.'}: {MODE} {mode} is given, and there is no convolution of this name")
        place = module.replace(".", "/") if table is None else table.get(module or ".", "-")
        if place != "-":
            result["W" if place in ("", ".") else f"{place}/W"] = mode
    return result


def convert(arrays, table, separator):
    """Arrays under their names on the other side; `separator` is that of their own names."""
    to = "/" if separator == "." else "."
    result, unknown = {}, []
    for module, leaves in modules_of(arrays, separator).items():
        place = module.replace(separator, to) if table is None else table.get(module or ".")
        if place is None:
            unknown.append(module or ".")
        if place is None or place == "-":
            continue
        names = leaves_of(module, leaves, arrays, separator)
        for leaf in leaves:
            name = names[leaf] if place in ("", ".") else f"{place}{to}{names[leaf]}"
            result[name] = arrays[f"{module}{separator}{leaf}" if module else leaf]
    if unknown:
        fail("not in the table: " + ", ".join(unknown))
    absent = [] if table is None else sorted(set(table) - {m or "." for m in modules_of(arrays, separator)})
    if absent:
        fail("in the table, but not in the file: " + ", ".join(absent))
    return result


def to_weft(state, table=None):
    return convert(state, table, ".")


def to_torch(arrays, table=None):
    back = None if table is None else {layer: module for module, layer in table.items() if layer != "-"}
    return convert(arrays, back, "/")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", metavar="TABLE", help="which module is which layer")
    parser.add_argument("--model", metavar="LIBRARY.FAMILY",
                        help="names of a library: " + ", ".join(MODELS))
    parser.add_argument("--list", action="store_true", help="print the modules of the file")
    parser.add_argument("--whole", action="store_true", help="the file is of a whole module, and may run code")
    parser.add_argument("--padding", metavar="MODULE=MODE", action="append", default=[],
                        help="what a convolution pads with: " + ", ".join(MODES))
    parser.add_argument("source")
    parser.add_argument("target", nargs="?")
    o = parser.parse_args()
    back = o.source.endswith(".h5")
    if not o.list and not (o.target or "").endswith((".pt", ".pth", ".npz") if back else ".h5"):
        fail("give a state_dict (.pt, .pth, .npz) and a model file (.h5), in the order from and to")
    if back and (o.whole or o.padding):
        fail("--whole and --padding are for files of PyTorch")
    arrays, modes = (read_file(o.source), {}) if back else read_state(o.source, o.whole)
    if not arrays:
        fail(f"{o.source}: there is no array in it")
    if o.list:
        for module, leaves in modules_of(arrays, "/" if back else ".").items():
            shapes = [f"{leaf} {list(arrays[(module + ('/' if back else '.') if module else '') + leaf].shape)}"
                      for leaf in leaves]
            print(f"{module or '.'}  # {', '.join(shapes)}")
        return
    if o.names and o.model:
        fail("--names and --model: give one of them")
    table, named = read_table(o.names) if o.names else (None, {})
    table, parts = model_names(o.model, arrays, back) if o.model else (table, {})
    if back:
        joined = join_parts(arrays, parts)
        state = {**to_torch(arrays, table), **joined}
        replace(o.target, lambda path: write_state(path, state, os.path.splitext(o.target)[1]))
    else:
        parts = cut_parts(arrays, parts)
        layers = {**to_weft(arrays, table), **parts}
        modes = {module: mode for module, mode in modes.items() if module in filters_of(arrays)}
        modes = place_modes(arrays, {**modes, **named, **read_modes(o.padding)}, table)
        replace(o.target, lambda path: write_file(path, layers, modes))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ImportError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        fail(error)
