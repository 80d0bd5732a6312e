"""Shell scripts that run on hosts over SSH, one file each, in POSIX sh for Linux and macOS.

`make lint` checks them with shellcheck. A script prints text from files with `printf '%s\\n'`, because the echo of many
shells interprets backslashes.
"""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def script(*names: str) -> str:
    """Return the text of one or several scripts, in this order."""
    folder = importlib.resources.files(__name__)
    return "\n".join(folder.joinpath(f"{name}.sh").read_text(encoding="utf-8") for name in names)
