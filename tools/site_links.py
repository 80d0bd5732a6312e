"""Adds the files outside docs/ that documents link to, and adapts the links. MkDocs calls it for `make docs`.

In the repository, links follow the folders, so that they work on a Git host. The root of the site is docs/. This hook
puts the files of `OUTSIDE` into the site under their path in the repository.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Containerfile",
    "benchmarks",
    "examples",
    "stacks",
    "tests",
)
"""Files, and folders whose documents and examples belong to the site."""

_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(?=[)#])")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the files outside docs/ that git tracks. MkDocs gives and takes its list of files."""
    # `make docs` alone installs MkDocs.
    from mkdocs.structure.files import File, InclusionLevel

    for name in _tracked():
        there = File.generated(config, name, abs_src_path=str(ROOT / name), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(there)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - MkDocs names them
    """Adapt the links of a page. A link that leads nowhere stays, and MkDocs reports it."""
    return adapted(markdown, page.file.src_uri)


def adapted(markdown: str, uri: str) -> str:
    """Return the text of the page `uri` of the site with each link relative to the root of the site."""
    folder = posixpath.dirname(_in_repository(uri))

    def link(match: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(folder, match[1]))
        if (ROOT / there / "README.md").is_file():
            there += "/README.md"
        if not (ROOT / there).is_file():
            return match[1]
        return posixpath.relpath(_in_site(there), posixpath.dirname(uri) or ".")

    return _LINK.sub(link, markdown)


def _in_repository(uri: str) -> str:
    return uri if uri.partition("/")[0] in OUTSIDE else f"docs/{uri}"


def _in_site(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", *OUTSIDE], cwd=ROOT, capture_output=True, text=True, check=True)
    names = listed.stdout.splitlines()
    documents = {name for name in names if name.endswith(".md")}
    examples = {name for name in names if name.startswith("examples/")}
    return sorted(documents | examples | {"Containerfile"})
