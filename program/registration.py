"""Has the SDK say less to the engine while a program runs: called by whoever runs one, before its first resource.

`automation.engine.program_server` calls it for the loop's programs, `program.__main__` for static fleets.
"""

from __future__ import annotations

from typing import Any

from pulumi.runtime import resource, settings
from pulumi.runtime.proto import engine_pb2, source_pb2


def say_less() -> None:
    """Leave out of this run what nobody reads: the SDK's debug log, and the Python stack of each registration.

    The stacks took half of the state, which every run reads and writes, and 0.2 ms of CPU for each resource.
    """
    resource._get_stack_trace = source_pb2.StackTrace
    current = settings.SETTINGS
    if current.engine is not None:
        current.engine = _WithoutDebug(current.engine)


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
