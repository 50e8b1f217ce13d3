#!/usr/bin/env python3
"""The losses of BasicNet without dropout beside PyTorch's, from the same weights on the same batches: torch_basicnet.py
TORCH_BASICNET. 200 steps of SGD in f32, and 20 of AdamW in f64, which a CPU computes in plain loops: on few images."""
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("SKIP: this Python has no PyTorch (pip install torch numpy)")
    sys.exit(77)
import torch.nn as nn

BATCHES = 4


def basic_net():
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(1))


def run(program, kind, dtype, steps, size, most):
    torch.manual_seed(3)
    model = basic_net().double()
    patterns, noise = torch.rand(10, 1, 28, 28, dtype=torch.double), 0.5
    labels = [torch.randint(10, (size,)) for _ in range(BATCHES)]
    images = [patterns[t] + noise * torch.randn(size, 1, 28, 28, dtype=torch.double) for t in labels]
    with tempfile.NamedTemporaryFile() as file:
        for p in model.parameters():
            file.write(p.detach().numpy().tobytes())
        for x, t in zip(images, labels):
            file.write(x.numpy().tobytes() + t.double().numpy().tobytes())
        file.flush()
        said = subprocess.run([program, file.name, kind, dtype, str(steps), str(size), str(BATCHES)], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
    ours = [float(line) for line in said.split()]
    model, images = (model.float(), [x.float() for x in images]) if dtype == "f32" else (model, images)
    optim = (torch.optim.SGD(model.parameters(), lr=1e-3) if kind == "sgd" else torch.optim.AdamW(model.parameters(), lr=1e-3))
    theirs = []
    for i in range(steps):
        optim.zero_grad()
        loss = nn.functional.nll_loss(model(images[i % BATCHES]), labels[i % BATCHES])
        loss.backward()
        optim.step()
        theirs.append(loss.item())
    far = max(abs(a - b) for a, b in zip(ours, theirs))
    print(f"{kind} {dtype}: {len(ours)} steps, loss {theirs[0]:.4f} to {theirs[-1]:.4f}, at most {far:.2g} apart")
    near = all(abs(a - b) <= most for a, b in zip(ours, theirs)) # false of a NaN, which max() may drop
    return len(ours) == steps and theirs[-1] < theirs[0] and near


def main():
    torch.set_num_threads(1)
    good = [run(sys.argv[1], "sgd", "f32", 200, 32, 1e-4), run(sys.argv[1], "adamw", "f64", 20, 8, 1e-9)]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
