"""Renews the Lease of this host, admits only one agent per host, and detects that the loop considered the host lost.

Started by `agent.server.main`; calls `kubeapi`. The loop reads from these Leases which hosts live. The holder is the
agent's identity, which is kept in its store, so that a restarted agent continues with its Lease immediately.

If the Lease has expired, the loop may consider the host lost and its services may run elsewhere. So an agent trusts its
Lease for a little less than its duration, and writes no status afterwards. If the Lease is fenced or has no holder,
`catch_up` first reads the whole plan and stops every process that is not in it. Only then does the agent remove the
fence, and only if the Lease has not changed in the meantime (docs/adr/0011).
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from agent.contract import ANNOTATION_FENCED, LABEL_HOST
from agent.server.boottime import boottime_s
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, ApiError, Conflict, Forbidden, KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import LEASES, NAMESPACES

RENEW_S = 5.0
DURATION_FACTOR = 2.4
"""Duration of the Lease as a multiple of the renewal interval, so that one renewal may fail without consequence."""
TRUST_MARGIN_S = 1.5
"""How long before the Lease's end the agent stops trusting it, so that earlier requests have arrived by the end."""
REQUEST_TIMEOUT_S = 4.0
"""A renewal that takes longer is tried again on another connection."""
RETRY_S = 1.0
OBSERVE_POLL_S = 1.0

_log = structlog.get_logger(__name__)


class HostInUse(Exception):
    """Another agent holds this host."""


def lease_name(host: str) -> str:
    """Return the name of a host's Lease."""
    return f"herdsman-host-{host}"


def duration_s(renew_s: float) -> int:
    """Return the duration of a Lease that is renewed at this interval. The API accepts only whole seconds."""
    return max(1, math.ceil(DURATION_FACTOR * renew_s))


def lease_object(
    existing: Json | None, *, host: str, namespace: str, holder: str, duration_s: int, now: datetime
) -> Json:
    """Return the Lease to write: the existing one with `holder`, renewed now and without a fence."""
    metadata = dict((existing or {}).get("metadata") or {"name": lease_name(host), "namespace": namespace})
    metadata.pop("managedFields", None)
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL_HOST: host}
    metadata["annotations"] = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key not in _DROPPED
    }
    before = (existing or {}).get("spec") or {}
    time = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    same = before.get("holderIdentity") == holder
    transitions = int(before.get("leaseTransitions") or 0)
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration_s,
        "acquireTime": before.get("acquireTime", time) if same else time,
        "renewTime": time,
        "leaseTransitions": transitions if same or existing is None else transitions + 1,
    }
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}


_DROPPED = (ANNOTATION_FENCED, "herdsman.dev/facts")
"""The second one is the annotation in which development versions kept the host's facts."""


def holder_of(lease: Json) -> str:
    """Return the holder of a Lease, or an empty string if it was released."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def is_fenced(lease: Json) -> bool:
    """Return whether the loop considered the host lost."""
    return bool((lease["metadata"].get("annotations") or {}).get(ANNOTATION_FENCED))


class HostLease:
    """The Lease of one host."""

    def __init__(
        self,
        client: KubeClient,
        *,
        host: str,
        namespace: str,
        holder: str,
        on_lost: Callable[[str], None],
        catch_up: Callable[[], bool] = lambda: True,
        on_back: Callable[[], None] = lambda: None,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        """`on_lost` is called once, with a message, when another agent has taken over the host.

        `catch_up` reads the whole plan and stops every process that is not in it. It returns False if it must be tried
        again. `on_back` is called each time that the host is known to live again after the loop may have considered it
        lost.
        """
        self._client = client
        self._host = host
        self._namespace = namespace
        self._holder = holder
        self._on_lost = on_lost
        self._catch_up = catch_up
        self._on_back = on_back
        self._renew_s = renew_s
        self._duration_s = duration_s(renew_s)
        self._clock = clock
        self._last: Json | None = None
        """The Lease as this agent last wrote it. None while it is uncertain whether this agent holds it without a
        fence."""
        self._trusted_until = -math.inf
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host-lease", daemon=True)

    @property
    def is_trusted(self) -> bool:
        """Whether it is certain that the loop does not consider this host lost.

        A status that is written now arrives in time.
        """
        return self._clock() < self._trusted_until

    def acquire(self) -> None:
        """Take the Lease. A fenced Lease is left for `start`, when the plan can be read.

        Raises HostInUse if another agent renews the Lease while this agent waits for its duration. Raises ApiError if
        the server refuses.
        """
        lease = self._read()
        if lease is not None and holder_of(lease) not in ("", self._holder):
            self._outwait(lease)
            lease = self._read()
        if lease is None or not is_fenced(lease):
            self._claim(lease)

    def start(self) -> None:
        """Renew the Lease until `stop`."""
        self._thread.start()

    def stop(self, *, release: bool) -> None:
        """Stop renewing. With `release`, give up the Lease so that the host counts as gone immediately."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        if release and self._last is not None:
            try:
                self._write(self._last, release=True)
            except KubeError as error:
                _log.warning("Failed to release the host's Lease", error=str(error))

    def _run(self) -> None:
        failures = 0
        # The first wait is random too, because agents that were restarted together must not renew at the same times.
        wait_s = self._renew_s * random.uniform(0.2, 1.0)  # noqa: S311 - spreads load, keeps no secret
        if self._last is None:
            wait_s = 0.0
        while not self._stop.wait(wait_s):
            wait_s = self._renew_s * random.uniform(0.85, 1.0)  # noqa: S311 - as above
            try:
                if not self.renew():
                    wait_s = RETRY_S
                failures = 0
            except HostInUse as taken:
                self._trusted_until = -math.inf
                self._on_lost(str(taken))
                return
            except KubeError as error:
                failures += 1
                wait_s = min(wait_s, RETRY_S * random.uniform(0.5, 1.0))  # noqa: S311 - as above
                if failures in (1, 10) or failures % 100 == 0:
                    _log.warning("Failed to renew the host's Lease", error=str(error), failures=failures)
            except Exception:
                _log.exception("Failed to renew the host's Lease")

    def renew(self) -> bool:
        """Renew the Lease, or take it again. Returns False if the plan could not be read yet."""
        was_trusted = self.is_trusted
        if self._last is not None:
            try:
                self._write(self._last)
            except (Conflict, NotFound):
                self._last = None  # another client wrote to it; read the holder
            else:
                if not was_trusted:
                    # The loop did not consider the host lost. Write the changes that were not written in the meantime.
                    self._on_back()
                return True
        lease = self._read()
        if lease is not None and holder_of(lease) not in ("", self._holder):
            raise HostInUse(self._taken(holder_of(lease)))
        if lease is None or is_fenced(lease) or not holder_of(lease):
            # The loop considers this host lost. The processes here may already run elsewhere.
            self._trusted_until = -math.inf
            _log.warning("The loop considered this host lost; reading the plan first", host=self._host)
            if not self._catch_up():
                return False
            was_trusted = False
        # Refused if the Lease changed in the meantime: then the plan that was read is too old as well.
        self._claim(lease)
        if not was_trusted:
            self._on_back()
            _log.info("This host renews its Lease", host=self._host)
        return True

    def _outwait(self, lease: Json) -> None:
        """Observe another agent's Lease for its duration. Raises HostInUse as soon as it is renewed.

        The clocks of the hosts may differ, so only a change of the renewal time counts, never its value.
        """
        seen = (lease.get("spec") or {}).get("renewTime")
        lasts_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self._duration_s)
        _log.info(
            "Another agent held the Lease of this host; waiting to see if it still renews the Lease",
            holder=holder_of(lease),
            at_most_s=lasts_s,
        )
        deadline = self._clock() + lasts_s
        while self._clock() < deadline and not self._stop.wait(min(OBSERVE_POLL_S, lasts_s / 3)):
            now = self._read()
            if now is None or holder_of(now) in ("", self._holder):
                return
            if (now.get("spec") or {}).get("renewTime") != seen:
                raise HostInUse(self._taken(holder_of(now)))

    def _taken(self, holder: str) -> str:
        return f"another agent ({holder}) already runs as host `{self._host}`; stop it, or choose another --host"

    def _claim(self, lease: Json | None) -> None:
        for _ in range(2):
            try:
                self._write(lease)
                return
            except NotFound:
                self._make_namespace()
                lease = None
        raise ApiError(409, "Conflict", f"Lease {lease_name(self._host)} is created and deleted repeatedly")

    def _read(self) -> Json | None:
        path = LEASES.path(self._namespace, lease_name(self._host))
        try:
            return self._client.request("GET", path, timeout_s=REQUEST_TIMEOUT_S)
        except NotFound:
            return None

    def _write(self, existing: Json | None, *, release: bool = False) -> None:
        lease = lease_object(
            existing,
            host=self._host,
            namespace=self._namespace,
            holder=self._holder,
            duration_s=self._duration_s,
            now=datetime.now(UTC),
        )
        if release:
            lease["spec"]["holderIdentity"] = ""
        # Measured before the request, because the loop cannot have seen the renewal earlier.
        sent = self._clock()
        if existing is None:
            path, verb = LEASES.path(self._namespace), "POST"
        else:
            path, verb = LEASES.path(self._namespace, lease_name(self._host)), "PUT"
        self._last = self._client.request(verb, path, body=lease, timeout_s=REQUEST_TIMEOUT_S)
        lasts_s = self._duration_s - min(TRUST_MARGIN_S, self._duration_s / 4)
        self._trusted_until = -math.inf if release else sent + lasts_s

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
                f"namespace {self._namespace} does not exist, and this agent may not create it: {error.message}",
            ) from error
