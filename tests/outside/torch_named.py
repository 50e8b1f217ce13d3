#!/usr/bin/env python3
"""Models of torchvision and timm with random weights, loaded through tools/from_pytorch.py: scores, and the gradients of the
images and of every parameter, in training, beside PyTorch's: torch_named.py NAMED_MODELS TOOL [MODEL...].
Needs torchvision; takes timm's models too where it is installed.

In f64, of images of 64x64, all are equal to 1e-9; in f32, of 128x128, to 1e-4 of PyTorch's in f64. A difference is that
of a whole tensor, relative to its norm. A ReLU whose input is rounded to the other side of zero makes gradients jump, in
PyTorch as much as here, so gradients of ResNets in f32 are held to a twentieth; scores are not.
"""
import copy
import importlib.util
import os
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy
    import torch
    import torchvision
except Exception as reason:
    print(f"SKIP: no torchvision ({str(reason).splitlines()[0]}); pip install torchvision h5py")
    sys.exit(77)
try:
    import timm
except ImportError:
    timm = None

PROGRAM, TOOL, *ASKED = sys.argv[1:]
SAMPLES, CLASSES = 2, 1000
spec = importlib.util.spec_from_file_location("from_pytorch", TOOL)
from_pytorch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(from_pytorch)


def whole_paths(model):
    """Without stochastic depth, which torchvision's swin_t does not take as an option."""
    for module in model.modules():
        if isinstance(module, torchvision.ops.StochasticDepth):
            module.p = 0.0
    return model


# The library's family, the program's name, how it is made, its parameters.
MODELS = [("torchvision.convnext", "convnext_tiny",
           lambda side: torchvision.models.convnext_tiny(stochastic_depth_prob=0.0), 28589128),
          ("torchvision.swin", "swin_t", lambda side: whole_paths(torchvision.models.swin_t()), 28288354),
          ("torchvision.resnet", "resnet50", lambda side: torchvision.models.resnet50(), 25557032),
          ("torchvision.resnet", "resnet18", lambda side: torchvision.models.resnet18(), 11689512),
          ("torchvision.vit", "vit_base", lambda side: torchvision.models.vit_b_16(image_size=side), 86567656)]
if timm:
    MODELS += [("timm.convnext", "convnext_tiny", lambda side: timm.create_model("convnext_tiny"), 28589128),
               ("timm.resnet", "resnet34", lambda side: timm.create_model("resnet34"), 21797672),
               ("timm.vit", "vit_tiny", lambda side: timm.create_model("vit_tiny_patch16_224", img_size=side), 5717416)]


def vary(model):
    """Initial ones and zeros would hide a parameter in the place of another one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            small = "layer_scale" in name or name.endswith(".gamma")
            if p.dim() == 1 or small:
                p.copy_((0.5 if small else p) + 0.2 * torch.rand(p.shape, generator=generator))
            elif p.abs().max() == 0: # heads and class tokens that begin as zeros
                p.copy_(0.05 * torch.randn(p.shape, generator=generator))


def distance(a, b, floor=0.0):
    """Of two tensors, relative to the norm of b; below `floor` a norm is rounding."""
    assert a.shape == b.shape, (a.shape, b.shape)
    norm = max(numpy.linalg.norm(b), floor)
    return numpy.linalg.norm(a.astype(numpy.float64) - b) / norm if norm else 0.0


def of_torch(model, x, dy):
    """Scores, gradients and running values by name, in f64."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.backward(dy)
    named = {"scores": y.detach(), "images": x.grad, **{name: p.grad for name, p in model.named_parameters()},
             **dict(model.named_buffers())}
    return {name: value.double().numpy() for name, value in named.items() if not name.endswith("num_batches_tracked")}


def of_weft(folder, family, name, model, x, dy):
    path, kind = os.path.join(folder, name), "f64" if x.dtype == torch.float64 else "f32"
    torch.save(model.state_dict(), f"{path}.pt")
    x.numpy().tofile(f"{path}.images")
    dy.numpy().tofile(f"{path}.dy")
    sys.argv = ["from_pytorch.py", "--model", family, f"{path}.pt", f"{path}.h5"]
    from_pytorch.main()
    subprocess.run([PROGRAM, folder, kind, str(x.shape[-1]), name], check=True,
                   env={**os.environ, "WEFT_LOG": "error"})
    sys.argv = ["from_pytorch.py", "--model", family, f"{path}-grads.h5", f"{path}-grads.npz"]
    from_pytorch.main()
    raw = {"scores": ("y", dy), "images": ("dx", x)}
    return {**{what: numpy.fromfile(f"{path}.{ending}", like.numpy().dtype).reshape(like.shape)
               for what, (ending, like) in raw.items()}, **numpy.load(f"{path}-grads.npz")}


def check(family, name, make, dtype, side, most):
    torch.manual_seed(1)
    model = make(side).train()
    vary(model)
    model = model.to(dtype)
    x, dy = torch.randn(SAMPLES, 3, side, side, dtype=dtype), torch.randn(SAMPLES, CLASSES, dtype=dtype)
    exact = of_torch(copy.deepcopy(model).double(), x.double(), dy.double())
    theirs = of_torch(copy.deepcopy(model), x, dy)
    with tempfile.TemporaryDirectory() as folder:
        ours = of_weft(folder, family, name, model, x, dy)
    others = set(ours) ^ set(exact)
    assert all(key.endswith("num_batches_tracked") for key in others), others
    floor = 1e-6 * max(numpy.linalg.norm(exact[key]) for key, _ in model.named_parameters())
    off, their = ({key: distance(values[key], exact[key], floor) for key in exact} for values in (ours, theirs))
    for key in exact:
        bound = 0.05 if family.endswith("resnet") and most == 1e-4 and key != "scores" else most
        assert off[key] <= bound, f"{name} {dtype}, {key}: off by {off[key]:.3g}, PyTorch's by {their[key]:.3g}"
    worst = max(key for key in exact if off[key] == max(off.values()))
    print(f"  {family} {name}, {dtype}, {side}x{side}: from PyTorch's f64: scores {off['scores']:.1e}, images {off['images']:.1e}, "
          f"the worst of {len(exact)} {off[worst]:.1e}; PyTorch's own {their['scores']:.1e}, {their['images']:.1e}, "
          f"{max(their.values()):.1e}", flush=True)


def main():
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}, timm {timm.__version__ if timm else 'not there'}")
    for family, name, make, parameters in MODELS:
        if ASKED and f"{family}.{name}" not in ASKED:
            continue
        assert sum(p.numel() for p in make(224).parameters()) == parameters, name
        check(family, name, make, torch.float64, 64, 1e-9)
        check(family, name, make, torch.float32, 128, 1e-4)


main()
