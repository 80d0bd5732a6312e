"""The context of local services that set none: the longest that fits. A running process keeps its context.

`applying` calls it after the folder was read. The rule is the loop's (`automation.hosts.host_contexts`, ADR 85). The
facts are those of this machine's agent, and the header of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import structlog

from agent.client.port import HostClient
from agent.contract import FilePlan, HostFacts, HostPlan, HostReport, ProcessPlan, ProcessReport
from agent.server.models.plan_header import read_plan_header
from agent.server.models.source_access import SourceAccess
from agent.sources.errors import FileError
from agent.sources.source_policy import SourcePolicy
from automation.cache.trim_hosts import context_of_plan, model_sources_of_plan
from automation.hosts.host_account import HostAccount, Reservation
from automation.hosts.host_contexts import memory_at_context, waits_for_memory, with_contexts
from automation.hosts.parse import capacity_of, placement_request
from automation.local.applied import Applied
from automation.local.documents import LocalFolder, LocalService
from automation.local.folders import HOST, LocalFolders
from automation.local.instance import Settings
from components.host_plan import with_headers
from components.options import RenderOptions
from components.render import render
from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.keys import ServiceKey
from program.desired.model import GgufFacts
from program.desired.service import DesiredService, HostContext
from program.host_context import PENDING, HostRoom, takes_default
from program.runtimes.llamacpp import HOST_CONTEXT_SIZE

ReadHeader = Callable[[Sequence[FilePlan]], GgufFacts]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ChosenContexts:
    """The folder with the contexts in its plans."""

    folder: LocalFolder
    chosen: dict[ServiceKey, HostContext]
    """The context of each service that sets none and runs llama-server."""
    is_worth_another_try: bool = False
    """A header could not be read now, and its service has not started."""


def choose_contexts(folder: LocalFolder, before: Applied, host: HostClient, read: ReadHeader) -> ChosenContexts:
    """Choose the context of each service that sets none. Raises HostError if the agent does not answer.

    `before` is the record of the last time. It tells which contexts were chosen and which a document had set.
    """
    asking = {key: each for key, each in folder.services.items() if _takes_default(each)}
    if not asking:
        return ChosenContexts(folder, {})
    found = _Choosing(host.plan(), host.report(), read)
    services, chosen = dict(folder.services), dict[ServiceKey, HostContext]()
    for key, service in asking.items():
        entry = before.of(*key)
        try:
            services[key], chosen[key] = found.choose(service, None if entry is None else entry.default_context)
        except DesiredError as error:
            services[key] = replace(service, rendered=None, problem=str(error))
    return ChosenContexts(replace(folder, services=services), chosen, found.is_worth_another_try)


def header_reader(folders: LocalFolders) -> ReadHeader:
    """Return what reads headers with the credentials and the allowed servers of this machine's agent."""
    policy = SourcePolicy(
        allowed_remote_hosts=(Settings.read(folders.settings) or Settings()).allowed_remote_hosts,
        allowed_host_path_roots=("/",),
    )
    credentials = folders.credentials if folders.credentials.exists() else None
    return lambda files: read_plan_header(
        files, store=folders.store, access=SourceAccess.of_host(credentials), policy=policy
    )


def _takes_default(service: LocalService) -> bool:
    return service.desired is not None and service.plan is not None and takes_default(service.desired)


class _Choosing:
    """One call. Services that were chosen first count for the later ones."""

    def __init__(self, plan: HostPlan, report: HostReport, read: ReadHeader) -> None:
        self._plans, self._reports = plan.processes, report.processes
        self._read = read
        self._silent: set[str] = set()
        """Servers that did not answer. Each further question would take as long."""
        self._account = HostAccount(HOST, capacity_of(_as_host(report.facts)))
        self.is_worth_another_try = False
        for process, each in self._plans.items():
            self._account.put(_which(process), _reservation(process, each, self._reports.get(process)))

    def choose(self, service: LocalService, recorded: str | None) -> tuple[LocalService, HostContext]:
        """Return the service with its context. `recorded` is what `default_context` had; None without a record."""
        assert service.desired is not None, service
        assert service.rendered is not None, service
        desired, process = service.desired, f"{service.key.namespace}/{service.rendered.objects[0].name}"
        live = self._live(process, recorded)
        made = with_contexts(desired, live, lambda *_: None)
        report = self._reports.get(process)
        if _context(made) == PENDING or waits_for_memory(live.get(0)):
            told = self._with_headers(desired, started=report is not None and (report.ready or report.pid is not None))
            made = self._chosen(desired, told, process, live)
        context = _context(made)
        log.info("Chose the context", service=service.key.name, tokens=context.tokens, because=context.chosen)
        return replace(service, desired=made, rendered=render(made, RenderOptions())), context

    def _live(self, process: str, recorded: str | None) -> dict[int, Json]:
        """Return the process that has a plan, in the form of `trim_hosts.host_process`."""
        plan, report = self._plans.get(process), self._reports.get(process)
        if plan is None:
            return {}
        spec = plan.model_dump(mode="json", by_alias=True, exclude_none=True)
        tokens = context_of_plan(spec)
        if recorded is None:
            # The record is lost. The applied context stays.
            recorded = str(tokens)
        is_running = report is not None and report.pid is not None
        if not recorded and tokens == HOST_CONTEXT_SIZE and not is_running:
            # A version without this choice made the plan. Nothing runs that a longer context would restart.
            return {}
        status = report.model_dump(mode="json", by_alias=True, exclude_none=True) if report is not None else {}
        wanted = {"host": plan.host, "context": tokens, "chosen": recorded, "sources": model_sources_of_plan(spec)}
        return {0: {"spec": wanted, "status": status}}

    def _with_headers(self, desired: DesiredService, *, started: bool) -> DesiredService:
        address = urlsplit(desired.model.source.address)
        server = address.netloc if address.scheme in ("http", "https") else address.scheme
        if server and server in self._silent:
            self.is_worth_another_try |= not started
            return desired
        try:
            return with_headers(desired, self._read)
        except FileError as error:
            if error.transient:
                self._silent.add(server)
            # The download tells the same as the state of the process.
            log.info("Could not read the header", service=desired.key.name, reason=error.reason, message=error.message)
            self.is_worth_another_try |= error.transient and not started
            return desired

    def _chosen(
        self, desired: DesiredService, told: DesiredService, process: str, live: dict[int, Json]
    ) -> DesiredService:
        """Return the service with the context that fits beside the others, and reserve its memory."""
        which, request = _which(process), placement_request(told)

        def room(_replica: int, _host: str) -> HostRoom | None:
            limit = request.limit_bytes(self._account.capacity)
            if limit is None:
                self.is_worth_another_try = True
                return None
            reserved, gpu = self._account.reserved_without(which, request), self._account.capacity.gpu_memory_bytes
            return HostRoom(max(0, limit - reserved), None if gpu is None else max(0, gpu - min(reserved, gpu)))

        fitted = with_contexts(told, live, room)
        need = memory_at_context(fitted, 0)
        if need is not None:
            self._account.put(which, Reservation(HOST, need, request.group, request.stays_in_memory))
        return desired.model_copy(update={"host_placement": fitted.host_placement})


def _context(desired: DesiredService) -> HostContext:
    assert desired.host_placement is not None, desired
    return desired.host_placement.context_of(0) or PENDING


def _which(process: str) -> tuple[ServiceKey, int]:
    namespace, _, name = process.partition("/")
    return ServiceKey("", namespace, name), 0


def _reservation(process: str, plan: ProcessPlan, report: ProcessReport | None) -> Reservation:
    group = (process.partition("/")[0], plan.group) if plan.group else None
    memory = (report.memory_bytes if report is not None else None) or plan.memory_bytes or 0
    return Reservation(HOST, memory, group, plan.residency in (None, "pinned"))


def _as_host(facts: HostFacts) -> Json:
    """Return the facts of the agent as the status of a Host, in the form that `capacity_of` reads."""
    devices = [each.model_dump(mode="json") for each in facts.accelerators]
    return {
        "metadata": {"name": HOST},
        "status": {
            "allocatable": {"memory": facts.memory_budget_bytes},
            "capacity": {"memory": facts.memory_bytes},
            "accelerators": [{**each, "memory": each["memory_bytes"]} for each in devices],
        },
    }
