"""Read an engine's finished argument list: which value a flag ends up with. Pure; used by `program.sizing`."""

from __future__ import annotations

from collections.abc import Sequence


def word_of(argv: Sequence[str], *names: str) -> str:
    """Give the value of a flag's last mention, `--flag value` or `--flag=value`; empty where it has none."""
    found = ""
    for index, argument in enumerate(argv):
        if argument in names:
            found = argv[index + 1] if index + 1 < len(argv) else ""
        elif argument.startswith(tuple(f"{name}=" for name in names)):
            found = argument.partition("=")[2]
    return found


def number_of(argv: Sequence[str], *names: str) -> int | None:
    """Give the whole number that a flag is set to; None where it is not set, or to something else."""
    word = word_of(argv, *names)
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 19 else None


def switched(argv: Sequence[str], *names: str) -> bool:
    """Tell whether a flag without a value is there."""
    return any(argument in names for argument in argv)
