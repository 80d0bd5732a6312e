"""Reads and writes the pods of services whose users write pod specs: serving container, workers, /dev/shm. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kubeapi.json_types import Json
from program.desired.accelerators import is_accelerator
from program.dialects.converting.arguments import Arguments, split_arguments, without_gpus
from program.dialects.converting.description import Description, Engine, Source, TrackedDescription
from program.dialects.converting.fields import Fields, path_text
from program.dialects.crds.reading import read, without_nulls
from program.dialects.crds.schema import CrdModel, optional
from program.dialects.llmaz.parse.runtimes import with_limits
from program.dialects.llmaz.schema.common import KEPT
from program.dialects.llmaz.schema.service import Named, VolumeMount
from program.dialects.pods.engine import engine_in

PROBES = ("startup", "liveness", "readiness")
POD_FIELDS = (
    *("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "runtimeClassName", "topologySpreadConstraints"),
    *("priorityClassName", "securityContext", "volumes"),
)
"""Fields of a pod that other dialects also have."""
COMMANDS: dict[Engine, tuple[str, ...]] = {
    "llamacpp": ("/app/llama-server",),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "tgi": ("text-generation-launcher",),
    "tensorrt-llm": ("trtllm-serve",),
}
RESOURCES = ("cpu", "memory", "ephemeral-storage")


def engine_of_container(main: Json, *, preset: bool = True) -> tuple[Engine, tuple[str, ...], Arguments]:
    """Return the engine of a container from its command, with the rest of the command and its arguments.

    Without a command, a `preset` starts vLLM; otherwise the image decides.
    """
    command = tuple(str(word) for word in main.get("command") or ())
    args = [str(arg) for arg in main.get("args") or ()]
    if not command:
        named = "vllm" if preset else engine_in((str(main.get("image") or ""),))
        silent: Engine = named if named in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm") else "generic"  # type: ignore[assignment]
        return silent, (), split_arguments(silent, args)
    program = PurePosixPath(command[0]).name
    shell = program in ("sh", "bash")
    known = engine_in((" ".join(command),)) if not shell else ""
    engine: Engine = known if known in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm") else "generic"  # type: ignore[assignment]
    if engine == "generic":
        return "generic", command, split_arguments("generic", args)
    rest = _after(engine, command)
    apart = split_arguments(engine, [*rest, *args])
    own = command[: len(command) - len(rest)]
    return engine, () if own == COMMANDS.get(engine) or engine == "vllm" else own, apart


def _after(engine: Engine, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments that are part of a command."""
    start = 3 if engine == "sglang" or command[:2] == ("python3", "-m") else 1
    if engine == "vllm" and command[1:2] == ("serve",):
        start = 2
    return command[start:]


def amounts_of(resources: Json) -> tuple[dict[str, str], dict[str, str], int, str, list[str]]:
    """Split resources into requests, limits, GPUs, their resource, and other entries."""
    kept: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    gpus, resource, strange = 0, "", []
    extended = {name for part in ("limits", "requests") for name in resources.get(part) or {} if "/" in name}
    # If no known accelerator is among the resources, an unknown one counts as an accelerator.
    devices = {name for name in extended if is_accelerator(name)} or extended
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            if name in RESOURCES:
                kept[part][name] = str(amount)
            elif name in devices and str(amount).isdecimal() and resource in ("", name):
                gpus, resource = int(amount), name
            else:
                strange.append(f"{part}.{name}")
    strange += [name for name in resources if name not in ("limits", "requests")]
    return kept["requests"], kept["limits"], gpus, resource if gpus else "", strange


def amounts(written: TrackedDescription) -> Json:
    """Return a container's resources. GPUs have equal requests and limits."""
    requests, limits = dict(written.use("requests")), dict(written.use("limits"))
    gpus, resource = written.use("gpus"), written.use("gpu_resource")
    if gpus and resource:
        limits[resource] = str(gpus)
        requests[resource] = str(gpus)
    found: Json = {}
    if requests:
        found["requests"] = requests
    if limits:
        found["limits"] = limits
    return found


_TAKEN = ("name", "image", "command", "args", "env", "ports", "resources", "volumeMounts", "securityContext")


def worker_in(
    fields: Fields,
    *at: str | int,
    container: str,
    leader: Engine,
    source: Source,
    dialect: str,
    limits: Mapping[str, str] | None = None,
) -> Description | None:
    """Read the pods at the path of a PodSpec; None if presets start these pods or their leader.

    `container` is the name of the serving container, `leader` the leader's engine, `limits` those of llmaz's flavor.
    """
    containers: list[Json] = fields.peek(*at, "containers") or []
    index = next((n for n, each in enumerate(containers) if each.get("name") == container), None)
    main: dict[str, Any] = containers[index] if index is not None else {}
    engine, command, arguments = engine_of_container(main, preset=False)
    if index is None or not main.get("command") or "vllm" in (engine, leader):
        return None
    path = (*at, "containers", index)
    for name in (*_TAKEN, *(f"{probe}Probe" for probe in PROBES)):
        fields.read(*path, name)
    resources = with_limits(main.get("resources") or {}, dict(limits or {}))
    requests, limited, gpus, gpu_resource, _ = amounts_of(resources)
    pod = {name: fields.read(*at, name) for name in POD_FIELDS}
    mounted = split_shared_memory(pod["volumes"], main.get("volumeMounts"))
    pod["volumes"] = list(mounted.volumes)
    where = path_text(path)
    return Description(
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
            **{f"pod.{name}": f"{path_text(at)}.{name}" for name in POD_FIELDS},
        },
    )


class _Handler(CrdModel):
    model_config = KEPT
    http_get: dict[str, Any] | None = optional("As Kubernetes writes it.")
    tcp_socket: dict[str, Any] | None = optional("As Kubernetes writes it.")
    grpc: dict[str, Any] | None = optional("As Kubernetes writes it.")


class _Resources(CrdModel):
    model_config = KEPT
    limits: dict[str, int | float | str] = optional("As Kubernetes writes them.", {})
    requests: dict[str, int | float | str] = optional("As Kubernetes writes them.", {})


class _Container(CrdModel):
    model_config = KEPT
    name: str | None = optional("Its name.")
    image: str | None = optional("Its image.")
    args: list[str] = optional("Its arguments.", [])
    command: list[str] = optional("Its entrypoint.", [])
    env: list[Named] = optional("Its environment.", [])
    resources: _Resources | None = optional("The requested resources.")
    security_context: dict[str, Any] | None = optional("As Kubernetes writes it.")
    volume_mounts: list[VolumeMount] = optional("Its volumes.", [])
    startup_probe: _Handler | None = optional("As Kubernetes writes it.")
    liveness_probe: _Handler | None = optional("As Kubernetes writes it.")
    readiness_probe: _Handler | None = optional("As Kubernetes writes it.")


class _Pod(CrdModel):
    model_config = KEPT
    containers: list[_Container] = optional("Its containers.", [])
    volumes: list[Named] = optional("Its volumes.", [])
    node_selector: dict[str, str] = optional("Its nodes.", {})
    security_context: dict[str, Any] | None = optional("As Kubernetes writes it.")


def check_pod(pod: Json | None, *, field: str) -> None:
    """Raise SpecInvalid if the value is not a PodSpec."""
    if pod is not None:
        read(_Pod, without_nulls(pod), field=field)


PATH = "/dev/shm"  # noqa: S108 - engines use this path
_NAME = "dshm"


@dataclass(frozen=True)
class Volumes:
    """The volumes and mounts of a pod without its shared memory, and the size of the shared memory."""

    volumes: tuple[Json, ...]
    mounts: tuple[Json, ...]
    size: str = ""


def split_shared_memory(volumes: Any, mounts: Any) -> Volumes:
    """Separate shared memory of a given size from a pod's volumes. Volumes that are mounted in another way stay."""
    every, places = tuple(volumes or ()), tuple(mounts or ())
    at = next((each for each in places if str(each.get("mountPath", "")).rstrip("/") == PATH), None)
    if at is None or set(at) - {"name", "mountPath"} or sum(each.get("name") == at["name"] for each in places) > 1:
        return Volumes(every, places)
    volume: Json = next((each for each in every if each.get("name") == at["name"]), {})
    path_text = volume.get("emptyDir")
    if not isinstance(path_text, dict) or path_text.get("medium") != "Memory" or not path_text.get("sizeLimit"):
        return Volumes(every, places)
    return Volumes(
        tuple(each for each in every if each is not volume),
        tuple(each for each in places if each is not at),
        str(path_text["sizeLimit"]),
    )


def with_shared_memory(written: TrackedDescription, volumes: Iterable[Json], mounts: Iterable[Json]) -> Volumes:
    """Add the described shared memory to a pod's volumes, and remove mounts of missing volumes."""
    every, places = tuple(volumes), tuple(mounts)
    names = {each.get("name") for each in every}
    if strange := sorted({str(each.get("name")) for each in places if each.get("name") not in names}):
        written.add_loss("volume_mounts", f"`{strange[0]}` is a volume that exists only in pods of the source dialect")
        places = tuple(each for each in places if each.get("name") in names)
    size = written.use("shared_memory")
    if not size:
        return Volumes(every, places)
    if any(str(each.get("mountPath", "")).rstrip("/") == PATH for each in places):
        written.add_loss("shared_memory", f"another volume is mounted at {PATH}")
        return Volumes(every, places)
    name = next(each for each in (_NAME, *(f"{_NAME}-{n}" for n in range(len(names) + 1))) if each not in names)
    made: Json = {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return Volumes((*every, made), (*places, {"name": name, "mountPath": PATH}), size)
