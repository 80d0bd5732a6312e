"""The policies of a loop: reloaded when their files change, evaluated once for each version of a service.

The controller calls `verdict` in each pass. The result is remembered until the service, its namespace's labels or the
policies change. When a changed folder is invalid, the last valid policies stay in force.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Gauge

from components.policies.policy import NoPolicies, PolicyUnreadable, Violation
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.status.conditions import Reason

if TYPE_CHECKING:
    from components.policies.in_force import FolderPolicies

log = structlog.get_logger(__name__)

LOOK_S = 2.0
"""How often the folder is read; the kubelet updates a mounted ConfigMap only within a minute."""
RETRY_S = 90.0
"""The time after which a rule that could not be evaluated is evaluated again."""
MOST_TOLD = 8
"""How many violations one message lists."""


class Verdict(NamedTuple):
    """The result of the policies for one service."""

    problem: Problem | None = None
    """Mandatory policies are violated: nothing is applied."""
    advice: tuple[Problem, ...] = ()


class _Asked(NamedTuple):
    of: int
    verdict: Verdict
    again_at: float


def readable_gauge(registry: CollectorRegistry) -> Gauge:
    """Return the metric of whether the folder is valid, registered in `registry`."""
    return Gauge(
        "herdsman_policies_readable",
        "1 while the folder of policies can be read. 0: the policies that were read last are in force.",
        registry=registry,
    )


class PolicyChecker:
    """Checks services against the policies of one loop. Thread-safe."""

    def __init__(
        self,
        folder: Path | None,
        *,
        requeue: Callable[[ServiceKey, float], None],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the folder; with None there are no policies. `changed` is called after a reload.

        Raises PolicyUnreadable, which names file and field.
        """
        self._folder = folder
        self._requeue = requeue
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[ServiceKey, _Asked] = {}
        self._version = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained = ""
        self._seen: object = None
        self._digest = ""
        self._readable = 1.0
        self._again_at = 0.0
        self.in_force: FolderPolicies | NoPolicies = NoPolicies()
        if folder is not None:
            # Imported for a folder only: the rules and the models of routers take 1 MB.
            from components.policies import reading

            self._seen = _signature(folder)
            self._digest = reading.digest_of(reading.read_texts(folder))
            self.in_force = reading.load_policies(folder)
            log.info("Read the policies", folder=str(folder), policies=len(self.in_force))

    def verdict(
        self,
        key: ServiceKey,
        cr: Json,
        desired: DesiredService,
        rendered: RenderedService,
        *,
        namespace_labels: Mapping[str, str],
    ) -> Verdict:
        """Return whether a service may be applied as it is rendered."""
        with self._lock:
            policies, version, known = self.in_force, self._version, self._asked.get(key)
        if isinstance(policies, NoPolicies):
            return Verdict()
        of = _fingerprint(version, cr, desired, rendered, namespace_labels)
        now = self._clock()
        if known is not None and known.of == of and now < known.again_at:
            return known.verdict
        found = policies.check(desired, rendered, cr=cr, namespace_labels=namespace_labels)
        again_s = RETRY_S if any(violation.failed for violation in found) else float("inf")
        if again_s == RETRY_S:
            self._requeue(key, RETRY_S + 1)
        verdict = verdict_of(found)
        with self._lock:
            if version == self._version:
                self._asked[key] = _Asked(of, verdict, now + again_s)
        return verdict

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        with self._lock:
            self._asked.pop(key, None)

    def start(self) -> None:
        """Start the thread that reloads the folder."""
        if self._folder is not None:
            self._thread = threading.Thread(target=self._watch, name="policies", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LOOK_S * 2)
        self.in_force.close()

    def register(self, registry: CollectorRegistry) -> Callable[[], None]:
        """Register the metric of whether the folder is valid; returns a function that unregisters it."""
        if self._folder is None:
            return lambda: None
        gauge = readable_gauge(registry)
        gauge.set_function(lambda: self._readable)
        return lambda: registry.unregister(gauge)

    def reload_if_changed(self) -> None:
        """Read the folder again if it has changed."""
        folder = self._folder
        if folder is None:
            return
        seen = _signature(folder)
        if seen == self._seen and (self._readable or self._clock() < self._again_at):
            return
        from components.policies import reading

        try:
            digest = reading.digest_of(reading.read_texts(folder))
            if digest != self._digest or not self._readable:
                self._put_in_force(reading.load_policies(folder), digest)
            self._readable, self._complained = 1.0, ""
        except PolicyUnreadable as error:
            # A slow start of the rules' process is also an error.
            self._readable, self._again_at = 0.0, self._clock() + RETRY_S
            if str(error) != self._complained:
                self._complained = str(error)
                log.error(
                    "Could not read the policies; the policies that were read last stay in force", error=str(error)
                )
        self._seen = seen

    def _put_in_force(self, policies: FolderPolicies | NoPolicies, digest: str) -> None:
        with self._lock:
            before, self.in_force = self.in_force, policies
            self._version += 1
            self._asked.clear()
        self._digest = digest
        before.close()
        log.info("Read the policies again", folder=str(self._folder), policies=len(policies))
        self._changed()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.reload_if_changed()
            except Exception:
                log.exception("Could not check the folder of policies")


def _fingerprint(
    version: int, cr: Json, desired: DesiredService, rendered: RenderedService, labels: Mapping[str, str]
) -> int:
    metadata = cr["metadata"]
    own = [metadata.get(name) for name in ("uid", "generation", "labels", "annotations")]
    models = [model.model_dump_json() for model in (desired.model, desired.draft) if model is not None]
    return hash(json.dumps([version, own, models, rendered.fingerprint, sorted(labels.items())]))


def verdict_of(found: tuple[Violation, ...]) -> Verdict:
    """Return the result of the violations of one service or resource."""
    mandatory = [str(violation) for violation in found if violation.mandatory]
    advice = tuple(
        Problem(reason="PolicyAdvice", message=str(violation)) for violation in found if not violation.mandatory
    )
    if not mandatory:
        return Verdict(advice=advice)
    told = mandatory[:MOST_TOLD]
    if len(mandatory) > MOST_TOLD:
        told.append(f"and {len(mandatory) - MOST_TOLD} more")
    return Verdict(Problem(reason=Reason.POLICY_VIOLATED, message="; ".join(told), terminal=True), advice)


def _signature(folder: Path) -> object:
    """Return a value that changes with any file, without a read: an editor replaces a file, a ConfigMap a link."""
    try:
        found = []
        for path in sorted(folder.iterdir()):
            if not path.name.startswith("."):
                stat = path.stat()
                found.append((path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return found
    except OSError as error:
        return str(error)
