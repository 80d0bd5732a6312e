"""Streams with a fixed rate of events, and how late their events come. Used by `gateway`.

One process is the engine and all of its clients, so that both together need little of one core. Each event tells in its
body when it was due, so the lateness includes every delay on the way, also one of this process. The streams are
divided into groups that have their events at different times, as the batches of several engines do.
"""

from __future__ import annotations

import argparse
import gc
import json
import select
import socket
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass

WARM_UP_S = 2.0
"""Events of the first seconds are not counted."""
OPEN_TOGETHER = 64
ANSWER_S = 30.0
"""How long a stream may take until its answer begins."""
DRAIN_S = 5.0
"""How long events may be on their way after the last one was sent."""
READ_MOST = 64
"""Sockets that are read before the next group is looked at."""
_RECEIVE_BYTES = 1 << 16
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_BEFORE = b'data: {"due":"'
_DIGITS = 16
"""Of the microseconds of the monotonic clock, which all processes share."""
_AFTER = (
    b'","id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_EVENT_BYTES = len(_BEFORE) + _DIGITS + len(_AFTER)
_SIZE_LINE = b"%x\r\n" % _EVENT_BYTES
_CHUNK_BYTES = len(_SIZE_LINE) + _EVENT_BYTES + 2
_DUE_AT = len(_SIZE_LINE) + len(_BEFORE)


@dataclass(frozen=True)
class Lateness:
    """The lateness of the events at the clients, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    events: int
    events_a_read: float
    """More than one: the events came together."""
    send_p99_ms: float
    """How late this process sent the events itself."""
    cpu_s: float
    """CPU of this process during the measured time."""


def run(
    port: int,
    *,
    engine_port: int,
    request: bytes,
    streams: int,
    rate: float,
    groups: int,
    seconds: float,
    warm_up: float = WARM_UP_S,
) -> None:
    """Open streams at `port`, send `rate` events a second on each, and print the `Lateness` as JSON.

    A line `begins` is printed when the measured time begins, and `ends` when it is over. Raises RuntimeError for a
    stream that is not answered, or an event that does not come.
    """
    with socket.create_server(("127.0.0.1", engine_port), backlog=1024) as listener:
        pairs = _opened(listener, port, request, streams)
    load = _Load(pairs, rate=rate, groups=groups)
    gc.collect()
    gc.disable()  # a collection would look like late events
    result = load.run(seconds, warm_up)
    json.dump(asdict(result), sys.stdout)
    sys.stdout.write("\n")


# --- open the streams -------------------------------------------------------------------------------------------------


def _opened(
    listener: socket.socket, port: int, request: bytes, count: int
) -> list[tuple[socket.socket, socket.socket]]:
    """Open streams through `port`; return the engine's and the client's sockets."""
    engines: list[socket.socket] = []
    clients: list[socket.socket] = []
    while len(clients) < count:
        some = [socket.create_connection(("127.0.0.1", port)) for _ in range(min(OPEN_TOGETHER, count - len(clients)))]
        for each in some:
            each.sendall(request)
        for _ in some:
            listener.settimeout(ANSWER_S)
            engine, _ = listener.accept()
            engine.settimeout(ANSWER_S)
            _read_request(engine)
            engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            engine.sendall(_HEAD)
            engines.append(engine)
        for each in some:
            each.settimeout(ANSWER_S)
            _read_head(each)
        clients += some
    return list(zip(engines, clients, strict=True))


def _read_request(engine: socket.socket) -> None:
    head, body = _until_blank_line(engine)
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += _received(engine)


def _read_head(client: socket.socket) -> None:
    head, rest = _until_blank_line(client)
    if not head.startswith(b"HTTP/1.1 200 ") or rest:
        raise RuntimeError((head + rest).decode("utf-8", "replace"))


def _until_blank_line(connection: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(_RECEIVE_BYTES)
    if not data:
        raise RuntimeError("a connection ended before its answer began")
    return data


# --- send and read events ---------------------------------------------------------------------------------------------


class _Load:
    """Sends the events of all streams, and reads them at the other end."""

    def __init__(self, pairs: list[tuple[socket.socket, socket.socket]], *, rate: float, groups: int) -> None:
        self._sockets = pairs  # a socket that is collected would be closed
        self._interval_s = 1 / rate
        self._groups = [[engine for engine, _ in pairs[number::groups]] for number in range(min(groups, len(pairs)))]
        self._clients = {client.fileno(): client for _, client in pairs}
        self._incomplete: dict[int, bytes] = {}
        self._poll = select.epoll()
        for engine, client in pairs:
            engine.setblocking(False)
            client.setblocking(False)
            self._poll.register(client.fileno(), select.EPOLLIN)
        self._late_us = array("q")
        self._sent_late_us = array("q")
        self._reads = 0
        self._outstanding = 0
        self._counted_us = 0
        """Events that are due before this time are not counted."""

    def run(self, seconds: float, warm_up_s: float) -> Lateness:
        """Send events for the warm-up and then for `seconds`."""
        count, between_s = len(self._groups), self._interval_s / len(self._groups)
        start, first = time.monotonic() + self._interval_s, round(warm_up_s / between_s)
        self._counted_us = int((start + first * between_s) * 1e6)
        began_cpu_s = 0.0
        for number in range(first + round(seconds / between_s)):
            if number == first:
                began_cpu_s = time.process_time()
                print("begins", flush=True)
            due = start + number * between_s
            self._read_until(due)
            self._send(self._groups[number % count], int(due * 1e6))
        cpu_s = time.process_time() - began_cpu_s
        print("ends", flush=True)
        end = time.monotonic() + DRAIN_S
        while self._outstanding and time.monotonic() < end:
            self._read_until(time.monotonic() + 0.01)
        if self._outstanding:
            raise RuntimeError(f"{self._outstanding} events did not come")
        late, sent = sorted(self._late_us), sorted(self._sent_late_us)
        return Lateness(
            p50_ms=_quantile_ms(late, 0.5),
            p99_ms=_quantile_ms(late, 0.99),
            max_ms=_quantile_ms(late, 1.0),
            events=len(late),
            events_a_read=round(len(late) / max(1, self._reads), 2),
            send_p99_ms=_quantile_ms(sent, 0.99),
            cpu_s=round(cpu_s, 3),
        )

    def _send(self, engines: list[socket.socket], due_us: int) -> None:
        chunk = b"%s%s%0*d%s\r\n" % (_SIZE_LINE, _BEFORE, _DIGITS, due_us, _AFTER)
        try:
            sent = {engine.send(chunk) for engine in engines}
        except BlockingIOError:
            sent = {0}
        if sent != {_CHUNK_BYTES}:
            raise RuntimeError("the buffer of a stream is full: its events are not read for too long")
        self._outstanding += len(engines)
        if due_us >= self._counted_us:
            self._sent_late_us.append(int(time.monotonic() * 1e6) - due_us)

    def _read_until(self, due: float) -> None:
        """Read events until it is time for the next ones. The sockets are looked at once at least."""
        least_us, late = self._counted_us, self._late_us
        while True:
            ready = self._poll.poll(max(0.0, due - time.monotonic()), READ_MOST)
            for fd, _ in ready:
                data = self._clients[fd].recv(_RECEIVE_BYTES)
                if not data:
                    raise RuntimeError("a stream ended")
                now_us = int(time.monotonic() * 1e6)
                counted = False
                for event_us in self._due_of(fd, data):
                    if event_us >= least_us:
                        counted = True
                        late.append(now_us - event_us)
                self._reads += counted
            if time.monotonic() >= due:
                return

    def _due_of(self, fd: int, data: bytes) -> Iterator[int]:
        """Return when the whole events in `data` were due, in microseconds."""
        if len(data) != _CHUNK_BYTES or self._incomplete:
            data = self._incomplete.pop(fd, b"") + data
        whole = len(data) // _CHUNK_BYTES
        self._outstanding -= whole
        if whole * _CHUNK_BYTES != len(data):
            self._incomplete[fd] = data[whole * _CHUNK_BYTES :]
        for at in range(_DUE_AT, whole * _CHUNK_BYTES, _CHUNK_BYTES):
            yield int(data[at : at + _DIGITS])


def _quantile_ms(ordered: list[int], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000, 3)


def main(arguments: list[str]) -> None:
    """Run the load in the process that `gateway` starts. The request comes on the standard input."""
    parser = argparse.ArgumentParser()
    for name in ("--port", "--engine-port", "--streams", "--groups"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--rate", "--seconds"):
        parser.add_argument(name, type=float, required=True)
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S)
    run(request=sys.stdin.buffer.read(), **vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
