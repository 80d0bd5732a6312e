"""A check of `herdsman doctor agent`: the token of a host that joined by an invitation."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from agent.server.joining.identity import identity_of
from agent.server.joining.renewal import AGE
from agent.server.joining.token import TokenWrong
from automation.console.check import Check


def token_finding(kubeconfig: Path, now: float) -> Iterator[Check]:
    """Check the token of a host that joined by an invitation. `now` is Unix time."""
    identity = identity_of(kubeconfig)
    if identity is None:
        return
    try:
        claims = identity.claims()
    except (OSError, TokenWrong) as error:
        yield Check("token", "failed", f"{identity.token_file}: {error}", _rejoin(identity.host))
        return
    ends = datetime.fromtimestamp(claims.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if claims.expires_at <= now:
        yield Check("token", "failed", f"it ended at {ends}", _rejoin(identity.host))
    elif now > claims.issued_at + 2 * AGE * claims.life_s:
        yield Check("token", "warning", f"it ends at {ends}, and was not renewed", "read the agent's log")
    else:
        yield Check("token", "ok", f"it ends at {ends}; the agent renews it before")


def _rejoin(host: str) -> str:
    return f"`herdsman host invite {host} --again`, then `herdsman host join` on this machine"
