"""Reads llmaz's Service into a description of the pod that answers requests. Pure.

In a group of pods, this is the leader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.converting.arguments import split_adapters, without_gpus
from program.dialects.converting.description import Description, Loss, Weights
from program.dialects.converting.fields import Fields, kept_metadata
from program.dialects.converting.llmaz_reader import losses_of_model, nodes_of, source_of
from program.dialects.converting.pods import (
    POD_FIELDS,
    PROBES,
    RESOURCES,
    amounts_of,
    engine_of_container,
    split_shared_memory,
    worker_in,
)
from program.dialects.crds.reading import read, without_nulls
from program.dialects.dialect import Lookup
from program.dialects.llmaz.dialect import SERVICES
from program.dialects.llmaz.naming import RUNNER
from program.dialects.llmaz.parse.flavors import choose
from program.dialects.llmaz.parse.models import claims_of, find_models
from program.dialects.llmaz.parse.workloads import port_of
from program.dialects.llmaz.schema.service import ServiceSpec

_OF_THE_CONTAINER = ("name", "image", "command", "args", "env", "ports", "resources", "volumeMounts", "securityContext")


def read_llmaz_service(cr: Json, look: Lookup) -> Description:
    """Describe a Service with its models. Raises SpecInvalid and NotYet as its dialect does."""
    SERVICES.parse(cr, look)
    fields = Fields(cr, dialect="llmaz")
    spec = read(ServiceSpec, without_nulls(cr.get("spec") or {}), field="spec")
    if spec.model_claims is None:
        raise SpecInvalid(
            field="spec.modelClaims", why="is missing; other dialects need the name of the model to serve"
        )
    labels, annotations, lost = kept_metadata(cr, fields.document)
    claims, asked, flavor_field = claims_of(None, spec.model_claims)
    models = find_models(claims, look)
    choice = choose(models[0], asked, field=flavor_field)
    which = "leaderTemplate" if spec.workload_template.leader_template is not None else "workerTemplate"
    at: tuple[str | int, ...] = ("workloadTemplate", which)
    containers: list[dict[str, Any]] = fields.peek(*at, "spec", "containers") or []
    index = next((n for n, each in enumerate(containers) if each["name"] == RUNNER), 0)
    runner, path = containers[index], (*at, "spec", "containers", index)
    for name in (*_OF_THE_CONTAINER, *(f"{probe}Probe" for probe in PROBES)):
        fields.read(*path, name)
    for name in ("modelClaims", "replicas", "rolloutStrategy"):
        fields.read(name)
    for name in ("restartPolicy", *(("size",) if spec.workload_template.size == 1 else ())):
        fields.read("workloadTemplate", name)
    engine, command, arguments = engine_of_container(runner, preset=False)
    resources = runner.get("resources") or {}
    with_flavor = {part: {**(resources.get(part) or {}), **choice.limits} for part in ("requests", "limits")}
    requests, limits, gpus, gpu_resource, strange = amounts_of(with_flavor)
    where = f"spec.workloadTemplate.{which}.spec.containers[{index}]"
    args, loaded = split_adapters(engine, without_gpus(engine, arguments.rest, gpus))
    pod = {name: fields.read(*at, "spec", name) for name in POD_FIELDS}
    mounted = split_shared_memory(pod["volumes"], runner.get("volumeMounts"))
    pod["volumes"] = list(mounted.volumes)
    losses = [
        Loss(fields.document, f"{where}.resources.{name}", "other dialects have no such resource") for name in strange
    ]
    losses += [loss for model in models for loss in losses_of_model(model, look)]
    worker, size = None, spec.workload_template.size
    if size > 1:
        other = ("workloadTemplate", "workerTemplate", "spec")
        source = source_of(models[0])
        worker = worker_in(
            fields,
            *other,
            container=RUNNER,
            leader=engine,
            source=source,
            dialect="llmaz-service",
            limits=choice.limits,
        )
        if worker is not None:
            fields.read("workloadTemplate", "size")
            worker = replace(worker, pod=nodes_of(worker.pod, choice))
    return Description(
        document=fields.document,
        dialect="llmaz-service",
        name=str(cr["metadata"]["name"]),
        namespace=str(cr["metadata"].get("namespace") or "default"),
        source=source_of(models[0]),
        engine=engine,
        labels=labels,
        annotations=annotations,
        model_name=models[0].name,
        served_name=arguments.served_name,
        aliases=arguments.aliases,
        image=str(runner.get("image") or ""),
        command=command,
        args=tuple(args),
        adapters=loaded,
        env=tuple(runner.get("env") or ()),
        requests=requests,
        limits=limits,
        gpus=gpus,
        gpu_resource=gpu_resource,
        probes={probe: found for probe in PROBES if (found := runner.get(f"{probe}Probe"))},
        replicas=spec.replicas,
        draft=Weights(name=models[1].name, source=source_of(models[1])) if len(models) > 1 else None,
        pod=nodes_of({name: value for name, value in pod.items() if value}, choice),
        security=runner.get("securityContext") or {},
        volume_mounts=mounted.mounts,
        shared_memory=mounted.size,
        port=port_of({"spec": {"containers": [runner]}}) if engine == "generic" else 0,
        worker=worker,
        group_size=size if worker is not None else 0,
        pod_labels=fields.read(*at, "metadata", "labels") or {},
        pod_annotations=fields.read(*at, "metadata", "annotations") or {},
        origins={
            "engine": f"{where}.command",
            "source": claims[0].field,
            "model_name": claims[0].field,
            "draft": claims[-1].field,
            "replicas": "spec.replicas",
            "worker": "spec.workloadTemplate.workerTemplate",
            "group_size": "spec.workloadTemplate.size",
            "gpus": f"{where}.resources.limits",
            "probes": where,
            "security": f"{where}.securityContext",
            "volume_mounts": f"{where}.volumeMounts",
            "shared_memory": f"{where}.volumeMounts",
            "adapters": f"{where}.args",
            "served_name": f"{where}.args",
            "aliases": f"{where}.args",
            "port": f"{where}.ports",
            "pod_labels": f"spec.workloadTemplate.{which}.metadata.labels",
            "pod_annotations": f"spec.workloadTemplate.{which}.metadata.annotations",
            "labels": "metadata.labels",
            "annotations": "metadata.annotations",
            **{name: f"{where}.{name}" for name in ("image", "command", "args", "env")},
            **{f"probes.{probe}": f"{where}.{probe}Probe" for probe in PROBES},
            **{f"requests.{name}": f"{where}.resources.requests.{name}" for name in RESOURCES},
            **{f"limits.{name}": f"{where}.resources.limits.{name}" for name in RESOURCES},
            **{f"pod.{name}": f"spec.workloadTemplate.{which}.spec.{name}" for name in POD_FIELDS},
        },
        losses=(*lost, *losses, *fields.unread()),
    )
