"""The metrics that engines serve themselves: fetched when somebody asks, and passed on with the service's labels.

Called by `agent.server.metrics` at a scrape and by `agent.server.usage`. All engines are asked at once and within one
second together; one that is slow, broken or lies costs its own metrics and nobody else's.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

TIMEOUT_S = 1.0
_LARGEST_BYTES = 4 << 20
_OUR_LABELS = ("namespace", "name", "service")
_OURS = "herdsman_"
"""No engine speaks in our name."""

TOKENS = ("llamacpp:tokens_predicted_total", "vllm:generation_tokens_total")
"""Counters of generated tokens."""
BUSY = ("llamacpp:requests_processing", "vllm:num_requests_running")
"""Gauges of requests in work."""


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
    """Ask every engine for its metrics; those that have answered in full in time are in the result."""
    texts: dict[str, str] = {}
    deadline = time.monotonic() + timeout_s

    def ask(engine: Engine) -> None:
        text = get(engine.address, engine.port, engine.path, deadline=deadline)
        if text is not None:
            texts[engine.key] = text

    threads = [threading.Thread(target=ask, args=(each,), name=f"scrape-{each.key}", daemon=True) for each in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(texts)


def get(address: str, port: int, path: str, *, deadline: float) -> str | None:
    """GET a text; None when it is not there, not whole in time or too large. `deadline` is of the monotonic clock."""
    connection = http.client.HTTPConnection(
        {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address),  # noqa: S104 - where not to dial
        port,
        timeout=max(0.01, deadline - time.monotonic()),
    )
    data = bytearray()
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            return None
        while piece := answer.read1(1 << 16):
            data += piece
            if len(data) > _LARGEST_BYTES or time.monotonic() > deadline:
                return None
        return data.decode("utf-8", "replace")
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def count_slots(address: str, port: int, *, deadline: float) -> int | None:
    """Ask a llama-server how many requests it can work on at once; None when it does not say."""
    text = get(address, port, "/slots", deadline=deadline)
    try:
        slots = json.loads(text) if text is not None else None
    except ValueError:
        return None
    return len(slots) if isinstance(slots, list) and slots else None


def total_of(text: str, names: Iterable[str]) -> float | None:
    """Add up the samples of the first of these metrics that the text has; None when it has none of them."""
    for name in names:
        values = [value for line in text.splitlines() if (value := _value(line, name)) is not None]
        if values:
            return sum(values)
    return None


def relabelled(texts: Mapping[str, str], engines: Iterable[Engine]) -> Iterator[Metric]:
    """Merge the metrics of all engines, each sample with the labels of its process, and each family once.

    A text that is no Prometheus text is left out as a whole; so is a family that two engines give two types, for the
    second of them. A label of an engine's own that has a name of ours becomes `exported_<name>`, as Prometheus does.
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
        return list(text_string_to_metric_families(text))
    except Exception:
        return []


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
