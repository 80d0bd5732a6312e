"""The Pulumi plugin `herdsman`: the console script `pulumi-resource-herdsman`, which the Pulumi CLI finds on PATH.

With it, plain `pulumi up` manages processes on hosts, and a fleet of hosts needs no cluster:

    pulumi.CustomResource("herdsman:index:HostProcess", "llama", {
        "endpoint": "http://127.0.0.1:9190", "tokenFile": "~/agent-token",
        "namespace": "prod", "name": "llama", "plan": {…}})      # plan: agent.contract.ProcessPlan

Serves `host_provider`.
"""

from __future__ import annotations

from components.providers.host_provider import HostProvider
from components.providers.plugin_server import serve_until_the_engine_ends


def main() -> None:
    """Serve until the engine ends. Entry point of the console script `pulumi-resource-herdsman`."""
    serve_until_the_engine_ends(HostProvider())


if __name__ == "__main__":
    main()
