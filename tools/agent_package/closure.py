"""Finds the modules that given modules import, directly and indirectly, by their syntax. Nothing is imported.

Imports inside functions count, since a later command may run them. A module that is started by `python -m` counts if
its name follows `"-m"` in an argument list, and one of `program.module_import.import_alone` counts too.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Closure:
    """What the start modules need."""

    modules: dict[str, Path] = field(default_factory=dict)
    """The project's modules, packages included, by name."""
    third_party: dict[str, set[str]] = field(default_factory=dict)
    """Top-level modules outside of the project and the standard library, with the modules that import them."""


def closure(root: Path, packages: Iterable[str], start: Iterable[str]) -> Closure:
    """Return the closure of the start modules.

    Args:
        root: the folder with the project's packages.
        packages: their names.
        start: names of modules.

    Raises:
        ModuleNotFoundError: a start module does not exist.
    """
    own = frozenset(packages)
    found = Closure()
    todo = list(start)
    for name in todo:
        if _file_of(root, name) is None:
            raise ModuleNotFoundError(f"no module {name} below {root}")
    while todo:
        name = todo.pop()
        for module in _with_parents(name):
            path = _file_of(root, module)
            if path is None or module in found.modules:
                continue
            found.modules[module] = path
            tree = ast.parse(path.read_text(encoding="utf-8"))
            todo += [name for name in _started(tree) if name.partition(".")[0] in own]
            for imported in _imports(tree):
                top = imported.partition(".")[0]
                if top in own:
                    todo.append(imported)
                elif top not in sys.stdlib_module_names:
                    found.third_party.setdefault(top, set()).add(module)
    return found


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _file_of(root: Path, name: str) -> Path | None:
    """Return the file of a module. None for a name that is no module, such as that of a function."""
    path = root.joinpath(*name.split("."))
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


def _imports(tree: ast.Module) -> Iterator[str]:
    """Return the names that may be modules. `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise SyntaxError(f"relative import in line {node.lineno}")
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_alone":
            yield from (
                word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            )


def _started(tree: ast.Module) -> Iterator[str]:
    """Return the words that follow `"-m"` in lists and tuples; programs of others are among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            words = [element.value if isinstance(element, ast.Constant) else None for element in node.elts]
            for word, following in itertools.pairwise(words):
                if word == "-m" and isinstance(following, str):
                    yield following
                    yield f"{following}.__main__"
