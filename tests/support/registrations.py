"""The requests with which a Pulumi program registers its resources, recorded without an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf import json_format
from pulumi.runtime import mocks, settings, stack, sync_await

from kubeapi.json_types import Json

_OF_STACK = re.compile(r"urn:pulumi:[^:\"]+::[^:\"]+::")


class _Nothing(mocks.Mocks):
    def call(self, args: mocks.MockCallArgs) -> Any:
        return {}

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        return args.name, {}


class _Recorder(mocks.MockMonitor):
    """Keeps each request for a resource that is no component, without its source position."""

    def __init__(self) -> None:
        super().__init__(_Nothing())
        self.requests: dict[str, Json] = {}

    def RegisterResource(self, request: Any) -> Any:
        if request.custom:
            # The SDK keeps stack and project in globals, which a program of an earlier test may change.
            found = json.loads(_OF_STACK.sub("urn:pulumi:stack::project::", json_format.MessageToJson(request)))
            self.requests[request.name] = {k: v for k, v in found.items() if k not in ("sourcePosition", "stackTrace")}
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


def of(program: Callable[[], Awaitable[None]]) -> dict[str, Json]:
    """Run a program and return its requests by logical name."""
    recorder = _Recorder()
    mocks.set_mocks(_Nothing(), monitor=recorder, preview=False)
    try:
        sync_await._sync_await(stack.run_pulumi_func(program))
    finally:
        settings.reset_options()
    return recorder.requests
