"""Runs the processes of one host over SSH, and writes the objects that an agent would write. One thread per host.

Started by `ssh_hosts`. The plans are the HostProcess objects with the host's label. The worker uses the agent's modules
for the Lease and for the statuses of processes and of the Host. `endpoints` makes the endpoints from them, as for
agents. A pass never waits for long operations.
"""

from __future__ import annotations

import ipaddress
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.client.port import HostError, HostUnreachable
from agent.client.ssh.connection import SshConnection
from agent.client.ssh.errors import AuthenticationFailed
from agent.client.ssh.observed import ObservedProcess
from agent.client.ssh.processes import SshProcesses
from agent.contract import (
    AGENT_FIELD_MANAGER,
    LABEL_HOST,
    HostFacts,
    ProcessPhase,
    ProcessPlan,
    ProcessReason,
    ProcessReport,
)
from agent.processes.secret_values import SecretApi
from agent.server.boundary import NamespaceLabels
from agent.server.cluster.host_lease import RENEW_S, HostInUse, HostLease
from agent.server.cluster.host_spec import HostSpec, read_host_spec
from agent.server.cluster.host_status import host_status, needs_write
from agent.server.cluster.plan_watch import PlanInvalid, plan_of
from agent.server.cluster.publisher import Publication, Publisher
from agent.sources.source_policy import SourcePolicy
from automation.hosts.ssh_target import connection_spec, read_identity, store_spec, target_of
from automation.hosts.unit_drift import Record, may_repair_unit
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import HOST_PROCESSES, HOSTS
from program.desired.errors import SpecInvalid
from program.runtimes.host_rules import allowance_of, refusal

HOLDER = "herdsman-ssh"
"""The holder of these hosts' Leases. All loops use the same one, because only the leader runs workers."""
BUSY_S = 0.5
"""Interval between two passes while a process is changing."""
STEADY_S = 4.0
BACKOFF_S = (2.0, 60.0)
"""First and longest wait between two attempts to reach a host that does not answer."""
REFUSED_S = 30.0
"""Wait between two attempts at a host that a person must fix, for example because of a wrong key."""
_SETTLED = (ProcessPhase.READY, ProcessPhase.FAILED, ProcessPhase.BACKING_OFF, ProcessPhase.UNHEALTHY)

_log = structlog.get_logger(__name__)


class SshWorker:
    """One host over SSH."""

    def __init__(
        self,
        client: KubeClient,
        host: Json,
        *,
        system_namespace: str,
        namespaces: tuple[str, ...],
        policy: SourcePolicy,
        lane: Callable[[bool], AbstractContextManager[Any]],
        record: Record = lambda *_args, **_fields: None,
        renew_s: float = RENEW_S,
        after: Sequence[SshWorker] = (),
    ) -> None:
        """`lane(suspect)` returns the semaphore for contacting the host. Hosts that did not answer use a separate one.

        `record` creates Events. The worker waits until those of `after` have ended, because they change the same
        processes.
        """
        self.name = str(host["metadata"]["name"])
        self._client = client
        self._object = host
        self._system_namespace = system_namespace
        self._policy = policy
        self._lane = lane
        self._record = record
        self._renew_s = renew_s
        self._after = after
        self._labels = NamespaceLabels(client)
        self._connection: SshConnection | None = None
        self._processes: SshProcesses | None = None
        self._publisher: Publisher | None = None
        self._reports: dict[str, ProcessReport] = {}
        self._facts: HostFacts | None = None
        self._connected_by: Json = {}
        self._failures = 0
        self._is_refused = False
        """The host refused the last key."""
        self._renewed_at = float("-inf")
        self._written: Json | None = None
        self._written_at = float("-inf")
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._clean_up = False
        self._informer = Informer(
            client,
            HOST_PROCESSES,
            namespaces=namespaces or None,
            label_selector=f"{LABEL_HOST}={self.name}",
            on_change=self._changed,
        )
        self._lease = HostLease(
            client,
            host=self.name,
            namespace=system_namespace,
            holder=HOLDER,
            on_lost=lambda _why: None,
            catch_up=self._remove_unplanned,
            on_back=self._publish_again,
            renew_s=renew_s,
        )
        self._log = _log.bind(host=self.name)
        self._thread = threading.Thread(target=self._run, name=f"ssh-{self.name}", daemon=True)

    def start(self) -> None:
        self._informer.start()
        self._thread.start()

    def update(self, host: Json) -> None:
        """Use a new version of the Host object."""
        connection_changed = connection_spec(host) != connection_spec(self._object)
        allows = [(each.get("spec") or {}).get("allow") for each in (host, self._object)]
        self._object = host
        if connection_changed or allows[0] != allows[1]:
            self._failures = 0
            self._wake.set()

    def stop(self, *, clean_up: bool) -> None:
        """Stop soon. With `clean_up` the Host was deleted, so its processes are stopped and its Lease is released.

        The last call counts: a second one without `clean_up` ends the removal before the next process.
        """
        self._clean_up = clean_up
        self._stop.set()
        self._wake.set()

    def serves(self, host: Json) -> bool:
        """Return whether this is a worker of a Host with this name, whose processes are in the same place."""
        return self.name == host["metadata"]["name"] and store_spec(self._object) == store_spec(host)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _changed(self, old: Json | None, new: Json | None) -> None:
        process = new or old
        assert process is not None
        if new is not None and old is not None and new.get("spec") == old.get("spec"):
            return  # not a change of the spec, usually the worker's own write
        self._wake.set()

    def _run(self) -> None:
        for each in self._after:
            while each.is_alive and not self._stop.is_set():
                each.join(0.2)
        self._after = ()
        while not self._stop.is_set():
            wait_s = REFUSED_S
            try:
                with self._lane(self._failures > 0):
                    if not self._stop.is_set():
                        wait_s = self._pass()
                        self._failures, self._is_refused = 0, False
            except HostUnreachable as error:
                self._failures += 1
                wait_s = min(BACKOFF_S[1], BACKOFF_S[0] * 2.0 ** min(self._failures - 1, 8))
                wait_s *= random.uniform(0.7, 1.0)  # noqa: S311 - spreads load, keeps no secret
                self._report_failure(error)
            except HostError as error:
                self._failures += 1
                if isinstance(error, AuthenticationFailed):
                    # The key may have been replaced in its Secret, which is read for a new connection.
                    self._disconnect()
                    wait_s = REFUSED_S if self._is_refused else BACKOFF_S[0]
                    self._is_refused = True
                self._report_failure(error)
            except HostInUse as error:
                self._log.warning("An agent manages this host; not managing it over SSH", error=str(error))
            except KubeError as error:
                self._log.warning("Could not finish a pass over a host", error=str(error))
                wait_s = STEADY_S
            except Exception:
                self._log.exception("A pass over a host failed because of a defect of Herdsman")
            self._wake.wait(wait_s)
            self._wake.clear()
        self._end()

    def _pass(self) -> float:
        """Contact the host once. Returns the seconds until the next pass."""
        processes = self._connected()
        seen = processes.list_processes()
        self._facts = processes.facts()
        self._start_publisher()
        if not self._informer.has_synced:
            return BUSY_S
        due = time.monotonic() - self._renewed_at >= self._renew_s * 0.9 or not self._lease.is_trusted
        # The host has just answered, so it lives.
        if due and self._lease.renew():
            self._renewed_at = time.monotonic()
        wanted = self._wanted()
        before = dict(self._reports)
        for key, (plan, generation) in wanted.items():
            self._reports[key] = processes.advance(key, plan, generation, seen)
            self._publish(key, before)
        going = self._remove_others(processes, seen, set(wanted))
        for key in set(self._reports) - set(wanted) - going:
            del self._reports[key]
            self._publish(key, before)
        self._write_host_status(self._facts, self._ready("True", "Reachable", "The host answers over SSH."))
        busy = going or any(self._reports[key].phase not in _SETTLED for key in wanted)
        return BUSY_S if busy else min(STEADY_S, self._renew_s * 0.9)

    def _connected(self) -> SshProcesses:
        host = self._object
        connected_by = connection_spec(host)
        if self._processes is None or self._connected_by != connected_by:
            self._disconnect()
            identity = read_identity(self._client, host, self._system_namespace)
            connection = SshConnection(target_of(host, identity))
            self._connected_by, self._connection = connected_by, connection
            self._processes = SshProcesses(
                connection,
                host=self.name,
                address=_ip(str(host["spec"].get("address"))),
                policy=self._policy.with_roots(allowance_of((host.get("spec") or {}).get("allow")).paths),
                secret_api=SecretApi(
                    "the loop", "apply docs/install/secrets-reader.yaml to let the loop read {secret}", self._client
                ),
                may_repair=self._may_repair,
                refusal=self._refusal,
            )
        return self._processes

    def _may_repair(self, key: str, words: str, is_news: bool) -> bool:
        process = self._informer.get(*key.split("/", 1))
        return may_repair_unit(self._client, process, words, host=self.name, is_news=is_news, record=self._record)

    def _refusal(self, key: str, plan: ProcessPlan) -> str:
        """Return why the Host does not allow a plan, regardless of who wrote the plan."""
        namespace = key.partition("/")[0]
        allowance = allowance_of((self._object.get("spec") or {}).get("allow"))
        labels = self._labels(namespace) if allowance.selector is not None else None
        return refusal(plan, allowance, namespace=namespace, labels=labels)

    def _disconnect(self) -> None:
        connection, self._connection, self._processes = self._connection, None, None
        if connection is not None:
            connection.close()

    def _start_publisher(self) -> None:
        if self._publisher is not None:
            return
        self._publisher = Publisher(
            self._client,
            host=self.name,
            look=self._look,
            may_speak=lambda: self._lease.is_trusted,
        )
        self._publisher.start()

    def _wanted(self) -> dict[str, tuple[ProcessPlan, int]]:
        """Return the plans. A process with an invalid plan continues with its last valid one."""
        wanted: dict[str, tuple[ProcessPlan, int]] = {}
        for process in self._informer.list():
            if process["metadata"].get("deletionTimestamp"):
                continue
            try:
                plan = plan_of(process, host=self.name)
            except PlanInvalid:
                continue
            wanted[_key(process)] = (plan, int(process["metadata"].get("generation") or 0))
        return wanted

    def _remove_others(
        self, processes: SshProcesses, seen: Mapping[str, ObservedProcess], wanted: set[str]
    ) -> set[str]:
        """Continue the removal of processes without a plan. Returns the keys of those left."""
        named = {_key(p) for p in self._informer.list() if not p["metadata"].get("deletionTimestamp")}
        going: set[str] = set()
        for key in sorted(set(seen) - wanted - named):
            report = processes.remove(key, dict(seen))
            if report is not None:
                self._reports[key] = report
                going.add(key)
        return going

    def _remove_unplanned(self) -> bool:
        """Read the plan again and stop processes that are not in it, after the host was marked lost. False: retry."""
        assert self._processes is not None
        selector = f"{LABEL_HOST}={self.name}"
        listed = self._client.list(HOST_PROCESSES, label_selector=selector)["items"]
        wanted = {_key(p) for p in listed if not p["metadata"].get("deletionTimestamp")}
        seen = self._processes.list_processes()
        gone = [self._processes.remove(key, seen) is None for key in sorted(set(seen) - wanted)]
        return all(gone)

    def _publish_again(self) -> None:
        self._written = None
        if self._publisher is not None:
            self._publisher.publish_again()
            for key in self._reports:
                self._publisher.enqueue(key)

    def _publish(self, key: str, before: Mapping[str, ProcessReport]) -> None:
        if self._publisher is not None and before.get(key) != self._reports.get(key):
            self._publisher.enqueue(key)

    def _look(self, key: str) -> Publication | None:
        namespace, _, name = key.partition("/")
        process = self._informer.get(namespace, name)
        if process is None or process["metadata"].get("deletionTimestamp"):
            return None
        try:
            plan = plan_of(process, host=self.name)
        except PlanInvalid as error:
            return Publication(process, None, _invalid(process, str(error)))
        return Publication(process, plan, self._reports.get(key) or ProcessReport(phase=ProcessPhase.PENDING))

    def _report_failure(self, error: HostError) -> None:
        if self._failures in (1, 10) or self._failures % 100 == 0:
            self._log.warning("Cannot manage a host over SSH", reason=error.reason, error=error.message)
        try:
            self._write_host_status(self._facts, self._ready("False", error.reason, error.message))
        except KubeError as failure:
            self._log.warning("Could not write the condition of an unreachable host", error=str(failure))

    def _ready(self, status: str, reason: str, message: str) -> Json:
        return {"type": "Ready", "status": status, "reason": reason, "message": message[:1024]}

    def _write_host_status(self, facts: HostFacts | None, ready: Json) -> None:
        """Write the Host's status if it has changed."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        conditions = tuple((self._object.get("status") or {}).get("conditions") or ())
        try:
            spec = read_host_spec(self._object)
        except SpecInvalid:
            spec = HostSpec(generation=int(self._object["metadata"].get("generation") or 0))
        if facts is None:
            status: Json = {"observedGeneration": spec.generation, "lastHeartbeat": now, "conditions": [{}]}
        else:
            facts = facts.model_copy(update={"memory_budget_bytes": _budget(spec, facts.memory_bytes)})
            status = host_status(facts, reports=self._reports, usage={}, spec=spec, conditions=conditions, now=now)
        before: Json = next((c for c in conditions if c.get("type") == "Ready"), {})
        since = before.get("lastTransitionTime") if before.get("status") == ready["status"] else None
        condition = {**ready, "observedGeneration": spec.generation, "lastTransitionTime": since or now}
        status["conditions"] = [condition, *(c for c in status["conditions"][1:])]
        status_changed = bool(before) and before.get("status") != ready["status"]
        since_s = time.monotonic() - self._written_at
        is_news = self._written is None or needs_write(self._written, status, since_s=since_s)
        if not is_news and (not status_changed or since_s < STEADY_S):
            return
        body = {
            "apiVersion": HOSTS.api_version,
            "kind": HOSTS.kind,
            "metadata": {"name": self.name},
            "status": status,
        }
        try:
            self._client.apply(HOSTS, None, body, field_manager=AGENT_FIELD_MANAGER, force=True, subresource="status")
        except NotFound:
            return  # deleted; the informer reports it
        self._written, self._written_at = status, time.monotonic()

    def _end(self) -> None:
        """Stop. If the Host was deleted, also remove its processes if the host still answers."""
        try:
            if self._clean_up and self._publisher is not None:
                self._publisher.withdraw()
            self._informer.stop()
            if self._publisher is not None:
                self._publisher.stop(last_words=False)
            if self._clean_up:
                self._lease.stop(release=True)
                if self._processes is not None and not self._failures:
                    self._remove_all(self._processes)
        except (HostError, KubeError) as error:
            self._log.warning("Left processes on a host whose Host was deleted", error=str(error))
        finally:
            self._disconnect()

    def _remove_all(self, processes: SshProcesses) -> None:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            seen, is_done = processes.list_processes(), True
            for key in seen:
                if not self._clean_up:
                    return  # the Host was created again
                is_done = processes.remove(key, seen) is None and is_done
            if is_done:
                return
            time.sleep(BUSY_S)


def _key(process: Json) -> str:
    return f"{process['metadata']['namespace']}/{process['metadata']['name']}"


def _invalid(process: Json, why: str) -> ProcessReport:
    return ProcessReport(
        phase=ProcessPhase.FAILED,
        reason=ProcessReason.PLAN_INVALID,
        message=why,
        observed_generation=int(process["metadata"].get("generation") or 0),
    )


def _budget(spec: HostSpec, memory_bytes: int) -> int | None:
    if spec.memory_budget_bytes is not None:
        return spec.memory_budget_bytes
    return int(memory_bytes * spec.memory_fraction) if spec.memory_fraction is not None else None


def _ip(text: str) -> str:
    """Return an IP address unchanged. For a name return an empty string: reports then contain the host's address."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""
