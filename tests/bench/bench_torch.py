"""Training steps of Weft's benches in PyTorch: prints images per second over all processes, and nothing else.

    bench_torch.py --batch 64 --channels 128 --threads 2                   the DCGAN step of bench_dcgan.c, one process
    bench_torch.py --batch 32 --channels 128 --threads 1 --processes 2     DistributedDataParallel over gloo
    bench_torch.py --model vgg|resnet18|resnet50|convnext_t|unet2|unet3|mlp|cnn|basicnet|gpt|lstm ...    the models of bench_step.c
    bench_torch.py --model swin-t|swin-b|vit-s|convnext-t|convnext-l ...   those of torchvision, which has to be there
    bench_torch.py --device cuda --precision bf16 ...                      on a GPU, by autocast (f32: products in tf32)
    bench_torch.py ... --eval                                              outputs alone, in inference mode
    bench_torch.py ... --memory                                            and the most memory in MiB, of one process, and by
                                                                           how many seconds its first step took longer
    bench_torch.py ... --pick                                              prints the fastest --variant instead
    bench_torch.py ... --best                                              prints its images per second and its name
    bench_torch.py ... --best --warm                                       the same with steps to compile, but not to time

Variants: eager (NCHW, which oneDNN reorders to its blocked layouts), channels_last, and either of them under
torch.compile; on a GPU also graphs_channels_last, compiled and replayed as a CUDA graph. All of them use fused
optimizers, and leave the discriminator's gradients out of the generator's step, as Weft does.
"""
import argparse
import os
import resource
import statistics
import sys
import time

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VARIANTS = ("eager", "channels_last", "compile", "compile_channels_last")
VARIANTS_CUDA = ("compile_channels_last", "graphs_channels_last", "channels_last")
PRECISIONS = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}


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


class Unet(nn.Module):
    """examples/models/unet.c"""

    def __init__(self, dims, width, levels, inputs, norm):
        super().__init__()
        conv, bn = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
        if norm == "group":
            def bn(channels, eps):
                return nn.GroupNorm(8, channels, eps)
        pool, up = (nn.MaxPool2d, nn.ConvTranspose2d) if dims == 2 else (nn.MaxPool3d, nn.ConvTranspose3d)

        def twice(i, o):
            return nn.Sequential(conv(i, o, 3, padding=1, bias=False), bn(o, eps=2e-5), nn.ReLU(inplace=True),
                                 conv(o, o, 3, padding=1, bias=False), bn(o, eps=2e-5), nn.ReLU(inplace=True))

        widths = [width << i for i in range(levels + 1)]
        self.before = nn.ModuleList(twice(i, o) for i, o in zip([inputs] + widths[:-1], widths))
        self.pool = pool(2)
        self.up = nn.ModuleList(up(2 * w, w, 2, 2) for w in widths[:-1])
        self.after = nn.ModuleList(twice(2 * w, w) for w in widths[:-1])
        self.scores = conv(width, 1, 1)

    def forward(self, x):
        seen = []
        for i, before in enumerate(self.before):
            x = before(x if i == 0 else self.pool(x))
            seen.append(x)
        for i in reversed(range(len(self.up))):
            x = self.after[i](torch.cat((seen[i], self.up[i](x)), 1))
        return self.scores(x)


def vgg16(w):
    """examples/models/vgg.c"""
    layers, before = [], 3
    for out, convolutions, rate in ((w, 2, 0.3), (2 * w, 2, 0.4), (4 * w, 3, 0.4), (8 * w, 3, 0.4), (8 * w, 3, 0.4)):
        for i in range(convolutions):
            layers += [nn.Conv2d(before, out, 3, padding=1, bias=False), nn.BatchNorm2d(out, eps=2e-5),
                       nn.ReLU(inplace=True)]
            if i + 1 < convolutions:
                layers.append(nn.Dropout(rate))
            before = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * w, 8 * w, bias=False),
                         nn.BatchNorm1d(8 * w, eps=2e-5), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8 * w, 10))


class Block(nn.Module):
    def __init__(self, path, round_):
        super().__init__()
        self.path, self.round = path, round_

    def forward(self, x):
        return F.relu(self.path(x) + self.round(x), inplace=True)


def resnet(depth, w, classes):
    """examples/models/resnet.c, for large images"""

    def conv(i, o, k, s):
        return [nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o, eps=1e-5)]

    def block(i, o, s):
        relu = [nn.ReLU(inplace=True)]
        if depth == 18:
            path = conv(i, o, 3, s) + relu + conv(o, o, 3, 1)
        else:
            path = conv(i, o // 4, 1, 1) + relu + conv(o // 4, o // 4, 3, s) + relu + conv(o // 4, o, 1, 1)
        round_ = nn.Identity() if i == o and s == 1 else nn.Sequential(*conv(i, o, 1, s))
        return Block(nn.Sequential(*path), round_)

    layers = conv(3, w, 7, 2) + [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = w
    for i, blocks in enumerate((2, 2, 2, 2) if depth == 18 else (3, 4, 6, 3)):
        out = (w << i) * (1 if depth == 18 else 4)
        layers += [block(out if j else before, out, 2 if i and not j else 1) for j in range(blocks)]
        before = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Channels(nn.LayerNorm):
    """Of the channels of each pixel"""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """With linear layers on permuted images, as torchvision's"""

    def __init__(self, w, rate):
        super().__init__()
        self.first = nn.Conv2d(w, w, 7, padding=3, groups=w)
        self.rest = nn.Sequential(nn.LayerNorm(w, eps=1e-6), nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w))
        self.scale, self.rate = nn.Parameter(torch.full((w, 1, 1), 1e-6)), rate

    def forward(self, x):
        y = self.scale * self.rest(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.training and self.rate > 0:
            keep = torch.rand(len(x), 1, 1, 1, device=x.device, dtype=y.dtype) >= self.rate
            y = y * keep / (1 - self.rate)
        return x + y


def convnext_t(w, classes):
    """examples/models/convnext.c"""
    layers, blocks = [nn.Conv2d(3, w, 4, 4), Channels(w, eps=1e-6)], (3, 3, 9, 3)
    for stage, count in enumerate(blocks):
        wide = w << stage
        if stage:
            layers += [Channels(wide // 2, eps=1e-6), nn.Conv2d(wide // 2, wide, 2, 2)]
        deep = sum(blocks[:stage])
        layers += [ConvNextBlock(wide, 0.1 * (deep + i) / (sum(blocks) - 1)) for i in range(count)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), Channels(8 * w, eps=1e-6), nn.Flatten(), nn.Linear(8 * w, classes))


def mnist_mlp():
    """examples/models/mnist.c, as are the convolutions"""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(),
                         nn.Linear(1000, 10))


def mnist_cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(),
                         nn.Linear(128, 10))


def mnist_basic():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Dropout(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
                         nn.Linear(128, 10), nn.LogSoftmax(1))


class Trainer:
    """What the models have in common: device, layout, compilation, precision."""

    def __init__(self, args, variant, processes):
        torch.manual_seed(1)
        self.device, self.type, self.processes = args.device, PRECISIONS[args.precision], processes
        self.last = variant.endswith("channels_last")
        self.graphs = variant.startswith("graphs")
        self.compiled = variant.startswith("compile") or self.graphs
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = not args.untuned
        if self.compiled and args.device == "cpu":  # its own normal numbers are scalar code on a CPU
            torch._inductor.config.fallback_random = True
        self.scaler = torch.amp.GradScaler(args.device, enabled=self.type is torch.float16)
        self.eval = args.eval
        self.make(args)
        if self.eval:
            self.model.eval()

    def layout(self, rank=4):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return formats[rank] if self.last else torch.contiguous_format

    def place(self, model, rank=4):
        return model.to(self.device, memory_format=self.layout(rank))

    def share(self, model):
        """Over the processes, and compiled."""
        if self.processes > 1:
            model = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        return self.compile(model)

    def compile(self, model):
        return torch.compile(model, mode="reduce-overhead" if self.graphs else None) if self.compiled else model

    def narrow(self):
        return torch.autocast(self.device, self.type or torch.bfloat16, enabled=self.type is not None)

    def begin(self):
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()

    def update(self, optimizer, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds_per_step(self, iterations, warmup):
        self.first = 0
        for i in range(warmup):
            start = time.perf_counter()
            self.step()
            if i == 0:
                self.wait()
                self.first = time.perf_counter() - start
        self.wait()
        start = time.perf_counter()
        for _ in range(iterations):
            self.step()
        self.wait()
        return (time.perf_counter() - start) / iterations


class Dcgan(Trainer):
    def make(self, args):
        self.latent = args.latent
        gen, dis = Generator(args.channels, args.latent), Discriminator(args.channels)
        initialise(gen)
        initialise(dis)
        gen, dis = self.place(gen), self.place(dis)
        self.dis_params = [p for p in dis.parameters() if p.requires_grad]
        adam = dict(lr=2e-4, betas=(0.5, 0.999), weight_decay=1e-4, fused=True)
        self.opt_gen = torch.optim.Adam(gen.parameters(), **adam)
        self.opt_dis = torch.optim.Adam(self.dis_params, **adam)
        self.dis_plain = self.compile(dis)
        self.gen, self.dis = self.share(gen), self.share(dis)
        self.real = torch.rand(args.batch, 3, 32, 32, device=self.device).contiguous(memory_format=self.layout())

    def step(self):
        self.begin()
        self.opt_dis.zero_grad(set_to_none=True)
        with self.narrow():
            fake = self.gen(torch.rand(self.real.shape[0], self.latent, device=self.device) * 2 - 1)
            loss = F.softplus(-self.dis(self.real)).mean() + F.softplus(self.dis(fake.detach())).mean()
        self.update(self.opt_dis, loss)
        for p in self.dis_params:
            p.requires_grad_(False)
        self.opt_gen.zero_grad(set_to_none=True)
        with self.narrow():
            loss = F.softplus(-self.dis_plain(fake)).mean()
        self.update(self.opt_gen, loss)
        for p in self.dis_params:
            p.requires_grad_(True)


class Supervised(Trainer):
    def step(self):
        self.begin()
        if self.eval:
            with torch.inference_mode(), self.narrow():
                self.model(self.x)
            return
        self.optimizer.zero_grad(set_to_none=True)
        with self.narrow():
            loss = self.loss(self.model(self.x), self.target)
        self.update(self.optimizer, loss)


class Classifier(Supervised):
    def make_from(self, args, model, shape, adam=False):
        model = self.place(model)
        if adam:
            self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=True)
        else:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4, fused=True)
        self.model, self.loss = self.share(model), F.cross_entropy
        self.x = torch.rand(args.batch, *shape, device=self.device).contiguous(memory_format=self.layout())
        self.target = torch.full((args.batch,), 3, device=self.device)


class Vgg(Classifier):
    def make(self, args):
        self.make_from(args, vgg16(args.width), (3, 32, 32))


class Resnet18(Classifier):
    depth = 18

    def make(self, args):
        self.make_from(args, resnet(self.depth, args.width, 1000), (3, args.size, args.size))


class Resnet50(Resnet18):
    depth = 50


class ConvNextT(Classifier):
    def make(self, args):
        self.make_from(args, convnext_t(args.width, 1000), (3, args.size, args.size), adam=True)


class Named(Classifier):
    """torchvision's, by bench_step's name"""

    def make(self, args):
        from torchvision import models
        vit_s = dict(image_size=args.size, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536)
        make = {"swin-t": models.swin_t, "swin-b": models.swin_b, "convnext-t": models.convnext_tiny,
                "convnext-l": models.convnext_large, "vit-s": lambda: models.VisionTransformer(**vit_s)}
        self.make_from(args, make[args.model](), (3, args.size, args.size), adam=True)


class GptBlock(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.inner, self.outer = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.mlp = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inner(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outer(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GptNet(nn.Module):
    """examples/models/gpt.c, of medium size"""

    def __init__(self, symbols=256, tokens=1024, features=640, heads=10, blocks=6):
        super().__init__()
        self.table, self.places = nn.Embedding(symbols, features), nn.Parameter(torch.zeros(tokens, features))
        self.blocks = nn.Sequential(*(GptBlock(features, heads) for _ in range(blocks)), nn.LayerNorm(features))

    def forward(self, x):
        return F.linear(self.blocks(self.table(x) + self.places), self.table.weight)


class Gpt(Supervised):
    def make(self, args):
        model = GptNet().to(self.device)
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=True)
        self.model = self.share(model)
        self.loss = lambda y, target: F.cross_entropy(y.flatten(0, 1), target.flatten())
        self.x = (torch.arange(args.batch * 1024, device=self.device) * 7919 % 256).view(args.batch, 1024)
        self.target = self.x


class Lstm(Supervised):
    def make(self, args):
        model = nn.LSTM(512, 512, 2, batch_first=True).to(self.device)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, fused=True)
        self.model = self.share(model)
        self.loss = lambda y, target: F.mse_loss(y[0], target)
        self.x, self.target = (torch.rand(args.batch, 64, 512, device=self.device) for _ in range(2))


class Mlp(Classifier):
    def make(self, args):
        self.make_from(args, mnist_mlp(), (1, 28, 28), adam=True)


class Cnn(Classifier):
    def make(self, args):
        self.make_from(args, mnist_cnn(), (1, 28, 28), adam=True)


class BasicNet(Classifier):
    def make(self, args):
        self.make_from(args, mnist_basic(), (1, 28, 28))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
        self.loss = F.nll_loss


class Unets(Supervised):
    dims = 2

    def make(self, args):
        shape, rank = [args.size] * self.dims, self.dims + 2
        model = self.place(Unet(self.dims, args.width, 4 if self.dims == 2 else 3, 1, args.norm), rank)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
        self.model, self.loss = self.share(model), F.binary_cross_entropy_with_logits
        self.x, noise = (torch.rand(args.batch, 1, *shape, device=self.device) for _ in range(2))
        self.x = self.x.contiguous(memory_format=self.layout(rank))
        self.target = (noise > 0.5).float().contiguous(memory_format=self.layout(rank))


class Unets3(Unets):
    dims = 3


MODELS = {"dcgan": Dcgan, "vgg": Vgg, "resnet18": Resnet18, "resnet50": Resnet50, "convnext_t": ConvNextT,
          "unet2": Unets, "unet3": Unets3, "mlp": Mlp, "cnn": Cnn, "basicnet": BasicNet, "gpt": Gpt, "lstm": Lstm,
          **dict.fromkeys(("swin-t", "swin-b", "vit-s", "convnext-t", "convnext-l"), Named)}


def measure(args, variant, processes):
    iterations = 1 if args.warm else args.iterations
    trainer = MODELS[args.model](args, variant, processes)
    seconds = trainer.seconds_per_step(iterations, args.warmup)
    extra = max(trainer.first - seconds, 0)
    if processes > 1:
        slowest = torch.tensor(seconds)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds = slowest.item()
    return args.batch * processes / seconds, extra


def one_process(rank, args, variant):
    torch.set_num_threads(args.threads)
    if args.processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
        dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    rate, extra = measure(args, variant, args.processes)
    if rank == 0:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rate = f"{rate:.{3 if rate < 100 else 1}f}"
        print(f"{rate} {most:.0f} {extra:.2f}" if args.memory else rate, flush=True)
    if args.processes > 1:
        dist.destroy_process_group()


def variants_of(args):
    if args.device == "cpu":
        return VARIANTS
    return VARIANTS_CUDA + ("eager", "compile") if args.model == "unet3" else VARIANTS_CUDA


def fastest(args):
    """The fastest variant that works here, judged in one process: its rate and its name."""
    torch.set_num_threads(args.threads)
    rates, begin = {}, time.perf_counter()
    for variant in variants_of(args):
        if rates and time.perf_counter() - begin > args.seconds:
            break
        try:
            rates[variant] = statistics.median(measure(args, variant, 1)[0] for _ in range(1 if args.best else 2))
            print(f"{variant}: {rates[variant]:.1f} images/s", file=sys.stderr)
        except Exception as error:  # torch.compile needs a C++ compiler and Python's headers
            print(f"{variant}: {str(error).splitlines()[0] if str(error) else type(error)}", file=sys.stderr)
        torch.compiler.reset()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    if not rates:
        sys.exit("no variant works here")
    best = max(rates, key=rates.get)
    return rates[best], best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="dcgan")
    parser.add_argument("--batch", type=int, default=64, help="per process")
    parser.add_argument("--channels", type=int, default=128, help="of the DCGAN")
    parser.add_argument("--latent", type=int, default=100)
    parser.add_argument("--width", type=int, default=64, help="of the first level or group")
    parser.add_argument("--size", type=int, default=128, help="of a U-Net's images or volumes")
    parser.add_argument("--norm", choices=("batch", "group"), default="batch", help="of a U-Net; group: of eight groups")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--port", type=int, default=29511)
    parser.add_argument("--variant", choices=sorted({*VARIANTS, *VARIANTS_CUDA}), default="channels_last")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--eval", action="store_true", help="the output in evaluation; not of dcgan")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--pick", action="store_true")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--untuned", action="store_true", help="cuDNN's heuristics choose, not its timing of engines")
    parser.add_argument("--seconds", type=float, default=1e9, help="after these --best begins no further variant")
    args = parser.parse_args()
    if args.pick or args.best:
        rate, variant = fastest(args)
        print(f"{rate:.1f} {variant}" if args.best else variant)
    elif args.processes == 1:
        one_process(0, args, args.variant)
    else:
        torch.multiprocessing.spawn(one_process, (args, args.variant), nprocs=args.processes)


if __name__ == "__main__":
    main()
