"""Assembles an agent and runs it until it is stopped.

Called by `automation.cli.agent_run`. The order of the start matters: first the lock of the store, then the host's
Lease, before any process is touched, then the adoption of running processes, then the plans. At the end the order is
reversed: endpoints, processes, Lease.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import structlog

from agent.contract import Accelerator, FilePlan, HostFacts, ProcessPhase, ProcessReport
from agent.processes.decision import Desired
from agent.processes.secret_values import SecretValues
from agent.proxy.collector import ProxyCollector
from agent.server import accelerators, heap, host_facts
from agent.server.api.api_listeners import ApiListeners
from agent.server.api.http_api import Api
from agent.server.boundary import SAVED_FILE, Boundary, NamespaceLabels
from agent.server.cluster.host_lease import HostLease
from agent.server.cluster.host_object import HostObject
from agent.server.cluster.host_spec import HostSpec, HostSpecWatch
from agent.server.cluster.plan_watch import PlanWatch
from agent.server.cluster.reachability import ReachabilityCheck
from agent.server.host_facts import Binaries
from agent.server.joining.renewal import TokenRenewal
from agent.server.memory.budget import MemoryLimits
from agent.server.memory.host_memory import HostMemory
from agent.server.memory.metrics import MemoryMetrics
from agent.server.models.download import download
from agent.server.models.source_access import SourceAccess
from agent.server.models.store_space import StoreSpace, named_by
from agent.server.processes.ports import COUNT, Ports
from agent.server.processes.supervisor import Supervisor
from agent.server.processes.worker_context import Holds, WorkerContext
from agent.server.settings import AgentSettings
from agent.server.sleep import ProcessSleep
from agent.server.store import RunFile, Store, write_run_file
from agent.server.telemetry.metrics import AgentMetrics
from agent.server.telemetry.usage import UsageSampler
from agent.server.upkeep import Upkeep
from agent.sources.errors import FileError
from agent.version import agent_version
from kubeapi.client import KubeClient
from kubeapi.errors import ServerError, TooManyRequests, Unreachable

SWEEP_POLL_S = 1.0

_log = structlog.get_logger(__name__)


class Agent:
    """One running agent. Call `start`, `wait` and `stop` from one thread, in this order."""

    def __init__(self, settings: AgentSettings, client: KubeClient | None) -> None:
        """`client` is required if the plan comes from Kubernetes."""
        if settings.plan_source == "kubernetes" and client is None:
            raise ValueError("the plan comes from Kubernetes, but there is no client")
        self.settings = settings
        self._client = client if settings.plan_source == "kubernetes" else None
        self._store = Store(settings.store)
        self._binaries = Binaries(settings.locate)
        self._done = threading.Event()
        self._lost = ""
        self._supervisor: Supervisor | None = None
        self._upkeep: Upkeep | None = None
        self._watch: PlanWatch | None = None
        self._lease: HostLease | None = None
        self._renewal: TokenRenewal | None = None
        self._host: HostObject | None = None
        self._accelerators: tuple[Accelerator, ...] | None = None
        self.spec = HostSpecWatch()
        """The current settings of the Host object."""
        self._boundary = self._drawn()
        self._http: ApiListeners | None = None
        self._keep_processes = settings.keep_processes
        self._sleep: ProcessSleep | None = None
        self.space = StoreSpace(settings.store, lambda: named_by(self._store.records().values(), settings.store))
        """The disk space for models. Its limit may change at any time."""
        self.space.limit_bytes = settings.store_size_bytes
        self.usage: UsageSampler | None = None
        self.memory = HostMemory(settings.memory, find_binary=self._binaries.find)
        """Memory budget, admission, turns of groups, and memory pressure."""

    @property
    def http_port(self) -> int | None:
        """Port of the HTTP API on loopback, or None if there is no API."""
        return self._http.local_port if self._http else None

    @property
    def endpoint(self) -> str:
        """URL of the HTTP API for other machines, or empty if it listens on loopback only."""
        return self._http.endpoint if self._http else ""

    @property
    def token_file(self) -> Path:
        """The file with the bearer token of the HTTP API."""
        return self.settings.api.token_file or self._store.token_file

    def start(self) -> None:
        """Take the host's Lease and start to supervise processes.

        Raises StoreInUse, HostInUse, OSError, or the KubeError of an API server that refuses. If the API server does
        not answer, the agent continues with the last plan that it has stored.
        """
        settings = self.settings
        heap.share_one_heap()
        agent_id = self._store.open()
        self._store.token()
        try:
            if self._client is not None:
                self._lease = HostLease(
                    self._client,
                    host=settings.host,
                    namespace=settings.system_namespace,
                    holder=agent_id,
                    on_lost=self._on_lost,
                    catch_up=self._catch_up,
                    on_back=self._on_back,
                    renew_s=settings.heartbeat_s,
                )
                try:
                    self._lease.acquire()
                except (Unreachable, ServerError, TooManyRequests) as error:
                    _log.warning("The API server does not answer; continuing with the last plan", error=str(error))
            self._start_parts(agent_id)
        except BaseException:
            self._store.close()
            raise

    def _start_parts(self, agent_id: str) -> None:
        settings = self.settings
        listen, holds, groups = settings.listen or settings.address, Holds(), self.memory.groups
        ports = Ports(listen, first=settings.first_port, count=COUNT)
        sleep = self._sleep = ProcessSleep(
            self._store, ports, holds, address=listen, wanted=groups.wanted, used=groups.used
        )
        groups.in_flight = sleep.requests_in_flight
        context = WorkerContext(
            agent_id=agent_id,
            address=listen,
            store=self._store,
            ports=ports,
            holds=holds,
            front_port=sleep.port,
            accepts_requests=sleep.accepts_requests,
            fetch=self._fetch,
            find_binary=self._binaries.find,
            on_report=self._on_report,
            admit=self.memory.admit,
            engine_user=settings.engine_user,
            waits=self._boundary.waits,
            refusal=self._boundary.refusal,
            reserved=self.memory.reserved,
            withdrawn=self._withdrawn,
            freed_by_stop=self._freed_by_stop,
            secrets=SecretValues.of_agent(settings.secrets, host=settings.host, client=self._client).of,
        )
        supervisor = self._supervisor = Supervisor(context)
        self.memory.attach(supervisor)
        self.usage = UsageSampler(self._store.records, context.listening)
        if self._client is not None:
            self._watch = PlanWatch(
                self._client,
                supervisor,
                host=settings.host,
                namespaces=settings.namespaces,
                may_speak=self._may_speak,
                reach=ReachabilityCheck(settings.address, listen=listen, pinned=lambda: self.spec.current.address),
            )
            self._host = HostObject(
                self._client,
                host=settings.host,
                labels=settings.labels,
                spec=self.spec,
                facts=self.facts,
                reports=supervisor.reports,
                usage=self.usage.usage,
                may_speak=self._may_speak,
            )
            self.spec.on_allowance.append(self._boundary.set_allowance)
            self.spec.on_change.append(self._apply_host_spec)
            self.memory.on_pressure.append(lambda _level: self._touch_host())
        if settings.api.port >= 0:
            api = Api(
                supervisor=supervisor,
                metrics=AgentMetrics(
                    supervisor.reports,
                    self.usage,
                    host=settings.host,
                    space=self.space,
                    collectors=(MemoryMetrics(self.memory), ProxyCollector(sleep.proxy)),
                ),
                facts=self.facts,
                token=self._store.token,
                is_ready=lambda: self._watch is None or self._watch.has_synced,
                takes_plans=self._watch is None,
                ending=self._ending,
            )
            self._http = ApiListeners(settings.api, api, self._store, host=settings.host, address=settings.address)
        self.memory.start(self._store.load())
        sleep.start(supervisor)
        supervisor.start()
        self._upkeep = Upkeep(lambda: any(each.started_at for each in supervisor.reports().values()))
        self._upkeep.start()
        if self._watch is not None:
            self._watch.start()
        else:
            # Without a cluster the stored plan is the whole plan. A process that is in no record was about to be
            # removed.
            wanted = supervisor.plans()
            supervisor.keep_only(lambda: wanted)
        if self._host is not None:
            self._host.start()
        if self._lease is not None:
            self._lease.start()
        if self._client is not None and settings.identity is not None:
            self._renewal = TokenRenewal(self._client, settings.identity, namespace=settings.system_namespace)
            self._renewal.start()
        if self._http is not None:
            self._http.start()
        write_run_file(
            settings.store,
            RunFile(
                pid=os.getpid(),
                version=agent_version(),
                host=settings.host,
                plan_source=settings.plan_source,
                http_port=self.http_port,
                endpoint=self.endpoint,
                token_file=str(self.token_file),
            ),
        )
        threading.Thread(target=self._sweep_store, name="store-sweep", daemon=True).start()

    def facts(self) -> HostFacts:
        """Measure this host."""
        measured = host_facts.measure(
            host=self.settings.host,
            address=self.settings.address,
            binaries=self._binaries,
            labels=self.settings.labels,
        )
        return measured.model_copy(
            update={
                "accelerators": accelerators.merged(self.memory.accelerators, self._detected()),
                "memory_budget_bytes": self.memory.budget.total_bytes,
                "memory_pressure": self.memory.pressure,
                "memory_note": self.memory.note(),
                "endpoint": self.endpoint,
                "tls_fingerprint": self._http.fingerprint if self._http else "",
            }
        )

    def _drawn(self) -> Boundary:
        settings, client = self.settings, self._client
        if client is None:
            return Boundary(own=settings.allowance)
        return Boundary(
            own=settings.allowance,
            saved=settings.store / SAVED_FILE,
            in_cluster=True,
            labels=NamespaceLabels(client),
        )

    def _detected(self) -> tuple[Accelerator, ...]:
        if self._accelerators is None:
            self._accelerators = accelerators.detect()
        return self._accelerators

    def reports(self) -> Mapping[str, ProcessReport]:
        """Return the reports of all processes, by key. Empty before `start`."""
        return self._supervisor.reports() if self._supervisor is not None else {}

    def request_stop(self) -> None:
        """Make `wait` return. Takes a lock, so a signal handler must not call it (`agent.stop_signals`)."""
        self._done.set()

    def wait(self) -> str:
        """Wait for the end.

        Returns an empty string after `request_stop`, else the reason why the agent cannot continue.
        """
        self._done.wait()
        return self._lost

    def stop(self) -> None:
        """Stop all parts of the agent. Processes stop as well, except if they should be kept."""
        keep = self._keep_processes and not self._lost
        # After another agent took over the host, this agent must not write endpoints and statuses any more.
        speak = not keep and not self._lost
        if self._watch is not None:
            self._watch.stop_accepting()
            if speak:
                self._watch.publisher.withdraw()
            else:
                self._watch.stop()
                self._watch.publisher.stop(last_words=False)
        self.memory.stop()
        if self._sleep is not None:
            self._sleep.stop_routing()
        if self._supervisor is not None:
            self._supervisor.stop(keep_processes=keep)
        if self._sleep is not None:
            self._sleep.stop()
        if self._watch is not None and speak:
            self._watch.publisher.stop(last_words=True)
            self._watch.stop()
        if self._host is not None:
            self._host.stop(farewell=speak)
        if self._lease is not None:
            self._lease.stop(release=speak)
        if self._http is not None:
            self._http.stop()
        if self._renewal is not None:
            self._renewal.stop()
        if self._upkeep is not None:
            self._upkeep.stop()
        self._store.close()

    def _ending(self, wish: Literal["keep", "stop"] | None) -> str:
        """Set whether processes keep running after the agent stops, and return the setting. None only reads it.

        The API calls this, for example at an uninstall.
        """
        if wish is not None:
            self._keep_processes = wish == "keep"
        return "keep" if self._keep_processes else "stop"

    def _freed_by_stop(self, key: str) -> int:
        """Return how many bytes of the store only the running process of a key uses. See `WorkerContext`."""
        records = self._store.records()
        if key in records:
            records[key] = records[key].model_copy(update={"running": None})
        return self.space.freed_without(named_by(records.values(), self.settings.store))

    def _on_report(self, key: str, desired: Desired, report: ProcessReport) -> None:
        self.memory.on_report(key, report)
        if self._sleep is not None:
            self._sleep.on_report(key, desired, report)
        if self._watch is not None:
            self._watch.publisher.enqueue(key)
        self._touch_host()

    def _touch_host(self) -> None:
        if self._host is not None:
            self._host.request_update()

    def _withdrawn(self, key: str) -> bool | None:
        if self._watch is None or (
            self._sleep is not None and self._sleep.accepts_requests(key, ProcessPhase.STOPPING)
        ):
            # A process that goes to sleep keeps its endpoint, because the proxy answers there.
            return None
        return self._watch.publisher.withdrawn(key)

    def _may_speak(self) -> bool:
        return self._lease is None or self._lease.is_trusted

    def _catch_up(self) -> bool:
        return self._watch is not None and self._watch.catch_up()

    def _on_back(self) -> None:
        if self._watch is not None:
            self._watch.publisher.publish_again()
        if self._host is not None:
            self._host.write_again()

    def _apply_host_spec(self, spec: HostSpec) -> None:
        """Apply the settings of the Host object. Runs in the thread of its watch."""
        self.memory.set_limits(
            MemoryLimits(
                budget_bytes=spec.memory_budget_bytes,
                fraction=spec.memory_fraction,
                warning=spec.pressure_warning,
                critical=spec.pressure_critical,
                eviction=spec.eviction,
            )
        )
        limit = spec.store_bytes if spec.store_bytes is not None else self.settings.store_size_bytes
        if limit != self.space.limit_bytes:
            self.space.limit_bytes = limit
            threading.Thread(target=self._sweep_store, name="store-sweep", daemon=True).start()
        self._touch_host()

    def _on_lost(self, why: str) -> None:
        self._lost = why
        self._done.set()

    def _fetch(self, plan: FilePlan, on_progress: Callable[[int, int | None], None], cancel: threading.Event) -> Path:
        return download(
            plan,
            self._store.root,
            policy=self.settings.source_policy.with_roots(self._boundary.paths),
            on_progress=on_progress,
            cancel=cancel,
            # Read each time, so that a new token is used without a restart.
            access=SourceAccess.of_host(self.settings.credentials),
            space=self.space,
        )

    def _sweep_store(self) -> None:
        """Reduce the store to its size limit, after the plan is known."""
        watch = self._watch
        while watch is not None and not watch.has_synced:
            if self._done.wait(SWEEP_POLL_S):
                return
        try:
            self.space.sweep()
        except FileError as error:
            _log.warning("Failed to check the store", error=error.message)
