"""Says every ten seconds that this host lives, and what it is; lets only one agent be the host.

Started by `agent.server.main`; calls `kubeapi`. The loop finds hosts by these Leases. The holder is the agent's
identity, which lies in its store, so that a restarted agent goes on with its own Lease at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.contract import HostFacts
from agent.server.registration import LABEL_HOST
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, ApiError, Conflict, Forbidden, KubeError, NotFound
from kubeapi.kinds import LEASES, NAMESPACES

Json = dict[str, Any]

ANNOTATION_FACTS = "herdsman.dev/facts"
RENEW_S = 10.0
DURATION_S = 40

_log = structlog.get_logger(__name__)


class HostTaken(Exception):
    """Another agent is this host."""


def lease_name(host: str) -> str:
    """Name the Lease of a host."""
    return f"herdsman-host-{host}"


def is_held_by_other(lease: Json, *, holder: str, now: datetime) -> bool:
    """Tell whether somebody else holds the Lease and renewed it in time."""
    spec = lease.get("spec") or {}
    current = spec.get("holderIdentity") or ""
    if not current or current == holder:
        return False
    try:
        age_s = (now - datetime.fromisoformat(str(spec.get("renewTime")))).total_seconds()
    except (ValueError, TypeError):
        return False
    return age_s <= float(spec.get("leaseDurationSeconds") or DURATION_S)


def lease_object(existing: Json | None, *, host: str, namespace: str, holder: str, facts: str, now: datetime) -> Json:
    """Build the Lease as it is to be written: the existing one with our holder, time and facts."""
    metadata = dict((existing or {}).get("metadata") or {"name": lease_name(host), "namespace": namespace})
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL_HOST: host}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION_FACTS: facts}
    before = (existing or {}).get("spec") or {}
    time = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    same = before.get("holderIdentity") == holder
    transitions = int(before.get("leaseTransitions") or 0)
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": DURATION_S,
        "acquireTime": before.get("acquireTime", time) if same else time,
        "renewTime": time,
        "leaseTransitions": transitions if same or existing is None else transitions + 1,
    }
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


class HostLease:
    """The Lease of one host."""

    def __init__(
        self,
        client: KubeClient,
        *,
        host: str,
        namespace: str,
        holder: str,
        facts: Callable[[], HostFacts],
        on_lost: Callable[[str], None],
    ) -> None:
        """`on_lost` is called once, with a message, when another agent took the host over."""
        self._client = client
        self._host = host
        self._namespace = namespace
        self._holder = holder
        self._facts = facts
        self._on_lost = on_lost
        self._last: Json | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-lease", daemon=True)

    def acquire(self) -> None:
        """Become the host. Raises HostTaken when another agent lives; ApiError when the server refuses."""
        self._renew()

    def start(self) -> None:
        """Renew until stopped."""
        self._thread.start()

    def stop(self, *, release: bool) -> None:
        """Stop renewing; with `release`, say at once that the host is gone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        if release and self._last is not None:
            try:
                self._write(release=True)
            except KubeError as error:
                _log.warning("Failed to release the host's Lease", error=str(error))

    def _run(self) -> None:
        failures = 0
        while not self._stop.wait(RENEW_S):
            try:
                self._renew()
                failures = 0
            except HostTaken as taken:
                self._on_lost(str(taken))
                return
            except KubeError as error:
                failures += 1
                if failures in (1, 10) or failures % 100 == 0:
                    _log.warning("Failed to renew the host's Lease", error=str(error), failures=failures)
            except Exception:
                _log.exception("Failed to renew the host's Lease")

    def _renew(self) -> None:
        if self._last is not None:
            try:
                self._write()
                return
            except (Conflict, NotFound):
                self._last = None  # somebody wrote to it; see who
        for _ in range(3):
            try:
                self._last = self._client.get(LEASES, self._namespace, lease_name(self._host))
            except NotFound:
                self._last = None
            if self._last is not None and is_held_by_other(self._last, holder=self._holder, now=datetime.now(UTC)):
                holder = self._last["spec"]["holderIdentity"]
                self._last = None
                raise HostTaken(
                    f"another agent ({holder}) is host `{self._host}`; stop it, or choose another --host. "
                    f"A dead agent's claim ends {DURATION_S} s after its last sign of life"
                )
            try:
                self._write()
                return
            except (Conflict, AlreadyExists):
                continue
            except NotFound:
                self._make_namespace()
        raise ApiError(409, "Conflict", f"Lease {lease_name(self._host)} is being written by others")

    def _write(self, *, release: bool = False) -> None:
        facts = self._facts().model_dump_json(by_alias=True)
        lease = lease_object(
            self._last,
            host=self._host,
            namespace=self._namespace,
            holder=self._holder,
            facts=facts,
            now=datetime.now(UTC),
        )
        if release:
            lease["spec"]["holderIdentity"] = ""
        if self._last is None:
            self._last = self._client.create(LEASES, self._namespace, lease)
        else:
            self._last = self._client.replace(LEASES, self._namespace, lease)

    def _make_namespace(self) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}}
        try:
            self._client.create(NAMESPACES, None, body)
        except AlreadyExists:
            return
        except Forbidden as error:
            raise Forbidden(
                error.status,
                error.reason,
                f"namespace {self._namespace} is not there and may not be made by this agent: {error.message}",
            ) from error
