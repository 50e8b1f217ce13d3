"""Training steps of bench_dcgan.c and of bench_step.c's ResNet-18 in JAX on CPUs: prints images per second and, with
--memory, the most memory in MiB and the seconds that compiling took.

    bench_jax.py --model dcgan --batch 64 --channels 128
    bench_jax.py --model resnet18 --batch 16 --size 224

The networks, losses and optimizers are those of bench_torch.py, written in plain JAX. A step is one compiled function,
which updates its state in place (donated); running averages of normalisation are part of that state. Variants: the
layout of images (nhwc or nchw) and JAX's generator of random numbers (rbg or threefry). $NPROC bounds XLA's threads;
--threads sets it. XLA_FLAGS=--xla_cpu_max_isa=AVX2 holds the compiler to AVX2, but not the kernels that jaxlib brings
along.
"""
import argparse
import os
import resource
import time

DIMENSIONS = {"nhwc": ("NHWC", "HWIO", "NHWC"), "nchw": ("NCHW", "OIHW", "NCHW")}


class Net:
    """Layers with the layout as their only state. Parameters are dictionaries: "w", "b", "gamma", "beta"; statistics
    are dictionaries of "mean" and "var"."""

    def __init__(self, layout, key):
        self.layout, self.key, self.channel = layout, key, -1 if layout == "nhwc" else 1

    def normal(self, shape, deviation):
        self.key, key = jax.random.split(self.key)
        return deviation * jax.random.normal(key, shape)

    def filter(self, i, o, k):
        return (k, k, i, o) if self.layout == "nhwc" else (o, i, k, k)

    def conv_params(self, i, o, k, bias=True, deviation=0.02):
        made = {"w": self.normal(self.filter(i, o, k), deviation or (2 / (i * k * k)) ** 0.5)}
        return {**made, "b": jnp.zeros(o)} if bias else made

    def channels(self, v, rank=4):
        return v if rank == 2 else v.reshape([-1 if d == self.channel % rank else 1 for d in range(rank)])

    def conv(self, p, x, stride=1, pad=1):
        y = lax.conv_general_dilated(x, p["w"], (stride, stride), [(pad, pad)] * 2, dimension_numbers=DIMENSIONS[self.layout])
        return y + self.channels(p["b"]) if "b" in p else y

    def up(self, p, x, k, stride):
        """The transposed convolution with a padding of 1; filters lie as those of a convolution from in to out."""
        y = lax.conv_general_dilated(x, p["w"], (1, 1), [(k - 2, k - 2)] * 2, lhs_dilation=(stride, stride),
                                     dimension_numbers=DIMENSIONS[self.layout])
        return y + self.channels(p["b"])

    def norm_params(self, c, gamma=True):
        p = {"beta": jnp.zeros(c)}
        return {**p, "gamma": jnp.ones(c)} if gamma else p

    def norm(self, p, stats, x, eps=2e-5, decay=0.9):
        axes = tuple(d for d in range(x.ndim) if d != self.channel % x.ndim)
        mean = x.mean(axes)
        var = jnp.maximum((x * x).mean(axes) - mean * mean, 0)
        scale = lax.rsqrt(var + eps) * p.get("gamma", 1)
        y = x * self.channels(scale, x.ndim) + self.channels(p["beta"] - mean * scale, x.ndim)
        return y, {"mean": decay * stats["mean"] + (1 - decay) * mean, "var": decay * stats["var"] + (1 - decay) * var}

    def images(self, shape):
        n, c, h, w = shape
        return (n, h, w, c) if self.layout == "nhwc" else shape


def fresh(c):
    return {"mean": jnp.zeros(c), "var": jnp.ones(c)}


def sgd_init(params):
    return jax.tree.map(jnp.zeros_like, params)


def sgd(params, grads, speed, lr=1e-6, momentum=0.9, decay=5e-4):
    speed = jax.tree.map(lambda v, g, p: momentum * v + g + decay * p, speed, grads, params)
    return jax.tree.map(lambda p, v: p - lr * v, params, speed), speed


def adam_init(params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"m": zeros, "v": jax.tree.map(jnp.copy, zeros), "t": jnp.zeros((), jnp.int32)}


def adam(params, grads, state, lr=2e-4, b1=0.5, b2=0.999, eps=1e-8, decay=1e-4):
    t = state["t"] + 1
    grads = jax.tree.map(lambda g, p: g + decay * p, grads, params)
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state["v"], grads)
    rate, root = lr / (1 - b1 ** t), jnp.sqrt(1 - b2 ** t)
    return jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / root + eps), params, m, v), {"m": m, "v": v, "t": t}


class Dcgan:
    def __init__(self, args, key):
        ch = args.channels
        self.net, self.args = Net(args.layout, key), args
        net = self.net
        self.widths = [(3, ch >> 3, 3, 1), (ch >> 3, ch >> 2, 4, 2), (ch >> 2, ch >> 2, 3, 1), (ch >> 2, ch >> 1, 4, 2),
                       (ch >> 1, ch >> 1, 3, 1), (ch >> 1, ch, 4, 2), (ch, ch, 3, 1)]
        outs = [ch >> (i + 1) for i in range(3)]
        gen = {"l0": {"w": net.normal((args.latent, 16 * ch), 0.02), "b": jnp.zeros(16 * ch)},
               "bn0": net.norm_params(16 * ch), "up": [net.conv_params(ch >> i, ch >> (i + 1), 4) for i in range(3)],
               "bn": [net.norm_params(o) for o in outs], "last": net.conv_params(ch >> 3, 3, 3)}
        dis = {"conv": [net.conv_params(i, o, k) for i, o, k, _ in self.widths],
               "bn": [net.norm_params(o, gamma=False) for _, o, _, _ in self.widths[1:]],
               "last": {"w": net.normal((16 * ch, 1), 0.02), "b": jnp.zeros(1)}}
        self.real = jnp.full(net.images((args.batch, 3, 32, 32)), 0.5)
        self.state = {"gen": gen, "dis": dis, "opt_gen": adam_init(gen), "opt_dis": adam_init(dis), "key": net.key,
                      "gen_stats": [fresh(16 * ch)] + [fresh(o) for o in outs],
                      "dis_stats": [fresh(o) for _, o, _, _ in self.widths[1:]]}

    def generate(self, p, stats, z):
        net, ch, after = self.net, self.args.channels, []
        h, s = net.norm(p["bn0"], stats[0], z @ p["l0"]["w"] + p["l0"]["b"])
        after.append(s)
        h = jax.nn.relu(h).reshape(net.images((-1, ch, 4, 4)))
        for up, bn, s in zip(p["up"], p["bn"], stats[1:]):
            h, s = net.norm(bn, s, net.up(up, h, 4, 2))
            after.append(s)
            h = jax.nn.relu(h)
        return jax.nn.sigmoid(net.up(p["last"], h, 3, 1)), after

    def discriminate(self, p, stats, x, key):
        net, after = self.net, []
        keys = jax.random.split(key, len(self.widths) + 1)
        h = x + 0.2 * jax.random.normal(keys[-1], x.shape)
        for i, (conv, (_, _, _, stride)) in enumerate(zip(p["conv"], self.widths)):
            h = net.conv(conv, h, stride)
            if i > 0:
                h, s = net.norm(p["bn"][i - 1], stats[i - 1], h)
                after.append(s)
            h = jax.nn.leaky_relu(h + 0.2 * jax.random.normal(keys[i], h.shape), 0.2)
        return h.reshape(h.shape[0], -1) @ p["last"]["w"] + p["last"]["b"], after

    def step(self, state, real):
        key, *keys = jax.random.split(state["key"], 5)
        z = jax.random.uniform(keys[0], (real.shape[0], self.args.latent), minval=-1, maxval=1)
        fake, back, gen_stats = jax.vjp(lambda p: self.generate(p, state["gen_stats"], z), state["gen"], has_aux=True)

        def dis_loss(p):
            on_real, s = self.discriminate(p, state["dis_stats"], real, keys[1])
            on_fake, s = self.discriminate(p, s, fake, keys[2])
            return jax.nn.softplus(-on_real).mean() + jax.nn.softplus(on_fake).mean(), s

        grads, dis_stats = jax.grad(dis_loss, has_aux=True)(state["dis"])
        dis, opt_dis = adam(state["dis"], grads, state["opt_dis"])

        def gen_loss(x):
            scores, s = self.discriminate(dis, dis_stats, x, keys[3])
            return jax.nn.softplus(-scores).mean(), s

        slope, dis_stats = jax.grad(gen_loss, has_aux=True)(fake)
        gen, opt_gen = adam(state["gen"], back(slope)[0], state["opt_gen"])
        return {"gen": gen, "dis": dis, "opt_gen": opt_gen, "opt_dis": opt_dis, "key": key, "gen_stats": gen_stats,
                "dis_stats": dis_stats}


class Resnet18:
    def __init__(self, args, key):
        net, w = Net(args.layout, key), 64
        self.net = net
        blocks, stats, i = [], [fresh(w)], w
        for group in range(4):
            for place in range(2):
                o = w << group
                block = {"a": net.conv_params(i, o, 3, False, None), "an": net.norm_params(o),
                         "b": net.conv_params(o, o, 3, False, None), "bn": net.norm_params(o)}
                stats += [fresh(o), fresh(o)]
                if i != o:
                    block.update(r=net.conv_params(i, o, 1, False, None), rn=net.norm_params(o))
                    stats.append(fresh(o))
                blocks.append(block)
                i = o
        params = {"first": net.conv_params(3, w, 7, False, None), "norm": net.norm_params(w), "blocks": blocks,
                  "last": {"w": net.normal((8 * w, 1000), (1 / (8 * w)) ** 0.5), "b": jnp.zeros(1000)}}
        self.state = {"params": params, "speed": sgd_init(params), "stats": stats}
        self.real = net.normal(net.images((args.batch, 3, args.size, args.size)), 1.0)

    def scores(self, p, stats, x):
        net, after, stats = self.net, [], iter(stats)

        def norm(q, x):
            y, s = net.norm(q, next(stats), x, eps=1e-5)
            after.append(s)
            return y

        h = jax.nn.relu(norm(p["norm"], net.conv(p["first"], x, 2, 3)))
        edge = [(0, 0) if n == 1 else (1, 1) for n in net.images((1, 1, 2, 2))]
        h = lax.reduce_window(h, -jnp.inf, lax.max, net.images((1, 1, 3, 3)), net.images((1, 1, 2, 2)), edge)
        for at, q in enumerate(p["blocks"]):
            stride = 2 if "r" in q and at > 0 else 1
            y = jax.nn.relu(norm(q["an"], net.conv(q["a"], h, stride)))
            y = norm(q["bn"], net.conv(q["b"], y))
            h = jax.nn.relu(y + (norm(q["rn"], net.conv(q["r"], h, stride, 0)) if "r" in q else h))
        h = h.mean((1, 2) if net.layout == "nhwc" else (2, 3))
        return h @ p["last"]["w"] + p["last"]["b"], after

    def step(self, state, x):
        def loss(p):
            y, stats = self.scores(p, state["stats"], x)
            return -jax.nn.log_softmax(y)[:, 3].mean(), stats

        grads, stats = jax.grad(loss, has_aux=True)(state["params"])
        params, speed = sgd(state["params"], grads, state["speed"])
        return {"params": params, "speed": speed, "stats": stats}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("dcgan", "resnet18"), default="dcgan")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--channels", type=int, default=128, help="of the DCGAN")
    parser.add_argument("--latent", type=int, default=100)
    parser.add_argument("--size", type=int, default=224, help="of the ResNet's images")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layout", choices=DIMENSIONS, default="nhwc")
    parser.add_argument("--random", choices=("rbg", "threefry"), default="threefry")
    parser.add_argument("--memory", action="store_true")
    args = parser.parse_args()
    os.environ["NPROC"] = str(args.threads)
    global jax, jnp, lax
    import jax
    import jax.numpy as jnp
    from jax import lax
    jax.config.update("jax_platforms", "cpu")
    key = jax.random.key(1, impl="rbg" if args.random == "rbg" else "threefry2x32")
    model = {"dcgan": Dcgan, "resnet18": Resnet18}[args.model](args, key)
    start = time.perf_counter()
    step = jax.jit(model.step, donate_argnums=0).lower(model.state, model.real).compile()
    compiling = time.perf_counter() - start
    state = model.state
    for i in range(-args.warmup, args.iterations):
        if i == 0:
            jax.block_until_ready(state)
            start = time.perf_counter()
        state = step(state, model.real)
    jax.block_until_ready(state)
    rate = args.batch * args.iterations / (time.perf_counter() - start)
    if any(not bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.float32):
        raise SystemExit("bench_jax: the state is not finite after these steps")
    rate = f"{rate:.{3 if rate < 100 else 1}f}"
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{rate} {most:.0f} {compiling:.2f}" if args.memory else rate)


if __name__ == "__main__":
    main()
