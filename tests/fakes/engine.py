"""An engine without Pulumi and without a cluster, which implements `automation.engine.port.Engine`.

`tests/contract/test_engine.py` runs the same tests on this engine and on the real one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from automation.engine.port import (
    APPLY_FAILED,
    AccessoriesRefused,
    Batch,
    BatchOutcome,
    Change,
    EngineCancelled,
    EngineFailed,
    HistoryEntry,
    Op,
    ServiceOutcome,
    Stack,
)
from components import urns
from components.rendered import RenderedObject, RenderedService
from program.desired.facts import RefusedObject
from program.desired.keys import ServiceKey
from tests.fakes.rendered import BAD_LIMIT, BAD_PORT

Manifest = dict[str, Any]
ObjectKey = tuple[str, str, str]
"""Namespace, kind and name."""


def refuse_bad_values(manifest: Manifest) -> str | None:
    """Return why the API server would refuse a manifest, or None; knows only the two bad values of `rendered`."""
    spec = manifest.get("spec") or {}
    if manifest["kind"] == "HorizontalPodAutoscaler" and spec["maxReplicas"] == BAD_LIMIT:
        return "spec.maxReplicas: must be greater than 0"
    ports = spec.get("ports") or [] if manifest["kind"] == "Service" else []
    return "spec.ports[0].port: must be between 1 and 65535" if any(p["port"] == BAD_PORT for p in ports) else None


@dataclass
class _State:
    held: dict[str, tuple[ServiceKey | None, ObjectKey, Manifest]] = field(default_factory=dict)
    applied: dict[ServiceKey, str] = field(default_factory=dict)
    history: list[HistoryEntry] = field(default_factory=list)


class FakeEngine:
    """Keeps objects in `objects`. Each run calls `before_run`, in which a test may block, count, or raise."""

    def __init__(
        self,
        *,
        refuse: Callable[[Manifest], str | None] = refuse_bad_values,
        before_run: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self.objects: dict[ObjectKey, Manifest] = {}
        self.runs: list[Batch] = []
        self._refuse = refuse
        self._before_run = before_run
        self._states: dict[Stack, _State] = {}
        self._lock = threading.RLock()

    def up(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        return self._run(batch, cancel, really=True)

    def preview(self, batch: Batch, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        return self._run(batch, cancel, really=False)

    def destroy(self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None) -> BatchOutcome:
        outcome = self._run(Batch(stack, remove=tuple(self.services(stack))), cancel, really=True)
        self._states.pop(stack, None)
        return outcome

    def release(
        self,
        stack: Stack,
        keys: Sequence[ServiceKey],
        *,
        timeout_s: float = 600.0,
        cancel: threading.Event | None = None,
    ) -> int:
        with self._lock:
            state = self._state(stack)
            state.held = {urn: held for urn, held in state.held.items() if held[0] not in keys}
            if all(held[0] is None for held in state.held.values()):
                state.held.clear()
        return 0

    def drift(
        self, stack: Stack, *, timeout_s: float = 600.0, cancel: threading.Event | None = None
    ) -> tuple[Change, ...]:
        found = []
        for urn, (_, at, manifest) in self._state(stack).held.items():
            live = self.objects.get(at)
            if live != manifest:
                found.append(Change(urn, at[1], at[2], "delete" if live is None else "update"))
        return tuple(found)

    def history(self, stack: Stack) -> tuple[HistoryEntry, ...]:
        return tuple(reversed(self._state(stack).history))

    def export(self, stack: Stack) -> dict[str, Any]:
        if stack not in self._states:
            return {}
        resources = [{"urn": urn, "inputs": manifest} for urn, (_, _, manifest) in self._state(stack).held.items()]
        return {"version": 3, "deployment": {"resources": resources}}

    def stacks(self) -> set[Stack]:
        return set(self._states)

    def services(self, stack: Stack) -> set[ServiceKey]:
        if stack not in self._states:
            return set()
        with self._lock:
            return {key for key, _, _ in self._state(stack).held.values() if key is not None}

    def sizes(self, stack: Stack) -> dict[ServiceKey, int]:
        if stack not in self._states:
            return {}
        with self._lock:
            held = self._state(stack).held.items()
            objects = [(key, urn) for urn, (key, _, _) in held if key is not None]
            # The URN of an object has the type of its component before the `$`.
            components = {(key, urn.partition("$")[0]) for key, urn in objects}
            return dict(Counter(key for key, _ in (*objects, *components)))

    def discard_stack(self, stack: Stack) -> None:
        self._states.pop(stack, None)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _state(self, stack: Stack) -> _State:
        return self._states.get(stack) or _State()

    def _run(self, batch: Batch, cancel: threading.Event | None, *, really: bool) -> BatchOutcome:
        self.runs.append(batch)
        self._before_run(batch)
        if cancel is not None and cancel.is_set():
            raise EngineCancelled
        with self._lock:
            if batch.apply:
                self._states.setdefault(batch.stack, _State())
            state = self._state(batch.stack)
            shared: dict[str, Change] = {}
            outcomes = {
                **{s.key: self._apply(s, batch.stack, state, shared, really=really) for s in batch.apply},
                **{key: self._remove(key, state, really=really) for key in batch.remove},
            }
            if really:
                now = datetime.now(UTC)
                ok = all(outcome.ok for outcome in outcomes.values())
                state.history.append(HistoryEntry(len(state.history) + 1, "update", now, now, ok))
        return BatchOutcome(outcomes, 0.0, 0, tuple(shared.values()))

    def _apply(
        self, service: RenderedService, stack: Stack, state: _State, shared: dict[str, Change], *, really: bool
    ) -> ServiceOutcome:
        changes: list[Change] = []
        failures: dict[str, EngineFailed] = {}
        refused: dict[str, RefusedObject] = {}

        def put(obj: RenderedObject, urn: str, *, is_shared: bool = False) -> None:
            if problem := self._refuse(obj.manifest):
                if obj.is_accessory:
                    refused[urn] = RefusedObject(kind=obj.kind, name=obj.name, reason=APPLY_FAILED, message=problem)
                else:
                    failures[urn] = EngineFailed(APPLY_FAILED, problem, urn)
                return
            change = self._put(urn, None if is_shared else service.key, obj, state, really=really)
            if is_shared:
                shared.setdefault(urn, change)
            else:
                changes.append(change)

        for obj in service.shared:
            put(obj, urns.shared_object_urn(obj, stack.name), is_shared=True)
        for obj in service.objects[:-1]:
            put(obj, urns.object_urn(service.key, obj, stack.name))
        for last in service.objects[-1:] if not failures else ():
            put(service.last_without_accessories if refused else last, urns.object_urn(service.key, last, stack.name))
        wanted = {urns.object_urn(service.key, obj, stack.name) for obj in service.objects}
        stale = [urn for urn, (key, _, _) in state.held.items() if key == service.key and urn not in wanted]
        changes += [self._delete(urn, state, really=really) for urn in stale]
        error = next(iter(failures.values()), None)
        if error is None and refused:
            error = AccessoriesRefused(tuple(refused.values()), next(iter(refused)))
        return ServiceOutcome(service.key, ok=error is None, changes=tuple(changes), error=error)

    def _remove(self, key: ServiceKey, state: _State, *, really: bool) -> ServiceOutcome:
        held = [urn for urn, (owner, _, _) in state.held.items() if owner == key]
        return ServiceOutcome(key, ok=True, changes=tuple(self._delete(urn, state, really=really) for urn in held))

    def _put(self, urn: str, owner: ServiceKey | None, obj: RenderedObject, state: _State, *, really: bool) -> Change:
        at = (str(obj.manifest["metadata"].get("namespace", "")), obj.kind, obj.name)
        live = self.objects.get(at)
        op: Op = "create" if urn not in state.held or live is None else "same" if live == obj.manifest else "update"
        if really:
            self.objects[at] = obj.manifest
            state.held[urn] = (owner, at, obj.manifest)
        paths = tuple(sorted(name for name in obj.manifest if live and live.get(name) != obj.manifest[name]))
        return Change(urn, obj.kind, obj.name, op, paths if op == "update" else ())

    def _delete(self, urn: str, state: _State, *, really: bool) -> Change:
        _, at, _ = state.held[urn]
        if really:
            self.objects.pop(at, None)
            del state.held[urn]
        return Change(urn, at[1], at[2], "delete")
