"""Notices that somebody changed what runs a service, its Deployment or its HostProcesses, in a field that is ours.

The controller asks on passes that find everything as rendered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from automation.plan import LiveObject
from components import naming
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey

KINDS = {kind.kind: kind for kind in (*kinds.WELL_KNOWN, *kinds.OPTIONAL)}


class DriftWatch:
    """The generations at which the objects were last found to be ours. Thread-safe."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._generations: dict[ServiceKey, dict[str, int]] = {}

    def forget(self, key: ServiceKey) -> None:
        """Let go of a service that is gone, or that the engine has just changed: its own change is not drift."""
        with self._lock:
            self._generations.pop(key, None)

    def drifted(self, rendered: RenderedService, live: Iterable[LiveObject], *, just_applied: bool) -> bool:
        """Tell whether an object of the last one's kind is not as it was rendered.

        The generation says that something changed since the engine's last run, or that we do not know because we have
        just started; a dry run of our own apply says whether that touches us (an autoscaler's replica count does not).
        `just_applied`: the engine ran in this process, so that what is not known yet is its own change.
        """
        if not rendered.objects:
            return False
        key, kind = rendered.key, rendered.objects[-1].kind
        generations = {o.name.name: o.generation for o in live if o.name.kind == kind}
        with self._lock:
            known = self._generations.get(key)
        for each in rendered.objects:
            found = generations.get(each.name) if each.kind == kind else None
            if found is None or (known is None and just_applied) or (known or {}).get(each.name) == found:
                continue
            applied = self._client.apply(
                KINDS[kind],
                key.namespace,
                each.manifest,
                field_manager=naming.FIELD_MANAGER,
                force=True,
                dry_run=True,
            )
            if int(applied["metadata"].get("generation", 0)) != found:
                # Not remembered as seen: the next pass must find the drift again until the engine has repaired it.
                return True
        with self._lock:
            self._generations[key] = generations
        return False
