"""Reads the argument list of a program: its flags and their effective values. Pure.

An argument list is a sequence of words, as a process receives it. `host_rules` parses the arguments of hosts itself,
with a table of the number of values of each flag, because its result decides what runs on a host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """One flag of an argument list, with its values."""

    index: int
    name: str
    """Empty for an argument that belongs to no flag."""
    words: tuple[str, ...]

    @property
    def value(self) -> str:
        """The first value; empty for a switch."""
        if len(self.words) > 1:
            return self.words[1]
        return self.words[0].partition("=")[2]

    @property
    def values(self) -> tuple[str, ...]:
        """All values. Some flags take several."""
        return self.words[1:] or ((self.value,) if self.value else ())

    @property
    def number(self) -> int | None:
        """The value as a whole number above zero; None for any other value."""
        text = self.value
        return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text) else None


def flags_of(arguments: Sequence[str]) -> Iterator[Flag]:
    """Split a list of arguments into flags. The words after a flag, up to the next flag, are its values."""
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if not _is_flag(word):
            yield Flag(index, "", (word,))
            index += 1
            continue
        end = index + 1
        while "=" not in word and end < len(arguments) and not _is_flag(arguments[end]):
            end += 1
        yield Flag(index, word.partition("=")[0], tuple(arguments[index:end]))
        index = end


def named_values(argv: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Yield each flag with its index and one value: the text after `=`, or else the next word."""
    for index, word in enumerate(argv):
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        if not equals:
            value = argv[index + 1] if index + 1 < len(argv) else ""
        yield flag, index, value


def word_of(argv: Sequence[str], *names: str) -> str:
    """Return the value of the last mention of a flag, `--flag value` or `--flag=value`; empty if there is none."""
    found = ""
    for flag, _, value in named_values(argv):
        if flag in names:
            found = value
    return found


def number_of(argv: Sequence[str], *names: str) -> int | None:
    """Return the value of a flag as a whole number; None if the flag is absent or has another value."""
    word = word_of(argv, *names)
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 19 else None


def switched(argv: Sequence[str], *names: str) -> bool:
    """Return whether one of the flags `names` is present without a value."""
    return any(argument in names for argument in argv)


def mentions(argv: Sequence[str], *names: str) -> bool:
    """Return whether one of the flags `names` is present, as `--flag value` or `--flag=value`."""
    return any(word.partition("=")[0] in names for word in argv)


def without_flags(argv: Sequence[str], *names: str) -> list[str]:
    """Return the arguments without the flags `names`, each with one value: `--flag value` or `--flag=value`."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if not skip and not mentions((word,), *names):
            kept.append(word)
        skip = not skip and word in names
    return kept


def dashed(name: str) -> str:
    """Return a flag's name with dashes. vLLM and TensorRT-LLM also accept underscores."""
    return name.replace("_", "-")


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag, and not a value such as `-1`."""
    return word.startswith("-") and len(word) > 1 and not word[1:2].isdigit()
