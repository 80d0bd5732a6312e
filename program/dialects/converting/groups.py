"""The other pods of a group, where each of its pods says itself what it starts. Pure.

llmaz's Services and KServe's `worker` both become LeaderWorkerSets, whose variables and labels their commands read.
Pods that KServe's presets start are KServe's alone: their script is filled in by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeapi.json_types import Json
from program.dialects.converting import shared_memory
from program.dialects.converting.arguments import without_gpus
from program.dialects.converting.containers import POD_FIELDS, PROBES, RESOURCES, amounts_of, engine_of_container
from program.dialects.converting.described import Described, Engine, Source
from program.dialects.converting.fields import Fields, told
from program.dialects.llmaz.merging import with_limits

_TAKEN = ("name", "image", "command", "args", "env", "ports", "resources", "volumeMounts", "securityContext")


def worker_in(
    fields: Fields,
    *at: str | int,
    container: str,
    leader: Engine,
    source: Source,
    dialect: str,
    limits: Mapping[str, str] | None = None,
) -> Described | None:
    """Read the pods of which the PodSpec is at a path; None where they, or their leader, leave their start to presets.

    `container` names the one that serves, `leader` is the leader's engine, `limits` are those of llmaz's flavor.
    """
    containers: list[Json] = fields.peek(*at, "containers") or []
    index = next((n for n, each in enumerate(containers) if each.get("name") == container), None)
    main: dict[str, Any] = containers[index] if index is not None else {}
    engine, command, arguments = engine_of_container(main, preset=False)
    if index is None or not main.get("command") or "vllm" in (engine, leader):
        return None
    path = (*at, "containers", index)
    for name in (*_TAKEN, *(f"{probe}Probe" for probe in PROBES)):
        fields.take(*path, name)
    resources = with_limits(main.get("resources") or {}, dict(limits or {}))
    requests, limited, gpus, gpu_resource, _ = amounts_of(resources)
    pod = {name: fields.take(*at, name) for name in POD_FIELDS}
    mounted = shared_memory.taken_out(pod["volumes"], main.get("volumeMounts"))
    pod["volumes"] = list(mounted.volumes)
    where = told(path)
    return Described(
        document=fields.document,
        dialect=dialect,
        name=str(fields.cr["metadata"]["name"]),
        namespace=str(fields.cr["metadata"].get("namespace") or "default"),
        source=source,
        engine=engine,
        image=str(main.get("image") or ""),
        command=command,
        args=tuple(without_gpus(engine, arguments.rest, gpus)),
        env=tuple(main.get("env") or ()),
        requests=requests,
        limits=limited,
        gpus=gpus,
        gpu_resource=gpu_resource,
        shared_memory=mounted.size,
        probes={probe: found for probe in PROBES if (found := main.get(f"{probe}Probe"))},
        pod={name: value for name, value in pod.items() if value},
        security=main.get("securityContext") or {},
        volume_mounts=mounted.mounts,
        origins={
            "engine": f"{where}.command",
            "gpus": f"{where}.resources.limits",
            "probes": where,
            "security": f"{where}.securityContext",
            "volume_mounts": f"{where}.volumeMounts",
            "shared_memory": f"{where}.volumeMounts",
            **{name: f"{where}.{name}" for name in ("image", "command", "args", "env")},
            **{f"probes.{probe}": f"{where}.{probe}Probe" for probe in PROBES},
            **{f"requests.{name}": f"{where}.resources.requests.{name}" for name in RESOURCES},
            **{f"limits.{name}": f"{where}.resources.limits.{name}" for name in RESOURCES},
            **{f"pod.{name}": f"{told(at)}.{name}" for name in POD_FIELDS},
        },
    )
