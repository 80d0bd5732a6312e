"""Builds the outputs of a fleet's stack for `pulumi stack output` and stack references: endpoints, models, namespaces.

Called by `program.__main__`. Pure, except for the address of a process, which is an output of its resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pulumi

from program.desired.service import DesiredService
from program.desired.web_address import shown
from program.dialects.llmkube.status.service import endpoint_url
from program.dialects.registry import LLMKUBE
from program.static.reading import PlacedService

_HEADLESS = "None"


def stack_outputs(
    services: Iterable[PlacedService], processes: Mapping[str, pulumi.CustomResource]
) -> dict[str, dict[str, Any] | list[str]]:
    """Return the outputs of a fleet, by service as `namespace/name` or `cluster/namespace/name`.

    `processes` has the resources of services on hosts of the config, by the same names. A service on a host whose agent
    watches the cluster has no endpoint, because a loop creates its Service.
    """
    endpoints: dict[str, Any] = {}
    models: dict[str, Any] = {}
    namespaces: set[str] = set()
    for placed in services:
        name = output_name(placed)
        namespaces.add(name.rpartition("/")[0])
        model = placed.desired.model
        models[name] = {"name": model.name, "source": shown(model.source.address)}
        process = processes.get(name)
        if process is not None:
            endpoints[name] = pulumi.Output.all(process.address, process.port).apply(_url)  # type: ignore[attr-defined]  # outputs of the resource
        elif (url := _in_cluster(placed)) is not None:
            endpoints[name] = url
    return {"endpoints": endpoints, "models": models, "namespaces": sorted(namespaces)}


def output_name(placed: PlacedService) -> str:
    """Return the name of a service in the outputs."""
    key = placed.rendered.key
    return "/".join(part for part in (placed.cluster.name, key.namespace, key.name) if part)


def _in_cluster(placed: PlacedService) -> str | None:
    """Return the URL of the first Service with a cluster IP; None if there is none."""
    for obj in placed.rendered.objects:
        spec = obj.manifest.get("spec") or {}
        if obj.kind != "Service" or obj.manifest.get("apiVersion") != "v1" or spec.get("clusterIP") == _HEADLESS:
            continue
        if placed.rendered.key.dialect == LLMKUBE:
            return endpoint_url(placed.desired)
        ports = spec.get("ports") or ()
        if ports:
            namespace = placed.rendered.key.namespace
            scheme = "https" if _has_certificate(placed.desired) else "http"
            return f"{scheme}://{obj.name}.{namespace}.svc.cluster.local:{ports[0]['port']}"
    return None


def _has_certificate(desired: DesiredService) -> bool:
    return desired.workloads is not None and desired.workloads.certificate is not None


def _url(address: list[Any]) -> str:
    host, port = str(address[0]), int(address[1])
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
