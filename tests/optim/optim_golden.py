"""Prints the table of tests/optim/optim_algorithms.c: parameters after five steps of PyTorch's optimizers, in double
(twelve in the last case of RAdam).

PyTorch has no LAMB: that is written out here as apex's FusedLAMB computes it (csrc/multi_tensor_lamb.cu, in its mode 1,
with averaged gradients and corrected bias), and needs no PyTorch."""

import math

START = [0.5, -1.25, 2.0, 0.0, -0.75, 3.5]


def gradient(step):
    return [((i * 7 + step * 3) % 11 - 5) / 8 for i in range(len(START))]


def lamb(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, decay=0.01, always=False, most=math.inf):
    p, m, v = list(START), [0.0] * len(START), [0.0] * len(START)
    for step in range(5):
        g = gradient(step)
        norm = math.sqrt(sum(x * x for x in g))
        g = [x / max(1, norm / most) for x in g]
        m = [beta1 * a + (1 - beta1) * x for a, x in zip(m, g)]
        v = [beta2 * a + (1 - beta2) * x * x for a, x in zip(v, g)]
        bias1, bias2 = 1 - beta1 ** (step + 1), 1 - beta2 ** (step + 1)
        move = [a / bias1 / (math.sqrt(b / bias2) + eps) + decay * x for a, b, x in zip(m, v, p)]
        length, along = (math.sqrt(sum(x * x for x in list)) for list in (p, move))
        ratio = length / along if (always or decay) and length and along else 1
        p = [x - lr * ratio * d for x, d in zip(p, move)]
    return p


def radam(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.0, steps=5):
    """As torch/optim/radam.py computes it."""
    p, m, v = list(START), [0.0] * len(START), [0.0] * len(START)
    for step in range(1, steps + 1):
        g = [x + decay * y for x, y in zip(gradient(step - 1), p)]
        m = [beta1 * a + (1 - beta1) * x for a, x in zip(m, g)]
        v = [beta2 * a + (1 - beta2) * x * x for a, x in zip(v, g)]
        bias1, bias2 = 1 - beta1 ** step, 1 - beta2 ** step
        most = 2 / (1 - beta2) - 1
        rho = most - 2 * step * beta2 ** step / bias2
        rect = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) if rho > 5 else 0
        scale = [math.sqrt(bias2) / (math.sqrt(b) + eps) * rect if rect else 1.0 for b in v]
        p = [x - lr * a / bias1 * s for x, a, s in zip(p, m, scale)]
    return p


def adagrad(lr=0.01, eps=1e-10, decay=0.0):
    """As torch/optim/adagrad.py computes it."""
    p, v = list(START), [0.0] * len(START)
    for step in range(5):
        g = [x + decay * y for x, y in zip(gradient(step), p)]
        v = [a + x * x for a, x in zip(v, g)]
        p = [x - lr * y / (math.sqrt(a) + eps) for x, y, a in zip(p, g, v)]
    return p


def rmsprop_sgd(lr=0.1, rms=3e-4, momentum=0.9, alpha=0.99, eps=1e-8, decay=0.0, centre=3, period=2, steps=5):
    """As Akiba, Suzuki and Fukuda (2017) write it down, with a turn by updates."""
    p, m, v = list(START), [0.0] * len(START), [0.0] * len(START)
    for step in range(steps):
        g = [x + decay * y for x, y in zip(gradient(step), p)]
        at = (step - centre) / period
        share = 0.5 * math.exp(2 * at) if at < 0 else 0.5 + at if at < 0.5 else 1
        v = [alpha * a + (1 - alpha) * x * x for a, x in zip(v, g)]
        m = [momentum * a + (share + (1 - share) * rms / lr / (math.sqrt(b) + eps)) * x for a, b, x in zip(m, v, g)]
        p = [x - lr * a for x, a in zip(p, m)]
    return p


LAMB = [
    ("lamb", dict()),
    ("lamb decay", dict(lr=0.02, beta1=0.5, beta2=0.9, eps=1e-3, decay=0.2)),
    ("lamb no decay", dict(lr=0.02, decay=0)),
    ("lamb scaled", dict(lr=0.02, decay=0, always=True)),
    ("lamb clipped", dict(lr=0.05, eps=0.1, most=1.0)),
]


def row(name, values):
    print('    {"%s", {%s}},' % (name, ", ".join("%.17g" % v for v in values)))


for name, options in LAMB:
    row(name, lamb(**options))

for name, values in [("radam", radam()), ("radam decay", radam(lr=0.05, beta2=0.9, decay=0.2)),
                     ("radam of 12", radam(lr=0.02, beta1=0.5, beta2=0.9, eps=1e-3, decay=0.05, steps=12)),
                     ("rmsprop_sgd", rmsprop_sgd()),
                     ("rmsprop_sgd decay", rmsprop_sgd(lr=0.02, rms=0.01, momentum=0.5, alpha=0.9, eps=1e-3, decay=0.05,
                                                       centre=2, period=6)),
                     ("adagrad", adagrad()), ("adagrad decay", adagrad(lr=0.1, eps=1e-3, decay=0.05))]:
    row(name, values)

import torch  # noqa: E402

CASES = [
    ("sgd", torch.optim.SGD, dict(lr=0.1)),
    ("sgd momentum", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("sgd decay", torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.05)),
    ("sgd nesterov", torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True)),
    ("adam", torch.optim.Adam, dict(lr=0.01)),
    ("adam dcgan", torch.optim.Adam, dict(lr=0.02, betas=(0.5, 0.9), weight_decay=0.05)),
    ("adam beta1 0", torch.optim.Adam, dict(lr=0.02, betas=(0.0, 0.999), eps=1e-3)),
    ("adamw", torch.optim.AdamW, dict(lr=0.01)),
    ("adamw decay", torch.optim.AdamW, dict(lr=0.02, weight_decay=0.2)),
    ("adamw no decay", torch.optim.AdamW, dict(lr=0.02, weight_decay=0.0)),
    ("rmsprop", torch.optim.RMSprop, dict(lr=0.01)),
    ("rmsprop decay", torch.optim.RMSprop, dict(lr=0.02, alpha=0.9, eps=1e-4, weight_decay=0.05)),
]

for name, kind, options in CASES:
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optim = kind([p], **options)
    for step in range(5):
        p.grad = torch.tensor(gradient(step), dtype=torch.float64)
        optim.step()
    row(name, p.tolist())
