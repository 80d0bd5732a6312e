"""Scales services by the requests at the gateways: their number of replicas, their sleep, and their wake.

`automation.reconcile.desire` asks for the number in each pass. `request_reports` follows the gateways, and
`request_chooser` chooses. A gateway holds the requests of a service that sleeps, so this module never sees a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from automation.reconcile.observe import Observed
from automation.serving.request_chooser import Choice, choose
from automation.serving.request_reports import RequestReports
from automation.serving.sleep_rule import State
from components.engine_workloads import is_stopped
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.request_report import Counts
from program.desired.service import DesiredService, RequestScaling
from program.dialects.status.conditions import is_asleep

LEAST_S = 0.5
"""The shortest time between two passes for the same reason, in seconds."""
UNKNOWN_S = 15.0
"""How often a service is reconciled while its requests are unknown."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Scaled:
    """The replicas of a service that is scaled by requests."""

    replicas: int
    sleep: State = ""
    by_autoscaler: bool = False
    """A HorizontalPodAutoscaler sets the number, which is the live one here."""


class RequestScaler:
    """All services that are scaled by requests. Thread-safe for passes of different services."""

    def __init__(
        self,
        client: KubeClient,
        *,
        requeue: Callable[[ServiceKey, float], None],
        has_metrics_api: Callable[[], bool | None] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_metrics_api`: whether Herdsman serves the cluster's external metrics (`automation.external_metrics`).

        Then a HorizontalPodAutoscaler sets the number of replicas of a service in pods while it is awake. While that
        is not known (None), a service keeps its autoscaler.
        """
        self.reports = RequestReports(client, changed=self._on_report, clock=clock)
        self._requeue = requeue
        self._has_metrics_api = has_metrics_api
        self._clock = clock
        self._lock = threading.Lock()
        self._choices: dict[ServiceKey, Choice] = {}
        self._rules: dict[ServiceKey, RequestScaling] = {}

    def start(self) -> None:
        """Begin to follow the gateways."""
        self.reports.start()

    def close(self) -> None:
        """Stop to follow them."""
        self.reports.stop()

    def scaled(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        observed: Observed,
        *,
        may_change: bool,
        by_agent: bool = False,
    ) -> Scaled | None:
        """Return the replicas of a service now; None for one that is stopped or not scaled by requests.

        Without `may_change`, a change of the number waits for an approval or for another mode, and the number stays.
        `by_agent`: an agent runs processes of the service. Its proxy counts their requests and puts them to sleep.
        """
        rules = desired.by_requests
        if rules is None or is_stopped(desired):
            self.drop_service(key)
            return None
        if by_agent:
            rules = rules.model_copy(update={"idle_timeout_s": None})
        ready = _has_ready_replica(desired, observed)
        with self._lock:
            before = self._choices.get(key) or _first(cr, desired, observed, rules, now=self._clock())
            self._choices[key], self._rules[key] = before, rules
        live = _live_replicas(desired, observed)
        follows = self._has_metrics_api()
        if follows is None:
            follows = observed.autoscaler is not None
        may_follow = rules.target is not None and desired.host_placement is None and follows
        if may_follow and live and not before.is_asleep and not before.waking:
            before = replace(before, replicas=live, wanted=())
            rules = rules.model_copy(update={"target": None, "min_replicas": live, "max_replicas": live})
        if may_change:
            demand = self.reports.demand(key)
            after, again_s = choose(before, demand, rules, ready=ready, now=self._clock())
            if not demand.is_whole and not after.is_asleep:
                again_s = UNKNOWN_S
            with self._lock:
                self._choices[key] = after
            if again_s is not None:
                self._requeue(key, max(LEAST_S, again_s))
            if after.replicas != before.replicas:
                log.info("Scaled by requests", before=before.replicas, after=after.replicas, requests=demand.requests)
            before = after
        # The autoscaler does not touch a Deployment with 0 replicas, so the loop starts the first ones.
        by_autoscaler = may_follow and bool(live) and not before.is_asleep and not before.waking
        state: State = "asleep" if before.is_asleep else "waking" if before.waking else ""
        return Scaled(before.replicas, state, by_autoscaler=by_autoscaler)

    def values(self, namespace: str, wants: Callable[[ServiceKey], bool]) -> dict[ServiceKey, int]:
        """Return the requests under way of the services in a namespace for which `wants` is true, for autoscalers.

        While a gateway is silent, the value is at least what keeps the present number of replicas.
        """
        with self._lock:
            own = {key for key in self._rules if key.namespace == namespace}
        found = {}
        for key in filter(wants, own | self.reports.services(namespace)):
            demand = self.reports.demand(key)
            with self._lock:
                rules, choice = self._rules.get(key), self._choices.get(key)
            if demand.is_whole:
                found[key] = demand.requests
            elif rules is not None and choice is not None:
                found[key] = max(demand.requests, choice.replicas * (rules.target or 0))
        return found

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a service."""
        with self._lock:
            self._choices.pop(key, None)
            self._rules.pop(key, None)

    def _on_report(self, key: ServiceKey, before: Counts | None, after: Counts) -> None:
        """Reconcile a service whose number of replicas may change. Called in the informer's thread."""
        with self._lock:
            rules = self._rules.get(key)
        if rules is None:
            return
        if before is None:
            self._requeue(key, 0.0)
            return
        begins_to_wait = bool(after.held) and not before.held
        moves = rules.target is not None and sum(before[:2]) != sum(after[:2])
        ends = sum(after[:2]) == 0 < sum(before[:2]) and rules.idle_timeout_s is not None
        if begins_to_wait or moves or ends:
            self._requeue(key, 0.0)


def _first(cr: Json, desired: DesiredService, observed: Observed, rules: RequestScaling, *, now: float) -> Choice:
    """Return the choice of an earlier loop, as the cluster shows it."""
    if is_asleep(cr):
        return Choice(replicas=0, started=True)
    live = _live_replicas(desired, observed)
    replicas = min(max(live or rules.min_replicas, rules.min_replicas), rules.max_replicas)
    # The earlier loop wanted the replicas that run until now, so fewer must be enough for the whole window.
    return Choice(replicas=replicas, wanted=((now, replicas),) if live else ())


def _live_replicas(desired: DesiredService, observed: Observed) -> int | None:
    if desired.host_placement is not None:
        return len(observed.host_processes) or None
    found = _live_set(desired, observed)
    return int(found["spec"]["replicas"]) if found is not None else None


def _has_ready_replica(desired: DesiredService, observed: Observed) -> bool:
    live = _live_set(desired, observed)
    if live is not None and live["status"].get("readyReplicas"):
        return True
    return any(each["status"].get("ready") for each in observed.host_processes.values())


def _live_set(desired: DesiredService, observed: Observed) -> Json | None:
    """Return the Deployment or the LeaderWorkerSet of the pods that answer requests."""
    if desired.workloads is None:
        return observed.deployment
    main = desired.workloads.main.name
    return next((obj for name, obj in (observed.sets or {}).items() if name.name == main), None)
