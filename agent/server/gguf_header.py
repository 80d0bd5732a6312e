"""Read what a GGUF file says of itself from its first bytes, whoever wrote them.

Called by `agent.server.remote` (over ranges of a remote file) and `automation.model_probe` (over local files). Pure:
bytes come from a `Reader`. The format is that of the GGUF specification, versions 2 and 3, little-endian. Every length
and count is hostile until checked: nothing is kept but a dozen short values, and the bytes read are bounded.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Protocol

from agent.server.errors import GgufInvalid, NeedMoreBytes
from program.desired.model import GgufFacts

MAGIC = b"GGUF"


class Reader(Protocol):
    """A file from its start. `read(n)` gives the next n bytes, fewer only where the available bytes end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Limits:
    """How much a header may claim before it counts as hostile. Real headers stay far below each bound."""

    header_bytes: int = 64 << 20
    """A tokenizer of 500,000 merges takes about 20 MiB."""
    key_bytes: int = 65_535
    """The specification's own bound."""
    string_bytes: int = 10 << 20
    array_items: int = 10_000_000
    array_depth: int = 4
    keys: int = 65_536
    tensors: int = 1 << 20
    number: int = 1 << 40
    kept_characters: int = 256
    """Names and licences are cut at this length; they end up in a status and in a file's name."""


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_INTEGERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
_STRING, _ARRAY = 8, 9
_CHUNK = 1 << 20

# llama.cpp's llama_ftype; numbers without a name were removed there.
_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0",
}  # fmt: skip
_GUESSED = 1024
"""A flag on file_type: the writer guessed it from the tensors."""

_GENERAL_TEXT = frozenset({"general.architecture", "general.name", "general.license"})
_FILE_TYPE = "general.file_type"
# After the architecture's name. Some of them are lists with one number for each layer; the largest is kept.
_ARCHITECTURE_NUMBERS = frozenset(
    {
        "context_length",
        "embedding_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
    }
)
_ALWAYS_THERE = ("context_length", "embedding_length", "block_count", "attention.head_count")
_ARCHITECTURE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKENIZER = "tokenizer."


def read_header(reader: Reader, *, limits: Limits = Limits()) -> GgufFacts:
    """Read the facts that a header states.

    Stops early, before the tokenizer's long lists, once everything that Herdsman uses has been seen. Raises
    GgufInvalid for anything that is not a little-endian GGUF 2 or 3, or that exceeds `limits`; raises NeedMoreBytes
    when the reader ends first.
    """
    return _Header(reader, limits).read()


def quantization_name(file_type: int) -> str:
    """Name llama.cpp's number for the mix of tensor types: 15 is Q4_K_M; `Unknown` for a number it does not know."""
    return _QUANTIZATIONS.get(file_type & ~_GUESSED, "Unknown")


def normalised_license(text: str) -> str:
    """Give the common licences one spelling each; anything else stays as written."""
    lowered = text.lower()
    if "apache" in lowered:
        return "apache-2.0"
    if match := re.search(r"llama[\s_-]?(\d(?:\.\d)?)", lowered):
        return f"llama-{match[1]}-community"
    if "gemma" in lowered:
        return "gemma"
    if re.search(r"\bmit\b", lowered):
        return "mit"
    return text


class _Header:
    def __init__(self, reader: Reader, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self._at = 0
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, int] = {}

    def read(self) -> GgufFacts:
        magic = self._take(4)
        if magic != MAGIC:
            raise GgufInvalid(f"not a GGUF file: it begins with {magic!r}")
        (version,) = struct.unpack("<I", self._take(4))
        if version in (2 << 24, 3 << 24):
            raise GgufInvalid("big-endian GGUF is not served; convert the file to little-endian")
        if version not in (2, 3):
            newer = 3 < version < 256
            raise GgufInvalid(f"GGUF version {version} is not served; versions 2 and 3 are", conclusive=not newer)
        tensors = self._count("tensors", self._limits.tensors)
        keys = self._count("metadata keys", self._limits.keys)
        for _ in range(keys):
            key = self._text(self._limits.key_bytes, "a key")
            if key.startswith(_TOKENIZER) and self._complete():
                break
            (value_type,) = struct.unpack("<I", self._take(4))
            self._value(key, value_type)
        return self._facts(version, tensors)

    def _facts(self, version: int, tensors: int) -> GgufFacts:
        architecture = self._texts.get("general.architecture", "")
        if architecture and not _ARCHITECTURE_NAME.fullmatch(architecture):
            raise GgufInvalid(f"general.architecture is {architecture[:64]!r}, which is no name")
        file_type = self._numbers.get(_FILE_TYPE)

        def number(name: str) -> int | None:
            return self._numbers.get(f"{architecture}.{name}")

        return GgufFacts(
            architecture=architecture,
            name=self._texts.get("general.name", ""),
            quantization="" if file_type is None else quantization_name(file_type),
            license=normalised_license(self._texts.get("general.license", "")),
            file_version=version,
            context_length=number("context_length"),
            embedding_size=number("embedding_length"),
            layer_count=number("block_count"),
            head_count=number("attention.head_count"),
            head_count_kv=number("attention.head_count_kv"),
            key_length=number("attention.key_length"),
            value_length=number("attention.value_length"),
            tensor_count=tensors,
        )

    def _complete(self) -> bool:
        # Writers put every other key before the tokenizer; only quantizing moves file_type behind it.
        architecture = self._texts.get("general.architecture", "")
        return (
            "general.name" in self._texts
            and _FILE_TYPE in self._numbers
            and all(f"{architecture}.{name}" in self._numbers for name in _ALWAYS_THERE)
        )

    def _value(self, key: str, value_type: int) -> None:
        """Read one value; keep it if it is one of ours and of a sensible type, else pass over it."""
        if value_type == _STRING and key in _GENERAL_TEXT:
            self._texts[key] = self._kept_text(key)
        elif value_type in _INTEGERS and self._is_number(key):
            self._numbers[key] = self._integer(key, value_type)
        elif value_type == _ARRAY:
            self._array(key if self._is_number(key) else "", depth=1)
        else:
            self._pass_over(value_type)

    def _is_number(self, key: str) -> bool:
        # The architecture may come after its numbers, so every architecture's numbers are kept until the end.
        return key == _FILE_TYPE or key.partition(".")[2] in _ARCHITECTURE_NUMBERS

    def _kept_text(self, key: str) -> str:
        text = self._text(self._limits.string_bytes, key)
        return "".join(character for character in text if character.isprintable())[: self._limits.kept_characters]

    def _integer(self, key: str, value_type: int) -> int:
        (number,) = struct.unpack(_INTEGERS[value_type], self._take(_SIZES[value_type]))
        if not 0 <= number <= self._limits.number:
            raise GgufInvalid(f"{key} is {number}")
        return int(number)

    def _array(self, key: str, *, depth: int) -> None:
        """Pass over an array; if `key` is given and the items are integers, keep the largest under it."""
        item_type, items = struct.unpack("<IQ", self._take(12))
        if items > self._limits.array_items:
            raise GgufInvalid(f"an array claims {items} items")
        if item_type in _SIZES:
            if key and item_type in _INTEGERS and 0 < items <= self._limits.keys:
                self._numbers[key] = max(self._integer(key, item_type) for _ in range(items))
            else:
                self._skip(items * _SIZES[item_type])
        elif item_type == _STRING:
            for _ in range(items):
                self._skip(self._length(self._limits.string_bytes, "a string"))
        elif item_type == _ARRAY and depth < self._limits.array_depth:
            for _ in range(items):
                self._array("", depth=depth + 1)
        else:
            raise GgufInvalid(f"an array holds values of type {item_type} at depth {depth}")

    def _pass_over(self, value_type: int) -> None:
        if value_type == _STRING:
            self._skip(self._length(self._limits.string_bytes, "a string"))
        elif value_type in _SIZES:
            self._skip(_SIZES[value_type])
        else:
            raise GgufInvalid(f"a value is of type {value_type}, which does not exist")

    def _count(self, what: str, most: int) -> int:
        (count,) = struct.unpack("<Q", self._take(8))
        if count > most:
            raise GgufInvalid(f"the header claims {count} {what}")
        return int(count)

    def _length(self, most: int, what: str) -> int:
        (length,) = struct.unpack("<Q", self._take(8))
        if length > most:
            raise GgufInvalid(f"{what} claims {length} bytes")
        return int(length)

    def _text(self, most: int, what: str) -> str:
        return self._take(self._length(most, what)).decode("utf-8", "replace")

    def _skip(self, size: int) -> None:
        self._check_bound(size)
        while size:
            step = min(size, _CHUNK)
            self._take(step)
            size -= step

    def _take(self, size: int) -> bytes:
        self._check_bound(size)
        data = self._reader.read(size)
        if len(data) < size:
            raise NeedMoreBytes(self._at + size)
        self._at += size
        return data

    def _check_bound(self, size: int) -> None:
        if self._at + size > self._limits.header_bytes:
            raise GgufInvalid(f"the header is longer than {self._limits.header_bytes} bytes")
