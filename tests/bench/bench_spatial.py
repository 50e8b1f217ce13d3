"""PyTorch's own convolution whose image two processes share, beside the whole one, as bench_spatial.c measures ours:

    bench_spatial.py [side [channels [kernel [repeats [dims]]]]]

It is cut by the last dimension, the only one whose halo PyTorch's convolution exchanges, over gloo; a thread a process. Both
processes run the whole layer at the same time, unconnected; then each its part. They take turns, and medians of the slower
process count. There are two ways to it, in channels_last and in PyTorch's default order: a DTensor, and the functions behind it
(torch.distributed.tensor._tp_conv), called with each process's part. The output and the gradients are compared with those of the
whole layer: where they differ, or where PyTorch refuses, a line says so in place of times.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor._tp_conv import tp_convolution, tp_convolution_backward

PROCESSES = 2
aten = torch.ops.aten


class Behind(torch.autograd.Function):
    """A part's convolution by the functions behind DTensor's; the gradient of the filters is this part's alone."""

    @staticmethod
    def tail(x, w):
        n = x.dim() - 2
        return [1] * n, [w.shape[-1] // 2] * n, [1] * n, False, [0] * n, 1

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return tp_convolution(aten.convolution.default, (x, w, None, *Behind.tail(x, w)), {}, [-1] * (x.dim() - 1) + [0])

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        args = dy, x, w, None, *Behind.tail(x, w), [True, True, False]
        dx, dw, _ = tp_convolution_backward(aten.convolution_backward.default, args, {}, [-1] * (x.dim() - 1) + [0])
        return dx, dw


def convolve(x, w):
    return (F.conv2d if x.dim() == 4 else F.conv3d)(x, w, padding=w.shape[-1] // 2)


def refuse_wrong(y):
    """A DTensor that says it is whole should be whole."""
    if isinstance(y, DTensor) and y.placements[0] == Replicate() and y.to_local().shape != y.shape:
        raise RuntimeError(f"the output is said to be all of {list(y.shape)}, and is {list(y.to_local().shape)}")


def turn(conv, x, w, dy):
    """Seconds forward and backward of the slower process, output, and gradients of x and w."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    dist.barrier()
    at = [time.perf_counter()]
    y = conv(x, w)
    at.append(time.perf_counter())
    refuse_wrong(y)
    y.backward(dy)
    at.append(time.perf_counter())
    took = torch.tensor([at[1] - at[0], at[2] - at[1]])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.tolist(), (y.detach(), x.grad, w.grad)


def split(t):
    return t.chunk(PROCESSES, -1)[dist.get_rank()].clone(memory_format=torch.preserve_format)


def far(way, mine, whole):
    """The largest difference of the three results on any process, over the largest number."""
    if way == "DTensor":
        mine = [t.full_tensor() for t in mine]
    else:
        dw = mine[2].contiguous()
        dist.all_reduce(dw)
        mine, whole = (mine[0], mine[1], dw), (split(whole[0]), split(whole[1]), whole[2])
    worst = torch.tensor(max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(mine, whole)))
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item()


def compare(way, shape, channels, kernel, repeats, layout):
    torch.manual_seed(1)
    x, dy = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(2))
    w = torch.randn(channels, channels, *[kernel] * (len(shape) - 2)).contiguous(memory_format=layout)
    if way == "DTensor":
        mesh, last = init_device_mesh("cpu", (PROCESSES,)), [Shard(len(shape) - 1)]
        conv = convolve
        part = distribute_tensor(x, mesh, last), distribute_tensor(w, mesh, [Replicate()]), distribute_tensor(dy, mesh, last)
    else:
        conv, part = Behind.apply, (split(x), w, split(dy))
    right = turn(convolve, x, w, dy)[1]
    worst = far(way, turn(conv, *part)[1], right)
    if not worst < 1e-3:
        return f"differs from the whole layer by {worst:.2g}"
    took = [(turn(convolve, x, w, dy)[0], turn(conv, *part)[0]) for _ in range(repeats)]
    lines = ["            whole ms      cut ms  efficiency"]
    for name, ways in ("forward", (0,)), ("backward", (1,)), ("step", (0, 1)):
        serial, cut = (statistics.median(sum(t[which][k] for k in ways) for t in took) for which in (0, 1))
        lines.append(f"{name:8} {1e3 * serial:12.2f} {1e3 * cut:11.2f} {100 * serial / cut / PROCESSES:10.0f} %")
    return "\n".join(lines)


def one_process(rank, side, channels, kernel, repeats, dims):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513", RANK=str(rank), WORLD_SIZE=str(PROCESSES))
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    if rank == 0:
        print(f"conv {channels}->{channels}, kernel {kernel}, sides of {side}, {dims} dimensions, {PROCESSES} processes of one thread")
    channels_last = torch.channels_last if dims == 2 else torch.channels_last_3d
    for way in "DTensor", "behind it":
        for name, order in ("channels_last", channels_last), ("default order", torch.contiguous_format):
            try:
                said = compare(way, (1, channels, *[side] * dims), channels, kernel, repeats, order)
            except (RuntimeError, AssertionError, IndexError) as error:
                said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            if rank == 0:
                print(f"{way}, {name}: {said}", flush=True)
    dist.destroy_process_group()


def main():
    usual = [1024, 32, 3, 7, 2]
    args = [int(word) for word in sys.argv[1:]]
    torch.multiprocessing.spawn(one_process, args + usual[len(args):], PROCESSES)


if __name__ == "__main__":
    main()
