"""Sends the lines of audits to an OTLP collector, as log records by HTTP with JSON. Belongs to the event loop's thread.

`audit` adds records. One task sends them in batches, so that no request waits. While the collector is away, a batch is
sent again and again, and records wait in a queue with a bound. Records beyond it are dropped and counted. The form is
that of the OpenTelemetry Protocol Specification 1.x, the variables those of its "Protocol Exporter" page.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import structlog

if TYPE_CHECKING:
    import aiohttp

MOST_RECORDS, MOST_BYTES = 10_000, 16 << 20
"""The bounds of the queue."""
BATCH_RECORDS, BATCH_BYTES = 512, 4 << 20
"""The bounds of a batch. A single record may be longer."""
GATHER_S = 1.0
"""How long records are gathered before a batch that is not full is sent."""
TIMEOUT_S = 10.0
RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
"""The first and the longest pause before a batch is sent again."""
RETRIED = frozenset({429, 502, 503, 504})
"""The statuses after which a batch is sent again. After others it is dropped, as the specification demands."""
CLOSE_S = 2.0
"""How long the last records may take when the gateway ends."""
ANSWER_MAX = 64 << 10
LOGS_PATH = "/v1/logs"
_VARIABLES = "OTEL_EXPORTER_OTLP_LOGS_", "OTEL_EXPORTER_OTLP_"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Collector:
    """Where records are sent."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May have credentials."""


def collector_of(environment: Mapping[str, str]) -> Collector | None:
    """Return the collector that OpenTelemetry's variables name; None if they name none. Raises ValueError."""
    special, general = (environment.get(f"{beginning}ENDPOINT", "").strip() for beginning in _VARIABLES)
    if not special and not general:
        return None
    url = special or general.rstrip("/") + LOGS_PATH
    name = f"{_VARIABLES[0] if special else _VARIABLES[1]}ENDPOINT"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{name} is not an http or https address without a user, as in http://collector:4318")
    headers: dict[str, str] = {}
    given = environment.get(f"{_VARIABLES[0]}HEADERS") or environment.get(f"{_VARIABLES[1]}HEADERS", "")
    for part in filter(None, (each.strip() for each in given.split(","))):
        key, equals, value = part.partition("=")
        key, value = unquote(key.strip()), unquote(value.strip())
        if not equals or not key.isascii() or not key.isprintable() or not value.isprintable():
            raise ValueError(f"{_VARIABLES[1]}HEADERS is not a list as in name=value,name=value")
        headers[key] = value
    return Collector(url, headers)


class OtlpExporter:
    """The queue to a collector. The first record starts its task; `close` ends it."""

    def __init__(self, collector: Collector, *, gather_s: float = GATHER_S) -> None:
        self.dropped = 0
        """Records that the queue or the collector did not take."""
        self._collector = collector
        self._gather_s = gather_s
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._failed = False

    def add(self, record: Mapping[str, object]) -> None:
        """Queue a record, or drop it when the queue is full. Returns at once."""
        data = json.dumps(_log_record(record, time.time_ns())).encode()
        if self._closing or len(self._queue) >= MOST_RECORDS or self._bytes + len(data) > MOST_BYTES:
            self.dropped += 1
            return
        self._queue.append(data)
        self._bytes += len(data)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        if len(self._queue) >= BATCH_RECORDS or self._bytes >= BATCH_BYTES:
            self._more.set()

    async def close(self) -> None:
        """Send what is queued if the collector takes it within `CLOSE_S`, and end."""
        self._closing = True
        self._more.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.dropped += len(self._queue)
        if self._queue:
            log.warning("The gateway ends before the collector took all audits", lost=len(self._queue))
        if self._session is not None:
            await self._session.close()

    async def _run(self) -> None:
        while not (self._closing and not self._queue):
            try:
                async with asyncio.timeout(self._gather_s):
                    await self._more.wait()
            except TimeoutError:
                pass
            if not self._closing:
                self._more.clear()
            while batch := self._batch():
                try:
                    await self._deliver(batch)
                except Exception:
                    # Whatever it is, later records must be sent.
                    log.exception("Could not send audits to the collector")
                    self.dropped += len(batch)
                for each in batch:
                    self._bytes -= len(each)
                    self._queue.popleft()

    def _batch(self) -> list[bytes]:
        """Return the first records, which stay in the queue until they are delivered."""
        found: list[bytes] = []
        size = 0
        for each in self._queue:
            if found and (len(found) >= BATCH_RECORDS or size + len(each) > BATCH_BYTES):
                break
            found.append(each)
            size += len(each)
        return found

    async def _deliver(self, batch: list[bytes]) -> None:
        body, pause_s = _body(batch), RETRY_S
        while True:
            asked_s = await self._send(body, len(batch))
            if asked_s is None:
                return
            await asyncio.sleep(min(max(pause_s, asked_s), LONGEST_RETRY_S))
            pause_s *= 2

    async def _send(self, body: bytes, number: int) -> float | None:
        """Send a batch. Return the pause in seconds before it must be sent again, None if it must not."""
        import aiohttp

        from gateway.routers.connections import whole

        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
            )
        headers = {"Content-Type": "application/json", **self._collector.headers}
        try:
            async with self._session.post(
                self._collector.url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                status, retry_after = answer.status, answer.headers.get("Retry-After", "")
                text = await whole(answer, ANSWER_MAX)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._away(type(error).__name__)
            return 0.0
        if status in RETRIED:
            self._away(f"status {status}")
            return float(retry_after) if retry_after.isdecimal() and len(retry_after) < 6 else 0.0
        if self._failed:
            self._failed = False
            log.info("The collector of audits answers again")
        if not 200 <= status < 300:
            log.warning("The collector refused audits; they are lost", status=status, records=number)
            self.dropped += number
        else:
            self.dropped += min(_rejected(text), number)
        return None

    def _away(self, why: str) -> None:
        if not self._failed:
            log.warning("The collector of audits does not take them; they wait", why=why)
        self._failed = True


def _body(records: list[bytes]) -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "herdsman-gateway"}}]}
    scope = json.dumps({"name": "herdsman.gateway.audit"}).encode()
    return b'{"resourceLogs":[{"resource":%b,"scopeLogs":[{"scope":%b,"logRecords":[%b]}]}]}' % (
        json.dumps(resource).encode(),
        scope,
        b",".join(records),
    )


def _log_record(record: Mapping[str, object], now_ns: int) -> dict[str, object]:
    event = str(record.get("event", ""))
    return {
        "timeUnixNano": str(now_ns),
        "observedTimeUnixNano": str(now_ns),
        "severityNumber": 9,
        "severityText": "INFO",
        "eventName": event,
        "body": {"stringValue": event},
        "attributes": [
            {"key": key, "value": _value(value)} for key, value in record.items() if key not in ("event", "time")
        ],
    }


def _value(value: object) -> dict[str, object]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"intValue": str(value)}  # JSON's numbers do not hold all of 64 bits
    # Half of a character (a lone surrogate) of a client's text would have a collector refuse the whole batch.
    return {"stringValue": str(value).encode(errors="replace").decode()}


def _rejected(answer: bytes) -> int:
    """Return how many records a collector rejected of a batch that it took."""
    try:
        return max(0, int(json.loads(answer)["partialSuccess"]["rejectedLogRecords"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
