"""A subset of Go's text/template, for the expressions in configs (ADR 26). Pure.

Called by `configuration`. Fields, variables, pipelines, parentheses, `if`, `with`, `range`, comments and the functions
that it is given; no definitions, no methods. Each text of a config is a template of its own. `{{-` and `-}}` take
spaces alone, never line ends: KServe renders a config as JSON text, in which a line end is no white space.

Templates come from users, so all is bounded: length, nesting, steps, output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn

from program.desired.errors import SpecInvalid
from program.dialects.kserve.template_values import Struct, TemplateError, field_of, text_of, truth

LONGEST_TEMPLATE = 64 * 1024
"""Characters of one text."""
LONGEST_OUTPUT = 512 * 1024
"""Characters that the templates of one service may write."""
MOST_STEPS = 20_000
"""Evaluations that the templates of one service may take; the presets take less than 1,000."""
DEEPEST = 24
"""Levels of blocks and parentheses in a template, and of objects around it."""

Function = Callable[..., Any]
Functions = Mapping[str, Function]


@dataclass(slots=True)
class Budget:
    """What rendering a service may still cost."""

    steps: int = MOST_STEPS
    output: int = LONGEST_OUTPUT

    def step(self, count: int = 1) -> None:
        """Count evaluations. Raises TemplateError when there were too many."""
        self.steps -= count
        if self.steps < 0:
            raise TemplateError(f"takes more than {MOST_STEPS} steps together with the other templates")

    def write(self, length: int) -> None:
        """Count characters of output. Raises TemplateError when there were too many."""
        self.output -= length
        if self.output < 0:
            raise TemplateError(f"writes more than {LONGEST_OUTPUT} characters together with the other templates")


@dataclass(slots=True)
class _Scope:
    root: Any
    dot: Any
    functions: Functions
    budget: Budget
    variables: dict[str, Any]
    out: list[str] = field(default_factory=list)


_Eval = Callable[[_Scope], Any]
_Node = Callable[[_Scope], None]


def render(value: Any, data: Any, functions: Functions, *, field: str, budget: Budget | None = None) -> Any:
    """Render every text in a JSON value; parts without expressions are shared with it.

    Raises SpecInvalid with reason InvalidRenderedConfig at the path of the text.
    """
    return _rendered(value, data, functions, field, budget or Budget(), 0)


def _rendered(value: Any, data: Any, functions: Functions, path: str, budget: Budget, deep: int) -> Any:
    if isinstance(value, str):
        return _text(value, data, functions, path, budget) if "{{" in value else value
    if deep > 100:
        raise SpecInvalid(field=path[:256], why="is nested too deep", reason="InvalidRenderedConfig")
    if isinstance(value, dict):
        changed = {}
        for key, member in value.items():
            new = _rendered(member, data, functions, f"{path}.{key}", budget, deep + 1)
            if new is not member:
                changed[key] = new
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        members = [_rendered(m, data, functions, f"{path}[{i}]", budget, deep + 1) for i, m in enumerate(value)]
        if all(new is old for new, old in zip(members, value, strict=True)):
            return value
        # An expression that came to nothing is no argument: commands may hold options under a condition.
        return [new for new, old in zip(members, value, strict=True) if new != "" or old == ""]
    return value


def _text(text: str, data: Any, functions: Functions, path: str, budget: Budget) -> str:
    try:
        if len(text) > LONGEST_TEMPLATE:
            raise TemplateError(f"is longer than {LONGEST_TEMPLATE} characters")
        scope = _Scope(data, data, functions, budget, {})
        # What is long is not worth its place in the cache.
        for node in _cached(text) if len(text) < 16_384 else _parsed(text):
            node(scope)
        return "".join(scope.out)
    except TemplateError as error:
        raise SpecInvalid(
            field=path, why=f"the template in it cannot be rendered: {error}", reason="InvalidRenderedConfig"
        ) from None


@lru_cache(maxsize=512)
def _cached(text: str) -> tuple[_Node, ...]:
    return _parsed(text)


def _parsed(text: str) -> tuple[_Node, ...]:
    return _Parser(text).nodes_to_end()


_ACTION = re.compile(r"\{\{(-(?=\s))?")
_END = re.compile(r"\s*(?:\s(-))?\}\}")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)
    | (?P<number>-?\d+(?:\.\d+)?)(?![\w.])
    | (?P<variable>\$\w*)
    | (?P<field>\.[A-Za-z_]\w*)
    | (?P<dot>\.)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<mark>:=|[|(),=])
    )""",
    re.VERBOSE | re.ASCII,
)
_COMMENT = re.compile(r"\s*/\*.*?\*/", re.DOTALL)
_BLOCKS = frozenset({"if", "with", "range", "else", "end"})
_CONSTANTS = {"true": True, "false": False, "nil": None}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    spaced: bool
    """Whether white space is before it: `.A .B` are two arguments, `.A.B` is one."""


class _Parser:
    """Reads one template, front to back, once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._trim_next = False
        self._deep = 0
        self._shown = ""
        """The action being read, for errors."""

    def nodes_to_end(self) -> tuple[_Node, ...]:
        nodes, ended_by = self._nodes()
        if ended_by:
            raise TemplateError(f"`{self._shown}` ends nothing")
        return tuple(nodes)

    def _nodes(self) -> tuple[list[_Node], list[_Token]]:
        """Read up to the `else` or `end` of the block around; it is returned. Empty at the end of the text."""
        nodes: list[_Node] = []
        while True:
            action = self._literal(nodes)
            if action is None:
                return nodes, []
            if not action:
                continue
            if action[0].kind == "word" and action[0].text in _BLOCKS:
                if action[0].text in ("else", "end"):
                    return nodes, action
                nodes.append(self._block(action))
            else:
                nodes.append(self._output(action))

    def _literal(self, nodes: list[_Node]) -> list[_Token] | None:
        """Take the text up to the next action, and that action's tokens; None at the end."""
        match = _ACTION.search(self._text, self._at)
        literal = self._text[self._at : match.start() if match else len(self._text)]
        if self._trim_next:
            literal = literal.lstrip(" ")
        if match and match[1]:
            literal = literal.rstrip(" ")
        if literal:
            nodes.append(_literal_node(literal))
        if match is None:
            self._at = len(self._text)
            return None
        self._at = match.end()
        self._shown = self._text[match.start() : match.start() + 64].partition("}}")[0] + "}}"
        return self._action()

    def _action(self) -> list[_Token]:
        if comment := _COMMENT.match(self._text, self._at):
            self._at = comment.end()
        tokens: list[_Token] = []
        while True:
            if end := _END.match(self._text, self._at):
                self._at = end.end()
                self._trim_next = bool(end[1])
                return tokens
            match = _TOKEN.match(self._text, self._at)
            if match is None or match.lastgroup is None:
                self._fail("is not understood" if "}}" in self._text[self._at :] else "has no closing `}}`")
            kind = match.lastgroup
            tokens.append(_Token(kind, match[kind], spaced=match.start(kind) > self._at))
            self._at = match.end()

    def _block(self, action: list[_Token]) -> _Node:
        self._deep += 1
        if self._deep > DEEPEST:
            self._fail(f"is nested more than {DEEPEST} levels deep")
        word, rest = action[0].text, action[1:]
        shown = self._shown
        names, condition = self._head(rest, word)
        body, ended_by = self._nodes()
        other: list[_Node] = []
        if ended_by and ended_by[0].text == "else":
            if len(ended_by) > 1:
                if word == "range" or ended_by[1].text != word:
                    self._fail("is not understood")
                other, ended_by = [self._block(ended_by[1:])], [_Token("word", "end", False)]
            else:
                other, ended_by = self._nodes()
        if len(ended_by) != 1 or ended_by[0].text != "end":
            raise TemplateError(f"`{shown}` has no `{{{{ end }}}}`")
        self._deep -= 1
        return _BLOCK_NODES[word](names, condition, tuple(body), tuple(other))

    def _head(self, tokens: list[_Token], word: str) -> tuple[tuple[str, ...], _Eval]:
        """Read `$a, $b := pipeline`; the variables are optional."""
        names: tuple[str, ...] = ()
        for at, token in enumerate(tokens):
            if token.text == ":=" and token.kind == "mark":
                left = tokens[:at]
                if any(t.kind != "variable" for t in left[::2]) or any(t.text != "," for t in left[1::2]):
                    self._fail("is not understood")
                names = tuple(t.text for t in left[::2])
                if not names or len(names) > (2 if word == "range" else 1):
                    self._fail("declares the wrong number of variables")
                tokens = tokens[at + 1 :]
                break
        return names, self._pipeline(tokens)

    def _output(self, action: list[_Token]) -> _Node:
        shown = self._shown
        if len(action) > 1 and action[0].kind == "variable" and action[1].text in (":=", "="):
            return _assignment(action[0].text, self._pipeline(action[2:]))
        value = self._pipeline(action)

        def write(scope: _Scope) -> None:
            scope.budget.step()
            result = value(scope)
            try:
                text = text_of(result)
            except TemplateError as error:
                raise TemplateError(f"`{shown}` {error}") from None
            scope.budget.write(len(text))
            scope.out.append(text)

        return write

    def _pipeline(self, tokens: Sequence[_Token]) -> _Eval:
        shown = self._shown
        commands: list[list[_Token]] = [[]]
        level = 0
        for token in tokens:
            level += (token.text == "(") - (token.text == ")") if token.kind == "mark" else 0
            if token.kind == "mark" and token.text == "|" and not level:
                commands.append([])
            else:
                commands[-1].append(token)
        result: _Eval | None = None
        for command in commands:
            if not command:
                self._fail("lacks an expression")
            result = self._command(command, result)
        assert result is not None
        return _explained(result, shown)

    def _command(self, tokens: list[_Token], piped: _Eval | None) -> _Eval:
        first = tokens[0]
        arguments: list[_Eval] = []
        rest = tokens[1:] if first.kind == "word" and first.text not in _CONSTANTS else tokens
        while rest:
            argument, rest = self._operand(rest)
            arguments.append(argument)
        if rest is not tokens and first.kind == "word" and first.text not in _CONSTANTS:
            return _call(first.text, arguments + ([piped] if piped else []))
        if piped or len(arguments) != 1:
            self._fail("is not a call of a function; only functions take arguments")
        return arguments[0]

    def _operand(self, tokens: list[_Token]) -> tuple[_Eval, list[_Token]]:
        first, rest = tokens[0], tokens[1:]
        if first.kind == "mark" and first.text == "(":
            inner, rest = self._parenthesis(rest)
            value, path = self._nested(inner), "(…)"
        elif first.kind == "variable":
            value, path = _variable(first.text), first.text
        elif first.kind == "dot":
            value, path = _dot, "."
        elif first.kind == "field":
            name = first.text[1:]
            value, path = _field(_dot, name, ""), first.text
        elif first.kind == "word":
            constant = _CONSTANTS.get(first.text, first.text)
            # A function without arguments, as an argument.
            value = _call(first.text, []) if constant is first.text else _constant(constant)
            path = first.text
        elif first.kind in ("text", "number"):
            value, path = _constant(self._constant(first)), first.text
        else:
            self._fail("is not understood")
        while rest and rest[0].kind == "field" and not rest[0].spaced:
            value = _field(value, rest[0].text[1:], path)
            path += rest[0].text
            rest = rest[1:]
        return value, rest

    def _parenthesis(self, tokens: list[_Token]) -> tuple[list[_Token], list[_Token]]:
        level, at = 1, 0
        while level:
            if at == len(tokens):
                self._fail("has no closing `)`")
            if tokens[at].kind == "mark":
                level += (tokens[at].text == "(") - (tokens[at].text == ")")
            at += 1
        return tokens[: at - 1], tokens[at:]

    def _nested(self, tokens: list[_Token]) -> _Eval:
        self._deep += 1
        if self._deep > DEEPEST:
            self._fail(f"is nested more than {DEEPEST} levels deep")
        value = self._pipeline(tokens)
        self._deep -= 1
        return value

    def _constant(self, token: _Token) -> Any:
        if token.kind == "number":
            return float(token.text) if "." in token.text else int(token.text)
        if token.text.startswith("`"):
            return token.text[1:-1]
        try:
            return json.loads(token.text)
        except ValueError:
            self._fail("holds an escape that is not understood")

    def _fail(self, why: str) -> NoReturn:
        raise TemplateError(f"`{self._shown}` {why}")


def _literal_node(text: str) -> _Node:
    def write(scope: _Scope) -> None:
        scope.budget.write(len(text))
        scope.out.append(text)

    return write


def _constant(value: Any) -> _Eval:
    return lambda _scope: value


def _dot(scope: _Scope) -> Any:
    return scope.dot


def _variable(name: str) -> _Eval:
    def value(scope: _Scope) -> Any:
        if name == "$":
            return scope.root
        if name not in scope.variables:
            raise TemplateError(f"there is no variable `{name}`")
        return scope.variables[name]

    return value


def _field(inner: _Eval, name: str, path: str) -> _Eval:
    def value(scope: _Scope) -> Any:
        of = inner(scope)
        # Looking a name up, and giving a list its shape, takes longer the larger they are.
        scope.budget.step(1 + (len(of.value) >> 5 if isinstance(of, Struct) else 0))
        found = field_of(of, name, path)
        if isinstance(found, list):
            scope.budget.step(len(found) >> 3)
        return found

    return value


def _call(name: str, arguments: Sequence[_Eval]) -> _Eval:
    def value(scope: _Scope) -> Any:
        scope.budget.step()
        if name in ("and", "or"):
            return _first_that(name == "or", arguments, scope)
        function = scope.functions.get(name)
        if function is None:
            known = ", ".join(sorted([*scope.functions, "and", "or"]))
            raise TemplateError(f"there is no function `{name}`; there are {known}")
        given = [argument(scope) for argument in arguments]
        try:
            result = function(*given)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
            raise TemplateError(f"`{name}` does not take these {len(given)} arguments") from None
        if isinstance(result, str):
            # Counted as if it were written: a text in a variable could double forever.
            scope.budget.write(len(result))
        return result

    return value


def _first_that(is_true: bool, arguments: Sequence[_Eval], scope: _Scope) -> Any:
    """Evaluate `or` and `and` as far as needed."""
    if not arguments:
        raise TemplateError("`and` and `or` need arguments")
    found: Any = None
    for argument in arguments:
        found = argument(scope)
        if truth(found) is is_true:
            break
    return found


def _explained(value: _Eval, shown: str) -> _Eval:
    def explained(scope: _Scope) -> Any:
        try:
            return value(scope)
        except TemplateError as error:
            words = str(error)
            raise TemplateError(words if words.startswith("`{{") else f"`{shown}`: {words}") from None

    return explained


def _assignment(name: str, value: _Eval) -> _Node:
    def assign(scope: _Scope) -> None:
        scope.budget.step()
        scope.variables[name] = value(scope)

    return assign


def _run(nodes: Sequence[_Node], scope: _Scope, dot: Any) -> None:
    outer, scope.dot = scope.dot, dot
    for node in nodes:
        node(scope)
    scope.dot = outer


def _if(names: tuple[str, ...], condition: _Eval, body: Sequence[_Node], other: Sequence[_Node]) -> _Node:
    def choose(scope: _Scope) -> None:
        scope.budget.step()
        value = condition(scope)
        scope.variables.update(dict.fromkeys(names, value))
        _run(body if truth(value) else other, scope, scope.dot)

    return choose


def _with(names: tuple[str, ...], condition: _Eval, body: Sequence[_Node], other: Sequence[_Node]) -> _Node:
    def choose(scope: _Scope) -> None:
        scope.budget.step()
        value = condition(scope)
        scope.variables.update(dict.fromkeys(names, value))
        if truth(value):
            _run(body, scope, value)
        else:
            _run(other, scope, scope.dot)

    return choose


def _range(names: tuple[str, ...], condition: _Eval, body: Sequence[_Node], other: Sequence[_Node]) -> _Node:
    def repeat(scope: _Scope) -> None:
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
    if isinstance(value, Mapping):
        # In the order of the keys, as Go does.
        return sorted((str(key), member) for key, member in value.items())
    raise TemplateError("`range` takes a list or a map")


_BLOCK_NODES: Mapping[str, Callable[[tuple[str, ...], _Eval, Sequence[_Node], Sequence[_Node]], _Node]] = {
    "if": _if,
    "with": _with,
    "range": _range,
}
