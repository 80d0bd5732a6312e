"""One request about one object, and its limits for waiting: for an old object's end, for a new CRD.

Called by `components.providers.kubernetes_calls`. Calls `kubeapi.client`. This module does not wait for readiness; that
is the controller's job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from components.providers import kubernetes_objects as objects
from components.providers.kubernetes_errors import Code, Refused, refusal
from components.providers.kubernetes_objects import Identity, Token
from components.providers.marshalling import Properties
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KindNotServed, NotFound, Unreachable
from kubeapi.json_types import Json
from kubeapi.kinds import CRDS, Kind

T = TypeVar("T")

MAX_WAIT_S = 60.0
FIRST_POLL_S = 0.1
LAST_POLL_S = 1.0
ROLE_WAIT_S = 5.0
"""Seconds that a binding waits for its role."""


@dataclass(frozen=True)
class Call:
    """One request of the engine about one object."""

    token: Token
    inputs: Properties
    """May contain secrets, but no unknowns."""
    urn: str = ""
    preview: bool = False
    timeout_s: float = 0.0
    """The program's customTimeouts; 0 means MAX_WAIT_S."""
    alive: Callable[[], bool] = field(default=lambda: True)
    """False after the engine has ended."""

    @property
    def obj(self) -> Json:
        return objects.body(self.inputs, self.token)

    def asked(self, verb: str, identity: Identity) -> str:
        return f"{'preview: ' if self.preview else ''}{verb} {self.token.kind} `{identity.id}`"


class RetryPolicy:
    """Pauses between attempts with growing length, up to the call's deadline, and only while its engine runs."""

    def __init__(
        self,
        client: KubeClient,
        kind: Callable[[Token], Kind],
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._kind = kind
        self._sleep = sleep
        self._clock = clock

    def deadline(self, call: Call, at_most_s: float = MAX_WAIT_S) -> float:
        """Return the time on this policy's clock at which a call that starts now must end."""
        return self._clock() + (min(call.timeout_s, at_most_s) if call.timeout_s > 0 else at_most_s)

    def left(self, call: Call, deadline: float) -> bool:
        """Return whether the call may wait longer."""
        return self._clock() < deadline and call.alive()

    def pause(self, round_: int) -> None:
        """Sleep before the next attempt; `round_` counts from 1."""
        self._sleep(min(FIRST_POLL_S * 2.0 ** (round_ - 1), LAST_POLL_S))

    def kind_when_served(self, call: Call) -> Kind | None:
        """Return a kind, and wait for one whose CRD exists but is not served yet. None: a preview of a kind to come.

        Raises Refused.
        """
        deadline = self.deadline(call)
        round_ = 0
        while True:
            try:
                return self._kind(call.token)
            except KindNotServed as error:
                if call.preview:
                    return None  # the same program may make the CRD
                if not self.left(call, deadline) or not self._is_coming(call.token):
                    raise refusal(error, call.asked("create", Identity.of(call.obj))) from error
            round_ += 1
            self.pause(round_)

    def _is_coming(self, token: Token) -> bool:
        group, _, version = token.api_version.rpartition("/")
        try:
            for crd in self._client.list(CRDS)["items"]:
                spec = crd["spec"]
                versions = [v["name"] for v in spec["versions"] if v.get("served")]
                if spec["group"] == group and spec["names"]["kind"] == token.kind and version in versions:
                    return True
        except ApiError:
            return False
        return False

    def wait_until_gone(self, call: Call, kind: Kind, live: Json, deadline: float) -> None:
        """Wait for an object that is being deleted. Raises Refused if it still exists at the deadline."""
        identity = Identity.of(live)
        uid = live["metadata"]["uid"]
        round_ = 0
        while self.left(call, deadline):
            round_ += 1
            self.pause(round_)
            try:
                live = self._client.get(kind, identity.namespace, identity.name)
            except NotFound:
                return
            if live["metadata"]["uid"] != uid:
                return
        finalizers = ", ".join(f"`{name}`" for name in live["metadata"].get("finalizers") or []) or "none"
        raise Refused(
            Code.DEADLINE_EXCEEDED,
            f"{kind.kind} `{identity.id}` is being deleted since {live['metadata'].get('deletionTimestamp')} and "
            f"still exists; finalizers: {finalizers}. Remove the cause (pods that use a claim, a finalizer whose "
            f"controller does not run), then run again to create it.",
        )


def path_is_late(error: NotFound) -> bool:
    """Return whether a path, and not an object, was not found: a CRD may be listed shortly before it is served."""
    return error.message.startswith(("404 page not found", "the server could not find the requested resource"))


def again_if_cut(request: Callable[[], T]) -> T:
    """Send a request again if its connection broke, as pooled connections do after the API server restarted.

    All writes of the provider may be sent twice: they carry a uid, or a version for which a repeated create gets a 409.
    """
    try:
        return request()
    except Unreachable as error:
        if not error.reset:
            raise
        return request()
