"""Opens a way from this machine to the OpenAI API of a service of a cluster.

Called by `cluster`. The EndpointSlices of the service's Kubernetes Service lead to its replicas, as for all clients: to
a pod, whose port is forwarded (`kubeapi.port_forward`), or to a host, which is reached at its address. Of a service
that sleeps in pods they lead to the loop, which is asked through the API server to wake it. Where no replica can be
reached, the gateway is used if it has an Ingress.

The API server refuses to proxy to endpoints that are no pods, so `kubectl port-forward service/NAME` fails for hosts.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from agent.contract import LABEL_HOST
from automation.places.place import NoAccess, PlaceError, Reached, ServiceState, State
from components import naming
from gateway.cluster.routes import LABEL_SERVICE_NAME, EngineModels
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Forbidden, NotFound, Unreachable
from kubeapi.json_types import Json
from kubeapi.pods import request_pod
from kubeapi.port_forward import forward_to_pod
from program.desired.keys import ANNOTATION_SERVED_NAME, service_dns_name
from program.dialects.engine_keys import key_of
from program.dialects.kserve.naming import workload_service
from program.dialects.llmaz.naming import front_name
from program.dialects.registry import LLMKUBE, dialect_of

GATEWAY = "herdsman-gateway"
"""Name of the gateway's Ingress, as `herdsman install` makes it."""
GATEWAY_KEY_VARIABLE = "HERDSMAN_GATEWAY_KEY"
"""The variable with the key that is sent to the gateway."""
CONNECT_S = 5.0
"""Longest time in seconds for a connection to a host."""
WAKE_S = 600.0
"""Longest time in seconds until a sleeping service has a ready replica; a large model loads for minutes."""
LOOK_EVERY_S = 1.0
_ANSWER_S = 10.0
_FRONTS: dict[str, Callable[[str], str]] = {
    LLMKUBE: service_dns_name,
    "kserve": workload_service,
    "llmaz": front_name,
    "llmaz-service": front_name,
}
"""The Kubernetes Service of a service, by dialect."""


@dataclass(frozen=True)
class Replica:
    """One endpoint of a service that accepts requests."""

    address: str
    port: int
    tls: bool = False
    pod: str = ""
    host: str = ""
    """The host of a process; empty for a pod, and for the loop while the service sleeps."""


def replicas_of(slices: list[Json]) -> list[Replica]:
    """Read the ready endpoints off EndpointSlices. Pure."""
    found = []
    for each in slices:
        ports = [port for port in each.get("ports") or () if port.get("port")]
        if not ports:
            continue
        port = next((one for name in ("http", "https") for one in ports if one.get("name") == name), ports[0])
        host = str((each["metadata"].get("labels") or {}).get(LABEL_HOST, ""))
        for endpoint in each.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            if conditions.get("ready") is False or conditions.get("terminating") or not endpoint.get("addresses"):
                continue
            target = endpoint.get("targetRef") or {}
            found.append(
                Replica(
                    address=str(endpoint["addresses"][0]),
                    port=int(port["port"]),
                    tls="https" in (port.get("name"), port.get("appProtocol")),
                    pod=str(target.get("name", "")) if target.get("kind") == "Pod" else "",
                    host=host,
                )
            )
    return found


@contextlib.contextmanager
def reach(
    client: KubeClient, service: ServiceState, *, refresh: Callable[[], ServiceState], wake_s: float = WAKE_S
) -> Generator[Reached, None, None]:
    """Open a way to the service. Blocks while it wakes. Raises PlaceError.

    `refresh` returns the service's present state.
    """
    replicas = _replicas(client, service)
    if service.state is State.ASLEEP and not any(each.pod or each.host for each in replicas):
        if found := _through_gateway(client, service):
            yield found
            return
        replicas = _woken(client, service, replicas, refresh, deadline=time.monotonic() + wake_s)
    failures: list[str] = []
    for way in _ways(client, service, replicas, failures):
        with contextlib.ExitStack() as stack:
            try:
                base_url, how = stack.enter_context(way)
            except (ApiError, OSError) as error:
                failures.append(_text_of(error))
                continue
            key = _engine_key(client, service)
            model = _model_name(service, base_url, key)
            yield Reached(base_url=base_url, model=model, how=how, key=key)
            return
    if found := _through_gateway(client, service):
        yield found
        return
    raise _unreachable(service, failures)


def _replicas(client: KubeClient, service: ServiceState) -> list[Replica]:
    front = _FRONTS[dialect_of(service.document)](service.name)
    selector = f"{LABEL_SERVICE_NAME}={front}"
    try:
        return replicas_of(client.list(kinds.ENDPOINT_SLICES, service.namespace, label_selector=selector)["items"])
    except Forbidden as error:
        raise NoAccess(f"may not read the endpoints of `{service.name}`: {error.message}") from error
    except ApiError as error:
        raise NoAccess(str(error)) from error


_Way = AbstractContextManager[tuple[str, str]]


def _ways(client: KubeClient, service: ServiceState, replicas: list[Replica], failures: list[str]) -> Iterator[_Way]:
    """Yield the ways to try, each a context manager of base URL and description."""
    for each in replicas:
        if each.tls:
            failures.append(f"{each.pod or each.address} serves with TLS for a name inside the cluster")
        elif each.pod:
            yield _through_pod(client, service.namespace, each)
        elif each.host:
            yield _to_host(each)


@contextlib.contextmanager
def _through_pod(client: KubeClient, namespace: str, replica: Replica) -> Iterator[tuple[str, str]]:
    with forward_to_pod(client, namespace, replica.pod, replica.port) as forward:
        yield f"http://127.0.0.1:{forward.port}/v1", f"port-forward to pod {replica.pod}"


@contextlib.contextmanager
def _to_host(replica: Replica) -> Iterator[tuple[str, str]]:
    socket.create_connection((replica.address, replica.port), timeout=CONNECT_S).close()
    yield f"http://{_in_url(replica.address)}:{replica.port}/v1", f"host {replica.host}"


# --- sleeping services ------------------------------------------------------------------------------------------------


def _woken(
    client: KubeClient,
    service: ServiceState,
    replicas: list[Replica],
    refresh: Callable[[], ServiceState],
    *,
    deadline: float,
) -> list[Replica]:
    """Wake a service, and return its replicas when one is ready. Raises PlaceError."""
    asked = False
    while True:
        for each in replicas:
            asked = _ask_loop(client, each) or asked
        if not asked:
            raise PlaceError(
                f"`{service.name}` is asleep, and the operator that wakes it cannot be reached from here",
                hint="it needs the right to `pods/proxy` in the operator's namespace; or an Ingress of the gateway "
                f"and a key of it in {GATEWAY_KEY_VARIABLE}",
            )
        replicas = _replicas(client, service)
        if any(each.pod or each.host for each in replicas):
            return replicas
        now = refresh()
        if now.state is State.FAILED and now.is_current:
            raise PlaceError(f"`{service.name}` does not wake: {now.message}")
        if time.monotonic() > deadline:
            raise PlaceError(f"`{service.name}` did not wake in time: {now.message or now.phase}")
        time.sleep(LOOK_EVERY_S)


def _ask_loop(client: KubeClient, replica: Replica) -> bool:
    """Send a request to the loop, which wakes the service; return whether it arrived.

    The loop's listener for sleeping services is at its pod's address, so a port-forward, which leads to loopback,
    misses it. A loop outside the cluster listens at an address of its machine.
    """
    where = naming.SYSTEM_NAMESPACE
    selector = f"status.podIP={replica.address},status.phase=Running"
    try:
        pods = client.list(kinds.PODS, where, field_selector=selector)["items"]
        if not pods:
            return _ask_directly(replica)
        name = pods[0]["metadata"]["name"]
        request_pod(client, where, name, replica.port, "GET", "/v1/models", timeout_s=_ANSWER_S)
    except Unreachable as error:
        # The proxy holds the request until a replica is ready.
        return error.timed_out
    except ApiError:
        return False
    return True


def _ask_directly(replica: Replica) -> bool:
    import urllib3

    timeout = urllib3.Timeout(connect=CONNECT_S, read=_ANSWER_S)
    try:
        with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
            pool.request("GET", f"http://{_in_url(replica.address)}:{replica.port}/v1/models")
    except urllib3.exceptions.ReadTimeoutError:
        return True
    except (urllib3.exceptions.HTTPError, OSError):
        return False
    return True


def _in_url(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address


# --- keys and names ---------------------------------------------------------------------------------------------------


def _engine_key(client: KubeClient, service: ServiceState) -> str:
    """Read the key that the service's engines demand; empty without one. Raises PlaceError."""
    reference = key_of(dialect_of(service.document), service.document)
    if reference is None:
        return ""
    name, field = reference
    try:
        data = client.get(kinds.SECRETS, service.namespace, name).get("data") or {}
        return base64.b64decode(data[field], validate=True).decode().strip()
    except (ApiError, KeyError, ValueError) as error:
        why = error.message if isinstance(error, ApiError) else f"it has no valid key `{field}`"
        raise NoAccess(
            f"the engine of `{service.name}` demands the key in Secret `{name}`: {why}",
            hint="a user who may read the Secret can reach it, and every user with a key of the gateway",
        ) from None


def _model_name(service: ServiceState, base_url: str, key: str) -> str:
    """Return the model name that the engine knows: the declared one, else the first that the engine lists."""
    annotations = service.document["metadata"].get("annotations") or {}
    if declared := annotations.get(ANNOTATION_SERVED_NAME):
        return str(declared)
    import urllib3

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib3.PoolManager(retries=False, timeout=_ANSWER_S) as pool:
            answer: Any = json.loads(pool.request("GET", f"{base_url}/models", headers=headers).data)
    except (urllib3.exceptions.HTTPError, OSError, ValueError):
        return service.model or service.name
    return next(iter(EngineModels.read(answer).names), service.model or service.name)


# --- the gateway ------------------------------------------------------------------------------------------------------


def _through_gateway(client: KubeClient, service: ServiceState) -> Reached | None:
    """Return the gateway's address; None without an Ingress of it, or without a key."""
    key = os.environ.get(GATEWAY_KEY_VARIABLE, "").strip()
    if not key:
        return None
    try:
        ingress = client.get(kinds.INGRESSES, naming.SYSTEM_NAMESPACE, GATEWAY)
    except ApiError:
        return None
    hosts = [str(rule["host"]) for rule in (ingress.get("spec") or {}).get("rules") or () if rule.get("host")]
    if not hosts:
        return None
    return Reached(
        base_url=f"https://{hosts[0]}/v1",
        model=f"{service.namespace}/{service.name}",
        how=f"gateway {hosts[0]}",
        key=key,
        is_gateway=True,
    )


def _unreachable(service: ServiceState, failures: list[str]) -> PlaceError:
    if failures:
        hint = f"use the gateway: put a key into {GATEWAY_KEY_VARIABLE} (`herdsman key create`)"
        return NoAccess(f"no replica of `{service.name}` can be reached: {'; '.join(failures)}", hint=hint)
    hints = {State.STOPPED: f"`herdsman start {service.name}` starts it", State.READY: "try again in a moment"}
    hint = hints.get(service.state, f"`herdsman status {service.name}` shows what it waits for")
    return PlaceError(f"no replica of `{service.name}` serves: {service.message or service.phase}", hint=hint)


def _text_of(error: Exception) -> str:
    if isinstance(error, NotFound):
        return "the pod is gone"
    return error.message if isinstance(error, ApiError) else str(error)
