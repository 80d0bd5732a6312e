"""Parses a subset of Go's text/template (ADR 26). Pure.

It has fields, variables, pipelines, parentheses, `if`, `with`, `range`, comments and the given functions; no
definitions and no methods. Each text of a config is a separate template. `{{-` and `-}}` remove spaces but no line
ends, because KServe renders a config as JSON text, in which a line end is no white space.

Users write templates, so length, nesting, steps and output are limited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from program.dialects.kserve.templating.nodes import (
    BLOCKS,
    LITERAL_BRACES,
    Budget,
    Eval,
    Functions,
    Node,
    Scope,
    assignment,
    call,
    constant_value,
    dot_value,
    explained,
    field_at,
    literal_text,
    output,
    variable_value,
)
from program.dialects.kserve.templating.values import TemplateError

DEEPEST = 24
"""Maximum nesting of blocks and parentheses in a template."""
MOST_TOKENS = 512
"""Maximum number of words and signs between one pair of braces."""


def run(text: str, data: Any, functions: Functions, budget: Budget) -> str:
    """Render one text. Raises TemplateError with a message that names the expression."""
    budget.read(len(text))
    scope = Scope(data, data, functions, budget, {})
    # A long text is not cached, because it would take too much memory.
    for node in _cached(text) if len(text) < 16_384 else _parsed(text):
        node(scope)
    return "".join(scope.out)


@lru_cache(maxsize=512)
def _cached(text: str) -> tuple[Node, ...]:
    return _parsed(text)


def _parsed(text: str) -> tuple[Node, ...]:
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
_BLOCK_WORDS = frozenset({*BLOCKS, "else", "end"})
_CONSTANTS = {"true": True, "false": False, "nil": None}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    spaced: bool
    """Whether white space precedes it: `.A .B` are two arguments, `.A.B` is one."""


class _Parser:
    """Reads one template once, from start to end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._trim_next = False
        self._deep = 0
        self._shown = ""
        """The current action, for errors."""

    def nodes_to_end(self) -> tuple[Node, ...]:
        nodes, ended_by = self._nodes()
        if ended_by:
            raise TemplateError(f"`{self._shown}` ends nothing")
        return tuple(nodes)

    def _nodes(self) -> tuple[list[Node], list[_Token]]:
        """Read up to the `else` or `end` of the enclosing block and return its tokens; empty at the end of the text."""
        nodes: list[Node] = []
        while True:
            action = self._literal(nodes)
            if action is None:
                return nodes, []
            if not action:
                continue
            if action[0].kind == "word" and action[0].text in _BLOCK_WORDS:
                if action[0].text in ("else", "end"):
                    return nodes, action
                nodes.append(self._block(action))
            else:
                nodes.append(self._output(action))

    def _literal(self, nodes: list[Node]) -> list[_Token] | None:
        """Read the text up to the next action, and return that action's tokens; None at the end."""
        match = _ACTION.search(self._text, self._at)
        literal = self._text[self._at : match.start() if match else len(self._text)]
        if self._trim_next:
            literal = literal.lstrip(" ")
        if match and match[1]:
            literal = literal.rstrip(" ")
        if literal:
            nodes.append(literal_text(literal))
        if match is None:
            self._at = len(self._text)
            return None
        self._at = match.end()
        closing = "}}" if "}}" in self._text[match.start() :] else ""
        self._shown = self._text[match.start() : match.start() + 64].partition("}}")[0] + closing
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
                self._fail(
                    f"is not understood. {LITERAL_BRACES}" if "}}" in self._text[self._at :] else "has no closing `}}`"
                )
            if len(tokens) == MOST_TOKENS:
                self._fail(f"holds more than {MOST_TOKENS} words")
            kind = match.lastgroup
            tokens.append(_Token(kind, match[kind], spaced=match.start(kind) > self._at))
            self._at = match.end()

    def _block(self, action: list[_Token]) -> Node:
        self._deep += 1
        if self._deep > DEEPEST:
            self._fail(f"is nested more than {DEEPEST} levels deep")
        word, rest = action[0].text, action[1:]
        shown = self._shown
        names, condition = self._head(rest, word)
        body, ended_by = self._nodes()
        other: list[Node] = []
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
        return BLOCKS[word](names, condition, tuple(body), tuple(other))

    def _head(self, tokens: list[_Token], word: str) -> tuple[tuple[str, ...], Eval]:
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

    def _output(self, action: list[_Token]) -> Node:
        shown = self._shown
        if len(action) > 1 and action[0].kind == "variable" and action[1].text in (":=", "="):
            return assignment(action[0].text, self._pipeline(action[2:]))
        return output(self._pipeline(action), shown)

    def _pipeline(self, tokens: Sequence[_Token]) -> Eval:
        shown = self._shown
        commands: list[list[_Token]] = [[]]
        level = 0
        for token in tokens:
            level += (token.text == "(") - (token.text == ")") if token.kind == "mark" else 0
            if token.kind == "mark" and token.text == "|" and not level:
                commands.append([])
            else:
                commands[-1].append(token)
        result: Eval | None = None
        for command in commands:
            if not command:
                self._fail("lacks an expression")
            result = self._command(command, result)
        assert result is not None
        return explained(result, shown)

    def _command(self, tokens: list[_Token], piped: Eval | None) -> Eval:
        first = tokens[0]
        arguments: list[Eval] = []
        rest = tokens[1:] if first.kind == "word" and first.text not in _CONSTANTS else tokens
        while rest:
            argument, rest = self._operand(rest)
            arguments.append(argument)
        if rest is not tokens and first.kind == "word" and first.text not in _CONSTANTS:
            return call(first.text, arguments + ([piped] if piped else []))
        if piped or len(arguments) != 1:
            self._fail("is not a call of a function; only functions take arguments")
        return arguments[0]

    def _operand(self, tokens: list[_Token]) -> tuple[Eval, list[_Token]]:
        first, rest = tokens[0], tokens[1:]
        if first.kind == "mark" and first.text == "(":
            inner, rest = self._parenthesis(rest)
            value, path = self._nested(inner), "(…)"
        elif first.kind == "variable":
            value, path = variable_value(first.text), first.text
        elif first.kind == "dot":
            value, path = dot_value, "."
        elif first.kind == "field":
            name = first.text[1:]
            value, path = field_at(dot_value, name, ""), first.text
        elif first.kind == "word":
            constant = _CONSTANTS.get(first.text, first.text)
            # A function without arguments, used as an argument.
            value = call(first.text, []) if constant is first.text else constant_value(constant)
            path = first.text
        elif first.kind in ("text", "number"):
            value, path = constant_value(self._constant(first)), first.text
        else:
            self._fail("is not understood")
        while rest and rest[0].kind == "field" and not rest[0].spaced:
            value = field_at(value, rest[0].text[1:], path)
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

    def _nested(self, tokens: list[_Token]) -> Eval:
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
