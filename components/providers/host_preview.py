"""Reports in a preview the steps by which an update would change a host. Changes nothing on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import structlog
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from agent.client.port import HostError
from agent.client.ssh.host import SshHost
from agent.contract import ProcessPlan
from agent.steps.step import Outcome, State
from components.providers.host_transports import HostTransports
from components.providers.marshalling import has_unknown

_log = structlog.get_logger(__name__)


class Preview:
    """Sends a host's preview to the Pulumi engine. `engine` is the engine's address; empty if there is no engine."""

    def __init__(self) -> None:
        self.engine = ""

    def tell(self, urn: str, given: Mapping[str, Any], transports: HostTransports) -> None:
        """Send the steps that an update would take on a host over SSH; an agent does not report its steps.

        Logs errors of the host as warnings, because a preview must also work without the host.
        """
        if not given.get("ssh") or has_unknown(given):
            return
        key = f"{given['namespace']}/{given['name']}"
        try:
            host = transports.client_for(given)
            if not isinstance(host, SshHost):
                return
            outcomes = host.changes(key, ProcessPlan.model_validate(given["plan"]))
        except HostError as error:
            self._log(urn, f"The changes on the host are not known: {error.message}", engine_pb2.WARNING)
            return
        failed = any(outcome.state is State.FAILED for outcome in outcomes)
        self._log(urn, steps_text(key, outcomes), engine_pb2.WARNING if failed else engine_pb2.INFO)

    def say(self, urn: str, message: str, is_warning: bool) -> None:
        """Send a message about a resource to the user."""
        self._log(urn, message, engine_pb2.WARNING if is_warning else engine_pb2.INFO)

    def _log(self, urn: str, message: str, severity: engine_pb2.LogSeverity.ValueType) -> None:
        if not self.engine:
            return
        try:
            with grpc.insecure_channel(self.engine) as channel:
                request = engine_pb2.LogRequest(severity=severity, message=message, urn=urn)
                engine_pb2_grpc.EngineStub(channel).Log(request, timeout=5.0)
        except grpc.RpcError as error:
            _log.warning("Could not send the preview to the engine", error=str(error))


def steps_text(key: str, outcomes: list[Outcome]) -> str:
    """Return the steps as text for the user. Pure."""
    lines = [f"On the host of {key}:"]
    for outcome in outcomes:
        if outcome.state is State.WOULD_CHANGE:
            lines.append(f"  {outcome.title}: {outcome.detail}")
        elif outcome.state is State.FAILED:
            lines.append(f"  {outcome.title}: fails: {outcome.detail}{f' ({outcome.hint})' if outcome.hint else ''}")
    ok = sum(outcome.state is State.OK for outcome in outcomes)
    return "\n".join([*lines, f"  {ok} of {len(outcomes)} steps are as they should be"])
