"""The nodes of a parsed template, expressions and blocks, as functions of a scope. Pure.

Users write templates, so every step and every character of output counts against a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from program.dialects.kserve.templating.values import ANY, Struct, TemplateError, field_of, text_of, truth, wrap

LONGEST_TEMPLATE = 64 * 1024
"""Characters of one text."""
MOST_SOURCE = 256 * 1024
"""Characters of all templates of one service."""
LONGEST_OUTPUT = 512 * 1024
"""Characters of output of all templates of one service."""
MOST_STEPS = 20_000
"""Evaluations of all templates of one service. The presets need fewer than 1,000."""

LITERAL_BRACES = "For braces that do not begin a template, write {{ `{{` }}"
"""Hint for a text that is a template of another program, such as a model's prompt."""

Function = Callable[..., Any]
Functions = Mapping[str, Function]


@dataclass(slots=True)
class Budget:
    """The remaining budget for rendering a service."""

    steps: int = MOST_STEPS
    output: int = LONGEST_OUTPUT
    source: int = MOST_SOURCE

    def read(self, length: int) -> None:
        """Count characters of a template. Raises TemplateError when the budget is used up."""
        self.source -= length
        if length > LONGEST_TEMPLATE or self.source < 0:
            raise TemplateError(
                f"is longer than {LONGEST_TEMPLATE} characters, or than {MOST_SOURCE} with the other templates"
            )

    def step(self, count: int = 1) -> None:
        """Count evaluations. Raises TemplateError when the budget is used up."""
        self.steps -= count
        if self.steps < 0:
            raise TemplateError(f"takes more than {MOST_STEPS} steps together with the other templates")

    def write(self, length: int) -> None:
        """Count characters of output. Raises TemplateError when the budget is used up."""
        self.output -= length
        if self.output < 0:
            raise TemplateError(f"writes more than {LONGEST_OUTPUT} characters together with the other templates")


@dataclass(slots=True)
class Scope:
    """The state of a running template."""

    root: Any
    dot: Any
    functions: Functions
    budget: Budget
    variables: dict[str, Any]
    out: list[str] = field(default_factory=list)


Eval = Callable[[Scope], Any]
Node = Callable[[Scope], None]


def literal_text(text: str) -> Node:
    """Return a node that writes text unchanged."""

    def write(scope: Scope) -> None:
        scope.budget.write(len(text))
        scope.out.append(text)

    return write


def constant_value(value: Any) -> Eval:
    """Return an expression for a constant of the template."""
    return lambda _scope: value


def dot_value(scope: Scope) -> Any:
    """Return `.`."""
    return scope.dot


def variable_value(name: str) -> Eval:
    """Return an expression for `$name`; `$` alone is the root."""

    def value(scope: Scope) -> Any:
        if name == "$":
            return scope.root
        if name not in scope.variables:
            raise TemplateError(f"there is no variable `{name}`")
        return scope.variables[name]

    return value


def field_at(inner: Eval, name: str, path: str) -> Eval:
    """Return an expression for field `name` of a value that errors call `path`."""

    def value(scope: Scope) -> Any:
        of = inner(scope)
        # The cost of a field lookup, and of wrapping a list, grows with their size.
        scope.budget.step(1 + (len(of.value) >> 5 if isinstance(of, Struct) else 0))
        found = field_of(of, name, path)
        if isinstance(found, list):
            scope.budget.step(len(found) >> 3)
        return found

    return value


def call(name: str, arguments: Sequence[Eval]) -> Eval:
    """Return an expression that calls a function. `and` and `or` evaluate only the arguments that they need."""

    def value(scope: Scope) -> Any:
        scope.budget.step()
        if name in ("and", "or"):
            return _first_that(name == "or", arguments, scope)
        function = scope.functions.get(name)
        if function is None:
            known = ", ".join(sorted([*scope.functions, "and", "or"]))
            raise TemplateError(f"there is no function `{name}`; there are {known}. {LITERAL_BRACES}")
        given = [argument(scope) for argument in arguments]
        try:
            result = function(*given)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            raise TemplateError(f"`{name}` does not take these {len(given)} arguments") from None
        if isinstance(result, str):
            # Counted like output: otherwise a text in a variable could double without limit.
            scope.budget.write(len(result))
        return result

    return value


def _first_that(is_true: bool, arguments: Sequence[Eval], scope: Scope) -> Any:
    """Evaluate `or` and `and` until the result is known."""
    if not arguments:
        raise TemplateError("`and` and `or` need arguments")
    found: Any = None
    for argument in arguments:
        found = argument(scope)
        if truth(found) is is_true:
            break
    return found


def output(value: Eval, shown: str) -> Node:
    """Return a node that writes the value of an expression."""

    def write(scope: Scope) -> None:
        scope.budget.step()
        result = value(scope)
        try:
            text = text_of(result)
        except TemplateError as error:
            raise TemplateError(f"`{shown}` {error}") from None
        scope.budget.write(len(text))
        scope.out.append(text)

    return write


def explained(value: Eval, shown: str) -> Eval:
    """Add the action to errors, unless they name an action within it."""

    def explained(scope: Scope) -> Any:
        try:
            return value(scope)
        except TemplateError as error:
            words = str(error)
            raise TemplateError(words if words.startswith("`{{") else f"`{shown}`: {words}") from None

    return explained


def assignment(name: str, value: Eval) -> Node:
    """Return a node that sets a variable. It is valid to the end of the text; in Go, to the end of its block."""

    def assign(scope: Scope) -> None:
        scope.budget.step()
        scope.variables[name] = value(scope)

    return assign


def _run(nodes: Sequence[Node], scope: Scope, dot: Any) -> None:
    outer, scope.dot = scope.dot, dot
    for node in nodes:
        node(scope)
    scope.dot = outer


def _if(names: tuple[str, ...], condition: Eval, body: Sequence[Node], other: Sequence[Node]) -> Node:
    def choose(scope: Scope) -> None:
        scope.budget.step()
        value = condition(scope)
        scope.variables.update(dict.fromkeys(names, value))
        _run(body if truth(value) else other, scope, scope.dot)

    return choose


def _with(names: tuple[str, ...], condition: Eval, body: Sequence[Node], other: Sequence[Node]) -> Node:
    def choose(scope: Scope) -> None:
        scope.budget.step()
        value = condition(scope)
        scope.variables.update(dict.fromkeys(names, value))
        if truth(value):
            _run(body, scope, value)
        else:
            _run(other, scope, scope.dot)

    return choose


def _range(names: tuple[str, ...], condition: Eval, body: Sequence[Node], other: Sequence[Node]) -> Node:
    def repeat(scope: Scope) -> None:
        members = _members(condition(scope))
        for key, member in members:
            scope.budget.step()
            scope.variables.update(zip(names, (member,) if len(names) == 1 else (key, member), strict=False))
            _run(body, scope, member)
        if not members:
            _run(other, scope, scope.dot)

    return repeat


def _members(value: Any) -> list[tuple[Any, Any]]:
    if value is None:
        return []
    if isinstance(value, list):
        return list(enumerate(value))
    if isinstance(value, Struct):
        return sorted((key, wrap(member, ANY)) for key, member in value.value.items())
    if isinstance(value, Mapping):
        # In the order of the keys, as in Go.
        return sorted((str(key), member) for key, member in value.items())
    raise TemplateError("`range` takes a list or a map")


BLOCKS: Mapping[str, Callable[[tuple[str, ...], Eval, Sequence[Node], Sequence[Node]], Node]] = {
    "if": _if,
    "with": _with,
    "range": _range,
}
