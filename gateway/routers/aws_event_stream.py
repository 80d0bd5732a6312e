"""Reads the binary frames of AWS's streams (`application/vnd.amazon.eventstream`). Pure.

`bedrock` uses it. A frame has its length, the length of its headers, a checksum of these two, headers, payload, and a
checksum of all before it. All numbers are big-endian, and the checksums are CRC-32. The form is that of "Event stream
encoding" in the Amazon Transcribe Developer Guide, which all services share.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

FRAME_MAX = 24 << 20
"""The longest frame that AWS's own clients accept, in bytes."""
CONTENT_TYPE = "application/vnd.amazon.eventstream"
_PRELUDE, _CHECKSUM = struct.Struct(">III"), struct.Struct(">I")
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The lengths of the values of headers, by their type."""
_BYTES, _STRING = 6, 7


class FrameInvalid(Exception):
    """The bytes are not frames."""


@dataclass(frozen=True)
class Frame:
    """One message."""

    headers: Mapping[str, str]
    """Those that are texts."""
    payload: bytes = field(repr=False)


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that the next bytes complete. Raises FrameInvalid."""
        self._rest += data
        while len(self._rest) >= _PRELUDE.size:
            length, headers, checksum = _PRELUDE.unpack_from(self._rest)
            if zlib.crc32(self._rest[:8]) != checksum:
                raise FrameInvalid("the checksum of a frame's beginning is wrong")
            if length > FRAME_MAX or length < _PRELUDE.size + headers + _CHECKSUM.size:
                raise FrameInvalid(f"a frame cannot have {length} bytes with {headers} bytes of headers")
            if len(self._rest) < length:
                return
            frame = bytes(self._rest[:length])
            del self._rest[:length]
            if (zlib.crc32(frame[: -_CHECKSUM.size]),) != _CHECKSUM.unpack(frame[-_CHECKSUM.size :]):
                raise FrameInvalid("the checksum of a frame is wrong")
            end = _PRELUDE.size + headers
            yield Frame(_headers(frame[_PRELUDE.size : end]), frame[end : -_CHECKSUM.size])


def _headers(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            begin, end = at + 1, at + 1 + data[at]
            name, kind, at = data[begin:end].decode(), data[end], end + 1
            if kind in (_BYTES, _STRING):
                (size,) = struct.unpack_from(">H", data, at)
                at += 2
            else:
                size = _SIZES[kind]
            if at + size > len(data):
                raise FrameInvalid("a header of a frame is longer than all headers")
            if kind == _STRING:
                found[name] = data[at : at + size].decode()
            at += size
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise FrameInvalid("the headers of a frame are not valid") from None
    return found
