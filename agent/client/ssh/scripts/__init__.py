"""Shell scripts that run on hosts over SSH, one file each: POSIX sh, on Linux and macOS alike.

`make lint` checks them with shellcheck. A script prints what it read from files with `printf '%s\\n'`, because the echo
of many shells reads backslashes.
"""

from __future__ import annotations

import functools
import importlib.resources


@functools.cache
def script(*names: str) -> str:
    """Return the text of a script; of several names, one after the other."""
    folder = importlib.resources.files(__name__)
    return "\n".join(folder.joinpath(f"{name}.sh").read_text(encoding="utf-8") for name in names)
