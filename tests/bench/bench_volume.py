"""examples/volume.c in PyTorch: the same volumes, the same U-Net, losses, optimizer, rates and figure of merit.

    volume --scale 5 --write volumes.bin                                        the volumes, from the C program
    bench_volume.py volumes.bin --channels 16 --threads 1                       until the Dice score of held-out volumes is 0.95
    bench_volume.py volumes.bin --channels 16 --threads 1 --steps 20            steps a second alone

Each line of an epoch has the loss, the Dice score, and the seconds and the processor's seconds since the first step, as
volume prints them: with those of the evaluations, without those of reading. Volumes come in the file's order in every epoch.
"""
import argparse
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BACKGROUND = 0.1  # weight of class 0 in the cross entropy


class Unet(nn.Module):
    """examples/models/unet.c with UNET_GROUP"""

    def __init__(self, inputs, width, levels, classes):
        super().__init__()

        def twice(i, o):
            groups = min(8, width)
            return nn.Sequential(nn.Conv3d(i, o, 3, padding=1, bias=False), nn.GroupNorm(groups, o), nn.ReLU(inplace=True),
                                 nn.Conv3d(o, o, 3, padding=1, bias=False), nn.GroupNorm(groups, o), nn.ReLU(inplace=True))

        widths = [width << i for i in range(levels + 1)]
        self.before = nn.ModuleList(twice(i, o) for i, o in zip([inputs] + widths[:-1], widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, 2) for w in widths[:-1])
        self.after = nn.ModuleList(twice(2 * w, w) for w in widths[:-1])
        self.scores = nn.Conv3d(width, classes, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv3d):
                nn.init.kaiming_normal_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x):
        seen = []
        for i, before in enumerate(self.before):
            x = before(x if i == 0 else F.max_pool3d(x, 2))
            seen.append(x)
        for i in reversed(range(len(self.up))):
            x = self.after[i](torch.cat((seen[i], self.up[i](x)), 1))
        return self.scores(x)


def read_volumes(path):
    head = np.fromfile(path, np.int64, 5)
    if len(head) < 5:
        sys.exit(f"{path}: should be a file of volume --write, whose head is five numbers; it has {len(head)}")
    side, volumes, held_out, inputs, classes = head
    voxels = side**3
    kind = np.dtype([("x", np.float32, (inputs, side, side, side)), ("labels", np.uint8, (side, side, side))])
    rows = np.fromfile(path, kind, offset=40)
    if len(rows) != volumes + held_out or voxels == 0:
        sys.exit(f"{path}: {len(rows)} volumes of side {side}: should be {volumes + held_out}, as its head says")
    x, labels = torch.from_numpy(rows["x"].copy()), torch.from_numpy(rows["labels"].astype(np.int64))
    return x[:volumes], labels[:volumes], x[volumes:], labels[volumes:], int(classes)


def loss_of(scores, labels, weight):
    """Cross entropy, and the Dice loss of a batch without the background."""
    p = F.softmax(scores, 1)
    t = F.one_hot(labels, scores.shape[1]).movedim(-1, 1).to(p.dtype)
    over = (0, 2, 3, 4)
    dice = 1 - (2 * (p * t).sum(over) + 1e-5) / (p.sum(over) + t.sum(over) + 1e-5)
    return F.cross_entropy(scores, labels, weight) + dice[1:].mean()


@torch.inference_mode()
def dice_of(model, x, labels, batch, layout):
    count = torch.zeros(3, model.scores.out_channels, dtype=torch.int64)
    for i in range(0, len(x), batch):
        found, right = model(x[i:i + batch].to(memory_format=layout)).argmax(1), labels[i:i + batch]
        classes = count.shape[1]
        count[0] += torch.bincount(right[found == right], minlength=classes)
        count[1] += torch.bincount(found.flatten(), minlength=classes)
        count[2] += torch.bincount(right.flatten(), minlength=classes)
    both = count[1] + count[2]
    return torch.where(both > 0, 2 * count[0] / both.clamp(min=1), 1.0)[1:].mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="written by volume --write")
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--levels", type=int, default=0, help="0: as volume, scale - 3")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--restart", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dice", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0, help="of the initial values")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="only measure so many steps, after those of --warm")
    parser.add_argument("--warm", type=int, default=3, help="steps before those that are measured")
    parser.add_argument("--contiguous", action="store_true", help="NCDHW, not channels_last_3d")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    x, labels, held_x, held_labels, classes = read_volumes(args.file)
    levels = args.levels or max(1, x.shape[-1].bit_length() - 4)
    layout = torch.contiguous_format if args.contiguous else torch.channels_last_3d
    model = Unet(x.shape[1], args.channels, levels, classes).to(memory_format=layout)
    run = torch.compile(model) if args.compile else model
    weight = torch.ones(classes)
    weight[0] = BACKGROUND
    optim = torch.optim.Adam(model.parameters(), args.lr, fused=True)
    steps = len(x) // args.batch
    rate = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optim, args.restart * steps, 2, args.lr / 10)

    def step(i):
        part = slice(i % steps * args.batch, (i % steps + 1) * args.batch)
        loss = loss_of(run(x[part].to(memory_format=layout)), labels[part], weight)
        optim.zero_grad()
        loss.backward()
        optim.step()
        rate.step()
        return loss.item()

    if args.steps:
        for i in range(args.warm):
            step(i)
        start, busy = time.perf_counter(), time.process_time()
        for i in range(args.steps):
            step(i)
        took, busy = time.perf_counter() - start, time.process_time() - busy
        print(f"{args.steps / took:.3f} steps/s, {args.steps / busy:.3f} steps a second of the processor")
        return
    start, busy = time.perf_counter(), time.process_time()
    for epoch in range(args.epochs):
        loss = sum(step(i) for i in range(steps)) / steps
        dice = dice_of(run, held_x, held_labels, args.batch, layout)
        print(f"epoch {epoch + 1}  loss {loss:.4f}  dice {dice:.4f}  {time.perf_counter() - start:.1f} s  "
              f"{time.process_time() - busy:.1f} s of the processor", flush=True)
        if dice >= args.dice:
            done = (epoch + 1) * steps
            print(f"Dice {args.dice} after {done} steps, {done * args.batch} volumes, {time.perf_counter() - start:.1f} s")
            return
    sys.exit(f"Dice {args.dice} was not reached in {args.epochs} epochs")


main()
