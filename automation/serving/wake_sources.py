"""Whether a client of a sleeping service may connect, by the same rule as the NetworkPolicy of its pods.

Asked by `sleep` for each connection to the loop's wake ports. A NetworkPolicy guards pods, and a sleeping service has
none: without this, every pod of the cluster could send it requests and wake it. A client is known by its address, which
the API server says is that of a running pod in an admitted namespace. What cannot be known is not admitted.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from components.network_policy import other_namespaces
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from program.desired.service import DesiredService

KEPT_S = 5.0
"""How long an answer counts for the same address. A pod that ended may leave its address to another one."""
MOST_KEPT = 4096
THREADS = 2
WAITING_MAX = 256
"""Connections that may wait for the API server at once; more are not admitted."""

_log = structlog.get_logger(__name__)


def admitted_namespaces(desired: DesiredService) -> tuple[str, ...] | None:
    """Name the namespaces whose pods the service's NetworkPolicy admits; None where it has none."""
    if desired.network is None:
        return None
    return (desired.key.namespace, *other_namespaces(desired, desired.network))


class WakeSources:
    """Looks clients up. Thread-safe; `close` ends its threads."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, bool]] = {}
        """By namespace and address: until when the answer counts, and whether a pod there has the address."""
        self._waiting = 0
        self._pool: ThreadPoolExecutor | None = None

    def ask(self, namespaces: tuple[str, ...], address: str, decided: Callable[[bool], None]) -> None:
        """Decide whether a pod of these namespaces has the address. Never blocks; `decided` may be called later."""
        plain = _plain(address)
        with self._lock:
            known = [self._answer(namespace, plain) for namespace in namespaces]
            waits = plain and True not in known and None in known and self._waiting < WAITING_MAX
            if waits:
                self._waiting += 1
                self._pool = self._pool or ThreadPoolExecutor(THREADS, thread_name_prefix="wake-sources")
                self._pool.submit(self._look, namespaces, plain, decided)
        if not waits:
            decided(True in known)

    def close(self) -> None:
        """End the threads; connections that still wait get no answer, since the proxy has ended."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, namespace: str, address: str) -> bool | None:
        until, admitted = self._known.get((namespace, address), (float("-inf"), False))
        return admitted if self._clock() < until else None

    def _look(self, namespaces: tuple[str, ...], address: str, decided: Callable[[bool], None]) -> None:
        admitted = False
        try:
            admitted = any(self._has_pod(namespace, address) for namespace in namespaces)
        except KubeError as error:
            _log.warning("Could not look up a client of a sleeping service", address=address, error=str(error))
        finally:
            with self._lock:
                self._waiting -= 1
            decided(admitted)

    def _has_pod(self, namespace: str, address: str) -> bool:
        with self._lock:
            known = self._answer(namespace, address)
        if known is not None:
            return known
        selector = f"status.podIP={address},status.phase=Running"
        pods = self._client.list(kinds.PODS, namespace, field_selector=selector)["items"]
        # A pod in the node's network has the node's address, as everything else on that node.
        found = any(not (pod.get("spec") or {}).get("hostNetwork") for pod in pods)
        with self._lock:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[namespace, address] = (self._clock() + KEPT_S, found)
        return found


def _plain(address: str) -> str:
    """Write an address as pods' statuses do; empty for what is none."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
