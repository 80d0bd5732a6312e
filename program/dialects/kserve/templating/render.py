"""Renders every text in a JSON value as a template. Pure.

KServe renders the JSON text of a config as one template. Its expressions are within JSON strings, so rendering each
string gives the same result. An expression that begins in one string and ends in another is refused.
"""

from __future__ import annotations

from typing import Any

from program.desired.errors import SpecInvalid
from program.dialects.crds.reading import join_path
from program.dialects.kserve.templating.nodes import Budget, Functions
from program.dialects.kserve.templating.parser import run
from program.dialects.kserve.templating.values import TemplateError

_DEEPEST = 100


def render(value: Any, data: Any, functions: Functions, *, field: str) -> Any:
    """Render keys and texts. The result shares parts without expressions with `value`.

    Raises SpecInvalid with reason InvalidRenderedConfig at the path of the text.
    """
    try:
        return _Renderer(data, functions).rendered(value, 0)
    except _FailedError as error:
        raise SpecInvalid(
            field=join_path(field, error.path[::-1])[:512], why=str(error.cause), reason="InvalidRenderedConfig"
        ) from None


class _FailedError(Exception):
    def __init__(self, cause: TemplateError) -> None:
        super().__init__()
        self.cause = cause
        self.path: list[str | int] = []
        """Innermost part first."""


class _Renderer:
    def __init__(self, data: Any, functions: Functions) -> None:
        self._data = data
        self._functions = functions
        self._budget = Budget()
        self._done: dict[str, str] = {}
        """Rendered texts, because many texts of a service are equal."""

    def rendered(self, value: Any, deep: int) -> Any:
        if isinstance(value, str):
            return self._text(value) if "{{" in value else value
        if isinstance(value, dict):
            return self._object(value, deep)
        if isinstance(value, list):
            return self._list(value, deep)
        return value

    def _object(self, value: dict[str, Any], deep: int) -> dict[str, Any]:
        changed = {}
        renamed = False
        for key, member in value.items():
            try:
                new = self._member(member, deep)
                if "{{" in key:
                    renamed = True
                    changed[self._text(key)] = new
                elif new is not member:
                    changed[key] = new
            except _FailedError as error:
                error.path.append(key)
                raise
        if renamed:
            value = {key: member for key, member in value.items() if "{{" not in key}
        return {**value, **changed} if changed else value

    def _list(self, value: list[Any], deep: int) -> list[Any]:
        members = []
        changed = False
        for at, member in enumerate(value):
            try:
                new = self._member(member, deep)
            except _FailedError as error:
                error.path.append(at)
                raise
            if new is member:
                members.append(new)
                continue
            changed = True
            # An expression with an empty result is no argument: commands contain options under a condition.
            if new != "":
                members.append(new)
        return members if changed else value

    def _member(self, member: Any, deep: int) -> Any:
        if deep == _DEEPEST:
            raise _FailedError(TemplateError("is nested too deep"))
        return self.rendered(member, deep + 1)

    def _text(self, text: str) -> str:
        done = self._done.get(text)
        if done is None:
            try:
                done = self._done[text] = run(text, self._data, self._functions, self._budget)
            except TemplateError as error:
                raise _FailedError(TemplateError(f"the template in it cannot be rendered: {error}")) from None
        return done
