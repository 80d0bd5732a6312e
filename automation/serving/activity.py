"""Reads from the metrics of a service's engines whether clients use them. Called by `sleep`; never blocks a pass.

The requests go through the pod proxy in the threads of `background`, a few in each idle timeout. `sleep_rule`
interprets the readings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from automation.serving.background import BackgroundProbes
from automation.serving.engine_progress import METRICS_PATH, METRICS_TIMEOUT_S
from automation.serving.engine_start import EngineStart
from automation.serving.idleness import IdleCheck
from automation.serving.sleep_rule import Activity, read_activity
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.pods import request_pod
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from program.runtimes.base import ProgressMetrics

Starts = tuple[EngineStart, ...]
Changed = Callable[[], None]


class ActivityReadings:
    """The last reading of each engine. Thread-safe; after `close` no request starts."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._idle = IdleCheck(client)
        self._readings: BackgroundProbes[EngineStart, tuple[Activity | None, float]] = BackgroundProbes(
            "activity", again_s=lambda answer: answer[1], clock=clock
        )

    def latest(
        self, desired: DesiredService, starts: Starts, *, every_s: float, changed: Changed
    ) -> dict[str, Activity] | None:
        """Return the last reading of each engine; None while one is missing or fails."""
        metrics = runtime_for(desired.engine).progress(desired)
        if metrics is None or not starts:
            return None
        found: dict[str, Activity] = {}
        for start in starts:
            ask = partial(self._ask, start, metrics, every_s)
            answer = self._readings.latest(start, ask, who="", changed=changed)
            if answer is not None and answer[0] is not None:
                found[start.run] = answer[0]
        return found if len(found) == len(starts) else None

    def refresh(self, starts: Starts) -> None:
        """Drop the readings, so that `latest` makes new ones."""
        for start in starts:
            self._readings.drop_answer(start)

    def all_idle(self, desired: DesiredService, starts: Starts, *, changed: Changed) -> bool:
        """Return whether each engine reports that it works on no request; True where none can report it."""
        probe = runtime_for(desired.engine).idle_probe(desired)
        if probe is None:
            return True
        said = [self._idle.latest(start, probe, changed=changed) for start in starts]
        return all(word is not None and word.state == "idle" for word in said)

    def close(self) -> None:
        self._readings.close()
        self._idle.close()

    def _ask(
        self, start: EngineStart, metrics: ProgressMetrics, every_s: float, _before: object
    ) -> tuple[Activity | None, float]:
        try:
            answer = request_pod(
                self._client,
                start.namespace,
                start.pod,
                start.port,
                "GET",
                METRICS_PATH,
                timeout_s=METRICS_TIMEOUT_S,
                tls=start.tls,
            )
        except ApiError:
            return None, every_s
        if answer.status != 200 or not answer.whole:
            return None, every_s
        return read_activity(answer.body.decode("utf-8", "replace"), metrics, at=self._clock()), every_s
