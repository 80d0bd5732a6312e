"""What the API server does with a pod for others: carries a request to its port, gives its log, evicts it.

Called by the loop's checks of replicas, which so work wherever the loop runs. Calls `kubeapi.client`. The engine's own
answer, whatever its status, comes back as an Exchange; what the API server itself says is an ApiError.
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
"""How long an engine may say nothing before one who follows its log asks again."""

# No percent sign: an encoded dot segment must not become one on the way.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?\Z")

_THROTTLED = b"Too many requests, please try again later."


class PathRefused(ValueError):
    """A path that must not be asked for through the API server: it could lead out of the pod."""


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
    """Send one request to a pod's port through the API server and return the pod's own answer.

    With `tls` the API server asks over HTTPS. It does not verify the pod's certificate.

    Raises Forbidden without the right to `pods/proxy`, NotFound when there is no such pod, ServerError when the API
    server cannot reach the pod, Unreachable when no answer came (`timed_out`: not in time), PathRefused.
    """
    scheme = "https:" if tls else ""
    url = f"{PODS.path(namespace)}/{scheme}{quote(pod, safe='')}:{port}/proxy{_checked(path)}"
    answer = client.exchange(method, url, body=body, timeout_s=timeout_s, max_bytes=max_bytes)
    if answer.status >= 400 and (refusal := _own_words(answer)) is not None:
        raise refusal
    return answer


def log_head(client: KubeClient, namespace: str, pod: str, container: str, *, limit_bytes: int) -> str:
    """Read the beginning of a container's log. Raises ApiError."""
    query = {"container": container, "limitBytes": str(limit_bytes)}
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
    """Read a container's log piece by piece; with `follow` on and on. Raises ApiError."""
    query = {
        "container": container,
        "tailLines": None if tail is None else str(tail),
        "previous": "true" if previous else None,
        "follow": "true" if follow else None,
    }
    silence_s = FOLLOW_SILENCE_S if follow else 60.0
    return client.stream(PODS.path(namespace, pod, "log"), query=query, silence_s=silence_s)


def evict(client: KubeClient, namespace: str, pod: str, *, uid: str) -> None:
    """Evict one pod, as a drain does. Raises TooManyRequests when a PodDisruptionBudget forbids it now.

    Also raises NotFound, and Conflict when `pod` is another one by now. Not tried again here: a budget may stay spent
    for long.
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
        raise PathRefused(f"`{path}` is no plain path below a pod's port: write /word/word, without dots and escapes")
    return path


def _own_words(answer: Exchange) -> ApiError | None:
    """Tell the API server's refusal from an engine's: only the API server answers with a `Status` object.

    But for its 429, which is plain text.
    """
    throttled = answer.status == 429 and answer.body.startswith(_THROTTLED)
    if not throttled and not _is_status(answer.body):
        return None
    return error_of_response(answer.status, answer.headers, answer.body)


def _is_status(body: bytes) -> bool:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):  # an engine may answer anything
        return False
    return isinstance(told, dict) and told.get("kind") == "Status" and told.get("apiVersion") == "v1"
