"""Turns ONNX's node cases into one plain file that onnx_file.c reads: onnx_cases.py CASES FILE

CASES is the folder of Debian's libonnx-testdata; the package python3-onnx reads its protobufs. The file is words with
blanks between them, numbers in decimal:

    case NAME
    tensor NAME TYPE RANK DIM... VALUE...       an input, or a constant; of a type that has no numbers no values
    node OPERATOR INPUTS NAME... OUTPUTS NAME... ATTRIBUTES, each: NAME KIND VALUE
    expect NAME TYPE RANK DIM... VALUE...       an output
    end

"-" stands for a name that is not given. A file that is newer than this program stays as it is.
"""
import os
import sys

import numpy
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

TYPES = {
    TensorProto.FLOAT: "f32", TensorProto.DOUBLE: "f64", TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16",
    TensorProto.INT32: "i32", TensorProto.INT64: "i64", TensorProto.UINT8: "u8", TensorProto.BOOL: "bool",
}
FLOATS = ("f32", "f64", "f16", "bf16")


def word(text):
    return "".join(text.split()) or "-"


def tensor_words(kind, name, tensor, array=None):
    held = TYPES.get(tensor.data_type)
    if not held:
        return f"{kind} {word(name)} {TensorProto.DataType.Name(tensor.data_type).lower()} 0"
    array = numpy_helper.to_array(tensor) if array is None else array
    flat = array.astype(numpy.float64 if held in FLOATS else numpy.int64).ravel().tolist()
    return " ".join([kind, word(name), held, str(array.ndim)] + [str(n) for n in array.shape] + [repr(v) for v in flat])


def attribute_words(case, attribute, lines):
    name, kind = attribute.name, attribute.type
    if kind == AttributeProto.INT:
        return f"{name} ints 1 {attribute.i}"
    if kind == AttributeProto.INTS:
        return " ".join([name, "ints", str(len(attribute.ints))] + [str(i) for i in attribute.ints])
    if kind == AttributeProto.FLOAT:
        return f"{name} floats 1 {attribute.f!r}"
    if kind == AttributeProto.FLOATS:
        return " ".join([name, "floats", str(len(attribute.floats))] + [repr(f) for f in attribute.floats])
    if kind == AttributeProto.STRING:
        return f"{name} word {word(attribute.s.decode())}"
    if kind == AttributeProto.TENSOR:
        lines.append(tensor_words("tensor", f"@{len(lines)}", attribute.t))
        return f"{name} tensor @{len(lines) - 1}"
    return f"{name} other -"  # a graph, or words


def read_value(path, kind):
    """A tensor, or None for sequences and optional values."""
    if kind.WhichOneof("value") != "tensor_type":
        return None
    tensor = TensorProto()
    with open(path, "rb") as file:
        tensor.ParseFromString(file.read())
    return tensor


def value_words(kind, value, path):
    tensor = read_value(path, value.type)
    # ONNX 1.12 keeps numbers of bf16 in its files as whole ones with the same bits.
    if tensor and value.type.tensor_type.elem_type == TensorProto.BFLOAT16 and tensor.data_type == TensorProto.UINT16:
        bits = numpy_helper.to_array(tensor).astype(numpy.uint32) << 16
        tensor.data_type = TensorProto.BFLOAT16
        return tensor_words(kind, value.name, tensor, bits.view(numpy.float32))
    if tensor is None:
        return f"{kind} {word(value.name)} {value.type.WhichOneof('value').split('_')[0]} 0"
    return tensor_words(kind, value.name, tensor)


def convert(folder, case):
    model = onnx.load(os.path.join(folder, case, "model.onnx"))
    data = os.path.join(folder, case, "test_data_set_0")
    opset = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    lines = [f"case {case} {opset[0] if opset else 0}"]
    for i, value in enumerate(model.graph.input):
        lines.append(value_words("tensor", value, os.path.join(data, f"input_{i}.pb")))
    for tensor in model.graph.initializer:
        lines.append(tensor_words("tensor", tensor.name, tensor))
    nodes = []
    for node in model.graph.node:
        attributes = [attribute_words(case, a, lines) for a in node.attribute]
        names = [str(len(node.input))] + [word(n) for n in node.input] + [str(len(node.output))]
        names += [word(n) for n in node.output] + [str(len(attributes))] + attributes
        nodes.append(" ".join(["node", node.op_type] + names))
    lines += nodes
    for i, value in enumerate(model.graph.output):
        lines.append(value_words("expect", value, os.path.join(data, f"output_{i}.pb")))
    return lines + ["end"]


def main():
    folder, path = sys.argv[1:]
    if os.path.exists(path) and os.path.getmtime(path) > os.path.getmtime(__file__):
        return
    cases = sorted(os.listdir(folder))
    with open(path + ".new", "w", encoding="ascii") as file:
        for case in cases:
            file.write("\n".join(convert(folder, case)) + "\n")
    os.rename(path + ".new", path)
    print(f"{len(cases)} cases of {folder}, onnx {onnx.__version__}: {path}")


main()
