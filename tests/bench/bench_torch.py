"""The DCGAN step of bench_dcgan.c in PyTorch: prints images per second over all processes, and nothing else.

    bench_torch.py --batch 64 --channels 128 --threads 2                   one process
    bench_torch.py --batch 32 --channels 128 --threads 1 --processes 2     DistributedDataParallel over gloo
    bench_torch.py --device cuda --autocast ...                            on a GPU, products in bf16 (without: in tf32)
    bench_torch.py ... --pick                                              prints the fastest --variant instead

Variants: eager (NCHW, which oneDNN reorders to its blocked layouts), channels_last, and either of them under
torch.compile. All of them use the fused Adam, and leave the discriminator's gradients out of the generator's step, as
Weft does.
"""
import argparse
import os
import statistics
import sys
import time

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VARIANTS = ("eager", "channels_last", "compile", "compile_channels_last")


class Generator(nn.Module):
    def __init__(self, ch, latent):
        super().__init__()
        self.ch = ch
        self.l0 = nn.Linear(latent, 16 * ch)
        self.bn0 = nn.BatchNorm1d(16 * ch, eps=2e-5)
        self.up = nn.ModuleList(nn.ConvTranspose2d(ch >> i, ch >> (i + 1), 4, 2, 1) for i in range(3))
        self.bn = nn.ModuleList(nn.BatchNorm2d(ch >> (i + 1), eps=2e-5) for i in range(3))
        self.last = nn.ConvTranspose2d(ch >> 3, 3, 3, 1, 1)

    def forward(self, z):
        h = F.relu(self.bn0(self.l0(z))).view(-1, self.ch, 4, 4)
        for up, bn in zip(self.up, self.bn):
            h = F.relu(bn(up(h)))
        return torch.sigmoid(self.last(h))


def noisy(h):
    """h + 0.2 N(0, 1). The noise is drawn in memory order: randn_like is ten times as slow on channels_last tensors."""
    if h.is_contiguous():
        return h + 0.2 * torch.randn_like(h)
    n, c, height, width = h.shape
    return h + 0.2 * torch.randn(n, height, width, c, device=h.device).permute(0, 3, 1, 2)


class Discriminator(nn.Module):
    def __init__(self, ch):
        super().__init__()
        widths = [(3, ch >> 3, 3, 1), (ch >> 3, ch >> 2, 4, 2), (ch >> 2, ch >> 2, 3, 1), (ch >> 2, ch >> 1, 4, 2),
                  (ch >> 1, ch >> 1, 3, 1), (ch >> 1, ch, 4, 2), (ch, ch, 3, 1)]
        self.conv = nn.ModuleList(nn.Conv2d(i, o, k, s, 1) for i, o, k, s in widths)
        self.bn = nn.ModuleList(nn.BatchNorm2d(o, eps=2e-5) for _, o, _, _ in widths[1:])
        for bn in self.bn:  # without gamma
            bn.weight.requires_grad_(False)
        self.last = nn.Linear(16 * ch, 1)

    def forward(self, x):
        h = noisy(x)
        for i, conv in enumerate(self.conv):
            h = conv(h)
            if i > 0:
                h = self.bn[i - 1](h)
            h = F.leaky_relu(noisy(h), 0.2)
        return self.last(h.flatten(1))


def initialise(model):
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight, 0.0, 0.02)
            nn.init.zeros_(m.bias)


class Trainer:
    def __init__(self, args, variant, processes):
        torch.manual_seed(1)
        self.latent = args.latent
        last = variant.endswith("channels_last")
        compiled = variant.startswith("compile")
        self.device, self.autocast = args.device, args.autocast
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        if compiled and args.device == "cpu":  # the compiler's own normal numbers are scalar code on a CPU
            torch._inductor.config.fallback_random = True
        self.layout = torch.channels_last if last else torch.contiguous_format
        gen, dis = Generator(args.channels, args.latent), Discriminator(args.channels)
        initialise(gen)
        initialise(dis)
        gen, dis = (m.to(self.device, memory_format=self.layout) for m in (gen, dis))
        self.dis_params = [p for p in dis.parameters() if p.requires_grad]
        adam = dict(lr=2e-4, betas=(0.5, 0.999), weight_decay=1e-4, fused=True)
        self.opt_gen = torch.optim.Adam(gen.parameters(), **adam)
        self.opt_dis = torch.optim.Adam(self.dis_params, **adam)
        self.dis_plain = torch.compile(dis) if compiled else dis
        if processes > 1:
            ddp = dict(broadcast_buffers=False, gradient_as_bucket_view=True)
            gen, dis = nn.parallel.DistributedDataParallel(gen, **ddp), nn.parallel.DistributedDataParallel(dis, **ddp)
        self.gen, self.dis = (torch.compile(gen), torch.compile(dis)) if compiled else (gen, dis)
        self.real = torch.rand(args.batch, 3, 32, 32, device=self.device).contiguous(memory_format=self.layout)

    def narrow(self):
        return torch.autocast(self.device, torch.bfloat16, enabled=self.autocast)

    def step(self):
        self.opt_dis.zero_grad(set_to_none=True)
        with self.narrow():
            fake = self.gen(torch.rand(self.real.shape[0], self.latent, device=self.device) * 2 - 1)
            loss = F.softplus(-self.dis(self.real)).mean() + F.softplus(self.dis(fake.detach())).mean()
        loss.backward()
        self.opt_dis.step()
        for p in self.dis_params:
            p.requires_grad_(False)
        self.opt_gen.zero_grad(set_to_none=True)
        with self.narrow():
            loss = F.softplus(-self.dis_plain(fake)).mean()
        loss.backward()
        self.opt_gen.step()
        for p in self.dis_params:
            p.requires_grad_(True)

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds_per_step(self, iterations, warmup):
        for _ in range(warmup):
            self.step()
        self.wait()
        start = time.perf_counter()
        for _ in range(iterations):
            self.step()
        self.wait()
        return (time.perf_counter() - start) / iterations


def measure(args, variant, processes):
    seconds = Trainer(args, variant, processes).seconds_per_step(args.iterations, args.warmup)
    if processes > 1:
        slowest = torch.tensor(seconds)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds = slowest.item()
    return args.batch * processes / seconds


def one_process(rank, args, variant):
    torch.set_num_threads(args.threads)
    if args.processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
        dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    rate = measure(args, variant, args.processes)
    if rank == 0:
        print(f"{rate:.1f}", flush=True)
    if args.processes > 1:
        dist.destroy_process_group()


def pick(args):
    """The fastest variant that works here, judged in one process."""
    torch.set_num_threads(args.threads)
    rates = {}
    for variant in VARIANTS:
        try:
            rates[variant] = statistics.median(measure(args, variant, 1) for _ in range(2))
            print(f"{variant}: {rates[variant]:.1f} images/s", file=sys.stderr)
        except Exception as error:  # torch.compile needs a C++ compiler and Python's headers
            print(f"{variant}: {str(error).splitlines()[0] if str(error) else type(error)}", file=sys.stderr)
    print(max(rates, key=rates.get))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="per process")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--latent", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument("--variant", choices=VARIANTS, default="channels_last")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--autocast", action="store_true", help="products in bf16")
    parser.add_argument("--pick", action="store_true")
    args = parser.parse_args()
    if args.pick:
        pick(args)
    elif args.processes == 1:
        one_process(0, args, args.variant)
    else:
        torch.multiprocessing.spawn(one_process, (args, args.variant), nprocs=args.processes)


if __name__ == "__main__":
    main()
