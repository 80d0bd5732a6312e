"""Reads the commands of a Markdown page and runs them in a shell, in the order of the page. Tests of documents call it.

The runner takes these fenced blocks and ignores all others:

- `console`: a line that begins with `$ ` is a command, and lines that begin with `> ` continue it. The other lines are
  its output.
- `sh`: commands. If the next block is `text`, it is the output of the last command, and the others print nothing.
- a block with `title="NAME"`: a file, which the runner writes into the shell's folder.

A command must exit with 0 and print the output that the page shows. In a shown output `…` matches any text, and a line
that is only `…` matches any lines. Times, dates, addresses, ports and digests may differ, and so may the width of gaps
between words. Pages show the home directory as `/home/you`. Comments in front of a block, or between blocks, mean:

- `<!-- test skip: REASON -->`: the command cannot run here.
- `<!-- test run: COMMAND -->`: run a command that the reader does not type, for example in the place of a skipped one.
- `<!-- test exit: 2 -->`: the block's last command exits with this code.
- `<!-- test varies: A | B -->`: these words of the output differ between runs; each matches any text without a space.
- `<!-- test repeat -->`: run the block's last command again until it prints the shown output, for at most a minute.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
_COMMENT = re.compile(r"<!-- test (?P<key>[a-z]+)(?:: *(?P<value>.*?))? *-->", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_SAME = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?"), "<date>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"), "<digest>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|seconds|second|s|m|h|d)(?:\d+s)?\b"), "<time>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (re.compile(r"(<address>|localhost):\d+"), r"\1:<port>"),
    (re.compile(r"[ \t]+"), " "),
)
"""Patterns of text that differs between runs, and the word that replaces it on both sides."""
_ANY = "…"
HOME = "/home/you"
"""The home directory of the reader, as pages show it."""


@dataclass(frozen=True)
class Step:
    """One command of a page, or one file that the reader writes."""

    line: int
    command: str
    output: str | None = None
    """The output that the page shows; None compares nothing."""
    code: int = 0
    varies: tuple[str, ...] = ()
    repeat: bool = False
    skip: str | None = None
    """The reason why the command cannot run in a test."""
    file: str | None = None
    """The name of the file, whose content is `command`."""


@dataclass
class _Marks:
    """The comments that precede a block."""

    skip: str | None = None
    code: int = 0
    varies: tuple[str, ...] = ()
    repeat: bool = False


class PageWrong(Exception):
    """The page has a comment or a block that the runner cannot read."""


def steps(text: str) -> list[Step]:
    """Return the commands and files of a page, in its order."""
    return list(_Reader(text).read())


@dataclass
class _Reader:
    """Reads one page from top to bottom."""

    text: str
    _marks: _Marks = field(default_factory=_Marks)

    def read(self) -> Iterator[Step]:
        lines = self.text.splitlines()
        blocks = list(_blocks(lines))
        above = 0
        for place, (start, end, info, body) in enumerate(blocks):
            yield from self._comments(lines[above:start], above)
            above = end + 1
            word = info.split()[0] if info.split() else ""
            title = _TITLE.search(info)
            if title is not None:
                yield Step(start + 1, "\n".join(body) + "\n", file=title[1])
            elif word == "console":
                yield from self._console(body, start + 2)
            elif word == "sh":
                following = blocks[place + 1] if place + 1 < len(blocks) else None
                shown = "\n".join(following[3]) if following is not None and following[2] == "text" else None
                yield from self._script(body, start + 2, shown)
            else:
                continue
            self._marks = _Marks()
        yield from self._comments(lines[above:], above)

    def _comments(self, lines: list[str], above: int) -> Iterator[Step]:
        between = "\n".join(lines)
        for match in _COMMENT.finditer(between):
            value = match["value"] or ""
            match match["key"]:
                case "run":
                    yield Step(above + 1 + between[: match.start()].count("\n"), value)
                case "skip" if value:
                    self._marks.skip = " ".join(value.split())
                case "exit":
                    self._marks.code = int(value)
                case "varies":
                    self._marks.varies = tuple(part.strip() for part in value.split("|"))
                case "repeat":
                    self._marks.repeat = True
                case other:
                    raise PageWrong(
                        f"line {above + 1}: `test {other}` is not a comment of the runner, or lacks a value"
                    )

    def _console(self, body: list[str], first: int) -> Iterator[Step]:
        commands: list[tuple[int, list[str], list[str]]] = []
        for number, line in enumerate(body, first):
            if line.startswith("$ "):
                commands.append((number, [line[2:]], []))
            elif not commands:
                raise PageWrong(f"line {number}: output before the first command")
            elif line.startswith("> ") and not commands[-1][2]:
                commands[-1][1].append(line[2:])
            else:
                commands[-1][2].append(line)
        for place, (number, command, output) in enumerate(commands):
            last = place == len(commands) - 1
            yield self._step(number, "\n".join(command), "\n".join(output), last=last)

    def _script(self, body: list[str], first: int, shown: str | None) -> Iterator[Step]:
        commands = list(_commands(body, first))
        for place, (number, command) in enumerate(commands):
            last = place == len(commands) - 1
            yield self._step(number, command, shown if last or shown is None else "", last=last)

    def _step(self, line: int, command: str, output: str | None, *, last: bool) -> Step:
        marks = self._marks
        code = marks.code if last else 0
        return Step(line, command, output, code, marks.varies, marks.repeat and last, marks.skip)


def _blocks(lines: list[str]) -> Iterator[tuple[int, int, str, list[str]]]:
    """Yield each fenced block: the indices of its first and last line, its info string, and its lines."""
    start: int | None = None
    info = indent = ""
    for index, line in enumerate(lines):
        match = _FENCE.match(line)
        if match is None:
            continue
        if start is None:
            start, info, indent = index, match["info"].strip(), match["indent"]
        elif not match["info"].strip():
            yield start, index, info, [each.removeprefix(indent) for each in lines[start + 1 : index]]
            start = None
    if start is not None:
        raise PageWrong(f"line {start + 1}: the block has no end")


def _commands(lines: list[str], first: int) -> Iterator[tuple[int, str]]:
    """Split a script where bash sees the end of a command."""
    begun: list[str] = []
    for number, line in enumerate(lines, first):
        if not begun and (not line.strip() or line.startswith("#")):
            continue
        begun.append(line)
        checked = subprocess.run(
            ["bash", "-n"], input="\n".join(begun) + "\n", capture_output=True, text=True, check=False
        )
        if not checked.stderr and not line.endswith("\\"):
            yield number - len(begun) + 1, "\n".join(begun)
            begun = []
    if begun:
        raise PageWrong(f"line {first + len(lines) - len(begun)}: bash finds no end of this command")


def difference(shown: str, printed: str, varies: tuple[str, ...] = ()) -> str | None:
    """Return what a reader would see differ between the shown and the printed output; None if they agree."""
    expected = [_pattern(line, varies) for line in _lines(shown)]
    found = _lines(printed)
    if _matches(expected, found):
        return None
    return f"the page shows\n{_indented(shown)}\nbut the command prints\n{_indented(printed)}"


def _lines(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        for pattern, word in _SAME:
            line = pattern.sub(word, line)
        lines.append(line.rstrip())
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines


def _pattern(line: str, varies: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return the pattern of one shown line; None for a line that matches any lines."""
    if line.strip() == _ANY:
        return None
    words = [re.escape(_lines(each)[0]) for each in varies if each]
    pattern = re.escape(line).replace(_ANY, ".*")
    for word in words:
        pattern = pattern.replace(word, r"\S+")
    return re.compile(pattern)


def _matches(expected: list[re.Pattern[str] | None], found: list[str]) -> bool:
    if not expected:
        return not found
    head, rest = expected[0], expected[1:]
    if head is None:
        return any(_matches(rest, found[skipped:]) for skipped in range(len(found) + 1))
    return bool(found) and head.fullmatch(found[0]) is not None and _matches(rest, found[1:])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


class CommandWrong(AssertionError):
    """A command of a page failed, took too long, or printed something else."""


class Shell:
    """One bash for a page: the folder, the variables and background jobs last from command to command."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *, limit_s: float = 240.0) -> None:
        self.folder = folder
        self.home = environment["HOME"]
        self.limit_s = limit_s
        self._files = tempfile.TemporaryDirectory(prefix="shell-")
        self._count = 0
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=dict(environment),
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End bash and what it started in the background."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        for sent in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._bash.pid, sent)
                self._bash.wait(60)
            except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
                continue
        self._files.cleanup()

    def run(self, command: str) -> tuple[int, str]:
        """Run one command and return its exit code and its output; raise `CommandWrong` if it takes too long."""
        assert self._bash.stdin is not None
        self._count += 1
        script, output, code = (Path(self._files.name) / f"{self._count}.{each}" for each in ("sh", "out", "code"))
        script.write_text(command + "\n")
        self._bash.stdin.write(
            f". {script} </dev/null >{output} 2>&1; echo $? >{code}.new; pwd >{code}.pwd; mv {code}.new {code}\n"
        )
        self._bash.stdin.flush()
        deadline = time.monotonic() + self.limit_s
        while not code.exists():
            if time.monotonic() > deadline or self._bash.poll() is not None:
                raise CommandWrong(f"`{command}` did not end in {self.limit_s:g} s; it printed\n{_read(output)}")
            time.sleep(0.02)
        self.folder = Path(Path(f"{code}.pwd").read_text().rstrip("\n"))
        return int(code.read_text()), _read(output).replace(self.home, HOME)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@dataclass
class Outcome:
    """The commands of a page that ran, and the commands that the page marks as skipped."""

    ran: list[Step] = field(default_factory=list)
    skipped: list[Step] = field(default_factory=list)


REPEAT_S = 60.0


def run_page(page: Path, shell: Shell) -> Outcome:
    """Run all commands of a page; raise `CommandWrong` with the page's line at the first that does not do as shown."""
    outcome = Outcome()
    for step in steps(page.read_text("utf-8")):
        if step.skip is not None:
            outcome.skipped.append(step)
            continue
        if step.file is not None:
            (shell.folder / step.file).write_text(step.command)
        else:
            _run(page, step, shell)
        outcome.ran.append(step)
    return outcome


def _run(page: Path, step: Step, shell: Shell) -> None:
    deadline = time.monotonic() + (REPEAT_S if step.repeat else 0.0)
    while True:
        code, printed = shell.run(step.command)
        wrong = None
        if code != step.code:
            wrong = f"it exits with {code}, and not {step.code}; it prints\n{_indented(printed)}"
        elif step.output is not None:
            wrong = difference(step.output, printed, step.varies)
        if wrong is None:
            return
        if time.monotonic() > deadline:
            raise CommandWrong(f"{page.name}:{step.line}: `{step.command}`: {wrong}")
        time.sleep(0.5)
