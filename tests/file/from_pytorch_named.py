"""State dictionaries with the names and shapes of torchvision's and timm's models become model files by --model, which
Weft loads and saves, and come back unchanged: from_pytorch_named.py TOOL FOLDER NAMED_MODELS."""
import importlib.util
import os
import subprocess
import sys

import h5py
import numpy

tool, folder, program = sys.argv[1:]
spec = importlib.util.spec_from_file_location("from_pytorch", tool)
from_pytorch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(from_pytorch)


def linear(name, out, n):
    return {f"{name}.weight": (out, n), f"{name}.bias": (out,)}


def norm(name, n):
    return {f"{name}.weight": (n,), f"{name}.bias": (n,)}


def conv(name, out, n, kernel):
    return {f"{name}.weight": (out, n, kernel, kernel), f"{name}.bias": (out,)}


def batch_norm(name, n):
    return {**norm(name, n), f"{name}.running_mean": (n,), f"{name}.running_var": (n,), f"{name}.num_batches_tracked": ()}


def resnet(deep):
    shapes = {"conv1.weight": (4, 3, 7, 7), **batch_norm("bn1", 4)}
    n = 4
    for stage, blocks in enumerate((3, 4, 6, 3) if deep else (2, 2, 2, 2)):
        width = 4 << stage
        for b in range(blocks):
            name, out = f"layer{stage + 1}.{b}", width * (4 if deep else 1)
            sizes = ((width, n, 1), (width, width, 3), (out, width, 1)) if deep else ((out, n, 3), (out, out, 3))
            for i, (o, c, k) in enumerate(sizes, 1):
                shapes.update({f"{name}.conv{i}.weight": (o, c, k, k), **batch_norm(f"{name}.bn{i}", o)})
            if n != out or (stage and not b):
                shapes.update({f"{name}.downsample.0.weight": (out, n, 1, 1), **batch_norm(f"{name}.downsample.1", out)})
            n = out
    return {**shapes, **linear("fc", 3, n)}


def torchvision_convnext():
    shapes = {**conv("features.0.0", 4, 3, 4), **norm("features.0.1", 4)}
    for stage, blocks in enumerate((1, 2, 1, 1)):
        w = 4 << stage
        if stage:
            shapes.update({**norm(f"features.{2 * stage}.0", w // 2), **conv(f"features.{2 * stage}.1", w, w // 2, 2)})
        for b in range(blocks):
            name = f"features.{2 * stage + 1}.{b}"
            shapes.update({f"{name}.layer_scale": (w, 1, 1), **conv(f"{name}.block.0", w, 1, 7), **norm(f"{name}.block.2", w),
                           **linear(f"{name}.block.3", 4 * w, w), **linear(f"{name}.block.5", w, 4 * w)})
    return {**shapes, **norm("classifier.0", 32), **linear("classifier.2", 3, 32)}


def timm_convnext():
    shapes = {**conv("stem.0", 4, 3, 4), **norm("stem.1", 4)}
    for stage, blocks in enumerate((1, 2, 1, 1)):
        w = 4 << stage
        if stage:
            shapes.update({**norm(f"stages.{stage}.downsample.0", w // 2), **conv(f"stages.{stage}.downsample.1", w, w // 2, 2)})
        for b in range(blocks):
            name = f"stages.{stage}.blocks.{b}"
            shapes.update({f"{name}.gamma": (w,), **conv(f"{name}.conv_dw", w, 1, 7), **norm(f"{name}.norm", w),
                           **linear(f"{name}.mlp.fc1", 4 * w, w), **linear(f"{name}.mlp.fc2", w, 4 * w)})
    return {**shapes, **norm("head.norm", 32), **linear("head.fc", 3, 32)}


def torchvision_vit():
    shapes = {"class_token": (1, 1, 8), **conv("conv_proj", 8, 3, 4), "encoder.pos_embedding": (1, 5, 8)}
    for b in range(2):
        name = f"encoder.layers.encoder_layer_{b}"
        shapes.update({**norm(f"{name}.ln_1", 8), f"{name}.self_attention.in_proj_weight": (24, 8),
                       f"{name}.self_attention.in_proj_bias": (24,), **linear(f"{name}.self_attention.out_proj", 8, 8),
                       **norm(f"{name}.ln_2", 8), **linear(f"{name}.mlp.0", 32, 8), **linear(f"{name}.mlp.3", 8, 32)})
    return {**shapes, **norm("encoder.ln", 8), **linear("heads.head", 3, 8)}


def timm_vit():
    shapes = {"cls_token": (1, 1, 8), "pos_embed": (1, 5, 8), **conv("patch_embed.proj", 8, 3, 4)}
    for b in range(2):
        name = f"blocks.{b}"
        shapes.update({**norm(f"{name}.norm1", 8), **linear(f"{name}.attn.qkv", 24, 8), **linear(f"{name}.attn.proj", 8, 8),
                       **norm(f"{name}.norm2", 8), **linear(f"{name}.mlp.fc1", 32, 8), **linear(f"{name}.mlp.fc2", 8, 32)})
    return {**shapes, **norm("norm", 8), **linear("head", 3, 8)}


def torchvision_swin():
    """Windows of three pixels."""
    shapes = {**conv("features.0.0", 4, 3, 4), **norm("features.0.2", 4)}
    for stage, blocks in enumerate((2, 1, 1, 1)):
        w, heads = 4 << stage, 1 << stage
        if stage:
            shapes.update({f"features.{2 * stage}.reduction.weight": (w, 2 * w), **norm(f"features.{2 * stage}.norm", 2 * w)})
        for b in range(blocks):
            name = f"features.{2 * stage + 1}.{b}"
            shapes.update({**norm(f"{name}.norm1", w), f"{name}.attn.relative_position_bias_table": (25, heads),
                           f"{name}.attn.relative_position_index": (81,), **linear(f"{name}.attn.qkv", 3 * w, w),
                           **linear(f"{name}.attn.proj", w, w), **norm(f"{name}.norm2", w),
                           **linear(f"{name}.mlp.0", 4 * w, w), **linear(f"{name}.mlp.3", w, 4 * w)})
    return {**shapes, **norm("norm", 32), **linear("head", 3, 32)}


def places(side):
    at = [(row, column) for row in range(side) for column in range(side)]
    return numpy.array([(a - c + side - 1) * (2 * side - 1) + b - d + side - 1 for a, b in at for c, d in at])


# The library's family, the program's model, the state.
MODELS = {"torchvision.resnet": [("small_resnet18", resnet(False)), ("small_resnet50", resnet(True))],
          "timm.convnext": [("small_convnext", timm_convnext())], "timm.vit": [("small_vit", timm_vit())]}
AGAIN = {"torchvision.convnext": [("small_convnext", torchvision_convnext())],
         "torchvision.vit": [("small_vit", torchvision_vit())], "torchvision.swin": [("small_swin", torchvision_swin())]}


def state(shapes):
    rng = numpy.random.default_rng(5)
    return {name: places(3) if name.endswith("index") else rng.integers(0, 99, shape) if name.endswith("tracked")
            else rng.normal(0, 1, shape).astype(numpy.float32) for name, shape in shapes.items()}


def tool_of(*words):
    sys.argv = [tool, *words]
    from_pytorch.main()


def check(models):
    made = [(family, name, state(shapes)) for family, those in models.items() for name, shapes in those]
    for family, name, arrays in made:
        numpy.savez(os.path.join(folder, f"{name}.npz"), **arrays)
        tool_of("--model", family, os.path.join(folder, f"{name}.npz"), os.path.join(folder, f"{name}.h5"))
    subprocess.run([program, folder, "f32", "8", *(name for _, name, _ in made)], check=True)
    for family, name, arrays in made:
        back = os.path.join(folder, f"{name}-back.npz")
        tool_of("--model", family, os.path.join(folder, f"{name}-saved.h5"), back)
        seen = dict(numpy.load(back))
        assert sorted(seen) == sorted(arrays), (family, set(seen) ^ set(arrays))
        for key, x in arrays.items():
            assert seen[key].shape == x.shape and numpy.array_equal(seen[key], x), (family, key)


def check_order():
    """Queries, keys and values are those of the joined weight in this order."""
    joined = state(timm_vit())["blocks.1.attn.qkv.weight"]
    with h5py.File(os.path.join(folder, "small_vit.h5"), "r") as file:
        for i, which in enumerate(("query", "key", "value")):
            assert numpy.array_equal(file[f"block1/attention/{which}/W"][()], joined[8 * i:8 * i + 8]), which


def expect_refused(words, says):
    try:
        tool_of(*words)
    except SystemExit as end:
        assert says in str(end.code), (words, end.code)
        return
    raise AssertionError(words)


check(MODELS)
check_order()
check(AGAIN)
old = {name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): x for name, x in state(torchvision_vit()).items()}
numpy.savez(os.path.join(folder, "old.npz"), **old)
tool_of("--model", "torchvision.vit", os.path.join(folder, "old.npz"), os.path.join(folder, "old.h5"))
with h5py.File(os.path.join(folder, "old.h5"), "r") as seen, h5py.File(os.path.join(folder, "small_vit.h5"), "r") as should:
    assert numpy.array_equal(seen["block1/up/W"][()], should["block1/up/W"][()])
files = [os.path.join(folder, "small_vit.npz"), os.path.join(folder, "none.h5")]
expect_refused(["--model", "keras.vit", *files], "--model keras.vit: should be one of torchvision.resnet, ")
expect_refused(["--model", "timm.swin", *files], "--model timm.swin: should be one of torchvision.resnet, ")
expect_refused(["--model", "torchvision.resnet", *files], "not in the table: .")
expect_refused(["--model", "torchvision.vit", "--names", "table", *files], "--names and --model: give one of them")
assert not os.path.exists(files[1])
