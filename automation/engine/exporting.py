"""Makes of an exported stack what the Pulumi CLI of anybody can read. Pure; called by `herdsman export`."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

_SECRET_MARK = "4dabf18193072939515e22adb298388d"  # noqa: S105 - the name of the field by which Pulumi marks a secret


class SecretsInside(Exception):
    """The stack holds sealed values, which only the loop's key keeper opens."""


def portable(export: Json) -> Json:
    """Take out how the loop seals secrets: it holds none, and another CLI could not ask the loop's key keeper.

    Raises SecretsInside for a stack that does hold one.
    """
    deployment = dict(export.get("deployment") or {})
    if f'"{_SECRET_MARK}"' in json.dumps(deployment):
        raise SecretsInside("the stack holds sealed values; the passphrase of the loop's state opens them")
    deployment.pop("secrets_providers", None)
    return {**export, "deployment": deployment}
