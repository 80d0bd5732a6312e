"""Adds the files outside docs/ that documents link to, and adapts the links. MkDocs calls it for `make docs`.

In the repository, links follow the folders, so that they work on a Git host. The root of the site is docs/. This hook
puts other documents, and all files that documents link to, into the site under their path in the repository.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "*/README.md")
"""Documents outside docs/ that belong to the site, as patterns of git. Files that they link to are added, too."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(?=[)#])")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the files outside docs/. MkDocs gives and takes its list of files."""
    # `make docs` alone installs MkDocs.
    from mkdocs.structure.files import File, InclusionLevel

    for name in outside():
        there = File.generated(config, name, abs_src_path=str(ROOT / name), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(there)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - MkDocs names them
    """Adapt the links of a page. A link that leads nowhere stays, and MkDocs reports it."""
    return adapted(markdown, page.file.src_uri)


def adapted(markdown: str, uri: str) -> str:
    """Return the text of the page `uri` of the site with each link relative to the root of the site."""

    def link(match: re.Match[str]) -> str:
        there = _target(_in_repository(uri), match[1])
        return match[1] if there is None else posixpath.relpath(_in_site(there), posixpath.dirname(uri) or ".")

    return _LINK.sub(link, markdown)


def outside() -> list[str]:
    """Return the files outside docs/ that the site needs, as paths in the repository."""
    found = {name for name in _tracked(*DOCUMENTS) if not name.startswith("docs/")}
    for page in [*_tracked("docs/*.md"), *found]:
        text = (ROOT / page).read_text("utf-8")
        found.update(there for link in _LINK.findall(text) if (there := _target(page, link)) is not None)
    return sorted(name for name in found if name != "README.md" and not name.startswith("docs/"))


def _target(page: str, link: str) -> str | None:
    """Return the file that a link of `page` leads to, as a path in the repository. A folder leads to its README.md."""
    there = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (ROOT / there / "README.md").is_file():
        there += "/README.md"
    return there if not there.startswith("..") and (ROOT / there).is_file() else None


def _in_repository(uri: str) -> str:
    return f"docs/{uri}" if (ROOT / "docs" / uri).is_file() else uri


def _in_site(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()
