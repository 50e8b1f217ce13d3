#!/usr/bin/env python3
"""Makes the numbers of golden.c with PyTorch: ten losses of a small network in double precision.

Inputs and initial parameters are sines of the element's number (row-major), the same in golden.c.
"""
import torch

torch.set_default_dtype(torch.float64)


def wave(shape, scale, step, phase, offset=0.0):
    count = 1
    for n in shape:
        count *= n
    return (offset + scale * torch.sin(step * torch.arange(count, dtype=torch.float64) + phase)).reshape(shape)


def network():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        torch.nn.BatchNorm2d(4, eps=1e-5),
        torch.nn.LeakyReLU(0.2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 5),
    )
    with torch.no_grad():
        model[0].weight.copy_(wave((4, 3, 3, 3), 0.3, 0.7, 0.2))
        model[1].weight.copy_(wave((4,), 0.1, 1.0, 0.5, 1.0))
        model[1].bias.copy_(wave((4,), 0.1, 1.3, 0.4))
        model[4].weight.copy_(wave((5, 64), 0.2, 0.9, 0.3))
        model[4].bias.copy_(wave((5,), 0.1, 1.1, 0.7))
    return model


def losses(make_optimizer):
    model = network()
    optimizer = make_optimizer(model.parameters())
    labels = torch.tensor([(i * i + 1) % 5 for i in range(6)])
    result = []
    for step in range(10):
        loss = torch.nn.functional.cross_entropy(model(wave((6, 3, 8, 8), 1.0, 0.37, float(step))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


for name, make in (
    ("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    ("adam", lambda p: torch.optim.Adam(p, lr=0.01)),
):
    print(f"static const double {name}_losses[STEPS] = {{")
    print(",\n".join(f"    {loss:.16g}" for loss in losses(make)) + "};")
