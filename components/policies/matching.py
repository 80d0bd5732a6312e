"""Globs, image names and field values for several kinds of rule. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from components.policies.schema import Match
from program.desired.keys import ServiceKey
from program.desired.web_address import shown
from program.dialects.registry import KINDS

LONGEST_VALUE = 200
_HUB = "docker.io"
_STEP = re.compile(r"([^.\[\]]+)|\[([^\]]+)\]")


def fits(text: str, globs: Iterable[str]) -> bool:
    """Return whether any of the globs matches the whole text."""
    return any(fnmatchcase(text, glob) for glob in globs)


def concerns(match: Match, key: ServiceKey, namespace_labels: Mapping[str, str]) -> bool:
    """Return whether a policy applies to this service."""
    has_kind = not match.kinds or KINDS[key.dialect].kind in match.kinds
    return has_kind and concerns_place(match, key.namespace, key.name, namespace_labels)


def concerns_place(match: Match, namespace: str, name: str, namespace_labels: Mapping[str, str]) -> bool:
    """Return whether a policy applies to objects of this name and namespace, whatever their kind."""
    return (
        (not match.namespaces or fits(namespace, match.namespaces))
        and (not match.names or fits(name, match.names))
        and all(namespace_labels.get(label) == value for label, value in match.namespace_labels.items())
    )


def canonical_image(image: str) -> str:
    """Return an image with its registry, which is docker.io for an image without one, as container runtimes assume."""
    first, slash, rest = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry = first.lower()
        return f"{_HUB if registry == 'index.docker.io' else registry}/{rest}"
    return f"{_HUB}/{image}" if slash else f"{_HUB}/library/{image}"


def comes_from(image: str, prefix: str) -> bool:
    """Return whether an image has this prefix. `ghcr.io/org` is no prefix of `ghcr.io/organisation/x`."""
    prefix = prefix.rstrip("/")
    # A prefix of one word is a registry (`ghcr.io`, `localhost:5000`) and not an image of docker.io.
    wanted = canonical_image(prefix) if "/" in prefix else prefix.lower()
    found = canonical_image(image)
    return found == wanted or any(found.startswith(wanted + end) for end in "/:@")


def told_source(address: str) -> str:
    """Return a model's source without possible secrets: a user's password, a signed query."""
    return shown(address)[:LONGEST_VALUE]


def value_at(document: Mapping[str, Any], path: str) -> str:
    """Return the value at a path such as `spec.podSecurityContext.fsGroup` or `metadata.labels[team]`, for a message.

    Environment variables and arguments are not shown, because they may contain secrets.
    """
    at: Any = document
    for name, index in _STEP.findall(path):
        step = name or index
        if step in ("env", "extraArgs", "args"):
            return "not shown"
        if isinstance(at, Mapping):
            at = at.get(step)
        elif isinstance(at, list) and step.isdigit() and int(step) < len(at):
            at = at[int(step)]
        else:
            at = None
    return "not set" if at is None else "an object" if isinstance(at, (dict, list)) else str(at)[:LONGEST_VALUE]
