"""What a client has sent and nobody has used yet: cut into requests and the parts of their bodies.

Called by `client` with what came in; calls `framing`, which knows where a message begins and ends.
"""

from __future__ import annotations

from agent.proxy.framing import HEAD_END, MAX_HEAD, Body, Malformed, RequestHead, read_request


class Incoming:
    """The bytes of one connection, in the order in which they came; as long as there are any it is true."""

    __slots__ = ("_data", "_scanned")

    def __init__(self) -> None:
        self._data = b""
        self._scanned = 0
        """How far the end of a head was looked for: it is not looked for there again."""

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data

    def clear(self) -> None:
        self._data = b""

    def take_request(self) -> tuple[RequestHead, bytes] | None:
        """Take the next request, and all that has come of it, as it is to be sent on; None while its head is not whole.

        Raises Malformed.
        """
        data = self._data
        if data[:2] == b"\r\n":
            data = self._data = data.lstrip(b"\r\n")  # RFC 9112, section 2.2: some clients send one too many
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

    def take_part(self, body: Body) -> bytes:
        """Take what has come of a body. Raises Malformed."""
        data = self._data
        upto = body.consume(data)
        part, self._data = (data, b"") if upto == len(data) else (data[:upto], data[upto:])
        return part
