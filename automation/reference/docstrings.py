"""Reads the docstrings of fields and enum members: the string literals that follow an assignment in a class."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

from pydantic.alias_generators import to_camel


def attribute_docstrings(owner: type) -> dict[str, str]:
    """Return the docstring of each attribute that has one, by the attribute's name, inherited attributes included."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        if each.__module__.partition(".")[0] in ("agent", "automation", "components", "program"):
            found |= _own_docstrings(each)
    return found


def _own_docstrings(owner: type) -> dict[str, str]:
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        text = following.value if isinstance(following, ast.Expr) else None
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name):
            found[target.id] = " ".join(text.value.split())
    return found


def on_the_wire(text: str) -> str:
    """Return a docstring of a wire model with its fields' names on the wire, where an absent field is None."""
    renamed = re.sub(r"`([a-z]+(?:_[a-z]+)+)`", lambda found: f"`{to_camel(found[1])}`", text)
    return re.sub(r"\bNone\b", "Absent", renamed)
