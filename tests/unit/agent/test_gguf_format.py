"""The header reader compared with the package `gguf`: files of its writer, with every type that it knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest

from agent.server.models import gguf_format
from agent.server.models.gguf_header import read_header
from program.desired.model import GgufFacts

Type = gguf.GGUFValueType
VALUES: dict[Any, Any] = {
    Type.UINT8: 7,
    Type.INT8: -7,
    Type.UINT16: 700,
    Type.INT16: -700,
    Type.UINT32: 70_000,
    Type.INT32: -70_000,
    Type.UINT64: 1 << 40,
    Type.INT64: -(1 << 40),
    Type.FLOAT32: 0.5,
    Type.FLOAT64: 0.25,
    Type.BOOL: True,
    Type.STRING: "ünd",
}
INTEGERS = [kind for kind, value in VALUES.items() if type(value) is int]


def written(path: Path, *values: tuple[str, Any, Any, Any], tensors: bool = False) -> Path:
    """Write a file of key, value, type and type of the items; with `tensors` one tensor of each type."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value, kind, item in values:
        writer.add_key_value(key, value, kind, item)
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items() if tensors else ():
        data = numpy.zeros((3, 2 * size), dtype=numpy.uint8)
        assert data.nbytes == 6 * size
        if kind in _PLAIN:
            writer.add_tensor(f"blk.0.{kind.name}", numpy.zeros((3, 2 * block), dtype=_PLAIN[kind]))
        else:
            writer.add_tensor(f"blk.0.{kind.name}", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_Tensor = gguf.GGMLQuantizationType
_PLAIN: dict[Any, Any] = {
    _Tensor.F32: numpy.float32,
    _Tensor.F16: numpy.float16,
    _Tensor.F64: numpy.float64,
    _Tensor.I8: numpy.int8,
    _Tensor.I16: numpy.int16,
    _Tensor.I32: numpy.int32,
    _Tensor.I64: numpy.int64,
}


def facts_of(path: Path) -> GgufFacts:
    with path.open("rb") as file:
        return read_header(file)


def test_every_type_of_value_is_read_or_passed_over_as_the_package_reads_it(tmp_path: Path) -> None:
    assert {*VALUES, Type.ARRAY} == set(Type)
    singles = [(f"x.{kind.name}", value, kind, None) for kind, value in VALUES.items()]
    lists = [(f"x.list.{kind.name}", [value] * 5, Type.ARRAY, kind) for kind, value in VALUES.items()]
    last = ("llama.block_count", 33, Type.UINT32, None)
    path = written(tmp_path / "values.gguf", *singles, *lists, last)
    package = gguf.GGUFReader(path)
    assert package.get_field("llama.block_count").contents() == facts_of(path).layer_count == 33
    assert facts_of(path).architecture == "llama"


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda kind: str(kind.name))
def test_a_number_of_any_integer_type_is_the_number_that_the_package_reads(kind: Any, tmp_path: Path) -> None:
    number = abs(VALUES[kind])
    path = written(tmp_path / "number.gguf", ("llama.context_length", number, kind, None))
    assert facts_of(path).context_length == number
    assert gguf.GGUFReader(path).get_field("llama.context_length").contents() == number


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda kind: str(kind.name))
def test_numbers_for_each_layer_are_those_that_the_package_reads(kind: Any, tmp_path: Path) -> None:
    numbers = [abs(VALUES[kind]), 1, 0]
    path = written(tmp_path / "numbers.gguf", ("llama.attention.head_count_kv", numbers, Type.ARRAY, kind))
    assert facts_of(path).head_counts_kv == tuple(numbers)
    assert gguf.GGUFReader(path).get_field("llama.attention.head_count_kv").contents() == numbers


def test_every_type_of_tensor_takes_the_bytes_that_the_package_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "tensors.gguf", tensors=True)
    tensors = gguf.GGUFReader(path).tensors
    assert {tensor.tensor_type for tensor in tensors} == set(gguf.GGML_QUANT_SIZES) == set(_Tensor)
    facts = facts_of(path)
    assert facts.tensor_count == len(tensors)
    assert facts.weights_bytes == sum(int(tensor.n_bytes) for tensor in tensors)


def test_every_mix_of_the_package_has_its_name() -> None:
    mixes = [mix for mix in gguf.LlamaFileType if mix != gguf.LlamaFileType.GUESSED]
    for mix in mixes:
        name = gguf_format.quantization_name(int(mix))
        assert mix.name in (f"MOSTLY_{name}", f"ALL_{name}")
        assert gguf_format.quantization_name(int(mix) | int(gguf.LlamaFileType.GUESSED)) == name
    assert gguf_format.quantization_name(max(mixes) + 1) == "Unknown"


def test_the_tensors_of_experts_are_those_that_the_package_names() -> None:
    names = {name for name in gguf.TENSOR_NAMES.values() if name.startswith("blk.{bid}.ffn_")}
    experts = {name for name in names if gguf_format.EXPERT_TENSOR.search(f"{name}.weight".encode())}
    # A norm is no matrix, and llama.cpp keeps it with the layer.
    assert experts == {name for name in names if name.endswith(("_exps", "_chexps")) and "_norm" not in name}
    assert len(experts) >= 4


def test_neither_agent_nor_loop_imports_numpy_or_the_kubernetes_package() -> None:
    """Both are large: the loop and each agent would start later and hold tens of MB more (ADR 47, 49)."""
    program = "import sys, agent.server.main, automation.loop; print(sorted({'numpy', 'kubernetes'} & {*sys.modules}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
