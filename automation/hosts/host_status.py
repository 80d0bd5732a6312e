"""Says at a Host object that the host is lost, and takes its hand off when the host speaks for itself again.

Called by `lost_hosts`. The condition Ready is the agent's own while it lives, by its field manager; the loop overrules
it while the host is lost, and gives the field back once the agent has said something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import structlog

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Invalid, KubeError, NotFound
from kubeapi.json_types import Json

FIELD_MANAGER = "herdsman-loop"
REASON_LOST = "HostLost"

_log = structlog.get_logger(__name__)


class HostConditions:
    """The loop's word on hosts that cannot speak. Used by one thread."""

    def __init__(
        self,
        client: KubeClient,
        *,
        record: Callable[..., None] = lambda *_args, **_more: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`record` makes an Event (`EventRecorder.record`)."""
        self._client = client
        self._record = record
        self._now = now
        self._done: set[str] = set()
        """Lost, and it stands in the Host's status, or there is none."""
        self._ours: set[str] = set()
        """Hosts whose condition is in the loop's hand."""

    def keep(self, *, lost: Iterable[str], alive: Callable[[str], bool]) -> bool:
        """Say who is lost, let go of who is back; False when nothing is left to do, True to be called again."""
        self._done = {host for host in self._done if not alive(host)}
        for host in lost:
            if host not in self._done and self._try(self._say_lost, host):
                self._done.add(host)
        for host in tuple(self._ours):
            if alive(host) and self._try(self._let_go, host):
                self._ours.discard(host)
        return bool(self._ours - self._done) or any(host not in self._done for host in lost)

    def _try(self, act: Callable[[str], bool], host: str) -> bool:
        try:
            return act(host)
        except NotFound:
            return True  # no Host object: nothing to say, nowhere to say it
        except KubeError as error:
            _log.warning("Could not say how a host is", host=host, error=str(error))
            return False

    def _say_lost(self, host: str) -> bool:
        found = self._client.get(kinds.HOSTS, None, host)
        if ready_of(found).get("status") == "False":
            return True  # it said itself that it stops, or the last leader said it
        self._apply(host, status={"conditions": [lost_condition(found, now=self._now())]})
        self._ours.add(host)
        self._record(
            found,
            type="Warning",
            reason=REASON_LOST,
            message="The host does not renew its Lease: its endpoints were taken out of service.",
        )
        return True

    def _let_go(self, host: str) -> bool:
        found = self._client.get(kinds.HOSTS, None, host)
        if ready_of(found).get("reason") == REASON_LOST:
            return False  # its agent has not spoken yet
        try:
            self._apply(host)
        except Invalid:
            return False  # nobody else holds the condition yet, and half of one is none
        self._record(found, type="Normal", reason="HostBack", message="The host renews its Lease again.")
        return True

    def _apply(self, host: str, **parts: Json) -> None:
        body = {
            "apiVersion": kinds.HOSTS.api_version,
            "kind": kinds.HOSTS.kind,
            "metadata": {"name": host},
            **parts,
        }
        self._client.apply(kinds.HOSTS, None, body, field_manager=FIELD_MANAGER, force=True, subresource="status")


def ready_of(host: Json) -> Json:
    """The condition Ready of a Host; empty while there is none."""
    conditions = (host.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "Ready"), {})


def lost_condition(host: Json, *, now: datetime) -> Json:
    """Say that a host is lost."""
    return {
        "type": "Ready",
        "status": "False",
        "reason": REASON_LOST,
        "message": "The host does not renew its Lease: its endpoints are out, and what may move will move.",
        "observedGeneration": int(host["metadata"].get("generation") or 0),
        "lastTransitionTime": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
