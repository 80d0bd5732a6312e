"""Custom rules in CEL and Python, evaluated in a separate process.

`evaluator` starts the process at `main`, sends one line of JSON for each question, and kills the process if an answer
takes too long. So no expression can stop the loop, even by endless computation or deep recursion. The module has no
imports that slow the start of the process.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from kubeapi.json_types import Json

Check = Callable[..., object]
"""A rule's function. It gets `service`, `model`, `objects` and `namespace_labels`, and returns its findings or None."""

LONGEST_WORDS = 1024
"""Longest text of one finding of a Python rule, in characters."""
VARIABLES = ("service", "model", "objects", "resource", "namespaceLabels")
"""The variables of a CEL expression. `namespace` is a reserved word in CEL. Of a ModelRouter, ModelPool or LoRAAdapter
only `resource` and `namespaceLabels` exist, of a service all others."""
MOST_FINDINGS = 20
"""Number of findings of one rule about one service at most."""

_TYPES = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type")
_MACRO_VARIABLE = re.compile(r"\b(?:all|exists|exists_one|map|filter)\(\s*([A-Za-z_]\w*)\s*,", re.ASCII)


@dataclass(frozen=True)
class PythonRule:
    """One function that a `*.py` file of the folder registered."""

    name: str
    check: Check
    enforcement: Literal["mandatory", "advisory"]
    namespaces: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...] = ()


class Answer(NamedTuple):
    """One finding of a rule: the fields of a `Violation` except those of the policy."""

    rule: str = ""
    field: str = ""
    value: str = ""
    fix: str = ""


_registered: list[PythonRule] = []


def rule(
    name: str,
    *,
    enforcement: Literal["mandatory", "advisory"] = "mandatory",
    namespaces: Iterable[str] = (),
    names: Iterable[str] = (),
    kinds: Iterable[str] = (),
) -> Callable[[Check], Check]:
    """Return a decorator that registers a function as a rule of the policy folder.

    The function is called with `service` (metadata and spec of the custom resource), `model`, `objects` (the rendered
    objects) and `namespace_labels`. It returns None if the service obeys the rule. Otherwise it returns a sentence, a
    dict with `rule`, `field`, `value` and `fix`, or a list of these. An exception counts as a violation.

    Without `kinds` it is called for services of all kinds. For a ModelRouter, ModelPool or LoRAAdapter, which `kinds`
    must name, it is called with `resource` (kind, metadata and spec) and `namespace_labels`.
    """
    if not isinstance(name, str) or not name:
        raise TypeError('a rule needs a name: @rule("no-tests-in-production")')
    if enforcement not in ("mandatory", "advisory"):
        raise ValueError(f"enforcement is {enforcement!r}; write 'mandatory' or 'advisory'")
    for given in (namespaces, names, kinds):
        if isinstance(given, str):
            raise TypeError("namespaces and names are lists of patterns, and kinds is a list of kinds")

    def register(check: Check) -> Check:
        _registered.append(PythonRule(name, check, enforcement, tuple(namespaces), tuple(names), tuple(kinds)))
        return check

    return register


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer questions until stdin ends. Output of rules goes to stderr, because stdout carries the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    rules: list[PythonRule] = []
    programs: list[Any] = []
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "load" in question:
                programs = _compile(question["load"]["cel"])
                rules = _load(question["load"]["folder"], question["load"]["python"])
                answer: object = {"rules": [[r.name, r.enforcement, r.namespaces, r.names, r.kinds] for r in rules]}
            else:
                answer = {"findings": _findings(question["ask"], question["input"], programs, rules)}
        except _Unusable as error:
            answer = {"unusable": [error.where, error.why]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Unusable(Exception):
    """A rule that cannot be loaded."""

    def __init__(self, where: int | str, why: str) -> None:
        super().__init__(why)
        self.where, self.why = where, why


def _compile(expressions: Sequence[str]) -> list[Any]:
    if not expressions:
        return []
    import cel  # imported here, because the import is slow and few folders have CEL rules

    programs = []
    for number, expression in enumerate(expressions):
        try:
            program = cel.compile(expression)
            unknown = set(program.variables()) - set(VARIABLES) - _bound(program)
        except Exception as error:
            raise _Unusable(number, _last_line(error)) from None
        if unknown:
            raise _Unusable(
                number, f"uses `{min(unknown)}`, which is not a variable; the variables are {', '.join(VARIABLES)}"
            )
        programs.append(program)
    return programs


def _bound(program: Any) -> set[str]:
    """Return the names in an expression that need no value: types (`type(x) == int`) and the variables of macros."""
    return {*_TYPES, *_MACRO_VARIABLE.findall(program.source)}


def _load(folder: str, files: Mapping[str, str]) -> list[PythonRule]:
    """Run the folder's files in order of their names. The files can import each other."""
    _registered.clear()
    if files:
        sys.path.insert(0, folder)
    for name, text in sorted(files.items()):
        path = os.path.join(folder, name)
        try:
            exec(compile(text, path, "exec"), {"__name__": f"herdsman_policy_{name[:-3]}", "__file__": path})  # noqa: S102 - the operator's own code
        except BaseException as error:
            raise _Unusable(name, _told(error)) from None
    return list(_registered)


def _findings(
    numbers: Sequence[int], given: Json, programs: Sequence[Any], rules: Sequence[PythonRule]
) -> list[list[list[str]] | str]:
    """Return the findings of rules by number, the CEL rules first; a string is the reason for no answer."""
    context: Any = given
    if any(number < len(programs) for number in numbers):
        import cel

        try:
            context = cel.Context(given)  # converted to CEL's values once for all expressions
        except Exception as error:
            told = _told(error)
            return [told if n < len(programs) else _ask(n, given, given, programs, rules) for n in numbers]
    return [_ask(number, given, context, programs, rules) for number in numbers]


def _ask(
    number: int, given: Json, context: Any, programs: Sequence[Any], rules: Sequence[PythonRule]
) -> list[list[str]] | str:
    try:
        if number < len(programs):
            kept = programs[number].execute(context)
            if not isinstance(kept, bool):
                return f"returns {type(kept).__name__}, not true or false"
            return [] if kept else [[]]
        # Each rule gets a copy, because a rule may change its arguments.
        given = copy.deepcopy(given)
        given["namespace_labels"] = given.pop("namespaceLabels")
        found = rules[number - len(programs)].check(**given)
        return [list(answer) for answer in _answers(found)]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return _told(error)


def _answers(found: object) -> list[Answer]:
    if found is None or found is True or found == []:
        return []
    if isinstance(found, (str, Mapping)):
        found = [found]
    if not isinstance(found, Iterable):
        raise TypeError(f"the rule returned {found!r:.64}; it must return None, a sentence, a dict or a list of these")
    answers = []
    for each in list(found)[:MOST_FINDINGS]:
        if isinstance(each, Mapping):
            words = {key: str(each[key])[:LONGEST_WORDS] for key in Answer._fields if each.get(key) is not None}
            answers.append(Answer(**{"rule": "", **words}))
        elif isinstance(each, str):
            answers.append(Answer(each[:LONGEST_WORDS]))
        else:
            raise TypeError(f"the rule returned a list with {each!r:.64}; its entries must be sentences or dicts")
    return answers


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:LONGEST_WORDS]}"


def _last_line(error: Exception) -> str:
    """Return the first line of a parser's message, without the repeated expression."""
    text = str(error)
    at = text.find("ERROR: ")
    return (text[at + 7 :] if at >= 0 else text).replace("<input>:", "").split("\n")[0][:LONGEST_WORDS]
