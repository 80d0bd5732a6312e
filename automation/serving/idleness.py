"""Checks whether replicas work on a request: busy, idle or unknown, by each engine's own endpoint for it.

Called by the controller before a change that would stop replicas. The requests go through the pod proxy in the threads
of `background`; an answer is valid for a few seconds. `judge` interprets an answer, and is pure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from automation.serving.background import BackgroundProbes
from automation.serving.engine_progress import samples
from automation.serving.engine_start import EngineStart
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.exchange import Exchange
from kubeapi.pods import PathRefused, request_pod
from program.runtimes.base import IdleProbe

HOLDS_S = 4.0
"""A little less than the 5 s after which a waiting change is checked again."""
TIMEOUT_S = 3.0


class Idleness(NamedTuple):
    """The state that one replica reported."""

    state: Literal["busy", "idle", "unknown"]
    message: str = ""


class IdleCheck:
    """Checks whether replicas are idle. Thread-safe."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._answers: BackgroundProbes[EngineStart, Idleness] = BackgroundProbes(
            "idleness", again_s=lambda _answer: HOLDS_S, clock=clock
        )

    def latest(self, start: EngineStart, probe: IdleProbe, *, changed: Callable[[], None]) -> Idleness | None:
        """Return the answer of a replica in the last seconds; None until the first one. Never blocks."""
        if self._answers.due_in_s(start) == 0.0:
            # An old answer must not count: the replica may have been busy since.
            self._answers.drop_answer(start)
        return self._answers.latest(start, lambda _before: self.check(start, probe), who="", changed=changed)

    def check(self, start: EngineStart, probe: IdleProbe) -> Idleness:
        """Send the request now and interpret the answer."""
        try:
            answer = request_pod(
                self._client,
                start.namespace,
                start.pod,
                start.port,
                "GET",
                probe.path,
                timeout_s=TIMEOUT_S,
                tls=start.tls,
            )
        except (ApiError, PathRefused) as error:
            return Idleness("unknown", f"GET {probe.path}: {error}"[:300])
        return judge(probe, answer)

    def idle(self) -> bool:
        return self._answers.idle()

    def close(self) -> None:
        self._answers.close()


def judge(probe: IdleProbe, answer: Exchange) -> Idleness:
    """Interpret an answer. A replica is idle only when the answer states it."""
    told = f"GET {probe.path}: {answer.status}"
    if probe.kind == "status":
        return Idleness("idle" if 200 <= answer.status < 300 else "busy", told)
    if answer.status != 200 or not answer.whole:
        return Idleness("unknown", told)
    text = answer.body.decode("utf-8", "replace")
    if probe.kind == "gauge":
        found = samples(text, (probe.gauge,)).get(probe.gauge)
        if found is None:
            return Idleness("unknown", f"GET {probe.path}: no metric `{probe.gauge}`")
        return Idleness("busy", f"{probe.gauge} is {found:g}") if found > 0 else Idleness("idle")
    return _of_slots(probe, text)


def _of_slots(probe: IdleProbe, text: str) -> Idleness:
    try:
        slots: Any = json.loads(text)
    except (ValueError, RecursionError):
        slots = None
    told = [slot.get("is_processing") for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    says = [word for word in told if isinstance(word, bool)]
    if not says or len(says) != len(slots):
        return Idleness("unknown", f"GET {probe.path}: no list of slots")
    busy = sum(says)
    return Idleness("busy", f"{busy} of {len(says)} slots are busy") if busy else Idleness("idle")
