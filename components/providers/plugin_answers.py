"""What each provider of Herdsman tells the engine about itself, and how it refuses a call."""

# ruff: noqa: N802, ARG002 - names and arguments are those of Pulumi's gRPC service

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from components.providers import kubernetes_diff as diffs

DIFF_KINDS = {
    (diffs.Kind.ADD, False): provider_pb2.PropertyDiff.ADD,
    (diffs.Kind.ADD, True): provider_pb2.PropertyDiff.ADD_REPLACE,
    (diffs.Kind.DELETE, False): provider_pb2.PropertyDiff.DELETE,
    (diffs.Kind.DELETE, True): provider_pb2.PropertyDiff.DELETE_REPLACE,
    (diffs.Kind.UPDATE, False): provider_pb2.PropertyDiff.UPDATE,
    (diffs.Kind.UPDATE, True): provider_pb2.PropertyDiff.UPDATE_REPLACE,
}
"""Pulumi's kind of a change, by its kind and whether it replaces the resource."""


class PluginAnswers(provider_pb2_grpc.ResourceProviderServicer):
    """A provider that takes no settings. Subclasses serve resources.

    `version` is the version of the plugin. `autonaming`: the provider chooses names of resources by the project's
    settings for them.
    """

    def __init__(self, version: str, *, autonaming: bool = False) -> None:
        self._version = version
        self._autonaming = autonaming

    def Handshake(
        self, request: provider_pb2.ProviderHandshakeRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ProviderHandshakeResponse:
        return provider_pb2.ProviderHandshakeResponse(
            accept_secrets=True,
            accept_resources=False,
            accept_outputs=True,
            supports_autonaming_configuration=self._autonaming,
        )

    def Attach(self, request: plugin_pb2.PluginAttach, context: grpc.ServicerContext) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def Cancel(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=self._version)

    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: provider_pb2.DiffRequest, context: grpc.ServicerContext) -> provider_pb2.DiffResponse:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(
        self, request: provider_pb2.ConfigureRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConfigureResponse:
        return provider_pb2.ConfigureResponse(
            acceptSecrets=True,
            supportsPreview=True,
            acceptOutputs=True,
            supports_autonaming_configuration=self._autonaming,
        )


def resource_type(request: provider_pb2.CheckRequest) -> str:
    """Return the type of a resource. Older engines send none; the URN contains it after the types of the parents."""
    return request.type or request.urn.split("::")[2].rpartition("$")[2]


def abort(context: grpc.ServicerContext, code: grpc.StatusCode, message: str) -> NoReturn:
    """End the call with a status."""
    context.abort(code, message)
    raise AssertionError("abort raises")
