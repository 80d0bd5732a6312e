"""Recognizes the API server by its client certificate, and reads the user from its headers. Called by `server`.

This is the authentication of Kubernetes' aggregation layer. ConfigMap extension-apiserver-authentication in kube-system
has the authority of the certificate, the names in it, and the names of the headers. The API server authenticated the
user. `Reviewer` asks it by SubjectAccessReviews what the user may read, as all servers of the aggregation layer do.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import unquote

from automation.external_metrics.answers import GROUP, VERSION
from components.scaling import REQUESTS_METRIC
from kubeapi.client import KubeClient
from kubeapi.json_types import Json

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
REMEMBERED_S = 10.0
"""How long an answer of the API server on a user's rights is used; k8s.io/apiserver has the same default."""
MOST_REMEMBERED = 1024
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True)
class Caller:
    """The user for whom the API server asks."""

    name: str
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class FrontProxy:
    """How a server recognizes the API server, and the user behind it."""

    authority: str
    """PEM of the authorities of the API server's client certificate."""
    names: frozenset[str]
    """Common names, one of which the certificate must have; empty for any."""
    user_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...] = ()

    @classmethod
    def read(cls, config_map: Json) -> FrontProxy:
        """Read the ConfigMap. Raises ValueError if the API server has no aggregation layer."""
        data = config_map.get("data") or {}
        authority, users = data.get("requestheader-client-ca-file", ""), _words(data, "username-headers")
        if not authority or not users:
            raise ValueError(
                f"ConfigMap {NAMESPACE}/{NAME} has no `requestheader-client-ca-file`: the API server runs without the "
                "flags --requestheader-*, so it has no aggregation layer"
            )
        return cls(
            authority,
            frozenset(_words(data, "allowed-names")),
            users,
            _words(data, "group-headers"),
            tuple(prefix.lower() for prefix in _words(data, "extra-headers-prefix")),
        )

    def admits(self, certificate: Mapping[str, Any]) -> bool:
        """Return whether a verified certificate, as `getpeercert` returns it, is the API server's."""
        parts = [pair for each in certificate.get("subject", ()) for pair in each]
        return any(name == "commonName" and (not self.names or value in self.names) for name, value in parts)

    def caller(self, headers: Message) -> Caller | None:
        """Return the user in the headers; None if they name none."""
        name = next((found[0] for each in self.user_headers if (found := headers.get_all(each)) and found[0]), "")
        if not name:
            return None
        groups = tuple(group for each in self.group_headers for group in headers.get_all(each) or ())
        extra = {
            unquote(header[len(prefix) :].lower()): tuple(headers.get_all(header) or ())
            for header in headers
            for prefix in self.extra_prefixes
            if header.lower().startswith(prefix) and len(header) > len(prefix)
        }
        return Caller(name, groups, tuple(sorted(extra.items())))


def _words(data: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(f"requestheader-{name}") or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"`requestheader-{name}` of ConfigMap {NAMESPACE}/{NAME} is not a list of names")
    return tuple(found)


class Reviewer:
    """Asks the API server what users may read. Thread-safe."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[Caller, str], tuple[float, bool]] = {}

    def may_read(self, caller: Caller, namespace: str) -> bool:
        """Return whether a user may list the metric in a namespace. Raises KubeError."""
        now = self._clock()
        with self._lock:
            at, allowed = self._known.get((caller, namespace), (-REMEMBERED_S, False))
        if now - at < REMEMBERED_S:
            return allowed
        allowed = self._ask(caller, namespace)
        with self._lock:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[(caller, namespace)] = (now, allowed)
        return allowed

    def _ask(self, caller: Caller, namespace: str) -> bool:
        asked = {
            "group": GROUP,
            "version": VERSION,
            "resource": REQUESTS_METRIC,
            "namespace": namespace,
            "verb": "list",
        }
        spec = {
            "user": caller.name,
            "groups": list(caller.groups),
            "extra": {name: list(values) for name, values in caller.extra},
            "resourceAttributes": asked,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = self._client.request("POST", _REVIEWS, body=body)
        return bool((answer.get("status") or {}).get("allowed"))
