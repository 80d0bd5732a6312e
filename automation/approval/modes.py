"""Holds changes back when a service, or its namespace, is in mode Preview or Paused. Called before a pass acts.

In Preview a change is computed by dry runs. The status shows it until the annotation `herdsman.dev/approved` has its
digest, which identifies exactly this change; then only this change is applied. The result is remembered until the
rendered or the live objects change, so a waiting service costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from automation.preview.changes import ServicePreview
from automation.preview.report import phrases, summary
from automation.reconcile.plan import LiveObject
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import PendingChange
from program.desired.keys import ANNOTATION_APPROVED, ANNOTATION_MODE, ServiceKey
from program.desired.service import DesiredService

Mode = Literal["Apply", "Preview", "Paused"]

MOST_CHANGES = 32
"""Phrases in a status. Of further changes only the number is given."""
LONGEST_CHANGE = 300

_MODES: tuple[Mode, ...] = ("Apply", "Preview", "Paused")
_Part = tuple[str, str, str, str]

Compare = Callable[[DesiredService, RenderedService, Json, tuple[LiveObject, ...]], ServicePreview]
"""Computes the changes of an apply. Raises ApiError when the API server does not answer."""


def mode_of(cr: Json, namespace_annotations: Mapping[str, str]) -> Mode:
    """Return a service's mode: the service's annotation, else the namespace's, else Apply. Raises SpecInvalid."""
    namespace = cr["metadata"]["namespace"]
    for said, where in (
        (cr["metadata"].get("annotations") or {}, ""),
        (namespace_annotations, f" of namespace `{namespace}`"),
    ):
        value = said.get(ANNOTATION_MODE, "")
        if value:
            found = next((mode for mode in _MODES if mode == value), None)
            if found is None:
                why = (
                    f"`{value[:64]}` is not one of {', '.join(_MODES)}; the loop changes nothing until the mode is "
                    f"valid"
                )
                raise SpecInvalid(field=f"metadata.annotations[{ANNOTATION_MODE}]{where}", why=why)
            return found
    return "Apply"


def read_namespace_annotations(client: KubeClient, namespace: str) -> Mapping[str, str]:
    """Read the annotations of a namespace from the API server; none if it does not exist. Raises ApiError."""
    # A list of one: the loop may list and watch namespaces, and not get them.
    found = client.list(kinds.NAMESPACES, field_selector=f"metadata.name={namespace}")["items"]
    return (found[0]["metadata"].get("annotations") or {}) if found else {}


def approved(cr: Json) -> str:
    """Return the digest of the change that was approved last; empty for none."""
    return str((cr["metadata"].get("annotations") or {}).get(ANNOTATION_APPROVED, "")).strip()


def pending_change(preview: ServicePreview, *, paused: bool) -> PendingChange:
    """Describe the change that is held back, in the length of a status."""
    changes = shortened(phrases(preview))
    return PendingChange(digest=preview.digest, summary=summary(preview), changes=changes, paused=paused)


def shortened(described: Iterable[str]) -> tuple[str, ...]:
    """Return the phrases that describe a change, in the length of a status."""
    made = [each[:LONGEST_CHANGE] for each in described]
    if len(made) > MOST_CHANGES:
        made = [*made[: MOST_CHANGES - 1], f"and {len(made) - MOST_CHANGES + 1} more"]
    return tuple(made)


@dataclass
class _Known:
    """The state of one service in mode Preview or Paused."""

    of: object = None
    """The rendered and live objects of the preview."""
    preview: ServicePreview | None = None
    held: PendingChange | None = None
    looked: bool = False
    """Whether a pass has checked if there is a change to hold back."""
    spent: str = ""
    """The digest of the last approved change that was applied."""
    allowed: frozenset[_Part] = field(default_factory=frozenset)
    """The parts of the last approved change: after a run that failed half-way the rest may be applied."""


class Modes:
    """The changes that are held back, by service. Thread-safe for different services."""

    def __init__(self, compare: Compare, *, is_current: Callable[[Json], bool] = lambda _cr: True) -> None:
        """`is_current` reads from the API server whether the spec of a custom resource is still that of the cache."""
        self._compare = compare
        self._is_current = is_current
        self._lock = threading.Lock()
        self._known: dict[ServiceKey, _Known] = {}

    def is_frozen(self, key: ServiceKey, mode: Mode) -> bool:
        """Return whether neither objects nor pods of a service may be changed: it is paused, or a change is pending."""
        if mode == "Apply":
            return False
        with self._lock:
            known = self._known.get(key)
        return mode == "Paused" or known is None or not known.looked or known.held is not None

    def waits(self, key: ServiceKey, cr: Json, mode: Mode) -> bool:
        """Return whether a change would be held back now, so that the rollout rules need not be checked."""
        if mode == "Apply":
            return False
        with self._lock:
            known = self._known.get(key, _Known())
        wanted = approved(cr)
        if mode == "Paused" or not wanted or wanted == known.spent:
            return True
        return known.held is not None and known.held.digest != wanted

    def pending(self, key: ServiceKey) -> PendingChange | None:
        """Return the change that the last pass held back."""
        with self._lock:
            known = self._known.get(key)
        return known.held if known is not None else None

    def holds(
        self,
        key: ServiceKey,
        cr: Json,
        mode: Mode,
        desired: DesiredService,
        rendered: RenderedService,
        live: tuple[LiveObject, ...],
    ) -> bool:
        """Return whether a change that a pass is about to make must be held back. Raises ApiError."""
        if mode == "Apply":
            self.drop_service(key)
            return False
        with self._lock:
            known = self._known.setdefault(key, _Known())
        of = (rendered.fingerprint, tuple(each.ignore for each in rendered.objects), len(rendered.shared), live)
        if known.preview is None or known.of != of:
            known.preview, known.of = self._compare(desired, rendered, cr, live), of
        if not known.preview.changed:
            # A cache is behind, or only the engine's state differs: nothing to approve.
            known.held, known.looked = None, True
            return mode == "Paused"
        if mode == "Preview" and self._may(known, cr):
            # An approval is for the live objects, which the caches may not have yet.
            known.preview = self._compare(desired, rendered, cr, live)
            if self._may(known, cr) and self._is_current(cr):
                known.allowed |= _parts(known.preview)
                known.spent = approved(cr)
                # Computed again after the run, in case something is left.
                known.of, known.preview, known.held, known.looked = None, None, None, True
                return False
        known.held, known.looked = pending_change(known.preview, paused=mode == "Paused"), True
        return True

    def settled(self, key: ServiceKey, mode: Mode) -> None:
        """Record that a service needs no change, or that its change is blocked for another reason."""
        if mode == "Apply":
            self.drop_service(key)
            return
        with self._lock:
            before = self._known.get(key, _Known())
            self._known[key] = _Known(looked=True, spent=before.spent)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop the records of a deleted service, or of one in mode Apply."""
        with self._lock:
            self._known.pop(key, None)

    @staticmethod
    def _may(known: _Known, cr: Json) -> bool:
        """Return whether exactly this change was approved, or is the rest of an approved one."""
        assert known.preview is not None
        digest, wanted = known.preview.digest, approved(cr)
        return bool(wanted) and (digest == wanted or (bool(known.allowed) and _parts(known.preview) <= known.allowed))


def _parts(preview: ServicePreview) -> frozenset[_Part]:
    return frozenset((each.op, each.kind, each.name, each.digest) for each in preview.changed)
