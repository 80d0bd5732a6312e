"""The limits of the gateway. Read by `connection` and `server`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GatewayLimits:
    """The limits of one gateway. The defaults suit LLMs, whose answers take minutes."""

    max_connections: int = 4096
    max_body: int = 64 * 1024 * 1024
    """Largest body of a request, in bytes. A prompt with images has several MB."""
    max_bodies: int = 256 * 1024 * 1024
    """Most bytes of all bodies that are held at the same time, until their requests are sent."""
    client_idle_s: float = 75.0
    """A connection is closed after this time without a byte of the request that the gateway waits for."""
    head_s: float = 30.0
    """How long the head of a request may take from its first byte, so that a client cannot send it byte by byte."""
    body_rate: float = 32 * 1024.0
    """A body that comes with fewer bytes per second for longer than `client_idle_s` ends the connection."""
    first_byte_s: float = 600.0
    """How long an engine may take until its answer begins. OpenAI's client gives up after the same time."""
    gap_s: float = 300.0
    """How long an answer may pause. There is no limit for the whole answer."""
    attempts: int = 3
    """How many replicas are tried before the first byte of an answer."""
    retry_after_s: float = 5.0
