"""Ollama: in a pod one server, which pulls the model at its start; on a host one daemon for all services.

Called through `runtime_for`. Ollama has a store and names of models that differ from Hugging Face's.
"""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

import importlib.resources
from urllib.parse import unquote

from kubeapi.json_types import Json
from program.desired.hub import HUB_HOSTS
from program.desired.model import DesiredModel, GpuVendor, SourceKind
from program.desired.service import DesiredService
from program.desired.web_address import AddressInvalid, WebAddress
from program.runtimes.base import (
    CompletionRequest,
    IdleProbe,
    Probes,
    ProgressMetrics,
    exec_probes,
    http_probes,
    served_mode,
    small_completion,
)

HEALTH_PATH = "/api/version"
"""Ollama has no /health."""
SCHEME = "ollama://"
"""Prefix of Ollama's names in the addresses of llmaz's models."""
LIBRARY = "library"
"""The organisation that means Ollama's own library, as in Ollama's registry."""
IMAGE = "ollama/ollama:0.12.6"
MODEL_ENV = "HERDSMAN_OLLAMA_MODEL"
"""In a pod: the model's name, which the probes use."""
HOST_COMMAND = ("ollama", "serve")
"""The command of a host's daemon."""
START = importlib.resources.files("program.runtimes").joinpath("ollama.sh").read_text(encoding="utf-8")
"""Starts the server, and pulls the model named by the first argument unless the store has it. A failed pull ends the
container, so that its status and log contain the cause. Pod templates contain this text: any change of it, even of a
comment, restarts pods.
"""
HAS_MODEL = f'ollama show "${MODEL_ENV}" >/dev/null'


class OllamaRuntime:
    """`ollama serve` in a container. On a host, the agent does the work of `START`."""

    name = "ollama"
    container_name = "ollama"
    default_port = 11434
    command: tuple[str, ...] = ("/bin/sh", "-c", START, "ollama")
    needs_model_init = False
    takes_port = False
    serves_metrics = False
    default_hpa_metric = ""
    service_links = True
    api_key_env = ""
    name_flags: tuple[str, ...] = ()
    drains = True

    def default_image(self, desired: DesiredService) -> str | None:
        amd = desired.gpu is not None and desired.gpu.vendor is GpuVendor.AMD
        return f"{IMAGE}-rocm" if amd else IMAGE

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        return [ollama_name(desired.model)]

    def env(self, desired: DesiredService) -> list[Json]:
        host = desired.bind_address or "0.0.0.0"  # noqa: S104 - other pods connect to it
        port = desired.container_port or self.default_port
        return [
            {"name": "OLLAMA_HOST", "value": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"},
            {"name": MODEL_ENV, "value": ollama_name(desired.model)},
        ]

    def probes(self, port: int) -> Probes:
        alive = http_probes(HEALTH_PATH, port)
        # Ollama answers long before the model is pulled, and until then refuses every request for it.
        asked = exec_probes("/bin/sh", "-c", HAS_MODEL)
        return alive.model_copy(update={"startup": asked.startup, "readiness": asked.readiness})

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        mode = served_mode(desired)
        if mode == "rerank":
            return None  # Ollama has no ranking
        request = small_completion(mode)
        return request.model_copy(update={"body": {"model": ollama_name(desired.model), **request.body}})

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return None

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return None


def ollama_name(model: DesiredModel) -> str:
    """Return the model's name in Ollama, so that Ollama can pull it.

    - `ollama://NAME` is the name itself.
    - `library/NAME` and `hf://library/NAME@TAG` are models of Ollama's library.
    - Another repository is Hugging Face's; the tag is the Model's quantization, or the file if the Model lists one.
    - Everything else uses the Model's name, as with LLMKube.
    """
    source = model.source
    if source.address.startswith(SCHEME):
        return source.address.removeprefix(SCHEME)
    if source.kind is SourceKind.REPOSITORY:
        organisation, _, name = source.repository.partition("/")
        if organisation == LIBRARY:
            return f"{name}:{source.revision}" if source.revision else name
        file = model.files[0].rpartition("/")[2] if len(model.files) == 1 else ""
        return f"hf.co/{source.repository}" + (f":{tag}" if (tag := file or model.quantization) else "")
    return _hub_file(source.download_address) or model.name


def pulls_by_name(model: DesiredModel) -> bool:
    """Return whether Ollama pulls the Model's plain name, whatever its source is."""
    return model.source.kind is not SourceKind.REPOSITORY and not _hub_file(model.source.download_address)


def _hub_file(url: str) -> str:
    """Return Ollama's name for a file of Hugging Face; empty for any other address."""
    try:
        address = WebAddress.parse(url)
    except AddressInvalid:
        return ""
    path = unquote(address.path).strip("/").split("/")
    if address.host not in HUB_HOSTS or len(path) < 5 or path[2] not in ("resolve", "blob"):
        return ""
    return f"hf.co/{path[0]}/{path[1]}:{path[-1]}"
