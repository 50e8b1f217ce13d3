"""Files that tools/from_pytorch.py refuses in one line, and those of which it takes a part: from_pytorch_files.py TOOL
FOLDER. Where PyTorch is not found, torch_stand_in takes its place."""
import collections
import contextlib
import fractions
import importlib.util
import io
import os
import runpy
import sys

import h5py
import numpy

tool, folder = sys.argv[1:]
if importlib.util.find_spec("torch") is None:
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_stand_in"))
import torch

ARRAYS = {"conv.weight": numpy.arange(24, dtype=numpy.float32).reshape(2, 3, 2, 2),
          "conv.bias": numpy.array([1, 2], numpy.float32),
          "bn.weight": numpy.array([3, 4], numpy.float32), "bn.bias": numpy.array([5, 6], numpy.float32),
          "bn.running_mean": numpy.array([7, 8], numpy.float32), "bn.running_var": numpy.array([9, 10], numpy.float32),
          "bn.num_batches_tracked": numpy.array(12345, numpy.int64)}
TARGET = os.path.join(folder, "files.h5")


def tensors(prefix=""):
    return {prefix + name: torch.from_numpy(numpy.array(x)) for name, x in ARRAYS.items()}


def at(name):
    return os.path.join(folder, name)


def run(*words):
    """The exit code of the tool, and what it says. An error that it does not catch ends this test."""
    sys.argv = [tool, *words]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            runpy.run_path(tool, run_name="__main__")
        except SystemExit as end:
            return 1, f"{said.getvalue()}{end.code}\n"
    return 0, said.getvalue()


def expect_refused(name, says):
    code, said = run(at(name), TARGET)
    assert code == 1 and said.startswith(f"from_pytorch: {at(name)}: ") and said.count("\n") == 1, (name, code, said)
    assert says in said, (name, says, said)
    assert not os.path.exists(TARGET), name


def expect_taken(name, *told):
    code, said = run(at(name), TARGET)
    assert code == 0, (name, said)
    assert said == "".join(f"from_pytorch: {at(name)}: {line}\n" for line in told), (name, said)
    with h5py.File(TARGET, "r") as file:
        assert numpy.array_equal(file["conv/W"][()], ARRAYS["conv.weight"]), name
        assert file["bn/N"][()] == 12345, name
    os.remove(TARGET)


def write(name, data):
    with open(at(name), "wb") as file:
        file.write(data)


def whole_module():
    layers = {mode: torch.nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode) for mode in
              ("zeros", "circular", "reflect", "replicate")}
    return torch.nn.Sequential(collections.OrderedDict(layers))


def expect_modes(expected, *words, told=""):
    """The attributes of the data sets in the model file that the tool makes."""
    assert run(*words, TARGET) == (0, told), words
    with h5py.File(TARGET, "r") as file:
        sets = [f"{group}/{name}" for group in file for name in file[group]]
        seen = {name: file[name].attrs["padding_mode"] for name in sets if file[name].attrs}
    assert seen == expected, (words, seen)


def padding_modes():
    """They come from a whole module, from a table, or from an option, and are told on the way back."""
    torch.save(whole_module(), at("whole.pt"))
    modes = {f"{mode}/W": mode for mode in ("zeros", "circular", "reflect", "replicate")}
    expect_modes(modes, "--whole", at("whole.pt"))
    torch.save({"epoch": 3, "model": whole_module()}, at("in.pt"))
    expect_modes(modes, "--whole", at("in.pt"),
                 told=f'from_pytorch: {at("in.pt")}: takes the state_dict under "model" and leaves out epoch\n')
    expect_modes({**modes, "zeros/W": "reflect"}, "--whole", "--padding", "zeros=reflect", at("whole.pt"))
    code, said = run(TARGET, at("back.npz"))
    assert code == 0 and said.count("\n") == 4, said
    assert f"from_pytorch: {TARGET}: circular/W has padding_mode circular, which a state_dict does not hold\n" in said
    numpy.savez(at("plain.npz"), **ARRAYS)
    expect_modes({"conv/W": "circular"}, "--padding", "*=circular", at("plain.npz"))
    write("table", b"conv first/0 replicate\nbn -\n")
    assert run("--names", at("table"), at("plain.npz"), TARGET) == (0, "")
    with h5py.File(TARGET, "r") as file:
        assert file["first/0/W"].attrs["padding_mode"] == "replicate"
    os.remove(TARGET)
    for option, says in (("conv=round", "conv: padding_mode round; should be one of zeros, reflect, replicate, circular"),
                         ("bn=circular", "bn: padding_mode circular is given, and there is no convolution of this name"),
                         ("conv", '--padding conv: should be "MODULE=MODE"')):
        assert run("--padding", option, at("plain.npz"), TARGET) == (1, f"from_pytorch: {says}\n"), option
        assert not os.path.exists(TARGET), option


def refused():
    numpy.savez(at("whole.npz"), **ARRAYS)
    with open(at("whole.npz"), "rb") as file:
        whole = file.read()
    for ending in ("npz", "pt"):
        write(f"empty.{ending}", b"")
        expect_refused(f"empty.{ending}", "it is empty, cut or something else")
    write("cut.npz", whole[:len(whole) // 2])
    expect_refused("cut.npz", "it is empty, cut or something else")
    write("damaged.npz", whole[:200] + bytes(x ^ 1 for x in whole[200:210]) + whole[210:])
    code, said = run(at("damaged.npz"), TARGET)
    assert code == 1 and said.startswith("from_pytorch: Bad CRC-32") and said.count("\n") == 1, said
    numpy.savez(at("none.npz"))
    expect_refused("none.npz", "there is no array in it")
    torch.save({**tensors(), "epoch": 7}, at("number.pt"))
    expect_refused("number.pt", "epoch should be a tensor; it is a int")
    torch.save({"model": fractions.Fraction(1, 3)}, at("module.pt"))
    expect_refused("module.pt", "it has other objects, as a whole module has: save its state_dict(), or give --whole")
    torch.save(whole_module(), at("whole.pt"))
    expect_refused("whole.pt", "it has other objects, as a whole module has: save its state_dict(), or give --whole")
    torch.save([1, 2], at("list.pt"))
    expect_refused("list.pt", "should be a state_dict; it is a list")
    torch.save({7: torch.from_numpy(ARRAYS["conv.weight"])}, at("numbered.pt"))
    expect_refused("numbered.pt", "should have names of tensors; there is 7")


def kept():
    """A file that is there stays where another one cannot be made, and nothing is left beside it."""
    numpy.savez(at("clash.npz"), **{"a.weight": ARRAYS["conv.weight"], "a/W.weight": ARRAYS["conv.weight"]})
    write("files.h5", b"before")
    code, said = run(at("clash.npz"), TARGET)
    assert code == 1 and said.count("\n") == 1, said
    with open(TARGET, "rb") as file:
        assert file.read() == b"before"
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")], os.listdir(folder)
    os.remove(TARGET)
    numpy.savez(at("plain.npz"), **ARRAYS)
    assert run(at("plain.npz"), TARGET) == (0, "")
    for target in ("other.txt", "other"):
        code, said = run(TARGET, at(target))
        assert code == 1 and "give a state_dict (.pt, .pth, .npz)" in said, said
        assert not os.path.exists(at(target)) and not os.path.exists(at(target + ".npz")), target
    os.remove(TARGET)


def taken():
    torch.save(tensors(), at("plain.pt"))
    expect_taken("plain.pt")
    torch.save({"model": tensors()}, at("model.pt"))
    expect_taken("model.pt", 'takes the state_dict under "model"')
    torch.save({"epoch": 7, "state_dict": tensors("module."), "optimizer": {}}, at("parallel.pt"))
    expect_taken("parallel.pt", 'takes the state_dict under "state_dict" and leaves out epoch, optimizer',
                 'takes "module." off all names')
    numpy.savez(at("parallel.npz"), **{"module." + name: x for name, x in ARRAYS.items()})
    expect_taken("parallel.npz", 'takes "module." off all names')


def back():
    """All arrays return, with their types and shapes: also how many batches the statistics have seen."""
    for ending in ("npz", "pt"):
        numpy.savez(at("there.npz"), **ARRAYS)
        torch.save(tensors(), at("there.pt"))
        for words in ((at(f"there.{ending}"), TARGET), (TARGET, at(f"back.{ending}"))):
            assert run(*words) == (0, ""), words
        came = torch.load(at("back.pt"), map_location="cpu", weights_only=True) if ending == "pt" else {}
        came = {name: x.numpy() for name, x in came.items()} or dict(numpy.load(at("back.npz")))
        assert sorted(came) == sorted(ARRAYS), came
        for name, x in ARRAYS.items():
            assert came[name].dtype == x.dtype and numpy.array_equal(came[name], x), name
    os.remove(TARGET)


refused()
kept()
taken()
padding_modes()
back()
