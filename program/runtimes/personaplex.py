"""PersonaPlex, a speech-to-speech server on Moshi. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.engines import PersonaPlex
from program.desired.service import DesiredService
from program.runtimes.base import CompletionRequest, IdleProbe, Probes, ProgressMetrics, secret_env, switch, tcp_probes


class PersonaPlexRuntime:
    """moshi.server in a container of the user's image. It serves TLS on a fixed port."""

    name = "personaplex"
    container_name = "personaplex"
    default_port = 8998
    command: tuple[str, ...] = ("/app/moshi/.venv/bin/python", "-m", "moshi.server")
    needs_model_init = False
    takes_port = False
    serves_metrics = False
    default_hpa_metric = ""
    service_links = True
    api_key_env = ""
    name_flags: tuple[str, ...] = ()
    drains = False

    def default_image(self, desired: DesiredService) -> str | None:
        return None

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        settings = desired.engine
        assert isinstance(settings, PersonaPlex), settings
        return [
            *["--ssl", "/app/ssl"],
            *switch("--quantize-4bit", settings.quantize_4bit),
            *switch("--cpu-offload", settings.cpu_offload),
        ]

    def env(self, desired: DesiredService) -> list[Json]:
        assert isinstance(desired.engine, PersonaPlex), desired.engine
        return [*secret_env("HF_TOKEN", desired.engine.hf_token), {"name": "NO_TORCH_COMPILE", "value": "1"}]

    def probes(self, port: int) -> Probes:
        return tcp_probes(port)

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return None

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        return None

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return None
