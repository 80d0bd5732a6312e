"""Chooses the context of llama-server on a host without a loop: the longest that fits, once, and then keeps it.

Called by `host_provider` in Check, which has the inputs of the last run. The rule is that of `program.host_context`
(ADR 85). The facts are those of the host, and the header of the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from agent.client.port import HostClient, HostError, ProcessState
from agent.contract import FilePlan, HostFacts, HostReport, ProcessPlan
from agent.processes.adapters import adapters_of
from agent.server.models.plan_header import read_plan_header
from agent.server.models.source_access import SourceAccess
from agent.sources.errors import FileError
from agent.sources.source_policy import SourcePolicy
from components.host_plan import DRAFT
from components.providers.host_schema import AUTO
from components.providers.host_transports import HostTransports
from components.providers.marshalling import Properties, has_unknown
from program.desired.facts import MemoryFacts
from program.desired.model import GgufFacts
from program.host_context import PENDING, HostRoom, longest_context, usable_gpu_bytes
from program.runtimes.flags import number_of
from program.runtimes.llamacpp import HOST_CONTEXT_SIZE
from program.runtimes.llamacpp_memory import model_memory, serving_of, together

_ANYWHERE = SourcePolicy(allowed_remote_hosts=("0.0.0.0/0", "::/0"), allowed_host_path_roots=("/",))
"""The author of the program names the source, and the request goes out from the author's machine."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

ReadHeader = Callable[[Sequence[FilePlan]], GgufFacts]
Tell = Callable[[str, bool], None]
"""Gets a message for the user, and whether it is a warning."""


class _Choice(NamedTuple):
    tokens: int
    mark: str
    """The value of `defaultContext` in the state; empty for a process that an earlier version made."""


class Unknown(Exception):
    """A fact that the choice needs is not known. The message says which."""


def read_header(files: Sequence[FilePlan]) -> GgufFacts:
    """Read the header of a model with the credentials of this process. Raises FileError."""
    return read_plan_header(files, store=None, access=SourceAccess.of_host(None), policy=_ANYWHERE)


@dataclass
class DefaultContexts:
    """The choices of one plugin process. Thread-safe."""

    transports: HostTransports
    read: ReadHeader = read_header
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _promised: dict[tuple[str, str], tuple[ProcessPlan, int]] = field(default_factory=dict)
    """By host and key: the processes whose context was chosen in this run, with their memory in bytes."""

    def checked(self, news: Properties, olds: Mapping[str, Any], tell: Tell) -> Properties:
        """Return the inputs with the context in the arguments of the plan.

        `news` are the inputs of the program, with unknown values; `olds` those of the last run, empty without one.
        """
        plan = news.get("plan")
        if news.get("defaultContext") != AUTO or has_unknown(news) or not isinstance(plan, dict):
            return news
        given = ProcessPlan.model_validate(plan)
        with self._lock:
            choice = self._kept(news, given, olds) or self._chosen(news, given, tell)
        argv = with_context([str(each) for each in plan.get("argv") or ()], choice.tokens)
        made = {**news, "plan": {**plan, "argv": argv}, "defaultContext": choice.mark}
        if not choice.mark:
            del made["defaultContext"]
        return made

    def _kept(self, news: Properties, given: ProcessPlan, olds: Mapping[str, Any]) -> _Choice | None:
        """Return what the last run chose, or the process on the host has; None if the context is to be chosen."""
        if not olds:
            live = self._live(news)
            tokens = _context_of(live)
            if live is None or tokens is None or not _serves_same(live, given):
                return None
            # The state was lost, or a loop made the process. A running process is not restarted.
            return _Choice(tokens, PENDING.chosen if tokens == HOST_CONTEXT_SIZE else str(tokens))
        before = _plan_or_none(olds.get("plan"))
        tokens, mark = _context_of(before), str(olds.get("defaultContext") or "")
        if before is None or tokens is None or not _serves_same(before, given):
            return None
        if mark == str(tokens) or (not mark and tokens == HOST_CONTEXT_SIZE):
            return _Choice(tokens, mark)
        if mark == PENDING.chosen and self._is_ready(news):
            return _Choice(tokens, mark)
        return None

    def _chosen(self, news: Properties, given: ProcessPlan, tell: Tell) -> _Choice:
        key = f"{news['namespace']}/{news['name']}"
        try:
            tokens = self._longest(news, given, key)
        except (Unknown, HostError, FileError) as error:
            why = error.message if isinstance(error, (HostError, FileError)) else str(error)
            tell(f"{key} gets {HOST_CONTEXT_SIZE:,} tokens of context: {why}. spec.contextSize sets another.", True)
            return _Choice(HOST_CONTEXT_SIZE, PENDING.chosen)
        tell(f"{key} gets {tokens:,} tokens of context, the longest that fits. spec.contextSize sets another.", False)
        return _Choice(tokens, str(tokens))

    def _longest(self, news: Properties, given: ProcessPlan, key: str) -> int:
        """Return the longest context that fits. Raises Unknown, HostError and FileError."""
        host = self.transports.client_for(news)
        room = self._room(host, host.report(), given, key)
        if any(urlsplit(each.source).scheme in ("", "file") for each in _files(given)) and not _is_here(news):
            raise Unknown("its file is on the host, and Pulumi runs on another machine")
        main, draft = self.read(_main_files(given)), self._draft(given)
        trained = main.context_length
        if not trained or not main.layer_count:
            raise Unknown("the header of its model does not say the context that it was trained with")

        def need(tokens: int) -> MemoryFacts | None:
            serving = serving_of(with_context(list(given.argv), tokens))
            models = [each for each in (main, draft) if each is not None]
            parts = [
                model_memory(each, serving, weights_bytes=each.weights_bytes) for each in models if each.weights_bytes
            ]
            return together(parts) if len(parts) == len(models) else None

        on_gpu = serving_of(list(given.argv)).gpu_layers > 0
        tokens = longest_context(trained, need, room, on_gpu=on_gpu)
        found = need(tokens) if tokens is not None else None
        if tokens is None or found is None:
            raise Unknown("the size of its model is not known")
        self._promised[given.host, key] = given, found.total_bytes
        return tokens

    def _draft(self, given: ProcessPlan) -> GgufFacts | None:
        draft = (given.files or {}).get(DRAFT)
        return self.read([draft]) if draft is not None else None

    def _room(self, host: HostClient, report: HostReport, given: ProcessPlan, key: str) -> HostRoom:
        limit = _limit_bytes(report.facts, given)
        if limit is None:
            raise Unknown("the host does not report its memory")
        reserved = {
            other: size
            for (name, other), (plan, size) in self._promised.items()
            if name == given.host and not _takes_turns(plan, given)
        }
        for other, plan in host.plan().processes.items():
            if not _takes_turns(plan, given):
                told = report.processes.get(other)
                size = (told.memory_bytes if told is not None else None) or plan.memory_bytes or 0
                reserved[other] = max(size, reserved.get(other, 0))
        used = sum(size for other, size in reserved.items() if other != key)
        devices = (each for each in report.facts.accelerators if each.type != "metal")
        gpu = usable_gpu_bytes((each.memory_bytes or 0, each.count) for each in devices)
        return HostRoom(max(0, limit - used), None if gpu is None else max(0, gpu - min(used, gpu)))

    def _live(self, news: Properties) -> ProcessPlan | None:
        state = self._state(news)
        return state.plan if state is not None else None

    def _is_ready(self, news: Properties) -> bool:
        state = self._state(news)
        return state is not None and state.report.ready

    def _state(self, news: Properties) -> ProcessState | None:
        """Return the process on the host; None if there is none, or the host does not answer."""
        try:
            return self.transports.client_for(news).get(f"{news['namespace']}/{news['name']}")
        except HostError:
            return None


def with_context(argv: list[str], tokens: int) -> list[str]:
    """Return the arguments of llama-server with this context."""
    for flag in ("--ctx-size", "-c"):
        if flag in argv[:-1]:
            at = argv.index(flag) + 1
            return [*argv[:at], str(tokens), *argv[at + 1 :]]
    return [*argv, "--ctx-size", str(tokens)]


def _context_of(plan: ProcessPlan | None) -> int | None:
    return number_of(plan.argv, "--ctx-size", "-c") if plan is not None else None


def _serves_same(before: ProcessPlan, given: ProcessPlan) -> bool:
    """Return whether two plans are for the same host and model. Adapters do not count."""
    return before.host == given.host and _sources(before) == _sources(given)


def _sources(plan: ProcessPlan) -> list[str]:
    return sorted(each.source for each in _files(plan))


def _files(plan: ProcessPlan) -> list[FilePlan]:
    """Return the files of the model and its draft."""
    adapters = adapters_of(plan.argv)
    others = [each for name, each in (plan.files or {}).items() if name not in adapters]
    return [*([plan.file] if plan.file is not None else []), *others]


def _main_files(plan: ProcessPlan) -> list[FilePlan]:
    """Return the files of the model, the one that the engine opens first."""
    adapters = adapters_of(plan.argv)
    others = (plan.files or {}).items()
    own = [each for name, each in others if name not in adapters and name.partition("-")[0] != DRAFT]
    found = [*([plan.file] if plan.file is not None else []), *own]
    if not found:
        raise Unknown("its plan has no file")
    return found


def _is_here(news: Properties) -> bool:
    """Return whether the host is the machine that runs Pulumi."""
    return not news.get("ssh") and urlsplit(str(news.get("endpoint") or "")).hostname in _LOOPBACK


def _limit_bytes(facts: HostFacts, given: ProcessPlan) -> int | None:
    if given.memory_budget_bytes is not None:
        return given.memory_budget_bytes
    if given.memory_fraction is not None:
        return int(given.memory_fraction * facts.memory_bytes)
    return facts.memory_budget_bytes


def _takes_turns(one: ProcessPlan, other: ProcessPlan) -> bool:
    """Return whether two processes are never in memory at the same time."""
    return one.group is not None and one.group == other.group and _may_leave(one) and _may_leave(other)


def _may_leave(plan: ProcessPlan) -> bool:
    return plan.residency not in (None, "pinned")


def _plan_or_none(plan: Any) -> ProcessPlan | None:
    try:
        return ProcessPlan.model_validate(plan)
    except ValueError:
        return None
