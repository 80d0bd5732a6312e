"""What one service's proxy puts up with. Made by whoever opens a listener; read by `service` and `client`."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WAKE_TIMEOUT_S = 300.0
DEFAULT_MAX_HELD = 100


@dataclass(frozen=True)
class Limits:
    """Bounds of one service. The defaults suit an LLM that loads within minutes."""

    idle_timeout_s: float | None = None
    """Let the service sleep after so long without a request; None: the proxy does not judge that."""
    wake_timeout_s: float = DEFAULT_WAKE_TIMEOUT_S
    """How long a request may wait for the service to run."""
    max_held: int = DEFAULT_MAX_HELD
    """How many requests may wait at once."""
    held_body: int = 4 * 1024 * 1024
    """Most bytes of one request that are kept while it waits (a prompt with images is a few MB)."""
    held_bytes: int = 64 * 1024 * 1024
    """Most bytes that all waiting requests of the service may take together."""
    retry_after_s: float = 5.0
    """What clients are told when they are sent away."""
    max_connections: int = 2048
    client_idle_s: float = 75.0
    """A connection without a request is closed after so long; one whose head does not come to its end, too."""
    connect_timeout_s: float = 5.0
    pooled_s: float = 2.0
    """An unused connection to the engine is kept for so long: less than any engine's own patience (five seconds with
    llama-server and with uvicorn), so that no request meets one that is just being closed."""
    max_pooled: int = 64
