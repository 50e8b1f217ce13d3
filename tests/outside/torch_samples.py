#!/usr/bin/env python3
"""PyTorch's own samples (OpInfo's inputs, and the options of optim_db) as a text file for tests/outside/torch_samples.c:
torch_samples.py FILE. Everything is in f64; PyTorch computes outputs and gradients.

    case OPERATION NUMBER
    n KEY VALUE...               options
    t KEY RANK LENGTH... ELEMENT...     tensors, row-major
    end

Cases that Weft has no word for are counted, each with its reason.
"""
import collections
import sys

import torch


class Unsaid(Exception):
    """There is no counterpart."""


def need(condition, reason):
    if not condition:
        raise Unsaid(reason)


def several(value, nd):
    return [value] * nd if isinstance(value, int) else (list(value) * nd)[:nd] if len(value) == 1 else list(value)


def batched(x, rank):
    need(x.dim() in (rank - 1, rank), "of another rank")
    return x.unsqueeze(0) if x.dim() == rank - 1 else x


def conv(nd, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    x, stride, dilation = batched(x, nd + 2), several(stride, nd), several(dilation, nd)
    kernel = list(weight.shape[2:])
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        lo, hi = [t // 2 for t in total], [t - t // 2 for t in total]
    else:
        lo = hi = several(padding, nd)
    return {"x": x, "w": weight, "b": bias}, {"kernel": kernel, "stride": stride, "lo": lo, "hi": hi, "dilation": dilation,
                                             "groups": [groups]}


def conv_transpose(nd, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    x, pad = batched(x, nd + 2), several(padding, nd)
    return {"x": x, "w": weight, "b": bias}, {"kernel": list(weight.shape[2:]), "stride": several(stride, nd), "lo": pad, "hi": pad,
                                             "dilation": several(dilation, nd), "groups": [groups],
                                             "more": several(output_padding, nd)}


def pool_options(nd, kernel_size, stride, padding, dilation, ceil_mode, include):
    kernel = several(kernel_size, nd)
    stride = several(stride, nd) if stride not in (None, (), []) else kernel
    pad = several(padding, nd)
    return {"kernel": kernel, "stride": stride, "lo": pad, "hi": pad, "dilation": several(dilation, nd), "ceil": [int(ceil_mode)],
            "include": [int(include)]}


def max_pool(nd, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    options = pool_options(nd, kernel_size, stride, padding, dilation, ceil_mode, False)
    return {"x": batched(x, nd + 2)}, {**options, "places": [int(return_indices)]}


def avg_pool(nd, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    need(divisor_override is None, "a divisor")
    return {"x": batched(x, nd + 2)}, pool_options(nd, kernel_size, stride, padding, 1, ceil_mode, count_include_pad)


def adaptive_pool(nd, x, output_size, return_indices=False):
    size = several(output_size, nd) if output_size is not None else [None] * nd
    return {"x": batched(x, nd + 2)}, {"size": [s or 0 for s in size], "places": [int(return_indices)]}


def max_unpool(nd, x, indices, kernel_size, stride=None, padding=0, output_size=None):
    planes = indices.reshape(-1, indices[(0,) * (indices.dim() - nd)].numel())
    need(all(len(set(p)) == len(p) for p in planes.tolist()), "equal places, each of which gets a gradient")
    size = [0] * nd if output_size is None else list(output_size)[-nd:]
    options = pool_options(nd, kernel_size, stride, padding, 1, False, False)
    return {"x": batched(x, nd + 2), "at": batched(indices, nd + 2)}, {**options, "size": size}


def batch_norm(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    need(2 <= x.dim() <= 5, "of another rank")
    need(training, "evaluation" if running_mean is not None else "no running statistics")
    return {"x": x, "gamma": weight, "beta": bias}, {"eps": [eps]}


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    return {"x": x, "gamma": weight, "beta": bias}, {"eps": [eps], "shape": list(normalized_shape)}


def rms_norm(x, normalized_shape, weight=None, eps=None):
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return {"x": x, "gamma": weight}, {"eps": [eps], "shape": list(normalized_shape)}


def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    need(2 <= x.dim() <= 5, "of another rank")
    return {"x": x, "gamma": weight, "beta": bias}, {"eps": [eps], "groups": [num_groups]}


def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    need(use_input_stats, "running statistics of instances")
    need(3 <= x.dim() <= 5, "of another rank")
    return {"x": x, "gamma": weight, "beta": bias}, {"eps": [eps]}


def activation(x, inplace=False):
    return {"x": x}, {}


def leaky(x, negative_slope=0.01, inplace=False):
    need(negative_slope >= 0, "a negative slope")
    return {"x": x}, {"slope": [negative_slope]}


def elu(x, alpha=1.0, inplace=False):
    need(alpha >= 0, "a negative alpha")
    return {"x": x}, {"slope": [alpha]}


def gelu(x, approximate="none"):
    return {"x": x}, {"tanh": [int(approximate == "tanh")]}


def softplus(x, beta=1, threshold=20):
    need(beta == 1, "a beta")
    return {"x": x}, {}


def softmax(x, dim=None, dtype=None, _stacklevel=3):
    need(dtype is None or dtype == torch.float64, "a cast")
    need(x.dim() > 0, "of a scalar")
    return {"x": x}, {"dim": [dim]}


def prelu(x, weight):
    need(2 <= x.dim() <= 5, "of another rank")
    return {"x": x, "w": weight}, {}


def loss(x, target, size_average=None, reduce=None, reduction="mean", weight=None):
    need(reduction == "mean" and size_average is None and reduce is None, "a reduction other than the mean")
    need(weight is None, "weights")
    need(x.shape == target.shape, "broadcast")
    return {"x": x, "t": target}, {}


def bce_logits(x, target, weight=None, size_average=None, reduce=None, reduction="mean", pos_weight=None):
    need(reduction == "mean" and size_average is None and reduce is None, "a reduction other than the mean")
    need(weight is None and pos_weight is None, "weights")
    need(x.shape == target.shape, "broadcast")
    return {"x": x, "t": target.detach()}, {}


def labelled(x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    need(reduction == "mean", "a reduction other than the mean")
    need(weight is None and label_smoothing == 0.0, "weights")
    need(not target.is_floating_point(), "probabilities as targets")
    need(x.dim() >= 2, "of one row")
    return {"x": x, "t": target}, {"ignored": [ignore_index]}


def for_each_nd(name, binder):
    return {f"nn.functional.{name}{nd}d": (f"{name}{nd}d", lambda *a, nd=nd, **k: binder(nd, *a, **k)) for nd in (1, 2, 3)}


def one(binder, *names, prefix="nn.functional."):
    return {prefix + n: (n, binder) for n in names}


OPERATIONS = {
    **for_each_nd("conv", conv), **for_each_nd("conv_transpose", conv_transpose), **for_each_nd("max_pool", max_pool),
    **for_each_nd("avg_pool", avg_pool), **for_each_nd("adaptive_avg_pool", adaptive_pool),
    **for_each_nd("adaptive_max_pool", adaptive_pool), **for_each_nd("max_unpool", max_unpool), **one(batch_norm, "batch_norm"), **one(layer_norm, "layer_norm"),
    **one(rms_norm, "rms_norm"), **one(group_norm, "group_norm"), **one(instance_norm, "instance_norm"),
    **one(activation, "relu", "silu", "hardswish", "selu"), **one(activation, "sigmoid", "tanh", prefix=""), **one(leaky, "leaky_relu"),
    **one(elu, "elu"), **one(gelu, "gelu"), **one(softplus, "softplus"), **one(softmax, "softmax", "log_softmax", prefix=""),
    **one(prelu, "prelu"), **one(loss, "mse_loss", "l1_loss"), **one(bce_logits, "binary_cross_entropy_with_logits"),
    **one(labelled, "cross_entropy", "nll_loss"),
}


def number(v):
    return repr(float(v))


def write(out, name, index, numbers, tensors):
    out.write(f"case {name} {index}\n")
    for key, values in numbers.items():
        out.write(" ".join(["n", key] + [number(v) for v in values]) + "\n")
    for key, t in tensors.items():
        if t is not None:
            flat = [number(v) for v in t.detach().double().reshape(-1).tolist()]
            out.write(" ".join(["t", key, str(t.dim())] + [str(n) for n in t.shape] + flat) + "\n")
    out.write("end\n")


def operation_case(out, op, name, binder, sample, index):
    tensors, numbers = binder(sample.input, *sample.args, **sample.kwargs)
    need(numbers.get("eps", [0])[0] >= 0, "a negative epsilon")
    need(all(t is None or t.dim() <= 6 for t in tensors.values()), "of more than six dimensions")
    y = op.op(sample.input, *sample.args, **sample.kwargs)
    y, places = y if isinstance(y, tuple) else (y, None)
    need(y.is_floating_point(), "no float")
    generator = torch.Generator().manual_seed(index)
    dy = torch.rand(y.shape, generator=generator, dtype=torch.float64) * 2 - 1
    leaves = {k: t for k, t in tensors.items() if t is not None and t.requires_grad}
    grads = torch.autograd.grad(y, list(leaves.values()), dy, allow_unused=True) if leaves and y.requires_grad else []
    tensors.update({"y": y, "dy": dy, "p": places})
    tensors.update({"d" + k: g for k, g in zip(leaves, grads) if g is not None})
    write(out, name, index, numbers, tensors)


OPTIMIZERS = {
    "SGD": {"lr", "momentum", "weight_decay", "nesterov"},
    "Adam": {"lr", "betas", "eps", "weight_decay"},
    "AdamW": {"lr", "betas", "eps", "weight_decay"},
    "RMSprop": {"lr", "alpha", "eps", "weight_decay"},
}
DEFAULTS = {"foreach", "fused", "differentiable", "capturable"}  # ways to compute the same


def optimizer_case(out, info, kwargs, index):
    name = info.optim_cls.__name__
    need(name in OPTIMIZERS, "another optimizer")
    known = {k: v for k, v in kwargs.items() if k not in DEFAULTS and v not in (None, False)}
    need(set(known) <= OPTIMIZERS[name], "options " + " ".join(sorted(set(known) - OPTIMIZERS[name])))
    known = {k: [float(n) for n in v] if k == "betas" else [float(v)] for k, v in known.items()}
    generator = torch.Generator().manual_seed(3)
    p = torch.nn.Parameter(torch.rand((3, 5), generator=generator, dtype=torch.float64) - 0.5)
    optimizer = info.optim_cls([p], **{k: v for k, v in kwargs.items() if k not in DEFAULTS})
    before, steps = p.detach().clone(), torch.rand((6, 3, 5), generator=generator, dtype=torch.float64) - 0.5
    for g in steps:
        p.grad = g.clone()
        optimizer.step()
    write(out, name, index, known, {"x": before, "g": steps, "y": p})


def counted(counts, name, make):
    try:
        make()
        counts[name]["written"] += 1
    except Unsaid as reason:
        counts[name][str(reason)] += 1


def main():
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_optimizers import optim_db
    torch.manual_seed(1)
    counts, index = collections.defaultdict(collections.Counter), 0
    with open(sys.argv[1], "w", encoding="ascii") as out:
        for op in op_db:
            full = op.name if op.variant_test_name in ("", "grad") else None
            if full not in OPERATIONS:
                continue
            name, binder = OPERATIONS[full]
            for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
                counted(counts, name, lambda: operation_case(out, op, name, binder, sample, index))
                index += 1
        for info in optim_db:
            for made in info.optim_inputs_func(device="cpu"):
                counted(counts, info.optim_cls.__name__, lambda: optimizer_case(out, info, made.kwargs, index))
                index += 1
    unsaid = sum(n for c in counts.values() for k, n in c.items() if k != "written")
    for name, c in counts.items():
        print(f"  {name}: " + ", ".join(f"{n} {k}" for k, n in c.items()))
    print(f"PyTorch {torch.__version__}: {index} samples, {index - unsaid} written, {unsaid} cannot be said")


main()
