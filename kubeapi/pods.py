"""Calls about pods: a request to a pod's port through the API server, a container's log, an eviction.

Called by the loop's checks of replicas, so that they work inside and outside the cluster. Calls `kubeapi.client`. The
engine's answer is returned as an Exchange, whatever its status. A refusal of the API server itself is an ApiError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, error_of_response
from kubeapi.exchange import Exchange
from kubeapi.kinds import PODS

MAX_ANSWER_BYTES = 2 << 20
"""Enough for one embedding of any model, and for the metrics of any engine."""
EVICTION_TIMEOUT_S = 10.0
FOLLOW_SILENCE_S = 4 * 3600.0
"""Seconds without output of an engine after which the request for its log is repeated."""

# Percent signs are not allowed, because a server on the way could decode an escaped dot segment.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?\Z")

_THROTTLED = b"Too many requests, please try again later."


class PathRefused(ValueError):
    """A path that must not be requested through the API server, because it could lead out of the pod."""


def request_pod(
    client: KubeClient,
    namespace: str,
    pod: str,
    port: int,
    method: str,
    path: str,
    *,
    body: Any = None,
    timeout_s: float,
    max_bytes: int = MAX_ANSWER_BYTES,
    tls: bool = False,
) -> Exchange:
    """Send one request to a pod's port through the API server and return the pod's answer.

    With `tls` the API server connects over HTTPS, without verification of the pod's certificate. Raises Forbidden
    without the right to `pods/proxy`, NotFound if there is no such pod, ServerError if the API server cannot reach the
    pod, Unreachable if there is no answer (`timed_out`: not in time), and PathRefused.
    """
    scheme = "https:" if tls else ""
    url = f"{PODS.path(namespace)}/{scheme}{quote(pod, safe='')}:{port}/proxy{_checked(path)}"
    answer = client.exchange(method, url, body=body, timeout_s=timeout_s, max_bytes=max_bytes)
    if answer.status >= 400 and (refusal := _own_words(answer)) is not None:
        raise refusal
    return answer


def log_head(client: KubeClient, namespace: str, pod: str, container: str, *, limit_bytes: int) -> str:
    """Return the beginning of a container's log. Raises ApiError."""
    query = {"container": container, "limitBytes": str(limit_bytes)}
    return client.text(PODS.path(namespace, pod, "log"), query=query, timeout_s=10.0)


def log_lines(
    client: KubeClient,
    namespace: str,
    pod: str,
    container: str,
    *,
    tail: int | None = None,
    since: str | None = None,
    limit_bytes: int,
) -> str:
    """Return lines of a container's log, each with its time before it: the last ones, or those since an RFC 3339 time.

    The kubelet counts `since` in whole seconds. Raises ApiError.
    """
    query = {
        "container": container,
        "timestamps": "true",
        "tailLines": None if tail is None else str(tail),
        "sinceTime": since,
        "limitBytes": str(limit_bytes),
    }
    return client.text(PODS.path(namespace, pod, "log"), query=query, timeout_s=10.0)


def read_log(
    client: KubeClient,
    namespace: str,
    pod: str,
    container: str,
    *,
    tail: int | None = None,
    previous: bool = False,
    follow: bool = False,
) -> Generator[bytes, None, None]:
    """Yield a container's log in pieces; with `follow` also later output. Raises ApiError."""
    query = {
        "container": container,
        "tailLines": None if tail is None else str(tail),
        "previous": "true" if previous else None,
        "follow": "true" if follow else None,
    }
    silence_s = FOLLOW_SILENCE_S if follow else 60.0
    return client.stream(PODS.path(namespace, pod, "log"), query=query, silence_s=silence_s)


def evict(client: KubeClient, namespace: str, pod: str, *, uid: str) -> None:
    """Evict one pod, as a drain does. Raises TooManyRequests if a PodDisruptionBudget forbids it now.

    Also raises NotFound, and Conflict if `pod` has another uid. It does not retry, because a budget may be used up for
    long.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    path = PODS.path(namespace, pod, "eviction")
    answer = client.exchange("POST", path, body=body, timeout_s=EVICTION_TIMEOUT_S, max_bytes=65536)
    if answer.status >= 400:
        raise error_of_response(answer.status, answer.headers, answer.body)


def _checked(path: str) -> str:
    route = path.partition("?")[0]
    if not _PATH.match(path) or any(step in (".", "..") for step in route.split("/")):
        raise PathRefused(
            f"`{path}` is not a plain path below a pod's port: write /word/word, without dots and escapes"
        )
    return path


def _own_words(answer: Exchange) -> ApiError | None:
    """Return the API server's refusal, or None for an answer of the engine.

    Only the API server answers with a `Status` object, except for its 429, which is plain text.
    """
    throttled = answer.status == 429 and answer.body.startswith(_THROTTLED)
    if not throttled and not _is_status(answer.body):
        return None
    return error_of_response(answer.status, answer.headers, answer.body)


def _is_status(body: bytes) -> bool:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):  # an engine may answer with any bytes
        return False
    return isinstance(told, dict) and told.get("kind") == "Status" and told.get("apiVersion") == "v1"
