"""The header reader with files of the reference writer, recorded fixtures, and hostile bytes."""

from __future__ import annotations

import contextlib
import io
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.server.models.gguf_format import normalised_license, quantization_name
from agent.server.models.gguf_header import Limits, read_header
from agent.sources.errors import GgufInvalid, NeedMoreBytes
from tools.tiny_model import Shape, write_tiny_model

FIXTURES = Path(__file__).resolve().parents[2] / "conformance" / "llmkube" / "fixtures"


def header(*pairs: bytes, version: int = 3, tensors: int = 1, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(pairs) if count is None else count) + b"".join(pairs)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def string(key: str, value: str | bytes) -> bytes:
    return text(key) + struct.pack("<I", 8) + text(value)


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def array(key: str, item_type: int, count: int, items: bytes) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, item_type, count) + items


def tiny_header() -> bytes:
    """The header of a file that llama-server loads, tokenizer and tensor list included."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_model(Path(folder) / "tiny.gguf", shape=Shape(kv_heads=(2, 1)))
        start = int(gguf.GGUFReader(path).data_offset)
        return path.read_bytes()[:start]


def parse(data: bytes, **limits: int) -> object:
    return read_header(io.BytesIO(data), limits=Limits(**limits))


def test_a_file_of_the_reference_writer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny Llama: β")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q5_K_M)
    writer.add_context_length(131072)
    writer.add_embedding_length(4096)
    writer.add_block_count(32)
    writer.add_head_count(32)
    writer.add_head_count_kv([8] * 31 + [4])
    writer.add_key_length(128)
    writer.add_value_length(64)
    writer.add_float32("llama.rope.freq_base", 1e6)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_scores([0.0, 1.0, 2.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with path.open("rb") as file:
        facts = read_header(file)
    assert facts.model_dump(exclude_defaults=True) == {
        "architecture": "llama",
        "name": "Tiny Llama: β",
        "quantization": "Q5_K_M",
        "license": "mit",
        "file_version": 3,
        "context_length": 131072,
        "embedding_size": 4096,
        "layer_count": 32,
        "head_count": 32,
        "head_count_kv": 8,
        "head_counts_kv": (8,) * 31 + (4,),
        "vocabulary_size": 3,
        "weights_bytes": 0,
        "key_length": 128,
        "value_length": 64,
    }


def test_what_the_tensors_take_is_what_the_reference_writer_writes(tmp_path: Path) -> None:
    path = write_tiny_model(
        tmp_path / "moe.gguf", shape=Shape(layers=4, kv_heads=(2, 0, 1, 2), experts=4, sliding_window=128)
    )
    with path.open("rb") as file:
        facts = read_header(file)
    tensors = gguf.GGUFReader(path).tensors
    assert facts.tensor_count == len(tensors)
    assert facts.weights_bytes == sum(int(tensor.n_bytes) for tensor in tensors)
    assert facts.expert_bytes == sum(int(tensor.n_bytes) for tensor in tensors if "_exps" in tensor.name)
    assert (facts.expert_count, facts.sliding_window, facts.head_counts_kv) == (4, 128, (2, 0, 1, 2))
    assert (facts.vocabulary_size, facts.head_count_kv) == (512, 2)


def test_every_type_of_a_tensor_takes_what_the_reference_says() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        tensor = text("t") + struct.pack("<IQQIQ", 2, block * 3, 7, kind.value, 0)
        assert read_header(io.BytesIO(header() + tensor)).weights_bytes == 21 * size, kind.name
    unknown = text("t") + struct.pack("<IQIQ", 1, 32, 250, 0)
    assert read_header(io.BytesIO(header() + unknown)).weights_bytes is None


def test_latent_attention_keeps_no_values() -> None:
    mla = (number(f"deepseek2.attention.{key}", 8) for key in ("key_length", "value_length", "key_length_mla"))
    facts = read_header(io.BytesIO(header(string("general.architecture", "deepseek2"), *mla)))
    assert (facts.key_length, facts.value_length) == (8, 0)


def test_the_layers_that_look_back_a_window_are_counted() -> None:
    pattern = array("gemma.attention.sliding_window_pattern", 7, 6, bytes([1, 1, 1, 1, 1, 0]))
    facts = read_header(
        io.BytesIO(
            header(string("general.architecture", "gemma"), number("gemma.attention.sliding_window", 99), pattern)
        )
    )
    assert (facts.sliding_window, facts.sliding_window_layers) == (99, 5)


def test_the_recorded_fixtures_are_read_as_the_peer_read_them() -> None:
    with (FIXTURES / "moe-30b.Q5_K_M.gguf").open("rb") as file:
        facts = read_header(file)
    assert (facts.architecture, facts.name, facts.quantization, facts.license, facts.file_version) == (
        "qwen3moe",
        "Org/MoE 30B: v2",
        "Q5_K_M",
        "mit",
        2,
    )
    assert (facts.context_length, facts.embedding_size, facts.layer_count, facts.head_count) == (131072, 2048, 48, 32)
    with (FIXTURES / "noname.gguf").open("rb") as file:
        assert read_header(file).name == ""
    with (FIXTURES / "notgguf.gguf").open("rb") as file, pytest.raises(GgufInvalid, match="not a GGUF file"):
        read_header(file)


def test_every_name_of_a_quantization_is_llama_cpp_s() -> None:
    for kind in gguf.LlamaFileType:
        if kind is not gguf.LlamaFileType.GUESSED:
            assert quantization_name(kind.value) == kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    assert quantization_name(1024 | 15) == "Q4_K_M"
    assert quantization_name(999) == "Unknown"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Apache License 2.0", "apache-2.0"),
        ("MIT", "mit"),
        ("llama3.1", "llama-3.1-community"),
        ("Llama 3.2 Community License", "llama-3.2-community"),
        ("gemma", "gemma"),
        ("cc-by-nc-4.0 with limited permission", "cc-by-nc-4.0 with limited permission"),
        ("", ""),
    ],
)
def test_licenses_get_one_spelling(written: str, expected: str) -> None:
    assert normalised_license(written) == expected


def test_keys_may_come_in_any_order_and_width() -> None:
    data = header(
        text("llama.block_count") + struct.pack("<IQ", 10, 7),
        text("llama.context_length") + struct.pack("<Ii", 5, 99),
        text("llama.embedding_length") + struct.pack("<IH", 2, 64),
        string("general.architecture", "llama"),
        text("general.file_type") + struct.pack("<IB", 0, 7),
        version=2,
    )
    facts = read_header(io.BytesIO(data))
    assert (facts.layer_count, facts.context_length, facts.embedding_size) == (7, 99, 64)
    assert facts.quantization == "Q8_0"


def test_the_tokenizer_is_not_read_once_all_is_known() -> None:
    known = [
        string("general.architecture", "llama"),
        string("general.name", "n"),
        number("general.file_type", 1),
        *(number(f"llama.{key}", 8) for key in ("context_length", "embedding_length", "block_count")),
        number("llama.attention.head_count", 8),
    ]
    cut_off = header(*known, text("tokenizer.ggml.tokens"), count=len(known) + 1)
    assert read_header(io.BytesIO(cut_off)).layer_count == 8


def test_a_file_type_behind_the_tokenizer_is_found() -> None:
    tokens = array("tokenizer.ggml.tokens", 8, 3, text("a") + text("b") + text("c"))
    data = header(string("general.architecture", "llama"), tokens, number("general.file_type", 15))
    assert read_header(io.BytesIO(data)).quantization == "Q4_K_M"


def test_names_lose_what_no_status_can_carry() -> None:
    data = header(string("general.name", b"a\x00b\x1b[31m\xff" + b"x" * 1000))
    facts = read_header(io.BytesIO(data))
    assert facts.name.startswith("ab[31m\ufffdx")
    assert len(facts.name) == 256


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<!doctype html>", "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata keys"),
        (header(struct.pack("<Q", 1 << 40)), "a key claims"),
        (header(text("k") + struct.pack("<IQ", 8, 1 << 62)), "a string claims"),
        (header(text("k") + struct.pack("<IIQ", 9, 4, 1 << 62)), "an array claims"),
        (header(array("k", 9, 1, struct.pack("<IQ", 9, 1) * 40)), "depth"),
        (header(text("k") + struct.pack("<I", 77)), "type 77"),
        (header(array("k", 13, 1, b"")), "type 13"),
        (header(array("tokenizer.ggml.tokens", 8, 3, struct.pack("<Q", 1 << 63) * 3)), "a string claims"),
        (header() + struct.pack("<Q", 1 << 50), "a tensor's name claims"),
        (header() + text("t") + struct.pack("<I", 1 << 31), "dimensions"),
        (header() + text("t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0), "numbers"),
        (header(text("llama.block_count") + struct.pack("<Iq", 11, -5)), "is -5"),
        (header(string("general.architecture", "ll ama")), "not a valid name"),
    ],
)
def test_hostile_headers_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(GgufInvalid) as caught:
        read_header(io.BytesIO(data))
    assert why in caught.value.message
    assert caught.value.conclusive


def test_a_future_version_is_not_a_verdict_on_the_file() -> None:
    with pytest.raises(GgufInvalid) as caught:
        read_header(io.BytesIO(b"GGUF" + struct.pack("<IQQ", 4, 1, 0)))
    assert not caught.value.conclusive


def test_a_header_longer_than_the_limit_is_refused_before_it_is_read() -> None:
    data = header(array("k", 0, 5000, bytes(5000)))
    with pytest.raises(GgufInvalid, match="longer than"):
        parse(data, header_bytes=1000)
    assert parse(data)


@pytest.mark.parametrize(
    "made",
    [
        lambda: header(array("k", 9, 200_000, struct.pack("<IQ", 9, 0) * 200_000)),
        lambda: header(array("k", 8, 2_000_000, bytes(16_000_000))),
        lambda: header(array("k", 0, 9_000_000, bytes(9_000_000))),
        lambda: header(*(array(f"k{n}", 5, 1024, bytes(4096)) for n in range(2000))),
        lambda: header(tensors=200_000) + (text("") + struct.pack("<IQIQ", 1, 1, 0, 0)) * 200_000,
        lambda: header(string("k", bytes(9_000_000))),
    ],
    ids=["nested", "strings", "numbers", "lists", "tensors", "one string"],
)
def test_large_headers_take_bounded_time_and_memory(made: Callable[[], bytes]) -> None:
    data = made()
    began = time.process_time()
    read_header(io.BytesIO(data))
    assert time.process_time() - began < 5
    # Tracing makes each allocation many times slower, so only a part of the header is read.
    reader = io.BytesIO(data[: 1 << 20])
    tracemalloc.start()
    with contextlib.suppress(NeedMoreBytes):
        read_header(reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


WIDE = "\U0001f999"
"""With this character, Python stores a text with four bytes for each character instead of one."""


@pytest.mark.parametrize(
    "made",
    [
        lambda: header(*(number(f"{n:08d}{'x' * 976}{WIDE}.block_count", 7) for n in range(4000))),
        lambda: header(*(number(f"architecture-{n}.block_count", 7) for n in range(30_000))),
        lambda: header(*(number(f"{n:08d}{'x' * 65_000}{WIDE}.block_count", 7) for n in range(64))),
        lambda: header(string("general.name", WIDE * 2_000_000)),
        lambda: header(string("general.license", b"\x00" * 9_000_000)),
        lambda: header(*(array(f"a{n}.attention.head_count_kv", 2, 1024, bytes(range(256)) * 8) for n in range(2000))),
        lambda: header(*(array("a.context_length", 0, 1024, bytes(1024)) for _ in range(3000))),
    ],
    ids=["distinct keys", "short keys", "long keys", "wide name", "unprintable", "layer lists", "lists of one key"],
)
def test_what_a_header_repeats_takes_bounded_time_and_memory(made: Callable[[], bytes]) -> None:
    data = made()
    reader = io.BytesIO(data)
    with contextlib.suppress(GgufInvalid):
        began = time.process_time()
        read_header(io.BytesIO(data))
        assert time.process_time() - began < 2
    tracemalloc.start()
    with contextlib.suppress(GgufInvalid):
        read_header(reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("pairs", "limits", "why"),
    [
        ([number(f"k{n}", 1) for n in range(9000)], {}, "9000 metadata keys"),
        ([number(f"k{n}" + "x" * 1000, 1) for n in range(2000)], {}, "keys are longer than"),
        ([number(f"a{n}.block_count", 1) for n in range(17)], {}, "16 architectures"),
        ([number("k" * 100, 1)], {"key_bytes": 99}, "a key claims 100 bytes"),
    ],
)
def test_keys_are_bounded_one_by_one_and_together(pairs: list[bytes], limits: dict[str, int], why: str) -> None:
    with pytest.raises(GgufInvalid, match=why):
        parse(header(*pairs), **limits)


def test_numbers_of_another_architecture_are_not_read_once_it_is_known() -> None:
    strangers = [number(f"a{n}.block_count", 1) for n in range(100)]
    data = header(string("general.architecture", "llama"), *strangers, number("llama.block_count", 7))
    assert read_header(io.BytesIO(data)).layer_count == 7


def test_a_header_of_more_arrays_than_any_model_has_is_refused() -> None:
    inner = struct.pack("<IQ", 9, 0)
    with pytest.raises(GgufInvalid, match="arrays"):
        parse(header(array("k", 9, 400_000, inner * 400_000)))


@pytest.mark.parametrize("length", range(0, 544, 7))
def test_a_prefix_says_how_much_more_is_needed(length: int) -> None:
    whole = (FIXTURES / "plain-7b.Q4_K_M.gguf").read_bytes()
    if length >= 341:  # the metadata ends here; what follows are tensors
        assert read_header(io.BytesIO(whole[:length])).name == "Plain 7B Chat"
        return
    with pytest.raises(NeedMoreBytes) as caught:
        read_header(io.BytesIO(whole[:length]))
    assert length < caught.value.needed <= len(whole)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
@example(b"GGUF\x03\x00\x00\x00" + b"\xff" * 16)
def test_random_bytes_never_do_anything_but_the_two_errors(data: bytes) -> None:
    for candidate in (data, header(data, count=1)):
        with contextlib.suppress(GgufInvalid, NeedMoreBytes):
            read_header(io.BytesIO(candidate))


REAL = (FIXTURES / "plain-7b.Q4_K_M.gguf").read_bytes()
TINY = tiny_header()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_header_never_does_anything_but_the_two_errors(data: st.DataObject) -> None:
    """Real headers, with bytes flipped, lengths replaced by huge ones, pieces doubled, moved or cut off."""
    damaged = bytearray(data.draw(st.sampled_from([REAL, TINY])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["flip", "length", "type", "cut", "repeat", "drop"])):
            case "flip":
                damaged[at] = data.draw(st.integers(0, 255))
            case "length":
                huge = data.draw(st.sampled_from([0, 1, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]))
                damaged[at : at + 8] = struct.pack("<Q", huge)
            case "type":
                damaged[at : at + 4] = struct.pack("<I", data.draw(st.sampled_from([8, 9, 12, 13, 0xFFFFFFFF])))
            case "cut":
                del damaged[max(at, 1) :]
            case "repeat":
                damaged[at:at] = damaged[at : at + 64]
            case "drop":
                del damaged[at : at + 9]
        if not damaged:
            return
    reader = io.BytesIO(bytes(damaged))
    tracemalloc.start()
    began = time.process_time()
    try:
        facts = read_header(reader)
    except (GgufInvalid, NeedMoreBytes):
        facts = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.process_time() - began < 2
    assert peak < 2 << 20
    if facts is not None:
        assert len(facts.name) <= 256
        assert len(facts.head_counts_kv) <= 1024
        assert (facts.weights_bytes or 0) < 1 << 62
