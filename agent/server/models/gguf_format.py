"""Keys, value types, tensor types and file types of GGUF, from the constants of the package `gguf`.

Used by `gguf_header`. A newer release of the package adds quantizations without a change here. Only `gguf.constants` is
imported, because the package itself imports numpy (ADR 47).
"""

from __future__ import annotations

import re
import struct

from program.module_import import import_alone

_GGUF = import_alone("gguf.constants")
_GENERAL, _MODEL, _ATTENTION = _GGUF.Keys.General, _GGUF.Keys.LLM, _GGUF.Keys.Attention
_VALUE = _GGUF.GGUFValueType

MAGIC: bytes = struct.pack("<I", _GGUF.GGUF_MAGIC)

# --- types of values ----------------------------------------------------------------------------------------------

BOOLEAN, STRING, ARRAY = int(_VALUE.BOOL), int(_VALUE.STRING), int(_VALUE.ARRAY)
INTEGERS = {
    int(_VALUE.UINT8): "B",
    int(_VALUE.INT8): "b",
    int(_VALUE.UINT16): "H",
    int(_VALUE.INT16): "h",
    int(_VALUE.UINT32): "I",
    int(_VALUE.INT32): "i",
    int(_VALUE.UINT64): "Q",
    int(_VALUE.INT64): "q",
}
"""Codes of `struct`, by integer type."""
_OTHERS = {BOOLEAN: "?", int(_VALUE.FLOAT32): "f", int(_VALUE.FLOAT64): "d"}
SIZES = {value: struct.calcsize(f"<{code}") for value, code in (INTEGERS | _OTHERS).items()}
"""Bytes of a value of fixed size, by type."""

# --- keys ---------------------------------------------------------------------------------------------------------


def _after_architecture(key: str) -> str:
    return key.removeprefix("{arch}.")


ARCHITECTURE: str = _GENERAL.ARCHITECTURE
NAME: str = _GENERAL.NAME
LICENSE: str = _GENERAL.LICENSE
FILE_TYPE: str = _GENERAL.FILE_TYPE
TOKENS: str = _GGUF.Keys.Tokenizer.LIST
CHAT_TEMPLATE: str = _GGUF.Keys.Tokenizer.CHAT_TEMPLATE
TOKENIZER = TOKENS.partition(".")[0] + "."
"""Prefix of the tokenizer's keys."""

# In the file these keys have the prefix `<architecture>.`.
CONTEXT_LENGTH = _after_architecture(_MODEL.CONTEXT_LENGTH)
EMBEDDING_LENGTH = _after_architecture(_MODEL.EMBEDDING_LENGTH)
BLOCK_COUNT = _after_architecture(_MODEL.BLOCK_COUNT)
FEED_FORWARD_LENGTH = _after_architecture(_MODEL.FEED_FORWARD_LENGTH)
EXPERT_COUNT = _after_architecture(_MODEL.EXPERT_COUNT)
EXPERT_USED_COUNT = _after_architecture(_MODEL.EXPERT_USED_COUNT)
EXPERT_FEED_FORWARD_LENGTH = _after_architecture(_MODEL.EXPERT_FEED_FORWARD_LENGTH)
VOCAB_SIZE = _after_architecture(_MODEL.VOCAB_SIZE)
HEAD_COUNT = _after_architecture(_ATTENTION.HEAD_COUNT)
HEAD_COUNT_KV = _after_architecture(_ATTENTION.HEAD_COUNT_KV)
KEY_LENGTH = _after_architecture(_ATTENTION.KEY_LENGTH)
VALUE_LENGTH = _after_architecture(_ATTENTION.VALUE_LENGTH)
KEY_LENGTH_MLA = _after_architecture(_ATTENTION.KEY_LENGTH_MLA)
SLIDING_WINDOW = _after_architecture(_ATTENTION.SLIDING_WINDOW)
SLIDING_WINDOW_PATTERN = _after_architecture(_ATTENTION.SLIDING_WINDOW_PATTERN)
FULL_ATTENTION_INTERVAL = _after_architecture(_MODEL.FULL_ATTENTION_INTERVAL)
NEXTN_PREDICT_LAYERS = _after_architecture(_MODEL.NEXTN_PREDICT_LAYERS)
SSM_CONV_KERNEL = _after_architecture(_GGUF.Keys.SSM.CONV_KERNEL)
SSM_INNER_SIZE = _after_architecture(_GGUF.Keys.SSM.INNER_SIZE)
SSM_STATE_SIZE = _after_architecture(_GGUF.Keys.SSM.STATE_SIZE)
SSM_GROUP_COUNT = _after_architecture(_GGUF.Keys.SSM.GROUP_COUNT)
SHORTCONV_L_CACHE = _after_architecture(_GGUF.Keys.ShortConv.L_CACHE)
RECURRENT_LAYERS = "attention.recurrent_layers"
"""llama.cpp reads this key (build 11434); the package `gguf` does not name it yet."""

# --- tensors and mixes of them ------------------------------------------------------------------------------------

EXPERT_TENSOR = re.compile(rb"\.ffn_(up|down|gate|gate_up)_(ch)?exps\b")
"""The tensors that llama.cpp's `--cpu-moe` keeps in RAM."""
_BLOCKS: dict[int, tuple[int, int]] = {int(kind): tuple(block) for kind, block in _GGUF.GGML_QUANT_SIZES.items()}
_GUESSED = int(_GGUF.LlamaFileType.GUESSED)
_QUANTIZATIONS: dict[int, str] = {
    int(mix): mix.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    for mix in _GGUF.LlamaFileType
    if mix != _GGUF.LlamaFileType.GUESSED
}

del _GGUF, _GENERAL, _MODEL, _ATTENTION, _VALUE  # the names of all tensors of all models take 0.6 MB


def quantization_name(file_type: int) -> str:
    """Return the name of llama.cpp's number for a mix of tensor types, such as Q4_K_M for 15, or `Unknown`."""
    # The writer sets the flag if it guessed the mix from the tensors.
    return _QUANTIZATIONS.get(file_type & ~_GUESSED, "Unknown")


def tensor_bytes(kind: int, numbers: int) -> int | None:
    """Return the size of that many numbers of a tensor type in bytes, or None for an unknown type."""
    block = _BLOCKS.get(kind)
    return None if block is None else -(-numbers // block[0]) * block[1]


def normalised_license(text: str) -> str:
    """Return the license in its common spelling. Any other text is returned unchanged."""
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
