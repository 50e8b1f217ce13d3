#!/usr/bin/env python3
"""Random cases of torch.nn.LSTM and GRU in f64 as a text file for tests/outside/torch_recurrent.c: torch_recurrent.py
FILE CASES SEED. A case is a line "case GRU LEVELS BOTH BIASES LENGTHS STATE N T IN HIDDEN", then lines of numbers: x, the
lengths and the initial state where there are some, the parameters in order, y and the final state, the gradients of x and
of the initial state, those of the parameters, all of the objective sum(y sigmoid(y)) + sum(tanh(state))."""
import random
import sys

import torch


def tell(file, tensor):
    file.write(" ".join(repr(float(v)) for v in tensor.detach().reshape(-1)) + "\n")


def joined(states):
    """[K,N,H] of each of (h, c) as [N,S,H]."""
    return torch.cat(states, 0).transpose(0, 1)


def case(file, draw):
    gru, levels, both, biases = draw.random() < 0.5, draw.randint(1, 3), draw.random() < 0.5, draw.random() < 0.7
    with_lengths, with_state = draw.random() < 0.5, draw.random() < 0.6
    n, t, width, hidden = draw.randint(1, 5), draw.randint(1, 7), draw.randint(1, 6), draw.randint(1, 9)
    layer = (torch.nn.GRU if gru else torch.nn.LSTM)(width, hidden, levels, bias=biases, batch_first=True, bidirectional=both)
    x = torch.randn(n, t, width, requires_grad=True)
    rows = levels * (2 if both else 1)
    states = [torch.randn(rows, n, hidden, requires_grad=True) for _ in range(1 if gru else 2)]
    lengths = torch.tensor([draw.randint(1, t) for _ in range(n)])
    begin = None if not with_state else states[0] if gru else tuple(states)
    if with_lengths:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, last = layer(packed, begin)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=t)
    else:
        y, last = layer(x, begin)
    final = joined([last] if gru else list(last))
    ((y * torch.sigmoid(y)).sum() + torch.tanh(final).sum()).backward()
    file.write("case " + " ".join(str(int(v)) for v in (gru, levels, both, biases, with_lengths, with_state, n, t, width,
                                                       hidden)) + "\n")
    tell(file, x)
    if with_lengths:
        tell(file, lengths)
    if with_state:
        tell(file, joined(states))
    for p in layer.parameters():
        tell(file, p)
    tell(file, y)
    tell(file, final)
    tell(file, x.grad)
    if with_state:
        tell(file, joined([s.grad for s in states]))
    for p in layer.parameters():
        tell(file, p.grad)


def main():
    path, cases, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    draw = random.Random(seed)
    print(f"PyTorch {torch.__version__}, {cases} cases of seed {seed}")
    with open(path, "w", encoding="ascii") as file:
        for _ in range(cases):
            case(file, draw)


main()
