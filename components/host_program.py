"""The program that a host runs for a service, and the check that the host allows it. Pure.

`components.host_plan` takes from here the program, its arguments and its health checks. The argument builders are those
of pods (`program.runtimes`), with tokens for the values that only the host knows (`agent.contract.ProcessPlan`). The
loop checks the host's rules when it places a service; `herdsman render` and static fleets check them when they resolve
one. The rules are in `program.runtimes.host_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.contract import IdleQuestion
from kubeapi.json_types import Json
from program.desired.engines import Generic, LlamaCpp, Ollama, Omlx, Vllm
from program.desired.errors import SpecInvalid
from program.desired.service import DesiredService, Written
from program.runtimes import runtime_for
from program.runtimes.base import EMBEDDING_FLAGS, RERANK_FLAGS, small_completion
from program.runtimes.flags import mentions
from program.runtimes.host_rules import Allowance, Need, not_allowed, program_needs
from program.runtimes.llamacpp import host_argv
from program.runtimes.ollama import HEALTH_PATH as OLLAMA_HEALTH
from program.runtimes.ollama import HOST_COMMAND as OLLAMA_COMMAND
from program.runtimes.ollama import ollama_name
from program.runtimes.omlx import HEALTH_PATH as OMLX_HEALTH
from program.runtimes.omlx import MODELS, OmlxRuntime, omlx_name
from program.runtimes.vllm import VllmRuntime, host_adapters


@dataclass(frozen=True)
class HostProgram:
    """The fields of a ProcessPlan that depend on the engine. `ProcessPlan` describes them."""

    runtime: Literal["llamacpp", "vllm", "ollama", "omlx", "generic"]
    argv: tuple[str, ...]
    health_path: str = "/health"
    completion_path: str | None = None
    daemon_model: str | None = None
    idle: IdleQuestion | None = None
    reads_files: bool = True
    """True: the host downloads the model's files before the start. False: the engine downloads them."""


def host_program(desired: DesiredService) -> HostProgram:
    """Return the program of the service's engine. Raises SpecInvalid for an engine that runs only in pods."""
    engine = desired.engine
    match engine:
        case LlamaCpp():
            return HostProgram("llamacpp", _llama_server(desired), completion_path=_llama_completion(desired, engine))
        case Vllm():
            runtime = VllmRuntime()
            # The host chooses the address to listen on.
            here = desired.model_copy(update={"bind_address": ""})
            argv = runtime.argv(here, model_path="{model}", port="{port}", host="{host}", draft_path="{draft}")
            argv += host_adapters(desired)
            return HostProgram("vllm", (*runtime.command, *argv), completion_path=_completion_path(desired))
        case Ollama():
            return HostProgram(
                "ollama",
                OLLAMA_COMMAND,
                health_path=OLLAMA_HEALTH,
                completion_path=_completion_path(desired),
                daemon_model=ollama_name(desired.model),
                reads_files=False,
            )
        case Omlx():
            argv = OmlxRuntime().argv(desired, model_path=MODELS, port="{port}", host="{host}")
            return HostProgram(
                "omlx",
                (*OmlxRuntime.command, *argv),
                health_path=OMLX_HEALTH,
                completion_path=_completion_path(desired),
                daemon_model=omlx_name(desired.model),
            )
        case Generic():
            if not desired.command:
                raise SpecInvalid(
                    field="spec.command",
                    why="is required for runtime `generic` on a host, because no image supplies a command",
                )
            return HostProgram("generic", (*desired.command, *engine.args), health_path="/", idle=_idle(desired))
        case _:
            raise SpecInvalid(field="spec.runtime", why=f"runtime `{engine.kind}` does not run on hosts")


def _llama_server(desired: DesiredService) -> tuple[str, ...]:
    accelerator = desired.model.accelerator
    argv = host_argv(desired, model_path="{model}", port="{port}", accelerator=accelerator, host="{host}")
    return ("llama-server", *argv)


def _llama_completion(desired: DesiredService, engine: LlamaCpp) -> str | None:
    """Return the path of the completion check; None for the health check only.

    There is no completion check if the service turns it off, or if the user's own arguments turn chat off.
    """
    chats = not any(mentions(engine.extra_args, flag) for flag in (*EMBEDDING_FLAGS, *RERANK_FLAGS))
    if not desired.completion_check or (desired.mode == "chat" and not chats):
        return None
    return small_completion(desired.mode).path


def _completion_path(desired: DesiredService) -> str | None:
    request = runtime_for(desired.engine).completion(desired)
    return request.path if request is not None and desired.completion_check else None


def _idle(desired: DesiredService) -> IdleQuestion | None:
    probe = runtime_for(desired.engine).idle_probe(desired)
    return IdleQuestion(path=probe.path, kind=probe.kind, gauge=probe.gauge) if probe is not None else None


NOT_ALLOWED = "NotAllowedOnHost"
"""Reason of the condition for a service that a host does not allow."""
_SETTINGS = {
    "--paged-ssd-cache-dir": "spec.pagedSSDCacheDir",
    "-md": "spec.speculativeDecoding",
}
"""Fields of an InferenceService that set a path, by the command line flag that they become."""


def host_needs(desired: DesiredService) -> tuple[Need, ...]:
    """List what a service needs that a host does not allow by default. Raises SpecInvalid as `host_program` does."""
    program = host_program(desired)
    values = {entry["name"]: "" for entry in desired.pod.env if not _is_secret(entry)}
    secrets = [entry["name"] for entry in desired.pod.env if _is_secret(entry)]
    return program_needs(program.runtime, program.argv, values, program.daemon_model, secrets=secrets)


def check_allowed(
    desired: DesiredService,
    needs: Sequence[Need],
    host: str,
    allowance: Allowance,
    *,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Raise SpecInvalid with the offending field if `host` does not allow a service. `labels` are its namespace's."""
    namespace = desired.key.namespace
    if not allowance.admits(namespace, labels or {}):
        why = (
            f"host `{host}` does not allow namespace `{namespace}`; the host's owner can allow it in "
            f"spec.allow.namespaces or spec.allow.namespaceSelector of the Host"
        )
        raise SpecInvalid(field="metadata.namespace", reason=NOT_ALLOWED, why=why)
    need = allowance.refused(needs)
    if need is not None:
        raise SpecInvalid(field=field_of(desired, need), reason=NOT_ALLOWED, why=f"host `{host}` {not_allowed(need)}")


def check_any_allowed(desired: DesiredService, needs: Sequence[Need], allowances: Sequence[Allowance]) -> None:
    """Raise SpecInvalid with the offending field if none of these hosts allows everything that a service needs."""
    lacking = [need for allowance in allowances if (need := allowance.refused(needs)) is not None]
    if allowances and len(lacking) == len(allowances):
        need = lacking[0]
        why = f"no host allows {need}; the owner of a host can allow it in {need.granted_by} of the Host"
        raise SpecInvalid(field=field_of(desired, need), reason=NOT_ALLOWED, why=why)


def field_of(desired: DesiredService, need: Need) -> str:
    """Return the path of the field that causes a need."""
    placement = desired.host_placement
    written = (placement.written if placement is not None else None) or _of_llmkube(desired)
    match need.kind:
        case "runtime":
            return "spec.runtime"
        case "command":
            return "spec.command"
        case "registry":
            return written.model_field
        case "variable":
            return _at(written.variables_field, _index(written.variables, need.name))
        case _:
            index = _index([_name(word) for word in written.arguments], _name(need.flag or need.name))
            if index is None:
                index = _index(written.arguments, need.name)
            if index is None and need.flag in _SETTINGS and desired.key.dialect == "llmkube":
                return _SETTINGS[need.flag]
            return _at(written.arguments_field, index)


def _of_llmkube(desired: DesiredService) -> Written:
    engine = desired.engine
    generic = isinstance(engine, Generic)
    arguments = engine.args if isinstance(engine, Generic) else getattr(engine, "extra_args", ())
    return Written(
        arguments=tuple(arguments),
        arguments_field="spec.args" if generic else "spec.extraArgs",
        variables=tuple(str(entry["name"]) for entry in desired.pod.env),
        variables_field="spec.env",
        model_field="spec.modelRef",
    )


def _is_secret(variable: Json) -> bool:
    return "valueFrom" in variable


def _name(word: str) -> str:
    name = word.partition("=")[0]
    return f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name


def _index(words: Sequence[str], wanted: str) -> int | None:
    return next((index for index, word in enumerate(words) if word == wanted), None)


def _at(field: str, index: int | None) -> str:
    return field if index is None else f"{field}[{index}]"
