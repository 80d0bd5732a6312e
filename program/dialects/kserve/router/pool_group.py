"""Sets the API group of InferencePools in the arguments of routing sidecars and endpoint pickers. Pure.

KServe creates each pool in two groups, and its presets name the older one. Herdsman creates pools in the current group
only. With the older name an endpoint picker finds no pool, and a sidecar sends no prompt to prefill pods.
"""

from __future__ import annotations

import re

from program.dialects.kserve.parse.pod_draft import Container

POOL_GROUP = "inference.networking.k8s.io"
OLD_POOL_GROUP = "inference.networking.x-k8s.io"

_FLAG = "--pool-group"
_IN_ONE_WORD = re.compile(rf"({_FLAG}[= ]['\"]?){re.escape(OLD_POOL_GROUP)}(?![\w.-])", re.ASCII)


def name_group_of_today(container: Container) -> None:
    """Set the current API group of pools in a container's arguments."""
    for field in ("command", "args"):
        words = container.get(field)
        if words and (migrated := _migrated(list(words))) != words:
            container.set(field, migrated)


def _migrated(words: list[str]) -> list[str]:
    return [
        POOL_GROUP
        if word == OLD_POOL_GROUP and at and words[at - 1] == _FLAG
        else _IN_ONE_WORD.sub(rf"\g<1>{POOL_GROUP}", word)
        for at, word in enumerate(words)
    ]
