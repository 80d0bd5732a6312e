"""Has the SDK say less to the engine while a program runs: called by whoever runs one, before its first resource.

`automation.engine.program_server` calls it for the loop's programs, `program.__main__` for static fleets.
"""

from __future__ import annotations

from typing import Any

from pulumi.runtime import settings
from pulumi.runtime.proto import engine_pb2, resource_pb2


def say_less() -> None:
    """Leave out of this run what nobody reads: the SDK's debug log, and the Python stack of each registration."""
    current = settings.SETTINGS
    if current.engine is not None:
        current.engine = _WithoutDebug(current.engine)
    if current.monitor is not None:
        current.monitor = _WithoutTraces(current.monitor)


class _WithoutDebug:
    """The engine's client, less its debug log: five blocking calls for each resource, a third of the program's time."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def Log(self, request: engine_pb2.LogRequest) -> Any:  # noqa: N802 - the name of the call
        if request.severity != engine_pb2.DEBUG:
            return self._engine.Log(request)
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _WithoutTraces:
    """The monitor's client, less the Python stack of each registration: it took half of the state, and every run reads
    and writes the state."""

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor

    def RegisterResource(self, request: resource_pb2.RegisterResourceRequest) -> Any:  # noqa: N802 - the call's name
        request.ClearField("stackTrace")
        request.ClearField("sourcePosition")
        return self._monitor.RegisterResource(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)
