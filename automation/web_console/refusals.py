"""Says which right a caller lacks, from the message of the API server. Pure."""

from __future__ import annotations

import re

_MESSAGE = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_READS = frozenset({"get", "list", "watch"})
_HERDSMAN = ("llmkube.dev", "herdsman.dev", "kserve.io", "llmaz.io")


def words_of(message: str) -> str:
    """Return sentences about a refusal of RBAC; the message itself if it has another form."""
    found = _MESSAGE.search(message)
    if found is None:
        return f"{message[:1].upper()}{message[1:]}."
    resource = ".".join(part for part in (found["resource"], found["group"]) if part)
    where = f"in namespace {found['namespace']}" if found["namespace"] else "in the whole cluster"
    own = found["group"].endswith(_HERDSMAN)
    kind = "view" if found["verb"] in _READS else "edit"
    role = f"herdsman-{kind}" if own else kind
    return (
        f"The user {found['user']} lacks a right: {found['verb']} {resource} {where}. An administrator can grant it, "
        f"for example by the ClusterRole {role}."
    )
