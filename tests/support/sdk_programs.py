"""Programs of Pulumi's SDK for `automation.engine.program_server`, which the loop's programs do without."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pulumi.automation._server import LanguageServer
from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
from pulumi.runtime.proto.language_pb2 import RunRequest, RunResponse

from automation.engine.program_server import Program
from components.rendered import RenderedService
from program.fleet import fleet_in_steps
from program.registrars import SdkRegistrar
from program.registration import reduce_debug_data

# The SDK opens a connection to each run's CLI, which listens on a new port. gRPC shares connections to the same address
# in a process, also one that waits to reconnect to an ended CLI. A new CLI on a reused port was then reported as
# "refused" without an attempt to connect. With this option each run connects separately. The SDK reads this very list.
_GRPC_CHANNEL_OPTIONS.append(("grpc.use_local_subchannel_pool", 1))


def sdk_program(program: Callable[[], Awaitable[None]]) -> Program:
    """Return the program in the form that the server runs, by the SDK's language server."""

    def reduced() -> Awaitable[None]:
        reduce_debug_data()
        return program()

    def run(request: RunRequest) -> RunResponse:
        response: RunResponse = LanguageServer(reduced).Run(request, None)  # type: ignore[no-untyped-call]
        return response

    return run


def run_fleet_by_sdk(services: Sequence[RenderedService], request: RunRequest) -> RunResponse:
    """Register services as `automation.engine.fleet_run.run_fleet` does, by the SDK."""
    return sdk_program(lambda: fleet_in_steps(services, SdkRegistrar()))(request)
