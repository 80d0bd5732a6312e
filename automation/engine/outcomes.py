"""Computes the targets of a CLI run, and from its result the outcome of each service. Pure; called by `pulumi_engine`.

A service has succeeded only when every URN that it needs was reported as done, and every URN to delete as deleted.
Other events of the run do not count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from automation.engine import memory_limit
from automation.engine.cli_process import CliResult
from automation.engine.port import (
    APPLY_FAILED,
    ENGINE_OUT_OF_MEMORY,
    FOREIGN_OBJECT,
    AccessoriesRefused,
    Batch,
    BatchOutcome,
    Change,
    EngineFailed,
    HistoryEntry,
    ServiceOutcome,
)
from automation.engine.run_log import RunLog
from automation.engine.state_index import StateIndex
from components import naming, urns
from components.rendered import RenderedObject, RenderedService
from program.desired.facts import RefusedObject
from program.desired.keys import ServiceKey


@dataclass(frozen=True)
class Targets:
    """The targets of one run, by the service they belong to."""

    keys: tuple[ServiceKey, ...]
    apply: tuple[RenderedService, ...]
    """The services that the program registers."""
    wanted: Mapping[ServiceKey, frozenset[str]]
    """URNs that must exist after the run: the service's own, and the shared ones that it needs."""
    unwanted: Mapping[ServiceKey, frozenset[str]]
    """URNs that must be deleted after the run: of removed services, and dropped parts of applied ones."""
    accessories: Mapping[ServiceKey, Mapping[str, RenderedObject]]
    """The wanted objects without which the service can still serve."""
    shared: frozenset[str]
    released: frozenset[str]
    """Shared URNs that the state drops, because no service is left in it. Their objects stay."""
    needs_refresh: bool
    """Whether a service is requested again with an unchanged fingerprint: then the state may be wrong.

    A refresh requires that every target is in the state. With a new target there is no refresh, and only the provider
    finds drift, because it reads each object.
    """

    @property
    def urns(self) -> frozenset[str]:
        """All targets; when there are none, nothing is run."""
        return self.shared.union(self.released, *self.wanted.values(), *self.unwanted.values())

    @staticmethod
    def of(batch: Batch, index: StateIndex) -> Targets:
        """Work out the targets of a batch. Shared objects are never deleted."""
        stack = batch.stack.name
        wanted: dict[ServiceKey, frozenset[str]] = {}
        unwanted: dict[ServiceKey, frozenset[str]] = {}
        shared: set[str] = set()
        for service in batch.apply:
            own = urns.own_urns(service, stack)
            needed = frozenset[str]().union(*(urns.shared_urns(obj, stack) for obj in service.shared))
            shared |= needed
            wanted[service.key] = own | needed
            unwanted[service.key] = index.of(service.key) - own
        for key in batch.remove:
            wanted.setdefault(key, frozenset())
            unwanted[key] = unwanted.get(key, frozenset()) | index.of(key)
        # A cache claim that stayed in the state would not be made again with a new namespace of that name.
        is_last = not batch.apply and index.keys <= set(batch.remove) and any(unwanted.values())
        return Targets(
            tuple(dict.fromkeys(batch.keys)),
            batch.apply,
            wanted,
            unwanted,
            {service.key: urns.accessories(service, stack) for service in batch.apply},
            frozenset(shared),
            frozenset(index.others) if is_last else frozenset(),
            all(needed <= index.of(key) | index.others for key, needed in wanted.items())
            and any(
                service.fingerprint and index.applied(service.key) == service.fingerprint for service in batch.apply
            ),
        )


_FOREIGN = "already exists and belongs to"
"""A phrase in the error messages of the embedded provider."""
_MAX_LINES = 12
_LONGEST_EVENT = 900
"""Bytes. The API takes 1,024 for the message of an Event."""
_NO_NEWS = ("update failed", "preview failed", "one or more errors occurred")


def empty_outcome(targets: Targets, *, duration_s: float) -> BatchOutcome:
    """Return the outcome of a batch without a change, for which nothing was run."""
    return BatchOutcome({key: ServiceOutcome(key, ok=True) for key in targets.keys}, duration_s, 0)


def service_outcomes(
    targets: Targets, log: RunLog, result: CliResult, *, preview: bool
) -> Mapping[ServiceKey, ServiceOutcome]:
    """Return the outcome of each service of a finished run."""
    done = {**log.planned, **log.done} if preview else log.done
    return {key: _judge(key, targets, done, log, result) for key in targets.keys}


def describe_changes(changes: tuple[Change, ...]) -> str:
    """Describe changes for the message of an Event, with the differences of updated objects; empty without a change."""
    phrases, left = [], _LONGEST_EVENT
    for change in changes:
        if change.op == "same":
            continue
        phrase = f"{change.op}d {change.kind} {change.name}"
        if change.details:
            phrase += ": " + _some(change.details, left - len(phrase.encode()))
        phrases.append(phrase)
        left -= len(phrase.encode()) + 2
    text = "; ".join(phrases)
    return text[:1].upper() + text[1:]


def _some(details: tuple[str, ...], limit: int) -> str:
    """Join as many as fit into `limit` bytes, and count the others."""
    taken: list[str] = []
    for detail in details:
        if taken and len(", ".join([*taken, detail]).encode()) > limit:
            return ", ".join(taken) + f" and {len(details) - len(taken)} more"
        taken.append(detail)
    return ", ".join(taken)


def shared_changes(targets: Targets, log: RunLog, *, preview: bool) -> tuple[Change, ...]:
    """Return the changes of shared objects."""
    done = {**log.planned, **log.done} if preview else log.done
    return _visible(done[urn] for urn in sorted(targets.shared & done.keys()))


def _judge(
    key: ServiceKey, targets: Targets, done: Mapping[str, Change], log: RunLog, result: CliResult
) -> ServiceOutcome:
    wanted, unwanted = targets.wanted[key], targets.unwanted[key]
    changes = _visible(done[urn] for urn in sorted(wanted | unwanted) if urn in done and urn not in targets.shared)
    accessories = targets.accessories.get(key, {})
    failed = sorted(urn for urn in wanted | unwanted if urn in log.failures)
    refused = [urn for urn in failed if urn in accessories]
    others = [urn for urn in failed if urn not in accessories]
    standing = all(urn in done and done[urn].op != "delete" for urn in wanted.difference(refused))
    gone = all(urn in done and done[urn].op == "delete" for urn in unwanted)
    error: EngineFailed | None = None
    if others or not (standing and gone):
        at_fault = next(iter((*others, *refused)), None)
        error = _failed(at_fault, log.failures[at_fault]) if at_fault is not None else run_error(log, result)
    elif refused:
        error = AccessoriesRefused([_refused(accessories[urn], log.failures[urn]) for urn in refused], refused[0])
    return ServiceOutcome(key, ok=error is None, changes=changes, error=error)


def _visible(changes: Any) -> tuple[Change, ...]:
    """Keep the changes of objects. The components around them exist only for Pulumi."""
    return tuple(change for change in changes if not naming.is_component(change.urn))


def _failed(urn: str, message: str) -> EngineFailed:
    return EngineFailed(_reason(message), message, urn)


def _refused(obj: RenderedObject, message: str) -> RefusedObject:
    return RefusedObject(kind=obj.kind, name=obj.name, reason=_reason(message), message=message)


def _reason(message: str) -> str:
    return FOREIGN_OBJECT if _FOREIGN in message else APPLY_FAILED


def run_error(log: RunLog, result: CliResult) -> EngineFailed:
    """Return the error of a run that failed as a whole."""
    if result.out_of_memory:
        return EngineFailed(ENGINE_OUT_OF_MEMORY, _out_of_memory(memory_limit.limit_bytes()))
    return EngineFailed(APPLY_FAILED, failure_message(log, result))


def _out_of_memory(limit: int | None) -> str:
    of = f" of {limit / 2**20:.0f} MiB" if limit else ""
    return (
        f"the kernel killed the engine because the operator's memory limit{of} was reached; raise it: `herdsman "
        f"install --memory …` (docs/how-to/install.md lists the memory for numbers of services)"
    )


def parse_query(result: CliResult) -> Any:
    """Parse the JSON that a query printed. Raises EngineFailed."""
    if result.code != 0:
        raise run_error(RunLog(), result)
    try:
        return json.loads(result.stdout)
    except ValueError as error:
        raise EngineFailed(APPLY_FAILED, f"the answer of the Pulumi CLI is not JSON: {error}") from error


def failure_message(log: RunLog, result: CliResult) -> str:
    """Return why a run failed as a whole, in the CLI's words: errors without a URN, else the end of its output."""
    messages = [error for error in log.errors if error not in _NO_NEWS]
    if messages:
        return _without_traceback(messages[0])
    printed = [line.rstrip() for line in result.output.splitlines() if line.strip()]
    first = next((at for at, line in enumerate(printed) if line.startswith("error:")), -3)
    nothing = f"the Pulumi CLI ended with exit code {result.code} and printed nothing"
    return "\n".join(printed[first:][:_MAX_LINES]) or nothing


def _without_traceback(message: str) -> str:
    return message.partition("\nTraceback (most recent call last)")[0].strip()


def parse_history(entries: list[dict[str, Any]]) -> tuple[HistoryEntry, ...]:
    """Parse `pulumi stack history --json`."""
    found = [
        HistoryEntry(
            version=int(entry.get("version") or 0),
            kind=str(entry.get("kind") or ""),
            started=_time(entry.get("startTime")),
            finished=_time(entry.get("endTime")),
            succeeded=entry.get("result") == "succeeded",
            changes={str(op): int(count) for op, count in (entry.get("resourceChanges") or {}).items()},
        )
        for entry in entries
    ]
    return tuple(sorted(found, key=lambda entry: entry.version, reverse=True))


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
