"""Fetches the metrics that engines serve, and passes them on with the labels of their service.

Called by `metrics` at a scrape and by `usage`. All engines are asked at the same time, within one second in total. If
an engine is slow, broken or sends invalid metrics, only its metrics are missing.
"""

from __future__ import annotations

import errno
import json
import re
import selectors
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

TIMEOUT_S = 1.0
_LARGEST_BYTES = 4 << 20
_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*([0-9]{1,9})[ \t]*\r?$")
_OUR_LABELS = ("namespace", "name", "service")
_OURS = "herdsman_"
"""Engines may not use this prefix."""

_COUNTER = re.compile(r"^#[ \t]+TYPE[ \t]+(\S+)[ \t]+counter[ \t]*$", re.MULTILINE)

TOKENS = ("llamacpp:tokens_predicted_total", "vllm:generation_tokens_total")
"""Counters of generated tokens."""
BUSY = ("llamacpp:requests_processing", "vllm:num_requests_running")
"""Gauges of running requests."""


@dataclass(frozen=True)
class Engine:
    """One process that serves metrics."""

    key: str
    """`namespace/name`."""
    service: str
    address: str
    port: int
    path: str


def fetch_all(engines: Iterable[Engine], *, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Request the metrics of every engine. Returns the answers that were complete in time, by key."""
    deadline = time.monotonic() + timeout_s
    questions = {each.key: _Question(each.address, each.port, each.path) for each in engines}
    _exchange(questions.values(), deadline)
    return {key: text for key, question in questions.items() if (text := question.text()) is not None}


def get(address: str, port: int, path: str, *, deadline: float) -> str | None:
    """GET a text.

    Returns None if it is missing, incomplete in time or too large. `deadline` is of the monotonic clock.
    """
    question = _Question(address, port, path)
    _exchange([question], deadline)
    return question.text()


class _Question:
    """One GET by HTTP/1.0, whose response ends with the connection. Does not block. A failed request has no text."""

    def __init__(self, address: str, port: int, path: str) -> None:
        self.data = bytearray()
        self.ended = False
        """The server has closed its side of the connection."""
        dialled = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - where not to dial
        host = f"[{dialled}]" if ":" in dialled else dialled
        self.request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nAccept: text/plain, */*\r\n\r\n".encode()
        self.socket = socket.socket(socket.AF_INET6 if ":" in dialled else socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            refused = self.socket.connect_ex((dialled, port))
        except OSError:
            refused = errno.EHOSTUNREACH
        self.open = refused in (0, errno.EINPROGRESS)

    def send(self) -> bool:
        """Send more of the request. Returns True once all of it was sent."""
        self.request = self.request[self.socket.send(self.request) :]
        return not self.request

    def receive(self) -> bool:
        """Receive more of the response. Returns True at its end."""
        piece = self.socket.recv(1 << 16)
        self.data += piece
        self.ended = not piece
        if len(self.data) > _LARGEST_BYTES:
            raise OSError(errno.EMSGSIZE, "too large")
        return self.ended

    def text(self) -> str | None:
        """Return the body of a complete response with status 200, else None."""
        head, blank, body = bytes(self.data).partition(b"\r\n\r\n")
        status = head.partition(b"\r\n")[0].split()
        if not self.ended or not blank or status[1:2] != [b"200"]:
            return None
        length = _LENGTH.search(head)
        if b"chunked" in head.lower() or (length and int(length[1]) != len(body)):
            return None
        return body.decode("utf-8", "replace")


def _exchange(questions: Iterable[_Question], deadline: float) -> None:
    """Run all requests at the same time, in this thread, until they are complete or the time is over."""
    with selectors.DefaultSelector() as selector:
        asked = list(questions)
        for question in asked:
            if question.open:
                selector.register(question.socket, selectors.EVENT_WRITE, question)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, events in selector.select(left_s):
                question = key.data
                try:
                    if events & selectors.EVENT_WRITE and question.send():
                        selector.modify(question.socket, selectors.EVENT_READ, question)
                    elif events & selectors.EVENT_READ and question.receive():
                        selector.unregister(question.socket)
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(question.socket)
        for question in asked:
            question.socket.close()


def count_slots(address: str, port: int, *, deadline: float) -> int | None:
    """Return the number of requests that a llama-server can process at the same time, or None if unknown."""
    text = get(address, port, "/slots", deadline=deadline)
    try:
        slots = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return len(slots) if isinstance(slots, list) and slots else None


def total_of(text: str, names: Iterable[str]) -> float | None:
    """Return the sum of the samples of the first of these metrics in the text, or None if there is none."""
    for name in names:
        values = [value for line in text.splitlines() if (value := _value(line, name)) is not None]
        if values:
            return sum(values)
    return None


def relabelled(texts: Mapping[str, str], engines: Iterable[Engine]) -> Iterator[Metric]:
    """Merge the metrics of all engines: each family once, each sample with the labels of its process.

    A text that is not valid is omitted completely. If two engines give a family different types, it is omitted for the
    second. An engine's label with one of these names becomes `exported_<name>`, as in Prometheus.
    """
    families: dict[str, Metric] = {}
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for engine in sorted(engines, key=lambda each: each.key):
        for family in _parsed(texts.get(engine.key, "")):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            if family.name.startswith(_OURS) or merged.type != family.type:
                continue
            for sample in family.samples:
                labels = _labels(sample, engine)
                mark = (sample.name, tuple(sorted(labels.items())))
                if mark not in seen:
                    seen.add(mark)
                    merged.samples.append(Sample(sample.name, labels, sample.value))
    return (family for _, family in sorted(families.items()) if family.samples)


def _parsed(text: str) -> list[Metric]:
    try:
        families = list(text_string_to_metric_families(text))
    except Exception:
        return []
    # The parser adds `_total` to the name of every counter, even if the engine's name has no such suffix.
    renamed = {name for name in _COUNTER.findall(text) if not name.endswith("_total")}
    return [_as_named(family) if family.name in renamed else family for family in families]


def _as_named(family: Metric) -> Metric:
    """Restore the engine's name of a counter. Only a metric without a type is written without `_total`."""
    named = Metric(family.name, family.documentation, "unknown")
    for sample in family.samples:
        named.samples.append(Sample(sample.name.removesuffix("_total"), sample.labels, sample.value))
    return named


def _labels(sample: Sample, engine: Engine) -> dict[str, str]:
    namespace, _, name = engine.key.partition("/")
    own = {f"exported_{key}" if key in _OUR_LABELS else key: value for key, value in sample.labels.items()}
    return {**own, "namespace": namespace, "name": name, "service": engine.service}


def _value(line: str, name: str) -> float | None:
    if not line.startswith(name):
        return None
    rest = line[len(name) :]
    if rest.startswith("{"):
        rest = rest.rpartition("}")[2]
    elif not rest.startswith((" ", "\t")):
        return None
    try:
        return float(rest.split()[0])
    except (ValueError, IndexError):
        return None
