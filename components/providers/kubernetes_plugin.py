"""The embedded Kubernetes provider as a plugin process, which the Pulumi engine starts itself.

`herdsman provider path` makes a folder with a launcher named `pulumi-resource-kubernetes`. With that folder first on
PATH, plain `pulumi up` uses this provider and downloads none. There is no console script of that name, because it would
replace Pulumi's own plugin in all projects of the user.

The engine starts one process for each provider configuration. So here a configuration may select its cluster, by
`context` and `kubeconfig` (a path). It may not where one server serves all engines (`plugin_server`).
"""

# ruff: noqa: N802, ARG002 - names and arguments are those of Pulumi's gRPC service

from __future__ import annotations

import grpc
from pulumi.runtime.proto import provider_pb2

from components.providers.kubernetes import FORBIDDEN_CONFIG, KubernetesProvider
from components.providers.kubernetes_calls import KubernetesCalls
from components.providers.marshalling import decode, plain
from components.providers.plugin_server import serve_until_the_engine_ends
from kubeapi.client import KubeClient
from kubeapi.config import default_access, kubeconfig_access
from kubeapi.errors import ConfigInvalid

_FOR_ONE_CLUSTER = ("kubeconfig", "context")


class KubernetesPlugin(KubernetesProvider):
    """Serves the cluster of its configuration, by default kubectl's current one."""

    def __init__(self) -> None:
        """Do not connect yet: the engine calls Configure first."""
        self._settle()

    def CheckConfig(
        self, request: provider_pb2.CheckRequest, context: grpc.ServicerContext
    ) -> provider_pb2.CheckResponse:
        """Accept a context and the path of a kubeconfig. Its content would store secrets in the state."""
        news = plain(decode(request.news))
        failures = [
            provider_pb2.CheckFailure(
                property=key,
                reason="Herdsman's provider takes `context` and `kubeconfig` only; give each object its "
                "metadata.namespace, or use the official provider",
            )
            for key in FORBIDDEN_CONFIG
            if key not in _FOR_ONE_CLUSTER and news.get(key) is not None
        ]
        kubeconfig = news.get("kubeconfig")
        if isinstance(kubeconfig, str) and ("\n" in kubeconfig or kubeconfig.lstrip().startswith("{")):
            why = "must be the path of a kubeconfig; its content would be written into the stack's state"
            failures.append(provider_pb2.CheckFailure(property="kubeconfig", reason=why))
        return provider_pb2.CheckResponse(inputs=request.news, failures=failures)

    def Configure(
        self, request: provider_pb2.ConfigureRequest, context: grpc.ServicerContext
    ) -> provider_pb2.ConfigureResponse:
        """Connect to the cluster of the configuration."""
        said = plain(decode(request.args))
        kubeconfig, name = str(said.get("kubeconfig") or ""), str(said.get("context") or "")
        try:
            named = kubeconfig_access(kubeconfig or None, name or None) if kubeconfig or name else default_access()
            self._calls = KubernetesCalls(KubeClient(named), field_manager=self._field_manager, beside_loop=True)
        except ConfigInvalid as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return super().Configure(request, context)


def main() -> None:
    """Serve until the engine ends."""
    serve_until_the_engine_ends(KubernetesPlugin())


if __name__ == "__main__":
    main()
