"""Writes the reference pages: command line, settings, fields of the custom resources, metrics, conditions.

`python -m automation.reference.generate ROOT` (`make reference`) writes them in the checkout. A test compares them.
"""

from __future__ import annotations

import pathlib
import sys

from automation.reference import cli_page, conditions, crds, metrics, settings_page

DOCS = "docs/reference"


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in the checkout."""
    return {
        f"{DOCS}/cli.md": cli_page.page(),
        f"{DOCS}/settings.md": settings_page.page(),
        metrics.PAGE: metrics.page(),
        conditions.PAGE: conditions.page(),
        **crds.pages(),
    }


def main(root: pathlib.Path) -> None:
    """Write the pages."""
    for name, text in pages().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
