"""Follows the ModelRouters of a cluster and the Secrets of their providers. Reads only.

`herdsman gateway` starts it. A router whose spec became invalid, violates a policy, or waits for an approval, goes on
with the version in its status that a loop accepted last. So does a gateway that starts. A changed Secret counts within
a minute, and seconds after a provider refuses the old key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import structlog

from gateway.engines.secret_reader import EngineSecrets
from gateway.routers.provider_requests import KEYS
from gateway.routers.runtime import Credentials, RouterState
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import SpecInvalid
from program.desired.router import Router
from program.dialects.engine_access import SecretName, SecretValues
from program.dialects.llmkube.parse.router import router_of
from program.dialects.status.accepted_version import version_fields, version_in_use, with_accepted

GATHER_S = 0.05
"""How long changes are gathered before the routers are made, and how often it is checked whether they are listed."""


log = structlog.get_logger(__name__)


class RouterFollower:
    """The routers of a cluster. Call `start`, then `stop`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        publish: Callable[[Iterable[RouterState]], None],
        namespaces: tuple[str, ...] = (),
        awaits_policies: bool = False,
    ) -> None:
        """`publish` gets all routers after each change, the first time when all were listed.

        `namespaces` empty means all. `awaits_policies`: a version counts only after a loop has checked the policies.
        """
        self._awaits_policies = awaits_policies
        self._publish = publish
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._valid: dict[str, Router] = {}
        """The last valid spec of each router that the policies allow, by uid."""
        self._judged: dict[str, int] = {}
        """The generation that was last found invalid, by uid."""
        self._left_out = False
        """The API server does not serve ModelRouters, or not to this gateway."""
        self._is_first = True
        self._objects = Informer(
            client,
            kinds.MODEL_ROUTERS,
            namespaces=namespaces or None,
            transform=_trimmed,
            on_change=lambda _old, _new: self._changed.set(),
            on_missing=self._leave_out,
            on_refused=self._on_refused,
        )
        self._secrets = EngineSecrets(client, changed=self._changed.set)
        self._thread = threading.Thread(target=self._run, name="routers", daemon=True)

    def start(self) -> None:
        """Start to follow the cluster; returns at once."""
        self._objects.start()
        self._secrets.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop all threads."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        self._secrets.stop()
        self._objects.stop()

    def _run(self) -> None:
        while True:
            # An empty list is no change.
            self._changed.wait(GATHER_S if self._is_first else None)
            self._changed.clear()
            if self._stopping.is_set():
                return
            try:
                self._update()
            except Exception:
                # The gateway serves the last routers, and the next change is tried.
                log.exception("Could not read the routers of the cluster")
            self._stopping.wait(GATHER_S)

    def _leave_out(self, kind: Kind) -> None:  # noqa: ARG002 - the informer's signature
        self._left_out = True

    def _on_refused(self, error: ApiError) -> float:
        if isinstance(error, Forbidden):
            self._left_out = True
        return 0.0

    def _update(self) -> None:
        if not self._objects.has_synced and not self._left_out:
            return
        self._is_first = False
        objects = self._objects.list()
        for gone in self._valid.keys() - {cr["metadata"]["uid"] for cr in objects}:
            del self._valid[gone]
        routers = [router for cr in objects if (router := self._router(cr)) is not None]
        self._secrets.want(wanted_secrets(routers))
        known = self._secrets.known()
        self._publish(
            [RouterState(router, secrets_of(router, known), read_again=self._secrets.read_again) for router in routers]
        )

    def _router(self, cr: Json) -> Router | None:
        uid = cr["metadata"]["uid"]
        used = version_in_use(cr, awaits=self._awaits_policies)
        if used is not cr:
            self._refuse(cr, "its policies or its mode do not allow it, or no loop has checked it yet")
        for each in (used, with_accepted(cr)):
            if each is None:
                continue
            try:
                self._valid[uid] = router_of(each)
                break
            except SpecInvalid as error:
                self._refuse(cr, str(error))
        return self._valid.get(uid)

    def _refuse(self, cr: Json, why: str) -> None:
        """Log once that a version is not served."""
        uid, generation = cr["metadata"]["uid"], cr["metadata"].get("generation", 0)
        if self._judged.get(uid) != generation:
            self._judged[uid] = generation
            name = f"{cr['metadata']['namespace']}/{cr['metadata']['name']}"
            log.warning("Does not serve the spec of a ModelRouter", router=name, why=why)


def wanted_secrets(routers: Iterable[Router]) -> dict[SecretName, frozenset[str]]:
    """Return the Secrets that the backends of routers name, with the keys of their data that are used."""
    found: dict[SecretName, frozenset[str]] = {}
    for router in routers:
        for backend in router.backends:
            if backend.external is not None and backend.external.secret:
                name = SecretName(router.namespace, backend.external.secret)
                found[name] = found.get(name, frozenset()) | frozenset(KEYS[backend.external.provider])
    return found


def secrets_of(router: Router, known: Mapping[SecretName, SecretValues]) -> dict[str, Credentials | str]:
    """Return the Secrets of one router by name: their values, or why there are none."""
    found: dict[str, Credentials | str] = {}
    for namespace, name in wanted_secrets([router]):
        values = known.get(SecretName(namespace, name))
        if values is not None:
            found[name] = f"Secret `{namespace}/{name}` {values.problem}" if values.problem else dict(values.values)
    return found


def _trimmed(obj: Json) -> Json:
    return {**version_fields(obj), "spec": obj.get("spec")}
