"""The received bytes of a client: those not parsed yet, and those kept until they can be forwarded.

Called by `client`; calls `framing`, which finds the beginning and the end of messages.
"""

from __future__ import annotations

from agent.proxy.framing import HEAD_END, MAX_HEAD, Body, Malformed, RequestHead, read_request


class Incoming:
    """The unparsed bytes of one connection, in their order. It is false when empty."""

    __slots__ = ("_data", "_scanned")

    def __init__(self) -> None:
        self._data = b""
        self._scanned = 0
        """The part that was already searched for the end of a head."""

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data

    def clear(self) -> None:
        self._data = b""

    def next_request(self) -> tuple[RequestHead, bytes] | None:
        """Take the next request with its received bytes, in the form to forward.

        Returns None while its head is incomplete. Raises Malformed.
        """
        data = self._data
        if data[:2] == b"\r\n":
            data = self._data = data.lstrip(b"\r\n")  # RFC 9112, section 2.2: some clients send an extra line end
        end = data.find(HEAD_END, self._scanned)
        if end < 0 or end > MAX_HEAD:
            if len(data) > MAX_HEAD:
                raise Malformed("the headers are too long", 431)
            self._scanned = max(0, len(data) - 3)
            return None
        end += len(HEAD_END)
        request = read_request(data[:end])
        self._scanned = 0
        upto = end
        if request.body is not None:
            upto = request.body.consume(data, end)
        self._data = data[upto:]
        return request, request.lines + b"\r\n" + data[end:upto]

    def next_part(self, body: Body) -> bytes:
        """Take the received bytes of a body. Raises Malformed."""
        data = self._data
        upto = body.consume(data)
        part, self._data = (data, b"") if upto == len(data) else (data[:upto], data[upto:])
        return part


class KeptRequest:
    """The received part of a request. It is empty when the request can no longer be sent from its beginning."""

    __slots__ = ("_parts", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] | None = None
        self.size = 0
        """In bytes."""

    @property
    def can_be_sent(self) -> bool:
        """Whether all received bytes of the request are kept."""
        return self._parts is not None

    def begin(self, data: bytes) -> None:
        """Keep a request from its beginning, and drop any other."""
        self._parts = [data]
        self.size = len(data)

    def add(self, part: bytes) -> None:
        """Keep the next part as well. Requires `can_be_sent`."""
        assert self._parts is not None
        self._parts.append(part)
        self.size += len(part)

    def joined(self) -> bytes:
        """Return all kept bytes. Requires `can_be_sent`."""
        assert self._parts is not None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def discard(self) -> None:
        self._parts = None
        self.size = 0
