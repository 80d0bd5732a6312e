"""Each command in the how-to guides is run by the test that tests/documents/commands.toml names, or has a reason."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.shown_commands import GUIDES, PROGRAMS, command_line, key_of, options, shown_commands

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "tests/documents/commands.toml").read_text("utf-8"))
PAGES = sorted(GUIDES.glob("*.md"))


@functools.cache
def keys_of(page: Path) -> dict[str, int]:
    return {each.key: each.line for each in shown_commands(page.read_text("utf-8"))}


@functools.cache
def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def words_of(file: Path) -> frozenset[str]:
    """Return the words of the commands in a module, and in the modules of tests/support that it imports.

    A word is a string without spaces, or a part of a string that is a command line.
    """
    tree = syntax_of(file)
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    lines = [line.strip().removeprefix("sudo ") for text in texts for line in text.splitlines()]
    words = [word for line in lines if " " not in line or _begins_with_a_program(line) for word in line.split()]
    found = {part for word in words for part in (word, word.partition("=")[0])}
    imported = (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    for module in imported:
        if module.startswith("tests.support."):
            found |= words_of(ROOT / f"{module.replace('.', '/')}.py")
    return frozenset(found)


def _begins_with_a_program(line: str) -> bool:
    return re.split(r"\s", line.lstrip(";|&( "))[0] in PROGRAMS


def alternatives(key: str) -> Iterable[tuple[str, ...]]:
    """Return for each word of a key all its names; only an option has several."""
    words = key.split()[1:]
    if not key.startswith("herdsman "):
        return [(word,) for word in words]
    command: Any = command_line()
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    known = options(command)
    return [known.get(word, (word,)) for word in words]


def test_there_are_guides() -> None:
    assert len(PAGES) > 15 and sum(len(keys_of(page)) for page in PAGES) > 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_has_a_row(page: Path) -> None:
    missing = {
        key: line for key, line in keys_of(page).items() if key not in TABLE["run"] and key not in TABLE["not-run"]
    }
    assert missing == {}, f"commands of {page.name}, by line, without a row in tests/documents/commands.toml"


def test_each_row_has_a_command() -> None:
    shown = {key for page in PAGES for key in keys_of(page)}
    assert sorted({*TABLE["run"], *TABLE["not-run"]} - shown) == []
    assert sorted(TABLE["run"].keys() & TABLE["not-run"].keys()) == []


def test_each_command_of_herdsman_is_run() -> None:
    assert [key for key in TABLE["not-run"] if key.startswith("herdsman ")] == ["herdsman cluster up --node"]


@pytest.mark.parametrize(("key", "test"), TABLE["run"].items(), ids=TABLE["run"])
def test_the_named_test_runs_the_command(key: str, test: str) -> None:
    test, _, page = test.partition(" < ")
    file, _, name = test.partition("::")
    functions = [node.name for node in syntax_of(ROOT / file).body if isinstance(node, ast.FunctionDef)]
    assert name in functions, f"there is no {test}"
    found = words_of(ROOT / file)
    if page:
        assert key in keys_of(GUIDES / page) and page in found, f"{file} runs no commands of {page}"
        return
    assert [names for names in alternatives(key) if not found.intersection(names)] == [], f"words that {file} lacks"


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("sudo herdsman agent install --host a --user=b", "herdsman agent install --host --user"),
        ("/opt/herdsman/bin/herdsman host drain NAME", "herdsman host drain"),
        ("herdsman get -n prod", "herdsman get --namespace"),
        ("herdsman", None),
        ("kubectl -n a create token b --duration 1h", "kubectl create token --duration -n"),
        ("kubectl get deployment chat -o yaml", "kubectl get -o"),
        ("pulumi stack init prod", "pulumi stack init"),
        ("python3 -m tools.tiny_model x", "python -m tools.tiny_model"),
        ("cp a b", None),
    ],
)
def test_a_command_has_a_key(command: str, key: str | None) -> None:
    words = [word for word in command.split() if word != "sudo"]
    assert key_of(words, strict=True) == key


def test_an_unknown_program_is_named() -> None:
    with pytest.raises(ValueError, match="frobnicate"):
        key_of(["frobnicate"], strict=True)
