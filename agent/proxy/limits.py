"""The limits of one service's proxy. Set by the code that opens a listener; read by `service` and `client`."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_WAKE_TIMEOUT_S = 300.0
DEFAULT_MAX_HELD = 100


@dataclass(frozen=True)
class Limits:
    """The limits of one service. The defaults suit an LLM that loads within minutes."""

    idle_timeout_s: float | None = None
    """Put the service to sleep after this time without a request. None: the proxy never does."""
    wake_timeout_s: float = DEFAULT_WAKE_TIMEOUT_S
    """How long a request may wait for the service to run."""
    max_held: int = DEFAULT_MAX_HELD
    """How many requests may wait at the same time."""
    held_body: int = 4 * 1024 * 1024
    """Most bytes that are kept of one waiting request. A prompt with images has a few MB."""
    held_bytes: int = 64 * 1024 * 1024
    """Most bytes that are kept of all waiting requests of the service together."""
    retry_after_s: float = 5.0
    """Value of `Retry-After` in responses with status 502 or 503."""
    max_connections: int = 2048
    client_idle_s: float = 75.0
    """A connection is closed after this time without a request or with an incomplete head."""
    connect_timeout_s: float = 5.0
    pooled_s: float = 2.0
    """How long an unused connection to the engine is kept. This is shorter than the idle timeout of the engines (five
    seconds for llama-server and uvicorn), so that no request meets a connection that the engine is closing."""
    max_pooled: int = 64
