"""Checks before a start whether the owners of this host allow the plan of a process.

Called by `agent.server.processes.launching`. The rule is `program.runtimes.host_rules`, which the loop applies before
it writes a HostProcess; here it applies to every plan, whoever wrote it. There are two owners: the machine's, who sets
`agent run --allow FILE`, and the cluster's, who sets `spec.allow` of the Host object. Both must allow a plan.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from agent.contract import ProcessPhase, ProcessPlan, ProcessReason
from agent.processes.lifecycle import Hold
from agent.server.daemons.plans import is_daemon_key
from agent.server.store import write_private
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from kubeapi.kinds import NAMESPACES
from program.runtimes.host_rules import UNRESTRICTED, Allowance, Need, allowance_of, refusal

SAVED_FILE = "host-allowance.json"
"""File in the store with the last `spec.allow`, for a start while the API server does not answer."""
LABELS_KEPT_S = 30.0
"""How long the labels of a namespace are cached."""

_log = structlog.get_logger(__name__)

Labels = Callable[[str], Mapping[str, str] | None]


class Boundary:
    """The limits that the owners of one host set. Thread-safe."""

    def __init__(
        self,
        *,
        own: Allowance | None = None,
        saved: Path | None = None,
        in_cluster: bool = False,
        labels: Labels = lambda _namespace: None,
    ) -> None:
        """`own` is the machine owner's allowance, None if not set.

        `in_cluster`: the Host object's allowance applies as well. Without either, nothing is refused: a client that can
        send plans has the agent's token and counts as the owner.
        """
        self._own = own
        self._saved = saved
        self._labels = labels
        self._of_host: Allowance | None = _read(saved) if in_cluster else UNRESTRICTED

    def set_allowance(self, said: Mapping[str, Any] | None) -> None:
        """Set `spec.allow` of the Host object; None if there is no such object."""
        allowance = allowance_of(said)
        if allowance == self._of_host:
            return
        self._of_host = allowance
        if self._saved is not None:
            try:
                write_private(self._saved, json.dumps(said or {}))
            except OSError as error:
                _log.warning("Failed to store the settings of spec.allow", error=str(error))

    @property
    def paths(self) -> tuple[str, ...]:
        """Directories of the host from which models may be read, in addition to `--allowed-host-path-roots`."""
        found = self._of_host.paths if self._of_host is not None else ()
        return tuple(each for each in found if self._own is None or self._own.grants(Need("path", each)))

    def waits(self, key: str) -> Hold | None:
        """Return a hold while the Host object was never read, else None."""
        if is_daemon_key(key) or self._of_host is not None:
            return None
        why = "the agent has not read spec.allow of this host's Host yet"
        return Hold(ProcessPhase.PENDING, ProcessReason.NOT_ALLOWED, why)

    def refusal(self, key: str, plan: ProcessPlan) -> str:
        """Return why a plan must not start, or an empty string.

        A daemon's plan derives from a plan that was allowed.
        """
        if is_daemon_key(key):
            return ""
        namespace = key.partition("/")[0]
        for allowance in (self._own, self._of_host):
            if allowance is None:
                continue
            labels = self._labels(namespace) if allowance.selector is not None else None
            told = refusal(plan, allowance, namespace=namespace, labels=labels)
            if told:
                return told
        return ""


class NamespaceLabels:
    """Reads the labels of namespaces for the selector in `spec.allow`. Thread-safe."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Mapping[str, str]]] = {}

    def __call__(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels, or None if they cannot be read, so that no selector matches."""
        with self._lock:
            at, labels = self._known.get(namespace, (float("-inf"), {}))
        if self._clock() - at < LABELS_KEPT_S:
            return labels
        try:
            found = self._client.get(NAMESPACES, None, namespace)
        except KubeError as error:
            _log.warning("Failed to read a namespace", namespace=namespace, error=str(error))
            return None
        labels = dict(found["metadata"].get("labels") or {})
        with self._lock:
            self._known[namespace] = (self._clock(), labels)
        return labels


def _read(saved: Path | None) -> Allowance | None:
    try:
        said = json.loads(saved.read_text()) if saved is not None else None
    except (OSError, ValueError):
        return None
    return allowance_of(said) if isinstance(said, dict) else None
