"""The adapters of LoRAAdapters for the gateway: their names, and the replicas that have loaded them. Pure.

`routes` calls it. The loop has the adapters loaded, and names the pods in the status; EndpointSlices name the pod of
each address.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.proxy.upstream import Target
from gateway.engines.backends import AdapterRoute
from gateway.names import ServiceName
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.adapter import claims_of
from program.dialects.status.accepted_version import version_in_use, with_accepted


@dataclass(frozen=True)
class DeclaredAdapter:
    """One adapter of a service."""

    name: str
    pods: Mapping[str, int | None] = field(default_factory=dict)
    """The pods, and the hosts by `on_host`, that have loaded it, with the number by which llama-server knows it."""
    ends: bool = False
    """It is being deleted, and engines may still have it."""
    runtime: str = ""
    """The engine of the replicas; empty until the loop knows it."""

    @property
    def state(self) -> str:
        """A text that changes when engines load or unload it."""
        return f"{self.name} {'ends' if self.ends else ','.join(sorted(self.pods))}"


def on_host(host: str) -> str:
    """Return how a replica on a host is named among the pods. A host runs one replica of a service."""
    return f"host/{host}"  # no pod has this name


def declared_adapters(crs: Iterable[Json], *, awaits: bool = False) -> dict[ServiceName, tuple[DeclaredAdapter, ...]]:
    """Return the adapters of each service, from LoRAAdapters with the version that replicas have.

    `awaits`: a version counts only after a loop has accepted it.
    """
    used = (_in_use(cr, awaits=awaits) for cr in crs)
    by_uid = {cr["metadata"].get("uid"): cr for cr in used if cr is not None}
    found: dict[ServiceName, list[DeclaredAdapter]] = {}
    for adapter in claims_of(by_uid.values()).values():
        cr = by_uid[adapter.uid]
        status = cr.get("status")
        declared = DeclaredAdapter(
            adapter.name, _loaded(status), "deletionTimestamp" in cr["metadata"], runtime=_runtime(status)
        )
        found.setdefault(ServiceName(adapter.namespace, adapter.service, adapter.dialect), []).append(declared)
    return {service: tuple(sorted(each, key=lambda one: one.name)) for service, each in found.items()}


def adapter_routes(
    declared: Iterable[DeclaredAdapter], pods: Mapping[Target, str], runtime: str, model_name: str
) -> dict[str, AdapterRoute]:
    """Return the route of each adapter of a service.

    `pods` names the pod of each address, and `runtime` the engine. `model_name` is what the engine calls its own model.
    """
    return {each.name: _route(each, pods, runtime, model_name) for each in declared if not each.ends}


def model_fields(declared: Iterable[DeclaredAdapter], runtime: str) -> dict[str, str]:
    """Return the fields of requests for the model itself, as JSON.

    llama-server drops the cached prompt of an adapter only if a request names adapters. Otherwise it would answer for
    the model itself from the cache of an adapter. A scale of 0 for one adapter means 0 for all.
    """
    return {"lora": json.dumps([{"id": 0, "scale": 0.0}])} if runtime == "llamacpp" and any(declared) else {}


def _route(declared: DeclaredAdapter, pods: Mapping[Target, str], runtime: str, model_name: str) -> AdapterRoute:
    targets = {target: declared.pods[pod] for target, pod in pods.items() if pod in declared.pods}
    if runtime == "sglang":
        # SGLang divides at the first colon. A name alone means its own model, whatever it is.
        return AdapterRoute(frozenset(targets), f"{model_name.partition(':')[0]}:{declared.name}")
    if runtime != "llamacpp":
        return AdapterRoute(frozenset(targets), declared.name)
    # The numbers follow the order of the arguments. They differ while a rollout changes these.
    numbers = Counter(number for number in targets.values() if number is not None)
    if not numbers:
        return AdapterRoute(frozenset(), model_name)
    [(number, _)] = numbers.most_common(1)
    chosen = frozenset(target for target, each in targets.items() if each == number)
    return AdapterRoute(chosen, model_name, {"lora": json.dumps([{"id": number, "scale": 1.0}])})


def _in_use(cr: Json, *, awaits: bool) -> Json | None:
    if "deletionTimestamp" in cr["metadata"]:
        return with_accepted(cr) or cr
    return version_in_use(cr, awaits=awaits)


def _loaded(status: Any) -> dict[str, int | None]:
    pods = status.get("pods") if isinstance(status, dict) else None
    entries = [each for each in pods if isinstance(each, dict)] if isinstance(pods, list) else []
    return {_place(each): each.get("adapterID") for each in entries if each.get("loaded") is True}


def _runtime(status: Any) -> str:
    return str(status.get("runtime") or "") if isinstance(status, dict) else ""


def _place(entry: Mapping[str, Any]) -> str:
    host = entry.get("host")
    return on_host(str(host)) if host else str(entry.get("name"))
