"""The container that serves, in services that describe their pods themselves: KServe's and llmaz's Services. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from kubeapi.json_types import Json
from program.desired.accelerators import is_accelerator
from program.dialects.converting.arguments import Arguments, taken_apart
from program.dialects.converting.described import Engine, Written
from program.dialects.pod_engine import engine_in

PROBES = ("startup", "liveness", "readiness")
POD_FIELDS = (
    *("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "runtimeClassName", "topologySpreadConstraints"),
    *("priorityClassName", "securityContext", "volumes"),
)
"""Fields of a pod that other dialects have too."""
COMMANDS: dict[Engine, tuple[str, ...]] = {
    "llamacpp": ("/app/llama-server",),
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "tgi": ("text-generation-launcher",),
    "tensorrt-llm": ("trtllm-serve",),
}
RESOURCES = ("cpu", "memory", "ephemeral-storage")


def engine_of_container(main: Json, *, preset: bool = True) -> tuple[Engine, tuple[str, ...], Arguments]:
    """Tell which engine the container runs, by its command.

    Without one a `preset` starts vLLM; otherwise its image must tell.
    """
    command = tuple(str(word) for word in main.get("command") or ())
    args = [str(arg) for arg in main.get("args") or ()]
    if not command:
        named = "vllm" if preset else engine_in((str(main.get("image") or ""),))
        silent: Engine = named if named in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm") else "generic"  # type: ignore[assignment]
        return silent, (), taken_apart(silent, args)
    program = PurePosixPath(command[0]).name
    shell = program in ("sh", "bash")
    known = engine_in((" ".join(command),)) if not shell else ""
    engine: Engine = known if known in ("llamacpp", "vllm", "sglang", "tgi", "tensorrt-llm") else "generic"  # type: ignore[assignment]
    if engine == "generic":
        return "generic", command, taken_apart("generic", args)
    rest = _after(engine, command)
    apart = taken_apart(engine, [*rest, *args])
    own = command[: len(command) - len(rest)]
    return engine, () if own == COMMANDS.get(engine) or engine == "vllm" else own, apart


def _after(engine: Engine, command: tuple[str, ...]) -> tuple[str, ...]:
    """Give what of a command are arguments already."""
    start = 3 if engine == "sglang" or command[:2] == ("python3", "-m") else 1
    if engine == "vllm" and command[1:2] == ("serve",):
        start = 2
    return command[start:]


def amounts_of(resources: Json) -> tuple[dict[str, str], dict[str, str], int, str, list[str]]:
    """Take resources apart: requests, limits, GPUs and their resource, and what is none of these."""
    kept: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    gpus, resource, strange = 0, "", []
    extended = {name for part in ("limits", "requests") for name in resources.get(part) or {} if "/" in name}
    # A resource that nobody knows is taken for an accelerator where no other is one.
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


def amounts(written: Written) -> Json:
    """Write a container's resources; GPUs are requested and limited alike."""
    requests, limits = dict(written.take("requests")), dict(written.take("limits"))
    gpus, resource = written.take("gpus"), written.take("gpu_resource")
    if gpus and resource:
        limits[resource] = str(gpus)
        requests[resource] = str(gpus)
    found: Json = {}
    if requests:
        found["requests"] = requests
    if limits:
        found["limits"] = limits
    return found
