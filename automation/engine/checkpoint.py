"""The checkpoint of a stack, as the CLI writes it into a file, an object of a bucket, or a row of a table. Pure."""

from __future__ import annotations

import json
from typing import Any


class CheckpointBroken(Exception):
    """A stack has a checkpoint that is not valid."""


def parse_checkpoint(text: bytes, shown: str) -> dict[str, Any]:
    """Return a checkpoint in the form of `pulumi stack export`; the deployment is empty when nothing was deployed yet.

    `shown` names the checkpoint in errors. Raises CheckpointBroken.
    """
    try:
        head = json.loads(text)
        latest = head["checkpoint"].get("latest")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointBroken(f"{shown} is not a checkpoint: {error}") from error
    if latest is None:
        latest = {}
    if not isinstance(latest, dict):
        raise CheckpointBroken(f"{shown} contains no deployment")
    features = {"features": head["features"]} if head.get("features") else {}
    return {"version": head.get("version", 3), **features, "deployment": latest}
