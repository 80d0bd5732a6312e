"""OpenAI's own client, as people use it with a gateway."""

from __future__ import annotations

from typing import Any


def client_of(base_url: str) -> Any:
    """Return a client that asks once, and closes its connections with the process."""
    from openai import OpenAI

    return OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)
