"""Reconciles LoRAAdapters: asks the replicas of their services to load them, writes the statuses, ends deletions.

One thread makes a pass over all adapters after each change of an adapter, of an InferenceService or of a pod of one,
and when a replica is due to be asked again. The requests to replicas are sent in the threads of `serving.background`,
whose memory holds one answer for each start of an engine. So a replica is asked to load an adapter once, and again
after its container was restarted. `deciding` decides.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import structlog

from automation.approval.resource_versions import Judged, ResourceVersions, with_judgement
from automation.cache.cluster_cache import ClusterCache
from automation.leadership.shards import WHOLE, Shard
from automation.serving.adapters import engine_requests, planned_replicas
from automation.serving.adapters.deciding import (
    FINALIZER,
    PEER_FINALIZER,
    again_s,
    following,
    hindrance,
    removal,
)
from automation.serving.adapters.engine_requests import KEPT_UNTIL_RESTART, RequestFailed
from automation.serving.adapters.replica_requests import ReplicaRequests
from automation.serving.adapters.targets import Targets
from automation.serving.background import BackgroundProbes
from automation.serving.engine_start import EngineStart
from automation.status.event_log import version_events
from automation.status.event_recorder import EventRecorder
from automation.status.ownership import written_by_another
from automation.status.writer import StatusWriter
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, KubeError, NotFound
from kubeapi.json_types import Json
from program.desired.adapter import Adapter, AdapterFacts, AdapterOutcome, AdapterReason, AdapterReplica, Claim
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.dialects.engine_access import requirements_of
from program.dialects.engine_keys import keys_of
from program.dialects.llmkube.parse.adapter import ENGINES, adapter_of, claims_of
from program.dialects.llmkube.status.adapter import adapter_status
from program.dialects.status.accepted_version import with_accepted

log = structlog.get_logger(__name__)

MARK = "Ready"
"""A condition that every status of Herdsman has and no status of LLMKube's."""
GATHER_S = 0.2
"""How long changes are gathered before a pass."""
LOOK_S = 15.0
"""The longest time between two passes while adapters exist."""
RETRY_S = 2.0
"""When a pass is repeated after the API server refused a write."""
KEPT_S = 3600.0
"""How long a deletion is remembered."""
THREADS = 8

Claims = Mapping[Claim, Adapter]


class _Request(NamedTuple):
    """One adapter in one start of an engine, and whether it is wanted there."""

    uid: str
    start: EngineStart
    wanted: Literal["loaded", "absent"]
    path: str


class LoraAdapters:
    """Keeps the adapters of this loop's shard loaded. Call `start` after the caches are filled, and `stop`."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        *,
        recorder: EventRecorder,
        versions: ResourceVersions | None = None,
        note: Callable[[Json, Judged], None] = lambda _cr, _judged: None,
        on_gone: Callable[[str, str, str], None] = lambda _kind, _namespace, _name: None,
        shard: Shard = WHOLE,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """`shard` is the part that this loop leads.

        `versions` decides which version of an adapter is in use. `note` is called with each adapter and that decision,
        for its history, and `on_gone` with kind, namespace and name of an adapter that does not exist any more.
        """
        self._versions = versions or ResourceVersions()
        self._note = note
        self._on_gone = on_gone
        self._client = client
        self._cluster = cluster
        self._targets = Targets(cluster)
        self._recorder = recorder
        self._shard = shard
        self._clock = clock
        self._requests = ReplicaRequests(client)
        self._writer = StatusWriter(client, kinds.LORA_ADAPTERS, mark=MARK)
        self._answers: BackgroundProbes[_Request, AdapterOutcome] = BackgroundProbes(
            "lora-adapter", again_s=lambda outcome: again_s(outcome, jitter=dice()), threads=THREADS, clock=clock
        )
        self._engine_locks: weakref.WeakValueDictionary[EngineStart, threading.Lock] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._ending: dict[str, float] = {}
        """When this loop first saw the deletion of an adapter, by uid."""
        self._paths: dict[str, str] = {}
        """The path that replicas were asked to load last, by the adapter's uid."""
        self._seen: dict[str, tuple[str, str]] = {}
        """Namespace and name of the adapters of the last pass, by uid."""
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lora-adapters", daemon=True)

    def start(self) -> None:
        """Make a pass now and after each change."""
        self._cluster.on_adapter_input = self.request_pass
        self._changed.set()
        self._thread.start()

    def stop(self) -> None:
        """Send no further request."""
        self._stopping.set()
        self._changed.set()
        self._answers.close()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def request_pass(self) -> None:
        """Request a pass soon."""
        self._changed.set()

    def _run(self) -> None:
        waits_s: float | None = None
        while True:
            self._changed.wait(waits_s)
            if self._stopping.wait(GATHER_S):
                return
            self._changed.clear()
            waits_s = self.reconcile_all()

    def reconcile_all(self) -> float | None:
        """Make one pass. Return the seconds until the next one is due; None while there is no adapter."""
        crs = [cr for cr in self._cluster.llmkube.listed(kinds.LORA_ADAPTERS) if self._holds(cr)]
        self._forget({cr["metadata"]["uid"]: (cr["metadata"]["namespace"], cr["metadata"]["name"]) for cr in crs})
        judged = [self._judge(cr) for cr in crs]
        claims = claims_of(used for used in map(self._in_use, crs, judged) if used is not None)
        due_s = [self._guarded(cr, claims, each) for cr, each in zip(crs, judged, strict=True)]
        return min([LOOK_S, *due_s]) if crs else None

    def _judge(self, cr: Json) -> Judged | None:
        """Decide which version of an adapter is in use; None if the API server does not answer."""
        try:
            if "deletionTimestamp" in cr["metadata"] or not self._manages(cr):
                return Judged()
            return self._versions.judge(self._writer.latest(cr))
        except KubeError:
            return None  # `_reconcile` asks again, and reports the error

    def _in_use(self, cr: Json, judged: Judged | None) -> Json | None:
        """Return an adapter with the version that replicas load; None for one that no person has approved yet."""
        if "deletionTimestamp" in cr["metadata"]:
            return self._loaded(cr)
        if judged is None:
            return with_accepted(self._writer.latest(cr))
        return judged.version(cr) if judged.holds is not None else cr

    def _loaded(self, cr: Json) -> Json:
        """Return an adapter that is being deleted, with the version that replicas have loaded."""
        return with_accepted(self._writer.latest(cr)) or cr

    def _manages(self, cr: Json) -> bool:
        return self._cluster.is_ours(cr, held=written_by_another(cr.get("status"), MARK))

    def _holds(self, cr: Json) -> bool:
        return self._shard.contains(cr["metadata"]["namespace"])

    def _guarded(self, cr: Json, claims: Claims, judged: Judged | None) -> float:
        """Reconcile one adapter. A failure does not affect the others."""
        name = f"{cr['metadata']['namespace']}/{cr['metadata']['name']}"
        try:
            deleted = "deletionTimestamp" in cr["metadata"]
            return self._delete(cr, claims) if deleted else self._reconcile(cr, claims, judged)
        except (Conflict, NotFound):
            return RETRY_S  # the cache has another version soon
        except KubeError as error:
            log.warning("Could not reconcile a LoRAAdapter", adapter=name, error=str(error))
        except Exception:
            log.exception("Failed to reconcile a LoRAAdapter", adapter=name)
        return RETRY_S

    # --- adapters that are wanted ---------------------------------------------------------------------------------

    def _reconcile(self, cached: Json, claims: Claims, judged: Judged | None) -> float:
        """Reconcile one adapter; return the seconds until it is due again."""
        metadata = cached["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if not self._manages(cached):
            if self._writer.has_written(namespace, name):
                self._leave(cached)
            return math.inf
        if judged is None:
            judged = self._versions.judge(self._writer.latest(cached))
        used = judged.version(cached) if judged.holds is not None else cached
        if used is None:
            return self._report(cached, judged, AdapterFacts(problem=judged.holds), path="")
        try:
            adapter = adapter_of(used)
        except SpecInvalid as error:
            problem = Problem(reason=error.reason, message=str(error), terminal=True)
            return self._report(cached, judged, AdapterFacts(problem=problem), path="")
        if judged.denied is not None:
            # Replicas are not asked to unload it. The gateway sends no request for an adapter without a listed pod.
            return self._report(cached, judged, AdapterFacts(problem=judged.denied), path=adapter.location)
        service = self._targets.service(adapter)
        on_hosts = self._targets.is_on_hosts(adapter, service)
        engine = self._targets.engine(adapter, service)
        planned = self._targets.planned(adapter, on_hosts=on_hosts)
        starts = () if on_hosts else tuple(each for each in self._targets.starts(adapter) if each.pod not in planned)
        hindered = hindrance(
            adapter,
            first=claims.get(adapter.claim),
            service=service,
            engine=engine,
            managed=service is not None and self._targets.manages(adapter, service),
            on_hosts=on_hosts,
            replicas=len(starts) + len(planned),
            refusal=self._targets.refusal(adapter),
        )
        if hindered is not None or service is None:
            return self._report(cached, judged, AdapterFacts(problem=hindered), path=adapter.location)
        finalizers = metadata.get("finalizers") or []
        if FINALIZER not in finalizers:
            # Before the first request, so that no deletion leaves an adapter in a replica.
            self._set_finalizers(cached, [*finalizers, FINALIZER])
            return RETRY_S
        self._drop_other_paths(adapter, starts)
        outcomes = self._ask(adapter, service, starts, "loaded")
        due_s = [self._answers.due_in_s(_Request(adapter.uid, each, "loaded", adapter.location)) for each in starts]
        replicas = (*planned.values(), *(AdapterReplica(pod=pod, outcome=said) for pod, said in outcomes.items()))
        path = adapter.path or adapter.location
        if on_hosts and adapter.source is not None:
            path = adapter.source.source.address
        return min([self._report(cached, judged, AdapterFacts(replicas=replicas, runtime=engine), path=path), *due_s])

    def _leave(self, cached: Json) -> None:
        """Leave an adapter to another controller, with what the replicas have loaded."""
        finalizers = cached["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            # Otherwise the adapter could not be deleted after this loop is gone.
            self._set_finalizers(cached, [each for each in finalizers if each != FINALIZER])
        self._writer.leave(cached)

    def _report(self, cached: Json, judged: Judged, facts: AdapterFacts, *, path: str) -> float:
        cr, now = self._writer.latest(cached), datetime.now(UTC)
        if "deletionTimestamp" not in cr["metadata"]:
            self._note(cr, judged)
        status = with_judgement(cr, adapter_status(cr, facts, path=path, now=now), judged, now=now)
        before: Json = cr.get("status") or {}
        if status != before and self._writer.write(cr, status):
            self._record(cr, before, status)
        return math.inf

    def _record(self, cr: Json, before: Json, status: Json) -> None:
        """Record an Event if the adapter is loaded now or cannot be loaded any more, and those of its versions."""
        for entry in version_events(before, status):
            self._recorder.record(cr, type=entry.type, reason=entry.reason, message=entry.message)
        phase = status["phase"]
        if phase == before.get("phase"):
            return
        message = next(each["message"] for each in status["conditions"] if each["type"] == MARK)
        if phase == "Loaded":
            self._recorder.record(cr, type="Normal", reason="AdapterLoaded", message=message)
        elif phase in ("Failed", "Degraded"):
            self._recorder.record(cr, type="Warning", reason="AdapterNotLoaded", message=message)

    # --- deletion -------------------------------------------------------------------------------------------------

    def _delete(self, cached: Json, claims: Claims) -> float:
        """Have an adapter that is being deleted unloaded, and remove the finalizers at the end."""
        metadata = cached["metadata"]
        finalizers = metadata.get("finalizers") or []
        kept = [each for each in finalizers if each not in (FINALIZER, PEER_FINALIZER)]
        ours = self._manages(cached)
        if kept == finalizers or (FINALIZER not in finalizers and not ours):
            return math.inf
        with self._lock:
            waited_s = self._clock() - self._ending.setdefault(metadata["uid"], self._clock())
        adapter: Adapter | None = None
        outcomes: dict[str, AdapterOutcome | None] = {}
        with contextlib.suppress(SpecInvalid):
            adapter = adapter_of(self._loaded(cached), to_remove=True)
        # An adapter that lost its name to an older one must not unload that one.
        counts = adapter is not None and claims.get(adapter.claim, adapter).uid == adapter.uid
        service = self._targets.service(adapter) if adapter is not None and counts else None
        processes = self._targets.processes(adapter) if adapter is not None else []
        if adapter is not None and service is not None and processes:
            outcomes = planned_replicas.without(processes, adapter.name) if ours else {}
        elif adapter is not None and service is not None and ours and self._targets.engine(adapter, service) in ENGINES:
            outcomes = self._ask(adapter, service, self._targets.starts(adapter), "absent")
        end = removal(adapter, outcomes, asked=ours, waited_s=waited_s)
        if not end.done:
            replicas = tuple(
                AdapterReplica(pod=pod, outcome=None if said and said.state == "absent" else _still_there(said))
                for pod, said in outcomes.items()
            )
            if ours:
                path = adapter.path if adapter is not None else ""
                judged = self._versions.judge(self._writer.latest(cached))
                self._report(cached, judged, AdapterFacts(replicas=replicas, unloading=True), path=path)
            return RETRY_S
        self._set_finalizers(cached, kept)
        self._recorder.record(cached, type=end.type, reason=end.reason, message=end.message)
        return math.inf

    def _set_finalizers(self, cached: Json, finalizers: list[str]) -> None:
        """Replace the finalizers, unless the object changed since it was cached. Raises ApiError."""
        metadata = cached["metadata"]
        change = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}
        self._client.patch(
            kinds.LORA_ADAPTERS,
            metadata["namespace"],
            metadata["name"],
            {"metadata": change},
            field_manager=naming.FIELD_MANAGER,
        )

    # --- replicas -------------------------------------------------------------------------------------------------

    def _ask(
        self, adapter: Adapter, service: Json, starts: Iterable[EngineStart], wanted: Literal["loaded", "absent"]
    ) -> dict[str, AdapterOutcome | None]:
        """Return what each replica said last, by pod, and have those asked that are due."""
        engine, secrets = self._targets.engine(adapter, service), keys_of(adapter.dialect, service)
        certified = requirements_of(adapter.dialect, adapter.namespace, adapter.service, ())

        def ask(start: EngineStart, before: AdapterOutcome | None) -> AdapterOutcome:
            if wanted == "absent" and engine in KEPT_UNTIL_RESTART:
                return AdapterOutcome(state="absent", reason=AdapterReason.UNLOADING)
            lock = self._engine_lock(start)
            if not lock.acquire(blocking=False):
                # An engine that hangs holds one thread, and not those that other engines need.
                return following(before, AdapterOutcome(state="waiting", reason=AdapterReason.LOADING))
            try:
                if wanted == "loaded" and self._is_ending(adapter.uid):
                    return AdapterOutcome(state="absent", reason=AdapterReason.UNLOADING)
                send = self._requests.asking(start, secrets, certified)
                if wanted == "loaded":
                    return following(before, engine_requests.load(engine, adapter.name, adapter.location, send))
                return following(before, engine_requests.unload(engine, adapter.name, send))
            except RequestFailed as error:
                return following(before, error.outcome)
            finally:
                lock.release()

        return {
            start.pod: self._answers.latest(
                _Request(adapter.uid, start, wanted, adapter.location),
                functools.partial(ask, start),
                who="",
                changed=self._changed.set,
            )
            for start in starts
        }

    def _engine_lock(self, start: EngineStart) -> threading.Lock:
        """One request after the other reaches an engine, so that an unload never overtakes a load."""
        with self._lock:
            return self._engine_locks.setdefault(start, threading.Lock())

    def _is_ending(self, uid: str) -> bool:
        with self._lock:
            return uid in self._ending

    def _drop_other_paths(self, adapter: Adapter, starts: Iterable[EngineStart]) -> None:
        """Drop the answers for an earlier path, so that a path that comes back is loaded again."""
        before, location = self._paths.get(adapter.uid), adapter.location
        self._paths[adapter.uid] = location
        if before is not None and before != location:
            for start in starts:
                for path in (before, location):
                    self._answers.drop_answer(_Request(adapter.uid, start, "loaded", path))

    def _forget(self, there: dict[str, tuple[str, str]]) -> None:
        """Drop the records of adapters that are gone. `there` has namespace and name of the others, by uid.

        A deletion is remembered longer, because a load of the adapter may still wait for its turn.
        """
        for uid in self._seen.keys() - there.keys():
            self._paths.pop(uid, None)
            self._writer.drop_object(*self._seen[uid])
            if self._seen[uid] not in there.values():
                self._on_gone(kinds.LORA_ADAPTERS.kind, *self._seen[uid])
        self._seen = there
        with self._lock:
            for uid in [
                uid for uid in self._ending.keys() - there.keys() if self._clock() - self._ending[uid] > KEPT_S
            ]:
                del self._ending[uid]


def _still_there(said: AdapterOutcome | None) -> AdapterOutcome:
    """Return a replica's outcome for the status while the adapter is being unloaded."""
    return AdapterOutcome(state="loaded", message=said.message if said is not None else "")
