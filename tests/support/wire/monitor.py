"""The gRPC services of an engine that a program of the Pulumi SDK calls, and the run of a program against them.

Called by `tests.support.wire.stack`. Calls `tests.support.wire.deployment` for each resource.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, NoReturn

import grpc
from google.protobuf import empty_pb2
from pulumi.automation._server import LanguageServer
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    language_pb2,
    provider_pb2,
    resource_pb2,
    resource_pb2_grpc,
)

from components.providers.plugin_server import MAX_MESSAGE_BYTES
from tests.support.wire.deployment import Deployment
from tests.support.wire.provider import StepFailed
from tests.support.wire.resources import STACK_TYPE, Goal, Resource
from tests.support.wire.values import from_wire, to_wire

_FEATURES = frozenset({"secrets", "resourceReferences", "outputValues", "deletedWith", "aliasSpecs"})
"""What the harness can do. The SDK raises in programs that ask for more."""


class Monitor(resource_pb2_grpc.ResourceMonitorServicer):
    """Hands the registrations of one program to a deployment, one after the other."""

    def __init__(self, deployment: Deployment, *, continue_on_error: bool) -> None:
        self.failures: list[str] = []
        self.defect: Exception | None = None
        """A request that the harness cannot play."""
        self.root = ""
        self._deployment = deployment
        self._continue_on_error = continue_on_error
        self._lock = threading.Lock()

    def SupportsFeature(
        self, request: resource_pb2.SupportsFeatureRequest, context: grpc.ServicerContext
    ) -> resource_pb2.SupportsFeatureResponse:
        return resource_pb2.SupportsFeatureResponse(hasSupport=request.id in _FEATURES)

    def SignalAndWaitForShutdown(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def RegisterResource(
        self, request: resource_pb2.RegisterResourceRequest, context: grpc.ServicerContext
    ) -> resource_pb2.RegisterResourceResponse:
        urn = self._deployment.urn(request.parent, request.type, request.name)
        if request.type == STACK_TYPE:
            self.root = urn
        made = self._taken(lambda: self._deployment.register(Goal.of(request, urn)), context)
        if made is None:
            failed = resource_pb2.Result.FAIL
            return resource_pb2.RegisterResourceResponse(urn=urn, object=request.object, result=failed)
        return resource_pb2.RegisterResourceResponse(urn=made.urn, id=made.id, object=to_wire(made.outputs))

    def ReadResource(
        self, request: resource_pb2.ReadResourceRequest, context: grpc.ServicerContext
    ) -> resource_pb2.ReadResourceResponse:
        of = Resource(
            urn=self._deployment.urn(request.parent, request.type, request.name),
            type=request.type,
            id=request.id,
            inputs=from_wire(request.properties),
            parent=request.parent,
            dependencies=sorted(request.dependencies),
            additionalSecretOutputs=list(request.additionalSecretOutputs),
            external=True,
        )
        made = self._taken(lambda: self._deployment.read(of, request.provider, request.version), context)
        if made is None:
            self._stop(context)
        return resource_pb2.ReadResourceResponse(urn=made.urn, properties=to_wire(made.outputs))

    def RegisterResourceOutputs(
        self, request: resource_pb2.RegisterResourceOutputsRequest, context: grpc.ServicerContext
    ) -> empty_pb2.Empty:
        with self._lock:
            self._deployment.set_outputs(request.urn, from_wire(request.outputs))
        return empty_pb2.Empty()

    def Invoke(
        self, request: resource_pb2.ResourceInvokeRequest, context: grpc.ServicerContext
    ) -> provider_pb2.InvokeResponse:
        of = (request.tok, request.args, request.provider, request.version)
        try:
            with self._lock:
                answer = self._deployment.invoke(*of)
        except StepFailed as failed:
            context.abort(grpc.StatusCode.UNKNOWN, str(failed))
            raise AssertionError("abort raises") from failed
        return answer

    def _taken(self, steps: Callable[[], Resource], context: grpc.ServicerContext) -> Resource | None:
        """Take the steps of a resource. Returns None if they failed and the program goes on."""
        with self._lock:
            if self.defect or (self.failures and not self._continue_on_error):
                self._stop(context)
            try:
                return steps()
            except StepFailed as failed:
                self.failures.append(str(failed))
            except Exception as defect:
                self.defect = defect
        if self.defect or not self._continue_on_error:
            self._stop(context)
        return None

    @staticmethod
    def _stop(context: grpc.ServicerContext) -> NoReturn:
        context.abort(grpc.StatusCode.UNAVAILABLE, "resource monitor shut down")
        raise AssertionError("abort raises")


class Log(engine_pb2_grpc.EngineServicer):
    """Collects what a program logs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._root = ""

    def Log(self, request: engine_pb2.LogRequest, context: grpc.ServicerContext) -> empty_pb2.Empty:
        if request.severity != engine_pb2.DEBUG:
            self.lines.append(f"{engine_pb2.LogSeverity.Name(request.severity).lower()}: {request.message}")
        return empty_pb2.Empty()

    def GetRootResource(
        self, request: engine_pb2.GetRootResourceRequest, context: grpc.ServicerContext
    ) -> engine_pb2.GetRootResourceResponse:
        return engine_pb2.GetRootResourceResponse(urn=self._root)

    def SetRootResource(
        self, request: engine_pb2.SetRootResourceRequest, context: grpc.ServicerContext
    ) -> engine_pb2.SetRootResourceResponse:
        self._root = request.urn
        return engine_pb2.SetRootResourceResponse()


def run_program(
    program: Callable[[], Any], deployment: Deployment, config: dict[str, str], *, continue_on_error: bool
) -> tuple[list[str], list[str]]:
    """Run a program of the SDK against a deployment, and return its failures and all that it logged.

    The SDK calls the services over gRPC on loopback, as it calls those of the Pulumi CLI.
    """
    monitor, log = Monitor(deployment, continue_on_error=continue_on_error), Log()
    pool = futures.ThreadPoolExecutor(max_workers=32, thread_name_prefix="wire-engine")
    server = grpc.server(pool, options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(monitor, server)
    engine_pb2_grpc.add_EngineServicer_to_server(log, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        request = language_pb2.RunRequest(
            project=deployment.project,
            stack=deployment.stack,
            args=[address],
            config=config,
            dryRun=deployment.dry_run,
            parallel=16,
            monitor_address=address,
            organization="organization",
        )
        error = LanguageServer(program).Run(request, None).error  # type: ignore[no-untyped-call]
    except Exception as ended:
        # The SDK ends the tasks of a program whose engine is gone, and does not catch what they raise then.
        error = f"{type(ended).__name__}: {ended}"
    finally:
        server.stop(5.0).wait()
        pool.shutdown()
    if monitor.defect is not None:
        raise monitor.defect
    failures = [*monitor.failures]
    if error and not failures:
        failures.append(error)
    return failures, log.lines
