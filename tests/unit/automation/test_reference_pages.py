"""The pages of commands and settings in docs/reference agree with the code and are complete."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from automation.engine.state_url import StateUrl
from automation.reference import exit_codes, settings_page
from automation.reference.cli_page import commands
from automation.reference.generate import pages
from automation.reference.tables import prose, table
from automation.settings import SERVICE_ACCOUNT_NAMESPACE, Settings, default_lease_namespace, default_state

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
ALWAYS = frozenset({0, 1})
"""The exit codes of every command: success and failure."""


@functools.cache
def generated() -> dict[str, str]:
    return pages()


@functools.cache
def all_commands() -> dict[str, Any]:
    return {name: command for name, command in commands() if not hasattr(command, "commands")}


def test_each_committed_page_equals_the_generated_one() -> None:
    for path, text in generated().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run `make reference`"


def test_every_command_and_every_option_has_a_description() -> None:
    assert [name for name, command in commands() if not command.help] == []
    assert [
        f"{name} {parameter.name}"
        for name, command in all_commands().items()
        for parameter in command.params
        if not parameter.help
    ] == []


def test_every_setting_has_a_description_and_its_variable_on_the_page() -> None:
    text = generated()["docs/reference/settings.md"]
    assert [name for name, words in settings_page.descriptions().items() if not words.strip()] == []
    assert [name for name in Settings.model_fields if f"`HERDSMAN_{name.upper()}`" not in text] == []


def test_every_option_of_run_is_a_setting() -> None:
    for option in all_commands()["run"].params:
        assert settings_page.setting_of(option.name) in Settings.model_fields


def test_the_defaults_that_depend_on_the_machine_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    factories = {name for name, field in Settings.model_fields.items() if field.default_factory is not None}
    assert factories == set(settings_page.COMPUTED)
    monkeypatch.setenv("XDG_STATE_HOME", "/states")
    assert default_state() == "file:///states/herdsman/state"
    assert "file://$XDG_STATE_HOME/herdsman/state" in settings_page.COMPUTED["state"]
    StateUrl.of(default_state())
    if not SERVICE_ACCOUNT_NAMESPACE.exists():
        assert default_lease_namespace() in settings_page.COMPUTED["lease_namespace"]


@pytest.mark.parametrize("name", sorted(all_commands()))
def test_the_table_of_exit_codes_is_that_of_the_code(name: str) -> None:
    callback = inspect.unwrap(all_commands()[name].callback)
    found = Reached()
    found.follow(callback)
    # `herdsman run` returns the exit code of the loop, whose docstring names both codes.
    assert found.unknown == (["code"] if name == "run" else [])
    described = exit_codes.COMMANDS.get(name, {})
    assert set(described) - ALWAYS == found.codes - ALWAYS
    if re.search(r"[Ee]xit code(s:| [01]:| 1 )", inspect.getdoc(callback) or ""):
        assert 1 in described, "the help gives exit code 1 a meaning; the table has to as well"


def test_the_table_names_only_commands_that_exist() -> None:
    assert set(exit_codes.COMMANDS) <= set(all_commands())


def test_the_common_codes_are_those_of_the_command_line() -> None:
    from automation.cli import main

    assert set(exit_codes.COMMON) == {0, main.EXIT_FAILED, main.EXIT_USAGE, main.EXIT_INTERRUPTED}


def test_text_of_the_help_is_no_html_and_breaks_no_table() -> None:
    assert prose("a\n  <b> `<c>` *") == "a &lt;b> `<c>` \\*"
    assert table(("x",), [("a|b",)]).splitlines()[2] == "| a\\|b |"


class Reached:
    """The exit codes that a function of automation.cli can end with, found in its source and in what it calls."""

    def __init__(self) -> None:
        self.codes: set[int] = set()
        self.unknown: list[str] = []
        self._seen: set[Any] = set()

    def follow(self, target: Any) -> None:
        if target in self._seen:
            return
        self._seen.add(target)
        module = sys.modules[target.__module__]
        tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
        names = {**vars(module), **dict(imported(tree))}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._called(node, names)
            if isinstance(node, (ast.Name, ast.Attribute)):
                found = inspect.unwrap(resolve(node, names)) if callable(resolve(node, names)) else None
                if getattr(found, "__module__", "").startswith("automation.cli.") and is_source(found):
                    self.follow(found)

    def _called(self, call: ast.Call, names: dict[str, Any]) -> None:
        if ast.unparse(call.func) == "typer.Exit":
            self._add(call.args[0], names)
        if any(keyword.arg == "abort" for keyword in call.keywords):
            self.codes.add(130)

    def _add(self, value: ast.expr, names: dict[str, Any]) -> None:
        if isinstance(value, ast.IfExp):
            self._add(value.body, names)
            self._add(value.orelse, names)
        elif isinstance(value, ast.Call):
            function = resolve(value.func, names)
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
                if isinstance(node, ast.Return) and node.value is not None:
                    self._add(node.value, names)
        elif isinstance(value, ast.Constant):
            self.codes.add(int(ast.literal_eval(value)))
        elif isinstance(found := resolve(value, names), int):
            self.codes.add(found)
        else:
            self.unknown.append(ast.unparse(value))


def imported(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    """The names that a function's body imports from automation.cli."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("automation.cli"):
            module = importlib.import_module(node.module or "")
            yield from ((each.asname or each.name, getattr(module, each.name)) for each in node.names)


def is_source(found: Any) -> bool:
    return inspect.isfunction(found) or inspect.isclass(found)


def resolve(node: ast.AST, names: dict[str, Any]) -> Any:
    """Return the value of a name or an attribute of a module; None for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, names)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None
