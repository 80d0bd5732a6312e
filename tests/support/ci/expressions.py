"""Evaluates the expressions of GitHub workflows: `${{ … }}` in strings, and conditions.

It supports only what the project's workflows use. It raises an error for anything else, so that no test passes because
of a wrong guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(&&|\|\||==|!=|[!(),])|([A-Za-z_][\w.-]*|\d+))")
_EMBEDDED = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


class Unknown(Exception):
    """An expression uses a value, a function or an operator that this evaluator does not support."""


def interpolated(text: str, contexts: Mapping[str, Any]) -> str:
    """Return a string with its expressions replaced by their values."""
    return _EMBEDDED.sub(lambda match: _shown(evaluate(match.group(1), contexts)), text)


def holds(condition: str, contexts: Mapping[str, Any]) -> bool:
    """Return whether a condition is true. It may be written with or without the braces."""
    whole = _EMBEDDED.fullmatch(condition.strip())
    return bool(evaluate(whole.group(1) if whole else condition, contexts))


def evaluate(expression: str, contexts: Mapping[str, Any]) -> Any:
    """Return the value of one expression.

    Raises:
        Unknown: the expression uses something that is not supported.
    """
    reader = _Reader(_tokens(expression), contexts)
    value = reader.either()
    if reader.rest:
        raise Unknown(f"`{expression}`: nothing is expected before `{reader.rest[0]}`")
    return value


def _tokens(expression: str) -> list[str]:
    found, place = [], 0
    text = expression.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unknown(f"`{expression}` has something unknown at `{text[place:]}`")
        found.append(match.group().strip())
        place = match.end()
    return found


class _Reader:
    def __init__(self, tokens: list[str], contexts: Mapping[str, Any]) -> None:
        self.rest = tokens
        self._contexts = contexts

    def either(self) -> Any:
        value = self._both()
        while self._takes("||"):
            other = self._both()
            value = value or other
        return value

    def _both(self) -> Any:
        value = self._compared()
        while self._takes("&&"):
            other = self._compared()
            value = value and other
        return value

    def _compared(self) -> Any:
        value = self._single()
        if self._takes("=="):
            return value == self._single()
        if self._takes("!="):
            return value != self._single()
        return value

    def _single(self) -> Any:
        if self._takes("!"):
            return not self._single()
        if self._takes("("):
            value = self.either()
            self._expect(")")
            return value
        if not self.rest:
            raise Unknown("an expression ends too early")
        token = self.rest.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if token in ("true", "false"):
            return token == "true"
        if self._takes("("):
            return self._called(token)
        return self._named(token)

    def _called(self, function: str) -> Any:
        arguments = []
        while not self._takes(")"):
            arguments.append(self.either())
            self._takes(",")
        match function, arguments:
            case "startsWith", [text, start]:
                return str(text).startswith(str(start))
            case "always", []:
                return True
        raise Unknown(f"the function {function} is not known with {len(arguments)} arguments")

    def _named(self, path: str) -> Any:
        value: Any = self._contexts
        for part in path.split("."):
            if not isinstance(value, Mapping) or part not in value:
                if path.startswith("github.event."):
                    return None  # properties of other kinds of events
                raise Unknown(f"nothing gives a value to `{path}`")
            value = value[part]
        return value

    def _takes(self, token: str) -> bool:
        if self.rest and self.rest[0] == token:
            self.rest.pop(0)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise Unknown(f"`{token}` is missing")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list):
        raise Unknown("an object has no text")
    return "" if value is None else str(value)
