"""The command line of the package `herdsman-agent`: the group `agent`, `host join` and the version.

The package contains only the modules that this one imports, so it does not offer the other commands of `main`.
"""

from __future__ import annotations

import sys

from automation.cli import agent as agent  # imported by `main`, by its name
from automation.cli.exits import USAGE
from automation.cli.main import invoke
from automation.cli.output import complain

OFFERED = ("agent", "version")
JOIN = ("host", "join")
"""The only command of another group: it makes a machine a host."""


def main() -> None:
    """Run the command line; the console scripts `herdsman` and `herdsman-agent` of the package."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    words = [word for word in arguments if word != "--"]
    if tuple(words[:2]) == JOIN:
        return invoke(["agent", *words[1:]])
    if words[:1] == ["doctor"]:
        # This package has the scope `agent` only.
        rest = words[2:] if words[1:2] == ["agent"] else words[1:]
        return invoke(["agent", "doctor", *rest])
    first = next((word for word in arguments if word != "--"), "--help")
    if first in ("-h", "--help"):
        return invoke(["agent", "--help"])
    if first not in OFFERED:
        complain(
            f"the package herdsman-agent has no command `{first}`",
            hint="the package herdsman has all commands: `pip install herdsman`, in another environment",
        )
        return USAGE
    return invoke(arguments)


if __name__ == "__main__":
    main()
