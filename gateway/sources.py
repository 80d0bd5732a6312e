"""What a gateway follows: the services, the keys of its clients, and the routers. The interface of each source.

`cluster.cluster_sources` follows a cluster; `automation.local.routes` follows the services of one machine without one.
"""

from __future__ import annotations

from typing import Protocol


class Sources(Protocol):
    """Gives a `GatewayServer` its routes, keys and routers, and new ones after each change.

    It calls `set_routes`, `set_keys` and `set_routers` from threads of its own. Until each was called once, the gateway
    answers 503, because what it does not know yet could exist.
    """

    def start(self, port: int) -> None:
        """Start to follow; returns at once. `port` is that of the gateway's listener."""
        ...

    def stop(self) -> None:
        """Stop all threads. Also called for a source that was not started."""
        ...
