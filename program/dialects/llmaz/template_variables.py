"""Fill variables such as `{{ .ModelPath }}` into arguments. Pure.

A word without the dot is left as it is, since that is no variable to llmaz either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.dialects.llmaz.open_models import Model

_VARIABLE = re.compile(r"\{\{\s*\.(?P<name>[A-Za-z_][-\w]*)\s*\}\}", re.ASCII)


def variables_of(models: Sequence[Model], params: Mapping[str, str], *, fetched: bool) -> dict[str, str]:
    """Give the variables of a service: its models', the main one first, then the parameters of its flavor."""
    main = models[0]
    variables = {
        **params,
        "ModelPath": main.source.path if fetched else main.source.remote,
        "ModelName": main.served_as,
    }
    if len(models) > 1:
        variables["DraftModelPath"] = models[1].source.path if fetched else models[1].source.remote
    return variables


def unfilled(arguments: Sequence[str], variables: Mapping[str, str], *, field: str) -> Iterator[Problem]:
    """Name variables in a Playground's own arguments, which llmaz hands on as they are written."""
    for index, argument in enumerate(arguments):
        names = [found["name"] for found in _VARIABLE.finditer(argument) if found["name"] in variables]
        if names:
            yield Problem(
                reason="NotHonoured",
                field=f"{field}[{index}]",
                message=f"`{{{{ .{names[0]} }}}}` is handed to the engine as it is: variables are filled into the "
                "arguments of a BackendRuntime only; write the value here, or add a recommended config there",
                terminal=True,
            )


def fill(arguments: Sequence[str], variables: Mapping[str, str], *, field: str) -> list[str]:
    """Fill in all of them. Raises SpecInvalid at `field` for a variable that has no value."""

    def value(found: re.Match[str]) -> str:
        name = found["name"]
        if not variables.get(name):
            known = ", ".join(sorted(key for key, text in variables.items() if text))
            raise SpecInvalid(field=field, why=f"`{found[0]}` has no value here; there are {known}")
        return variables[name]

    return [_VARIABLE.sub(value, argument) for argument in arguments]
