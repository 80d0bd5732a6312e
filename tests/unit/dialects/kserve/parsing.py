"""Parses services of KServe for the tests of their parts."""

from __future__ import annotations

from typing import Any

from kubeapi.json_types import Json
from program.desired.workloads import PodSet, Workloads
from program.dialects.dialect import Parsed
from program.dialects.kserve.parse.service import parse_service
from tests.unit.dialects.kserve.combining import Objects, cluster, main, service

NAMESPACE = "team"


def annotated(annotations: dict[str, str], **spec: Any) -> Json:
    """Return a service with these annotations."""
    cr = service(spec)
    return {**cr, "metadata": {**cr["metadata"], "annotations": annotations}}


def account(name: str, *secrets: str, **more: Any) -> Json:
    """Return a ServiceAccount that refers to these Secrets."""
    metadata = {"name": name, "namespace": NAMESPACE, **more.pop("metadata", {})}
    return {"kind": "ServiceAccount", "metadata": metadata, "secrets": [{"name": s} for s in secrets], **more}


def parsed(cr: Json, *objects: Json, look: Objects | None = None) -> Parsed:
    """Parse a service in a cluster with these other objects."""
    return parse_service(cr, look or cluster(*objects))


def made(cr: Json, *objects: Json, look: Objects | None = None) -> Workloads:
    """Return the workloads of a service that runs in pods."""
    workloads = parsed(cr, *objects, look=look).desired.workloads
    assert workloads is not None
    return workloads


def pods_of(workloads: Workloads, part: str) -> PodSet:
    """Return the set of pods of one part."""
    pods = workloads.pod_set(part)
    assert pods is not None
    return pods


def pod(pods: PodSet) -> Json:
    """Return the pod spec of a set; for a group, that of the workers."""
    spec: Json = pods.template["spec"]
    return spec


def serving(cr: Json, *objects: Json) -> tuple[Json, Json]:
    """Return the pod spec of the main pods, and its container `main`."""
    spec = pod(made(cr, *objects).main)
    return spec, main(spec)


def named(listed: list[Json] | tuple[Json, ...] | None, name: str) -> Json | None:
    """Return the item of this name in a list, or None."""
    return next((thing for thing in listed or () if thing["name"] == name), None)


def mounted(container: Json) -> dict[str, Json]:
    """Return the mounts of a container by path."""
    return {mount["mountPath"]: mount for mount in container.get("volumeMounts") or ()}


def variables(container: Json) -> dict[str, Json]:
    """Return the environment variables of a container by name."""
    return {variable["name"]: variable for variable in container.get("env") or ()}
