"""Creates this host's Host object if there is none, applies its spec, and writes its status.

Started by `agent.server.main`; calls `host_status`. The heartbeat of the host is its Lease; this status is written only
when its content changes.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from agent.contract import AGENT_FIELD_MANAGER as FIELD_MANAGER
from agent.contract import HostFacts, ProcessReport, ProcessUsage
from agent.server.cluster.host_spec import HostSpecWatch
from agent.server.cluster.host_status import host_status, needs_write
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, Conflict, Forbidden, KubeError, NotFound
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import HOSTS

LOOK_EVERY_S = (15.0, 60.0)
"""Shortest and longest interval for checking the status without a change being reported. It grows while nothing
changes."""
GAP_S = 1.0
"""Between two writes, so that one write reports several changes."""
RETRY_S = 30.0
"""After a failure. It is randomized, because all agents may have failed at the same time."""
MUTE_RETRY_S = 2.0

_log = structlog.get_logger(__name__)


class HostObject:
    """The Host object of one host, as its agent maintains it."""

    def __init__(
        self,
        client: KubeClient,
        *,
        host: str,
        labels: Mapping[str, str],
        spec: HostSpecWatch,
        facts: Callable[[], HostFacts],
        reports: Callable[[], Mapping[str, ProcessReport]],
        usage: Callable[[], Mapping[str, ProcessUsage]],
        may_speak: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_speak` returns whether the loop certainly does not consider this host lost (`HostLease.is_trusted`)."""
        self._client = client
        self._host = host
        self._labels = dict(labels)
        self._wishes = spec
        self._facts = facts
        self._reports = reports
        self._usage = usage
        self._may_speak = may_speak
        self._clock = clock
        self._informer = Informer(client, HOSTS, field_selector=f"metadata.name={host}", on_change=self._changed)
        self._made = False
        self._written: Json | None = None
        self._written_at = float("-inf")
        self._touched = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-object", daemon=True)

    def start(self) -> None:
        self._informer.start()
        self._thread.start()

    def request_update(self) -> None:
        """Check soon whether the status has changed. Never blocks."""
        self._touched.set()

    def write_again(self) -> None:
        """Write the whole status again, because the loop may have changed it when it considered the host lost."""
        self._written = None
        self._touched.set()

    def stop(self, *, farewell: bool) -> None:
        """End the threads. With `farewell`, write first that the agent was stopped."""
        self._stop.set()
        self._touched.set()
        self._informer.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        if farewell and self._made and self._may_speak():
            try:
                self._apply(self._status(running=False))
            except KubeError as error:
                _log.warning("Failed to report that this host's agent stops", error=str(error))

    def _changed(self, old: Json | None, new: Json | None) -> None:
        if new is None or old is None or new.get("spec") != old.get("spec"):
            self._wishes.update(new)
        if new is None:
            # A person removed the Host object. The agent creates it again only at its next start.
            _log.warning("This host's Host object was removed", host=self._host)
        self._touched.set()

    def _run(self) -> None:
        failures, quiet_s = 0, LOOK_EVERY_S[0]
        while not self._stop.is_set():
            wait_s = quiet_s
            try:
                if not self._made:
                    self._make()
                if self._may_speak():
                    told = self._look()
                    wait_s = quiet_s = LOOK_EVERY_S[0] if told else min(2 * quiet_s, LOOK_EVERY_S[1])
                else:
                    wait_s = MUTE_RETRY_S
                failures = 0
            except Exception as error:
                failures += 1
                wait_s = RETRY_S * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
                if isinstance(error, NotFound) and not self._made:
                    # The cluster has no Host objects, so nothing in it widens or narrows what this host allows.
                    self._wishes.allow({})
                if not isinstance(error, KubeError):
                    _log.exception("Failed to update the Host object")
                elif failures == 1 or failures % 100 == 0:
                    _log.warning("Failed to update the Host object", error=str(error), hint=_hint(error))
            self._touched.wait(wait_s)
            self._touched.clear()
            if self._stop.wait(GAP_S):
                return

    def _make(self) -> None:
        body = {
            "apiVersion": HOSTS.api_version,
            "kind": HOSTS.kind,
            "metadata": {"name": self._host, "labels": self._labels},
            "spec": {"transport": "agent"},
        }
        # If the object exists, the agent changes neither its spec nor its labels, which belong to people.
        try:
            with contextlib.suppress(AlreadyExists):
                self._client.create(HOSTS, None, body, field_manager=FIELD_MANAGER)
        except Forbidden as refused:
            # An agent that joined by an invitation may not create Hosts: `herdsman host invite` made this one.
            try:
                self._client.get(HOSTS, None, self._host)
            except NotFound:
                raise refused from None
        self._made = True

    def _look(self) -> bool:
        """Write the status if it has changed. Returns whether it was written."""
        existing = self._informer.get(None, self._host)
        if existing is None:
            return False
        status = self._status(running=True)
        since_s = self._clock() - self._written_at
        before = self._written
        if before is None or needs_write(before, status, since_s=since_s) or _denied(existing):
            self._apply(status)
            return True
        return False

    def _status(self, *, running: bool) -> Json:
        existing = self._informer.get(None, self._host) or {}
        return host_status(
            self._facts(),
            reports=self._reports(),
            usage=self._usage(),
            spec=self._wishes.current,
            conditions=tuple((existing.get("status") or {}).get("conditions") or ()),
            now=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            running=running,
        )

    def _apply(self, status: Json) -> None:
        try:
            # With the current resourceVersion: a write that is delayed in a dead connection must not take effect after
            # the loop has marked this host lost.
            version = self._client.get(HOSTS, None, self._host)["metadata"]["resourceVersion"]
            if not self._may_speak():
                return
            body = {
                "apiVersion": HOSTS.api_version,
                "kind": HOSTS.kind,
                "metadata": {"name": self._host, "resourceVersion": version},
                "status": status,
            }
            # Forced, because the agent has the last word on the state of its host, even after the loop marked it lost.
            self._client.apply(HOSTS, None, body, field_manager=FIELD_MANAGER, force=True, subresource="status")
        except NotFound:
            return  # removed; the informer reports it
        except Conflict:
            self._touched.set()  # another client wrote at the same time
            return
        self._written, self._written_at = status, self._clock()


def _denied(existing: Json) -> bool:
    """Return whether the Ready condition of this host, whose agent runs, is not True."""
    conditions = (existing.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") != "True" for c in conditions)


def _hint(error: KubeError) -> str:
    if isinstance(error, NotFound):
        return "install the CRDs: herdsman crds | kubectl apply --server-side -f -"
    if isinstance(error, Forbidden):
        return "the agent needs hosts (get, list, watch, create) and hosts/status (patch): docs/install/rbac.yaml"
    return ""
