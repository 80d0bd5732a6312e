"""Requests one completion from each start of an engine: health shows that it listens, a completion that it serves.

Called by `replicas`, whose workers never wait: the requests go through the API server's pod proxy, in the threads of
`background`. Failures are retried with back-off. `judge` decides from the answer, and is pure.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog

from automation.serving.background import BackgroundProbes
from automation.serving.engine_progress import has_moved, read_progress
from automation.serving.engine_start import EngineStart
from automation.workqueue.backoff import backoff_s
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound, Unreachable
from kubeapi.exchange import Exchange
from kubeapi.pods import PathRefused, request_pod
from program.runtimes.base import CompletionRequest, ProgressMetrics

log = structlog.get_logger(__name__)

FAILED_BASE_S = 5.0
FAILED_CAP_S = 60.0
LOADING_BASE_S = 2.0
LOADING_CAP_S = 15.0
UNKNOWN_BASE_S = 15.0
UNKNOWN_CAP_S = 600.0
EVIDENCE_TIMEOUT_S = 5.0
PROGRESS_S = 3.0
"""The time between two readings of the tokens of an engine that does not answer."""
THREADS = 8
CLOSED_AFTER = 5
"""After this many unreachable replicas in a row, the loop cannot reach pods at all, and no new replica waits for the
half minute that a failed attempt takes."""
_WAITS = {
    "failed": (FAILED_BASE_S, FAILED_CAP_S),
    "unknown": (UNKNOWN_BASE_S, UNKNOWN_CAP_S),
    "loading": (LOADING_BASE_S, LOADING_CAP_S),
}
"""The first and the longest time between two tries."""
_LONGEST_MESSAGE = 300


@dataclass(frozen=True)
class Proof:
    """The result of the checks of one start of an engine."""

    state: Literal["proved", "failed", "unknown", "loading"]
    """proved: it answered with a token, an embedding or a rank. failed: it accepted the request and did not answer so.
    unknown: it cannot be checked, and gets requests anyway. loading: it reports that it loads its model."""
    message: str = ""
    tries: int = 1
    """Answers of this state in a row."""
    final: bool = False
    """The result is final: there is no further check."""

    @property
    def serves(self) -> bool:
        return self.state in ("proved", "unknown")


class CompletionCheck:
    """Checks each start once, and again only while it fails. Thread-safe.

    `timeout_s` is for one completion; `on_answer` is called with the state of each answer.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        timeout_s: float,
        on_answer: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._on_answer = on_answer
        self._dice = dice
        self._lock = threading.Lock()
        self._unreached: set[str] = set()
        """Pods that requests did not reach since the last request that reached one."""
        self._answers: BackgroundProbes[EngineStart, Proof] = BackgroundProbes(
            "completion", again_s=self._again_s, threads=THREADS, clock=clock
        )

    def latest(
        self,
        start: EngineStart,
        request: CompletionRequest | None,
        *,
        progress: ProgressMetrics | None = None,
        changed: Callable[[], None],
    ) -> Proof | None:
        """Return the result for a start; None until the first answer. Never blocks."""
        if request is None:
            return Proof(
                "unknown", "its engine has no request that Herdsman can send without the engine's key", final=True
            )
        found = self._answers.latest(
            start, lambda before: self._counted(before, self.check(start, request, progress)), who="", changed=changed
        )
        if found is None and self._way_is_closed():
            return Proof("unknown", "requests reach no replica now; Herdsman still tries this one")
        return found

    def check(self, start: EngineStart, request: CompletionRequest, progress: ProgressMetrics | None = None) -> Proof:
        """Make the request now and judge the answer.

        In an engine with one slot the request may wait behind a long answer to another client. That is not a failure.
        `progress`, read when the answer does not come in time, shows whether the engine makes tokens.
        """
        try:
            answer = self._ask(start, "POST", request.path, request.body, self._timeout_s)
        except (ApiError, PathRefused) as error:
            if isinstance(error, Unreachable) and error.timed_out and self._reachable(start):
                if progress is not None and (why := self._may_be_busy(start, progress)):
                    return Proof("unknown", f"POST {request.path} waits: {why}")
                return Proof("failed", f"POST {request.path}: no answer in {self._timeout_s:g} s")
            if not isinstance(error, NotFound):  # a deleted pod does not count
                self._note(start, reached=False)
            # Without the right to pods/proxy every start is unknown, and each costs one refused request.
            final = isinstance(error, (Forbidden, PathRefused))
            return Proof("unknown", f"the request failed: {error}"[:_LONGEST_MESSAGE], final=final)
        self._note(start, reached=True)
        return judge(request, answer)

    def due_in_s(self, start: EngineStart) -> float:
        """Return the seconds until the next try; infinity when there is none."""
        return self._answers.due_in_s(start)

    def idle(self) -> bool:
        return self._answers.idle()

    def close(self) -> None:
        self._answers.close()

    def _ask(self, start: EngineStart, method: str, path: str, body: Any, timeout_s: float) -> Exchange:
        return request_pod(
            self._client,
            start.namespace,
            start.pod,
            start.port,
            method,
            path,
            body=body,
            timeout_s=timeout_s,
            tls=start.tls,
        )

    def _reachable(self, start: EngineStart) -> bool:
        """Return whether requests reach the engine: any answer of the engine counts.

        Otherwise only the connection may hang.
        """
        try:
            self._ask(start, "GET", "/", None, EVIDENCE_TIMEOUT_S)
        except (ApiError, PathRefused):
            return False
        self._note(start, reached=True)
        return True

    def _may_be_busy(self, start: EngineStart, progress: ProgressMetrics) -> str:
        """Read twice whether the engine makes tokens for any client; empty when it makes none."""
        before = read_progress(self._client, start, progress)
        if before.absent:
            return "its engine has no metrics that show whether it generates tokens for other requests"
        if before.tokens is None:
            return ""
        time.sleep(PROGRESS_S)
        moved = has_moved(before, read_progress(self._client, start, progress))
        return "it generates tokens for other requests" if moved else ""

    def _note(self, start: EngineStart, *, reached: bool) -> None:
        with self._lock:
            if reached:
                self._unreached.clear()
            elif len(self._unreached) < CLOSED_AFTER:
                self._unreached.add(start.uid)

    def _way_is_closed(self) -> bool:
        with self._lock:
            return len(self._unreached) >= CLOSED_AFTER

    def _counted(self, before: Proof | None, proof: Proof) -> Proof:
        self._on_answer(proof.state)
        if proof.state != "proved":
            log.info("An engine did not answer a completion", state=proof.state, why=proof.message)
        again = before is not None and before.state == proof.state
        return replace(proof, tries=before.tries + 1) if before is not None and again else proof

    def _again_s(self, proof: Proof) -> float:
        if proof.final or proof.state == "proved":
            return math.inf
        base_s, cap_s = _WAITS[proof.state]
        return backoff_s(proof.tries, base_s=base_s, cap_s=cap_s, jitter=self._dice())


def judge(request: CompletionRequest, answer: Exchange) -> Proof:
    """Decide the result from an engine's own answer. Pure."""
    told = f"POST {request.path}: {answer.status}"
    if answer.status in (401, 403):
        return Proof(
            "unknown",
            f"{told}: the engine requires an API key, which Herdsman does not read; the engine answers",
            final=True,
        )
    if answer.status == 429:
        return Proof("unknown", f"{told}: the engine has too many requests")
    if answer.status == 501 or 300 <= answer.status < 500:
        return Proof("unknown", f"{told}: the engine refuses this request: {_text(answer.body)}", final=True)
    if answer.status == 503 and _loads(answer.body):
        return Proof("loading", f"{told}: the engine loads its model")
    if answer.status >= 500:
        return Proof("failed", f"{told}: {_text(answer.body)}")
    if not answer.whole:
        return Proof("unknown", f"{told}: the answer is too large", final=True)
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return Proof("failed", f"{told}: the answer is not JSON: {_text(answer.body)}")
    if isinstance(body, dict) and (_generated(body) or _embedded(body) or _ranked(body)):
        return Proof("proved")
    return Proof("failed", f"{told}: the answer has no content: {_text(answer.body)}")


def _loads(body: bytes) -> bool:
    """Return whether this is the answer that llama-server gives to every request while it loads its model."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = told.get("error") if isinstance(told, dict) else None
    return isinstance(error, dict) and error.get("message") == "Loading model"


def _generated(body: dict[str, Any]) -> bool:
    """Return whether a token was made. Its text may be empty, as for the end-of-text token or half of a character."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    usage = body.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        return bool(usage["completion_tokens"] > 0)
    message = choices[0].get("message")
    message = message if isinstance(message, dict) else {}
    return any((message.get("content"), message.get("reasoning_content"), choices[0].get("text")))


def _embedded(body: dict[str, Any]) -> bool:
    """Return whether there is a vector of numbers. A failed computation gives none, or nulls for NaN."""
    data = body.get("data")
    vector = data[0].get("embedding") if isinstance(data, list) and data and isinstance(data[0], dict) else None
    if vector and isinstance(vector, list) and isinstance(vector[0], list):
        vector = vector[0]
    return bool(vector) and isinstance(vector, list) and all(_finite(value) for value in vector)


def _ranked(body: dict[str, Any]) -> bool:
    results = body.get("results")
    first = results[0] if isinstance(results, list) and results else None
    return isinstance(first, dict) and any(_finite(first.get(name)) for name in ("relevance_score", "score"))


def _finite(value: object) -> bool:
    # An int is finite whatever its size, and one beyond any float would raise.
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _text(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())[:_LONGEST_MESSAGE]
