"""Any other server, with the user's image, command and arguments. Called through `runtime_for`."""

# ruff: noqa: ARG002 - the protocol sets the arguments, also if an engine does not use them

from __future__ import annotations

from kubeapi.json_types import Json
from program.desired.engines import Generic
from program.desired.service import DesiredService
from program.runtimes.base import (
    CompletionRequest,
    IdleProbe,
    Probes,
    ProgressMetrics,
    tcp_probes,
)


class GenericRuntime:
    """A server of which only the port is known."""

    name = "generic"
    container_name = "inference-server"
    default_port = 8080
    command: tuple[str, ...] = ()
    needs_model_init = False
    takes_port = True
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
        assert isinstance(desired.engine, Generic), desired.engine
        return list(desired.engine.args)

    def env(self, desired: DesiredService) -> list[Json]:
        return []

    def probes(self, port: int) -> Probes:
        return tcp_probes(port)

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        return None

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        assert isinstance(desired.engine, Generic), desired.engine
        return IdleProbe(path=desired.engine.idle_path, kind="status") if desired.engine.idle_path else None

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        return None
