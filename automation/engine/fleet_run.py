"""Runs the program of a batch for one engine: the `Run` call of the language protocol, without Pulumi's SDK (ADR 52).

`pulumi_engine` offers it to the CLI by `program_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Sequence

import grpc
from pulumi.runtime.proto.engine_pb2 import LogRequest, LogSeverity
from pulumi.runtime.proto.engine_pb2_grpc import EngineStub
from pulumi.runtime.proto.language_pb2 import RunRequest, RunResponse

from components.rendered import RenderedService
from program.fleet import fleet_in_steps
from program.monitor import CHANNEL_OPTIONS, EngineEnded, Monitor, RequestFailed
from program.monitor_registrar import MonitorRegistrar

LOG_TIMEOUT_S = 10.0

FleetProgram = Callable[[Sequence[RenderedService], RunRequest], RunResponse]
"""Registers services with the engine of a request, as `run_fleet` does."""


def run_fleet(services: Sequence[RenderedService], request: RunRequest) -> RunResponse:
    """Register the services with the engine of the request, and return when the engine needs the program no more.

    An error of one resource is reported by the engine. An error of the whole program is logged to the engine, and the
    response contains it.
    """
    try:
        asyncio.run(_registered(services, request))
    except EngineEnded as error:
        return RunResponse(error=f"the engine ended before the program: {error}")
    except RequestFailed as error:
        return _reported(str(error), request)
    except Exception as error:
        return _reported(f"{type(error).__name__}: {error}\n{traceback.format_exc()}", request)
    return RunResponse()


async def _registered(services: Sequence[RenderedService], request: RunRequest) -> None:
    monitor = Monitor.at(request.monitor_address)
    try:
        registrar = MonitorRegistrar(monitor, project=request.project, stack=request.stack)
        try:
            await fleet_in_steps(services, registrar)
        finally:
            await registrar.finish()
        await monitor.wait_for_end()
    finally:
        monitor.close()


def _reported(error: str, request: RunRequest) -> RunResponse:
    """Log the error to the engine, unless the engine is gone, and return it."""
    with grpc.insecure_channel(request.args[0], options=CHANNEL_OPTIONS) as channel, contextlib.suppress(grpc.RpcError):
        EngineStub(channel).Log(LogRequest(severity=LogSeverity.ERROR, message=error), timeout=LOG_TIMEOUT_S)
    return RunResponse(error=error)
