"""The pictures in docs/pictures show commands that exist, and do not name the machine that drew them."""

from __future__ import annotations

import re
import socket
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import pytest

from examples.picture import EXAMPLE, PICTURE, SESSION, WIDTH
from tests.unit.test_documents import command_line, complaints

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def lines(picture: Path) -> list[str]:
    """Return the lines of text of a terminal, top to bottom, without the title."""
    rows: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for text in ElementTree.parse(picture).iter(f"{SVG}text"):
        if "title" not in text.get("class", "") and (text.text or "").strip():
            rows[float(text.get("y", 0))].append((float(text.get("x", 0)), text.text or ""))
    return [" ".join(part for _, part in sorted(row)).replace("\xa0", " ") for _, row in sorted(rows.items())]


LINKED = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>[^)\s]+)\)")


def test_each_picture_of_a_page_exists_is_small_and_has_a_text() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [(page, found) for page in pages for found in LINKED.finditer(page.read_text("utf-8"))]
    missing = [f"{page.name}: {each['path']}" for page, each in shown if not (page.parent / each["path"]).is_file()]
    assert missing == []
    assert [each["path"] for _, each in shown if len(each["text"]) < 20] == [], "readers without eyes need a text"
    used = {(page.parent / each["path"]).resolve() for page, each in shown}
    kept = set((ROOT / "docs" / "pictures").iterdir())
    assert {path.name for path in kept - used} == set(), "a picture that no page shows"
    assert {path.name: path.stat().st_size for path in kept if path.stat().st_size > 150_000} == {}
    pngs = [path for path in kept if path.suffix == ".png"]
    assert pngs and all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in pngs)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_loads_nothing_and_names_no_machine(picture: Path) -> None:
    text = picture.read_text("utf-8")
    assert len(text.encode()) < 60_000
    assert re.findall(r"url\((?!#)[^)]*\)|@import|href=|<script|<image", text) == []
    shown = "\n".join(lines(picture))
    assert re.findall(r"/(?:home|root|Users|tmp|private|var)/\S*", shown) == []
    assert socket.gethostname() not in shown
    assert set(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", shown)) <= {"192.0.2.2"}


def test_the_terminal_shows_the_commands_of_the_session() -> None:
    shown = [line[2:] for line in lines(PICTURE) if line.startswith("$ ")]
    assert shown == list(SESSION)
    assert [each for command in shown for each in complaints(command_line(), command)] == []
    assert all(len(command) + 2 <= WIDTH for command in SESSION)


def test_the_session_edits_a_line_that_the_example_has() -> None:
    (edit,) = (command for command in SESSION if command.startswith("sed"))
    found = re.search(r"s/([^/]*)/[^/]*/", edit)
    assert found and found[1] in EXAMPLE.read_text("utf-8")


def test_the_terminal_shows_a_service_that_serves_and_a_change_of_one_argument() -> None:
    shown = "\n".join(lines(PICTURE))
    assert re.search(r"Phase: +Ready \(Serving\)", shown)
    assert re.search(r"--ctx-size 8192 -> 16384", shown)
    assert re.search(r"digest +[0-9a-f]{16}$", shown, re.MULTILINE)
