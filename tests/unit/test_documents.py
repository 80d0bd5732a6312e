"""All paths, links, commands with options, settings, annotations and metrics in the documents exist."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from automation.cli.main import COMMANDS, GROUPS, application
from tests.support.packages import PACKAGES

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *(
            ROOT / name
            for name in (
                "README.md",
                "CHANGELOG.md",
                "ARCHITECTURE.md",
                "CONTRIBUTING.md",
                "benchmarks/README.md",
                "tests/README.md",
            )
        ),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
SOURCES = (
    *PACKAGES,
    "examples",
    "benchmarks",
    "stacks",
    "charts",
)
FOLDERS = (*SOURCES, "docs", "tests")

_SPAN = re.compile(r"`([^`\n]+)`")
_SHELL = re.compile(r"```(?:sh|bash|shell|console)?\b(?!\S)|```$")
_PATH = re.compile(rf"^(?:{'|'.join(FOLDERS)})/[\w.*/-]*$")
_MODULE = re.compile(r"^[\w*]+\.(?:py|sh)$")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_SETTING = re.compile(r"\bHERDSMAN_[A-Z0-9_]*[A-Z0-9]\b(?!_|…|\*)")
_GIVEN = re.compile(r"\bherdsman install [^\n]*?--set ([a-z_]+)=")
_METRIC = re.compile(r"\bherdsman_[a-z0-9_]+[a-z0-9]\b")
_MARK = re.compile(r"\bherdsman\.dev/[a-z][a-z0-9.-]*[a-z0-9]\b")


def each_document() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def spans(text: str) -> Iterator[str]:
    """Yield the code spans of a document, and each line of its code blocks without its comment."""
    fence = ""
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip()
        elif line.startswith("    ") or _SHELL.match(fence):
            yield re.sub(r"\s#.*", "", line.strip())
        else:
            yield from _SPAN.findall(line)


@functools.cache
def source() -> str:
    """Return the text of all code and configuration files."""
    files = (path for folder in SOURCES for path in (ROOT / folder).rglob("*"))
    read = {".py", ".sh", ".yaml", ".json", ".tpl", ".toml"}
    top = [
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
        *(ROOT / "tests" / "support").glob("*.py"),
        *ROOT.glob("tests/conftest.py"),
    ]
    return "\n".join(path.read_text("utf-8") for path in (*files, *top) if path in top or path.suffix in read)


@functools.cache
def modules() -> frozenset[str]:
    return frozenset(
        path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".sh")
    )


@each_document()
def test_paths_exist(path: Path) -> None:
    named = set(spans(path.read_text("utf-8")))
    missing = [each for each in named if _PATH.match(each) and not any(ROOT.glob(each.rstrip("/")))]
    missing += [each for each in named if _MODULE.match(each) and "*" not in each and each not in modules()]
    assert missing == []


@each_document()
def test_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target, anchor in _LINK.findall(path.read_text("utf-8")):
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or (anchor and anchor[1:] not in anchors(there)):
            broken.append(target + anchor)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@functools.cache
def command_line() -> Any:
    return typer.main.get_command(application([*GROUPS, *COMMANDS]))


@each_document()
def test_commands_and_their_options_exist(path: Path) -> None:
    root = command_line()
    wrong = [said for span in spans(path.read_text("utf-8")) for said in complaints(root, span)]
    assert wrong == []


def complaints(root: Any, span: str) -> Iterator[str]:
    """Yield the errors in the calls of `herdsman` in a piece of code."""
    for part in re.split(r"\||&&|;|\$\(", span):
        match = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:sudo )?(?:[\w./-]*/)?herdsman (.*)", part)
        if match is None:
            continue
        try:
            words = shlex.split(match[1])
        except ValueError:
            continue
        yield from (f"{span}: {why}" for why in unknown(root, words))


def unknown(command: Any, words: list[str]) -> Iterator[str]:
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z][\w-]*", words[0]):
        found = command.commands.get(words[0])
        if found is None:
            yield f"there is no `{words[0]}`"
            return
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known.add("--help")
    if (command.context_settings or {}).get("ignore_unknown_options"):
        known |= handed_on()
    for word in itertools.takewhile(lambda each: each != "--", words):
        option = word.partition("=")[0].rstrip(",.)…")
        if re.fullmatch(r"--[a-z][\w-]*", option) and option not in known:
            yield f"{command.name} has no {option}"


@functools.cache
def handed_on() -> frozenset[str]:
    """Return the options of `agent run`, which `agent install` and `agent doctor` accept as well."""
    run = command_line().commands["agent"].commands["run"]
    return frozenset(option for parameter in run.params for option in (*parameter.opts, *parameter.secondary_opts))


@each_document()
def test_settings_exist(path: Path) -> None:
    from automation.settings import Settings

    known = {f"HERDSMAN_{name.upper()}" for name in Settings.model_fields}
    text = path.read_text("utf-8")
    named = {*_SETTING.findall(text), *(f"HERDSMAN_{name.upper()}" for name in _GIVEN.findall(text))}
    assert sorted(each for each in named - known if each not in source()) == []


@each_document()
def test_annotations_and_labels_exist(path: Path) -> None:
    named = set(_MARK.findall(path.read_text("utf-8")))
    assert sorted(each for each in named if each not in source()) == []


@each_document()
def test_metrics_exist(path: Path) -> None:
    written = source()
    named = {re.sub(r"_(?:total|bucket|sum|count)$", "", each) for each in _METRIC.findall(path.read_text("utf-8"))}
    # Most metrics are registered without the prefix that all names of a registry have.
    short = {each: re.sub(r"^herdsman_(?:agent_)?(?:process_)?", "", each) for each in named}
    assert sorted(each for each in named if each not in written and f'"{short[each]}' not in written) == []


@each_document()
def test_targets_and_benchmarks_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {match[1] for span in spans(text) if (match := re.match(r"^make ([a-z][\w-]*)", span))}
    assert sorted(named - targets) == []
    measured = set(
        re.findall(r'^ {8}"([a-z-]+)": \w+\.main,$', (ROOT / "benchmarks/__main__.py").read_text(), re.MULTILINE)
    )
    assert measured
    assert sorted(set(re.findall(r"-m benchmarks ([a-z][\w-]*)", text)) - measured) == []
