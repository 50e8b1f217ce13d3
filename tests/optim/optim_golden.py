"""Prints the table of tests/optim/optim_algorithms.c: parameters after five steps of PyTorch's optimizers, in double."""

import torch

START = [0.5, -1.25, 2.0, 0.0, -0.75, 3.5]


def gradient(step):
    return [((i * 7 + step * 3) % 11 - 5) / 8 for i in range(len(START))]


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
    print('    {"%s", {%s}},' % (name, ", ".join("%.17g" % v for v in p.tolist())))
