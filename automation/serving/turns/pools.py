"""Gives the members of ModelPools their turns, and writes the status of the pools.

`serving.sleep` asks `grant` in each pass of a member. A member without its turn is asleep: its replicas end, and the
proxy holds its requests. Each waiting request is reported to `request_turn`. `rules` decides, from what the caches
hold; the cluster stores the turns for a restarted loop, as the members that run.

A change of a pool, a service, a Deployment or a pod has the pools of its namespace decided again a moment later. A
pool that is paused or not valid changes nothing: each member stays as it is. A pool whose change waits for an approval
goes on with its accepted version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import structlog

from automation.approval.resource_versions import Judged, ResourceVersions, with_judgement
from automation.cache.cluster_cache import ClusterCache
from automation.leadership.shards import WHOLE, Shard
from automation.serving.turns import host_groups
from automation.serving.turns.demand import Demand
from automation.serving.turns.failed_starts import FailedStarts
from automation.serving.turns.members import AgedPool, Place, ServiceFacts, places
from automation.serving.turns.observed import PoolServices, Problem, member_key
from automation.serving.turns.port import Grant
from automation.serving.turns.reports import pool_events, pool_state
from automation.serving.turns.rules import Decision, Member, Rules, Turn, decide, first_turn
from automation.status.event_log import version_events
from automation.status.writer import StatusWriter
from automation.workqueue.debounce import Debounce, start_timer
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KubeError
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.pool import Pool
from program.desired.service import DesiredService
from program.dialects.llmkube.status.pool import PoolState, pool_status
from program.dialects.registry import LLMKUBE

log = structlog.get_logger(__name__)

DECIDE_AFTER_S = 0.05
"""Changes arrive in groups; one decision covers them."""
RETRY_S = 10.0
NO_PROXY = "ProxyUnavailable"

T = TypeVar("T")
At = tuple[str, str]
"""Namespace and name of a pool."""


@dataclass
class _PoolTurns:
    """The turns of one pool."""

    uid: str
    parsed: AgedPool | None = None
    """The last valid spec."""
    turn: Turn | None = None
    is_known: bool = False
    """Whether the turn was read from the cluster."""
    state: PoolState = field(default_factory=PoolState)
    judged: Judged = field(default_factory=Judged)


@dataclass(frozen=True)
class _Judgement:
    """The pools of one namespace at one moment, and which of their versions is in use."""

    number: int
    """The order in which judgements began."""
    everyone: frozenset[At]
    """Also pools of other controllers."""
    ours: dict[At, Json]
    judged: dict[At, Judged]


class ModelPools:
    """All pools of this loop. Thread-safe. Call `start` after the caches are filled."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        *,
        address: str,
        requeue: Callable[[ServiceKey, float], None],
        record: Callable[..., None],
        on_written: Callable[[Json, Json], None] = lambda _cr, _status: None,
        on_gone: Callable[[str, str], None] = lambda _namespace, _name: None,
        versions: ResourceVersions | None = None,
        note: Callable[[Json, Judged], None] = lambda _cr, _judged: None,
        shard: Shard = WHOLE,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = start_timer,
    ) -> None:
        """`address` is where the cluster reaches the proxy of this loop. Without it no request could start a member, so
        the pools change nothing.

        `record` is `EventRecorder.record`. `on_written` is called with each pool and its new status, `on_gone` with the
        namespace and name of a pool that does not exist any more. `versions` decides which version of a pool is in use;
        `note` is called with each pool and that decision, for its history.
        `later` starts timers; tests pass their own.
        """
        self._cluster = cluster
        self._services = PoolServices(cluster, shard)
        self._address = address
        self._requeue = requeue
        self._record = record
        self._on_gone = on_gone
        self._versions = versions or ResourceVersions()
        self._note = note
        self._clock = clock
        self._later = later
        self._demand = Demand(clock=clock)
        self._writer = StatusWriter(client, kinds.MODEL_POOLS, on_written=on_written)
        self._lock = threading.RLock()
        self._reporting = threading.Lock()
        self._pools: dict[At, _PoolTurns] = {}
        self._judgements = 0
        self._decided: dict[str, int] = {}
        """By namespace: the number of the last judgement by which its pools were decided."""
        self._failed = FailedStarts()
        self._grants: dict[ServiceKey, Grant] = {}
        self._groups: dict[ServiceKey, Pool] = {}
        """The pools of members on hosts."""
        self._hosted: dict[ServiceKey, bool] = {}
        """Whether the last pass of a member found it on hosts."""
        self._looks: dict[str, float] = {}
        """By namespace: the next moment at which time alone changes a decision."""
        self._changes = threading.Lock()
        self._changed: set[str] = set()
        self._stuck: set[ServiceKey] = set()
        """Services whose last pass could change nothing."""
        self._soon = Debounce(self._decide_changed, delay_s=DECIDE_AFTER_S, later=later)

    def start(self) -> None:
        """Decide now, before the first pass of a service, and after each change."""
        for namespace in {at[0] for at in self._services.pools()}:
            self._decide_safely(namespace)
        self._cluster.on_pool_input = self.changed
        self.request_report()

    # --- called by passes, proxies and caches ---------------------------------------------------------------------

    def grant(self, key: ServiceKey) -> Grant | None:
        """Return what its pool allows a service in pods; None for a service that takes no turns."""
        if key.dialect != LLMKUBE or not self._services.pools(key.namespace):
            return None
        with self._lock:
            if key in self._grants:
                return self._grants[key]
            # A new member, or one that left its host: this pass must not start what has no turn.
            self._hosted[key] = False
        self._decide(key.namespace)
        with self._lock:
            return self._grants.get(key)

    def with_group(self, desired: DesiredService) -> DesiredService:
        """Return a member on hosts with the pool as its model group, by which its agent gives turns."""
        key = desired.key
        if desired.host_placement is None or key.dialect != LLMKUBE or not self._services.pools(key.namespace):
            return desired
        with self._lock:
            was_hosted, self._hosted[key] = self._hosted.get(key), True
        if not was_hosted:
            self._decide(key.namespace)
        with self._lock:
            pool = self._groups.get(key)
        return desired if pool is None else host_groups.with_group(desired, pool)

    def request_turn(self, key: ServiceKey) -> None:
        """Record that requests wait for a member. Never blocks; repeated while they wait (see `Demand`)."""
        self._demand.report(key)
        self.changed(key.namespace)

    def end_wait(self, key: ServiceKey) -> None:
        """Record that the waiting requests of a member are answered now."""
        self._demand.met(key)

    def give_up_turn(self, key: ServiceKey) -> None:
        """End the turn of a member that sleeps because no request came for the service's idle timeout."""
        with self._lock:
            for at, turns in self._pools.items():
                if at[0] == key.namespace and turns.turn is not None and turns.turn.member == key.name:
                    turns.turn = None
        self._decide_safely(key.namespace)
        self.changed(key.namespace)

    def set_changeable(self, key: ServiceKey, changeable: bool) -> None:
        """Record whether the last pass of a service could change its objects.

        It cannot while the spec is not valid, the Model is not Ready, or a policy or quota forbids the change.
        """
        with self._changes:
            before = key not in self._stuck
            (self._stuck.discard if changeable else self._stuck.add)(key)
        if before != changeable:
            self.changed(key.namespace)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service."""
        self._demand.met(key)
        with self._changes:
            self._stuck.discard(key)
        with self._lock:
            self._hosted.pop(key, None)
            self._failed.drop_service(key)

    def changed(self, namespace: str) -> None:
        """Have the pools of a namespace decided soon. Never blocks."""
        if any(at[0] == namespace for at in tuple(self._pools)) or self._services.pools(namespace):
            with self._changes:
                self._changed.add(namespace)
            self._soon.trigger()

    def request_report(self) -> None:
        """Have all pools decided, and their statuses written, soon."""
        for namespace in {at[0] for at in self._services.pools()}:
            self.changed(namespace)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _decide_changed(self) -> None:
        with self._changes:
            namespaces, self._changed = self._changed, set()
        for namespace in sorted(namespaces):
            if self._decide_safely(namespace):
                self._report(namespace)

    def _decide_safely(self, namespace: str) -> bool:
        """Decide the pools of a namespace. A failure must not keep those of others from being decided."""
        try:
            self._decide(namespace)
            return True
        except ApiError as error:
            log.warning("Could not decide the turns of pools", namespace=namespace, error=str(error))
        except Exception:
            log.exception("Failed to decide the turns of pools", namespace=namespace)
        self._later(RETRY_S, lambda: self.changed(namespace))
        return False

    def _decide(self, namespace: str) -> None:
        """Decide the pools of a namespace, and enqueue each member whose grant changed. Raises ApiError."""
        judgement = self._judge(namespace)
        with self._lock:
            # A judgement that began later has what this one has, and may have more.
            if judgement.number > self._decided.get(namespace, 0):
                self._decided[namespace] = judgement.number
                self._decide_judged(namespace, judgement)

    def _judge(self, namespace: str) -> _Judgement:
        """Judge the versions of the pools of a namespace. It may ask the API server, so nobody may hold the lock."""
        with self._lock:
            self._judgements += 1
            number = self._judgements
        everyone = self._services.pools(namespace)
        ours = {at: cr for at, cr in everyone.items() if self._services.is_ours(cr)}
        judged = {at: self._versions.judge(self._writer.latest(cr)) for at, cr in ours.items()}
        return _Judgement(number, frozenset(everyone), ours, judged)

    def _decide_judged(self, namespace: str, judgement: _Judgement) -> None:
        """Decide the pools of a namespace. Requires the lock."""
        crs = self._follow(namespace, judgement)
        valid = {at: turns for at in crs if (turns := self._pools[at]).parsed is not None}
        by_pool = places([turns.parsed for turns in valid.values() if turns.parsed is not None], self._facts(namespace))
        grants: dict[ServiceKey, Grant] = {}
        groups: dict[ServiceKey, Pool] = {}
        looks: list[float] = []
        for at, turns in valid.items():
            assert turns.parsed is not None
            made, look_again = self._decide_pool(crs[at], turns.parsed.pool, turns, by_pool[at[1]])
            grants |= made
            pool = turns.parsed.pool
            groups |= {member_key(namespace, each.name): pool for each in by_pool[at[1]] if each.role == "host"}
            looks += [look_again] if look_again is not None else []
        self._grants = self._replace(namespace, self._grants, grants)
        self._groups = self._replace(namespace, self._groups, groups)
        if looks:
            self._look_again(namespace, min(looks))

    def _replace(self, namespace: str, known: dict[ServiceKey, T], made: dict[ServiceKey, T]) -> dict[ServiceKey, T]:
        """Replace the values of a namespace, and enqueue each service whose value changed."""
        before = {key: value for key, value in known.items() if key.namespace == namespace}
        for key in before.keys() | made.keys():
            if before.get(key) != made.get(key):
                self._requeue(key, 0.0)
        return {key: value for key, value in known.items() if key not in before} | made

    def _follow(self, namespace: str, judgement: _Judgement) -> dict[At, Json]:
        """Bring the records to the pools that exist and that this loop manages; return these. Requires the lock."""
        crs = judgement.ours
        for at in [at for at in self._pools if at[0] == namespace]:
            if at not in crs or crs[at]["metadata"]["uid"] != self._pools[at].uid:
                del self._pools[at]
                self._on_gone(*at)
                if at not in judgement.everyone:
                    self._writer.drop_object(*at)
        for at, cr in crs.items():
            turns = self._pools.setdefault(at, _PoolTurns(cr["metadata"]["uid"]))
            turns.judged = judged = judgement.judged[at]
            # A version that is not accepted must neither take a member in nor let one go.
            used = judged.version(cr) if judged.denied is not None or judged.holds is not None else None
            parsed = self._services.parsed(used or cr)
            if isinstance(parsed, AgedPool):
                turns.parsed = parsed
            else:
                turns.state = PoolState(problem=parsed)
        return crs

    def _facts(self, namespace: str) -> Callable[[str], ServiceFacts | None]:
        def facts(name: str) -> ServiceFacts | None:
            key = member_key(namespace, name)
            return self._services.facts(key, hosted=self._hosted.get(key))

        return facts

    def _decide_pool(
        self, cr: Json, pool: Pool, turns: _PoolTurns, members: Sequence[Place]
    ) -> tuple[dict[ServiceKey, Grant], float | None]:
        """Decide one pool. Return the grants of its members, and when time alone changes the decision."""
        keys = {each.name: member_key(pool.namespace, each.name) for each in members if each.role == "turns"}
        now, problem = self._clock(), self._problem(cr, turns.judged)
        taking = [self._member(key, now) for key in keys.values()]
        resident = str((cr.get("status") or {}).get("residentMember") or "")
        found = first_turn(taking, resident=resident, default=pool.default, now=now)
        if problem is not None:
            turns.state = pool_state(pool, members, taking, Decision(found), problem)
            if problem[0] == NO_PROXY:
                return {}, None
            return {keys[each.name]: Grant(pool.name, each.runs, pool.hold_s) for each in taking}, None
        if not turns.is_known:
            turns.turn, turns.is_known = found, True
        rules = Rules(pool.min_turn_s, start_s=max(pool.hold_s, pool.min_turn_s), default=pool.default)
        decision = decide(taking, turns.turn, rules, now=now)
        self._count_failed_starts(pool, turns.turn, decision.turn, now)
        turns.turn = decision.turn
        turns.state = pool_state(pool, members, taking, decision, None)
        holder = decision.turn.member if decision.turn is not None else ""
        grants = {keys[m.name]: Grant(pool.name, m.runs if m.frozen else m.name == holder, pool.hold_s) for m in taking}
        ends = [self._failed.last_until(key, self._services.generation(key), now=now) for key in keys.values()]
        return grants, min((at for at in (decision.look_again, *ends) if at is not None), default=None)

    def _member(self, key: ServiceKey, now: float) -> Member:
        last_until = self._failed.last_until(key, self._services.generation(key), now=now)
        return self._services.member(
            key,
            waiting_since=self._demand.since(key),
            stuck=key in self._stuck,
            comes_last=last_until is not None,
        )

    def _count_failed_starts(self, pool: Pool, before: Turn | None, after: Turn | None, now: float) -> None:
        """Record a turn that ended before its member served, or the end of failures of one that serves."""
        if before is not None and before.serving_since is None and (after is None or after.member != before.member):
            key = member_key(pool.namespace, before.member)
            self._failed.record(key, self._services.generation(key), now=now)
        if after is not None and after.serving_since is not None:
            self._failed.drop_service(member_key(pool.namespace, after.member))

    def _problem(self, cr: Json, judged: Judged) -> Problem | None:
        """Return reason and message if a pool makes no changes."""
        if not self._address:
            why = "Herdsman has no address at which it receives requests for members that wait (HERDSMAN_PROXY_ADDRESS)"
            return NO_PROXY, f"{why}; the members run as their own specs say"
        parsed = self._services.parsed(cr)
        if not isinstance(parsed, AgedPool):
            return parsed
        if judged.denied is not None:
            return judged.denied.reason, f"{judged.denied.message}; the members stay as they are"
        if judged.holds is not None and judged.accepted is None:
            return judged.holds.reason, f"{judged.holds.message}; the members stay as they are"
        return self._services.paused(cr)

    def _look_again(self, namespace: str, at: float) -> None:
        if self._looks.get(namespace) == at:
            return
        self._looks[namespace] = at
        self._later(max(0.0, at - self._clock()) + DECIDE_AFTER_S, lambda: self.changed(namespace))

    # --- reports --------------------------------------------------------------------------------------------------

    def _report(self, namespace: str) -> None:
        """Write each status that differs from the live one."""
        with self._reporting:
            for at, cached in self._services.pools(namespace).items():
                with self._lock:
                    turns = self._pools.get(at)
                    state = turns.state if turns is not None else None
                try:
                    self._write(cached, state)
                except KubeError as error:
                    log.warning("Could not write a pool's status", pool="/".join(at), error=str(error))
                    self._later(RETRY_S, lambda: self.changed(namespace))

    def _write(self, cached: Json, state: PoolState | None) -> None:
        """Write a status with its Events. `state` is None for a pool of another controller."""
        namespace, name = cached["metadata"]["namespace"], cached["metadata"]["name"]
        if state is None:
            if self._writer.has_written(namespace, name):
                self._writer.leave(cached)
            return
        cr = self._writer.latest(cached)
        now, judged = datetime.now(UTC), self._versions.judge(cr)
        self._note(cr, judged)
        status = with_judgement(cr, pool_status(cr, state, now=now), judged, now=now)
        before = cr.get("status") or {}
        if status != before and self._writer.write(cr, status):
            for kind, reason, message in (*pool_events(before, state), *version_events(before, status)):
                self._record(cr, type=kind, reason=reason, message=message)
