"""The documentation site: links, the navigation, the index of decisions, and the beginning of pages.

`make docs` finds broken links.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.site_links import adapted, outside

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path for kind in ("explanation", "reference") for path in (DOCS / kind).rglob("*.md"))


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("how-to/hosts.md", "../explanation/state.md", "../explanation/state.md"),
        ("how-to/hosts.md", "../../ARCHITECTURE.md", "../ARCHITECTURE.md"),
        ("how-to/hosts.md", "../../examples/05-mac-host", "../examples/05-mac-host/README.md"),
        ("examples/05-mac-host/README.md", "../../docs/how-to/hosts.md", "../../how-to/hosts.md"),
        ("ARCHITECTURE.md", "docs/reference/glossary.md", "reference/glossary.md"),
        ("ARCHITECTURE.md", "README.md", "index.md"),
    ],
)
def test_a_link_leads_to_the_same_file_in_the_site(page: str, link: str, expected: str) -> None:
    assert adapted(f"[x]({link}#part) and [y]({link})", page) == f"[x]({expected}#part) and [y]({expected})"


@pytest.mark.parametrize("link", ["https://example.com/a.md", "#part", "nowhere.md"])
def test_other_links_stay(link: str) -> None:
    assert adapted(f"[x]({link})", "how-to/hosts.md") == f"[x]({link})"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_begins_with_its_readers_and_contents(path: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", path.read_text("utf-8"), flags=re.DOTALL).strip()
    heading, paragraph = text.split("\n\n")[:2]
    assert heading.startswith("# ")
    assert re.search(r"\b(?:This page is|These pages are) for \w+", paragraph)


def test_the_site_has_the_files_that_documents_link_to() -> None:
    added = outside()
    assert {"ARCHITECTURE.md", "examples/05-mac-host/README.md", "Containerfile"} <= set(added)
    assert not [name for name in added if name.startswith("docs/")]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(page for page in pages if not page.startswith("adr/0")), "change nav in mkdocs.yml"


def test_the_index_leads_to_every_tutorial_and_guide() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text("utf-8")))
    pages = {str(path.relative_to(DOCS)) for kind in ("tutorials", "how-to") for path in (DOCS / kind).glob("*.md")}
    assert pages - linked == set(), "add a task to docs/index.md"


def test_the_index_of_decisions_has_each_decision_once_with_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (DOCS / "adr" / "README.md").read_text("utf-8"), re.MULTILINE)
    made = [
        (path.read_text("utf-8").split("\n")[0].removeprefix("# "), path.name) for path in (DOCS / "adr").glob("0*.md")
    ]
    assert sorted(listed) == sorted(made)
