"""What runs on a host for a service: which program, with which arguments, and how it is asked. Pure.

Called by `components.host_plan`. The argument builders are the pods' own (`program.runtimes`); what only the host knows
stands in the arguments as a token (`agent.contract.ProcessPlan`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent.contract import IdleQuestion
from program.desired.engines import Generic, LlamaCpp, Ollama, Omlx, Vllm
from program.desired.errors import SpecInvalid
from program.desired.service import DesiredService
from program.runtimes import runtime_for
from program.runtimes.base import EMBEDDING_FLAGS, RERANK_FLAGS, small_completion
from program.runtimes.flags import mentions
from program.runtimes.llamacpp import host_argv
from program.runtimes.ollama import HEALTH_PATH as OLLAMA_HEALTH
from program.runtimes.ollama import HOST_COMMAND as OLLAMA_COMMAND
from program.runtimes.ollama import ollama_name
from program.runtimes.omlx import HEALTH_PATH as OMLX_HEALTH
from program.runtimes.omlx import MODELS, OmlxRuntime, omlx_name
from program.runtimes.vllm import VllmRuntime


@dataclass(frozen=True)
class HostProgram:
    """The engine's part of a ProcessPlan; fields as there."""

    runtime: Literal["llamacpp", "vllm", "ollama", "omlx", "generic"]
    argv: tuple[str, ...]
    health_path: str = "/health"
    completion_path: str | None = None
    daemon_model: str | None = None
    idle: IdleQuestion | None = None
    reads_files: bool = True
    """The host brings the model's files; False: the engine fetches them itself."""


def host_program(desired: DesiredService) -> HostProgram:
    """Choose the program. Raises SpecInvalid for an engine that only pods have."""
    engine = desired.engine
    match engine:
        case LlamaCpp():
            return HostProgram("llamacpp", _llama_server(desired), completion_path=_llama_completion(desired, engine))
        case Vllm():
            runtime = VllmRuntime()
            # Where it listens is the host's to say.
            here = desired.model_copy(update={"bind_address": ""})
            argv = runtime.argv(here, model_path="{model}", port="{port}", host="{host}", draft_path="{draft}")
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
                    field="spec.command", why="on a host runtime `generic` needs a command: no image brings one"
                )
            return HostProgram("generic", (*desired.command, *engine.args), health_path="/", idle=_idle(desired))
        case _:
            raise SpecInvalid(field="spec.runtime", why=f"runtime `{engine.kind}` does not run on hosts")


def _llama_server(desired: DesiredService) -> tuple[str, ...]:
    accelerator = desired.model.accelerator
    argv = host_argv(desired, model_path="{model}", port="{port}", accelerator=accelerator, host="{host}")
    return ("llama-server", *argv)


def _llama_completion(desired: DesiredService, engine: LlamaCpp) -> str | None:
    """Choose where the agent asks for proof. Where only the user's own arguments turn chat off, health must do."""
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
