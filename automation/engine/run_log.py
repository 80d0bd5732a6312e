"""Reads the event log of one CLI run: the change of each URN, and the errors.

Called by `pulumi_engine`. The log has a line with all properties for every resource of the stack, most of them
unchanged. Lines that are not needed are recognised by their beginning and not parsed.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from automation.engine.differences import differences
from automation.engine.port import Change, Op
from components import naming

_HEAD: Final = re.compile(
    r'\{"sequence":\d+,"timestamp":\d+,"(?P<event>\w+)":\{(?:"metadata":\{"op":"(?P<op>[\w-]+)","urn":"(?P<urn>[^"]+)")?'
)

_OPS: Final[dict[str, Op]] = {
    "create": "create",
    "import": "create",
    "update": "update",
    "delete": "delete",
    "replace": "replace",
    "create-replacement": "replace",
    "delete-replaced": "replace",
    "same": "same",
    "refresh": "same",
    "read": "same",
}


@dataclass
class RunLog:
    """The report of one run of the CLI."""

    planned: dict[str, Change] = field(default_factory=dict)
    """By URN: the planned change."""
    done: dict[str, Change] = field(default_factory=dict)
    """By URN: the finished change; in a preview, the planned one."""
    failures: dict[str, str] = field(default_factory=dict)
    """By URN: the error."""
    errors: list[str] = field(default_factory=list)
    """Errors that name no resource."""
    summary: dict[str, Any] | None = None
    """Present when the run ended by itself, whether it succeeded or failed."""

    @property
    def succeeded(self) -> bool:
        return self.summary is not None and self.summary.get("result") == "succeeded"


def read_event_log(path: pathlib.Path) -> RunLog:
    """Read a finished log. A missing file is an empty log, and a last line cut short by a killed CLI is left out."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return parse_events(lines)
    except FileNotFoundError:
        return RunLog()


def parse_events(lines: Iterable[str]) -> RunLog:
    """Fold the lines of a log, in their order, into one RunLog."""
    log = RunLog()
    failed: dict[str, None] = {}
    for line in lines:
        head = _HEAD.match(line)
        if head is None:
            continue
        event, op, urn = head["event"], head["op"], head["urn"]
        if op == "same" and urn is not None:
            if event == "resOutputsEvent":
                log.done.setdefault(urn, _change(urn, "same", {}))
            continue
        if event == "diagnosticEvent" and '"severity":"debug"' in line[-80:]:
            continue
        try:
            body = json.loads(line)[event]
        except (ValueError, KeyError):
            continue
        if event == "resourcePreEvent":
            log.planned[urn] = _merged(log.planned.get(urn), _change(urn, op, body["metadata"]))
        elif event == "resOutputsEvent":
            log.done[urn] = _merged(log.done.get(urn), _change(urn, op, body["metadata"]))
        elif event == "resOpFailedEvent":
            failed[urn] = None
        elif event == "diagnosticEvent":
            _diagnose(log, body)
        elif event == "summaryEvent":
            log.summary = body
    for urn in failed:
        log.failures.setdefault(urn, "the operation failed without a reason")
        log.done.pop(urn, None)
    return log


def _diagnose(log: RunLog, body: dict[str, Any]) -> None:
    if body.get("severity") != "error":
        return
    urn, message = body.get("urn") or "", str(body.get("message") or "").strip()
    if not urn or naming.PULUMI_STACK_TYPE in urn:
        log.errors.append(message)
    elif urn in log.failures:
        log.failures[urn] += "\n" + message
    else:
        log.failures[urn] = message


def _change(urn: str, op: str, metadata: dict[str, Any]) -> Change:
    paths = tuple(sorted(metadata.get("detailedDiff") or metadata.get("diffs") or ()))
    done = _OPS.get(op, "update")
    details = _details(metadata) if done in ("update", "replace") else ()
    return Change(urn, naming.kind_of_urn(urn), _name_of(metadata, urn), done, paths, details)


def _details(metadata: dict[str, Any]) -> tuple[str, ...]:
    old, new = ((metadata.get(side) or {}).get("inputs") for side in ("old", "new"))
    return differences(old, new) if isinstance(old, dict) and isinstance(new, dict) else ()


def _name_of(metadata: dict[str, Any], urn: str) -> str:
    """The name of the object, if the event contains its inputs; else its logical name."""
    for side in ("new", "old"):
        inputs = (metadata.get(side) or {}).get("inputs") or {}
        name = (inputs.get("metadata") or {}).get("name") if isinstance(inputs.get("metadata"), dict) else None
        if isinstance(name, str):
            return name
    return naming.logical_of_urn(urn)


def _merged(before: Change | None, now: Change) -> Change:
    """A replacement shows as several steps of one URN, and counts once."""
    if before is None or before.op == "same":
        return now
    if before.op == "replace" or {before.op, now.op} == {"create", "delete"}:
        return Change(now.urn, now.kind, now.name, "replace", before.paths or now.paths, before.details or now.details)
    return now
