"""One start of the engine in a pod, parsed from a Pod: the subject of a replica's checks. Pure.

A restarted container is another start in the same pod, for which earlier checks do not count. Called by the trimming of
pods in `automation.cache`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import intern
from typing import NamedTuple

from components import naming
from kubeapi.json_types import Json
from program.desired.adapter import DOWNLOADER
from program.dialects.pods.engine import engine_in_container
from program.dialects.pods.llama_server import why_no_arguments

HTTP_PORT = "http"
"""Name of the engine's port, which distinguishes its container from injected ones."""


class EngineStart(NamedTuple):
    """One start of one engine."""

    namespace: str
    pod: str
    uid: str
    run: str
    """The container's id. Each restart gives another one."""
    port: int
    container: str
    tls: bool = False
    """The engine answers over HTTPS only."""


def engine_of(pod: Json, serving: tuple[str, ...] = ()) -> Json:
    """Return the fields of a Pod that `start_of` and the checks need; for the informer's transform.

    `serving` names the containers that run an engine in pods that a custom resource describes; without it the engine is
    the one with port `http`. `healthy` is whether the kubelet reports all containers as ready. `run` names the start,
    also of an engine that is not healthy.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    containers = spec.get("containers") or ()
    named = next((c for c in containers if c.get("name") in serving), None)
    engine = named or next((c for c in containers if _http_port(c)), containers[0] if containers else {})
    state: Json = next((s for s in status.get("containerStatuses") or () if s["name"] == engine.get("name")), {})
    healthy = (conditions.get("ContainersReady") or {}).get("status") == "True"
    completed = conditions.get(naming.CONDITION_COMPLETED) or {}
    kept: Json = {"container": intern(engine.get("name", "")), "port": _http_port(engine)}
    if serving:
        kept["port"], tls = address_of(engine, HTTP_PORT)
        kept["of"] = _made_by(pod["metadata"])
        if tls:
            kept["tls"] = True
        if named is not None and (runtime := engine_in_container(named)):
            kept["runtime"] = runtime
            if runtime == "llamacpp" and (refusal := why_no_arguments(named))[0] is not None:
                kept["takes_no_adapters"] = refusal
    if healthy or state.get("containerID"):
        kept["run"] = state.get("containerID") or f"restart-{state.get('restartCount', 0)}"
    if healthy:
        kept["healthy"] = True
    if completed:
        # The message names the start that it is for.
        kept["completed"] = (completed.get("status") == "True", completed.get("reason", ""), completed.get("message"))
    if any(gate.get("conditionType") == naming.CONDITION_COMPLETED for gate in spec.get("readinessGates") or ()):
        kept["gate"] = True
    if state.get("restartCount"):
        kept["restarts"] = state["restartCount"]
    downloads = (str(each.get("name", "")) for each in spec.get("initContainers") or ())
    if downloaded := tuple(each for each in downloads if each.startswith(DOWNLOADER)):
        kept["adapters"] = downloaded
    if not _is_replica(pod["metadata"]):
        kept["foreign"] = True
    kept["created"] = pod["metadata"].get("creationTimestamp", "")
    kept["template"] = intern((pod["metadata"].get("labels") or {}).get("pod-template-hash", ""))
    return kept


def start_of(pod: Json) -> EngineStart | None:
    """Return the start of a remembered pod's engine; None while there is none, or when it cannot be reached."""
    engine, metadata = pod.get("engine") or {}, pod["metadata"]
    if not engine.get("run") or not engine.get("port") or metadata["deleting"]:
        return None
    return EngineStart(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        engine["run"],
        engine["port"],
        engine["container"],
        bool(engine.get("tls")),
    )


def is_foreign(pod: Json) -> bool:
    """Return whether a remembered pod has a service's label and is not a replica of its Deployment."""
    return bool((pod.get("engine") or {}).get("foreign"))


def is_healthy(pod: Json) -> bool:
    """Return whether the kubelet reports all containers of a remembered pod as ready."""
    return bool((pod.get("engine") or {}).get("healthy")) and not pod["metadata"]["deleting"]


def _is_replica(metadata: Json) -> bool:
    """A Deployment's pods belong to its ReplicaSets, which are named `<deployment>-<hash>`."""
    service = (metadata.get("labels") or {}).get(naming.LABEL_SERVICE, "")
    owner: Json = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), {})
    name = str(owner.get("name", ""))
    return owner.get("kind") == "ReplicaSet" and name.rpartition("-")[0] == naming.deployment_name(service)


def _made_by(metadata: Json) -> tuple[str, str]:
    """Return kind and name of the pod's controller; of a ReplicaSet the name of its Deployment."""
    owner: Json = next((o for o in metadata.get("ownerReferences") or () if o.get("controller")), {})
    kind, name = str(owner.get("kind", "")), str(owner.get("name", ""))
    return intern(kind), intern(name.rpartition("-")[0] if kind == "ReplicaSet" else name)


def _http_port(container: Json) -> int:
    ports = (p for p in container.get("ports") or () if p.get("name") == HTTP_PORT)
    return int(next((p["containerPort"] for p in ports), 0))


_PROBES = ("readinessProbe", "startupProbe", "livenessProbe")
_PORT = re.compile(r"(?:^|\s)--port(?:=|\s+)(\d{1,5})(?!\d)")
_CERTIFICATE = re.compile(r"--ssl-(?:certfile|cert-file)\b")


def address_of(container: Json, http_port: str) -> tuple[int, bool]:
    """Return the port and whether the server requires TLS; port 0 when the container names none.

    The port is the one named `http_port`, else that of `--port`, of a probe, else the first one.
    """
    port = _named_port(container, http_port) or _argument(container) or _probed(container) or _first(container)
    schemes = [str(get.get("scheme") or "HTTP") for get in _gets(container) if _number(container, get) == port]
    if schemes:
        return port, schemes[0] == "HTTPS"
    return port, bool(_CERTIFICATE.search(_text(container)))


def _named_port(container: Json, name: str) -> int:
    ports = (each for each in container.get("ports") or () if each.get("name") == name)
    return int(next((each["containerPort"] for each in ports), 0))


def _argument(container: Json) -> int:
    """Read `--port`, also of a shell's script; words behind a script are arguments of it, and the last one holds."""
    found = _PORT.findall(_text(container))
    return int(found[-1]) if found else 0


def _probed(container: Json) -> int:
    return next((port for get in _gets(container) if (port := _number(container, get))), 0)


def _first(container: Json) -> int:
    return int(next((each.get("containerPort") or 0 for each in container.get("ports") or ()), 0))


def _gets(container: Json) -> Iterator[Json]:
    for name in _PROBES:
        get = (container.get(name) or {}).get("httpGet")
        if get:
            yield get


def _number(container: Json, get: Json) -> int:
    port = get.get("port")
    return port if isinstance(port, int) else _named_port(container, str(port))


def _text(container: Json) -> str:
    return " ".join(str(word) for part in ("command", "args") for word in container.get(part) or ())
