"""Reads the header of a remote GGUF file by ranges of a few MiB, without downloading the file.

Called by `automation.models`. Calls `remote` for each range and `gguf_header` to parse the bytes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from agent.server.models.gguf_header import Header, Limits
from agent.server.models.remote import RemoteFile, get
from agent.server.models.source_access import Signer
from agent.sources.deadline import Deadline
from agent.sources.errors import GgufInvalid, NeedMoreBytes, SourceChanged, SourceUnexpected, SourceUnreachable
from agent.sources.source_policy import SourcePolicy
from program.desired.model import GgufFacts
from program.desired.web_address import WebAddress

PEEK_CHUNKS = (1 << 20, 4 << 20)
"""Bytes of the first request, and of each later one. A tokenizer of 150,000 tokens ends in the second or third range.
Bytes after the header's end are not read, but the server may already have sent them."""


class ProbedHeader(NamedTuple):
    """The facts in a remote file's header, and the file's size and ETag."""

    facts: GgufFacts
    size_bytes: int | None
    etag: str | None
    template: str = ""
    """The chat template, if the limits keep it."""


def probe_header(
    address: WebAddress,
    *,
    policy: SourcePolicy,
    timeout_s: float = 30.0,
    signer: Signer | None = None,
    limits: Limits = Limits(),
) -> ProbedHeader:
    """Read the header of a remote GGUF file by ranges, or from the start of the stream if the server has no ranges.

    Raises GgufInvalid for another kind of file. Raises SourceUnreachable also if the metadata before the tokenizer does
    not arrive within `timeout_s` in total.
    """
    reader = _RangeReader(address, policy, deadline=Deadline(timeout_s), signer=signer)
    header = Header(reader, limits)
    try:
        try:
            header.read()
        except (NeedMoreBytes, SourceUnreachable):
            if not header.tells_enough:
                raise
        facts = header.facts()
    except NeedMoreBytes as error:
        raise GgufInvalid(
            f"{address.shown} ends inside its GGUF header, which needs at least {error.needed} bytes"
        ) from None
    except GgufInvalid as error:
        raise GgufInvalid(f"{address.shown}: {error.message}", conclusive=error.conclusive) from None
    finally:
        reader.close()
    assert reader.file is not None
    return ProbedHeader(facts, reader.file.size_bytes, reader.file.etag, header.template)


class _RangeReader:
    """A remote file as a `gguf_header.Reader` that requests ranges when they are needed."""

    def __init__(self, address: WebAddress, policy: SourcePolicy, *, deadline: Deadline, signer: Signer | None) -> None:
        self._address = address
        self._signer = signer
        self._policy = policy
        self._deadline = deadline
        self._buffer = bytearray()
        self._fetched = 0
        self._requests = 0
        self._open: Generator[bytes] | None = None
        self.file: RemoteFile | None = None

    def read(self, size: int, /) -> bytes:
        while len(self._buffer) < size:
            chunk = next(self._open, b"") if self._open is not None else b""
            if chunk:
                self._buffer += chunk
                self._fetched += len(chunk)
            elif not self._next_request():
                break
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _next_request(self) -> bool:
        """Open the next range. Returns False at the end of the file."""
        if self.file is not None and (
            not self.file.accepts_ranges or self.file.size_bytes is None or self._fetched >= self.file.size_bytes
        ):
            return False
        size = PEEK_CHUNKS[min(self._requests, len(PEEK_CHUNKS) - 1)]
        self._requests += 1
        self._open = self._stream(self._fetched, self._fetched + size - 1)
        return True

    def _stream(self, first: int, last: int) -> Generator[bytes]:
        with get(
            self._address,
            policy=self._policy,
            read_timeout_s=self._remaining_s(),
            deadline=self._deadline,
            first=first,
            last=last,
            signer=self._signer,
        ) as answer:
            seen = answer.remote_file()
            if self.file is None:
                self.file = seen
            elif answer.status != 206 or (seen.size_bytes, seen.etag) != (self.file.size_bytes, self.file.etag):
                raise SourceChanged(f"{self._address.shown} changed while it was read")
            if answer.status == 416:
                return
            if answer.status == 206 and answer.first_byte() != first:
                raise SourceUnexpected(f"{self._address.shown} answered with another range than requested")
            while chunk := answer.read1(1 << 16):
                self._remaining_s()
                yield chunk

    def _remaining_s(self) -> float:
        return self._deadline.left_s(self._address.shown)
