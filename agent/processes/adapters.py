"""The LoRA adapters in the arguments of an engine, in the order of the numbers that llama-server gives them. Pure.

The loop reads them from plans, and the agent reports those of a process that runs by an earlier plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

_FLAGS = ("--lora", "--lora-scaled")
_MODULES = "--lora-modules"
"""vLLM's flag, with values `NAME=PATH`."""
_TOKEN = re.compile(r"\{([^{}]+)\}(?::[0-9.]+)?")


def adapters_of(argv: Sequence[Any]) -> tuple[str, ...]:
    """Return the adapters in the arguments of a process, in the order of llama-server's numbers.

    An adapter that is a file of the plan is the name of its token, another one the text of the argument.
    """
    words = [str(word) for word in argv]
    found: list[str] = []
    for at, word in enumerate(words):
        name, equals, attached = word.partition("=")
        if name in _FLAGS:
            value = attached if equals else "".join(words[at + 1 : at + 2])
            found += (_named(each) for each in value.split(","))
        elif name == _MODULES:
            values = [attached] if equals else takewhile(lambda each: not each.startswith("-"), words[at + 1 :])
            found += (_named(each.partition("=")[2]) for each in values)
    return tuple(found)


def _named(value: str) -> str:
    token = _TOKEN.fullmatch(value)
    return token[1] if token is not None else value
