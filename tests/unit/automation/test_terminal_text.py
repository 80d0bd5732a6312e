"""Text from other sources cannot move a terminal's cursor, in any command."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from automation.cli import output
from automation.cli.describe import print_description
from automation.cli.output import complain, print_json, print_table, say, say_yaml, styled
from automation.cli.top import View, draw
from automation.console.terminal_text import LogText, cleaned, is_clean, json_text, lines, one_line
from automation.places.resource_use import HostUse, ServiceUse
from automation.preview.changes import ObjectChange, Preview, ServicePreview
from automation.preview.report import as_terminal_text
from program.desired.keys import ServiceKey

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\u202ed\x7f\x00\r\ud800"
SGR = re.compile(r"\x1b\[[0-9;]*m")


def obeyed(shown: str) -> str:
    """The control sequences in a text other than colours and line ends."""
    return "".join(re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", SGR.sub("", shown)))


def test_control_characters_become_visible_and_all_else_stays() -> None:
    assert one_line("a\x1b[2J\nb\t\u202e\x9b\U000e0041") == "a\\x1b[2J\\nb\\t\\u202e\\x9b\\U000e0041"
    assert lines("a\n\tb\rc") == "a\n\tb\\rc"
    usual = "Grüße, 世界 👩\u200d🚀 नमस्ते `code` [red] €"
    assert (one_line(usual), lines(usual), json_text(usual)) == (usual, usual, usual)
    assert is_clean(usual)
    assert not is_clean(HOSTILE)


@given(st.text())
def test_json_means_the_same_and_holds_nothing_to_obey(text: str) -> None:
    escaped = json_text(json.dumps(text, ensure_ascii=False))
    assert json.loads(escaped) == text
    assert obeyed(escaped) == ""


def test_a_log_on_a_terminal_loses_its_colours_and_what_moves_the_cursor() -> None:
    clean = LogText()
    pieces = ["\x1b[3", "2mINFO\x1b[0m started\r", "\n10%\r", "20%\n\x1b", "[2Jgone\x1b"]
    shown = "".join(clean(piece) for piece in pieces) + clean.rest()
    assert shown == "INFO started\n10%\n20%\n\\x1b[2Jgone\\x1b"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("terminal")
def test_whatever_a_command_prints_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    say(HOSTILE, err=True)
    complain(HOSTILE, hint=HOSTILE)
    print_table(("NAME", "MESSAGE"), [(HOSTILE, f"{HOSTILE}\nsecond line")], phase_column=0)
    print_json({HOSTILE.replace("\ud800", ""): [HOSTILE]})
    say_yaml([{"a": HOSTILE.replace("\ud800", "")}])
    shown = capsys.readouterr()
    assert obeyed(shown.out) == ""
    assert obeyed(shown.err) == ""
    assert "\\x1b[2J" in shown.out


@pytest.mark.usefixtures("terminal")
def test_a_description_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("namespace", "name", "kind", "phase", "reason", "message", "runtime", "mode", "runsOn", "endpoint")
    description: dict[str, Any] = dict.fromkeys(keys, HOSTILE)
    condition = {"type": HOSTILE, "status": "False", "reason": HOSTILE, "message": HOSTILE, "for": "1s"}
    description |= {
        "model": {"name": HOSTILE, "phase": HOSTILE},
        "counts": {"ready": 0, "desired": 1, "existing": 1, "unproved": 0},
        "conditions": [condition],
        "events": [],
    }
    print_description(description)
    shown = capsys.readouterr().out
    assert obeyed(shown) == ""
    assert "\\x1b[2J" in shown


def test_the_view_of_top_is_clean() -> None:
    def made(kind: type[Any]) -> Any:
        values = {
            field.name: HOSTILE if "str" in str(field.type) else (0 if "int" in str(field.type) else None)
            for field in dataclasses.fields(kind)
        }
        return kind(**values)

    console = Console(file=io.StringIO(), force_terminal=True, width=300, color_system="standard")
    console.print(draw(View([made(HostUse)], [made(ServiceUse)]), "name", width=300, note=HOSTILE))
    assert obeyed(console.file.getvalue()) == ""  # type: ignore[attr-defined]


def test_a_preview_is_clean_and_keeps_its_own_colours() -> None:
    change = ObjectChange(op="update", kind="Deployment", name=HOSTILE, fields=(HOSTILE,), refused=HOSTILE)
    service = ServicePreview(key=ServiceKey("llmkube", "ns", HOSTILE), objects=(change,))
    shown = as_terminal_text(Preview(services=(service,), errors=(HOSTILE,), notes=(HOSTILE,)), colour=True)
    assert obeyed(shown) == ""
    assert "\x1b[33m~ " in shown
    assert cleaned({"a": [HOSTILE], "b": (1, HOSTILE)}) == {"a": [lines(HOSTILE)], "b": (1, lines(HOSTILE))}


def test_a_styled_text_is_one_line() -> None:
    assert styled("a\nb\x1b", "red").plain == "a\\nb\\x1b"


def test_yaml_that_holds_control_characters_is_escaped_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"a": "x\u202ey\x85z", "b": "ü"}
    say_yaml([data])
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown) == data
    assert "\u202e" not in shown
    say_yaml([{"b": "ü"}])
    assert capsys.readouterr().out == "b: ü\n"


WRITERS = {
    "output.py": "is the place",
    "chat.py": "passes on the pieces of an answer, cleaned by `terminal_text` for a terminal",
    "completion.py": "prints a script for a shell",
    "waiting.py": "draws bars that it removes; their texts are its own",
    "logs.py": "passes a log on as it is where no terminal shows it",
}
"""Modules of the command line that write by themselves, and why."""


def test_commands_print_by_one_module_alone() -> None:
    found = set()
    for path in Path(output.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("print", "typer.echo", "click.echo", "Text", "sys.stdout.write", "sys.stderr.write"):
                found.add((path.name, called))
    assert {name for name, _ in found} <= set(WRITERS), sorted(found)
