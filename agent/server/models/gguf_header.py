"""Reads the facts in the header of a GGUF file, without trusting the file.

Called by `header_probe` for remote files and by `agent.server.memory.estimates` and `automation.models` for local
files. Without I/O: a `Reader` provides the bytes. The format is the GGUF specification, versions 2 and 3,
little-endian. Every length and count is checked before use. Only two dozen short values are kept, and the number of
bytes read is limited. Keys and texts that are longer than any useful one are skipped without being decoded.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Protocol

from agent.server.models import gguf_format as form
from agent.server.models.gguf_format import normalised_license
from agent.server.models.gguf_layers import layer_facts
from agent.sources.errors import GgufInvalid, NeedMoreBytes
from program.desired.model import GgufFacts


class Reader(Protocol):
    """A file from its start. `read(n)` returns the next n bytes, fewer only at the end of the available bytes."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Limits:
    """Limits above which a header counts as hostile. Real headers are far below each of them."""

    header_bytes: int = 64 << 20
    """A tokenizer of 500,000 merges takes about 20 MiB."""
    key_bytes: int = 65_535
    """The limit of the specification."""
    string_bytes: int = 10 << 20
    array_items: int = 10_000_000
    array_depth: int = 4
    arrays: int = 1 << 18
    """All arrays, including nested ones."""
    keys: int = 8192
    """Real files have fewer than a hundred keys."""
    all_keys_bytes: int = 1 << 20
    """All keys together."""
    architectures: int = 16
    """Architectures with numbers before `general.architecture`, the key that determines which of them is valid."""
    tensors: int = 1 << 18
    tensor_dimensions: int = 8
    layers: int = 1024
    """Longest array whose numbers are kept one by one."""
    number: int = 1 << 40
    template_bytes: int = 0
    """Number of bytes of the chat template that are kept; 0 keeps none. Known templates are shorter than 64 KiB."""
    kept_characters: int = 256
    """Names and licenses are cut at this length, because they become part of a status and of a file name."""


_LONGEST_KEY = 256
"""In bytes. Every key that is used is shorter."""
_LONGEST_TEXT = 4096
"""Number of bytes of a name or license that are read."""
_CHUNK = 1 << 20
_AHEAD = 1 << 15

_GENERAL_TEXT = frozenset({form.ARCHITECTURE, form.NAME, form.LICENSE})
# Keys after the architecture's name. Some of them are lists with one number per layer; the largest is kept.
_ARCHITECTURE_NUMBERS = frozenset(
    {
        *(form.CONTEXT_LENGTH, form.EMBEDDING_LENGTH, form.BLOCK_COUNT, form.FEED_FORWARD_LENGTH, form.VOCAB_SIZE),
        *(form.EXPERT_COUNT, form.EXPERT_USED_COUNT, form.EXPERT_FEED_FORWARD_LENGTH),
        *(form.HEAD_COUNT, form.HEAD_COUNT_KV, form.KEY_LENGTH, form.VALUE_LENGTH, form.KEY_LENGTH_MLA),
        *(form.SLIDING_WINDOW, form.FULL_ATTENTION_INTERVAL, form.NEXTN_PREDICT_LAYERS, form.SHORTCONV_L_CACHE),
        *(form.SSM_CONV_KERNEL, form.SSM_INNER_SIZE, form.SSM_STATE_SIZE, form.SSM_GROUP_COUNT),
    }
)
_FLAGS_BY_LAYER = frozenset({form.SLIDING_WINDOW_PATTERN, form.RECURRENT_LAYERS})
_NUMBERS_BY_LAYER = frozenset({form.HEAD_COUNT_KV, form.FEED_FORWARD_LENGTH})
"""Lists that are kept if their numbers differ."""
_ALWAYS_THERE = (form.CONTEXT_LENGTH, form.EMBEDDING_LENGTH, form.BLOCK_COUNT, form.HEAD_COUNT)
_ARCHITECTURE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_header(reader: Reader, *, limits: Limits = Limits()) -> GgufFacts:
    """Read the facts in a header: the metadata and the total size of the tensors.

    Raises GgufInvalid for anything that is not a little-endian GGUF 2 or 3, or that exceeds `limits`. Raises
    NeedMoreBytes if the reader ends too early. If only the tokenizer or the tensors are missing, the facts so far are
    returned.
    """
    header = Header(reader, limits)
    try:
        header.read()
    except NeedMoreBytes:
        if not header.tells_enough:
            raise
    return header.facts()


class Header:
    """A header while it is read. `facts` may be called once `tells_enough` is true, even if `read` ended early."""

    def __init__(self, reader: Reader, limits: Limits = Limits()) -> None:
        self._reader = reader
        self._limits = limits
        self._buffer = b""
        self._next = 0
        """Position of the next byte in the buffer."""
        self._passed = 0
        """Number of bytes of the file before the buffer."""
        self._version = 0
        self._tensors = 0
        self._arrays = 0
        self._key_bytes = 0
        self._architectures: set[str] = set()
        """Architectures with numbers, before `general.architecture` is known."""
        self._metadata_read = False
        self._tokenizer_seen = False
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._lists: dict[str, tuple[int, ...]] = {}
        self._weights_bytes: int | None = None
        self._expert_bytes = 0
        self.template = ""
        """The chat template, if the limits keep it. White space is kept, other control characters are not."""

    @property
    def tells_enough(self) -> bool:
        """Whether all required metadata was read."""
        # Writers put every other key before the tokenizer, except that quantizing moves file_type behind it.
        architecture = self._texts.get(form.ARCHITECTURE, "")
        return self._metadata_read or (
            self._tokenizer_seen
            and form.NAME in self._texts
            and form.FILE_TYPE in self._numbers
            and all(f"{architecture}.{name}" in self._numbers for name in _ALWAYS_THERE)
        )

    def read(self) -> None:
        """Read to the end of the header. Raises GgufInvalid, NeedMoreBytes, and all errors of the reader."""
        magic = self._read_bytes(4)
        if magic != form.MAGIC:
            raise GgufInvalid(f"not a GGUF file: it begins with {magic!r}")
        (version,) = struct.unpack("<I", self._read_bytes(4))
        if version in (2 << 24, 3 << 24):
            raise GgufInvalid("big-endian GGUF is not served; convert the file to little-endian")
        if version not in (2, 3):
            newer = 3 < version < 256
            raise GgufInvalid(f"GGUF version {version} is not served; versions 2 and 3 are", conclusive=not newer)
        self._version = version
        self._tensors = self._count("tensors", self._limits.tensors)
        keys = self._count("metadata keys", self._limits.keys)
        for _ in range(keys):
            key = self._key()
            self._tokenizer_seen = self._tokenizer_seen or key.startswith(form.TOKENIZER)
            (value_type,) = struct.unpack("<I", self._read_bytes(4))
            self._value(key, value_type)
        self._check_architecture()
        self._metadata_read = True
        self._weights_bytes = self._tensor_bytes()

    def facts(self) -> GgufFacts:
        """Return the facts so far. Raises GgufInvalid if the architecture has an invalid name."""
        architecture = self._check_architecture()
        file_type = self._numbers.get(form.FILE_TYPE)

        def number(name: str) -> int | None:
            return self._numbers.get(f"{architecture}.{name}")

        pattern = self._lists.get(f"{architecture}.{form.SLIDING_WINDOW_PATTERN}", ())
        prefix = f"{architecture}."
        layers = layer_facts(
            architecture,
            number,
            {key.removeprefix(prefix): found for key, found in self._lists.items() if key.startswith(prefix)},
        )
        # With latent attention the cache contains one compressed vector for key and value together.
        latent = number(form.KEY_LENGTH_MLA) is not None
        return GgufFacts(
            architecture=architecture,
            name=self._texts.get(form.NAME, ""),
            quantization="" if file_type is None else form.quantization_name(file_type),
            license=normalised_license(self._texts.get(form.LICENSE, "")),
            file_version=self._version,
            context_length=number(form.CONTEXT_LENGTH),
            embedding_size=number(form.EMBEDDING_LENGTH),
            layer_count=number(form.BLOCK_COUNT),
            head_count=number(form.HEAD_COUNT),
            head_count_kv=number(form.HEAD_COUNT_KV),
            head_counts_kv=layers.head_counts_kv,
            recurrent_bytes=layers.recurrent_bytes,
            sliding_window=number(form.SLIDING_WINDOW) or None,
            sliding_window_layers=sum(map(bool, pattern)) if pattern else None,
            vocabulary_size=number(form.VOCAB_SIZE) or self._numbers.get(form.TOKENS),
            feed_forward_length=self._feed_forward(architecture),
            expert_count=number(form.EXPERT_COUNT) or None,
            weights_bytes=self._weights_bytes,
            expert_bytes=(self._expert_bytes or None) if self._weights_bytes else None,
            key_length=number(form.KEY_LENGTH),
            value_length=0 if latent else number(form.VALUE_LENGTH),
            tensor_count=self._tensors,
        )

    def _feed_forward(self, architecture: str) -> int | None:
        """Return the width of the feed-forward layer per token: with experts, of all experts that a token uses."""
        dense = self._numbers.get(f"{architecture}.{form.FEED_FORWARD_LENGTH}")
        if not self._numbers.get(f"{architecture}.{form.EXPERT_COUNT}"):
            return dense
        used = self._numbers.get(f"{architecture}.{form.EXPERT_USED_COUNT}") or 1
        of_expert = self._numbers.get(f"{architecture}.{form.EXPERT_FEED_FORWARD_LENGTH}")
        if of_expert:
            return max(dense or 0, of_expert * used)
        return dense * used if dense else None

    def _check_architecture(self) -> str:
        architecture = self._texts.get(form.ARCHITECTURE, "")
        if architecture and not _ARCHITECTURE_NAME.fullmatch(architecture):
            raise GgufInvalid(f"general.architecture is {architecture[:64]!r}, which is not a valid name")
        return architecture

    # --- metadata -------------------------------------------------------------------------------------------------

    def _key(self) -> str:
        """Read a key. Returns an empty string if it is longer than every key that is used."""
        length = self._length(self._limits.key_bytes, "a key")
        self._key_bytes += length
        if self._key_bytes > self._limits.all_keys_bytes:
            raise GgufInvalid(f"the keys are longer than {self._limits.all_keys_bytes} bytes in all")
        if length > _LONGEST_KEY:
            self._skip(length)
            return ""
        return self._read_bytes(length).decode("utf-8", "replace")

    def _value(self, key: str, value_type: int) -> None:
        """Read one value. Keep it if its key is used and its type fits, else skip it."""
        if value_type == form.STRING and key in _GENERAL_TEXT:
            self._texts[key] = self._kept_text(key)
            if key == form.ARCHITECTURE:
                self._drop_other_architectures()
        elif value_type == form.STRING and key == form.CHAT_TEMPLATE and self._limits.template_bytes:
            self.template = self._kept_template()
        elif value_type in form.INTEGERS and self._is_number(key):
            self._numbers[key] = self._integer(key, value_type)
        elif value_type == form.ARRAY:
            self._array(key if key == form.TOKENS or self._is_number(key) or self._is_flags(key) else "", depth=1)
        else:
            self._pass_over(value_type)

    def _is_number(self, key: str) -> bool:
        if key == form.FILE_TYPE:
            return True
        architecture, _, name = key.partition(".")
        return name in _ARCHITECTURE_NUMBERS and self._may_be(architecture)

    def _is_flags(self, key: str) -> bool:
        architecture, _, name = key.partition(".")
        return name in _FLAGS_BY_LAYER and self._may_be(architecture)

    def _may_be(self, architecture: str) -> bool:
        """Return whether numbers of `architecture` are kept.

        Before the file names its architecture, several are kept.
        """
        named = self._texts.get(form.ARCHITECTURE)
        if named:
            return architecture == named
        self._architectures.add(architecture)
        most = self._limits.architectures
        if len(self._architectures) > most:
            raise GgufInvalid(f"the header has numbers of more than {most} architectures before it names its own")
        return True

    def _drop_other_architectures(self) -> None:
        named = self._texts[form.ARCHITECTURE]
        general = (form.FILE_TYPE, form.TOKENS)
        self._numbers = {k: v for k, v in self._numbers.items() if k in general or k.partition(".")[0] == named}
        self._lists = {k: v for k, v in self._lists.items() if k.partition(".")[0] == named}

    def _kept_text(self, key: str) -> str:
        length = self._length(self._limits.string_bytes, key)
        text = self._read_bytes(min(length, _LONGEST_TEXT)).decode("utf-8", "replace")
        self._skip(length - min(length, _LONGEST_TEXT))
        return "".join(character for character in text if character.isprintable())[: self._limits.kept_characters]

    def _kept_template(self) -> str:
        length = self._length(self._limits.string_bytes, form.CHAT_TEMPLATE)
        kept = min(length, self._limits.template_bytes)
        text = self._read_bytes(kept).decode("utf-8", "replace")
        self._skip(length - kept)
        return "".join(character for character in text if character.isprintable() or character in "\n\t")

    def _integer(self, key: str, value_type: int) -> int:
        return self._integers(key, value_type, 1)[0]

    def _integers(self, key: str, value_type: int, items: int) -> tuple[int, ...]:
        code = form.INTEGERS[value_type]
        numbers: tuple[int, ...] = struct.unpack(f"<{items}{code}", self._read_bytes(items * form.SIZES[value_type]))
        for extreme in (min(numbers), max(numbers)):
            if not 0 <= extreme <= self._limits.number:
                raise GgufInvalid(f"{key} is {extreme}")
        return numbers

    def _array(self, key: str, *, depth: int) -> None:
        """Skip an array. If `key` is given, keep the largest integer and the list for `_keep_list`."""
        item_type, items = struct.unpack("<IQ", self._read_bytes(12))
        self._arrays += 1
        if items > self._limits.array_items:
            raise GgufInvalid(f"an array claims {items} items")
        if self._arrays > self._limits.arrays:
            raise GgufInvalid(f"the header has more than {self._limits.arrays} arrays")
        if item_type in form.SIZES:
            if key and item_type == form.BOOLEAN and 0 < items <= self._limits.layers:
                self._keep_list(key, tuple(self._read_bytes(items)))
            elif key and item_type in form.INTEGERS and 0 < items <= self._limits.layers:
                self._keep_list(key, self._integers(key, item_type, items))
            else:
                self._skip(items * form.SIZES[item_type])
        elif item_type == form.STRING:
            if key == form.TOKENS:
                self._numbers[form.TOKENS] = items
            self._skip_strings(items)
        elif item_type == form.ARRAY and depth < self._limits.array_depth:
            for _ in range(items):
                self._array("", depth=depth + 1)
        else:
            raise GgufInvalid(f"an array holds values of type {item_type} at depth {depth}")

    def _keep_list(self, key: str, numbers: tuple[int, ...]) -> None:
        """Keep the largest number, and a few lists: flags by layer, and KV heads and widths that differ by layer."""
        name = key.partition(".")[2]
        flags = name in _FLAGS_BY_LAYER
        if flags or (name in _NUMBERS_BY_LAYER and min(numbers) != max(numbers)):
            self._lists[key] = numbers
        if not flags:
            self._numbers[key] = max(numbers)

    def _pass_over(self, value_type: int) -> None:
        if value_type == form.STRING:
            self._skip(self._length(self._limits.string_bytes, "a string"))
        elif value_type in form.SIZES:
            self._skip(form.SIZES[value_type])
        else:
            raise GgufInvalid(f"a value is of type {value_type}, which does not exist")

    # --- tensors --------------------------------------------------------------------------------------------------

    def _tensor_bytes(self) -> int | None:
        """Return the total size of the tensors, or None if one has an unknown type."""
        total, known = 0, True
        for _ in range(self._tensors):
            name = self._read_bytes(self._length(self._limits.key_bytes, "a tensor's name"))
            (dimensions,) = struct.unpack("<I", self._read_bytes(4))
            if not 0 < dimensions <= self._limits.tensor_dimensions:
                raise GgufInvalid(f"a tensor claims {dimensions} dimensions")
            *shape, kind, _offset = struct.unpack(f"<{dimensions}QIQ", self._read_bytes(8 * dimensions + 12))
            numbers = math.prod(shape)
            if numbers > self._limits.number:
                raise GgufInvalid(f"a tensor claims {numbers} numbers")
            size = form.tensor_bytes(kind, numbers)
            if size is None:
                known = False
                continue
            total += size
            if form.EXPERT_TENSOR.search(name):
                self._expert_bytes += size
        return total if known else None

    # --- bytes ----------------------------------------------------------------------------------------------------

    def _count(self, what: str, most: int) -> int:
        (count,) = struct.unpack("<Q", self._read_bytes(8))
        if count > most:
            raise GgufInvalid(f"the header claims {count} {what}")
        return int(count)

    def _length(self, most: int, what: str) -> int:
        (length,) = struct.unpack("<Q", self._read_bytes(8))
        if length > most:
            raise GgufInvalid(f"{what} claims {length} bytes")
        return int(length)

    def _skip_strings(self, items: int) -> None:
        """Skip the strings of a list without copying them. A tokenizer has hundreds of thousands."""
        unpack = struct.Struct("<Q").unpack_from
        while items:
            buffer, at, end = self._buffer, self._next, len(self._buffer)
            while items and at + 8 <= end:
                following = at + 8 + unpack(buffer, at)[0]
                if following > end:
                    break
                at = following
                items -= 1
            self._next = at
            self._check_bound(0)
            if items:
                # The next string continues after the end of the buffer.
                self._skip(self._length(self._limits.string_bytes, "a string"))
                items -= 1

    def _skip(self, size: int) -> None:
        self._check_bound(size)
        while size:
            step = min(size, _CHUNK)
            self._fill(step)
            self._next += step
            size -= step

    def _read_bytes(self, size: int) -> bytes:
        self._check_bound(size)
        self._fill(size)
        data = self._buffer[self._next : self._next + size]
        self._next += size
        return data

    def _fill(self, size: int) -> None:
        """Fill the buffer with at least `size` bytes. It reads ahead, because most reads are of eight bytes."""
        missing = size - (len(self._buffer) - self._next)
        if missing <= 0:
            return
        rest = self._buffer[self._next :]
        self._passed += self._next
        self._buffer, self._next = rest + self._reader.read(max(missing, _AHEAD)), 0
        if len(self._buffer) < size:
            raise NeedMoreBytes(self._passed + size)

    def _check_bound(self, size: int) -> None:
        if self._passed + self._next + size > self._limits.header_bytes:
            raise GgufInvalid(f"the header is longer than {self._limits.header_bytes} bytes")
